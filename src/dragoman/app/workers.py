"""Several worker processes behind one port: `[server] workers`. The smallest cluster.

The supervisor reserves the port, starts the workers and starts those again that have died. Each
worker is a hub with a private directory below the home, for its audit chain, its sockets and the
homes of its servers; the configuration and what people write are links to the home itself. The
workers share the database of `[store] url`, listen on the same port, and reach each other by Unix
sockets. The supervisor serves nothing itself.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dragoman import __version__
from dragoman import home as home_files
from dragoman.config import Config
from dragoman.config_layers import Override, variable_from_path
from dragoman.core.environment import read_environment
from dragoman.core.errors import ConfigError
from dragoman.core.shared_settings import check_addresses, parse_listen
from dragoman.stores.store_inventory import write_private
from dragoman.web.http.sockets import tcp_socket

log = logging.getLogger(__name__)

PRIVATE = (
    home_files.WORKERS, home_files.WORKERS_SECRET, "run", "lock", "daemon.json", "hub.key",
    "stores.json", "children.json",
    "servers", "cache", "hub.log*", "*.db", "*.db-*", "audit*", "journal*", "instructions.json",
    ".*",
)  # fmt: skip
"""The files of a home that each worker has for itself."""
START_SECONDS = 60.0
KILL_SECONDS = 5.0
"""How long it may take to end workers that do not stop."""
TURN_SECONDS = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds before a worker that has died is started again."""
STEADY_SECONDS = 30.0
"""A worker that has run so long starts again without a pause."""

Announce = Callable[[str, int], None]
"""Gets the address of the hub and the number of its workers once all of them serve."""


