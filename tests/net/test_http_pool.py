"""Reuse of pooled connections."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.net.raw_server import BOUND, OK, Talk, a_client, always, get, listening

from dragoman.core.deadlines import Deadlines
from dragoman.core.errors import InvalidInput, Unreachable
from dragoman.net import pool
from dragoman.net.client import OutboundHttp
from dragoman.net.connection import Connection
from dragoman.wire.http import FixedHeaders

FIRST = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst"


async def test_sequential_requests_share_a_connection() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        for _ in range(5):
            assert await get(client, peer.url) == (200, b"ok")
        assert (peer.connections, len(peer.requests)) == (1, 5)


async def test_unix_socket_client_ignores_the_host_of_the_url(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(FIRST)
        await writer.drain()
        await reader.read()
        writer.close()

    path = str(tmp_path / "hub.sock")
    async with await asyncio.start_unix_server(answer, path):
        client = OutboundHttp(socket_path=path)
        assert await get(client, "https://hub.example.com/card") == (200, b"first")
        await client.close()
    assert heads[0].startswith(b"GET /card HTTP/1.1\r\nhost: hub.example.com\r\n")
    absent = OutboundHttp(socket_path=str(tmp_path / "absent.sock"))
    with pytest.raises(Unreachable) as refused:
        await get(absent, "http://localhost/")
    assert not refused.value.sent
    await absent.close()


async def test_requests_with_the_same_timeout_share_one_set_of_deadlines() -> None:
    """An idle `Deadlines` is falsy: asking for its truth made a new one for each request."""
    made: list[str] = []

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is Deadlines.__init__.__code__:
            made.append(str(frame.f_locals["seconds"]))

    async with listening(always(OK)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        for _ in range(2):  # the first request dials, the second uses its connection
            await (await outlet.request("GET", peer.url, {}, timeout=BOUND)).body.read(10)
        sys.setprofile(record)
        try:
            for _ in range(10):
                await (await outlet.request("GET", peer.url, {}, timeout=BOUND)).body.read(10)
        finally:
            sys.setprofile(None)
    assert made == []


async def test_fixed_headers_are_sent_with_those_of_the_request_alone() -> None:
    fixed = FixedHeaders({"accept": "text/plain", "a2a-extensions": "one"})
    sent = [
        {"traceparent": "00-1"},
        {},
        {"traceparent": "00-2", "a2a-extensions": "two"},
        {"x-%s": "100 %d", "x-%": "%"},
    ]
    async with listening(always(OK)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        for extra in sent:
            how: dict[str, Any] = {"timeout": BOUND, "extra_headers": extra}
            await (await outlet.request("GET", peer.url, fixed, **how)).body.read(10)
        with pytest.raises(InvalidInput, match="control characters"):
            await outlet.request(
                "GET", peer.url, fixed, timeout=BOUND, extra_headers={"traceparent": "a\r\nb: c"}
            )
    for request, extra in zip(peer.requests, sent, strict=True):
        lines = request.decode().split("\r\n")
        for name, value in {**fixed, **extra}.items():
            assert [line for line in lines if line.startswith(f"{name}:")] == [f"{name}: {value}"]


async def test_concurrent_requests_use_separate_connections_and_reuse_the_last() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        await asyncio.gather(*(get(client, peer.url) for _ in range(8)))
        assert peer.connections == 8
        await asyncio.gather(*(get(client, peer.url) for _ in range(8)))
        assert peer.connections == 8


async def test_connection_closed_by_the_server_is_replaced_before_sending() -> None:
    go = asyncio.Event()

    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(OK)
        await go.wait()
        connection.writer.write_eof()
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        await get(client, peer.url)
        go.set()
        await asyncio.wait_for(peer.gone.wait(), BOUND)
        go.clear()
        assert await get(client, peer.url) == (200, b"ok")
        assert (peer.connections, len(peer.requests)) == (2, 2)


async def test_idle_connection_is_dropped_after_four_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.1)
    gone = asyncio.Event()

    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(OK)
        await connection.gone()
        gone.set()

    async with listening(talk) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        await reply.body.read(10)
        await asyncio.wait_for(gone.wait(), BOUND)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        assert await reply.body.read(10) == b"ok"
        assert peer.connections == 2


async def test_expired_connection_is_skipped_before_the_sweep() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        await get(client, peer.url)
        (connection,) = _idle(client)
        connection.idle_since -= pool.IDLE_SECONDS
        await get(client, peer.url)
        assert peer.connections == 2


@pytest.mark.parametrize(
    "more",
    [OK, b"H", b"garbage", b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"],
)
@pytest.mark.parametrize("together", [True, False], ids=["at once", "later"])
async def test_surplus_bytes_never_become_the_next_response(more: bytes, together: bool) -> None:
    go = asyncio.Event()

    async def talk(connection: Talk) -> None:
        await connection.request()
        if connection.peer.connections > 1:
            await connection.say(OK)
        elif together:
            await connection.say(FIRST + more)
        else:
            await connection.say(FIRST)
            await go.wait()
            await connection.say(more)
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        assert await get(client, peer.url) == (200, b"first")
        if not together:
            go.set()
            await asyncio.wait_for(peer.gone.wait(), BOUND)
        assert await get(client, peer.url) == (200, b"ok")
        assert peer.connections == 2


async def test_repeated_heads_are_read_as_the_parser_reads_them() -> None:
    """A head is known after its first response; each of the others differs in one way."""
    interim = b"HTTP/1.1 100 Continue\r\ncontent-length: 2\r\n\r\n"
    answers = (
        *(FIRST, OK, OK.replace(b"2\r", b"0\r")[:-2], OK.replace(b"200 OK", b"404 No")),
        *(OK.replace(b"content", b"X-Other: 1\r\ncontent"), interim + OK, interim + OK, OK),
    )
    read = asyncio.Event()

    async def talk(connection: Talk) -> None:
        for answer in answers:
            await connection.request()
            await connection.say(answer)
        await connection.request()
        length = len(OK) + 1
        await connection.say(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n-" % length)
        await read.wait()
        await connection.say(OK)  # the rest of the body looks like a response
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        found = [await get(client, peer.url) for _ in answers]
        assert found == [
            *((200, b"first"), (200, b"ok"), (200, b""), (404, b"ok")),
            *((200, b"ok"), (200, b"ok"), (200, b"ok"), (200, b"ok")),
        ]
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        read.set()
        assert await reply.body.read(1_000) == b"-" + OK
        assert peer.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ],
)
async def test_connection_close_header_is_honoured(answer: bytes) -> None:
    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(answer)
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        assert await get(client, peer.url) == (200, b"ok")
        await asyncio.wait_for(peer.gone.wait(), BOUND)


async def test_connection_is_not_reused_while_its_body_is_unread() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        first = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        second = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        assert peer.connections == 1
        first.body.close()
        assert await second.body.read(10) == b"ok"
        assert await first.body.read(10) == b"ok"


async def test_idle_and_total_connections_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "IDLE", 2)
    async with listening(always(OK)) as peer, a_client(connections=4) as client:
        results = await asyncio.gather(
            *(get(client, peer.url) for _ in range(6)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, Unreachable)]
        assert len(refused) == 2
        assert not any(error.sent for error in refused)
        assert "4 connections to it are in use" in str(refused[0])
        assert len(_idle(client)) == 2
        assert await get(client, peer.url) == (200, b"ok")


async def test_closed_connections_leave_nothing_behind() -> None:
    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(OK)
        connection.writer.write_eof()
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        for _ in range(20):
            reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
            await reply.body.read(10)
            await asyncio.wait_for(peer.gone.wait(), BOUND)
            peer.gone.clear()
        (found,) = client._pools.values()
        assert (found._idle, found._open, found._dialling) == ([], set(), 0)


async def test_connection_opened_during_close_is_not_used() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def resolve(host: str, port: int) -> list[str]:
        asked.set()
        await answer.wait()
        return ["127.0.0.1"]

    async def talk(connection: Talk) -> None:
        await connection.gone()

    async with listening(talk) as peer, a_client(resolve) as client:
        outlet = client.open_configured(f"http://x:{peer.port}/", allow_private=True)
        asking = asyncio.ensure_future(
            outlet.request("GET", f"http://x:{peer.port}/", {}, timeout=BOUND)
        )
        await asyncio.wait_for(asked.wait(), BOUND)
        await client.close()
        answer.set()
        with pytest.raises(Unreachable, match="the hub is shutting down") as caught:
            await asking
        assert not caught.value.sent
        await asyncio.wait_for(peer.gone.wait(), BOUND)


async def test_handles_share_connections_only_with_the_same_address_rules() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        for allow_private in (False, False, True, True):
            outlet = client.open_configured(peer.url, allow_private=allow_private)
            reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
            await reply.body.read(10)
            del outlet
        # A literal private address written by the operator is the same rule as allow_private.
        assert peer.connections == 1
        name = client.open_configured(f"http://localhost:{peer.port}/", allow_private=False)
        reply = await name.request("GET", f"http://localhost:{peer.port}/", {}, timeout=BOUND)
        await reply.body.read(10)
        assert peer.connections == 2


def _idle(client: OutboundHttp) -> list[Connection]:
    (found,) = client._pools.values()
    return list(found._idle)
