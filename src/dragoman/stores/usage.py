"""The `UsageStore` in `usage.db`: a row for each message to an agent, for some months."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.structs import asdict
from dragoman.core.usage import UsageEntry, find_day
from dragoman.stores.database import POSTGRES, LoopStore, StorePlace, StoreTables

DATABASE = "usage.db"
MIGRATIONS = (
    """
CREATE TABLE usage (
    number INTEGER PRIMARY KEY,
    at REAL NOT NULL, day TEXT NOT NULL, agent TEXT NOT NULL, principal TEXT NOT NULL,
    origin TEXT NOT NULL, trace TEXT NOT NULL, model TEXT NOT NULL,
    model_calls INTEGER NOT NULL, tool_calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    cost REAL NOT NULL, seconds REAL NOT NULL
) STRICT;
CREATE INDEX usage_by_time ON usage (at);
""",
    "ALTER TABLE usage ADD COLUMN ancestors TEXT NOT NULL DEFAULT ''",
)
TABLES = StoreTables("usage", DATABASE, MIGRATIONS)
COLUMNS = (
    "at", "day", "agent", "principal", "origin", "trace", "model", "model_calls", "tool_calls",
    "input_tokens", "output_tokens", "cost", "seconds", "ancestors",
)  # fmt: skip
GROUPS = ("agent", "principal", "origin", "trace", "model", "day")
SUMS = ("model_calls", "tool_calls", "input_tokens", "output_tokens", "cost", "seconds")
KEPT_SECONDS = 100 * 86_400.0
MAX_ROWS = 500_000
MAX_GROUPS = 1_000
PRUNE_EVERY = 1_000
MAX_NAME = 200
FRESH_SECONDS = 1.0
"""How long other hubs' usage may be missing from the sums of today."""
_INSERT = f"INSERT INTO usage ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


class DatabaseUsage(LoopStore):
    def __init__(self, place: StorePlace) -> None:
        super().__init__(place, TABLES)
        self._today: tuple[str, dict[tuple[str, str], tuple[int, float]]] = ("", {})
        """The day, and the tokens and cost of it that were asked for."""
        self._read_at = 0.0
        is_shared = self._base.engine == POSTGRES
        self._fresh_seconds = FRESH_SECONDS if is_shared else float("inf")
        self._written = 0

    def record(self, entry: UsageEntry) -> None:
        values = {**asdict(entry), "day": find_day(entry.at)}
        for name in ("agent", "principal", "origin", "trace", "model"):
            values[name] = values[name][:MAX_NAME]
        values["ancestors"] = _join(entry.ancestors)
        with self._transact() as db:
            db.execute(_INSERT, [values[name] for name in COLUMNS])
            self._written += 1
            if self._written % PRUNE_EVERY == 1:
                db.execute(
                    "DELETE FROM usage WHERE at < ? OR "
                    "number <= (SELECT max(number) FROM usage) - ?",
                    (entry.at - KEPT_SECONDS, MAX_ROWS),
                )
        day, known = self._today
        if day == values["day"]:
            agents = {values["agent"], *entry.ancestors}
            for key in (*(("agent", one) for one in agents), ("origin", values["origin"])):
                if key in known:
                    tokens, cost = known[key]
                    used = entry.input_tokens + entry.output_tokens
                    known[key] = tokens + used, cost + entry.cost

    def find_today(self, field: str, name: str, now: float) -> tuple[int, float]:
        day, name = find_day(now), name[:MAX_NAME]
        is_stale = time.monotonic() - self._read_at > self._fresh_seconds
        if self._today[0] != day or len(self._today[1]) > MAX_GROUPS or is_stale:
            self._today = day, {}
            self._read_at = time.monotonic()
        known = self._today[1]
        if (field, name) not in known:
            assert field in GROUPS
            where, values = f"{field} = ?", [name]
            if field == "agent":
                where, values = "(agent = ? OR instr(ancestors, ?) > 0)", [name, _join([name])]
            (row,) = self._read(
                "SELECT coalesce(sum(input_tokens + output_tokens), 0), coalesce(sum(cost), 0) "
                f"FROM usage WHERE at >= ? AND day = ? AND {where}",
                (now - 86_400.0, day, *values),
            )
            known[field, name] = int(row[0]), float(row[1])
        return known[field, name]

    def summarize(
        self, by: Sequence[str], since: float, only: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        names = [one for one in by if one in GROUPS]
        wanted = {name: value for name, value in only.items() if name in GROUPS}
        where = "".join(f" AND {name} = ?" for name in wanted)
        sums = ", ".join(f"sum({one})" for one in SUMS)
        rows = self._read(
            f"SELECT {', '.join([*names, 'count(*)'])}, {sums} FROM usage WHERE at >= ?{where} "
            f"GROUP BY {', '.join(names)} "
            "ORDER BY sum(cost) DESC, sum(input_tokens + output_tokens) DESC LIMIT ?",
            (since, *wanted.values(), MAX_GROUPS),
        )
        columns = (*names, "messages", *SUMS)
        return [dict(zip(columns, row, strict=True)) for row in rows]


def _join(names: Sequence[str]) -> str:
    """Joins the names of agents, none of which has a slash, so that each can be searched for."""
    return f"/{'/'.join(names)}/" if names else ""
