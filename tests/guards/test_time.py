from __future__ import annotations

import asyncio
import time

import pytest

from dragoman.core.call import Call, Result
from dragoman.core.errors import NotFound, TimedOut
from dragoman.core.pipeline import Next, compose
from dragoman.core.principal import OWNER
from dragoman.core.tool import tool_nowhere
from dragoman.core.trace import new_trace
from dragoman.guards.config import Limits
from dragoman.guards.time import Time

pytestmark = pytest.mark.promise("P3")


def a_call() -> Call:
    return Call(
        caller=OWNER,
        tool=tool_nowhere("files.read", NotFound("nowhere")),
        asked_as="x",
        arguments={},
        trace=new_trace(),
        door="test",
        extra={},
    )


def road(target: Next, seconds: float = 0.05) -> Next:
    return compose([Time(seconds)], target)


def test_a_tool_has_sixty_seconds_unless_it_is_set() -> None:
    assert Limits().tool_timeout_secs == 60


async def test_a_target_that_takes_too_long_is_stopped_and_its_caller_told() -> None:
    stopped = asyncio.Event()

    async def sleeps(call: Call) -> Result:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        raise AssertionError

    begun = time.monotonic()
    with pytest.raises(TimedOut) as raised:
        await road(sleeps)(a_call())
    assert time.monotonic() - begun < 5
    assert stopped.is_set()
    assert str(raised.value) == (
        '"files.read" took longer than 0.05 s and was told to stop; raise [limits] '
        "tool_timeout_secs if it needs more"
    )


async def test_a_target_in_time_is_not_touched() -> None:
    async def answers(call: Call) -> Result:
        return Result(content=["x"])

    assert (await road(answers)(a_call())).content == ["x"]


async def test_a_timeout_of_the_targets_own_stays_its_own() -> None:
    async def fails(call: Call) -> Result:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await road(fails, 60)(a_call())


async def test_a_caller_who_leaves_is_gone_and_not_timed_out() -> None:
    begun = asyncio.Event()

    async def sleeps(call: Call) -> Result:
        begun.set()
        await asyncio.sleep(60)
        raise AssertionError

    task = asyncio.create_task(road(sleeps, 60)(a_call()))  # type: ignore[arg-type]
    await asyncio.wait_for(begun.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
