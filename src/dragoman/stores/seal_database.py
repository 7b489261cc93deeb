"""Begins to seal the rows of a shared database, and finds those that are refused.

The first hub that seals accepts what is there, since it cannot know who wrote it: it seals all rows
and leaves a mark in the database and in its home, after which no row without a seal counts. It
waits for that until no hub of a version without seals is a member, because such a hub goes on
writing rows without them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.stores import approvals, keys, policy_files, registry, users
from dragoman.stores.database import Database, Error, StoreTables
from dragoman.stores.postgres import PostgresServer
from dragoman.stores.row_seals import TABLES, RowSeals, SealedTable
from dragoman.stores.store_inventory import write_private

log = logging.getLogger(__name__)

FILE = "rows.sealed"
"""In the home: the database whose rows were sealed, so that taking the mark from the database does
not make this hub accept everything again."""
_MARK = ("", "sealed")
SEALED: tuple[tuple[StoreTables, SealedTable], ...] = (
    (keys.TABLES, keys.SEALED),
    *((users.TABLES, table) for table in (users.SEALED, *users.SEALED_ACCESS)),
    (registry.TABLES, registry.SEALED),
    (approvals.TABLES, approvals.SEALED),
    (policy_files.TABLES, policy_files.SEALED),
)
_HAS_HUBS = "SELECT 1 FROM pg_tables WHERE schemaname = 'dragoman' AND tablename = 'hubs'"
# By JSON, because databases of earlier versions do not have the column.
_OTHERS = (
    "SELECT count(*) FROM hubs h WHERE heir IS NULL AND state NOT IN ('stopped', 'dead') "
    "AND NOT coalesce((to_jsonb(h) ->> 'seals')::boolean, false)"
)


def attach_seals(place: PostgresServer, key: bytes | None, home: Path) -> None:
    """Has the stores at the place seal their rows; a hub without a secret of a cluster seals none.
    To be called before they are opened. Raises `ConfigError`."""
    if key is None:
        return
    with closing(place.open(TABLES)) as base:
        is_enforced = _is_marked(base) or _read_file(home) == place.read_identity()
    place.seals = RowSeals(key, is_enforced=is_enforced)


def begin_sealing(place: PostgresServer, home: Path, *, again: bool = False) -> bool:
    """Seals all rows and refuses others from now on, if that has not begun and every hub seals;
    `again` does so in any case. Returns whether rows without a seal are refused. Raises
    `StorageFailed`."""
    seals = place.seals
    if not seals.is_active:
        return False
    if seals.is_enforced and not again:
        _write_file(home, place)
        return True
    with closing(place.open(TABLES)) as base:
        try:
            if again or not _is_marked(base):
                if not again and _has_other_hubs(base):
                    return False
                count = _seal_rows(place, seals, base)
                log.log(
                    logging.WARNING if count else logging.INFO,
                    "%s rows of keys, users, agents, approvals and policies in the database were "
                    "sealed as they are; from now on, rows that others write there are refused",
                    count,
                )
        except Error as error:
            raise StorageFailed(f"the rows of the database were not sealed ({error})") from error
    _write_file(home, place)
    seals.is_enforced = True
    return True


def list_refused(place: PostgresServer) -> list[tuple[str, str]]:
    """Lists the noun and the id of each row that is refused."""
    seals, refused = place.seals, []
    if seals.is_active and seals.is_enforced:
        for base, table in _open_tables(place):
            refused += [(table.noun, id) for id in sorted(seals.list_refused(base.db, table))]
    return refused


def _seal_rows(place: PostgresServer, seals: RowSeals, base: Database) -> int:
    count = 0
    for opened, table in _open_tables(place):
        with opened.writer.transaction():
            count += seals.seal_all(opened.db, table)
    with base.writer.transaction():
        base.db.execute(
            "INSERT INTO row_seals (of_table, row_id, seal) VALUES (?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (*_MARK, b""),
        )
    return count


def _open_tables(place: PostgresServer) -> Iterator[tuple[Database, SealedTable]]:
    """Opens each store that the database has."""
    for tables, table in SEALED:
        if tables.store in place.known:
            with closing(place.open(tables)) as opened:
                yield opened, table


def _is_marked(base: Database) -> bool:
    find = "SELECT 1 FROM row_seals WHERE of_table = ? AND row_id = ?"
    try:
        return base.db.execute(find, _MARK).fetchone() is not None
    except Error as error:
        raise ConfigError(f"the seals of the database cannot be read ({error})") from error


def _has_other_hubs(base: Database) -> bool:
    """Whether a hub that does not seal is a member."""
    if base.db.execute(_HAS_HUBS).fetchone() is None:
        return False
    return bool(base.db.execute(_OTHERS).fetchone()[0])


def _write_file(home: Path, place: PostgresServer) -> None:
    identity = place.read_identity()
    if _read_file(home) != identity:
        write_private(home / FILE, f"{identity}\n".encode())


def prune_seals(place: PostgresServer) -> None:
    """Deletes the seals of rows that are gone. Raises `StorageFailed`."""
    if not place.seals.is_active:
        return
    try:
        for base, table in _open_tables(place):
            with base.writer.transaction():
                place.seals.prune(base.db, table)
    except Error as error:
        raise StorageFailed(f"seals of rows that are gone were not deleted ({error})") from error


def _read_file(home: Path) -> str:
    try:
        return (home / FILE).read_text("ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ConfigError(f'"{home / FILE}" cannot be read ({error})') from error
