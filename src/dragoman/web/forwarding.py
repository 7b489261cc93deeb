"""Requests that belong to another hub: forwards them there, and serves those of other hubs.

The one place where `OwnedElsewhere` is caught. Both ends of a connection between hubs prove by TLS
that they have the secret of the cluster (`cluster_tls`): no other process sends, reads or answers
requests. A request names the hub that it is for; its body has the request of the client and its
principal. A forwarded request is never forwarded again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import msgspec

from dragoman.core.background import Work, start_task
from dragoman.core.cluster import OwnedElsewhere, prepay
from dragoman.core.errors import HubError, Overloaded, StorageFailed, TargetFailed, Unreachable
from dragoman.core.logs import RepeatedFailure
from dragoman.core.principal import LOCAL, Principal
from dragoman.web.api import build_error
from dragoman.web.auth import API_KEY
from dragoman.web.http.connection_limits import BODY_BYTES
from dragoman.web.http.http1 import HEAD_BYTES, AdmitLater, Application
from dragoman.web.http.request import Headers, ServerRequest
from dragoman.web.http.sockets import is_loopback
from dragoman.wire import rpc, sse
from dragoman.wire.http import NO_HEADERS, HttpClient, HttpReply
from dragoman.wire.json import Malformed, decode

log = logging.getLogger(__name__)

PATH = "/forward"
PROTOCOL = "1"
"""The version of what hubs send to each other. Fields may be added to it: unknown ones are ignored,
and missing ones have defaults. See docs/decisions/0101-two-versions-side-by-side.md."""
MAX_FORWARDED = 5_000
"""Requests that are at other hubs."""
HEAD_SECONDS = 86_400.0
"""A response may take as long as a call; a hub that dies ends the wait."""
RELAY_SECONDS = 2.0
"""How often a stream of events looks for hubs whose events it does not have."""
BODY_SECONDS = 10.0
"""How long the body of a short response may take after its head."""
LAST_SECONDS = 3.0
"""How long the rest of a response may take after its hub has ended."""
MAX_EVENT = 1024 * 1024
CONSOLE = "/console"
_OWN_LINES = (b"id:", b":", b"retry:")
HELD_BYTES = 64 * 1024
"""A response with a length of at most so many bytes is held until it is complete, so that one that
breaks off becomes an error; a longer one is passed on as it arrives."""
MAX_BODY = BODY_BYTES + 2 * HEAD_BYTES
"""Bytes of a forwarded request: the body, the head and the principal of the client's request."""
HANDOVER_SECONDS = 8.0
"""How long a request waits, besides two leases, for a hub that stops to finish what it does."""
QUIET_SECONDS = 5.0
"""A failure to reach a hub is a new one if it was reached for so long; one that flaps is not."""
MAX_UNREACHABLE = 64
"""Hubs whose failures are thinned out in the log; ids of hubs that have ended stay among them."""
_unreachable: dict[str, RepeatedFailure] = {}
"""Of each hub that could not be reached; of the process, as there is one log."""
OWNER_WAITS = 5
"""How often the owner of a request is looked for again after it could not be reached."""
_EVENT_ID = re.compile(rb"^id: ", re.MULTILINE)
_PROTOCOL, _FROM, _TO = "x-dragoman-protocol", "x-dragoman-from", "x-dragoman-to"
_HUB, _MOVED = "x-dragoman-hub", "x-dragoman-moved"
_NOT_FORWARDED = frozenset(
    {b"authorization", b"connection", b"content-length", b"transfer-encoding", b"expect"}
)
_NOT_RETURNED = frozenset(
    {_HUB, "content-length", "transfer-encoding", "connection", "keep-alive", "date"}
)


class HubAddress(Protocol):
    """A hub that can be reached."""

    @property
    def id(self) -> str: ...

    @property
    def address(self) -> str:
        """`host:port`, or the path of a Unix socket."""

    @property
    def is_ended(self) -> bool:
        """Whether it has died or stopped; another hub will own what it owned."""


