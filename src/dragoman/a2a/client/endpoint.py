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
from dragoman.a2a.protocol.dialects.v03_shapes import skill_of
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
SEED = "tasks/send"
"""0.1 as the first hubs had it: the same to send, plain REST for the rest."""

JSON_TYPE, A2A_TYPE, STREAM_TYPE = "application/json", "application/a2a+json", "text/event-stream"


class Way(NamedTuple):
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
    def streams(self) -> bool:
        return self.binding in (JSONRPC, HTTP_JSON, GRPC) and self.traits.can_stream

    def __str__(self) -> str:
        return self.describe(render_origin(self.url))

    def describe(self, address: str) -> str:
        return f'A2A {self.version} over {self.binding} at "{address}"'


class NotTaken(Exception):
    """Whoever answered does not know such requests: nothing was done, it is certain."""

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.status = status


class ErrorStatus(A2aError):
    """An error of the agent's, under an HTTP status that says no where JSON-RPC needs none."""

    def __init__(self, problem: A2aError, status: int) -> None:
        super().__init__(
            problem.reason,
            problem.message,
            violations=problem.violations,
            metadata=problem.metadata,
        )
        self.status = status


class HttpStatus(BadReply):
    """An answer whose status says no, and whose body is no error of A2A."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def kind(self) -> str:
        return BadReply.__name__


class Written(NamedTuple):
    method: str
    url: str
    headers: dict[str, str]
    body: bytes


# --- requests -------------------------------------------------------------------------------------

_SEED_ROUTES = {GET: ("GET", ""), CANCEL: ("POST", "/cancel")}


def written(way: Way, op: str, request: Mapping[str, Any], *, other: bool = False) -> Written:
    """The request in the way's own words. `other`: with the other HTTP method for a subscription,
    for which the specification's text and its proto have not the same one."""
    request = {key: value for key, value in request.items() if value is not None}
    if way.tenant:
        request["tenant"] = way.tenant
    else:
        request.pop("tenant", None)
    traits = way.traits
    if not traits.client_names_task:
        request.pop(TASK_ID, None)
    headers = {"user-agent": USER_AGENT, "accept": f"{JSON_TYPE}, {A2A_TYPE}, {STREAM_TYPE}"}
    if traits.sends_version:
        headers["a2a-version"] = way.version
    base = way.url.rstrip("/")
    message = request["message"] if op in (SEND, STREAM) else None
    if message is not None and "extensions" in message and traits.message_extensions_in_header:
        headers["a2a-extensions"] = ",".join(message["extensions"])
    if way.binding == HTTP_JSON:
        return _rest(way, op, request, headers, other)
    if way.binding == SEED and op in _SEED_ROUTES:
        method, rest = _SEED_ROUTES[op]
        return Written(method, f"{base}/tasks/{quote(request['id'], safe='')}{rest}", headers, b"")
    headers["content-type"] = JSON_TYPE
    method, params = way.dialect.params_out(op, request)
    url = way.url if way.binding == JSONRPC else f"{base}/{method}"
    return Written("POST", url, headers, rpc.request(_id(way, message), method, params))


def _id(way: Way, message: Mapping[str, Any] | None) -> rpc.Id:
    if message is None:
        return str(uuid4())
    if way.traits.numbers_skill_calls and skill_of(message):
        return int(time() * 1000)
    id: str = message["messageId"]  # as good as any
    return id


def _rest(
    way: Way, op: str, request: dict[str, Any], headers: dict[str, str], other: bool
) -> Written:
    method, path, query, body = way.dialect.rest_request_out(op, request)
    if other:
        method = "GET" if method == "POST" else "POST"
    base = way.url.rstrip("/")
    if path.startswith("/v1/"):  # some cards of 0.3 have it in the address
        base = base.removesuffix("/v1")
    url = f"{base}{path}?{urlencode(query)}" if query else f"{base}{path}"
    if method != "POST":
        return Written(method, url, headers, b"")
    headers["content-type"] = way.traits.media_type
    return Written(method, url, headers, encode(body or {}))


