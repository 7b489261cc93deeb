"""The policy files that hubs on one PostgreSQL database share. Knows nothing of policies."""

from __future__ import annotations

import time
from collections.abc import Mapping

from dragoman.core.policy_files import SharedFile, hash_text
from dragoman.stores.database import LoopStore, StorePlace, StoreTables

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


class PolicyFiles(LoopStore):
    """Implements `core.policy_files.PolicyFileStore`."""

    def __init__(self, place: StorePlace) -> None:
        super().__init__(place, TABLES)

    def load(self) -> dict[str, SharedFile]:
        rows = self._read("SELECT name, text, digest, number, changed_at FROM policy_files")
        return {row[0]: SharedFile(*row[1:]) for row in rows}

    def change(
        self, texts: Mapping[str, str | None], expected: Mapping[str, str | None]
    ) -> list[str]:
        lost, now = [], time.time()
        with self._transact() as db:
            for name, text in texts.items():
                before = expected.get(name)
                if text is None:
                    done = db.execute(
                        "DELETE FROM policy_files WHERE name = ? AND digest = ?", (name, before)
                    )
                elif before is None:
                    done = db.execute(
                        "INSERT INTO policy_files (name, text, digest, number, changed_at) "
                        "VALUES (?, ?, ?, 1, ?) ON CONFLICT (name) DO NOTHING",
                        (name, text, hash_text(text), now),
                    )
                else:
                    done = db.execute(
                        "UPDATE policy_files SET text = ?, digest = ?, number = number + 1, "
                        "changed_at = ? WHERE name = ? AND digest = ?",
                        (text, hash_text(text), now, name, before),
                    )
                if not done.rowcount:
                    lost.append(name)
        return lost