class Cluster(Protocol):
    """What forwarding needs to know of the hubs."""

    @property
    def mark(self) -> str: ...

    @property
    def lease_secs(self) -> float: ...

    async def find_owner(self, mark: str, *, is_fresh: bool = False) -> HubAddress | None:
        """Finds the living hub that owns what `mark` names; None if it is this one. `is_fresh`:
        not by what was read a while ago. Raises `StorageFailed`."""

    async def has_left(self, id: str) -> bool:
        """Whether a hub has stopped and had answered each request that it took of others. Raises
        `StorageFailed`."""

    def list_others(self) -> Sequence[HubAddress]:
        """Lists the other hubs that live."""

    async def wait_for_change(self, seconds: float) -> None:
        """Waits until hubs have come or gone, or so many seconds."""

    async def read_beat(self, id: str) -> object:
        """Reads what changes each time a hub shows that it lives. Raises `StorageFailed`."""


class ForwardedRequest(msgspec.Struct, frozen=True):
    """A request as its client sent it, with the principal that the first hub has found."""

    method: str
    target: bytes
    fields: list[tuple[bytes, bytes]]
    principal: dict[str, Any] | None
    body: bytes
    admits: bool = False
    """Whether the owner has to find the principal: by a cookie that only the owner knows."""
    is_local: bool = False
    """Whether a program of the hub's own user, on the machine of the first hub, has sent it."""
    is_charged: bool = False
    """Whether the first hub has charged it to the rate limit of its principal."""
    repeated: list[bytes] = []
    """The headers that came more than once; `fields` has their values joined."""


