"""Exponential backoff with a cap and jitter.

    backoff = Backoff(first=0.5, longest=30.0)
    await asyncio.sleep(backoff.next_delay())   # after a failure: 0.5 s, 1 s, 2 s, ... about 30 s
    backoff.reset()                             # after a success

A component that counts (or stores) its failures itself asks `delay(failures)`.
"""

from __future__ import annotations

from random import uniform

MAX_EXPONENT = 64
"""Keeps the power finite; every cap is reached long before."""


def add_jitter(seconds: float, share: float = 0.2) -> float:
    """Varies `seconds` by up to `share` of it, so that many components do not act at once."""
    return seconds * uniform(1 - share, 1 + share)


class Backoff:
    __slots__ = ("factor", "failures", "first", "jitter", "longest")

    def __init__(
        self, first: float, longest: float, *, factor: float = 2.0, jitter: float = 0.2
    ) -> None:
        """`longest` caps the delay before jitter; a jitter of 0.2 varies it by up to 20 %."""
        self.first = first
        self.longest = longest
        self.factor = factor
        self.jitter = jitter
        self.failures = 0
        """In a row, as counted by `next_delay`."""

    def delay(self, failures: int) -> float:
        """The pause after that many failures in a row; at least one."""
        exponent = min(max(failures, 1) - 1, MAX_EXPONENT)
        return add_jitter(min(self.longest, self.first * self.factor**exponent), self.jitter)

    def next_delay(self) -> float:
        """Counts a failure and returns the pause before the next attempt."""
        self.failures += 1
        return self.delay(self.failures)

    def reset(self) -> None:
        """Starts over after a success."""
        self.failures = 0
