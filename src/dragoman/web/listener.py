"""Sockets that speak HTTP: uvicorn's protocol, with the limits that it lacks, and a proper end."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

HEAD_SECONDS = 10.0
"""How long a request's head may take, and a new connection may say nothing."""
HEAD_BYTES = 64 * 1024
KEEP_ALIVE_SECONDS = 75
MAX_CONNECTIONS = 10_000


class Connection(HttpToolsProtocol):
    """A request whose head is all there when it is first looked at, as nearly every one is, costs
    neither a timer nor a count of its bytes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._late()
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)
        elif self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            # Line ends between requests, or the rest of a body that nobody reads: either has
            # stopped uvicorn's own timer.
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def _head_came(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_came()
        if not self.transport.is_closing():
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["whole"] = partial(_send_whole, cycle)  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, app)


def _send_whole(
    cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> bool:
    """A response that is all there, in one write: ASGI's two messages are two packets.

    False where it must go by ASGI after all: to a client that does not read, or to a HEAD.
    """
    if cycle.flow.write_paused or cycle.scope["method"] == "HEAD" or cycle.response_started:
        return False
    if cycle.disconnected:
        return True
    lines = [STATUS_LINE[status]]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if not cycle.keep_alive:
        lines.append(b"connection: close\r\n")
    lines += (b"content-length: %d\r\n\r\n" % len(body), body)
    cycle.response_started = cycle.response_complete = True
    cycle.transport.write(b"".join(lines))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


class Listener:
    def __init__(self, app: Any, sock: socket.socket) -> None:
        self._config = Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            limit_concurrency=MAX_CONNECTIONS,
        )
        self._config.load()
        self._state = ServerState()
        self._sock = sock
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=self._sock, backlog=2048)

    def _connection(self) -> Connection:
        return Connection(config=self._config, server_state=self._state, app_state={})

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def drain(self, seconds: float) -> None:
        """Lets what is under way finish, then ends it."""
        self.stop_accepting()
        for connection in list(self._state.connections):
            connection.shutdown()
        deadline = asyncio.get_running_loop().time() + seconds
        while self._state.connections or self._state.tasks:
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
