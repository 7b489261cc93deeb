"""Stops loops. Cheap, and before anything expensive: a loop must not cost a decision."""

from __future__ import annotations

from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.errors import Refused
from dragoman.core.pipeline import Next
from dragoman.core.tool import Nowhere
from dragoman.core.trace import NO_LABELS


class Recursion:
    def __init__(self, chains: CallChains) -> None:
        self._chains = chains

    async def __call__(self, next: Next, call: Call) -> Result:
        if isinstance(call.tool.target, Nowhere):
            return await next(call)  # nothing is reached
        flight = self._chains.enter(call)
        try:
            return await next(call)
        except Refused:
            flight.sources = NO_LABELS  # nothing was reached, so its output has no labels
            raise
        finally:
            self._chains.leave(flight)
