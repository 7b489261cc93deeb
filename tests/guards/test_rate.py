from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from tests.skill_hub import ALICE, SkillHub

from dragoman.core.errors import NotFound, RateLimited
from dragoman.core.rate_limiter import LocalRateLimiter, Rate, RateRules
from dragoman.guards.rate import RateLimit

pytestmark = pytest.mark.promise("O2")


def build(principal: Rate) -> tuple[SkillHub, LocalRateLimiter]:
    limiter = LocalRateLimiter(RateRules(principal=principal))
    return SkillHub(before=[RateLimit(limiter)], at_once=1_000), limiter


async def test_agents_cost_more_than_tools_and_unknown_names_cost_too() -> None:
    hub, limiter = build(Rate(1, 100))
    await hub.call("vercel_ops.deploy")
    await hub.call("files.read")
    with pytest.raises(NotFound):
        await hub.call("no.such")
    assert limiter.find_budgets(ALICE)[0].remaining == 100 - 10 - 2 - 2


async def test_refused_call_reaches_neither_policies_nor_target() -> None:
    hub, _ = build(Rate(1, 10))
    await hub.call("vercel_ops.deploy")
    hub.judge.denied.add("files.read")  # which would be the error if a decision was made
    with pytest.raises(RateLimited, match=r'"files.read" was refused: .* try again in ') as raised:
        await hub.call("files.read")
    assert len(hub.agent.calls) == 1
    assert raised.value.trace and raised.value.retry_after == pytest.approx(120, abs=1)


async def test_64_concurrent_callers_never_exceed_burst_plus_rate() -> None:
    hub, _ = build(Rate(30_000, 100))  # 250 tools per second, 50 at once
    begun, admitted = monotonic(), 0
    waited: list[float] = []

    async def work() -> None:
        nonlocal admitted
        while monotonic() - begun < 0.6:
            try:
                await hub.call("files.read")
                admitted += 1
                assert admitted <= 50 + 250 * (monotonic() - begun) + 1
            except RateLimited as error:
                waited.append(error.retry_after)
                await asyncio.sleep(error.retry_after)

    await asyncio.gather(*(work() for _ in range(64)))
    assert admitted >= 50 + 250 * 0.5  # and the budget is used
    assert max(waited) <= 0.1  # no caller is locked out
