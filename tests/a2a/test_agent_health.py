"""How agents are looked at, and what comes of that for their tools."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.a2a.registry_fixture import Moody, external, ground, moody, skill
from tests.a2a.scripted_agent import OLD_PLACE, Request, scripted_agent

from dragoman.a2a.remote import health_watch
from dragoman.a2a.remote.health_watch import DEGRADED, HEALTHY, UNKNOWN, UNREACHABLE, AgentHealth

pytestmark = pytest.mark.promise("R10")


def test_the_states_follow_what_the_looks_come_to() -> None:
    agent = AgentHealth()
    assert agent.state == UNKNOWN
    agent.record_failure("not there")
    assert (agent.state, agent.reason) == (UNREACHABLE, "not there")  # it was never found
    agent.record_answer(0.1)
    assert (agent.state, agent.reason, agent.latency) == (HEALTHY, "", 0.1)
    agent.record_failure("once")
    assert agent.state == DEGRADED
    agent.record_answer(0.1)
    for why in ("one", "two"):
        agent.record_failure(why)
        assert agent.state == DEGRADED
    agent.record_failure("three")
    assert (agent.state, agent.reason) == (UNREACHABLE, "three")
    agent.record_answer(5.1)
    assert agent.state == DEGRADED and "5.1 s" in agent.reason
    agent.record_answer(0.1, "it is odd")
    assert (agent.state, agent.reason) == (DEGRADED, "it is odd")


def test_the_pauses_grow_to_five_minutes_while_it_is_unreachable() -> None:
    agent = AgentHealth()
    agent.record_answer(0.1)
    assert agent.next_pause(30) == 30
    pauses = []
    for _ in range(12):
        agent.record_failure("x")
        pauses.append(agent.next_pause(30))
    assert pauses[:5] == [5, 5, 1, 2, 4] and pauses[-2:] == [256, 300]
    assert agent.next_pause(1) == 300
    agent.record_answer(0.1)
    agent.record_failure("x")
    assert agent.next_pause(1) == 1


@pytest.mark.promise("M2", "R9")
async def test_an_agent_that_is_not_there_has_no_tools_until_it_is_and_delays_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dragoman.a2a.remote.health_watch")
    async with moody("deploy") as agent:
        agent.mode = "gone"
        async with ground(tmp_path, external("Vercel Ops", agent.url), every=0.05) as here:
            assert here.one("vercel_ops")["health"] == UNKNOWN  # the start has waited for nothing
            await here.until(lambda: here.one("vercel_ops")["health"] == UNREACHABLE)
            gone = here.one("vercel_ops")
            assert "HTTP 503" in gone["reason"] and not gone["reachable"] and not here.tools()
            agent.mode = "well"
            await here.until(lambda: here.one("vercel_ops")["health"] == HEALTHY)
            assert here.tools() == ["Vercel Ops.message", "vercel_ops.deploy"]
            told = here.one("vercel_ops")
            assert told["reachable"] and told["lastSeenAt"] and told["latencyMs"] > 0
            assert told["dialect"].startswith("A2A 1.0 over JSONRPC")
            watched = here.registry.agents.find("vercel_ops").watch
            assert watched is not None and watched.agent.traits.facts.healthy
        assert here.fact_changes >= 1
        assert here.events == [("Vercel Ops", UNREACHABLE), ("Vercel Ops", HEALTHY)]
    warning, found = [r for r in caplog.records if r.name == "dragoman.a2a.remote.health_watch"]
    assert warning.levelno == logging.WARNING and "HTTP 503" in warning.getMessage()
    assert 'agent "Vercel Ops" at' in found.getMessage() and "1 skills" in found.getMessage()


@pytest.mark.promise("R9")
async def test_three_failures_in_a_row_take_its_tools_away_and_one_does_not(tmp_path: Path) -> None:
    async with moody("deploy") as agent, ground(tmp_path, external("ops", agent.url)) as here:
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        agent.mode = "gone"
        for _ in range(2):
            await here.registry.refetch("ops")
            assert here.one("ops")["health"] == DEGRADED and len(here.tools()) == 2
            assert "HTTP 503" in here.one("ops")["reason"]
        await here.registry.refetch("ops")
        assert here.one("ops")["health"] == UNREACHABLE and not here.tools()
        member = here.registry.agents.find("ops")
        assert member.watch is not None and not member.watch.agent.traits.facts.healthy
        agent.mode = "well"
        await here.registry.refetch("ops")
        assert here.one("ops")["health"] == HEALTHY and len(here.tools()) == 2
    assert [state for _, state in here.events] == [HEALTHY, DEGRADED, UNREACHABLE, HEALTHY]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("knows", "it answered with one"),
        ("locked", "HTTP 403"),
        ("confused", "it answered: out of order"),
        ("deaf", "HTTP 503"),
    ],
)
async def test_an_agent_whose_card_is_fine_must_also_answer(
    tmp_path: Path, mode: str, said: str
) -> None:
    async with moody("deploy") as agent, ground(tmp_path, external("ops", agent.url)) as here:
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        agent.mode = mode
        await here.registry.refetch("ops")
        told = here.one("ops")
        assert told["health"] == DEGRADED and said in told["reason"], told["reason"]
        assert told["reachable"] and len(here.tools()) == 2


async def test_a_look_is_a_card_by_its_tag_and_one_question_without_effect(tmp_path: Path) -> None:
    async with moody("deploy") as agent, ground(tmp_path, external("ops", agent.url)) as here:
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        agent.served.requests.clear()
        await here.registry.refetch("ops")
        card, question = agent.served.requests
        assert card.method == "GET" and card.headers["if-none-match"]
        assert question.rpc == "GetTask" and len(question.params["id"]) == 36
        await here.registry.refetch("ops")
        assert agent.served.requests[3].params["id"] != question.params["id"]


async def test_it_is_looked_at_again_and_again_by_itself(tmp_path: Path) -> None:
    config = external("ops", "URL")
    async with moody("deploy") as agent:
        config = config.replace("URL", agent.url)
        async with ground(tmp_path, config, every=0.02), asyncio.timeout(5):
            while len(agent.served.sent("GetTask")) < 5:
                await asyncio.sleep(0.01)


async def test_looks_at_the_same_time_are_one_look(tmp_path: Path) -> None:
    async with moody("deploy") as agent, ground(tmp_path, external("ops", agent.url)) as here:
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        agent.served.requests.clear()
        await asyncio.gather(*(here.registry.refetch("ops") for _ in range(20)))
        assert len(agent.served.requests) == 2


async def test_an_agent_that_hangs_is_given_up_after_its_time(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def hang(request: Request) -> None:
        await release.wait()

    async with scripted_agent(hang) as silent:
        async with ground(tmp_path, external("ops", silent.url, timeout_secs="0.1")) as here:
            await here.until(lambda: here.one("ops")["health"] == UNREACHABLE)
            assert "0.1 s" in here.one("ops")["reason"]
        release.set()


@pytest.mark.promise("R9")
async def test_a_card_that_changes_while_it_serves_changes_the_tools(tmp_path: Path) -> None:
    async with moody("deploy", "old") as agent, ground(tmp_path, external("o", agent.url)) as here:
        await here.until(lambda: here.one("o")["health"] == HEALTHY)
        assert here.tools() == ["o.deploy", "o.message", "o.old"]
        agent.card["skills"] = [skill("deploy"), skill("new")]
        await here.registry.refetch("o")
        assert here.tools() == ["o.deploy", "o.message", "o.new"]
        assert [one["id"] for one in here.one("o")["skills"]] == ["deploy", "new"]


@pytest.mark.promise("R9")
async def test_a_card_that_is_held_is_not_gone_by_and_nothing_is_sent_where_it_points(
    tmp_path: Path,
) -> None:
    async with moody("deploy") as agent, moody("steal") as thief:
        entry = external("ops", agent.url, allow_private="true")
        async with ground(tmp_path, entry) as here:
            await here.until(lambda: here.one("ops")["health"] == HEALTHY)
            interface = {"url": thief.url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            agent.card["supportedInterfaces"] = [interface]
            here.pins.holds = lambda raw: "its card has changed" if _leads(raw, thief) else None
            await here.registry.refetch("ops")
            told = here.one("ops")
            assert told["held"] == told["reason"] == "its card has changed"
            assert told["health"] == DEGRADED and not here.tools()
            assert not thief.served.requests
            watch = here.registry.agents.find("ops").watch
            assert watch is not None and not watch.agent.traits.facts.pinned
            here.pins.holds = lambda raw: None  # somebody has approved it
            here.registry.agents.recheck("ops")
            await here.until(lambda: bool(here.tools()))
            assert thief.served.sent("GetTask") and here.one("ops")["held"] == ""
        assert {mode for _, mode in here.pins.asked} == {"first"}


async def test_what_is_decided_during_a_look_counts_after_it(tmp_path: Path) -> None:
    async with moody("deploy") as agent, ground(tmp_path, external("ops", agent.url)) as here:
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        asked = len(here.pins.asked)

        def decided(raw: object) -> str:
            here.pins.holds = lambda raw: None
            here.registry.agents.recheck("ops")
            return "it was held a moment ago"

        here.pins.holds = decided
        await here.registry.refetch("ops")
        assert len(here.pins.asked) == asked + 2 and here.one("ops")["held"] == ""
        assert here.tools()


def _leads(raw: object, thief: Moody) -> bool:
    return thief.url in str(raw)


async def test_a_good_look_closes_the_breaker(tmp_path: Path) -> None:
    async with moody("deploy") as agent, ground(tmp_path, external("ops", agent.url)) as here:
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        watch = here.registry.agents.find("ops").watch
        assert watch is not None
        for _ in range(10):
            watch.agent.breaker.record_failure()
        assert watch.agent.breaker.is_open
        await here.registry.refetch("ops")
        assert not watch.agent.breaker.is_open


async def test_an_agent_that_answers_slowly_is_degraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_watch, "SLOW_SECONDS", 0.0)
    async with moody("deploy") as agent, ground(tmp_path, external("ops", agent.url)) as here:
        await here.until(lambda: here.one("ops")["health"] == DEGRADED)
        assert "to answer" in here.one("ops")["reason"] and len(here.tools()) == 2


async def test_a_card_that_has_moved_to_the_old_place_is_found_there(tmp_path: Path) -> None:
    async with moody("deploy") as agent, ground(tmp_path, external("ops", agent.url)) as here:
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        agent.place = OLD_PLACE
        await here.registry.refetch("ops")
        assert here.one("ops")["health"] == HEALTHY
        assert agent.served.requests[-2].path == OLD_PLACE
        await here.registry.refetch("ops")
        assert agent.served.requests[-2].path == OLD_PLACE


async def test_a_refresh_reports_what_is_there_now_and_not_what_an_earlier_look_saw(
    tmp_path: Path,
) -> None:
    agent = Moody("deploy")
    looking, go_on = asyncio.Event(), asyncio.Event()
    go_on.set()

    async def handle(request: Request) -> None:
        if go_on.is_set():
            agent.handle(request)
            return
        looking.set()
        await go_on.wait()
        request.reply(503, {})

    async with (
        scripted_agent(handle) as served,
        ground(tmp_path, external("ops", served.url)) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        go_on.clear()
        first = asyncio.create_task(here.registry.refetch("ops"))
        await asyncio.wait_for(looking.wait(), 10)
        second = asyncio.create_task(here.registry.refetch("ops"))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, second)
        assert here.one("ops")["health"] == HEALTHY, here.one("ops")["reason"]
