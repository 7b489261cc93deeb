"""A stream of one task for one client: the task as it is now, then its events in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from dragoman.a2a.server.task import CORE_STATES, A2aTask, Event, read_events, render_task
from dragoman.core.tasks import ENDS, INPUT_REQUIRED, Entry

READ_BYTES = 256 * 1024
"""Bytes that are read from the store for one client until it has taken them."""


class TaskStream:
    """The events of a task after a given number, until the stream ends. Without a task, `first` is
    the only event."""

    def __init__(
        self, task: A2aTask | None, after: int, first: Event | None, seconds: float
    ) -> None:
        self._task = task
        self.number = after
        """Of the last event that was taken from the stream."""
        self._first = first
        self._until = asyncio.get_running_loop().time() + seconds
        self._woken: asyncio.Future[None] | None = None
        self._stop = task.watch(self._wake) if task is not None else _do_nothing
        self.ended = False
        self.on_close: Callable[[TaskStream], None] = _do_nothing

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def render_task(self) -> dict[str, Any] | None:
        """The task as it is now; None for a stream without a task."""
        return render_task(self._task) if self._task is not None else None

    @property
    def is_running(self) -> bool:
        return self._task is not None and self._task.running

    def close(self) -> None:
        self._stop()
        # Breaks the reference cycle, which would wait for the garbage collector.
        self._stop = _do_nothing
        self.ended = True
        self._wake()
        self.on_close(self)

    async def next(self, seconds: float) -> list[tuple[int, Event, bool]]:
        """The next events: number, event, whether it is the last of this stream. Empty if there are
        none for `seconds`. All of them are stored by then."""
        task = self._task
        if self._first is not None:
            first, self._first = self._first, None
            if task is None or (task.finished and not read_events(task, self.number, READ_BYTES)):
                self.ended = True
            if task is not None and task.registry is not None:
                task.registry.flush()
            return [(self.number, first, self.ended)]
        if task is None or self.ended:
            self.ended = True
            return []
        found = self._take_events(task)
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
        return [] if self.ended else self._take_events(task)

    def _take_events(self, task: A2aTask) -> list[tuple[int, Event, bool]]:
        if task.registry is not None:
            task.registry.flush()
        found = []
        for entry in read_events(task, self.number, READ_BYTES):
            self.number = entry.number
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


def _do_nothing(*_: TaskStream) -> None: ...


def _is_last(entry: Entry) -> bool:
    """1.0, 3.1.2 and 11.7: a stream ends with its task, and when that requires input. A login
    happens elsewhere, and the stream continues."""
    update = entry.event.get("statusUpdate")
    if update is None:
        return False
    state = CORE_STATES[update["status"]["state"]]
    return state in ENDS or state == INPUT_REQUIRED
