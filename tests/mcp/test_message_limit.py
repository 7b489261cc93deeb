"""The limit on one message of a server: a setting of the server, which the error names."""

from __future__ import annotations

import contextlib
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.http_stub_server import Request, legacy, serve_stub
from tests.mcp.upstream_hub import Scripted, UpstreamHub, http, run_hub

from dragoman.core.errors import BadReply, HubError
from dragoman.mcp.client.message_limit import count_repeated
from dragoman.mcp.config import ServerEntry

pytestmark = pytest.mark.promise("P2")

IMAGE = "QUJD" * 250_000
"""A million characters of base64."""
BLOCK = {"type": "image", "data": IMAGE, "mimeType": "image/png"}
ROWS = [{"n": number, "text": "x" * 1_000} for number in range(900)]
REPEATED: dict[str, Any] = {
    "image": {
        "content": [BLOCK],
        "structuredContent": {"result": [{**BLOCK, "annotations": None}]},
    },
    "JSON": {
        "content": [{"type": "text", "text": json.dumps({"rows": ROWS}, indent=1)}],
        "structuredContent": {"rows": ROWS},
    },
    "text": {
        "content": [{"type": "text", "text": "é" * 500_000}],
        "structuredContent": {"result": "é" * 500_000},
    },
}
OTHER = {"content": [BLOCK], "structuredContent": {"result": IMAGE[:-1]}}
WHOLE = {"content": [{**BLOCK, "data": IMAGE * 3}]}


@pytest.mark.parametrize("result", REPEATED.values(), ids=REPEATED)
def test_structured_content_that_repeats_the_content_is_counted(result: dict[str, Any]) -> None:
    whole = len(json.dumps(result["structuredContent"], ensure_ascii=False).encode())
    assert 0.9 * whole < count_repeated(result) <= whole
    other = {**result, "structuredContent": {"other": ["y" * 1_000_000]}}
    assert count_repeated(other) == 0


@pytest.mark.parametrize("result", [None, [], {}, {"content": []}, {"structuredContent": {}}])
def test_nothing_is_repeated_where_one_is_missing(result: Any) -> None:
    assert count_repeated(result) == 0


@asynccontextmanager
async def serve(
    transport: str, world: UpstreamHub, folder: Path, results: list[Any], **settings: Any
) -> AsyncIterator[None]:
    """A server that answers calls with these results, one after the other."""

    def handle(request: Request) -> None:
        if legacy(request) or request.message is None:
            return
        result = {"jsonrpc": "2.0", "id": request.message["id"], "result": results.pop(0)}
        if transport == "json":
            request.reply(200, result)
        elif transport == "stream":
            request.stream()
            request.event({key: result[key] for key in ("id", "result")})
        else:  # without a length, until the connection is closed
            request._head(200, {"content-type": "application/json"}, None)
            request._writer.write(json.dumps(result).encode())

    if transport == "stdio":
        entry: ServerEntry = Scripted(folder, "legacy", {"tools/call": results}).entry(**settings)
        await world.add(entry)
        yield
    else:
        async with serve_stub(handle) as server:
            await world.add(http("s", server.url, **settings))
            yield


@pytest.mark.parametrize("transport", ["stdio", "json", "stream", "until closed"])
async def test_each_server_has_its_limit(transport: str, short_tmp: Path) -> None:
    image, text = REPEATED["image"], REPEATED["JSON"]
    results, settings = [image, text, OTHER, WHOLE, image], {"message_megabytes": 1}
    async with (
        run_hub(short_tmp) as world,
        serve(transport, world, short_tmp, results, **settings),
    ):
        for expected in (image, text):
            result = await world.call("s.t")
            assert result.content == expected["content"]
            assert result.structured == expected["structuredContent"]
        for _ in (OTHER, WHOLE):
            with pytest.raises(BadReply, match="message_megabytes of the server"):
                await world.call("s.t")
        assert (await world.call("s.t")).structured == image["structuredContent"]


@pytest.mark.parametrize("transport", ["stdio", "json", "stream", "until closed"])
async def test_the_limit_can_be_raised(transport: str, short_tmp: Path) -> None:
    large = {"content": [{**BLOCK, "data": IMAGE * 12}]}
    settings = {"message_megabytes": 13}
    async with (
        run_hub(short_tmp) as world,
        serve(transport, world, short_tmp, [large], **settings),
    ):
        assert (await world.call("s.t")).content == large["content"]


async def test_the_default_is_ten_megabytes(short_tmp: Path) -> None:
    large = {"content": [{**BLOCK, "data": IMAGE * 12}]}
    async with run_hub(short_tmp) as world, serve("json", world, short_tmp, [large]):
        with pytest.raises(HubError, match=r"more than 10485760 bytes.*message_megabytes"):
            await world.call("s.t")


@pytest.mark.parametrize("transport", ["stdio", "json", "stream"])
async def test_a_refused_result_is_not_kept(transport: str, short_tmp: Path) -> None:
    """Not even until the collector runs, which is seldom in a hub."""
    settings = {"message_megabytes": 1}
    async with (
        run_hub(short_tmp) as world,
        serve(transport, world, short_tmp, [OTHER] * 12, **settings),
    ):
        kept = []
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(12):
                with contextlib.suppress(BadReply):  # `pytest.raises` would keep its frames
                    await world.call("s.t")
                    pytest.fail("it was not refused")
                kept.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
            gc.enable()
        assert kept[-1] - kept[1] < 5_000_000, kept  # each has two million bytes
