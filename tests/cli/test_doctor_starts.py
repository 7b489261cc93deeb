"""`doctor` finds everything that keeps a hub from starting, and names the fix."""

from __future__ import annotations

import http.server
import json
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.terminal import DRAGOMAN, Terminal
from tests.live.module_hub import until
from tests.peers.forked import run_forked

from dragoman.cli.doctor import checks
from dragoman.cli.doctor.command import run_checks
from dragoman.cli.doctor.findings import DoctorContext, gather_context
from dragoman.config import parse

A2A = "[server]\nport = 0\n[a2a]\nenabled = true\n"


def _newer(home: Path) -> None:
    with closing(sqlite3.connect(home / "pins.db")) as db:
        db.execute("PRAGMA user_version = 999")


def _damaged(name: str) -> Callable[[Path], None]:
    def change(home: Path) -> None:
        (home / name).write_bytes(b"garbage" * 1_000)

    return change


def _folder(name: str) -> Callable[[Path], None]:
    def change(home: Path) -> None:
        (home / name).unlink(missing_ok=True)
        (home / name).mkdir()

    return change


def _file(name: str) -> Callable[[Path], None]:
    def change(home: Path) -> None:
        shutil.rmtree(home / name, ignore_errors=True)
        (home / name).write_text("x", encoding="utf-8")

    return change


def _config(text: str) -> Callable[[Path], None]:
    def change(home: Path) -> None:
        (home / "config.toml").write_text(text, encoding="utf-8")

    return change


SITUATIONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a damaged audit": (_damaged("audit.db"), "audit"),
    "damaged keys": (_damaged("hub.db"), "stores"),
    "a database of a newer version": (_newer, "stores"),
    "a folder in the place of a database": (_folder("registry.db"), "stores"),
    "a folder in the place of the lock": (_folder("lock"), "files"),
    "a folder in the place of the record": (_folder("daemon.json"), "files"),
    "a file in the place of the sockets": (_file("run"), "files"),
    "a file in the place of the policies": (_file("policies"), "policies"),
    "a name that is no host": (_config('[server]\nhost = "no.such.invalid"\nport = 0\n'), "port"),
    "an address of another machine": (_config('[server]\nhost = "192.0.2.1"\nport = 0\n'), "port"),
    "a plug-in that is not there": (_config(f'{A2A}[bus]\nplugins = ["none"]\n'), "plug-ins"),
    "a signing key that is not there": (_config(f'{A2A}signing_key = "no.pem"\n'), "signing key"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a hub that has run."""
    terminal = Terminal(tmp_path_factory.mktemp("base"))
    terminal.configure(config=A2A)
    terminal.run("keys", "create", "somebody")
    terminal.run("up", "--detach")
    terminal.run("stop")
    return terminal.home


def test_doctor_finds_each_cause_of_a_failed_start(base: Path, short_tmp: Path) -> None:
    homes = {}
    for number, (situation, (change, _)) in enumerate(SITUATIONS.items()):
        homes[situation] = short_tmp / f"h{number}"
        shutil.copytree(base, homes[situation])
        homes[situation].chmod(0o700)
        change(homes[situation])

    def start(situation: str) -> int:
        return run_forked([*DRAGOMAN, "up", "--home", str(homes[situation])], 50).returncode

    with ThreadPoolExecutor(4) as pool:
        codes = dict(zip(homes, pool.map(start, homes), strict=True))
    assert not [one for one, code in codes.items() if code == 0], codes
    for situation, (_, check) in SITUATIONS.items():
        found = [
            one
            for one in run_checks(gather_context(homes[situation], False))
            if one.level == "problem"
        ]
        assert check in [one.check for one in found], (situation, found)
        assert all(one.fix for one in found)
    assert not [one for one in run_checks(gather_context(base, False)) if one.level == "problem"]


def test_doctor_reports_an_unwritable_home() -> None:
    # Root may write everywhere, so root runs it as another user.
    other = 12346 if os.geteuid() == 0 else os.geteuid()
    home = Path("/tmp") / f"dg-unwritable-{os.getpid()}"
    home.mkdir(mode=0o700)
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from dragoman.cli.doctor import checks\n"
        "from dragoman.cli.doctor.findings import DoctorContext\n"
        f"if os.geteuid() == 0: os.setgroups([]); os.setgid({other}); os.setuid({other})\n"
        f"for one in checks.check_files(DoctorContext(Path({str(home)!r}), False)):\n"
        "    print(one.level, one.said, one.fix)\n"
    )
    try:
        if os.geteuid() == 0:
            os.chown(home, other, other)
        home.chmod(0o500)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        home.chmod(0o700)
        shutil.rmtree(home)
    assert done.stdout.startswith("problem you cannot write"), done.stderr
    assert "chmod u+rwx" in done.stdout


def test_port_in_time_wait_is_not_reported_as_used(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        port = near.getsockname()[1]
        far, _ = listener.accept()
        near.close()  # who closes first keeps the port for a minute
        far.close()
    found = DoctorContext(tmp_path, False, parse(f"[server]\nport = {port}\n"))
    (finding,) = checks.check_port(found)
    assert finding.level == "ok" or "no program listens there" in finding.said
    assert finding.level != "problem"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found.config = parse(f"[server]\nport = {taken.getsockname()[1]}\n")
        (finding,) = checks.check_port(found)
        assert finding.level == "problem" and f"process {os.getpid()}" in finding.said


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers each path with the status that it names."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        name = self.path.strip("/")
        self.send_response({"oauth": 401, "html": 200}.get(name) or int(name))
        if name == "oauth":
            where = 'Bearer resource_metadata="http://127.0.0.1/.well-known/x"'
            self.send_header("www-authenticate", where)
        body = b"<html>" if name == "html" else b""
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def answers() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_each_http_server_response_has_its_own_fix(terminal: Terminal, answers: str) -> None:
    expected = {
        "401": "set credentials under headers",
        "oauth": "dragoman servers login",
        "404": "correct the path of url",
        "500": "the server failed",
        "html": "this is a web page",
    }
    blocks = [
        f'[[mcp_servers]]\nname = "s-{name}"\n[mcp_servers.transport]\ntype = "http"\n'
        f'url = "{answers}/{name}"\n'
        for name in expected
    ]
    terminal.configure(*blocks)
    terminal.up()

    def failed() -> bool:
        states = terminal.run("servers", "--json").json()
        return "starting" not in json.dumps(states)

    until(failed, 60)
    found = terminal.run("doctor", "--json").json()["checks"]
    problems = {one["check"]: one for one in found if one["level"] == "problem"}
    for name, fix in expected.items():
        assert fix in problems[f"server s-{name}"]["fix"]
    assert "needs a login" in problems["server s-oauth"]["said"]


def test_open_files_are_counted_at_the_limit() -> None:
    code = (
        "import os, resource\nfrom dragoman.app.process import count_files\n"
        "before = count_files()\nos.open('/dev/null', 0)\nassert count_files() == before + 1\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "try:\n    while True: os.open('/dev/null', 0)\nexcept OSError:\n    print(count_files())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "64\n", done.stderr
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 64
