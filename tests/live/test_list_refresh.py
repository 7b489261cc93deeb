"""Lists of servers that change without a notification, or contrary to their declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.matrix_client import Client
from tests.live.matrix_transports import connect
from tests.live.module_hub import run_module_hub, text_of, until
from tests.peers.process import HttpPeer, server_entry

TALKATIVE = "mcp1_talkative_server"
CHANGED = "notifications/tools/list_changed"
PLAIN: dict[str, Any] = {}
"""The capabilities of a client that shares the connection of all."""
NEVER: dict[str, Any] = {"refresh_secs": 0}


@dataclass
class HubRig:
    hub: RunningHub
    deployed: HttpPeer


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    """`quiet` servers are read again by the clock, `told` and `modern` ones are not."""
    with ExitStack() as stack:
        starts: list[Callable[[], HttpPeer]] = [
            lambda: HttpPeer(TALKATIVE, "--transport", "http"),
            lambda: HttpPeer(TALKATIVE, "--transport", "http", "--stateless"),
            lambda: HttpPeer("growing_server"),
        ]
        with ThreadPoolExecutor() as pool:
            told, deployed, modern = pool.map(lambda start: start(), starts)
        for peer in (told, deployed, modern):
            stack.callback(peer.close)
        entries = [
            server_entry("quiet", TALKATIVE, refresh_secs=0.5),
            server_entry("told", "http", told.url, **NEVER),
            server_entry("deployed", "http", deployed.url, refresh_secs=0.5),
            server_entry("modern", "http", modern.url, **NEVER),
        ]
        hub = stack.enter_context(run_module_hub(entries))
        hub.wait_connected("quiet", "told", "deployed", "modern")
        yield HubRig(hub, deployed)


def names(client: Client) -> list[str]:
    return [tool["name"] for tool in client.request("tools/list")["result"]["tools"]]


def grow(client: Client, server: str, name: str, **more: bool) -> None:
    assert text_of(client.call(f"{server}.grow", {"name": name, **more})) == "grown"


@pytest.mark.promise("B7")
def test_silently_changed_list_is_reread_while_its_server_is_used(
    rig: HubRig,
) -> None:
    with connect(rig.hub, "2025-11-25", "http", PLAIN) as client:
        assert "mcp_quiet_silent" not in names(client)
        grow(client, "quiet", "silent", announce=False)
        client.wait_notification(CHANGED)
        assert "mcp_quiet_silent" in names(client)


@pytest.mark.promise("B7")
def test_unknown_name_triggers_a_reread_before_refusal(rig: HubRig) -> None:
    with connect(rig.hub, "2025-11-25", "http", PLAIN) as client:
        grow(client, "told", "later", announce=False)
        # A list that took long to read is not read again at once.
        found = until(lambda: client.call("told.later").get("result"), 60)
        assert found["content"][0]["text"] == "I am later"
        assert client.call("told.never")["error"]["code"] == -32602


@pytest.mark.promise("B7")
def test_undeclared_change_notifications_are_processed(
    rig: HubRig,
) -> None:
    with connect(rig.hub, "2025-11-25", "http", PLAIN) as client:
        grow(client, "told", "announced", announce=True)
        client.wait_notification(CHANGED)
        assert "mcp_told_announced" in names(client)
        received = len(client.received)
        grow(client, "told", "announced", announce=True)
        client.wait_notification(CHANGED, since=received)


@pytest.mark.promise("B7")
def test_redeployed_stateless_server_is_relisted(rig: HubRig) -> None:
    with connect(rig.hub, "2025-11-25", "http", PLAIN) as client:
        assert "mcp_deployed_more" not in names(client)
    port = rig.deployed.port
    rig.deployed.close()
    with HttpPeer(
        TALKATIVE, "--transport", "http", "--stateless", "--port", port, "--tool", "more"
    ):

        def listed() -> bool:
            with connect(rig.hub, "2025-11-25", "http", PLAIN) as client:
                return "mcp_deployed_more" in names(client)

        until(listed)


@pytest.mark.promise("B7")
def test_list_is_reread_after_its_declared_ttl(
    rig: HubRig,
) -> None:
    with connect(rig.hub, "2026-07-28", "http") as client:
        assert "mcp_modern_noted" not in names(client)
        until(lambda: "mcp_modern_grow" in names(client))
        for name in ("noted", "noted_too"):  # at once: its own call may have changed the list
            grow(client, "modern", name)
            assert f"mcp_modern_{name}" in names(client)
