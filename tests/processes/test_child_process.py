"""Child processes, real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.peers.process import alive, wait_until_gone

from dragoman.app import process
from dragoman.core.errors import Unreachable
from dragoman.processes.child_process import (
    CACHES,
    MARK,
    ChildProcess,
    Confined,
    OutputRing,
    build_environment,
    kill_marked,
)

NAP = "import time; time.sleep(600)"


def make_env(
    folder: Path, *names: str, mark: str = "m", with_user_home: bool = False, **known: str
) -> dict[str, str]:
    return build_environment(
        names, known, folder, folder.parent / "cache", mark, with_user_home=with_user_home
    )


class Children:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"test-{os.getpid()}-{folder.name}"
        self.started: list[ChildProcess] = []
        self.output = bytearray()
        self.stderr = OutputRing()

    async def start(self, code: str) -> ChildProcess:
        env = make_env(self.folder, PATH=os.environ["PATH"], mark=self.mark)
        child = await ChildProcess.start(
            sys.executable, ["-c", code], env, env["HOME"], self.output.extend, self.stderr
        )
        self.started.append(child)
        return child

    async def says(self, what: bytes) -> None:
        async with asyncio.timeout(60):
            while what not in self.output:
                await asyncio.sleep(0.01)


@pytest.fixture
async def children(tmp_path: Path) -> AsyncIterator[Children]:
    made = Children(tmp_path)
    yield made
    for child in made.started:
        await child.terminate(0.1)


async def test_child_input_and_output_work(children: Children) -> None:
    child = await children.start("print(input().upper(), flush=True); input()")
    child.write(b"hello\n")
    await children.says(b"HELLO\n")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "it exited with status 3"),
        ("import os; os.kill(os.getpid(), 15)", "it was terminated by signal SIGTERM"),
        ("import os; os.kill(os.getpid(), 41)", "it was terminated by signal 41"),
        (f"import os; os.close(1); {NAP}", "it closed its stdout"),
        (f"import os; os.close(0); {NAP}", "it closed its stdin"),
        ("import sys; sys.exit('no key was given')",
         "it exited with status 1; last line of its stderr: no key was given"),
        # what it has started holds its pipes open
        (f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {NAP!r}]); sys.exit(5)",
         "it exited with status 5"),
    ],
)  # fmt: skip
async def test_child_exit_is_described(children: Children, code: str, words: str) -> None:
    child = await children.start(code)
    assert await asyncio.wait_for(child.exited, 60) == words
    with pytest.raises(Unreachable, match=words) as raised:
        child.write(b"x")
    assert raised.value.sent is False


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'x'", "    at resolve (a.js:1:2) {",
          "  code: 'ERR_MODULE_NOT_FOUND'", "}", "", "Node.js v20.20.2"],
         "from its stderr: Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'x'"),
        (["npm error code E404", "npm error 404 Not Found - GET https://registry/one",
          "npm error A complete log of this run can be found in: /l"],
         "from its stderr: npm error 404 Not Found - GET https://registry/one"),
        (["Traceback (most recent call last):", "  raise ValueError('a')", "ValueError: a"],
         "last line of its stderr: ValueError: a"),
        (["pkg.errors.ConfigError: no key", "closing"],
         "from its stderr: pkg.errors.ConfigError: no key"),
        (["error: no such option", "usage: one"], "from its stderr: error: no such option"),
        (["sh: 1: one: not found", "cleaning up"], "from its stderr: sh: 1: one: not found"),
        (["Node.js v20.20.2"], "last line of its stderr: Node.js v20.20.2"),
        (["starting", "bye"], "last line of its stderr: bye"),
    ],
)  # fmt: skip
def test_reason_of_an_exit_is_the_line_that_names_an_error(lines: list[str], reason: str) -> None:
    stderr = OutputRing()
    stderr.write(("\n".join(lines) + "\n").encode())
    assert stderr.read_reason() == reason


async def test_process_with_the_id_of_an_exited_child_is_left_alone(children: Children) -> None:
    child = await children.start("pass")
    await asyncio.wait_for(child.exited, 60)
    assert child.process.poll() == 0
    other = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    with other:
        child.pid = child.process.pid = other.pid  # as after the system has given the id out again
        child.kill()
        await child.terminate(0.1)
        other.communicate(b"\n", timeout=60)
    assert other.returncode == 0


WRAPPER = """
import ctypes, os, signal, subprocess, sys
assert sys.argv[1] == "--args"  # as bubblewrap: what runs in it is killed when it ends
die_with_parent = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
sys.exit(subprocess.call(sys.argv[3:], preexec_fn=die_with_parent, start_new_session=True))
"""


async def test_program_in_a_sandbox_can_clean_up_at_sigterm(tmp_path: Path) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f"#!{sys.executable}\n{WRAPPER}")
    wrapper.chmod(0o755)
    code = (
        "import signal, sys, time\n"
        "def clean(*_):\n    time.sleep(0.5); open('cleaned', 'w').close(); sys.exit()\n"
        f"signal.signal(signal.SIGTERM, clean); print('up', flush=True)\n{NAP}"
    )
    env = make_env(tmp_path, PATH=os.environ["PATH"], mark=f"test-{os.getpid()}-sandboxed")
    output = bytearray()
    child = await ChildProcess.start(
        sys.executable,
        ["-c", code],
        env,
        env["HOME"],
        output.extend,
        OutputRing(),
        confine=lambda command: Confined([str(wrapper), *command], options=["--some"]),
    )
    try:
        async with asyncio.timeout(60):
            while b"up" not in output:
                await asyncio.sleep(0.01)
    finally:
        await child.terminate(0.1, after_signal=30)
    assert (Path(env["HOME"]) / "cleaned").exists()
    assert not alive(child.pid)


@pytest.mark.promise("B9")
async def test_child_ending_at_eof_is_not_signalled(children: Children) -> None:
    child = await children.start("import sys; print('up', flush=True); sys.stdin.read()")
    await children.says(b"up")
    await child.terminate()
    assert child.process.returncode == 0


@pytest.mark.promise("B9")
async def test_child_reacting_only_to_sigterm_gets_it(children: Children) -> None:
    child = await children.start(f"print('up', flush=True); {NAP}")
    await children.says(b"up")
    await child.terminate(0.2)
    assert child.process.returncode == -signal.SIGTERM


@pytest.mark.promise("B9")
@pytest.mark.parametrize("factory", [None, process.find_loop_factory()], ids=["asyncio", "uvloop"])
def test_cancelled_start_closes_its_descriptors_once(
    tmp_path: Path, factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    """Whatever the hub opens meanwhile may get the numbers of the pipes."""
    env = make_env(tmp_path, PATH=os.environ["PATH"], mark=f"cancelled-{os.getpid()}")

    async def cancel_after(turns: int) -> None:
        start = ChildProcess.start("cat", [], env, "/", lambda data: None, OutputRing())
        starting = asyncio.get_running_loop().create_task(start)
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(12)]
        try:
            with pytest.raises(asyncio.CancelledError):
                await starting
            for fd in opened:
                assert os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
        finally:
            for fd in opened:
                os.close(fd)

    async def cancel_at_each_turn() -> None:
        await cancel_after(1)  # the loop keeps a descriptor of its own from its first use on
        before = len(os.listdir("/proc/self/fd"))
        await asyncio.gather(*(cancel_after(turns) for turns in range(1, 5)))
        async with asyncio.timeout(60):  # transports close what they own a few turns later
            while len(os.listdir("/proc/self/fd")) > before:
                await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(cancel_at_each_turn())


STUBBORN = f"import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); {NAP}"


@pytest.mark.promise("B9")
async def test_child_ignoring_signals_is_killed(children: Children) -> None:
    child = await children.start(STUBBORN)
    await children.says(b"up")
    await child.terminate(0.2)
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.promise("B9")
async def test_child_is_killed_even_if_the_closer_is_cancelled(
    children: Children,
) -> None:
    child = await children.start(STUBBORN)
    await children.says(b"up")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await child.terminate(30)
    wait_until_gone([child.pid], 2)


FAMILY = f"""
import os, subprocess, sys
for own_session in (False, True):
    child = subprocess.Popen([sys.executable, "-c", {NAP!r}], start_new_session=own_session)
    print(child.pid, flush=True)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.promise("B9")
