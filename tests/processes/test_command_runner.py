"""Programs that run to their end: what they return, what they may reach, and that they always end.

The programs are real ones: shells and Pythons, most of them misbehaving.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live.test_sandbox import TOOLS_PATH, needs_sandbox
from tests.peers.process import alive, list_marked, wait_until_gone

from dragoman.core.errors import BadReply, TimedOut, Unreachable
from dragoman.processes.command_runner import (
    BoundedOutput,
    CommandOutcome,
    CommandRunner,
    CommandSpec,
    RunnerLimits,
)
from dragoman.processes.config import ProcessLimits

LONG = 60.0
"""No test waits for it."""


class Commands:
    """A runner on a home of its own, whose user has secrets."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.mark = f"test-{os.getpid()}-{base.name}"
        self.user, self.hub = base / "ada", base / "hub"
        for folder in (self.user / ".ssh", self.hub):
            folder.mkdir(parents=True)
        (self.user / ".ssh" / "id").write_text("ssh-key")
        (self.hub / "env").write_text("TOKEN=hub-secret")
        self.runner = self.build()

    def build(self, path: str = TOOLS_PATH, **limits: Any) -> CommandRunner:
        lookup = {
            "PATH": path,
            "HOME": str(self.user),
            "TOKEN": "environment-canary",
            "WANTED": "w",
            "LANG": "C.UTF-8",
        }
        return CommandRunner(self.hub, self.mark, lookup, RunnerLimits(**limits))

    async def run(self, *command: str, stdin: bytes = b"", **settings: Any) -> CommandOutcome:
        settings = {"sandbox": "off", "seconds": LONG, **settings}
        async with asyncio.timeout(LONG):
            return await self.runner.run(
                CommandSpec(name="t", command=command, **settings), stdin=stdin
            )

    async def python(self, code: str, *args: str, **settings: Any) -> CommandOutcome:
        return await self.run(sys.executable, "-c", code, *args, **settings)

    def spec(self, code: str, **settings: Any) -> CommandSpec:
        settings = {"sandbox": "off", "seconds": LONG, **settings}
        return CommandSpec(name="t", command=(sys.executable, "-c", code), **settings)


@pytest.fixture
async def commands(short_tmp: Path) -> AsyncIterator[Commands]:
    made = Commands(short_tmp)
    yield made
    await asyncio.to_thread(wait_until_gone, list_marked(made.mark))


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_command_returns_output_and_exit_status(commands: Commands) -> None:
    done = await commands.run("sh", "-c", "cat; echo oops >&2; exit 3", stdin=b"h\xc3\xa9\n")
    assert (done.status, done.stdout.read_text(), done.stderr.read_text()) == (3, "hé\n", "oops\n")
    assert not done.succeeded and not done.timed_out and done.sandbox == "off"
    assert done.describe() == "it exited with status 3"
    assert (await commands.run("true")).succeeded


async def test_command_is_an_argument_list_not_a_shell_line(commands: Commands) -> None:
    words = ["$HOME", "; echo x", "a b", "*", "`id`", ""]
    done = await commands.python("import json, sys; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(done.stdout.read_bytes()) == words


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os.kill(os.getpid(), 9)", "it was terminated by signal SIGKILL"),
        ("import os; os.kill(os.getpid(), 41)", "it was terminated by signal 41"),
        ("import sys; sys.exit(255)", "it exited with status 255"),
    ],
)
async def test_end_of_a_command_is_described(commands: Commands, code: str, how: str) -> None:
    assert (await commands.python(code)).describe() == how


async def test_command_that_cannot_be_started_is_named(commands: Commands) -> None:
    with pytest.raises(Unreachable, match='"no-such-program" was not found on the PATH') as error:
        await commands.run("no-such-program")
    assert not error.value.sent
    with pytest.raises(Unreachable, match="could not be started"):
        await commands.run("true", cwd=str(commands.base / "missing"))
    with pytest.raises(Unreachable, match="could not be started"):
        await commands.run("echo", "a\0b")


@pytest.mark.promise("B10")
async def test_environment_is_cleared_except_for_named_variables(commands: Commands) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    done = await commands.python(
        code, env=["WANTED"], variables={"MORE": "m", "DRAGOMAN_CHILD": "x"}
    )
    found = json.loads(done.stdout.read_bytes())
    assert found["WANTED"] == "w" and found["MORE"] == "m" and found["LANG"] == "C.UTF-8"
    assert "TOKEN" not in found and "environment-canary" not in done.stdout.read_text()
    assert Path(found["HOME"]).is_relative_to(commands.hub / "programs" / "t")
    assert found["DRAGOMAN_CHILD"].startswith(commands.mark)  # else it could leave processes behind


@pytest.mark.parametrize("code", [
    "pass",  # reads nothing
    "import sys; sys.stdin.close(); import time; time.sleep(0.3); print('done')",
    "import os; os.close(1); os.close(2); os.open('/dev/null', os.O_WRONLY)",
])  # fmt: skip
async def test_command_may_ignore_or_close_its_pipes(commands: Commands, code: str) -> None:
    done = await commands.python(code, stdin=b"x" * 1_000_000)
    assert done.succeeded
    assert done.stdout.read_text() == ("done\n" if "done" in code else "")


