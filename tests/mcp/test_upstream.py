"""A server looked after, whatever happens; what the API may show of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.tool import PROMPT, RESOURCE, TEMPLATE, TOOL
from dragoman.guards.validate import compile_schema
from dragoman.mcp.client import Session
from dragoman.mcp.config import HttpTransport, ServerEntry
from dragoman.mcp.revisions import R2511
from dragoman.mcp.servers import Servers
from dragoman.mcp.upstream import Apart, Upstream

ENTRY = ServerEntry(name="s", transport=HttpTransport(url="http://me:secret@x.example/a?k=secret"))
CATALOGS = {kind: Catalog(kind, review=admit_all) for kind in (TOOL, PROMPT, RESOURCE, TEMPLATE)}


class Wire:
    def __init__(self) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Crashing:
    """A session whose second list makes the hub itself fail."""

    modern, revision, server_info = False, R2511, {"name": "x"}
    features: dict[str, Any] = {"tools": {}}

    def __init__(self) -> None:
        self.wire = Wire()
        self.lists = 0

    def meta_for(self, features: Mapping[str, Any], notes: str | None) -> Mapping[str, Any]:
        return {}

    async def entries(self, method: str, member: str, timeout: float, meta: Any) -> list[Any]:
        self.lists += 1
        if self.lists > 1:
            raise KeyError("a mistake of ours")
        return []

    async def close(self) -> None:
        pass


@pytest.mark.promise("B7")
async def test_a_mistake_while_a_change_is_followed_does_not_leave_the_server_alone() -> None:
    opened: list[Crashing] = []

    async def connect(upstream: Upstream, seconds: float, apart: Apart | None) -> Session:
        opened.append(Crashing())
        return cast(Session, opened[-1])

    upstream = Upstream(ENTRY, connect, CATALOGS, Bus(), compile_schema)
    upstream.start()
    async with asyncio.timeout(5):
        await upstream.tried()
        upstream.missed()
        while len(opened) < 2 or upstream.state != "connected":
            await asyncio.sleep(0.01)
    await upstream.stop()


@pytest.mark.promise("G3")
async def test_no_password_and_no_query_of_a_url_is_shown() -> None:
    servers = Servers(lambda entry: pytest.fail("it is switched off"), CATALOGS, Bus())
    off = ServerEntry(name="s", transport=ENTRY.transport, enabled=False)
    await servers.apply([off])
    (shown,) = servers.snapshot()["configured"]
    assert shown["transport"]["url"] == "http://x.example/a?…"
