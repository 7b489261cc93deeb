"""A connection, with one request and response at a time. llhttp parses HTTP/1.1.

Everything a server may send is bounded here: the head in bytes, headers and time, the body by its
reader, and unread data by pausing the socket. Knows no addresses and no pool: notifies
a `ConnectionOwner` when the connection is idle or lost.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Hashable
from typing import NoReturn, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from dragoman.core.body_budget import AnswerTooLong, BodyBudget
from dragoman.core.call import caller
from dragoman.core.deadlines import Deadlines
from dragoman.core.errors import BadReply, TargetFailed, TimedOut, Unreachable
from dragoman.core.structs import Struct
from dragoman.wire.repeated_head import RepeatedHead, learn_head

HEAD_BYTES = 64 * 1024
HEADERS = 100
WAITING_BYTES = 256 * 1024
INFLATED_BYTES = 16 * 1024 * 1024
"""Of a compressed body, after decompression."""
STEP_BYTES = 64 * 1024
"""Bytes inflated in one step; takes less than a millisecond."""
PIECE_BYTES = 32 * 1024
"""The most that a reader of a stream gets at once: it may hold a thousand events."""
TAKEN_EFFECT = "What was requested may have taken effect all the same"
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

    def pace(self, size: int) -> float:
        """Seconds to pause after so many bytes have been inflated."""

    @property
    def room(self) -> BodyBudget:
        """The budget of large bodies that are being read."""


class _Stop(Exception):
    """Raised inside the parser's callbacks to stop parsing."""


