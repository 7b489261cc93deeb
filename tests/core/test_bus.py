from __future__ import annotations

import asyncio
import logging

import pytest

from dragoman.core.bus import MAX_FAILURES, Bus
from dragoman.core.call import Call
from dragoman.core.errors import Denied, NotFound
from dragoman.core.events import PostVerb, PreVerb, ServerChanged
from dragoman.core.principal import OWNER
from dragoman.core.tool import build_missing_tool
from dragoman.core.trace import new_trace


def about_to(name: str = "files.read") -> PreVerb:
    return PreVerb(
        Call(
            principal=OWNER,
            tool=build_missing_tool(name, NotFound("nowhere")),
            requested_name=name,
            arguments={},
            trace=new_trace(),
            door="test",
        )
    )


def test_an_observer_hears_its_kind_of_event_and_no_other() -> None:
    bus = Bus()
    heard: list[object] = []
    bus.observe(ServerChanged, heard.append)
    assert bus.is_observed(ServerChanged) and not bus.is_observed(PostVerb)
    bus.emit(about_to())
    changed = ServerChanged("a", "connected", "")
    bus.emit(changed)
    assert heard == [changed]


def test_an_observer_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    heard: list[object] = []

    def fails(event: object) -> None:
        raise RuntimeError("observer")

    bus.observe(PreVerb, fails)
    bus.observe(PreVerb, heard.append)
    with caplog.at_level(logging.ERROR):
        bus.emit(about_to())
    assert len(heard) == 1
    assert "an observer of PreVerb failed" in caplog.text


async def test_a_gate_may_refuse_with_words_of_its_own() -> None:
    bus = Bus()

    async def refuses(event: PreVerb) -> None:
        raise Denied(f"not {event.call.tool.name}")

    async def passes(event: PreVerb) -> None:
        return None

    before = bus.has_call_observers
    await bus.ask_gates(about_to())
    bus.gate("passes", passes)
    await bus.ask_gates(about_to())
    bus.gate("refuses", refuses)
    assert bus.has_call_observers and not before
    with pytest.raises(Denied, match=r"^not files\.read$"):
        await bus.ask_gates(about_to())


