"""Cancels tasks elsewhere that no step waits for any more, in the background: few at once, and
again for a while if the agent is unreachable."""

from __future__ import annotations

import asyncio
import logging

from dragoman.core.background import Background
from dragoman.core.backoff import Backoff
from dragoman.core.errors import PASSING, HubError
from dragoman.core.runs import Run, StepRecord
from dragoman.core.structs import Struct
from dragoman.workflows.parked_tasks import build_cancel
from dragoman.workflows.run_calls import RunCall, RunCalls

log = logging.getLogger(__name__)


class CancelLimits(Struct, frozen=True, kw_only=True):
    waiting: int = 10_000
    """Tasks that are to be cancelled."""
    at_once: int = 8
    attempts: int = 4
    """Of each, while its agent is unreachable."""
    first_pause: float = 1.0
    stop_secs: float = 1.0
    """How long they may take when the hub stops."""


class TaskCanceller:
    def __init__(self, calls: RunCalls, limits: CancelLimits) -> None:
        self._calls = calls
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.at_once)
        self._background = Background("cancelled tasks of workflow runs")

    def cancel(self, run: Run, record: StepRecord) -> None:
        """Cancels the task of a step, if it has one; returns at once."""
        call = build_cancel(record)
        if call is None:
            return
        if len(self._background) >= self._limits.waiting:
            log.warning('the task of step "%s" is not cancelled: too many are', record.path)
            return
        self._background.spawn(self._cancel(run, record.path, call))

    async def close(self) -> None:
        await self._background.close(grace=self._limits.stop_secs)

    async def _cancel(self, run: Run, path: str, call: RunCall) -> None:
        pauses = Backoff(self._limits.first_pause, 30.0)
        error: HubError | None = None
        for attempt in range(self._limits.attempts):
            if attempt:
                await asyncio.sleep(pauses.next_delay())
            error = await self._try(run, call)
            if not isinstance(error, PASSING):
                break
        if error is not None:
            said = 'the task of step "%s" of run "%s" could not be cancelled: %s'
            log.warning(said, path, run.id, error)

    async def _try(self, run: Run, call: RunCall) -> HubError | None:
        async with self._slots:
            try:
                return (await self._calls.make(run, run.labels, call, lambda update: None)).error
            except HubError as error:
                return error
