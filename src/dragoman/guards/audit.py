"""One record of every call: what is about to be done before it is done, what came of it after.

Outermost, so that refused and unknown calls are recorded too. If the intent cannot be stored the
call is refused. What the arguments say is never stored, only their hash and size.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from dragoman.core.call import Call, Result
from dragoman.core.errors import (
    Full,
    HubError,
    InvalidInput,
    NotFound,
    Refused,
    TargetFailed,
)
from dragoman.core.pipeline import Next
from dragoman.core.ports import AuditLog
from dragoman.core.tool import TOOL

OUTCOMES: tuple[tuple[type[HubError], str], ...] = (
    (Refused, "refused"),
    (NotFound, "not_found"),
    (InvalidInput, "invalid"),
    (TargetFailed, "target_failed"),
)

MAX_NAME = 200
MAX_MESSAGE = 300
MAX_SEARCHED = 16_384
MAX_VALUES = 200
TELLING = 12
"""So many characters of a value are enough to know it again where it was cut short."""

_encode = msgspec.json.Encoder().encode
_sha256 = sha256()
"""To be copied: to make a new one takes several times as long."""


class Audit:
    def __init__(self, log: AuditLog) -> None:
        self._log = log

    async def __call__(self, call: Call, next: Next) -> Result:
        started = time.perf_counter()
        try:
            seq = self._log.intend(intent_from_call(call))
        except HubError:
            raise
        except Exception as error:
            raise Full(f'"{_short(call.asked_as)}" was refused: it cannot be recorded') from error
        try:
            result = await next(call)
        except BaseException as error:
            conclusion: dict[str, Any] = {"outcome": "crashed"}
            try:
                conclusion = conclusion_from_error(error, call)
            finally:
                self._conclude(seq, conclusion, started)
            raise
        outcome = "asked" if result.questions else "failed" if result.failed else "completed"
        self._conclude(seq, {"outcome": outcome}, started)
        return result

    def _conclude(self, seq: int, conclusion: dict[str, Any], started: float) -> None:
        conclusion["duration_ms"] = round((time.perf_counter() - started) * 1000, 3)
        self._log.conclude(seq, conclusion)


def intent_from_call(call: Call) -> dict[str, Any]:
    try:
        arguments = _encode(call.arguments)
    except Exception:  # numbers over 64 bits, lone surrogates: JSON all the same
        arguments = json.dumps(call.arguments, default=repr).encode()
    digest = _sha256.copy()
    digest.update(arguments)
    verb, asked, caller, trace = call.tool.name, call.asked_as, call.caller, call.trace
    label = caller.label
    if len(verb) + len(asked) + len(label) > MAX_NAME or not (
        verb.isascii() and asked.isascii() and label.isascii()
    ):
        verb, asked, label = _short(verb), _short(asked), _short(label)
    entry = {
        "verb": verb,
        "asked_as": asked,
        "caller": label,
        "org": caller.org,
        "door": call.door,
        "trace": trace.id,
        "depth": len(trace.chain),
        "args_sha256": digest.hexdigest(),
        "args_bytes": len(arguments),
    }
    if call.tool.kind != TOOL:
        entry["kind"] = call.tool.kind
    return entry


def conclusion_from_error(error: BaseException, call: Call) -> dict[str, Any]:
    if isinstance(error, asyncio.CancelledError):
        return {"outcome": "cancelled"}
    if not isinstance(error, Exception):
        return {"outcome": "crashed"}
    for kind, outcome in OUTCOMES:
        if isinstance(error, kind):
            message = _message_without_values(str(error), call.arguments)
            return {"outcome": outcome, "error": error.kind, "message": message}
    return {"outcome": "crashed", "error": type(error).__name__}


def _short(text: str) -> str:
    """Names come from callers: bounded, and such that it can be stored."""
    if len(text) > MAX_NAME:
        text = text[: MAX_NAME - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _message_without_values(message: str, arguments: Any) -> str:
    """Validators and far sides repeat what they were given; the audit must not."""
    if len(message) > MAX_SEARCHED:
        return f"(not kept: a message of {len(message)} characters)"
    values: set[str | int | float] = set()
    for value in _values(arguments):
        if len(values) >= MAX_VALUES:
            return "(not kept: too many arguments to look for in it)"
        values.add(value)
    forms = {form for value in values for form in _written(value)}
    for form in sorted(forms, key=len, reverse=True):
        message = _without(message, form)
    message = message.encode("utf-8", "replace").decode()
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"


def _values(value: Any) -> Iterator[str | int | float]:
    """Every text and number in the arguments, without recursion: callers choose the depth."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
            yield value


def _written(value: str | int | float) -> Iterator[str]:
    """The ways a value is likely to be written in a message."""
    if not isinstance(value, str):
        yield repr(value)
        return
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]


def _without(message: str, form: str) -> str:
    if form[:TELLING] not in message:
        return message  # as nearly always: an expression costs a hundred times more
    if len(form) < TELLING:
        return re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "…", message)
    pieces = []
    rest = message
    while (at := rest.find(form[:TELLING])) >= 0:
        pieces.append(rest[:at])
        rest = rest[at:]
        same = (n for n, (one, other) in enumerate(zip(rest, form, strict=False)) if one != other)
        rest = rest[next(same, min(len(rest), len(form))) :]
    return "…".join([*pieces, rest])
