"""The official SDKs as clients, of both eras, over stdio and HTTP, with stdio, HTTP and SSE servers
of both eras.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import run_module_hub
from tests.peers.process import HttpPeer, run_client, server_entry
from tests.peers.sdk_client import conversation

SERVERS = ("new-stdio", "old-stdio", "new-http", "old-sse")
EXPOSE = '[mcp]\nstdio_expose = ["*"]\n'


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with ExitStack() as stack:
        http = stack.enter_context(HttpPeer("sdk_server", "--transport", "http", "--era", "modern"))
        sse = stack.enter_context(HttpPeer("mcp1_server", "--transport", "sse"))
        servers = [
            server_entry("new-stdio", "sdk_server", "--era", "modern"),
            server_entry("old-stdio", "mcp1_server"),
            server_entry("new-http", "http", http.url),
            server_entry("old-sse", "sse", sse.url),
        ]
        running = stack.enter_context(run_module_hub(servers, EXPOSE))
        running.wait_connected(*SERVERS)
        yield running


def relay(hub: RunningHub) -> list[str]:
    return ["--stdio", *DRAGOMAN, "mcp", "--home", str(hub.home)]


def listed(got: dict[str, Any]) -> set[str]:
    assert "tools" in got, got
    return {tool["name"] for tool in got["tools"]}


def calling(server: str) -> tuple[str, ...]:
    tool = f"mcp_{server.replace('-', '_')}_add"
    return "--call", tool, "--arguments", '{"a": 1, "b": 2}'


MODES = {"2026-07-28": "2026-07-28", "legacy": "2025-11-25", "auto": "2026-07-28"}


@pytest.mark.promise("F1", "F7", "G1", "G2")
@pytest.mark.parametrize("mode", MODES)
def test_an_sdk_client_of_each_era_calls_servers_of_every_kind_over_http(
    hub: RunningHub, mode: str
) -> None:
    for server in SERVERS:
        got = conversation("--mode", mode, *calling(server), "--http", hub.mcp_url)
        assert got.get("version") == MODES[mode], got
        if mode != "2026-07-28":  # pinned to that, the SDK does not probe the server
            assert got["server"]["name"] == "dragoman"
        for other in SERVERS:
            assert f"mcp_{other.replace('-', '_')}_echo" in listed(got)
        assert got["result"]["structuredContent"] == {"sum": 3}, got
        assert not got["result"].get("isError")


@pytest.mark.promise("F1", "F2", "F7")
def test_sdk_clients_of_each_era_call_servers_of_every_kind_over_stdio_beside_a_daemon(
    hub: RunningHub,
) -> None:
    everything = {tool["name"] for tool in hub.rpc("tools/list")["result"]["tools"]}
    for server, mode in zip(SERVERS, [*MODES, "legacy"], strict=True):
        got = conversation("--mode", mode, *calling(server), *relay(hub))
        assert got.get("version") == MODES[mode], got
        assert listed(got) == everything
        assert got["result"]["structuredContent"] == {"sum": 3}, got


@pytest.mark.promise("F1", "F2", "F7", "G2")
def test_the_previous_sdk_calls_servers_of_both_eras_over_http_and_stdio(hub: RunningHub) -> None:
    ways = [["--http", hub.mcp_url], relay(hub)]
    runs = [(server, way) for way in ways for server in ("new-stdio", "old-sse")]
    with ThreadPoolExecutor(2) as pool:
        outcomes = pool.map(lambda run: run_client("mcp1_client", *calling(run[0]), *run[1]), runs)
        for got in outcomes:
            assert got["version"] == "2025-11-25"
            assert got["capabilities"]["tools"] == {"listChanged": True}
            assert got["result"]["structuredContent"] == {"sum": 3}
            assert {f"mcp_{name.replace('-', '_')}_add" for name in SERVERS} <= listed(got)


@pytest.mark.promise("B12", "F6")
@pytest.mark.parametrize("way", ["http", "stdio"])
@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
def test_progress_reaches_an_sdk_client(hub: RunningHub, mode: str, way: str) -> None:
    where = ["--http", hub.mcp_url] if way == "http" else relay(hub)
    server = "mcp_old_stdio" if mode == "2026-07-28" else "mcp_new_stdio"
    steps = ("--call", f"{server}_progress", "--arguments", '{"steps": 3}')
    got = conversation("--mode", mode, *steps, *where)
    assert got["result"]["content"][0]["text"] == "3 steps"
    assert got["progress"] == [[n, 3, f"step {n}"] for n in (1, 2, 3)]


@pytest.mark.promise("B7", "F6")
def test_sdk_client_is_notified_of_a_changed_list_over_stdio_and_http(hub: RunningHub) -> None:
    for where in (["--http", hub.mcp_url], relay(hub)):
        toggle = ("--call", "mcp_new_stdio_toggle", "--watch")
        got = conversation("--mode", "legacy", *toggle, *where)
        assert "tools_after" in got, got
        before, after = ({tool["name"] for tool in got[key]} for key in ("tools", "tools_after"))
        assert before ^ after == {"mcp_new_stdio_toggled"}


@pytest.mark.promise("G1")
def test_every_sdk_call_is_audited_once(hub: RunningHub) -> None:
    """Last in this file: it counts what the tests before it did."""
    records = [record for record in hub.audit() if record["outcome"] == "completed"]
    counted = {
        (door, tool): sum(r["door"] == door and r["verb"].endswith(f".{tool}") for r in records)
        for door in ("mcp-http", "mcp-stdio")
        for tool in ("add", "progress", "toggle")
    }
    assert counted == {
        ("mcp-http", "add"): 12 + 2,
        ("mcp-stdio", "add"): 4 + 2,
        ("mcp-http", "progress"): 2,
        ("mcp-stdio", "progress"): 2,
        ("mcp-http", "toggle"): 1,
        ("mcp-stdio", "toggle"): 1,
    }
    assert len(records) == sum(counted.values())
