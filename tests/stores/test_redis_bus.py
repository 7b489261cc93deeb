"""Messages between hubs by a real Valkey: what arrives, and that listeners learn what may not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.peers.valkey_server import ValkeyServer, run_valkey

from dragoman.core.cluster import ClusterBus
from dragoman.core.errors import ConfigError
from dragoman.stores.redis_bus import BusLimits, RedisBus
from dragoman.wire.json import encode

LIMITS = BusLimits(queued=50, reply_seconds=0.5, beat_seconds=0.3, longest_retry=0.2)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with run_valkey() as server:
        yield server


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


class Received:
    """A hub on the bus, and what it has received."""

    def __init__(self, url: str, mark: str) -> None:
        self.bus = RedisBus(url, lambda: mark, limits=LIMITS)
        self.messages: list[tuple[str, Mapping[str, Any]]] = []
        self.gaps = 0
        self.bus.observe_gaps(self._note_gap)
        self.end = self.bus.subscribe(
            "x", lambda sender, data: self.messages.append((sender, data))
        )

    def _note_gap(self) -> None:
        self.gaps += 1

    @property
    def numbers(self) -> list[int]:
        return [data["n"] for _, data in self.messages]


@contextlib.asynccontextmanager
async def run_hubs(url: str, *marks: str) -> AsyncIterator[list[Received]]:
    hubs = [Received(url, mark) for mark in marks]
    for one in hubs:
        one.bus.start()
    try:
        await until(lambda: all(one.bus.is_listening for one in hubs))
        yield hubs
    finally:
        for one in hubs:
            await one.bus.close()


async def test_all_other_hubs_receive_a_message_once_and_in_order(server: ValkeyServer) -> None:
    async with run_hubs(server.url, "aa", "bb", "cc") as (one, two, three):
        bus: ClusterBus = one.bus
        assert (one.gaps, two.gaps) == (1, 1)  # nothing is known of the time before
        failing: list[object] = []

        def fail(sender: str, data: Mapping[str, Any]) -> None:
            failing.append(data)
            raise RuntimeError("a listener that fails")

        two.bus.subscribe("x", fail)
        for number in range(30):
            bus.publish("x", {"n": number})
        bus.publish("unknown", {})
        two.bus.publish("x", {"n": 100})
        await until(lambda: len(three.messages) == 31 and len(two.messages) == 30)
        assert two.messages == [("aa", {"n": number}) for number in range(30)]
        await until(lambda: one.messages == [("bb", {"n": 100})])  # and nothing of its own
        assert len(failing) == 30
        three.end()
        bus.publish("x", {"n": 1})
        await until(lambda: len(two.messages) == 31)
        assert len(three.messages) == 31


async def test_what_is_no_message_is_ignored(server: ValkeyServer) -> None:
    async with run_hubs(server.url, "aa", "bb") as (one, two):
        for junk in (
            *("", "x", "[]", "{}", "[1,2,3]", '["x","zz",1]', '["x",1,{}]', "[" * 100),
            encode(["x", "zz", {"n": "y" * 9_000}]).decode(),
        ):
            server.command("PUBLISH", "dragoman:bus", junk)
        one.bus.publish("x", {"n": "y" * 9_000})  # too large
        one.bus.publish("x", {"n": 1})
        await until(lambda: two.numbers == [1])
        assert two.gaps == 1 and one.bus.is_listening


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_listeners_learn_of_messages_that_may_have_been_lost(how: str) -> None:
    with run_valkey() as server:
        async with run_hubs(server.url, "aa", "bb") as (one, two):
            server.kill() if how == "killed" else server.pause()
            for number in range(2 * LIMITS.queued):
                one.bus.publish("x", {"n": number})
            await until(lambda: not one.bus.is_listening and not two.bus.is_listening)
            server.start() if how == "killed" else server.resume()
            await until(lambda: two.gaps >= 2 and one.gaps >= 2 and two.bus.is_listening)
            gaps = two.gaps
            one.bus.publish("x", {"n": 1_000})
            await until(lambda: 1_000 in two.numbers)
            assert two.gaps > gaps or gaps > 2  # the sender has said that it dropped some
            assert len(two.numbers) < 2 * LIMITS.queued


def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^\[redis\] url is invalid") as refused:
        RedisBus("postgresql://me:secret@127.0.0.1/x", lambda: "aa")
    assert "secret" not in str(refused.value)
