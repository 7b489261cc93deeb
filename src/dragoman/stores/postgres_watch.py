"""Watches a PostgreSQL server for a hub: whether it answers, and what other hubs change."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg

from dragoman.core.errors import ConfigError
from dragoman.stores.database import DatabaseAway

if TYPE_CHECKING:
    from dragoman.stores.postgres import PostgresServer

log = logging.getLogger(__name__)

SCHEMA = "dragoman"
CHANNEL = "dragoman_changes"
HUB_LOCK = 0x6472616768756273
"""The key of an advisory lock: the hubs that use a database."""
LOCK_PAUSE = 0.05
"""Seconds between two attempts to take it."""
COUNTERS = f"SELECT store, number FROM {SCHEMA}.changes"
_OTHER_HUBS = f"""
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid = {HUB_LOCK >> 32} AND objid = {HUB_LOCK & 0xFFFFFFFF}
"""

_watching: set[int] = set()
"""The ids of the server's processes for the locks of this process."""


class DeadlineConnection(psycopg.Connection[tuple[Any, ...]]):
    """Every wait ends at a deadline. Afterwards the connection cannot be used."""

    seconds = 1.0
    backend = 0
    """The id of the server's process for it."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, self.seconds)
        except psycopg.errors._WaitTimeout:
            self.pgconn.finish()
            raise psycopg.errors.ConnectionTimeout(
                f"the server did not answer within {self.seconds:g} s"
            ) from None


def is_shared(connection: DeadlineConnection) -> bool:
    """Whether hubs of other processes use the database."""
    return bool({pid for (pid,) in connection.execute(_OTHER_HUBS).fetchall()} - _watching)


def read_pairs(connection: DeadlineConnection, query: str) -> dict[str, int]:
    return {str(name): int(number) for name, number in connection.execute(query).fetchall()}


class DatabaseWatch:
    """A thread with a connection of its own: it holds the hub's lock, notices when the server does
    not answer and when it is back, and reads what others have changed."""

    def __init__(self, server: PostgresServer, exclusive: bool) -> None:
        self._server = server
        self._limits = server.limits
        self._exclusive = exclusive
        self._connection: DeadlineConnection | None = self._open()
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._ended = False
        self._heard = False
        """Whether others have changed something since the counters were read."""
        self._seen = time.monotonic()
        """When the server answered last."""
        self._poll()
        self._thread = threading.Thread(target=self._run, name="postgres watch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        with suppress(OSError):
            self._bell.send(b"!")

    def check(self) -> None:
        """Raises `DatabaseAway` if the watch has not seen the server for too long."""
        limits = self._limits
        longest = limits.poll + limits.probe + limits.connect + limits.retry
        if time.monotonic() - self._seen > longest:
            raise DatabaseAway("the database is not available: it is not watched")

    def stop(self) -> None:
        self._ended = True
        self.wake()
        self._thread.join(self._limits.connect + self._limits.probe + 1.0)
        self._drop()
        self._ear.close()
        self._bell.close()

    def _open(self) -> DeadlineConnection:
        connection = self._server.connect()
        try:
            self._take_lock(connection)
            _watching.add(connection.backend)
            connection.execute(f"LISTEN {CHANNEL}")
            connection.add_notify_handler(self._hear)
        except BaseException:
            connection.close()
            raise
        connection.seconds = self._limits.probe
        return connection

    def _take_lock(self, connection: DeadlineConnection) -> None:
        """Raises `ConfigError` if another hub has the lock, and not only a moment longer than it
        has lived: a hub that is started again at once must not fail for its predecessor."""
        query = f"SELECT pg_try_advisory_lock{'' if self._exclusive else '_shared'}({HUB_LOCK})"
        until = time.monotonic() + self._limits.release
        while not ((row := connection.execute(query).fetchone()) and row[0]):
            if time.monotonic() > until:
                raise ConfigError(
                    f'the database at "{self._server.place}" is in use by another hub; for several '
                    "hubs on one database set [cluster] secret, the same on each of them"
                )
            time.sleep(LOCK_PAUSE)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._server.forget_backend(connection.backend)
            _watching.discard(connection.backend)
            connection.close()

    def _run(self) -> None:
        while not self._ended:
            try:
                if self._connection is None:
                    self._connection = self._open()
                self._heard = False
                self._poll()
                self._server.note_success()
                self._wait(self._limits.poll)
            except Exception as error:
                if not isinstance(error, psycopg.Error | OSError | ConfigError):
                    # Without the watch, no statement would be tried again after a failure.
                    log.exception("the watch of the database failed")
                self._drop()
                self._server.note_failure(error)
                if not self._ended:
                    self._drain()
                    select.select([self._ear], [], [], self._limits.retry)

    def _poll(self) -> None:
        assert self._connection is not None
        counters = read_pairs(self._connection, COUNTERS)
        self._seen = time.monotonic()
        self._server.note_counters(counters)

    def _wait(self, seconds: float) -> None:
        """Waits for a change by others, for a call of `wake`, or for some time."""
        connection = self._connection
        assert connection is not None
        until, ear = time.monotonic() + seconds, self._ear.fileno()
        while not (self._ended or self._heard):
            left = until - time.monotonic()
            if left <= 0:
                return
            ready, _, _ = select.select([ear, connection.fileno()], [], [], left)
            if ear in ready:
                self._drain()
                return
            if ready:
                connection.pgconn.consume_input()
                while (one := connection.pgconn.notifies()) is not None:
                    self._hear_from(one.be_pid)

    def _hear(self, notification: psycopg.Notify) -> None:
        self._hear_from(notification.pid)

    def _hear_from(self, backend: int) -> None:
        if not self._server.is_own(backend):
            self._heard = True

    def _drain(self) -> None:
        with suppress(OSError):
            self._ear.recv(4096)
