"""Counts what agents use, and checks the budgets of agents and of their callers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dragoman.core.call import Call
from dragoman.core.errors import StorageFailed
from dragoman.core.local_agents import AgentProfiles
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.usage import Budget, UsageEntry, UsageStore, check_budget

if TYPE_CHECKING:
    from dragoman.agents.config import ModelPrice
    from dragoman.agents.manifest import Manifest
    from dragoman.agents.model_loop import LoopUsage

log = logging.getLogger(__name__)


class Metering:
    """Implements `UsageMeter`."""

    def __init__(
        self,
        store: UsageStore,
        profiles: AgentProfiles,
        find_prices: Callable[[], Mapping[str, ModelPrice]],
        find_budget: Callable[[], Budget],
    ) -> None:
        """`find_budget` returns the budget of each caller."""
        self._store = store
        self._profiles = profiles
        self._find_prices = find_prices
        self._find_budget = find_budget

    def check(self, manifest: Manifest, call: Call) -> None:
        now, own = time.time(), manifest.limits
        budget = Budget(tokens=own.tokens_per_day, cost=own.cost_per_day)
        check_budget(self._store, budget, "agent", manifest.name, now, "limits in its manifest")
        for one in self._profiles.list_ancestors(manifest.name):
            setting = (
                f'limits in its manifest, also for agents that it started, as "{manifest.name}"'
            )
            check_budget(self._store, one.budget, "agent", one.name, now, setting)
        budget = self._find_budget()
        check_budget(self._store, budget, "origin", _find_origin(call), now, "[limits.budget]")

    def record(self, manifest: Manifest, call: Call, usage: LoopUsage, seconds: float) -> None:
        if not usage.model_calls:
            return
        prices = self._find_prices()
        cost = usage.cost
        for model, (read, written) in usage.tokens_of.items():
            price = prices.get(model) or prices.get(manifest.model.model)
            cost += price.compute(read, written) if price is not None else 0.0
        entry = UsageEntry(
            at=time.time(),
            agent=manifest.name,
            principal=call.principal.label,
            origin=_find_origin(call),
            trace=call.trace.id,
            ancestors=tuple(one.name for one in self._profiles.list_ancestors(manifest.name)),
            model=usage.model,
            model_calls=usage.model_calls,
            tool_calls=usage.tool_calls,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost=cost,
            seconds=seconds,
        )
        names = ("model_calls", "tool_calls", "input_tokens", "output_tokens", "cost")
        call.notes.usage = {name: getattr(entry, name) for name in names}
        try:
            self._store.record(entry)
        except StorageFailed as error:  # the audit log has the same figures
            STORAGE_OUTAGE.note(f"usage cannot be stored: {error}")


def _find_origin(call: Call) -> str:
    return call.trace.origin or call.principal.label
