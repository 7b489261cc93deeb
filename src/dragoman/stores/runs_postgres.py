"""The `RunStore` in a PostgreSQL database. Needs the extra `postgres`.

The hubs of a cluster share the runs: each run has the id of the hub that works on it, every change
of the run by another hub is refused, and the runs of a hub that has ended are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from dragoman.core.errors import ConfigError, LeaseExpired, StorageFailed
from dragoman.core.runs import ENDED, Run, RunFilter, RunTaken, StepRecord
from dragoman.core.urls import render_origin
from dragoman.stores import run_rows as rows
from dragoman.stores.fence import IDLE, LOST, READ_ONLY, Fence
from dragoman.stores.postgres_connections import is_idle, render_failure
from dragoman.stores.postgres_sql import translate
from dragoman.stores.runs_db import TABLES

CONNECTIONS = 8
COMMAND_SECONDS, SHARED_SECONDS = 30.0, 2.0
"""How long an operation may take. Where other hubs share the runs, they go on without this one."""


async def open_postgres_runs(url: str, fence: Fence, *, is_shared: bool) -> PostgresRuns:
    """Connects, and creates what is missing. `fence` is that of this hub, and `is_shared` says
    whether it works in a cluster. Raises `ConfigError`."""
    import psycopg

    place = render_origin(url)
    pool = _Pool(url, SHARED_SECONDS if is_shared else COMMAND_SECONDS)
    try:
        await asyncio.to_thread(_migrate, url)
        pool.free.append(await pool.connect())
    except (psycopg.Error, OSError, ValueError) as error:
        raise ConfigError(
            f'the database at "{place}" cannot be used: {render_failure(error)}'
        ) from None
    return PostgresRuns(pool, place, (psycopg.Error, OSError), fence, is_shared)


def _migrate(url: str) -> None:
    from dragoman.stores.database import COMMAND_LIMITS
    from dragoman.stores.postgres import PostgresServer

    server = PostgresServer(url, COMMAND_LIMITS)
    try:
        server.open(TABLES).close()
    finally:
        server.close()


class _Pool:
    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        self.free: list[Any] = []
        self._permits = asyncio.Semaphore(CONNECTIONS)

    async def connect(self) -> Any:
        from psycopg import AsyncRawCursor

        from dragoman.stores.postgres_connections import connect_async

        connection = await connect_async(self._url, self._seconds, cursor_factory=AsyncRawCursor)
        try:
            await connection.execute(f"{IDLE}; {READ_ONLY}".encode())
        except BaseException:
            connection.pgconn.finish()
            raise
        return connection

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
        for connection in self.free:
            await connection.close()
        self.free.clear()


class PostgresRuns:
    def __init__(
        self,
        pool: _Pool,
        place: str,
        errors: tuple[type[Exception], ...],
        fence: Fence,
        is_shared: bool,
    ) -> None:
        self.is_shared = is_shared
        self._fence = fence
        self._pool = pool
        self._place = place
        self._errors: tuple[type[Exception], ...] = (*errors, TimeoutError)

    @property
    def hub(self) -> str:
        return self._fence.mark

    async def add(self, run: Run, source: str) -> None:
        hub = self._fence.mark
        await self._store(rows.build_add(run, source, hub), hub)

    async def drop(self, run: Run, hubs: Collection[str] = ()) -> None:
        hub = self._fence.mark
        await self._store(rows.build_drop(run, hubs, hub), hub)

    async def save(
        self,
        run: Run,
        steps: Collection[StepRecord] = (),
        children: Sequence[tuple[Run, str]] = (),
        is_synced: bool = False,
    ) -> None:
        """The server syncs every commit, unless its `synchronous_commit` is off."""
        hub = self._fence.mark
        statements = rows.build_save(run, steps, children, hub)
        async with self._transact(hub) as connection:
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
        hub = self._fence.mark
        async with self._transact(hub) as connection:
            cursor = await connection.execute(translate(rows.CLAIM), (hub, id, hub))
            if (row := await cursor.fetchone()) is not None:
                return rows.run_from_row(tuple(row))
        found = await self._read(rows.FIND_HUB, (id,))
        if not found:
            return None
        raise RunTaken(found[0][0])

    async def adopt(self, id: str) -> bool:
        if not self.is_shared:
            return False
        hub = self._fence.mark
        async with self._transact(hub) as connection:
            done = await connection.execute(translate(rows.ADOPT), (hub, id, hub))
            return bool(done.rowcount)

    async def release(self, id: str) -> None:
        if self.is_shared:
            hub = self._fence.mark
            await self._store([(rows.RELEASE, (id, hub))], hub)

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
        hub = self._fence.mark
        woken = await self._read(rows.LIST_WOKEN, (now, hub, most))
        queued = await self._read(rows.LIST_QUEUED, (hub, most))
        return rows.merge_due(woken, queued, most)

    async def find_next_wake(self) -> float:
        return float((await self._read(rows.NEXT_WAKE, (self._fence.mark,)))[0][0] or 0.0)

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

    async def _store(self, statements: list[rows.Statement], hub: str) -> None:
        async with self._transact(hub) as connection:
            for statement, values in statements:
                await connection.execute(translate(statement), values)

    @asynccontextmanager
    async def _transact(self, hub: str | None = None) -> AsyncIterator[Any]:
        """`hub` is the id that the statements have: after the hub was cut off, it has another."""
        try:
            async with self._pool.take() as connection:
                if hub is not None and hub != self._fence.mark:
                    raise LeaseExpired(LOST)
                async with self._fence.transact(connection):
                    yield connection
        except self._errors as error:
            raise StorageFailed(
                f'the database at "{self._place}" cannot be written: {render_failure(error)}'
            ) from error
