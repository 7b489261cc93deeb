"""A server that writes raw bytes, valid or invalid, as a test wants."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from dragoman.net.client import ROOM_BYTES, OutboundHttp
from dragoman.net.dialing import Resolve, system_resolve
from dragoman.net.pool import CONNECTIONS

BOUND = 3.0  # less than an idle connection lasts, so that its end is not taken for another
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Talk:
    """One connection, seen from the server."""

    peer: Peer
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        """The next request, head and body; raises IncompleteReadError when there is none."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        request = head + await self.reader.readexactly(length)
        self.peer.requests.append(request)
        return request

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Returns once the client has closed the connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.peer.gone.set()

    def reset(self) -> None:
        """Ends the connection with an RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class Peer:
    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@asynccontextmanager
async def listening(
    talk: Callable[[Talk], Awaitable[None]],
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[Peer]:
    """Runs `talk` for each connection that comes in, and closes it after."""
    peer = Peer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        peer.connections += 1
        try:
            await talk(Talk(peer, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def always(answer: bytes) -> Callable[[Talk], Awaitable[None]]:
    """Gives the same answer to every request, keeping the connection."""

    async def talk(connection: Talk) -> None:
        while True:
            await connection.request()
            await connection.say(answer)

    return talk


def once(answer: bytes) -> Callable[[Talk], Awaitable[None]]:
    """Gives one answer and closes the connection."""

    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(answer)

    return talk


def lasting(answer: bytes) -> Callable[[Talk], Awaitable[None]]:
    """Gives one answer, says nothing more and waits until the client closes."""

    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(answer)
        await connection.gone()

    return talk


@asynccontextmanager
async def a_client(
    resolve: Resolve = system_resolve,
    connections: int = CONNECTIONS,
    room_bytes: int = ROOM_BYTES,
) -> AsyncIterator[OutboundHttp]:
    client = OutboundHttp(resolve, connections=connections, room_bytes=room_bytes)
    try:
        yield client
    finally:
        await client.close()


async def get(
    client: OutboundHttp, url: str, path: str = "", limit: int = 1_000_000
) -> tuple[int, bytes]:
    """Asks the server configured as `url` and reads the whole answer."""
    outlet = client.open_configured(url, allow_private=False)
    reply = await outlet.request("GET", url + path, {}, timeout=BOUND)
    return reply.status, await reply.body.read(limit)
