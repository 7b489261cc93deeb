"""A Redis that answers with replies that no Redis gives counts as one that is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from tests.peers.wrong_redis import (
    Command,
    WrongRedis,
    build_numbers,
    is_charge,
    is_count,
    run_wrong_redis,
)

from dragoman.core.errors import RateLimited
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import REQUEST, Rate, RateRules
from dragoman.stores.redis_bus import BusLimits, RedisBus
from dragoman.stores.redis_limiter import MOST_HUBS, SharedRateLimiter
from dragoman.stores.redis_link import LinkLimits

pytestmark = pytest.mark.promise("O2")

CALLER = Principal("key", "a", "default")
RULES = RateRules(principal=Rate(0.06, 4))
"""So slow that nothing returns during the test."""
PATIENT = LinkLimits(
    reply_seconds=20.0, first_retry=0.01, longest_retry=0.05, steady_seconds=0.05, beat_seconds=0.05
)
"""A busy machine is not an outage."""

REPLIES: dict[str, Callable[[Command], bytes]] = {
    "strings": partial(build_numbers, number=b"$3\r\nabc\r\n"),
    "numbers as strings": partial(build_numbers, number=b"$1\r\n0\r\n"),
    "nil": lambda command: b"*-1\r\n",
    "number": lambda command: b":5\r\n",
    "status": lambda command: b"+OK\r\n",
    "too short": lambda command: b"*1\r\n:0\r\n",
    "too long": lambda command: b"*9\r\n" + b":0\r\n" * 9,
    "nested": partial(build_numbers, number=b"*1\r\n:0\r\n"),
    "errors inside": partial(build_numbers, number=b"-ERR boom\r\n"),
    "negative": partial(build_numbers, number=b":-999999999999\r\n"),
    "beyond any budget": partial(build_numbers, number=b":9223372036854775807\r\n"),
    "not a number": partial(build_numbers, number=b",nan\r\n"),
    "boolean": partial(build_numbers, number=b"#t\r\n"),
    "unknown type": lambda command: b"?5\r\n",
    "error": lambda command: b"-ERR boom\r\n",
    "script lost again and again": lambda command: b"-NOSCRIPT x\r\n",
    "reply without a command": lambda command: build_numbers(command, b":0\r\n") + b":1\r\n",
}


async def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


@asynccontextmanager
async def run_limiter(
    redis: WrongRedis, count_hubs: Callable[[], int] | None = None
) -> AsyncIterator[SharedRateLimiter]:
    limiter = SharedRateLimiter(redis.url, RULES, link_limits=PATIENT, count_hubs=count_hubs)
    limiter.start()
    try:
        await until(lambda: limiter.is_shared)
        yield limiter
    finally:
        await limiter.close()


async def charge(limiter: SharedRateLimiter) -> None:
    async with asyncio.timeout(15.0):
        charged = limiter.charge(CALLER, REQUEST, "x")
        if charged is not None:
            await charged


@pytest.mark.parametrize("kind", REPLIES)
async def test_a_charge_with_an_unexpected_reply_is_decided_by_the_hub(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = REPLIES[kind]
    async with run_wrong_redis() as redis, run_limiter(redis) as limiter:
        redis.answer = lambda command: answer(command) if is_charge(command) else None
        # The reply without a command may come after the charge that it follows.
        refused = 0
        for _ in range(10):
            try:
                await charge(limiter)
            except RateLimited:
                refused += 1
        assert refused, "the hub's own budget of four counts"
        await until(lambda: not limiter.is_shared)
        count = redis.connections
        await until(lambda: redis.connections >= count + 3)  # it is tried again
        assert not limiter.is_shared
        assert [one.levelno for one in caplog.records] == [logging.WARNING]
        assert "is away" in caplog.records[0].getMessage()
        redis.answer = lambda command: None
        await until(lambda: limiter.is_shared)
        assert caplog.records[-1].getMessage().endswith("is back")


@pytest.mark.parametrize("reply", [b":1\r\n", b"*-1\r\n", b"*1\r\n:-5\r\n", b"*1\r\n,nan\r\n"])
async def test_an_unexpected_count_of_hubs_is_an_absence(reply: bytes) -> None:
    async with run_wrong_redis() as redis, run_limiter(redis) as limiter:
        redis.answer = lambda command: reply if is_count(command) else None
        await until(lambda: not limiter.is_shared)
        await charge(limiter)
        redis.answer = lambda command: None
        await until(lambda: limiter.is_shared)


@pytest.mark.parametrize(("in_cluster", "share"), [(3, 3), (None, MOST_HUBS)])
async def test_forged_hubs_do_not_shrink_the_share_of_a_hub(
    in_cluster: int | None, share: int
) -> None:
    count = None if in_cluster is None else lambda: in_cluster
    async with run_wrong_redis() as redis, run_limiter(redis, count) as limiter:
        redis.answer = lambda command: b"*1\r\n:100001\r\n" if is_count(command) else None
        await until(lambda: limiter._hubs_seen == 100_001)
        assert limiter._hubs == share and limiter.is_shared


class Bus:
    def __init__(self, redis: WrongRedis) -> None:
        limits = BusLimits(first_retry=0.01, longest_retry=0.05, beat_seconds=0.05)
        self.bus = RedisBus(redis.url, lambda: "aa", limits=limits)
        self.received: list[object] = []
        self.bus.subscribe("x", lambda sender, data: self.received.append(data))


PUSH = b"*3\r\n$7\r\nmessage\r\n$12\r\ndragoman:bus\r\n"
MESSAGE = b'["x","bb",{"n":1}]'


@pytest.mark.parametrize(
    "reply",
    [
        b"*-1\r\n",
        b":5\r\n",
        b"$-1\r\n",
        b"*0\r\n",
        b"*1\r\n$7\r\nmessage\r\n",
        b"*3\r\n:1\r\n:2\r\n:3\r\n",
        b"*3\r\n*0\r\n*0\r\n*0\r\n",
        b",nan\r\n",
        b"?5\r\n",
        b"-NOSCRIPT x\r\n",
        PUSH + b":5\r\n",
        PUSH + b"$-1\r\n",
        PUSH + b"*0\r\n",
        PUSH + b",nan\r\n",
    ],
)
async def test_the_bus_survives_unexpected_replies(
    reply: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_wrong_redis() as redis:
        listening = Bus(redis)
        listening.bus.start()
        try:
            await until(lambda: listening.bus.is_listening)
            answered: set[bytes] = set()

            def fail(command: Command) -> bytes | None:
                if command[0] not in (b"PING", b"PUBLISH", b"SUBSCRIBE"):
                    return None
                answered.add(command[0])
                return reply

            redis.answer = fail
            await until(lambda: answered >= {b"PING", b"SUBSCRIBE"})
            listening.bus.publish("x", {})
            await until(lambda: b"PUBLISH" in answered)

            def push(command: Command) -> bytes | None:
                if command[0] != b"PING":
                    return None
                return PUSH + b"$%d\r\n%s\r\n" % (len(MESSAGE), MESSAGE)

            redis.answer = push
            await until(lambda: bool(listening.received))
        finally:
            await listening.bus.close()
    assert not [one for one in caplog.records if one.exc_info], "a traceback is in the log"
