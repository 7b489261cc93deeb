"""Approvals of what agents do: an agent is no way around an approval that its caller needs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.agents.agent_rig import open_rig, read_text

from dragoman.core.principal import OWNER

pytestmark = pytest.mark.promise("U6")

POLICIES = """
@id("agents")
permit (principal is Hub::Agent, action, resource);
@id("owner")
permit (principal in Hub::Role::"owner", action, resource)
unless { resource == Hub::Tool::"builtin.memory_store" && action in Hub::Action::"any_call" };
@id("guarded")
@approval("it is remembered for good")
permit (
  principal in Hub::Role::"owner",
  action in Hub::Action::"any_call",
  resource == Hub::Tool::"builtin.memory_store"
);
"""
KEEPER = """
[model]
provider = "script"
[capabilities]
tools = ["memory_store", "memory_recall"]
[[script]]
call = [{ tool = "memory_store", arguments = { key = "note", value = "{message}" } }]
[[script]]
after = "*"
say = "{result}"
"""
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}


def write_policies(home: Path) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "policies").mkdir()
    (home / "policies" / "main.cedar").write_text(POLICIES, encoding="utf-8")


async def test_agent_needs_the_approval_that_its_caller_needs(short_tmp: Path) -> None:
    home = short_tmp / "h"
    write_policies(home)
    async with open_rig(home, "[approvals]\nwait_secs = 0\n") as rig:
        await rig.write("keeper", KEEPER)
        said = await rig.ask("keeper", "remember me")
        assert "waits for approval" in said
        desk = rig.app.parts.guards.approvals.find_desk()
        ((found,), _) = await desk.list_visible(OWNER, "pending", None, 10)
        request = found.request
        assert request.requester.label == "agent:keeper" and found.parked is not None
        assert [one.label for one, _ in found.parked.callers] == ["owner:owner"]
        assert found.parked.chain == ("keeper.message",)
        # No client waits, so the hub makes the call for the agent and its caller.
        desk.decide(request.id, True, OWNER)
        async with asyncio.timeout(60):
            while desk.get(request.id).outcome != "completed":
                await asyncio.sleep(0.01)
        assert await rig.ask("keeper", "remember me") != said  # the kept result
        stored = await rig.use("keeper", "memory_recall", key="note")
        assert "remember me" in read_text(stored)


async def test_caller_of_an_agent_is_asked(short_tmp: Path) -> None:
    home = short_tmp / "h"
    write_policies(home)
    async with open_rig(home) as rig:
        await rig.write("keeper", KEEPER)
        asked = await rig.send("keeper", "remember this", features=FORMS)
        assert asked.questions is not None
        ((name, question),) = asked.questions.items()
        assert "it is remembered for good" in question.text
        answers = {name: {"action": "accept", "content": {"approve": True}}}
        said = await rig.ask(
            "keeper", "remember this", features=FORMS, answers=answers, handle=asked.handle
        )
        assert "waits" not in said
        desk = rig.app.parts.guards.approvals.find_desk()
        ((found,), _) = await desk.list_visible(OWNER, "approved", None, 10)
        assert (found.approval.decided_by, found.outcome) == ("owner:owner", "completed")