async def test_descendants_of_a_child_end_with_it(children: Children) -> None:
    child = await children.start(FAMILY)
    await children.says(b"up")
    pids = [int(word) for word in children.output.split()[:2]]
    assert all(alive(pid) for pid in pids)
    await child.terminate()
    wait_until_gone(pids, 2)


@pytest.mark.promise("B9")
async def test_marked_processes_can_be_ended_by_another_process(
    children: Children,
) -> None:
    child = await children.start(FAMILY)
    await children.says(b"up")
    pids = [child.pid, *(int(word) for word in children.output.split()[:2])]
    assert kill_marked("another") == 0
    assert kill_marked(children.mark[:-1]) == 0  # the beginning of a mark is not the mark
    assert all(alive(pid) for pid in pids)
    assert kill_marked(children.mark) == 3
    wait_until_gone(pids, 2)


@pytest.mark.promise("B9")
def test_hub_mark_finds_children_of_all_servers() -> None:
    env = {"PATH": os.environ["PATH"], MARK: f"hub-{os.getpid()}:my-server"}
    running = subprocess.Popen([sys.executable, "-c", NAP], env=env)
    try:
        end = time.monotonic() + 60
        while not kill_marked(f"hub-{os.getpid()}") and time.monotonic() < end:
            time.sleep(0.01)
        assert running.wait(60) == -signal.SIGKILL
    finally:
        running.kill()
        running.wait(60)


