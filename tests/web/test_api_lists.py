"""Long API lists: built in slices between other requests, and once per view."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.permissive_hub import PermitAll, complete_catalogs
from tests.web.test_connections import Peer

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.hub import Hub
from dragoman.core.ports import Decision
from dragoman.core.principal import Principal
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.web import tool_listing
from dragoman.web.api import Api
from dragoman.web.app import TcpApp
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.http.listener import HttpListener
from dragoman.web.peer_process import ALONE

COUNT = 2_000
SERVERS = ("one", "two")


class Judge(PermitAll):
    """Only the boss runs the hub; only the boss sees `hidden`. Counts its decisions."""

    def __init__(self) -> None:
        self.asked = 0
        self.version = 0
        self.hidden = ""

    def can_see(self, caller: Principal, tool: Tool, door: str) -> bool:
        self.asked += 1
        return caller.id == "boss" or tool.target.name != self.hidden

    def group_of_principal(self, caller: Principal) -> Hashable:
        return caller.id == "boss"

    def decide_action(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        return Decision(caller.id == "boss", (), "test")


class Target:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        raise NotImplementedError


class Sources:
    def ready(self) -> str | None:
        return None

    async def status(self) -> Mapping[str, Any]:
        return {}

    def server_states(self) -> Mapping[str, Any]:
        state = {"tools_count": COUNT // 2, "connected": True, "state": "connected"}
        connected = [{"name": name, **state} for name in SERVERS]
        return {"configured": [{"name": name, "command": "x"} for name in SERVERS],
                "connected": connected}  # fmt: skip

    def server_log(self, name: str) -> str | None:
        return None

    def metrics(self) -> str:
        return ""

    def note_denied(self, principal: Principal | None, what: str) -> None:
        pass


@dataclass
class HubRig:
    port: int
    catalog: Catalog
    judge: Judge

    async def get(self, path: str, key: str) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = (f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}")
        writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        async with asyncio.timeout(60):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 200 "), head
        return json.loads(body)


def offer(catalog: Catalog, server: str, count: int) -> None:
    target = Target(server)
    tools = [
        Tool(
            name=f"{server}.{number:05}",
            alias=f"mcp_{server}_{number:05}",
            remote_name=str(number),
            description="d",
            definition={},
            target=target,
        )
        for number in range(count)
    ]
    catalog.offer(server, tools)


@asynccontextmanager
async def run_rig() -> AsyncIterator[HubRig]:
    catalog, judge = Catalog(review=admit_all), Judge()
    for server in SERVERS:
        offer(catalog, server, COUNT // 2)
    hub = Hub(complete_catalogs(catalog), Bus(), [], CallChains(bytes(32)), judge)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    auth = Authenticator(None, lambda key: Principal("key", key), lambda: True)
    app = TcpApp(
        auth, AllowedNames("127.0.0.1", None, [], []), {}, Api(hub, Sources()), peers=ALONE
    )
    listener = HttpListener(app, sock)
    await listener.start()
    try:
        yield HubRig(sock.getsockname()[1], catalog, judge)
    finally:
        await listener.drain(0.2)
        listener.abort()


@pytest.mark.parametrize("path", ["/api/tools", "/api/mcp/servers"])
async def test_long_list_is_built_without_blocking_other_requests(path: str) -> None:
    async with run_rig() as here:
        neighbour = await Peer(here).connect()  # type: ignore[arg-type]
        assert await neighbour.get() == 200
        long = asyncio.ensure_future(here.get(path, "ann"))
        served = 0
        while not long.done():
            began = 0 < here.judge.asked < COUNT
            assert await neighbour.get() == 200
            served += began and here.judge.asked < COUNT
        assert served, "no answer began and ended while the list was made"
        await long
        neighbour.close()


async def test_list_is_built_once_per_view_until_the_catalog_changes() -> None:
    async with run_rig() as here:
        both = await asyncio.gather(here.get("/api/tools", "ann"), here.get("/api/tools", "bob"))
        assert both[0] == both[1] and here.judge.asked == COUNT
        tools = both[0]["tools"]
        assert (len(tools), both[0]["total"]) == (COUNT, COUNT)
        assert tools[0] == {
            "name": "mcp_one_00000",
            "id": "one.00000",
            "description": "d",
            "source": "mcp",
            "server": "one",
        }
        servers = await here.get("/api/mcp/servers", "ann")
        assert here.judge.asked == COUNT, "the same list"
        assert [one["tools_count"] for one in servers["connected"]] == [COUNT // 2] * 2
        assert servers["connected"][1]["tools"][0] == {"name": "mcp_two_00000", "description": "d"}
        assert servers["configured"] == [{"name": "one"}, {"name": "two"}]
        # A change of the policies, and one of the catalog.
        here.judge.hidden, here.judge.version = "two", 1
        assert (await here.get("/api/tools", "ann"))["total"] == COUNT // 2
        seen = await here.get("/api/mcp/servers", "ann")
        assert [one["name"] for one in seen["connected"]] == ["one"]
        offer(here.catalog, "one", 3)
        assert (await here.get("/api/tools", "ann"))["total"] == 3
        # Who runs the hub sees all of it, and how servers are started.
        whole = await here.get("/api/mcp/servers", "boss")
        assert [len(one["tools"]) for one in whole["connected"]] == [3, COUNT // 2]
        assert whole["configured"][0]["command"] == "x"


async def test_list_is_decided_by_one_policy_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_rig() as here:
        moved = 0

        def shift() -> None:
            """Between any two slices, as long as the list is made in slices."""
            nonlocal moved
            if 0 < here.judge.asked < 10 * COUNT and moved < 50:
                moved += 1
                here.judge.hidden = "two" if here.judge.version % 2 else ""
                here.judge.version += 1
            if not over:
                loop.call_soon(shift)

        loop, over = asyncio.get_running_loop(), False
        monkeypatch.setattr(tool_listing, "SLICE", 10)
        shift()
        total = (await here.get("/api/tools", "ann"))["total"]
        over = True
        assert moved and total in (COUNT, COUNT // 2)
