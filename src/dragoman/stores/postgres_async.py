"""A connection to PostgreSQL for the event loop, which is opened again after a failure.

Every wait has a deadline: a server that is stopped keeps its connections open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.stores.fence import IDLE, READ_ONLY, Fence
from dragoman.stores.postgres_connections import is_idle
from dragoman.stores.postgres_connections import render_failure as render_failure

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
Row = Sequence[Any]

CONNECT_SECONDS = 2.0
STATEMENT_SECONDS = 1.5
WAKE_SECONDS = 60.0
"""How often a connection that waits looks again without cause."""


class AsyncLane:
    """One connection. Its owner executes one statement at a time."""

    def __init__(self, url: str, fence: Fence | None = None) -> None:
        """With a `fence`, statements that write need `write`; without, each is a transaction of its
        own, as the renewals of the hub's place are."""
        self._url = url
        self._fence = fence
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def run(
        self, statement: str, values: Any = (), seconds: float = STATEMENT_SECONDS
    ) -> list[Row]:
        """Raises `StorageFailed`."""

        async def run(connection: psycopg.AsyncConnection[Any]) -> list[Row]:
            cursor = await connection.execute(statement.encode(), values)
            return await cursor.fetchall() if cursor.description else []

        return await self.attempt(run, seconds)

    async def write(
        self, statement: str, values: Any = (), seconds: float = STATEMENT_SECONDS
    ) -> list[Row]:
        """Executes a statement in a fenced transaction. Raises `StorageFailed`."""
        assert self._fence is not None
        fence = self._fence

        async def run(connection: psycopg.AsyncConnection[Any]) -> list[Row]:
            async with fence.transact(connection):
                cursor = await connection.execute(statement.encode(), values)
                return await cursor.fetchall() if cursor.description else []

        return await self.attempt(run, seconds)

    async def attempt(
        self, run: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]], seconds: float
    ) -> T:
        """Calls `run` with the connection. Raises `StorageFailed`."""
        import psycopg

        try:
            if self._connection is None or self._connection.closed:
                self._connection = await self.connect()
            async with asyncio.timeout(seconds):
                return await run(self._connection)
        except (psycopg.Error, OSError, TimeoutError) as error:
            self.close()
            raise StorageFailed(f"PostgreSQL: {render_failure(error)}") from error
        finally:
            # Also after a cancellation: a statement may be running.
            if self._connection is not None and not is_idle(self._connection):
                self.close()

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        """Opens another connection, of the caller's own. Raises `StorageFailed`."""
        import psycopg

        kind = _build_connection_class()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                found: psycopg.AsyncConnection[Any] = await kind.connect(
                    self._url,
                    autocommit=True,
                    connect_timeout=2,
                    client_encoding="utf8",
                    application_name="dragoman",
                )
                more = f"; {READ_ONLY}" if self._fence is not None else ""
                try:
                    await found.execute(f"{IDLE}{more}".encode())
                except BaseException:
                    found.pgconn.finish()
                    raise
                return found
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise StorageFailed(f"PostgreSQL: {render_failure(error)}") from error

    def close(self) -> None:
        """It is opened again when it is needed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()


def load_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise ConfigError(
            "[cluster] needs another package: pip install 'dragoman-hub[postgres]'"
        ) from None


def _build_connection_class() -> type[psycopg.AsyncConnection[Any]]:
    """psycopg's own connection sends a cancel request when its task is cancelled, and waits for the
    answer: a database that is stopped would hold up the hub. Here the connection is dropped."""
    import psycopg
    from psycopg import waiting

    class PromptConnection(psycopg.AsyncConnection[Any]):
        async def wait(
            self, gen: Any, interval: float = WAKE_SECONDS, timeout: float | None = None
        ) -> Any:
            return await waiting.wait_async(
                gen, self.pgconn.socket, interval=WAKE_SECONDS, timeout=timeout
            )

    return PromptConnection
