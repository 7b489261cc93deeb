"""Timeouts of a server: for the hub's own requests, and for calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.mcp.http_stub_server import Request, legacy, serve_stub
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
from tests.permissive_hub import build_permissive_hub

from dragoman.core.errors import BadReply, TimedOut
from dragoman.guards.timeout import Timeout

ANSWER_SECS = 1.5
LONGER = {"seconds": 2.0}


async def slow(world: UpstreamHub, server: str, **how: object) -> str:
    result = await world.call(f"{server}.slow", LONGER, **how)  # type: ignore[arg-type]
    return str(result.content[0]["text"])


@pytest.mark.promise("B8", "P3")
async def test_call_may_outlast_lists_without_a_server_timeout(
    short_tmp: Path,
) -> None:
    with HttpPeer("mcp1_server", "--transport", "http") as peer:
        async with run_hub(short_tmp, answer_secs=ANSWER_SECS) as world:
            await world.add(
                stdio("child", "mcp1_server"),
                http("remote", peer.url),
                stdio("asks", "mcp1_server", interactive=True),
                stdio("bounded", "mcp1_server", timeout_secs=0.5),
            )
            asked = {"features": EVERYTHING_ASKED, "client": "c"}
            *answers, bounded = await asyncio.gather(
                slow(world, "child"),
                slow(world, "remote"),
                slow(world, "asks", **asked),
                slow(world, "bounded"),
                return_exceptions=True,
            )
    assert answers == ["slept 2.0"] * 3
    assert isinstance(bounded, TimedOut)
    assert str(bounded).endswith("within 0.5 s: the request timed out and was cancelled; raise its "
                                 "timeout_secs if it needs longer")  # fmt: skip


@pytest.mark.promise("B8", "P3")
async def test_call_without_a_server_timeout_uses_the_tool_timeout(
    short_tmp: Path,
) -> None:
    async def handle(request: Request) -> None:
        if not legacy(request):
            await asyncio.Event().wait()

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        world.hub = build_permissive_hub(world.hub.catalog, world.bus, [Timeout(0.2)])
        await world.add(http("s", server.url))
        with pytest.raises(TimedOut, match=r"raise \[limits\] tool_timeout_secs if it needs more"):
            await world.call("s.t")
        await until(lambda: server.sent("notifications/cancelled"))


@pytest.mark.promise("B8")
async def test_list_timeout_is_shorter_than_the_call_timeout(short_tmp: Path) -> None:
    async def handle(request: Request) -> None:
        if request.asked == "tools/list":
            await asyncio.Event().wait()
        legacy(request)

    async with run_hub(short_tmp, answer_secs=0.3) as world, serve_stub(handle) as server:
        await world.servers.apply([http("s", server.url)])
        await until(lambda: "within 0.3 s" in world.made["s"].connection.reason)


@pytest.mark.promise("B8", "P2")
async def test_oversized_response_is_reported_for_any_id_position(
    short_tmp: Path,
) -> None:
    large = {"result": {"content": [{"type": "text", "text": "x" * 11_000_000}]}, "id": "$id"}
    server = Scripted(short_tmp, "legacy", {"tools/call": {"first": [large], "content": []}})
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())
        with pytest.raises(BadReply, match="with more than 10485760 bytes, which is too large"):
            await world.call("s.t")
