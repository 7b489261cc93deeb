"""Whole journeys over the bridge: an IDE by stdio, or a client by HTTP, of both eras, uses the
skills of a real agent of 1.0 and of 0.3: answers its question, sees progress, cancels; and the
audit has each step under one trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.live.bridge_fixture import (
    EXPOSE,
    VERSIONS,
    Agents,
    User,
    audit_of,
    eventually,
    over_http,
    over_stdio,
    tool_names,
    two_agents,
    using,
)
from tests.live.conftest import RunningHub
from tests.live.matrix_transports import OverHttp
from tests.live.module_hub import run_module_hub, until
from tests.peers.process import processes_at_home

pytestmark = pytest.mark.promise("R1", "R3", "R4")

KEY = "k" * 32
NAMES = ("new", "old")
OUTCOMES = ["completed", "asked", "completed", "completed", "cancelled"]


@dataclass(frozen=True)
class HubRig:
    hub: RunningHub
    agents: Agents
    anns: Mapping[str, str]
    """The headers of a key that belongs to ann."""


@pytest.fixture(scope="module")
def agents() -> Iterator[Agents]:
    with two_agents() as made:
        yield made


@pytest.fixture(scope="module")
def rig(agents: Agents) -> Iterator[HubRig]:
    with run_module_hub([], f'api_key = "{KEY}"\n{EXPOSE}{agents.config()}') as hub:
        made = hub.command("keys", "create", "ide", "--owner", "ann")
        assert made.returncode == 0, made.stderr
        anns = {"Authorization": f"Bearer {made.stdout.strip().splitlines()[-1]}"}
        until(lambda: hub.get("/api/status", anns).status == 200)
        until(lambda: {"new.echo", "old.echo"} <= tool_names(hub))
        yield HubRig(hub, agents, anns)


@dataclass(frozen=True)
class Journey:
    trace: str
    agent: str
    tasks: list[str]
    """The agent's own id of the task of each step."""


async def journey(user: User, agents: Agents, name: str) -> Journey:
    trace = user.begin()
    before = len(agents.log(name))
    assert await user.call(f"a2a_{name}_echo", "say hello") == "echo: hello"
    assert await user.call(f"{name}.ask", "ask me") == "you said: blue"
    assert user.asked == ["which colour?"]
    assert await user.call(f"{name}.echo", "slow") == "all steps done"
    assert user.told == ["step 0", "step 1", "step 2"]
    hanging = asyncio.ensure_future(user.call(f"{name}.echo", "hang"))
    await eventually(lambda: "this takes long" in user.told)
    hanging.cancel()
    with suppress(asyncio.CancelledError):
        await hanging
    (cancelled,) = await eventually(lambda: agents.since(name, before, "cancel"))
    executed = agents.since(name, before, "execute")
    assert [one["word"] for one in executed] == ["say", "ask", "blue", "slow", "hang"]
    tasks = [one["task"] for one in executed]
    assert tasks[1] == tasks[2], "the answer continues the task that asked"
    assert cancelled["task"] == tasks[4] and len(set(tasks)) == 4
    traced = [one for one in agents.log(name)[before:] if one.get("trace") == trace]
    assert len(traced) == 6, "each step, and the cancel"
    return Journey(trace, name, tasks)


def recorded(records: Sequence[Mapping[str, Any]], made: Journey, **who: Any) -> None:
    """What the audit must have of a journey, and `who` of each of its records."""
    name = made.agent
    rows = [one for one in records if one.get("trace") == made.trace]
    assert [one["outcome"] for one in rows] == OUTCOMES
    assert [one["asked_as"] for one in rows] == [
        f"a2a_{name}_echo", f"{name}.ask", f"{name}.ask", f"{name}.echo", f"{name}.echo",
    ]  # fmt: skip
    assert [one["verb"].partition(".")[2] for one in rows] == ["echo", "ask", "ask", "echo", "echo"]
    assert [one["far_task"] for one in rows] == made.tasks
    for row in rows:
        assert row["verb"].startswith(f"{name}.") and row["target"] == name
        assert row["decision"] == "permit" and row["policies"] and len(row["policy_set"]) == 12
        assert 0 < row["duration_ms"] < 10_000 and row["depth"] == 0
        assert {key: row.get(key) for key in who} == who