async def test_long_output_keeps_its_beginning_and_its_end(commands: Commands) -> None:
    code = "import sys\nfor n in range(100000): print(f'line {n:06}')\nsys.stderr.write('e' * 5000)"
    done = await commands.python(code, output_bytes=2_000)
    text = done.stdout.read_text()
    assert text.startswith("line 000000\n") and text.endswith("line 099999\n")
    assert done.stdout.count == 1_200_000 and done.stdout.omitted == 1_198_000
    assert "[1198000 bytes omitted]" in text and len(text) < 2_100
    assert len(done.stderr.read_bytes()) == 2_000 and done.stderr.omitted == 3_000


def test_bounded_output_is_the_same_for_all_pieces() -> None:
    data = bytes(range(256)) * 4
    for size in (1, 7, 100, 1_024):
        output = BoundedOutput(101)
        for start in range(0, len(data), size):
            output.write(data[start : start + size])
        assert output.read_bytes() == data[:50] + data[-51:]
        assert output.omitted == len(data) - 101
    whole = BoundedOutput(2_000)
    whole.write(data)
    assert whole.read_bytes() == data and not whole.omitted


async def test_output_flood_is_ended(commands: Commands) -> None:
    commands.runner = commands.build(flood_bytes=1_000_000)
    done = await commands.run("sh", "-c", "while :; do echo flood; done")
    assert done.flooded and done.status is None
    assert "it was killed after" in done.describe()


IGNORES = "import signal, sys, time; signal.signal(15, signal.SIG_IGN)"


async def test_hanging_command_is_ended_at_its_time_limit(commands: Commands) -> None:
    commands.runner = commands.build(stop_seconds=0.2)
    done = await commands.python(f"{IGNORES}; time.sleep(600)", seconds=0.5)
    assert done.timed_out and done.status is None and "time limit" in done.describe()


FORKS = """
import os, sys, time
def nap(file):
    with open(file + '.new', 'w') as f: f.write(str(os.getpid()))
    os.rename(file + '.new', file)
    for fd in range(3): os.close(fd)
    time.sleep(600)
folder = sys.argv[1]
if os.fork() == 0: nap(folder + '/child')
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: nap(folder + '/daemon')
    os._exit(0)
while not all(os.path.exists(f'{folder}/{name}') for name in ('child', 'daemon')): time.sleep(0.01)
"""


async def test_processes_of_a_command_end_with_it(commands: Commands) -> None:
    assert (await commands.python(FORKS, str(commands.base))).succeeded
    pids = [int((commands.base / name).read_text(encoding="utf-8")) for name in ("child", "daemon")]
    await asyncio.to_thread(wait_until_gone, pids)


async def test_process_that_holds_the_output_open_does_not_delay(commands: Commands) -> None:
    done = await commands.run("sh", "-c", "sleep 600 & echo out")
    assert done.succeeded and done.stdout.read_text() == "out\n"


