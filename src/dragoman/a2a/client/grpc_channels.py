"""Requests to agents over gRPC, in 1.0 and 0.3.

Importing this needs the extra `grpc`. gRPC brings its own HTTP/2, so the hub's HTTP client resolves
and checks the addresses, and a channel connects to those and resolves nothing itself.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from dragoman.a2a.client.endpoint import AgentRequest, NotUnderstood, is_final
from dragoman.a2a.client.event_stream import (
    MAX_EVENTS,
    MAX_STREAM,
    SENT_TOO_MUCH,
    TURN,
    Events,
    find_task_id,
    is_last,
)
from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.dialects import operations
from dragoman.a2a.protocol.errors import A2aError
from dragoman.core.background import Background
from dragoman.core.errors import BadReply, TimedOut, Unreachable
from dragoman.core.read_pacing import Pace
from dragoman.core.urls import hide_secrets
from dragoman.wire.masked_replies import mask_message

# Child processes do not use gRPC, and its own log lines add nothing.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
try:
    import grpc
    import grpc.aio

    from dragoman.a2a.protocol.grpc.messages import MAX_BYTES, SMALL, TYPES_RPC, InvalidMessage
    from dragoman.a2a.protocol.grpc.services import (
        REASONS_BY_NAME_03,
        SERVICES_BY_VERSION,
        GrpcMethod,
        GrpcService,
    )
except ImportError as error:
    raise Unreachable(
        f"gRPC agents need the package \"{error.name}\": run pip install 'dragoman-hub[grpc]'",
        sent=False,
    ) from None

MAX_CHANNELS = 8
CLOSE_SECONDS = 5.0
MAX_WORDS = 1_000
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]

FindAddresses = Callable[[str, float], Awaitable[list[str]]]
"""Takes a URL and a timeout; returns the addresses that may be dialled. Raises `Unreachable`."""


_REASONS = {
    grpc.StatusCode.NOT_FOUND: errors.TASK_NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT: errors.INVALID_PARAMS,
    grpc.StatusCode.FAILED_PRECONDITION: errors.UNSUPPORTED_OPERATION,
    grpc.StatusCode.UNAUTHENTICATED: errors.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: errors.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.RESOURCE_EXHAUSTED,
}


_NOT_UNDERSTOOD = (errors.METHOD_NOT_FOUND, errors.VERSION_NOT_SUPPORTED)


class _Channel:
    """A channel and the number of its calls: one in use is not closed."""

    __slots__ = ("calls", "wire")

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.calls = 0


class _GrpcCall(NamedTuple):
    """A request, the method that it calls, and the call of it over a channel."""

    request: AgentRequest
    service: GrpcService
    method: GrpcMethod
    channel: _Channel
    wire: Any

    async def decode(self, data: bytes) -> dict[str, Any]:
        try:
            if len(data) <= SMALL:
                return self._decode(data)
            return await asyncio.to_thread(self._decode, data)
        except InvalidMessage as problem:
            raise BadReply(
                f"{self.request.endpoint} answered with an invalid message: {problem}"
            ) from None

    def _decode(self, data: bytes) -> dict[str, Any]:
        message = self.service.types.decode(self.method.response_type, data)
        masked: dict[str, Any] = mask_message(message, data, self.request.secrets)
        return masked

    def convert(self, parse: Callable[..., Any], *value: Any) -> Any:
        try:
            return parse(*value)
        except A2aError as problem:
            raise BadReply(f"{self.request} was not answered: {problem.message}") from None


class GrpcChannels:
    """The channels to one agent, each to the checked addresses of one origin."""

    def __init__(self, find_addresses: FindAddresses) -> None:
        self._find_addresses = find_addresses
        self._channels: OrderedDict[str, _Channel] = OrderedDict()
        self._dropped: set[_Channel] = set()
        """Channels that take no more calls and close after the last one."""
        self._closing = Background("gRPC channels")

    async def close(self) -> None:
        channels = [*self._channels.values(), *self._dropped]
        self._channels.clear()
        self._dropped.clear()
        for channel in channels:
            await channel.wire.close()
        await self._closing.close(CLOSE_SECONDS)

    async def request(self, request: AgentRequest) -> Any:
        """Returns the result of one operation, in the form of 1.0."""
        call = await self._start_call(request)
        try:
            answer = await call.wire
        except asyncio.CancelledError:
            _raise_closed(request)
            raise
        except grpc.aio.AioRpcError as error:
            self._fail(call, error)
        return call.convert(call.service.parse_result, request.op, await call.decode(answer))

    async def stream(self, request: AgentRequest, pace: Pace) -> Events:
        """Returns the events of one operation. Its timeout covers the start of the stream."""
        call = await self._start_call(request, streamed=True)
        wire = call.wire
        try:
            async with asyncio.timeout(request.timeout):
                await wire.initial_metadata()
                if wire.done() and await wire.code() is not grpc.StatusCode.OK:
                    self._fail(call, await _error_from_call(wire))
        except TimeoutError:
            wire.cancel()
            raise TimedOut(f"{request} timed out after {request.timeout:g} s") from None
        except grpc.aio.AioRpcError as error:
            self._fail(call, error)
        except BaseException as error:
            wire.cancel()
            if isinstance(error, asyncio.CancelledError):
                _raise_closed(request)
            raise
        return self._read_events(call, pace)

    async def _start_call(self, request: AgentRequest, streamed: bool = False) -> _GrpcCall:
        service = SERVICES_BY_VERSION[request.endpoint.version]
        method = service.methods.get(request.op)
        if method is None:
            raise A2aError(
                errors.METHOD_NOT_FOUND, f'"{request.op}" is unknown in {request.endpoint}'
            )
        data = _encode_request(request, service, method)
        channel = await self._open_channel(request.endpoint.url, request.timeout)
        metadata = [(name.lower(), value) for name, value in request.headers.items()]
        path = f"/{service.name}/{method.name}"
        if streamed:
            wire = channel.wire.unary_stream(path)(data, metadata=metadata)
        else:
            send = channel.wire.unary_unary(path)
            wire = send(data, timeout=request.timeout, metadata=metadata)
        channel.calls += 1
        wire.add_done_callback(lambda _: self._end_call(channel))
        return _GrpcCall(request, service, method, channel, wire)

    async def _read_events(self, call: _GrpcCall, pace: Pace) -> Events:
        own, count, size = "", 0, 0
        try:
            async for data in call.wire:
                count, size = count + 1, size + len(data)
                if size > MAX_STREAM or count > MAX_EVENTS:
                    raise BadReply(f"{call.request.endpoint} {SENT_TOO_MUCH}")
                plain = await call.decode(data)
                event = call.convert(call.service.parse_event, plain)
                task = find_task_id(event)
                own = own or task
                if task and task != own:
                    continue
                yield None, event
                if is_last(event) or is_final(call.request, plain):
                    return
                if count % TURN == 0:
                    await asyncio.sleep(pace.pause(TURN))
        except asyncio.CancelledError:
            _raise_closed(call.request)
            raise
        except grpc.aio.AioRpcError as error:
            self._fail(call, error)
        finally:
            call.wire.cancel()

    # --- channels ---------------------------------------------------------------------------------

    async def _open_channel(self, url: str, timeout: float) -> _Channel:
        channel = self._channels.get(url)
        if channel is None:
            addresses = await self._find_addresses(url, timeout)
            channel = self._channels.get(url)  # another call may have opened it meanwhile
        if channel is None:
            channel = self._channels[url] = _Channel(_dial(url, addresses))
        self._channels.move_to_end(url)
        if len(self._channels) > MAX_CHANNELS:
            self._close_unused(url)
        return channel

    def _end_call(self, channel: _Channel) -> None:
        channel.calls -= 1
        if channel.calls:
            return
        if channel in self._dropped:
            self._dropped.discard(channel)
            self._close_soon(channel)
        elif len(self._channels) > MAX_CHANNELS:
            self._close_unused()

    def _close_unused(self, kept: str = "") -> None:
        """Closes idle channels, the least recently used first, down to the limit. Channels in use
        stay, and close when their calls end."""
        for url, channel in list(self._channels.items()):
            if len(self._channels) <= MAX_CHANNELS:
                return
            if not channel.calls and url != kept:
                del self._channels[url]
                self._close_soon(channel)

    def _close_soon(self, channel: _Channel) -> None:
        self._closing.spawn(channel.wire.close())

    def _drop_unconnected(self, channel: _Channel, url: str, words: str) -> bool:
        """Drops a channel that lost its connection: the addresses may have changed. Returns whether
        the request was not sent. An agent may answer with the same text over a working connection,
        which other calls continue to use."""
        state = channel.wire.get_state()
        if state is grpc.ChannelConnectivity.READY:
            return False
        if self._channels.get(url) is channel:
            del self._channels[url]
            if channel.calls:
                self._dropped.add(channel)
            else:
                self._close_soon(channel)
        trying = (grpc.ChannelConnectivity.CONNECTING, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        return state in trying and "failed to connect" in words

    def _fail(self, call: _GrpcCall, error: Any) -> NoReturn:
        """Raises the error of a call's status."""
        request, code = call.request, error.code()
        words = " ".join(str(error.details() or code.name).split())[:MAX_WORDS]
        words = hide_secrets(words, request.endpoint.url, request.headers.values())
        if code is grpc.StatusCode.UNAVAILABLE:
            unsent = self._drop_unconnected(call.channel, request.endpoint.url, words)
            raise Unreachable(f"{request} could not be sent: {words}", sent=not unsent) from None
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise TimedOut(f"{request} timed out after {request.timeout:g} s") from None
        if code is grpc.StatusCode.CANCELLED:
            raise Unreachable(f"{request} was ended by the agent: {words}") from None
        reason, words = _find_reason(error, words)
        if code is grpc.StatusCode.UNIMPLEMENTED or reason in _NOT_UNDERSTOOD:
            raise NotUnderstood(f"{request} is not supported: {words[:300]}") from None
        raise A2aError(reason, words) from None


