"""Work that is seen through although whoever asked for it may leave: half of it would be worse."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_under_way: set[asyncio.Task[Any]] = set()
"""The loop itself holds on to no task."""


async def seen_through(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.get_running_loop().create_task(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    return await asyncio.shield(task)
