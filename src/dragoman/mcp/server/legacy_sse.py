"""The face over HTTP+SSE, for clients of 2024-11-05: `GET /sse` is one client's connection, on
which it hears everything; what it says comes as `POST /messages/`.

Later revisions that shake hands may come this way too, 2026-07-28 may not. Who is calling was
settled before a request comes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qs

from dragoman.core.access import WhyEnded
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import EVERYTHING
from dragoman.mcp.protocol.errors import encode_crash
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer, answer_batch
from dragoman.mcp.server.header_check import find_named_version
from dragoman.mcp.server.replay_streams import STREAM_HEADERS, Keepalive
from dragoman.mcp.server.streamable_http import parse_message, refuse, refuse_method
from dragoman.wire import rpc, sse
from dragoman.wire.http import HttpRequest

MAX_CLIENTS = 5_000
MAX_RUNNING = 256
"""Calls of one client under way; as over stdio."""
MAX_LATE = 64
"""What is to be told unasked to a client that does not read."""

MESSAGES = "/messages/"


class SseClient(ClientState):
    """One open stream, and what is under way for it."""

    __slots__ = ("_ended", "_late", "closing", "request", "running")

    def __init__(self, request: HttpRequest, principal: Principal) -> None:
        super().__init__(principal, "mcp-sse", EVERYTHING, client=token_hex(16))
        self.request = request
        self.running: dict[Any, asyncio.Task[None]] = {}
        self.closing = False
        self._ended: asyncio.Future[None] = request.loop.create_future()
        self._late: dict[bytes, None] = {}

    async def wait_closed(self) -> None:
        self.request.gone.add_done_callback(lambda _: self._end())
        await self._ended

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def close(self) -> None:
        """Lets what is under way finish, then ends the stream."""
        self.closing = True
        if not self.running:
            self.request.end()
            self._end()

    def revoke(self, why: str) -> None:
        """Ends the stream at once, and what is under way with it."""
        running, self.running = self.running, {}  # or they would be cancelled again, without why
        for task in running.values():
            task.cancel(why)
        self.request.end()
        self._end()

    # --- what it hears -------------------------------------------------------------------------

    def push(self, message: bytes) -> bool:
        return self.request.send(sse.encode_event(message, name="message"))

    @property
    def is_reachable(self) -> bool:
        return True

    def notify(self, message: bytes) -> None:
        if (self._late or not self.push(message)) and len(self._late) < MAX_LATE:
            self._late[message] = None

    def send_keepalive(self) -> None:
        while self._late and self.push(next(iter(self._late))):
            del self._late[next(iter(self._late))]
        self.request.send(sse.KEEPALIVE)

    async def answer(self, message: bytes | None) -> None:
        if message is not None:
            await self.request.write(sse.encode_event(message, name="message"))

    # --- what it asks --------------------------------------------------------------------------

    def run(self, key: Any, work: Coroutine[Any, Any, bytes | None]) -> None:
        async def run() -> None:
            try:
                answer = await work
            except Exception:
                answer = encode_crash(key[1] if isinstance(key, tuple) else None)
            self._done(key, task)  # first: whoever has the answer may use the id again
            await self.answer(answer)

        def ended(task: asyncio.Task[None]) -> None:
            work.close()  # cancelled before it began
            self._done(key, task)
            if self.closing:
                self.close()

        task = self.running[key] = self.request.loop.create_task(run())
        task.add_done_callback(ended)

    def _done(self, key: Any, task: asyncio.Task[None]) -> None:
        if self.running.get(key) is task:
            del self.running[key]

    def cancel(self, key: Any) -> None:
        task = self.running.pop(key, None)
        if task is not None:
            task.cancel()


class LegacySseTransport:
    def __init__(self, face: McpServer) -> None:
        self.server = face
        self._beats = Keepalive()
        self._clients: dict[str, SseClient] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def mounts(self) -> Mapping[str, Callable[[HttpRequest, Principal], Awaitable[None]]]:
        return {"/sse": self.open, MESSAGES: self.post, MESSAGES.rstrip("/"): self.post}

    def close(self) -> None:
        """Lets what is under way finish, ends all streams properly, and opens no more."""
        self._closed = True
        for client in tuple(self._clients.values()):
            client.close()

    def end_principals(self, why_ended: WhyEnded) -> None:
        for client in tuple(self._clients.values()):
            if why := why_ended(client.principal):
                client.revoke(why)

    async def open(self, request: HttpRequest, principal: Principal) -> None:
        accept = request.fields.get(b"accept", b"*/*").lower()
        if request.method != "GET":
            refuse_method(request, "use GET; messages go where its first event says", b"GET")
        elif b"event-stream" not in accept and b"*" not in accept:
            refuse(request, 406, "accept text/event-stream")
        elif self._closed or len(self._clients) >= MAX_CLIENTS:
            problem = "too many clients are here, or the hub is going down; try again shortly"
            refuse(request, 503, problem)
        else:
            await self._serve(SseClient(request, principal))

    async def _serve(self, client: SseClient) -> None:
        id = token_hex(16)
        request = client.request
        self._clients[id] = client
        beats = self._beats.add(client, request.loop)
        try:
            request.start(200, STREAM_HEADERS)
            request.send(sse.encode_event(f"{MESSAGES}?session_id={id}".encode(), name="endpoint"))
            await client.wait_closed()
        finally:
            beats.discard(client)
            del self._clients[id]
            for task in tuple(client.running.values()):
                task.cancel()
            self.server.leave(client)

    async def post(self, request: HttpRequest, principal: Principal) -> None:
        if request.method != "POST":
            refuse_method(request, "use POST", b"POST")
            return
        client = self._clients.get(_session_id(request.query))
        if client is None or client.principal != principal:
            refuse(request, 404, "there is no such session; open a new one with GET /sse")
            return
        message = parse_message(request, b"*/*")
        if message is None:
            return
        if len(client.running) >= MAX_RUNNING or not client.request.reads:
            problem = "too much is under way for this client, or it does not read its stream"
            refuse(request, 503, problem, rpc.find_id(message))
            return
        fields = request.fields
        request.reply(202, [(b"content-type", b"text/plain")], b"Accepted")
        await self._take(message, client, fields)

    async def _take(self, message: Any, client: SseClient, fields: Mapping[bytes, bytes]) -> None:
        items = message if isinstance(message, list) else [message]
        if any(find_named_version(item) is not None for item in items):
            await client.answer(_too_new(message))
            return
        for item in items:
            self._hear(item, client)
        if isinstance(message, list):
            batch = answer_batch(self.server, message, client, client.push, fields=fields)
            client.run(object(), batch)
            return
        begun = self.server.begin(message, client, client.push, fields)
        if begun is None or isinstance(begun, bytes):
            await client.answer(begun)
            return
        key = rpc.build_key(message["id"])
        if key in client.running:
            begun.close()
            problem = "a request with this id is still under way"
            await client.answer(rpc.encode_error(message["id"], rpc.INVALID_REQUEST, problem))
            return
        client.run(key, begun)

    def _hear(self, message: Any, client: SseClient) -> None:
        """What is a matter of the connection and not of the face."""
        if isinstance(message, dict) and "id" not in message:
            if message.get("method") == "notifications/cancelled":
                client.cancel(rpc.find_cancelled(message))
            elif message.get("method") == "notifications/initialized":
                self.server.join(client)


def _session_id(query: bytes) -> str:
    """The only one that is named; else none."""
    try:
        ids = parse_qs(query.decode("ascii"), max_num_fields=8).get("session_id", [])
    except ValueError:
        return ""
    return ids[0] if len(ids) == 1 else ""


def _too_new(message: Any) -> bytes | None:
    """A server of before 2026-07-28 would not know what is asked, and its client goes by that."""
    problem = "2026-07-28 is not spoken over HTTP+SSE; use POST /mcp, or begin with initialize"
    if isinstance(message, list):
        return rpc.encode_error(None, rpc.INVALID_REQUEST, problem)
    if "id" not in message:
        return None
    return rpc.encode_error(rpc.find_id(message), rpc.METHOD_NOT_FOUND, problem)