OpenClient = Callable[[str], tuple[HttpClient, str]]
"""Returns the client for the address of a hub, and the URL to request."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ForwardedRequest)


# --- to another hub -------------------------------------------------------------------------------


class ForwardingApp:
    """An application whose requests may belong to other hubs."""

    def __init__(
        self,
        app: Application,
        cluster: Cluster,
        open_client: OpenClient,
        identify: Callable[[Any], Principal | None] = lambda transport: None,
    ) -> None:
        """`identify` finds the principal at the other end of a connection."""
        self._app = app
        self._cluster = cluster
        self._open_client = open_client
        self._identify = identify
        self._running = 0
        self._listening: set[asyncio.Task[None]] = set()
        """The streams of notifications that come from other hubs."""

    def close(self) -> None:
        """Ends those streams properly: their clients open others."""
        for copying in self._listening:
            copying.cancel()

    def admit(self, request: ServerRequest) -> bool | AdmitLater:
        try:
            return self._app.admit(request)
        except OwnedElsewhere as found:  # the cookie names the owner
            request.refusal = found
            return True

    def answer(self, request: ServerRequest) -> Work[None] | None:
        if isinstance(request.refusal, OwnedElsewhere):
            return self._forward(request, request.refusal.mark)
        packed = self._pack(request) if self._is_event_stream(request) else None
        try:
            work = self._app.answer(request)
        except OwnedElsewhere as found:
            return self._forward(request, found.mark, found.is_charged)
        if packed is not None and work is not None:
            return self._merge_events(request, work, packed)
        return self._answer(request, work) if work is not None else None

    def _is_event_stream(self, request: ServerRequest) -> bool:
        path = request.path
        return path.startswith("/api/") and path.endswith("/events") and request.method == "GET"

    async def _merge_events(
        self, request: ServerRequest, work: Work[None], packed: ForwardedRequest
    ) -> None:
        """Adds the events of the other hubs to a stream of this one."""
        relaying = start_task(self._relay_all(request, packed))
        try:
            await work
        finally:
            relaying.cancel()
            await asyncio.wait([relaying])

    async def _relay_all(self, request: ServerRequest, packed: ForwardedRequest) -> None:
        relays: dict[str, asyncio.Task[None]] = {}
        try:
            while not request.answered:
                for hub in self._cluster.list_others():
                    if hub.id not in relays or relays[hub.id].done():
                        relays[hub.id] = start_task(self._relay_events(request, packed, hub))
                await self._cluster.wait_for_change(RELAY_SECONDS)
        finally:
            for relay in relays.values():
                relay.cancel()
            if relays:
                await asyncio.wait(relays.values())

    async def _relay_events(
        self, request: ServerRequest, packed: ForwardedRequest, hub: HubAddress
    ) -> None:
        """Copies whole events, without their ids: those are of the other hub's numbering."""
        reply = None
        try:
            reply = await self._request(packed, hub)
            if reply is None or reply.status != 200:
                return
            rest = b""
            async for piece in reply.body.chunks():
                *whole, rest = (rest + piece).split(b"\n\n")
                for event in whole:
                    lines = [one for one in event.split(b"\n") if not one.startswith(_OWN_LINES)]
                    if lines and request.streaming:
                        request.send(b"\n".join(lines) + b"\n\n")
                if len(rest) > MAX_EVENT:
                    return
        except HubError as error:
            log.info("no events of hub %s for now: %s", hub.id, error)
        finally:
            if reply is not None:
                reply.body.close()

    async def _answer(self, request: ServerRequest, work: Work[None]) -> None:
        try:
            await work
        except OwnedElsewhere as found:
            if request.answered or request.streaming:
                log.error(
                    "%s %s was begun here and is owned elsewhere", request.method, request.path
                )
                raise RuntimeError("a request was begun at a hub that does not own it") from None
            await self._forward(request, found.mark, found.is_charged)

    async def _forward(self, request: ServerRequest, mark: str, is_charged: bool = False) -> None:
        if self._running >= MAX_FORWARDED:
            _refuse(request, Overloaded("too many requests are at other hubs; try again shortly"))
            return
        self._running += 1
        try:
            await self._deliver(request, mark, is_charged)
        except HubError as error:
            if not request.lost:
                _refuse(request, error)
        finally:
            self._running -= 1

    async def _deliver(self, request: ServerRequest, mark: str, is_charged: bool) -> None:
        """Sends the request to its owner. A hub that has just ended cannot be reached, and has an
        heir a moment later."""
        problem: HubError = StorageFailed("the owner of the request is not known")
        attempts = HubAttempts(self._cluster)
        until = request.loop.time() + 2 * self._cluster.lease_secs + HANDOVER_SECONDS
        is_first = True
        while request.loop.time() < until and not request.lost:
            try:
                owner = await self._cluster.find_owner(mark, is_fresh=not is_first)
            except StorageFailed as error:
                problem = error
            else:
                if owner is None:
                    await _serve_again(self._app, request, is_charged)
                    return
                try:
                    if not owner.is_ended and await self._send(request, owner, is_charged):
                        return
                    problem = Unreachable(f"hub {owner.id} does not answer", sent=False)
                except Unreachable as error:
                    if error.sent and not await self._has_left(owner):
                        raise
                    await attempts.note_failure(owner, error)
                    problem = error
            is_first = False
            waited = start_task(
                self._cluster.wait_for_change(self._cluster.lease_secs / OWNER_WAITS)
            )
            await asyncio.wait([waited, request.gone], return_when=asyncio.FIRST_COMPLETED)
            waited.cancel()
        raise problem

    async def _send(self, request: ServerRequest, owner: HubAddress, is_charged: bool) -> bool:
        """Sends the request and returns the response. False if the hub has refused it unread."""
        packed = self._pack(request, is_charged)
        work = start_task(self._request(packed, owner))
        gone: asyncio.Future[Any] = request.gone
        try:
            while not work.done():
                await asyncio.wait(
                    [work, gone],
                    timeout=self._cluster.lease_secs,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if work.done() or gone.done() or not await self._is_owner(owner):
                    break
            if not work.done():
                if gone.done():
                    return True
                raise Unreachable(f"hub {owner.id} has died while it answered")
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])
        reply = work.result()
        if reply is None:
            return False
        await _return(request, reply, partial(self._watch, owner), self._listening)
        return True

    async def _watch(self, owner: HubAddress) -> None:
        """Waits until a hub has ended: its connections may stay open, as those of a machine that
        was switched off."""
        while await self._is_owner(owner):
            await self._cluster.wait_for_change(self._cluster.lease_secs)

    async def _request(self, packed: ForwardedRequest, hub: HubAddress) -> HttpReply | None:
        opened = self._open_client(hub.address)
        return await send_to_hub(self._cluster.mark, hub.id, opened, packed)

    def _pack(self, request: ServerRequest, is_charged: bool = False) -> ForwardedRequest:
        is_local = False
        if b"cookie" in request.fields or request.path.startswith(CONSOLE):
            is_local = request.find_peer(self._identify) == LOCAL
        admits = isinstance(request.refusal, OwnedElsewhere)
        return _pack(request, admits, is_local, is_charged)

    async def _has_left(self, owner: HubAddress) -> bool:
        """Whether a hub that did not answer has stopped properly: then it has not taken the
        request."""
        try:
            return await self._cluster.has_left(owner.id)
        except StorageFailed:
            return False

    async def _is_owner(self, owner: HubAddress) -> bool:
        """Whether the hub still lives, as far as is known."""
        return await is_alive(self._cluster, owner)


