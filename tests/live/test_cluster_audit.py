"""The audit logs of several hubs, read and verified at each of them."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.live.cluster_rig import Cluster, run_cluster
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import until
from tests.peers.forked import run_forked
from tests.peers.postgres_server import PostgresPeer, run_peer
from tests.peers.process import server_entry

from dragoman.stores.postgres_connections import connect

CALLS = 4


@pytest.fixture
def peer() -> Iterator[PostgresPeer]:
    with run_peer() as running:
        yield running


def find_numbers(hub: RunningHub, count: int, query: str = "") -> list[dict[str, Any]]:
    """The calls of the tool at all hubs, newest first, once there are so many."""
    until = time.monotonic() + 60
    while True:
        rows = hub.api(f"/api/audit?verb=new.add{query}")["records"]
        if len(rows) >= count or time.monotonic() > until:
            return list(rows)
        time.sleep(0.05)


def run(cluster: Cluster, hub: RunningHub, *args: str) -> str:
    done = run_forked([*DRAGOMAN, *args, "--home", str(hub.home)], 30, text=True, env=cluster._env)
    return str(done.stdout) + str(done.stderr)


@contextmanager
def run_two(peer: PostgresPeer) -> Iterator[Cluster]:
    servers = [server_entry("new", "sdk_server", "--era", "modern")]
    with run_cluster(2, servers, database=peer.url) as cluster:
        for hub in cluster.hubs:
            hub.wait_connected("new")
        yield cluster


def check_lag(cluster: Cluster, database: str) -> None:
    """Each hub says how far the copies of all hubs are behind."""
    first, second = cluster.hubs
    assert [one["problems"] for one in first.api("/api/cluster")["hubs"]] == [[], []]
    assert "2 hubs, which reach each other" in run(cluster, first, "doctor")
    leases = {one["name"]: one["hub"] for one in first.api("/api/cluster")["leases"]}
    assert leases["audit.prune"] in [one["id"] for one in first.api("/api/cluster")["hubs"]]
    with connect(database) as db, db.transaction():
        db.execute("LOCK TABLE audit_chains IN EXCLUSIVE MODE")
        assert second.call("mcp_new_echo", {"text": "late"})

        def find_lags() -> dict[bool, int]:
            return {
                one["is_this"]: one["audit_behind"] for one in first.api("/api/cluster")["hubs"]
            }

        assert until(lambda: find_lags()[False] > 0, 60)
        printed = run(cluster, first, "cluster", "status")
        assert "AUDIT LAG" in printed and re.search(r"\d+ \(\d+\.\d s\)", printed), printed
    assert until(lambda: set(find_lags().values()) == {0}, 60)


def check_strangers(cluster: Cluster) -> None:
    """A hub with another secret does not join; one with other settings is named."""
    first = cluster.hubs[0]
    home = first.home.with_name("other")
    home.mkdir(mode=0o700)
    text = (first.home / "config.toml").read_text(encoding="utf-8")
    (home / "config.toml").write_text(f"{text}[limits]\ntasks = 77\n", encoding="utf-8")
    env = {**cluster._env, "CLUSTER_SECRET": "x" * 32}
    command = [*DRAGOMAN, "up", "--home", str(home)]
    done = run_forked(command, 30, text=True, env=env)
    assert done.returncode != 0 and "has another [cluster] secret" in done.stderr, done
    assert "of 2 chains" in run(cluster, first, "audit", "verify")
    other = cluster.start(home)
    try:
        printed = run(cluster, first, "cluster", "status")
        assert "other settings than at this hub: limits" in printed, printed
    finally:
        cluster.hubs.remove(other)
        assert not other.finish()
        shutil.rmtree(home)


def test_each_hub_reads_and_verifies_the_records_of_all(peer: PostgresPeer) -> None:
    with run_two(peer) as cluster:
        first, second = cluster.hubs
        for number in range(CALLS):
            hub = cluster.hubs[number % 2]
            assert hub.call("mcp_new_add", {"a": number, "b": 0})["result"]
        for hub in cluster.hubs:
            rows = find_numbers(hub, CALLS)
            assert len(rows) == CALLS and len({row["hub"] for row in rows}) == 2, rows
            times = [str(row["time"]) for row in rows]
            assert times == sorted(times, reverse=True)
            page = hub.api("/api/audit?verb=new.add&limit=3")
            rest = hub.api(f"/api/audit?verb=new.add&limit=3&cursor={page['nextCursor']}")
            assert [*page["records"], *rest["records"]] == rows
            trace = str(rows[-1]["trace"])
            assert hub.api(f"/api/traces/{trace}")["records"]
            report = hub.post("/api/audit/verify", None)
            assert report["ok"] and len(report["chains"]) == 2, report
        assert second.audit() and len(first.audit()) < len(rows) + 20
        printed = run(cluster, first, "audit", "tail", "--verb", "new.add", "--json")
        assert len([json.loads(line) for line in printed.splitlines()]) == CALLS, printed
        assert "of 2 chains" in run(cluster, first, "audit", "verify")
        check_lag(cluster, peer.url)
        check_strangers(cluster)
        # While the database is away, calls go on; reading is refused in time.
        peer.pause()
        try:
            began = time.monotonic()
            assert first.call("mcp_new_add", {"a": 9, "b": 0})["result"]
            assert time.monotonic() - began < 30
            answer = first.get("/api/audit")
            assert answer.status == 503 and time.monotonic() - began < 30, answer.body
        finally:
            peer.resume()
        assert len(find_numbers(second, CALLS + 1)) == CALLS + 1
        # Both end, and copy what is left.
        assert second.stop() == first.stop() == 0
        assert "of 3 chains" in run(cluster, first, "audit", "verify")
