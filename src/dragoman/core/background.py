"""Starts every asyncio task of the hub. Nothing else calls `create_task`.

`Background` is for work that runs beside its owner and that no caller awaits:

    self._background = Background("agent registry")
    self._background.spawn(self._notify(client))         # kept until done, failures are logged
    await self._background.run_to_completion(self._save())  # even if this caller is cancelled
    await self._background.close(grace=1.0)               # at stop: waits 1 s, then cancels

`start_task` is for a task that its owner keeps, awaits and cancels itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
STOPPING: Final = "the hub is stopping"
"""The reason with which tasks are cancelled whose work continues elsewhere, after the next start
too: what they have begun there is left alone."""


def resolve(future: asyncio.Future[T] | None, value: T) -> None:
    """Sets the result of a future, unless it is done or there is none."""
    if future is not None and not future.done():
        future.set_result(value)


def start_task(work: Work[T], loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Task[T]:
    """Starts a task whose owner keeps a reference to it: the loop itself keeps none."""
    return (loop or asyncio.get_running_loop()).create_task(work)


class Background:
    """The running tasks of one owner: referenced until done, and cancelled when it closes."""

    __slots__ = ("_closed", "_name", "_tasks")

    def __init__(self, name: str) -> None:
        """`name` is the owner, as log lines call it."""
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def __bool__(self) -> bool:
        return True  # an idle one is not an absent one

    def spawn(
        self, work: Work[T], loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Task[T]:
        """Starts `work`. An exception that it raises is logged. The returned task is for cancelling
        it early. After `close`, `work` is cancelled before its first step."""
        task = (loop or asyncio.get_running_loop()).create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        if self._closed:
            task.cancel()
        return task

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task of %s failed", self._name, exc_info=error)

    async def run_to_completion(self, work: Work[T]) -> T:
        """Runs `work` to its end even if the caller is cancelled, and returns its result."""
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._finish)  # the caller does not see a failure
            raise

    def cancel(self) -> None:
        """Cancels all tasks and returns at once; new ones can still be spawned."""
        for task in self._tasks:
            task.cancel()

    async def close(
        self, grace: float = 0.0, timeout: float = CLOSE_SECONDS, reason: str | None = None
    ) -> None:
        """Waits up to `grace` seconds for the tasks to end, then cancels them, for that reason, and
        waits up to `timeout` seconds: a task may ignore its cancellation."""
        self._closed = True
        if grace and (tasks := self._find_others()):
            await asyncio.wait(tasks, timeout=grace)
        if tasks := self._find_others():
            for task in tasks:
                task.cancel(reason)
            await asyncio.wait(tasks, timeout=timeout)

    def _find_others(self) -> set[asyncio.Task[Any]]:
        """The tasks, without the one that calls: it cannot wait for itself."""
        return self._tasks - {asyncio.current_task()}