class HubAttempts:
    """The attempts to reach the owner of one request. One that is dead has an heir soon, for which
    the request waits; one that lives and is not reached has none."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._beats: dict[str, object] = {}
        """Of each hub that was not reached, what was read after the first attempt."""

    async def note_failure(self, hub: HubAddress, error: Unreachable) -> None:
        """Raises `Unreachable` if the hub has shown that it lives since the first attempt."""
        if error.sent:
            return
        try:
            beat = await self._cluster.read_beat(hub.id)
        except StorageFailed:
            return  # this hub is cut off, too
        if self._beats.setdefault(hub.id, beat) != beat:
            log_unreachable(hub, error)
            raise Unreachable(
                f"hub {hub.id} lives, and this hub cannot reach it at {hub.address}: {error}; "
                "nothing was sent. See: dragoman cluster status",
                sent=False,
            ) from error


def log_unreachable(hub: HubAddress, error: Unreachable) -> None:
    """Logs that a hub is not reached: at once, then at growing intervals, not for each request."""
    if hub.id not in _unreachable and len(_unreachable) >= MAX_UNREACHABLE:
        del _unreachable[next(iter(_unreachable))]
    failure = _unreachable.setdefault(hub.id, RepeatedFailure())
    if text := failure.note(f"hub {hub.id} lives, and this hub cannot reach it"):
        log.warning("%s: %s", text, error)


async def is_alive(cluster: Cluster, hub: HubAddress) -> bool:
    """Whether a hub still lives, as far as is known."""
    try:
        found = await cluster.find_owner(hub.id)
    except StorageFailed:
        return True
    return found is not None and found.id == hub.id and not found.is_ended


async def send_to_hub(
    sender: str,
    receiver: str,
    opened: tuple[HttpClient, str],
    packed: ForwardedRequest,
    timeout: float = HEAD_SECONDS,
) -> HttpReply | None:
    """Sends a request to another hub; None if it was refused unread."""
    client, url = opened
    body = _encoder.encode(packed)
    headers = {
        "content-type": "application/msgpack", _PROTOCOL: PROTOCOL, _FROM: sender, _TO: receiver
    }  # fmt: skip
    reply = await client.request("POST", url, headers, body, timeout=timeout)
    if reply.headers.get(_HUB) == receiver:
        if (failure := _unreachable.get(receiver)) is not None:
            failure.clear(QUIET_SECONDS)
        if _MOVED not in reply.headers:
            return reply
    reply.body.close()  # not the hub that was meant, or one that has begun to stop
    return None


class PlacedHttpClient:
    """An `HttpClient` whose requests go to another hub."""

    def __init__(self, cluster: Cluster, open_client: OpenClient, hub: str) -> None:
        self._cluster = cluster
        self._open_client = open_client
        self._hub = hub

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpReply:
        hub = next((one for one in self._cluster.list_others() if one.id == self._hub), None)
        if hub is None:
            raise Unreachable("no hub runs it at the moment", sent=False)
        named = {**headers, **extra_headers}
        fields = [(key.lower().encode(), one.encode("latin-1")) for key, one in named.items()]
        target = "/" + url.partition("://")[2].partition("/")[2].partition("?")[0]
        packed = ForwardedRequest(method, target.encode("ascii"), fields, None, body)
        opened = self._open_client(hub.address)
        reply = await send_to_hub(self._cluster.mark, hub.id, opened, packed, timeout)
        if reply is None:
            raise Unreachable(f"hub {hub.id} does not run it any more", sent=False)
        return reply


async def _serve_again(app: Application, request: ServerRequest, is_charged: bool) -> None:
    """Serves a request that this hub owns by now."""
    with prepay() if is_charged else nullcontext():
        await _serve_owned(app, request)


async def _serve_owned(app: Application, request: ServerRequest) -> None:
    try:
        if isinstance(request.refusal, OwnedElsewhere):
            request.refusal = None
            admitted = app.admit(request)
            if not isinstance(admitted, bool):
                await admitted()
        work = app.answer(request)
        if work is not None:
            await work
    except OwnedElsewhere:
        raise Unreachable("the owner of the request has just changed", sent=False) from None


def _pack(
    request: ServerRequest, admits: bool, is_local: bool, is_charged: bool
) -> ForwardedRequest:
    target = request.path.encode("latin-1") + (b"?" + request.query if request.query else b"")
    fields = [one for one in request.fields.items() if one[0] not in _NOT_FORWARDED]
    principal = request.principal
    return ForwardedRequest(
        request.method,
        target,
        fields,
        render_principal(principal) if principal is not None else None,
        request.body,
        admits,
        is_local,
        is_charged,
        list(request.repeated),
    )


async def _return(
    request: ServerRequest,
    reply: HttpReply,
    watch: Callable[[], Work[None]],
    listening: set[asyncio.Task[None]],
) -> None:
    """Sends the response of the owner to the client. `watch` waits until the owner has ended. What
    copies a stream of notifications is in `listening`, and may be cancelled."""
    headers: Headers = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in (*reply.repeated, *reply.headers.items())
        if name not in _NOT_RETURNED
    ]
    try:
        if request.method == "HEAD":  # the response has a length and no body
            request.reply(reply.status, headers, b"")
        elif _is_long(reply):
            # Before the response starts, which releases the request.
            id, is_call = _find_id(request) if request.method == "POST" else (None, False)
            lost = sse.encode_event(rpc.encode_error(id, -32000, LOST)) if is_call else b""
            is_session = b"mcp-session-id" in request.fields
            request.start(reply.status, headers)
            await _pass_on(request, reply, watch(), listening, is_session, lost)
        else:
            body = await _read_whole(reply)
            if not request.lost:
                request.reply(reply.status, headers, body)
    finally:
        reply.body.close()


async def _read_whole(reply: HttpReply) -> bytes:
    """Reads a short response, whose body follows its head at once."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await reply.body.read(HELD_BYTES)
    except (TargetFailed, TimeoutError) as error:
        said = error if isinstance(error, TargetFailed) else "the rest did not come in time"
        raise Unreachable(f"the hub that owns it was lost while it answered: {said}") from error


