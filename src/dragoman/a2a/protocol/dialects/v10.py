"""1.0: the hub's own form. Requests are validated and results are sent unchanged.

Has the names of its methods, its HTTP+JSON routes, and the form of its errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects.common_shapes import camelize
from dragoman.a2a.protocol.dialects.error_reader import parse_error, parse_rest_error
from dragoman.a2a.protocol.dialects.lenient_reader import parse_event, parse_result
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
    RestRoutes,
)
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.errors import METHOD_NOT_FOUND, A2aError, invalid, render_details

__all__ = [
    "METHODS",
    "ROUTES",
    "TRAITS",
    "VERSION",
    "build_request",
    "build_rest_request",
    "parse_error",
    "parse_event",
    "parse_params",
    "parse_rest_error",
    "parse_rest_event",
    "parse_rest_params",
    "parse_rest_result",
    "parse_result",
    "render_error",
    "render_event",
    "render_push",
    "render_rest_error",
    "render_rest_event",
    "render_rest_result",
    "render_result",
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

VALIDATORS: Mapping[Op, validation.RequestValidator] = {
    SEND: validation.validate_send,
    STREAM: validation.validate_send,
    GET: validation.validate_get,
    LIST: validation.validate_list,
    CANCEL: validation.validate_cancel,
    SUBSCRIBE: validation.validate_task_key,
    PUSH_SET: validation.validate_push_set,
    PUSH_GET: validation.validate_push_key,
    PUSH_LIST: validation.validate_push_list,
    PUSH_DELETE: validation.validate_push_key,
    CARD: validation.validate_card_request,
}

_MESSAGES = (SEND, STREAM)


def parse_params(op: Op, params: Any) -> dict[str, Any]:
    if op not in _MESSAGES:
        return VALIDATORS[op](camelize({} if params is None else params))
    try:
        return validation.validate_send(params)
    except A2aError:
        # proto-JSON allows the proto's names. Clients rarely send them, so they are converted only
        # where a required member is missing.
        message = params.get("message") if isinstance(params, dict) else None
        if not isinstance(message, dict) or "message_id" not in message:
            raise
        return validation.validate_send(camelize(params))


def render_result(op: Op, value: Any) -> Any:
    return value


def render_event(event: dict[str, Any], *, final: bool) -> dict[str, Any]:
    return event


def render_push(event: dict[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    return event


def render_error(error: A2aError) -> dict[str, Any]:
    return {"code": error.codes.code, "message": error.message, "data": render_details(error)}


def build_request(op: Op, request: Mapping[str, Any]) -> tuple[str, Any]:
    return op, request


# --- HTTP+JSON (section 11) -----------------------------------------------------------------------

ROUTES = RestRoutes(
    (
        ("POST", "/message:send", SEND),
        ("POST", "/message:stream", STREAM),
        ("GET", "/tasks", LIST),
        ("GET", "/extendedAgentCard", CARD),
        ("POST", "/tasks/{id}:cancel", CANCEL),
        ("POST", "/tasks/{id}:subscribe", SUBSCRIBE),  # the specification's text
        ("GET", "/tasks/{id}:subscribe", SUBSCRIBE),  # its proto
        ("GET", "/tasks/{id}", GET),
        ("POST", "/tasks/{taskId}/pushNotificationConfigs", PUSH_SET),
        ("GET", "/tasks/{taskId}/pushNotificationConfigs", PUSH_LIST),
        ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}", PUSH_GET),
        ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}", PUSH_DELETE),
    )
)
"""Below the interface's URL, or below the tenant's path there."""

_COUNTS = ("historyLength", "pageSize")
_FLAGS: Mapping[str, bool] = {"true": True, "false": False}


def parse_rest_params(
    op: Op, path: Mapping[str, str], query: Mapping[str, str], body: Any
) -> dict[str, Any]:
    """`path` has the values in the path; `query` and `body` are decoded and otherwise unchanged."""
    if op in _MESSAGES:
        return parse_params(op, body)
    params = parse_query(query)
    if isinstance(body, dict):
        params.update(camelize(body))
    elif body is not None:
        raise invalid("body", "must be an object")
    for name, value in path.items():
        if params.get(name, value) != value and not (op == PUSH_SET and name == "id"):
            raise invalid(name, "differs from the one in the path")
        params[name] = value
    return VALIDATORS[op](params)


def parse_query(query: Mapping[str, str]) -> dict[str, Any]:
    params: dict[str, Any] = camelize(dict(query))
    for name in _COUNTS:
        value = params.get(name)
        if isinstance(value, str):
            params[name] = int(value) if value.isdecimal() and len(value) < 11 else value
    flag = params.get("includeArtifacts")
    if isinstance(flag, str):
        params["includeArtifacts"] = _FLAGS.get(flag.lower(), flag)
    return params


parse_rest_result = parse_result
parse_rest_event = parse_event


def render_rest_result(op: Op, value: Any) -> Any:
    return value


def render_rest_event(event: dict[str, Any], *, final: bool) -> dict[str, Any]:
    return event


def render_rest_error(error: A2aError) -> tuple[int, dict[str, Any]]:
    row = error.codes
    return row.http, {
        "error": {
            "code": row.http,
            # UNIMPLEMENTED would say that a later server may have the path
            "status": "NOT_FOUND" if error.reason == METHOD_NOT_FOUND else row.grpc,
            "message": error.message,
            "details": render_details(error),
        }
    }


_REQUESTS: Mapping[Op, tuple[str, str]] = {
    **{route.op: (route.http, route.pattern) for route in reversed(ROUTES.table)}
}


def build_rest_request(
    op: Op, request: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], dict[str, Any] | None]:
    """Returns the HTTP method, the path below the interface's URL, the query and the body."""
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
    return http, path, {name: render_query_value(value) for name, value in rest.items()}, None


def render_query_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
