"""Runs programs to their end: with a time limit, bounded output, in a sandbox, and without leaving
a process behind.

`run` takes all input at once and returns the output; `open_lines` exchanges lines with a program
while it runs. Knows nothing of what the programs are for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from time import monotonic

from dragoman.core.background import resolve
from dragoman.core.call import empty_mapping
from dragoman.core.errors import BadReply, TimedOut, Unreachable
from dragoman.processes.bubblewrap import NoBubblewrap, find_bubblewrap
from dragoman.processes.child_process import (
    GRACE_SECONDS,
    MARK,
    ChildProcess,
    Confined,
    OutputRing,
    build_environment,
    name_signal,
)
from dragoman.processes.config import ProcessLimits, SandboxLevel
from dragoman.processes.sandbox import SandboxFolders, SandboxSpec, build_sandbox_command, is_below

log = logging.getLogger(__name__)

PROGRAMS = "programs"
"""The folder in the hub's home with the private homes of programs."""
DEFAULT_LIMITS = ProcessLimits()
LINE_COST = 64
"""Bytes that a waiting line takes besides its own."""
LINES_AT_ONCE = 100
"""Lines that are taken before other work has its turn."""
POLL_SECONDS = 0.05
"""How often the exit of a program is checked where the system does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A program to run, and what it may use."""

    name: str
    """The target that runs it: its processes and its private home are attributed to it."""
    command: Sequence[str]
    """The program, which is searched on the PATH, and its arguments."""
    cwd: str = ""
    """The folder it starts in; default: its private home."""
    env: Sequence[str] = ()
    """Names of the hub's variables that it gets, besides those for language, time zone and
    certificates."""
    variables: Mapping[str, str] = field(default_factory=empty_mapping)
    """Further variables with their values."""
    sandbox: SandboxLevel = "net"
    """Without bubblewrap, `net` means `off`, and `strict` does not start."""
    readable: Sequence[str] = ()
    """Paths that it may read in a sandbox, besides the system, the program and its private home.
    `cwd` is one of them."""
    writable: Sequence[str] = ()
    """Paths that it may read and write in a sandbox."""
    grants_named_paths: bool = False
    """Whether it may also write to `cwd`, and use the absolute paths in its arguments and in the
    variables in `env`. Only for a command that the operator has configured."""
    limits: ProcessLimits = DEFAULT_LIMITS
    seconds: float = 60.0
    output_bytes: int = 256 * 1024
    """Bytes that are kept of stdout, and of stderr: the first and the last half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    running: int = 200
    """Programs at the same time."""
    flood_bytes: int = 64 * 1024 * 1024
    """A program that writes more to stdout than this is killed."""
    line_bytes: int = 8 * 1024 * 1024
    """The longest line."""
    waiting_bytes: int = 1024 * 1024
    """Bytes of lines that wait to be read, before reading pauses."""
    stop_seconds: float = 1.0
    """How long a program may take to exit after its stdin is closed; half of that again after
    SIGTERM, which ends a sandbox at once."""


class BoundedOutput(OutputRing):
    """The first and the last bytes of an output, and how many there were."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit - limit // 2)
        self._most_first = limit // 2
        self._first = bytearray()
        self.count = 0

    def write(self, data: bytes) -> None:
        self.count += len(data)
        if (room := self._most_first - len(self._first)) > 0:
            self._first += data[:room]
            data = data[room:]
        super().write(data)

    @property
    def omitted(self) -> int:
        """How many bytes between the first and the last are not kept."""
        return max(0, self.count - len(self._first) - self.limit)

    def read_bytes(self) -> bytes:
        return bytes(self._first + self._data[-self.limit :])

    def read_text(self) -> str:
        last = self._data[-self.limit :]
        if not self.omitted:
            return (self._first + last).decode("utf-8", "replace")
        return (
            f"{self._first.decode('utf-8', 'replace')}\n[{self.omitted} bytes omitted]\n"
            f"{last.decode('utf-8', 'replace')}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """How a program has ended, and its output."""

    status: int | None
    """Its exit status; None if it did not exit by itself."""
    signal: str = ""
    """The signal that ended it, if it was not ended by the runner."""
    timed_out: bool = False
    flooded: bool = False
    """Whether it was killed for the length of its output."""
    stdout: BoundedOutput
    stderr: BoundedOutput
    seconds: float
    sandbox: SandboxLevel
    """The sandbox that it ran in."""

    @property
    def succeeded(self) -> bool:
        return self.status == 0

    def describe(self) -> str:
        """Describes how it has ended."""
        if self.timed_out:
            return f"it was ended after {self.seconds:.1f} s, its time limit"
        if self.flooded:
            return f"it was killed after {self.stdout.count} bytes of output"
        if self.signal:
            return f"it was terminated by signal {self.signal}"
        return f"it exited with status {self.status}"


class _RunningCommand(ChildProcess):
    """A program that is over when it has exited, whichever pipes it closes before. `exited` is done
    when its output has been read, too."""

    async def _connect(self, received: Callable[[bytes], None]) -> None:
        await super()._connect(received)
        if self._pidfd < 0:
            self._poll_exit()

    def _poll_exit(self) -> None:
        if not self.exited.done():
            self._note_closed("")
            if self.process.poll() is None:
                asyncio.get_running_loop().call_later(POLL_SECONDS, self._poll_exit)

    def _note_closed(self, pipe: str) -> None:
        if pipe:
            self._closed.append(pipe)
        if self.exited.done() or self.process.poll() is None:
            return
        self._unwatch()
        if {"stdout", "stderr"} <= set(self._closed):
            self._set_exited()
        elif self._grace is None:  # a process that it started may hold them open
            self._wait_for_output(2)

    def _wait_for_output(self, rounds: int) -> None:
        """A late event loop may run the first timer before it has read what is there. While
        reading is paused, there may be more."""
        rounds += self._paused
        if not rounds:
            self._set_exited()
            return
        loop = asyncio.get_running_loop()
        self._grace = loop.call_later(GRACE_SECONDS / 2, self._wait_for_output, rounds - 1)

    def pause_reading(self) -> None:
        if self._stdout is not None and not self._stdout.is_closing() and not self._paused:
            self._paused = True
            self._stdout.pause_reading()

    def resume_reading(self) -> None:
        if self._paused:
            self._resume()


class _Prepared:
    """A program that can be started: its environment and its confinement. Built in a thread, since
    it looks at many files."""

    def __init__(
        self, spec: CommandSpec, home: Path, mark: str, lookup: Mapping[str, str], bubblewrap: str
    ) -> None:
        self._spec = spec
        self._folder = home / PROGRAMS / re.sub(r"[^A-Za-z0-9_-]", "_", spec.name)
        self._hub = home
        self._bubblewrap = bubblewrap
        self._user = Path(lookup.get("HOME") or os.path.expanduser("~"))
        # What one program puts into a shared cache, another would run.
        caches = self._folder / "cache" if bubblewrap else home / "cache"
        # All processes with the same mark are killed together.
        mark = f"{mark}:{token_hex(8)} {spec.name}"
        env = build_environment(spec.env, lookup, self._folder, caches, mark, with_user_home=False)
        self.env = {**env, **spec.variables, MARK: mark}
        self.cwd = os.path.expanduser(spec.cwd) if spec.cwd else self.env["HOME"]
        self.program = os.path.expanduser(spec.command[0])
        found = shutil.which(self.program, path=self.env["PATH"])
        # Without the program, the start says so.
        command = [os.path.abspath(found or self.program), *spec.command[1:]]
        self.confined = self._confine(command)

    @property
    def sandbox(self) -> SandboxLevel:
        return self._spec.sandbox if self._bubblewrap else "off"

    def _confine(self, command: Sequence[str]) -> Confined:
        spec = self._spec
        if not self._bubblewrap:
            return Confined(command, spec.limits)
        readable, writable = _expand(spec.readable), _expand(spec.writable)
        granted = (str(self._folder), *readable, *writable)
        has_cwd = spec.grants_named_paths or any(is_below(self.cwd, path) for path in granted)
        if not has_cwd:
            readable += (self.cwd,)
        sandbox = SandboxSpec(
            spec.sandbox,
            SandboxFolders(self._hub, self._folder, self._user),
            has_user_home=False,
            granted=writable,
            readable=readable,
            grants_named_paths=spec.grants_named_paths,
        )
        return build_sandbox_command(
            self._bubblewrap, sandbox, command, self.env, spec.env, self.cwd, spec.limits
        )


class _Run:
    """One run of a program, from its start to its outcome."""

    def __init__(self, prepared: _Prepared, spec: CommandSpec, limits: RunnerLimits) -> None:
        self._prepared = prepared
        self._spec = spec
        self.limits = limits
        self.stdout = BoundedOutput(spec.output_bytes)
        self._stderr = BoundedOutput(spec.output_bytes)
        self._begun = monotonic()
        self._flooded = False
        self._received = 0
        """Bytes of stdout, and what they cost besides."""
        self._child: _RunningCommand | None = None

    async def start(self) -> _RunningCommand:
        prepared = self._prepared
        self._child = await _RunningCommand.start(
            prepared.program,
            self._spec.command[1:],
            prepared.env,
            prepared.cwd,
            self.receive,
            self._stderr,
            self._spec.name,
            lambda command: prepared.confined,
        )
        return self._child

    def receive(self, data: bytes) -> None:
        self.stdout.write(data)
        self._received += len(data)
        if self._received > self.limits.flood_bytes and self._child is not None:
            self._flooded = True
            self._child.kill()

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.terminate(self.limits.stop_seconds)

    def build_outcome(self, timed_out: bool = False) -> CommandOutcome:
        code = self._child.process.poll() if self._child is not None else None
        is_own_end = code is not None and not timed_out and not self._flooded
        return CommandOutcome(
            status=code if is_own_end and code is not None and code >= 0 else None,
            signal=name_signal(-code) if is_own_end and code is not None and code < 0 else "",
            timed_out=timed_out,
            flooded=self._flooded,
            stdout=self.stdout,
            stderr=self._stderr,
            seconds=monotonic() - self._begun,
            sandbox=self._prepared.sandbox,
        )


class CommandLines(_Run):
    """A running program that exchanges lines. They are read as fast as they are taken: iterate over
    it."""

    def __init__(self, prepared: _Prepared, spec: CommandSpec, limits: RunnerLimits) -> None:
        super().__init__(prepared, spec, limits)
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        """Bytes in `_lines`."""
        self._rest = bytearray()
        self._is_too_long = False
        self._is_over = False
        self._wanted: asyncio.Future[None] | None = None

    async def start(self) -> _RunningCommand:
        child = await super().start()
        child.exited.add_done_callback(lambda _: self._end())
        return child

    def write_line(self, line: bytes) -> None:
        """Raises `Unreachable` if the program has exited or has closed its stdin."""
        assert self._child is not None
        self._child.write(line + b"\n")

    def close_input(self) -> None:
        assert self._child is not None
        self._child.close_input()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields the lines of its stdout until it has exited. Raises `BadReply` after a line that
        is too long."""
        taken = 0
        while (line := await self._read_line()) is not None:
            yield line
            taken += 1
            if taken % LINES_AT_ONCE == 0:  # many lines may wait
                await asyncio.sleep(0)

    @property
    def outcome(self) -> CommandOutcome:
        """How it has ended, once there are no more lines."""
        return self.build_outcome()

    def receive(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        self._received += len(lines) * LINE_COST
        super().receive(data)
        for line in lines:
            self._add(bytes(self._rest + line))
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self.limits.line_bytes:
            self._is_too_long = True
            self._rest.clear()
        if self._is_too_long and self._child is not None:
            self._child.kill()
        if self._waiting > self.limits.waiting_bytes and self._child is not None:
            self._child.pause_reading()
        resolve(self._wanted, None)

    def _add(self, line: bytes) -> None:
        if len(line) > self.limits.line_bytes:
            self._is_too_long = True
        elif not self._is_too_long:
            self._lines.append(line)
            self._waiting += len(line) + LINE_COST

    def _end(self) -> None:
        self._is_over = True
        if self._rest:
            self._add(bytes(self._rest))
        resolve(self._wanted, None)

    async def _read_line(self) -> bytes | None:
        while not self._lines:
            if self._is_too_long:
                raise BadReply(
                    f"it wrote a line of more than {self.limits.line_bytes >> 20} MB to stdout"
                )
            if self._is_over:
                return None
            if self._child is not None:
                self._child.resume_reading()
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        line = self._lines.popleft()
        self._waiting -= len(line) + LINE_COST
        return line


class CommandRunner:
    def __init__(
        self,
        home: Path,
        mark: str,
        lookup: Mapping[str, str],
        limits: RunnerLimits | None = None,
    ) -> None:
        """`mark` is the hub's, in the environment of all its children; `lookup` has the values of
        variables."""
        self._home = home
        self._mark = mark
        self._lookup = lookup
        self._limits = limits or RunnerLimits()
        self._running = 0
        self._bubblewrap = ""
        """Empty until it has been found."""
        self._warned: set[tuple[str, str]] = set()

    async def run(self, spec: CommandSpec, stdin: bytes = b"") -> CommandOutcome:
        """Runs the program to its end, or to its time limit. Raises `Unreachable` if it cannot be
        started."""
        run = _Run(await self._prepare(spec), spec, self._limits)
        timed_out = False
        with self._count():
            try:
                async with asyncio.timeout(spec.seconds) as limit:
                    child = await run.start()
                    with contextlib.suppress(Unreachable):  # it does not have to read its input
                        child.write(stdin)
                    child.close_input()
                    await asyncio.shield(child.exited)
            except TimeoutError:
                if not limit.expired():
                    raise
                timed_out = True
            finally:
                await run.stop()
        return run.build_outcome(timed_out)

    @contextlib.asynccontextmanager
    async def open_lines(self, spec: CommandSpec) -> AsyncIterator[CommandLines]:
        """Starts the program; it is ended with the block. Raises `Unreachable` if it cannot be
        started, and `TimedOut`."""
        run = CommandLines(await self._prepare(spec), spec, self._limits)
        with self._count():
            try:
                async with asyncio.timeout(spec.seconds) as limit:
                    await run.start()
                    yield run
            except TimeoutError:
                if not limit.expired():
                    raise
                raise TimedOut(f"it took longer than {spec.seconds:g} s, its time limit") from None
            finally:
                await run.stop()

    @contextlib.contextmanager
    def _count(self) -> Iterator[None]:
        if self._running >= self._limits.running:
            raise Unreachable(
                f"{self._running} programs are running already; try again later", sent=False
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _prepare(self, spec: CommandSpec) -> _Prepared:
        bubblewrap = "" if spec.sandbox == "off" else await self._find_sandbox(spec)
        try:
            return await asyncio.to_thread(
                _Prepared, spec, self._home, self._mark, self._lookup, bubblewrap
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise Unreachable(
                f'"{spec.command[0]}" could not be started: {error}', sent=False
            ) from None

    async def _find_sandbox(self, spec: CommandSpec) -> str:
        if not self._bubblewrap:
            try:
                self._bubblewrap = await asyncio.to_thread(
                    find_bubblewrap, self._lookup.get("PATH")
                )
            except NoBubblewrap as error:
                if spec.sandbox == "strict":
                    raise Unreachable(
                        f'it was not started: its sandbox is "strict", but {error}', sent=False
                    ) from None
                self._warn_once(spec.name, f'it runs without its sandbox "net": {error}')
        return self._bubblewrap

    def _warn_once(self, name: str, reason: str) -> None:
        if (name, reason) not in self._warned:
            self._warned.add((name, reason))
            log.warning('"%s": %s', name, reason)


def _expand(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(os.path.expanduser, paths))
