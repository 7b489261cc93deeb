"""Runs what takes long to compute in a thread, so that the event loop serves others meanwhile.

A thread cannot be stopped, so everything that runs here is bounded by itself; the deadline ends the
wait of its caller. No caller gets more than a share of the few threads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from dragoman.core.errors import Overloaded

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeavyWorkLimits:
    threads: int = 1
    """One: threads that compute take turns with the event loop, which would wait for each."""
    begun: int = 16
    """Requests that run or wait."""
    begun_each: int = 2
    """Those of one caller."""
    seconds: float = 10.0
    """How long a caller waits for its result."""


class HeavyWork:
    def __init__(self, name: str, limits: HeavyWorkLimits | None = None) -> None:
        """`name` says what is computed, as error messages call it."""
        self._name = name
        self._limits = limits or HeavyWorkLimits()
        self._pool: ThreadPoolExecutor | None = None
        self._begun: Counter[str] = Counter()

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Returns what `work` returns. Raises `Overloaded` if too much is begun already, of this
        caller or of all, or if it takes too long."""
        limits = self._limits
        if self._begun[caller] >= limits.begun_each or self._begun.total() >= limits.begun:
            raise Overloaded(f"too many requests to {self._name} at once; wait for the answers")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(limits.threads, "heavy work")
        job = self._pool.submit(work)
        future = asyncio.wrap_future(job)
        self._begun[caller] += 1
        # Counted until it has ended, however long its caller waits.
        future.add_done_callback(lambda ended: self._finish(caller, ended))
        try:
            done, _ = await asyncio.wait((future,), timeout=limits.seconds)
        finally:
            job.cancel()  # unless it has begun
        if not done:
            raise Overloaded(f"it took longer than {limits.seconds:g} s to {self._name}")
        return future.result()

    def _finish(self, caller: str, ended: asyncio.Future[T]) -> None:
        if not ended.cancelled():
            ended.exception()  # seen, whether or not its caller still waits
        self._begun[caller] -= 1
        if not self._begun[caller]:
            del self._begun[caller]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
