"""The `RunStore` in a PostgreSQL database. Needs the extra `postgres`.

A single hub holds an advisory lock as long as it runs. The hubs of a cluster share the runs: each
run has the id of the hub that works on it, every change of the run by another hub is refused, and
the runs of a hub that has ended are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.runs import ENDED, Run, RunFilter, RunTaken, StepRecord
from dragoman.core.urls import render_origin
from dragoman.stores import run_rows as rows
from dragoman.stores.postgres_connections import is_idle, render_failure
from dragoman.stores.postgres_sql import translate
from dragoman.stores.runs_db import TABLES

LOCK = 0x647261676F6D616E
"""The key of the advisory lock: `dragoman`."""
CONNECTIONS = 8
COMMAND_SECONDS, SHARED_SECONDS = 30.0, 2.0
"""How long an operation may take. Where other hubs share the runs, they go on without this one."""


async def open_postgres_runs(
    url: str, *, exclusive: bool = True, find_hub: Callable[[], str] | None = None
) -> PostgresRuns:
    """Connects, creates what is missing, and locks the runs if the database is only theirs.
    `find_hub` returns the id of this hub in a cluster, which has another one after it was cut off.
    Raises `ConfigError`."""
    try:
        import psycopg
    except ImportError:
        raise ConfigError(
            "[workflows] database needs another package: pip install 'dragoman-hub[postgres]'"
        ) from None
    place = render_origin(url)
    pool = _Pool(url, COMMAND_SECONDS if find_hub is None else SHARED_SECONDS)
    try:
        await asyncio.to_thread(_migrate, url)
        lock = await pool.connect()
        if exclusive:
            cursor = await lock.execute("SELECT pg_try_advisory_lock($1)", (LOCK,))
            if (await cursor.fetchone()) != (True,):
                await lock.close()
                raise ConfigError(f'the database at "{place}" is in use by another hub')
            pool.lock = lock
        else:
            pool.free.append(lock)
    except (psycopg.Error, OSError, ValueError) as error:
        raise ConfigError(
            f'the database at "{place}" of [workflows] cannot be used: {render_failure(error)}'
        ) from None
    return PostgresRuns(pool, place, (psycopg.Error, OSError), find_hub)


def _migrate(url: str) -> None:
    from dragoman.stores.database import COMMAND_LIMITS
    from dragoman.stores.postgres import PostgresServer

    server = PostgresServer(url, COMMAND_LIMITS, "[workflows] database")
    try:
        server.open(TABLES).close()
    finally:
        server.close()


class _Pool:
    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        self.free: list[Any] = []
        self.lock: Any = None
        """The connection that holds the lock."""
        self._permits = asyncio.Semaphore(CONNECTIONS)

    async def connect(self) -> Any:
        from psycopg import AsyncRawCursor

        from dragoman.stores.postgres_connections import connect_async

        return await connect_async(self._url, self._seconds, cursor_factory=AsyncRawCursor)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Any]:
        """Lends a connection; one that was lost, or whose work was interrupted, is closed."""
        async with asyncio.timeout(self._seconds), self._permits:
            while self.free and self.free[-1].closed:
                self.free.pop()
            connection = self.free.pop() if self.free else await self.connect()
            is_done = False
            try:
                yield connection
                is_done = is_idle(connection)
            finally:
                if is_done:
                    self.free.append(connection)
                else:
                    await connection.close()

    async def close(self) -> None:
        for connection in (*self.free, self.lock):
            if connection is not None:
                await connection.close()
        self.free.clear()


class PostgresRuns:
    def __init__(
        self,
        pool: _Pool,
        place: str,
        errors: tuple[type[Exception], ...],
        find_hub: Callable[[], str] | None,
    ) -> None:
        self.is_shared = find_hub is not None
        self._find_hub = find_hub or (lambda: "")
        self._pool = pool
        self._place = place
        self._errors: tuple[type[Exception], ...] = (*errors, TimeoutError)

    async def add(self, run: Run, source: str) -> None:
        await self._store(rows.build_add(run, source, self._find_hub()))

    async def save(
        self,
        run: Run,
        steps: Collection[StepRecord] = (),
        children: Sequence[tuple[Run, str]] = (),
        is_synced: bool = False,
    ) -> None:
        """The server syncs every commit, unless its `synchronous_commit` is off."""
        statements = rows.build_save(run, steps, children, self._find_hub())
        async with self._transact() as connection:
            for number, (statement, values) in enumerate(statements):
                done = await connection.execute(translate(statement), values)
                if not number and not done.rowcount:
                    raise RunTaken("")

    async def find_source(self, digest: str) -> str | None:
        found = await self._read(rows.FIND_SOURCE, (digest,))
        return str(found[0][0]) if found else None

    async def find(self, id: str) -> Run | None:
        found = await self._read(rows.FIND_RUN, (id,))
        return rows.run_from_row(tuple(found[0])) if found else None

    async def claim(self, id: str) -> Run | None:
        if not self.is_shared:
            return await self.find(id)
        hub = self._find_hub()
        async with self._transact() as connection:
            cursor = await connection.execute(translate(rows.CLAIM), (hub, id, hub))
            if (row := await cursor.fetchone()) is not None:
                return rows.run_from_row(tuple(row))
        found = await self._read(rows.FIND_HUB, (id,))
        if not found:
            return None
        raise RunTaken(found[0][0])

    async def release(self, id: str) -> None:
        if self.is_shared:
            await self._store([(rows.RELEASE, (id, self._find_hub()))])

    async def rescue(self) -> int:
        if not self.is_shared:
            return 0
        async with self._transact() as connection:
            return int((await connection.execute(rows.RESCUE)).rowcount)

    async def load_steps(self, id: str) -> list[StepRecord]:
        return [rows.step_from_row(row) for row in await self._read(rows.LOAD_STEPS, (id,))]

    async def list_runs(self, wanted: RunFilter, limit: int, cursor: str) -> tuple[list[Run], str]:
        found = await self._read(*rows.build_list(wanted, limit, cursor))
        return rows.list_from_rows([tuple(row) for row in found], limit)

    async def count_unfinished(self) -> dict[tuple[str, str], int]:
        found = await self._read(rows.COUNT_UNFINISHED, tuple(ENDED))
        return {(org, owner): count for org, owner, count in found}

    async def list_due(self, now: float, most: int) -> list[str]:
        hub = self._find_hub()
        woken = await self._read(rows.LIST_WOKEN, (now, hub, most))
        queued = await self._read(rows.LIST_QUEUED, (hub, most))
        return rows.merge_due(woken, queued, most)

    async def find_next_wake(self) -> float:
        return float((await self._read(rows.NEXT_WAKE, (self._find_hub(),)))[0][0] or 0.0)

    async def list_awaiting(
        self, awaited: str, most: int, after: tuple[str, str] = ("", "")
    ) -> list[tuple[str, str, str]]:
        values = rows.build_range(awaited, most, after)
        return [(row[0], row[1], row[2]) for row in await self._read(rows.LIST_AWAITING, values)]

    async def requeue_running(self) -> int:
        if self.is_shared:
            return await self.rescue()
        async with self._transact() as connection:
            done = await connection.execute(rows.REQUEUE)
        return int(done.rowcount)

    async def prune(self, before: float, keep: int) -> int:
        most = rows.PRUNED_AT_ONCE
        found = await self._read(rows.LIST_PRUNED, (before, most, keep, most))
        if found:
            async with self._transact() as connection:
                for statement in (rows.DELETE_STEPS, rows.DELETE_RUN):
                    await connection.cursor().executemany(translate(statement), found)
                await connection.execute(rows.DELETE_SOURCES)
        return len(found)

    async def aclose(self) -> None:
        with suppress(*self._errors):
            await self._pool.close()

    async def _read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            async with self._pool.take() as connection:
                cursor = await connection.execute(translate(statement), values)
                return list(await cursor.fetchall())
        except self._errors as error:
            raise StorageFailed(
                f'the database at "{self._place}" cannot be read: {render_failure(error)}'
            ) from error

    async def _store(self, statements: list[rows.Statement]) -> None:
        async with self._transact() as connection:
            for statement, values in statements:
                await connection.execute(translate(statement), values)

    @asynccontextmanager
    async def _transact(self) -> AsyncIterator[Any]:
        try:
            async with self._pool.take() as connection, connection.transaction():
                yield connection
        except self._errors as error:
            raise StorageFailed(
                f'the database at "{self._place}" cannot be written: {render_failure(error)}'
            ) from error
