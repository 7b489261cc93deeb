"""A2A over HTTP: which agent, binding and dialect a request is for, and how it is answered.

Under `listen_path`, and under an agent's name below it: JSON-RPC of every dialect by `POST`, the
routes of 1.0, those of 0.3 below `/v1`, those of 0.1; the cards. Requests come here authenticated,
except for cards.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

from dragoman.a2a.cards.build import build_card_headers
from dragoman.a2a.config import PATHS, A2aSettings
from dragoman.a2a.protocol import dialects, errors
from dragoman.a2a.protocol.dialects import Dialect, operations, v03, v10
from dragoman.a2a.protocol.dialects.operations import RestRoutes
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.server import http_v01
from dragoman.a2a.server.card_service import CardService, reply_cached
from dragoman.a2a.server.operations import A2aServer
from dragoman.a2a.server.request_context import (
    RequestContext,
    check_idempotency_key,
    error_from_exception,
    merge_metadata,
    parse_extensions,
)
from dragoman.a2a.server.routing import render_used_extensions
from dragoman.a2a.server.task_stream import TaskStream
from dragoman.core.background import Work
from dragoman.core.call import NOTHING
from dragoman.core.errors import HubError, StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.principal import Principal
from dragoman.core.trace import parse_trace
from dragoman.wire import rpc, sse
from dragoman.wire.http import JSON_HEADERS, HttpRequest, build_retry_after
from dragoman.wire.json import Malformed, decode, encode, has_duplicate_names

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0
CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
SSE_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON = b"application/json"
_A2A_JSON = b"application/a2a+json"
_RPC_PATHS = frozenset(("", "/", "/message/send", "/message/stream"))
"""Some gateways, litellm's among them, add the method to the path of an agent."""
_MESSAGES = frozenset((operations.SEND, operations.STREAM))


class RestDialect(Dialect, Protocol):
    """A dialect that has the HTTP+JSON binding."""

    @property
    def ROUTES(self) -> RestRoutes: ...
    def parse_rest_params(
        self, op: str, values: Mapping[str, str], query: Mapping[str, str], body: Any
    ) -> dict[str, Any]: ...
    def render_rest_result(self, op: str, value: Any) -> Any: ...
    def render_rest_event(self, event: dict[str, Any], *, final: bool) -> dict[str, Any]: ...
    def render_rest_error(self, error: A2aError) -> tuple[int, dict[str, Any]]: ...


class Exchange:
    """A request in one of the bindings, and how its response is written. `parse` fills it in step
    by step: an error is written in the dialect that is known by then."""

    __slots__ = ("agent", "dialect", "op", "path", "principal", "request", "transport", "wanted")

    headers = JSON_HEADERS
    lists_extensions = True
    """Whether a response names the extensions in use."""
    is_notification = False

    def __init__(
        self,
        transport: A2aHttpTransport,
        request: HttpRequest,
        principal: Principal,
        agent: str | None,
        path: str,
    ) -> None:
        """`path` is the one below that of the agent."""
        self.transport = transport
        self.request = request
        self.principal = principal
        self.agent = agent
        self.path = path
        self.dialect: Dialect = dialects.NATIVE
        self.op = ""
        self.wanted: Mapping[str, Any] = NOTHING
        """The request of the operation, in the form of 1.0."""

    def parse(self) -> Exchange | None:
        """Returns this exchange, or one of another binding where the body shows that the request is
        of that; None if it has been answered."""
        raise NotImplementedError

    def encode_result(self, answer: dict[str, Any]) -> bytes:
        """The body of the response to the operation."""
        raise NotImplementedError

    def encode_card(self, card: Mapping[str, Any]) -> bytes:
        return encode(card)

    def encode_event(self, stream: TaskStream, number: int, event: Any, final: bool) -> bytes:
        """An event of a stream as SSE; may be nothing."""
        raise NotImplementedError

    def write_error(self, error: A2aError) -> None:
        raise NotImplementedError

    def add_headers(
        self, headers: list[tuple[bytes, bytes]], error: A2aError
    ) -> list[tuple[bytes, bytes]]:
        """Adds what the response to that error has."""
        if error.retry_after:
            return [*headers, build_retry_after(error.retry_after)]
        challenge = self.request.scope_challenge if error.missing_scope else None
        return headers if challenge is None else [*headers, challenge]


