from __future__ import annotations

import asyncio
import logging

import pytest

from dragoman.core.bus import Bus
from dragoman.core.call import Call
from dragoman.core.errors import Denied, NotFound
from dragoman.core.events import PostVerb, PreVerb, ServerChanged
from dragoman.core.principal import OWNER
from dragoman.core.tool import tool_nowhere
from dragoman.core.trace import new_trace


def about_to(name: str = "files.read") -> PreVerb:
    return PreVerb(
        Call(
            caller=OWNER,
            tool=tool_nowhere(name, NotFound("nowhere")),
            asked_as=name,
            arguments={},
            trace=new_trace(),
            door="test",
            extra={},
        )
    )


def test_an_observer_hears_its_kind_of_event_and_no_other() -> None:
    bus = Bus()
    heard: list[object] = []
    bus.observe(ServerChanged, heard.append)
    assert bus.heard(ServerChanged) and not bus.heard(PostVerb)
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

    assert not bus.attended
    await bus.ask(about_to())
    bus.gate("passes", passes)
    await bus.ask(about_to())
    bus.gate("refuses", refuses)
    assert bus.attended
    with pytest.raises(Denied, match=r"^not files\.read$"):
        await bus.ask(about_to())


@pytest.mark.parametrize("problem", [RuntimeError("broken"), NotFound("odd"), TimeoutError()])
async def test_a_gate_that_fails_refuses(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()

    async def fails(event: PreVerb) -> None:
        raise problem

    bus.gate("careful", fails)
    with caplog.at_level(logging.ERROR), pytest.raises(Denied) as raised:
        await bus.ask(about_to())
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
        await bus.ask(about_to())
    assert ended.is_set()


async def test_a_caller_who_leaves_while_a_gate_thinks_is_not_refused_but_gone() -> None:
    bus = Bus()
    asked = asyncio.Event()

    async def thinks(event: PreVerb) -> None:
        asked.set()
        await asyncio.sleep(60)

    bus.gate("thinks", thinks)
    task = asyncio.create_task(bus.ask(about_to()))
    await asyncio.wait_for(asked.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
