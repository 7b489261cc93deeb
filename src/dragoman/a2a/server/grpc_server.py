"""A2A over gRPC, on its own port: from a call's metadata and bytes to the A2A server, and back.

Knows no operation beyond its name. Importing this needs the extra `grpc`, and happens only if a
port is configured. There is no TLS: listen on loopback, or behind a proxy that has it. Browsers do
not speak gRPC, so there is no Host or Origin to check.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import os
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, nullcontext
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.dialects import BY_VERSION, choose
from dragoman.a2a.protocol.dialects.operations import (
    CARD,
    SEND,
    STREAM,
    STREAMING,
    SUBSCRIBE,
    V10,
)
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.server.operations import A2aServer
from dragoman.a2a.server.request_context import (
    GRPC_PART,
    RequestContext,
    check_idempotency_key,
    error_from_exception,
    merge_metadata,
    parse_extensions,
)
from dragoman.a2a.server.routing import render_used_extensions
from dragoman.core.access import TokenRejected, WhyEnded
from dragoman.core.call import NOTHING
from dragoman.core.cluster import FrameSink, OwnedElsewhere, OwnerRequests, prepay
from dragoman.core.errors import ConfigError, Unreachable
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.trace import HEADERS as TRACE_HEADERS
from dragoman.core.trace import parse_trace
from dragoman.wire.json import decode, encode

# The child processes of the hub do not use gRPC, whose fork support would delay every fork. What it
# prints on stderr is raised or logged here as well.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
try:
    import grpc
    import grpc.aio

    from dragoman.a2a.protocol.grpc.messages import (
        MAX_BYTES,
        SMALL,
        InvalidMessage,
        encode_status,
        is_quickly_encoded,
    )
    from dragoman.a2a.protocol.grpc.services import SERVICES, GrpcMethod, GrpcService
except ImportError as error:
    raise ConfigError(
        f'[a2a] grpc_port needs the package "{error.name}", which is not installed: run '
        "pip install 'dragoman-hub[grpc]', or take grpc_port out"
    ) from None

log = logging.getLogger("dragoman.a2a")
Answer = TypeVar("Answer")
Trailer: TypeAlias = tuple[str, str | bytes]
Trailers: TypeAlias = tuple[Trailer, ...]

MAX_CALLS = 2000
"""At once, streams among them."""
MAX_OF_CALLER = 1000
MAX_CONNECTIONS = 1000
MAX_STREAMS = 100
"""Calls at once on a connection; a client waits with further ones."""
MAX_READING = 8
"""Messages of one caller that are received at once; each may have 10 MB. Others wait unread."""
MAX_READING_ALL = 32
"""Messages that are received at once beside one of each caller, which waits for no other caller."""
MAX_QUERY = 64 * 1024
"""Bytes of a message that sends nothing to an agent: a stream keeps it as long as it is open."""
MESSAGE_SECONDS = 60.0
"""How long the message of a call may take to arrive."""
UNREAD_SECONDS = 60.0
"""How long an event waits for a client that does not read it."""
_BEGIN, _MESSAGE, _ERROR, _END = b"b", b"m", b"e", b"o"
"""The kinds of frames of a forwarded call, each its first byte."""
LENGTH = 4
"""Bytes of the length before the head of a forwarded call."""
MAX_WORDS = 1024
MAX_VIOLATIONS = 8
"""Errors travel in trailers, and clients accept 8 KiB of these."""

OPTIONS = [
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
    # No compression: up to 1.70 at least, gRPC unpacks a message before it checks its size.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    # Otherwise gRPC buffers 4 MB or more of each message before it is read; without, 64 KB. A
    # message that is read may still arrive as fast as the network allows.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Detects clients that have vanished, and tolerates pings of others.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # Otherwise two hubs could share the port, each getting some of the calls.
    ("grpc.so_reuseport", 0),
]

Found = Principal | Awaitable[Principal | None] | None
Authenticate = Callable[[Mapping[str, str], str, int], Found]
"""Finds the principal by the metadata, whose names are in lower case, by the peer as gRPC names it,
and the port to which it has connected; None if it is unknown. Raises `TokenRejected`."""


class Context(Protocol):
    """What gRPC passes to the handler of a call."""

    def invocation_metadata(self) -> Any: ...
    def peer(self) -> str: ...
    async def send_initial_metadata(self, metadata: Any) -> None: ...
    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> None: ...
    async def abort(self, code: Any, details: str, trailing_metadata: Any) -> NoReturn: ...


class GrpcEndpoint(Struct, frozen=True):
    """A method of a service at a port."""

    service: GrpcService
    method: GrpcMethod
    agent: str | None = None
    """The agent that answers at the port; None if requests name it."""
    port: int = 0


class GrpcCall(Struct, frozen=True):
    service: GrpcService
    method: GrpcMethod
    ctx: RequestContext
    request: dict[str, Any]
    context: Context
    metadata: Mapping[str, str]
    data: bytes
    """The request as it came."""


Work = Callable[[GrpcCall], Awaitable[Answer]]


class RunningGrpcCall(Struct):
    caller: Principal
    """With its own credential: calls of one principal may come with several."""
    ends: str = ""
    """Why the hub ends it early."""


class A2aGrpcServer:
    def __init__(
        self,
        server: A2aServer,
        authenticate: Authenticate,
        host: str,
        port: int,
        *,
        base: str,
        require_version: bool,
        owners: OwnerRequests | None = None,
        agent_ports: Mapping[str, int] = NOTHING,
        max_calls: int = MAX_CALLS,
        max_of_caller: int = MAX_OF_CALLER,
        max_reading: int = MAX_READING_ALL,
    ) -> None:
        """`owners` are the other hubs of a cluster; `agent_ports` the ports at which one agent
        answers, by its name."""
        self._owners = owners
        self._operations = server
        self._authenticate = authenticate
        self._host = host
        self._port = port
        self._base = base
        self._require_version = require_version
        self._max_calls = max_calls
        self._max_of_caller = max_of_caller
        self._calls: dict[Principal, dict[asyncio.Task[Any], RunningGrpcCall]] = {}
        """The running calls of each principal."""
        self._reading: dict[Principal, asyncio.Semaphore] = {}
        """What limits the messages of each that are received."""
        self._reading_all = asyncio.Semaphore(max_reading)
        self._receiving: set[Principal] = set()
        """The callers one message of whom is received without such a turn."""
        self._servers: list[Any] = []
        self.agent_ports: Mapping[str, int] = agent_ports
        """As numbers of their own once it listens."""

    async def start(self) -> int:
        """Listens, and returns the port that is for all agents."""
        if not _is_loopback(self._host) and await self._find_caller({}, "", 0) is not None:
            raise ConfigError(
                f'[server] host = "{self._host}" can be reached from outside, which needs a key'
                " on [a2a] grpc_port too: set api_key, or run: dragoman keys create NAME"
            )
        try:
            ports = {name: await self._listen(at, name) for name, at in self.agent_ports.items()}
            self.agent_ports = ports
            return await self._listen(self._port, None)
        except ConfigError:
            await self.stop(0)
            raise

    async def _listen(self, number: int, agent: str | None) -> int:
        """Listens at a port, where `agent` answers if it is given."""
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=self._max_calls)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        try:
            port: int = server.add_insecure_port(f"{shown}:{number}")
        except RuntimeError:
            setting = "grpc_port" if agent is None else f'port of "{agent}" in grpc_ports'
            raise ConfigError(
                f"cannot listen on {self._host} port {number} for gRPC; stop what uses it, or "
                f"set another [a2a] {setting}"
            ) from None
        for service in SERVICES:
            handlers = {
                it.name: self._method(GrpcEndpoint(service, it, agent, port))
                for it in service.methods.values()
            }
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service.name, handlers),)
            )
        await server.start()
        self._servers.append(server)
        return port

    async def stop(self, grace: float) -> None:
        """Accepts no more calls; running ones have `grace` seconds."""
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    # --- one call --------------------------------------------------------------------------------

    def _method(self, endpoint: GrpcEndpoint) -> Any:
        """Declares the request as a stream, of one message: gRPC then calls the handler before it
        receives the message, of which it buffers little before it is read. Clients see no
        difference."""
        if endpoint.method.op in STREAMING:

            async def stream(messages: object, context: Context) -> None:
                await self._serve(self._stream, endpoint, context)

            return grpc.stream_stream_rpc_method_handler(stream)

        async def answer(messages: object, context: Context) -> bytes:
            return await self._serve(self._answer, endpoint, context)

        return grpc.stream_unary_rpc_method_handler(answer)

    async def _serve(self, work: Work[Answer], endpoint: GrpcEndpoint, context: Context) -> Answer:
        service, method = endpoint.service, endpoint.method
        caller: Principal | None = None
        try:
            metadata = _join_metadata(context.invocation_metadata())
            found = context.principal if isinstance(context, ForwardedContext) else None
            caller = await self._admit(metadata, context.peer(), endpoint.port, found)
            self._check_version(service, metadata.get("a2a-version"))
            data = await self._read(caller, context)
            if len(data) > MAX_QUERY and method.op not in (SEND, STREAM):
                raise A2aError(
                    errors.INVALID_PARAMS,
                    f"the message of {method.op} is larger than {MAX_QUERY} bytes",
                )
            request = await _decode(service, method, data)
            older = metadata.get("x-a2a-extensions", "")  # 0.3's
            ctx = RequestContext(
                principal=caller,
                agent=endpoint.agent,  # if it is None, the tenant of the request may name one
                version=service.version,
                extensions=parse_extensions(f"{metadata.get('a2a-extensions', '')},{older}"),
                base=self._base,
                key=check_idempotency_key(metadata.get("idempotency-key", "")),
                trace_context=parse_trace(_select_trace(metadata), merge_metadata(request)),
            )
            call = GrpcCall(service, method, ctx, request, context, metadata, data)
            try:
                return await work(call)
            except OwnedElsewhere as other:
                return await self._forward(work, call, other)
        except asyncio.CancelledError:
            why = self._why_ended(caller)
            if not why:
                raise
            await _abort(service, context, A2aError(errors.UNAUTHENTICATED, why))
        except Exception as error:
            # The call counts until the error is sent: a client that does not read may delay that.
            await _abort(service, context, error)
        finally:
            if caller is not None:
                self._release(caller)

    async def _find_caller(
        self, metadata: Mapping[str, str], peer: str, port: int
    ) -> Principal | None:
        try:
            found = self._authenticate(metadata, peer, port)
            return found if found is None or isinstance(found, Principal) else await found
        except TokenRejected as problem:
            raise A2aError(errors.UNAUTHENTICATED, str(problem)) from None

    async def _admit(
        self, metadata: Mapping[str, str], peer: str, port: int, found: Principal | None
    ) -> Principal:
        """`found` is the principal that another hub has found."""
        caller = found or await self._find_caller(metadata, peer, port)
        if caller is None:
            raise A2aError(
                errors.UNAUTHENTICATED,
                'a key is needed: send the metadata "authorization: Bearer KEY"',
            )
        calls = self._calls.setdefault(caller, {})
        if len(calls) >= self._max_of_caller:
            raise A2aError(
                errors.RESOURCE_EXHAUSTED,
                f"a caller may have {self._max_of_caller} concurrent calls and streams over "
                "gRPC; wait until one has ended",
            )
        task = asyncio.current_task()
        assert task is not None
        calls[task] = RunningGrpcCall(caller)
        return caller

    async def _read(self, caller: Principal, context: Context) -> bytes:
        """Receives the message of an admitted call."""
        turns = self._reading.setdefault(caller, asyncio.Semaphore(MAX_READING))
        try:
            async with asyncio.timeout(MESSAGE_SECONDS), turns:
                data = await self._receive(caller, context)
        except TimeoutError:
            raise A2aError(
                errors.UNAVAILABLE,
                f"the message of the call did not arrive within {MESSAGE_SECONDS:g} s",
            ) from None
        if not isinstance(data, bytes):
            raise A2aError(errors.INVALID_PARAMS, "the call has no message")
        return data

    async def _receive(self, caller: Principal, context: Context) -> Any:
        if caller in self._receiving:
            async with self._reading_all:
                return await context.read()
        self._receiving.add(caller)
        try:
            return await context.read()
        finally:
            self._receiving.discard(caller)

    def _release(self, caller: Principal) -> None:
        calls, task = self._calls[caller], asyncio.current_task()
        assert task is not None
        del calls[task]
        if not calls:
            del self._calls[caller]
            self._reading.pop(caller, None)

    def end_principals(self, why_ended: WhyEnded) -> None:
        for calls in list(self._calls.values()):
            for task, call in list(calls.items()):
                if not call.ends and (why := why_ended(call.caller)):
                    call.ends = why
                    task.cancel(why)

    def _why_ended(self, caller: Principal | None) -> str:
        """Why the current call ends, if the hub ends it."""
        task = asyncio.current_task()
        if caller is None or task is None or not (why := self._calls[caller][task].ends):
            return ""
        task.uncancel()
        return why

    def _check_version(self, service: GrpcService, version: str | None) -> None:
        chosen = choose(version, service.known_by, None, self._require_version)
        if chosen is not BY_VERSION[service.version]:
            raise A2aError(
                errors.VERSION_NOT_SUPPORTED,
                f"{service.name} does not speak A2A {version}; send the metadata "
                f'"a2a-version: {service.version}"',
            )

    async def _answer(self, call: GrpcCall) -> bytes:
        service, method = call.service, call.method
        answer = await self._operations.answer(call.ctx, method.op, call.request)
        shown = self._operations.cards.shape_card(answer, V10) if method.op == CARD else answer
        await self._send_extensions(call)
        return await _encode(service, method, service.render_result(method.op, shown))

    async def _stream(self, call: GrpcCall) -> None:
        service, method = call.service, call.method
        if method.op == SUBSCRIBE:
            events = await self._operations.subscribe(call.ctx, call.request, None)
        else:
            events = await self._operations.stream(call.ctx, call.request)
        try:
            await self._send_extensions(call)
            async for _, event, final in events:
                data = await _encode(service, method, service.render_event(event, final=final))
                async with asyncio.timeout(UNREAD_SECONDS):
                    await call.context.write(data)
        except TimeoutError:
            raise A2aError(
                errors.UNAVAILABLE,
                f"the stream was not read for {UNREAD_SECONDS:g} s; subscribe to the task to hear "
                "the rest",
            ) from None
        finally:
            events.close()

    # --- calls for what another hub owns ---------------------------------------------------------

    async def _forward(self, work: Work[Answer], call: GrpcCall, other: OwnedElsewhere) -> Answer:
        """Has the owner of the task run the call, unless another hub has sent it here already."""
        owners, context = self._owners, call.context
        if owners is None:
            raise Unreachable("the task belongs to another hub", sent=False)
        frames: AsyncIterator[bytes] | None = None
        if isinstance(context, ForwardedContext):
            # This hub may not have known that it is the heir.
            if await owners.find_owner(other.mark):
                raise Unreachable("the hubs disagree on the owner of the task", sent=False)
        else:
            body, principal = _encode_call(call), call.ctx.principal
            frames = await owners.open(
                other.mark, GRPC_PART, principal, body, is_charged=other.is_charged
            )
        if frames is not None:
            return await _relay(frames, call)  # type: ignore[return-value]
        try:
            with prepay() if other.is_charged else nullcontext():
                return await work(call)
        except OwnedElsewhere:
            raise Unreachable("the owner of the task has just changed", sent=False) from None

    async def serve_forwarded(self, principal: Principal, body: bytes, sink: FrameSink) -> None:
        """Runs a call that another hub has sent here; a `core.cluster.ServeFrames`."""
        size = LENGTH + int.from_bytes(body[:LENGTH], "big")
        head, data = decode(body[LENGTH:size]), body[size:]
        context = ForwardedContext(principal, head["metadata"], data, sink)
        service = next(one for one in SERVICES if one.name == head["service"])
        method = service.methods[head["op"]]
        endpoint = GrpcEndpoint(service, method, head.get("agent"))
        try:
            if method.op in STREAMING:
                await self._serve(self._stream, endpoint, context)
            else:
                await context.write(await self._serve(self._answer, endpoint, context))
        except ForwardedError as error:
            await sink.write(_ERROR + encode(error.render()))
        else:
            await sink.write(_END)

    async def _send_extensions(self, call: GrpcCall) -> None:
        """Names the extensions in use."""
        if call.ctx.extensions:
            facts = self._operations.router.get_facts(
                call.request.get("tenant") or call.ctx.agent, call.ctx.principal
            )
            if used := render_used_extensions(facts, call.ctx.extensions):
                await call.context.send_initial_metadata((("a2a-extensions", used),))


class ForwardedContext:
    """The context of a call that another hub has sent here."""

    def __init__(
        self, principal: Principal, metadata: Mapping[str, str], data: bytes, sink: FrameSink
    ) -> None:
        self._data = data
        self.principal = principal
        self._metadata = metadata
        self._sink = sink

    def invocation_metadata(self) -> Any:
        return tuple(self._metadata.items())

    def peer(self) -> str:
        return ""

    async def send_initial_metadata(self, metadata: Any) -> None:
        await self._sink.write(_BEGIN + encode(list(metadata)))

    async def read(self) -> bytes:
        return self._data

    async def write(self, message: bytes) -> None:
        await self._sink.write(_MESSAGE + message)

    async def abort(self, code: Any, details: str, trailing_metadata: Any) -> NoReturn:
        raise ForwardedError(code.name, details, tuple(trailing_metadata))


class ForwardedError(Exception):
    """The error that a call has ended with at another hub."""

    def __init__(self, code: str, words: str, trailers: Trailers) -> None:
        super().__init__(words)
        self.code = code
        self.words = words
        self.trailers = trailers

    def render(self) -> dict[str, Any]:
        """Trailers with a name in -bin are bytes."""
        trailers = [
            [name, b64encode(value).decode() if isinstance(value, bytes) else value]
            for name, value in self.trailers
        ]
        return {"code": self.code, "words": self.words, "trailers": trailers}


def _parse_forwarded_error(sent: Mapping[str, Any]) -> ForwardedError:
    trailers = tuple(
        (name, b64decode(value) if name.endswith("-bin") else value)
        for name, value in sent["trailers"]
    )
    return ForwardedError(sent["code"], sent["words"], trailers)


def _encode_call(call: GrpcCall) -> bytes:
    # Not the credential: the principal goes with it.
    metadata = {name: text for name, text in call.metadata.items() if name != "authorization"}
    head: dict[str, Any] = {"service": call.service.name, "op": call.method.op}
    head |= {"metadata": metadata, "agent": call.ctx.agent}
    encoded = encode(head)
    return len(encoded).to_bytes(LENGTH, "big") + encoded + call.data


async def _relay(frames: AsyncIterator[bytes], call: GrpcCall) -> bytes | None:
    """Sends the client what the owner responds; returns the message of a call that has one."""
    message: bytes | None = None
    async with aclosing(frames):  # type: ignore[type-var]
        async for frame in frames:
            kind, data = frame[:1], frame[1:]
            if kind == _BEGIN:
                metadata = tuple((name, text) for name, text in decode(data))
                await call.context.send_initial_metadata(metadata)
            elif kind == _ERROR:
                raise _parse_forwarded_error(decode(data))
            elif kind == _END:
                return message
            elif call.method.op in STREAMING:
                async with asyncio.timeout(UNREAD_SECONDS):
                    await call.context.write(data)
            else:
                message = data
    raise Unreachable("the hub that ran the call was lost")


async def _decode(service: GrpcService, method: GrpcMethod, data: bytes) -> dict[str, Any]:
    try:
        if len(data) > SMALL:
            plain = await asyncio.to_thread(service.types.decode, method.request_type, data)
        else:
            plain = service.types.decode(method.request_type, data)
    except InvalidMessage as error:
        raise A2aError(errors.INVALID_PARAMS, str(error)) from None
    return service.parse_request(method.op, plain)


async def _encode(service: GrpcService, method: GrpcMethod, plain: Mapping[str, Any]) -> bytes:
    encode = service.types.encode
    try:
        if is_quickly_encoded(plain):
            return encode(method.response_type, plain)
        return await asyncio.to_thread(encode, method.response_type, plain)
    except InvalidMessage as error:
        log.warning("an answer cannot be encoded for gRPC: %s", error)
        raise A2aError(
            errors.INVALID_AGENT_RESPONSE,
            "the agent's answer cannot be encoded for gRPC; use HTTP instead",
        ) from None


def _join_metadata(metadata: Any) -> dict[str, str]:
    """Joins repeated names, as HTTP does: two keys are then an invalid one."""
    found: dict[str, str] = {}
    for name, value in metadata or ():
        if isinstance(value, str):
            name = name.lower()
            found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _select_trace(metadata: Mapping[str, str]) -> dict[bytes, bytes]:
    """The trace context, as HTTP headers."""
    return {
        name.encode(): metadata[name].encode("latin-1", "replace")
        for name in TRACE_HEADERS
        if name in metadata
    }


async def _abort(service: GrpcService, context: Context, raised: Exception) -> NoReturn:
    """Ends the call with a status and its details."""
    if isinstance(raised, ForwardedError):
        await context.abort(grpc.StatusCode[raised.code], raised.words, raised.trailers)
    error = error_from_exception(raised, "a call over gRPC")
    code = grpc.StatusCode[error.codes.grpc]
    words = _truncate(service.render_error(error), MAX_WORDS)
    details = encode_status(code.value[0], words, _build_details(error))
    trailers: list[Trailer] = [("grpc-status-details-bin", details)]
    if error.retry_after:  # clients with a retry policy wait for that long
        trailers.append(("grpc-retry-pushback-ms", str(math.ceil(error.retry_after * 1000))))
    await context.abort(code, words, tuple(trailers))


def _build_details(error: A2aError) -> list[tuple[str, dict[str, Any]]]:
    reason = {
        "reason": error.reason,
        "domain": errors.DOMAIN,
        "metadata": {
            str(name): _truncate(str(value), 128)
            for name, value in [*error.metadata.items()][:MAX_VIOLATIONS]
        },
    }
    violations = [
        {"field": _truncate(field, 128), "description": _truncate(description, 128)}
        for field, description in error.violations[:MAX_VIOLATIONS]
    ]
    bad = [("BadRequest", {"fieldViolations": violations})] if violations else []
    return [("ErrorInfo", reason), *bad]


def _truncate(text: str, most: int) -> str:
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
