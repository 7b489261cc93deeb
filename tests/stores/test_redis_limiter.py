"""Rate limits in a real Valkey: exact over several hubs, and what happens while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.peers.forked import start_process
from tests.peers.valkey_server import ValkeyServer, run_slow_proxy, run_valkey

from dragoman.core.background import start_task
from dragoman.core.errors import ConfigError, RateLimited
from dragoman.core.principal import OWNER, Principal
from dragoman.core.rate_limiter import (
    AGENT_CALL,
    READ,
    REQUEST,
    TOOL_CALL,
    LocalRateLimiter,
    Rate,
    RateRules,
)
from dragoman.core.structs import replace
from dragoman.stores.redis_limiter import SharedRateLimiter, divide_rules
from dragoman.stores.redis_link import LinkLimits, RedisLink

pytestmark = pytest.mark.promise("O2")

WIDE = Rate(1e9, 1e9)
PATIENT = LinkLimits(reply_seconds=20.0)
"""A busy machine is not an outage."""
USUAL = LinkLimits()
PEERS = Path(__file__).parent.parent / "peers"


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with run_valkey() as server:
        yield server


@pytest.fixture(autouse=True)
def empty(server: ValkeyServer) -> None:
    server.command("FLUSHALL")


def build_rules(**rates: Rate) -> RateRules:
    return replace(RateRules(principal=WIDE, owner=WIDE, org=WIDE, address=WIDE), **rates)


def key(name: str, org: str = "default") -> Principal:
    return Principal("key", name, org)


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> float:
    """Waits until it holds; returns how long that took."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < seconds
        await asyncio.sleep(0.002)
    return time.monotonic() - begun


@contextlib.asynccontextmanager
async def run_limiter(
    url: str, rules: RateRules, link_limits: LinkLimits = PATIENT, **how: Any
) -> AsyncIterator[SharedRateLimiter]:
    limiter = SharedRateLimiter(url, rules, link_limits=link_limits, **how)
    limiter.start()
    try:
        await until(lambda: limiter.is_shared)
        yield limiter
    finally:
        await limiter.close()


async def charge(
    limiter: SharedRateLimiter | LocalRateLimiter, who: Principal, operation: str = REQUEST
) -> None:
    charged = limiter.charge(who, operation, "x")
    if charged is not None:
        await charged


async def count(limiter: SharedRateLimiter, who: Principal, most: int = 1_000) -> int:
    """Counts how many charges are admitted before one is refused."""
    for number in range(most):
        try:
            await charge(limiter, who)
        except RateLimited:
            return number
    return most


async def charge_address(limiter: SharedRateLimiter, address: str) -> float:
    wait = limiter.charge_address(address)
    return wait if isinstance(wait, float) else await wait


