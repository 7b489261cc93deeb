"""kill -9 of one of three hubs that work as one, under load, behind a balancer without affinity.

Clients with MCP sessions and A2A tasks send each request over a new connection, which goes to the
next hub. Their messages have an effect outside of the hubs, which is counted.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.live.a2a_hub import GET, SEND, V10, a2a_config, agents_env, steps
from tests.live.cluster_rig import Balancer, Cluster, run_cluster
from tests.peers import wire
from tests.peers.process import server_entry

from faults.harness import RATE_LIMITS, Outcome, until

HUBS, CLIENTS = 3, 4
LOAD_SECONDS = 1.5
"""Of load before and after each kill, at most."""
ANSWER_SECONDS = 30.0
SETTLE_SECONDS = 60.0
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED")


def kill_hubs(kills: int, seed: int, outcome: Outcome) -> None:
    chance = random.Random(seed)
    gates = Path(tempfile.mkdtemp(prefix="dfg", dir="/tmp"))
    servers = [server_entry("s", "sdk_server", "--era", "modern")]
    config = a2a_config(config=RATE_LIMITS)
    try:
        with run_cluster(HUBS, servers, config, agents_env(gates)) as cluster:
            for hub in cluster.hubs:
                hub.wait_connected("s")
            balancer = Balancer(cluster.ports, each_request=True)
            try:
                _Load(cluster, balancer, gates, outcome).run(kills, chance)
            finally:
                balancer.close()
    finally:
        shutil.rmtree(gates, ignore_errors=True)


class _Load:
    def __init__(self, cluster: Cluster, balancer: Balancer, gates: Path, outcome: Outcome) -> None:
        self._cluster, self._balancer = cluster, balancer
        self._gates, self._outcome = gates, outcome
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._tasks: list[str] = []
        """Acknowledged."""
        self._sent: list[str] = []
        """The keys of all messages, acknowledged or not."""
        self._answered = 0

    def run(self, kills: int, chance: random.Random) -> None:
        works = [self._call_in_session, self._send_tasks]
        threads = [
            threading.Thread(target=works[number % 2], args=[number]) for number in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(kills):
                time.sleep(chance.uniform(0.2, LOAD_SECONDS))
                self._replace(chance.randrange(HUBS))
                self._wait_for_answers()
        finally:
            self._over.set()
            for thread in threads:
                thread.join(2 * ANSWER_SECONDS)
        self._check_tasks()
        figures = self._outcome.figures
        figures["kills"], figures["tasks"] = kills, len(self._tasks)

    def _replace(self, number: int) -> None:
        """Kills a hub and starts another one in its home."""
        cluster, balancer = self._cluster, self._balancer
        victim = cluster.hubs[number]
        victim.kill()
        begun = time.monotonic()
        cluster.replace(number)
        victim.finish()
        balancer.ports[:] = cluster.ports
        self._outcome.figures["longest start"] = round(
            max(self._outcome.figures.get("longest start", 0.0), time.monotonic() - begun), 1
        )

    def _wait_for_answers(self) -> None:
        """Load goes on after each kill."""
        before = self._answered
        with suppress(TimeoutError):
            until(lambda: self._answered >= before + CLIENTS, ANSWER_SECONDS)
            return
        self._outcome.fail("no client was answered after a kill")

    def _call_in_session(self, client: int) -> None:
        session: wire.Session | None = None
        number = 0
        while not self._over.is_set():
            try:
                if session is None:
                    session = wire.Session(
                        f"{self._balancer.url}/mcp", headers=self._cluster.headers
                    )
                    self._outcome.count("sessions")
                number += 1
                params = {"name": "s.add", "arguments": {"a": client, "b": number}}
                answer = session.request("tools/call", params, ANSWER_SECONDS)
            except (OSError, ValueError, AssertionError, KeyError):
                self._outcome.count("connections that broke")
                continue
            if "result" in answer and not answer["result"].get("isError"):
                found = answer["result"].get("structuredContent")
                self._outcome.check(found == {"sum": client + number}, f"a wrong answer: {answer}")
                self._answered += 1
            elif "session not found" in json.dumps(answer):
                self._outcome.fail(f"a session was lost: {answer}")
                session = None
            else:
                self._outcome.count("calls that failed with their hub")

    def _send_tasks(self, client: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            key = f"c{client}-{number}"
            with self._lock:
                self._sent.append(key)
            todo = steps(["mark", key], ["pause", 0.05], ["reply", key])
            for _ in range(20):  # the same message until it is acknowledged
                task = self._send(todo, key)
                if task is not None:
                    with self._lock:
                        self._tasks.append(task)
                    self._answered += 1
                    break
                if self._over.wait(0.2):
                    break

    def _send(self, todo: Any, key: str) -> str | None:
        _, path, body, headers = V10.request(SEND, V10.params(todo), "actor")
        headers = {**self._cluster.headers, **headers, "Idempotency-Key": key}
        body["params"]["message"]["messageId"] = key
        try:
            answer = wire.post(f"{self._balancer.url}{path}", body, headers, ANSWER_SECONDS)
            return str(answer.json()["result"]["task"]["id"])
        except (OSError, ValueError, AssertionError, KeyError):
            self._outcome.count("messages that were sent again")
            return None

    def _check_tasks(self) -> None:
        """Every acknowledged task has ended and is readable, and no message had two effects."""
        for id in dict.fromkeys(self._tasks):
            with suppress(TimeoutError):
                until(partial(self._has_ended, id), SETTLE_SECONDS)
                continue
            self._outcome.fail(f"task {id} is not there, or has not ended: {self._get_state(id)}")
        for key in self._sent:
            file = self._gates / key
            effects = len(file.read_text("utf-8")) if file.exists() else 0
            self._outcome.check(effects <= 1, f"message {key} was carried out {effects} times")

    def _has_ended(self, id: str) -> bool:
        return self._get_state(id) in ENDED

    def _get_state(self, id: str) -> str:
        _, path, body, headers = V10.request(GET, {"id": id}, "actor")
        headers = {**self._cluster.headers, **headers}
        try:
            answer = wire.post(f"{self._balancer.url}{path}", body, headers, ANSWER_SECONDS).json()
            return str(answer["result"]["status"]["state"])
        except (OSError, ValueError, KeyError):
            return ""