class Inflater:
    """Decompresses a body step by step: a small part of it may have megabytes."""

    __slots__ = ("_has_begun", "_has_more", "_left", "_machine", "size")

    def __init__(self) -> None:
        self._machine = zlib.decompressobj(_ANY_WINDOW)
        self._left = memoryview(b"")
        self._has_begun = False
        self._has_more = False
        """The last step was full, so there may be more of what was fed."""
        self.size = 0
        """Bytes inflated so far."""

    @property
    def is_waiting(self) -> bool:
        """Whether it needs more data; what follows the end is ignored."""
        return self._machine.eof or not (self._left or self._has_more)

    @property
    def is_cut(self) -> bool:
        """Whether the data that came is not complete."""
        return self._has_begun and not self._machine.eof

    def feed(self, data: bytes) -> None:
        self._left = memoryview(data)
        self._has_begun = True

    def step(self) -> bytes:
        # The input of a step is bounded too: empty blocks would be read all at once.
        part = self._left[:STEP_BYTES]
        found = self._machine.decompress(part, STEP_BYTES)
        self._left = self._left[len(part) - len(self._machine.unconsumed_tail) :]
        self._has_more = len(found) == STEP_BYTES
        self.size += len(found)
        return found


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
    _most: int = 0
    """The most bytes that its reader takes at once; 0 before there is one, and for streams."""
    _error: TargetFailed | None = None
    _caller: Hashable = None
    """Whose budget a large body is counted in; None for the hub itself."""
    _room: int = 0
    """Bytes that are reserved for a large body."""
    _waits: bool = False
    """Whether it waits for these."""
    inflater: Inflater | None = None
    """For a compressed body, which is inflated as it is read."""
    received: bool = False
    """All of a compressed body is here."""
    repeated: tuple[tuple[str, str], ...] = ()
    """The earlier values of repeated headers."""

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
        if self.inflater is not None:
            return await self._read_inflated(limit)
        self._most = limit
        if not self.complete:
            self._caller = caller.get()
            if int(self.headers.get("content-length", 0)) > limit:
                self.fail(self._too_long(limit))
            elif len(self._waiting) > WAITING_BYTES:
                self._reserve_body()
        if self._paused and not self._waits:
            self._resume()
        try:
            while True:
                if len(self._waiting) > self._most:
                    self.fail(self._too_long(self._most))
                    raise self._too_long(self._most)
                if self._error is not None:
                    raise self._error
                if self.complete:
                    return self._take()
                await self._news()
        finally:
            if self._room or self._waits:
                self._leave_room()

    def chunks(self) -> HttpExchange:
        # A stream may last: from here on its reader keeps the time.
        self._limit.cancel(self._due)
        return self

    def __aiter__(self) -> HttpExchange:
        return self

    async def __anext__(self) -> bytes:
        if self.inflater is not None:
            return await self._inflate_next(self.inflater)
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self.complete:
                raise StopAsyncIteration
            await self._news()
        if len(self._waiting) <= PIECE_BYTES:
            return self._take()
        piece, self._waiting = bytes(self._waiting[:PIECE_BYTES]), self._waiting[PIECE_BYTES:]
        await self._sleep(0)
        return piece

    async def reserve(self, size: int) -> None:
        if size and not self._room:
            self._caller = caller.get()
            self._reserve(size)
            while self._waits:
                await self._news()
            if self._error is not None:
                raise self._error
        elif not size and self._room:
            self._leave_room()

    def close(self) -> None:
        if self._room:
            self._leave_room()
        if not self.complete:
            self.fail(Unreachable(f'the answer of "{self._shown}" was closed before its end'))

    async def _read_inflated(self, limit: int) -> bytes:
        # Not one buffer: to enlarge one of megabytes copies it, which takes milliseconds.
        self._caller = caller.get()
        limit = min(limit, INFLATED_BYTES, self._connection.room.share)
        parts: list[bytes] = []
        last = bytearray()
        size = 0
        try:
            async for piece in self:
                size += len(piece)
                last += piece
                if len(last) >= STEP_BYTES:
                    parts.append(bytes(last))
                    last.clear()
                if size > limit:
                    self.fail_reply(f"it is longer than {limit} bytes after decompression")
                elif size > WAITING_BYTES and not self._room:
                    self._reserve(limit)
                    while self._waits:
                        await self._news()
            return b"".join([*parts, last])
        finally:
            parts.clear()  # an error keeps this frame
            self._leave_room()

    async def _inflate_next(self, inflater: Inflater) -> bytes:
        while True:
            if self._error is not None:
                raise self._error
            if inflater.is_waiting:
                await self._feed_inflater(inflater)
                continue
            try:
                piece = inflater.step()
            except zlib.error as error:
                self.fail_reply(f"its compression is invalid ({error})")
                continue
            if inflater.size > INFLATED_BYTES:
                self.fail_reply(f"it is larger than {INFLATED_BYTES >> 20} MB after decompression")
                continue
            pause = self._connection.pace(len(piece))
            if pause or not inflater.is_waiting:
                await self._sleep(pause)
            if piece:
                return piece

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except BaseException:
            self.close()  # cancelled, as in `_news`
            raise

    async def _feed_inflater(self, inflater: Inflater) -> None:
        if self._waiting:
            inflater.feed(self._take())
        elif self.complete:
            raise StopAsyncIteration
        elif not self.received:
            await self._news()
        elif inflater.is_cut:
            self.fail_reply("its compressed data ends too early")
        else:
            self._connection.release(self)
            self.finish()

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
        if len(self._waiting) > WAITING_BYTES and not self._paused:
            if self._most and not self._room:
                self._reserve_body()
            if not self._most or self._waits:
                self._paused = True
                self._connection.pause()

    # Room for a large body. All of it is reserved before more is read than a small body has, so
    # that every body that was begun can be read to its end, and none waits while it has room.

    def _reserve_body(self) -> None:
        if "content-length" not in self.headers:
            self._most = min(self._most, self._connection.room.share)
        self._reserve(int(self.headers.get("content-length", self._most)))

    def _reserve(self, size: int) -> None:
        """Reserves room for so many bytes, or waits for it."""
        room = self._connection.room
        if size > room.share:
            self.fail_reply(
                f"it takes up to {size} bytes, and the answers to one caller may take "
                f"{room.share} at once. {TAKEN_EFFECT}; see [limits] result_megabytes"
            )
        elif room.take(self._caller, size):
            self._room = size
        else:
            self._waits = True
            self._room = size  # once it is granted
            if not room.wait(self._caller, size, self):
                self._waits, self._room = False, 0
                self.fail_reply(f"too many large answers wait to be read. {TAKEN_EFFECT}")

    def grant_body(self) -> None:
        """Implements `core.body_budget.BodyWaiter`."""
        self._waits = False
        if self._paused:
            self._resume()
        self.wake()

    def _leave_room(self) -> None:
        size, self._room = self._room, 0
        if self._waits:
            self._waits = False
            self._connection.room.leave(self._caller, self)
        elif size:
            self._connection.room.give_back(self._caller, size)

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def receive(self) -> None:
        """All of a compressed body has come; its reader inflates it and releases the connection."""
        self.received = True
        self.wake()

    def finish(self) -> None:
        self.complete = True
        self._limit.cancel(self._due)
        self.wake()

    def fail(self, error: TargetFailed) -> None:
        if self.complete or self._error is not None:
            return
        self._error = error
        self._waiting = b""  # the error keeps the frames of its readers, and so the exchange
        if self._room or self._waits:
            self._leave_room()
        if self.inflater is not None:
            self.inflater.feed(b"")
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
        if self._waits:
            self.fail_reply(
                f"other large answers left no room for it within {self._timeout:g} s. "
                f"{TAKEN_EFFECT}; see [limits] result_megabytes"
            )
            return
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

    def _too_long(self, limit: int) -> AnswerTooLong:
        return AnswerTooLong(f'the answer of "{self._shown}" is longer than {limit} bytes')