class JsonRpcExchange(Exchange):
    __slots__ = ("id", "is_notification")

    def parse(self) -> Exchange | None:
        request = self.request
        self.id: rpc.Id = None
        if request.method != "POST":
            _reject_method(request, b"POST")
            return None
        message = read_json(request)
        self.id = rpc.find_id(message)
        checked = message
        if isinstance(message, dict):
            if "jsonrpc" not in message and http_v01.parse_bare_request(message):
                return LegacyExchange(self.transport, request, self.principal, self.agent, "")
            if message.get("id", 0) is None:
                # JSON-RPC discourages null as an id, and some A2A clients send it.
                checked = {**message, "id": 0}
        if (flaw := rpc.find_flaw(checked)) is not None or "method" not in message:
            reason = errors.INVALID_PARAMS if flaw == rpc.WRONG_PARAMS else errors.INVALID_REQUEST
            raise A2aError(reason, flaw or 'a request has a "method"')
        method, params = message["method"], message.get("params")
        version, required = read_version(request), self.transport.require_version
        dialect = self.dialect = dialects.choose(version, method, params, required)
        if version is None and method in dialects.SHARED:
            task_id = params.get("id") if isinstance(params, dict) else None
            created_in = self.transport.server.access.find_version(self.principal, task_id)
            dialect = self.dialect = dialects.choose_shared(created_in)
        op = dialect.METHODS.get(method)
        if op is None:
            raise A2aError(errors.METHOD_NOT_FOUND, f'there is no method "{method[:100]}"')
        self.op = op
        self.wanted = dialect.parse_params(op, params)
        self.is_notification = "id" not in message
        return self

    def encode_result(self, answer: dict[str, Any]) -> bytes:
        return rpc.encode_result(self.id, self.dialect.render_result(self.op, answer))

    def encode_card(self, card: Mapping[str, Any]) -> bytes:
        return rpc.encode_result(self.id, card)

    def encode_event(self, stream: TaskStream, number: int, event: Any, final: bool) -> bytes:
        out = rpc.encode_result(self.id, self.dialect.render_event(event, final=final))
        return sse.encode_event(out, id=str(number))

    def write_error(self, error: A2aError) -> None:
        shown = self.dialect.render_error(error)
        body = encode({"jsonrpc": "2.0", "id": self.id, "error": shown})
        request = self.request
        as_event = (
            not error.missing_scope
            and self.dialect.TRAITS.streams_errors
            and self.op in operations.STREAMING
        )
        if as_event and b"text/event-stream" in request.fields.get(b"accept", b"").lower():
            request.reply(200, self.add_headers(SSE_HEADERS, error), sse.encode_event(body))
        else:
            status = 403 if error.missing_scope else 200
            request.reply(status, self.add_headers(JSON_HEADERS, error), body)


class RestExchange(Exchange):
    __slots__ = ("headers", "rest")

    def parse(self) -> Exchange | None:
        request, path = self.request, self.path
        dialect: RestDialect = v03 if path.startswith("/v1/") else v10
        self.rest = self.dialect = dialect
        traits = dialect.TRAITS
        self.headers = [(b"content-type", traits.media_type.encode())]
        version = read_version(request)
        if version is not None or not traits.versioned_paths:
            # A path has no dialect but its own; what is named beside it must be that.
            required = self.transport.require_version
            chosen = dialects.choose(version, operations.SEND, None, required)
            if chosen is not dialect and not traits.versioned_paths:
                raise A2aError(
                    errors.METHOD_NOT_FOUND, f'version "{version}" has no such path; see /v1'
                )
        found = dialect.ROUTES.find(request.method, path)
        if found is None:
            if allowed := dialect.ROUTES.list_methods(path):
                _reject_method(request, ", ".join(allowed).encode())
                return None
            raise A2aError(errors.METHOD_NOT_FOUND, f'there is nothing at "{request.path[:200]}"')
        op, values = found
        body = read_json(request) if request.body else None
        if op in _MESSAGES and isinstance(body, dict) and "jsonrpc" in body:
            # agno's client puts the envelope of JSON-RPC there, and reads one.
            return JsonRpcExchange(self.transport, request, self.principal, self.agent, path)
        self.op = op
        self.wanted = dialect.parse_rest_params(op, values, read_query(request), body)
        return self

    def encode_result(self, answer: dict[str, Any]) -> bytes:
        return encode(self.rest.render_rest_result(self.op, answer))

    def encode_event(self, stream: TaskStream, number: int, event: Any, final: bool) -> bytes:
        out = encode(self.rest.render_rest_event(event, final=final))
        return sse.encode_event(out, id=str(number))

    def write_error(self, error: A2aError) -> None:
        status, out = self.rest.render_rest_error(error)
        self.request.reply(status, self.add_headers(self.headers, error), encode(out))


