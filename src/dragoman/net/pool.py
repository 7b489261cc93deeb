"""The connections to one origin under one rule of reach."""

from __future__ import annotations

import asyncio

from dragoman.core.body_budget import BodyBudget
from dragoman.core.errors import Unreachable
from dragoman.core.read_pacing import BytePace
from dragoman.net.connection import Connection
from dragoman.net.dialing import CONNECT_SECONDS, Dialer
from dragoman.net.urls import Url

IDLE_SECONDS = 4.0
"""Many servers close after 5 s: a request sent at that moment has an unknown outcome."""
IDLE = 64
CONNECTIONS = 512


class ConnectionPool:
    __slots__ = (
        "__weakref__", "_closed", "_dialer", "_dialling", "_idle", "_most", "_open",
        "_pace", "_seconds", "_sweep", "gone", "loop", "room",
    )  # fmt: skip

    def __init__(
        self,
        dialer: Dialer,
        room: BodyBudget,
        most: int = CONNECTIONS,
        seconds: float = CONNECT_SECONDS,
    ) -> None:
        """A connection is made within `seconds`; `room` limits the large bodies that are being
        read."""
        self.room = room
        self._seconds = seconds
        self.loop = asyncio.get_running_loop()
        self.gone = asyncio.Event()
        """Set once the pool is closed and its last connection is closed."""
        self._dialer = dialer
        self._most = most
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._dialling = 0
        self._pace = BytePace()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, now: float) -> Connection | None:
        """The most recently used idle connection, if one is usable."""
        idle = self._idle
        oldest = now - IDLE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.idle_since > oldest and connection.usable:
                return connection
            connection.abort()
        return None

    async def open(self, url: Url, seconds: float) -> Connection:
        self._admit(url)
        if len(self._open) + self._dialling >= self._most:
            raise Unreachable(
                f'will not connect to "{url.rendered}": {self._most} connections to it are in use',
                sent=False,
            )
        self._dialling += 1
        try:
            connection = await self._dialer.dial(
                url, lambda: Connection(self, self.loop), min(seconds, self._seconds)
            )
        finally:
            self._dialling -= 1
        if self._closed:
            connection.abort()
        self._admit(url)
        if not connection.usable:
            raise Unreachable(f'"{url.rendered}" closed the connection at once', sent=False)
        self._open.add(connection)
        return connection

    def _admit(self, url: Url) -> None:
        if self._closed:
            message = f'will not connect to "{url.rendered}": the hub is shutting down'
            raise Unreachable(message, sent=False)

    def close(self) -> None:
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in tuple(self._open):
            connection.abort()
        if not self._open:
            self.gone.set()

    # connection.Home

    def on_idle(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= IDLE:
            connection.abort()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self.loop.call_later(IDLE_SECONDS, self._sweep_idle)

    def on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._closed and not self._open:
            self.gone.set()

    def pace(self, size: int) -> float:
        return self._pace.pause(size)

    def _sweep_idle(self) -> None:
        """Closes connections that have been idle too long; the oldest are at the front."""
        oldest = self.loop.time() - IDLE_SECONDS
        idle = self._idle
        while idle and idle[0].idle_since <= oldest:
            idle.pop(0).abort()
        self._sweep = None
        if idle:
            self._sweep = self.loop.call_at(idle[0].idle_since + IDLE_SECONDS, self._sweep_idle)
