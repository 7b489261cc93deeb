"""0.3 for clients that mark neither messages nor parts with a `kind`.

fasta2a 2.1 is one: it has the methods and words of 0.3, the parts of 1.0, and reads answers and
events inside a member that says what they are. Other such clients read plain 0.3, so an answer has
both: the object of 0.3, and the same once more in that member. Only for answers to a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.a2a.protocol.dialects import v03, v03_shapes
from dragoman.a2a.protocol.dialects.operations import SEND, V03, Op
from dragoman.a2a.protocol.dialects.v03 import (
    METHODS,
    error_in,
    error_out,
    event_in,
    params_in,
    params_out,
    push_out,
    rest_error_in,
    rest_request_out,
    result_in,
)

__all__ = [
    "METHODS",
    "TRAITS",
    "VERSION",
    "error_in",
    "error_out",
    "event_in",
    "event_out",
    "params_in",
    "params_out",
    "push_out",
    "rest_error_in",
    "rest_request_out",
    "result_in",
    "result_out",
]

VERSION: Final = V03
TRAITS: Final = v03.TRAITS


def is_unmarked(params: Any) -> bool:
    """Whether a message is in this dialect. Others of 0.3 say `kind`, and those of 0.1 `type`."""
    message = params.get("message") if isinstance(params, dict) else None
    if not isinstance(message, dict) or "kind" in message:
        return False
    parts = message.get("parts")
    if not isinstance(parts, list):
        return False
    return not any(isinstance(part, dict) and ("kind" in part or "type" in part) for part in parts)


def result_out(op: Op, value: Any) -> Any:
    found = v03.result_out(op, value)
    return {**found, **_wrapped(value)} if op == SEND else found


def event_out(event: Mapping[str, Any], *, final: bool) -> dict[str, Any]:
    return {**v03.event_out(event, final=final), **_wrapped(event)}


def _wrapped(event: Mapping[str, Any]) -> dict[str, Any]:
    """The words of 0.3 around the parts of 1.0."""
    if "task" in event:
        task = event["task"]
        out = {**task, "status": _status(task["status"])}
        if "history" in task:
            out["history"] = [_message(message) for message in task["history"]]
        return {"task": out}
    if "statusUpdate" in event:
        update = event["statusUpdate"]
        return {"statusUpdate": {**update, "status": _status(update["status"])}}
    if "artifactUpdate" in event:
        return {"artifactUpdate": event["artifactUpdate"]}
    return {"message": _message(event["message"])}


def _status(status: Mapping[str, Any]) -> dict[str, Any]:
    out = v03_shapes.status_out(status)
    if "message" in status:
        out["message"] = _message(status["message"])
    return out


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**v03_shapes.message_out(message), "parts": message.get("parts", [])}