class LegacyExchange(Exchange):
    """The routes of 0.1, and bodies without an envelope."""

    __slots__ = ("legacy",)

    lists_extensions = False

    def parse(self) -> Exchange:
        self.dialect = http_v01.DIALECT
        self.legacy: http_v01.LegacyRequest | None = None
        body = read_json(self.request) if self.request.body else None
        if self.path:
            legacy = http_v01.parse_request(self.request.method, self.path, body)
        else:
            bare = http_v01.parse_bare_request(body)
            if bare is None:
                raise A2aError(errors.INVALID_REQUEST, '"jsonrpc" must be "2.0"')
            legacy = bare
        self.legacy, self.op, self.wanted = legacy, legacy.op, legacy.request
        return self

    def encode_result(self, answer: dict[str, Any]) -> bytes:
        assert self.legacy is not None
        return encode(self.legacy.render_answer(answer))

    def encode_event(self, stream: TaskStream, number: int, event: Any, final: bool) -> bytes:
        assert self.legacy is not None
        return self.legacy.encode_event(stream, number, event, final)

    def write_error(self, error: A2aError) -> None:
        render = http_v01.render_failure if self.legacy is None else self.legacy.render_failure
        status, out = render(error)
        self.request.reply(status, self.add_headers(JSON_HEADERS, error), encode(out))


