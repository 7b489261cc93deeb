"""A connection, with one request and response at a time. llhttp parses HTTP/1.1.

Everything a server may send is bounded here: the head in bytes, headers and time, the body by its
reader, and unread data by pausing the socket. Knows no addresses and no pool: notifies
a `ConnectionOwner` when the connection is idle or lost.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import NoReturn, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from dragoman.core.deadlines import Deadlines
from dragoman.core.errors import BadReply, TargetFailed, TimedOut, Unreachable
from dragoman.core.structs import Struct

HEAD_BYTES = 64 * 1024
HEADERS = 100
WAITING_BYTES = 256 * 1024
INFLATED_BYTES = 16 * 1024 * 1024
"""Of a compressed body, after decompression."""
_INFLATED = frozenset(("gzip", "x-gzip", "deflate"))
_ANY_WINDOW = 32 + zlib.MAX_WBITS
"""gzip or zlib, as the data says itself."""

# The most common names, so that they need not be decoded. Never grows: servers choose names.
_NAMES = {
    spelling.encode(): name
    for name in (
        "access-control-allow-origin", "access-control-expose-headers", "cache-control",
        "connection", "content-length", "content-type", "date", "keep-alive", "location",
        "mcp-protocol-version", "mcp-session-id", "server", "transfer-encoding", "vary",
        "x-accel-buffering", "x-request-id",
    )
    for spelling in (name, name.title())
}  # fmt: skip

_SPACE = ord(" ")

# Headers that frame or redirect a response: duplicates could be read differently by two readers.
_ONCE = frozenset(("content-encoding", "content-length", "location", "transfer-encoding"))


class ConnectionOwner(Protocol):
    def on_idle(self, connection: Connection) -> None:
        """The response is complete, and another request may follow."""

    def on_lost(self, connection: Connection) -> None:
        """The connection is closed."""


class _Stop(Exception):
    """Raised inside the parser's callbacks to stop parsing."""


