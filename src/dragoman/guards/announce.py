"""Tells the bus what is about to happen and what came of it, on a denial too.

Also keeps count of the calls under way: one more than the limit is refused.
"""

from __future__ import annotations

from time import perf_counter

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.errors import Full, HubError
from dragoman.core.events import PostVerb, PreVerb, VerbError
from dragoman.core.pipeline import Next


class Announce:
    def __init__(self, bus: Bus, in_flight: int) -> None:
        self.bus = bus
        self.limit = in_flight
        self.under_way = 0

    async def __call__(self, call: Call, next: Next) -> Result:
        begun = perf_counter()
        self.under_way += 1
        try:
            if self.under_way > self.limit:
                raise Full(
                    f'"{call.tool.name}" was refused: {self.limit} calls are under way; '
                    "try again shortly or raise [limits] calls_in_flight"
                )
            if self.bus.attended:
                event = PreVerb(call)
                self.bus.emit(event)
                await self.bus.ask(event)
            result = await next(call)
        except HubError as error:
            self._after(call, begun, None, error)
            self.bus.emit(VerbError(call, error))
            raise
        except BaseException:
            self._after(call, begun, None, None)
            raise
        finally:
            self.under_way -= 1
        self._after(call, begun, result, None)
        return result

    def _after(
        self, call: Call, begun: float, result: Result | None, error: HubError | None
    ) -> None:
        if self.bus.heard(PostVerb):
            outcome = "completed" if result is not None and not result.failed else "failed"
            duration = (perf_counter() - begun) * 1000
            self.bus.emit(PostVerb(call, outcome, duration, result, error))
