"""The `PinStore` in `pins.db`: approved and quarantined definitions.

Each save is one transaction, however many pins it has. Does not know what definitions mean or when
two are equal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dragoman.core.name_claims import Claim
from dragoman.core.ports import Pin, PinChange, PinDecision
from dragoman.core.tool_identity import fold_id, fold_name
from dragoman.stores.database import LoopStore, StorePlace, StoreTables

DATABASE = "pins.db"
MAX_DECISIONS = 100_000

MIGRATIONS = (
    """
CREATE TABLE pins (
    target TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL,
    mark BLOB NOT NULL, approved_at REAL NOT NULL, approved_by TEXT NOT NULL,
    held_mark BLOB NOT NULL, held_at REAL NOT NULL,
    rejected_at REAL NOT NULL, rejected_by TEXT NOT NULL,
    approved BLOB, held BLOB,
    UNIQUE (target, kind, id)
) STRICT;
CREATE TABLE pin_decisions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL, by TEXT NOT NULL, action TEXT NOT NULL,
    target TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL,
    digest TEXT NOT NULL
) STRICT;
CREATE INDEX pin_decisions_of ON pin_decisions (target, kind, id);
""",
    # Tools, prompts and skills are identified by their folded names; of several spellings of one
    # name the one approved first stays.
    """
ALTER TABLE pins ADD COLUMN spelling TEXT NOT NULL DEFAULT '';
ALTER TABLE pins ADD COLUMN scheme INTEGER NOT NULL DEFAULT 1;
UPDATE pins SET spelling = id;
DELETE FROM pins WHERE rowid NOT IN (
    SELECT rowid FROM (
        SELECT rowid, row_number() OVER (
            PARTITION BY target, kind, fold_name(id) ORDER BY mark = x'', approved_at, rowid
        ) AS place FROM pins
    ) WHERE place = 1
);
UPDATE pins SET id = fold_name(id), name = fold_id(name) WHERE kind != 'card';
UPDATE pin_decisions SET id = fold_name(id) WHERE kind != 'card';
""",
    """
CREATE TABLE listed_names (
    target TEXT NOT NULL, kind TEXT NOT NULL, owner TEXT NOT NULL, names TEXT NOT NULL,
    PRIMARY KEY (target, kind, owner)
) STRICT, WITHOUT ROWID;
""",
    """
CREATE TABLE pin_lists (
    target TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (target, kind)
) STRICT, WITHOUT ROWID;
INSERT INTO pin_lists SELECT DISTINCT target, 'tool' FROM pins;
INSERT INTO pin_lists SELECT DISTINCT target, 'prompt' FROM pins;
""",
    # The taint labels of stored data: see `stores.labels`.
    """
CREATE TABLE labels (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL, label TEXT NOT NULL,
    tool TEXT NOT NULL, trace TEXT NOT NULL, why TEXT NOT NULL, at REAL NOT NULL,
    UNIQUE (key, label)
) STRICT;
""",
)
TABLES = StoreTables("pins", DATABASE, MIGRATIONS, counted="pins")

_COLUMNS = (
    "target, kind, id, name, mark, approved_at, approved_by, held_mark, held_at,"
    " rejected_at, rejected_by, spelling, scheme"
)
_PLACES = ", ".join("?" * 15)
_LOAD = (
    "SELECT target, kind, id, name, mark, approved_at, approved_by, held_mark, held_at,"
    " rejected_at, rejected_by, coalesce(length(approved), 0), coalesce(length(held), 0),"
    " spelling, scheme FROM pins"
)
_SAVE = f"""
INSERT INTO pins ({_COLUMNS}, approved, held) VALUES ({_PLACES})
ON CONFLICT (target, kind, id) DO UPDATE SET
    name = excluded.name, mark = excluded.mark,
    approved_at = excluded.approved_at, approved_by = excluded.approved_by,
    held_mark = excluded.held_mark, held_at = excluded.held_at,
    rejected_at = excluded.rejected_at, rejected_by = excluded.rejected_by,
    spelling = excluded.spelling, scheme = excluded.scheme,
    approved = coalesce(excluded.approved, pins.approved),
    held = CASE excluded.held_mark WHEN x'' THEN NULL ELSE coalesce(excluded.held, pins.held) END
