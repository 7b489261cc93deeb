"""Counts calls for the event `activity`: at most one a second says how many there were. So many
pages can follow a busy hub without an event for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dragoman.core.bus import Bus, End
from dragoman.core.events import PostVerb
from dragoman.core.principal import Principal

ACTIVITY = "activity"
"""The name of the event; it is sent to streams that name it as a phase."""
SECONDS = 1.0


class ActivityCounter:
    def __init__(self, bus: Bus, flush: Callable[[], None]) -> None:
        """`flush` is called about a second after the first call that was counted."""
        self._bus = bus
        self._flush = flush
        self._counts: dict[Principal, list[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._end: End | None = None

    def start(self) -> None:
        if self._end is None:
            self._end = self._bus.observe(PostVerb, self._count, "the counter for event streams")

    def stop(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._counts.clear()

    def _count(self, event: PostVerb) -> None:
        counts = self._counts.get(event.call.principal)
        if counts is None:
            counts = self._counts[event.call.principal] = [0, 0]
        counts[0] += 1
        counts[1] += event.outcome == "failed"
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SECONDS, self._end_period)

    def _end_period(self) -> None:
        self._timer = None
        self._flush()
        self._counts = {}

    def sum_own(self, principal: Principal) -> tuple[int, int]:
        """The calls of a principal in this period, and how many of them failed."""
        calls, failed = self._counts.get(principal, (0, 0))
        return calls, failed

    def sum_org(self, org: str) -> tuple[int, int]:
        found = [counts for principal, counts in self._counts.items() if principal.org == org]
        return sum(one[0] for one in found), sum(one[1] for one in found)
