"""The `TriggerStore` in `triggers.db`. If the file is lost, schedules count from then on."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.core.triggers import ScheduleState
from dragoman.stores.database import LoopStore, StorePlace, StoreTables

DATABASE = "triggers.db"
MIGRATIONS = (
    """
CREATE TABLE schedules (
    id TEXT PRIMARY KEY, workflow TEXT NOT NULL, next_at REAL NOT NULL, last_at REAL NOT NULL,
    missed INTEGER NOT NULL, outcome TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE deliveries (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, at REAL NOT NULL
) STRICT;
""",
)
TABLES = StoreTables("triggers", DATABASE, MIGRATIONS, {"schedules": "trigger_schedules"})
MAX_DELIVERIES = 100_000
_COLUMNS = ScheduleState.__struct_fields__
_OR_UPDATE = "ON CONFLICT (id) DO UPDATE SET " + ", ".join(
    f"{name} = excluded.{name}" for name in _COLUMNS if name != "id"
)


class DatabaseTriggers(LoopStore):
    def __init__(self, place: StorePlace, max_deliveries: int = MAX_DELIVERIES) -> None:
        super().__init__(place, TABLES)
        self._max_deliveries = max_deliveries

    def load_schedules(self) -> list[ScheduleState]:
        rows = self._read(f"SELECT {', '.join(_COLUMNS)} FROM schedules")
        return [ScheduleState(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]

    def save_schedule(self, state: ScheduleState) -> None:
        marks = ", ".join("?" * len(_COLUMNS))
        with self._transact() as db:
            db.execute(
                f"INSERT INTO schedules ({', '.join(_COLUMNS)}) VALUES ({marks}) {_OR_UPDATE}",
                [getattr(state, name) for name in _COLUMNS],
            )

    def delete_schedules(self, ids: Iterable[str]) -> None:
        with self._transact() as db:
            db.executemany("DELETE FROM schedules WHERE id = ?", [(id,) for id in ids])

    def has_delivery(self, id: str) -> bool:
        return bool(self._read("SELECT 1 FROM deliveries WHERE id = ?", (id,)))

    def add_delivery(self, id: str, at: float) -> None:
        with self._transact() as db:
            db.execute(
                "INSERT INTO deliveries (id, at) VALUES (?, ?) ON CONFLICT (id) DO NOTHING",
                (id, at),
            )
            db.execute(
                "DELETE FROM deliveries WHERE seq <= (SELECT max(seq) FROM deliveries) - ?",
                (self._max_deliveries,),
            )
