"""An endpoint of an agent: its address, its transport binding and its dialect of A2A.

Encodes operations as HTTP calls and parses replies into the form of 1.0; sends nothing itself. The
names and shapes of each dialect are in `protocol/dialects`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import time
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote, urlencode
from uuid import uuid4

from dragoman.a2a.protocol.dialects import SPOKEN, Dialect
from dragoman.a2a.protocol.dialects.lenient_reader import ends_stream
from dragoman.a2a.protocol.dialects.operations import CANCEL, GET, STREAMING, TASK_ID
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.dialects.v03_shapes import find_skill_call
from dragoman.a2a.protocol.errors import METHOD_NOT_FOUND, VERSION_NOT_SUPPORTED, A2aError
from dragoman.a2a.protocol.headers import USER_AGENT
from dragoman.core.errors import BadReply
from dragoman.core.structs import Struct
from dragoman.core.urls import hide_secrets, render_origin
from dragoman.wire import rpc
from dragoman.wire.http import HttpReply
from dragoman.wire.json import Malformed, decode_reply, encode

JSONRPC, HTTP_JSON = "JSONRPC", "HTTP+JSON"
GRPC = "GRPC"
"""Its address has the scheme http or https: without TLS or with it."""
PATHS = "JSON-RPC by path"
"""0.1 of python-a2a: the body is JSON-RPC, and the path repeats the method."""
TASKS_SEND = "tasks/send"
"""0.1 of the first hubs: JSON-RPC by path to send a message, plain REST for the rest."""

JSON_TYPE, A2A_TYPE, STREAM_TYPE = "application/json", "application/a2a+json", "text/event-stream"


class Endpoint(NamedTuple):
    binding: str
    version: str
    url: str
    tenant: str = ""
    declared: bool = False
    """Whether the agent's card names it."""

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


class AgentRequest(Struct, frozen=True):
    """One operation for an endpoint."""

    endpoint: Endpoint
    op: str
    params: Mapping[str, Any]
    """In the form of 1.0."""
    headers: Mapping[str, str]
    timeout: float
    secrets: tuple[str, ...] = ()
    """Of the headers, once their references are replaced: no reply may repeat them."""

    def __str__(self) -> str:
        return f'"{self.op}" in {self.endpoint}'


class NotUnderstood(Exception):
    """The endpoint does not know such requests: it certainly did nothing."""

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.status = status


class A2aErrorStatus(A2aError):
    """An A2A error of the agent under an HTTP error status, which JSON-RPC does not need."""

    def __init__(self, problem: A2aError, status: int) -> None:
        super().__init__(
            problem.reason,
            problem.message,
            violations=problem.violations,
            metadata=problem.metadata,
        )
        self.status = status