def _raise_closed(request: AgentRequest) -> None:
    """Raises unless the task itself is cancelled: closing a channel cancels its waiting calls."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise Unreachable(f"{request} was ended: its connection was closed") from None


def _dial(url: str, addresses: list[str]) -> Any:
    """Opens a channel to addresses of one family, as gRPC requires."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    four = [address for address in addresses if ":" not in address]
    if four:
        target = "ipv4:" + ",".join(f"{address}:{port}" for address in four)
    else:
        target = "ipv6:" + ",".join(f"[{address}]:{port}" for address in addresses)
    options = [*OPTIONS, ("grpc.default_authority", parts.netloc)]
    if parts.scheme != "https":
        return grpc.aio.insecure_channel(target, options=options)
    options.append(("grpc.ssl_target_name_override", parts.hostname or ""))
    return grpc.aio.secure_channel(target, _load_roots(), options=options)


@cache
def _load_roots() -> Any:
    """Loads the certificate authorities that the hub trusts over HTTPS."""
    held = ssl.create_default_context().get_ca_certs(binary_form=True)
    roots = "".join(ssl.DER_cert_to_PEM_cert(one) for one in held).encode()
    return grpc.ssl_channel_credentials(roots or None)


# --- messages -------------------------------------------------------------------------------------


