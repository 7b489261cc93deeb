from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.errors import Denied, HubError, NotFound, Overloaded, Unreachable
from dragoman.core.events import Event, PostVerb, PreVerb, ToolCall, ToolResult, VerbError
from dragoman.core.pipeline import Next, build_pipeline
from dragoman.core.principal import LOCAL, OWNER, Principal
from dragoman.core.tool import build_missing_tool
from dragoman.core.trace import new_trace
from dragoman.guards.announce import Announce


def a_call(caller: Principal = OWNER) -> Call:
    return Call(
        principal=caller,
        tool=build_missing_tool("files.read", NotFound("nowhere")),
        requested_name="x",
        arguments={},
        trace=new_trace(),
        door="test",
    )


def listening(bus: Bus) -> list[Any]:
    heard: list[Event] = []
    for kind in (PreVerb, PostVerb, VerbError):
        bus.observe(kind, heard.append)
    return heard


def guarded(bus: Bus, target: Next, limit: int = 100) -> Next:
    return build_pipeline([Announce(bus, limit)], target)


async def answers(call: Call) -> Result:
    return Result(content=["x"])


async def test_call_is_announced_before_and_after() -> None:
    bus = Bus()
    heard = listening(bus)
    made = a_call()
    result = await guarded(bus, answers)(made)
    before, after = heard
    assert isinstance(before, PreVerb) and before.call is made
    assert (after.call, after.outcome, after.result, after.error) == (
        made,
        "completed",
        result,
        None,
    )
    assert after.duration_ms >= 0


async def test_tool_error_is_announced_as_failed_without_an_error() -> None:
    bus = Bus()
    heard = listening(bus)

    async def fails(call: Call) -> Result:
        return Result(failed=True)

    await guarded(bus, fails)(a_call())
    assert [type(event) for event in heard] == [PreVerb, PostVerb]
    assert (heard[1].outcome, heard[1].error) == ("failed", None)


@pytest.mark.parametrize("problem", [Unreachable("gone"), Denied("no"), NotFound("none")])
async def test_error_is_announced_as_failed_and_by_kind(problem: HubError) -> None:
    bus = Bus()
    heard = listening(bus)

    async def fails(call: Call) -> Result:
        raise problem

    with pytest.raises(type(problem)):
        await guarded(bus, fails)(a_call())
    assert [type(event) for event in heard] == [PreVerb, PostVerb, VerbError]
    assert (heard[1].outcome, heard[1].error, heard[2].error) == ("failed", problem, problem)


async def test_gate_refuses_before_the_target_and_is_announced() -> None:
    bus = Bus()
    heard = listening(bus)
    reached: list[Call] = []

    async def target(call: Call) -> Result:
        reached.append(call)
        return Result()

    async def refuses(event: PreVerb) -> None:
        raise Denied("not today")

    bus.gate("mood", refuses)
    with pytest.raises(Denied, match="not today"):
        await guarded(bus, target)(a_call())
    assert reached == []
    assert [type(event) for event in heard] == [PreVerb, PostVerb, VerbError]


async def test_gate_runs_without_listeners() -> None:
    bus = Bus()

    async def refuses(event: PreVerb) -> None:
        raise Denied("no")

    bus.gate("g", refuses)
    with pytest.raises(Denied):
        await guarded(bus, answers)(a_call())


async def test_excess_call_is_refused_until_one_ends() -> None:
    bus = Bus()
    heard = listening(bus)
    go = asyncio.Event()

    async def waits(call: Call) -> Result:
        await go.wait()
        return Result()

    announce = Announce(bus, 2)
    call = build_pipeline([announce], waits)
    running = [asyncio.ensure_future(call(a_call(one))) for one in (OWNER, LOCAL)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as raised:
        await call(a_call(Principal("key", "third")))
    assert str(raised.value) == (
        '"files.read" was refused: 2 calls are running; try again shortly or raise [limits] '
        "calls_in_flight"
    )
    assert [type(event) for event in heard[-2:]] == [PostVerb, VerbError]
    running[0].cancel()
    await asyncio.gather(running[0], return_exceptions=True)
    go.set()
    await call(a_call())
    await running[1]
    assert announce.running == 0


async def test_principal_has_half_of_the_call_slots() -> None:
    go = asyncio.Event()

    async def waits(call: Call) -> Result:
        await go.wait()
        return Result()

    announce = Announce(Bus(), 5)
    call = build_pipeline([announce], waits)
    running = [asyncio.ensure_future(call(a_call())) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(
        Overloaded, match="3 calls of owner:owner are running, half of the limit for all"
    ):
        await call(a_call())
    running += [asyncio.ensure_future(call(a_call(LOCAL))) for _ in range(2)]
    await asyncio.sleep(0)
    assert announce.running == 5
    go.set()
    await asyncio.gather(*running)
    await call(a_call())
    assert announce.running == 0 and not announce._of


async def test_cancelled_call_is_announced_as_failed_and_frees_its_slot() -> None:
    bus = Bus()
    heard = listening(bus)
    begun = asyncio.Event()

    async def waits(call: Call) -> Result:
        begun.set()
        await asyncio.sleep(60)
        raise AssertionError

    announce = Announce(bus, 1)
    task = asyncio.ensure_future(build_pipeline([announce], waits)(a_call()))
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [type(event) for event in heard] == [PreVerb, PostVerb]
    assert heard[1].outcome == "failed"
    assert announce.running == 0


async def test_failing_observer_does_not_affect_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus()

    def fails(event: object) -> None:
        raise RuntimeError

    for kind in (PreVerb, PostVerb, VerbError):
        bus.observe(kind, fails)
    assert (await guarded(bus, answers)(a_call())).content == ["x"]
    assert caplog.text.count("an observer of") == 2


@pytest.mark.parametrize("kind", [ToolCall, ToolResult])
async def test_an_agents_call_reaches_an_observer_of_either_end(kind: type[Event]) -> None:
    bus = Bus()
    heard: list[Any] = []
    bus.observe(PreVerb, lambda event: None)
    end = bus.observe(kind, heard.append)
    made = a_call(Principal("key", "bot", serves="bot"))
    await guarded(bus, answers)(made)
    assert [(type(event), event.call) for event in heard] == [(kind, made)]
    await guarded(bus, answers)(a_call())
    end()
    await guarded(bus, answers)(made)
    assert len(heard) == 1