class Connection(asyncio.Protocol):
    __slots__ = (
        "_closed", "_count", "_done", "_eof", "_exchange", "_feed", "_headers", "_home",
        "_in_trailers", "_interim", "_keep", "_known", "_loop", "_parser", "_problem", "_quiet",
        "_size", "_transport", "_until_close", "idle_since",
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
        self._known: tuple[RepeatedHead, dict[str, str]] | None = None
        """The head of a response with status 200, and its headers: most servers repeat it."""
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
        is_first = not self._quiet and not exchange.status
        if is_first and self._repeat_head(exchange, data):
            self._complete(exchange)
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
            if is_first and self._keep and data.startswith(b"HTTP/1.1 200 "):
                self._learn_head(exchange, data)
            self._complete(exchange)
        elif self._quiet > HEAD_BYTES:
            exchange.fail_reply(f"its headers are longer than {HEAD_BYTES} bytes")
        elif exchange.status:
            exchange.wake()

    def _repeat_head(self, exchange: HttpExchange, data: bytes) -> bool:
        """Does what llhttp's callbacks do if `data` is a whole response with a known head. llhttp
        is between two responses, so it need not see this one."""
        known = self._known
        if known is None or exchange.method == "HEAD":
            return False
        found = known[0].find_body(data)
        if found is None:
            return False
        length, body = found
        exchange.headers.update(known[1])
        exchange.headers["content-length"] = length.decode()
        exchange.status = 200
        exchange.add(body)
        self._done = self._keep = True
        return True

    def _learn_head(self, exchange: HttpExchange, data: bytes) -> None:
        headers = exchange.headers
        is_plain = exchange.inflater is None and not exchange.repeated
        if is_plain and "content-length" in headers and exchange.method != "HEAD":
            head = learn_head(data, headers["content-length"].encode("latin-1"))
            self._known = (head, headers.copy()) if head is not None else None

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
            self._complete(exchange)
        elif not exchange.received:
            exchange.fail_lost(exc)

    def _complete(self, exchange: HttpExchange) -> None:
        if exchange.inflater is not None:
            exchange.receive()
        else:
            self.release(exchange)
            exchange.finish()

    def release(self, exchange: HttpExchange) -> None:
        """Lets another request use the connection, if it can be used again."""
        if self._exchange is not exchange:
            return
        if exchange._paused:
            exchange._resume()  # while it is still this one's: the next response must be read
        self._exchange = None
        # A response that came before the request was sent in full leaves the rest of it unsent.
        if self._keep and not self._closed and not self._transport.get_write_buffer_size():
            self._home.on_idle(self)
        else:
            self.abort()

    def pace(self, size: int) -> float:
        return self._home.pace(size)

    @property
    def room(self) -> BodyBudget:
        return self._home.room

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
        if key in headers:
            self._note_repeated(key, headers[key])
        if value and value[-1] <= _SPACE:
            value = value.rstrip(b" \t")
        headers[key] = value.decode("latin-1")

    def _note_repeated(self, key: str, value: str) -> None:
        if key in _ONCE:
            self._refuse(f'it has two "{key}" headers')
        if self._exchange is not None:
            self._exchange.repeated += ((key, value),)

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        status = self._parser.get_status_code()
        headers = self._headers
        if status < 200 or status > 599:
            if status in {100, 102, 103}:
                self._interim = True
                headers.clear()
                exchange.repeated = ()
                return
            self._refuse(f"its status is {status}")
        framing = headers.get("transfer-encoding")
        if framing is None:
            self._until_close = "content-length" not in headers and status not in {204, 304}
        elif framing.lower() != "chunked":
            self._refuse(f'its transfer encoding is "{framing[:40]}"')
        if "content-encoding" in headers:
            self._take_encoding(exchange, headers)
        exchange.status = status
        self._in_trailers = True
        if exchange.method == "HEAD":
            # llhttp does not know the method and would take the next response for this one's body.
            self._until_close = False
            self._done = True

    def on_body(self, data: bytes) -> None:
        exchange = self._exchange
        if self._done or exchange is None:
            raise _Stop
        self._quiet = 0
        exchange.add(data)

    def _take_encoding(self, exchange: HttpExchange, headers: dict[str, str]) -> None:
        """Decompresses: some servers compress whatever they are asked for."""
        encoding = headers.pop("content-encoding").strip().lower()
        if encoding in _INFLATED:
            headers.pop("content-length", None)  # which is the compressed length
            exchange.inflater = Inflater()
        elif encoding not in ("", "identity"):
            self._refuse("its content encoding was not requested")

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self._done:
            self._done = True
            self._keep = self._parser.should_keep_alive()

    def _refuse(self, problem: str) -> NoReturn:
        self._problem = problem
        raise _Stop
