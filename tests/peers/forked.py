"""Processes of the fork server: `ForkedProcess` is a `Popen` of one, `stdio_command` is the command
line by which a hub starts one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.peers.forked_stdio import SIZE, list_inherited, send

HERE = Path(__file__).parent.resolve()
START_SECONDS = 60.0
STARTING = threading.Lock()
# What a hub, the relay and the commands import in nearly every test, most of it inside functions.
DRAGOMAN_IMPORTS = (
    "dragoman.cli.main",
    "dragoman.cli.hub",
    "dragoman.cli.configure",
    "dragoman.cli.demo.command",
    "dragoman.app.app",
    "dragoman.app.run",
    "dragoman.mcp.relay",
    "cedarpy",
    "uvloop",
)


def find_server(python: str, kind: str) -> Path:
    """The socket of this process's fork server with that interpreter."""
    with STARTING:
        return start_server(python, kind)


@cache
def start_server(python: str, kind: str) -> Path:
    """Starts a fork server, which ends with this process, and gives its socket."""
    folder = Path(tempfile.mkdtemp(prefix="dgf", dir="/tmp"))
    place = folder / "socket"
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    server = subprocess.Popen(
        [python, str(HERE / "fork_server.py"), str(place)],
        stdin=subprocess.PIPE,
        env=environment,
        cwd="/",
    )
    assert server.stdin is not None

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(START_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return place


def connect(python: str, kind: str, request: dict[str, Any], files: list[int]) -> socket.socket:
    """Sends the request to the server, which may have been started just now."""
    place = str(find_server(python, kind))
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return send(place, request, files)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.005)


def acts_at_start(env: Mapping[str, str]) -> bool:
    """Whether a variable is read by the loader or the interpreter, which forking does not start."""
    return any(
        name.startswith(("LD_", "MALLOC_", "PYTHON")) and os.environ.get(name) != env[name]
        for name in env.keys() - {"PYTHONPATH", "PYTHONWARNINGS"}
    )


def split_command(line: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    """The interpreter, the kind of server and the program of `python SCRIPT …` or `python -m …`."""
    python, program, *args = line
    if program == "-m":
        module, *args = args
        request = {"module": module, "args": args, "imports": DRAGOMAN_IMPORTS}
        return python, "module", request
    return python, "script", {"script": program, "args": args}


def start_process(line: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
    """A forked process where that is the same as a new interpreter, and one of those elsewhere."""
    plain = acts_at_start(how.get("env") or {})
    return subprocess.Popen(line, **how) if plain else ForkedProcess(line, **how)


class ForkedProcess(subprocess.Popen[Any]):
    """`Popen` of a Python program, forked from one that has its imports; the rest is the same."""

    def _execute_child(
        self,
        args: Sequence[str],
        executable: object,
        preexec_fn: object,
        close_fds: object,
        pass_fds: object,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        startupinfo: object,
        creationflags: object,
        shell: object,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *_: object,
    ) -> None:
        environment = dict(os.environ if env is None else env)
        inherited = list_inherited()
        if cwd is not None:
            inherited["cwd"] = os.path.abspath(cwd)
        python, kind, request = split_command(args)
        files = [
            number if number >= 0 else standard
            for standard, number in enumerate((p2cread, c2pwrite, errwrite))
        ]
        self._connection = connect(
            python, kind, {**request, "env": environment, **inherited}, files
        )
        self._connection.settimeout(START_SECONDS)
        (self.pid,) = SIZE.unpack(self._connection.recv(SIZE.size, socket.MSG_WAITALL))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self.returncode is not None:
            return self.pid, 0
        self._connection.settimeout(None if wait_flags == 0 else 0)
        try:
            data = self._connection.recv(SIZE.size, socket.MSG_WAITALL)
        except BlockingIOError:
            return 0, 0
        self._connection.close()
        return self.pid, SIZE.unpack(data)[0] if data else 9

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def run_forked(line: Sequence[str], timeout: float, **how: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` of a forked program, with its output."""
    given = how.pop("input", None)
    with ForkedProcess(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how
    ) as child:
        try:
            out, err = child.communicate(given, timeout)
        finally:
            child.kill()
    return subprocess.CompletedProcess(line, child.returncode, out, err)


def stdio_command(line: Sequence[str]) -> list[str]:
    """The command line of a process that has the program forked: what a hub may start."""
    python, kind, _ = split_command(line)
    launcher = str(HERE / "forked_stdio.py")
    return [sys.executable, "-I", "-S", launcher, str(find_server(python, kind)), *line]
