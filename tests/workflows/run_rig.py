"""A whole hub in this process with tools that a test sets, for workflows that run in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from dragoman import home as home_files
from dragoman.app.app import App
from dragoman.app.build import build_app
from dragoman.config import Config
from dragoman.core.call import Call, Question, Result
from dragoman.core.principal import OWNER, Principal
from dragoman.core.runs import ENDED, Run, StepRecord
from dragoman.core.secret_rules import Author
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.stores.config import StoreSettings
from dragoman.workflows.config import WorkflowSettings
from dragoman.workflows.service import RunService, RunStart

Answer = Callable[[Call], Any]
SECONDS = 20.0


class StubTools:
    """A server of the hub: each tool answers with what its function returns, awaits or raises."""

    name = "stub"
    traits = TargetTraits(facts=TargetFacts(type="Server"), may_last=True)

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.tools: dict[str, Answer] = {}
        self.arrived = asyncio.Event()

    def add(self, name: str, answer: Answer, **annotations: bool) -> Tool:
        self.tools[name] = answer
        return Tool(
            name=f"stub.{name}",
            alias=f"stub.{name}",
            remote_name=name,
            definition={"name": name, "annotations": annotations},
            target=self,
        )

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        self.arrived.set()
        found = self.tools[call.tool.remote_name](call)
        if asyncio.iscoroutine(found):
            found = await found
        return found if isinstance(found, Result) else build_result(found)

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass

    def count(self, name: str) -> int:
        return sum(call.tool.remote_name == name for call in self.calls)


def build_result(value: Any) -> Result:
    if isinstance(value, dict):
        return Result(content=[{"type": "text", "text": json.dumps(value)}], structured=value)
    return Result(content=[{"type": "text", "text": str(value)}])


def ask(message: str = "Which one?") -> Result:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    question = Question("form", {"message": message, "requestedSchema": schema})
    return Result(questions={"choice": question}, handle="the state of the tool")


class RunRig:
    def __init__(self, app: App, stub: StubTools) -> None:
        self.app = app
        self.hub = app.parts.guards.hub
        self.stub = stub
        self.bus = self.hub.bus
        self._tools: list[Tool] = []
        # Its definitions are not reviewed, as those of an agent of this hub.
        cast(dict[str, Any], app.parts.agents.local.by_name)["stub"] = stub

    @property
    def service(self) -> RunService:
        parts = self.app.parts.workflows.find()
        assert parts is not None
        return parts.service

    def add(self, name: str, answer: Answer, **annotations: bool) -> None:
        self._tools.append(self.stub.add(name, answer, **annotations))
        self.hub.catalog.offer("stub", self._tools)

    async def define(self, name: str, *steps: Mapping[str, Any], **more: Any) -> None:
        parts = await self.app.parts.workflows.require()
        parts.folder.write(name, json.dumps({"steps": list(steps), **more}), Author.OWNER)

    async def start(self, name: str, who: Principal = OWNER, **inputs: Any) -> Run:
        request = RunStart(principal=who, door="api", inputs=inputs)
        return await self.service.start(name, request)

    async def run(self, name: str, who: Principal = OWNER, **inputs: Any) -> Run:
        run = await self.start(name, who, **inputs)
        return await self.until(run.id)

    async def until(self, id: str, *states: str) -> Run:
        """Waits until the run has ended, or is in one of these states."""
        wanted = states or tuple(ENDED)
        reached = asyncio.Event()

        def note(run: Run, record: StepRecord | None) -> None:
            if run.state in wanted:
                reached.set()

        stop = self.service.watch(id, note)
        try:
            async with asyncio.timeout(SECONDS):
                while (run := await self.service.find(OWNER, id)).state not in wanted:
                    await reached.wait()
                    reached.clear()
        finally:
            stop()
        return run

    async def until_idle(self) -> None:
        """Waits until no run is in memory."""
        async with asyncio.timeout(SECONDS):
            while self.service._runner.active_count:
                await asyncio.sleep(0.005)

    async def steps(self, run: Run) -> dict[str, StepRecord]:
        return {one.path: one for one in await self.service.load_steps(run.id)}

    async def states(self, run: Run) -> dict[str, str]:
        return {path: one.state for path, one in (await self.steps(run)).items()}


@asynccontextmanager
async def run_rig(
    home: Path,
    stub: StubTools | None = None,
    policies: str = "",
    store: StoreSettings | None = None,
    **settings: Any,
) -> AsyncIterator[RunRig]:
    home_files.prepare(str(home))
    if policies and not (home / "policies").exists():
        (home / "policies").mkdir()
        (home / "policies" / "test.cedar").write_text(policies, encoding="utf-8")
    config = Config(workflows=WorkflowSettings(**settings), store=store or StoreSettings())
    app = build_app(home, config, "mcp")
    rig = RunRig(app, stub or StubTools())
    for name, answer in rig.stub.tools.items():
        rig.add(name, answer)
    await app.parts.workflows.start()
    try:
        yield rig
    finally:
        await app.stop()


def call(id: str, *after: str, tool: str = "", **more: Any) -> dict[str, Any]:
    """A step that calls a tool of the stub with `arguments`."""
    arguments = more.pop("arguments", {})
    config = {"tool": f"stub.{tool or id}", "arguments": arguments}
    step = {"id": id, "nodeId": "tool.call", "config": config, **more}
    return {**step, "dependsOn": list(after)} if after else step


def node(id: str, name: str, *after: str, **config: Any) -> dict[str, Any]:
    step: dict[str, Any] = {"id": id, "nodeId": name, "config": config}
    return {**step, "dependsOn": list(after)} if after else step
