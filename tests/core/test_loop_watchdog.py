"""The watchdog of the event loop, on a loop that is really held."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from types import FunctionType

import pytest

from dragoman.core.loop_watchdog import SEVERAL, LoopWatchdog

HOLD = 0.05


@pytest.fixture
async def watchdog() -> AsyncIterator[LoopWatchdog]:
    watchdog = LoopWatchdog(HOLD)
    watchdog.start()
    yield watchdog
    watchdog.stop()


def list_held(watchdog: LoopWatchdog) -> dict[str, int]:
    """How often each function was counted."""
    counted, _ = watchdog.collect()
    return {labels["handler"]: int(value) for labels, value in counted.values}


async def hold_until(watchdog: LoopWatchdog, hold: Callable[[], object], name: str) -> None:
    """Holds the loop until it is noticed: on a busy machine the watchdog may oversleep one."""
    async with asyncio.timeout(60):
        while name not in list_held(watchdog):
            hold()
            await asyncio.sleep(HOLD)


def compute() -> None:
    until = time.thread_time() + 4 * HOLD
    while time.thread_time() < until:
        pass


def wait() -> None:
    time.sleep(4 * HOLD)


@pytest.mark.parametrize("hold", [compute, wait])
async def test_function_that_holds_the_loop_is_named(
    watchdog: LoopWatchdog, hold: Callable[[], None]
) -> None:
    await hold_until(watchdog, hold, f"{__name__}.{hold.__qualname__}")
    counted, spent = watchdog.collect()
    name = {"handler": f"{__name__}.{hold.__qualname__}"}
    (count,) = (value for labels, value in counted.values if labels == name)
    (milliseconds,) = (value for labels, value in spent.values if labels == name)
    assert milliseconds >= count * HOLD * 1000 / 2


async def test_innermost_function_of_the_hub_is_named(watchdog: LoopWatchdog) -> None:
    of_the_hub = FunctionType(
        (lambda: compute()).__code__, {"__name__": "dragoman.web.x", "compute": compute}
    )
    name = f"web.x.{of_the_hub.__code__.co_qualname}"
    await hold_until(watchdog, of_the_hub, name)
    assert f"{__name__}.compute" not in list_held(watchdog)


async def test_many_short_callbacks_are_no_functions_fault(watchdog: LoopWatchdog) -> None:
    def take_a_moment() -> None:
        until = time.thread_time() + 0.0005
        while time.thread_time() < until:
            pass

    def fill() -> None:
        for _ in range(1_000):
            asyncio.get_running_loop().call_soon(take_a_moment)

    await hold_until(watchdog, fill, SEVERAL)


async def test_loop_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dragoman.core.loop_watchdog")
    watchdog = LoopWatchdog(HOLD)
    watchdog.start()
    async with asyncio.timeout(60):
        while sum(list_held(watchdog).values()) < 3:
            compute()
            await asyncio.sleep(HOLD)
    watchdog.stop()
    (record,) = caplog.records
    assert "the event loop was held for" in record.message
    assert "compute" in record.message


async def test_a_loop_that_gives_way_is_not_named(watchdog: LoopWatchdog) -> None:
    until = time.thread_time() + 4 * HOLD
    while time.thread_time() < until:
        await asyncio.sleep(0)
    assert f"{__name__}.compute" not in list_held(watchdog)


async def test_nothing_is_watched_with_a_threshold_of_zero() -> None:
    watchdog = LoopWatchdog(0)
    watchdog.start()
    compute()
    await asyncio.sleep(0)
    assert list_held(watchdog) == {}
    watchdog.stop()
