"""Several hubs on one PostgreSQL database, and a balancer in front of them without affinity."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub, _written_config
from tests.peers.balancer import Balancer as Balancer
from tests.peers.postgres_server import create_database, run_postgres

KEY = "key-of-the-cluster-0123456789abcdef"
SECRET = "secret-of-the-cluster-0123456789abcdef"
TIMES = "lease_secs = 3\ndrain_secs = 1\n"
ENVIRONMENT = {"CLUSTER_SECRET": SECRET}


class BalancedHub(RunningHub):
    """Several hubs behind a balancer that look like one, so that the tests of a hub run with them:
    each has the same configuration and a home of its own. Each request may go to another hub."""

    def __init__(self, home: Path, args: Sequence[str], env: Mapping[str, str], count: int) -> None:
        file = home / "config.toml"
        text = file.read_text(encoding="utf-8")
        if "[cluster]" not in text:
            database = create_database(find_shared_server())
            text += f'\n[store]\nurl = "{database}"\n'
            text += f'[cluster]\nsecret = "{SECRET}"\n{TIMES}'
            file.write_text(text, encoding="utf-8")
        self.others: list[RunningHub] = []
        for number in range(1, count):
            other = home.with_name(f"{home.name}-{number}")
            shutil.copytree(home, other, dirs_exist_ok=True, ignore=shutil.ignore_patterns("run"))
            self.others.append(RunningHub(other, args, env))
        super().__init__(home, args, env)
        ports = [int(hub.url.rpartition(":")[2]) for hub in (self, *self.others)]
        self.balancer = Balancer(ports, each_request=True)
        self.url = self.balancer.url
        self.mcp_url = f"{self.url}/mcp"

    def wait_connected(self, *servers: str, timeout: float = 60.0) -> None:
        for other in self.others:
            other.wait_connected(*servers, timeout=timeout)
        own, self.url = self.url, f"http://127.0.0.1:{self.balancer.ports[0]}"
        super().wait_connected(*servers, timeout=timeout)
        self.url = own

    def audit(self) -> list[dict[str, Any]]:
        found = [*super().audit(), *(record for hub in self.others for record in hub.audit())]
        return sorted(found, key=lambda record: record["at"])

    def stop(self) -> int:
        codes = [other.stop() for other in self.others]
        return max([super().stop(), *codes])

    def kill(self) -> None:
        super().kill()
        for other in self.others:
            other.kill()

    def finish(self) -> list[str]:
        problems = [problem for hub in self.others for problem in hub.finish()]
        self.balancer.close()
        for hub in self.others:
            shutil.rmtree(hub.home, ignore_errors=True)
        return [*super().finish(), *problems]


@cache
def find_shared_server() -> str:
    """The address of a PostgreSQL server that ends with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(run_postgres())


class Cluster:
    """The running hubs; `hubs[N]` has a home of its own."""

    def __init__(
        self,
        database: str,
        folder: Path,
        servers: Sequence[str] = (),
        config: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.database = database
        self.hubs: list[RunningHub] = []
        self.headers = {"Authorization": f"Bearer {KEY}"}
        self._folder = folder
        self._servers = servers
        self._config = config
        self._env = {**ENVIRONMENT, "CLUSTER_DATABASE": database, **(env or {})}
        self._made = 0

    def start(self, home: Path | None = None, env: Mapping[str, str] | None = None) -> RunningHub:
        """Starts another hub, in a home of its own or in that of one that has ended, with more
        variables than the others."""
        if home is None:
            home = self._folder / f"h{self._made}"
            self._made += 1
            home.mkdir(mode=0o700)
            config = (
                f'api_key = "{KEY}"\n{self._config}\n[store]\nurl = "env:CLUSTER_DATABASE"\n'
                f'[cluster]\nsecret = "env:CLUSTER_SECRET"\n{TIMES}'
            )
            file = home / "config.toml"
            file.write_text(_written_config(config, self._servers), encoding="utf-8")
            file.chmod(0o600)
            variables = home / "env"  # for commands
            variables.write_text(f"CLUSTER_DATABASE={self.database}\nCLUSTER_SECRET={SECRET}\n")
            variables.chmod(0o600)
        running = RunningHub(home, [], {**self._env, **(env or {})})
        self.hubs.append(running)
        return running

    def replace(self, number: int, env: Mapping[str, str] | None = None) -> RunningHub:
        """Starts a hub in the home of one that has ended, and gives it that one's place."""
        ended = self.hubs[number]
        started = self.start(ended.home, env)
        self.hubs.remove(started)
        self.hubs[number] = started
        return started

    @property
    def ports(self) -> list[int]:
        return [int(hub.url.rpartition(":")[2]) for hub in self.hubs]

    def finish(self) -> list[str]:
        return [problem for hub in reversed(self.hubs) for problem in hub.finish()]


@contextmanager
def run_cluster(
    count: int,
    servers: Sequence[str] = (),
    config: str = "",
    env: Mapping[str, str] | None = None,
    database: str = "",
) -> Iterator[Cluster]:
    """Runs hubs on a database of their own. Each must end well."""
    with ExitStack() as stack:
        if not database:
            url = stack.enter_context(run_postgres())
            database = create_database(url)
        folder = Path(tempfile.mkdtemp(prefix="dgc", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cluster = Cluster(database, folder, servers, config, env)
        try:
            for _ in range(count):
                cluster.start()
            yield cluster
        finally:
            problems = cluster.finish()
        assert not problems, "\n".join(problems)


@contextmanager
def run_balancer(cluster: Cluster, **how: Any) -> Iterator[Balancer]:
    balancer = Balancer(cluster.ports, **how)
    try:
        yield balancer
    finally:
        balancer.close()