@pytest.mark.promise("F1", "F2", "Q6")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", VERSIONS)
async def test_ide_beside_a_hub_uses_agent_skills(rig: HubRig, mode: str, name: str) -> None:
    async with using(over_stdio(rig.hub.home), mode) as user:
        assert {f"{name}.echo", f"{name}.ask"} <= await user.names()
        made = await journey(user, rig.agents, name)
    who = {"caller": "owner:owner", "on_behalf_of": None, "door": "mcp-stdio"}
    recorded(rig.hub.audit(), made, **who, policies=["everybody", "owner"])


@pytest.mark.promise("F1", "F2")
@pytest.mark.parametrize("mode", VERSIONS)
async def test_hosting_ide_uses_agent_skills(agents: Agents, short_tmp: Path, mode: str) -> None:
    home = short_tmp / "h"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(EXPOSE + agents.config(), encoding="utf-8")
    (home / "config.toml").chmod(0o600)
    async with using(over_stdio(home), mode) as user:

        async def there() -> bool:
            return {"new.echo", "old.echo"} <= await user.names()

        await eventually(there)
        done = [await journey(user, agents, name) for name in NAMES]
    until(lambda: not processes_at_home(home) and not (home / "daemon.json").exists())
    records = audit_of(home)
    for each in done:
        recorded(records, each, caller="owner:owner", door="mcp-stdio")


@pytest.mark.promise("G1", "G2", "Q6")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", VERSIONS)
async def test_http_client_with_a_key_uses_agent_skills(rig: HubRig, mode: str, name: str) -> None:
    async with over_http(rig.hub.mcp_url, mode, rig.anns) as user:
        assert {f"{name}.echo", f"{name}.ask"} <= await user.names()
        made = await journey(user, rig.agents, name)
    who = {"caller": "key:ide", "on_behalf_of": "ann", "door": "mcp-http"}
    recorded(rig.hub.audit(), made, **who, policies=["everybody"])


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", VERSIONS)
async def test_all_rounds_of_a_call_share_one_trace(rig: HubRig, mode: str, name: str) -> None:
    before = len(rig.agents.log(name))
    async with over_http(rig.hub.mcp_url, mode, rig.anns) as user:
        user.traces = False
        assert await user.call(f"{name}.ask", "ask me") == "you said: blue"
    first, second = rig.hub.audit()[-2:]
    assert [first["outcome"], second["outcome"]] == ["asked", "completed"]
    assert first["trace"] == second["trace"] and first["far_task"] == second["far_task"]
    told = [one["trace"] for one in rig.agents.since(name, before, "request")]
    assert told == [first["trace"]] * 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("revision", VERSIONS.values())
@pytest.mark.parametrize("able", [True, False])
def test_unanswered_question_ends_the_agent_task(
    rig: HubRig, revision: str, name: str, able: bool
) -> None:
    before = len(rig.agents.log(name))
    features: dict[str, Any] = {"elicitation": {"form": {}}} if able else {}
    with OverHttp(rig.hub, revision, features, rig.anns) as client:
        client.answering = lambda method, params: {"action": "decline"}
        answer = client.call(f"{name}.ask", {"text": "ask me"})
        assert len(client.asked) == able, answer
    words = "its question was not answered" if able else "which colour?"
    assert words in json.dumps(answer), answer
    (cancelled,) = until(lambda: rig.agents.since(name, before, "cancel"))
    (asked,) = rig.agents.since(name, before, "execute")
    assert cancelled["task"] == asked["task"]
