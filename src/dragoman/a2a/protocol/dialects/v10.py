"""1.0: the hub's own form. Requests are validated and results are sent unchanged.

Has the names of its methods, its HTTP+JSON routes, and the form of its errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.dialects import error_reader, lenient_reader, operations
from dragoman.a2a.protocol.dialects.common_shapes import camelize
from dragoman.a2a.protocol.dialects.operations import Op, RestRoutes
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.errors import METHOD_NOT_FOUND, A2aError, invalid, render_details

VERSION: Final = operations.V10
TRAITS: Final = DialectTraits(
    is_native=True,
    context_must_match=True,
    media_type="application/a2a+json",
    message_extensions_in_header=True,
    streams_errors=False,
    pushes_events=True,
    default_push_id="",
)
parse_result = parse_rest_result = lenient_reader.parse_result
parse_event = parse_rest_event = lenient_reader.parse_event
parse_error = error_reader.parse_error
parse_rest_error = error_reader.parse_rest_error

METHODS: Mapping[str, Op] = {op: op for op in operations.OPS}

VALIDATORS: Mapping[Op, validation.RequestValidator] = {
    operations.SEND: validation.validate_send,
    operations.STREAM: validation.validate_send,
    operations.GET: validation.validate_get,
    operations.LIST: validation.validate_list,
    operations.CANCEL: validation.validate_cancel,
    operations.SUBSCRIBE: validation.validate_task_key,
    operations.PUSH_SET: validation.validate_push_set,
    operations.PUSH_GET: validation.validate_push_key,
    operations.PUSH_LIST: validation.validate_push_list,
    operations.PUSH_DELETE: validation.validate_push_key,
    operations.CARD: validation.validate_card_request,
}

_MESSAGES = (operations.SEND, operations.STREAM)


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
        ("POST", "/message:send", operations.SEND),
        ("POST", "/message:stream", operations.STREAM),
        ("GET", "/tasks", operations.LIST),
        ("GET", "/extendedAgentCard", operations.CARD),
        ("POST", "/tasks/{id}:cancel", operations.CANCEL),
        ("POST", "/tasks/{id}:subscribe", operations.SUBSCRIBE),  # the specification's text
        ("GET", "/tasks/{id}:subscribe", operations.SUBSCRIBE),  # its proto
        ("GET", "/tasks/{id}", operations.GET),
        ("POST", "/tasks/{taskId}/pushNotificationConfigs", operations.PUSH_SET),
        ("GET", "/tasks/{taskId}/pushNotificationConfigs", operations.PUSH_LIST),
        ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}", operations.PUSH_GET),
        ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}", operations.PUSH_DELETE),
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
        if params.get(name, value) != value and not (op == operations.PUSH_SET and name == "id"):
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


render_rest_result = render_result
render_rest_event = render_event


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


def build_rest_request(
    op: Op, request: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], dict[str, Any] | None]:
    """Returns the HTTP method, the path below the interface's URL, the query and the body."""
    route, rest = ROUTES.by_op[op], dict(request)
    http, path = route.http, route.pattern
    tenant = rest.pop("tenant", None)
    for name in ("id", "taskId"):
        if "{" + name + "}" in path:
            path = path.replace("{" + name + "}", quote(str(rest.pop(name, "")), safe=""))
    if tenant:
        path = f"/{quote(str(tenant), safe='')}{path}"
    if http == "POST":
        return http, path, {}, rest
    return http, path, {name: render_query_value(value) for name, value in rest.items()}, None


def render_query_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
