"""A way to an agent: an address, how requests travel there, and the dialect they are in.

Makes HTTP requests of operations, and of what is answered their results. Pure: sends nothing, and
leaves words and shapes to `dialects`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import time
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote, urlencode
from uuid import uuid4

from dragoman.a2a.protocol.dialects import SPOKEN, Dialect, DialectTraits
from dragoman.a2a.protocol.dialects.lenient_reader import ends_stream
from dragoman.a2a.protocol.dialects.operations import (
    AGENT,
    CANCEL,
    GET,
    SEND,
    STREAM,
    STREAMING,
    TASK_ID,
)
from dragoman.a2a.protocol.dialects.v03_shapes import find_skill_call
from dragoman.a2a.protocol.errors import METHOD_NOT_FOUND, VERSION_NOT_SUPPORTED, A2aError
from dragoman.a2a.protocol.headers import USER_AGENT
from dragoman.core.errors import BadReply
from dragoman.core.urls import hide_secrets, render_origin
from dragoman.wire import rpc
from dragoman.wire.json import Malformed, decode_reply, encode

JSONRPC, HTTP_JSON = "JSONRPC", "HTTP+JSON"
GRPC = "GRPC"
"""Its address is an http:// or https:// one, without TLS and with it."""
PATHS = "JSON-RPC by path"
"""0.1 as python-a2a has it: the body is JSON-RPC, the method stands in the path too."""
TASKS_SEND = "tasks/send"
"""0.1 as the first hubs had it: the same to send, plain REST for the rest."""

JSON_TYPE, A2A_TYPE, STREAM_TYPE = "application/json", "application/a2a+json", "text/event-stream"


class Endpoint(NamedTuple):
    binding: str
    version: str
    url: str
    tenant: str = ""
    declared: bool = False
    """Whether the card says so."""

    @property
    def dialect(self) -> Dialect:
        return SPOKEN[self.version]

    @property
    def traits(self) -> DialectTraits:
        return SPOKEN[self.version].TRAITS

    @property
    def can_stream(self) -> bool:
        return self.binding in (JSONRPC, HTTP_JSON, GRPC) and self.traits.can_stream

    def __str__(self) -> str:
        return self.describe(render_origin(self.url))

    def describe(self, address: str) -> str:
        return f'A2A {self.version} over {self.binding} at "{address}"'


class NotUnderstood(Exception):
    """Whoever answered does not know such requests: nothing was done, it is certain."""

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.status = status


class A2aErrorStatus(A2aError):
    """An error of the agent's, under an HTTP status that says no where JSON-RPC needs none."""

    def __init__(self, problem: A2aError, status: int) -> None:
        super().__init__(
            problem.reason,
            problem.message,
            violations=problem.violations,
            metadata=problem.metadata,
        )
        self.status = status


class AgentHttpStatus(BadReply):
    """An answer whose status says no, and whose body is no error of A2A."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HttpCall(NamedTuple):
    method: str
    url: str
    headers: dict[str, str]
    body: bytes


# --- requests -------------------------------------------------------------------------------------

_TASK_ROUTES = {GET: ("GET", ""), CANCEL: ("POST", "/cancel")}


def build_http_call(
    endpoint: Endpoint, op: str, request: Mapping[str, Any], *, other: bool = False
) -> HttpCall:
    """The request in the way's own words. `other`: with the other HTTP method for a subscription,
    for which the specification's text and its proto have not the same one."""
    request = {key: value for key, value in request.items() if value is not None}
    if endpoint.tenant:
        request["tenant"] = endpoint.tenant
    else:
        request.pop("tenant", None)
    traits = endpoint.traits
    if not traits.client_names_task:
        request.pop(TASK_ID, None)
    headers = {"user-agent": USER_AGENT, "accept": f"{JSON_TYPE}, {A2A_TYPE}, {STREAM_TYPE}"}
    if traits.sends_version:
        headers["a2a-version"] = endpoint.version
    base = endpoint.url.rstrip("/")
    message = request["message"] if op in (SEND, STREAM) else None
    if message is not None and "extensions" in message and traits.message_extensions_in_header:
        headers["a2a-extensions"] = ",".join(message["extensions"])
    if endpoint.binding == HTTP_JSON:
        return _build_rest_call(endpoint, op, request, headers, other)
    if endpoint.binding == TASKS_SEND and op in _TASK_ROUTES:
        method, rest = _TASK_ROUTES[op]
        return HttpCall(method, f"{base}/tasks/{quote(request['id'], safe='')}{rest}", headers, b"")
    headers["content-type"] = JSON_TYPE
    method, params = endpoint.dialect.build_request(op, request)
    url = endpoint.url if endpoint.binding == JSONRPC else f"{base}/{method}"
    return HttpCall(
        "POST", url, headers, rpc.request(_choose_request_id(endpoint, message), method, params)
    )


def _choose_request_id(endpoint: Endpoint, message: Mapping[str, Any] | None) -> rpc.Id:
    if message is None:
        return str(uuid4())
    if endpoint.traits.numbers_skill_calls and find_skill_call(message):
        return int(time() * 1000)
    id: str = message["messageId"]  # as good as any
    return id


