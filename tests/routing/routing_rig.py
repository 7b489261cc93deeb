"""A whole hub in this process with stub agents, whose behaviour a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from dragoman import home as home_files
from dragoman.app.app import App
from dragoman.app.build import build_app
from dragoman.config import Config
from dragoman.core.agent_tool import SCHEMA, build_agent_tool
from dragoman.core.call import Call, Result
from dragoman.core.hub import CallOptions
from dragoman.core.principal import Principal
from dragoman.core.tool import AgentFacts, TargetFacts, TargetTraits
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.validate import compile_schema
from dragoman.routing.config import RoutingSettings

ALICE, BOB = Principal("key", "alice"), Principal("key", "bob")
META = "dragoman.hub/dispatch"

Answer = Callable[[Call], Any]


class StubAgent:
    """An agent of this hub with one skill. It answers with its name, or with what `answer` returns
    or awaits."""

    traits = TargetTraits(facts=TargetFacts(type="Agent"))

    def __init__(
        self, name: str, skill: str = "test", tags: Sequence[str] = ("qa",), answer: Any = None
    ) -> None:
        self.name = name
        self.calls: list[Call] = []
        self.answer: Answer | None = answer
        self.arrived = asyncio.Event()
        skills = [{"id": skill, "name": skill, "description": "", "tags": list(tags)}]
        facts = AgentFacts(name=name, description=f"Agent {name}", skills=skills)
        self.tool = build_agent_tool(self, facts, "dragoman_agent_", compile_schema(SCHEMA))

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        self.arrived.set()
        result = self.answer(call) if self.answer is not None else None
        if asyncio.iscoroutine(result):
            result = await result
        return result if isinstance(result, Result) else text_result(self.name)

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


def text_result(text: str, **more: Any) -> Result:
    return Result(content=[{"type": "text", "text": text}], **more)


class RoutingRig:
    def __init__(self, app: App) -> None:
        self.app = app
        self.hub = app.parts.guards.hub

    def offer(self, *agents: StubAgent) -> None:
        for agent in agents:
            cast(dict[str, Any], self.app.parts.agents.local.by_name)[agent.name] = agent
            self.hub.catalog.offer(agent.name, [agent.tool])

    def add(self, *agents: StubAgent) -> None:
        self.offer(*agents)
        self.app.parts.routing.offer()

    async def dispatch(
        self,
        text: str = "test it",
        who: Principal = ALICE,
        *,
        options: Any = None,
        **arguments: Any,
    ) -> Result:
        arguments = {"description": text, "workType": "qa", **arguments}
        how = CallOptions(door="api", view=EVERYTHING, **(options or {}))
        _, result = await self.hub.call(who, "dragoman.dispatch", arguments, how)
        return result

    async def list_dispatches(self, **wanted: Any) -> list[dict[str, Any]]:
        store = self.app.parts.events.dispatches
        rows, _ = await store.find(50, None, **{"org": "default", "caller": "*", **wanted})
        return rows

    def explain(self, result_or_id: Result | str, caller: str | None = None) -> Any:
        id = result_or_id
        if isinstance(result_or_id, Result):
            id = result_or_id.extra["_meta"][META]["decisionId"]
        return self.app.parts.routing.explain(str(id), "default", caller)


def find_agent(result: Result) -> str:
    return str(result.extra["_meta"][META]["agent"])


@asynccontextmanager
async def run_rig(home: Path, policies: str = "", **settings: Any) -> AsyncIterator[RoutingRig]:
    home_files.prepare(str(home))
    if policies:
        (home / "policies").mkdir()
        (home / "policies" / "test.cedar").write_text(policies, encoding="utf-8")
    app = build_app(home, Config(routing=RoutingSettings(seed=1, **settings)), "mcp")
    try:
        yield RoutingRig(app)
    finally:
        await app.stop()
