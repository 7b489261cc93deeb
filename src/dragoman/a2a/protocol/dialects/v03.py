"""0.2 and 0.3: methods with slashes, objects and parts with a `kind`, enum values in lower case.

To a server 0.2 and 0.3 are one dialect: they differ in the card and in methods that only 0.3 has.
JSON-RPC is here; HTTP+JSON, which has other names, in `v03_rest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects import error_reader, lenient_reader, v03_rest, v03_shapes
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    CARD,
    GET,
    LIST,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    PUSH_SET,
    SEND,
    STREAM,
    SUBSCRIBE,
    V03,
    Op,
)
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.protocol.validation import put

VERSION: Final = V03
TRAITS: Final = DialectTraits(
    shares_methods=True,
    numbers_skill_calls=True,
    extensions_header="x-a2a-extensions",
    versioned_paths=True,
)

ROUTES = v03_rest.ROUTES
build_rest_request = v03_rest.build_rest_request
parse_rest_params = v03_rest.parse_rest_params
parse_rest_result = v03_rest.parse_rest_result
parse_rest_event = v03_rest.parse_rest_event
render_rest_result = v03_rest.render_rest_result
render_rest_event = v03_rest.render_rest_event
render_rest_error = v03_rest.render_rest_error
render_error = v03_shapes.render_error
parse_error = error_reader.parse_error
parse_rest_error = error_reader.parse_rest_error

_KINDS = ("task", "message", "status-update", "artifact-update")


def parse_result(op: Op, value: Any) -> Any:
    """Accepts both forms of 0.3: an object with a `kind` is JSON-RPC's, another one HTTP+JSON's."""
    if op == CARD or (isinstance(value, dict) and value.get("kind") in _KINDS):
        return lenient_reader.parse_result(op, value)
    return parse_rest_result(op, value)


def parse_event(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and value.get("kind") in _KINDS:
        return lenient_reader.parse_event(value)
    return parse_rest_event(value)


METHODS: Mapping[str, Op] = {
    "message/send": SEND,
    "message/stream": STREAM,
    "tasks/get": GET,
    "tasks/cancel": CANCEL,
    "tasks/resubscribe": SUBSCRIBE,
    "tasks/pushNotificationConfig/set": PUSH_SET,
    "tasks/pushNotificationConfig/get": PUSH_GET,
    "tasks/pushNotificationConfig/list": PUSH_LIST,
    "tasks/pushNotificationConfig/delete": PUSH_DELETE,
    "agent/getAuthenticatedExtendedCard": CARD,
    "agent/authenticatedExtendedCard": CARD,  # 0.2's drafts
}
METHOD_OF: Mapping[Op, str] = {op: method for method, op in reversed(list(METHODS.items()))}

# --- from the client ------------------------------------------------------------------------------


def parse_params(op: Op, params: Any) -> dict[str, Any]:
    if op == CARD:
        return {}
    if not isinstance(params, dict):
        raise A2aError("INVALID_PARAMS", "the parameters must be an object")
    if op in (SEND, STREAM):
        return validation.validate_send(v03_shapes.parse_send(params))
    if op == GET:
        return validation.validate_get(params)
    if op == CANCEL:
        return validation.validate_cancel(params)
    if op == SUBSCRIBE:
        return validation.validate_task_key(params)
    if op == PUSH_SET:
        return v03_shapes.parse_push_set(params)
    return v03_shapes.parse_push_key(op, params)


# --- to the client --------------------------------------------------------------------------------


def render_result(op: Op, value: Any) -> Any:
    """A card must be in this dialect already."""
    if op == SEND:
        return _render_answer(value)
    if op in (GET, CANCEL):
        return v03_shapes.render_task(value)
    if op == LIST:
        return [v03_shapes.render_task(task) for task in value.get("tasks", [])]
    if op in (PUSH_SET, PUSH_GET):
        return v03_shapes.render_task_push_config(value)
    if op == PUSH_LIST:
        return [v03_shapes.render_task_push_config(config) for config in value.get("configs", [])]
    return None if op == PUSH_DELETE else value


def render_event(event: Mapping[str, Any], *, final: bool) -> dict[str, Any]:
    if "statusUpdate" in event:
        update = event["statusUpdate"]
        return {
            **update,
            "kind": "status-update",
            "status": v03_shapes.render_status(update["status"]),
            "final": final,
        }
    if "artifactUpdate" in event:
        update = event["artifactUpdate"]
        artifact = v03_shapes.render_artifact(update["artifact"])
        return {**update, "kind": "artifact-update", "artifact": artifact}
    return _render_answer(event)


def _render_answer(value: Mapping[str, Any]) -> dict[str, Any]:
    if "task" in value:
        return v03_shapes.render_task(value["task"])
    return v03_shapes.render_message(value["message"])


def render_push(event: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    return v03_shapes.render_task(task)


# --- the hub as client ----------------------------------------------------------------------------


def build_request(op: Op, request: Mapping[str, Any]) -> tuple[str, Any]:
    if op not in METHOD_OF:
        raise A2aError("UNSUPPORTED_OPERATION", f"A2A {VERSION} has no operation {op}")
    return METHOD_OF[op], _build_params(op, request)


def _build_params(op: Op, request: Mapping[str, Any]) -> Any:
    if op in (SEND, STREAM):
        return v03_shapes.render_skill_call(v03_shapes.render_send(request))
    if op == PUSH_SET:
        return v03_shapes.render_task_push_config(request)
    if op in (PUSH_GET, PUSH_LIST, PUSH_DELETE):
        key: dict[str, Any] = {"id": request.get("taskId", "")}
        return put(key, pushNotificationConfigId=request.get("id"))
    if op == CARD:
        return {}
    return put(
        {"id": request.get("id", "")},
        historyLength=request.get("historyLength"),
        metadata=request.get("metadata"),
    )
