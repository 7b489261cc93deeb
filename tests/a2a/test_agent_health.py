"""Health probes of agents, and their effect on the agents' tools."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.a2a.registry_fixture import (
    ChangeableAgent,
    external,
    run_changeable_agent,
    run_registry,
    skill,
)
from tests.a2a.scripted_agent import OLD_PLACE, Request, scripted_agent

from dragoman.a2a.remote import health_watch
from dragoman.a2a.remote.health_watch import DEGRADED, HEALTHY, UNKNOWN, UNREACHABLE, AgentHealth
from dragoman.core.catalog import UncheckedReason
from dragoman.core.logs import STORAGE_OUTAGE

pytestmark = pytest.mark.promise("R10")


def test_health_state_follows_probe_results() -> None:
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


def test_probe_backoff_grows_to_five_minutes_while_unreachable() -> None:
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
async def test_unreachable_agent_has_no_tools_and_delays_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dragoman.a2a.remote.health_watch")
    async with run_changeable_agent("deploy") as agent:
        agent.mode = "gone"
        async with run_registry(tmp_path, external("Vercel Ops", agent.url), every=0.05) as here:
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
async def test_three_consecutive_failures_remove_the_tools(tmp_path: Path) -> None:
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, external("ops", agent.url)) as here,
    ):
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


async def test_an_agent_whose_pin_cannot_be_checked_keeps_its_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    STORAGE_OUTAGE.clear()
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, external("ops", agent.url), every=0.05) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        here.pins.holds = lambda raw: UncheckedReason("the store failed")
        for _ in range(4):
            await here.registry.refetch("ops")
        assert here.one("ops")["health"] == HEALTHY and len(here.tools()) == 2
        here.pins.holds = lambda raw: "it has changed"
        await here.until(lambda: here.one("ops")["health"] == DEGRADED)
        assert not here.tools()
    said = [one for one in caplog.records if "the store failed" in one.getMessage()]
    assert [one.levelno for one in said if one.levelno > logging.DEBUG] == [logging.ERROR]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("knows", "it answered with one"),
        ("locked", "HTTP 403"),
        ("confused", "it answered: out of order"),
        ("deaf", "HTTP 503"),
    ],
)
async def test_probe_needs_a_response_besides_the_card(
    tmp_path: Path, mode: str, said: str
) -> None:
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, external("ops", agent.url)) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        agent.mode = mode
        await here.registry.refetch("ops")
        told = here.one("ops")
        assert told["health"] == DEGRADED and said in told["reason"], told["reason"]
        assert told["reachable"] and len(here.tools()) == 2


async def test_probe_is_a_conditional_card_request_and_one_safe_query(tmp_path: Path) -> None:
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, external("ops", agent.url)) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        agent.served.requests.clear()
        await here.registry.refetch("ops")
        card, question = agent.served.requests
        assert card.method == "GET" and card.headers["if-none-match"]
        assert question.rpc == "GetTask" and len(question.params["id"]) == 36
        await here.registry.refetch("ops")
        assert agent.served.requests[3].params["id"] != question.params["id"]


async def test_agent_is_probed_periodically(tmp_path: Path) -> None:
    config = external("ops", "URL")
    async with run_changeable_agent("deploy") as agent:
        config = config.replace("URL", agent.url)
        async with run_registry(tmp_path, config, every=0.02), asyncio.timeout(60):
            while len(agent.served.sent("GetTask")) < 5:
                await asyncio.sleep(0.01)


async def test_concurrent_probes_are_merged(tmp_path: Path) -> None:
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, external("ops", agent.url)) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        agent.served.requests.clear()
        await asyncio.gather(*(here.registry.refetch("ops") for _ in range(20)))
        assert len(agent.served.requests) == 2


async def test_hanging_probe_times_out(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def hang(request: Request) -> None:
        await release.wait()

    async with scripted_agent(hang) as silent:
        async with run_registry(tmp_path, external("ops", silent.url, timeout_secs="0.1")) as here:
            await here.until(lambda: here.one("ops")["health"] == UNREACHABLE)
            assert "0.1 s" in here.one("ops")["reason"]
        release.set()


@pytest.mark.promise("R9")
async def test_changed_card_changes_the_tools(tmp_path: Path) -> None:
    async with (
        run_changeable_agent("deploy", "old") as agent,
        run_registry(tmp_path, external("o", agent.url)) as here,
    ):
        await here.until(lambda: here.one("o")["health"] == HEALTHY)
        assert here.tools() == ["o.message", "o.deploy", "o.old"]
        agent.card["skills"] = [skill("deploy"), skill("new")]
        await here.registry.refetch("o")
        assert here.tools() == ["o.message", "o.deploy", "o.new"]
        assert [one["id"] for one in here.one("o")["skills"]] == ["deploy", "new"]


@pytest.mark.promise("R9")
async def test_quarantined_card_is_not_used_and_its_url_receives_nothing(
    tmp_path: Path,
) -> None:
    async with run_changeable_agent("deploy") as agent, run_changeable_agent("steal") as thief:
        entry = external("ops", agent.url, allow_private="true")
        async with run_registry(tmp_path, entry) as here:
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
            here.pins.holds = lambda raw: None  # it is approved
            here.registry.agents.recheck("ops")
            await here.until(lambda: bool(here.tools()))
            assert thief.served.sent("GetTask") and here.one("ops")["held"] == ""
        assert {mode for _, mode in here.pins.asked} == {"first"}


async def test_decision_during_a_probe_applies_after_it(tmp_path: Path) -> None:
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, external("ops", agent.url)) as here,
    ):
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


def _leads(raw: object, thief: ChangeableAgent) -> bool:
    return thief.url in str(raw)


async def test_successful_probe_closes_the_circuit_breaker(tmp_path: Path) -> None:
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, external("ops", agent.url)) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        watch = here.registry.agents.find("ops").watch
        assert watch is not None
        for _ in range(10):
            watch.agent.breaker.record_failure()
        assert watch.agent.breaker.is_open
        await here.registry.refetch("ops")
        assert not watch.agent.breaker.is_open


async def test_slow_agent_is_degraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "SLOW_SECONDS", 0.0)
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, external("ops", agent.url)) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == DEGRADED)
        assert "to answer" in here.one("ops")["reason"] and len(here.tools()) == 2


async def test_hub_that_is_late_does_not_blame_the_agent(tmp_path: Path) -> None:
    """Neither for an answer that it reads late, nor for one that it does not wait for."""
    delays = iter(range(0, 10_000_000, 100))
    late = False
    silent = asyncio.Event()

    async def handle(request: Request) -> None:
        if silent.is_set():
            await asyncio.Event().wait()
        agent.handle(request)

    agent = ChangeableAgent("deploy")
    async with (
        scripted_agent(handle) as served,
        run_registry(
            tmp_path,
            external("ops", served.url, timeout_secs="0.2"),
            read_delay=lambda: float(next(delays)) if late else 0.0,
        ) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        late = True
        await here.registry.refetch("ops")
        assert (here.one("ops")["health"], here.one("ops")["latencyMs"]) == (HEALTHY, 0)
        silent.set()
        for _ in range(4):
            await here.registry.refetch("ops")
        assert here.one("ops")["health"] == HEALTHY and len(here.tools()) == 2
        late = False
        await here.registry.refetch("ops")
        assert here.one("ops")["health"] == DEGRADED


def test_check_that_shows_nothing_is_repeated_soon() -> None:
    agent = AgentHealth()
    agent.record_own_delay()
    assert (agent.state, agent.next_pause(30)) == (UNKNOWN, 5)
    agent.record_answer(0.1)
    assert (agent.state, agent.next_pause(30)) == (HEALTHY, 30)


async def test_card_moved_to_the_legacy_path_is_found(tmp_path: Path) -> None:
    async with (
        run_changeable_agent("deploy") as agent,
        run_registry(tmp_path, external("ops", agent.url)) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        agent.place = OLD_PLACE
        await here.registry.refetch("ops")
        assert here.one("ops")["health"] == HEALTHY
        assert agent.served.requests[-2].path == OLD_PLACE
        await here.registry.refetch("ops")
        assert agent.served.requests[-2].path == OLD_PLACE


async def test_refresh_reports_the_current_state(
    tmp_path: Path,
) -> None:
    agent = ChangeableAgent("deploy")
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
        run_registry(tmp_path, external("ops", served.url)) as here,
    ):
        await here.until(lambda: here.one("ops")["health"] == HEALTHY)
        go_on.clear()
        first = asyncio.create_task(here.registry.refetch("ops"))
        await asyncio.wait_for(looking.wait(), 60)
        second = asyncio.create_task(here.registry.refetch("ops"))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, second)
        assert here.one("ops")["health"] == HEALTHY, here.one("ops")["reason"]
