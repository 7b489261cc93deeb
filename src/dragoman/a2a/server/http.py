"""A2A over HTTP: which agent, binding and dialect a request is for, and how it is answered.

Under `listen_path`, and under an agent's name below it: JSON-RPC of every dialect by `POST`, the
routes of 1.0, those of 0.3 below `/v1`, those of the first dialect; the cards. Who is calling was
settled before a request comes here; nobody, where it asks for a card.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from dragoman.a2a.cards.build import build_card_headers, is_unchanged
from dragoman.a2a.config import PATHS, A2aSettings
from dragoman.a2a.protocol import dialects
from dragoman.a2a.protocol.dialects import Dialect, DialectTraits, operations, v03, v10
from dragoman.a2a.protocol.errors import (
    CONTENT_TYPE_NOT_SUPPORTED,
    INTERNAL,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    A2aError,
    error_from_hub,
)
from dragoman.a2a.server import http_v01
from dragoman.a2a.server.card_service import CardService
from dragoman.a2a.server.operations import A2aServer, merge_metadata
from dragoman.a2a.server.request_context import RequestContext
from dragoman.a2a.server.task_stream import TaskStream
from dragoman.core.errors import HubError
from dragoman.core.ports import JSON_HEADERS, HttpRequest
from dragoman.core.principal import Principal
from dragoman.core.trace import parse_trace
from dragoman.wire import rpc, sse
from dragoman.wire.json import Malformed, decode, encode, has_duplicate_names, is_compact

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0
MAX_EXTENSIONS = 32
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
PARAMS = (b'"message"', b'"id"', b'"configuration"', b'"metadata"')


class Known:
    """What is known of a JSON-RPC request, for the answer to it."""

    __slots__ = ("dialect", "id", "op")

    def __init__(self) -> None:
        self.id: rpc.Id = None
        self.dialect: Dialect = dialects.NATIVE
        self.op = ""


class A2aHttpTransport:
    def __init__(
        self, face: A2aServer, settings: A2aSettings, base_of: Callable[[HttpRequest], str]
    ) -> None:
        self.face = face
        self._cards: CardService = face.cards
        self._path = settings.listen_path.rstrip("/")
        self._require_version = settings.require_version
        self._base_of = base_of

    def is_card(self, path: str) -> bool:
        """Whether that is asked for without a key."""
        if not path.endswith(CARD_PATHS):
            return False
        return path in CARD_PATHS or self._split(path)[1] in CARD_PATHS

    def is_rpc(self, path: str) -> bool:
        return self._split(path)[1] in _RPC_PATHS

    def __call__(self, request: HttpRequest, principal: Principal | None) -> Awaitable[None]:
        path = request.path
        agent, rest = (None, path) if path in CARD_PATHS else self._split(path)
        if agent is not None:
            agent = self.face.router.resolve_slug(agent)
        if principal is not None and rest in _RPC_PATHS:
            return self._rpc(request, principal, agent)
        return self._other(request, principal, agent, rest)

    async def _other(
        self, request: HttpRequest, principal: Principal | None, agent: str | None, rest: str
    ) -> None:
        if rest in CARD_PATHS:
            self._card(request, principal, agent)
        elif principal is None:
            request.reply(401, JSON_HEADERS, encode({"error": {"message": "a key is needed"}}))
        else:
            await self._rest(request, principal, agent, rest)

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

    # --- JSON-RPC --------------------------------------------------------------------------------

    def _rpc(
        self, request: HttpRequest, principal: Principal, agent: str | None
    ) -> Awaitable[None]:
        """What was asked for is begun when this returns."""
        if request.method != "POST":
            _not_allowed(request, b"POST")
            return _done()
        known = Known()
        try:
            return self._begin(request, principal, agent, known)
        except Exception as error:
            _fail(request, known, error)
            return _done()

    def _begin(
        self, request: HttpRequest, principal: Principal, agent: str | None, known: Known
    ) -> Awaitable[None]:
        message = self._message(request)
        known.id = rpc.find_id(message)
        if (
            isinstance(message, dict)
            and "jsonrpc" not in message
            and http_v01.parse_bare_request(message)
        ):
            return self._legacy(request, principal, agent, "")
        if (flaw := rpc.find_flaw(_with_any_id(message))) is not None or "method" not in message:
            raise A2aError(INVALID_REQUEST, flaw or 'a request has a "method"')
        method, params = message["method"], message.get("params")
        version = _version(request)
        dialect = known.dialect = dialects.choose(version, method, params, self._require_version)
        if version is None and method in dialects.SHARED:
            id_of_task = params.get("id") if isinstance(params, dict) else None
            created_in = self.face.access.find_version(principal, id_of_task)
            dialect = known.dialect = dialects.choose_shared(created_in)
        op = dialect.METHODS.get(method)
        if op is None:
            raise A2aError(METHOD_NOT_FOUND, f'there is no method "{method[:100]}"')
        known.op = op
        wanted = dialect.parse_params(op, params)
        ctx = self._build_context(request, principal, agent, dialect, wanted)
        if "id" not in message:  # nobody waits for the outcome, so nothing is done
            request.reply(204, [], b"")
            return _done()
        if op in operations.STREAMING:
            return self._rpc_stream(request, known, ctx, wanted)
        return self._rpc_answer(request, known, ctx, wanted, self.face.answer(ctx, op, wanted))

    async def _rpc_answer(
        self,
        request: HttpRequest,
        known: Known,
        ctx: RequestContext,
        wanted: Mapping[str, Any],
        answer: Awaitable[dict[str, Any]],
    ) -> None:
        try:
            body = rpc.encode_result(known.id, self._out(known.dialect, known.op, await answer))
        except Exception as error:
            _fail(request, known, error)
            return
        request.reply(200, self._headers(ctx, JSON_HEADERS, wanted), body)

    async def _rpc_stream(
        self, request: HttpRequest, known: Known, ctx: RequestContext, wanted: Mapping[str, Any]
    ) -> None:
        def frame(stream: TaskStream, number: int, event: Any, final: bool) -> bytes:
            out = rpc.encode_result(known.id, known.dialect.render_event(event, final=final))
            return sse.encode_event(out, id=str(number))

        try:
            stream = await self._opened(known.op, ctx, wanted, request)
        except Exception as error:
            _fail(request, known, error)
            return
        await self._pump(request, stream, frame, ctx, wanted)

    def _message(self, request: HttpRequest) -> Any:
        kind = request.fields.get(b"content-type", b"").lower()
        if not kind.startswith((_JSON, _A2A_JSON)):
            raise A2aError(
                CONTENT_TYPE_NOT_SUPPORTED, "send a message as content-type application/json"
            )
        try:
            message = decode(request.body)
        except Malformed as problem:
            raise A2aError(PARSE_ERROR, str(problem)) from None
        body = request.body
        if not is_compact(body, message) and has_duplicate_names(body, rpc.ENVELOPE, (), 0):
            raise A2aError(INVALID_REQUEST, "a member is named twice")
        return message

    def _out(self, dialect: Dialect, op: str, answer: dict[str, Any]) -> Any:
        if op == operations.CARD:
            return self._cards.shape_card(answer, dialect.VERSION)
        return dialect.render_result(op, answer)

    async def _opened(
        self, op: str, ctx: RequestContext, wanted: Mapping[str, Any], request: HttpRequest
    ) -> TaskStream:
        if op == operations.STREAM:
            return await self.face.stream(ctx, wanted)
        last = request.fields.get(b"last-event-id", b"").decode("latin-1")
        return self.face.subscribe(ctx, wanted, int(last) if _is_number(last) else None)

    async def _pump(
        self,
        request: HttpRequest,
        stream: TaskStream,
        frame: http_v01.Frame,
        ctx: RequestContext,
        wanted: Mapping[str, Any],
    ) -> None:
        """Sends what the stream has, as long as there is somebody who reads it."""
        request.start(200, self._headers(ctx, SSE_HEADERS, wanted))
        request.gone.add_done_callback(lambda _: stream.close())
        try:
            while not stream.ended and not request.lost:
                found = await stream.next(HEARTBEAT_SECONDS)
                for number, event, final in found:
                    await request.write(frame(stream, number, event, final))
                if not found and not stream.ended:
                    await request.write(sse.KEEPALIVE)
        except HubError as error:
            log.warning("a stream was ended: %s", error)
        finally:
            stream.close()
            request.end()

    # --- routes ----------------------------------------------------------------------------------

    async def _rest(
        self, request: HttpRequest, principal: Principal, agent: str | None, path: str
    ) -> None:
        if path == "/agents" and agent is None:
            self._agents(request, principal)
            return
        if path.startswith("/v1/"):
            await self._routed(request, principal, agent, path, v03)
        elif http_v01.is_route(request.method, path) and _is_first(request):
            await self._legacy(request, principal, agent, path)
        else:
            await self._routed(request, principal, agent, path, v10)

    async def _routed(
        self,
        request: HttpRequest,
        principal: Principal,
        agent: str | None,
        path: str,
        dialect: Any,
    ) -> None:
        traits: DialectTraits = dialect.TRAITS
        kind = traits.media_type.encode()
        try:
            version = _version(request)
            if version is not None or not traits.versioned_paths:
                # A path has no dialect but its own; what is named beside it must be that.
                chosen = dialects.choose(version, operations.SEND, None, self._require_version)
                if chosen is not dialect and not traits.versioned_paths:
                    raise A2aError(
                        METHOD_NOT_FOUND, f'version "{version}" has no such path; see /v1'
                    )
            found = dialect.ROUTES.find(request.method, path)
            if found is None:
                allowed = dialect.ROUTES.list_methods(path)
                if allowed:
                    _not_allowed(request, ", ".join(allowed).encode())
                    return
                raise A2aError(METHOD_NOT_FOUND, f'there is nothing at "{request.path[:200]}"')
            op, values = found
            body = self._message(request) if request.body else None
            if op in _MESSAGES and isinstance(body, dict) and "jsonrpc" in body:
                # agno's client puts the envelope of JSON-RPC there, and reads one.
                await self._rpc(request, principal, agent)
                return
            wanted = dialect.parse_rest_params(op, values, _query(request), body)
            ctx = self._build_context(request, principal, agent, dialect, wanted)
            if op in operations.STREAMING:
                stream = await self._opened(op, ctx, wanted, request)

                def frame(stream: TaskStream, number: int, event: Any, final: bool) -> bytes:
                    out = encode(dialect.render_rest_event(event, final=final))
                    return sse.encode_event(out, id=str(number))

                await self._pump(request, stream, frame, ctx, wanted)
                return
            answer = await self.face.answer(ctx, op, wanted)
            if op == operations.CARD:
                out = self._cards.shape_card(answer, dialect.VERSION)
            else:
                out = dialect.render_rest_result(op, answer)
        except Exception as error:
            status, out = dialect.render_rest_error(_understood(error, request))
            request.reply(status, [(b"content-type", kind)], encode(out))
            return
        headers = self._headers(ctx, [(b"content-type", kind)], wanted)
        request.reply(200, headers, encode(out))

    async def _legacy(
        self, request: HttpRequest, principal: Principal, agent: str | None, path: str
    ) -> None:
        """The first dialect's own routes."""
        failure: http_v01.RenderFailure = http_v01.render_failure
        try:
            body = self._message(request) if request.body else None
            asked = (
                http_v01.parse_request(request.method, path, body)
                if path
                else http_v01.parse_bare_request(body)
            )
            if asked is None:
                raise A2aError(INVALID_REQUEST, '"jsonrpc" must be "2.0"')
            failure = asked.render_failure
            dialect = dialects.BY_VERSION["0.1"]
            ctx = self._build_context(request, principal, agent, dialect, asked.request)
            if asked.op in operations.STREAMING:
                stream = await self._opened(asked.op, ctx, asked.request, request)
                await self._pump(request, stream, asked.frame, ctx, asked.request)
                return
            answer = await self.face.answer(ctx, asked.op, asked.request)
            out = asked.answer(answer)
        except Exception as error:
            status, out = failure(_understood(error, request))
            request.reply(status, JSON_HEADERS, encode(out))
            return
        request.reply(200, JSON_HEADERS, encode(out))

    # --- cards -----------------------------------------------------------------------------------

    def _card(self, request: HttpRequest, principal: Principal | None, agent: str | None) -> None:
        if request.method not in ("GET", "HEAD"):
            _not_allowed(request, b"GET")
            return
        try:
            shape = _card_shape(_version(request))
            base = self._base_of(request)
            grpc = _query(request).get("binding", "").upper() == "GRPC"
            body, tag, since = self._cards.encode_card(agent, principal, base, shape, grpc=grpc)
        except A2aError as error:
            status = 404 if error.reason == "INVALID_PARAMS" else error.codes.http
            request.reply(status, JSON_HEADERS, encode({"error": {"message": error.message}}))
            return
        headers = [
            *build_card_headers(body, shared=principal is None),
            (b"last-modified", since.encode()),
        ]
        asked = request.fields.get(b"if-none-match")
        if asked is not None and is_unchanged(tag, asked.decode("latin-1")):
            request.reply(304, headers, b"")
        else:
            request.reply(200, headers, body)

    def _agents(self, request: HttpRequest, principal: Principal) -> None:
        if request.method not in ("GET", "HEAD"):
            _not_allowed(request, b"GET")
            return
        try:
            shape = _card_shape(_version(request))
        except A2aError as error:
            body = encode({"error": {"message": error.message}})
            request.reply(error.codes.http, JSON_HEADERS, body)
            return
        body = self._cards.encode_agent_list(principal, self._base_of(request), shape)
        request.reply(200, JSON_HEADERS, body)

    # --- who asks --------------------------------------------------------------------------------

    def _build_context(
        self,
        request: HttpRequest,
        principal: Principal,
        agent: str | None,
        dialect: Dialect,
        wanted: Mapping[str, Any],
    ) -> RequestContext:
        fields = request.fields
        named = fields.get(b"a2a-extensions") or fields.get(b"x-a2a-extensions")
        key = fields.get(b"idempotency-key", b"").decode("latin-1")
        if len(key) > 256 or not key.isprintable():
            raise A2aError(INVALID_REQUEST, "an Idempotency-Key has at most 256 characters")
        return RequestContext(
            principal,
            agent,
            dialect.VERSION,
            _extensions(named) if named else _NONE,
            self._base_of(request),
            key,
            parse_trace(fields, merge_metadata(wanted)),
        )

    def _headers(
        self, ctx: RequestContext, headers: list[tuple[bytes, bytes]], wanted: Mapping[str, Any]
    ) -> list[tuple[bytes, bytes]]:
        """With the extensions that are in use."""
        if not ctx.extensions:
            return headers
        facts = self.face.router.get_facts(ctx.agent or wanted.get("tenant"))
        declared = {one["uri"] for one in facts.extensions}
        used = sorted(ctx.extensions & declared)
        if not used:
            return headers
        return [*headers, (b"a2a-extensions", ", ".join(used).encode("latin-1", "replace"))]


