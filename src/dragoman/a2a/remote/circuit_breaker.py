"""A circuit breaker: after several failures in a row it admits no call for a while, then one, whose
outcome decides. Knows neither agents nor errors.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

FAILURES = 5
SECONDS = 30.0
BUSY_SECONDS = 1.0
"""The wait while the one admitted call is running."""


class CircuitBreaker:
    def __init__(
        self,
        failures: int = FAILURES,
        seconds: float = SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.failures = 0
        """In a row; without any, every call is admitted and a success need not be recorded."""
        self._most = failures
        self._seconds = seconds
        self._clock = clock
        self._until = 0.0
        self._trying = False

    @property
    def is_open(self) -> bool:
        return self.failures >= self._most

    def admit(self) -> float:
        """Returns 0 for a call that is admitted, which then records its outcome; else the seconds
        to wait."""
        if self.failures < self._most:
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
        self.failures += 1
        if self.is_open:
            self._until = self._clock() + self._seconds

    def record_success(self) -> None:
        """The target is reachable; also if that is known from elsewhere."""
        self._trying = False
        self.failures = 0

    def release(self) -> None:
        """The admitted call ended without showing whether the target is reachable."""
        self._trying = False
