"""The `RunStore` in a PostgreSQL database, by `[workflows] database`. Needs the extra `postgres`.

One hub works on the runs of a database: it holds an advisory lock as long as it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Any

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.runs import ENDED, Run, RunFilter, StepRecord
from dragoman.core.urls import render_origin
from dragoman.stores import run_rows as rows
from dragoman.stores.runs_db import SCHEMA

NAMESPACE = "dragoman"
MIGRATIONS = (
    SCHEMA.format(
        number="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", time="DOUBLE PRECISION"
    ),
)
LOCK = 0x647261676F6D616E
"""The key of the advisory lock: `dragoman`."""
CONNECTIONS = 8
CONNECT_SECONDS, COMMAND_SECONDS = 10.0, 30.0

_number = lru_cache(maxsize=256)(rows.number_values)


async def open_postgres_runs(url: str) -> PostgresRuns:
    """Connects, creates what is missing, and locks the runs. Raises `ConfigError`."""
    try:
        import asyncpg  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(
            "[workflows] database needs another package: pip install 'dragoman-hub[postgres]'"
        ) from None
    place = render_origin(url)
    pool: Any = None
    try:
        pool = await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=CONNECTIONS,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={"search_path": NAMESPACE, "application_name": "dragoman"},
        )
        lock = await pool.acquire()
        if not await lock.fetchval("SELECT pg_try_advisory_lock($1)", LOCK):
            await _discard(pool)
            raise ConfigError(f'the database at "{place}" is in use by another hub')
        await _migrate(lock, place)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        await _discard(pool)
        raise ConfigError(
            f'the database at "{place}" of [workflows] cannot be used: {error}'
        ) from None
    return PostgresRuns(pool, place, (asyncpg.PostgresError, asyncpg.InterfaceError, OSError))


async def _discard(pool: Any) -> None:
    if pool is not None:
        pool.terminate()


async def _migrate(connection: Any, place: str) -> None:
    async with connection.transaction():
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {NAMESPACE}")
        await connection.execute("CREATE TABLE IF NOT EXISTS version (number INTEGER NOT NULL)")
        version = await connection.fetchval("SELECT max(number) FROM version") or 0
        if version > len(MIGRATIONS):
            raise ConfigError(
                f'the database at "{place}" was written by a newer dragoman: its version is '
                f"{version}, this one supports up to {len(MIGRATIONS)}"
            )
        for number in range(version, len(MIGRATIONS)):
            await connection.execute(MIGRATIONS[number])
            await connection.execute("INSERT INTO version VALUES ($1)", number + 1)


class PostgresRuns:
    def __init__(self, pool: Any, place: str, errors: tuple[type[Exception], ...]) -> None:
        self._pool = pool
        self._place = place
        self._errors: tuple[type[Exception], ...] = (*errors, TimeoutError)

    async def add(self, run: Run, source: str) -> None:
        await self._store(rows.build_add(run, source))

    async def save(
        self,
        run: Run,
        steps: Collection[StepRecord] = (),
        children: Sequence[tuple[Run, str]] = (),
        is_synced: bool = False,
    ) -> None:
        """The server syncs every commit, unless its `synchronous_commit` is off."""
        await self._store(rows.build_save(run, steps, children))

    async def find_source(self, digest: str) -> str | None:
        found = await self._read(rows.FIND_SOURCE, (digest,))
        return str(found[0][0]) if found else None

    async def find(self, id: str) -> Run | None:
        found = await self._read(rows.FIND_RUN, (id,))
        return rows.run_from_row(tuple(found[0])) if found else None

    async def load_steps(self, id: str) -> list[StepRecord]:
        return [rows.step_from_row(row) for row in await self._read(rows.LOAD_STEPS, (id,))]

    async def list_runs(self, wanted: RunFilter, limit: int, cursor: str) -> tuple[list[Run], str]:
        found = await self._read(*rows.build_list(wanted, limit, cursor))
        return rows.list_from_rows([tuple(row) for row in found], limit)

    async def count_unfinished(self) -> dict[tuple[str, str], int]:
        found = await self._read(rows.COUNT_UNFINISHED, tuple(ENDED))
        return {(org, owner): count for org, owner, count in found}

    async def list_due(self, now: float, most: int) -> list[str]:
        woken = await self._read(rows.LIST_WOKEN, (now, most))
        queued = await self._read(rows.LIST_QUEUED, (most,))
        return rows.merge_due(woken, queued, most)

    async def find_next_wake(self) -> float:
        return float((await self._read(rows.NEXT_WAKE))[0][0] or 0.0)

    async def list_awaiting(
        self, awaited: str, most: int, after: tuple[str, str] = ("", "")
    ) -> list[tuple[str, str, str]]:
        values = rows.build_range(awaited, most, after)
        return [(row[0], row[1], row[2]) for row in await self._read(rows.LIST_AWAITING, values)]

    async def requeue_running(self) -> int:
        async with self._transact() as connection:
            status = await connection.execute(rows.REQUEUE)
        return int(status.rpartition(" ")[2])

    async def prune(self, before: float, keep: int) -> int:
        most = rows.PRUNED_AT_ONCE
        found = await self._read(rows.LIST_PRUNED, (before, most, keep, most))
        if found:
            async with self._transact() as connection:
                for statement in (rows.DELETE_STEPS, rows.DELETE_RUN):
                    await connection.executemany(_number(statement), [tuple(row) for row in found])
                await connection.execute(rows.DELETE_SOURCES)
        return len(found)

    async def aclose(self) -> None:
        with suppress(*self._errors):
            self._pool.terminate()  # nothing is open: every method has awaited its transaction

    async def _read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return list(await self._pool.fetch(_number(statement), *values))
        except self._errors as error:
            raise StorageFailed(
                f'the database at "{self._place}" cannot be read: {error}'
            ) from error

    async def _store(self, statements: list[rows.Statement]) -> None:
        async with self._transact() as connection:
            for statement, values in statements:
                await connection.execute(_number(statement), *values)

    @asynccontextmanager
    async def _transact(self) -> AsyncIterator[Any]:
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                yield connection
        except self._errors as error:
            raise StorageFailed(
                f'the database at "{self._place}" cannot be written: {error}'
            ) from error