_NONE: frozenset[str] = frozenset()


def _extensions(named: bytes) -> frozenset[str]:
    found = [one.strip() for one in named.decode("latin-1").split(",")]
    return frozenset(one for one in found[:MAX_EXTENSIONS] if 0 < len(one) <= 512)


def _version(request: HttpRequest) -> str | None:
    """The version that was named, as a header or in the query; None without one."""
    named = request.fields.get(b"a2a-version")
    if named is None:
        if not request.query:
            return None
        return _query(request).get("A2A-Version") or None
    return named.decode("latin-1").strip() or None


def _is_first(request: HttpRequest) -> bool:
    """Whether no other dialect than the first is named."""
    try:
        version = _version(request)
        return version is None or dialects.find_traits(_card_shape(version)).has_legacy_routes
    except A2aError:
        return False  # which is said where the routes are looked for


def _query(request: HttpRequest) -> dict[str, str]:
    if not request.query:
        return {}
    try:
        return dict(parse_qsl(request.query.decode("latin-1"), max_num_fields=32))
    except ValueError:
        raise A2aError(INVALID_REQUEST, "the query has more than 32 fields") from None


def _card_shape(version: str | None) -> str:
    """The shape that clients of that version read; empty for the one of the configuration."""
    if version is None:
        return ""
    return dialects.choose(version, None, None, False).VERSION


