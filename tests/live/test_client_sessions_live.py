"""Clients of a running hub with their own sessions to a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import mcp.types
import pytest
from mcp.client.streamable_http import streamable_http_client
from pydantic import FileUrl
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.matrix_transports import connect
from tests.live.unix_client import UnixClient
from tests.peers import wire
from tests.peers.process import HttpPeer, server_entry

from mcp import Client, StdioServerParameters

ASKED = {"roots": {"listChanged": True}, "sampling": {}}


class Ide(UnixClient):
    """An IDE on the hub's socket that answers every request for its roots."""

    def __init__(self, home: Path, capabilities: Mapping[str, Any], *roots: str) -> None:
        super().__init__(home)
        self.roots = list(roots)
        params = {**wire.initialize_params(wire.LEGACY), "capabilities": dict(capabilities)}
        self.request("initialize", params)
        self.notify("notifications/initialized")

    def answer_to(self, number: Any) -> Any:
        while True:
            message = self.read()
            if message.get("method") == "roots/list":
                roots = [{"uri": uri} for uri in self.roots]
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": {"roots": roots}})
            elif message.get("id") == number and "method" not in message:
                return message
            else:
                self.notifications.append(message)

    def list_tools(self) -> list[str]:
        listed = self.request("tools/list")["result"]["tools"]
        names = [tool["name"] for tool in listed if tool["name"].startswith("mcp_w_")]
        return [name.removeprefix("mcp_w_") for name in names]

    def wait_notification(self, method: str) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        wait_for(lambda: self.silent() and message in self.notifications)

    def text(self, tool: str) -> str:
        return str(self.call(tool)["result"]["content"][0]["text"])


@pytest.fixture
def running(hub: Callable[..., RunningHub]) -> RunningHub:
    started = hub(
        servers=[
            server_entry("w", "workspace_server"),
            server_entry("late", "workspace_server", "--late"),
        ],
        config='[mcp]\nstdio_expose = ["*"]\n',
    )
    started.wait_connected("w", "late")
    return started


@pytest.fixture
def home(running: RunningHub) -> Path:
    return running.home


