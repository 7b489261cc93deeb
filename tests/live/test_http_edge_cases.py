"""Rare HTTP requests: compressed bodies, alternative paths, authorization server discovery, unusual
`initialize` requests.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.configurable_servers import run_configurable_hub, tool
from tests.live.conftest import RunningHub
from tests.peers import wire

PING = json.dumps(wire.request(1, "ping")).encode()
MEGABYTE = 1024 * 1024


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    place: Path = tmp_path_factory.mktemp("small")
    config = 'api_key = "a-key-that-nobody-guesses"\n'
    plain = {"name": "plain", "inputSchema": {"type": "object"}}
    with run_configurable_hub(place, config, s={"offers": {"tools": [plain, tool("said")]}}) as (
        running,
        _,
    ):
        yield running


def send(hub: RunningHub, body: bytes, coding: str, path: str = "/mcp") -> wire.Answer:
    headers = {**hub.headers, "Content-Type": "application/json", "Content-Encoding": coding}
    return wire.http_request("POST", hub.url + path, body, headers)


def raw_deflate(data: bytes) -> bytes:
    machine = zlib.compressobj(wbits=-15)
    return machine.compress(data) + machine.flush()


@pytest.mark.promise("F5")
def test_compressed_bodies_are_read_within_size_limits(hub: RunningHub) -> None:
    packed = gzip.compress(PING)
    for coding, body in (
        ("gzip", packed), ("GZIP", packed), ("x-gzip", packed), ("identity", PING),
        ("deflate", zlib.compress(PING)), ("deflate", raw_deflate(PING)),
    ):  # fmt: skip
        assert send(hub, body, coding).rpc()["result"] == {}, coding
    arguments = {"x": [f"{n}-{n * 7919}" for n in range(150_000)]}
    large = {"name": "s.said", "arguments": arguments}
    body = json.dumps(wire.request(2, "tools/call", large)).encode()
    assert len(body) > 2 * MEGABYTE
    assert "result" in send(hub, gzip.compress(body, 1), "gzip").rpc()
    called = send(hub, gzip.compress(b'{"arguments":{}}'), "gzip", "/api/tools/s.said/call")
    assert called.status in (200, 404), called.body

    too_large = gzip.compress(b" " * (11 * MEGABYTE) + PING)
    too_dense = gzip.compress(b" " * (2 * MEGABYTE) + PING)
    for wrong, status in (
        (too_large, 413), (too_dense, 413), (packed[:-5], 400), (packed + b"x", 400), (PING, 400),
        (packed + packed, 400), (b"\x1f\x8b", 400),
    ):  # fmt: skip
        assert send(hub, wrong, "gzip").status == status
    assert send(hub, packed, "br").status == 415
    assert send(hub, packed, "gzip").rpc()["result"] == {}, "and the hub goes on"


def test_unusual_client_requests_are_accepted(hub: RunningHub) -> None:
    for path in ("/mcp", "/mcp/"):
        answer = wire.post(hub.url + path, wire.request(1, "ping"), hub.headers)
        assert answer.status == 200 and answer.rpc()["result"] == {}
    for path in ("oauth-protected-resource", "oauth-protected-resource/mcp",
                 "oauth-authorization-server", "openid-configuration"):  # fmt: skip
        assert wire.get(f"{hub.url}/.well-known/{path}").status == 404
    assert wire.get(f"{hub.url}/mcp").status == 401

    batch = [wire.request(1, "initialize", wire.initialize_params("2025-03-26")),
             wire.request(2, "ping")]  # fmt: skip
    refused, pong = wire.post(hub.mcp_url, batch, hub.headers).rpc()
    assert refused["error"]["code"] == -32600 and "batch" in refused["error"]["message"]
    assert pong["result"] == {}

    shown = {one["name"]: one for one in hub.rpc("tools/list")["result"]["tools"]}
    assert "description" not in shown["mcp_s_plain"], "the server says nothing of it"
    assert shown["mcp_s_said"]["description"] == "[MCP:s] Does it."
    for ref, what in (({"type": "ref/prompt", "name": "none"}, "prompt"),
                      ({"type": "ref/resource", "uri": "x://{none}"}, "template")):  # fmt: skip
        asked = {"ref": ref, "argument": {"name": "a", "value": ""}}
        problem = hub.rpc("completion/complete", asked)["error"]["message"]
        assert f"there is no {what}" in problem