class AgentHttpStatus(BadReply):
    """A reply with an HTTP error status whose body is not an A2A error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HttpCall(Struct, frozen=True):
    method: str
    url: str
    content_type: str
    """Empty without a body."""
    body: bytes


# --- requests -------------------------------------------------------------------------------------

_TASK_ROUTES = {GET: ("GET", ""), CANCEL: ("POST", "/cancel")}


def build_http_call(request: AgentRequest, *, swap_method: bool = False) -> HttpCall:
    """Encodes `request`. `swap_method` uses the other HTTP method to subscribe: the specification's
    text and its proto disagree on it."""
    endpoint, op, params = request.endpoint, request.op, request.params
    dialect = SPOKEN[endpoint.version]
    traits = dialect.TRAITS
    drops_id = TASK_ID in params and not traits.client_names_task
    if drops_id or endpoint.tenant or "tenant" in params:
        dropped = ("tenant", TASK_ID) if drops_id else ("tenant",)
        params = {name: value for name, value in params.items() if name not in dropped}
        if endpoint.tenant:
            params["tenant"] = endpoint.tenant
    if endpoint.binding == HTTP_JSON:
        return _build_rest_call(endpoint, op, params, swap_method)
    if endpoint.binding == TASKS_SEND and op in _TASK_ROUTES:
        method, rest = _TASK_ROUTES[op]
        url = f"{endpoint.url.rstrip('/')}/tasks/{quote(params['id'], safe='')}{rest}"
        return HttpCall(method, url, "", b"")
    message = params.get("message")
    if message is None:
        id: rpc.Id = str(uuid4())
    elif traits.numbers_skill_calls and find_skill_call(message):
        id = int(time() * 1000)
    else:
        id = message["messageId"]
    method, params = (op, params) if traits.is_native else dialect.build_request(op, params)
    url = endpoint.url if endpoint.binding == JSONRPC else f"{endpoint.url.rstrip('/')}/{method}"
    return HttpCall("POST", url, JSON_TYPE, rpc.encode_request(id, method, params))


def _build_rest_call(
    endpoint: Endpoint, op: str, params: Mapping[str, Any], swap_method: bool
) -> HttpCall:
    method, path, query, body = endpoint.dialect.build_rest_request(op, params)
    if swap_method:
        method = "GET" if method == "POST" else "POST"
    base = endpoint.url.rstrip("/")
    if path.startswith("/v1/"):  # some cards of 0.3 have it in the address
        base = base.removesuffix("/v1")
    url = f"{base}{path}?{urlencode(query)}" if query else f"{base}{path}"
    if method != "POST":
        return HttpCall(method, url, "", b"")
    return HttpCall(method, url, endpoint.traits.media_type, encode(body or {}))


def build_headers(endpoint: Endpoint, content_type: str, extensions: str) -> dict[str, str]:
    """Builds the headers that depend on the endpoint. `extensions` are those of the message."""
    headers = {"user-agent": USER_AGENT, "accept": f"{JSON_TYPE}, {A2A_TYPE}, {STREAM_TYPE}"}
    if endpoint.traits.sends_version:
        headers["a2a-version"] = endpoint.version
    if extensions:
        headers["a2a-extensions"] = extensions
    if content_type:
        headers["content-type"] = content_type
    return headers


# --- replies --------------------------------------------------------------------------------------


def parse_reply(request: AgentRequest, reply: HttpReply, data: bytes) -> Any:
    """Parses a reply with the body `data` into the form of 1.0. Raises `NotUnderstood`, the agent's
    own `A2aError`, or `BadReply` for anything else."""
    status = reply.status
    try:
        value = decode_reply(data) if data.strip() else None
    except Malformed as problem:
        _check_status(request, status, data, reply.secrets)
        raise BadReply(f"{request}: the reply is not JSON: {problem}") from None
    if isinstance(value, dict) and (
        "error" in value or (status >= 400 and _is_rest_error(request.endpoint, value))
    ):
        _raise_error(request, status, value, reply.secrets)
    if not 200 <= status < 300:
        _check_status(request, status, data, reply.secrets)
    return _convert_result(request, value)


def parse_result(request: AgentRequest, value: Any) -> Any:
    """Parses one decoded reply, or one event of a stream, into the form of 1.0."""
    if isinstance(value, dict) and "error" in value:
        _raise_error(request, 200, value)
    return _convert_result(request, value)


def _convert_result(request: AgentRequest, value: Any) -> Any:
    op, endpoint = request.op, request.endpoint
    if endpoint.binding == JSONRPC and isinstance(value, dict) and "result" in value:
        value = value["result"]  # the usual case
    else:
        value = _unwrap_result(request, value)
    dialect = SPOKEN[endpoint.version]
    try:
        return dialect.parse_event(value) if op in STREAMING else dialect.parse_result(op, value)
    except A2aError as problem:
        raise BadReply(f"{request}: {problem.message}") from None


def is_final(request: AgentRequest, value: Any) -> bool:
    """Whether an event declares itself the last of its stream, as dialects before 1.0 do."""
    return ends_stream(_unwrap_result(request, value))


def _unwrap_result(request: AgentRequest, value: Any) -> Any:
    if request.endpoint.binding in (HTTP_JSON, GRPC):
        return value
    if isinstance(value, dict) and "result" in value:
        return value["result"]
    if request.endpoint.binding == JSONRPC:
        raise BadReply(f"{request}: the reply has no result")
    return value


def _is_rest_error(endpoint: Endpoint, value: Mapping[str, Any]) -> bool:
    """Whether it is an error of HTTP+JSON as servers of 0.3 write it."""
    kind, code = value.get("type"), value.get("code")
    is_error = str(kind).endswith("Error") or (isinstance(code, int) and code < 0)
    return is_error and endpoint.binding == HTTP_JSON


def _raise_error(
    request: AgentRequest, status: int, value: Mapping[str, Any], secrets: Collection[str] = ()
) -> NoReturn:
    """`secrets` are header values that no message may repeat."""
    endpoint, error = request.endpoint, value.get("error")
    if isinstance(error, str) and "task" not in error.lower():  # a proxy's or a framework's
        _check_status(request, status, encode(value), secrets)
    if endpoint.binding == HTTP_JSON or isinstance(error, str):
        problem = endpoint.dialect.parse_rest_error(status, value)
    else:
        problem = endpoint.dialect.parse_error(error)
    problem.message = hide_secrets(problem.message, endpoint.url, secrets)
    if problem.reason in (METHOD_NOT_FOUND, VERSION_NOT_SUPPORTED):
        raise NotUnderstood(f"{request} is not supported: {problem.message[:300]}")
    if endpoint.binding != HTTP_JSON and not 200 <= status < 300:
        raise A2aErrorStatus(problem, status)
    raise problem


def _check_status(
    request: AgentRequest, status: int, data: bytes, secrets: Collection[str]
) -> None:
    if 200 <= status < 300:
        return
    if status in (404, 405):
        raise NotUnderstood(f"{request} was answered with HTTP {status}", status)
    if status in (401, 403):
        why = "the agent rejected the credentials" if secrets else "the agent needs credentials"
        raise AgentHttpStatus(f"{request} was refused: {why} (HTTP {status})", status)
    text = " ".join(data[:300].decode("utf-8", "replace").split())
    more = f": {hide_secrets(text, request.endpoint.url, secrets)}" if text else ""
    raise AgentHttpStatus(f"{request} was answered with HTTP {status}{more}", status)
