from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from dragoman.core import structs
from dragoman.core.call import (
    Call,
    LogMessage,
    Progress,
    Result,
    TaskStarted,
    Update,
    WantedUpdates,
)
from dragoman.core.errors import NotFound, TimedOut
from dragoman.core.pipeline import Next, build_pipeline
from dragoman.core.principal import OWNER
from dragoman.core.tool import AgentFacts, TargetTraits, Tool, build_missing_tool
from dragoman.core.trace import new_trace
from dragoman.guards.config import Limits
from dragoman.guards.timeout import Timeout

pytestmark = pytest.mark.promise("P3")


def a_call() -> Call:
    return Call(
        principal=OWNER,
        tool=build_missing_tool("files.read", NotFound("nowhere")),
        requested_name="x",
        arguments={},
        trace=new_trace(),
        door="test",
    )


def guarded(target: Next, seconds: float = 0.05) -> Next:
    return build_pipeline([Timeout(seconds)], target)


def test_default_tool_timeout_is_sixty_seconds() -> None:
    assert Limits().tool_timeout_secs == 60


async def test_slow_target_is_cancelled_with_a_timeout() -> None:
    stopped = asyncio.Event()

    async def sleeps(call: Call) -> Result:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        raise AssertionError

    begun = time.monotonic()
    with pytest.raises(TimedOut) as raised:
        await guarded(sleeps)(a_call())
    assert time.monotonic() - begun < 30
    assert stopped.is_set()
    assert str(raised.value) == (
        '"files.read" took longer than 0.05 s and was cancelled; raise [limits] '
        "tool_timeout_secs if it needs more"
    )


async def test_agent_has_the_task_timeout() -> None:
    agent = replace(a_call().tool, agent=AgentFacts(name="a", description="a"))
    call = structs.replace(a_call(), tool=agent)

    async def works(call: Call) -> Result:
        await asyncio.sleep(0.2)
        return Result(content=["done"])

    stages = Timeout(0.05, with_progress=0.06, as_task=10)
    assert (await build_pipeline([stages], works)(call)).content == ["done"]
    with pytest.raises(TimedOut, match=r"0.1 s and .* raise \[limits\] task_timeout_secs"):
        await build_pipeline([Timeout(0.05, as_task=0.1)], works)(call)


async def test_fast_target_is_unaffected() -> None:
    async def answers(call: Call) -> Result:
        return Result(content=["x"])

    assert (await guarded(answers)(a_call())).content == ["x"]


async def test_target_timeout_is_passed_on() -> None:
    async def fails(call: Call) -> Result:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await guarded(fails, 60)(a_call())


async def test_cancelled_caller_is_not_a_timeout() -> None:
    begun = asyncio.Event()

    async def sleeps(call: Call) -> Result:
        begun.set()
        await asyncio.sleep(60)
        raise AssertionError

    task = asyncio.ensure_future(guarded(sleeps, 60)(a_call()))
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class LastingTarget:
    """A target whose calls may become remote tasks."""

    name = "lasts"
    traits = TargetTraits(may_last=True)

    async def run(self, call: Call) -> Result:
        raise AssertionError


def a_call_that_may_last() -> Call:
    return structs.replace(
        a_call(), tool=Tool(name="t.x", alias="x", remote_name="x", target=LastingTarget())
    )


async def reports(call: Call, update: Update, every: float, until: float) -> Result:
    end = time.monotonic() + until
    while time.monotonic() < end:
        call.updates(update)
        await asyncio.sleep(every)
    return Result(content=["done"])


async def test_progress_restarts_the_tool_timeout() -> None:
    async def target(call: Call) -> Result:
        return await reports(call, Progress(progress=1), 0.05, 0.5)

    heard: list[Update] = []
    call = structs.replace(
        a_call(), wanted_updates=WantedUpdates(progress=True), updates=heard.append
    )
    guarded = build_pipeline([Timeout(0.2, 5)], target)
    assert (await guarded(call)).content == ["done"]
    assert len(heard) > 2, "and the caller still hears of it"


async def test_progress_extends_time_up_to_a_maximum() -> None:
    async def target(call: Call) -> Result:
        return await reports(call, Progress(progress=1), 0.05, 30)

    begun = time.monotonic()
    call = structs.replace(a_call(), wanted_updates=WantedUpdates(progress=True))
    with pytest.raises(TimedOut, match=r"longer than 0.5 s .* progress_timeout_secs"):
        await build_pipeline([Timeout(0.2, 0.5)], target)(call)
    assert 0.4 < time.monotonic() - begun < 30


async def test_tool_silent_after_progress_times_out() -> None:
    async def target(call: Call) -> Result:
        call.updates(Progress(progress=1))
        return await asyncio.sleep(30, Result())

    begun = time.monotonic()
    call = structs.replace(a_call(), wanted_updates=WantedUpdates(progress=True))
    with pytest.raises(TimedOut, match="tool_timeout_secs"):
        await build_pipeline([Timeout(0.2, 20)], target)(call)
    assert time.monotonic() - begun < 30


async def test_tool_messages_do_not_extend_the_timeout() -> None:
    async def target(call: Call) -> Result:
        return await reports(call, LogMessage(level="info", data="x"), 0.05, 30)

    call = structs.replace(a_call(), wanted_updates=WantedUpdates(log_level="debug"))
    with pytest.raises(TimedOut):
        await build_pipeline([Timeout(0.2, 20)], target)(call)


async def test_call_turned_task_has_the_task_timeout() -> None:
    async def target(call: Call) -> Result:
        call.updates(TaskStarted())
        return await asyncio.sleep(0.5, Result(content=["done"]))

    assert (
        await build_pipeline([Timeout(0.1, 0.2, 5)], target)(a_call_that_may_last())
    ).content == ["done"]
    with pytest.raises(TimedOut, match=r"longer than 0.3 s .* task_timeout_secs"):
        await build_pipeline([Timeout(0.1, 0.2, 0.3)], target)(a_call_that_may_last())


async def test_target_timeout_passes_where_progress_extends_time() -> None:
    async def fails(call: Call) -> Result:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await build_pipeline([Timeout(60)], fails)(a_call_that_may_last())


async def test_late_update_changes_nothing() -> None:
    kept: list[Call] = []

    async def target(call: Call) -> Result:
        kept.append(call)
        return Result()

    await build_pipeline([Timeout(0.2, 20, 20)], target)(a_call_that_may_last())
    kept[0].updates(TaskStarted())


async def test_tool_that_waits_for_a_call_has_more_time_than_that_call() -> None:
    class Waiting:
        name = "builtin"
        traits = TargetTraits(may_last=True, is_reentrant=True)

        async def run(self, call: Call) -> Result:
            raise NotImplementedError

    stage = Timeout(0.05, as_task=0.3)
    agent = replace(a_call().tool, name="slow", agent=AgentFacts(name="a", description="a"))

    async def hang(call: Call) -> Result:
        if call.tool is agent:
            await asyncio.sleep(60)
        for _ in range(2):  # the second attempt has as much time as the first
            call.updates(TaskStarted(is_timed=True))
            with pytest.raises(TimedOut, match='"slow" took longer than'):
                await pipeline(structs.replace(call, tool=agent))
        return Result()

    pipeline = build_pipeline([stage], hang)
    outer = replace(a_call().tool, name="agent_send", target=Waiting())
    assert await pipeline(structs.replace(a_call(), tool=outer)) == Result()
