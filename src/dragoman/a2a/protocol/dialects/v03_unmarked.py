"""0.3 for clients that mark neither messages nor parts with a `kind`.

fasta2a 2.1 is one: it uses the methods and enum values of 0.3, the parts of 1.0, and reads answers
and events inside a member named after their type. Other such clients read plain 0.3, so an answer
has both: the object of 0.3, and a copy in that member. Only for answers to a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.a2a.protocol.dialects import v03, v03_shapes
from dragoman.a2a.protocol.dialects.operations import SEND, V03, Op

VERSION: Final = V03
TRAITS: Final = v03.TRAITS
METHODS = v03.METHODS
parse_params = v03.parse_params
parse_result = v03.parse_result
parse_event = v03.parse_event
parse_error = v03.parse_error
parse_rest_error = v03.parse_rest_error
render_error = v03.render_error
render_push = v03.render_push
build_request = v03.build_request
build_rest_request = v03.build_rest_request


def is_unmarked(params: Any) -> bool:
    """Whether a message has neither the `kind` of 0.3 nor the `type` of 0.1."""
    message = params.get("message") if isinstance(params, dict) else None
    if not isinstance(message, dict) or "kind" in message:
        return False
    parts = message.get("parts")
    if not isinstance(parts, list):
        return False
    return not any(isinstance(part, dict) and ("kind" in part or "type" in part) for part in parts)


def render_result(op: Op, value: Any) -> Any:
    found = v03.render_result(op, value)
    return {**found, **_wrap(value)} if op == SEND else found


def render_event(event: Mapping[str, Any], *, final: bool) -> dict[str, Any]:
    return {**v03.render_event(event, final=final), **_wrap(event)}


def _wrap(event: Mapping[str, Any]) -> dict[str, Any]:
    """Renders the enum values of 0.3 with the parts of 1.0."""
    if "task" in event:
        task = event["task"]
        out = {**task, "status": _render_status(task["status"])}
        if "history" in task:
            out["history"] = [_render_message(message) for message in task["history"]]
        return {"task": out}
    if "statusUpdate" in event:
        update = event["statusUpdate"]
        return {"statusUpdate": {**update, "status": _render_status(update["status"])}}
    if "artifactUpdate" in event:
        return {"artifactUpdate": event["artifactUpdate"]}
    return {"message": _render_message(event["message"])}


def _render_status(status: Mapping[str, Any]) -> dict[str, Any]:
    out = v03_shapes.render_status(status)
    if "message" in status:
        out["message"] = _render_message(status["message"])
    return out


def _render_message(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**v03_shapes.render_message(message), "parts": message.get("parts", [])}
