"""A few threads for blocking work of the tools, so that it does not stop the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

MAX_THREADS = 4


class ToolThreads:
    """Work continues if its caller is cancelled: a thread cannot be stopped. Everything that runs
    here is bounded."""

    def __init__(self, most: int = MAX_THREADS) -> None:
        self._pool = ThreadPoolExecutor(most, "tools")

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
