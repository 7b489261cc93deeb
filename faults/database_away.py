"""Two hubs that share a PostgreSQL server, which is stopped, paused, or restarted."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from tests.live.a2a_hub import SEND, V10, a2a_config, agents_env
from tests.live.cluster_rig import Cluster, run_cluster
from tests.live.conftest import RunningHub
from tests.peers import wire
from tests.peers.postgres_server import PostgresPeer, create_database, run_peer
from tests.peers.process import read_log, server_entry

from faults.harness import Outcome, temporary_home, until

WAYS = ("stopped", "paused", "restarted")
ANSWER_SECONDS = 2.0
BACK_SECONDS = 5.0
PATIENCE = 20.0


class DatabaseCallers:
    """Send requests of several kinds to both hubs, and note how long each takes."""

    def __init__(self, cluster: Cluster) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.slowest: tuple[float, str] = (0.0, "")
        """Of all but the calls that were running when the server went away."""
        self.longest_running = 0.0
        """The longest of those: their results wait until their labels can be stored."""
        self.gone_at = self.noticed_at = math.inf
        self.answers: Counter[str] = Counter()
        self.lost: list[str] = []
        self.made: list[str] = []
        """The keys of answered calls."""
        first, second = cluster.hubs
        owned = wire.Session(first.mcp_url, headers=cluster.headers)
        forwarded = wire.Session(first.mcp_url, headers=cluster.headers)
        forwarded.url = second.mcp_url
        calls: dict[str, Callable[[], bool]] = {
            "calls": lambda: self._call(owned),
            "forwarded calls": lambda: self._call(forwarded),
        }
        kinds: dict[str, Callable[[], bool]] = {
            **calls,
            "messages": lambda: send_message(second),
            "health": lambda: wire.get(f"{first.url}/healthz", timeout=PATIENCE).status == 200,
        }
        self._threads = [
            threading.Thread(target=self._repeat, args=one, daemon=True) for one in kinds.items()
        ]
        self._later = [
            threading.Thread(target=self._repeat, args=one, daemon=True) for one in calls.items()
        ]
        """Those that wait for the results of their first calls make no further ones meanwhile."""

    def __enter__(self) -> DatabaseCallers:
        for one in self._threads:
            one.start()
        return self

    def are_refused(self) -> bool:
        """Whether calls of both kinds have been refused."""
        return all(self.answers[f"{kind} refused"] for kind in ("calls", "forwarded calls"))

    def start_later(self) -> None:
        """Starts those that call while the server is away."""
        for one in self._later:
            one.start()
        self._threads += self._later

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for one in self._threads:
            one.join(2 * PATIENCE)

    def _call(self, session: wire.Session) -> bool:
        key = uuid4().hex
        is_served = call_with_effect(session, key)
        if is_served:
            self.made.append(key)
        return is_served

    def _repeat(self, kind: str, ask: Callable[[], bool]) -> None:
        while not self._over.wait(0.02):
            begun = time.monotonic()
            try:
                word = "served" if ask() else "refused"
            except (OSError, KeyError, ValueError) as error:
                word = "lost"
                self.lost.append(f"{kind}: {error!r}"[:300])
            took = time.monotonic() - begun
            with self._lock:
                is_running = begun < self.noticed_at and begun + took > self.gone_at
                if "calls" in kind and word == "served" and is_running:
                    self.longest_running = max(self.longest_running, took)
                else:
                    self.slowest = max(self.slowest, (took, kind))
                self.answers[f"{kind} {word}"] += 1


def call_with_effect(session: wire.Session, key: str) -> bool:
    params = {"name": "new.slow", "arguments": {"seconds": 0, "key": key}}
    answer: dict[str, Any] = session.request("tools/call", params, timeout=PATIENCE)
    return "result" in answer and not answer["result"].get("isError")


def send_message(hub: RunningHub) -> bool:
    return V10.ask(hub, SEND, V10.params("hello"), "echo", {}, PATIENCE).error is None


def list_ids(cluster: Cluster) -> list[str]:
    found = cluster.hubs[0].api("/api/cluster")["hubs"]
    return sorted(one["id"] for one in found if one["state"] == "ready")


def lose_database(size: int, seed: int, outcome: Outcome) -> None:
    """`size` is the number of seconds for which the server is away."""
    lose_in_each_way(WAYS, size, outcome)


def lose_in_each_way(
    ways: Sequence[str], seconds: float, outcome: Outcome, slack: float = 0.0
) -> None:
    """`slack` are the seconds by which a busy machine may be late."""
    with run_peer() as peer, temporary_home() as gates:
        log = gates / "effects"
        servers = [server_entry("new", "sdk_server", "--era", "modern", "--log", log)]
        database = create_database(peer.url)
        made: list[str] = []
        with run_cluster(2, servers, a2a_config(), agents_env(gates), database) as cluster:
            for hub in cluster.hubs:
                hub.wait_connected("new")
            for way in ways:
                made += _lose_once(way, peer, cluster, seconds, slack, outcome)
        effects = Counter(one["key"] for one in read_log(log) if one.get("event") == "started")
        outcome.check(all(effects[key] == 1 for key in made), "an answered call has no effect")
        twice = [key for key, count in effects.items() if count > 1]
        outcome.check(not twice, f"calls were made twice: {twice[:3]}")
        outcome.figures["effects"] = len(effects)
        outcome.figures["of them answered"] = len(made)


def _lose_once(
    way: str,
    peer: PostgresPeer,
    cluster: Cluster,
    seconds: float,
    slack: float,
    outcome: Outcome,
) -> list[str]:
    """Returns the keys of the calls that were answered."""
    before = list_ids(cluster)
    with DatabaseCallers(cluster) as callers:
        callers.gone_at = time.monotonic()
        if way == "paused":
            peer.pause()
        else:
            peer.stop()
        if way != "restarted":
            noticed = until(lambda: not any(is_ready(hub) for hub in cluster.hubs))
            outcome.check(noticed, f"{way}: /readyz does not fail")
            callers.noticed_at = time.monotonic()
            callers.start_later()
            time.sleep(seconds)
            outcome.check(until(callers.are_refused), f"{way}: no call was refused")
        if way == "paused":
            peer.resume()
        else:
            peer.start()
        begun = time.monotonic()
        back = until(lambda: all(is_ready(hub) for hub in cluster.hubs))
        works = until(lambda: all(send_message(hub) for hub in cluster.hubs))
        took = time.monotonic() - begun
        outcome.check(back and works, f"{way}: the hubs do not recover")
        outcome.check(took < BACK_SECONDS + slack, f"{way}: recovered after {took:.1f} s")
    late, kind = callers.slowest
    outcome.check(late < ANSWER_SECONDS + slack, f"{way}: one of the {kind} has taken {late:.1f} s")
    outcome.check(not callers.lost, f"{way}: {callers.lost[:3]}")
    outcome.check(list_ids(cluster) == before, f"{way}: a hub was declared dead")
    served = callers.answers
    outcome.check(
        served["calls served"] > 0 and served["forwarded calls served"] > 0, f"{way}: {served}"
    )
    outcome.figures[f"{way}: slowest answer, s"] = round(late, 2)
    outcome.figures[f"{way}: slowest result of a running call, s"] = round(
        callers.longest_running, 2
    )
    outcome.figures[f"{way}: recovered after, s"] = round(took, 2)
    for name, count in sorted(served.items()):
        outcome.figures[f"{way}: {name}"] = count
    return callers.made


def is_ready(hub: RunningHub) -> bool:
    return wire.get(f"{hub.url}/readyz", timeout=PATIENCE).status == 200
