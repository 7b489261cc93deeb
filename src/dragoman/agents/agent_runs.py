"""The running calls of one agent, which end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.core.call import Call, Result
from dragoman.core.errors import WorkFailed


class _Run:
    __slots__ = ("is_ended", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.is_ended = False


class AgentRuns:
    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._running: set[_Run] = set()
        self._ended = False

    async def run(self, work: Callable[[Call], Awaitable[Result]], call: Call) -> Result:
        """Does the work of one call. Raises `WorkFailed` when the agent is ended."""
        if self._ended:
            raise self._build_error()
        task = asyncio.current_task()
        assert task is not None
        run, pending = _Run(task), task.cancelling()
        self._running.add(run)
        try:
            return await work(call)
        except asyncio.CancelledError:
            if not run.is_ended or task.uncancel() > pending:
                raise  # the caller has cancelled it
            raise self._build_error() from None
        finally:
            self._running.discard(run)

    def _build_error(self) -> WorkFailed:
        return WorkFailed(f'agent "{self._agent}" was ended before it answered')

    def end(self) -> None:
        """Cancels what runs, down to its connections and processes, and refuses what comes."""
        self._ended = True
        for run in self._running:
            if not run.is_ended:
                run.is_ended = True
                run.task.cancel()
