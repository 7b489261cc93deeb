"""Stops loops. Cheap, and before anything expensive: a loop must not cost a decision."""

from __future__ import annotations

from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.pipeline import Next
from dragoman.core.tool import Nowhere


class Recursion:
    def __init__(self, chains: CallChains) -> None:
        self._chains = chains

    async def __call__(self, next: Next, call: Call) -> Result:
        if isinstance(call.tool.target, Nowhere):
            return await next(call)  # nothing is reached
        flight = self._chains.enter(call)
        try:
            return await next(call)
        finally:
            self._chains.leave(flight)