async def test_it_decides_and_reports_as_the_limiter_of_one_process(server: ValkeyServer) -> None:
    # So slow that nothing returns during the test.
    rules = build_rules(
        principal=Rate(0.06, 40), org=Rate(0.06, 60), owner=Rate(0.06, 15), address=Rate(0.06, 2)
    )
    local = LocalRateLimiter(rules)
    everyone = [key("a"), key("b"), key("c", "other"), OWNER]
    seen: list[str] = []
    async with run_limiter(server.url, rules) as shared:
        for number in range(80):
            who = everyone[number % 4]
            operation = (REQUEST, READ, TOOL_CALL, AGENT_CALL)[number // 4 % 4]
            said = []
            for limiter in (local, shared):
                try:
                    await charge(limiter, who, operation)
                    said.append(("", 0.0))
                except RateLimited as refusal:
                    said.append((str(refusal).partition(";")[0], refusal.retry_after))
            (ours, wait), (theirs, told) = said
            assert ours == theirs and told == pytest.approx(wait, abs=10), (number, said)
            for one, other in zip(local.find_budgets(who), shared.find_budgets(who), strict=True):
                assert one.remaining == other.remaining and one.scope == other.scope
            assert bool(local.find_low_budget(who)) == bool(shared.find_low_budget(who))
            seen.append(ours)
        said_of = {one.partition(": ")[2].partition(" has")[0] for one in seen}
        assert said_of == {"", "key:c", 'org "default"', "owner:owner"}
        names = {(one.scope, one.name) for one in local.list_lowest(9)}
        assert {(one.scope, one.name) for one in shared.list_lowest(9)} == names
        waits = [await charge_address(shared, "192.0.2.1") for _ in range(3)]
        assert waits[:2] == [0.0, 0.0] and waits[2] == pytest.approx(1_000, abs=10)
        assert shared.find_address_wait("192.0.2.1") > 900
        assert await charge_address(shared, "192.0.2.2") == 0.0


async def test_rules_that_change_during_a_charge_count_for_its_reply(server: ValkeyServer) -> None:
    slow, fast = build_rules(principal=Rate(1, 100)), build_rules(principal=Rate(60_000, 100))
    async with run_limiter(server.url, slow) as limiter:
        charged = [asyncio.create_task(charge(limiter, key("a"))) for _ in range(100)]
        await asyncio.sleep(0)  # they are sent
        limiter.apply(fast)
        await asyncio.gather(*charged)
        (budget,) = [one for one in limiter.find_budgets(key("a")) if one.scope == "principal"]
        assert budget.full_in <= 0.1
        for _ in range(100):
            try:
                return await charge(limiter, key("a"))
            except RateLimited as refusal:
                assert refusal.retry_after <= 0.1
                await asyncio.sleep(refusal.retry_after)
        raise AssertionError("no token returns")


async def test_what_one_hub_charges_is_used_at_the_other(server: ValkeyServer) -> None:
    rules = build_rules(principal=Rate(6, 20), org=Rate(6, 30))
    async with run_limiter(server.url, rules) as one, run_limiter(server.url, rules) as other:
        assert await count(one, key("a")) == 20
        assert await count(other, key("a")) == 0
        assert await count(other, key("b")) == 10  # the org's budget is used up
        assert await count(one, key("c")) == 0
        assert other.find_budgets(key("b"))[0].remaining == 10  # a refusal charges nothing
        async with run_limiter(server.url, rules, prefix="another") as elsewhere:
            assert await count(elsewhere, key("a")) == 20
        async with run_limiter(server.url, rules) as third:
            assert third._hubs == 3
        async with run_limiter(server.url, rules) as fourth:
            assert fourth._hubs == 3  # the third has left


async def test_callers_in_two_processes_never_exceed_the_limit(server: ValkeyServer) -> None:
    burst, per_second, seconds = 50.0, 100.0, 1.5
    line = [sys.executable, str(PEERS / "rate_callers.py"), server.url, "32", str(seconds)]
    line += [str(per_second * 60), str(burst)]
    callers = [
        start_process(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for one in callers:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in callers:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    found = [json.loads(one.communicate(timeout=60)[0]) for one in callers]
    took = max(one["ended"] for one in found) - min(one["begun"] for one in found)
    admitted = sum(one["admitted"] for one in found)
    assert all(one["local"] == 0 and one["refused"] > 0 for one in found)
    assert burst + per_second * seconds * 0.5 <= admitted <= burst + per_second * took + 1


async def test_waiting_as_told_is_enough(server: ValkeyServer) -> None:
    rules = build_rules(principal=Rate(7_330, 17), org=Rate(20_000, 40))
    async with run_limiter(server.url, rules) as limiter:
        refused = 0
        for number in range(60):
            operation = (REQUEST, TOOL_CALL, AGENT_CALL)[number % 3]
            try:
                await charge(limiter, key("a"), operation)
            except RateLimited as refusal:
                refused += 1
                await asyncio.sleep(refusal.retry_after)
                await charge(limiter, key("a"), operation)
        assert refused > 3


async def test_new_rules_keep_the_tokens_that_were_used(server: ValkeyServer) -> None:
    async with run_limiter(server.url, build_rules(principal=Rate(6, 10))) as limiter:
        assert await count(limiter, key("a")) == 10
        limiter.apply(build_rules(principal=Rate(6, 15)))
        assert await count(limiter, key("a")) == 5
        limiter.apply(build_rules(principal=Rate(600, 5)))
        with pytest.raises(RateLimited) as refused:
            await charge(limiter, key("a"))
        assert refused.value.retry_after <= 0.1  # no lock-out by the slow rate of before


async def test_a_server_that_loses_everything_loses_counts_only(server: ValkeyServer) -> None:
    async with run_limiter(server.url, build_rules(principal=Rate(6, 10))) as limiter:
        for lose in (("FLUSHALL",), ("SCRIPT", "FLUSH")):
            for name in ("a", "b"):
                await charge(limiter, key(name + lose[0]))
            server.command(*lose)
            charged = limiter.charge(key("a" + lose[0]), REQUEST, "x")
            assert charged is not None  # in Redis, and not by this hub alone
            await charged
            left = limiter.find_budgets(key("a" + lose[0]))[0].remaining
            assert left == (9 if lose[0] == "FLUSHALL" else 8)
        server.command("SET", f"dragoman:rate:principal:{'0' * 32}", "junk")
        assert limiter.is_shared


class Outage:
    """Charges all the time at two hubs, and keeps how late each decision was."""

    def __init__(self, *limiters: SharedRateLimiter) -> None:
        self.admitted = 0
        self.late = 0.0
        self.lag = 0.0
        """How late the event loop of this test was."""
        self.begun = time.monotonic()
        self._limiters = limiters
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Outage:
        self._tasks = [start_task(self._call(one)) for one in self._limiters for _ in range(4)]
        self._tasks.append(start_task(self._measure()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self._tasks:
            one.cancel()
        for found in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(found, asyncio.CancelledError), found

    async def _call(self, limiter: SharedRateLimiter) -> None:
        while True:
            begun = time.monotonic()
            try:
                await charge(limiter, key("a"))
                self.admitted += 1
            except RateLimited:
                pass
            self.late = max(self.late, time.monotonic() - begun)
            await asyncio.sleep(0.004)

    async def _measure(self) -> None:
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.001)
            self.lag = max(self.lag, time.monotonic() - begun - 0.001)

    def check(self, rate: Rate) -> None:
        took = time.monotonic() - self.begun
        limit = rate.burst + took * rate.per_minute / 60
        assert 0.5 * limit < self.admitted <= 2 * limit + 1
        assert self.late <= 0.06 + 10 * self.lag


@pytest.mark.parametrize("how", ["killed", "paused", "refusing"])
async def test_hubs_decide_by_themselves_while_redis_is_away(how: str) -> None:
    rate = Rate(3_000, 20)
    rules = build_rules(principal=rate)
    with run_valkey() as server:
        async with (
            run_limiter(server.url, rules, USUAL) as one,
            run_limiter(server.url, rules, USUAL) as other,
        ):
            await until(lambda: one._hubs == other._hubs == 2)
            away = {"killed": server.kill, "paused": server.pause}.get(
                how, lambda: server.command("CONFIG", "SET", "maxmemory", "1")
            )
            back = {"killed": server.start, "paused": server.resume}.get(
                how, lambda: server.command("CONFIG", "SET", "maxmemory", "0")
            )
            async with Outage(one, other) as outage:
                await asyncio.sleep(0.3)
                away()
                await until(lambda: not one.is_shared and not other.is_shared)
                await asyncio.sleep(0.6)
                assert not one.is_shared and not other.is_shared
                outage.check(rate)
                back()
                await until(lambda: one.is_shared and other.is_shared)
                await asyncio.sleep(0.2)
                outage.check(rate)


async def test_a_slow_server_is_left_alone_until_it_is_fast(server: ValkeyServer) -> None:
    rate = Rate(3_000, 20)
    async with (
        run_slow_proxy(server.url) as proxy,
        run_limiter(proxy.url, build_rules(principal=rate), USUAL) as limiter,
        Outage(limiter) as outage,
    ):
        await asyncio.sleep(0.2)
        proxy.delay = 0.2
        await until(lambda: not limiter.is_shared)
        await asyncio.sleep(0.8)
        assert not limiter.is_shared
        proxy.delay = 0.0
        await until(lambda: limiter.is_shared)
        outage.check(rate)


def has_more(link: RedisLink, count: int) -> bool:
    """Whether it has connected again after an absence."""
    return link._steady.failures > count


async def test_a_server_that_is_slow_now_and_then_is_used_again_once_it_is_steady(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    limits = LinkLimits(
        steady_seconds=0.3, longest_steady=600.0, beat_seconds=0.02, longest_retry=0.1
    )
    async with (
        run_slow_proxy(server.url) as proxy,
        run_limiter(proxy.url, build_rules(principal=Rate(3_000, 20)), link_limits=limits) as used,
    ):
        link = used._link
        while link._steady.failures < 8:  # it must be steady for half a minute then
            count = link._steady.failures
            proxy.delay = 0.2
            await until(lambda: link._lost is None, 60.0)
            proxy.delay = 0.0
            await until(partial(has_more, link, count), 60.0)
        caplog.clear()
        assert not used.is_shared and link._lost is not None
        link._steady.reset()
        proxy.delay = 0.2
        await until(lambda: link._lost is None, 60.0)
        proxy.delay = 0.0
        await until(lambda: used.is_shared, 60.0)
    assert [one.getMessage().endswith("is back") for one in caplog.records] == [True]


async def test_a_server_that_is_away_again_and_again_is_logged_twice(
    server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    limits = LinkLimits(
        steady_seconds=0.02, longest_steady=0.02, beat_seconds=0.02, longest_retry=0.05,
        calm_seconds=8.0,
    )  # fmt: skip
    async with (
        run_slow_proxy(server.url) as proxy,
        run_limiter(proxy.url, build_rules(principal=Rate(3_000, 20)), link_limits=limits) as used,
    ):
        link = used._link
        for _ in range(4):
            proxy.delay = 0.2
            await until(lambda: link._lost is None, 60.0)
            proxy.delay = 0.0
            await until(lambda: used.is_shared, 60.0)
        await until(lambda: link._steady.failures == 0, 60.0)
    kinds = [one.getMessage().partition(": ")[0] for one in caplog.records]
    ends = [kind.rpartition("/")[2].partition(" is ")[2] or kind for kind in kinds]
    assert ends[:3] == ["away", "back", "away again"], kinds
    assert len(ends) == 4 and ends[3].startswith("back, after "), kinds


async def test_a_hub_starts_without_redis(server: ValkeyServer) -> None:
    limiter = SharedRateLimiter("redis://127.0.0.1:1", build_rules(principal=Rate(6, 3)))
    assert limiter.charge(key("a"), REQUEST, "x") is None
    limiter.start()
    await asyncio.sleep(0.05)
    assert await count(limiter, key("a")) == 2
    assert limiter.charge_address("192.0.2.1") == 0.0
    assert limiter.find_budgets(key("a"))[0].remaining == 0
    await limiter.close()
    with pytest.raises(ConfigError, match=r"^\[redis\] url is invalid"):
        SharedRateLimiter("http://user:secret@127.0.0.1", RateRules())


def test_the_shares_of_the_hubs_are_one_limit() -> None:
    rules = RateRules(principal=Rate(600, 100), owner=Rate(60, 12), address=Rate(60, 3))
    assert divide_rules(rules, 1) is rules
    share = divide_rules(rules, 4)
    assert share.principal == Rate(150, 25) and share.org == Rate(30_000, 5_000)
    assert share.owner == Rate(15, 10)  # an agent costs 10
    assert share.address == Rate(15, 1)
