"""The HTTP+SSE transport of 2024-11-05: `GET /sse` is a client's connection, on which it receives
everything; its own messages come as `POST /messages/`.

Later revisions with a handshake may use it too, 2026-07-28 may not. Requests come here
authenticated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qs

from dragoman.core.access import WhyEnded
from dragoman.core.background import Work, resolve, start_task
from dragoman.core.cluster import find_mark, make_id
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.mcp.protocol.revisions import find_version
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer, Running
from dragoman.mcp.server.http_response import parse_accept
from dragoman.mcp.server.replay_streams import STREAM_HEADERS, Keepalive
from dragoman.mcp.server.streamable_http import (
    parse_message,
    refuse,
    refuse_method,
    refuse_unknown_view,
)
from dragoman.wire import rpc, sse
from dragoman.wire.http import HttpRequest

MAX_CLIENTS = 5_000
MAX_RUNNING = 256
"""Running requests of one client."""
MAX_UNSENT = 64
"""Notifications that are kept for a client that does not read."""

MESSAGES = "/messages/"


class SseClient(ClientState):
    """One open stream, and the running requests of its client."""

    __slots__ = ("_ended", "_unsent", "closing", "request", "running", "tasks")

    def __init__(self, request: HttpRequest, principal: Principal, endpoint: View) -> None:
        super().__init__(principal, "mcp-sse", endpoint, client=token_hex(16))
        self.request = request
        self.running: Running = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.closing = False
        self._ended: asyncio.Future[None] = request.loop.create_future()
        self._unsent: dict[bytes, None] = {}

    async def wait_closed(self) -> None:
        self.request.gone.add_done_callback(lambda _: resolve(self._ended, None))
        await self._ended

    def close(self) -> None:
        """Ends the stream after the running requests."""
        self.closing = True
        if not self.tasks:
            self.request.end()
            resolve(self._ended, None)

    def revoke(self, why: str) -> None:
        """Ends the stream and cancels the running requests at once."""
        tasks, self.tasks = self.tasks, set()  # or they would be cancelled again, without why
        for task in tasks:
            task.cancel(why)
        self.request.end()
        resolve(self._ended, None)

    # --- to the client -------------------------------------------------------------------------

    def push(self, message: bytes) -> bool:
        return self.request.send(sse.encode_event(message, name="message"))

    @property
    def is_reachable(self) -> bool:
        return True

    def notify(self, message: bytes) -> None:
        if (self._unsent or not self.push(message)) and len(self._unsent) < MAX_UNSENT:
            self._unsent[message] = None

    def send_keepalive(self) -> None:
        while self._unsent and self.push(next(iter(self._unsent))):
            del self._unsent[next(iter(self._unsent))]
        self.request.send(sse.KEEPALIVE)

    # --- its requests --------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, bytes | None]) -> None:
        """Runs `work` and sends its result."""
        task = start_task(self._respond(work), self.request.loop)
        self.tasks.add(task)
        task.add_done_callback(self._finish)

    async def _respond(self, work: Awaitable[bytes | None]) -> None:
        answer = await work
        if answer is not None:
            await self.request.write(sse.encode_event(answer, name="message"))

    def _finish(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self.closing:
            self.close()


class LegacySseTransport:
    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._keepalive = Keepalive()
        self._clients: dict[str, SseClient] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._clients)

    def list_clients(self) -> list[SseClient]:
        return [*self._clients.values()]

    @property
    def mounts(self) -> Mapping[str, Callable[[HttpRequest, Principal], Work[None]]]:
        return {"/sse": self.open, MESSAGES: self.post, MESSAGES.rstrip("/"): self.post}

    def close(self) -> None:
        """Ends all streams after their running requests, and opens no more."""
        self._closed = True
        for client in tuple(self._clients.values()):
            client.close()

    def end_principals(self, why_ended: WhyEnded) -> None:
        for client in tuple(self._clients.values()):
            if why := why_ended(client.principal):
                client.revoke(why)

    async def open(
        self, request: HttpRequest, principal: Principal, endpoint: View = EVERYTHING
    ) -> None:
        """`endpoint` is what the address offers."""
        if principal.view:
            bound = self.server.hub.views.get_bound(principal.view)
            if endpoint is not EVERYTHING and endpoint is not bound:
                return refuse_unknown_view(request)
            endpoint = bound
        if request.method != "GET":
            refuse_method(request, "use GET; its first event names the URL for messages", b"GET")
        elif not parse_accept(request.fields.get(b"accept", b"*/*")).stream:
            refuse(request, 406, "accept text/event-stream")
        elif self._closed or len(self._clients) >= MAX_CLIENTS:
            problem = "too many clients, or the hub is shutting down; try again shortly"
            refuse(request, 503, problem)
        else:
            await self._serve(SseClient(request, principal, endpoint))

    async def _serve(self, client: SseClient) -> None:
        id = make_id(self.server.hub.cluster)
        request = client.request
        self._clients[id] = client
        slot = self._keepalive.add(client, request.loop)
        try:
            request.start(200, STREAM_HEADERS)
            request.send(sse.encode_event(f"{MESSAGES}?session_id={id}".encode(), name="endpoint"))
            await client.wait_closed()
        finally:
            slot.discard(client)
            del self._clients[id]
            for task in tuple(client.tasks):
                task.cancel()
            self.server.subscriptions.leave(client)

    async def post(self, request: HttpRequest, principal: Principal) -> None:
        if request.method != "POST":
            refuse_method(request, "use POST", b"POST")
            return
        id = _find_session_id(request.query)
        client = self._clients.get(id)
        if client is None:
            self.server.hub.cluster.check(find_mark(id))
        if client is None or client.principal != principal:
            refuse(request, 404, "session not found; open a new one with GET /sse")
            return
        client.principal = principal  # its token and its roles may be others now
        message = parse_message(request, parse_accept(b"*/*"))
        if message is None:
            return
        if len(client.tasks) >= MAX_RUNNING or not client.request.reads:
            problem = "too many running requests, or the client does not read its stream"
            refuse(request, 503, problem, rpc.find_id(message))
            return
        work = self._answer(message, client, request.fields)  # the reply drops the fields
        request.reply(202, [(b"content-type", b"text/plain")], b"Accepted")
        client.start(work)

    async def _answer(
        self, message: Any, client: SseClient, fields: Mapping[bytes, bytes]
    ) -> bytes | None:
        items = message if isinstance(message, list) else [message]
        if any(find_version(item) is not None for item in items):
            return _encode_too_new(message)
        return await self.server.answer_tracked(
            message, client, client.push, client.running, fields
        )


def _find_session_id(query: bytes) -> str:
    """Returns the session id in the query; an empty string if there are none or several."""
    try:
        ids = parse_qs(query.decode("ascii"), max_num_fields=8).get("session_id", [])
    except ValueError:
        return ""
    return ids[0] if len(ids) == 1 else ""


def _encode_too_new(message: Any) -> bytes | None:
    """Answers as a server from before 2026-07-28 would, so that the client falls back."""
    problem = "2026-07-28 needs Streamable HTTP; use POST /mcp, or begin with initialize"
    if isinstance(message, list):
        return rpc.encode_error(None, rpc.INVALID_REQUEST, problem)
    if "id" not in message:
        return None
    return rpc.encode_error(rpc.find_id(message), rpc.METHOD_NOT_FOUND, problem)