def wait_for(found: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.promise("B12", "B13")
def test_server_uses_the_roots_of_each_client_and_separate_state(
    home: Path,
) -> None:
    with Ide(home, ASKED, "file:///a") as one, Ide(home, ASKED, "file:///b") as two:
        assert one.text("w.allowed") == "file:///a"
        assert two.text("w.allowed") == "file:///b"
        counts = [client.text("w.count") for client in (one, one, two, one)]
        assert counts == ["1", "2", "1", "3"]

        one.roots = ["file:///c", "file:///d"]
        one.notify("notifications/roots/list_changed")

        wait_for(lambda: one.text("w.allowed") == "file:///c file:///d")
        assert two.text("w.allowed") == "file:///b"


@pytest.mark.promise("B5", "B13")
def test_each_client_gets_the_list_for_its_capabilities(running: RunningHub, home: Path) -> None:
    every = ["allowed", "count", "grow"]
    forms: dict[str, Any] = {"elicitation": {}}
    with Ide(home, {}) as plain, Ide(home, ASKED) as one, Ide(home, forms) as two:
        assert plain.list_tools() == every
        assert one.list_tools() == [*every, "sample"]
        assert two.list_tools() == ["allowed", "count", "grow", "ask"]
        assert plain.list_tools() == every
        assert one.call("w.sample")["result"].get("isError") is not True
        for client, tool in ((plain, "w.sample"), (two, "w.sample"), (plain, "w.ask")):
            assert "for this client" in client.call(tool)["error"]["message"]

        # A tool that one client's session has added is that client's alone.
        one.call("w.grow")
        assert "extra" in one.list_tools()  # at once, whether or not it has heard of the change
        one.wait_notification("notifications/tools/list_changed")
        assert one.call("w.extra")["result"].get("isError") is not True
        assert (
            two.list_tools() == ["allowed", "count", "grow", "ask"] and plain.list_tools() == every
        )
        assert "for this client" in two.call("w.extra")["error"]["message"]

        # Another's session may add the same. It can be called at once, also by a client that has
        # not listed it, and is listed at once to one that can be asked nothing.
        two.call("w.grow")
        assert two.call("w.extra")["result"].get("isError") is not True
        plain.call("w.grow")
        assert plain.list_tools() == ["allowed", "count", "grow", "extra"]
    with Ide(home, ASKED) as later:
        assert later.list_tools() == [*every, "sample"]
        wait_for(lambda: "error" in later.call("w.extra"))
    states = running.api("/api/mcp/servers")["connected"]
    (state,) = [one for one in states if one["name"] == "w"]
    assert state["remarks"] == [
        "each client has a session of its own (its lists depend on what a client can be asked)",
        "2 of its tools are listed only to clients that can be asked",
    ]
    assert "2 of its tools are listed only to clients" in running.command("servers").stdout
    assert "a session of its own" in running.command("doctor").stdout


@pytest.mark.promise("B5", "B12", "B13")
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_clients_without_elicitation_receive_pushed_notifications(
    transport: str, hub: Callable[..., RunningHub]
) -> None:
    """It pushes in the handshake era alone; over stdio, what it added is in that process alone."""
    with HttpPeer("dual_server", "--http") as peer:
        is_child = transport == "stdio"
        entry = (
            server_entry("w", "dual_server") if is_child else server_entry("w", "http", peer.url)
        )
        running = hub(servers=[entry], config='[mcp]\nstdio_expose = ["*"]\n')
        running.wait_connected("w")
        with Ide(running.home, {}) as one, Ide(running.home, {}) as two:
            assert "extra" not in one.list_tools()
            one.call("w.grow")
            for client in (one, two):
                client.wait_notification("notifications/tools/list_changed")
                assert "extra" in client.list_tools()
                assert client.text("w.extra") == "grown"
            assert one.text("w.spoken") == two.text("w.spoken")
            assert one.text("w.spoken").startswith("2025-11-25")
            listed = running.rpc("tools/list")["result"]["tools"]
            assert ("mcp_w_extra" in [tool["name"] for tool in listed]) is not is_child
            (state,) = running.api("/api/mcp/servers")["connected"]
            assert state["remarks"] == ["clients of the handshake era use that era"]


def _answer_roots(uri: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"roots": [{"uri": uri}]}


@pytest.mark.promise("B12", "B13")
@pytest.mark.parametrize("begins", ["list", "call"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_first_call_of_each_client_is_made_within_its_roots(
    transport: str, begins: str, hub: Callable[..., RunningHub]
) -> None:
    """Of a server that asks for them when a session begins, and acts on them some time later."""
    config = '[mcp]\nstdio_expose = ["*"]\n'
    running = hub(servers=[server_entry("f", "roots_server", era="legacy")], config=config)
    running.wait_connected("f")
    for number in range(5):
        uri = f"file:///{number}"
        with connect(running, "2025-11-25", transport, {"roots": {}}) as client:
            client.answering = partial(_answer_roots, uri)
            if begins == "list":
                client.request("tools/list")
            assert client.call("f.allowed")["result"]["content"][0]["text"] == uri


@pytest.mark.promise("B12", "B13")
def test_server_that_asks_at_the_start_asks_before_the_first_request(
    hub: Callable[..., RunningHub],
) -> None:
    """Once the hub knows that, a client is asked when it has said `initialized`."""
    config = '[mcp]\nstdio_expose = ["*"]\n'
    running = hub(servers=[server_entry("f", "roots_server", era="legacy")], config=config)
    running.wait_connected("f")
    with connect(running, "2025-11-25", "stdio", {"roots": {}}) as first:
        assert first.call("f.allowed")["result"]["content"][0]["text"] != "none"
    with connect(running, "2025-11-25", "stdio", {"roots": {}}) as second:
        wait_for(lambda: second.asked)
        assert second.asked[0].method == "roots/list"
    with connect(running, "2025-11-25", "stdio", {"sampling": {}}) as other:
        other.request("ping")
        assert running.api("/api/mcp/servers")["connected"][0].get("own_sessions", 0) <= 1
        assert not other.asked


class Window:
    """A window of an IDE made with the official SDK, with a folder of its own."""

    def __init__(self, hub: RunningHub, mode: str, way: str, folder: str) -> None:
        child = [str(word) for word in (*DRAGOMAN, "mcp", "--home", hub.home)]
        self.uri = f"file:///{mode}-{way}-{folder}"
        self.client = Client(
            streamable_http_client(hub.mcp_url)
            if way == "http"
            else StdioServerParameters(command=child[0], args=child[1:]),
            mode=mode,
            list_roots_callback=self._roots,
        )

    async def _roots(self, context: Any) -> mcp.types.ListRootsResult:
        return mcp.types.ListRootsResult(roots=[mcp.types.Root(uri=FileUrl(self.uri))])

    async def text(self, tool: str) -> str:
        (block,) = (await self.client.call_tool(tool, {})).content
        assert isinstance(block, mcp.types.TextContent)
        return block.text


@pytest.mark.promise("B12", "B13")
def test_roots_of_one_client_are_never_sent_for_another(running: RunningHub) -> None:
    """Those that keep no session, too: over HTTP nothing but their folders tells them apart."""
    ways = [("legacy", "http"), ("2026-07-28", "http"), ("2026-07-28", "stdio")]

    async def work() -> None:
        async with AsyncExitStack() as stack:
            windows = [Window(running, *way, folder) for way in ways for folder in "ab"]
            for one in windows:
                await stack.enter_async_context(one.client)
            uris = [one.uri for one in windows]
            assert [await one.text("w.allowed") for one in windows] == uris
            assert await asyncio.gather(*(one.text("w.allowed") for one in windows)) == uris
            for _ in range(2):  # a server that asks in a call, and not again
                assert [await one.text("late.allowed") for one in windows] == uris
            for count in ("1", "2"):  # and each finds again what it has left
                assert [await one.text("w.count") for one in windows] == [count] * len(windows)
            windows[2].uri = "file:///other"
            assert [await one.text("w.allowed") for one in windows[2:4]] == [
                "file:///other",
                windows[3].uri,
            ]

    asyncio.run(asyncio.wait_for(work(), 60))