@pytest.mark.parametrize("problem", [RuntimeError("broken"), NotFound("odd"), TimeoutError()])
async def test_a_gate_that_fails_refuses(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()

    async def fails(event: PreVerb) -> None:
        raise problem

    bus.gate("careful", fails)
    with caplog.at_level(logging.ERROR), pytest.raises(Denied) as raised:
        await bus.ask_gates(about_to())
    assert str(raised.value) == '"files.read" was refused: the gate "careful" failed'
    assert raised.value.__cause__ is problem


async def test_a_gate_that_takes_too_long_refuses(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    ended = asyncio.Event()

    async def sleeps(event: PreVerb) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    bus.gate("slow", sleeps)
    with caplog.at_level(logging.ERROR), pytest.raises(Denied, match='the gate "slow" failed'):
        await bus.ask_gates(about_to())
    assert ended.is_set()


async def test_a_caller_who_leaves_while_a_gate_thinks_is_not_refused_but_gone() -> None:
    bus = Bus()
    asked = asyncio.Event()

    async def thinks(event: PreVerb) -> None:
        asked.set()
        await asyncio.sleep(60)

    bus.gate("thinks", thinks)
    task = asyncio.create_task(bus.ask_gates(about_to()))
    await asyncio.wait_for(asked.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_gate_that_outlives_its_time_refuses_even_where_it_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus(gate_seconds=0.01)

    async def stubborn(event: PreVerb) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    bus.gate("stubborn", stubborn)
    with caplog.at_level(logging.ERROR), pytest.raises(Denied, match='the gate "stubborn" failed'):
        await bus.ask_gates(about_to())


async def test_gates_have_the_time_that_is_set(caplog: pytest.LogCaptureFixture) -> None:
    async def thinks(event: PreVerb) -> None:
        await asyncio.sleep(0.05)

    patient, hasty = Bus(gate_seconds=30), Bus(gate_seconds=0.005)
    for bus in (patient, hasty):
        bus.gate("thinks", thinks)
    await patient.ask_gates(about_to())
    with pytest.raises(Denied):
        await hasty.ask_gates(about_to())


def test_an_observer_can_leave_and_then_nothing_is_made_for_it() -> None:
    bus = Bus()
    heard: list[object] = []
    leave = bus.observe(PreVerb, heard.append)
    stay: list[object] = []
    bus.observe(PostVerb, stay.append)
    bus.emit(about_to())
    assert (bus.has_call_observers, bus.is_observed(PreVerb)) == (True, True)
    leave()
    bus.emit(about_to())
    assert len(heard) == 1
    assert not bus.has_call_observers and not bus.is_observed(PreVerb) and bus.is_observed(PostVerb)


@pytest.mark.promise("R8")
def test_an_observer_that_always_fails_is_let_go_and_the_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus()
    heard: list[object] = []
    tries: list[object] = []

    def fails(event: object) -> None:
        tries.append(event)
        raise RuntimeError("again")

    bus.observe(PreVerb, fails, "the broken one")
    bus.observe(PreVerb, heard.append)
    for _ in range(MAX_FAILURES + 50):
        bus.emit(about_to())
    assert len(tries) == MAX_FAILURES and len(heard) == MAX_FAILURES + 50
    assert f"the broken one of PreVerb failed {MAX_FAILURES} times in a row" in caplog.text


def test_an_observer_that_fails_now_and_then_stays(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    tries: list[object] = []

    def moody(event: object) -> None:
        tries.append(event)
        if len(tries) % MAX_FAILURES:
            raise RuntimeError("mood")

    bus.observe(PreVerb, moody)
    for _ in range(3 * MAX_FAILURES):
        bus.emit(about_to())
    assert len(tries) == 3 * MAX_FAILURES


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), SystemExit(3)])
def test_an_observer_can_end_neither_the_call_nor_the_hub(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()

    def leaves(event: object) -> None:
        raise raised

    bus.observe(PreVerb, leaves)
    bus.emit(about_to())
    assert "an observer of PreVerb failed" in caplog.text


def test_an_observer_that_would_never_be_awaited_is_refused() -> None:
    async def observer(event: PreVerb) -> None:
        return None

    bus = Bus()
    with pytest.raises(TypeError, match="use follow"):
        bus.observe(PreVerb, observer)  # type: ignore[arg-type]
    assert not bus.is_observed(PreVerb)


async def test_a_follower_is_told_in_order_and_nobody_waits_for_it() -> None:
    bus = Bus()
    told: list[object] = []
    go, done = asyncio.Event(), asyncio.Event()

    async def follow(event: object) -> None:
        await go.wait()
        told.append(event)
        if len(told) == 3:
            done.set()

    bus.follow([ServerChanged, PostVerb], "a slow one", follow)
    events = [ServerChanged("a", state, "") for state in ("starting", "connected", "stopped")]
    for event in events:
        bus.emit(event)
    assert told == [] and bus.is_observed(ServerChanged) and not bus.has_call_observers
    go.set()
    await asyncio.wait_for(done.wait(), 5)
    assert told == events
    await bus.close()


@pytest.mark.promise("R8")
async def test_what_is_too_much_for_a_follower_is_dropped_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus()
    told: list[object] = []
    go = asyncio.Event()

    async def follow(event: object) -> None:
        await go.wait()
        told.append(event)

    follower = bus.follow([ServerChanged], "a slow one", follow, most=10)
    for _ in range(100):
        bus.emit(ServerChanged("a", "connected", ""))
    assert follower.dropped == 90
    assert "a slow one is too slow: 64 events were dropped" in caplog.text
    go.set()
    await bus.close()
    assert len(told) == 10


async def test_a_follower_that_fails_goes_on_and_one_that_always_does_is_let_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus()
    tries: list[object] = []
    let_go = asyncio.Event()

    async def fails(event: object) -> None:
        tries.append(event)
        if len(tries) == MAX_FAILURES:
            let_go.set()
        raise RuntimeError("again")

    bus.follow([ServerChanged], "the broken one", fails)
    for _ in range(MAX_FAILURES + 20):
        bus.emit(ServerChanged("a", "connected", ""))
    await asyncio.wait_for(let_go.wait(), 5)
    await bus.close()
    assert len(tries) == MAX_FAILURES and not bus.is_observed(ServerChanged)
    assert "the broken one failed 100 times in a row" in caplog.text


async def test_a_follower_that_rests_is_woken_by_the_next_event() -> None:
    bus = Bus()
    told: asyncio.Queue[object] = asyncio.Queue()

    async def follow(event: object) -> None:
        told.put_nowait(event)

    bus.follow([ServerChanged], "one", follow)
    for turn in range(5):
        bus.emit(ServerChanged("a", str(turn), ""))
        await asyncio.wait_for(told.get(), 5)
        for _ in range(turn):
            await asyncio.sleep(0)
    await bus.close()


async def test_an_event_that_comes_when_a_follower_is_just_done_is_told_too() -> None:
    bus = Bus()
    told: asyncio.Queue[object] = asyncio.Queue()
    last = ServerChanged("a", "stopped", "")

    async def follow(event: object) -> None:
        told.put_nowait(event)
        if event is not last:  # comes after its task has ended, before that is noticed
            asyncio.get_running_loop().call_soon(bus.emit, last)

    bus.follow([ServerChanged], "one", follow)
    bus.emit(ServerChanged("a", "connected", ""))
    await asyncio.wait_for(told.get(), 5)
    assert await asyncio.wait_for(told.get(), 5) is last
    await bus.close()


async def test_a_follower_that_never_ends_does_not_keep_the_hub_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.core.bus.CLOSE_SECONDS", 0.01)
    bus = Bus()
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hangs(event: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    bus.follow([ServerChanged], "one", hangs)
    bus.emit(ServerChanged("a", "connected", ""))
    await asyncio.wait_for(begun.wait(), 5)
    await asyncio.wait_for(bus.close(), 5)
    assert ended.is_set()
