"""The transport over the hub's Unix socket: one connection is one client, in either framing.

`dragoman mcp` relays the stdio of its client here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import TYPE_CHECKING, Any, cast

from dragoman import __version__
from dragoman.core.background import start_task
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import View
from dragoman.mcp.protocol.errors import encode_crash
from dragoman.mcp.protocol.framing import (
    CHOOSE_VIEW,
    LINE,
    Deframer,
    Frame,
    MalformedFrame,
    OversizedFrame,
    Unrecoverable,
    find_id,
    frame,
)
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer, Running
from dragoman.wire import rpc
from dragoman.wire.json import MAX_BYTES, Malformed, decode, encode, has_duplicate_names

if TYPE_CHECKING:
    from dragoman.mcp.protocol.framing import Framing

MAX_RUNNING = 256
"""Running requests of one client; no more are read meanwhile."""
UNREAD_BYTES = 1024 * 1024
"""Bytes that may wait for a client that does not read, before notifications are put off."""
RETRY_SECONDS = 1.0
"""After this time they are sent, if the client reads again."""
MAX_UNSENT = 1_100
"""Notifications that are kept until then."""


class SocketClient(ClientState):
    __slots__ = ("_send",)

    def __init__(self, principal: Principal, view: View, send: Callable[[bytes], None]) -> None:
        super().__init__(principal, "mcp-stdio", view, client=f"stdio-{token_hex(8)}")
        self._send = send

    @property
    def is_reachable(self) -> bool:
        return True

    def notify(self, message: bytes) -> None:
        self._send(message)


class SocketConnection(asyncio.Protocol):
    def __init__(
        self,
        server: McpServer,
        find_peer: Callable[[Any], Principal],
        view: Callable[[], View],
        register: set[SocketConnection],
    ) -> None:
        """`find_peer` finds the principal at the other end of an asyncio transport."""
        self.server = server
        self.client: ClientState
        self._find_peer = find_peer
        self._view = view
        self._chosen = ""
        """The name of the view that the client was started with."""
        self._register = register
        self._deframer = Deframer(MAX_BYTES)
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each message that is being answered."""
        self._running: Running = {}
        self._framing = LINE
        self._unsent: dict[bytes, None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._holds = 0
        """Reasons not to read: the client does not read, or too many requests are running."""

    # --- the stream --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.client = SocketClient(self._find_peer(transport), self._view(), self._notify)
        self._register.add(self)
        self._write(encode({"dragoman": __version__, "pid": os.getpid()}), LINE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._register.discard(self)
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        self.server.subscriptions.leave(self.client)

    def pause_writing(self) -> None:
        self._hold(1)

    def resume_writing(self) -> None:
        self._hold(-1)

    def data_received(self, data: bytes) -> None:
        for piece in self._deframer.feed(data):
            self._framing = piece.framing
            if isinstance(piece, Frame):
                try:
                    self._receive(piece.payload, piece.framing)
                except Exception as error:  # it would end the connection, with every call on it
                    id, is_response = find_id(piece.payload)
                    answer = encode_crash(id, error)
                    if id is not None and not is_response:
                        self._write(answer, piece.framing)
            elif isinstance(piece, OversizedFrame):
                problem = f"message too large: at most {MAX_BYTES} bytes"
                id = find_id(piece.prefix)[0]
                self._write(rpc.encode_error(id, rpc.INVALID_REQUEST, problem), piece.framing)
            elif isinstance(piece, MalformedFrame):
                self._write(rpc.encode_error(None, rpc.PARSE_ERROR, piece.reason), piece.framing)
            elif isinstance(piece, Unrecoverable) and self._transport is not None:
                self._transport.close()

    def _write(self, message: bytes, framing: Framing) -> bool:
        if self._transport is None or self._transport.is_closing():
            return False
        line = framing == LINE  # as nearly always: without a call
        self._transport.write(message + b"\n" if line else frame(message, framing))
        return True

    def _is_unread(self) -> bool:
        transport = self._transport
        return transport is not None and transport.get_write_buffer_size() > UNREAD_BYTES

    def _hold(self, change: int) -> None:
        before, self._holds = self._holds, self._holds + change
        if self._transport is None or self._transport.is_closing():
            return
        if self._holds and not before:
            self._transport.pause_reading()
        elif before and not self._holds:
            self._transport.resume_reading()

    # --- messages ----------------------------------------------------------------------------

    def _receive(self, payload: bytes, framing: Framing) -> None:
        try:
            message = decode(payload)
        except Malformed as problem:
            self._write(rpc.encode_error(None, rpc.PARSE_ERROR, str(problem)), framing)
            return
        if has_duplicate_names(payload, message, rpc.ENVELOPE, rpc.PARAMS):
            repeated = "invalid message: a member is repeated"
            self._write(
                rpc.encode_error(rpc.find_id(message), rpc.INVALID_REQUEST, repeated), framing
            )
            return
        if isinstance(message, dict) and message.get("method") == CHOOSE_VIEW:
            self._write(self._choose_view(message), framing)
            return
        task = start_task(self._answer(message, framing))
        self._tasks.add(task)
        task.add_done_callback(self._end)
        if len(self._tasks) == MAX_RUNNING:
            self._hold(1)

    def _end(self, task: asyncio.Task[None]) -> None:
        if len(self._tasks) == MAX_RUNNING:
            self._hold(-1)
        self._tasks.discard(task)

    def _choose_view(self, message: Mapping[str, Any]) -> bytes:
        """Answers the first message of `dragoman mcp --view NAME`."""
        id, params = rpc.find_id(message), message.get("params")
        name = params.get("name") if isinstance(params, dict) else None
        if not isinstance(name, str) or self.server.hub.views.find(name) is None:
            problem = f'there is no view "{str(name)[:100]}"; see: dragoman views list'
            return rpc.encode_error(id, rpc.INVALID_PARAMS, problem)
        self._chosen = name
        return rpc.encode_result(id, {})

    async def _answer(self, message: Any, framing: Framing) -> None:
        client, chosen = self.client, self._chosen
        view = self.server.hub.views.get_bound(chosen) if chosen else self._view()
        if client.endpoint is not view:
            client.endpoint = client.view = view

        def push(update: bytes) -> bool:
            return not self._is_unread() and self._write(update, framing)

        answer = await self.server.answer_tracked(message, client, push, self._running)
        if answer is not None:
            self._write(answer, framing)

    # --- notifications -----------------------------------------------------------------------

    def _notify(self, message: bytes) -> None:
        if self._unsent or self._is_unread():
            if len(self._unsent) < MAX_UNSENT:
                self._unsent[message] = None
            if self._retry_timer is None and self._transport is not None:
                loop = asyncio.get_running_loop()
                self._retry_timer = loop.call_later(RETRY_SECONDS, self._send_unsent)
        else:
            self._write(message, self._framing)

    def _send_unsent(self) -> None:
        self._retry_timer = None
        unsent, self._unsent = self._unsent, {}
        for message in unsent:
            self._notify(message)

    async def drain(self) -> None:
        """Waits for the running requests, then closes."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._transport is not None:
            self._transport.close()