def _build_rest_call(
    endpoint: Endpoint, op: str, request: dict[str, Any], headers: dict[str, str], other: bool
) -> HttpCall:
    method, path, query, body = endpoint.dialect.build_rest_request(op, request)
    if other:
        method = "GET" if method == "POST" else "POST"
    base = endpoint.url.rstrip("/")
    if path.startswith("/v1/"):  # some cards of 0.3 have it in the address
        base = base.removesuffix("/v1")
    url = f"{base}{path}?{urlencode(query)}" if query else f"{base}{path}"
    if method != "POST":
        return HttpCall(method, url, headers, b"")
    headers["content-type"] = endpoint.traits.media_type
    return HttpCall(method, url, headers, encode(body or {}))


# --- answers --------------------------------------------------------------------------------------


def parse_reply(
    endpoint: Endpoint, op: str, status: int, data: bytes, sent: Collection[str] = ()
) -> Any:
    """The result in the words of 1.0. Raises `NotTaken`, the agent's own `A2aError`, or a
    `BadReply` for what is neither; `sent` are values of headers, which these do not repeat."""
    try:
        value = decode_reply(data) if data.strip() else None
    except Malformed as problem:
        _check_status(endpoint, op, status, data, sent)
        raise BadReply(
            f"{_describe(endpoint, op)} was answered with what is no JSON: {problem}"
        ) from None
    if isinstance(value, dict) and _is_error(endpoint, status, value):
        _raise_error(endpoint, op, status, value, sent)
    _check_status(endpoint, op, status, data, sent)
    return parse_result(endpoint, op, value)


_WORDS = frozenset(("messageId", "role", "parts"))


def words_in(data: bytes) -> dict[str, Any] | None:
    """The message of an answer to one over JSON-RPC in 1.0 that is some words and nothing else, as
    it stands; None for any other answer, which is then read with more patience."""
    try:
        value = decode_reply(data)
    except Malformed:
        return None
    result = value.get("result") if isinstance(value, dict) and "error" not in value else None
    message = result.get("message") if isinstance(result, dict) and len(result) == 1 else None
    if not isinstance(message, dict) or message.keys() != _WORDS or message["role"] != AGENT:
        return None
    parts = message["parts"]
    if not isinstance(parts, list) or not isinstance(message["messageId"], str):
        return None
    for part in parts:
        if type(part) is not dict or len(part) != 1 or type(part.get("text")) is not str:
            return None
    return message


def parse_result(endpoint: Endpoint, op: str, value: Any) -> Any:
    """One result, or one event of a stream, out of its envelope."""
    if isinstance(value, dict) and "error" in value:
        _raise_error(endpoint, op, 200, value)
    value = _unwrap_result(endpoint, op, value)
    try:
        return (
            endpoint.dialect.parse_event(value)
            if op in STREAMING
            else endpoint.dialect.parse_result(op, value)
        )
    except A2aError as problem:
        raise BadReply(f"{_describe(endpoint, op)} was not answered: {problem.message}") from None


def is_final(endpoint: Endpoint, op: str, value: Any) -> bool:
    """Whether an event of a stream says of itself that it is the last, as older ones do."""
    return ends_stream(_unwrap_result(endpoint, op, value))


def _unwrap_result(endpoint: Endpoint, op: str, value: Any) -> Any:
    if endpoint.binding in (HTTP_JSON, GRPC):
        return value
    if isinstance(value, dict) and "result" in value:
        return value["result"]
    if endpoint.binding == JSONRPC:
        raise BadReply(f"{_describe(endpoint, op)} was answered with no result")
    return value


def _is_error(endpoint: Endpoint, status: int, value: Mapping[str, Any]) -> bool:
    if "error" in value:
        return True
    if status < 400 or endpoint.binding != HTTP_JSON:
        return False
    said = value.get("type"), value.get("code")  # as HTTP+JSON servers of 0.3 put it
    return str(said[0]).endswith("Error") or (isinstance(said[1], int) and said[1] < 0)


def _raise_error(
    endpoint: Endpoint, op: str, status: int, value: Mapping[str, Any], sent: Collection[str] = ()
) -> NoReturn:
    error = value.get("error")
    if isinstance(error, str) and "task" not in error.lower():
        _check_status(endpoint, op, status, encode(value), sent)  # a proxy's or a framework's
    if endpoint.binding == HTTP_JSON or isinstance(error, str):
        problem = endpoint.dialect.parse_rest_error(status, value)
    else:
        problem = endpoint.dialect.parse_error(error)
    problem.message = hide_secrets(problem.message, endpoint.url, sent)
    if problem.reason in (METHOD_NOT_FOUND, VERSION_NOT_SUPPORTED):
        raise NotUnderstood(f"{_describe(endpoint, op)} is unknown there: {problem.message[:300]}")
    if endpoint.binding != HTTP_JSON and not 200 <= status < 300:
        raise A2aErrorStatus(problem, status)
    raise problem


def _check_status(
    endpoint: Endpoint, op: str, status: int, data: bytes, sent: Collection[str]
) -> None:
    if 200 <= status < 300:
        return
    said = hide_secrets(" ".join(data[:300].decode("utf-8", "replace").split()), endpoint.url, sent)
    if status in (404, 405):
        raise NotUnderstood(f"{_describe(endpoint, op)} was answered with HTTP {status}", status)
    if status in (401, 403):
        wants = "was refused: the credentials that were sent are not accepted (HTTP %d)"
        wants = wants if sent else "needs credentials (HTTP %d)"
        raise AgentHttpStatus(f"{_describe(endpoint, op)} {wants % status}", status)
    more = f": {said}" if said else ""
    raise AgentHttpStatus(
        f"{_describe(endpoint, op)} was answered with HTTP {status}{more}", status
    )


def _describe(endpoint: Endpoint, op: str) -> str:
    return f'"{op}" in {endpoint}'
