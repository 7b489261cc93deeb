"""Refuses calls while the event loop is late: a queue that only grows helps no caller."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable

from dragoman.core.call import Call, Result
from dragoman.core.errors import Overloaded
from dragoman.core.pipeline import Next

INTERVAL = 0.5
"""Seconds between two measurements."""


class Overload:
    def __init__(self, delay_secs: float) -> None:
        self.apply(delay_secs)
        self.delay = 0.0
        """Seconds by which the last measurement was late."""
        self._late = 0
        """How many measurements in a row were too late."""
        self._total = 0.0
        self._due = math.inf

    def apply(self, delay_secs: float) -> None:
        """Applies to calls from now on."""
        self.limit = delay_secs

    async def watch(self) -> None:
        """Measures the delay without end."""
        loop = asyncio.get_running_loop()
        while True:
            self._due = loop.time() + INTERVAL
            await asyncio.sleep(INTERVAL)
            self.note(loop.time() - self._due)

    def note(self, delay: float) -> None:
        """Takes a measurement. A single late one is a pause of the process, not a load."""
        self.delay = delay
        self._total += delay
        self._late = self._late + 1 if delay > self.limit else 0

    def read_total(self) -> float:
        """Returns by how many seconds the loop has been late so far, all measurements and the one
        that is due added up."""
        return self._total + max(0.0, asyncio.get_running_loop().time() - self._due)

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        if self._late > 1 and not call.cancels:
            raise Overloaded(
                f'"{call.tool.name}" was refused: the hub is overloaded, requests wait for '
                f"{self.delay:.1f} s; try again shortly or raise [limits] overload_delay_secs"
            )
        return next(call)
