"""Listens on a socket, and shuts its connections down."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

from dragoman.core.access import WhyEnded
from dragoman.core.background import Background, Work
from dragoman.core.body_budget import BodyBudget
from dragoman.web.http.connection_limits import BODY_BYTES, MAX_CONNECTIONS, ConnectionLimits
from dragoman.web.http.http1 import (
    BUDGET_BYTES,
    HEAD_SECONDS,
    LAST_SECONDS,
    AdmitLater,
    Application,
    HttpConnection,
)
from dragoman.web.http.request import ServerRequest

BACKLOG = 2048
LAST_REQUESTS_SECONDS = 1.0
"""How long a listener that has stopped accepting waits for requests of new connections."""


class ClosingApp:
    """Serves as another application does, one last request for each connection."""

    def __init__(self, app: Application) -> None:
        self._app = app

    def admit(self, request: ServerRequest) -> bool | AdmitLater:
        request.keep_alive = False
        return self._app.admit(request)

    def answer(self, request: ServerRequest) -> Work[None] | None:
        return self._app.answer(request)


class HttpListener:
    def __init__(
        self,
        app: Application,
        sock: socket.socket,
        budget: BodyBudget | None = None,
        connections: int = MAX_CONNECTIONS,
        body_bytes: int = BODY_BYTES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`budget` is shared with other listeners; a body may have `body_bytes`."""
        self._app = app
        self._sock = sock
        self._budget = budget or BodyBudget(BUDGET_BYTES)
        self._connections = ConnectionLimits(connections, body_bytes)
        self._server: asyncio.Server | None = None
        self._accepted = Background("a listener")
        self._tls: dict[str, Any] = {}
        if tls is not None:
            times = {"ssl_handshake_timeout": HEAD_SECONDS, "ssl_shutdown_timeout": LAST_SECONDS}
            self._tls = {"ssl": tls, **times}

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._build, sock=self._sock, backlog=BACKLOG, **self._tls
        )

    def _build(self) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        return HttpConnection(self._app, self._connections, loop, self._budget)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def end_principals(self, why_ended: WhyEnded) -> None:
        for connection in tuple(self._connections):
            connection.end_principal(why_ended)

    def wind_down(self) -> None:
        """Still serves, and closes each connection after its next response, so that the clients of
        idle connections go elsewhere."""
        self._app = ClosingApp(self._app)
        for connection in tuple(self._connections):
            connection.serve_by(self._app)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def finish_accepting(self) -> None:
        """Stops accepting, and waits until the connections that clients had opened by then have
        sent their requests: closing a socket resets those in its queue."""
        waiting = self._take_waiting()
        self.stop_accepting()
        loop = asyncio.get_running_loop()
        for sock in waiting:
            self._accepted.spawn(loop.connect_accepted_socket(self._build, sock, **self._tls))
        until = loop.time() + LAST_REQUESTS_SECONDS
        while loop.time() < until:
            await asyncio.sleep(0.01)  # reads what has arrived, at least
            if not len(self._accepted) and not any(one.is_expecting for one in self._connections):
                return

    def _take_waiting(self) -> list[socket.socket]:
        """Accepts the connections in the queue of the socket."""
        found: list[socket.socket] = []
        with contextlib.suppress(OSError):  # there are no more, or no descriptors
            while len(found) < BACKLOG:
                sock, _ = self._sock.accept()
                sock.setblocking(False)
                found.append(sock)
        return found

    async def drain(self, seconds: float) -> None:
        """Waits up to that many seconds for running requests."""
        self.stop_accepting()
        loop = asyncio.get_running_loop()
        for connection in tuple(self._connections):
            connection.drain()
        deadline = loop.time() + seconds
        while self._connections and loop.time() < deadline:
            await asyncio.sleep(0.02)

    def abort(self) -> None:
        """Aborts the remaining connections."""
        for connection in tuple(self._connections):
            connection.abort()
