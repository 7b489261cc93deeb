"""What a run of three steps that do nothing costs the hub, in one process; printed as JSON.

The hub is built as `dragoman up` builds it, in a home of its own. Each step is a call of a tool in
that process: it passes all stages, and is recorded in the audit.

usage: python -m bench.peers.workflow_runs SECONDS
"""

import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.rows import write_home

from dragoman import config
from dragoman.app import process
from dragoman.app.build import build_app
from dragoman.core.call import Call, Result
from dragoman.core.principal import OWNER
from dragoman.core.runs import ENDED, Run, StepRecord
from dragoman.core.secret_rules import Author
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.workflows.service import RunService, RunStart

SECONDS = float(sys.argv[1])
QUEUED = 300
STEPS = [
    {
        "id": f"s{number}",
        "nodeId": "tool.call",
        "config": {"tool": "noop.noop", "arguments": {"text": "x"}},
        **({"dependsOn": [f"s{number - 1}"]} if number else {}),
    }
    for number in range(3)
]


class Noop:
    name = "noop"
    traits = TargetTraits(facts=TargetFacts(type="Server"))

    async def run(self, call: Call) -> Result:
        return Result(content=[{"type": "text", "text": "x"}], size=32)

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


class Measurement:
    def __init__(self, service: RunService) -> None:
        self._service = service
        self._ended = asyncio.Event()
        self.started: list[float] = []

    def _note(self, run: Run, record: StepRecord | None) -> None:
        if record is None and run.state in ENDED:
            assert run.state == "completed", run.problem
            self._ended.set()

    async def start(self) -> Run:
        begun = time.perf_counter()
        run = await self._service.start("three", RunStart(principal=OWNER, door="api"))
        self.started.append(time.perf_counter() - begun)
        return run

    async def run_one(self) -> None:
        self._ended.clear()
        run = await self.start()
        stop = self._service.watch(run.id, self._note)
        await self._ended.wait()
        stop()

    async def run_queued(self) -> float:
        """Returns how many of the runs that were started at once end in a second."""
        begun = time.perf_counter()
        last = [await self.start() for _ in range(QUEUED)][-1]
        while (await self._service.find(OWNER, last.id)).state not in ENDED:
            await asyncio.sleep(0.005)
        return QUEUED / (time.perf_counter() - begun)


async def measure(home: Path) -> dict[str, float]:
    app = build_app(home, config.load(home / "config.toml"), "mcp")
    parts = await app.parts.workflows.require()
    noop = Noop()
    app.parts.agents.local.by_name["noop"] = noop  # type: ignore[index]
    tool = Tool(name="noop.noop", alias="noop.noop", remote_name="noop", target=noop)
    app.parts.guards.hub.catalog.offer("noop", [tool])
    parts.folder.write("three", json.dumps({"steps": STEPS}), Author.OWNER)
    measured = Measurement(parts.service)
    for _ in range(20):
        await measured.run_one()
    count, begun, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < SECONDS or count < 50:
        await measured.run_one()
        count += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - begun
    start = statistics.median(measured.started)
    rate = await measured.run_queued()
    await app.stop()
    return {
        "cpu_us": cpu / count * 1e6,
        "wall_us": wall / count * 1e6,
        "start_ms": start * 1e3,
        "queued_per_second": rate,
    }


if __name__ == "__main__":
    logging.disable()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder) / "home"
        place.mkdir(mode=0o700)
        write_home(place, "# nothing\n")
        factory = process.find_loop_factory()
        with asyncio.Runner(loop_factory=factory) as runner:
            print(json.dumps(runner.run(measure(place))))
