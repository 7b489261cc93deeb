"""Agents and clients of several orgs: each has the built-in tools, and nothing of another org."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agents.agent_rig import AgentRig, open_rig, read_text

from dragoman.core.call import Result
from dragoman.core.errors import NotFound
from dragoman.core.events import UserEvent
from dragoman.core.principal import OWNER, Principal

pytestmark = pytest.mark.promise("T2", "P1")

WORKER = """
org = "{org}"
[[script]]
call = [{ tool = "memory_recall", arguments = { key = "shared.plan" } }]
[[script]]
after = "*"
say = "{result}"
[capabilities]
tools = ["*"]
agents = ["*"]
memory_read = ["*"]
memory_write = ["*"]
"""
CONFIG = """
[tools]
clients = ["file_*", "memory_*", "task_*"]
[tools.client_grants]
memory_read = ["*"]
memory_write = ["*"]
"""
ACME = Principal("key", "ann", "acme")


async def use(rig: AgentRig, who: str | Principal, tool: str, **arguments: str) -> Result:
    if isinstance(who, str):
        return await rig.use(who, tool, **arguments)
    return await rig.call(who, tool, arguments)


async def test_built_in_tools_serve_every_org_apart(short_tmp: Path) -> None:
    async with open_rig(short_tmp, CONFIG) as rig:
        for name, org in (("home", "default"), ("away", "acme"), ("next", "acme")):
            await rig.write(name, WORKER.replace("{org}", org))
        published: list[UserEvent] = []
        rig.hub.bus.observe(UserEvent, published.append)
        pairs: list[tuple[str | Principal, str | Principal]] = [
            ("home", "away"), ("away", "home"), (OWNER, ACME), (ACME, OWNER),
        ]  # fmt: skip
        for number, (mine, other) in enumerate(pairs):
            mark = f"mark-{number}"
            await use(rig, mine, "memory_store", key=f"shared.{mark}", value="x")
            await use(rig, mine, "task_post", title=mark, description="D")
            await use(rig, mine, "file_write", path=mark, content="x")
            reads = ["memory_recall", "task_list", "file_list"]
            if isinstance(mine, str):
                await use(rig, mine, "schedule_create", description=mark, schedule="daily")
                await use(rig, mine, "event_publish", event_type=mark)
                reads.append("schedule_list")
            for tool in reads:
                assert mark in read_text(await use(rig, mine, tool))
                assert mark not in read_text(await use(rig, other, tool))
        assert [one.org for one in published] == ["default", "acme"]
        listed = read_text(await use(rig, "away", "agent_list"))
        assert '"next"' in listed and '"home"' not in listed
        with pytest.raises(NotFound):  # agents of another org are unknown
            await rig.ask("home", "hi", ACME)
        with pytest.raises(NotFound):
            await use(rig, "away", "agent_send", agent_id="home", message="hi")
        await use(rig, "next", "memory_store", key="shared.plan", value="of acme")
        assert await rig.ask("away", "hi", ACME) == "of acme"
