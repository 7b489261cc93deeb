"""Supervision of a server, and what the API shows of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.app import process
from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import Unreachable
from dragoman.core.tool import PROMPT, RESOURCE, TEMPLATE, TOOL
from dragoman.guards.validate import compile_schema
from dragoman.mcp.client.connector import Connector
from dragoman.mcp.client.limits import UpstreamLimits
from dragoman.mcp.client.session import SessionSpec, UpstreamSession
from dragoman.mcp.client.upstream import Upstream
from dragoman.mcp.client.upstream_manager import UpstreamManager
from dragoman.mcp.config import HttpTransport, ServerEntry, StdioTransport
from dragoman.mcp.protocol.revisions import R2511
from dragoman.processes.child_process import kill_marked

ENTRY = ServerEntry(name="s", transport=HttpTransport(url="http://me:secret@x.example/a?k=secret"))
CATALOGS = {kind: Catalog(kind, review=admit_all) for kind in (TOOL, PROMPT, RESOURCE, TEMPLATE)}


class Wire:
    def __init__(self) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Crashing:
    """A session whose second list makes the hub itself fail."""

    modern, revision, server_info = False, R2511, {"name": "x"}
    features: dict[str, Any] = {"tools": {}}
    instructions = ""

    def __init__(self) -> None:
        self.wire = Wire()
        self.ttls: dict[str, float] = {}
        self.lists = 0

    def build_meta(self, features: Mapping[str, Any], log_level: str | None) -> Mapping[str, Any]:
        return {}

    async def list_entries(self, method: str, member: str, timeout: float, meta: Any) -> list[Any]:
        self.lists += 1
        if self.lists > 1:
            raise KeyError("a mistake of ours")
        return []

    async def close(self) -> None:
        pass


@pytest.mark.promise("B7")
async def test_error_while_processing_a_change_does_not_stop_supervision() -> None:
    opened: list[Crashing] = []

    async def connect(upstream: Upstream, seconds: float, spec: SessionSpec) -> UpstreamSession:
        opened.append(Crashing())
        return cast(UpstreamSession, opened[-1])

    upstream = Upstream(ENTRY, connect, CATALOGS, Bus(), compile_schema)
    upstream.start()
    async with asyncio.timeout(60):
        await upstream.connection.wait_settled()
        upstream.note_missed()
        while len(opened) < 2 or upstream.connection.state != "connected":
            await asyncio.sleep(0.01)
    await upstream.stop()


async def test_disconnected_server_is_not_waited_for() -> None:
    async def connect(upstream: Upstream, seconds: float, spec: SessionSpec) -> UpstreamSession:
        raise Unreachable("it is away", sent=False)

    upstream = Upstream(ENTRY, connect, CATALOGS, Bus(), compile_schema)
    upstream.start()
    async with asyncio.timeout(60):
        await upstream.connection.wait_settled()
    upstream.note_missed()  # what it announced last is read once it is back
    try:
        assert not upstream.lists.is_stale(TOOL)
    finally:
        await upstream.stop()


@pytest.mark.promise("B9")
def test_server_stopped_during_start_leaves_nothing(tmp_path: Path) -> None:
    """At each turn of the loop from the start of its process on, on the loop that a hub runs."""
    entry = ServerEntry(name="cat", transport=StdioTransport(command="cat"))
    mark = f"stopped-{os.getpid()}"
    connector = Connector(tmp_path, mark, os.environ, lambda url, private: pytest.fail("no HTTP"))

    async def stop_after(turns: int) -> None:
        upstream = Upstream(entry, connector, CATALOGS, Bus(), compile_schema)
        upstream.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(60):  # sooner than what is left behind for lasting too long
            await upstream.stop()
        assert upstream.connection.state == "stopped"

    async def stop_at_each_turn() -> None:
        for turns in range(1, 9):
            await stop_after(turns)

    with asyncio.Runner(loop_factory=process.find_loop_factory()) as runner:
        runner.run(stop_at_each_turn())
    assert kill_marked(mark) == 0


async def test_unstoppable_server_does_not_block() -> None:
    begun = asyncio.Event()

    async def connect(upstream: Upstream, seconds: float, spec: SessionSpec) -> UpstreamSession:
        begun.set()
        while upstream.name == "deaf":  # to being cancelled, too
            with contextlib.suppress(asyncio.CancelledError):
                await ended.wait()
                break
        raise Unreachable("no such server", sent=False)

    def make(entry: ServerEntry) -> Upstream:
        return Upstream(
            entry, connect, CATALOGS, Bus(), compile_schema, UpstreamLimits(stop_secs=0.05)
        )

    ended = asyncio.Event()
    transport = HttpTransport(url="http://x.example/mcp")
    deaf, other = (ServerEntry(name=name, transport=transport) for name in ("deaf", "other"))
    servers = UpstreamManager(make, CATALOGS, Bus())
    await servers.apply([deaf])
    await begun.wait()
    async with asyncio.timeout(60):
        await servers.apply([other])
    assert servers.find("other") is not None
    ended.set()
    async with asyncio.timeout(60):
        await servers.stop()


@pytest.mark.promise("G3")
async def test_url_password_and_query_are_never_shown() -> None:
    servers = UpstreamManager(lambda entry: pytest.fail("it is switched off"), CATALOGS, Bus())
    off = ServerEntry(name="s", transport=ENTRY.transport, enabled=False)
    await servers.apply([off])
    (shown,) = servers.snapshot()["configured"]
    assert shown["transport"]["url"] == "http://x.example/a?…"
