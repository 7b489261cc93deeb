"""The gRPC services of A2A 1.0 and 0.3: their methods, types and dialect.

The messages of 0.3 are the JSON of its HTTP binding, except that a request names its subject in one
string: `tasks/ID/pushNotificationConfigs/ID`. Knows neither channels nor the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dragoman.a2a.protocol.dialects import operations, v03, v10
from dragoman.a2a.protocol.dialects.card_shapes import render_card
from dragoman.a2a.protocol.errors import ERROR_CODES, A2aError, invalid
from dragoman.a2a.protocol.grpc.messages import TYPES_03, TYPES_10, V03, V10, MessageTypes


class GrpcMethod(NamedTuple):
    name: str
    op: str
    request_type: str
    response_type: str


@dataclass(frozen=True, slots=True)
class GrpcService:
    name: str
    version: str
    types: MessageTypes
    methods: Mapping[str, GrpcMethod]
    """By operation."""
    known_by: str
    """A method of the dialect, which tells the dialect where a client sends no version."""
    # for the hub as server
    parse_request: Callable[[str, dict[str, Any]], dict[str, Any]]
    """An operation and the proto-JSON of its request -> 1.0's request."""
    render_result: Callable[[str, Any], Any]
    render_event: Callable[..., dict[str, Any]]
    render_error: Callable[[A2aError], str]
    # for the hub as client
    build_request: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
    parse_result: Callable[[str, Any], Any]
    parse_event: Callable[[Any], dict[str, Any]]


_OPS_03 = {
    "TaskSubscription": operations.SUBSCRIBE,
    "ListTaskPushNotificationConfig": operations.PUSH_LIST,
    "GetAgentCard": operations.CARD,
}
"""The methods of 0.3 that 1.0 renamed. An operation is called as 1.0 calls its method."""


def _index_methods(types: MessageTypes, renamed: Mapping[str, str]) -> dict[str, GrpcMethod]:
    found = [GrpcMethod(name, renamed.get(name, name), *io) for name, *io in types.methods]
    return {method.op: method for method in found}


_SUBJECT = re.compile(r"tasks?/([^/]+)(?:/pushNotificationConfigs(?:/([^/]+))?)?/?")
_PUSH = (operations.PUSH_SET, operations.PUSH_GET, operations.PUSH_LIST, operations.PUSH_DELETE)


def _parse_request_03(op: str, plain: dict[str, Any]) -> dict[str, Any]:
    if op in (operations.SEND, operations.STREAM):
        if "configuration" in plain:  # proto-JSON leaves out what is false
            plain["configuration"].setdefault("blocking", False)
        return v03.parse_rest_params(op, {}, {}, plain)
    if op == operations.CARD:
        return {}
    field = "parent" if op in (operations.PUSH_SET, operations.PUSH_LIST) else "name"
    found = _SUBJECT.fullmatch(plain.get(field, ""))
    if found is None:
        raise invalid(field, "is required, and begins with tasks/ID")
    task, config = found.groups()
    if op not in _PUSH:
        return v03.parse_rest_params(op, {"id": task}, plain, None)
    path = {"taskId": task} if config is None else {"taskId": task, "id": config}
    return v03.parse_rest_params(op, path, {}, plain)


def _build_request_03(op: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
    if op in (operations.SEND, operations.STREAM, operations.PUSH_SET):
        return v03.build_rest_request(op, request)[3] or {}
    task = f"tasks/{request.get('taskId') or request.get('id', '')}"
    if op == operations.PUSH_LIST:
        return {"parent": task}
    if op in (operations.PUSH_GET, operations.PUSH_DELETE):
        return {"name": f"{task}/pushNotificationConfigs/{request.get('id', '')}"}
    length = request.get("historyLength")
    return {"name": task} if length is None else {"name": task, "historyLength": length}


def _render_result_03(op: str, value: Any) -> Any:
    if op != operations.CARD:
        return v03.render_rest_result(op, value)
    card = render_card(value, v03.VERSION)
    # In the proto these have the form of 1.0.
    card["securitySchemes"] = value.get("securitySchemes", {})
    card["security"] = value.get("securityRequirements", [])
    card["skills"] = [
        {name: member for name, member in skill.items() if name != "security"}
        for skill in card["skills"]
    ]
    return card


def _render_error_03(error: A2aError) -> str:
    """SDKs of 0.3 recognise an error by its name, which precedes the first colon."""
    return f"{v03.render_rest_error(error)[1]['error']}: {error.message}"


REASONS_BY_NAME_03: Mapping[str, str] = {
    v03.render_rest_error(A2aError(reason, ""))[1]["error"]: reason
    for reason in reversed(list(ERROR_CODES))
}

SERVICES = (
    GrpcService(
        name=f"{V10}.A2AService",
        version=v10.VERSION,
        types=TYPES_10,
        methods=_index_methods(TYPES_10, {}),
        known_by=operations.SEND,
        parse_request=v10.parse_params,
        render_result=v10.render_result,
        render_event=v10.render_event,
        render_error=lambda error: error.message,
        build_request=lambda op, request: request,
        parse_result=v10.parse_result,
        parse_event=v10.parse_event,
    ),
    GrpcService(
        name=f"{V03}.A2AService",
        version=v03.VERSION,
        types=TYPES_03,
        methods=_index_methods(TYPES_03, _OPS_03),
        known_by="message/send",
        parse_request=_parse_request_03,
        render_result=_render_result_03,
        render_event=v03.render_rest_event,
        render_error=_render_error_03,
        build_request=_build_request_03,
        parse_result=v03.parse_rest_result,
        parse_event=v03.parse_rest_event,
    ),
)
SERVICES_BY_VERSION: Mapping[str, GrpcService] = {each.version: each for each in SERVICES}
