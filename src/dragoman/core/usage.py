"""What the work of agents takes: tokens, money, calls and time, and who may use how much a day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from dragoman.core.errors import RateLimited
from dragoman.core.structs import Struct


class UsageEntry(Struct, frozen=True, kw_only=True):
    """What one message to an agent has taken."""

    at: float
    """Seconds of wall time, at its end."""
    agent: str
    principal: str
    """Who called the agent."""
    origin: str
    """Who began the chain of calls."""
    trace: str
    ancestors: tuple[str, ...] = ()
    """The agents that have started this one, the first one first; they are charged too."""
    model: str = ""
    model_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """In US dollars."""
    seconds: float = 0.0


class Budget(Struct, frozen=True, kw_only=True):
    """What may be used per day; 0 means that it is not limited."""

    tokens: int = 0
    cost: float = 0.0

    @property
    def is_limited(self) -> bool:
        return bool(self.tokens or self.cost)


class UsageStore(Protocol):
    """Keeps usage. All methods block and may raise `StorageFailed`."""

    def record(self, entry: UsageEntry) -> None: ...

    def find_today(self, field: str, name: str, now: float) -> tuple[int, float]:
        """The tokens and the cost of today (UTC) of an `origin`, or of an `agent` with those that
        it has started."""

    def summarize(
        self, by: Sequence[str], since: float, only: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """Adds up usage since a time, by `agent`, `principal`, `origin`, `trace`, `model` or `day`,
        the dearest first."""


def check_budget(
    store: UsageStore, budget: Budget, field: str, name: str, now: float, setting: str
) -> None:
    """Raises `RateLimited` if the budget of an agent or a principal is used up."""
    if not budget.is_limited:
        return
    tokens, cost = store.find_today(field, name, now)
    problem = ""
    if budget.tokens and tokens >= budget.tokens:
        problem = f"{tokens:,} of {budget.tokens:,} tokens"
    elif budget.cost and cost >= budget.cost:
        problem = f"${cost:,.2f} of ${budget.cost:,.2f}"
    if problem:
        what = f'agent "{name}"' if field == "agent" else f'"{name}"'
        raise RateLimited(
            f"the budget of {what} for today is used up: {problem} ({setting}). It is renewed at "
            "midnight UTC",
            find_seconds_to_midnight(now),
        )


def find_day(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d")


def find_seconds_to_midnight(now: float) -> float:
    today = datetime.fromtimestamp(now, UTC)
    midnight = today.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return max(1.0, midnight.timestamp() - now)
