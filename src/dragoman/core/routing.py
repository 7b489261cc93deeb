"""What the router stores: outcomes and decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from dragoman.core.structs import Struct


class OutcomeKey(NamedTuple):
    org: str
    agent: str
    work_type: str


class OutcomeRow(Struct, frozen=True):
    """Weighted sums, as of the number of dispatches and the time that the row was last changed."""

    successes: float = 0.0
    failures: float = 0.0
    cost: float = 0.0
    costs: float = 0.0
    """The weight of the outcomes with a cost."""
    tokens: float = 0.0
    counts: float = 0.0
    """The weight of the outcomes with a number of tokens."""
    total: int = 0
    """How many outcomes there were, whatever their weight."""
    tick: int = 0
    """How many dispatches of the work type there were."""
    at: float = 0.0


class RoutingDecision(Struct, frozen=True, kw_only=True):
    id: str
    org: str
    caller: str
    at: float
    body: dict[str, Any]
    """The work and the candidates with factors and reasons."""
    attempts: tuple[dict[str, Any], ...] = ()
    """The calls that were made."""


class RoutingStore(Protocol):
    """Stores decisions and outcomes. All methods block and may raise `StorageFailed`."""

    def load_outcomes(self) -> Iterable[tuple[OutcomeKey, OutcomeRow]]: ...

    def save_outcome(self, key: OutcomeKey, row: OutcomeRow) -> None:
        """Creates or replaces the row."""

    def delete_outcomes(self, keys: Iterable[OutcomeKey]) -> None: ...

    def add_decision(self, decision: RoutingDecision) -> None:
        """Beyond a number, the oldest go."""

    def add_attempt(self, decision: str, attempt: Mapping[str, Any]) -> None:
        """Adds a call to a decision, if that is still stored."""

    def find_decision(self, id: str) -> RoutingDecision | None: ...
