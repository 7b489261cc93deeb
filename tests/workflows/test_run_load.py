"""What runs cost others: nothing where there are none, and little where there are many."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.workflows.run_rig import RunRig, call, node, run_rig

from dragoman.core.hub import CallOptions
from dragoman.core.principal import OWNER, Principal
from dragoman.core.runs import COMPLETED, WAITING
from dragoman.core.tool_filter import EVERYTHING
from dragoman.stores.config import StoreSettings

pytestmark = pytest.mark.promise("R14")

CODE = """
import asyncio, sys
from pathlib import Path
from dragoman.app.build import build_app
from dragoman.config import load

async def run(home):
    app = build_app(home, load(home / "config.toml"), "mcp")
    await app.parts.workflows.start()
    await app.parts.workflows.follow()
    await app.stop()
    wanted = ("dragoman.workflows.", "yaml", "psycopg", "dragoman.stores.run")
    print(sorted(name for name in sys.modules if name.startswith(wanted)))

asyncio.run(run(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_hub_without_workflows_loads_none_of_them(tmp_path: Path, has_folder: bool) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "config.toml").write_text("# nothing\n", encoding="utf-8")
    if has_folder:
        (tmp_path / "workflows").mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = set(eval(done.stdout.splitlines()[-1]))
    light = {"dragoman.workflows.config", "dragoman.stores.runs_db"}
    assert (loaded == light) is not has_folder, loaded
    assert (tmp_path / "runs.db").exists() is has_folder


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


RUNS = 100
OTHER = Principal("owner", "other", roles=("owner",))


@pytest.mark.anyio
async def test_many_queued_runs_finish_beside_the_calls_of_others(short_tmp: Path) -> None:
    async with run_rig(short_tmp) as rig:
        rig.add("noop", lambda one: "done")
        steps = (call("a", tool="noop"), call("b", "a", tool="noop"), call("c", "b", tool="noop"))
        await rig.define("three", *steps)
        await rig.define("waits", node("long", "wait", seconds=3_600))
        for _ in range(RUNS):
            await rig.start("waits")
        alone = await measure(rig, lambda: asyncio.sleep(0.5))
        started: list[float] = []

        async def run_all() -> None:
            for _ in range(RUNS):
                begun = time.perf_counter()
                await rig.start("three")
                started.append(time.perf_counter() - begun)
                assert rig.service._runner.active_count <= 30
            async with asyncio.timeout(60):
                while rig.service._runner.unfinished.total() > RUNS:
                    await asyncio.sleep(0.01)

        beside = await measure(rig, run_all)
        assert rig.stub.count("noop") == 3 * RUNS
        done, _ = await rig.service.list_runs(OWNER, "three", (COMPLETED,), RUNS + 1)
        assert len(done) == RUNS
        waiting, _ = await rig.service.list_runs(OWNER, "waits", (WAITING,), RUNS + 1)
        assert len(waiting) == RUNS
        await rig.until_idle()
        # Not the time of a whole run for each call: what others wait for is a turn of the loop.
        assert beside < alone + 0.02, (alone, beside)
        assert sorted(started)[RUNS // 2] < 0.05


async def measure(rig: RunRig, work: Callable[[], Awaitable[None]]) -> float:
    """The median time of another principal's calls while `work` goes on."""
    options = CallOptions(door="api", view=EVERYTHING)
    times: list[float] = []
    rig.stub.tools["noop"] = lambda one: "done"
    is_over = False

    async def keep_calling() -> None:
        while not is_over:
            begun = time.perf_counter()
            await rig.hub.call(OTHER, "stub.noop", {"n": len(times)}, options)
            rig.stub.calls.pop()
            times.append(time.perf_counter() - begun)
            await asyncio.sleep(0.002)

    async with asyncio.TaskGroup() as group:
        group.create_task(keep_calling())
        try:
            await work()
        finally:
            is_over = True
    return sorted(times)[len(times) // 2]


@pytest.mark.anyio
async def test_runs_live_in_postgresql_by_setting(short_tmp: Path, postgres_url: str) -> None:
    async with run_rig(short_tmp, store=StoreSettings(url=postgres_url)) as rig:
        rig.add("noop", lambda one: {"n": 1})
        ask = node("ask", "approval", "a")
        steps = (call("a", tool="noop"), ask, call("c", "ask", tool="noop"))
        await rig.define("three", *steps, output="{{ nodes.c.n }}")
        run = await rig.start("three")
        await rig.until(run.id, WAITING)
    assert not (short_tmp / "runs.db").exists()
    async with run_rig(short_tmp, rig.stub, store=StoreSettings(url=postgres_url)) as rig:
        desk = rig.app.parts.guards.approvals.find_desk()
        desk.decide((await rig.steps(run))["ask"].approval, True, OWNER)
        found = await rig.until(run.id)
        assert (found.state, found.output, rig.stub.count("noop")) == (COMPLETED, 1, 2)
