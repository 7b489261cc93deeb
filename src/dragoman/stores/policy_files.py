"""The policy files that hubs on one PostgreSQL database share. Knows nothing of policies.

A row without text is a file that was deleted: the seal of such a row says that a hub did it. Hubs
of the version before take it for an empty file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from dragoman.core.policy_files import SharedFile, hash_text
from dragoman.stores.database import DatabaseConnection, LoopStore, StorePlace, StoreTables
from dragoman.stores.row_seals import SealedTable, find_seals

TABLES = StoreTables(
    "policies",
    "policies.db",
    (
        """
CREATE TABLE policy_files (
    name TEXT PRIMARY KEY, text TEXT NOT NULL, digest TEXT NOT NULL, number INTEGER NOT NULL,
    changed_at REAL NOT NULL
);
""",
    ),
    counted="policies",
)
SEALED = SealedTable(
    "policy_files", "policy file", ("name", "text", "digest", "number", "changed_at")
)


class PolicyFiles(LoopStore):
    """Implements `core.policy_files.PolicyFileStore`."""

    def __init__(self, place: StorePlace) -> None:
        super().__init__(place, TABLES)
        self._seals = find_seals(place)

    @property
    def is_sealed(self) -> bool:
        return self._seals.is_active and self._seals.is_enforced

    def load(self) -> dict[str, SharedFile]:
        rows = self._read(f"SELECT {self._seals.build_selection(SEALED)} FROM policy_files")
        return {row[0]: SharedFile(*row[1:5]) for row in rows if self._seals.admits(SEALED, row)}

    def change(
        self, texts: Mapping[str, str | None], expected: Mapping[str, str | None]
    ) -> list[str]:
        lost, now = [], time.time()
        with self._transact() as db:
            for name, text in texts.items():
                self._drop_refused(db, name)
                before, new = expected.get(name), text or ""
                if before is None:
                    row = (name, new, hash_text(new), 1, now)
                    done = db.execute(
                        f"INSERT INTO policy_files ({SEALED.listed}) VALUES (?, ?, ?, ?, ?) "
                        "ON CONFLICT (name) DO NOTHING",
                        row,
                    )
                    if done.rowcount:
                        self._seals.put(db, SEALED, row)
                else:
                    with self._seals.change(db, SEALED, name, sets=SEALED.columns[1:]):
                        done = db.execute(
                            "UPDATE policy_files SET text = ?, digest = ?, number = number + 1, "
                            "changed_at = ? WHERE name = ? AND digest = ?",
                            (new, hash_text(new), now, name, before),
                        )
                if not done.rowcount:
                    lost.append(name)
        return lost

    def _drop_refused(self, db: DatabaseConnection, name: str) -> None:
        """Deletes a row that no hub has written, so that the file of a hub takes its place."""
        query = f"SELECT {self._seals.build_selection(SEALED)} FROM policy_files WHERE name = ?"
        row = db.execute(query, (name,)).fetchone()
        if row is not None and not self._seals.admits(SEALED, row):
            with self._seals.change(db, SEALED, name):
                db.execute("DELETE FROM policy_files WHERE name = ?", (name,))
