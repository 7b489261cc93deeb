from __future__ import annotations

import asyncio

import pytest

from dragoman.core.deadlines import Deadlines


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()


async def test_expired_deadlines_fire_in_start_order() -> None:
    limits = Deadlines(0.02)
    loop = asyncio.get_running_loop()
    called: list[str] = []
    over = asyncio.Event()

    def end() -> None:
        called.append("last")
        over.set()

    limits.start(loop, lambda: called.append("first"))
    ended = limits.start(loop, lambda: called.append("ended"))
    limits.start(loop, end)
    limits.cancel(ended)
    begun = loop.time()
    await until(over)
    assert called == ["first", "last"] and loop.time() - begun >= 0.015
    assert not len(limits)


async def test_later_deadline_fires_later_and_an_idle_one_restarts() -> None:
    limits = Deadlines(0.03)
    loop = asyncio.get_running_loop()
    for _ in range(2):
        over = asyncio.Event()
        begun: list[float] = []
        limits.cancel(limits.start(loop, lambda: pytest.fail("it was ended")))
        await asyncio.sleep(0.01)
        begun.append(loop.time())
        limits.start(loop, over.set)
        await until(over)
        assert loop.time() - begun[0] >= 0.025
        limits.cancel(10_000)  # none of those


def test_another_event_loop_starts_fresh() -> None:
    limits = Deadlines(0.01)

    async def one() -> None:
        over = asyncio.Event()
        limits.start(asyncio.get_running_loop(), over.set)
        await until(over)

    async def left() -> None:
        limits.start(asyncio.get_running_loop(), lambda: None)

    asyncio.run(left())
    asyncio.run(one())
