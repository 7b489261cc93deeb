"""Servers that change era or contradict their declared one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.http_stub_server import Request, legacy, modern, serve_stub
from tests.mcp.upstream_hub import Scripted, UpstreamHub, http, run_hub, until

from dragoman.core.errors import HubError, Unreachable, WorkFailed
from dragoman.mcp.config import ServerEntry, StdioTransport
from dragoman.mcp.protocol.errors import encode_error
from dragoman.mcp.protocol.revisions import LATEST, REVISIONS

pytestmark = pytest.mark.promise("B1")

CHILD = Path(__file__).with_name("lying_server.py")
TOOLS = [{"name": "t", "inputSchema": {"type": "object"}}]
NO_SESSION = {"code": -32600, "message": "Bad Request: Missing session ID"}
NO_VERSION = {"code": -32000, "message": "Bad Request: Unsupported protocol version: 2026-07-28"}


def liar(place: Path, *eras: str) -> ServerEntry:
    """A child that speaks another of these at each start, the last for ever."""
    args = [str(CHILD), str(place / "starts"), *eras]
    return ServerEntry(name="s", transport=StdioTransport(command=sys.executable, args=args))


async def text(world: UpstreamHub, **arguments: Any) -> str:
    (block,) = (await world.call("s.t", arguments)).content
    return str(block["text"])


@pytest.mark.parametrize(
    "eras", [("modern", "legacy", "modern"), ("legacy", "modern", "legacy")], ids="-".join
)
async def test_server_may_change_era_after_each_start(
    eras: tuple[str, ...], short_tmp: Path
) -> None:
    async with run_hub(short_tmp) as world:
        await world.add(liar(short_tmp, *eras))
        for era in eras:
            assert await text(world) == era
            with pytest.raises(Unreachable):
                await text(world, die=True)


@pytest.mark.parametrize("odd", [[], {}, None, 7, [["text"]]])
async def test_values_of_an_unexpected_type_fail_no_call(odd: Any, short_tmp: Path) -> None:
    log = {"method": "notifications/message", "params": {"level": odd, "data": "x"}}
    content = [{"type": odd, "resource": {"uri": "a://b"}}, {"type": "text", "text": "whole"}]
    server = Scripted(short_tmp, "legacy", {"tools/call": {"first": [log], "content": content}})
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())
        for _ in range(2):
            assert (await world.call("s.t")).content == content
        assert upstream.connection.state == "connected"


async def test_server_claiming_modern_but_needing_a_handshake_gets_one(
    short_tmp: Path,
) -> None:
    async with run_hub(short_tmp) as world:
        await world.servers.apply([liar(short_tmp, "liar")])
        await until(lambda: world.made["s"].connection.state == "connected")
        assert world.made["s"].connection.version == "2025-11-25"
        assert await text(world) == "liar"


@pytest.mark.parametrize("revision", ["2099-01-01", "x" * 100_000, ["2025-11-25"], "2026-07-28"])
async def test_unknown_revision_is_named_briefly(revision: Any, short_tmp: Path) -> None:
    async with run_hub(short_tmp) as world:
        await world.servers.apply([Scripted(short_tmp, "legacy", {}, revision=revision).entry()])
        upstream = world.made.get("s")
        assert upstream is not None
        await until(lambda: upstream.connection.state == "failed")
        assert (
            f"which is unknown; the hub speaks 2024-11-05 to {LATEST.name}"
            in upstream.connection.reason
        )
        assert json.dumps(revision)[1:9] in upstream.connection.reason.replace("'", '"')
        assert len(upstream.connection.reason) < 250


@pytest.mark.parametrize("error", [NO_SESSION, NO_VERSION])
async def test_http_server_turned_legacy_gets_a_new_handshake(
    error: dict[str, Any], short_tmp: Path
) -> None:
    is_old = False

    def handle(request: Request) -> Awaitable[None] | None:
        if not is_old and "mcp-session-id" in request.headers:
            request.reply(404)
            return None
        if not is_old and modern(request, TOOLS):
            return None
        if is_old and request.asked != "initialize" and "mcp-session-id" not in request.headers:
            request.reply(400, {"jsonrpc": "2.0", "id": None, "error": error})
        elif is_old and legacy(request):
            return None
        elif request.asked == "tools/call":
            said = {"resultType": "complete"} if not is_old else {}
            content = [{"type": "text", "text": "old" if is_old else "new"}]
            request.result({**said, "content": content})
        else:
            request.reply(405)
        return None

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        upstream = await world.add(http("s", server.url))
        assert await text(world) == "new" and upstream.connection.version == "2026-07-28"
        is_old = True
        assert await asyncio.gather(*(text(world) for _ in range(3))) == ["old"] * 3
        assert upstream.connection.version == "2025-11-25"
        is_old = False
        assert await text(world) == "new" and upstream.connection.version == "2026-07-28"


@pytest.mark.promise("B12")
async def test_messages_of_the_other_era_do_not_end_the_connection(short_tmp: Path) -> None:
    """One client's bad call must not cost all others their connection."""

    def handle(request: Request) -> Awaitable[None] | None:
        if modern(request, TOOLS):
            return None
        if request.asked == "tools/call":
            error = {"code": -32602, "message": "no such shopping session"}
            request.reply(400, {"jsonrpc": "2.0", "id": None, "error": error})
        else:
            request.reply(405)
        return None

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        upstream = await world.add(http("s", server.url))
        shared = upstream.connection.session
        for _ in range(2):
            with pytest.raises(HubError):
                await text(world)
        assert upstream.connection.session is shared and upstream.connection.restarts == 0


@pytest.mark.parametrize("code", [True, "x", None, [], {}])
def test_error_code_that_is_no_integer_becomes_that_of_an_internal_error(code: Any) -> None:
    error = WorkFailed("m", {"code": code, "message": "m"})
    assert json.loads(encode_error(1, error, REVISIONS["2025-11-25"]))["error"]["code"] == -32603