def _with_any_id(message: Any) -> Any:
    """JSON-RPC discourages null as an id, and some clients of A2A send it: they are answered."""
    if isinstance(message, dict) and "id" in message and message["id"] is None:
        return {**message, "id": 0}
    return message


async def _done() -> None:
    """It is answered already."""


def _fail(request: HttpRequest, known: Known, error: Exception) -> None:
    shown = known.dialect.render_error(_understood(error, request))
    body = encode({"jsonrpc": "2.0", "id": known.id, "error": shown})
    as_event = known.dialect.TRAITS.streams_errors and known.op in operations.STREAMING
    if as_event and _wants_events(request):
        request.reply(200, SSE_HEADERS, sse.encode_event(body))
    else:
        request.reply(200, JSON_HEADERS, body)


def _wants_events(request: HttpRequest) -> bool:
    return b"text/event-stream" in request.fields.get(b"accept", b"").lower()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _understood(error: Exception, request: HttpRequest) -> A2aError:
    if isinstance(error, A2aError):
        return error
    if isinstance(error, HubError):
        return error_from_hub(error)
    log.error("%s %s crashed", request.method, request.path, exc_info=error)
    return A2aError(INTERNAL, "the hub failed at this; see its log")


def _not_allowed(request: HttpRequest, methods: bytes) -> None:
    body = encode({"error": {"message": f"use {methods.decode()}"}})
    request.reply(405, [*JSON_HEADERS, (b"allow", methods)], body)


def answer_disabled(request: HttpRequest, principal: Principal | None) -> Awaitable[None]:
    return _disabled(request)


async def _disabled(request: HttpRequest) -> None:
    words = "A2A is not enabled here: set enabled = true under [a2a] in config.toml"
    request.reply(404, JSON_HEADERS, encode({"error": {"message": words}}))
