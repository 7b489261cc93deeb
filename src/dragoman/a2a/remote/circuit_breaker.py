"""Keeps calls from an agent that is not there: after so many failures in a row nobody goes through
for a while, then one does, and what comes of that decides. Knows neither agents nor errors.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

FAILURES = 5
SECONDS = 30.0
BUSY_SECONDS = 1.0
"""To come again while somebody tries."""


class CircuitBreaker:
    def __init__(
        self,
        failures: int = FAILURES,
        seconds: float = SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._most = failures
        self._seconds = seconds
        self._clock = clock
        self._failures = 0
        self._until = 0.0
        self._trying = False

    @property
    def is_open(self) -> bool:
        return self._failures >= self._most

    def admit(self) -> float:
        """Seconds to wait; 0 for whoever goes through, and then says what came of it."""
        if self._failures < self._most:
            return 0.0
        left = self._until - self._clock()
        if left > 0:
            return left
        if self._trying:
            return BUSY_SECONDS
        self._trying = True
        return 0.0

    def record_failure(self) -> None:
        self._trying = False
        self._failures += 1
        if self.is_open:
            self._until = self._clock() + self._seconds

    def record_success(self) -> None:
        """Somebody is there; also when that is known from elsewhere."""
        self._trying = False
        self._failures = 0

    def release(self) -> None:
        """Nothing is known of it: whoever went through did not wait for the end."""
        self._trying = False
