"""Timeouts that are rarely reached: one timer for all of the same length.

A timer of the event loop for each call costs ten times as much as an entry here. The first to start
is the first to expire, so that a dictionary keeps them in order.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable


class Deadlines:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waiting: dict[int, tuple[float, Callable[[], object]]] = {}
        self._last = 0
        self._loop: AbstractEventLoop | None = None
        self._timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self, loop: AbstractEventLoop, expire: Callable[[], object]) -> int:
        """Calls `expire` after the time, unless `cancel` is called with the returned key."""
        if loop is not self._loop:
            self._loop, self._timer = loop, None
            self._waiting.clear()
        self._last = key = self._last + 1
        self._waiting[key] = loop.time() + self.seconds, expire
        if self._timer is None:
            self._timer = loop.call_later(self.seconds, self._expire_due)
        return key

    def is_waiting(self, key: int) -> bool:
        """Whether it has neither expired nor been cancelled."""
        return key in self._waiting

    def cancel(self, key: int) -> None:
        self._waiting.pop(key, None)

    def list_waiting(self) -> list[Callable[[], object]]:
        """Lists what would be called, the next one first."""
        return [expire for _, expire in self._waiting.values()]

    def _expire_due(self) -> None:
        self._timer = None
        loop = self._loop
        assert loop is not None
        now = loop.time()
        while self._waiting:
            key, (due, expire) = next(iter(self._waiting.items()))
            if due > now:
                self._timer = loop.call_at(due, self._expire_due)
                return
            del self._waiting[key]
            expire()
