"""How fast a far side is read that talks without being asked, so that nobody else has to wait."""

from __future__ import annotations

from time import monotonic

PER_SECOND = 2_000
"""Messages that answer nothing; whoever sends more is read more slowly."""
LINES_AN_EVENT = 16
"""So many lines of a stream of events count as one message: comments are work too."""
LONGEST = 1.0
"""Seconds of one pause."""


class Pace:
    def __init__(self, per_second: float = PER_SECOND) -> None:
        self._per_second = per_second
        self._unasked = 0.0
        self._counted_at = monotonic()

    def pause(self, unasked: int) -> float:
        """How many seconds to read nothing, after so many more messages."""
        if not unasked:
            return 0.0
        now = monotonic()
        self._unasked = max(0.0, self._unasked - (now - self._counted_at) * self._per_second)
        self._counted_at = now
        self._unasked += unasked
        if self._unasked <= self._per_second:
            return 0.0
        return min(LONGEST, self._unasked / self._per_second - 1.0 + 0.05)
