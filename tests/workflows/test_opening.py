"""How the parts of workflows are opened: once, and again if that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.table_outage import take_away
from tests.workflows.run_rig import RunRig, StubTools, call, node, run_rig

from dragoman import home as home_files
from dragoman.app.build import build_app
from dragoman.app.build_workflows import LazyWorkflows, WorkflowParts
from dragoman.config import Config
from dragoman.core.errors import StorageFailed
from dragoman.core.principal import OWNER
from dragoman.core.runs import COMPLETED, WAITING

pytestmark = [pytest.mark.promise("R14"), pytest.mark.anyio]


async def test_parts_that_could_not_be_opened_are_opened_by_the_next_request(
    short_tmp: Path,
) -> None:
    stub = StubTools()
    async with run_rig(short_tmp, stub) as rig:
        await rig.define("careful", node("ask", "approval", title="Go?"), call("act", "ask"))
        run = await rig.start("careful")
        await rig.until(run.id, WAITING)
        await rig.until_idle()
    app = build_app(short_tmp, Config(), "mcp")
    rig = RunRig(app, stub)
    rig.add("act", lambda one: "done")
    workflows = app.parts.workflows
    try:
        with take_away(short_tmp, "runs.db", "runs"), pytest.raises(StorageFailed):
            await workflows.require()
        assert workflows.find() is None
        parts = await workflows.require()
        assert workflows.find() is parts
        app.parts.guards.approvals.find_desk().decide(f"{run.id}.ask", True, OWNER)
        assert (await rig.until(run.id)).state == COMPLETED  # what was left is continued
    finally:
        await app.stop()


async def test_first_requests_at_once_open_the_same_parts(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[WorkflowParts] = []
    build = LazyWorkflows._build

    async def note(self: LazyWorkflows) -> WorkflowParts:
        await asyncio.sleep(0)
        built.append(await build(self))
        return built[-1]

    monkeypatch.setattr(LazyWorkflows, "_build", note)
    home_files.prepare(str(short_tmp))
    app = build_app(short_tmp, Config(), "mcp")
    workflows = app.parts.workflows
    try:
        first, second = await asyncio.gather(workflows.require(), workflows.require())
        assert first is second and len(built) == 1
    finally:
        await app.stop()
