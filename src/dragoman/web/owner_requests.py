"""Requests between the same parts of two hubs, over the internal connection.

A part whose connections cannot be forwarded as they are, such as gRPC or a session of its own,
sends what it has to the owner, which responds with frames: each has its length before it. Knows
nothing of what is in them. `web/forwarding.py` sends the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

from dragoman.core.background import Work, start_task
from dragoman.core.cluster import ServeFrames
from dragoman.core.errors import HubError, Overloaded, StorageFailed, Unreachable
from dragoman.core.logs import RepeatedFailure
from dragoman.core.principal import Principal
from dragoman.web.forwarding import (
    MAX_FORWARDED,
    OWNER_WAITS,
    QUIET_SECONDS,
    Cluster,
    ForwardedRequest,
    HubAddress,
    HubAttempts,
    OpenClient,
    is_alive,
    render_principal,
    send_to_hub,
)
from dragoman.web.http.request import ServerRequest
from dragoman.wire.http import HttpReply

log = logging.getLogger(__name__)

PREFIX = "/part/"
ASK_SECONDS = 3.0
"""How long the other hubs have for the answer to a request to all of them."""
LENGTH = 4
"""Bytes of the length before a frame."""
MAX_FRAME = 64 * 1024 * 1024
"""A result may repeat 10 MB of binary data in base64."""
HEADERS = [(b"content-type", b"application/octet-stream")]


class OwnerClient:
    """Implements `core.cluster.OwnerRequests`."""

    def __init__(self, cluster: Cluster, open_client: OpenClient) -> None:
        self._cluster = cluster
        self._open_client = open_client
        self._running = 0
        self._unasked: dict[str, RepeatedFailure] = {}
        """Of other hubs that did not answer."""

    async def open(
        self, mark: str, part: str, principal: Principal, body: bytes, *, is_charged: bool
    ) -> AsyncIterator[bytes] | None:
        packed = _pack(part, principal, body, is_charged)
        problem: HubError = StorageFailed("the owner of the request is not known")
        attempts = HubAttempts(self._cluster)
        loop = asyncio.get_running_loop()
        seconds = 2 * self._cluster.lease_secs + 2
        until = loop.time() + seconds
        while loop.time() < until:
            try:
                owner = await self._cluster.find_owner(mark)
            except StorageFailed as error:
                problem = error
            else:
                if owner is None:
                    return None
                problem = Unreachable(f"hub {owner.id} does not answer", sent=False)
                try:
                    if (reply := await self._send(packed, owner, seconds)) is not None:
                        return self._read(reply, owner)
                except Unreachable as error:
                    if error.sent:
                        raise
                    await attempts.note_failure(owner, error)
                    problem = error
            # A hub that has just ended has an heir a moment later.
            await self._cluster.wait_for_change(self._cluster.lease_secs / OWNER_WAITS)
        raise problem

    async def ask_others(self, part: str, principal: Principal, body: bytes) -> list[list[bytes]]:
        packed = _pack(part, principal, body, is_charged=True)
        others = self._cluster.list_others()
        known = {hub.id for hub in others}
        self._unasked = {id: one for id, one in self._unasked.items() if id in known}
        asked = [self._ask(packed, hub) for hub in others]
        return [found for found in await asyncio.gather(*asked) if found is not None]

    async def find_owner(self, mark: str) -> str:
        owner = await self._cluster.find_owner(mark)
        return "" if owner is None else owner.id

    async def _ask(self, packed: ForwardedRequest, hub: HubAddress) -> list[bytes] | None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                reply = await self._send(packed, hub, ASK_SECONDS)
                if reply is None:
                    return None
                frames = [frame async for frame in self._read(reply, hub)]
        except (HubError, TimeoutError) as error:
            failure = self._unasked.setdefault(hub.id, RepeatedFailure())
            if text := failure.note(f"hub {hub.id} was not asked"):
                log.warning("%s: %s", text, error or "no answer in time")
            return None
        if (failed := self._unasked.get(hub.id)) is not None:
            failed.clear(QUIET_SECONDS)
        return frames

    async def _send(
        self, packed: ForwardedRequest, hub: HubAddress, seconds: float
    ) -> HttpReply | None:
        """Returns the response, whose head comes at once; None if the hub has refused it unread."""
        if self._running >= MAX_FORWARDED:
            raise Overloaded("too many requests are at other hubs; try again shortly")
        opened = self._open_client(hub.address)
        reply = await send_to_hub(self._cluster.mark, hub.id, opened, packed, seconds)
        if reply is not None and reply.status != 200:
            reply.body.close()
            raise Unreachable(f"hub {hub.id} does not serve this: status {reply.status}")
        return reply

    async def _read(self, reply: HttpReply, hub: HubAddress) -> AsyncIterator[bytes]:
        """The frames of a response. A hub that ends may leave its connections open."""
        self._running += 1
        chunks, held = reply.body.chunks(), bytearray()
        watching = start_task(self._watch(hub))
        try:
            while (piece := await _read_unless(chunks, watching)) is not None:
                held += piece
                while len(held) >= LENGTH:
                    end = LENGTH + int.from_bytes(held[:LENGTH], "big")
                    if end > LENGTH + MAX_FRAME:
                        raise Unreachable(f"hub {hub.id} has sent too much")
                    if len(held) < end:
                        break
                    frame = bytes(held[LENGTH:end])
                    del held[:end]
                    yield frame
        finally:
            self._running -= 1
            watching.cancel()
            reply.body.close()

    async def _watch(self, hub: HubAddress) -> None:
        while await is_alive(self._cluster, hub):
            await self._cluster.wait_for_change(self._cluster.lease_secs)


async def _read_unless(chunks: AsyncIterator[bytes], watching: asyncio.Task[None]) -> bytes | None:
    """Returns the next piece, None at the end. Raises `Unreachable` if the hub has ended."""

    async def read() -> bytes | None:
        return await anext(chunks, None)

    reading = start_task(read())
    try:
        await asyncio.wait([reading, watching], return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise Unreachable("the hub that owns this has ended")
        return reading.result()
    finally:
        if not reading.done():
            reading.cancel()
            await asyncio.wait([reading])


def _pack(part: str, principal: Principal, body: bytes, is_charged: bool) -> ForwardedRequest:
    target = f"{PREFIX}{part}".encode()
    return ForwardedRequest(
        "POST", target, [], render_principal(principal), body, is_charged=is_charged
    )


class FrameServer:
    """Serves the requests of other hubs for the parts of this one."""

    def __init__(self, parts: Mapping[str, ServeFrames]) -> None:
        self._parts = parts

    def serve(self, request: ServerRequest, sender: str) -> Work[None] | None:
        part = self._parts.get(request.path.removeprefix(PREFIX))
        principal, body = request.principal, request.body
        if part is None or principal is None:
            request.reply(404, [(b"content-type", b"text/plain")], b"not found\n")
            return None
        return _run(request, part(principal, body, FramedResponse(request)))


async def _run(request: ServerRequest, work: Work[None]) -> None:
    request.start(200, HEADERS)
    gone: asyncio.Future[None] = request.gone
    working = start_task(work)
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not working.done():
            working.cancel()
            await asyncio.wait([working])
    if not working.cancelled():
        working.result()
        request.end()


class FramedResponse:
    """Implements `core.cluster.FrameSink`."""

    def __init__(self, request: ServerRequest) -> None:
        self._request = request

    def send(self, frame: bytes) -> bool:
        return self._request.send(len(frame).to_bytes(LENGTH, "big") + frame)

    async def write(self, frame: bytes) -> None:
        await self._request.write(len(frame).to_bytes(LENGTH, "big") + frame)
