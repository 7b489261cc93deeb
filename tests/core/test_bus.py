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


def test_observer_receives_only_its_event_kind() -> None:
    bus = Bus()
    received: list[object] = []
    bus.observe(ServerChanged, received.append)
    assert bus.is_observed(ServerChanged) and not bus.is_observed(PostVerb)
    bus.emit(about_to())
    changed = ServerChanged("a", "connected", "")
    bus.emit(changed)
    assert received == [changed]


def test_failing_observer_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    received: list[object] = []

    def fails(event: object) -> None:
        raise RuntimeError("observer")

    bus.observe(PreVerb, fails)
    bus.observe(PreVerb, received.append)
    with caplog.at_level(logging.ERROR):
        bus.emit(about_to())
    assert len(received) == 1
    assert "an observer of PreVerb failed" in caplog.text


async def test_gate_may_refuse_with_its_own_message() -> None:
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
async def test_failing_gate_refuses(problem: Exception, caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()

    async def fails(event: PreVerb) -> None:
        raise problem

    bus.gate("careful", fails)
    with caplog.at_level(logging.ERROR), pytest.raises(Denied) as raised:
        await bus.ask_gates(about_to())
    assert str(raised.value) == '"files.read" was refused: the gate "careful" failed'
    assert raised.value.__cause__ is problem


async def test_slow_gate_refuses(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_cancellation_during_a_gate_is_not_a_refusal() -> None:
    bus = Bus()
    asked = asyncio.Event()

    async def thinks(event: PreVerb) -> None:
        asked.set()
        await asyncio.sleep(60)

    bus.gate("thinks", thinks)
    task = asyncio.create_task(bus.ask_gates(about_to()))
    await asyncio.wait_for(asked.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_overdue_gate_refuses_even_if_silent(
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


async def test_gate_timeout_is_configurable(caplog: pytest.LogCaptureFixture) -> None:
    async def thinks(event: PreVerb) -> None:
        await asyncio.sleep(0.05)

    patient, hasty = Bus(gate_seconds=30), Bus(gate_seconds=0.005)
    for bus in (patient, hasty):
        bus.gate("thinks", thinks)
    await patient.ask_gates(about_to())
    with pytest.raises(Denied):
        await hasty.ask_gates(about_to())


def test_unsubscribed_observer_gets_no_events() -> None:
    bus = Bus()
    received: list[object] = []
    leave = bus.observe(PreVerb, received.append)
    stay: list[object] = []
    bus.observe(PostVerb, stay.append)
    bus.emit(about_to())
    assert (bus.has_call_observers, bus.is_observed(PreVerb)) == (True, True)
    leave()
    bus.emit(about_to())
    assert len(received) == 1
    assert not bus.has_call_observers and not bus.is_observed(PreVerb) and bus.is_observed(PostVerb)


@pytest.mark.promise("R8")
def test_always_failing_observer_is_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus()
    received: list[object] = []
    tries: list[object] = []

    def fails(event: object) -> None:
        tries.append(event)
        raise RuntimeError("again")

    bus.observe(PreVerb, fails, "the broken one")
    bus.observe(PreVerb, received.append)
    for _ in range(MAX_FAILURES + 50):
        bus.emit(about_to())
    assert len(tries) == MAX_FAILURES and len(received) == MAX_FAILURES + 50
    assert f"the broken one of PreVerb failed {MAX_FAILURES} times in a row" in caplog.text


def test_occasionally_failing_observer_stays(caplog: pytest.LogCaptureFixture) -> None:
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
def test_observer_cannot_end_call_or_hub(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()

    def leaves(event: object) -> None:
        raise raised

    bus.observe(PreVerb, leaves)
    bus.emit(about_to())
    assert "an observer of PreVerb failed" in caplog.text


def test_coroutine_observer_is_refused() -> None:
    async def observer(event: PreVerb) -> None:
        return None

    bus = Bus()
    with pytest.raises(TypeError, match="use follow"):
        bus.observe(PreVerb, observer)  # type: ignore[arg-type]
    assert not bus.is_observed(PreVerb)


async def test_follower_receives_events_in_order_without_blocking() -> None:
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
    await asyncio.wait_for(done.wait(), 60)
    assert told == events
    await bus.close()


@pytest.mark.promise("R8")
async def test_excess_events_of_a_follower_are_dropped_and_counted(
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


async def test_failing_follower_continues_and_an_always_failing_one_is_removed(
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
    await asyncio.wait_for(let_go.wait(), 60)
    await bus.close()
    assert len(tries) == MAX_FAILURES and not bus.is_observed(ServerChanged)
    assert "the broken one failed 100 times in a row" in caplog.text


async def test_idle_follower_is_woken_by_the_next_event() -> None:
    bus = Bus()
    told: asyncio.Queue[object] = asyncio.Queue()

    async def follow(event: object) -> None:
        told.put_nowait(event)

    bus.follow([ServerChanged], "one", follow)
    for turn in range(5):
        bus.emit(ServerChanged("a", str(turn), ""))
        await asyncio.wait_for(told.get(), 60)
        for _ in range(turn):
            await asyncio.sleep(0)
    await bus.close()


async def test_event_arriving_as_a_follower_finishes_is_delivered() -> None:
    bus = Bus()
    told: asyncio.Queue[object] = asyncio.Queue()
    last = ServerChanged("a", "stopped", "")

    async def follow(event: object) -> None:
        told.put_nowait(event)
        if event is not last:  # comes after its task has ended, before that is noticed
            asyncio.get_running_loop().call_soon(bus.emit, last)

    bus.follow([ServerChanged], "one", follow)
    bus.emit(ServerChanged("a", "connected", ""))
    await asyncio.wait_for(told.get(), 60)
    assert await asyncio.wait_for(told.get(), 60) is last
    await bus.close()


async def test_hanging_follower_does_not_block_shutdown(
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
    await asyncio.wait_for(begun.wait(), 60)
    await asyncio.wait_for(bus.close(), 60)
    assert ended.is_set()
