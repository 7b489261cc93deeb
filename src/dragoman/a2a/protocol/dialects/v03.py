"""0.2 and 0.3: methods with slashes, objects and parts that say their `kind`, words in lower case.

0.2 and 0.3 differ in the card and in some methods that only the later has; to a server they are
one. JSON-RPC is here; HTTP+JSON, which has other names, in `rest03`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects import lenient_reader
from dragoman.a2a.protocol.dialects.common_shapes import put
from dragoman.a2a.protocol.dialects.error_reader import error_in, rest_error_in
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
from dragoman.a2a.protocol.dialects.v03_rest import (
    ROUTES,
    rest_error_out,
    rest_event_in,
    rest_event_out,
    rest_params_in,
    rest_request_out,
    rest_result_in,
    rest_result_out,
)
from dragoman.a2a.protocol.dialects.v03_shapes import (
    CODES_DOWN,
    artifact_out,
    error_data,
    message_out,
    push_config_out,
    push_key_in,
    push_set_in,
    send_in,
    send_out,
    skill_out,
    status_out,
    task_out,
)
from dragoman.a2a.protocol.errors import A2aError

__all__ = [
    "METHODS",
    "ROUTES",
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
    "rest_error_out",
    "rest_event_in",
    "rest_event_out",
    "rest_params_in",
    "rest_request_out",
    "rest_result_in",
    "rest_result_out",
    "result_in",
    "result_out",
]

VERSION: Final = V03
TRAITS: Final = DialectTraits(
    shares_methods=True,
    numbers_skill_calls=True,
    extensions_header="x-a2a-extensions",
    versioned_paths=True,
)

_KINDS = ("task", "message", "status-update", "artifact-update")


def result_in(op: Op, value: Any) -> Any:
    """Of either form of 0.3: they differ in members that only one of them has, and one that says
    its kind is JSON-RPC's."""
    if isinstance(value, dict) and value.get("kind") in _KINDS:
        return lenient_reader.result_in(op, value)
    return rest_result_in(op, value)


def event_in(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and value.get("kind") in _KINDS:
        return lenient_reader.event_in(value)
    return rest_event_in(value)


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


def params_in(op: Op, params: Any) -> dict[str, Any]:
    if op == CARD:
        return {}
    if not isinstance(params, dict):
        raise A2aError("INVALID_PARAMS", "the parameters must be an object")
    if op in (SEND, STREAM):
        return validation.send_of(send_in(params))
    if op == GET:
        return validation.get_of(params)
    if op == CANCEL:
        return validation.cancel_of(params)
    if op == SUBSCRIBE:
        return validation.task_of(params)
    if op == PUSH_SET:
        return push_set_in(params)
    return push_key_in(op, params)


# --- to the client --------------------------------------------------------------------------------


def result_out(op: Op, value: Any) -> Any:
    """The card of an answer must be in this dialect already."""
    if op == SEND:
        return task_out(value["task"]) if "task" in value else message_out(value["message"])
    if op in (GET, CANCEL):
        return task_out(value)
    if op == LIST:
        return [task_out(task) for task in value.get("tasks", [])]
    if op in (PUSH_SET, PUSH_GET):
        return push_config_out(value)
    if op == PUSH_LIST:
        return [push_config_out(config) for config in value.get("configs", [])]
    return None if op == PUSH_DELETE else value


def event_out(event: Mapping[str, Any], *, final: bool) -> dict[str, Any]:
    if "statusUpdate" in event:
        update = event["statusUpdate"]
        return {
            **update,
            "kind": "status-update",
            "status": status_out(update["status"]),
            "final": final,
        }
    if "artifactUpdate" in event:
        update = event["artifactUpdate"]
        artifact = artifact_out(update["artifact"])
        return {**update, "kind": "artifact-update", "artifact": artifact}
    return task_out(event["task"]) if "task" in event else message_out(event["message"])


def push_out(event: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    return task_out(task)


def error_out(error: A2aError) -> dict[str, Any]:
    code = error.row.code
    return {
        "code": CODES_DOWN.get(code, code),
        "message": error.message,
        "data": error_data(error),
    }


# --- the hub as client ----------------------------------------------------------------------------


def params_out(op: Op, request: Mapping[str, Any]) -> tuple[str, Any]:
    if op not in METHOD_OF:
        raise A2aError("UNSUPPORTED_OPERATION", f"agents of A2A {VERSION} have no {op}")
    return METHOD_OF[op], _params_out(op, request)


def _params_out(op: Op, request: Mapping[str, Any]) -> Any:
    if op in (SEND, STREAM):
        return skill_out(send_out(request))
    if op == PUSH_SET:
        return push_config_out(request)
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
