"""A task as one client follows it: what it is now, then all that happens to it, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from dragoman.a2a.server.task import CORE_STATES, A2aTask, Event, read_events, render_task
from dragoman.core.tasks import ENDS, INPUT_REQUIRED, Entry

AT_ONCE = 256 * 1024
"""Bytes that are read from the store for one client, before it has read what came before."""


class TaskStream:
    """The events of one task as one client hears them: from a number on, until it ends."""

    def __init__(self, task: A2aTask, after: int, first: Event | None, seconds: float) -> None:
        self._task: A2aTask | None = task
        self._after = after
        self._first = first
        self._until = asyncio.get_running_loop().time() + seconds
        self._woken: asyncio.Future[None] | None = None
        self._stop = task.watch(self._wake)
        self.ended = False
        self.on_close: Callable[[TaskStream], None] = _nothing

    @classmethod
    def from_message(cls, message: Event) -> TaskStream:
        """A stream of one answer, and no task."""
        stream = cls.__new__(cls)
        stream._task, stream._after, stream._first = None, 0, {"message": message}
        stream._until, stream._woken, stream._stop = 0.0, None, _stopped
        stream.ended, stream.on_close = False, _nothing
        return stream

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    @property
    def number(self) -> int:
        """Of the last event that was taken from it."""
        return self._after

    def snapshot(self) -> dict[str, Any] | None:
        """The task as it is now; None where there is none."""
        return render_task(self._task) if self._task is not None else None

    def close(self) -> None:
        """No more is wanted of it, or to be had."""
        self._stop()
        # It refers back to this stream: both would wait for the garbage collector.
        self._stop = _stopped
        self.ended = True
        self._wake()
        self.on_close(self)

    async def next(self, seconds: float) -> list[tuple[int, Event, bool]]:
        """What has happened since: number, event, whether it is the last of this stream. Empty when
        nothing has for so long. All of it is stored by then."""
        task = self._task
        if self._first is not None:
            first, self._first = self._first, None
            if task is None or (task.finished and not read_events(task, self._after, AT_ONCE)):
                self.ended = True
            if task is not None and task.registry is not None:
                task.registry.flush()
            return [(self._after, first, self.ended)]
        if task is None or self.ended:
            self.ended = True
            return []
        found = self._found(task)
        if found or self.ended:
            return found
        loop = asyncio.get_running_loop()
        left = self._until - loop.time()
        if left <= 0:
            self.ended = True
            return []
        self._woken = loop.create_future()
        timer = loop.call_later(min(seconds, left), self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            self._woken = None
        return [] if self.ended else self._found(task)

    def _found(self, task: A2aTask) -> list[tuple[int, Event, bool]]:
        if task.registry is not None:
            task.registry.flush()
        found = []
        for entry in read_events(task, self._after, AT_ONCE):
            self._after = entry.number
            self.ended = _is_last(entry)
            found.append((entry.number, entry.event, self.ended))
            if self.ended:
                break
        if not found and task.finished:
            self.ended = True
        return found

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event, bool]]:
        while not self.ended:
            for one in await self.next(60.0):
                yield one


def _nothing(stream: TaskStream) -> None: ...


def _stopped() -> None: ...


def _is_last(entry: Entry) -> bool:
    """1.0, 3.1.2 and 11.7: a stream ends with the task, and where it waits for input; where
    somebody must log in, that happens elsewhere and the stream goes on."""
    update = entry.event.get("statusUpdate")
    if update is None:
        return False
    state = CORE_STATES[update["status"]["state"]]
    return state in ENDS or state == INPUT_REQUIRED
