"""Limits how long a target may take. Innermost: times the target, not the guards.

Progress renews the time, up to a maximum. A call that becomes a task has the time of a task, as
agents have from the start. While a question is open no call runs, so no timer does. The skill of an
agent is timed by its target, which may leave the remote task running; the limit here is longer than
its `timeout`. So it is for a built-in tool that waits for an agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from dragoman.core.call import NO_UPDATES, Artifact, Call, Progress, Result, TaskStarted, Update
from dragoman.core.deadlines import Deadlines
from dragoman.core.errors import TimedOut
from dragoman.core.pipeline import Next
from dragoman.core.structs import replace

MARGIN = 5.0
"""Seconds by which the outer of two timeouts exceeds the inner one."""


class _NamedDeadlines(Deadlines):
    """Deadlines, with the setting they come from."""

    def __init__(self, seconds: float, setting: str) -> None:
        super().__init__(seconds)
        self.setting = setting


class Timeout:
    def __init__(self, seconds: float, with_progress: float = 0.0, as_task: float = 0.0) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.apply(seconds, with_progress, as_task)

    def apply(self, seconds: float, with_progress: float, as_task: float) -> None:
        """Applies to calls from now on; running ones keep their timeout."""
        self.seconds = seconds
        self.with_progress = max(with_progress, seconds)
        """In total, for a target that reports progress."""
        self.as_task = max(as_task, self.with_progress)
        """In total, for a call that became a task."""
        self._deadlines = _NamedDeadlines(seconds, "tool_timeout_secs")
        self._deadlines_as_task = _NamedDeadlines(self.as_task, "task_timeout_secs")

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        tool, wanted = call.tool, call.wanted_updates
        if tool.agent is not None:
            return self._run_within(self._deadlines_as_task, next, call)
        more = wanted is not NO_UPDATES and (wanted.progress or wanted.task_start)
        if tool.bridged is not None:
            inner = (tool.target.traits.timeout or self.seconds) + MARGIN
            if more or inner > self.as_task:
                return _ExtendableTimeout(self, inner).run(next, call)
            return self._run_within(self._deadlines_as_task, next, call)
        if more or tool.target.traits.may_last:
            return _ExtendableTimeout(self).run(next, call)
        return self._run_within(self._deadlines, next, call)

    async def _run_within(self, deadlines: _NamedDeadlines, next: Next, call: Call) -> Result:
        # Does what `asyncio.timeout` does in a tenth of its time: every call passes here.
        loop = self._loop
        task = asyncio.current_task(loop) if loop is not None else None
        if loop is None or task is None:
            self._loop = loop = asyncio.get_running_loop()
            task = asyncio.current_task(loop)
            assert task is not None
        pending = task.cancelling()
        deadline = deadlines.start(loop, task.cancel)
        try:
            return await next(call)
        except asyncio.CancelledError:
            if deadlines.is_waiting(deadline) or task.uncancel() > pending:
                raise
            raise _build_error(call, deadlines.seconds, deadlines.setting) from None
        finally:
            deadlines.cancel(deadline)


class _ExtendableTimeout:
    """The timeout of one call, extended by progress."""

    def __init__(self, limits: Timeout, at_least: float = 0.0) -> None:
        """`at_least` is the minimum, also after progress."""
        self._limits = limits
        self._step = max(limits.seconds, at_least)
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._seconds = self._step
        """Since the start of the call."""
        self._setting = "tool_timeout_secs"
        self._timing = asyncio.timeout_at(self._begun + self._seconds)
        self._over = False

    async def run(self, next: Next, call: Call) -> Result:
        updates = call.updates

        def hear(update: Update) -> None:
            self._extend(update)
            updates(update)

        try:
            async with self._timing:
                return await next(replace(call, updates=hear))
        except TimeoutError:
            if not self._timing.expired():
                raise
            raise _build_error(call, self._seconds, self._setting) from None
        finally:
            self._over = True

    def _extend(self, update: Update) -> None:
        limits = self._limits
        if self._over or self._timing.expired():
            return
        if isinstance(update, TaskStarted):
            seconds, setting = max(limits.as_task, self._step), "task_timeout_secs"
            if update.is_timed:  # another call, which has a timeout of its own
                seconds += self._loop.time() - self._begun + MARGIN
        elif isinstance(update, Progress | Artifact) and self._seconds < limits.with_progress:
            seconds, setting = self._loop.time() - self._begun + self._step, self._setting
            if seconds >= limits.with_progress:
                seconds, setting = limits.with_progress, "progress_timeout_secs"
        else:
            return
        self._seconds, self._setting = seconds, setting
        self._timing.reschedule(self._begun + seconds)


def _build_error(call: Call, seconds: float, setting: str) -> TimedOut:
    kind = TimedOut if call.tool.bridged is None else call.tool.target.traits.timeout_error
    return kind(
        f'"{call.tool.name}" took longer than {round(seconds, 2):g} s and was cancelled; '
        f"raise [limits] {setting} if it needs more"
    )
