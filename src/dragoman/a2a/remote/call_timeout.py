"""How long one call of a skill may take for its caller, by the wall clock.

A caller that hears progress waits anew with each piece of it, and one that has tasks as long as a
task may take: the road's own limit, which is longer, holds for them. Knows no protocol.
"""

from __future__ import annotations

import asyncio

from dragoman.core.call import NO_UPDATES, Artifact, Call, Lasting, Progress, Update, Updates


class Patience:
    """Begins at once, for the task it is made in. When it is at its end that is cancelled, and
    whoever catches this asks whether it `ran_out`."""

    __slots__ = ("_call", "_loop", "_pending", "_seconds", "_task", "_timer", "over", "updates")

    def __init__(self, seconds: float, call: Call, left: float) -> None:
        """`left` is what is left of the `seconds`, which begin anew with a sign of life."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._pending = task.cancelling()
        self._call = call
        self._loop = task.get_loop()
        self.over = False
        self.updates: Updates = call.updates if call.wanted is NO_UPDATES else self._hear
        """Where what the agent says meanwhile goes."""
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(left, self._expire)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def ran_out(self) -> bool:
        """Whether a cancellation is this one's, which then is none any more."""
        return self.over and self._task.uncancel() <= self._pending

    def _expire(self) -> None:
        self.over = True
        self._task.cancel()

    def _hear(self, update: Update) -> None:
        wanted = self._call.wanted
        if self._timer is not None and not self.over:
            if wanted.lasting and isinstance(update, Lasting):
                self.end()
            elif wanted.progress and isinstance(update, Progress | Artifact):
                self._timer.cancel()
                self._timer = self._loop.call_later(self._seconds, self._expire)
        self._call.updates(update)
