"""The policy files that hubs on one PostgreSQL database share. Knows nothing of policies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

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


class SharedFile(NamedTuple):
    text: str
    digest: str
    number: int
    """How often it was changed."""
    changed_at: float


def hash_text(text: str) -> str:
    return sha256(text.encode()).hexdigest()


class PolicyFiles(LoopStore):
    def __init__(self, place: StorePlace) -> None:
        super().__init__(place, TABLES)

    def read_version(self) -> int:
        """A number that differs after another hub has changed a file."""
        return self._base.read_version(now=False)

    def load(self) -> dict[str, SharedFile]:
        rows = self._read("SELECT name, text, digest, number, changed_at FROM policy_files")
        return {row[0]: SharedFile(*row[1:]) for row in rows}

    def change(
        self, texts: Mapping[str, str | None], expected: Mapping[str, str | None]
    ) -> list[str]:
        """Stores new texts, and deletes files whose text is None, in one transaction. Changes only
        files that have the digest that is `expected`, None for a file that must not exist; returns
        the names of others, which another hub has changed meanwhile."""
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
