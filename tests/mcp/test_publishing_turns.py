"""Many servers that connect at once: in one turn of the event loop a single server is parsed or
published, so that calls and health checks have turns between them.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import pytest

from dragoman.core import loop_turns
from dragoman.core.bus import Bus
from dragoman.core.catalog import KindReview, ReviewResult, admit_all, build_catalogs
from dragoman.core.loop_turns import LoopTurns
from dragoman.core.name_claims import NameClaims
from dragoman.core.tool import PROMPT, TOOL, Tool
from dragoman.guards.validate import compile_schema
from dragoman.mcp.client.session import SessionSpec, UpstreamSession
from dragoman.mcp.client.upstream import Upstream
from dragoman.mcp.config import HttpTransport, ServerEntry
from dragoman.mcp.protocol.revisions import R2511

SERVERS = 12
TOOLS = [{"name": f"t{i}", "inputSchema": {"type": "object"}} for i in range(20)]


class Wire:
    sends_headers = False

    def __init__(self) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class ListingSession:
    """The session of a server that has tools and a prompt."""

    modern, revision, server_info = False, R2511, {"name": "x"}
    features: dict[str, Any] = {"tools": {}, "prompts": {}}
    instructions = ""

    def __init__(self) -> None:
        self.wire = Wire()
        self.ttls: dict[str, float] = {}

    def build_meta(self, features: Mapping[str, Any], log_level: str | None) -> Mapping[str, Any]:
        return {}

    async def list_entries(self, method: str, member: str, timeout: float, meta: Any) -> list[Any]:
        lists: dict[str, list[Any]] = {"tools/list": TOOLS, "prompts/list": [{"name": "p"}]}
        return lists.get(method, [])

    async def close(self) -> None:
        pass


class Turns:
    """Counts the turns of the event loop, and notes who worked in each."""

    def __init__(self) -> None:
        self.servers: dict[int, set[str]] = defaultdict(set)
        """The servers that were parsed or published, by turn."""
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._count()

    def _count(self) -> None:
        self.number += 1
        self._next = self._loop.call_soon(self._count)

    def stop(self) -> None:
        self._next.cancel()

    def compile(self, server: str, schema: Any) -> Any:
        self.servers[self.number].add(server)
        return compile_schema(schema)

    def review(self, target: str, tools: Sequence[Tool], kind: str) -> ReviewResult:
        if tools:
            self.servers[self.number].add(target)
        return admit_all(target, tools, kind)


@pytest.mark.promise("B5")
async def test_one_server_is_published_at_a_time() -> None:
    turns, open_all = Turns(), asyncio.Event()
    review: KindReview = turns.review
    catalogs = build_catalogs(review, NameClaims())

    async def connect(upstream: Upstream, seconds: float, spec: SessionSpec) -> UpstreamSession:
        await open_all.wait()
        return cast(UpstreamSession, ListingSession())

    upstreams = [
        Upstream(
            ServerEntry(name=name, transport=HttpTransport(url="http://x.example/mcp")),
            connect,
            catalogs,
            Bus(),
            partial(turns.compile, name),
        )
        for name in (f"s{i}" for i in range(SERVERS))
    ]
    for upstream in upstreams:
        upstream.start()
    async with asyncio.timeout(60):
        await asyncio.sleep(0)
        open_all.set()
        await asyncio.gather(*(upstream.connection.wait_settled() for upstream in upstreams))
    turns.stop()

    assert [upstream.connection.state for upstream in upstreams] == ["connected"] * SERVERS
    assert len(catalogs[TOOL]) == SERVERS * len(TOOLS)
    assert len(catalogs[PROMPT]) == SERVERS
    assert set.union(*turns.servers.values()) == {upstream.name for upstream in upstreams}
    assert max(len(servers) for servers in turns.servers.values()) == 1
    await asyncio.gather(*(upstream.stop() for upstream in upstreams))


@pytest.mark.promise("B5")
async def test_server_that_is_stopped_while_it_waits_publishes_nothing() -> None:
    catalogs = build_catalogs(admit_all, NameClaims())
    opened = asyncio.Event()

    async def connect(upstream: Upstream, seconds: float, spec: SessionSpec) -> UpstreamSession:
        opened.set()
        return cast(UpstreamSession, ListingSession())

    entry = ServerEntry(name="s", transport=HttpTransport(url="http://x.example/mcp"))
    upstream = Upstream(entry, connect, catalogs, Bus(), compile_schema)
    async with asyncio.timeout(60), catalogs[TOOL].publishing:
        upstream.start()
        await opened.wait()
        await upstream.stop()
    assert len(catalogs[TOOL]) == 0


@pytest.mark.promise("B5")
async def test_long_list_is_reviewed_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_turns, "TURN_SECONDS", -1.0)  # every turn has been long enough
    count, seen = Turns(), []

    async def review(
        target: str, tools: Sequence[Tool], kind: str, turns: LoopTurns
    ) -> ReviewResult:
        for _ in tools:
            await turns.give_way()
            seen.append((count.number, len(catalogs[kind])))
        return admit_all(target, tools, kind)

    async def connect(upstream: Upstream, seconds: float, spec: SessionSpec) -> UpstreamSession:
        return cast(UpstreamSession, ListingSession())

    catalogs = build_catalogs(admit_all, NameClaims(), review)
    entry = ServerEntry(name="s", transport=HttpTransport(url="http://x.example/mcp"))
    upstream = Upstream(entry, connect, catalogs, Bus(), compile_schema)
    upstream.start()
    async with asyncio.timeout(60):
        await upstream.connection.wait_settled()
    count.stop()
    assert len(catalogs[TOOL]) == len(TOOLS) and len(catalogs[PROMPT]) == 1
    assert len({turn for turn, _ in seen}) == len(TOOLS) + 1
    assert {offered for _, offered in seen} == {0}
    await upstream.stop()


@pytest.mark.promise("B5")
@pytest.mark.parametrize("at", [1, len(TOOLS), len(TOOLS) + 1])
async def test_server_that_is_stopped_while_it_is_published_offers_nothing(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Lists that another session has changed are published by a task that outlasts the stop."""
    monkeypatch.setattr(loop_turns, "TURN_SECONDS", -1.0)  # every turn has been long enough
    claims, stopping, reviewed = NameClaims(), [], 0

    async def review(
        target: str, tools: Sequence[Tool], kind: str, turns: LoopTurns
    ) -> ReviewResult:
        nonlocal reviewed
        for _ in tools:
            await turns.give_way()
            reviewed += 1
            if reviewed == at:
                stopping.append(asyncio.ensure_future(upstream.stop()))
                await asyncio.sleep(0)
                claims.release("s")
        return admit_all(target, tools, kind)

    async def connect(upstream: Upstream, seconds: float, spec: SessionSpec) -> UpstreamSession:
        raise AssertionError("it is not started")

    catalogs = build_catalogs(admit_all, claims, review)
    entry = ServerEntry(name="s", transport=HttpTransport(url="http://x.example/mcp"))
    upstream = Upstream(entry, connect, catalogs, Bus(), compile_schema)
    lists: dict[str, Any] = {TOOL: TOOLS, PROMPT: [{"name": "p"}]}
    await upstream.catalog.publish(cast(UpstreamSession, ListingSession()), lists)
    await asyncio.gather(*stopping)
    assert len(stopping) == 1
    assert [len(one) for one in catalogs.values()] == [0] * len(catalogs)
    assert claims.find_owner(TOOL, f"mcp_s_{TOOLS[0]['name']}") is None


