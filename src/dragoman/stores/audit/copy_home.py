"""Copies the whole audit log of a home to PostgreSQL, while no hub runs on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.stores.audit import chain
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.shared_copy import ChainCopier
from dragoman.stores.audit.shared_keys import ChainKeys, read_chain_id
from dragoman.stores.audit.shared_tables import open_tables
from dragoman.stores.audit.shared_verify import ChainReport, verify_shared
from dragoman.stores.audit.verify import Progress, ignore_progress, verify
from dragoman.stores.postgres_connections import (
    LONG_SECONDS,
    connect,
    connect_async,
    describe_failure,
    find_errors,
)


def has_audit(url: str) -> bool:
    """Whether the database has audit logs. Raises `ConfigError`."""
    open_tables(url)
    with connect(url) as db:
        return db.execute("SELECT 1 FROM audit_chains LIMIT 1").fetchone() is not None


def find_copied(home: Path, url: str) -> int:
    """The number of the last entry that was copied; 0 if none was. Raises `StorageFailed`."""
    id = read_chain_id(home)
    try:
        with connect(url) as db:
            row = db.execute("SELECT head_seq FROM audit_chains WHERE id = %s", (id,)).fetchone()
    except find_errors() as error:
        raise StorageFailed(describe_failure(url, error)) from error
    return int(row[0]) if row else 0


def copy_audit(
    home: Path, url: str, keys: ChainKeys, node: str, progress: Progress = ignore_progress
) -> ChainReport:
    """Copies and verifies the chain of a home whose lock the caller holds; continues a copy that
    was interrupted. Raises `ConfigError` if a chain is broken, before or after."""
    if not (home / chain.DATABASE).exists():
        raise ConfigError(f'there is no audit log in "{home}"')
    SqliteAuditLog(home).close()  # moves what a killed hub left in the journal to the database
    found = verify(home)
    if not found.ok:
        raise ConfigError(f'the audit log in "{home}" is not intact: {found.problem}')
    open_tables(url)
    try:
        id = asyncio.run(_copy(home, url, keys, node, found.entries, progress))
        report = verify_shared(url, [home], keys)
    except find_errors() as error:
        raise ConfigError(describe_failure(url, error)) from error
    except StorageFailed as error:
        raise ConfigError(str(error)) from error
    copied = next((one for one in report.chains if one.chain == id), None)
    if copied is None or copied.problem is not None:
        said = copied.problem if copied is not None else "it is missing"
        raise ConfigError(f"the copy of the audit log is not intact: {said}")
    expected = (found.entries, found.first_seq, found.last_seq)
    if (copied.entries, copied.first_seq, copied.last_seq) != expected:
        raise ConfigError(
            f"the copy of the audit log has {copied.entries} entries up to {copied.last_seq}, the "
            f"home {found.entries} up to {found.last_seq}"
        )
    return copied


async def _copy(
    home: Path, url: str, keys: ChainKeys, node: str, total: int, progress: Progress
) -> str:
    copier = ChainCopier(home, keys, node)
    try:
        async with await connect_async(url, LONG_SECONDS) as db:
            await copier.align(db)
            done = 0
            while (copied := await copier.copy_batch(db)) > 0:
                done += copied
                progress(done, total)
            await copier.note_seen(db, running=False)
    finally:
        copier.close()
    return copier.id
