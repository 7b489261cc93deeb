"""The start of stdio servers: package runners that install for long, and servers that hang."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.mcp.upstream_hub import Scripted, run_hub, until

from dragoman.mcp.config import ServerEntry, StdioTransport
from dragoman.processes.child_process import ChildProcess
from dragoman.processes.process_work import WorkMeter

RUNNER = """
    #!{python}
    # A package runner: notes its start, installs until the file "go" is there, runs the server.
    import os, signal, sys, time
    place = {place!r}
    def undo(number, frame):
        time.sleep(1.5)  # longer than other children get after SIGTERM
        open(place + "/undone", "w").close()
        os._exit(1)
    signal.signal(signal.SIGTERM, undo)
    open(place + "/starts", "a").write(sys.argv[1] + "\\n")
    while not os.path.exists(place + "/go"):
        {work}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
BUSY = "sum(range(200_000)); time.sleep(0.01)"
IDLE = "time.sleep(600)"


class Runner:
    """A package runner, which is called `npx`, and the servers that it runs."""

    def __init__(self, place: Path, work: str = BUSY) -> None:
        self.place = place
        self.program = place / "npx"
        values = {"python": sys.executable, "place": str(place), "work": work}
        self.program.write_text(dedent(RUNNER).lstrip().format(**values))
        self.program.chmod(0o755)
        self.scripted = Scripted(place, "legacy", {})

    def entry(self, name: str, **keys: Any) -> ServerEntry:
        line = self.scripted.entry().transport
        assert isinstance(line, StdioTransport)
        how = StdioTransport(command=str(self.program), args=[name, *line.args])
        return ServerEntry(name=name, transport=how, **keys)

    def finish(self) -> None:
        (self.place / "go").touch()

    def list_started(self) -> list[str]:
        starts = self.place / "starts"
        return starts.read_text().splitlines() if starts.exists() else []


async def test_package_runner_is_waited_for_while_it_works(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    async with run_hub(tmp_path, answer_secs=3.0, start_secs=3.0) as hub:
        await hub.servers.apply([runner.entry("slow")])
        connection = hub.made["slow"].connection
        await until(lambda: "npm is installing" in connection.describe_start())
        assert connection.state == "starting"  # after the limit
        assert connection.is_installing
        [state] = hub.servers.snapshot()["connected"]
        assert state["state"] == "starting" and "npm is installing" in state["reason"]
        assert "npm is installing" in hub.servers.starts["slow"]
        absent = hub.servers.find_absent("slow.t")
        assert absent is not None and "npm is installing" in absent[1]
        runner.finish()
        await until(lambda: connection.state == "connected")
        assert hub.servers.starts == {}
    assert runner.list_started() == ["slow"]


async def test_package_runner_that_does_nothing_is_ended(tmp_path: Path) -> None:
    runner = Runner(tmp_path, IDLE)
    async with run_hub(tmp_path, answer_secs=1.0, start_secs=1.0) as hub:
        await hub.servers.apply([runner.entry("hung")])
        connection = hub.made["hung"].connection
        await until(lambda: connection.state == "failed")
        assert "it did not answer within" in connection.reason


async def test_server_that_works_for_ever_is_ended_at_last(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    async with run_hub(tmp_path, answer_secs=3.0, start_secs=3.0, install_secs=6.0) as hub:
        await hub.servers.apply([runner.entry("endless")])
        connection = hub.made["endless"].connection
        await until(lambda: connection.state == "failed")
        assert connection.reason == "it did not answer within 6 s"


async def test_installation_is_undone_before_its_process_is_killed(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    async with run_hub(tmp_path) as hub:
        await hub.servers.apply([runner.entry("slow")])
        await until(runner.list_started)
        await hub.servers.apply([])
    assert (tmp_path / "undone").exists()


async def test_installation_is_undone_if_its_start_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipes are not connected yet, as on a busy machine."""
    connected = asyncio.Event()

    async def connect(self: ChildProcess, received: Any) -> None:
        await connected.wait()

    monkeypatch.setattr(ChildProcess, "_connect", connect)
    runner = Runner(tmp_path)
    async with run_hub(tmp_path) as hub:
        await hub.servers.apply([runner.entry("slow")])
        await until(runner.list_started)
        await hub.servers.apply([])
    assert (tmp_path / "undone").exists()


async def test_three_installations_run_at_once_and_delay_no_other_server(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    names = [f"s{number}" for number in range(6)]
    folder = tmp_path / "other"
    folder.mkdir()
    other = Scripted(folder, "legacy", {}).entry("other")
    async with run_hub(tmp_path) as hub:
        await hub.servers.apply([*map(runner.entry, names), other])
        await until(lambda: hub.made["other"].connection.state == "connected")
        await until(lambda: len(runner.list_started()) == 3)
        waiting = [
            name
            for name in names
            if "after the installation of" in hub.made[name].connection.describe_start()
        ]
        assert sorted([*waiting, *runner.list_started()]) == names
        runner.finish()
        await until(lambda: hub.servers.count("connected") == 7)

    (tmp_path / "go").unlink()
    (tmp_path / "starts").unlink()
    async with run_hub(tmp_path) as hub:  # what has started before is installed
        await hub.servers.apply([*map(runner.entry, names), other])
        await until(lambda: len(runner.list_started()) == 6)
        runner.finish()
        await until(lambda: hub.servers.count("connected") == 7)


async def test_only_work_counts_as_work() -> None:
    async def measure_until(meter: WorkMeter, pid: int, is_busy: bool) -> None:
        async with asyncio.timeout(60):
            while (work := meter.measure([pid])) is None or work.is_busy is not is_busy:
                await asyncio.sleep(0.2)

    code = "import sys, time\nfor line in sys.stdin:\n    end = time.process_time() + 0.5\n"
    code += "    while time.process_time() < end: pass\n"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE
    )
    try:
        meter = WorkMeter()
        await measure_until(meter, child.pid, False)  # once it has started
        assert child.stdin is not None
        child.stdin.write(b"\n")
        await measure_until(meter, child.pid, True)
        await measure_until(meter, child.pid, False)
    finally:
        child.kill()
        await child.wait()
    assert meter.measure([child.pid]) is None
