"""HTTP+SSE at the real hub, with the official SDKs as clients: `/sse` and `/messages/`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.process import run_client, server_entry
from tests.peers.sdk_client import conversation

KEY = "the owner of this hub"
HEADER = f"Authorization:Bearer {KEY}"
ADD = ("--call", "mcp_s_add", "--arguments", '{"a": 1, "b": 2}')


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with run_module_hub([server_entry("s", "sdk_server")], f'api_key = "{KEY}"\n') as running:
        running.wait_connected("s")
        yield running


def where(hub: RunningHub) -> tuple[str, ...]:
    return "--header", HEADER, "--sse", f"{hub.url}/sse"


@pytest.mark.promise("G2", "F7")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_an_sdk_client_lists_and_calls_over_sse(hub: RunningHub, mode: str) -> None:
    got = conversation("--mode", mode, *ADD, *where(hub))
    assert got.get("version") == "2025-11-25", got
    assert got["server"]["name"] == "dragoman"
    assert "mcp_s_echo" in {tool["name"] for tool in got["tools"]}
    assert got["result"]["structuredContent"] == {"sum": 3}


@pytest.mark.promise("G2", "F7")
def test_the_previous_sdk_lists_and_calls_over_sse(hub: RunningHub) -> None:
    got = run_client("mcp1_client", *ADD, *where(hub))
    assert (got["version"], got["result"]["structuredContent"]) == ("2025-11-25", {"sum": 3})


@pytest.mark.promise("G2", "B12", "Q2")
def test_progress_and_changes_reach_an_sdk_client_over_sse(hub: RunningHub) -> None:
    steps = ("--call", "mcp_s_progress", "--arguments", '{"steps": 3}')
    got = conversation("--mode", "legacy", *steps, *where(hub))
    assert got["progress"] == [[n, 3, f"step {n}"] for n in (1, 2, 3)]
    got = conversation("--mode", "legacy", "--call", "mcp_s_toggle", "--watch", *where(hub))
    before, after = ({tool["name"] for tool in got[key]} for key in ("tools", "tools_after"))
    assert before ^ after == {"mcp_s_toggled"}


@pytest.mark.promise("G2", "O1")
def test_sse_needs_the_key_for_stream_and_messages(hub: RunningHub) -> None:
    assert wire.get(f"{hub.url}/sse").status == 401
    with wire.stream("GET", f"{hub.url}/sse", headers=hub.headers) as stream:
        path = stream.next().data
        assert wire.post(hub.url + path, wire.request(1, "ping")).status == 401
        assert wire.post(hub.url + path, wire.request(1, "ping"), hub.headers).status == 202
        assert stream.next_json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    until(lambda: hub.api("/api/status")["clients"]["sse"] == 0)


@pytest.mark.promise("G1", "G2")
def test_every_sse_call_is_audited(hub: RunningHub) -> None:
    """Last in this file: it counts what the tests before it did."""
    made = [(one["door"], one["verb"], one["outcome"]) for one in hub.audit()]
    assert sorted(made) == sorted(
        [
            *[("mcp-sse", "s.add", "completed")] * 3,
            ("mcp-sse", "s.progress", "completed"),
            ("mcp-sse", "s.toggle", "completed"),
        ]
    )
