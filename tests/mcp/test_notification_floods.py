"""The cost of servers that announce changes continuously."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.events import ResourceUpdated
from dragoman.core.principal import OWNER
from dragoman.core.tool import DEFAULT_TRAITS, RESOURCE, TOOL, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.mcp.protocol.revisions import R2607
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.mcp.server.notify_throttle import MAX_PUT_OFF, NotifyThrottle

pytestmark = pytest.mark.promise("N1")

META = "io.modelcontextprotocol/"
SLOW = 0.002
"""Seconds to tell one client, here."""


class Server:
    traits = DEFAULT_TRAITS
    name = "s"

    async def run(self, call: Call) -> Result:
        return Result()


def build_server(*uris: str) -> McpServer:
    hub, server = build_permissive_hub(Catalog(review=admit_all), Bus(), []), Server()
    tools = [
        Tool(name=f"s.{uri}", alias=uri, remote_name=uri, kind=RESOURCE, target=server)
        for uri in uris
    ]
    hub.catalogs[RESOURCE].offer("s", tools)
    return McpServer(hub)


class Listeners:
    """Clients of the new era, all told by the same slow wire."""

    def __init__(self, mcp_server: McpServer, count: int, **wanted: Any) -> None:
        self.told: Counter[bytes] = Counter()
        meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
        params = {"notifications": wanted, "_meta": meta}
        message = {"jsonrpc": "2.0", "method": "subscriptions/listen", "params": params}
        self.work = []
        for number in range(count):
            peer = ClientState(OWNER, "test", EVERYTHING, R2607)
            work = mcp_server.answer({**message, "id": number}, peer, self.push)
            self.work.append(asyncio.ensure_future(work))

    def push(self, message: bytes) -> bool:
        if b"acknowledged" not in message:
            until = monotonic() + SLOW
            while monotonic() < until:
                pass
        self.told[message] += 1
        return True

    @property
    def changes(self) -> int:
        return sum(count for said, count in self.told.items() if b"acknowledged" not in said)


async def test_constant_change_notifications_leave_time_for_others() -> None:
    mcp_server = build_server("a:1")
    clients = Listeners(mcp_server, 50, resourceSubscriptions=["a:1"])
    while sum(clients.told.values()) < 50:
        await asyncio.sleep(0)
    begun = monotonic()
    while monotonic() - begun < 2.0:
        mcp_server.hub.bus.emit(ResourceUpdated("s.a:1"))  # as fast as others have their turns
        await asyncio.sleep(0)
    telling = clients.changes * SLOW
    assert telling < 1.0, f"{telling:.1f} of 2 s went into telling of changes"
    before = clients.changes
    mcp_server.hub.bus.emit(ResourceUpdated("s.a:1"))
    async with asyncio.timeout(60):
        while clients.changes < before + 50:
            await asyncio.sleep(0.01)
    mcp_server.subscriptions.close()
    await asyncio.gather(*clients.work)


async def test_ever_changing_list_leaves_time_for_others() -> None:
    mcp_server = build_server("a:1")
    clients = Listeners(mcp_server, 50, toolsListChanged=True)
    while sum(clients.told.values()) < 50:
        await asyncio.sleep(0)
    begun, number = monotonic(), 0
    while monotonic() - begun < 2.0:
        number += 1
        name = f"t{number}"
        tool = Tool(name=f"s.{name}", alias=name, remote_name=name, target=Server())
        mcp_server.hub.catalogs[TOOL].offer("s", [tool])
        await asyncio.sleep(0.01)
    telling = clients.changes * SLOW
    assert 0 < telling < 1.0, f"{telling:.1f} of 2 s went into telling of changes"
    mcp_server.subscriptions.close()
    await asyncio.gather(*clients.work)


async def test_deferred_notifications_are_bounded_and_subscriptions_kept() -> None:
    told: list[tuple[str, str]] = []
    throttle = NotifyThrottle(lambda name, followed, meta: told.append((name, followed)))
    throttle.run(lambda: _spin(0.2))
    for number in range(3 * MAX_PUT_OFF):
        throttle.add(f"s.d/{number}", "s.d")
    throttle.add("s.other", "s.other")
    assert told == [] and len(throttle) == MAX_PUT_OFF + 2
    async with asyncio.timeout(60):
        while len(throttle):
            await asyncio.sleep(0.01)
    assert told[-2:] == [("s.d", "s.d"), ("s.other", "s.other")]
    throttle.close()


def _spin(seconds: float) -> None:
    until = monotonic() + seconds
    while monotonic() < until:
        pass
