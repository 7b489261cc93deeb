"""The outcomes of past dispatches by agent and work type, which lose weight over time.

An outcome counts less with every further dispatch of its work type, and with every hour: so an
agent that has recovered is tried again, also where nothing was dispatched meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log
from typing import Any

from dragoman.core.routing import OutcomeKey, OutcomeRow, RoutingStore
from dragoman.core.structs import Struct, replace

MAX_ROWS = 10_000
"""Callers choose the work types: beyond that, the row that was not used for longest goes."""

TOTALS = ("totalTokens", "total_tokens", "tokens")
INPUTS = ("inputTokens", "input_tokens", "promptTokens", "prompt_tokens")
OUTPUTS = ("outputTokens", "output_tokens", "completionTokens", "completion_tokens")
COSTS = ("cost", "costUsd", "cost_usd", "totalCost", "total_cost")
"""What agents call them."""


class Outcomes(Struct, frozen=True, kw_only=True):
    """The outcomes of an agent for a work type, with their weight now."""

    successes: float = 0.0
    failures: float = 0.0
    total: int = 0
    """How many there were, whatever their weight."""
    mean_cost: float | None = None
    """US dollars; None if the agent reports none."""
    mean_tokens: float | None = None

    @property
    def mean(self) -> float:
        """The mean of the Beta distribution that samples are taken from."""
        return (self.successes + 1) / (self.successes + self.failures + 2)


class OutcomeTable:
    def __init__(
        self,
        store: RoutingStore,
        *,
        window: int,
        half_life_seconds: float,
        clock: Callable[[], float],
        most: int = MAX_ROWS,
    ) -> None:
        self._store = store
        self._per_tick = -1 / window
        self._per_second = -log(2) / half_life_seconds
        self._clock = clock
        self._most = most
        self._rows: dict[OutcomeKey, OutcomeRow] = {}
        """The least recently changed first."""
        self._ticks: dict[tuple[str, str], int] = {}
        """How many dispatches there were, by org and work type."""
        for key, row in sorted(store.load_outcomes(), key=lambda one: one[1].at):
            self._rows[key] = row
            kind = key.org, key.work_type
            self._ticks[kind] = max(self._ticks.get(kind, 0), row.tick)

    def find(self, key: OutcomeKey) -> Outcomes:
        row = self._rows.get(key)
        if row is None:
            return Outcomes()
        row = self._decay(row, self._ticks.get((key.org, key.work_type), 0))
        return Outcomes(
            successes=row.successes,
            failures=row.failures,
            total=row.total,
            mean_cost=row.cost / row.costs if row.costs > 0 else None,
            mean_tokens=row.tokens / row.counts if row.counts > 0 else None,
        )

    def record(self, key: OutcomeKey, is_success: bool, usage: Mapping[str, Any] | None) -> None:
        """Adds an outcome with what the agent reports to have used. Raises `StorageFailed` if it
        cannot be stored; then it counts until the hub stops."""
        kind = key.org, key.work_type
        tick = self._ticks[kind] = self._ticks.get(kind, 0) + 1
        row = self._decay(self._rows.pop(key, OutcomeRow(tick=tick, at=self._clock())), tick)
        cost, tokens = find_cost(usage or {}), find_tokens(usage or {})
        row = replace(
            row,
            successes=row.successes + is_success,
            failures=row.failures + (not is_success),
            cost=row.cost + (cost or 0.0),
            costs=row.costs + (cost is not None),
            tokens=row.tokens + (tokens or 0.0),
            counts=row.counts + (tokens is not None),
            total=row.total + 1,
        )
        self._rows[key] = row
        dropped = list(self._rows)[: max(0, len(self._rows) - self._most)]
        self._drop(dropped)
        self._store.save_outcome(key, row)

    def forget(self, agent: str) -> None:
        """Forgets an agent that was removed: another may get its name."""
        self._drop([key for key in self._rows if key.agent == agent])

    def _drop(self, keys: list[OutcomeKey]) -> None:
        if not keys:
            return
        for key in keys:
            del self._rows[key]
        known = {(key.org, key.work_type) for key in self._rows}
        for kind in [kind for kind in self._ticks if kind not in known]:
            del self._ticks[kind]
        self._store.delete_outcomes(keys)

    def _decay(self, row: OutcomeRow, tick: int) -> OutcomeRow:
        now = self._clock()
        age = max(0.0, now - row.at)
        weight = exp(self._per_tick * max(0, tick - row.tick) + self._per_second * age)
        return replace(
            row,
            successes=row.successes * weight,
            failures=row.failures * weight,
            cost=row.cost * weight,
            costs=row.costs * weight,
            tokens=row.tokens * weight,
            counts=row.counts * weight,
            tick=tick,
            at=max(now, row.at),
        )


def find_cost(usage: Mapping[str, Any]) -> float | None:
    return next((value for name in COSTS if (value := _read(usage, name)) is not None), None)


def find_tokens(usage: Mapping[str, Any]) -> float | None:
    for name in TOTALS:
        if (value := _read(usage, name)) is not None:
            return value
    parts = [value for name in (*INPUTS, *OUTPUTS) if (value := _read(usage, name)) is not None]
    return sum(parts) if parts else None


def _read(usage: Mapping[str, Any], name: str) -> float | None:
    value = usage.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        return None
    return float(value)
