"""Two hubs behind a balancer without affinity serve the clients of both eras as one hub does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.live.cluster_rig import Balancer, Cluster, run_balancer, run_cluster
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
