"""Children: started with a log, waited for, ended by pid. Knows no protocol."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.paths import LOGS, NODE, ROOT

START_SECONDS = 30.0
GRACE_SECONDS = 6.0

Command = list[str | Path]


@dataclass(eq=False)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    said: Path
    log: Path

    def first_line(self) -> str:
        """What it prints when it is up."""
        return wait_for(self, lambda: self.said.read_text(encoding="utf-8").partition("\n")[0])

    def ending(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it wrote nothing"

    def stop(self) -> None:
        """Its whole session: what it started does not outlive it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        running.discard(self)


running: set[Child] = set()


def stop_all() -> None:
    for child in list(running):
        child.stop()


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Ours without what could send loopback traffic elsewhere or change how a child starts."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "DRAGOMAN_", "VIRTUAL_ENV", "NODE_"))
        and not key.lower().endswith("_proxy")
    }
    path = f"{NODE.parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **(extra or {})}


@contextlib.contextmanager
def started(name: str, command: Command, extra: dict[str, str] | None = None) -> Iterator[Child]:
    said, log = LOGS / f"{name}.out", LOGS / f"{name}.log"
    with said.open("wb") as out, log.open("wb") as errors:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=environment(extra),
            cwd=LOGS,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C reaches us alone, and we end it
        )
    child = Child(name, process, said, log)
    running.add(child)
    try:
        yield child
    finally:
        child.stop()


def wait_for(child: Child, find: Callable[[], str], seconds: float = START_SECONDS) -> str:
    """The first thing found that is not empty."""
    end = time.monotonic() + seconds
    why = "nothing came"
    while time.monotonic() < end:
        try:
            if found := find():
                return found
        except (OSError, ValueError, LookupError) as error:
            why = f"{type(error).__name__}: {error}"
        if child.process.poll() is not None:
            raise RuntimeError(f"{child.name} ended: {child.ending()}")
        time.sleep(0.02)
    raise RuntimeError(f"{child.name} was not ready after {seconds:.0f} s ({why})")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def reachable(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return "yes"


def run(
    name: str,
    command: Command,
    seconds: float,
    extra: dict[str, str] | None = None,
    folder: Path = LOGS,
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; 124 where it took too long."""
    process = subprocess.Popen(
        [str(part) for part in command],
        env=environment(extra),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        code, out, errors = 124, b"", f"no end after {seconds:.0f} s".encode()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(GRACE_SECONDS)
    said, wrote = out.decode("utf-8", "replace"), errors.decode("utf-8", "replace")
    (LOGS / f"{name}.log").write_text(f"{said}\n{wrote}", encoding="utf-8")
    return code, said, wrote