"""
_OF_TARGET = ("pins", "pin_lists")
_DECIDED = "at, by, action, target, kind, id, name, digest"
_DECIDE = f"INSERT INTO pin_decisions ({_DECIDED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_TRIM = "DELETE FROM pin_decisions WHERE number <= (SELECT max(number) FROM pin_decisions) - ?"
_OF = "WHERE target = ? AND kind = ? AND id = ?"


class DatabasePins(LoopStore):
    def __init__(self, place: StorePlace) -> None:
        folds = {"fold_name": fold_name, "fold_id": fold_id}
        super().__init__(place, TABLES, folds)
        self.commits = 0

    def load(self, target: str | None) -> list[Pin]:
        if target is None:
            rows = self._read(f"{_LOAD} ORDER BY name, kind")
        else:
            rows = self._read(f"{_LOAD} WHERE target = ?", (target,))
        return [Pin(*row) for row in rows]

    def load_bodies(self, pin: Pin) -> tuple[bytes, bytes]:
        key = (pin.target, pin.kind, pin.id)
        for approved, held in self._read(f"SELECT approved, held FROM pins {_OF}", key):
            return approved or b"", held or b""
        return b"", b""

    def save(
        self,
        changes: Sequence[PinChange],
        decisions: Sequence[PinDecision],
        listed: tuple[str, str] | None = None,
    ) -> None:
        rows = [(*_build_row(change.pin), change.approved, change.held) for change in changes]
        lists = (
            [("INSERT INTO pin_lists VALUES (?, ?) ON CONFLICT DO NOTHING", [listed])]
            if listed
            else []
        )
        self._write([(_SAVE, rows), *lists, *_build_decision_statements(decisions)])

    def load_listed_kinds(self, target: str) -> set[str]:
        rows = self._read("SELECT kind FROM pin_lists WHERE target = ?", (target,))
        return {kind for (kind,) in rows}

    def load_decisions(self, pin: Pin, most: int) -> list[PinDecision]:
        order = f"SELECT {_DECIDED} FROM pin_decisions {_OF} ORDER BY number DESC LIMIT ?"
        return [
            PinDecision(*row) for row in self._read(order, (pin.target, pin.kind, pin.id, most))
        ]

    def forget(self, target: str, decision: PinDecision) -> None:
        gone = [(f"DELETE FROM {table} WHERE target = ?", [(target,)]) for table in _OF_TARGET]
        self._write([*gone, *_build_decision_statements([decision])])

    # --- owners of listed names (core.name_claims.NameStore) --------------------------------------

    def load_names(self) -> list[Claim]:
        rows = self._read("SELECT target, kind, owner, names FROM listed_names")
        return [(target, kind, owner, json.loads(names)) for target, kind, owner, names in rows]

    def save_names(self, claims: Sequence[Claim]) -> None:
        order = (
            "INSERT INTO listed_names VALUES (?, ?, ?, ?) "
            "ON CONFLICT (target, kind, owner) DO UPDATE SET names = excluded.names"
        )
        self._write([(order, [(*claim[:3], json.dumps(claim[3])) for claim in claims])])

    def release_names(self, target: str) -> None:
        self._write([("DELETE FROM listed_names WHERE target = ?", [(target,)])])

    def _write(self, orders: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        with self._transact() as db:
            for order, rows in orders:
                db.executemany(order, rows)
        self.commits += 1


def _build_row(pin: Pin) -> tuple[Any, ...]:
    return (
        pin.target, pin.kind, pin.id, pin.name, pin.mark, pin.approved_at, pin.approved_by,
        pin.held_mark, pin.held_at, pin.rejected_at, pin.rejected_by, pin.spelling, pin.scheme,
    )  # fmt: skip


def _build_decision_statements(
    decisions: Sequence[PinDecision],
) -> list[tuple[str, Sequence[Sequence[Any]]]]:
    rows = [
        (one.at, one.by, one.action, one.target, one.kind, one.id, one.name, one.digest)
        for one in decisions
    ]
    return [(_DECIDE, rows), (_TRIM, [(MAX_DECISIONS,)])] if rows else []
