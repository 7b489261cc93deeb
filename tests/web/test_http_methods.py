"""Every HTTP method, upgrade, version and framing on a real socket gets an answer, and the next
client is served.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import pytest
from tests.peers import http_seeds
from tests.web.test_listener import JSON, PING, HubRig, get, parsed, post, run_listener_rig


async def first_answer(here: HubRig, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """The first answer, whether the connection stays open behind it or not."""
    reader, writer = await here.connect()
    writer.write(request)
    try:
        async with asyncio.timeout(60):
            status, headers, _ = parsed(await reader.readuntil(b"\r\n\r\n"))
            length = 0 if request.startswith(b"HEAD") else int(headers.get("content-length", 0))
            return status, headers, await reader.readexactly(length)
    finally:
        writer.close()


@pytest.mark.promise("N1")
async def test_every_http_form_is_answered_and_the_next_client_is_served() -> None:
    answered: dict[bytes, int] = {}
    async with run_listener_rig() as here:
        for seed in http_seeds.ALL:
            answered[seed], _, _ = await first_answer(here, seed)
            assert answered[seed] not in (101, 500), seed
        assert (await here.ask(get("/healthz")))[0] == 200
    for seed in http_seeds.CONNECTS[:6]:
        assert answered[seed] == 405, seed
    for seed in http_seeds.UPGRADES[:6]:
        assert answered[seed] == 200, seed
    for seed in http_seeds.VERSIONS[:4]:
        assert answered[seed] in (400, 505), seed


async def test_connect_is_refused_and_ends_the_pipeline() -> None:
    connect = b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with run_listener_rig() as here:
        status, headers, said = await here.ask(connect + get("/healthz"))
        assert (status, headers["connection"]) == (405, "close") and "POST" in headers["allow"]
        assert said == b"CONNECT is not supported: the hub is not a proxy\n"


async def test_duplicate_headers_are_detected_behind_an_upgrade_offer() -> None:
    offer = "Connection: Upgrade\r\nUpgrade: h2c"
    async with run_listener_rig() as here:
        for more in ((), (offer,)):
            status, _, said = await first_answer(here, post("/mcp", PING, JSON, JSON, *more))
            assert status == 400 and b"content-type is repeated" in said
        # The next request on the connection is judged by its own headers.
        twice = post("/mcp", PING, JSON, JSON, offer).replace(b"Connection: close\r\n", b"")
        _, _, rest = await here.ask(twice + post("/mcp", PING, JSON))
        assert rest.count(b"is repeated") == 1 and rest.endswith(b'"result":{}}')


async def test_unknown_content_codings_are_refused() -> None:
    chunked = post("/mcp", b"", JSON).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(PING), PING)
    async with run_listener_rig() as here:
        gzipped = chunked.replace(b": chunked", b": gzip, chunked")
        twice = chunked.replace(b": chunked", b": gzip\r\nTransfer-Encoding: chunked")
        for request in (gzipped, twice):
            assert (await first_answer(here, request + chunks))[0] == 501
        status, headers, _ = await here.ask(post("/mcp", PING, JSON, "Content-Encoding: br"))
        assert (status, headers["accept-encoding"]) == (415, "gzip, deflate")
        status, _, said = await here.ask(post("/mcp", PING, JSON, "Content-Encoding: gzip"))
        assert status == 400 and b"invalid gzip body" in said
        identity = post("/mcp", PING, JSON, "Content-Encoding: Identity")
        for request in (chunked.replace(b"chunked", b"Chunked") + chunks, identity):
            assert (await here.ask(request))[0] == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl_that_offers_http2_is_served_over_http1() -> None:
    async with run_listener_rig() as here:
        options = ("--silent", "--http2", "--max-time", "10", "--write-out", "%{http_version}")
        sent = ("--header", JSON, "--data-binary", PING.decode())
        url = f"http://127.0.0.1:{here.port}/mcp"
        command = ["curl", *options, *sent, url]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
        assert done.stdout == b'{"jsonrpc":"2.0","id":1,"result":{}}1.1'
