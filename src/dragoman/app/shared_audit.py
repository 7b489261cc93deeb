"""The audit logs of several hubs, for a hub whose stores are in PostgreSQL.

Imported only where `[store] url` is set.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from pathlib import Path

from dragoman.core.admin_audit import record_done
from dragoman.core.cluster import Leases
from dragoman.core.errors import HubError
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.prune import DAY, PRUNE
from dragoman.stores.audit.shared_keys import ChainKeys
from dragoman.stores.audit.shared_prune import prune_shared
from dragoman.stores.audit.shared_reader import SharedRecords
from dragoman.stores.audit.shared_tables import open_tables
from dragoman.stores.audit.shared_verify import SharedReport, verify_shared
from dragoman.stores.audit.shipper import AuditShipper
from dragoman.stores.audit.verify import verify
from dragoman.stores.config import AuditSettings
from dragoman.stores.steady_clock import SteadyClock

log = logging.getLogger(__name__)

PRUNE_SECONDS = 3600.0
PRUNE_LEASE = "audit.prune"


class SharedAudit:
    def __init__(
        self, audit: SqliteAuditLog, clock: SteadyClock, home: Path, url: str, key: bytes | None
    ) -> None:
        """`key` is that of the cluster. Raises `ConfigError` if the database cannot be used."""
        open_tables(url)
        self._audit = audit
        self._clock = clock
        self._home = home
        self._url = url
        self._keys = ChainKeys(key)
        node = f"{socket.gethostname()}:{home.name}"
        self.shipper = AuditShipper(audit, home, url, self._keys, node)
        self.records = SharedRecords(url, home)

    async def keep_pruning(
        self,
        find_settings: Callable[[], AuditSettings],
        leases: Leases,
        seconds: float = PRUNE_SECONDS,
    ) -> None:
        """Prunes the records of all hubs, as long as this hub is the one that does it."""
        while True:
            leases.holds(PRUNE_LEASE)  # asks for it
            await asyncio.sleep(seconds)
            try:
                if leases.holds(PRUNE_LEASE):
                    await self.prune(find_settings())
            except HubError as error:
                log.warning("old records in the database could not be deleted: %s", error)

    async def prune(self, settings: AuditSettings) -> int:
        """Deletes what is too old or too much of all hubs' records in the database, and records
        that. Nothing counts as old while the clock is not trusted."""
        age = settings.keep_days * DAY if self._clock.is_steady() else math.inf
        removed = await asyncio.to_thread(
            prune_shared, self._url, self._home, self._keys, age, settings.max_entries
        )
        for chain, count in sorted(removed.items()):
            told = {"count": count, "chain": chain}
            record_done(self._audit, PRUNE, "database", "hub", "hub", told)
        return sum(removed.values())

    def verify(self) -> SharedReport:
        """Verifies the home's chain, then those of all hubs in the database. Blocks."""
        local = verify(self._home)
        if not local.ok:
            fields = (local.entries, local.first_seq, local.last_seq, local.problem, local.at_seq)
            return SharedReport(False, *fields)
        return verify_shared(self._url, [self._home], self._keys)

    def find_state(self) -> tuple[int, float, list[str]]:
        """How far the copy is behind, in entries and seconds, and whether that is a problem."""
        return *self.shipper.find_lag(), self.list_problems()

    def list_problems(self) -> list[str]:
        return [problem] if (problem := self.shipper.find_problem()) else []

    async def close(self) -> None:
        """Copies what is left of the audit log, as far as the database takes it in time."""
        try:
            self._audit.flush()
        except HubError as error:
            log.warning("%s", error)
        await self.shipper.close()
        self.records.close()