class Worker:
    def __init__(self, home: Path, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.home = home
        self._command = list(command)
        self._env = dict(env)
        self._pauses = 0
        self._started = 0.0
        self.due = 0.0
        """When it is started again, by the monotonic clock."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._started = time.monotonic()
        # Nothing is written to its stdin: it ends with this process, and the worker then stops.
        self.process = subprocess.Popen(self._command, env=self._env, stdin=subprocess.PIPE)

    def find_code(self) -> int | None:
        """The exit code of a worker that has ended."""
        return self.process.poll() if self.process is not None else None

    def schedule(self) -> None:
        """Has it started again, later each time it dies soon."""
        now = time.monotonic()
        self._pauses = 0 if now - self._started > STEADY_SECONDS else self._pauses + 1
        self.due = now + min(FIRST_PAUSE * 2**self._pauses, LONGEST_PAUSE)
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None

    def find_record(self) -> home_files.DaemonRecord | None:
        """What it has written about itself, once it serves."""
        record = home_files.read_daemon(str(self.home))
        if record is None or self.process is None or record.pid != self.process.pid:
            return None
        return record

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


def supervise(
    home: Path, config: Config, given: Sequence[Override], log_file: str | None, announce: Announce
) -> None:
    """Runs the workers until a signal. The caller holds the lock of the home."""
    if config.store.url is None:
        raise ConfigError(
            "[server] workers needs [store] url: several processes cannot share SQLite files, so "
            "they use a PostgreSQL database"
        )
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda found, _: stopping.append(found))
    settings = config.server
    with contextlib.closing(tcp_socket(settings.host, settings.port, shared=True)) as reserved:
        port = reserved.getsockname()[1]
        workers = _build_workers(home, config, given, port, log_file)
        stop_secs = home_files.STOP_SECONDS + config.cluster.drain_secs
        try:
            _wait_until_free(workers, stopping, stop_secs)
            for worker in workers:
                worker.start()
            record = _wait_until_up(workers, stopping)
            if record is not None:
                _write_record(home, record, stop_secs + KILL_SECONDS)
                announce(str(record.url), len(workers))
            _keep_running(home, workers, stopping)
        finally:
            _stop(workers, stop_secs)
            home_files.remove_daemon(str(home))


def stop_with_supervisor() -> None:
    """Has this worker stop when its supervisor has ended, even by kill -9."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="supervisor").start()


def _build_workers(
    home: Path, config: Config, given: Sequence[Override], port: int, log_file: str | None
) -> list[Worker]:
    env = {**read_environment(), variable_from_path("server.port"): str(port)}
    for one in given:
        if one.path != ("server", "port"):
            env[variable_from_path(".".join(map(str, one.path)))] = (
                one.value if isinstance(one.value, str) else json.dumps(one.value)
            )
    if config.cluster.secret is None:
        env[variable_from_path("cluster.secret")] = f"file:{_find_secret(home)}"
    workers = []
    for number in range(config.server.workers):
        place = home / home_files.WORKERS / str(number)
        home_files.prepare(str(place.parent))
        home_files.prepare(str(place))
        link_shared(home, place)
        command = [sys.executable, "-m", "dragoman", "up", "--home", str(place), "--worker"]
        if log_file is not None:
            command += ["--log-file", str(place / "hub.log")]
        addresses = _find_addresses(config, place, number)
        own = {variable_from_path(f"cluster.{name}"): one for name, one in addresses.items()}
        workers.append(Worker(place, command, {**env, **own}))
    return workers


def _find_addresses(config: Config, place: Path, number: int) -> dict[str, str]:
    """A Unix socket, unless hubs on other machines have to reach the worker: then each has the
    next port. Raises `ConfigError`."""
    settings = config.cluster
    check_addresses(settings.listen, settings.advertise)
    if settings.secret is None or parse_listen(settings.listen) is None:
        sockets = home_files.find_socket_paths(str(place))[0]
        return {"listen": os.path.join(os.path.dirname(sockets), "hub.sock")}
    found = {"listen": settings.listen, "advertise": settings.advertise or ""}
    return {name: _add_to_port(one, number) for name, one in found.items() if one}


def _add_to_port(address: str, number: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + number if int(port) else 0}"


def _find_secret(home: Path) -> Path:
    """The file with the secret of the workers, which the first start creates."""
    file = home / home_files.WORKERS_SECRET
    if not file.exists():
        write_private(file, secrets.token_hex(32).encode())
    return file


def link_shared(home: Path, place: Path) -> None:
    """Links what the workers share, and removes links to what is gone."""
    for entry in place.iterdir():
        if entry.is_symlink() and not entry.exists():
            entry.unlink()
    for entry in home.iterdir():
        if any(fnmatch.fnmatch(entry.name, pattern) for pattern in PRIVATE):
            continue
        link = place / entry.name
        if not link.is_symlink() and not link.exists():
            link.symlink_to(entry)


def _wait_until_free(workers: Sequence[Worker], stopping: Sequence[int], seconds: float) -> None:
    """Waits for the workers of a supervisor that was killed."""
    until = time.monotonic() + seconds
    while not stopping and time.monotonic() < until:
        if not any(home_files.is_locked(str(worker.home)) for worker in workers):
            return
        time.sleep(0.05)


def _wait_until_up(
    workers: Sequence[Worker], stopping: Sequence[int]
) -> home_files.DaemonRecord | None:
    """Waits until all workers serve; returns the record of the first. None at a signal. Raises
    `ConfigError` if one of them does not start."""
    until = time.monotonic() + START_SECONDS
    while not stopping:
        for worker in workers:
            if (code := worker.find_code()) is not None:
                raise ConfigError(f"worker {worker.home.name} did not start (exit code {code})")
        records = [worker.find_record() for worker in workers]
        if all(records):
            return records[0]
        if time.monotonic() > until:
            raise ConfigError(f"the workers did not start within {START_SECONDS:g} s")
        time.sleep(0.02)
    return None


def _write_record(home: Path, first: home_files.DaemonRecord, stop_secs: float) -> None:
    """Commands find the hub by it; they talk to the first worker."""
    home_files.write_daemon(
        str(home),
        home_files.DaemonRecord(
            pid=os.getpid(),
            url=first.url,
            socket=first.socket,
            mcp_socket=first.mcp_socket,
            version=__version__,
            started_at=home_files.render_now(),
            mode="daemon",
            stop_secs=stop_secs,
        ),
    )


def _keep_running(home: Path, workers: Sequence[Worker], stopping: Sequence[int]) -> None:
    while not stopping:
        for worker in workers:
            link_shared(home, worker.home)
            if (code := worker.find_code()) is not None:
                log.error(
                    "worker %s has ended with %d; it is started again", worker.home.name, code
                )
                worker.schedule()
            if worker.process is None and time.monotonic() >= worker.due:
                worker.start()
        time.sleep(TURN_SECONDS)  # a signal ends it


def _stop(workers: Sequence[Worker], seconds: float) -> None:
    for worker in workers:
        worker.signal(signal.SIGTERM)
    until = time.monotonic() + seconds
    for worker in workers:
        if worker.process is not None:
            try:
                worker.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.signal(signal.SIGKILL)
                worker.process.wait()