async def test_a_list_in_another_order_is_no_change_and_long_names_are_reported() -> None:
    catalogs = build_catalogs(admit_all, NameClaims())

    async def connect(upstream: Upstream, seconds: float, spec: SessionSpec) -> UpstreamSession:
        return cast(UpstreamSession, ListingSession())

    entry = ServerEntry(name="s", transport=HttpTransport(url="http://x.example/mcp"))
    upstream = Upstream(entry, connect, catalogs, Bus(), compile_schema)
    upstream.start()
    async with asyncio.timeout(60):
        await upstream.connection.wait_settled()
    catalog = catalogs[TOOL]
    session, shown = cast(UpstreamSession, ListingSession()), catalog.list_tools()
    assert [tool.remote_name for tool in shown] == [tool["name"] for tool in TOOLS]
    version, shuffled = catalog.version, random.Random(1).sample(TOOLS, len(TOOLS))
    await upstream.catalog.publish(session, {TOOL: shuffled})
    assert (catalog.version, catalog.list_tools()) == (version, shown)
    assert upstream.catalog.describe_long_names() == []
    long = {"name": "l" * 63, "inputSchema": {"type": "object"}}
    await upstream.catalog.publish(session, {TOOL: [*TOOLS, long]})
    (remark,) = upstream.catalog.describe_long_names()
    assert (
        remark.startswith('names too long for models with the prefix "s"')
        and str(long["name"]) in remark
    )
    await upstream.catalog.publish(session, {TOOL: shuffled[1:]})
    assert [tool.remote_name for tool in catalog.list_tools()] == [
        tool["name"] for tool in shuffled[1:]
    ]
    await upstream.stop()