# --- answers --------------------------------------------------------------------------------------


def answered(way: Way, op: str, status: int, data: bytes, sent: Collection[str] = ()) -> Any:
    """The result in the words of 1.0. Raises `NotTaken`, the agent's own `A2aError`, or a
    `BadReply` for what is neither; `sent` are values of headers, which these do not repeat."""
    try:
        value = decode_reply(data) if data.strip() else None
    except Malformed as problem:
        _refuse_status(way, op, status, data, sent)
        raise BadReply(f"{_asked(way, op)} was answered with what is no JSON: {problem}") from None
    if isinstance(value, dict) and _is_error(way, status, value):
        _raise_error(way, op, status, value, sent)
    _refuse_status(way, op, status, data, sent)
    return result_in(way, op, value)


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


def result_in(way: Way, op: str, value: Any) -> Any:
    """One result, or one event of a stream, out of its envelope."""
    if isinstance(value, dict) and "error" in value:
        _raise_error(way, op, 200, value)
    value = _opened(way, op, value)
    try:
        return way.dialect.event_in(value) if op in STREAMING else way.dialect.result_in(op, value)
    except A2aError as problem:
        raise BadReply(f"{_asked(way, op)} was not answered: {problem.message}") from None


def is_final(way: Way, op: str, value: Any) -> bool:
    """Whether an event of a stream says of itself that it is the last, as older ones do."""
    return ends_stream(_opened(way, op, value))


def _opened(way: Way, op: str, value: Any) -> Any:
    if way.binding in (HTTP_JSON, GRPC):
        return value
    if isinstance(value, dict) and "result" in value:
        return value["result"]
    if way.binding == JSONRPC:
        raise BadReply(f"{_asked(way, op)} was answered with no result")
    return value


def _is_error(way: Way, status: int, value: Mapping[str, Any]) -> bool:
    if "error" in value:
        return True
    if status < 400 or way.binding != HTTP_JSON:
        return False
    said = value.get("type"), value.get("code")  # as HTTP+JSON servers of 0.3 put it
    return str(said[0]).endswith("Error") or (isinstance(said[1], int) and said[1] < 0)


def _raise_error(
    way: Way, op: str, status: int, value: Mapping[str, Any], sent: Collection[str] = ()
) -> NoReturn:
    error = value.get("error")
    if isinstance(error, str) and "task" not in error.lower():
        _refuse_status(way, op, status, encode(value), sent)  # a proxy's or a framework's
    if way.binding == HTTP_JSON or isinstance(error, str):
        problem = way.dialect.rest_error_in(status, value)
    else:
        problem = way.dialect.error_in(error)
    problem.message = hide_secrets(problem.message, way.url, sent)
    if problem.reason in (METHOD_NOT_FOUND, VERSION_NOT_SUPPORTED):
        raise NotTaken(f"{_asked(way, op)} is unknown there: {problem.message[:300]}")
    if way.binding != HTTP_JSON and not 200 <= status < 300:
        raise ErrorStatus(problem, status)
    raise problem


def _refuse_status(way: Way, op: str, status: int, data: bytes, sent: Collection[str]) -> None:
    if 200 <= status < 300:
        return
    said = hide_secrets(" ".join(data[:300].decode("utf-8", "replace").split()), way.url, sent)
    if status in (404, 405):
        raise NotTaken(f"{_asked(way, op)} was answered with HTTP {status}", status)
    if status in (401, 403):
        wants = "was refused: the credentials that were sent are not accepted (HTTP %d)"
        wants = wants if sent else "needs credentials (HTTP %d)"
        raise HttpStatus(f"{_asked(way, op)} {wants % status}", status)
    more = f": {said}" if said else ""
    raise HttpStatus(f"{_asked(way, op)} was answered with HTTP {status}{more}", status)


def _asked(way: Way, op: str) -> str:
    return f'"{op}" in {way}'
