"""How long one call of a skill may take for its caller, by the wall clock.

A caller that hears progress waits anew with each piece of it, and one that has tasks as long as a
task may take: the road's own limit, which is longer, holds for them. Knows no protocol.
"""

from __future__ import annotations

import asyncio

from dragoman.core.call import NO_UPDATES, Artifact, Call, Lasting, Progress, Update, Updates
from dragoman.core.deadlines import Deadlines


class Patience:
    """Begins at once, for the task it is made in. When it is at its end that is cancelled, and
    whoever catches this asks whether it `ran_out`."""

    __slots__ = (
        "_anew", "_call", "_deadlines", "_key", "_loop", "_pending", "_task", "over", "updates",
    )  # fmt: skip

    def __init__(self, deadlines: Deadlines, call: Call, left: float) -> None:
        """`left` are the seconds until its first end; after a sign of life it has all anew."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._pending = task.cancelling()
        self._call = call
        self._loop = task.get_loop()
        self.over = False
        self.updates: Updates = call.updates if call.wanted is NO_UPDATES else self._hear
        """Where what the agent says meanwhile goes."""
        self._deadlines = Deadlines(max(0.0, left))
        self._key = self._deadlines.begin(self._loop, self._expire)
        self._anew = deadlines

    def end(self) -> None:
        self._deadlines.end(self._key)
        self._key = 0

    def ran_out(self) -> bool:
        """Whether a cancellation is this one's, which then is none any more."""
        return self.over and self._task.uncancel() <= self._pending

    def _expire(self) -> None:
        self.over = True
        self._task.cancel()

    def _hear(self, update: Update) -> None:
        wanted = self._call.wanted
        if self._key and not self.over:
            if wanted.lasting and isinstance(update, Lasting):
                self.end()
            elif wanted.progress and isinstance(update, Progress | Artifact):
                self._deadlines.end(self._key)
                self._deadlines = self._anew
                self._key = self._deadlines.begin(self._loop, self._expire)
        self._call.updates(update)
