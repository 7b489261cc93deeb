"""The `RoutingStore` in `routing.db`. If the file is lost, the router learns again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dragoman.core.routing import OutcomeKey, OutcomeRow, RoutingDecision
from dragoman.stores.database import POSTGRES, SQLITE, LoopStore, StorePlace, StoreTables

DATABASE = "routing.db"
MIGRATIONS = (
    """
CREATE TABLE outcomes (
    org TEXT NOT NULL, agent TEXT NOT NULL, work_type TEXT NOT NULL,
    successes REAL NOT NULL, failures REAL NOT NULL,
    cost REAL NOT NULL, costs REAL NOT NULL, tokens REAL NOT NULL, counts REAL NOT NULL,
    total INTEGER NOT NULL, tick INTEGER NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (org, agent, work_type)
) STRICT, WITHOUT ROWID;
CREATE TABLE decisions (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE, org TEXT NOT NULL, caller TEXT NOT NULL, at REAL NOT NULL,
    body TEXT NOT NULL, attempts TEXT NOT NULL DEFAULT '[]'
) STRICT;
""",
)
TABLES = StoreTables("routing", DATABASE, MIGRATIONS)
_KEY = OutcomeKey._fields
_ROW = OutcomeRow.__struct_fields__
_COLUMNS = ", ".join((*_KEY, *_ROW))
_SAVE = (
    f"INSERT INTO outcomes ({_COLUMNS}) "
    f"VALUES ({', '.join('?' * (len(_KEY) + len(_ROW)))}) "
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in _ROW)}"
)
_ADD_ATTEMPT = {
    SQLITE: "UPDATE decisions SET attempts = json_insert(attempts, '$[#]', json(?)) WHERE id = ?",
    POSTGRES: "UPDATE decisions SET attempts = (attempts::jsonb || jsonb_build_array(?::jsonb))"
    "::text WHERE id = ?",
}


class DatabaseRouting(LoopStore):
    def __init__(self, place: StorePlace, keep: int) -> None:
        """`keep` is the number of decisions."""
        super().__init__(place, TABLES)
        self._keep = keep

    def load_outcomes(self) -> list[tuple[OutcomeKey, OutcomeRow]]:
        rows = self._read(f"SELECT {_COLUMNS} FROM outcomes")
        return [(OutcomeKey(*row[:3]), OutcomeRow(*row[3:])) for row in rows]

    def save_outcome(self, key: OutcomeKey, row: OutcomeRow) -> None:
        with self._transact() as db:
            db.execute(_SAVE, (*key, *(getattr(row, name) for name in _ROW)))

    def delete_outcomes(self, keys: Iterable[OutcomeKey]) -> None:
        with self._transact() as db:
            db.executemany(
                "DELETE FROM outcomes WHERE org = ? AND agent = ? AND work_type = ?", list(keys)
            )

    def add_decision(self, decision: RoutingDecision) -> None:
        body = msgspec.json.encode(decision.body).decode()
        with self._transact() as db:
            db.execute(
                "INSERT INTO decisions (id, org, caller, at, body) VALUES (?, ?, ?, ?, ?)",
                (decision.id, decision.org, decision.caller, decision.at, body),
            )
            db.execute(
                "DELETE FROM decisions WHERE seq <= (SELECT max(seq) FROM decisions) - ?",
                (self._keep,),
            )

    def add_attempt(self, decision: str, attempt: Mapping[str, Any]) -> None:
        with self._transact() as db:
            db.execute(
                _ADD_ATTEMPT[self._base.engine],
                (msgspec.json.encode(attempt).decode(), decision),
            )

    def find_decision(self, id: str) -> RoutingDecision | None:
        columns = "org, caller, at, body, attempts"
        rows = self._read(f"SELECT {columns} FROM decisions WHERE id = ?", (id,))
        if not rows:
            return None
        org, caller, at, *texts = rows[0]
        body, attempts = (msgspec.json.decode(text.encode()) for text in texts)
        return RoutingDecision(
            id=id, org=org, caller=caller, at=at, body=body, attempts=tuple(attempts)
        )
