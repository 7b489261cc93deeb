"""What a workflow of three steps that do nothing costs DBOS, in one process; printed as JSON.

As its documentation recommends it: async, SQLite, which is set to WAL beforehand, and JSON instead
of pickle. Runs in an environment of its own.

usage: python -m bench.peers.dbos_runs SECONDS
"""

import asyncio
import json
import logging
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

from dbos import DBOS, DBOSConfig

SECONDS = float(sys.argv[1])
QUEUED = 300


@DBOS.step()
async def noop(text: str) -> str:
    return text


@DBOS.workflow()
async def three() -> str:
    text = "x"
    for _ in range(3):
        text = await noop(text)
    return text


async def measure(place: Path) -> dict[str, float]:
    file = place / "dbos.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA journal_mode=WAL")
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": f"sqlite:///{file}",
        "application_version": "1",
        "run_admin_server": False,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    started: list[float] = []

    async def start() -> object:
        begun = time.perf_counter()
        handle = await DBOS.start_workflow_async(three)
        started.append(time.perf_counter() - begun)
        return handle

    async def run_one() -> None:
        handle = await start()
        assert await handle.get_result(polling_interval_sec=0.002) == "x"  # type: ignore[attr-defined]

    for _ in range(20):
        await run_one()
    count, begun, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < SECONDS or count < 50:
        await run_one()
        count += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - begun
    start_ms = statistics.median(started) * 1e3
    begun = time.perf_counter()
    handles = [await start() for _ in range(QUEUED)]
    await asyncio.gather(*(one.get_result(polling_interval_sec=0.02) for one in handles))  # type: ignore[attr-defined]
    rate = QUEUED / (time.perf_counter() - begun)
    DBOS.destroy()
    return {
        "cpu_us": cpu / count * 1e6,
        "wall_us": wall / count * 1e6,
        "start_ms": start_ms,
        "queued_per_second": rate,
    }


if __name__ == "__main__":
    logging.disable()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        print(json.dumps(asyncio.run(measure(Path(folder)))))
