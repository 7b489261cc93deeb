"""Registries of many agents: the work at the start and of each look-up, and the bounds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.a2a.registry_fixture import NOT_FOUND, external, run_registry
from tests.a2a.scripted_agent import Request, card_10, scripted_agent

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.remote import health_watch
from dragoman.a2a.remote.registered_agents import RegisteredAgent, RegisteredAgents
from dragoman.a2a.remote.registration import API, create_registration, encode_registration
from dragoman.a2a.remote.registry import Registry
from dragoman.a2a.remote.remote_agent import RemoteAgent
from dragoman.core.bus import Bus
from dragoman.core.secret_rules import ReferenceRules
from dragoman.stores.registry import RegistryStore

pytestmark = pytest.mark.promise("R10")


def build_entry(number: int) -> ExternalAgent:
    return ExternalAgent(name=f"agent {number}", url="http://x.example/", enabled=False)


def build_agents(count: int) -> RegisteredAgents:
    agents = RegisteredAgents()
    for number in range(count):
        agents.put(RegisteredAgent(create_registration(build_entry(number), 0.0, API)))
    return agents


async def test_other_names_are_read_once_for_each_load(tmp_path: Path) -> None:
    readings = 0

    def list_others() -> Iterator[tuple[str, str]]:
        nonlocal readings
        readings += 1
        yield "server", "Agent-7"

    def build_target(entry: ExternalAgent, source: str) -> RemoteAgent:
        raise AssertionError("a disabled agent has no target")

    store = RegistryStore(tmp_path)
    for number in range(20, 40):
        row = create_registration(build_entry(number), 0.0, API)
        store.save_agent(encode_registration(row))
    registry = Registry(
        RegisteredAgents(),
        store,
        build_target,
        Bus(),
        others=list_others,
        reserved=(),
        review_card=lambda agent, card, mode, is_extended: None,
        facts_changed=lambda: None,
        every=30.0,
        most=1_000,
        read_delay=lambda: 0.0,
        references=ReferenceRules((), tmp_path),
    )
    registry.load(build_entry(number) for number in range(20))
    await registry.load_stored()
    assert (readings, len(registry.agents)) == (2, 39)
    assert "as those of server" in registry.failures["agent 7"]
    store.close()


def test_look_ups_take_no_longer_with_many_agents() -> None:
    def measure(agents: RegisteredAgents, number: int) -> float:
        """Returns the CPU time of many look-ups of the agent that was added last."""
        id = agents.find(f"agent {number}").registration.id
        begun = time.process_time()
        for _ in range(2_000):
            assert agents.find(id) is agents.find_by_name(f"agent {number}")
            assert agents.find_absent(f"agent_{number}.deploy") is None
        return time.process_time() - begun

    few, many = build_agents(20), build_agents(4_000)
    # If they were linear, the ratio would be 200.
    assert min(measure(many, 3_999) for _ in range(3)) < 20 * max(
        measure(few, 19) for _ in range(3)
    )


def test_agents_are_found_by_id_slug_and_name_until_they_are_removed() -> None:
    agents = build_agents(3)
    second = agents.find("agent 1")
    for key in ("agent_1", second.registration.id):
        assert agents.find(key) is second
    renewed = RegisteredAgent(create_registration(build_entry(1), 1.0, API))
    agents.put(renewed)
    assert agents.find("agent 1") is renewed and len(agents) == 3
    with pytest.raises(Exception, match="there is no registered agent"):
        agents.find(second.registration.id)
    agents.remove(renewed)
    assert agents.find_by_name("agent 1") is None
    assert agents.list_names() == ["agent 0", "agent 2"]


@pytest.mark.parametrize(
    ("name", "agent"),
    [
        ("ops", "ops"),
        ("ops.deploy", "ops"),
        ("OPS.deploy", "ops"),
        ("ops_deploy", "ops"),
        ("ops-deploy", "ops"),
        ("a2a_ops_deploy", "ops"),
        ("dragoman_agent_ops", "ops"),
        ("ops_eu.deploy", "ops eu"),
        ("a2a_ops_eu_deploy", "ops eu"),
        ("dragoman_agent_ops_eu", "ops eu"),
        ("opsdeploy", None),
        ("a2a_ops", None),
        ("agent_ops", None),
        ("_" * 1_000_000, None),
    ],
)
async def test_agent_that_was_never_reached_is_found_by_names_of_its_tools(
    name: str, agent: str | None, tmp_path: Path
) -> None:
    config = external("ops", "http://127.0.0.1:1/") + external("ops eu", "http://127.0.0.1:1/")
    async with run_registry(tmp_path, config, start=False) as here:
        absent = here.registry.agents.find_absent(name)
        assert (absent[0].name if absent is not None else None) == agent


async def test_agents_beyond_the_limit_are_not_used_wherever_they_come_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = RegistryStore(tmp_path)
    for number in range(3):
        store.save_agent(encode_registration(create_registration(build_entry(number), 0.0, API)))
    store.close()
    config = "".join(external(name, "http://127.0.0.1:1/") for name in ("a", "b", "c"))
    with caplog.at_level(logging.ERROR):
        async with run_registry(tmp_path, config, start=False, bridge="max_agents = 2\n") as here:
            assert here.registry.agents.list_names() == ["a", "b"]
            assert "raise [bridge] max_agents" in here.registry.failures["c"]
    (line,) = [one.getMessage() for one in caplog.records if "not used" in one.getMessage()]
    assert line.startswith("4 agents are not used: the hub uses 2 external agents at most")


async def test_concurrent_checks_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_watch, "SLOT_SECONDS", 600.0)  # a slow machine proves nothing
    bound = health_watch.CHECKS_AT_ONCE
    requesting = most = 0
    full = asyncio.Event()

    async def handle(request: Request) -> None:
        nonlocal requesting, most
        if "/.well-known/" not in request.path:
            request.fail(NOT_FOUND)
            return
        requesting += 1
        most = max(most, requesting)
        if requesting >= bound:
            full.set()
        await full.wait()  # the first are answered when as many as may be have come
        for _ in range(50):
            await asyncio.sleep(0)
        requesting -= 1
        request.reply(200, card_10(f"http://{request.headers['host']}{request.path[:4]}"))

    async with scripted_agent(handle) as server:
        count = bound * 2
        config = "".join(external(f"agent {n}", f"{server.url}/{n:03}") for n in range(count))
        async with run_registry(tmp_path, config) as here:
            await here.until(lambda: len(here.tools()) == count)
    assert most == bound


async def test_check_that_lasts_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "SLOT_SECONDS", 0.01)
    slots = health_watch.CheckSlots(1)
    async with asyncio.timeout(60), slots.take(), slots.take():
        pass
    async with asyncio.timeout(60):
        for _ in range(3):
            async with slots.take():
                pass