class A2aHttpTransport:
    def __init__(
        self, server: A2aServer, settings: A2aSettings, find_base: Callable[[HttpRequest], str]
    ) -> None:
        """`find_base` returns the address at which the client of a request sees the hub."""
        self.server = server
        self._cards: CardService = server.cards
        self._path = settings.listen_path.rstrip("/")
        self.require_version = settings.require_version
        self._find_base = find_base

    def is_card(self, path: str) -> bool:
        """Whether a request for `path` needs no key."""
        if not path.endswith(CARD_PATHS):
            return False
        return path in CARD_PATHS or self._split(path)[1] in CARD_PATHS

    def is_rpc(self, path: str) -> bool:
        return self._split(path)[1] in _RPC_PATHS

    def __call__(self, request: HttpRequest, principal: Principal | None) -> Work[None] | None:
        """The operation has started when this returns; None for a request that was answered."""
        path = request.path
        agent, rest = (None, path) if path in CARD_PATHS else self._split(path)
        if rest in CARD_PATHS and agent is None and path not in CARD_PATHS:
            self._reject_card_path(request)
        elif rest in CARD_PATHS:
            self._serve_cards(request, principal, agent, listed=False)
        elif principal is None:
            request.reply(401, JSON_HEADERS, encode({"error": {"message": "a key is needed"}}))
        elif rest in _RPC_PATHS:
            return self._serve(JsonRpcExchange(self, request, principal, agent, rest))
        elif rest == "/agents" and agent is None:
            self._serve_cards(request, principal, None, listed=True)
        elif http_v01.is_route(request.method, rest) and _may_be_legacy(request):
            return self._serve(LegacyExchange(self, request, principal, agent, rest))
        else:
            return self._serve(RestExchange(self, request, principal, agent, rest))
        return None

    def _split(self, path: str) -> tuple[str | None, str]:
        """The agent that a path below ours names, and the rest of it."""
        if not path.startswith(self._path):
            return None, path
        rest = path[len(self._path) :]
        if rest not in ("", "/"):
            first, _, after = rest[1:].partition("/")
            if first not in PATHS and ":" not in first:
                return unquote(first), f"/{after}" if after else ""
        return None, rest

    # --- operations ------------------------------------------------------------------------------

    def _serve(self, exchange: Exchange) -> Work[None] | None:
        """Starts the operation. Here and in `_finish` every error is answered in the binding and
        dialect of the request."""
        try:
            while (parsed := exchange.parse()) is not exchange:
                if parsed is None:
                    return None
                exchange = parsed
            op, wanted, request = exchange.op, exchange.wanted, exchange.request
            fields = request.fields
            extensions = fields.get(b"a2a-extensions") or fields.get(b"x-a2a-extensions")
            key = fields.get(b"idempotency-key")
            metadata = None
            if "metadata" in wanted or "metadata" in wanted.get("message", NOTHING):
                metadata = merge_metadata(wanted)
            ctx = RequestContext(
                exchange.principal,
                exchange.agent,
                exchange.dialect.VERSION,
                parse_extensions(extensions.decode("latin-1")) if extensions else _NONE,
                self._find_base(request) if op == operations.CARD else "",
                check_idempotency_key(key.decode("latin-1")) if key else "",
                parse_trace(fields, metadata),
            )
            if exchange.is_notification:  # no client waits for the outcome: nothing is done
                request.reply(204, [], b"")
                return None
            answer = None
            if op not in operations.STREAMING:
                answer = self.server.answer(ctx, op, wanted)
        except Exception as error:
            _fail(exchange, error)
            return None
        return self._finish(exchange, ctx, answer)

    async def _finish(
        self, exchange: Exchange, ctx: RequestContext, answer: Awaitable[dict[str, Any]] | None
    ) -> None:
        """`answer` is None for a stream, which is opened here."""
        try:
            if answer is None:
                stream = await self._open_stream(exchange, ctx)
            elif exchange.op == operations.CARD:
                card = self._cards.shape_card(await answer, exchange.dialect.VERSION)
                body = exchange.encode_card(card)
            else:
                body = exchange.encode_result(await answer)
        except Exception as error:
            _fail(exchange, error)
            return
        if answer is None:
            await self._pump(exchange, ctx, stream)
            return
        headers = exchange.headers
        if ctx.extensions and exchange.lists_extensions:
            headers = self._add_extensions(exchange, ctx, headers)
        exchange.request.reply(200, headers, body)

    async def _open_stream(self, exchange: Exchange, ctx: RequestContext) -> TaskStream:
        if exchange.op == operations.STREAM:
            return await self.server.stream(ctx, exchange.wanted)
        last = exchange.request.fields.get(b"last-event-id", b"").decode("latin-1")
        number = int(last) if last.isascii() and last.isdigit() and len(last) < 10 else None
        return await self.server.subscribe(ctx, exchange.wanted, number)

    async def _pump(self, exchange: Exchange, ctx: RequestContext, stream: TaskStream) -> None:
        """Sends the events of the stream until it ends or the client disconnects."""
        request = exchange.request
        request.start(200, self._add_extensions(exchange, ctx, SSE_HEADERS))
        request.gone.add_done_callback(lambda _: stream.close())
        try:
            while not stream.ended and not request.lost:
                found = await stream.next(HEARTBEAT_SECONDS)
                for number, event, final in found:
                    await request.write(exchange.encode_event(stream, number, event, final))
                if not found and not stream.ended:
                    await request.write(sse.KEEPALIVE)
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"a stream was ended: {error}")
        except HubError as error:
            log.warning("a stream was ended: %s", error)
        finally:
            stream.close()
            request.end()

    def _add_extensions(
        self, exchange: Exchange, ctx: RequestContext, headers: list[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes]]:
        """Names the extensions that are in use."""
        if not ctx.extensions:
            return headers
        facts = self.server.router.get_facts(
            ctx.agent or exchange.wanted.get("tenant"), ctx.principal
        )
        used = render_used_extensions(facts, ctx.extensions).encode("latin-1", "replace")
        return [*headers, (b"a2a-extensions", used)] if used else headers

    # --- cards -----------------------------------------------------------------------------------

    def _reject_card_path(self, request: HttpRequest) -> None:
        """RFC 3986 resolves the path of a card relative to `/a2a/agent` as `/a2a/.well-known/…`: no
        card may be there, since that client means an agent that this request does not name."""
        path = self._path
        words = (
            f"there is no card here: the card of an agent is at {path}/{{agent}}{CARD_PATHS[0]}, "
            f"that of the default agent at {CARD_PATHS[0]}. If your client was given "
            f'"{path}/{{agent}}", give it "{path}/{{agent}}/", with a slash at the end'
        )
        request.reply(404, JSON_HEADERS, encode({"error": {"message": words}}))

    def _serve_cards(
        self, request: HttpRequest, principal: Principal | None, agent: str | None, listed: bool
    ) -> None:
        """Serves the card of that agent, or the list of all."""
        if request.method not in ("GET", "HEAD"):
            _reject_method(request, b"GET")
            return
        try:
            shape, base = find_card_shape(read_version(request)), self._find_base(request)
            if listed and principal is not None:
                body = self._cards.encode_agent_list(principal, base, shape)
                request.reply(200, JSON_HEADERS, body)
                return
            grpc = read_query(request).get("binding", "").upper() == "GRPC"
            body, tag, since = self._cards.encode_card(agent, principal, base, shape, grpc)
        except A2aError as error:
            status = 404 if error.reason == "INVALID_PARAMS" else error.codes.http
            request.reply(status, JSON_HEADERS, encode({"error": {"message": error.message}}))
            return
        headers = build_card_headers(body, shared=principal is None)
        reply_cached(request, [*headers, (b"last-modified", since.encode())], tag, body)


