"""Records when a call entered each stage and its target, for the spans of its trace.

Knows nothing of OpenTelemetry: a record is turned into spans when it is exported.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from time import time_ns

from dragoman.core.call import Call, Result
from dragoman.core.errors import HubError
from dragoman.core.pipeline import Next, Stage, build_pipeline

RUN = "run"
"""The step of the target."""
RETURN = "return"
"""The stages again, on the way back."""
CANCELLED = "Cancelled"
MAX_STEPS = 100
"""In one call: a stage may pass a call on more than once."""


class CallRecord:
    """One call: times are nanoseconds since 1970."""

    __slots__ = (
        *("door", "ended", "error", "has_failed", "org", "parent", "principal", "span", "started"),
        *("steps", "target", "tool", "trace"),
    )

    def __init__(self, call: Call) -> None:
        trace, tool = call.trace, call.tool
        self.trace = trace.id
        self.span = trace.span
        above = trace.parent
        # A chain that the hub has opened by itself has no call above it, and no span.
        self.parent = trace.caller_span if above is None else above.trace.span
        if above is not None and not above.trace.verb:
            self.parent = ""
        self.tool = tool.name
        self.target = tool.target.name
        self.principal = call.principal.label
        self.org = call.principal.org
        self.door = call.door
        self.steps: list[tuple[str, int]] = []
        """The name of each step, and when it began; it ended when the next one began."""
        self.error = ""
        """The kind of the error with which the call ended; empty if there was none."""
        self.has_failed = False
        self.started = time_ns()
        self.ended = 0


_record: ContextVar[CallRecord] = ContextVar("record of the running call")


def find_stage_name(stage: Stage) -> str:
    """`RateLimit` is the guard `rate_limit`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(stage).__name__).lower()


class _TimedStage:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage.__call__
        self._name = find_stage_name(stage)

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        steps = _record.get().steps
        if len(steps) < MAX_STEPS:
            steps.append((self._name, time_ns()))
        return self._stage(next, call)


class _TimedRun:
    """The last stage: times the target."""

    async def __call__(self, next: Next, call: Call) -> Result:
        steps = _record.get().steps
        if len(steps) >= MAX_STEPS:
            return await next(call)
        steps.append((RUN, time_ns()))
        try:
            return await next(call)
        finally:
            steps.append((RETURN, time_ns()))


class TracedStages:
    """One stage in place of all: runs them, and records the calls whose trace is sampled. Other
    calls run through the stages as they are."""

    def __init__(
        self, stages: Sequence[Stage], ratio: float, collect: Callable[[CallRecord], None]
    ) -> None:
        self._stages = stages
        self._timed: list[Stage] = [*map(_TimedStage, stages), _TimedRun()]
        # As the specification of TraceIdRatioBased: by the trace id, so that all agree.
        self._below = round(ratio * 2**56)
        self._collect = collect
        self._end: Next | None = None
        self._plain: Next
        self._traced: Next

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        if self._end is not next:
            self._plain = build_pipeline(self._stages, next)
            self._traced = build_pipeline(self._timed, next)
            self._end = next
        if int(call.trace.id[18:], 16) >= self._below:
            return self._plain(call)
        return self._run(self._traced, call)

    async def _run(self, run: Next, call: Call) -> Result:
        record = CallRecord(call)
        token = _record.set(record)
        try:
            result = await run(call)
            record.has_failed = result.failed
            return result
        except HubError as error:
            record.error = error.kind
            raise
        except BaseException as error:
            record.error = "InternalError" if isinstance(error, Exception) else CANCELLED
            raise
        finally:
            _record.reset(token)
            record.ended = time_ns()
            self._collect(record)
