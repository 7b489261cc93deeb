"""Child processes with their own environment, home and process group, and a certain end.

Knows pipes and processes, nothing of MCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from dragoman.core.errors import Unreachable
from dragoman.core.file_modes import make_private_folder
from dragoman.core.package_runners import explain_broken_cache
from dragoman.processes.config import ProcessLimits
from dragoman.processes.descendants import DESCENDANTS, list_descendants
from dragoman.processes.process_limits import set_limits

log = logging.getLogger(__name__)

STDERR_BYTES = 64 * 1024
END_SECONDS = 2.0
"""How long a child may take to exit after its stdin is closed; half of that again after SIGTERM."""
INSTALLER_SECONDS = 20.0
"""How long a package runner may take to exit after SIGTERM in the middle of an installation: npm
removes what it has unpacked so far, in three to five seconds on a busy machine. One that is killed
leaves a folder from which nothing starts any more."""
GRACE_SECONDS = 0.1
"""Between a child's exit and the end of its output: whichever comes first, the other often follows.
"""
UNWRITTEN_BYTES = 16 * 1024 * 1024
"""Buffered for a child that does not read, before calls to it are refused."""
MARK = "DRAGOMAN_CHILD"
"""Set in every child's environment, so that the processes that it started can be found."""


_REASONS = (
    re.compile(r"(?:^|[\s.])\w*(?:Error|Exception)\b(?: \[\w+\])?:|\b[Ee]rror:"),
    re.compile(r"\w(?:Error|Exception)\b|not found|Not Found|\bERR_|^(?:FATAL|fatal)\b"),
)
"""Lines of a stderr that say why a program has failed, the best first."""
_NO_REASON = re.compile(r"at |code: |throw |npm error A complete log|Node\.js v\d")
"""How lines begin that surround the reason in what Node.js and npm write."""
MAX_REASON = 300


class OutputRing:
    """The last bytes of a child's stderr."""

    def __init__(self, limit: int = STDERR_BYTES) -> None:
        self.limit = limit
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data[-self.limit :]
        if len(self._data) > 2 * self.limit:  # not at every write: that would copy everything
            del self._data[: -self.limit]

    def read_text(self) -> str:
        return self._data[-self.limit :].decode("utf-8", "replace")

    def read_last_line(self) -> str:
        lines = self._read_lines()
        return lines[-1][:MAX_REASON] if lines else ""

    def read_reason(self) -> str:
        """Returns the last line that names an error, or else the last one; says which it is."""
        lines = self._read_lines()
        if not lines:
            return ""
        telling = [line for line in lines if not _NO_REASON.match(line)]
        for pattern in _REASONS:
            found = next((line for line in reversed(telling) if pattern.search(line)), None)
            if found is not None and found != lines[-1]:
                return f"from its stderr: {found[:MAX_REASON]}"
            if found is not None:
                break
        return f"last line of its stderr: {lines[-1][:MAX_REASON]}"

    def _read_lines(self) -> list[str]:
        return [line.strip() for line in self.read_text().splitlines() if line.strip()]