def _encode_request(request: AgentRequest, service: GrpcService, method: GrpcMethod) -> bytes:
    params = {name: value for name, value in request.params.items() if value is not None}
    params.pop(operations.TASK_ID, None)
    if request.endpoint.tenant:
        params["tenant"] = request.endpoint.tenant
    plain = service.build_request(method.op, params)
    try:
        return service.types.encode(method.request_type, plain)
    except InvalidMessage as problem:
        raise A2aError(errors.INVALID_PARAMS, str(problem)) from None


async def _error_from_call(call: Any) -> Any:
    return grpc.aio.AioRpcError(
        await call.code(),
        await call.initial_metadata(),
        await call.trailing_metadata(),
        details=await call.details(),
    )


def _find_reason(error: Any, words: str) -> tuple[str, str]:
    """Finds the A2A error of a status: by its details, by the name at the start of its text (0.3),
    or by its code."""
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin" and (found := _reason_from_status(value)):
            return found, words
    name, colon, rest = words.partition(":")
    if colon and name in REASONS_BY_NAME_03:
        return REASONS_BY_NAME_03[name], rest.strip()
    return _REASONS.get(error.code(), errors.INTERNAL), words


def _reason_from_status(status: Any) -> str:
    if not isinstance(status, bytes):
        return ""
    try:
        for detail in TYPES_RPC.decode("Status", status).get("details", ()):
            if str(detail.get("typeUrl", "")).endswith("google.rpc.ErrorInfo"):
                info = TYPES_RPC.decode("ErrorInfo", b64decode(detail.get("value", "")))
                if info.get("domain") == errors.DOMAIN and info.get("reason") in errors.ERROR_CODES:
                    return str(info["reason"])
    except (InvalidMessage, ValueError):
        pass
    return ""
