"""One HTTP request and its response: whole, or as a stream. Knows no sockets."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.core.principal import Principal
from dragoman.wire.http import JSON_HEADERS

if TYPE_CHECKING:
    from dragoman.web.http.http1 import HttpConnection

Headers = list[tuple[bytes, bytes]]

STATUS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
_BODILESS = frozenset({204, 304})
LARGE = 64 * 1024
"""Bytes of a body from which on head and body are not joined: that would copy the body."""
_JSON = STATUS[200] + b"content-type: application/json\r\ncontent-length: "


class ServerRequest(msgspec.Struct, eq=False):
    connection: Any  # a Connection; msgspec resolves annotations, and http1 imports this module
    loop: asyncio.AbstractEventLoop
    method: str
    path: str
    query: bytes
    keep_alive: bool
    fields: dict[bytes, bytes]
    repeated: frozenset[bytes]
    """Headers that came more than once; `fields` has their values joined."""
    body: bytes = b""
    kept: bool = True
    """Whether its body is read."""
    refused: int = 0
    """413, 503 or 400 if the body is too large, there is no room for it, or it has too many
    values; 401 if its sender has lost access."""
    reserved: int = 0
    """Bytes that it has of the budget for bodies."""
    extra: Headers = []
    """Headers of any response to it."""
    find_headers: Callable[[], Headers] | None = None
    """Finds more of them when the response is sent."""
    scope_challenge: tuple[bytes, bytes] | None = None
    """The header of a response that its credential may not be used for calls; None if it may."""
    principal: Principal | None = None
    refusal: Any = None
    """What the application decided by the head, for its own use."""
    admission: asyncio.Task[None] | None = None
    """Decides whether the request is served; None once it is decided."""
    answered: bool = False
    streaming: bool = False
    disconnected: asyncio.Future[None] | None = None

    @property
    def address(self) -> str:
        """The client's IP address; empty if it has none."""
        return self._connection.address

    @property
    def _connection(self) -> HttpConnection:
        connection: HttpConnection = self.connection
        return connection

    def take_room(self, size: int) -> bool:
        """Reserves that many bytes for its body, in all; False if there is no room now."""
        return self._connection.take_room(self, size)

    def hand_over(self, principal: Principal | None) -> None:
        """Makes it the request of another principal."""
        self._connection.hand_over(self, principal)

    def pace(self, size: int) -> float:
        """Seconds to pause after work on so many bytes of its body."""
        return self._connection.pace(size)

    def find_peer(self, find: Callable[[Any], Principal | None]) -> Principal | None:
        """Returns the principal at the other end; calls `find` once for a connection."""
        known = self._connection.peer
        return known[0] if known is not None else self._connection.find_peer(find)

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends the whole response in one write."""
        if self.answered or self.streaming:
            return
        connection: HttpConnection = self.connection
        if (
            headers is JSON_HEADERS
            and status == 200
            and self.method == "POST"
            and self.keep_alive
            and not self.extra
            and self.find_headers is None
        ):  # as nearly all are
            if len(body) < LARGE:
                length = str(len(body)).encode()  # joining takes half the time of formatting
                connection.finish(self, b"".join((_JSON, length, b"\r\n\r\n", body)))
            else:
                connection.write_parts((b"%b%d\r\n\r\n" % (_JSON, len(body)), body))
                connection.finish(self)
            return
        lines = [STATUS[status], *[b"%b: %b\r\n" % header for header in headers]]
        lines += [b"%b: %b\r\n" % header for header in self._list_extra()]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if status not in _BODILESS:
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        if self.method != "HEAD":
            lines.append(body)
        connection.finish(self, b"".join(lines))

    def start(self, status: int, headers: Headers) -> None:
        """Sends the head of a streamed response."""
        if self.answered or self.streaming:
            return
        self.streaming = True
        self.body = b""  # a stream may last, and the request has been parsed
        self.fields = {}
        lines = [STATUS[status], *[b"%b: %b\r\n" % header for header in headers]]
        lines += [b"%b: %b\r\n" % header for header in self._list_extra()]
        lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self._connection.write(b"".join(lines) + b"\r\n")

    def _list_extra(self) -> Headers:
        return [*self.extra, *self.find_headers()] if self.find_headers is not None else self.extra

    async def write(self, data: bytes) -> None:
        """Sends a piece of the body; waits while the client does not read."""
        if data and self.streaming and not self.answered:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))
            await self._connection.wait_writable()

    def send(self, data: bytes) -> bool:
        """Sends a piece of the body if the client reads; returns whether it was sent."""
        if not self.streaming or self.answered or not self._connection.is_read():
            return False
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def end(self) -> None:
        if self.streaming and not self.answered:
            self._connection.finish(self, b"0\r\n\r\n")

    @property
    def lost(self) -> bool:
        return self._connection.lost

    @property
    def reads(self) -> bool:
        return self._connection.is_read()

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done when the client has disconnected."""
        if self.disconnected is None:
            self.disconnected = self.loop.create_future()
            if self._connection.lost:
                self.disconnected.set_result(None)
        return self.disconnected

    def disconnect(self) -> None:
        if self.disconnected is not None and not self.disconnected.done():
            self.disconnected.set_result(None)