COMMON_VARIABLES = frozenset(
    {
        *("LANG", "LANGUAGE", "TZ"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("NODE_EXTRA_CA_CERTS", "DENO_CERT", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE"),
        *("NIX_SSL_CERT_FILE", "npm_config_cafile", "NPM_CONFIG_CAFILE"),
    }
)
"""Variables that every child gets where they are set, besides LC_*: programs depend on language,
time zone and trusted certificates."""
USER_VARIABLES = frozenset(
    {
        *("USER", "LOGNAME", "SHELL", "TERM", "TMPDIR"),
        *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
        "XDG_RUNTIME_DIR",
    }
)
"""Variables that go with the user's own home."""
CACHES = {
    "npm_config_cache": "npm",
    "UV_CACHE_DIR": "uv",
    "UV_PYTHON_INSTALL_DIR": "uv-python",
    "PIP_CACHE_DIR": "pip",
    "PIPX_HOME": "pipx",
    "BUN_INSTALL_CACHE_DIR": "bun",
    "DENO_DIR": "deno",
}
"""Where package runners keep downloads, below one folder shared by all private homes."""


def build_environment(
    names: Sequence[str],
    lookup: Mapping[str, str],
    folder: Path,
    caches: Path,
    mark: str,
    *,
    with_user_home: bool,
) -> dict[str, str]:
    """Builds a child's environment: PATH, common variables, the variables in `names`, and a home.

    The home is the user's, or a private home and temporary folder with the shared caches of package
    runners. A variable in `names` overrides these, HOME and TMPDIR included.
    """
    passed = {
        name: value
        for name, value in lookup.items()
        if name in COMMON_VARIABLES
        or name.startswith("LC_")
        or (with_user_home and name in USER_VARIABLES)
    }
    given = {name: lookup[name] for name in names if name in lookup}
    if with_user_home:
        own = {"HOME": lookup.get("HOME") or os.path.expanduser("~")}
    else:
        own = _make_private_home(folder, caches)
    return {"PATH": lookup.get("PATH", os.defpath), **passed, **own, **given, MARK: mark}


def _make_private_home(folder: Path, caches: Path) -> dict[str, str]:
    """Creates the folders of a private home and returns the variables that point to them."""
    home, tmp = folder / "home", folder / "tmp"
    for path in (home, tmp, caches):
        make_private_folder(path)
    for path in (folder.parent, folder, home, tmp, caches):
        if path.stat().st_mode & 0o077:  # created by an earlier version
            path.chmod(0o700)
    shared = {name: str(caches / below) for name, below in CACHES.items()}
    return {"HOME": str(home), "TMPDIR": str(tmp), **shared}


class _Pipe(asyncio.BaseProtocol):
    def __init__(
        self, closed: Callable[[], None], received: Callable[[bytes], None] | None = None
    ) -> None:
        self._closed = closed
        if received is not None:
            self.data_received = received  # called by the transport, without a frame of its own

    def eof_received(self) -> None:
        """The transport closes the pipe."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed()


class _PipeEnd:
    """The hub's end of a pipe. Owns the descriptor until `hand_over`, and closes it once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def hand_over(self, loop: asyncio.AbstractEventLoop) -> _TransportFile:
        """Returns the file for a transport: from here on the transport alone closes the descriptor,
        even when connecting it is cancelled."""
        fd, self._fd = self._fd, -1
        return _TransportFile(fd, isinstance(loop, asyncio.BaseEventLoop))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _TransportFile:
    """The file object of a pipe for a transport. asyncio's own transports close the descriptor
    through it. libuv closes the descriptor itself and calls `close` afterwards, when the number may
    already belong to another file: `close` must do nothing there."""

    def __init__(self, fd: int, closes: bool) -> None:
        self._fd = fd
        self._closes = closes

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._closes:
            self._closes = False
            os.close(self._fd)


class _Pipes(NamedTuple):
    stdin: _PipeEnd
    stdout: _PipeEnd
    stderr: _PipeEnd

    def close(self) -> None:
        for end in self:
            end.close()


class Confined(NamedTuple):
    command: Sequence[str]
    limits: ProcessLimits | None = None
    """To be set after the start; None if the command sets them itself."""
    options: Sequence[str] = ()
    """Options of a sandbox, which are not part of the command line: the program reads them from the
    descriptor that `--args` names. Processes in the sandbox see the command line."""


Confine = Callable[[Sequence[str]], Confined]


class ChildProcess:
    """One running program. `exited` is done, with a description, when it has exited or closed a
    pipe."""

    def __init__(
        self, process: subprocess.Popen[bytes], pipes: _Pipes, mark: str, stderr: OutputRing
    ) -> None:
        self.process = process
        self.pid = process.pid
        self.stderr = stderr
        self.exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._mark = mark
        self._is_sandboxed = False
        self._pipes = pipes
        """The ends that no transport owns yet."""
        self._transports: list[asyncio.BaseTransport] = []
        self._stdin: asyncio.WriteTransport | None = None
        self._stdout: asyncio.ReadTransport | None = None
        self._paused = False
        self._closed: list[str] = []
        """The pipes that it has closed, stdin and stdout, in order."""
        self._is_stderr_closed = False
        self._grace: asyncio.TimerHandle | None = None
        self._pidfd = -1

    @classmethod
    async def start(
        cls,
        command: str,
        args: Sequence[str],
        env: dict[str, str],
        cwd: str,
        received: Callable[[bytes], None],
        stderr: OutputRing,
        server: str = "",
        confine: Confine = lambda command: Confined(command),
        after_signal: float | None = None,
    ) -> Self:
        """Starts the program; `received` is called with its stdout. `confine` returns the command
        that is run in its place. If the start is cancelled, the program has `after_signal` seconds,
        as with `terminate`."""
        program = shutil.which(command, path=env["PATH"])
        if program is None:
            raise Unreachable(
                f'the command "{command}" was not found on the PATH; install it or configure its '
                "full path",
                sent=False,
            )
        try:
            confined = confine([os.path.abspath(program), *args])
            process, pipes = _spawn(confined, env, cwd)
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise Unreachable(f'"{program}" could not be started: {error}', sent=False) from None
        if confined.limits is not None:
            set_limits(process.pid, confined.limits)
        child = cls(process, pipes, env[MARK], stderr)
        child._is_sandboxed = bool(confined.options)
        DESCENDANTS.add(process.pid, env[MARK], server)
        try:
            await child._connect(received)
        except BaseException as error:
            await child.terminate(after_signal=after_signal)
            if isinstance(error, OSError):
                raise Unreachable(
                    f'"{program}" could not be connected to: {error}', sent=False
                ) from None
            raise
        return child

    async def _connect(self, received: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        pipes = self._pipes
        if hasattr(os, "pidfd_open"):
            # Its descendants may hold the pipes open after it has exited.
            self._pidfd = os.pidfd_open(self.pid)
            loop.add_reader(self._pidfd, self._note_closed, "")
        self._stdout, _ = await loop.connect_read_pipe(
            lambda: _Pipe(lambda: self._note_closed("stdout"), received),
            pipes.stdout.hand_over(loop),
        )
        self._transports.append(self._stdout)
        errors, _ = await loop.connect_read_pipe(
            lambda: _Pipe(lambda: self._note_closed("stderr"), self.stderr.write),
            pipes.stderr.hand_over(loop),
        )
        self._transports.append(errors)
        self._stdin, _ = await loop.connect_write_pipe(
            lambda: _Pipe(lambda: self._note_closed("stdin")), pipes.stdin.hand_over(loop)
        )
        self._transports.append(self._stdin)

    def write(self, data: bytes) -> None:
        """Asks the system first whether the child still runs: the hub may not have noticed its exit
        yet, and what is written to it then would count as sent."""
        stdin, process = self._stdin, self.process  # not `is_over`: every call comes through here
        if stdin is None or stdin.is_closing() or self.exited.done() or process.poll() is not None:
            reason = self.exited.result() if self.exited.done() else self._describe_exit()
            raise Unreachable(reason, sent=False)
        if stdin.get_write_buffer_size() > UNWRITTEN_BYTES:
            raise Unreachable("it does not read its stdin", sent=False)
        stdin.write(data)

    @property
    def is_over(self) -> bool:
        """Whether it has exited or its stdin is closed."""
        if self._stdin is None or self._stdin.is_closing() or self.exited.done():
            return True
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kills it and its group at once; `terminate` must still be awaited."""
        _signal_group(self.process, signal.SIGKILL)

    def pause(self, seconds: float) -> None:
        """Stops reading its stdout for that long."""
        if self._stdout is None or self._paused or self._stdout.is_closing():
            return
        self._paused = True
        self._stdout.pause_reading()
        asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = False
        if self._stdout is not None and not self._stdout.is_closing():
            self._stdout.resume_reading()

    def _note_closed(self, pipe: str) -> None:
        """It has exited (`pipe` is empty) or closed a pipe: without stdin or stdout it cannot be
        used any more. The description waits for the end of stderr, which says why."""
        if pipe == "stderr":
            self._is_stderr_closed = True
        elif pipe:
            self._closed.append(pipe)
        else:
            self._unwatch()
        if self.exited.done() or (pipe == "stderr" and not self._closed):
            return
        if "stdout" in self._closed and self._is_stderr_closed and self.process.poll() is not None:
            self._set_exited()
        elif self._grace is None:
            self._wait_for_output(2)

    def _wait_for_output(self, rounds: int) -> None:
        """Waits in rounds, so that a loop that was late reads what has arrived meanwhile."""
        if not rounds:
            return self._set_exited()
        loop = asyncio.get_running_loop()
        self._grace = loop.call_later(GRACE_SECONDS / 2, self._wait_for_output, rounds - 1)

    def _set_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(self._describe_exit())

    def _describe_exit(self) -> str:
        code = self.process.poll()
        if code is None:
            how = f"it closed its {self._closed[0] if self._closed else 'stdin'}"
        elif code < 0:
            how = f"it was terminated by signal {name_signal(-code)}"
        else:
            how = f"it exited with status {code}"
        words = how, explain_broken_cache(self.stderr.read_text()), self.stderr.read_reason()
        return "; ".join(filter(None, words))

    async def terminate(
        self, seconds: float = END_SECONDS, *, after_signal: float | None = None
    ) -> None:
        """Ends it and the processes that it started: closes stdin, then SIGTERM, then SIGKILL
        `after_signal` seconds later, by default half of `seconds`."""
        DESCENDANTS.note_started(self.pid)  # after its exit they can no longer be attributed
        try:
            self.close_input()
            if self._closed or not await self._wait_exit(seconds):
                self._request_exit()
                await self._wait_exit(seconds / 2 if after_signal is None else after_signal)
        finally:  # also when this is cancelled
            DESCENDANTS.kill(self.pid)  # while its processes can still be attributed
            _signal_group(self.process, signal.SIGKILL)
            DESCENDANTS.kill(self.pid)
            kill_marked(self._mark)
            self._release()
        try:
            await self._wait_exit(1)
        finally:
            DESCENDANTS.discard(self.pid)

    def _request_exit(self) -> None:
        """Sends SIGTERM; inside of a sandbox, which itself would end by it and kill what runs
        there at once."""
        inside = list_descendants(self.pid) if self._is_sandboxed else []
        for pid in inside:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
        if not inside:
            _signal_group(self.process, signal.SIGTERM)

    def close_input(self) -> None:
        """Closes its stdin after what is still to be written."""
        if self._stdin is not None:
            self._stdin.close()
        else:
            self._pipes.stdin.close()

    def _release(self) -> None:
        self._unwatch()
        for transport in self._transports:
            transport.close()
        self._pipes.close()
        self._set_exited()

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    async def _wait_exit(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        pause = 0.002
        while self.process.poll() is None:
            if loop.time() > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True


def _spawn(
    confined: Confined, env: Mapping[str, str], cwd: str
) -> tuple[subprocess.Popen[bytes], _Pipes]:
    """Starts the program in a session of its own; returns it with the hub's ends of its pipes."""
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as failed:
        child_ends, hub_ends = [], []
        for child_reads in (True, False, False):
            read, write = os.pipe()
            theirs.callback(os.close, read if child_reads else write)
            child_ends.append(read if child_reads else write)
            hub_ends.append(_PipeEnd(write if child_reads else read))
            failed.callback(hub_ends[-1].close)
        stdin, stdout, stderr = child_ends
        command, passed = list(confined.command), []
        if confined.options:
            passed.append(_write_options(confined.options))
            theirs.callback(os.close, passed[0])
            command[1:1] = ["--args", str(passed[0])]
        process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=passed,
        )
        failed.pop_all()
    return process, _Pipes(*hub_ends)


def _write_options(options: Sequence[str]) -> int:
    """Returns a descriptor from which the options can be read. Raises `ValueError` for a NUL, which
    would begin another option."""
    if any("\0" in option for option in options):
        raise ValueError("embedded null byte")
    fd = os.memfd_create("options", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(b"".join(os.fsencode(option) + b"\0" for option in options))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def name_signal(number: int) -> str:
    """Returns its name, or its number: real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Signals a child and its process group. The system gives the id of an exited child to another
    process once its group is empty too: a process that has the id then is none of the hub's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.poll() is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, 0)
                return
        os.killpg(process.pid, number)


def kill_marked(mark: str) -> int:
    """Kills every process with `mark` in its environment, whatever its parent. Needs /proc.

    Never this process: a descendant of an earlier hub may have started it.
    """
    wanted = f"{MARK}={mark}".encode()
    killed = 0
    for entry in Path("/proc").glob("[0-9]*"):
        if entry.name == str(os.getpid()):
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(v == wanted or v.startswith(wanted + b":") for v in variables):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
    return killed
