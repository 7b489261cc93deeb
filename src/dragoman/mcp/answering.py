"""How one answer goes out over HTTP: plain JSON, or a stream once there is something to say first.

Knows nothing of sessions and headers; what is asked, and by whom, was settled before.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from dragoman.core.ports import HttpRequest
from dragoman.mcp.revisions import R2607
from dragoman.mcp.server import Face, Peer, Push
from dragoman.wire import rpc, sse

Headers = list[tuple[bytes, bytes]]

CANCELLED = -32800
WATCH_AFTER = 1.0
"""A call that takes longer is watched for its client going away."""
KEEPALIVE_SECONDS = 15.0
MAX_QUEUED = 256
"""Messages waiting for a stream whose client does not read."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
BAD_REQUEST_CODES = frozenset({-32700, -32600, -32602, -32020, -32021, -32022})
_ERROR = re.compile(
    rb'\{"jsonrpc":"2\.0","id":(?:"(?:[^"\\]|\\.)*"|[^",]*),"error":\{"code":(-?\d+)'
)
"""How an error begins that `wire.rpc` has encoded."""


class Answering:
    """One request's answer.

    A plain call starts no task. One that takes long is watched: a client of the new era that goes
    away has cancelled it, and one that accepts streams is kept from giving up by comments.
    """

    __slots__ = (
        "_call", "cancelled", "may_stream", "must_stream", "outbox", "peer", "request", "streaming",
        "watcher",
    )  # fmt: skip

    def __init__(self, peer: Peer, accept: bytes, request: HttpRequest) -> None:
        self.peer = peer
        self.request = request
        self.may_stream = b"event-stream" in accept or b"*" in accept
        self.must_stream = b"json" not in accept and b"*" not in accept
        self.streaming = False
        self.cancelled = False
        self.watcher: asyncio.Task[None] | None = None
        self.outbox: asyncio.Queue[bytes] | None = None
        self._call: asyncio.Task[Any] | None = None

    async def call(self, face: Face, message: Any) -> None:
        """Answers a `tools/call`."""
        loop = self.request.loop
        self._call = asyncio.current_task(loop)
        push: Push | None = None
        timer: asyncio.TimerHandle | None = None
        if self.may_stream and _wants_progress(message):
            self.outbox = asyncio.Queue(MAX_QUEUED)
            push = self._push
            self.watcher = loop.create_task(self._watch(0))
        else:
            timer = loop.call_later(WATCH_AFTER, self._begin_watch)
        try:
            begun = face.begin(message, self.peer, push)
            answer = begun if begun is None or isinstance(begun, bytes) else await begun
        except asyncio.CancelledError:
            if self.watcher is not None and self.watcher.done():
                return  # the client has gone, and with it the one to answer
            if not self.cancelled or self._call is None:
                raise
            self._call.uncancel()
            answer = rpc.error(rpc.id_of(message), CANCELLED, "the request was cancelled")
        finally:
            self._call = None
            if timer is not None:
                timer.cancel()
            if self.watcher is not None:
                self.watcher.cancel()
                await asyncio.gather(self.watcher, return_exceptions=True)
        while self.outbox is not None and not self.outbox.empty():
            await self._say(self.outbox.get_nowait())
        await self.finish(answer)

    def cancel(self) -> None:
        """The client wants no answer any more; the exchange must end all the same."""
        if self._call is not None and not self.cancelled:
            self.cancelled = True
            self._call.cancel()

    async def finish(self, answer: bytes | None, headers: Headers | None = None) -> None:
        """Sends the answer; None is that of a notification."""
        if answer is None:
            self.request.reply(202, headers or [], b"")
            return
        status = 200 if self.streaming else status_of(answer, self.peer.revision)
        if self.streaming or (self.must_stream and status == 200):
            await self._say(answer, headers)
            self.request.end()
        else:
            send_json(self.request, status, answer, headers)

    def _push(self, message: bytes) -> None:
        if self.outbox is not None and not self.outbox.full():
            self.outbox.put_nowait(message)

    def _begin_watch(self) -> None:
        self.watcher = asyncio.get_running_loop().create_task(self._watch(WATCH_AFTER))

    async def _watch(self, elapsed: float) -> None:
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[Any] = self.request.gone
        told: asyncio.Future[Any] | None = None
        next_comment = loop.time() + KEEPALIVE_SECONDS - elapsed
        try:
            while True:
                if self.outbox is not None and told is None:
                    told = loop.create_task(self.outbox.get())
                waiting = [gone] if told is None else [gone, told]
                pause = max(0.0, next_comment - loop.time())
                await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    if self._call is not None and self.peer.revision == R2607:
                        self._call.cancel()
                    return
                if told is not None and told.done():
                    message, told = told.result(), None
                    await self._say(message)
                elif loop.time() >= next_comment:
                    next_comment = loop.time() + KEEPALIVE_SECONDS
                    if self.may_stream:
                        self._start_stream(None)
                        await self.request.write(sse.KEEPALIVE)
        finally:
            if told is not None:
                if told.done() and self.outbox is not None:
                    await self._say(told.result())
                told.cancel()

    async def _say(self, message: bytes, headers: Headers | None = None) -> None:
        self._start_stream(headers)
        await self.request.write(sse.event(message, name="message"))

    def _start_stream(self, headers: Headers | None) -> None:
        if not self.streaming:
            self.streaming = True
            self.request.start(200, [*STREAM_HEADERS, *(headers or ())])


def status_of(answer: bytes, revision: int) -> int:
    """Old clients read errors from a 200; the new era gives them a status of their own."""
    error = _ERROR.match(answer)
    if error is None:
        return 200
    code = int(error[1])
    if code == rpc.INVALID_REQUEST:
        return 400
    if revision != R2607:
        return 200
    if code == rpc.METHOD_NOT_FOUND:
        return 404
    return 400 if code in BAD_REQUEST_CODES else 200


def _wants_progress(message: Any) -> bool:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and isinstance(meta.get("progressToken"), str | int)


JSON_HEADERS: Headers = [(b"content-type", b"application/json")]


def send_json(
    request: HttpRequest, status: int, body: bytes, headers: Headers | None = None
) -> None:
    request.reply(status, [*JSON_HEADERS, *headers] if headers else JSON_HEADERS, body)
