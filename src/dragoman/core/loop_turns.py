"""Divides long work on the event loop into turns, between which others have theirs."""

from __future__ import annotations

import asyncio
from time import thread_time

TURN_SECONDS = 0.005
"""CPU time of one turn."""


class LoopTurns:
    """Measures the work of one coroutine, which calls `give_way` after each small part of it."""

    def __init__(self) -> None:
        self._earlier = 0.0
        self._begun = thread_time()

    @property
    def spent(self) -> float:
        """Seconds of CPU time that the work has taken, without what others did between."""
        return self._earlier + thread_time() - self._begun

    async def give_way(self) -> None:
        """Lets the event loop serve others if this turn has been long enough."""
        if (took := thread_time() - self._begun) > TURN_SECONDS:
            self._earlier += took
            await asyncio.sleep(0)
            self._begun = thread_time()
