"""The recent calls of one run, as hashes, and whether another call would repeat them.

Three rules: the same call with the same outcome in a row; a cycle of two or three calls with the
same outcomes; many calls in a row of which none has brought anything new. A result that changes is
progress. Knows no pipeline, no clock and no text.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_KNOWN = 64
"""Outcomes that a run remembers, and tools of a run without progress."""
PERIODS = (2, 3)
"""The lengths of cycles."""

IDENTICAL, CYCLE, NO_PROGRESS = "identical calls", "cycle", "no progress"


class PastCall(NamedTuple):
    call: int
    """Of the tool and its arguments."""
    outcome: int
    failed: bool
    is_polled: bool = False
    """Whether the tool is meant to be called repeatedly."""


class Repetition(NamedTuple):
    rule: str
    times: int
    """How many calls, or how many rounds of a cycle."""
    failed: bool = False
    period: int = 1


class Thresholds(NamedTuple):
    identical: int
    cycles: int
    no_progress: int


class CallHistory:
    __slots__ = (
        "_known", "_row", "_size", "_stale", "_stale_tools", "at", "entries", "refused",
        "successes",
    )  # fmt: skip

    def __init__(self, at: float, cycles: int) -> None:
        self.at = at
        """When the last call ended."""
        self._size = PERIODS[-1] * cycles
        self.clear()

    def clear(self) -> None:
        self.entries: list[PastCall] = []
        """The last calls, the newest last: as many as the longest cycle needs."""
        self.successes = 0
        """In a row."""
        self.refused = False
        """Whether a call was refused since the last one."""
        self._row = 0
        """How often the last call was made in a row with the same outcome."""
        self._known: dict[int, None] = {}
        self._stale = 0
        """Calls in a row without a new outcome."""
        self._stale_tools: set[str] = set()

    def record(self, tool: str, entry: PastCall, reads_only: bool, every: bool) -> None:
        """Adds a call that has ended. A tool that is not known to only read may have changed
        something: its success is new if the call is. Unless `every` call counts, each success is
        new."""
        entries = self.entries
        last = entries[-1] if entries else None
        # A changed result is progress; one that alternates is found as no progress.
        self._row = self._row + 1 if last == entry else 1
        entries.append(entry)
        if len(entries) > self._size:
            del entries[0]
        self.refused = False
        self.successes = 0 if entry.failed else self.successes + 1
        if entry.is_polled:
            return
        is_about_result = entry.failed or reads_only
        outcome = entry.outcome if is_about_result else hash((entry.call, entry.outcome))
        known = self._known
        if outcome in known and (every or entry.failed):
            self._stale += 1
            if len(self._stale_tools) < MAX_KNOWN:
                self._stale_tools.add(tool)
            return
        self._stale = 0
        self._stale_tools.clear()
        known[outcome] = None
        if len(known) > MAX_KNOWN:
            del known[next(iter(known))]

    def find_repetition(
        self, limits: Thresholds, next_call: int | None, tool: str, every: bool
    ) -> Repetition | None:
        """Finds what the calls so far repeat or, with `next_call`, what that call would continue.
        Unless `every` call counts, repeated successes do not."""
        entries = self.entries
        if not entries:
            return None
        last = entries[-1]
        if (
            self._row >= limits.identical
            and (every or last.failed)
            and next_call in (None, last.call)
        ):
            return Repetition(IDENTICAL, self._row, last.failed)
        for period in PERIODS:
            if self._ends_in_cycle(period, limits.cycles, every) and (
                next_call in (None, entries[-period].call)
            ):
                failed = any(one.failed for one in entries[-period:])
                return Repetition(CYCLE, limits.cycles, failed, period)
        if self._stale >= limits.no_progress and (next_call is None or tool in self._stale_tools):
            return Repetition(NO_PROGRESS, self._stale, last.failed)
        return None

    def _ends_in_cycle(self, period: int, cycles: int, every: bool) -> bool:
        entries, length = self.entries, period * cycles
        if len(entries) < length or entries[-1] != entries[-1 - period]:
            return False
        if entries[-length:-period] != entries[period - length :]:
            return False
        last = entries[-period:]
        if any(one.is_polled for one in last):
            return False
        return len({one.call for one in last}) > 1 and (every or any(one.failed for one in last))
