"""Dual-era servers, and the sessions that clients of each era get with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.upstream_hub import (
    EVERYTHING_ASKED,
    Scripted,
    UpstreamHub,
    http,
    run_hub,
    stdio,
    until,
)
from tests.peers.process import HttpPeer

from dragoman.core.errors import HubError, NeedsInput, NotFound
from dragoman.core.events import ListAnnounced
from dragoman.mcp.config import ServerEntry
from dragoman.mcp.protocol.elicitation import TASKS_ONLY

HANDSHAKE: dict[str, Any] = {"revision": "2025-11-25", "features": EVERYTHING_ASKED}
MODERN: dict[str, Any] = {"revision": "2026-07-28", "features": EVERYTHING_ASKED}
GREETING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "scripted", "version": "1"},
}
NOT_ASKABLE: dict[str, Any] = {"revision": "2025-11-25", "features": TASKS_ONLY}


@pytest.fixture(scope="module")
def dual() -> Iterator[HttpPeer]:
    with HttpPeer("dual_server", "--http") as peer:
        yield peer


def entry(peer: HttpPeer, transport: str, **keys: Any) -> ServerEntry:
    if transport == "stdio":
        return stdio("s", "dual_server", **keys)
    return http("s", peer.url, **keys)


async def text(world: UpstreamHub, name: str, **how: Any) -> str:
    result = await world.call(name, **how)
    assert result.questions is None
    return str(result.content[0]["text"])


async def ask(world: UpstreamHub, **how: Any) -> str:
    asked = await world.call("s.ask", **how)
    assert asked.questions is not None
    answers = {key: {"action": "accept", "content": {"name": "Ada"}} for key in asked.questions}
    answered = await world.call("s.ask", answers=answers, handle=asked.handle, **how)
    return str(answered.content[0]["text"])


@pytest.mark.promise("B12", "B13")
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_dual_era_server_is_used_in_the_clients_era(
    transport: str, short_tmp: Path, dual: HttpPeer
) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(entry(dual, transport))
        assert upstream.connection.version == "2026-07-28"

        # A client of today's IDEs gets the questions that the server pushes.
        assert await ask(world, client="a", **HANDSHAKE) == "accept Ada"
        assert (await text(world, "s.spoken", client="a", **HANDSHAKE)).startswith("2025-11-25")
        # What a session holds is the client's own, from its first call on.
        counts = [await text(world, "s.count", client="a", **HANDSHAKE) for _ in range(2)]
        assert counts == ["1", "2"]
        assert await ask(world, client="b", **HANDSHAKE) == "accept Ada"
        assert await text(world, "s.count", client="b", **HANDSHAKE) == "1"
        assert await text(world, "s.count", client="a", **HANDSHAKE) == "3"
        assert len(upstream.client_sessions) == 2 and upstream.choice.speaks_handshake

        # Others share a session, one for each era.
        spoken = await text(world, "s.spoken", **MODERN)
        assert spoken.startswith("2026-07-28")
        assert await text(world, "s.spoken", client="d", **MODERN) == spoken
        assert await text(world, "s.spoken") == spoken
        older = {await text(world, "s.spoken", client=one, **NOT_ASKABLE) for one in "cd"}
        assert len(older) == 1 and older.pop().startswith("2025-11-25")
        assert await text(world, "s.count", client="c", **NOT_ASKABLE) == "1"
        assert await text(world, "s.count", client="d", **NOT_ASKABLE) == "2"
        assert len(upstream.client_sessions) == 2

        # Unless the configuration says that no two clients share one.
        await world.servers.apply([])
        await world.add(entry(dual, transport, interactive=True))
        for client in "cd":
            assert await text(world, "s.count", client=client, **NOT_ASKABLE) == "1"


@pytest.mark.promise("B13")
async def test_era_is_configurable(short_tmp: Path, dual: HttpPeer) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(http("s", dual.url, era="legacy"))
        assert upstream.connection.version == "2025-11-25"
        assert await ask(world, client="a", **MODERN) == "accept Ada"

        await world.servers.apply([])
        upstream = await world.add(http("s", dual.url, era="modern"))
        for client in (HANDSHAKE, NOT_ASKABLE):
            assert (await text(world, "s.spoken", client="a", **client)).startswith("2026-07-28")
        assert len(upstream.client_sessions) == 0 and upstream.connection.handshake_session is None

        with pytest.raises(
            AssertionError, match='does not speak 2026-07-28; set its era to "auto"'
        ):
            await world.add(Scripted(short_tmp, "legacy", {}).entry(era="modern"))


@pytest.mark.promise("B13")
async def test_modern_only_server_is_tried_for_a_handshake_once(
    short_tmp: Path,
) -> None:
    done = {"resultType": "complete", "content": []}
    server = Scripted(short_tmp, "modern", {"tools/call": done})
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())
        for client in (HANDSHAKE, NOT_ASKABLE, HANDSHAKE):
            assert (await world.call("s.t", client="a", **client)).questions is None
        assert len(server.sent("initialize")) == 1 and len(upstream.client_sessions) == 0
        calls = server.sent("tools/call")
        assert len(calls) == 3
        del calls[1]
        declared = "io.modelcontextprotocol/clientCapabilities"
        assert [one["params"]["_meta"][declared]["roots"] for one in calls] == [{}, {}]


@pytest.mark.promise("B13")
async def test_unanswered_handshake_is_waited_for_once(
    short_tmp: Path,
) -> None:
    done = {"resultType": "complete", "content": []}
    server = Scripted(short_tmp, "modern", {"tools/call": done, "initialize": {"silent": True}})
    async with run_hub(short_tmp, handshake_secs=0.3, retry_secs=0.0) as world:
        upstream = await world.add(server.entry())
        await world.call("s.t", client="a", **NOT_ASKABLE)
        assert upstream.choice.has_failed and upstream.connection.handshake_session is None
        upstream.limits = replace(upstream.limits, handshake_secs=60.0)
        async with asyncio.timeout(60):
            for _ in range(3):
                await world.call("s.t", client="a", **NOT_ASKABLE)
        await until(lambda: len(server.sent("initialize")) == 2)  # in the background, once


@pytest.mark.promise("B13")
async def test_server_configured_without_elicitation_asks_nothing(
    short_tmp: Path, dual: HttpPeer
) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(http("s", dual.url, era="legacy", interactive=False))
        for _ in range(2):
            with pytest.raises(HubError, match="interactive = false") as raised:
                await world.call("s.ask", client="a", **HANDSHAKE)
            assert not isinstance(raised.value, NeedsInput)
        assert len(upstream.client_sessions) == 0


@pytest.mark.promise("B13")
async def test_sessions_of_incapable_clients_are_separate_where_a_server_asks(
    short_tmp: Path, dual: HttpPeer
) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(http("s", dual.url, era="legacy"))
        counts = [await text(world, "s.count", client=one, **NOT_ASKABLE) for one in "xyx"]
        assert counts == ["1", "2", "3"]  # nothing is known of the server
        assert await ask(world, client="a", **HANDSHAKE) == "accept Ada"
        assert upstream.choice.reason == "it asks questions"

        counts = [await text(world, "s.count", client=one, **NOT_ASKABLE) for one in "pqpx"]
        assert counts == ["1", "1", "2", "4"]  # and "x" stays where its state is


@pytest.mark.promise("B13")
async def test_second_shared_session_idles_with_the_first(short_tmp: Path) -> None:
    async with run_hub(short_tmp) as world:
        upstream = await world.add(stdio("s", "dual_server", idle_secs=0.2))
        first = await text(world, "s.spoken", client="a", **NOT_ASKABLE)
        await until(
            lambda: (
                upstream.connection.state == "idle"
                and upstream.connection.handshake_session is None
            )
        )

        again = await text(world, "s.spoken", client="a", **NOT_ASKABLE)
        assert again.startswith("2025-11-25") and again != first


@pytest.mark.promise("B5", "B13")
async def test_clients_of_a_shared_session_see_its_lists(short_tmp: Path) -> None:
    """Known before the first call is made, and told to those that were listed something else."""
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("t", "old")]
    answers = {"initialize": GREETING, "tools/call": {"resultType": "complete", "content": []}}
    server = Scripted(short_tmp, "modern", answers, handshake={"tools/list": {"tools": tools}})
    announced: list[ListAnnounced] = []
    async with run_hub(short_tmp) as world:
        world.bus.observe(ListAnnounced, announced.append)
        await world.add(server.entry())
        assert (await world.call("s.t", client="a", **NOT_ASKABLE)).questions is None
        assert announced == [ListAnnounced("s", "tool")]
        methods = [one["method"] for one in server.sent() if "id" in one]
        assert methods[-3:] == ["initialize", "tools/list", "tools/call"]

        assert (await world.call("s.old", client="b", **NOT_ASKABLE)).questions is None
        with pytest.raises(NotFound):
            await world.call("s.old", client="c", **MODERN)


@pytest.mark.promise("B12", "B13")
async def test_list_is_equal_in_both_eras(short_tmp: Path) -> None:
    """A server of both eras puts it into an object for clients of the handshake era; its tool is
    known as the modern era has it."""
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": {"type": "array"}}
    complete = {"resultType": "complete", "content": []}
    answers = {
        "initialize": GREETING,
        "tools/list": {"tools": [tool]},
        "tools/call": {**complete, "structuredContent": [1, 2]},
    }
    older = {"tools/call": {"content": [], "structuredContent": {"result": [1, 2]}}}
    server = Scripted(short_tmp, "modern", answers, handshake=older)
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())
        for client in (MODERN, NOT_ASKABLE, HANDSHAKE):
            assert (await world.call("s.t", client="a", **client)).structured == [1, 2]
        assert (
            upstream.connection.handshake_session is not None and len(upstream.client_sessions) == 1
        )


@pytest.mark.promise("B13")
async def test_slow_dual_era_server_keeps_the_requested_era(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is silent it is greeted in both eras; SDK servers then keep to the handshake."""
    monkeypatch.setattr("dragoman.mcp.client.session.PROBE_SECONDS", 0.0)  # any start takes longer
    said = [
        {"resultType": "complete", "content": [{"type": "text", "text": era}]}
        for era in ("modern", "legacy")
    ]
    answers = {"initialize": GREETING, "tools/call": said[0]}
    server = Scripted(short_tmp, "modern", answers, handshake={"tools/call": said[1]})
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())
        assert upstream.connection.version == "2026-07-28" and upstream.connection.restarts == 0
        assert await text(world, "s.t", **MODERN) == "modern"
        assert len(server.sent("initialize")) == 1 and len(server.sent("server/discover")) == 2
