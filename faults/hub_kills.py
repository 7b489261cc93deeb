"""kill -9 of one of three hubs that work as one, under load, behind a balancer without affinity.

The clients are in `cluster_loads`: each request goes over a new connection to the next hub.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from pathlib import Path

from tests.live.a2a_hub import a2a_config, agents_env
from tests.live.cluster_rig import Balancer, run_cluster
from tests.peers.process import server_entry
from tests.peers.valkey_server import run_valkey

from faults import cluster_loads as loads
from faults.harness import Outcome, until

HUBS = 3
LOAD_SECONDS = 1.5
"""Of load before and after each kill, at most."""
LIMITS = f"""
[limits]
tasks = 10_000
tasks_each = 10_000
[limits.rate]
owner_per_minute = 1_000_000_000
owner_burst = 1_000_000_000
per_minute = {loads.PER_SECOND * 60}
burst = {loads.BURST}
"""
LOADS: tuple[type[loads.Load], ...] = (
    loads.Schedules,
    loads.SessionCalls,
    loads.SessionCalls,
    loads.PlainCalls,
    loads.ResponseStreams,
    loads.ResponseStreams,
    loads.Notifications,
    loads.McpTasks,
    loads.Messages,
    loads.Messages,
    loads.TaskStreams,
    loads.TaskStreams,
    loads.Runs,
    loads.Limited,
)


def kill_hubs(kills: int, seed: int, outcome: Outcome) -> None:
    chance = random.Random(seed)
    gates = Path(tempfile.mkdtemp(prefix="dfg", dir="/tmp"))
    log = gates / "server.log"
    servers = [server_entry("s", "sdk_server", "--log", log)]
    try:
        with run_valkey() as valkey:
            config = f'{LIMITS}\n[redis]\nurl = "{valkey.url}"\n'
            config = a2a_config(config=config, a2a={"max_tasks": 5_000})
            with run_cluster(HUBS, servers, config, agents_env(gates)) as cluster:
                for hub in cluster.hubs:
                    hub.wait_connected("s")
                balancer = Balancer(cluster.ports, each_request=True)
                try:
                    _Killer(loads.Rig(cluster, balancer, gates, log, outcome)).run(kills, chance)
                finally:
                    balancer.close()
    finally:
        shutil.rmtree(gates, ignore_errors=True)


class _Killer:
    def __init__(self, rig: loads.Rig) -> None:
        self._rig = rig
        self._loads = [kind(rig, number) for number, kind in enumerate(LOADS)]

    def run(self, kills: int, chance: random.Random) -> None:
        threads = [threading.Thread(target=one.run) for one in self._loads]
        for thread in threads:
            thread.start()
        try:
            for _ in range(kills):
                time.sleep(chance.uniform(0.2, LOAD_SECONDS))
                self._replace(chance.randrange(HUBS))
                self._wait_for_answers()
        finally:
            self._rig.over.set()
            for thread in threads:
                thread.join(3 * loads.ANSWER_SECONDS)
        for one in self._loads:
            one.judge()
        loads.judge_effects(self._rig, self._loads)
        self._rig.outcome.figures["kills"] = kills

    def _replace(self, number: int) -> None:
        """Kills a hub and starts another one in its home."""
        cluster, balancer = self._rig.cluster, self._rig.balancer
        victim = cluster.hubs[number]
        victim.kill()
        victim.finish()  # before the other starts: it ends the programs of that home
        begun = time.monotonic()
        cluster.replace(number)
        balancer.ports[:] = cluster.ports
        figures = self._rig.outcome.figures
        took = time.monotonic() - begun
        figures["longest start, s"] = round(max(figures.get("longest start, s", 0.0), took), 1)

    def _wait_for_answers(self) -> None:
        """Load goes on after each kill, that of every client."""
        working = [one for one in self._loads if not isinstance(one, loads.Schedules)]
        before = [one.answered for one in working]
        late = list(working)

        def have_all() -> bool:
            late[:] = [
                one for one, count in zip(working, before, strict=True) if one.answered <= count
            ]
            return not late

        if until(have_all, loads.ANSWER_SECONDS):
            return
        names = sorted({type(one).__name__ for one in late})
        self._rig.outcome.fail(f"no answer after a kill: {', '.join(names)}")
