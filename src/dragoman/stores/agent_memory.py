"""The `AgentMemory` in `agents.db`, with full-text search. Bounded per namespace and in total."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dragoman.core.errors import Overloaded
from dragoman.core.ports import MemoryEntry
from dragoman.stores.agents_db import TABLES
from dragoman.stores.database import LoopStore, StorePlace

MAX_WORDS = 20
"""Words of a query."""
_WORD = re.compile(r"\w+")
_COLUMNS = "owner, key, value, at"


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    keys: int = 1_000
    """Of one namespace."""
    size: int = 5 * 1024 * 1024
    """Bytes of one namespace."""
    total_keys: int = 100_000
    total_size: int = 200 * 1024 * 1024


class DatabaseMemory(LoopStore):
    def __init__(
        self,
        place: StorePlace,
        limits: MemoryLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(place, TABLES)
        self._limits = limits or MemoryLimits()
        self._clock = clock
        totals = self._read("SELECT count(*), coalesce(sum(size), 0) FROM memory")[0]
        self._count, self._size = int(totals[0]), int(totals[1])

    def store(self, owner: str, key: str, value: str) -> bool:
        size = len(key.encode()) + len(value.encode())
        before = self._read(
            "SELECT number, size FROM memory WHERE owner = ? AND key = ?", (owner, key)
        )
        number, freed = before[0] if before else (None, 0)
        self._check_room(owner, number is None, size - freed)
        with self._transact() as db:
            if number is not None:
                db.execute("DELETE FROM memory_words WHERE rowid = ?", (number,))
                db.execute("DELETE FROM memory WHERE number = ?", (number,))
            row = self._base.insert(
                "INSERT INTO memory (owner, key, value, size, at) VALUES (?, ?, ?, ?, ?)",
                (owner, key, value, size, self._clock()),
                "number",
            )
            db.execute(
                "INSERT INTO memory_words (rowid, key, value) VALUES (?, ?, ?)",
                (row, key, value),
            )
        self._count += number is None
        self._size += size - freed
        return number is None

    def find(self, owner: str, key: str) -> MemoryEntry | None:
        query = f"SELECT {_COLUMNS} FROM memory WHERE owner = ? AND key = ?"
        found = self._read(query, (owner, key))
        return MemoryEntry(*found[0]) if found else None

    def delete(self, owner: str, key: str) -> bool:
        found = self._read(
            "SELECT number, size FROM memory WHERE owner = ? AND key = ?", (owner, key)
        )
        if not found:
            return False
        number, size = found[0]
        with self._transact() as db:
            db.execute("DELETE FROM memory_words WHERE rowid = ?", (number,))
            db.execute("DELETE FROM memory WHERE number = ?", (number,))
        self._count -= 1
        self._size -= size
        return True

    def list_keys(self, owner: str, most: int) -> list[str]:
        query = "SELECT key FROM memory WHERE owner = ? ORDER BY number DESC LIMIT ?"
        return [str(key) for (key,) in self._read(query, (owner, most))]

    def search(self, owners: Sequence[str], query: str, most: int) -> list[MemoryEntry]:
        words = _WORD.findall(query)[:MAX_WORDS]
        if not words or not owners:
            return []
        # In quotes a word is a word, whatever it means in a query.
        wanted = " OR ".join(f'"{word}"' for word in words)
        places = ", ".join("?" * len(owners))
        rows = self._read(
            f"SELECT {', '.join(f'm.{name}' for name in _COLUMNS.split(', '))} "
            "FROM memory_words AS w JOIN memory AS m ON m.number = w.rowid "
            f"WHERE w.memory_words MATCH ? AND m.owner IN ({places}) ORDER BY rank LIMIT ?",
            (wanted, *owners, most),
        )
        return [MemoryEntry(*row) for row in rows]

    def _check_room(self, owner: str, is_new: bool, growth: int) -> None:
        limits = self._limits
        count, size = self._read(
            "SELECT count(*), coalesce(sum(size), 0) FROM memory WHERE owner = ?", (owner,)
        )[0]
        if growth > 0 and size + growth > limits.size:
            raise Overloaded(f"this memory is full: it may have {limits.size} bytes")
        if growth > 0 and self._size + growth > limits.total_size:
            raise Overloaded("the memory of all agents is full")
        if is_new and count >= limits.keys:
            raise Overloaded(f"this memory is full: it may have {limits.keys} keys")
        if is_new and self._count >= limits.total_keys:
            raise Overloaded("the memory of all agents is full")
