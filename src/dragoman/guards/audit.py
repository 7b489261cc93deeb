"""Records every call: its intent before it is made, its outcome after.

Outermost, so that refused and unknown calls are recorded too. If the intent cannot be stored, the
call is refused. Argument values are never stored, only a keyed hash and their size.

A call that asks how a task stands is recorded if it has the outcome, or is refused: the record of
the call that began the task says that it is parked.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any

import msgspec

from dragoman.core import errors
from dragoman.core.call import Call, Notes, Result
from dragoman.core.pipeline import Next
from dragoman.core.ports import AuditLog
from dragoman.core.redaction import (
    MAX_NAME,
    list_secrets,
    redact_message,
    render_name,
    select_numbers,
    shorten,
)
from dragoman.core.tool import TOOL
from dragoman.core.urls import render_uri

OUTCOMES: tuple[tuple[type[errors.HubError], str], ...] = (
    (errors.Refused, "refused"),
    (errors.StorageFailed, "refused"),
    (errors.NotFound, "not_found"),
    (errors.InvalidInput, "invalid"),
    (errors.TargetFailed, "target_failed"),
)

PERMIT, DENY = "permit", "deny"

MAX_LISTED = 32
"""Of policies, labels and tools of a chain; further ones are counted."""

_encode = msgspec.json.Encoder().encode


class Audit:
    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def __call__(self, next: Next, call: Call) -> Coroutine[Any, Any, Result]:
        if call.task is not None and call.polls:
            return self._poll(next, call)
        return self._run(next, call)

    async def _run(self, next: Next, call: Call) -> Result:
        started = time.perf_counter()
        try:
            seq = self._log.intend(intent_from_call(call, self._log.hash_arguments))
        except errors.HubError:
            raise
        except Exception as error:
            raise _build_unrecorded(call) from error
        try:
            result = await next(call)
        except BaseException as error:
            conclusion: dict[str, Any] = {"outcome": "crashed"}
            try:
                conclusion = conclusion_from_error(error, call)
            finally:
                self._conclude(seq, conclusion, started, call)
            raise
        outcome = "asked" if result.questions else "failed" if result.failed else "completed"
        if result.unfinished:
            outcome = "parked"
        self._conclude(seq, {"outcome": outcome}, started, call)
        return result

    async def _poll(self, next: Next, call: Call) -> Result:
        """Nothing is sent by it, so it is recorded afterwards; an outcome that cannot be recorded
        is not delivered, and is asked for again."""
        started = time.perf_counter()
        try:
            result = await next(call)
        except errors.PASSING:
            raise
        except Exception as error:
            self._record_poll(call, conclusion_from_error(error, call), started)
            raise
        if not result.unfinished:
            outcome = "asked" if result.questions else "failed" if result.failed else "completed"
            self._record_poll(call, {"outcome": outcome}, started)
        return result

    def _record_poll(self, call: Call, conclusion: dict[str, Any], started: float) -> None:
        try:
            seq = self._log.intend(intent_from_call(call, self._log.hash_arguments))
        except errors.HubError:
            raise
        except Exception as error:
            raise _build_unrecorded(call) from error
        self._conclude(seq, conclusion, started, call)

    def _conclude(self, seq: int, conclusion: dict[str, Any], started: float, call: Call) -> None:
        # Truncated, not rounded: `round` takes three times as long.
        if call.notes.labels and call.trace.parent is None:  # found after the intent was recorded
            conclusion["labels"] = _list_bounded(tuple(sorted(call.notes.labels)))
        conclusion["duration_ms"] = int((time.perf_counter() - started) * 1e6) / 1000
        _add_notes(conclusion, call.notes)
        self._log.conclude(seq, conclusion)


def _build_unrecorded(call: Call) -> errors.StorageFailed:
    return errors.StorageFailed(
        f'"{shorten(call.requested_name)}" was refused: it cannot be recorded'
    )


def intent_from_call(call: Call, hash_arguments: Callable[[bytes], str]) -> dict[str, Any]:
    try:
        arguments = _encode(call.arguments)
    except Exception:  # numbers over 64 bits, lone surrogates: still JSON
        arguments = json.dumps(call.arguments, default=repr).encode()
    verb, asked, principal, trace = call.tool.name, call.requested_name, call.principal, call.trace
    label, tool = principal.label, call.tool
    if tool.kind != TOOL:
        verb, asked = render_name(verb, tool.kind), render_name(asked, tool.kind)
    if len(verb) + len(asked) + len(label) > MAX_NAME or not (
        verb.isascii() and asked.isascii() and label.isascii()
    ):
        verb, asked, label = shorten(verb), shorten(asked), shorten(label)
    entry = {
        "verb": verb,
        "asked_as": asked,
        "caller": label,
        "org": principal.org,
        "door": call.door,
        "trace": trace.id,
        "depth": len(trace.chain),
        "target": call.tool.target.name,
        "args_mac": hash_arguments(arguments),
        "args_bytes": len(arguments),
    }
    if tool.kind != TOOL:
        entry["kind"] = tool.kind
    if tool.bridged is not None:
        entry["agent"] = shorten(tool.bridged.card_id)
    if call.task is not None and call.sends_nothing:
        entry["task"] = call.task.action
    if trace.chain:
        verbs = tuple(render_uri(verb) if ":" in verb else verb for verb in trace.chain)
        entry["chain"] = _list_bounded(verbs)
    if trace.parent is not None and trace.labels:
        entry["labels"] = _list_bounded(tuple(sorted(trace.labels)))
    if behalf := trace.origin or principal.behalf:
        entry["on_behalf_of"] = shorten(behalf)
    return entry


def _add_notes(conclusion: dict[str, Any], notes: Notes) -> None:
    """Ids of policies and tasks, and what a remote agent reports, are foreign text: bounded."""
    decision = notes.decision
    if decision is not None:
        conclusion["decision"] = PERMIT if decision.allowed else DENY
        if decision.policies:
            conclusion["policies"] = _list_policies(decision.policies)
        conclusion["policy_set"] = decision.snapshot
        if decision.errors:
            conclusion["policy_errors"] = _list_bounded(decision.errors)
        shadow = decision.shadow
        if shadow is not None and not shadow.allowed:
            conclusion["shadow"] = {"decision": DENY, "policies": _list_policies(shadow.policies)}
    if notes.approval_id:
        conclusion["approval"] = notes.approval_id
        if notes.is_repeated:
            conclusion["repeated"] = True
    if notes.remote_task is not None:
        conclusion["far_task"] = shorten(notes.remote_task)
    if notes.usage is not None:
        conclusion["usage"] = select_numbers(notes.usage)
    if notes.sources is not None:
        conclusion["sources"] = {label: shorten(why) for label, why in notes.sources.items()}
    if notes.flows:
        conclusion["taint"] = [
            {name: shorten(text) for name, text in one.items()} for one in notes.flows
        ]
    if notes.repeats is not None:
        conclusion["repeats"] = notes.repeats


def _list_bounded(words: tuple[str, ...]) -> list[str]:
    listed = [shorten(word) for word in words[:MAX_LISTED]]
    if len(words) > MAX_LISTED:
        listed.append(f"… and {len(words) - MAX_LISTED} more")
    return listed


# The same policies decide most calls. Only for ids of policies, which operators choose: a cache of
# names that callers choose would keep them, however long they are.
_list_policies = lru_cache(maxsize=256)(_list_bounded)


def conclusion_from_error(error: BaseException, call: Call) -> dict[str, Any]:
    if isinstance(error, asyncio.CancelledError):
        why = error.args[0] if error.args else None
        more = {"message": shorten(why)} if isinstance(why, str) and why else {}
        return {"outcome": "cancelled", **more}
    if not isinstance(error, Exception):
        return {"outcome": "crashed"}
    for kind, outcome in OUTCOMES:
        if isinstance(error, kind):
            message = redact_message(str(error), list_secrets(call))
            return {"outcome": outcome, "error": error.kind, "message": message}
    return {"outcome": "crashed", "error": type(error).__name__}
