"""Limits how fast unsolicited messages and large bodies of a peer are read, so that other peers are
not delayed."""

from __future__ import annotations

from time import monotonic

PER_SECOND = 2_000
"""Unsolicited messages per second; a peer that sends more is read more slowly."""
LINES_AN_EVENT = 16
"""Lines of an event stream that count as one message: comments are work, too."""
LONGEST = 1.0
"""The longest pause, in seconds, for many messages."""
LARGE = 64 * 1024
"""Messages from this size on are timed."""
REST = 4.0
"""After a large message, reading pauses for this many times its processing time."""


LIST_REST = 10.0
SHORTEST_LIST_PAUSE, LONGEST_LIST_PAUSE = 0.05, 5.0
BYTES_PER_SECOND = 50_000_000
"""Approximate speed of decoding lists."""


def pause_after_list(size: int, spent: float = 0.0) -> float:
    """Seconds to wait before reading a list again that had `size` bytes and took `spent` seconds of
    processor time. A server may announce changes all the time."""
    cost = spent + size / BYTES_PER_SECOND
    return min(LONGEST_LIST_PAUSE, max(SHORTEST_LIST_PAUSE, cost * LIST_REST))


class Pace:
    def __init__(self, per_second: float = PER_SECOND) -> None:
        self._per_second = per_second
        self._unasked = 0.0
        self._counted_at = monotonic()

    def pause(self, unasked: int, spent: float = 0.0) -> float:
        """Seconds to pause after so many messages; `spent` is the CPU time of large ones."""
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


BODY_BYTES_PER_SECOND = 16 * 1024 * 1024
"""How fast large bodies of one peer are read or inflated: a megabyte takes a few milliseconds."""
BODY_BURST_SECONDS = 0.1
"""A peer may be ahead of that by as much as comes in this time."""


class BytePace:
    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due = 0.0
        """When all bytes so far would have come at the permitted speed."""

    def pause(self, size: int) -> float:
        """Seconds to pause after so many bytes."""
        now = monotonic()
        self._due = due = max(self._due, now) + size / BODY_BYTES_PER_SECOND
        return max(0.0, due - now - BODY_BURST_SECONDS)

    def is_idle(self) -> bool:
        """Whether it can be forgotten."""
        return self._due < monotonic()
