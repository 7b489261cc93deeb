"""One HTTP request, and the way to answer it: at once, or as a stream. Knows no sockets."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dragoman.core.principal import Principal
from dragoman.wire.http import JSON_HEADERS

if TYPE_CHECKING:
    from dragoman.web.http.http1 import Connection

Headers = list[tuple[bytes, bytes]]

STATUS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
_BODILESS = frozenset({204, 304})
LARGE = 64 * 1024
"""Bytes of a body from which on head and body are not joined: that would copy the body."""
_JSON = STATUS[200] + b"content-type: application/json\r\ncontent-length: "


class Request:
    __slots__ = (
        "_connection", "_gone", "answered", "body", "extra", "fields", "keep_alive", "kept",
        "method", "path", "principal", "query", "refusal", "refused", "repeated", "reserved",
        "streaming",
    )  # fmt: skip

    def __init__(self, connection: Connection, method: str, url: bytes, keep_alive: bool) -> None:
        self._connection = connection
        self.method = method
        path, _, self.query = url.partition(b"?")
        self.path = path.decode("latin-1")
        self.fields: dict[bytes, bytes] = {}
        self.repeated: frozenset[bytes] = frozenset()
        """Headers that came more than once; `fields` has them joined."""
        self.body = b""
        self.kept = True
        self.refused = 0
        """413 or 503 where the body is too large, or there is no room for it."""
        self.reserved = 0
        """Bytes of the budget for bodies that it has."""
        self.extra: Headers = []
        """Headers that go with whatever is answered."""
        self.principal: Principal | None = None
        self.refusal: Any = None
        """What the application made of the head, for its own use."""
        self.keep_alive = keep_alive
        self.answered = False
        self.streaming = False
        self._gone: asyncio.Future[None] | None = None

    @property
    def address(self) -> str:
        """Of whoever sent it; empty where that is no IP address."""
        return self._connection.address

    def take_room(self, size: int) -> bool:
        """Reserves so much for its body, in all; False where there is no such room now."""
        return self._connection.take_room(self, size)

    def find_peer(self, find: Callable[[Any], Principal | None]) -> Principal | None:
        """Returns the principal at the other end; calls `find` once for a connection."""
        known = self._connection.peer
        return known[0] if known is not None else self._connection.find_peer(find)

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer, in one write."""
        if self.answered or self.streaming:
            return
        if (
            headers is JSON_HEADERS
            and status == 200
            and self.method == "POST"
            and self.keep_alive
            and not self.extra
        ):  # as nearly all are
            if len(body) < LARGE:
                self._connection.write(b"%b%d\r\n\r\n%b" % (_JSON, len(body), body))
            else:
                self._connection.write_parts((b"%b%d\r\n\r\n" % (_JSON, len(body)), body))
            self._finish()
            return
        lines = [STATUS[status], *[b"%b: %b\r\n" % header for header in headers]]
        lines += [b"%b: %b\r\n" % header for header in self.extra]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if status not in _BODILESS:
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        if self.method != "HEAD":
            lines.append(body)
        self._connection.write(b"".join(lines))
        self._finish()

    def start(self, status: int, headers: Headers) -> None:
        """The head of an answer whose body comes in pieces."""
        if self.answered or self.streaming:
            return
        self.streaming = True
        self.body = b""  # a stream may last, and what was asked is known by now
        self.fields = {}
        lines = [STATUS[status], *[b"%b: %b\r\n" % header for header in headers]]
        lines += [b"%b: %b\r\n" % header for header in self.extra]
        lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self._connection.write(b"".join(lines) + b"\r\n")

    async def write(self, data: bytes) -> None:
        """A piece of the body; waits while the client does not read."""
        if data and self.streaming and not self.answered:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))
            await self._connection.writable()

    def send(self, data: bytes) -> bool:
        """A piece of the body, at once, where the client reads; whether it was sent."""
        if not self.streaming or self.answered or not self._connection.takes_more():
            return False
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def end(self) -> None:
        if self.streaming and not self.answered:
            self._connection.write(b"0\r\n\r\n")
            self._finish()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._connection.loop

    @property
    def lost(self) -> bool:
        return self._connection.lost

    @property
    def reads(self) -> bool:
        return self._connection.takes_more()

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done when the client has gone away."""
        if self._gone is None:
            self._gone = self._connection.loop.create_future()
            if self._connection.lost:
                self._gone.set_result(None)
        return self._gone

    def left(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _finish(self) -> None:
        self.answered = True
        self._connection.finished(self)
