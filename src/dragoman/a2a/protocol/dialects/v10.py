"""1.0: the hub's own form. A request is looked at and goes on as it is, a result goes out as it is.

Here are the names of its methods, its HTTP+JSON routes, and how its errors are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects.common_shapes import camelled
from dragoman.a2a.protocol.dialects.error_reader import error_in, rest_error_in
from dragoman.a2a.protocol.dialects.lenient_reader import event_in, result_in
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    CARD,
    GET,
    LIST,
    OPS,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    PUSH_SET,
    SEND,
    STREAM,
    SUBSCRIBE,
    V10,
    Op,
    Routes,
)
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.errors import METHOD_NOT_FOUND, A2aError, details, invalid

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

VERSION: Final = V10
TRAITS: Final = DialectTraits(
    is_native=True,
    context_must_match=True,
    media_type="application/a2a+json",
    message_extensions_in_header=True,
    streams_errors=False,
    pushes_events=True,
    default_push_id="",
)

METHODS: Mapping[str, Op] = {op: op for op in OPS}

READERS: Mapping[Op, validation.Reader] = {
    SEND: validation.send_of,
    STREAM: validation.send_of,
    GET: validation.get_of,
    LIST: validation.list_of,
    CANCEL: validation.cancel_of,
    SUBSCRIBE: validation.task_of,
    PUSH_SET: validation.push_set_of,
    PUSH_GET: validation.push_of,
    PUSH_LIST: validation.push_list_of,
    PUSH_DELETE: validation.push_of,
    CARD: validation.card_of,
}

_MESSAGES = (SEND, STREAM)


def params_in(op: Op, params: Any) -> dict[str, Any]:
    if op not in _MESSAGES:
        return READERS[op](camelled({} if params is None else params))
    try:
        return validation.send_of(params)
    except A2aError:
        # Perhaps with the proto's names, which proto-JSON allows; nearly nobody writes them, so
        # they are looked for only where a required one is missing.
        message = params.get("message") if isinstance(params, dict) else None
        if not isinstance(message, dict) or "message_id" not in message:
            raise
        return validation.send_of(camelled(params))


def result_out(op: Op, value: Any) -> Any:
    return value


def event_out(event: dict[str, Any], *, final: bool) -> dict[str, Any]:
    return event


def push_out(event: dict[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    return event


def error_out(error: A2aError) -> dict[str, Any]:
    return {"code": error.row.code, "message": error.message, "data": details(error)}


def params_out(op: Op, request: Mapping[str, Any]) -> tuple[str, Any]:
    return op, request


# --- HTTP+JSON (section 11) -----------------------------------------------------------------------

ROUTES = Routes(
    (
        ("POST", "/message:send", SEND),
        ("POST", "/message:stream", STREAM),
        ("GET", "/tasks", LIST),
        ("GET", "/extendedAgentCard", CARD),
        ("POST", "/tasks/{id}:cancel", CANCEL),
        ("POST", "/tasks/{id}:subscribe", SUBSCRIBE),  # so the text has it,
        ("GET", "/tasks/{id}:subscribe", SUBSCRIBE),  # so the proto
        ("GET", "/tasks/{id}", GET),
        ("POST", "/tasks/{taskId}/pushNotificationConfigs", PUSH_SET),
        ("GET", "/tasks/{taskId}/pushNotificationConfigs", PUSH_LIST),
        ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}", PUSH_GET),
        ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}", PUSH_DELETE),
    )
)
"""Below the interface's URL; with a tenant, below that and the tenant."""

_COUNTS = ("historyLength", "pageSize")
_FLAGS: Mapping[str, bool] = {"true": True, "false": False}


def rest_params_in(
    op: Op, path: Mapping[str, str], query: Mapping[str, str], body: Any
) -> dict[str, Any]:
    """`path` is what the route found in the path; `query` and `body` as they came, decoded."""
    if op in _MESSAGES:
        return params_in(op, body)
    params = query_in(query)
    if isinstance(body, dict):
        params.update(camelled(body))
    elif body is not None:
        raise invalid("body", "must be an object")
    for name, value in path.items():
        if params.get(name, value) != value and not (op == PUSH_SET and name == "id"):
            raise invalid(name, "is not the one in the path")
        params[name] = value
    return READERS[op](params)


def query_in(query: Mapping[str, str]) -> dict[str, Any]:
    params: dict[str, Any] = camelled(dict(query))
    for name in _COUNTS:
        value = params.get(name)
        if isinstance(value, str):
            params[name] = int(value) if value.isdecimal() and len(value) < 11 else value
    flag = params.get("includeArtifacts")
    if isinstance(flag, str):
        params["includeArtifacts"] = _FLAGS.get(flag.lower(), flag)
    return params


rest_result_in = result_in
rest_event_in = event_in


def rest_result_out(op: Op, value: Any) -> Any:
    return value


def rest_event_out(event: dict[str, Any], *, final: bool) -> dict[str, Any]:
    return event


def rest_error_out(error: A2aError) -> tuple[int, dict[str, Any]]:
    row = error.row
    return row.http, {
        "error": {
            "code": row.http,
            # an unknown path is not one that a later server may have
            "status": "NOT_FOUND" if error.reason == METHOD_NOT_FOUND else row.grpc,
            "message": error.message,
            "details": details(error),
        }
    }


_REQUESTS: Mapping[Op, tuple[str, str]] = {
    **{route.op: (route.http, route.pattern) for route in reversed(ROUTES.table)},
}


def rest_request_out(
    op: Op, request: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], dict[str, Any] | None]:
    """For a client: the HTTP method, the path below the interface's URL, the query, the body."""
    http, pattern = _REQUESTS[op]
    rest = dict(request)
    tenant = rest.pop("tenant", None)
    path = pattern
    for name in ("id", "taskId"):
        if "{" + name + "}" in pattern:
            path = path.replace("{" + name + "}", quote(str(rest.pop(name, "")), safe=""))
    if tenant:
        path = f"/{quote(str(tenant), safe='')}{path}"
    if http == "POST":
        return http, path, {}, rest
    return http, path, {name: query_out(value) for name, value in rest.items()}, None


def query_out(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
