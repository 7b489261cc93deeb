"""Handles tie the answers to a question to the call that asked it.

A handle is sealed with the hub's key, bound to the principal, the tool, its arguments and a time,
and valid once. So the hub stores nothing for an open question; only the target that asked does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from secrets import token_hex
from time import time
from typing import Any

from dragoman.core.call import FOLLOW, FORM, ROOTS, SAMPLING, URL, Call, Question
from dragoman.core.cluster import MARK_CHARS, SINGLE_HUB, Ownership
from dragoman.core.errors import BadReply, InvalidInput, NeedsInput, Overloaded
from dragoman.core.principal import Principal
from dragoman.core.tool_identity import WORKFLOW

MAX_HANDLE = 256 * 1024
MARK = "~"
MAX_USED = 20_000
"""Per principal, so that one cannot exhaust the space of another."""
MAX_QUESTIONS = 16
LASTING_SECONDS = 90 * 86_400.0
"""How long a question to a run of a workflow can be answered."""


class QuestionHandles:
    def __init__(
        self,
        key: bytes,
        seconds: float,
        clock: Callable[[], float] = time,
        lasting_key: bytes | None = None,
        ownership: Ownership = SINGLE_HUB,
    ) -> None:
        """A handle names the hub that can open it, where there are several. `lasting_key` seals the
        handles of calls that runs of workflows make: they outlive the process, and the journal of
        the run uses each of them once."""
        self._key = hmac.digest(key, b"handles of questions", "sha256")
        lasting = lasting_key or key
        self._lasting_key = hmac.digest(lasting, b"lasting handles of questions", "sha256")
        self._seconds = seconds
        self._clock = clock
        self._ownership = ownership
        self._used: dict[Principal, OrderedDict[str, float]] = {}
        """The handles that each principal has used, until they expire."""

    def seal(self, call: Call, state: str) -> str:
        """Seals the target's own `state` into a handle."""
        seconds = LASTING_SECONDS if call.door == WORKFLOW else self._seconds
        expiry = self._clock() + seconds
        body = json.dumps([token_hex(8), round(expiry, 3), state]).encode()
        id = call.trace.id
        text = base64.urlsafe_b64encode(self._mac(call, id, body) + body).decode()
        text = f"{id}.{text}"  # the continuing call continues the trace
        if mark := self._ownership.mark:
            text += MARK + mark
        if len(text) > MAX_HANDLE:
            raise BadReply(
                f'"{call.tool.name}" asks a question whose state is larger than {MAX_HANDLE} bytes'
            )
        return text

    def open(self, call: Call) -> str:
        """Returns the state in the handle of `call`. An answer uses it up, `FOLLOW` does not."""
        handle = call.handle or ""
        try:
            id, _, sealed = handle[:MAX_HANDLE].partition(MARK)[0].rpartition(".")
            raw = base64.b64decode(sealed, b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _build_invalid_handle() from None
        mac, body = raw[:32], raw[32:]
        if not hmac.compare_digest(mac, self._mac(call, id, body)):
            raise _build_invalid_handle()
        nonce, expiry, state = json.loads(body)
        now = self._clock()
        if now > expiry:
            raise InvalidInput("the question has expired; start the call again")
        if call.door == WORKFLOW:
            return str(state)
        used = self._used.setdefault(call.principal, OrderedDict())
        while used and next(iter(used.values())) < now:
            used.popitem(last=False)
        if nonce in used:
            raise InvalidInput("the question has already been answered; start the call again")
        if call.answers is FOLLOW:
            return str(state)
        if len(used) >= MAX_USED:
            raise Overloaded("too many questions were answered at once; try again shortly")
        used[nonce] = expiry
        return str(state)

    def _mac(self, call: Call, id: str, body: bytes) -> bytes:
        principal = call.principal
        bound = [id, principal.kind, principal.org, principal.id, call.tool.kind, call.tool.name]
        arguments = json.dumps(call.arguments, sort_keys=True, default=repr)
        bound.append(hashlib.sha256(arguments.encode("utf-8", "replace")).hexdigest())
        key = self._lasting_key if call.door == WORKFLOW else self._key
        return hmac.digest(key, json.dumps(bound).encode() + b"\n" + body, "sha256")


def find_handle_mark(handle: str) -> str:
    """The hub that has sealed the handle, where there are several."""
    return handle[-MARK_CHARS:] if handle[-MARK_CHARS - 1 :].startswith(MARK) else ""


def _build_invalid_handle() -> InvalidInput:
    return InvalidInput(
        "invalid question handle: it was not issued to this client for this call; "
        "start the call again"
    )


NEEDS: Mapping[str, Mapping[str, Any]] = {
    FORM: {"elicitation": {"form": {}}},
    URL: {"elicitation": {"url": {}}},
    SAMPLING: {"sampling": {}},
    ROOTS: {"roots": {}},
}
"""The features a client must have declared to be asked a question of each kind."""


def can_answer(kind: str, features: Mapping[str, Any]) -> bool:
    if kind in (SAMPLING, ROOTS):
        return isinstance(features.get(kind), dict)
    elicitation = features.get("elicitation")
    if not isinstance(elicitation, dict):
        return False
    if kind == URL:
        return "url" in elicitation
    return "form" in elicitation or "url" not in elicitation  # an empty capability means forms


def build_needs_input(questions: Mapping[str, Question], call: Call) -> NeedsInput | None:
    """Builds the error for a client that cannot answer one of these; None if it can."""
    missing: dict[str, Any] = {}
    words = []
    for question in questions.values():
        if not can_answer(question.kind, call.features):
            words.append(question.text)
            for feature, needed in NEEDS[question.kind].items():
                missing[feature] = {**missing.get(feature, {}), **needed}
    if not missing:
        return None
    asked = "; ".join(words)
    return NeedsInput(
        f'"{call.tool.name}" asks for something that this client cannot answer: {asked}', missing
    )
