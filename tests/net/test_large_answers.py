"""Large answers of all servers share a budget, half of it for one caller; what does not fit waits
instead of being discarded, because what was requested has been done.
"""

from __future__ import annotations

import asyncio
import contextvars
import gzip
import os
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from tests.net.raw_server import Talk, a_client, always, listening
from tests.skill_hub import ALICE, SkillHub

from dragoman.core.call import Call, Result, caller
from dragoman.core.errors import BadReply
from dragoman.core.principal import Principal
from dragoman.net.client import OutboundHttp
from dragoman.net.connection import WAITING_BYTES
from dragoman.wire.http import HttpReply

SIZE = 4 * WAITING_BYTES
BODY = os.urandom(SIZE)
ANNA, BEN = Principal("key", "anna"), Principal("key", "ben")


def frame(kind: str) -> bytes:
    start = b"HTTP/1.1 200 OK\r\n"
    if kind == "length":
        return start + b"content-length: %d\r\n\r\n" % SIZE + BODY
    if kind == "chunks":
        whole = b"%x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n"
        return start + b"transfer-encoding: chunked\r\n\r\n" + whole
    packed = gzip.compress(BODY, 1)
    head = b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    return start + head + packed


async def request(client: OutboundHttp, url: str, timeout: float = 120.0) -> HttpReply:
    outlet = client.open_configured(url, allow_private=False)
    return await outlet.request("GET", url, {}, timeout=timeout)


async def read(client: OutboundHttp, url: str, principal: Principal | None = None) -> bytes:
    caller.set(principal)
    return await (await request(client, url)).body.read(SIZE)


def answer_slowly(answer: bytes, go: asyncio.Event) -> Callable[[Talk], Awaitable[None]]:
    """Sends the last bytes of each answer only after `go`."""

    async def talk(connection: Talk) -> None:
        while True:
            await connection.request()
            await connection.say(answer[:-100])
            await go.wait()
            await connection.say(answer[-100:])

    return talk


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", ["length", "chunks", "gzip"])
async def test_large_answers_of_all_servers_share_a_budget_and_wait(kind: str) -> None:
    most, answer, loop = 0, frame(kind), asyncio.get_running_loop()

    def look() -> None:
        nonlocal most
        most = max(most, client.room.held)
        turns.append(loop.call_soon(look))

    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(listening(always(answer))) for _ in range(3)]
        client = await stack.enter_async_context(a_client(room_bytes=4 * SIZE))
        turns = deque([loop.call_soon(look)], maxlen=1)
        readings = [
            asyncio.create_task(read(client, peer.url, principal))
            for principal in (ANNA, BEN)
            for peer in peers
            for _ in range(4)
        ]
        async with asyncio.timeout(60):
            bodies = await asyncio.gather(*readings)
        turns[0].cancel()
        assert bodies == [BODY] * 24
        assert 0 < most <= client.room.limit
        assert client.room.held == 0 and not client.room._waiting and not client.room._held_by


@pytest.mark.parametrize("kind", ["length", "chunks", "gzip"])
async def test_caller_waits_for_its_own_answers_and_others_do_not(kind: str) -> None:
    go = asyncio.Event()
    async with (
        listening(answer_slowly(frame(kind), go)) as slow,
        listening(answer_slowly(frame(kind), asyncio.Event())) as silent,
        listening(answer_slowly(frame(kind), go)) as third,
        a_client(room_bytes=3 * SIZE) as client,
    ):
        first = asyncio.create_task(read(client, slow.url, ANNA))
        await until(lambda: client.room.held == SIZE)
        second = asyncio.create_task(read(client, third.url, ANNA))
        await until(lambda: bool(client.room._waiting))
        other = asyncio.create_task(read(client, silent.url, BEN))
        await until(lambda: client.room.held == 2 * SIZE)  # it has overtaken the second
        other.cancel()
        await asyncio.wait([other])
        await until(lambda: client.room.held == SIZE)  # its room is free at once
        go.set()
        async with asyncio.timeout(60):
            assert (await first, await second) == (BODY, BODY)
        assert client.room.held == 0


async def test_answer_that_waits_to_its_timeout_says_what_may_have_happened() -> None:
    go = asyncio.Event()
    async with (
        listening(answer_slowly(frame("length"), go)) as slow,
        a_client(room_bytes=2 * SIZE) as client,
    ):
        first = asyncio.create_task(read(client, slow.url))
        await until(lambda: client.room.held == SIZE)
        with pytest.raises(BadReply, match=r"left no room .* may have taken effect"):
            await (await request(client, slow.url, timeout=3.0)).body.read(SIZE)
        assert not client.room._waiting
        go.set()
        async with asyncio.timeout(60):
            assert await first == BODY
            assert await read(client, slow.url) == BODY


async def test_answer_that_can_never_fit_fails_and_says_what_may_have_happened() -> None:
    async with (
        listening(answer_slowly(frame("length"), asyncio.Event())) as peer,
        a_client(room_bytes=2 * SIZE - 2) as client,
    ):
        with pytest.raises(BadReply, match=f"{SIZE - 1} at once.*may have taken effect"):
            await read(client, peer.url)
        assert client.room.held == 0


async def test_reader_that_is_cancelled_while_it_waits_leaves_the_queue() -> None:
    go = asyncio.Event()
    async with (
        listening(answer_slowly(frame("length"), go)) as slow,
        a_client(room_bytes=2 * SIZE) as client,
    ):
        first = asyncio.create_task(read(client, slow.url))
        await until(lambda: client.room.held == SIZE)
        second = asyncio.create_task(read(client, slow.url))
        await until(lambda: bool(client.room._waiting))
        second.cancel()
        await asyncio.wait([second])
        assert not client.room._waiting
        go.set()
        async with asyncio.timeout(60):
            assert await first == BODY


async def test_targets_run_in_the_name_of_the_caller() -> None:
    hub, callers = SkillHub(), list[Principal | None]()
    run = hub.agent.run

    async def note_caller(call: Call) -> Result:
        callers.append(caller.get())
        return await run(call)

    hub.agent.run = note_caller  # type: ignore[method-assign]
    before = contextvars.copy_context()
    await hub.call("files.read")
    assert callers == [ALICE]
    # A connection starts another task for each request that leaves another context behind.
    assert contextvars.copy_context() == before


async def test_reader_of_a_stream_reserves_room_and_frees_it() -> None:
    go = asyncio.Event()
    async with (
        listening(answer_slowly(frame("chunks"), go)) as slow,
        a_client(room_bytes=2 * SIZE) as client,
    ):
        first, second = await request(client, slow.url), await request(client, slow.url)
        assert await anext(first.body.chunks()) and await anext(second.body.chunks())
        await first.body.reserve(SIZE)
        waiting = asyncio.create_task(second.body.reserve(SIZE))
        await until(lambda: bool(client.room._waiting))
        await first.body.reserve(0)
        async with asyncio.timeout(60):
            await waiting
        await first.body.reserve(0)  # there is none
        assert client.room.held == SIZE
        second.body.close()
        assert client.room.held == 0
        with pytest.raises(BadReply, match="may have taken effect"):
            await first.body.reserve(SIZE + 1)
