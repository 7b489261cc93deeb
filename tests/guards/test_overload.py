from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from tests.skill_hub import SkillHub

from dragoman.core.errors import Overloaded
from dragoman.guards import overload
from dragoman.guards.overload import Overload


async def test_calls_are_refused_while_the_loop_stays_late_and_served_again_after() -> None:
    stage = Overload(0.05)
    hub = SkillHub(before=[stage])
    watch = asyncio.ensure_future(stage.watch())
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(overload.INTERVAL + 0.1)  # blocks the event loop, as too much work does
            await asyncio.sleep(0)
            try:
                await hub.call("files.read")
            except Overloaded as error:
                assert "the hub is overloaded" in str(error) and error.trace
                break
        else:
            raise AssertionError("no call was refused")
        calls = len(hub.agent.calls)
        async with asyncio.timeout(60):
            while True:  # other work on the machine can make the loop late again
                await asyncio.sleep(overload.INTERVAL * 1.5)
                with contextlib.suppress(Overloaded):
                    await hub.call("files.read")
                    break
        assert len(hub.agent.calls) == calls + 1
    finally:
        watch.cancel()


async def test_one_pause_of_the_process_refuses_nothing() -> None:
    stage = Overload(2.0)
    hub = SkillHub(before=[stage])
    stage.note(30.0)
    await hub.call("files.read")
    stage.note(2.5)
    with pytest.raises(Overloaded, match=r'"files.read" was refused: .* for 2.5 s'):
        await hub.call("files.read")
    stage.apply(3.0)
    stage.note(2.5)
    await hub.call("files.read")


async def test_delays_of_the_loop_add_up() -> None:
    stage = Overload(2.0)
    assert stage.read_total() == 0.0
    stage.note(1.5)
    stage.note(0.5)
    assert stage.read_total() == 2.0
    watch = asyncio.ensure_future(stage.watch())
    try:
        await asyncio.sleep(0)
        time.sleep(overload.INTERVAL + 0.2)
        assert stage.read_total() >= 2.2  # before it was measured
    finally:
        watch.cancel()
