"""Runs the real hub as a child process, and holds it to ending well: see `hub`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.peers import process, wire
from tests.peers.forked import run_forked, start_process
from tests.peers.process import alive, processes_at_home, wait_until_gone

from dragoman.app.store_place import open_offline_place
from dragoman.cli.audit import _build_row
from dragoman.stores.audit.reader import AuditReader
from dragoman.stores.audit.verify import verify
from dragoman.stores.keys import KeyStore

DRAGOMAN = [sys.executable, "-m", "dragoman"]
START_SECONDS = 60.0
STOP_SECONDS = 20.0  # twice the documented time, which test_shutdown.py measures
OUTCOME_SECONDS = 1.0
TEST_STORE = "DRAGOMAN_TEST_STORE"
"""The address of a PostgreSQL server on which hubs of tests have their stores."""


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8")
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        more = children.get(left.pop(), [])
        found += more
        left += more
    return found


def _written_config(config: str, servers: Sequence[str]) -> str:
    """`config` and the servers, listening on a free port unless `config` says where."""
    parsed = tomllib.loads(config)
    if "server" not in parsed:
        config += "\n[server]\nport = 0\n"
    elif "port" not in parsed["server"]:
        config = config.replace("[server]", "[server]\nport = 0", 1)
    return "\n".join([config, *servers])


def put_on_postgres(home: Path, server: str) -> None:
    """Gives the home a database of that server: by the variable `TEST_STORE`, tests of hubs run on
    PostgreSQL."""
    from tests.peers.postgres_server import create_database

    file = home / "config.toml"
    text = file.read_text(encoding="utf-8")
    if "[store]" not in text:
        name = f"h{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
        file.write_text(f'{text}\n[store]\nurl = "{create_database(server, name)}"\n', "utf-8")


@contextmanager
def open_keys(home: Path) -> Iterator[KeyStore]:
    """The keys of a home, wherever they are."""
    if TEST_STORE in os.environ:
        put_on_postgres(home, os.environ[TEST_STORE])
    with open_offline_place(home) as place, closing(KeyStore(place)) as store:
        yield store


class RunningHub:
    """A hub that runs as a child process.

    `checks`: whether it must end well; set it to False in a test that breaks the hub itself.
    """

    def __init__(self, home: Path, args: Sequence[str], env: Mapping[str, str]) -> None:
        self.home = home
        self.checks = True
        self.killed = False
        self.problems: list[str] = []
        if TEST_STORE in os.environ:
            put_on_postgres(home, os.environ[TEST_STORE])
        self._before = set(processes_at_home(home))  # left by a hub that was killed, not by this
        config = tomllib.loads((home / "config.toml").read_text(encoding="utf-8"))
        key = config.get("api_key")
        self.headers: dict[str, str] = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: wire.Session | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `finish`)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
        self.process = start_process(
            [*DRAGOMAN, "up", "--home", str(home), *args],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**environment, **env},
        )
        self.url = self._wait_until_up()
        self.mcp_url = f"{self.url}/mcp"

    def _wait_until_up(self) -> str:
        end = time.monotonic() + START_SECONDS
        why = "there is no daemon.json"
        while time.monotonic() < end and self.process.poll() is None:
            try:
                record = json.loads((self.home / "daemon.json").read_bytes())
                if record["pid"] == self.pid:
                    url = str(record["url"]).rstrip("/")
                    if wire.get(f"{url}/healthz", timeout=2).status == 200:
                        return url
            except (OSError, ValueError, KeyError) as error:
                why = repr(error)
            time.sleep(0.02)
        code = self.process.poll()
        log = self.log()
        self._end()
        self._log.close()
        what = f"ended with {code}" if code is not None else f"did not come up ({why})"
        raise RuntimeError(f"the hub {what}:\n{log}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        """All that it wrote to stdout and stderr so far."""
        descriptor = self._log.fileno()
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        return data.decode("utf-8", "replace")

    # --- talking to it

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> wire.Answer:
        return wire.get(self.url + path, {**self.headers, **(headers or {})})

    def api(self, path: str) -> Any:
        """What it answers to GET, decoded; the answer must be 200."""
        answer = self.get(path)
        assert answer.status == 200, (path, answer.status, answer.body[:500])
        return answer.json()

    def post(self, path: str, body: Any) -> Any:
        """What it answers to a POST of JSON, decoded, whatever the status."""
        return wire.post(self.url + path, body, self.headers).json()

    def rpc(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        era: str = "modern",
        timeout: float = 60.0,
        version: str = wire.MODERN,
    ) -> Any:
        """The answer to one MCP request over HTTP: `result` or `error`.

        `era` is `modern`, or `legacy` for one session that is opened at the first use.
        """
        if era == "modern":
            sent = wire.modern_request(self.mcp_url, method, params, self.headers, timeout, version)
            return sent.rpc()
        if self._session is None:
            self._session = wire.Session(self.mcp_url, headers=self.headers)
        return self._session.request(method, params, timeout)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **how: Any) -> Any:
        """The whole answer to one `tools/call`."""
        return self.rpc("tools/call", {"name": tool, "arguments": dict(arguments or {})}, **how)

    def wait_connected(self, *servers: str, timeout: float = 60.0) -> None:
        """Until these servers are connected: the hub serves before they are."""
        end = time.monotonic() + timeout
        while True:
            state = self.api("/api/mcp/servers")
            there = {one["name"] for one in state["connected"] if one.get("connected", True)}
            if set(servers) <= there:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"not connected in {timeout} s: {state}\n{self.log()}")
            time.sleep(0.02)

    def command(self, *args: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """`dragoman ARGS --home HOME`, to its end."""
        return run_forked([*DRAGOMAN, *args, "--home", str(self.home)], timeout, text=True)

    def audit(self) -> list[dict[str, Any]]:
        """What `dragoman audit tail --json` prints, without its start.

        An outcome is written just after its response; running calls are not awaited.
        """
        end = time.monotonic() + OUTCOME_SECONDS
        with closing(AuditReader(self.home)) as reader:
            while True:
                records = [_build_row(record) for record in reversed(reader.list_records(100_000))]
                unfinished = any(record["outcome"] == "running" for record in records)
                if not unfinished or time.monotonic() > end:
                    return records
                time.sleep(0.02)

    def relay(self) -> wire.Stdio:
        """`dragoman mcp` beside it, as an IDE would start it; use it with `with`."""
        return wire.Stdio([*DRAGOMAN, "mcp", "--home", self.home])

    # --- ending it

    def stop(self) -> int:
        """SIGTERM, and what must be true after it. Gives the exit code."""
        below = _descendants(self.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.problems.append(f"it did not end within {STOP_SECONDS} s of SIGTERM")
            self._end()
            return self.process.returncode
        if code != 0:
            self.problems.append(f"it ended with {code}")
        below += set(processes_at_home(self.home)) - self._before
        if left := [pid for pid in below if alive(pid)]:
            try:
                wait_until_gone(left, 2)
            except TimeoutError as error:
                self.problems.append(f"it left processes behind: {error}")
        return code

    def kill(self) -> None:
        """SIGKILL, as in a crash; what it leaves behind is not held against it."""
        self.killed = True
        self.process.kill()
        self.process.wait(60)

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        for pid in processes_at_home(self.home):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def finish(self) -> list[str]:
        """Ends it if it still runs; what is wrong with how it ended."""
        try:
            if self.process.poll() is None:
                self.stop()
            elif not self.killed and self.process.returncode != 0:
                self.problems.append(f"it ended by itself with {self.process.returncode}")
            if not self.checks:
                return []
            verdict = verify(self.home)  # what `dragoman audit verify` does, without its start
            if not verdict.ok:
                self.problems.append(f"its audit does not verify: {verdict}")
            return [f"{one}\n{self.log()}" for one in self.problems]
        finally:
            self._end()
            self._log.close()


def run_hub(home: Path, args: Sequence[str], env: Mapping[str, str]) -> RunningHub:
    """Runs a hub; with `DRAGOMAN_TEST_HUBS=2` in the environment, so many behind a balancer."""
    count = int(os.environ.get("DRAGOMAN_TEST_HUBS", "1"))
    if count == 1:
        return RunningHub(home, args, env)
    from tests.live.cluster_rig import BalancedHub

    return BalancedHub(home, args, env, count)


@pytest.fixture
def hub(short_tmp: Path) -> Iterator[Callable[..., RunningHub]]:
    """Starts a hub: `hub(servers=[server_entry(...)], config="extra toml", home=None, args=[])`.

    A `home` that has a configuration keeps it unless `servers` or `config` are given, so that a hub
    can be started again where another one ended. Each must end at SIGTERM with 0 within 10 s, leave
    no process behind and an audit that verifies.
    """
    started: list[RunningHub] = []

    def start(
        servers: Sequence[str] = (),
        config: str = "",
        home: str | Path | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> RunningHub:
        place = Path(home) if home is not None else short_tmp / f"h{len(started)}"
        place.mkdir(mode=0o700, exist_ok=True)
        file = place / "config.toml"
        if servers or config or not file.exists():
            file.write_text(_written_config(config, servers), encoding="utf-8")
            file.chmod(0o600)
        started.append(run_hub(place, args, env or {}))
        return started[-1]

    yield start
    problems = [problem for one in reversed(started) for problem in one.finish()]
    assert not problems, "\n".join(problems)


@pytest.fixture
def server_entry() -> Callable[..., str]:
    """`[[mcp_servers]]` for a peer; see tests/peers/process.py."""
    return process.server_entry
