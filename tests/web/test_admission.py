"""Requests whose admission takes a while: what is read meanwhile, and the order of responses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dragoman.core.background import Work
from dragoman.core.principal import Principal
from dragoman.web.http.connection_limits import BODY_BYTES
from dragoman.web.http.listener import HttpListener
from dragoman.web.http.request import ServerRequest

pytestmark = pytest.mark.promise("O1")

SOON = 10.0
ANN = Principal("user", "corp/ann")


class Door:
    """Admits `/slow` once the gate is open, `/never` not, and everything else at once."""

    listener: HttpListener

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()
        self.seen: list[tuple[str, int, str]] = []

    def admit(self, request: ServerRequest) -> bool | Callable[[], Work[bool]]:
        if request.path.startswith("/fast"):
            request.principal = ANN
            return True

        async def later() -> bool:
            self.asked.set()
            await self.gate.wait()
            if request.path == "/broken":
                raise RuntimeError("out of order")
            request.principal = ANN if request.path.startswith("/slow") else None
            return request.principal is not None

        return later

    def answer(self, request: ServerRequest) -> Work[None] | None:
        who = str(request.principal) if request.principal else "stranger"
        self.seen.append((request.path, len(request.body), who))
        status = 200 if request.principal else 401
        request.reply(status, [(b"content-type", b"text/plain")], request.path.encode())
        return None


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, path: str, body: bytes = b"", *headers: str) -> None:
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def read(self) -> tuple[int, str]:
        async with asyncio.timeout(SOON):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head.split()[1]), (await self.reader.readexactly(length)).decode()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Door, Client]]:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sock.setblocking(False)
    door = Door()
    listener = door.listener = HttpListener(door, sock)
    await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
    try:
        yield door, Client(reader, writer)
    finally:
        writer.close()
        listener.stop_accepting()
        listener.abort()


@pytest.mark.parametrize("size", [0, 10, 3_000, 60_000, 900_000])
async def test_body_is_complete_after_a_late_admission(size: int) -> None:
    async with connected() as (door, client):
        client.send("/slow", b"x" * size)
        await asyncio.wait_for(door.asked.wait(), SOON)
        assert door.seen == []
        door.gate.set()
        assert await client.read() == (200, "/slow")
        assert door.seen == [("/slow", size, str(ANN))]
        client.send("/fast", b"y")
        assert await client.read() == (200, "/fast"), "the connection goes on"


async def test_chunked_body_is_complete_after_a_late_admission() -> None:
    async with connected() as (door, client):
        client.writer.write(b"POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(50):
            client.writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        client.writer.write(b"0\r\n\r\n")
        await asyncio.wait_for(door.asked.wait(), SOON)
        door.gate.set()
        assert await client.read() == (200, "/slow")
        assert door.seen == [("/slow", 50 * 4096, str(ANN))]


async def test_no_more_is_read_before_the_admission() -> None:
    """A stranger must not fill the memory of the hub with the body of a request."""
    async with connected() as (door, client):
        client.send("/slow", b"x" * (BODY_BYTES - 1))
        with pytest.raises(TimeoutError):  # the socket's buffers are smaller than that
            await asyncio.wait_for(client.writer.drain(), 0.3)
        door.gate.set()
        await asyncio.wait_for(client.writer.drain(), SOON)
        assert await client.read() == (200, "/slow")
        assert door.seen == [("/slow", BODY_BYTES - 1, str(ANN))]


@pytest.mark.parametrize("size", [0, 10, 200_000])
async def test_body_of_a_refused_request_is_discarded(size: int) -> None:
    async with connected() as (door, client):
        client.send("/never", b"x" * size)
        await asyncio.wait_for(door.asked.wait(), SOON)
        door.gate.set()
        assert await client.read() == (401, "/never")
        assert door.seen == [("/never", 0, "stranger")]
        client.send("/fast")
        assert await client.read() == (200, "/fast")


async def test_requests_are_answered_in_order() -> None:
    async with connected() as (door, client):
        paths = ["/slow/1", "/fast/2", "/never/3", "/slow/4", "/fast/5"]
        for path in paths:
            client.send(path, b"body")
        await asyncio.wait_for(door.asked.wait(), SOON)
        door.gate.set()
        found = [await client.read() for _ in range(5)]
        assert [path for _, path in found] == paths
        assert [status for status, _ in found] == [200, 200, 401, 200, 200]


async def test_client_that_waits_for_100_continue_gets_it_after_the_admission() -> None:
    async with connected() as (door, client):
        client.writer.write(
            b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        )
        await asyncio.wait_for(door.asked.wait(), SOON)
        door.gate.set()
        async with asyncio.timeout(SOON):
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        client.writer.write(b"body")
        assert await client.read() == (200, "/slow")


async def test_client_may_leave_before_the_admission(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (door, client):
        client.send("/slow", b"body")
        await asyncio.wait_for(door.asked.wait(), SOON)
        client.writer.transport.abort()
        door.gate.set()
        async with asyncio.timeout(SOON):
            while door.listener.connections:
                await asyncio.sleep(0.01)
        assert caplog.text == ""


async def test_admission_that_fails_admits_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (door, client):
        client.send("/broken", b"body")
        await asyncio.wait_for(door.asked.wait(), SOON)
        door.gate.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.read()
        assert door.seen == [] and "out of order" in caplog.text