async def test_cancelled_command_ends_with_its_processes(commands: Commands) -> None:
    commands.runner = commands.build(stop_seconds=0.2)
    task = asyncio.ensure_future(
        commands.python(f"{IGNORES}\n{FORKS}\ntime.sleep(600)", str(commands.base))
    )
    await wait_for((commands.base / "child").exists)
    await wait_for((commands.base / "daemon").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pids = [int((commands.base / name).read_text(encoding="utf-8")) for name in ("child", "daemon")]
    await asyncio.to_thread(wait_until_gone, pids)


async def test_number_of_running_commands_is_limited(commands: Commands) -> None:
    commands.runner = commands.build(running=1)
    file = commands.base / "up"
    stuck = asyncio.ensure_future(
        commands.run("sh", "-c", 'echo > "$1"; sleep 600', "sh", str(file))
    )
    await wait_for(file.exists)
    with pytest.raises(Unreachable, match="1 programs are running already"):
        await commands.run("true")
    stuck.cancel()
    await asyncio.wait([stuck])
    assert (await commands.run("true")).succeeded


# --- the sandbox ----------------------------------------------------------------------------------

TRY = """
import json, sys
def attempt(how, path):
    try:
        with open(path, 'r' if how == 'read' else 'w') as file:
            return file.read() if how == 'read' else 'written'
    except OSError as error:
        return type(error).__name__
print(json.dumps([attempt(*one.split(':', 1)) for one in sys.argv[1:]]))
"""


async def try_paths(commands: Commands, *attempts: str, **settings: Any) -> list[str]:
    done = await commands.python(TRY, *attempts, **settings)
    assert done.succeeded, done.stderr.read_text()
    return list(json.loads(done.stdout.read_bytes()))


@needs_sandbox
@pytest.mark.promise("B10")
@pytest.mark.parametrize("level", ["net", "strict"])
async def test_sandboxed_command_reaches_only_what_is_granted(
    commands: Commands, level: str
) -> None:
    shown, work, other = (commands.base / name for name in ("shown", "work", "other"))
    for folder in (shown, work, other):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    # Paths in arguments, which a model may have chosen, grant nothing.
    found = await try_paths(
        commands,
        f"read:{shown}/file",
        f"write:{shown}/file",
        f"read:{work}/file",
        f"write:{work}/file",
        f"read:{other}/file",
        f"read:{commands.user}/.ssh/id",
        f"read:{commands.hub}/env",
        f"write:{commands.hub}/programs/t/home/note",
        sandbox=level,
        cwd=str(work),
        readable=[str(shown)],
        writable=[str(work)],
    )
    assert found == [
        "shown",
        "OSError",
        "work",
        "written",
        "FileNotFoundError",
        "FileNotFoundError",
        "FileNotFoundError",
        "written",
    ]
    assert (work / "file").read_text() == "" and (shown / "file").read_text() == "shown"


@needs_sandbox
async def test_folder_of_a_sandboxed_command_is_read_only_by_default(commands: Commands) -> None:
    work = commands.base / "work"
    work.mkdir()
    (work / "file").write_text("here")
    found = await try_paths(commands, "read:file", "write:file", sandbox="net", cwd=str(work))
    assert found == ["here", "OSError"]
    home = await try_paths(commands, "write:file", sandbox="net")
    assert home == ["written"]


@needs_sandbox
async def test_strict_command_has_no_network(commands: Commands) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
    async with server:
        assert (await commands.python(code, sandbox="net")).succeeded
        strict = await commands.python(code, sandbox="strict")
    assert not strict.succeeded and strict.sandbox == "strict"


@needs_sandbox
async def test_sandboxed_commands_end_too(commands: Commands) -> None:
    done = await commands.python(f"{IGNORES}; time.sleep(600)", sandbox="strict", seconds=0.5)
    assert done.timed_out


@needs_sandbox
async def test_limits_hold_in_a_sandbox(commands: Commands) -> None:
    code = "data = bytearray(1 << 30); print(len(data))"
    limits = ProcessLimits(memory_megabytes=256)
    done = await commands.python(code, sandbox="net", limits=limits)
    assert not done.succeeded and "MemoryError" in done.stderr.read_text()


async def test_without_bubblewrap_net_runs_and_strict_does_not(commands: Commands) -> None:
    commands.runner = commands.build(path="/nonexistent")
    done = await commands.run("/bin/sh", "-c", "echo ran", sandbox="net")
    assert done.succeeded and done.sandbox == "off"
    with pytest.raises(Unreachable, match='its sandbox is "strict", but bubblewrap'):
        await commands.run("/bin/sh", "-c", "echo ran", sandbox="strict")


# --- lines ----------------------------------------------------------------------------------------


async def test_lines_are_exchanged_while_the_command_runs(commands: Commands) -> None:
    code = (
        "import sys\nfor line in sys.stdin: print('got', line.strip(), flush=True)\n"
        "sys.stdout.write('last'); sys.exit(4)"
    )
    found: list[bytes] = []
    async with commands.runner.open_lines(commands.spec(code)) as lines:
        lines.write_line(b"one")
        async for line in lines:
            found.append(line)
            if len(found) == 1:
                lines.write_line(b"two")
            elif len(found) == 2:
                lines.close_input()
        assert lines.outcome.status == 4
    assert found == [b"got one", b"got two", b"last"]


async def test_lines_that_are_taken_slowly_are_complete(commands: Commands) -> None:
    commands.runner = commands.build(waiting_bytes=1_000)
    code = "for n in range(20000): print(n)"
    found = 0
    async with commands.runner.open_lines(commands.spec(code)) as lines:
        async for line in lines:
            assert int(line) == found
            if found % 5_000 == 0:  # longer than the runner waits for output after an exit
                await asyncio.sleep(0.2)
            found += 1
    assert found == 20_000


async def test_line_that_is_too_long_ends_the_command(commands: Commands) -> None:
    commands.runner = commands.build(line_bytes=1 << 20)
    code = "import sys, time; print('short'); sys.stdout.write('x' * 3_000_000); time.sleep(600)"
    found: list[bytes] = []
    with pytest.raises(BadReply, match="a line of more than 1 MB"):
        async with commands.runner.open_lines(commands.spec(code)) as lines:
            found += [line async for line in lines]


async def test_lines_have_a_time_limit(commands: Commands) -> None:
    commands.runner = commands.build(stop_seconds=0.2)
    code = "import time; print('up', flush=True); time.sleep(600)"
    with pytest.raises(TimedOut, match=r"longer than 0\.5 s"):
        async with commands.runner.open_lines(commands.spec(code, seconds=0.5)) as lines:
            async for _ in lines:
                pass


async def test_command_ends_when_its_lines_are_left(commands: Commands) -> None:
    commands.runner = commands.build(stop_seconds=0.2)
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    async with commands.runner.open_lines(commands.spec(code)) as lines:
        async for line in lines:
            pid = int(line)
            break
    assert not alive(pid)


async def test_writing_to_an_ended_command_is_refused(commands: Commands) -> None:
    async with commands.runner.open_lines(commands.spec("pass")) as lines:
        assert [line async for line in lines] == []
        with pytest.raises(Unreachable, match="exited with status 0"):
            lines.write_line(b"more")
