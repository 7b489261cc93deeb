import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.home import (
    SOCKET_LIMIT,
    DaemonRecord,
    HomeLocked,
    HomeUnusable,
    find_home,
    find_socket_paths,
    is_locked,
    lock_home,
    prepare,
    read_daemon,
    remove_daemon,
    render_now,
    write_daemon,
)

HOLDER = """
import sys, os
from dragoman.home import lock_home
kept = lock_home(sys.argv[1])
if len(sys.argv) > 2:
    import subprocess
    child = subprocess.Popen(["sleep", "30"])
    print(child.pid, flush=True)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(home, *more):
    """A real process that holds the home until its stdin is closed or it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def short():
    """A directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def record(**changes) -> DaemonRecord:
    fields: dict[str, Any] = {
        "pid": os.getpid(),
        "url": "http://127.0.0.1:50051",
        "socket": "/x/http.sock",
        "mcp_socket": "/x/mcp.sock",
        "version": "0.1.0",
        "started_at": render_now(),
        "mode": "daemon",
        "stop_secs": 15.0,
    }
    return DaemonRecord(**(fields | changes))


def mode(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_home_is_resolved_from_argument_environment_then_user(monkeypatch):
    monkeypatch.setenv("HOME", "/users/ada")
    monkeypatch.setenv("DRAGOMAN_HOME", "/srv/hub")
    assert find_home("/given") == "/given"
    assert find_home() == "/srv/hub"
    monkeypatch.delenv("DRAGOMAN_HOME")
    assert find_home() == "/users/ada/.dragoman"
    assert find_home("~/other") == "/users/ada/other"
    monkeypatch.chdir("/")
    assert find_home("relative") == "/relative"


def test_missing_user_home_is_reported_with_the_setting():
    with pytest.raises(HomeUnusable, match="set DRAGOMAN_HOME"):
        find_home("~nobody-of-this-name/x")


def test_home_is_created_private_under_any_umask(tmp_path):
    old = os.umask(0)
    try:
        prepare(str(tmp_path / "a" / "home"))
    finally:
        os.umask(old)

    assert mode(tmp_path / "a" / "home") == 0o700


@pytest.mark.parametrize("others", [0o770, 0o702, 0o777])
def test_home_writable_by_others_is_refused(tmp_path, others):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(others)

    with pytest.raises(HomeUnusable, match=r"can be written by other users .*chmod go-w"):
        prepare(str(home))
    with pytest.raises(HomeUnusable, match="can be written by other users"):
        lock_home(str(home))


def test_a_home_of_another_user_is_refused(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(home, 12345, 12345)
    else:
        home = "/usr"

    with pytest.raises(HomeUnusable, match="belongs to user"):
        prepare(str(home))


def test_file_as_home_is_refused(tmp_path):
    (tmp_path / "home").write_text("")

    with pytest.raises(HomeUnusable, match=r"cannot use .* as a home: File exists"):
        prepare(str(tmp_path / "home"))


@pytest.mark.promise("F2")
def test_run_record_round_trips_and_is_private(tmp_path):
    for daemon in (record(), record(url=None, mode="mcp", pid=7)):
        write_daemon(str(tmp_path), daemon)
        assert read_daemon(str(tmp_path)) == daemon
        assert mode(tmp_path / "daemon.json") == 0o600

    assert os.listdir(tmp_path) == ["daemon.json"]
    remove_daemon(str(tmp_path))
    remove_daemon(str(tmp_path))
    assert read_daemon(str(tmp_path)) is None


GOOD = {
    "pid": 7,
    "url": None,
    "socket": "/a",
    "mcp_socket": "/b",
    "version": "1",
    "started_at": "x",
    "mode": "mcp",
}


@pytest.mark.promise("F2")
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"[" * 60000,
        b" " * 70000 + json.dumps(GOOD).encode(),
        *(json.dumps(GOOD | {name: 5.5}).encode() for name in GOOD),
        *(json.dumps({k: v for k, v in GOOD.items() if k != name}).encode() for name in ["socket"]),
        json.dumps(GOOD | {"pid": True}).encode(),
        json.dumps(GOOD | {"pid": -1}).encode(),
        json.dumps(GOOD | {"mode": "other"}).encode(),
    ],
)
def test_invalid_run_record_is_ignored(tmp_path, text):
    (tmp_path / "daemon.json").write_bytes(json.dumps(GOOD).encode())
    good = read_daemon(str(tmp_path))
    assert good is not None and good.stop_secs == 15  # an earlier version does not say it

    (tmp_path / "daemon.json").write_bytes(text)

    assert read_daemon(str(tmp_path)) is None


@pytest.mark.promise("F2")
def test_one_process_holds_a_home_and_the_second_learns_its_holder(tmp_path):
    home = str(tmp_path)
    with holder(home) as process:
        assert process.stdout.readline() == "held\n"
        assert is_locked(home)
        with pytest.raises(HomeLocked) as bare:
            lock_home(home)
        write_daemon(home, record(pid=process.pid, started_at="2026-11-15T22:00:00Z"))
        with pytest.raises(HomeLocked) as told:
            lock_home(home)
        process.stdin.close()
        assert process.wait(60) == 0

    assert (bare.value.pid, bare.value.daemon) == (process.pid, None)
    assert str(told.value) == (
        f'"{home}" is locked by process {process.pid} (a daemon since 2026-11-15T22:00:00Z, '
        "at http://127.0.0.1:50051); stop it, or use another home."
    )
    assert not is_locked(home)
    with lock_home(home):
        assert is_locked(home)
    assert not is_locked(home)


@pytest.mark.promise("F2")
def test_stale_run_record_is_ignored(tmp_path):
    home = str(tmp_path)
    write_daemon(home, record(pid=1))
    with lock_home(home), pytest.raises(HomeLocked) as told:
        lock_home(home)

    assert told.value.daemon is None
    assert f"is locked by process {os.getpid()};" in str(told.value)


@pytest.mark.promise("F2")
def test_killed_holder_releases_the_home_despite_live_children(tmp_path):
    home = str(tmp_path)
    with holder(home, "with a child") as process:
        child = int(process.stdout.readline())
        try:
            assert process.stdout.readline() == "held\n"
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            os.kill(child, 0)

            assert not is_locked(home)
            lock_home(home).close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_lock_check_creates_and_holds_nothing(tmp_path):
    home = str(tmp_path / "none")

    assert not is_locked(home)
    assert not os.path.exists(home)


def test_lock_check_does_not_block_a_hub(tmp_path):
    home = str(tmp_path)
    lock_home(home).close()
    looker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom dragoman.home import is_locked\nprint('looking', flush=True)\n"
            "while True: is_locked(sys.argv[1])",
            home,
        ],
        stdout=subprocess.PIPE,
    )
    assert looker.stdout is not None
    try:
        looker.stdout.readline()
        for _ in range(20):
            lock_home(home).close()
    finally:
        looker.kill()
        looker.communicate()


def test_a_program_that_is_paused_while_it_looks_at_the_lock_blocks_no_hub(tmp_path):
    home = str(tmp_path)
    lock_home(home).close()
    with open(tmp_path / "lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        # Longer than the attempts at the lock of another hub take.
        timer = threading.Timer(0.5, fcntl.flock, (file, fcntl.LOCK_UN))
        timer.start()
        lock_home(home).close()
        timer.join(60)


@pytest.mark.promise("F2")
def test_the_sockets_are_in_a_private_directory_of_the_home(short):
    home = short / "h"
    prepare(str(home))

    http, mcp = find_socket_paths(str(home))

    assert (http, mcp) == (str(home / "run" / "http.sock"), str(home / "run" / "mcp.sock"))
    assert mode(home / "run") == 0o700
    assert find_socket_paths(str(home)) == (http, mcp)


@pytest.mark.promise("F2")
def test_long_home_path_uses_a_short_private_socket_directory(tmp_path, short, monkeypatch):
    runtime = short / "r"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    homes = [str(tmp_path / ("deep" * 25) / name) for name in "ab"]
    paths: list[str] = []
    for home in homes:
        prepare(home)
        paths += find_socket_paths(home)

    assert len(set(paths)) == 4
    assert list(find_socket_paths(homes[0])) == paths[:2]
    for path in paths:
        assert path.startswith(str(runtime))
        assert len(os.fsencode(path)) <= SOCKET_LIMIT
        assert mode(os.path.dirname(path)) == 0o700
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)


def test_long_runtime_directory_is_skipped(tmp_path, short, monkeypatch):
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    monkeypatch.setenv("TMPDIR", str(short))

    http, _ = find_socket_paths(str(deep / "home"))

    assert http.startswith(f"{short}/dragoman-")


@pytest.mark.parametrize("squat", ["open", "link", "file"])
def test_foreign_socket_directory_is_refused(tmp_path, short, monkeypatch, squat):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    home = str(tmp_path / ("deep" * 25))
    prepare(home)
    place = os.path.dirname(find_socket_paths(home)[0])
    os.rmdir(place)
    if squat == "open":
        os.mkdir(place)
        os.chmod(place, 0o755)
    elif squat == "link":
        os.mkdir(tmp_path / "elsewhere", 0o700)
        os.symlink(tmp_path / "elsewhere", place)
    else:
        open(place, "wb").close()

    with pytest.raises(HomeUnusable, match="is not a private directory of yours"):
        find_socket_paths(home)


@pytest.mark.skipif(sys.platform != "linux", reason="the state of a process is read from /proc")
def test_a_home_is_taken_over_from_a_process_that_was_killed_and_has_not_ended(tmp_path):
    """On a busy machine that takes a while, in which its lock is held."""
    home = str(tmp_path)
    with holder(home) as process:
        assert process.stdout.readline() == "held\n"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays, and is not reaped
        fd = os.open(tmp_path / "lock", os.O_RDWR)  # stands for its lock
        fcntl.flock(fd, fcntl.LOCK_EX)
        timer = threading.Timer(0.5, os.close, (fd,))
        timer.start()
        lock_home(home).close()
        timer.join()
