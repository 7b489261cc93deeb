"""Copies the audit log of a running hub to PostgreSQL, a moment after its entries are committed.

Calls do not wait for it and it takes part in none: it looks for new entries a few times a second.
While the database is away, the home has them. Each hub also records from time to time where the
chains of the others end, so that a chain which disappears from the database is missed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core.admin_audit import record_done
from dragoman.core.backoff import Backoff
from dragoman.core.errors import HubError
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.shared_copy import LOCAL_ERRORS, ChainCopier
from dragoman.stores.audit.shared_keys import ChainKeys
from dragoman.stores.audit.shared_verify import ANCHOR, list_heads
from dragoman.stores.postgres_connections import (
    connect_async,
    describe_failure,
    find_errors,
    is_idle,
)

if TYPE_CHECKING:
    from dragoman.stores.postgres_connections import AsyncConnection

log = logging.getLogger(__name__)

CONTINUED = "audit.continue"
MAX_ANCHORED = 400
"""Chains in one record."""


@dataclass(frozen=True, slots=True)
class ShipperLimits:
    look_seconds: float = 0.2
    """How often it looks for new entries."""
    seen_seconds: float = 5.0
    """How often an idle hub notes that it runs."""
    anchor_seconds: float = 600.0
    close_seconds: float = 2.0
    lag_entries: int = 100_000
    lag_seconds: float = 60.0
    """A copy that is further behind is a problem, of which readiness and `doctor` tell."""


class AuditShipper:
    """`run` copies until it is cancelled; `close` copies the rest."""

    def __init__(
        self,
        audit: SqliteAuditLog,
        home: Path,
        url: str,
        keys: ChainKeys,
        node: str,
        limits: ShipperLimits | None = None,
    ) -> None:
        self._audit = audit
        self._url = url
        self._limits = limits or ShipperLimits()
        self._copier = ChainCopier(home, keys, node)
        self._db: AsyncConnection | None = None
        self._backoff = Backoff(0.2, 1.0)
        self._failures: tuple[type[Exception], ...] = (*find_errors(), *LOCAL_ERRORS, HubError)
        self._failed = ""
        self._has_run = False
        self._current_at = time.monotonic()
        """When the database last had everything."""
        self._seen_commits = -1
        self._seen_until = 0.0
        self._anchor_at = 0.0
        self._anchored: dict[str, tuple[int, str]] = {}
        audit.copied_seq = 0  # nothing is pruned before the database says what it has

    async def run(self) -> None:
        self._has_run = True
        while True:
            try:
                pause = await self._step()
                self._note_success()
            except asyncio.CancelledError:
                await self._disconnect()
                raise
            except self._failures as error:
                pause = await self._note_failure(error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Copies the entries that are left, and notes that the hub ends. Takes a bounded time. A
        hub that did not start copies nothing: its settings may be those of another cluster."""
        if not self._has_run:
            return self._copier.close()
        with suppress(*self._failures):
            async with asyncio.timeout(self._limits.close_seconds):
                db = await self._connect()
                while await self._copier.copy_batch(db):
                    pass
                await self._copier.note_seen(db, running=False)
        await self._disconnect()
        self._copier.close()

    def find_lag(self) -> tuple[int, float]:
        """How many entries the database does not have, and for how many seconds."""
        behind = max(0, self._audit.tip.seq - self._copier.copied.seq)
        return behind, time.monotonic() - self._current_at if behind else 0.0

    def find_problem(self) -> str:
        """Describes a copy that is too far behind; empty if it is not."""
        behind, seconds = self.find_lag()
        if behind < self._limits.lag_entries and seconds < self._limits.lag_seconds:
            return ""
        why = f": {self._failed}" if self._failed else ""
        return (
            f"the copy of the audit log in the database is {behind} entries and "
            f"{seconds:.0f} s behind{why}"
        )

    @property
    def chain(self) -> str:
        """The id of this hub's chain; empty before the database was reached."""
        return self._copier.id

    async def _step(self) -> float:
        """Copies what is there; returns how long to wait."""
        db = await self._connect()
        commits = self._audit.commits
        if commits != self._seen_commits:
            copied = await self._copier.copy_batch(db)
            self._seen_until = time.monotonic() + self._limits.seen_seconds
            if copied < 0:
                await self._disconnect()
                return 0.0
            self._audit.copied_seq = self._copier.copied.seq
            if copied:
                return 0.0
            self._seen_commits = commits
        self._current_at = now = time.monotonic()
        if now >= self._anchor_at:
            await self._record_others(db)
            self._anchor_at = now + self._limits.anchor_seconds
        if now >= self._seen_until:
            await self._copier.note_seen(db, running=True)
            self._seen_until = now + self._limits.seen_seconds
        return self._limits.look_seconds

    async def _connect(self) -> AsyncConnection:
        if self._db is not None and not is_idle(self._db):
            await self._disconnect()
        if self._db is None:
            self._db = await connect_async(self._url)
            self._seen_commits = -1
            await self._copier.align(self._db)
            self._audit.copied_seq = self._copier.copied.seq
            if old := self._copier.continues:
                told = {"chain": old, "last_seq": self._copier.copied.seq}
                record_done(self._audit, CONTINUED, "audit", "hub", "hub", told)
                self._copier.continues = ""
        return self._db

    async def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(*find_errors()):
                await db.close()

    async def _record_others(self, db: AsyncConnection) -> None:
        """Records where the other chains end, as far as they moved since the last time."""
        found = {id: (tip.seq, tip.mac.hex()) for id, tip in await list_heads(db)}
        found.pop(self._copier.id, None)
        moved = {id: tip for id, tip in found.items() if self._anchored.get(id) != tip}
        names = sorted(moved)
        for at in range(0, len(names), MAX_ANCHORED):
            told = {"chains": {id: moved[id] for id in names[at : at + MAX_ANCHORED]}}
            record_done(self._audit, ANCHOR, "audit", "hub", "hub", told)
        self._anchored = found

    def _note_success(self) -> None:
        self._backoff.reset()
        self._failed = ""

    async def _note_failure(self, error: BaseException) -> float:
        await self._disconnect()
        self._failed = describe_failure(self._url, error)
        STORAGE_OUTAGE.note(
            f"the audit log is not copied for now, its entries are kept in the home: {self._failed}"
        )
        return self._backoff.next_delay()
