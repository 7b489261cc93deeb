"""A thread pool for functions that may never return.

The interpreter waits for the threads of the standard pool when it exits, so that one hanging
function would keep the hub from stopping. These are daemon threads. The queue needs no limit: the
number of calls in flight has one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any, NamedTuple


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Any]
    function: Callable[[Any], Any]
    given: Any


class AgentThreads:
    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._count = 0

    async def run(self, function: Callable[[Any], Any], given: Any) -> Any:
        """Runs the function in a thread. It continues if the caller is cancelled: a thread cannot
        be stopped."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        self._jobs.put(_Job(loop, outcome, function, given))
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            Thread(target=self._work, name=f"{self._name}-{self._count}", daemon=True).start()
        return await outcome

    def close(self) -> None:
        """Ends idle threads, and busy ones after their function."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.outcome.cancelled():
                result, error = _run_job(job)
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    job.loop.call_soon_threadsafe(_settle, job.outcome, result, error)
            del job
            self._idle.release()


def _run_job(job: _Job) -> tuple[Any, Exception | None]:
    try:
        return job.function(job.given), None
    except StopIteration as error:  # a future cannot hold it
        return None, RuntimeError(f"it raised {error!r}")
    except Exception as error:
        return None, error
    except BaseException as error:
        return None, RuntimeError(f"it tried to exit the hub: {error!r}")


def _settle(outcome: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
