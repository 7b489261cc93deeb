"""A hub with one remote agent whose skills are tools, a pipeline that announces and authorizes
calls, and policies that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any

from tests.permissive_hub import call_tool, complete_catalogs

from dragoman.core.bus import Bus
from dragoman.core.call import FORM, Call, Question, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import HubError
from dragoman.core.hub import Hub
from dragoman.core.pipeline import Stage
from dragoman.core.ports import Decision
from dragoman.core.principal import Principal
from dragoman.core.tool import DEFAULT_TRAITS, Bridged, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.trace import TraceContext
from dragoman.guards.announce import Announce
from dragoman.guards.authorize import Authorize
from dragoman.guards.recursion import Recursion

ALICE, BOB, BOSS = (Principal("key", name) for name in ("alice", "bob", "boss"))


class ScriptedPolicies:
    """Permits what a test has not denied; `boss` is an administrator."""

    def __init__(self) -> None:
        self.version = 0
        self.admins = {BOSS.label}
        self.denied: set[str] = set()
        self.hidden: set[str] = set()

    def decide(self, call: Call) -> Decision:
        if call.tool.name in self.denied | self.hidden:
            return Decision(False, ("no-deploys",), "abcd1234")
        return Decision(True, ("team",), "abcd1234")

    def can_list(self, caller: Principal, tool: Tool) -> bool:
        return tool.name not in self.hidden or caller == BOSS

    def can_see(self, caller: Principal, tool: Tool, door: str) -> bool:
        return self.can_list(caller, tool) and tool.name not in self.denied

    def group_of_principal(self, caller: Principal) -> Hashable:
        return caller.label

    def reads_arguments(self, tool: Tool) -> bool:
        return False

    def decide_action(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        return Decision(caller.label in self.admins, ("admins",), "abcd1234")


class ScriptedAgent:
    """Behaves as the arguments of a call say."""

    traits = DEFAULT_TRAITS

    def __init__(self, name: str = "Vercel Ops") -> None:
        self.name = name
        self.calls: list[Call] = []
        self.running = asyncio.Event()
        self.go = asyncio.Event()
        self.error: HubError | None = None

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        wants = call.arguments
        call.notes.remote_task = "task-7"
        if "usage" in wants:
            call.notes.usage = wants["usage"]
        self.running.set()
        if wants.get("waits"):
            await self.go.wait()
        if self.error is not None:
            raise self.error
        if wants.get("asks"):
            return Result(questions={"q": Question(FORM, {"message": "?"})}, handle="h")
        return Result(content=[{"type": "text", "text": "ok"}], failed=bool(wants.get("fails")))

    def skill(self, id: str = "deploy") -> Tool:
        return Tool(
            name=f"vercel_ops.{id}",
            alias=f"vercel_ops.{id}",
            other_names={"alias": f"a2a_vercel_ops_{id}"},
            remote_name=id,
            target=self,
            bridged=Bridged(
                agent=self.name,
                card_id="card-1",
                url="https://agents.example.com/vercel-ops",
                skill_id=id,
                alias=f"a2a_vercel_ops_{id}",
            ),
        )

    def plain(self, name: str = "files.read") -> Tool:
        return Tool(name=name, alias=name, remote_name=name, target=self)


class SkillHub:
    def __init__(self, *, before: Sequence[Stage] = (), at_once: int = 100) -> None:
        self.bus = Bus()
        self.judge = ScriptedPolicies()
        self.agent = ScriptedAgent()
        self.catalog = Catalog(review=admit_all)
        self.chains = CallChains(bytes(32))
        self.announce = Announce(self.bus, at_once)
        stages = [*before, self.announce, Recursion(self.chains), Authorize(self.judge)]
        self.hub = Hub(complete_catalogs(self.catalog), self.bus, stages, self.chains, self.judge)
        agent = self.agent
        self.catalog.offer(agent.name, [agent.skill(), agent.skill("logs"), agent.plain()])

    async def call(
        self,
        name: str = "vercel_ops.deploy",
        who: Principal = ALICE,
        carried: TraceContext | None = None,
        **arguments: Any,
    ) -> Result:
        return await call_tool(
            self.hub, who, name, arguments, door="test", view=EVERYTHING, trace_context=carried
        )

    def begin(
        self, name: str = "vercel_ops.deploy", who: Principal = ALICE, **arguments: Any
    ) -> asyncio.Task[Result]:
        """Starts a call that waits in the agent until `agent.go` is set."""
        self.agent.running.clear()
        return asyncio.ensure_future(self.call(name, who, waits=True, **arguments))
