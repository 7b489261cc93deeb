"""Seals of rows that give rights, in a database that several hubs share.

A seal is an HMAC over the table and the columns of a row, with a key that is derived from the
secret of the cluster, so that a person who can write the database and does not have the secret can
neither add such a row nor change one. A hub refuses rows without a valid seal, once the rows that
were there before have been sealed (see `seal_database`). A home of one hub has no seals: who can
write it has the key, too.

What a seal does not show: that a row was deleted, or replaced by an earlier state of itself.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dragoman.stores.database import DatabaseConnection, Error, StorePlace, StoreTables

log = logging.getLogger(__name__)

TABLES = StoreTables(
    "seals",
    "",  # in PostgreSQL only
    (
        """
        CREATE TABLE row_seals (
            of_table TEXT NOT NULL, row_id TEXT NOT NULL, seal BLOB NOT NULL,
            PRIMARY KEY (of_table, row_id)
        );
        """,
    ),
)
PURPOSE = b"dragoman rows"
RESEAL = "dragoman stores seal"
_PUT = (
    "INSERT INTO row_seals (of_table, row_id, seal) VALUES (?, ?, ?) "
    "ON CONFLICT (of_table, row_id) DO UPDATE SET seal = excluded.seal"
)


@dataclass(frozen=True, slots=True)
class SealedTable:
    """A table whose rows are sealed, and the columns that a seal covers; the first is the id, or
    the first few are it together."""

    name: str
    noun: str
    """What a row is, for messages."""
    columns: tuple[str, ...]
    has_blob_id: bool = False
    id_columns: int = 1

    @property
    def id(self) -> str:
        """The id as text, in a statement."""
        first, *more = (f"{self.name}.{column}" for column in self.columns[: self.id_columns])
        if self.has_blob_id:
            first = f"encode({first}, 'hex')"
        return " || chr(31) || ".join([first, *more])

    def render_id(self, values: Sequence[Any]) -> str:
        """The same for a row that was read."""
        return "\x1f".join(
            each if isinstance(each, str) else bytes(each).hex()
            for each in values[: self.id_columns]
        )

    @property
    def listed(self) -> str:
        return ", ".join(self.columns)


class RowSeals:
    """Seals and checks rows. Without a key it admits all and seals none."""

    def __init__(
        self, key: bytes | None, *, is_enforced: bool = False, is_unconfirmed: bool = False
    ) -> None:
        self._key = hmac.digest(key, PURPOSE, "sha256") if key is not None else None
        self.is_enforced = is_enforced
        """Whether rows without a valid seal are refused."""
        self.is_unconfirmed = is_unconfirmed
        """Whether they are refused only because the home is new to the database, which has no mark:
        they could be those of a version before seals."""
        self._reported: set[tuple[str, str]] = set()

    @property
    def is_active(self) -> bool:
        return self._key is not None

    def build_selection(self, table: SealedTable) -> str:
        """Builds the columns of a row and its seal, for a statement that selects from the table."""
        if self._key is None:
            return f"{table.listed}, NULL"
        return (
            f"{table.listed}, (SELECT seal FROM row_seals WHERE of_table = '{table.name}' "
            f"AND row_id = ({table.id}))"
        )

    def admits(self, table: SealedTable, row: Sequence[Any]) -> bool:
        """Whether a row may be used, as `build_selection` has read it; one that is refused is
        logged once."""
        size = len(table.columns)
        if self._key is None or not self.is_enforced or self._is_valid(table, row[: size + 1]):
            return True
        place = (table.name, table.render_id(row))
        if place not in self._reported and len(self._reported) < 1_000:
            self._reported.add(place)
            log.error(
                '%s "%s" in the database is refused: no hub and no command of this cluster has '
                "written it as it is; see: dragoman doctor",
                table.noun,
                place[1][:100],
            )
        return False

    def _is_valid(self, table: SealedTable, row: Sequence[Any]) -> bool:
        *values, seal = row
        return seal is not None and hmac.compare_digest(bytes(seal), self._build(table, values))

    def _build(self, table: SealedTable, values: Sequence[Any]) -> bytes:
        assert self._key is not None
        return hmac.digest(self._key, msgspec.json.encode([table.name, *values]), "sha256")

    @contextmanager
    def change(
        self, db: DatabaseConnection, table: SealedTable, *ids: str, sets: Collection[str] = ()
    ) -> Iterator[None]:
        """Seals rows again after a change of the columns `sets` in the open transaction, or removes
        the seals of those that it deletes. One that was not valid before stays so, and a change of
        any other column fails: a change of one must not confirm what was written into another."""
        if self._key is None:
            yield
            return
        # Without the lock, another writer could change the row between this and the hub's change.
        before = {id: self._read(db, table, id, "FOR UPDATE") for id in sorted(ids)}
        yield
        for id, was in before.items():
            row = self._read(db, table, id)
            if row is None:
                db.execute(
                    "DELETE FROM row_seals WHERE of_table = ? AND row_id = ?", (table.name, id)
                )
            elif not self.is_enforced or (was is not None and self._is_valid(table, was)):
                if self.is_enforced and was is not None:
                    _check_others(table, was, row, sets)
                db.execute(_PUT, (table.name, id, self._build(table, row[:-1])))

    def put(self, db: DatabaseConnection, table: SealedTable, values: Sequence[Any]) -> None:
        """Seals a row of which the open transaction has written all sealed columns. `values` are
        what it has written: what the database has could be of another writer."""
        if self._key is not None:
            db.execute(_PUT, (table.name, table.render_id(values), self._build(table, values)))

    def _read(
        self, db: DatabaseConnection, table: SealedTable, id: str, lock: str = ""
    ) -> Sequence[Any] | None:
        selection = self.build_selection(table)
        query = f"SELECT {selection} FROM {table.name} WHERE ({table.id}) = ? {lock}"
        row: Sequence[Any] | None = db.execute(query, (id,)).fetchone()
        return row

    def seal_all(self, db: DatabaseConnection, table: SealedTable) -> int:
        """Seals all rows of the table as they are, in the open transaction."""
        rows = db.execute(f"SELECT {table.listed} FROM {table.name}").fetchall()
        db.execute("DELETE FROM row_seals WHERE of_table = ?", (table.name,))
        db.executemany(
            _PUT, [(table.name, table.render_id(row), self._build(table, row)) for row in rows]
        )
        return len(rows)

    def prune(self, db: DatabaseConnection, table: SealedTable) -> None:
        """Deletes the seals of rows that are gone, in the open transaction."""
        if self._key is not None:
            db.execute(
                "DELETE FROM row_seals WHERE of_table = ? AND row_id NOT IN "
                f"(SELECT {table.id} FROM {table.name})",
                (table.name,),
            )

    def list_refused(self, db: DatabaseConnection, table: SealedTable) -> list[str]:
        """Lists the ids of rows without a valid seal."""
        if self._key is None:
            return []
        rows = db.execute(f"SELECT {self.build_selection(table)} FROM {table.name}").fetchall()
        return [table.render_id(row) for row in rows if not self._is_valid(table, row)]


def _check_others(
    table: SealedTable, was: Sequence[Any], row: Sequence[Any], sets: Collection[str]
) -> None:
    """Raises `Error`, so that the transaction is rolled back, if a column has changed that the hub
    does not set: a trigger in the database can do that."""
    pairs = zip(table.columns, was, row, strict=False)  # the seal follows the columns
    if others := [column for column, old, new in pairs if old != new and column not in sets]:
        id = table.render_id(row)[:100]
        raise Error(f'the database changes "{others[0]}" of {table.noun} "{id}" as well')


NO_SEALS = RowSeals(None)


def find_seals(place: StorePlace) -> RowSeals:
    """Finds the seals of the stores at a place."""
    return NO_SEALS if isinstance(place, Path) else place.seals
