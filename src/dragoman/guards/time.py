"""How long a target may take. Innermost: times the target, not the guards."""

from __future__ import annotations

import asyncio

from dragoman.core.call import Call, Result
from dragoman.core.errors import TimedOut
from dragoman.core.pipeline import Next


class Time:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, call: Call, next: Next) -> Result:
        # What `asyncio.timeout` does, in a third of its time: this is on every call's way.
        task = asyncio.current_task(self._loop) if self._loop is not None else None
        if task is None:
            self._loop = asyncio.get_running_loop()
            task = asyncio.current_task(self._loop)
            assert task is not None
        expired = False
        pending = task.cancelling()

        def expire() -> None:
            nonlocal expired
            expired = True
            task.cancel()

        timer = task.get_loop().call_later(self.seconds, expire)
        try:
            return await next(call)
        except asyncio.CancelledError:
            if not expired or task.uncancel() > pending:
                raise
            raise TimedOut(
                f'"{call.tool.name}" took longer than {self.seconds:g} s and was told to stop; '
                "raise [limits] tool_timeout_secs if it needs more"
            ) from None
        finally:
            timer.cancel()
