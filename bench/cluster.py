"""Several hubs: PostgreSQL beside SQLite, the cost of a call with 1, 2 and 3 hubs, of one that
another hub owns, of an idle hub, and the throughput of workers.
"""

import contextlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.peers.postgres_server import PostgresPeer, create_database, run_peer

from bench.load import blast, fitting
from bench.paths import HOMES, HUB
from bench.plan import Plan, Records, attempt, say
from bench.processes import (
    LOAD_CORE,
    TARGET_CORE,
    Child,
    family,
    free_port,
    on_core,
    read_cpu,
    start,
    wait_until,
)
from bench.rows import HUB_2025, IN_HUB, RowContext, run_upstream, write_hub_config
from bench.tables import SETTLE_SECONDS
from bench.wire import Dialect, Endpoint, get_status

WARM_CALLS = 500
IDLE_SECONDS = 10.0
IDLE_HUBS = 3


@dataclass(frozen=True)
class Setup:
    """A row: how many hubs there are, and their settings."""

    name: str
    hubs: int = 1
    store: bool = True
    cluster: bool = True
    workers: int = 0
    """0: the setting is absent."""
    dialect: Dialect = IN_HUB
    forwarded: bool = False
    """Whether each request goes to the hub that does not own its session."""
    idle: bool = False
    connections: int = 16


SQLITE = Setup("one hub on SQLite", store=False, cluster=False)
POSTGRES = Setup("one hub on PostgreSQL", cluster=False)
HUBS = [Setup(f"{n} hub{'s' * (n > 1)} of a cluster", hubs=n) for n in (1, 2, 3)]
OWN = Setup("session at its own hub", hubs=2, dialect=HUB_2025.dialect)
FORWARDED = replace(OWN, name="session of another hub, forwarded", forwarded=True)
IDLE = Setup(f"{IDLE_HUBS} idle hubs", hubs=IDLE_HUBS, idle=True)
WORKERS = [
    Setup("1 worker, all on one core", workers=1, connections=64),
    Setup("2 workers, all on two cores", workers=2, connections=64),
]
"""With the load, the server and the database: these would take a part of the second core alone."""
SETUPS = [SQLITE, POSTGRES, *HUBS, OWN, FORWARDED, IDLE, *WORKERS]


@dataclass
class RunningHubs:
    children: list[Child] = field(default_factory=list)
    endpoints: list[Endpoint] = field(default_factory=list)
    database: PostgresPeer | None = None

    def read_hubs(self) -> float:
        return sum(child.cpu_seconds() for child in self.children)

    def read_database(self) -> float:
        if self.database is None:
            return 0.0
        return sum(read_cpu(pid, stat) for pid, stat in family(self.database.pid).items())


@contextlib.contextmanager
def run_hubs(setup: Setup) -> Iterator[RunningHubs]:
    """The hubs share a core, which their CPU does not depend on, and all else has the other one.
    Workers share as many cores as there are workers with all else."""
    found = RunningHubs()
    secret = secrets.token_urlsafe(32)
    with contextlib.ExitStack() as stack:
        upstream = free_port()
        other_core = LOAD_CORE if setup.workers < 2 else None
        stack.enter_context(run_upstream(upstream, 10, other_core))
        more = ""
        if setup.store:
            with on_core(other_core):
                found.database = stack.enter_context(run_peer())
            more = f'\n[store]\nurl = "{create_database(found.database.url)}"\n'
        if setup.cluster:
            more += f'\n[cluster]\nsecret = "{secret}"\ndrain_secs = 0\n'
        for number in range(setup.hubs):
            home = Path(tempfile.mkdtemp(dir=HOMES))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            context = RowContext(free_port(), upstream, home)
            # Directly behind the table [server], which comes first.
            head = f"workers = {setup.workers}\n" if setup.workers else ""
            write_hub_config(context, [f'type = "http"\nurl = "{context.urls()[0]}"'], head + more)
            core = other_core if setup.workers else TARGET_CORE
            child = start(
                f"{setup.name} {number}", [HUB, "up", "--home", home], core=core, folder=home
            )
            stack.callback(child.stop)
            found.children.append(child)
            wait_until(partial(_is_ready, context.port), child)
            endpoint = Endpoint(context.port, setup.dialect)
            wait_until(endpoint.probe, child)
            found.endpoints.append(endpoint)
        yield found


def _is_ready(port: int) -> bool:
    return get_status(port, "/readyz") == 200


def cluster(plan: Plan) -> Records:
    """The rows change places within a round, so that drift touches all alike."""
    wanted = [setup for setup in SETUPS if plan.wants(setup)]
    found: Records = {setup.name: [] for setup in wanted}
    for number in range(1, plan.rounds + 1):
        for setup in wanted:
            label = f"cluster, round {number} of {plan.rounds}: {setup.name}"
            attempt(label, found[setup.name], measure_setup, plan, setup, number, label)
    return found


def measure_setup(plan: Plan, setup: Setup, number: int, label: str) -> dict:
    with run_hubs(setup) as running:
        record = _measure_idle(running) if setup.idle else _measure_load(plan, setup, running)
    said = ", ".join(f"{name} {value:,.1f}" for name, value in record.items())
    say(f"{label}: {said}")
    return {"round": number, **record}


def _measure_load(plan: Plan, setup: Setup, running: RunningHubs) -> dict[str, Any]:
    """Calls of each hub in turn; the CPU of all hubs and of the database counts."""
    loads = []
    for place, endpoint in enumerate(running.endpoints):
        templates = endpoint.call_templates(setup.connections)
        at = running.endpoints[place - 1].port if setup.forwarded else endpoint.port
        blast(at, templates, setup.connections, WARM_CALLS)
        pilot = blast(at, templates, setup.connections, WARM_CALLS)
        count = fitting(pilot, plan.seconds, setup.connections)
        loads.append((at, templates, setup.connections, count))
    time.sleep(SETTLE_SECONDS)
    hubs, database, began = running.read_hubs(), running.read_database(), time.perf_counter()
    figures = [blast(*load) for load in loads]
    seconds = time.perf_counter() - began
    time.sleep(SETTLE_SECONDS)  # what is written behind the answers
    calls = sum(one["n"] for one in figures)
    return {
        "cpu_us": (running.read_hubs() - hubs) * 1e6 / calls,
        "database_us": (running.read_database() - database) * 1e6 / calls,
        "per_second": calls / seconds,
        "p50_us": max(one["p50_us"] for one in figures),
        "bad": sum(one["bad"] for one in figures),
    }


def _measure_idle(running: RunningHubs) -> dict[str, Any]:
    time.sleep(2 * SETTLE_SECONDS)
    hubs, database = running.read_hubs(), running.read_database()
    time.sleep(IDLE_SECONDS)
    each = IDLE_SECONDS * len(running.children)
    return {
        "hub_share": (running.read_hubs() - hubs) / each,
        "database_share": (running.read_database() - database) / each,
        "rss_mb": max(child.memory().rss for child in running.children),
    }
