"""How one answer goes out over HTTP: plain JSON, or a stream once there is something to say first.

Knows nothing of sessions and headers; what is asked, and by whom, was settled before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from dragoman.mcp.revisions import R2607
from dragoman.mcp.server import Face, Peer, Push
from dragoman.wire import rpc, sse

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

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

    def __init__(self, peer: Peer, accept: bytes, receive: Receive, send: Send) -> None:
        self.peer = peer
        self.receive = receive
        self.send = send
        self.may_stream = b"event-stream" in accept or b"*" in accept
        self.must_stream = b"json" not in accept and b"*" not in accept
        self.streaming = False
        self.watcher: asyncio.Task[None] | None = None
        self.outbox: asyncio.Queue[bytes] | None = None

    async def call(self, face: Face, message: Any) -> None:
        """Answers a `tools/call`."""
        loop = asyncio.get_running_loop()
        call = asyncio.current_task()
        if self.may_stream and _wants_progress(message):
            self.outbox = asyncio.Queue(MAX_QUEUED)
            self.watcher = loop.create_task(self._watch(call, 0))
            timer = None
        else:
            timer = loop.call_later(WATCH_AFTER, self._begin_watch, call)
        push: Push | None = self._push if self.outbox is not None else None
        try:
            answer = await face.answer(message, self.peer, push)
        except asyncio.CancelledError:
            if self.watcher is not None and self.watcher.done():
                return  # the client has gone, and with it the one to answer
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if self.watcher is not None:
                self.watcher.cancel()
                await asyncio.gather(self.watcher, return_exceptions=True)
        while self.outbox is not None and not self.outbox.empty():
            await self._say(self.outbox.get_nowait())
        await self.finish(answer)

    async def finish(self, answer: bytes | None, headers: Headers | None = None) -> None:
        """Sends the answer; None is that of a notification."""
        if answer is None:
            await start(self.send, 202, headers or [])
            await self.send({"type": "http.response.body"})
            return
        status = 200 if self.streaming else status_of(answer, self.peer.revision)
        if self.streaming or (self.must_stream and status == 200):
            await self._say(answer, headers)
            await self.send({"type": "http.response.body"})
        else:
            await send_json(self.send, status, answer, headers)

    def _push(self, message: bytes) -> None:
        if self.outbox is not None and not self.outbox.full():
            self.outbox.put_nowait(message)

    def _begin_watch(self, call: asyncio.Task[Any] | None) -> None:
        loop = asyncio.get_running_loop()
        self.watcher = loop.create_task(self._watch(call, WATCH_AFTER))

    async def _watch(self, call: asyncio.Task[Any] | None, elapsed: float) -> None:
        loop = asyncio.get_running_loop()
        gone = loop.create_task(until_gone(self.receive))
        told: asyncio.Future[Any] | None = None
        next_comment = loop.time() + KEEPALIVE_SECONDS - elapsed
        try:
            while True:
                if self.outbox is not None and told is None:
                    told = loop.create_task(self.outbox.get())
                waiting: list[asyncio.Future[Any]] = [gone] if told is None else [gone, told]
                pause = max(0.0, next_comment - loop.time())
                await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    if call is not None and self.peer.revision == R2607:
                        call.cancel()
                    return
                if told is not None and told.done():
                    message, told = told.result(), None
                    await self._say(message)
                elif loop.time() >= next_comment:
                    next_comment = loop.time() + KEEPALIVE_SECONDS
                    if self.may_stream:
                        await self._comment()
        finally:
            gone.cancel()
            if told is not None:
                if told.done() and self.outbox is not None:
                    await self._say(told.result())
                told.cancel()

    async def _comment(self) -> None:
        await self._start_stream(None)
        await more(self.send, sse.KEEPALIVE)

    async def _say(self, message: bytes, headers: Headers | None = None) -> None:
        await self._start_stream(headers)
        await more(self.send, sse.event(message, name="message"))

    async def _start_stream(self, headers: Headers | None) -> None:
        if not self.streaming:
            self.streaming = True
            await start(self.send, 200, [*STREAM_HEADERS, *(headers or ())])


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


# --- ASGI in few words --------------------------------------------------------------------------


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def start(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def more(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def send_json(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    fields = [(b"content-type", b"application/json"), *(headers or ())]
    whole = getattr(send, "whole", None)  # `web.app.Sender`: one write instead of two
    if whole is not None and whole(status, fields, body):
        return
    await start(send, status, [*fields, (b"content-length", str(len(body)).encode())])
    await send({"type": "http.response.body", "body": body})
