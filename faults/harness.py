"""What the experiments share: their outcome, a hub that is judged when it ends, limits, samples.

Knows processes and files; knows no experiment.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.live.conftest import RunningHub, _written_config
from tests.peers import wire
from tests.peers.forked import run_forked, start_process

ROOT = Path(__file__).resolve().parent.parent
SEED = 20261117
MOST_FAILURES = 20
T = TypeVar("T")


class NotHere(Exception):
    """This machine lacks what the experiment needs; the message names it."""


@dataclass
class Outcome:
    """What an experiment has seen: figures for the page, and each way in which the hub failed."""

    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def check(self, holds: bool, failure: str) -> bool:
        if not holds:
            self.fail(failure)
        return holds

    def fail(self, failure: str) -> None:
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(failure)

    def count(self, figure: str, more: int = 1) -> None:
        self.figures[figure] = self.figures.get(figure, 0) + more


# --- the hub


RATE_LIMITS = """
[limits.rate]
owner_per_minute = 1_000_000_000
owner_burst = 1_000_000_000
per_minute = 1_000_000_000
burst = 1_000_000_000
org_per_minute = 1_000_000_000
org_burst = 1_000_000_000
"""
"""Above what the experiments send: they break other things."""


def write_config(
    home: Path, servers: Sequence[str] = (), config: str = "", limits: str = RATE_LIMITS
) -> Path:
    home.mkdir(mode=0o700, exist_ok=True)
    file = home / "config.toml"
    file.write_text(_written_config(config + limits, servers), encoding="utf-8")
    file.chmod(0o600)
    return file


@contextmanager
def temporary_home() -> Iterator[Path]:
    """A folder with a short path: the sockets in a home have room for about 100 bytes."""
    home = Path(tempfile.mkdtemp(prefix="df", dir="/tmp"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def running_hub(
    outcome: Outcome, home: Path, env: Mapping[str, str] | None = None, ends_well: bool = True
) -> Iterator[RunningHub]:
    """A hub on a home that has its configuration.

    At the end it must exit with 0 in time, leave no process and no traceback in its log, and an
    audit that verifies; with `ends_well` False it is only ended.
    """
    hub = RunningHub(home, [], env or {})
    try:
        yield hub
    finally:
        hub.checks = ends_well
        log = hub.log()
        for problem in hub.finish():
            outcome.fail(problem[:2000])
        if ends_well and "Traceback" in log:
            outcome.fail("traceback in the log: " + log[log.index("Traceback") :][:1500])


@contextmanager
def fresh_hub(
    outcome: Outcome, servers: Sequence[str] = (), config: str = "", **how: Any
) -> Iterator[RunningHub]:
    with temporary_home() as home:
        write_config(home, servers, config)
        with running_hub(outcome, home, **how) as hub:
            yield hub


def start_fails(home: Path, seconds: float = 30.0) -> subprocess.CompletedProcess[str] | None:
    """How a start ended that did not come up; None where the hub runs, which is then ended."""
    command = [sys.executable, "-m", "dragoman", "up", "--home", str(home)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        started = start_process(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        end = time.monotonic() + seconds
        try:
            while started.poll() is None and time.monotonic() < end:
                if is_up(home, started.pid):
                    return None
                time.sleep(0.02)
        finally:
            if started.poll() is None:
                started.terminate()
                try:
                    started.wait(15)
                except subprocess.TimeoutExpired:
                    started.kill()
                    started.wait(5)
        log.seek(0)
        code = started.returncode if time.monotonic() < end else 999
        return subprocess.CompletedProcess(command, code, "", log.read())


def is_up(home: Path, pid: int) -> bool:
    try:
        record = json.loads((home / "daemon.json").read_bytes())
        return bool(
            record["pid"] == pid
            and wire.get(record["url"].rstrip("/") + "/healthz", timeout=2).status == 200
        )
    except (OSError, ValueError, KeyError):
        return False


def run_command(home: Path, *args: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "dragoman", *args, "--home", str(home)]
    return run_forked(line, timeout, text=True)


def audit_records(home: Path) -> list[dict[str, Any]]:
    done = run_command(home, "audit", "tail", "--json", "-n", "1000000")
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def verify_audit(outcome: Outcome, home: Path, when: str) -> None:
    done = run_command(home, "audit", "verify")
    said = (done.stdout + done.stderr).strip()
    outcome.check(done.returncode == 0, f"{when}: the audit does not verify: {said[-500:]}")


# --- limits and samples


@contextmanager
def soft_limit(which: int, value: int) -> Iterator[None]:
    """Lowers a limit of this process, so that a child that starts meanwhile inherits it."""
    before = resource.getrlimit(which)
    resource.setrlimit(which, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def raise_open_files(wanted: int) -> int:
    """Lets this process open so many files if it may; gives how many it can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def open_files(hub: RunningHub) -> int:
    """What the hub has open, by its own count: no other process of its user may look."""
    metrics = hub.get("/metrics").body.splitlines()
    (line,) = [line for line in metrics if line.startswith(b"process_open_fds ")]
    return int(float(line.split()[1]))


def cpu_seconds(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def until(found: Callable[[], T], seconds: float = 15.0) -> T:
    """What `found` gives once that is anything; its last value where the time is over."""
    end = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


class Background:
    """Does something again and again on a thread while a `with` block runs."""

    def __init__(self, step: Callable[[], None], pause: float = 0.0) -> None:
        self._step = step
        self._pause = pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.is_set():
            self._step()
            self._over.wait(self._pause)

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