KNOWN: dict[str, Any] = {  # keyword arguments of make_env
    "PATH": "/bin", "A": "1", "B": "2", "SECRET": "x", "HOME": "/home/ada", "TMPDIR": "/var/tmp",
    "LANG": "de_DE.UTF-8", "LC_TIME": "C", "TZ": "Asia/Tokyo", "SSL_CERT_FILE": "/ca.pem",
    "NODE_EXTRA_CA_CERTS": "/ca.pem", "HTTPS_PROXY": "http://u:p@proxy", "USER": "ada",
    "XDG_CONFIG_HOME": "/home/ada/.cfg", "UV_CACHE_DIR": "/uv",
}  # fmt: skip
ALWAYS = {"PATH", "LANG", "LC_TIME", "TZ", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"}


def known(*names: str) -> dict[str, str]:
    return {name: KNOWN[name] for name in names}


@pytest.mark.promise("B10")
def test_child_environment_has_basics_named_variables_and_private_folders(
    tmp_path: Path,
) -> None:
    env = make_env(tmp_path / "s", "A", "MISSING", **KNOWN)
    assert env == {
        **known(*ALWAYS, "A"),
        **{name: str(tmp_path / "cache" / below) for name, below in CACHES.items()},
        "HOME": str(tmp_path / "s" / "home"),
        "TMPDIR": str(tmp_path / "s" / "tmp"),
        MARK: "m",
    }
    for folder in ("s/home", "s/tmp", "cache"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
    assert make_env(tmp_path / "s")["PATH"] == os.defpath
    named = make_env(tmp_path / "s", "TMPDIR", "UV_CACHE_DIR", "HTTPS_PROXY", **KNOWN)
    for name in ("TMPDIR", "UV_CACHE_DIR", "HTTPS_PROXY"):
        assert named[name] == KNOWN[name]


@pytest.mark.promise("B10")
def test_child_with_the_users_home_gets_settings_but_no_secrets(
    tmp_path: Path,
) -> None:
    env = make_env(tmp_path / "s", "A", with_user_home=True, **KNOWN)
    own = ("HOME", "TMPDIR", "USER", "XDG_CONFIG_HOME")
    assert env == {**known(*ALWAYS, *own, "A"), MARK: "m"}
    assert not (tmp_path / "s").exists() and not (tmp_path / "cache").exists()
    assert make_env(tmp_path / "s", with_user_home=True)["HOME"] == os.path.expanduser("~")


async def test_an_option_of_a_sandbox_cannot_become_two(tmp_path: Path) -> None:
    def confine(command: Sequence[str]) -> Confined:
        return Confined(["/usr/bin/true"], options=["--chdir", "/x\0--bind"])

    env = make_env(tmp_path)
    with pytest.raises(Unreachable, match=r"could not be started: .*null"):
        await ChildProcess.start(
            "true", (), env, env["HOME"], lambda data: None, OutputRing(), confine=confine
        )


async def test_missing_program_is_named(tmp_path: Path) -> None:
    env = make_env(tmp_path, PATH="/nowhere")

    async def start(command: str, *args: str, cwd: str = env["HOME"]) -> None:
        await ChildProcess.start(command, args, env, cwd, lambda data: None, OutputRing())

    with pytest.raises(Unreachable, match='"npx" was not found on the PATH; install it') as raised:
        await start("npx")
    assert raised.value.sent is False
    with pytest.raises(Unreachable, match=r"could not be started: .*No such file"):
        await start(sys.executable, cwd="/no/such/folder")
    with pytest.raises(Unreachable, match=r"could not be started: .*null"):
        await start(sys.executable, "\0")
    (tmp_path / "script").write_text("no program", encoding="utf-8")
    (tmp_path / "script").chmod(0o755)
    with pytest.raises(Unreachable, match="could not be started"):
        await start(str(tmp_path / "script"))


async def test_slow_child_gets_bounded_input(
    children: Children,
) -> None:
    child = await children.start(f"print('up', flush=True); {NAP}")
    await children.says(b"up")
    with pytest.raises(Unreachable, match="it does not read its stdin"):
        for _ in range(100):
            child.write(b"x" * 1_000_000)


async def test_paused_child_is_read_later(children: Children) -> None:
    child = await children.start("input(); print('late', flush=True); input()")
    child.pause(0.3)
    child.pause(0.3)
    begun = time.monotonic()
    child.write(b"\n")
    await children.says(b"late")
    assert time.monotonic() - begun > 0.2


@pytest.mark.promise("B10")
async def test_stderr_flood_keeps_its_tail_and_never_blocks_the_child(
    children: Children,
) -> None:
    code = (
        "import os, sys\n"
        "for n in range(3000): os.write(2, b'%07d ' % n * 125 + b'\\n')\n"
        "print('done', flush=True); input()"
    )
    await children.start(code)
    await children.says(b"done")
    async with asyncio.timeout(60):
        while "0002999" not in children.stderr.read_text():
            await asyncio.sleep(0.01)
    assert len(children.stderr.read_text()) <= children.stderr.limit
    assert children.stderr.read_last_line().startswith("0002999")
    assert len(children.stderr.read_last_line()) <= 300


def test_ring_buffer_keeps_the_last_bytes() -> None:
    ring = OutputRing(10)
    for piece in (b"abc", b"def", b"ghi", b"jkl"):
        ring.write(piece)
    assert ring.read_text() == "cdefghijkl"
    ring.write(b"0123456789ABCDEF")
    assert ring.read_text() == "6789ABCDEF"
    for _ in range(100):
        ring.write(b"xyz")
        assert len(ring.read_text()) == 10
    assert ring.read_text() == "zxyzxyzxyz"
    ring.write("é".encode() * 5)
    ring.write(b"!")
    assert ring.read_text() == "\N{REPLACEMENT CHARACTER}éééé!"  # cut in the middle of one
    assert OutputRing().read_last_line() == ""


def test_kill_by_mark_spares_the_caller() -> None:
    code = (
        "from dragoman.processes.child_process import kill_marked\n"
        "kill_marked('hub'); kill_marked('hub:shell'); print('lives')"
    )
    env = {**os.environ, MARK: "hub:shell"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "lives\n"
