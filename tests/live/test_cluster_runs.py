"""Runs of workflows in a cluster: any hub starts, shows, cancels and answers them; those of a hub
that is killed are continued by another, and nothing is executed twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.cluster_rig import Cluster, run_cluster
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.process import read_log, server_entry

pytestmark = pytest.mark.promise("R14")

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
    with run_cluster(2, servers) as running:
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


def wait_for(hub: RunningHub, id: str, *states: str, seconds: float = 30.0) -> dict[str, Any]:
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
    wait_for(second, slow, "needs_decision", seconds=10)
    assert time.monotonic() - killed < 10
    wait_for(second, waits, "completed")
    assert count_calls(log, "slow") == slow_before + 1
    assert count_calls(log, "add") == add_before + 2
    body = {"step": "a", "decision": "skip"}
    answer = wire.post(f"{second.url}/api/runs/{slow}/resume", body, second.headers)
    assert answer.status == 200, answer.body
    wait_for(second, slow, "completed")
    assert count_calls(log, "add") == add_before + 3