_NONE: frozenset[str] = frozenset()


def read_version(request: HttpRequest) -> str | None:
    """The version that was named, as a header or in the query; None without one."""
    named = request.fields.get(b"a2a-version")
    if named is None:
        if not request.query:
            return None
        return read_query(request).get("A2A-Version") or None
    return named.decode("latin-1").strip() or None


def _may_be_legacy(request: HttpRequest) -> bool:
    """Whether the request names no dialect without legacy routes."""
    try:
        version = read_version(request)
        return version is None or dialects.find_traits(find_card_shape(version)).has_legacy_routes
    except A2aError:
        return False  # `RestExchange.parse` raises it again, and answers it


def read_query(request: HttpRequest) -> dict[str, str]:
    if not request.query:
        return {}
    try:
        return dict(parse_qsl(request.query.decode("latin-1"), max_num_fields=32))
    except ValueError:
        raise A2aError(errors.INVALID_REQUEST, "the query has more than 32 fields") from None


def find_card_shape(version: str | None) -> str:
    """The shape that clients of that version read; empty for the one of the configuration."""
    if version is None:
        return ""
    return dialects.choose(version, None, None, False).VERSION


def read_json(request: HttpRequest) -> Any:
    kind = request.fields.get(b"content-type", b"").lower()
    if not kind.startswith((_JSON, _A2A_JSON)):
        raise A2aError(
            errors.CONTENT_TYPE_NOT_SUPPORTED, "send a message as content-type application/json"
        )
    body = request.body
    try:
        message = decode(body)
    except Malformed as problem:
        raise A2aError(errors.PARSE_ERROR, str(problem)) from None
    if has_duplicate_names(body, message, rpc.ENVELOPE, ()):
        raise A2aError(errors.INVALID_REQUEST, "a member is named twice")
    return message


def _fail(exchange: Exchange, error: Exception) -> None:
    request = exchange.request
    exchange.write_error(error_from_exception(error, f"{request.method} {request.path}"))


def _reject_method(request: HttpRequest, methods: bytes) -> None:
    body = encode({"error": {"message": f"use {methods.decode()}"}})
    request.reply(405, [*JSON_HEADERS, (b"allow", methods)], body)


async def answer_disabled(request: HttpRequest, principal: Principal | None) -> None:
    words = "A2A is not enabled here: set enabled = true under [a2a] in config.toml"
    request.reply(404, JSON_HEADERS, encode({"error": {"message": words}}))
