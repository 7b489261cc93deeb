"""The `RunStore` in `runs.db`. What several runs store in one turn of the event loop is one
transaction, and what they want on the disk is one sync."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from dragoman.core.background import resolve
from dragoman.core.errors import HubError
from dragoman.core.runs import ENDED, Run, RunFilter, StepRecord
from dragoman.stores import run_rows as rows
from dragoman.stores.database import LoopStore
from dragoman.stores.runs_db import DATABASE, TABLES
from dragoman.stores.wal_sync import WalSync


class SqliteRuns(LoopStore):
    """Used on the thread of the event loop: a transaction takes a tenth of a millisecond."""

    is_shared = False
    hub = ""

    def __init__(self, home: Path, *, durable: bool = True) -> None:
        """Without `durable`, nothing waits for the disk."""
        super().__init__(home, TABLES)
        self._batch: list[rows.Statement] = []
        self._stored: asyncio.Future[HubError | None] | None = None
        """Done when the batch is stored, or could not be."""
        self._log = WalSync(home / DATABASE) if durable else None

    async def add(self, run: Run, source: str) -> None:
        await self._store(rows.build_add(run, source))

    async def drop(self, run: Run, hubs: Collection[str] = ()) -> None:
        await self._store(rows.build_drop(run, hubs))

    async def save(
        self,
        run: Run,
        steps: Collection[StepRecord] = (),
        children: Sequence[tuple[Run, str]] = (),
        is_synced: bool = False,
    ) -> None:
        await self._store(rows.build_save(run, steps, children))
        if is_synced and self._log is not None:
            await self._log.sync()

    async def find_source(self, digest: str) -> str | None:
        found = self._read(rows.FIND_SOURCE, (digest,))
        return str(found[0][0]) if found else None

    async def find(self, id: str) -> Run | None:
        found = self._read(rows.FIND_RUN, (id,))
        return rows.run_from_row(found[0]) if found else None

    async def claim(self, id: str) -> Run | None:
        return await self.find(id)

    async def adopt(self, id: str) -> bool:
        return False

    async def release(self, id: str) -> None: ...

    async def rescue(self) -> int:
        return 0

    async def load_steps(self, id: str) -> list[StepRecord]:
        return [rows.step_from_row(row) for row in self._read(rows.LOAD_STEPS, (id,))]

    async def list_runs(self, wanted: RunFilter, limit: int, cursor: str) -> tuple[list[Run], str]:
        return rows.list_from_rows(self._read(*rows.build_list(wanted, limit, cursor)), limit)

    async def count_unfinished(self) -> dict[tuple[str, str], int]:
        found = self._read(rows.COUNT_UNFINISHED, tuple(ENDED))
        return {(org, owner): count for org, owner, count in found}

    async def list_due(self, now: float, most: int) -> list[str]:
        woken = self._read(rows.LIST_WOKEN, (now, "", most))
        return rows.merge_due(woken, self._read(rows.LIST_QUEUED, ("", most)), most)

    async def find_next_wake(self) -> float:
        return float(self._read(rows.NEXT_WAKE, ("",))[0][0] or 0.0)

    async def list_awaiting(
        self, awaited: str, most: int, after: tuple[str, str] = ("", "")
    ) -> list[tuple[str, str, str]]:
        found = self._read(rows.LIST_AWAITING, rows.build_range(awaited, most, after))
        return [(row[0], row[1], row[2]) for row in found]

    async def requeue_running(self) -> int:
        with self._transact() as db:
            return int(db.execute(rows.REQUEUE).rowcount)

    async def prune(self, before: float, keep: int) -> int:
        most = rows.PRUNED_AT_ONCE
        found = self._read(rows.LIST_PRUNED, (before, most, keep, most))
        if found:
            with self._transact() as db:
                for statement in (rows.DELETE_STEPS, rows.DELETE_RUN):
                    db.executemany(statement, found)
                db.execute(rows.DELETE_SOURCES)
        return len(found)

    async def aclose(self) -> None:
        self._flush()
        self.close()
        if self._log is not None:
            self._log.close()

    # --- transactions of several runs ------------------------------------------------------------

    async def _store(self, statements: list[rows.Statement]) -> None:
        self._batch += statements
        stored = self._stored
        if stored is None:
            loop = asyncio.get_running_loop()
            stored = self._stored = loop.create_future()
            loop.call_soon(self._flush)
        # Shielded: one run that is cancelled must not cancel the future of the others.
        if (error := await asyncio.shield(stored)) is not None:
            raise error

    def _flush(self) -> None:
        batch, stored = self._batch, self._stored
        self._batch, self._stored = [], None
        if not batch:
            return
        error: HubError | None = None
        try:
            with self._transact() as db:
                for statement, values in batch:
                    db.execute(statement, values)
        except HubError as problem:
            error = problem
        resolve(stored, error)
