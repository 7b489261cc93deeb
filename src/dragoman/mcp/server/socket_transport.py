"""The face on a two-way stream of bytes: one connection is one client, in either framing.

`dragoman mcp` brings its client's stdio here over the hub's Unix socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from secrets import token_hex
from typing import Any, cast

from dragoman import __version__
from dragoman.core.principal import Principal
from dragoman.core.tool import PROMPT, RESOURCE, TOOL, Nowhere
from dragoman.core.tool_filter import View
from dragoman.mcp.protocol.errors import encode_crash
from dragoman.mcp.protocol.framing import (
    LINE,
    Deframer,
    Frame,
    MalformedFrame,
    OversizedFrame,
    Unrecoverable,
    find_id,
    frame,
)
from dragoman.mcp.server.client_state import ClientState, Push
from dragoman.mcp.server.dispatcher import McpServer, answer_batch
from dragoman.mcp.server.list_pages import METHODS as LISTS
from dragoman.wire import rpc
from dragoman.wire.json import MAX_BYTES, decode, encode, has_duplicate_names
from dragoman.wire.json import Malformed as NotJson

log = logging.getLogger(__name__)

MAX_RUNNING = 256
"""Calls of one client under way; more wait unread."""
UNREAD_BYTES = 1024 * 1024
"""What may wait for a client that does not read, before it is told nothing more unasked."""
RETRY_SECONDS = 1.0
"""When it is told the rest, if it reads again."""
MAX_OWED = 1_100
"""What is kept for it until then."""
CALLED_BY = {
    "tools/call": (TOOL, "name"),
    "prompts/get": (PROMPT, "name"),
    "resources/read": (RESOURCE, "uri"),
}


class SocketClient(ClientState):
    """The client at the other end."""

    __slots__ = ("_tell",)

    def __init__(self, principal: Principal, view: View, tell: Callable[[bytes], None]) -> None:
        super().__init__(principal, "mcp-stdio", view, client=f"stdio-{token_hex(8)}")
        self._tell = tell

    @property
    def is_reachable(self) -> bool:
        return True

    def notify(self, message: bytes) -> None:
        self._tell(message)


class SocketConnection(asyncio.Protocol):
    def __init__(
        self,
        face: McpServer,
        find_peer: Callable[[Any], Principal],
        view: Callable[[], View],
        register: set[SocketConnection],
        settled: asyncio.Future[None],
    ) -> None:
        """`find_peer` tells who is at the other end of a transport; `settled` is done once the
        first list is worth giving."""
        self.server = face
        self._settled = settled
        self.client: ClientState
        self._find_peer = find_peer
        self._view = view
        self._register = register
        self._deframer = Deframer(MAX_BYTES)
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._in_batches: dict[Any, Callable[[], Any]] = {}
        """How to cancel each request of a batch that is under way."""
        self._framing = LINE
        self._owed: dict[bytes, None] = {}
        self._telling: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._held = 0
        """Reasons not to read: a client that does not, or too many calls."""

    # --- the stream --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.client = SocketClient(self._find_peer(transport), self._view(), self._tell)
        self._register.add(self)
        self._write(encode({"dragoman": __version__, "pid": os.getpid()}), LINE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._register.discard(self)
        if self._telling is not None:
            self._telling.cancel()
        for task in tuple(self._running.values()):
            task.cancel()
        self.server.leave(self.client)

    def pause_writing(self) -> None:
        self._hold(1)

    def resume_writing(self) -> None:
        self._hold(-1)

    def data_received(self, data: bytes) -> None:
        for piece in self._deframer.feed(data):
            self._framing = piece.framing
            if isinstance(piece, Frame):
                try:
                    self._message(piece.payload, piece.framing)
                except Exception:  # it would end the connection, with every call on it
                    id, is_answer = find_id(piece.payload)
                    answer = encode_crash(id)
                    if id is not None and not is_answer:
                        self._write(answer, piece.framing)
            elif isinstance(piece, OversizedFrame):
                problem = f"a message may have {MAX_BYTES} bytes and this one has more"
                id = find_id(piece.prefix)[0]
                self._write(rpc.encode_error(id, rpc.INVALID_REQUEST, problem), piece.framing)
            elif isinstance(piece, MalformedFrame):
                self._write(rpc.encode_error(None, rpc.PARSE_ERROR, piece.reason), piece.framing)
            elif isinstance(piece, Unrecoverable) and self._transport is not None:
                self._transport.close()

    def _write(self, message: bytes, framing: Any) -> bool:
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.write(frame(message, framing))
        return True

    def _unread(self) -> bool:
        transport = self._transport
        return transport is not None and transport.get_write_buffer_size() > UNREAD_BYTES

    def _hold(self, change: int) -> None:
        before, self._held = self._held, self._held + change
        if self._transport is None or self._transport.is_closing():
            return
        if self._held and not before:
            self._transport.pause_reading()
        elif before and not self._held:
            self._transport.resume_reading()

    # --- messages ----------------------------------------------------------------------------

    def _message(self, payload: bytes, framing: Any) -> None:
        try:
            message = decode(payload)
        except NotJson as problem:
            self._write(rpc.encode_error(None, rpc.PARSE_ERROR, str(problem)), framing)
            return
        if has_duplicate_names(payload, rpc.ENVELOPE, rpc.PARAMS):
            id = rpc.find_id(message)
            self._write(
                rpc.encode_error(id, rpc.INVALID_REQUEST, "a member is named twice"), framing
            )
            return
        for item in message if isinstance(message, list) else [message]:
            self._hear(item)
        self._answer(message, framing)

    def _hear(self, message: Any) -> None:
        """What is a matter of the connection and not of the face."""
        if isinstance(message, dict) and "id" not in message:
            if message.get("method") == "notifications/cancelled":
                self._cancel(message)
            elif message.get("method") == "notifications/initialized":
                self.server.join(self.client)

    def _answer(self, message: Any, framing: Any) -> None:
        self.client.view = self._view()

        def push(update: bytes) -> bool:
            return not self._unread() and self._write(update, framing)

        if isinstance(message, list):
            work = answer_batch(self.server, message, self.client, push, self._in_batches)
            self._run(object(), work, framing)
            return
        if not self._settled.done() and self._too_early(message):
            self._run(rpc.build_key(message["id"]), self._when_settled(message, push), framing)
            return
        begun = self.server.begin(message, self.client, push)
        if isinstance(begun, bytes):
            self._write(begun, framing)
        elif begun is not None:
            self._run(rpc.build_key(message["id"]), begun, framing)

    def _too_early(self, message: Any) -> bool:
        """Many clients list once, right after starting the hub, and never again; and one that goes
        on after a restart calls what it has listed before."""
        if rpc.find_flaw(message) is not None or "id" not in message:
            return False
        if message.get("method") in LISTS:
            return True
        return (called := _called(message)) is not None and self._unknown(*called)

    def _unknown(self, name: str, kind: str) -> bool:
        return isinstance(self.server.hub.find(name, self.client.view, kind).target, Nowhere)

    async def _when_settled(self, message: Any, push: Push) -> bytes | None:
        called = _called(message)
        known = asyncio.get_running_loop().create_future()

        def look() -> None:
            if called is not None and not known.done() and not self._unknown(*called):
                known.set_result(None)

        stops = [catalog.on_change(look) for catalog in self.server.hub.catalogs.values()]
        try:
            await asyncio.wait([self._settled, known], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for stop in stops:
                stop()
        return await self.server.answer(message, self.client, push)

    def _run(self, key: Any, work: Coroutine[Any, Any, bytes | None], framing: Any) -> None:
        if key in self._running:
            work.close()
            problem = "a request with this id is still under way"
            self._write(rpc.encode_error(key[1], rpc.INVALID_REQUEST, problem), framing)
            return

        async def run() -> None:
            try:
                answer = await work
            except Exception:
                answer = encode_crash(key[1] if isinstance(key, tuple) else None)
            self._done(key, task)  # first: whoever has the answer may use the id again
            if answer is not None:
                self._write(answer, framing)

        def ended(task: asyncio.Task[None]) -> None:
            work.close()  # cancelled before it began
            self._done(key, task)

        task = asyncio.get_running_loop().create_task(run())
        self._running[key] = task
        task.add_done_callback(ended)
        if len(self._running) == MAX_RUNNING:
            self._hold(1)

    def _done(self, key: Any, task: asyncio.Task[None]) -> None:
        if self._running.get(key) is not task:
            return
        if len(self._running) == MAX_RUNNING:
            self._hold(-1)
        del self._running[key]

    def _cancel(self, message: dict[str, Any]) -> None:
        key = rpc.find_cancelled(message)
        if key is None:
            return
        if task := self._running.get(key):
            self._done(key, task)  # its id may be used again at once
            task.cancel()
        elif cancel := self._in_batches.get(key):
            cancel()

    # --- unasked -----------------------------------------------------------------------------

    def _tell(self, message: bytes) -> None:
        if self._owed or self._unread():
            if len(self._owed) < MAX_OWED:
                self._owed[message] = None
            if self._telling is None and self._transport is not None:
                loop = asyncio.get_running_loop()
                self._telling = loop.call_later(RETRY_SECONDS, self._tell_owed)
        else:
            self._write(message, self._framing)

    def _tell_owed(self) -> None:
        self._telling = None
        owed, self._owed = self._owed, {}
        for message in owed:
            self._tell(message)

    async def drain(self) -> None:
        """Lets the calls under way finish, then closes."""
        if self._running:
            await asyncio.wait(list(self._running.values()))
        if self._transport is not None:
            self._transport.close()


def _called(message: Any) -> tuple[str, str] | None:
    """The name that a request calls, and of which kind."""
    kind, member = CALLED_BY.get(message.get("method"), ("", ""))
    name = (message.get("params") or {}).get(member)
    return (name, kind) if isinstance(name, str) and kind else None
