from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from dragoman.core.errors import InvalidInput, Overloaded
from dragoman.core.heavy_work import HeavyWork, HeavyWorkLimits


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What the work of a test waits for."""
    event = threading.Event()
    yield event
    event.set()


def start(heavy: HeavyWork, caller: str, gate: threading.Event) -> asyncio.Task[bool]:
    return asyncio.ensure_future(heavy.run(caller, lambda: gate.wait(60)))


async def test_work_runs_in_another_thread_and_its_error_is_raised() -> None:
    def fail() -> None:
        raise InvalidInput("it is wrong")

    heavy = HeavyWork("check it")
    assert await heavy.run("ann", threading.get_ident) != threading.get_ident()
    with pytest.raises(InvalidInput, match="it is wrong"):
        await heavy.run("ann", fail)
    heavy.close()


async def test_one_caller_has_a_share_and_all_have_a_limit(gate: threading.Event) -> None:
    heavy = HeavyWork("check it", HeavyWorkLimits(begun=3, begun_each=2))
    running = [start(heavy, "ann", gate), start(heavy, "ann", gate)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="too many requests to check it"):
        await heavy.run("ann", lambda: True)
    running.append(start(heavy, "bob", gate))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await heavy.run("cyd", lambda: True)
    gate.set()
    assert await asyncio.gather(*running) == [True] * 3
    assert await heavy.run("cyd", lambda: True)
    heavy.close()


async def test_work_that_takes_too_long_counts_until_it_ends(gate: threading.Event) -> None:
    heavy = HeavyWork("check it", HeavyWorkLimits(begun_each=1, seconds=0.01))
    with pytest.raises(Overloaded, match="longer than"):
        await heavy.run("ann", lambda: gate.wait(60))
    with pytest.raises(Overloaded, match="too many"):
        await heavy.run("ann", lambda: True)
    gate.set()
    async with asyncio.timeout(60):
        while True:
            try:
                assert await heavy.run("ann", lambda: True)
                break
            except Overloaded:
                await asyncio.sleep(0.01)
    heavy.close()


async def test_work_of_a_caller_that_left_is_not_begun(gate: threading.Event) -> None:
    heavy = HeavyWork("check it")
    ran: list[bool] = []
    first = start(heavy, "ann", gate)
    await asyncio.sleep(0)
    second = asyncio.ensure_future(heavy.run("bob", lambda: ran.append(True)))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait((second,), timeout=60)
    gate.set()
    assert await first
    assert await heavy.run("bob", lambda: True)
    assert not ran
    heavy.close()
