"""Runs of workflows in a cluster: any hub starts, shows, cancels and answers them; those of a hub
that is killed are continued by another, and nothing is executed twice."""

from __future__ import annotations

import base64
import hmac
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.live.cluster_rig import Cluster, run_cluster
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.process import read_log, server_entry

from dragoman.workflows.schedules import LEASE

pytestmark = pytest.mark.promise("R14")

HOOK_SECRET = "secret-of-the-webhook-0123456789"
CALL = "{{id: {id}, nodeId: tool.call, config: {{tool: new.{tool}, arguments: {args}}}{more}}}"


def step(id: str, tool: str, args: str, after: str = "") -> str:
    more = f", dependsOn: [{after}]" if after else ""
    return "  - " + CALL.format(id=id, tool=tool, args=args, more=more) + "\n"


WORKFLOWS = {
    "waits": "steps:\n"
    + step("a", "add", "{a: 1, b: 1}")
    + "  - {id: pause, nodeId: wait, dependsOn: [a], config: {seconds: 3}}\n"
    + step("b", "add", "{a: 2, b: 2}", "pause"),
    "slow": "steps:\n" + step("a", "slow", "{seconds: 60}") + step("b", "add", "{a: 3, b: 3}", "a"),
    "asks": "steps:\n"
    + "  - {id: ask, nodeId: approval, config: {title: Go?}}\n"
    + step("b", "add", "{a: 4, b: 4}", "ask"),
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server of both hubs was asked."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="module")
def cluster(log: Path) -> Iterator[Cluster]:
    servers = [server_entry("new", "sdk_server", "--era", "modern", "--log", log)]
    with run_cluster(2, servers, env={"DRAGOMAN_AGENT_HOOK": HOOK_SECRET}) as running:
        for hub in running.hubs:
            hub.wait_connected("new")
            for name, source in WORKFLOWS.items():
                made = hub.post("/api/workflows", {"name": name, "source": source})
                assert made.get("state") == "active", made
        yield running


def start(hub: RunningHub, name: str) -> str:
    sent = wire.post(f"{hub.url}/api/workflows/{name}/run", {}, hub.headers)
    assert sent.status == 202, sent.json()
    return str(sent.json()["run"]["id"])


def wait_for(hub: RunningHub, id: str, *states: str, seconds: float = 60.0) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        found: dict[str, Any] = hub.api(f"/api/runs/{id}")
        return found if found["run"]["state"] in states else None

    found = until(find, seconds)
    assert found is not None
    return found


def count_calls(log: Path, tool: str) -> int:
    calls = [one["params"]["name"] for one in read_log(log) if one.get("method") == "tools/call"]
    return calls.count(tool)


def kill(hub: RunningHub) -> None:
    hub.checks = False
    os.kill(hub.pid, signal.SIGKILL)


def test_any_hub_shows_and_cancels_a_run(cluster: Cluster) -> None:
    first, second = cluster.hubs
    id = start(first, "slow")
    wait_for(second, id, "running")
    assert id in [one["id"] for one in second.api("/api/runs")["runs"]]
    with wire.stream("GET", f"{second.url}/api/runs/{id}/events", headers=second.headers) as events:
        answer = wire.post(f"{second.url}/api/runs/{id}/cancel", {}, second.headers)
        assert answer.status == 200, (answer.status, answer.body)
        seen = [events.next()]
        while seen[-1].name != "run-changed":
            seen.append(events.next())
        assert seen[-1].json()["state"] == "cancelled"
    for hub in (first, second):
        assert wait_for(hub, id, "cancelled")
    asked = start(second, "asks")
    wait_for(first, asked, "waiting")
    approvals = until(lambda: first.api("/api/approvals")["approvals"])
    decided = first.post(f"/api/approvals/{approvals[0]['id']}/approve", {})
    assert decided, decided
    assert wait_for(second, asked, "completed")


def test_each_occurrence_of_a_trigger_starts_one_run(cluster: Cluster) -> None:
    """A schedule that both hubs know, and a delivery of a webhook that both get at once."""
    triggers = (
        "triggers:\n"
        "  - {type: schedule, every: 1m, catchUp: all}\n"
        "  - {type: webhook, secret: env:DRAGOMAN_AGENT_HOOK}\n"
    )
    source = f"{triggers}steps:\n" + step("a", "add", "{a: 5, b: 5}")
    for hub in cluster.hubs:
        made = hub.post("/api/workflows", {"name": "ticks", "source": source})
        assert made.get("state") == "active", made
    holder = until(lambda: find_holder(cluster))
    with psycopg.connect(cluster.database, autocommit=True) as database:
        # As if the holder had been away when three runs were due, and another hub takes over.
        database.execute("UPDATE dragoman.trigger_schedules SET next_at = %s", (time.time() - 150,))
        others = {find_id(one) for one in cluster.hubs} - {holder}
        for taker in (*others, holder):
            database.execute("UPDATE dragoman.leases SET hub = %s WHERE name = %s", (taker, LEASE))
            until(partial(is_holder, cluster, taker), 60)
            until(lambda: len(list_occurrences(cluster.hubs[0], "schedule")) >= 3, 60)
    body, id = b"{}", f"delivery-{time.time()}"
    moment = str(int(time.time()))
    mac = hmac.digest(HOOK_SECRET.encode(), f"{id}.{moment}.".encode() + body, "sha256")
    signed = {
        "Content-Type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": moment,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }

    def deliver(number: int) -> int:
        url = f"{cluster.hubs[number % 2].url}/api/hooks/ticks"
        return wire.http_request("POST", url, body, signed, 20).status

    with ThreadPoolExecutor(4) as pool:
        assert {one // 100 for one in pool.map(deliver, range(8))} == {2}
    for hub in cluster.hubs:
        assert len(list_occurrences(hub, "webhook")) == 1
        starts = list_occurrences(hub, "schedule")
        assert len(starts) == len(set(starts)) and len(starts) in (3, 4), starts
        wire.http_request("DELETE", f"{hub.url}/api/workflows/ticks", None, hub.headers, 20)


def find_id(hub: RunningHub) -> str:
    return str(next(one["id"] for one in hub.api("/api/cluster")["hubs"] if one["is_this"]))


def find_holder(cluster: Cluster) -> str:
    """The hub that starts the runs of schedules."""
    leases = cluster.hubs[0].api("/api/cluster")["leases"]
    return next((str(one["hub"]) for one in leases if one["name"] == LEASE), "")


def is_holder(cluster: Cluster, id: str) -> bool:
    return find_holder(cluster) == id


def list_occurrences(hub: RunningHub, kind: str) -> list[str]:
    """Lists the occurrences that have started runs: a time, or the id of a delivery."""
    runs = hub.api("/api/runs?workflow=ticks&limit=200")["runs"]
    found = [one["trigger"] for one in runs if one["workflow"] == "ticks"]
    return [str(one.get("at") or one.get("delivery")) for one in found if one["kind"] == kind]


def test_the_runs_of_a_killed_hub_are_continued_and_nothing_twice(
    cluster: Cluster, log: Path
) -> None:
    first, second = cluster.hubs
    slow_before, add_before = count_calls(log, "slow"), count_calls(log, "add")
    waits, slow = start(first, "waits"), start(first, "slow")
    wait_for(second, waits, "waiting")
    wait_for(second, slow, "running")
    until(lambda: count_calls(log, "slow") == slow_before + 1)
    killed = time.monotonic()
    kill(first)
    # Whether the slow call was executed is unknown: a person decides.
    wait_for(second, slow, "needs_decision", seconds=60)
    assert time.monotonic() - killed < 30
    wait_for(second, waits, "completed")
    assert count_calls(log, "slow") == slow_before + 1
    assert count_calls(log, "add") == add_before + 2
    body = {"step": "a", "decision": "skip"}
    answer = wire.post(f"{second.url}/api/runs/{slow}/resume", body, second.headers)
    assert answer.status == 200, answer.body
    wait_for(second, slow, "completed")
    assert count_calls(log, "add") == add_before + 3
