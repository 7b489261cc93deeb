"""The least an HTTP/1.1 server and client can do on uvloop: the two ends of the limit rows.

No routing, no status but 200, Content-Length bodies only, one request in flight a connection.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable

import uvloop

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
FAILED = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"upstream failed"}}'


def split_message(data: bytes) -> tuple[bytes, bytes] | None:
    """The body of the first message and what follows it, or None while it is not all there."""
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    head = data[:head_end].lower()
    field = head.find(b"content-length:")
    length = 0
    if field > 0:
        line_end = head.find(b"\r\n", field)
        length = int(head[field + 15 : line_end if line_end > 0 else head_end])
    end = head_end + 4 + length
    if len(data) < end:
        return None
    return data[head_end + 4 : end], data[end:]


class ServerConnection(asyncio.Protocol):
    __slots__ = ("buffer", "busy", "on_request", "transport")

    def __init__(self, on_request: Callable[["ServerConnection", bytes], None]) -> None:
        self.on_request = on_request
        self.buffer = b""
        self.busy = False

    def connection_made(self, transport) -> None:
        self.transport = transport

    def connection_lost(self, error) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        if not self.busy:
            self.next_request()

    def next_request(self) -> None:
        message = split_message(self.buffer)
        if message is not None:
            body, self.buffer = message
            self.busy = True
            self.on_request(self, body)

    def reply(self, body: bytes | None) -> None:
        if self.transport is None:
            return
        if body is None:
            body = FAILED
        self.transport.write(OK + str(len(body)).encode() + b"\r\n\r\n" + body)
        self.busy = False
        if self.buffer:
            self.next_request()


class ClientConnection(asyncio.Protocol):
    __slots__ = ("buffer", "dead", "on_reply", "pool", "transport")

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.buffer = b""
        self.dead = False
        self.on_reply: Callable[[bytes | None], None] | None = None

    def connection_made(self, transport) -> None:
        self.transport = transport

    def connection_lost(self, error) -> None:
        self.dead = True
        on_reply, self.on_reply = self.on_reply, None
        if on_reply:
            on_reply(None)

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        message = split_message(self.buffer)
        if message is None:
            return
        self.buffer = b""
        on_reply, self.on_reply = self.on_reply, None
        self.pool.free.append(self)
        if on_reply:
            on_reply(message[0])


MCP = (b"/mcp", b"accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28")
A2A = (b"/a2a", b"a2a-version: 1.0")


class Pool:
    """Keep-alive connections to one server; the one used last is used next."""

    def __init__(self, port: int, protocol: tuple[bytes, bytes] = MCP) -> None:
        self.port = port
        self.free: list[ClientConnection] = []
        self.dialing: set[asyncio.Task] = set()
        self.head = (
            b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"%b\r\ncontent-length: " % protocol
        )

    def send(self, body: bytes, on_reply: Callable[[bytes | None], None]) -> None:
        request = self.head + str(len(body)).encode() + b"\r\n\r\n" + body
        while self.free:
            connection = self.free.pop()
            if not connection.dead:
                connection.on_reply = on_reply
                connection.transport.write(request)
                return
        task = asyncio.get_running_loop().create_task(self.dial(request, on_reply))
        self.dialing.add(task)
        task.add_done_callback(self.dialing.discard)

    async def dial(self, request: bytes, on_reply: Callable[[bytes | None], None]) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: ClientConnection(self), "127.0.0.1", self.port
        )
        connection.on_reply = on_reply
        connection.transport.write(request)


def serve(
    port: int,
    on_request: Callable[[ServerConnection, bytes], None],
    prepare: Callable[[], Awaitable[None]] | None = None,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        if prepare:
            await prepare()
        server = await loop.create_server(
            lambda: ServerConnection(on_request), "127.0.0.1", port, backlog=2048
        )
        stopped = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()
        server.close()

    uvloop.run(main())
