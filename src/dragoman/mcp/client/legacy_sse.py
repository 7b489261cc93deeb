"""A server over HTTP+SSE (2024-11-05): answers come on one stream, requests go by POST."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from dragoman.core.errors import BadReply, HubError, Unreachable
from dragoman.core.ports import HttpClient, Reply
from dragoman.core.read_pacing import LINES_AN_EVENT, Pace
from dragoman.core.trace import HEADERS as TRACE_HEADERS
from dragoman.core.trace import headers_of, new_trace
from dragoman.mcp.client.jsonrpc_channel import JsonRpcChannel
from dragoman.mcp.client.notifications import NotificationSink, RequestListener
from dragoman.mcp.client.streamable_http import JSON_TYPE, STREAM_TYPE, UpstreamHttpError
from dragoman.wire import sse
from dragoman.wire.json import MAX_BYTES

UNSENT_BYTES = 16 * 1024 * 1024
POSTS = 32
"""So many messages are posted at once."""
ENDPOINT_SECONDS = 5
"""How long the stream may take to say where to post; a Streamable HTTP stream never does."""


class SseWire:
    def __init__(
        self,
        server: str,
        http: HttpClient,
        url: str,
        headers: Mapping[str, str],
        heard: NotificationSink,
    ) -> None:
        self.server = server
        self.url = url
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._http = http
        self._headers = {
            name: value for name, value in headers.items() if name.lower() not in TRACE_HEADERS
        }
        self._duplex = JsonRpcChannel(server, self._send, heard)
        self._outbox: asyncio.Queue[tuple[bytes, dict[str, str]]] = asyncio.Queue()
        """Messages, and the headers of the trace that each belongs to."""
        self._unsent = 0
        self._endpoint = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._posts: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(POSTS)

    async def start(self) -> None:
        """Opens the stream; `HttpStatus` or `BadReply` where this is no HTTP+SSE server."""
        headers = {**self._headers, **new_trace().headers(), "accept": STREAM_TYPE}
        reply = await self._http.request("GET", self.url, headers, timeout=10)
        if reply.status != 200 or not reply.headers.get("content-type", "").startswith(STREAM_TYPE):
            reply.body.close()
            raise UpstreamHttpError(
                f'server "{self.server}" answered a GET with HTTP {reply.status} and no stream',
                reply.status,
            )
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read(reply, told))]
        try:
            async with asyncio.timeout(ENDPOINT_SECONDS):
                self._endpoint = self._same_origin(await told)
        except TimeoutError:
            await self.close()
            raise BadReply(
                f'server "{self.server}" opened a stream but named no endpoint'
            ) from None
        except BaseException:
            await self.close()
            raise
        self._tasks.append(loop.create_task(self._write()))

    def _same_origin(self, endpoint: str) -> str:
        target = urljoin(self.url, endpoint)
        if urlsplit(target)[:2] != urlsplit(self.url)[:2]:
            raise BadReply(f'server "{self.server}" wants messages sent to another origin')
        return target

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float,
        listener: RequestListener | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, int]:
        return await self._duplex.request(method, params, timeout, listener)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self._duplex.notify(method, params)

    def set_session_listener(self, listener: RequestListener) -> None:
        self._duplex.session_listener = listener

    async def close(self) -> None:
        self._lose("it was closed")
        tasks = [*self._tasks, *self._posts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _send(self, message: bytes, meta: Mapping[str, Any]) -> None:
        if self.lost.done():
            raise Unreachable(f'server "{self.server}" is gone: {self.lost.result()}', sent=False)
        if self._unsent + len(message) > UNSENT_BYTES:
            raise Unreachable(f'server "{self.server}" does not take what it is sent', sent=False)
        self._unsent += len(message)
        self._outbox.put_nowait((message, headers_of(meta) or new_trace().headers()))

    async def _write(self) -> None:
        """Begins to post in the order of sending. The handshake goes one by one, the rest together:
        a server may take its time over a message before it says that it has it."""
        for _ in range(2):
            await self._post(*await self._outbox.get())
        while True:
            await self._room.acquire()
            try:
                message, trace = await self._outbox.get()
            except BaseException:
                self._room.release()
                raise
            task = asyncio.get_running_loop().create_task(self._post(message, trace))
            self._posts.add(task)
            task.add_done_callback(self._posted)

    def _posted(self, task: asyncio.Task[None]) -> None:
        self._posts.discard(task)
        self._room.release()

    async def _post(self, message: bytes, trace: Mapping[str, str]) -> None:
        headers = {**self._headers, **trace, "content-type": JSON_TYPE}
        try:
            reply = await self._http.request("POST", self._endpoint, headers, message, timeout=30)
        except HubError as error:
            self._lose(f"it could not be posted to: {error}")
            return
        finally:
            self._unsent -= len(message)
        with contextlib.suppress(HubError):
            await reply.body.read(64 * 1024)
        if reply.status >= 300:
            self._lose(f"it answered a message with HTTP {reply.status}")

    async def _read(self, reply: Reply, told: asyncio.Future[str]) -> None:
        parser = sse.Parser(MAX_BYTES)
        pace = Pace()
        reason = "it ended the stream"
        try:
            async for chunk in reply.body.chunks():
                before, spent = self._duplex.unsolicited, self._duplex.spent
                for event in parser.feed(chunk):
                    if event.event == "endpoint" and not told.done():
                        told.set_result(event.data.decode("utf-8", "replace").strip())
                    elif event.event == "message":
                        self._duplex.receive(event.data)
                lines = chunk.count(b"\n") // LINES_AN_EVENT
                unasked = self._duplex.unsolicited - before + lines
                if pause := pace.pause(unasked, self._duplex.spent - spent):
                    await asyncio.sleep(pause)
        except (HubError, sse.TooLong) as error:
            reason = str(error)
        finally:
            reply.body.close()
            if not told.done():
                told.set_exception(BadReply(f'server "{self.server}": {reason}'))
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        words = f'server "{self.server}" is gone: {reason}. It may or may not have done what was'
        self._duplex.fail_pending(lambda: Unreachable(f"{words} asked"))
