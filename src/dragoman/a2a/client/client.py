"""A client of any A2A agent: finds it, speaks what it speaks, and answers in the words of 1.0.

What is read may be odd, what is written is not. The headers that an operator registered for an
agent go to the origin he registered and to no other, whatever the agent's card says. Nothing that
may have been done is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from importlib import import_module
from random import getrandbits
from time import monotonic
from typing import TYPE_CHECKING, Any

from dragoman.a2a.client.card_discovery import (
    LOOPBACK,
    Discovery,
    Found,
    Trust,
    is_same_origin,
    origin_of,
)
from dragoman.a2a.client.dialect_probe import Peer, settle
from dragoman.a2a.client.endpoint import (
    GRPC,
    HTTP_JSON,
    JSON_TYPE,
    JSONRPC,
    ErrorStatus,
    HttpStatus,
    NotTaken,
    Way,
    Written,
    answered,
    words_in,
    written,
)
from dragoman.a2a.client.event_stream import EventStream, events, is_stream, one_event
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    GET,
    LIST,
    SEED_03,
    SEND,
    STREAM,
    SUBSCRIBE,
)
from dragoman.a2a.protocol.errors import (
    METHOD_NOT_FOUND,
    PERMISSION_DENIED,
    UNAUTHENTICATED,
    UNSUPPORTED_OPERATION,
    A2aError,
)
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable
from dragoman.core.ports import AddressFinder, FixedHeaders, HttpClient, Reply
from dragoman.core.read_pacing import PER_SECOND, Pace
from dragoman.core.trace import headers_of
from dragoman.core.urls import render_origin
from dragoman.wire import rpc
from dragoman.wire.json import MAX_BYTES

if TYPE_CHECKING:
    from dragoman.a2a.client.grpc_channels import GrpcChannels

SECONDS = 30.0
PROBE_SECONDS = 10.0
MAX_PEERS = 256
AT_ONCE: Mapping[str, Any] = {"returnImmediately": True}
"""The configuration of a message whose task is to be told of as soon as it has a name."""
AUTO, SEED_WIRE = "auto", "seed"
TLS = ("https", "https")

NOTHING: Mapping[str, str] = {}


class A2aClient:
    """`headers` belong to the origin of `registered`; without one they are sent to nobody.

    Agents are named by their URL; by a `Peer` where it is to be as it was found then, whatever its
    card says now. `more` are headers that go with one request, `timeout` its own time.
    """

    def __init__(
        self,
        http: HttpClient,
        headers: Mapping[str, str] | None = None,
        timeout: float = SECONDS,
        *,
        registered: str = "",
        trust: Trust | None = None,
        extensions: Iterable[str] = (),
        wire: str = AUTO,
        events_per_second: float = PER_SECOND,
    ) -> None:
        """With `wire` "seed" the agent is spoken to as the seed has it, and not asked what it
        speaks. Events that come faster than `events_per_second`, after as many at once, wait."""
        self.timeout = timeout
        self.wire = wire
        self._http = http
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._origin = origin_of(registered)
        self._registered = registered
        self._extensions = ",".join(extensions)
        self._fixed: dict[tuple[str, bool], FixedHeaders] = {}
        """What goes with every message to these addresses, with extensions and without."""
        self._discover = Discovery(http, self._headers, registered, timeout, trust)
        self._peers: OrderedDict[str, Peer] = OrderedDict()
        self._channels: GrpcChannels | None = None
        self._pace = Pace(events_per_second)

    # --- finding it ----------------------------------------------------------------------------

    async def discover(self, url: str) -> Found:
        return await self._discover(url)

    async def peer(self, url: str) -> Peer:
        """The agent at `url`; what was found out about it holds as long as its card does."""
        return self._peer(url, await self._discover(url))

    async def look_again(self, url: str) -> Found:
        """Its card as it is now; from then on nothing is gone by but what is adopted."""
        return await self._discover.again(url)

    def adopt(self, url: str, found: Found) -> Peer:
        self._discover.adopt(url, found)
        return self._peer(url, found)

    def _peer(self, url: str, found: Found) -> Peer:
        peer = self._peers.get(url)
        if peer is None or (peer.found is not found and peer.found.raw != found.raw):
            peer = self._peers[url] = Peer(found)
            self._note_origins(peer)
            while len(self._peers) > MAX_PEERS:
                self._peers.popitem(last=False)
        return peer

    async def settled(self, where: str | Peer) -> Peer:
        """The same, when it is known which dialect it speaks."""
        peer = where if isinstance(where, Peer) else await self.peer(where)
        if peer.way is None:
            await self._settle(peer)
        return peer

    async def _settle(self, peer: Peer) -> Way:
        if peer.way is not None:
            return peer.way
        if self.wire == SEED_WIRE:
            named = (way.url for way in peer.ways if way.declared and way.binding == JSONRPC)
            peer.way = Way(JSONRPC, SEED_03, next(named, peer.found.asked), declared=True)
            return peer.way
        return await settle(peer, self._probe)

    def _note_origins(self, peer: Peer) -> None:
        for way in peer.ways:
            if way.declared and self._withheld(way):
                peer.note(
                    f'its card names "{render_origin(way.url)}", which is of another origin than '
                    f'"{render_origin(self._registered)}": the headers registered for that '
                    "are not sent there"
                )

    # --- operations ----------------------------------------------------------------------------

    async def send(
        self,
        where: str | Peer,
        request: Mapping[str, Any],
        more: Mapping[str, str] = NOTHING,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """`{"task": …}` or `{"message": …}`."""
        return await self._answer(where, SEND, request, more, timeout)

    async def get(
        self,
        where: str | Peer,
        id: str,
        history: int | None = None,
        more: Mapping[str, str] = NOTHING,
    ) -> dict[str, Any]:
        return await self._answer(where, GET, {"id": id, "historyLength": history}, more)

    async def list(self, where: str | Peer, request: Mapping[str, Any]) -> dict[str, Any]:
        return await self._answer(where, LIST, request)

    async def cancel(
        self, where: str | Peer, id: str, more: Mapping[str, str] = NOTHING
    ) -> dict[str, Any]:
        return await self._answer(where, CANCEL, {"id": id}, more)

    async def stream(
        self,
        where: str | Peer,
        request: Mapping[str, Any],
        more: Mapping[str, str] = NOTHING,
        timeout: float | None = None,
    ) -> EventStream:
        """Where the agent does not stream, its one answer."""
        peer = await self.settled(where)
        if peer.streams:
            try:
                return await self._stream(peer, STREAM, request, more, timeout)
            except A2aError as problem:
                if problem.reason != UNSUPPORTED_OPERATION:
                    raise
                peer.note(f"its card says that it streams, but: {problem.message}")
        return EventStream(one_event(await self._answer(peer, SEND, request, more, timeout)))

    async def subscribe(
        self,
        where: str | Peer,
        id: str,
        last: str | None = None,
        more: Mapping[str, str] = NOTHING,
    ) -> EventStream:
        """The task as it is now, then what happens to it; from `last` on where it has events with
        ids."""
        more = {**more, "last-event-id": last} if last else more
        return await self._stream(where, SUBSCRIBE, {"id": id}, more)

    # --- asking ----------------------------------------------------------------------------------

    async def say(
        self, peer: Peer, message: dict[str, Any], beside: Mapping[str, str], timeout: float | None
    ) -> dict[str, Any]:
        """`send`, of a message that need not be waited for; `beside` is the trace. The way of most
        is short: what is always the same of a request is written once."""
        way = peer.way
        request = {"message": message, "configuration": AT_ONCE}
        if (
            way is None
            or self._headers
            or way.tenant
            or not way.traits.is_native
            or way.binding != JSONRPC
        ):
            return await self.send(peer, request, headers_of(beside), timeout)
        key = way.url, "extensions" in message
        fixed = self._fixed.get(key)
        if fixed is None:
            asked = written(way, SEND, request)
            fixed = FixedHeaders(self._with_extensions(way, asked.headers))
            if len(self._fixed) < MAX_PEERS:
                self._fixed[key] = fixed
        headers = fixed.traced(beside)
        body = rpc.request(message["messageId"], SEND, request)
        until = monotonic() + (timeout or self.timeout)
        try:
            reply = await self._http.request(
                "POST", way.url, headers, body, timeout=timeout or self.timeout
            )
            fixed.learn(headers)
            if reply.status == 200 and reply.headers.get("content-type") == JSON_TYPE:
                data = await reply.body.read(MAX_BYTES)
                found = words_in(data)  # as the answer to most is
                if found is not None:
                    return {"message": found}
                value = answered(way, SEND, reply.status, data)
            else:
                value = await self._heard(way, SEND, reply, until)
        except NotTaken as problem:
            await self._go_on(peer, way, SEND, problem, {_bare(way)})
            return await self.send(peer, request, headers_of(beside), timeout)
        if not isinstance(value, dict):
            raise BadReply(f'"{SEND}" in {way} was answered with no object')
        return value

    async def _answer(
        self,
        where: str | Peer,
        op: str,
        request: Mapping[str, Any],
        more: Mapping[str, str] = NOTHING,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        peer = where if isinstance(where, Peer) else await self.peer(where)
        tried: set[Way] = set()
        while True:
            way = peer.way or await self._settle(peer)
            try:
                value = await self._ask(way, op, request, timeout, more)
            except NotTaken as problem:
                tried.add(_bare(way))
                await self._go_on(peer, way, op, problem, tried)
                continue
            if not isinstance(value, dict):
                raise BadReply(f'"{op}" in {way} was answered with no object')
            return value

    async def _stream(
        self,
        where: str | Peer,
        op: str,
        request: Mapping[str, Any],
        more: Mapping[str, str],
        timeout: float | None = None,
    ) -> EventStream:
        peer = await self.settled(where)
        while True:
            way = peer.way or await self._settle(peer)
            try:
                if way.binding == GRPC:
                    seconds = timeout or self.timeout
                    return EventStream(
                        await self._ask_grpc(way, op, request, seconds, more, streamed=True)
                    )
                reply = await self._exchange(way, op, request, timeout or self.timeout, more)
                if not is_stream(reply):
                    data = await reply.body.read(MAX_BYTES)
                    event = answered(way, op, reply.status, data, reply.secrets)
                    return EventStream(one_event(event))
            except NotTaken as problem:
                await self._go_on(peer, way, op, problem, set())
                continue
            return EventStream(events(way, op, reply, self._pace), reply)

    async def _go_on(
        self, peer: Peer, way: Way, op: str, problem: NotTaken, tried: set[Way]
    ) -> None:
        """Another dialect is found for what was certainly not done; that an agent knows some
        operation less is no sign of another dialect. One that was `tried` may look new again: 0.1
        is told apart from 0.3 by asking."""
        if op == STREAM:
            raise A2aError(UNSUPPORTED_OPERATION, str(problem))
        if op != SEND:
            raise A2aError(METHOD_NOT_FOUND, str(problem))
        if not way.traits.negotiable:
            raise _nobody_takes(problem)
        peer.drop(way)
        follower = next((each for each in peer.ways if each.url == way.url), None)
        if follower is None:
            peer.forget()
            raise _nobody_takes(problem)
        try:
            follower = await self._settle(peer)
        except HubError:
            pass  # it may still know how to be sent something
        if _bare(follower) in tried:
            peer.forget()
            raise _nobody_takes(problem)
        peer.choose(follower, str(problem))

    async def _probe(self, way: Way, op: str, request: Mapping[str, Any]) -> Any:
        return await self._ask(way, op, request, min(self.timeout, PROBE_SECONDS))

    async def _ask(
        self,
        way: Way,
        op: str,
        request: Mapping[str, Any],
        timeout: float | None = None,
        more: Mapping[str, str] = NOTHING,
    ) -> Any:
        if way.binding == GRPC:
            return await self._ask_grpc(way, op, request, timeout or self.timeout, more)
        until = monotonic() + (timeout or self.timeout)
        reply = await self._exchange(way, op, request, timeout or self.timeout, more)
        return await self._heard(way, op, reply, until)

    # --- gRPC -------------------------------------------------------------------------------------

    async def _ask_grpc(
        self,
        way: Way,
        op: str,
        request: Mapping[str, Any],
        timeout: float,
        more: Mapping[str, str],
        *,
        streamed: bool = False,
    ) -> Any:
        """The answer to one operation, or the events of one that is `streamed`."""
        http = self._http
        if not isinstance(http, AddressFinder):
            raise Unreachable(f"{way} cannot be reached from here", sent=False)
        channels = self._channels
        if channels is None:
            # It needs an extra, and takes longer to load than others should wait.
            loaded = await asyncio.to_thread(import_module, "dragoman.a2a.client.grpc_channels")
            channels = self._channels = self._channels or loaded.GrpcChannels(http.find_addresses)
        headers = {} if self._origin is None or self._withheld(way) else dict(self._headers)
        headers |= {"a2a-version": way.version, **more}
        message = request.get("message")
        if (
            isinstance(message, dict)
            and "extensions" in message
            and way.traits.message_extensions_in_header
        ):
            headers["a2a-extensions"] = ",".join(message["extensions"])
        headers = http.fill(self._with_extensions(way, headers))
        try:
            if streamed:
                return await channels.stream(way, op, request, headers, timeout, self._pace)
            return await channels.ask(way, op, request, headers, timeout)
        except A2aError as error:
            if error.reason in (UNAUTHENTICATED, PERMISSION_DENIED) and self._withheld(way):
                raise self._withheld_refusal(way, error.row.http) from None
            raise

    def _withheld_refusal(self, way: Way, status: int) -> HttpStatus:
        return HttpStatus(
            f"{way} wants credentials (HTTP {status}), and those registered for "
            f'"{render_origin(self._registered)}" are not sent to another origin; '
            "register the agent by the address that its card names, if that is meant",
            status,
        )

    async def close(self) -> None:
        """Ends the connections that are its own; those over HTTP are the hub's."""
        channels, self._channels = self._channels, None
        if channels is not None:
            await channels.close()

    # --- HTTP -------------------------------------------------------------------------------------

    async def _heard(self, way: Way, op: str, reply: Reply, until: float) -> Any:
        """The one answer that was asked for, which comes by then: a stream is no answer as long as
        it has comments only."""
        if is_stream(reply):
            stream = EventStream(events(way, op, reply, self._pace), reply)
            try:
                async with asyncio.timeout(until - monotonic()):
                    async for event in stream:
                        return event
            except TimeoutError:
                raise TimedOut(
                    f'"{op}" in {way} was answered with a stream that said nothing in time; raise '
                    "the agent's timeout_secs if it needs more"
                ) from None
            finally:
                await stream.close()
            raise BadReply(f'"{op}" in {way} was answered with an empty stream')
        data = await reply.body.read(MAX_BYTES)
        return answered(way, op, reply.status, data, reply.secrets)

    async def _exchange(
        self,
        way: Way,
        op: str,
        request: Mapping[str, Any],
        timeout: float,
        more: Mapping[str, str],
    ) -> Reply:
        asked = written(way, op, request)
        reply = await self._send(way, asked, timeout, more)
        if way.binding == HTTP_JSON and reply.status == 415:
            # 1.0.0 had no media type of its own.
            reply.body.close()
            asked.headers["content-type"] = JSON_TYPE
            reply = await self._send(way, asked, timeout, more)
        elif way.binding == HTTP_JSON and op == SUBSCRIBE and reply.status in (404, 405):
            data = await reply.body.read(MAX_BYTES)
            if reply.status == 404 and b"TASK_NOT_FOUND" in data:
                answered(way, op, reply.status, data, reply.secrets)
            reply = await self._send(way, written(way, op, request, other=True), timeout, more)
        if reply.status in (401, 403) and self._withheld(way):
            reply.body.close()
            raise self._withheld_refusal(way, reply.status)
        return reply

    async def _send(
        self, way: Way, asked: Written, timeout: float, more: Mapping[str, str]
    ) -> Reply:
        headers = {} if self._origin is None or self._withheld(way) else dict(self._headers)
        headers.update(asked.headers)
        headers.update(more)
        return await self._http.request(
            asked.method,
            asked.url,
            self._with_extensions(way, headers),
            asked.body,
            timeout=timeout,
        )

    def _with_extensions(self, way: Way, headers: dict[str, str]) -> dict[str, str]:
        if self._extensions and (name := way.traits.extensions_header):
            said = headers.get(name)
            headers[name] = f"{said},{self._extensions}" if said else self._extensions
        return headers

    def _withheld(self, way: Way) -> bool:
        """gRPC has a port of its own: there the host counts, which TLS proves, or which is this
        machine."""
        if not self._headers:
            return False
        origin, own = origin_of(way.url), self._origin
        if way.binding != GRPC or origin is None or own is None:
            return not is_same_origin(origin, own)
        local = origin.host in LOOPBACK and own.host in LOOPBACK
        return not local and (origin.host != own.host or (origin.scheme, own.scheme) != TLS)


def _bare(way: Way) -> Way:
    """Whether a card says so is no difference."""
    return way._replace(declared=False)


def _nobody_takes(problem: NotTaken) -> A2aError:
    error = A2aError(METHOD_NOT_FOUND, str(problem))
    return error if 200 <= problem.status < 300 else ErrorStatus(error, problem.status)


def text_message(
    text: str, *, context: str | None = None, task: str | None = None
) -> dict[str, Any]:
    """A message of the user's, in the words of 1.0."""
    return user_message([{"text": text}], context=context, task=task)


def user_message(
    parts: Iterable[Mapping[str, Any]], *, context: str | None = None, task: str | None = None
) -> dict[str, Any]:
    message: dict[str, Any] = {
        "messageId": f"{getrandbits(128):032x}",  # a name, not a secret
        "role": "ROLE_USER",
        "parts": list(parts),
    }
    if context:
        message["contextId"] = context
    if task:
        message["taskId"] = task
    return message
