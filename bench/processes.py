"""Children: started on a core, their CPU and memory counted with all their descendants, ended.

Knows /proc and signals; knows neither MCP nor what is measured.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.paths import LOGS, PYTHON, ROOT, CannotRun

TICKS = os.sysconf("SC_CLK_TCK")
GRACE_SECONDS = 6.0
LONGEST_SECONDS = 300
allowed = sorted(os.sched_getaffinity(0))
TARGET_CORE, LOAD_CORE = (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)


@dataclass(frozen=True)
class Stat:
    parent: int
    cpu_seconds: float
    started: int


def read_stat(pid: int) -> Stat:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    ticks = sum(int(value) for value in fields[11:15])  # own and of children waited for
    return Stat(int(fields[1]), ticks / TICKS, int(fields[19]))


def read_cpu(pid: int, stat: Stat) -> float:
    """The seconds of CPU of a process. The scheduler counts the nanoseconds of each thread; the
    clock ticks of `stat` are too coarse for a load of less than a second."""
    try:
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except OSError:
        threads = []
    if not threads:
        return stat.cpu_seconds
    return sum(int(text.split()[0]) for text in threads) / 1e9


def family(pid: int) -> dict[int, Stat]:
    """A process and all its living descendants."""
    stats: dict[int, Stat] = {}
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                stats[int(name)] = stat = read_stat(int(name))
                children.setdefault(stat.parent, []).append(int(name))
    found: dict[int, Stat] = {}
    to_visit = [pid]
    while to_visit:
        member = to_visit.pop()
        if member in stats:
            found[member] = stats[member]
        to_visit += children.get(member, [])
    return found


@dataclass(frozen=True)
class Memory:
    """Megabytes of a whole family: RSS counts shared pages for each process, PSS shares them."""

    rss: float
    pss: float


def read_kilobytes(file: Path) -> dict[str, int]:
    """The members of a table in /proc that are given in kilobytes."""
    lines = map(str.split, file.read_text(encoding="utf-8").splitlines())
    return {words[0]: int(words[1]) for words in lines if words[2:] == ["kB"]}


@dataclass(eq=False)
class Child:
    name: str
    process: subprocess.Popen
    log: Path | None
    started: float = field(default_factory=time.perf_counter)

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def age(self) -> float:
        return time.perf_counter() - self.started

    def cpu_seconds(self) -> float:
        return sum(read_cpu(pid, stat) for pid, stat in family(self.pid).items())

    def memory(self) -> Memory:
        rss = pss = 0
        for pid in family(self.pid):
            with contextlib.suppress(OSError):
                try:
                    found = read_kilobytes(Path(f"/proc/{pid}/smaps_rollup"))
                except PermissionError:  # a hub shows its memory map to root alone
                    found = read_kilobytes(Path(f"/proc/{pid}/status"))
                    found = {"Rss:": found["VmRSS:"], "Pss:": found["VmRSS:"]}
                rss += found["Rss:"]
                pss += found["Pss:"]
        return Memory(rss / 1024, pss / 1024)

    def why_dead(self) -> str:
        said = self.log.read_text(encoding="utf-8", errors="replace").strip() if self.log else ""
        last_line = said.splitlines()[-1][:200] if said else "it wrote nothing"
        return f"ended with code {self.process.poll()}: {last_line}"

    def stop(self) -> None:
        """Ends it by pid; descendants in sessions of their own do not outlive it either."""
        members = family(self.pid) if self.is_alive() else {}
        if self.is_alive():
            self.process.terminate()
            try:
                self.process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                print(f"note: {self.name} did not end in {GRACE_SECONDS:.0f} s and was killed")
                self.process.kill()
                self.process.wait(GRACE_SECONDS)
        for pid, stat in members.items():
            with contextlib.suppress(OSError):
                if pid != self.pid and read_stat(pid).started == stat.started:
                    os.kill(pid, signal.SIGKILL)
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        running.discard(self)


running: set[Child] = set()


def stop_all() -> None:
    for child in list(running):
        child.stop()


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Children started meanwhile inherit the core: no preexec, no taskset, no root."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def clean_environment(extra: dict[str, str]) -> dict[str, str]:
    """Ours without what could send loopback traffic elsewhere or change how a child starts."""
    unwanted = ("PYTHON", "DRAGOMAN_", "FASTMCP_", "UVICORN_", "VIRTUAL_ENV")
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(unwanted) and not key.lower().endswith("_proxy")
    }
    return {**kept, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", **extra}


def start(
    name: str,
    command: list[str | Path],
    *,
    core: int | None,
    environment: dict[str, str] | None = None,
    folder: Path = LOGS,
    talk: bool = False,
) -> Child:
    """With `talk` its stdin and stdout are pipes; otherwise all it says goes to its log."""
    program = Path(command[0])
    if not program.exists():
        raise CannotRun(f"{program.relative_to(ROOT)} is not there; run `make bench`.")
    log = LOGS / ("".join(c if c.isalnum() else "-" for c in name.lower()) + ".log")
    with on_core(core), log.open("ab") as log_file:
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            env=clean_environment(environment or {}),
            cwd=folder,
            stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talk else log_file,
            stderr=log_file,
            start_new_session=True,  # a Ctrl-C reaches us alone, and we end it
        )
        child = Child(name, process, log, began)
        running.add(child)
    return child


def run_peer(name: str, *arguments: float, python: Path = PYTHON) -> Any:
    """Runs a module of `bench.peers` to its end on the target's core; returns what it prints."""
    with on_core(TARGET_CORE), (LOGS / f"{name}.log").open("ab") as log_file:
        ran = subprocess.run(
            [python, "-m", f"bench.peers.{name}", *map(str, arguments)],
            env=clean_environment({}),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log_file,
            timeout=LONGEST_SECONDS,
        )
    if ran.returncode:
        raise RuntimeError(f"it ended with code {ran.returncode}; see {log_file.name}")
    return json.loads(ran.stdout)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(ready: Callable[[], object], child: Child, seconds: float = 60.0) -> None:
    """Returns once `ready` neither raises nor gives False; its last error is the explanation."""
    reason = "no answer"
    while child.age() < seconds:
        try:
            if ready() is not False:
                return
        except (OSError, ValueError, RuntimeError, http.client.HTTPException) as error:
            reason = f"{type(error).__name__}: {error}"
        if not child.is_alive():
            raise RuntimeError(child.why_dead())
        time.sleep(0.003)
    raise RuntimeError(f"not ready after {seconds:.0f} s ({reason[:300]})")
