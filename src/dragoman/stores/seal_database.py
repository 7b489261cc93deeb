"""Begins to seal the rows of a shared database, and finds those that are refused.

A hub whose home has used the database before there were seals accepts what is there once: it seals
all rows and leaves a mark in the database and in its home, after which no row without a seal
counts. It waits for that until no hub of a version without seals is a member, because such a hub
goes on writing rows without them.

A home that is new to the database cannot know whether there never was a mark or whether it was
taken away. Its hub refuses rows without a seal from the beginning, and a person has to accept them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.stores import approvals, keys, policy_files, registry, users
from dragoman.stores.copy_home import has_copied
from dragoman.stores.database import Database, Error, StoreTables
from dragoman.stores.postgres import PostgresServer
from dragoman.stores.row_seals import RESEAL, TABLES, RowSeals, SealedTable
from dragoman.stores.store_inventory import read_recorded_database, write_private

log = logging.getLogger(__name__)

FILE = "rows.sealed"
"""In the home: the database whose rows were sealed, so that taking the mark from the database does
not make this hub accept everything again."""
NEW = " new"
"""Follows the database in the file while a home that is new to it knows of no mark there."""
WORKERS = "workers"
"""The folder in a home with those of its processes."""
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
        is_sealed = _is_marked(base)
    is_new = False
    if not is_sealed:
        identity, homes = place.read_identity(), _list_homes(home)
        noted = {_read_file(one) for one in homes}
        is_sealed = identity in noted
        is_new = not is_sealed and (
            identity + NEW in noted or not any(_has_used(one, place, identity) for one in homes)
        )
    place.seals = RowSeals(key, is_enforced=is_sealed or is_new, is_unconfirmed=is_new)


def begin_sealing(place: PostgresServer, home: Path, *, again: bool = False) -> bool:
    """Seals all rows and refuses others from now on, if that has not begun, every hub seals, and
    the home is not new to the database; `again` does so in any case. Returns whether it has begun.
    Raises `StorageFailed`, and `ConfigError` if policies must be accepted by a person first."""
    seals = place.seals
    if not seals.is_active:
        return False
    if seals.is_enforced and not seals.is_unconfirmed and not again:
        _write_file(home, place)
        return True
    if seals.is_unconfirmed and not again:
        # Before the home has a record of the database, by which it would no longer count as new.
        _write_file(home, place, NEW)
    with closing(place.open(TABLES)) as base:
        try:
            if again or not _is_marked(base):
                if not again and (not _has_only_sealed(place) or _has_other_hubs(base)):
                    return False
                if again or not seals.is_unconfirmed:
                    _seal_rows(place, seals)
                _write_mark(base)
        except Error as error:
            raise StorageFailed(f"the rows of the database were not sealed ({error})") from error
    _write_file(home, place)
    seals.is_enforced, seals.is_unconfirmed = True, False
    return True


def _has_only_sealed(place: PostgresServer) -> bool:
    """Whether there is nothing that a person has to accept first. Raises `ConfigError` if policies
    are among it: without those of the cluster, the hub would permit what its own folder permits,
    and would store that for the others."""
    if not place.seals.is_unconfirmed:
        return True
    refused = list_refused(place)
    if not refused:
        return True
    why = (
        f'{len(refused)} rows of the database at "{place.place}" have no valid seal, and nothing '
        "shows this hub, whose home is new to the database, that a version before seals has "
        "written them"
    )
    remedy = f"look at keys, users and policies there, and if you trust them: {RESEAL}"
    if any(noun == policy_files.SEALED.noun for noun, _ in refused):
        raise ConfigError(f"{why}; there are policies among them: {remedy}")
    log.error("%s; they are refused: %s", why, remedy)
    return False


def list_refused(place: PostgresServer) -> list[tuple[str, str]]:
    """Lists the noun and the id of each row that is refused."""
    seals, refused = place.seals, []
    if seals.is_active and seals.is_enforced:
        for base, table in _open_tables(place):
            refused += [(table.noun, id) for id in sorted(seals.list_refused(base.db, table))]
    return refused


def _seal_rows(place: PostgresServer, seals: RowSeals) -> None:
    count = 0
    for opened, table in _open_tables(place):
        with opened.writer.transaction():
            count += seals.seal_all(opened.db, table)
    log.log(
        logging.WARNING if count else logging.INFO,
        "%s rows of keys, users, agents, approvals and policies in the database were sealed as "
        "they are; from now on, rows that others write there are refused",
        count,
    )


def _write_mark(base: Database) -> None:
    with base.writer.transaction():
        base.db.execute(
            "INSERT INTO row_seals (of_table, row_id, seal) VALUES (?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (*_MARK, b""),
        )


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


def _list_homes(home: Path) -> list[Path]:
    """Lists the folders that tell whether a home has used a database: with `[server] workers`, each
    process has one of its own in the home, and one that is new is no new home."""
    whole = home.parent.parent if home.parent.name == WORKERS else home
    return [home, whole, *(one for one in (whole / WORKERS).glob("*") if one.is_dir())]


def _has_used(home: Path, place: PostgresServer, identity: str) -> bool:
    """Whether the home has used the database, or has filled it."""
    return read_recorded_database(home) == identity or has_copied(home, place)


def _write_file(home: Path, place: PostgresServer, state: str = "") -> None:
    text = place.read_identity() + state
    if _read_file(home) != text:
        write_private(home / FILE, f"{text}\n".encode())


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
