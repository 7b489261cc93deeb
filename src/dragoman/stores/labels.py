"""The `LabelStore` in `pins.db`: the taint labels of conversations, files and other stored data.

The number of keys is bounded. Beyond it the oldest are dropped, and their labels pass to everything
of the same kind: losing a label must not open anything.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dragoman.core.errors import StorageFailed
from dragoman.core.structs import asdict
from dragoman.core.taint import LabelOrigin, Origins
from dragoman.core.tool_identity import fold_id, fold_name
from dragoman.stores.database import POSTGRES, LoopStore, StorePlace, StoreTables
from dragoman.stores.pins import DATABASE, MIGRATIONS

TABLES = StoreTables("pins", DATABASE, MIGRATIONS, counted="labels")
MAX_ROWS = 100_000
DROPPED = 10_000
"""Rows that are dropped at once."""
MAX_TEXT = 300
_FIND = "SELECT label, tool, trace, why FROM labels WHERE key IN ({}) ORDER BY number"


class DatabaseLabels(LoopStore):
    def __init__(self, place: StorePlace, most: int = MAX_ROWS) -> None:
        folds = {"fold_name": fold_name, "fold_id": fold_id}
        super().__init__(place, TABLES, folds)
        self._most = most
        self._server = None if isinstance(place, Path) else place
        self._is_shared = self._base.engine == POSTGRES
        self._version = self.read_version() if self._is_shared else 0
        self._count = self._read_count()

    @property
    def is_empty(self) -> bool:
        if self._is_shared and (version := self.read_version()) != self._version:
            self._count = self._read_count()
            self._version = version
        return not self._count

    def _read_count(self) -> int:
        return int(self._read("SELECT count(*) FROM labels")[0][0])

    def check(self) -> None:
        if self._server is not None and (why := self._server.problem):
            raise StorageFailed(f'"{self._name}" is not available: {why}')

    def find_labels(self, keys: list[str]) -> dict[str, LabelOrigin]:
        wanted = [*keys, *{_build_common_key(key) for key in keys}]
        rows = self._read(_FIND.format(", ".join("?" * len(wanted))), wanted)
        found: dict[str, LabelOrigin] = {}
        for label, *origin in rows:
            found.setdefault(label, LabelOrigin(*origin))
        return found

    def add_labels(self, key: str, origins: Origins) -> None:
        known = self.find_labels([key])
        new = [(key, label, one) for label, one in origins.items() if label not in known]
        if not new:
            return
        with self._transact():
            for row in new:
                self._insert(*row)
            if self._count + len(new) > self._most:
                self._drop_oldest()
        self._count = self._read_count()

    def remove_labels(self, key: str, label: str | None) -> list[str]:
        where = "key = ?" if label is None else "key = ? AND label = ?"
        values = (key,) if label is None else (key, label)
        had = [str(one) for (one,) in self._read(f"SELECT label FROM labels WHERE {where}", values)]
        if had:
            with self._transact() as db:
                db.execute(f"DELETE FROM labels WHERE {where}", values)
            self._count -= len(had)
        return sorted(had)

    def list_labels(self, prefix: str, most: int) -> list[dict[str, Any]]:
        columns = ("key", "label", "tool", "trace", "why", "at")
        rows = self._read(
            f"SELECT {', '.join(columns)} FROM labels WHERE substr(key, 1, ?) = ? "
            "ORDER BY number DESC LIMIT ?",
            (len(prefix), prefix, most),
        )
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _insert(self, key: str, label: str, origin: LabelOrigin) -> None:
        texts = (one[:MAX_TEXT] for one in (origin.tool, origin.trace, origin.why))
        self._db.execute(
            "INSERT INTO labels (key, label, tool, trace, why, at) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (key, label, *texts, time.time()),
        )

    def _drop_oldest(self) -> None:
        oldest = "SELECT number FROM labels ORDER BY number LIMIT ?"
        dropped = min(DROPPED, self._most // 2)
        rows = self._db.execute(
            f"SELECT key, label, tool, trace, why FROM labels WHERE number IN ({oldest})",
            (dropped,),
        ).fetchall()
        self._db.execute(f"DELETE FROM labels WHERE number IN ({oldest})", (dropped,))
        for key, label, *origin in rows:
            self._insert(_build_common_key(key), label, LabelOrigin(*origin))


class MemoryLabels:
    """A `LabelStore` that nothing outlives, for tests."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, LabelOrigin]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._rows

    def check(self) -> None: ...

    def find_labels(self, keys: list[str]) -> dict[str, LabelOrigin]:
        found: dict[str, LabelOrigin] = {}
        for key in keys:
            found = {**self._rows.get(key, {}), **found}
        return found

    def add_labels(self, key: str, origins: Origins) -> None:
        known = self._rows.setdefault(key, {})
        known.update({label: one for label, one in origins.items() if label not in known})

    def remove_labels(self, key: str, label: str | None) -> list[str]:
        known = self._rows.get(key, {})
        had = sorted(known) if label is None else [one for one in known if one == label]
        for one in had:
            del known[one]
        return had

    def list_labels(self, prefix: str, most: int) -> list[dict[str, Any]]:
        rows = [
            {"key": key, "label": label, **asdict(one), "at": 0.0}
            for key, labels in self._rows.items()
            for label, one in labels.items()
            if key.startswith(prefix)
        ]
        return rows[::-1][:most]


def _build_common_key(key: str) -> str:
    """The key of everything of the same kind: all files, or all data of one target."""
    kind, _, rest = key.partition(" ")
    target, _, _ = rest.partition(" ")
    return f"{kind} *" if kind == "file" else f"{kind} {target} *"
