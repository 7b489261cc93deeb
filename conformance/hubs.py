"""The hub that the suites talk to: one, or several on one database behind a balancer.

The number comes from `--hubs`, and the drivers that the suite starts find it in the environment.
"""

import contextlib
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.peers.balancer import Balancer

from conformance.paths import HUB, ROOT
from conformance.processes import Child, Command, environment, started, wait_for

COUNT, STORE, REDIS = "CONFORMANCE_HUBS", "CONFORMANCE_STORE", "CONFORMANCE_REDIS"
SECRET = "secret-of-the-conformance-cluster-0123456789"
CREATE = (
    "import sys; from tests.peers.postgres_server import create_database; "
    "print(create_database(sys.argv[1]))"
)


@dataclass(frozen=True)
class RunningHubs:
    base: str
    """Where clients connect: the hub, or the balancer before the hubs."""
    bases: list[str]
    """Where each hub listens."""
    children: list[Child]

    def wait_each(self, find: Callable[[str], str]) -> None:
        """Waits until `find` finds something at each hub."""
        for child, base in zip(self.children, self.bases, strict=True):
            wait_for(child, lambda base=base: find(base))  # type: ignore[misc]


def count_hubs() -> int:
    return int(os.environ.get(COUNT, "1"))


@contextlib.contextmanager
def several_hubs(count: int) -> Iterator[None]:
    """Has each hub that starts meanwhile be `count` of them. Runs their database servers."""
    from tests.peers.postgres_server import run_postgres
    from tests.peers.valkey_server import run_valkey

    with run_postgres() as store, run_valkey() as valkey:
        os.environ.update({COUNT: str(count), STORE: store, REDIS: valkey.url})
        try:
            yield
        finally:
            for name in (COUNT, STORE, REDIS):
                del os.environ[name]


@contextlib.contextmanager
def run_hubs(label: str, home: Path, key: str = "", *, grpc: bool = False) -> Iterator[RunningHubs]:
    """Runs a hub in `home`, which has its configuration, or several with the same configuration.
    `key` is their api_key. With `grpc` they serve A2A over gRPC, too."""
    count = count_hubs()
    if count == 1:
        with started(f"hub-{label}", [HUB, "up", "--json", "--home", home]) as child:
            base = _read_base(child)
            yield RunningHubs(base, [base], [child])
        return
    with contextlib.ExitStack() as stack:
        balancer = _open_balancer(stack, each_request=True)
        grpc_balancer = _open_balancer(stack) if grpc else None
        _write_settings(home, balancer, grpc_balancer)
        children = []
        for number in range(count):
            place = home if number == 0 else home.with_name(f"{home.name}-hub{number}")
            if number:
                shutil.copytree(home, place, ignore=shutil.ignore_patterns("run", "*.db*", "audit"))
            name = f"hub-{label}" if number == 0 else f"hub-{label}-hub{number}"
            command: Command = [HUB, "up", "--json", "--home", place]
            children.append(stack.enter_context(started(name, command)))
        bases = [_read_base(child) for child in children]
        balancer.ports = [int(base.rpartition(":")[2]) for base in bases]
        if grpc_balancer is not None:
            grpc_balancer.ports = [_find_grpc_port(base, key) for base in bases]
        yield RunningHubs(balancer.url, bases, children)


def _open_balancer(stack: contextlib.ExitStack, *, each_request: bool = False) -> Balancer:
    balancer = Balancer([], each_request=each_request)
    stack.callback(balancer.close)
    return balancer


def _write_settings(home: Path, balancer: Balancer, grpc: Balancer | None) -> None:
    """Adds what makes a hub one of several; everything else is as for one."""
    file = home / "config.toml"
    text = file.read_text(encoding="utf-8")
    text = text.replace("[server]\n", f'[server]\npublic_url = "{balancer.url}"\n', 1)
    # A key of one home; several hubs derive theirs from the secret.
    text = text.replace('credential_key = "file"\n', "")
    if grpc is not None:
        text = text.replace("[a2a]\n", f'[a2a]\ngrpc_address = "127.0.0.1:{grpc.port}"\n', 1)
    text += f'\n[store]\nurl = "{_create_database()}"\n'
    text += f'\n[cluster]\nsecret = "{SECRET}"\n\n[redis]\nurl = "{os.environ[REDIS]}"\n'
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)


def _create_database() -> str:
    """By the environment of the hub, which has the driver."""
    python = HUB.with_name("python")
    command = [str(python), "-c", CREATE, os.environ[STORE]]
    made = subprocess.run(
        command, check=True, capture_output=True, timeout=60, env=environment(), cwd=ROOT
    )
    return made.stdout.decode().strip()


def _read_base(child: Child) -> str:
    return str(json.loads(child.first_line())["url"])


def _find_grpc_port(base: str, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{base}/api/status", headers=headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        return int(json.load(answer)["agents"]["grpc_port"])
