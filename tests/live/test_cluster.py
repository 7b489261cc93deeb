"""Two hubs behind a balancer without affinity serve the clients of both eras as one hub does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.live.cluster_rig import Balancer, Cluster, run_balancer, run_cluster
from tests.live.conftest import RunningHub
from tests.peers import wire
from tests.peers.process import run_client, server_entry
from tests.peers.sdk_client import conversation


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    servers = [server_entry("new", "sdk_server", "--era", "modern")]
    with run_cluster(2, servers) as running:
        for hub in running.hubs:
            hub.wait_connected("new")
        yield running


@pytest.fixture
def balancer(cluster: Cluster) -> Iterator[Balancer]:
    with run_balancer(cluster, each_request=True) as running:
        yield running


CALL = ("--call", "mcp_new_add", "--arguments", '{"a": 1, "b": 2}')


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
def test_an_sdk_client_of_each_era_converses_with_both_hubs(
    cluster: Cluster, balancer: Balancer, mode: str
) -> None:
    header = ("--header", f"Authorization: {cluster.headers['Authorization']}")
    got = conversation("--mode", mode, *header, *CALL, "--http", f"{balancer.url}/mcp")
    assert "result" in got, (got, [hub.log() for hub in cluster.hubs])
    assert got["result"]["structuredContent"] == {"sum": 3}, got
    assert set(balancer.served) == set(cluster.ports)


def test_the_previous_sdk_converses_with_both_hubs(cluster: Cluster, balancer: Balancer) -> None:
    header = ("--header", f"Authorization: {cluster.headers['Authorization']}")
    for transport in (("--http", f"{balancer.url}/mcp"), ("--sse", f"{balancer.url}/sse")):
        balancer.served.clear()
        got = run_client("mcp1_client", *header, *CALL, *transport)
        assert "result" in got, (got, [hub.log() for hub in cluster.hubs])
        assert got["result"]["structuredContent"] == {"sum": 3}, got
        assert set(balancer.served) == set(cluster.ports)


def test_a_session_is_served_at_either_hub(cluster: Cluster) -> None:
    first, second = cluster.hubs
    session = wire.Session(first.mcp_url, headers=cluster.headers)
    session.url = second.mcp_url
    answer = session.request("tools/call", {"name": "mcp_new_add", "arguments": {"a": 2, "b": 2}})
    assert answer["result"]["structuredContent"] == {"sum": 4}, answer


# --- a hub ends -----------------------------------------------------------------------------------


def call_add(session: wire.Session, a: int) -> Any:
    params = {"name": "mcp_new_add", "arguments": {"a": a, "b": 1}}
    return session.request("tools/call", params, timeout=20)


def test_a_session_goes_on_after_its_hub_was_killed_or_has_stopped() -> None:
    servers = [server_entry("new", "sdk_server", "--era", "modern")]
    with run_cluster(3, servers) as cluster:
        for hub in cluster.hubs:
            hub.wait_connected("new")
        first, second, third = cluster.hubs
        session = wire.Session(first.mcp_url, headers=cluster.headers)
        rows = json.loads(second.command("cluster", "status", "--json").stdout)
        assert [one["state"] for one in rows["hubs"]] == ["ready"] * 3, rows
        first.kill()
        session.url = second.mcp_url
        begun = time.monotonic()
        answer = call_add(session, 1)  # waits until the lease of the first hub has expired
        assert answer["result"]["structuredContent"] == {"sum": 2}, answer
        assert time.monotonic() - begun < 10
        session.url = third.mcp_url  # forwarded to the heir
        assert call_add(session, 2)["result"]["structuredContent"] == {"sum": 3}
        heir = next(one["heir"] for one in third.api("/api/cluster")["hubs"] if one["heir"])
        owners = {hub: find_id(hub) for hub in (second, third)}
        other = next(hub for hub, id in owners.items() if id != heir)
        [stopping] = [hub for hub in owners if hub is not other]
        # The one that stops hands the session over; nothing is lost meanwhile.
        session.url = other.mcp_url
        with ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(stopping.stop)
            number = 2
            while not stopped.done() or number < 5:
                number += 1
                answer = call_add(session, number)
                assert answer["result"].get("structuredContent") == {"sum": number + 1}, answer
            assert stopped.result() == 0
        assert call_add(session, 10)["result"]["structuredContent"] == {"sum": 11}


def find_id(hub: RunningHub) -> str:
    return str(next(one["id"] for one in hub.api("/api/cluster")["hubs"] if one["is_this"]))
