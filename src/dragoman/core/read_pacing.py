"""How fast a far side is read that talks without being asked, so that nobody else has to wait."""

from __future__ import annotations

from time import monotonic

PER_SECOND = 2_000
"""Messages that answer nothing; whoever sends more is read more slowly."""
LINES_AN_EVENT = 16
"""So many lines of a stream of events count as one message: comments are work too."""
LONGEST = 1.0
"""Seconds of one pause, where messages are many."""
LARGE = 64 * 1024
"""Bytes of a message from which on the time that it takes is measured."""
REST = 4.0
"""How much longer than a large message took to be read nothing more is: others have that time."""


LIST_REST = 10.0
SHORTEST_LIST_PAUSE, LONGEST_LIST_PAUSE = 0.05, 5.0
BYTES_PER_SECOND = 50_000_000
"""How fast lists are decoded, about."""


def pause_after_list(size: int, spent: float = 0.0) -> float:
    """How many seconds to wait before a list is read again that took so many bytes, and so many
    seconds of processor time to be offered. A server may say all the time that it has changed."""
    cost = spent + size / BYTES_PER_SECOND
    return min(LONGEST_LIST_PAUSE, max(SHORTEST_LIST_PAUSE, cost * LIST_REST))


class Pace:
    def __init__(self, per_second: float = PER_SECOND) -> None:
        self._per_second = per_second
        self._unasked = 0.0
        self._counted_at = monotonic()

    def pause(self, unasked: int, spent: float = 0.0) -> float:
        """How many seconds to read nothing, after so many more messages; `spent` are the seconds of
        processor time that large ones among them took."""
        if not unasked:
            return 0.0
        return max(self._pause(unasked), spent * REST)

    def _pause(self, unasked: int) -> float:
        now = monotonic()
        self._unasked = max(0.0, self._unasked - (now - self._counted_at) * self._per_second)
        self._counted_at = now
        self._unasked += unasked
        if self._unasked <= self._per_second:
            return 0.0
        return min(LONGEST, self._unasked / self._per_second - 1.0 + 0.05)
