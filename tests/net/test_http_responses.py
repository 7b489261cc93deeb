"""Responses of every kind, valid and invalid, read from real sockets."""

from __future__ import annotations

import asyncio
import gzip
import os
import tracemalloc
import zlib
from collections.abc import Awaitable

import pytest
from tests.net.raw_server import (
    BOUND,
    OK,
    Talk,
    a_client,
    always,
    get,
    lasting,
    listening,
    once,
)

from dragoman.core.errors import BadReply, InvalidInput, TimedOut, Unreachable
from dragoman.core.read_pacing import BytePace
from dragoman.net.connection import (
    HEAD_BYTES,
    INFLATED_BYTES,
    PIECE_BYTES,
    STEP_BYTES,
    WAITING_BYTES,
)

START = b"HTTP/1.1 200 OK\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"

BODIES = {
    "a length": (START + b"content-length: 5\r\n\r\nhello", b"hello"),
    "no body": (START + b"content-length: 0\r\n\r\n", b""),
    "chunks": (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
    "chunks with extensions and trailers": (
        CHUNKED + b"5;a=b\r\nhello\r\n0\r\nx-sum: 1\r\nset-cookie: a=b\r\n\r\n",
        b"hello",
    ),
    "the end of the connection": (START + b"\r\nhello", b"hello"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
    "connection: close": (START + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
    "interim answers": (
        b"HTTP/1.1 100 Continue\r\nx-a: b\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
        + START
        + b"content-length: 5\r\n\r\nhello",
        b"hello",
    ),
    "identity": (
        START + b"content-encoding: identity\r\ncontent-length: 5\r\n\r\nhello",
        b"hello",
    ),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("piecemeal", [False, True], ids=["whole", "byte by byte"])
async def test_body_is_read_completely_with_every_framing(kind: str, piecemeal: bool) -> None:
    answer, expected = BODIES[kind]

    async def talk(connection: Talk) -> None:
        await connection.request()
        for piece in [answer[i : i + 1] for i in range(len(answer))] if piecemeal else [answer]:
            await connection.say(piece)
            await asyncio.sleep(0)

    async with listening(talk) as peer, a_client() as client:
        assert await get(client, peer.url) == (200, expected)


async def test_each_value_of_a_repeated_header_is_kept() -> None:
    cookies = b"set-cookie: a=1\r\nset-cookie: b=2\r\nx-a: c\r\nset-cookie: d=3\r\n"
    head = START + cookies + b"content-length: 5\r\n\r\nhello"
    async with listening(always(head)) as peer, a_client() as net:
        client = net.open_configured(peer.url, allow_private=True)
        for _ in range(3):  # also when the head is known
            reply = await client.request("GET", peer.url, {}, timeout=60)
            assert await reply.body.read(100) == b"hello"
            assert [*reply.repeated] == [("set-cookie", "a=1"), ("set-cookie", "b=2")]
            assert reply.headers["set-cookie"] == "d=3" and reply.headers["x-a"] == "c"


@pytest.mark.parametrize(
    "head",
    [b"204 No Content\r\n\r\n", b"304 Not Modified\r\ncontent-length: 10\r\n\r\n"],
)
async def test_response_without_a_body_ends_with_its_head(head: bytes) -> None:
    async with listening(always(b"HTTP/1.1 " + head)) as peer, a_client() as client:
        for _ in range(2):
            assert await get(client, peer.url) == (int(head[:3]), b"")
        assert peer.connections == 1


async def test_an_answer_to_head_has_no_body_and_the_next_request_is_not_confused() -> None:
    async with (
        listening(always(START + b"content-length: 5\r\n\r\n")) as peer,
        a_client() as client,
    ):
        outlet = client.open_configured(peer.url, allow_private=False)
        for _ in range(2):
            reply = await outlet.request("HEAD", peer.url, {}, timeout=BOUND)
            assert (reply.status, await reply.body.read(10)) == (200, b"")
            assert reply.headers["content-length"] == "5"


async def test_request_bytes_match_the_arguments() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        headers = {"Content-Type": "x/y"}
        await outlet.request("POST", peer.url + "a?b=c", headers, b"body", timeout=BOUND)
        await outlet.request("GET", peer.url, {}, timeout=BOUND)
        await outlet.request("POST", peer.url, {}, timeout=BOUND)
    host = f"host: 127.0.0.1:{peer.port}\r\naccept-encoding: identity\r\n".encode()
    assert peer.requests == [
        b"POST /a?b=c HTTP/1.1\r\n%bContent-Type: x/y\r\ncontent-length: 4\r\n\r\nbody" % host,
        b"GET / HTTP/1.1\r\n%b\r\n" % host,
        b"POST / HTTP/1.1\r\n%bcontent-length: 0\r\n\r\n" % host,
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-a": "b\r\nx-evil: c"}, {"x-a": "b\nc"}, {"x-a": "b\x00"}, {"x-a": "\u4e2d"},
        {"x a": "b"}, {"x-a:": "b"}, {"": "b"}, {"x\r\ny": "b"}, {"x-\u4e2d": "b"},
        {"Host": "evil"}, {"content-length": "1"}, {"Transfer-Encoding": "chunked"},
        {"accept-encoding": "gzip"}, {"Connection": "close"},
    ],
)  # fmt: skip
async def test_headers_that_alter_framing_are_refused(headers: dict[str, str]) -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        with pytest.raises(InvalidInput):
            await outlet.request("GET", peer.url, headers, timeout=BOUND)
        assert peer.connections == 0


async def test_reply_headers_are_lower_case_and_the_last_of_two_counts() -> None:
    head = b"Content-Type: a/b  \r\nX-TWICE: 1\r\nx-twice: 2\r\nX-Empty:\r\nX-Odd: \xe9\r\n"
    answer = START + head + b"Content-Length: 0\r\n\r\n"
    async with listening(always(answer)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        assert reply.headers == {
            "content-type": "a/b",
            "x-twice": "2",
            "x-empty": "",
            "x-odd": "é",
            "content-length": "0",
        }


async def test_headers_of_interim_responses_and_trailers_are_ignored() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nx-early: 1\r\n\r\n"
    answer = interim + CHUNKED + b"2\r\nok\r\n0\r\nx-late: 1\r\ncontent-type: a/b\r\n\r\n"
    async with listening(always(answer)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        for _ in range(2):
            reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
            assert await reply.body.read(10) == b"ok"
            assert reply.headers == {"transfer-encoding": "chunked"}
        assert peer.connections == 1


def compressed(data: bytes, encoding: bytes = b"gzip") -> bytes:
    length = b"content-length: %d\r\n\r\n" % len(data)
    return START + b"content-encoding: " + encoding + b"\r\n" + length + data


PACKED = gzip.compress(b"hello")


@pytest.mark.parametrize(
    "answer",
    [
        compressed(PACKED),
        compressed(PACKED, b"X-GZIP"),
        compressed(zlib.compress(b"hello"), b"deflate"),
        CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
        + b"".join(b"1\r\n%c\r\n" % byte for byte in PACKED)
        + b"0\r\n\r\n",
        compressed(b"hello", b"identity"),
    ],
    ids=["gzip", "x-gzip", "deflate", "chunks", "identity"],
)
async def test_unrequested_compression_is_decoded(answer: bytes) -> None:
    async with listening(always(answer)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        for _ in range(2):
            reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
            assert "content-encoding" not in reply.headers
            assert await reply.body.read(5) == b"hello"
        assert peer.connections == 1


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES * 3 + 1])
@pytest.mark.parametrize("framing", ["length", "the end of the connection"])
async def test_compressed_body_is_complete_at_any_size(size: int, framing: str) -> None:
    for plain in (os.urandom(size), b"a" * size):
        packed = gzip.compress(plain, 1)
        head = START + b"content-encoding: gzip\r\n\r\n"
        answer = compressed(packed) if framing == "length" else head + packed
        async with listening(once(answer)) as peer, a_client() as client:
            assert await get(client, peer.url, limit=size) == (200, plain)


async def count_turns(work: Awaitable[object]) -> tuple[object, int]:
    """The result or the error, and how often another task had its turn meanwhile."""
    running = asyncio.ensure_future(work)
    turns = 0
    while not running.done():
        turns += 1
        await asyncio.sleep(0)
    (result,) = await asyncio.gather(running, return_exceptions=True)
    return result, turns


async def test_compressed_body_is_inflated_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred kilobytes may hold two hundred megabytes; other tasks run all the while."""
    pauses: list[float] = []
    pause = BytePace.pause

    def note(pace: BytePace, size: int) -> float:
        pauses.append(pause(pace, size))
        return 0.0

    monkeypatch.setattr(BytePace, "pause", note)
    bomb = compressed(gzip.compress(bytes(200 << 20), 9))
    async with listening(always(bomb)) as peer, a_client() as client:
        refused, turns = await count_turns(get(client, peer.url, limit=INFLATED_BYTES * 2))
        assert isinstance(refused, BadReply) and "16 MB after decompression" in str(refused)
        assert turns >= INFLATED_BYTES // STEP_BYTES
        assert len(pauses) == INFLATED_BYTES // STEP_BYTES and pauses[-1] > 0.1
        short, turns = await count_turns(get(client, peer.url, limit=STEP_BYTES * 5))
        assert isinstance(short, BadReply) and "longer than" in str(short)
        assert turns < INFLATED_BYTES // STEP_BYTES


async def test_cancelling_while_a_body_is_inflated_closes_the_connection() -> None:
    bomb = compressed(gzip.compress(bytes(8 << 20), 9))
    async with listening(lasting(bomb)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        chunks = aiter(reply.body.chunks())
        while not reply.body._connection.pace(1 << 20):  # type: ignore[attr-defined]
            pass  # so that the next step is followed by a pause
        assert len(await anext(chunks)) == STEP_BYTES
        running = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(peer.gone.wait(), BOUND)


HOSTILE = {
    "gzip that is none": compressed(b"ok"),
    "gzip that is cut": compressed(PACKED[:-1]),
    "gzip of far too much": compressed(gzip.compress(bytes(17 << 20), 1)),
    "brotli": compressed(b"ok", b"br"),
    "gzip as transfer encoding": START + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "gzip behind identity": START
    + b"content-encoding: gzip\r\ncontent-encoding: identity\r\ncontent-length: 0\r\n\r\n",
    "garbage": b"SSH-2.0-OpenSSH_9.6\r\n",
    "two lengths": START + b"content-length: 2\r\ncontent-length: 3\r\n\r\nok",
    "a length and chunks": START
    + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": START + b"content-length: -2\r\n\r\n",
    "a folded header": START + b"x-a: b\r\n c\r\ncontent-length: 2\r\n\r\nok",
    "a bad chunk": CHUNKED + b"zz\r\n",
    "a chunk with a wrong size": CHUNKED + b"2\r\nhello\r\n0\r\n\r\n",
    "101": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    "status 000": b"HTTP/1.1 000 Zero\r\ncontent-length: 0\r\n\r\n",
    "status 999": b"HTTP/1.1 999 Much\r\ncontent-length: 0\r\n\r\n",
    "many headers": START + b"x-a: b\r\n" * 101 + b"content-length: 2\r\n\r\nok",
    "one long header": START + b"x-a: " + b"b" * HEAD_BYTES + b"\r\ncontent-length: 2\r\n\r\nok",
    "a long reason": b"HTTP/1.1 200 " + b"b" * HEAD_BYTES,
    "an endless head": START + b"x-a: " + b"b" * HEAD_BYTES,
    "endless interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 4000,
    "endless trailers": CHUNKED + b"2\r\nok\r\n0\r\nx-a: " + b"b" * 16 * HEAD_BYTES,
    "many trailers": CHUNKED + b"2\r\nok\r\n0\r\n" + b"x-a: b\r\n" * 101,
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_response_is_a_bad_reply_and_closes_the_connection(kind: str) -> None:
    async with listening(lasting(HOSTILE[kind])) as peer, a_client() as client:
        with pytest.raises(
            BadReply, match=r"the answer of \"http://127.0.0.1:\d+/\" cannot be used"
        ):
            await get(client, peer.url)
        await asyncio.wait_for(peer.gone.wait(), BOUND)


@pytest.mark.parametrize(
    "cut",
    [
        b"",
        b"HTTP/1.1 2",
        START,
        START + b"content-length: 5\r\n\r\nhell",
        CHUNKED + b"5\r\nhello\r\n",
    ],
)
@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
async def test_lost_connection_is_unreachable_and_possibly_sent(cut: bytes, reset: bool) -> None:
    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(cut)
        if reset:
            connection.reset()

    async with listening(talk) as peer, a_client() as client:
        with pytest.raises(Unreachable) as caught:
            await get(client, peer.url)
        assert caught.value.sent
        assert len(peer.requests) == 1  # and it was not sent again


async def test_body_ended_by_a_reset_is_incomplete() -> None:
    read = asyncio.Event()

    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(START + b"\r\nhello")
        await read.wait()
        connection.reset()

    async with listening(talk) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        chunks = aiter(reply.body.chunks())
        assert await anext(chunks) == b"hello"
        read.set()
        with pytest.raises(Unreachable):
            await anext(chunks)


@pytest.mark.parametrize(
    "answer",
    [
        START + b"content-length: 11\r\n\r\n",  # known from the head
        START + b"content-length: 11\r\n\r\nhello world",
        CHUNKED + b"b\r\nhello world\r\n",
        START + b"\r\nhello world",
    ],
)
async def test_oversized_body_is_refused_and_closes_the_connection(
    answer: bytes,
) -> None:
    async with listening(lasting(answer)) as peer, a_client() as client:
        with pytest.raises(BadReply, match="is longer than 10 bytes"):
            await get(client, peer.url, limit=10)
        await client.close()
        await asyncio.wait_for(peer.gone.wait(), BOUND)


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        assert await get(client, peer.url, limit=2) == (200, b"ok")


async def test_large_body_is_read_completely() -> None:
    body = bytes(range(256)) * 8192
    answer = START + b"content-length: %d\r\n\r\n" % len(body) + body
    async with listening(always(answer)) as peer, a_client() as client:
        assert await get(client, peer.url, limit=len(body)) == (200, body)


async def test_small_chunks_take_memory_in_proportion_to_body_size() -> None:
    answer = CHUNKED + b"2\r\nab\r\n" * 100_000 + b"0\r\n\r\n"
    async with listening(always(answer)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        await get(client, peer.url)  # so that only the second answer is weighed
        tracemalloc.start()
        try:
            reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
            assert await reply.body.read(200_000) == b"ab" * 100_000
            assert tracemalloc.get_traced_memory()[1] < 2_500_000
        finally:
            tracemalloc.stop()


async def test_large_request_arrives_completely() -> None:
    body = bytes(range(256)) * 8192
    async with listening(always(OK)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("POST", peer.url, {}, body, timeout=BOUND)
        assert await reply.body.read(10) == b"ok"
        assert peer.requests[0].endswith(b"\r\n\r\n" + body)


async def test_small_body_is_available_with_its_head() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        with pytest.raises(StopIteration) as returned:
            reply.body.read(10).send(None)
        assert returned.value.value == b"ok"


async def test_completed_response_leaves_no_timer() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=3600)
        assert not reply.body._limit  # type: ignore[attr-defined]


async def test_stream_is_delivered_as_it_arrives() -> None:
    heard: asyncio.Queue[None] = asyncio.Queue()

    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(CHUNKED)
        for part in (b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"):
            await heard.get()
            await connection.say(part)
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        heard.put_nowait(None)
        seen = []
        async for chunk in reply.body.chunks():
            seen.append(chunk)
            heard.put_nowait(None)
        assert seen == [b"one", b"two"]


async def test_stream_outlives_the_request_timeout() -> None:
    go = asyncio.Event()

    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(CHUNKED + b"3\r\none\r\n")
        await go.wait()
        await connection.say(b"0\r\n\r\n")
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=0.2)
        chunks = aiter(reply.body.chunks())
        asyncio.get_running_loop().call_later(0.4, go.set)
        assert [chunk async for chunk in chunks] == [b"one"]


async def test_slow_reader_pauses_the_sender() -> None:
    total = 40_000_000  # far more than the buffers of two sockets hold
    sent = 0
    stopped = asyncio.Event()

    async def talk(connection: Talk) -> None:
        nonlocal sent
        await connection.request()
        await connection.say(START + b"content-length: %d\r\n\r\n" % total)
        while sent < total:
            connection.writer.write(bytes(100_000))
            try:
                await asyncio.wait_for(connection.writer.drain(), 0.2)
            except TimeoutError:
                stopped.set()
                await connection.writer.drain()
            sent += 100_000
        stopped.set()
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        await asyncio.wait_for(stopped.wait(), BOUND)
        assert sent < total
        assert len(reply.body._waiting) < 3 * WAITING_BYTES  # type: ignore[attr-defined]
        read = 0
        async for chunk in reply.body.chunks():
            read += len(chunk)
        assert read == total


async def test_connection_is_read_again_after_a_response_that_paused_it() -> None:
    long = bytes(WAITING_BYTES + 1)  # its last byte pauses the connection, and completes it

    async def talk(connection: Talk) -> None:
        for answer in (START + b"content-length: %d\r\n\r\n" % len(long) + long, OK):
            await connection.request()
            await connection.say(answer)
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        async with asyncio.timeout(BOUND):
            while not reply.body.complete:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
        assert await reply.body.read(len(long)) == long
        assert await get(client, peer.url) == (200, b"ok")
        assert peer.connections == 1


async def test_stream_is_delivered_in_small_pieces_with_turns_between() -> None:
    """A quarter of a megabyte may hold thousands of events; other tasks run between its pieces."""
    body = os.urandom(WAITING_BYTES)
    answer = START + b"content-length: %d\r\n\r\n" % len(body) + body
    async with listening(lasting(answer)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        async with asyncio.timeout(BOUND):
            while len(reply.body._waiting) < len(body):  # type: ignore[attr-defined]
                await asyncio.sleep(0.001)
        pieces: list[bytes] = []

        async def read() -> None:
            async for piece in reply.body.chunks():
                pieces.append(piece)

        _, turns = await count_turns(read())
        assert b"".join(pieces) == body and max(map(len, pieces)) == PIECE_BYTES
        assert turns >= WAITING_BYTES // PIECE_BYTES - 1


async def test_missing_head_times_out_and_closes_the_connection() -> None:
    async with listening(lasting(b"HTTP/1.1 200 OK\r\n")) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        with pytest.raises(TimedOut, match=r"did not answer within 0\.05 s"):
            await outlet.request("GET", peer.url, {}, timeout=0.05)
        await asyncio.wait_for(peer.gone.wait(), BOUND)


async def test_missing_body_times_out_and_closes_the_connection() -> None:
    answer = START + b"content-length: 5\r\n\r\nhell"
    async with listening(lasting(answer)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=0.1)
        with pytest.raises(TimedOut, match=r"did not finish its answer within 0\.1 s"):
            await reply.body.read(10)
        await asyncio.wait_for(peer.gone.wait(), BOUND)


async def test_unread_body_is_closed_after_its_timeout() -> None:
    answer = START + b"content-length: 5\r\n\r\nhell"
    async with listening(lasting(answer)) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        await outlet.request("GET", peer.url, {}, timeout=0.1)
        await asyncio.wait_for(peer.gone.wait(), BOUND)


@pytest.mark.parametrize("answer", [b"", START + b"content-length: 5\r\n\r\nhell"])
async def test_cancelling_closes_the_connection(answer: bytes) -> None:
    asked = asyncio.Event()

    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(answer)
        asked.set()
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        running = asyncio.ensure_future(get(client, peer.url))
        await asyncio.wait_for(asked.wait(), BOUND)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(peer.gone.wait(), BOUND)


async def test_closing_a_body_early_closes_the_connection() -> None:
    async with listening(lasting(CHUNKED + b"3\r\none\r\n")) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
        reply.body.close()
        await asyncio.wait_for(peer.gone.wait(), BOUND)
        with pytest.raises(Unreachable):
            await reply.body.read(10)


async def test_closing_the_client_aborts_running_requests() -> None:
    async with listening(lasting(START + b"\r\nhalf an answer")) as peer:
        async with a_client() as client:
            outlet = client.open_configured(peer.url, allow_private=False)
            reply = await outlet.request("GET", peer.url, {}, timeout=BOUND)
            reading = asyncio.ensure_future(reply.body.read(100))
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises(Unreachable):
                await reading
            for url in (peer.url, peer.url + "another"):
                with pytest.raises(Unreachable, match="the hub is shutting down") as caught:
                    await outlet.request("GET", url, {}, timeout=BOUND)
                assert not caught.value.sent
            with pytest.raises(Unreachable, match="the hub is shutting down"):
                await get(client, f"http://localhost:{peer.port}/")
            assert peer.connections == 1
        await asyncio.wait_for(peer.gone.wait(), BOUND)


async def test_response_before_the_request_is_sent_closes_the_connection() -> None:
    async def talk(connection: Talk) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("POST", peer.url, {}, bytes(40_000_000), timeout=BOUND)
        assert (reply.status, await reply.body.read(10)) == (413, b"no")
        await asyncio.wait_for(peer.gone.wait(), BOUND)
