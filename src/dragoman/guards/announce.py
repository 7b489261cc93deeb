"""Emits the events of a call before and after it, also when it is refused.

Also limits the calls in flight: beyond the limit, or for one principal beyond half of it, calls are
refused. A call that asks how a task stands is announced once it has the outcome; gates judge each.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.errors import PASSING, HubError, Overloaded
from dragoman.core.events import CostReported, PostVerb, PreVerb, ToolCall, ToolResult, VerbError
from dragoman.core.pipeline import Next
from dragoman.core.redaction import select_numbers

PARKED = "parked"
"""The outcome of a call whose target continues the work as a task."""


def _has_outcome(call: Call, result: Result | None, error: HubError | None) -> bool:
    """Whether a call about a task has the outcome of the task, or a refusal."""
    if call.cancels or isinstance(error, PASSING):
        return False
    return error is not None or (result is not None and not result.unfinished)


class Announce:
    def __init__(self, bus: Bus, in_flight: int) -> None:
        self.bus = bus
        self.apply(in_flight)
        self.running = 0
        self._of: dict[str, int] = {}
        """Running calls by the principal's label: hashing a string costs less than a principal."""

    def apply(self, in_flight: int) -> None:
        """Applies to calls from now on."""
        self.limit = in_flight
        self.share = (in_flight + 1) // 2
        """How many of them one principal may have."""

    async def __call__(self, next: Next, call: Call) -> Result:
        begun = perf_counter()
        label = call.principal.label
        self.running += 1
        self._of[label] = count = self._of.get(label, 0) + 1
        announced: ToolCall | None = None
        try:
            if self.running > self.limit or count > self.share:
                raise Overloaded(self._render_overload(call, count))
            if call.task is not None and call.sends_nothing:
                if self.bus.has_gates and not call.cancels:
                    await self.bus.ask_gates(PreVerb(call))
            elif self.bus.has_call_observers or (
                (call.tool.bridged is not None or call.routed is not None)
                and self.bus.has_agent_observers
            ):
                event = PreVerb(call)
                self.bus.emit(event)
                if self.bus.has_tool_observers and (call.principal.serves or call.trace.chain):
                    announced = ToolCall(call)
                    self.bus.emit(announced)
                if self.bus.has_gates:
                    await self.bus.ask_gates(event)
            result = await next(call)
        except BaseException as error:
            # No local may keep the error: its traceback keeps this frame, and so the call.
            cancelled = isinstance(error, asyncio.CancelledError)
            self._emit_end(
                call,
                begun,
                announced,
                None,
                error if isinstance(error, HubError) else None,
                cancelled,
            )
            raise
        finally:
            self.running -= 1
            if (left := self._of[label] - 1) > 0:
                self._of[label] = left
            else:
                del self._of[label]
        self._emit_end(call, begun, announced, result)
        return result

    def _render_overload(self, call: Call, count: int) -> str:
        busy = f"{self.limit} calls are running"
        if count > self.share:
            busy = f"{self.share} calls of {call.principal} are running, half of the limit for all"
        return (
            f'"{call.tool.name}" was refused: {busy}; '
            "try again shortly or raise [limits] calls_in_flight"
        )

    def _emit_end(
        self,
        call: Call,
        begun: float,
        announced: ToolCall | None,
        result: Result | None,
        error: HubError | None = None,
        cancelled: bool = False,
    ) -> None:
        bus = self.bus
        if call.task is not None and call.sends_nothing and not _has_outcome(call, result, error):
            return
        if bus.is_observed(PostVerb):
            outcome = "completed" if result is not None and not result.failed else "failed"
            if result is not None and result.unfinished:
                outcome = PARKED
            duration = (perf_counter() - begun) * 1000
            bus.emit(PostVerb(call, outcome, duration, result, error, cancelled))
        if error is not None:
            bus.emit(VerbError(call, error))
        if announced is not None:
            bus.emit(ToolResult(call, announced.id, result, error, cancelled))
        if call.notes.usage is not None and (usage := select_numbers(call.notes.usage)):
            bus.emit(CostReported(call, usage))
