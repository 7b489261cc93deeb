"""Agents that agents start: their names, folders, grants, budgets and end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.agent_rig import AgentRig, open_rig
from tests.peers.scripted_model import running_model, say
from tests.permissive_hub import PermitAll

from dragoman.core.errors import InvalidInput, NotFound, RateLimited, TimedOut, WorkFailed
from dragoman.core.local_agents import AGENT, AgentProfiles
from dragoman.core.principal import Principal
from dragoman.core.tool import Nowhere, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import BUILTIN
from dragoman.guards.grants import GrantedAuthorizer
from dragoman.stores.usage import DatabaseUsage

pytestmark = pytest.mark.promise("P1", "T2")

PARENT = """
[[script]]
say = "hi"
[capabilities]
tools = ["fs.*"]
shell = ["*"]
agent_spawn = true
"""


@pytest.fixture
async def rig(short_tmp: Path) -> AsyncIterator[AgentRig]:
    async with open_rig(short_tmp) as made:
        await made.write("parent", PARENT)
        yield made


async def test_folder_of_a_child_follows_its_checked_name(rig: AgentRig) -> None:
    child = await rig.spawn("parent", name="../../victim", identity={"name": "good"})
    assert child.workspace == rig.home / "agents" / "parent" / "spawned" / "good" / "workspace"
    assert await rig.ask("good") == "hi"
    for name in ("../x", "/etc", "", ".."):
        with pytest.raises(InvalidInput, match="invalid"):
            await rig.spawn("parent", name=name)


WIDER: list[dict[str, Any]] = [
    {"capabilities": {"tools": ["git.*"]}},
    {"capabilities": {"shell": ["sh -c *"]}},
    {"capabilities": {"network": ["*"]}},
    {"command": {"argv": ["/bin/sh"]}},
    {"function": "os:system"},
    {"script": [{"when": "(a|aa)+$", "say": "hi"}]},
    {"script": [{"when": "(a|aa)+$", "say": "hi"}], "model": {"provider": "script"}},
    {"schedule": "hourly"},
    {"model": {"base_url": "http://evil.example/v1", "model": "m", "api_key_env": "SECRET"}},
]


async def test_child_has_no_more_than_its_parent(rig: AgentRig) -> None:
    for wider in WIDER:
        with pytest.raises(InvalidInput):
            await rig.spawn("parent", name="child", **wider)
    assert set(rig.agents) == {"parent"}
    await rig.spawn("parent", name="child", capabilities={"tools": ["fs.read"], "shell": ["*"]})


async def test_children_end_with_their_parent_and_its_changes(rig: AgentRig) -> None:
    child = await rig.spawn("parent", name="child")
    agent = rig.agents["child"]
    assert child.workspace.is_dir() and await rig.ask("child") == "hi"
    await rig.write("parent", PARENT + "# changed\n")
    assert set(rig.agents) == {"parent"} and not child.workspace.exists()
    with pytest.raises(NotFound):
        await rig.ask("child")
    assert rig.agents["parent"] is not agent
    again = await rig.spawn("parent", name="child")
    await rig.made.kill("child", rig.profile("parent"))
    assert set(rig.agents) == {"parent"} and not again.workspace.exists()


async def test_ended_agent_stops_at_once_and_its_callers_are_answered(rig: AgentRig) -> None:
    with running_model() as model:
        thinking = f'[model]\nmodel = "m"\nbase_url = "{model.url}"\n'
        granted = '[capabilities]\nagent_spawn = true\nagents = ["*"]\ntools = ["agent_*"]\n'
        file = await rig.write("boss", thinking + granted)
        await rig.spawn("boss", name="child")
        model.rules.append(("wait", {"hang": True}))

        async def begin(agent: str, calls: int) -> list[asyncio.Task[str]]:
            """Two of them wait for the first, as they continue its conversation."""
            model.broken.clear()
            begun = model.open
            tasks = [
                asyncio.ensure_future(rig.ask(agent, "wait", session="s")) for _ in range(calls)
            ]
            async with asyncio.timeout(60):
                while model.open == begun:
                    await asyncio.sleep(0.005)
            return tasks

        tasks = await begin("child", 2)
        await rig.use("boss", "agent_kill", agent_id="child")
        for task in tasks:
            with pytest.raises(WorkFailed, match='agent "child" was ended before it answered'):
                await asyncio.wait_for(task, 60)
        assert await asyncio.to_thread(model.broken.wait, 5)  # down to the model's connection

        first = await begin("boss", 1)
        await rig.write("boss", thinking + granted + "# changed\n")
        second = await begin("boss", 1)
        assert not first[0].done()  # a change lets running calls finish
        file.unlink()
        rig.made.check()
        for task in [*first, *second]:
            with pytest.raises(WorkFailed, match='agent "boss" was ended'):
                await asyncio.wait_for(task, 60)


async def test_message_to_a_slow_agent_says_which_limit_ended_it(short_tmp: Path) -> None:
    limits = "".join(f"{name}_timeout_secs = 0.3\n" for name in ("tool", "progress", "task"))
    with running_model() as model:
        model.rules.append(("", {"hang": True}))
        async with open_rig(short_tmp, f"[limits]\n{limits}") as rig:
            await rig.write("slow", f'[model]\nmodel = "m"\nbase_url = "{model.url}"\n')
            granted = '[capabilities]\ntools = ["agent_send"]\nagents = ["slow"]\n'
            await rig.write("boss", f'{granted}[[script]]\nsay = "hi"\n')
            said = r'^"slow.message" took longer than 0.3 s .* \[limits\] task_timeout_secs'
            with pytest.raises(TimedOut, match=said):
                await rig.use("boss", "agent_send", agent_id="slow", message="hi")


async def test_budget_of_a_parent_holds_for_all_that_it_started(rig: AgentRig) -> None:
    with running_model() as model:
        model.rules.append(("", say("fine")))  # 18 tokens each
        thinking = f'[model]\nmodel = "m"\nbase_url = "{model.url}"\n'
        granted = "[capabilities]\nagent_spawn = true\n[limits]\ntokens_per_day = 50\n"
        await rig.write("boss", thinking + granted)
        await rig.write("other", thinking)
        await rig.spawn("boss", name="first", capabilities={"agent_spawn": True})
        await rig.spawn("boss", name="second")
        await rig.spawn("first", name="grandchild")
        await rig.ask("other")
        for name in ("grandchild", "second", "first"):
            assert await rig.ask(name) == "fine"
        for name in ("second", "grandchild", "boss"):
            with pytest.raises(RateLimited, match=r'budget of agent "boss".* 54 of 50 tokens'):
                await rig.ask(name)
        assert await rig.ask("other") == "fine"
        usage = rig.app.parts.stores.usage
        usage.close()
        fresh = DatabaseUsage(rig.home)  # the same sums from the file
        now = time.time()
        sums = [fresh.find_today("agent", name, now)[0] for name in ("boss", "first", "second")]
        assert sums == [54, 36, 18] and fresh.find_today("origin", "owner:owner", now)[0] == 90
        fresh.close()


def test_agent_that_was_removed_has_no_grants() -> None:
    profiles = AgentProfiles()
    granted = GrantedAuthorizer(PermitAll(), profiles)
    target = Nowhere(NotFound("it is not there"))
    tool = Tool(name="fs.read", alias="x", remote_name="read", target=target)
    gone = Principal(AGENT, "gone", serves="gone")
    assert not granted.is_granted(gone, tool, None, "agent")
    assert not granted.can_see(gone, tool, "agent")
    key = Principal("key", "k", serves="server-without-a-manifest")
    assert granted.is_granted(key, tool, None, "agent")


async def test_an_agent_has_its_tools_as_soon_as_it_is_listed(short_tmp: Path) -> None:
    async with open_rig(short_tmp) as rig:
        file = rig.home / "agents" / "clock" / "agent.toml"
        file.parent.mkdir(parents=True)
        text = '[[script]]\nsay = "hi"\n[capabilities]\ntools = ["system_time"]\n'
        file.write_text(text, encoding="utf-8")
        await rig.app._follow_agents()
        assert rig.made.find_by_name("clock") is not None
        assert rig.hub.find("system_time", EVERYTHING).target.name == BUILTIN
