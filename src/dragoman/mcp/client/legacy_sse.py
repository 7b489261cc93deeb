"""The HTTP+SSE transport (2024-11-05): responses come on one stream, requests are posted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from dragoman.core.background import Background
from dragoman.core.errors import BadReply, HubError, LoginRequired, Unreachable
from dragoman.core.read_pacing import LINES_AN_EVENT, Pace
from dragoman.core.trace import HEADERS as TRACE_HEADERS
from dragoman.core.trace import new_trace, trace_headers
from dragoman.mcp.client.jsonrpc_channel import JsonRpcChannel
from dragoman.mcp.client.message_limit import MessageLimit
from dragoman.mcp.client.notifications import NotificationSink
from dragoman.mcp.client.streamable_http import JSON_TYPE, STREAM_TYPE, UpstreamHttpError
from dragoman.wire import sse
from dragoman.wire.http import HttpClient, HttpReply

UNSENT_BYTES = 16 * 1024 * 1024
MAX_POSTS = 32
"""Messages posted at the same time."""
ENDPOINT_SECONDS = 5
"""How long the stream may take to name its endpoint; a Streamable HTTP stream never does."""


class SseWire(JsonRpcChannel):
    speaks_modern = False

    def __init__(
        self,
        server: str,
        http: HttpClient,
        url: str,
        headers: Mapping[str, str],
        sink: NotificationSink,
        limit: MessageLimit | None = None,
    ) -> None:
        super().__init__(server, sink, limit)
        self.url = url
        self._http = http
        self._headers = {
            name: value for name, value in headers.items() if name.lower() not in TRACE_HEADERS
        }
        self._outbox: asyncio.Queue[tuple[bytes, dict[str, str]]] = asyncio.Queue()
        """Messages with the headers of their trace; bounded by `UNSENT_BYTES`."""
        self._unsent = 0
        self._endpoint = ""
        self._background = Background(f'the SSE connection to server "{server}"')
        self._slots = asyncio.Semaphore(MAX_POSTS)

    async def start(self) -> None:
        """Opens the stream. Raises `UpstreamHttpError` or `BadReply` if the URL serves no
        HTTP+SSE."""
        headers = {**self._headers, **new_trace().build_headers(), "accept": STREAM_TYPE}
        reply = await self._http.request("GET", self.url, headers, timeout=10)
        if reply.status != 200 or not reply.headers.get("content-type", "").startswith(STREAM_TYPE):
            reply.body.close()
            raise UpstreamHttpError(
                f'server "{self.server}" answered a GET with HTTP {reply.status} and no stream',
                reply.status,
            )
        endpoint: asyncio.Future[str] = self._loop.create_future()
        self._background.spawn(self._read(reply, endpoint))
        try:
            async with asyncio.timeout(ENDPOINT_SECONDS):
                self._endpoint = self._resolve_endpoint(await endpoint)
        except TimeoutError:
            await self.close()
            raise BadReply(
                f'server "{self.server}" opened a stream but named no endpoint'
            ) from None
        except BaseException:
            await self.close()
            raise
        self._background.spawn(self._write())

    def _resolve_endpoint(self, endpoint: str) -> str:
        """Headers may hold credentials, so messages go to the configured origin only."""
        target = urljoin(self.url, endpoint)
        if urlsplit(target)[:2] != urlsplit(self.url)[:2]:
            raise BadReply(f'server "{self.server}" named an endpoint of another origin')
        return target

    async def close(self) -> None:
        self.mark_lost("it was closed")
        await self._background.close()

    def _send(self, message: bytes, meta: Mapping[str, Any]) -> None:
        if self.lost.done():
            raise Unreachable(f'server "{self.server}" was lost: {self.lost.result()}', sent=False)
        if self._unsent + len(message) > UNSENT_BYTES:
            raise Unreachable(f'server "{self.server}" does not accept messages', sent=False)
        self._unsent += len(message)
        self._outbox.put_nowait((message, trace_headers(meta) or new_trace().build_headers()))

    async def _write(self) -> None:
        """Starts posts in the order of sending. The handshake is posted one message at a time, the
        rest concurrently: a server may take long to acknowledge a message."""
        for _ in range(2):
            await self._post(*await self._outbox.get())
        while True:
            await self._slots.acquire()
            try:
                message, trace = await self._outbox.get()
            except BaseException:
                self._slots.release()
                raise
            task = self._background.spawn(self._post(message, trace))
            task.add_done_callback(lambda _: self._slots.release())

    async def _post(self, message: bytes, trace: Mapping[str, str]) -> None:
        headers = {**self._headers, **trace, "content-type": JSON_TYPE}
        try:
            reply = await self._http.request("POST", self._endpoint, headers, message, timeout=30)
        except LoginRequired as error:
            self.fail_request(message, error)  # it was not executed, unlike others perhaps
            self.mark_lost(str(error))
            return
        except HubError as error:
            self.mark_lost(f"a message could not be posted: {error}")
            return
        finally:
            self._unsent -= len(message)
        with contextlib.suppress(HubError):
            await reply.body.read(64 * 1024)
        if reply.status >= 300:
            self.mark_lost(f"it answered a message with HTTP {reply.status}")

    async def _read(self, reply: HttpReply, endpoint: asyncio.Future[str]) -> None:
        parser = sse.SseParser(self.limit.most)
        pace = Pace()
        reason = "it ended the stream"
        try:
            async for chunk in reply.body.chunks():
                for piece in sse.split_pieces(chunk):
                    before, spent = self.unsolicited, self.spent
                    for number, event in enumerate(parser.feed(piece), 1):
                        if event.event == "endpoint" and not endpoint.done():
                            endpoint.set_result(event.data.decode("utf-8", "replace").strip())
                        elif event.event == "message":
                            self.receive(event.data)
                        if not number % sse.TURN:
                            await asyncio.sleep(0)
                    unsolicited = self.unsolicited - before + piece.count(b"\n") // LINES_AN_EVENT
                    if pause := pace.pause(unsolicited, self.spent - spent):
                        await asyncio.sleep(pause)
        except HubError as error:
            reason = str(error)
        except sse.EventTooLong as error:
            reason = f"{error}; see message_megabytes of the server"
        finally:
            reply.body.close()
            if not endpoint.done():
                endpoint.set_exception(BadReply(f'server "{self.server}": {reason}'))
            self.mark_lost(reason)