async def _pass_on(
    request: ServerRequest,
    reply: HttpReply,
    watch: Work[None],
    listening: set[asyncio.Task[None]],
    is_session: bool,
    lost: bytes,
) -> None:
    """Copies a response as it arrives, until its end or that of its hub: then a stream ends with
    the event `lost`, unless the client of a session can resume it."""
    copied = _CopiedStream()
    copying, watching = start_task(copied.copy(request, reply)), start_task(watch)
    if request.method == "GET":
        listening.add(copying)
        copying.add_done_callback(listening.discard)
    try:
        if await _await_end(copying, request, watching):
            request.end()
    except TargetFailed as error:
        log.warning("a response of another hub broke off: %s", error)
        if "event-stream" not in reply.headers.get("content-type", ""):
            return  # the connection is closed: a truncated response must not look complete
        if is_session and copied.can_be_resumed:
            return  # the connection breaks, and the client resumes the stream at the heir
        if lost:
            await request.write(lost)
        request.end()
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def _is_long(reply: HttpReply) -> bool:
    headers = reply.headers
    return "transfer-encoding" in headers or int(headers.get("content-length", 0)) > HELD_BYTES


async def _await_end(
    work: asyncio.Task[Any], request: ServerRequest, watching: asyncio.Task[None]
) -> bool:
    """Waits for the rest of a response. False if the client has disconnected, and so does this
    hub. Raises `TargetFailed` if the other hub is lost."""
    gone: asyncio.Future[Any] = request.gone
    try:
        await asyncio.wait([work, gone, watching], return_when=asyncio.FIRST_COMPLETED)
        if not (work.done() or gone.done()):
            await asyncio.wait(
                [work, gone], timeout=LAST_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        if work.done():
            if not work.cancelled():
                work.result()
            return True
        if gone.done():
            return False
        raise Unreachable("the hub has ended")
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait([work])


class _CopiedStream:
    """A response that is copied piece by piece."""

    def __init__(self) -> None:
        self.can_be_resumed = False
        """Whether it has had an event with an id."""

    async def copy(self, request: ServerRequest, reply: HttpReply) -> None:
        is_stream = "event-stream" in reply.headers.get("content-type", "")
        async for piece in reply.body.chunks():
            if is_stream and not self.can_be_resumed:
                self.can_be_resumed = _EVENT_ID.search(piece) is not None
            await request.write(piece)


LOST = (
    "the hub that ran this request was lost; the request may have been carried out, so it was not "
    "sent again"
)


def _find_id(request: ServerRequest) -> tuple[rpc.Id, bool]:
    """The id of the JSON-RPC request in a body, and whether there is one."""
    try:
        message = decode(request.body)
    except Malformed:
        return None, False
    if isinstance(message, dict) and message.get("jsonrpc") == "2.0" and "id" in message:
        return rpc.find_id(message), "method" in message
    return None, False


def _refuse(request: ServerRequest, error: HubError) -> None:
    """Answers a request that could not be forwarded, in the form that its client reads."""
    id, is_call = _find_id(request)
    was_sent = isinstance(error, TargetFailed) and getattr(error, "sent", True)
    text = LOST if was_sent else f"the hub that owns this cannot be reached now: {error}"
    if is_call:
        # Clients of MCP sessions take any other status for the end of the session.
        headers = [(b"content-type", b"application/json")]
        request.reply(200, headers, rpc.encode_error(id, -32000, text))
        return
    found = build_error(502 if was_sent else 503, text, (b"retry-after", b"1"))
    request.reply(
        found.status, [(b"content-type", found.content_type.encode()), *found.headers], found.body
    )


# --- from another hub -----------------------------------------------------------------------------


Serve = Callable[[ServerRequest, str], Work[None] | None]
"""Serves a request of the hub with that id."""


class InternalApp:
    """Serves the requests that other hubs forward, with the principal that they found."""

    def __init__(
        self,
        app: Application,
        cluster: Cluster,
        mounts: Mapping[str, Serve],
    ) -> None:
        """`mounts` serve the paths, by their prefixes, that only hubs may request."""
        self._mounts = mounts
        self._app = app
        self._cluster = cluster
        self._is_closing = False
        self._running = 0
        """Requests that this hub has taken and not answered."""

    def close(self) -> None:
        """Leaves all further requests to the heir of this hub."""
        self._is_closing = True

    @property
    def is_idle(self) -> bool:
        return not self._running

    def admit(self, request: ServerRequest) -> bool:
        mark = self._cluster.mark.encode()
        is_ours = request.path == PATH and request.fields.get(_TO.encode()) == mark
        # The listener takes no connection without TLS; a mistake there must not let others in.
        is_ours = is_ours and request.method == "POST" and request.connection.is_encrypted
        if not is_ours or not self._knows(request.fields.get(_PROTOCOL.encode(), b"")):
            request.refusal = build_error(404, "not found")
            return False
        request.refusal = request.fields.get(_FROM.encode(), b"").decode("latin-1")
        request.extra = [(_HUB.encode(), mark)]
        return True

    def _knows(self, protocol: bytes) -> bool:
        if protocol != PROTOCOL.encode():
            log.error(
                "a request of another hub was refused: it speaks version %.20r of the internal "
                "protocol, and this hub %s; their versions of dragoman do not follow each other",
                *(protocol, PROTOCOL),
            )
            return False
        return True

    def answer(self, request: ServerRequest) -> Work[None] | None:
        if not isinstance(request.refusal, str):
            return _reject(request, 404)
        if self._is_closing:
            _leave_to_owner(request)
            return None
        sender, request.refusal = request.refusal, None
        if request.refused:
            return _reject(request, request.refused)
        try:
            sent = _decoder.decode(request.body)
            request.hand_over(_parse_principal(sent.principal))
        except (msgspec.DecodeError, TypeError):
            return _reject(request, 400)
        path, _, query = sent.target.partition(b"?")
        request.method, request.path, request.query = sent.method, path.decode("latin-1"), query
        request.fields, request.repeated = dict(sent.fields), frozenset(sent.repeated)
        request.body = sent.body
        # Another hub is at the other end; whether it is on this machine, its address tells.
        is_near = not request.address or is_loopback(request.address)
        request.connection.peer = (LOCAL if sent.is_local and is_near else None,)
        if sent.admits:
            return self._track(self._admit(request))
        for prefix, serve in self._mounts.items():
            if request.path.startswith(prefix):
                served = _serve_mounted(serve, request, sender, sent.is_charged)
                return self._track(served)
        return self._track(self._answer(request, sent.is_charged))

    async def _track(self, work: Work[None]) -> None:
        self._running += 1
        try:
            await work
        finally:
            self._running -= 1

    async def _admit(self, request: ServerRequest) -> None:
        """Serves a request whose principal only this hub can find."""
        try:
            admitted = self._app.admit(request)
            if not isinstance(admitted, bool):
                await admitted()
        except OwnedElsewhere as found:
            await self._settle(request, found.mark)
        else:
            await self._answer(request)

    async def _answer(self, request: ServerRequest, is_charged: bool = False) -> None:
        try:
            with prepay() if is_charged else nullcontext():
                work = self._app.answer(request)
                if work is not None:
                    await work
        except OwnedElsewhere as found:
            await self._settle(request, found.mark, is_charged or found.is_charged)

    async def _settle(self, request: ServerRequest, mark: str, is_charged: bool = False) -> None:
        """This hub may not know yet that it is the heir, or the other one that it is not."""
        try:
            if await self._cluster.find_owner(mark, is_fresh=True) is None:
                await _serve_again(self._app, request, is_charged)
                return
        except HubError as error:
            _refuse(request, error)
            return
        _leave_to_owner(request)


def _leave_to_owner(request: ServerRequest) -> None:
    """Has the other hub look for the owner again. Nothing was done for the request here."""
    request.extra.append((_MOVED.encode(), b"1"))
    request.reply(503, [(b"content-type", b"text/plain")], b"another hub owns it\n")


async def _serve_mounted(
    serve: Serve, request: ServerRequest, sender: str, is_charged: bool
) -> None:
    with prepay() if is_charged else nullcontext():
        work = serve(request, sender)
        if work is not None:
            await work


async def _reject(request: ServerRequest, status: int) -> None:
    request.extra = []
    request.reply(status, [(b"content-type", b"text/plain")], b"not found\n")


def render_principal(principal: Principal) -> dict[str, Any]:
    return {name: getattr(principal, name) for name in _PRINCIPAL}


def _parse_principal(found: dict[str, Any] | None) -> Principal | None:
    if found is None:
        return None
    known = {name: found[name] for name in _PRINCIPAL if name in found}
    for name in ("roles", "scopes"):
        known[name] = tuple(known.get(name, ()))
    principal = Principal(**known)
    return API_KEY if principal == API_KEY else principal  # earlier versions send it without scopes


_PRINCIPAL = ("kind", "id", "org", "roles", "scopes", "behalf", "serves", "credential", "view")