class HttpExchange(Struct, eq=False):
    """A request and its response: the `Body` of the reply, once the head has arrived."""

    _connection: Connection
    _loop: asyncio.AbstractEventLoop
    method: str
    _shown: str
    _timeout: float
    _limit: Deadlines
    headers: dict[str, str]
    status: int = 0
    complete: bool = False
    _due: int = 0
    """The key of its deadline."""
    _waiter: asyncio.Future[None] | None = None
    _waiting: bytes | bytearray = b""
    _paused: bool = False
    _collecting: bool = False
    _error: TargetFailed | None = None

    async def head(self) -> None:
        while not self.status:
            if self._error is not None:
                raise self._error
            # Like `_news`, without a coroutine: every request waits here.
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            except BaseException:
                self.close()
                raise
            finally:
                self._waiter = None

    async def read(self, limit: int) -> bytes:
        self._collecting = True
        if self._paused:
            self._resume()
        if not self.complete and int(self.headers.get("content-length", 0)) > limit:
            self.fail(self._too_long(limit))
        while True:
            if len(self._waiting) > limit:
                self.fail(self._too_long(limit))
                raise self._too_long(limit)
            if self._error is not None:
                raise self._error
            if self.complete:
                return self._take()
            await self._news()

    def chunks(self) -> HttpExchange:
        # A stream may last: from here on its reader keeps the time.
        self._limit.cancel(self._due)
        return self

    def __aiter__(self) -> HttpExchange:
        return self

    async def __anext__(self) -> bytes:
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self.complete:
                raise StopAsyncIteration
            await self._news()
        return self._take()

    def close(self) -> None:
        if not self.complete:
            self.fail(Unreachable(f'the answer of "{self._shown}" was closed before its end'))

    # Called by the connection.

    def add(self, data: bytes) -> None:
        # One buffer, not a list of pieces: chunks of two bytes would take twenty times their size.
        if not self._waiting:
            self._waiting = data
        elif isinstance(self._waiting, bytearray):
            self._waiting += data
        else:
            self._waiting = bytearray(self._waiting)
            self._waiting += data
        if len(self._waiting) > WAITING_BYTES and not self._collecting and not self._paused:
            self._paused = True
            self._connection.pause()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def finish(self) -> None:
        self.complete = True
        self._limit.cancel(self._due)
        self.wake()

    def fail(self, error: TargetFailed) -> None:
        if self.complete or self._error is not None:
            return
        self._error = error
        self._limit.cancel(self._due)
        self._connection.drop(self)
        self.wake()

    def fail_reply(self, why: str) -> None:
        self.fail(BadReply(f'the answer of "{self._shown}" cannot be used: {why}'))

    def fail_lost(self, cause: Exception | None) -> None:
        where = "in the middle of its answer" if self.status else "before it answered"
        said = f": {cause}" if cause is not None else ""
        self.fail(Unreachable(f'the connection to "{self._shown}" was lost {where}{said}'))

    def _expire(self) -> None:
        what = "finish its answer" if self.status else "answer"
        self.fail(TimedOut(f'"{self._shown}" did not {what} within {self._timeout:g} s'))

    async def _news(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        except BaseException:
            # Cancelled: closing the connection is how the server learns of it.
            self.close()
            raise
        finally:
            self._waiter = None

    def _take(self) -> bytes:
        data = self._waiting
        self._waiting = b""
        if self._paused:
            self._resume()
        return data if isinstance(data, bytes) else bytes(data)

    def _resume(self) -> None:
        self._paused = False
        self._connection.resume(self)

    def _too_long(self, limit: int) -> BadReply:
        return BadReply(f'the answer of "{self._shown}" is longer than {limit} bytes')


class Connection(asyncio.Protocol):
    __slots__ = (
        "_closed", "_count", "_done", "_encoded", "_eof", "_exchange", "_feed", "_headers", "_home",
        "_in_trailers", "_inflated", "_inflater", "_interim", "_keep", "_loop", "_parser",
        "_problem", "_quiet", "_size", "_transport", "_until_close", "idle_since",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, home: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._home = home
        self._loop = loop
        self._parser = HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._closed = False
        self._eof = False
        self._exchange: HttpExchange | None = None
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        return not self._closed and not self._transport.is_closing()

    def send(
        self, request: bytes, method: str, shown: str, timeout: float, limit: Deadlines
    ) -> HttpExchange:
        headers: dict[str, str] = {}
        exchange = HttpExchange(self, self._loop, method, shown, timeout, limit, headers)
        exchange._due = limit.start(self._loop, exchange._expire)
        self._exchange = exchange
        self._headers = headers
        self._count = 0
        self._size = 0
        self._quiet = 0  # bytes since the last piece of body: head, chunk sizes, trailers
        self._done = self._interim = self._keep = False
        self._in_trailers = self._until_close = False
        self._problem = ""
        self._encoded = False
        self._inflater: zlib._Decompress | None = None
        self._inflated = 0
        self._transport.write(request)
        return exchange

    def pause(self) -> None:
        if self.usable:
            self._transport.pause_reading()

    def resume(self, exchange: HttpExchange) -> None:
        if self._exchange is exchange and self.usable:
            self._transport.resume_reading()

    def drop(self, exchange: HttpExchange) -> None:
        """Closes the connection, unless it already serves another request."""
        if self._exchange is exchange:
            self._exchange = None
            self.abort()

    def abort(self) -> None:
        self._closed = True
        self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # Unsolicited data must not become the next request's response.
            self.abort()
            return
        self._quiet += len(data)
        try:
            self._feed(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self._done:
                exchange.fail_reply(self._problem or f"it is not HTTP ({error})")
                return
            self._keep = False  # more data than the response has
        if self._done:
            self._finish(exchange)
        elif self._quiet > HEAD_BYTES:
            exchange.fail_reply(f"its headers are longer than {HEAD_BYTES} bytes")
        elif exchange.status:
            exchange.wake()

    def eof_received(self) -> None:
        self._eof = True  # asyncio closes the connection next

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._home.on_lost(self)
        del self._parser, self._feed  # they and the connection reference each other
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if self._until_close and self._eof:
            exchange.finish()
        else:
            exchange.fail_lost(exc)

    def _finish(self, exchange: HttpExchange) -> None:
        if exchange._paused:
            exchange._resume()  # while it is still this one's: the next response must be read
        self._exchange = None
        # A response that came before the request was sent in full leaves the rest of it unsent.
        if self._keep and not self._closed and not self._transport.get_write_buffer_size():
            self._home.on_idle(self)
        else:
            self.abort()
        exchange.finish()

    # httptools

    def on_message_begin(self) -> None:
        if self._done:
            raise _Stop

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count = count = self._count + 1
        self._size = size = self._size + len(name) + len(value)
        if count > HEADERS:
            self._refuse(f"it has more than {HEADERS} headers")
        if size > HEAD_BYTES:
            self._refuse(f"its headers are longer than {HEAD_BYTES} bytes")
        if self._in_trailers:
            return  # no client of the hub uses them
        key = _NAMES.get(name) or name.decode("latin-1").lower()
        headers = self._headers
        if key in headers and key in _ONCE:
            self._refuse(f'it has two "{key}" headers')
        if value and value[-1] <= _SPACE:
            value = value.rstrip(b" \t")
        headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        status = self._parser.get_status_code()
        headers = self._headers
        if status < 200 or status > 599:
            if status in {100, 102, 103}:
                self._interim = True
                headers.clear()
                return
            self._refuse(f"its status is {status}")
        framing = headers.get("transfer-encoding")
        if framing is None:
            self._until_close = "content-length" not in headers and status not in {204, 304}
        elif framing.lower() != "chunked":
            self._refuse(f'its transfer encoding is "{framing[:40]}"')
        if "content-encoding" in headers:
            self._take_encoding(headers)
        exchange.status = status
        self._in_trailers = True
        if exchange.method == "HEAD":
            # llhttp does not know the method and would take the next response for this one's body.
            self._until_close = False
            self._done = True

    def on_body(self, data: bytes) -> None:
        if self._done:
            raise _Stop
        self._quiet = 0
        assert self._exchange is not None
        self._exchange.add(self._inflate(data) if self._encoded else data)

    def _take_encoding(self, headers: dict[str, str]) -> None:
        """Decompresses: some servers compress whatever they are asked for."""
        encoding = headers.pop("content-encoding").strip().lower()
        if encoding in _INFLATED:
            headers.pop("content-length", None)  # which is the compressed length
            self._encoded = True
        elif encoding not in ("", "identity"):
            self._refuse("its content encoding was not requested")

    def _inflate(self, data: bytes) -> bytes:
        if self._inflater is None:
            self._inflater = zlib.decompressobj(_ANY_WINDOW)
        try:
            found = self._inflater.decompress(data, INFLATED_BYTES + 1 - self._inflated)
        except zlib.error as error:
            self._refuse(f"its compression is invalid ({error})")
        self._inflated += len(found)
        if self._inflated > INFLATED_BYTES:
            self._refuse(f"it is larger than {INFLATED_BYTES >> 20} MB after decompression")
        return found

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self._done:
            if self._inflater is not None and not self._inflater.eof:
                self._refuse("its compressed data ends too early")
            self._done = True
            self._keep = self._parser.should_keep_alive()

    def _refuse(self, problem: str) -> NoReturn:
        self._problem = problem
        raise _Stop
