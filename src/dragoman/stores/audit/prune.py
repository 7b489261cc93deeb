"""Deletes old entries of the audit log and records that it did."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from dragoman.core.admin_audit import record_done
from dragoman.stores.audit.chain import DATABASE
from dragoman.stores.audit.log import SqliteAuditLog, compact_database
from dragoman.stores.config import AuditSettings

log = logging.getLogger(__name__)

PRUNE = "audit.prune"
DAY = 86_400.0


async def prune_and_record(audit: SqliteAuditLog, age: float, most: int, by: str) -> int:
    """Deletes entries older than `age` seconds and those beyond the newest `most`; records how many
    and which. Returns how many."""
    first = audit.find_first()[0]
    removed = await audit.prune(age, most)
    if removed:
        last = audit.last_pruned
        log.info("deleted %d old entries of the audit log, up to entry %d", removed, last.seq)
        details = {
            "count": removed,
            "first_seq": first,
            "last_seq": last.seq,
            "head": last.mac.hex(),
        }
        record_done(audit, PRUNE, "audit", by, "hub", details)
    return removed


def prune_offline(
    home: Path, settings: AuditSettings, by: str, copied_seq: int | None = None
) -> int:
    """Prunes the audit log of a home whose lock the caller holds, and shrinks its file. Entries
    after `copied_seq` are kept: a database does not have them yet."""
    audit = SqliteAuditLog(home, durable=settings.durable)
    audit.copied_seq = copied_seq
    try:
        age, most = settings.keep_days * DAY, settings.max_entries
        removed = asyncio.run(prune_and_record(audit, age, most, by))
        audit.flush()
    finally:
        audit.close()
    compact_database(home / DATABASE)
    return removed
