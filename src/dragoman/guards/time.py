"""How long a target may take. Innermost: times the target, not the guards."""

from __future__ import annotations

import asyncio

from dragoman.core.call import Call, Result
from dragoman.core.errors import TimedOut
from dragoman.core.pipeline import Next


class Time:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __call__(self, call: Call, next: Next) -> Result:
        try:
            async with asyncio.timeout(self.seconds) as limit:
                return await next(call)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut(
                f'"{call.tool.name}" took longer than {self.seconds:g} s and was told to stop; '
                "raise [limits] tool_timeout_secs if it needs more"
            ) from None
