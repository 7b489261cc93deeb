"""The HTTP/1.1 server, on llhttp: one connection, its requests one after the other.

The application gets a request's head first and decides whether its body is read; it answers when
the body is complete, within limits of size and time. The response is one write, or a stream. Knows
nothing of routes or authentication.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context
from typing import Any, Protocol, cast

import httptools

from dragoman.core.access import WhyEnded
from dragoman.core.background import Work, resolve, start_task
from dragoman.core.body_budget import BodyBudget
from dragoman.core.principal import Principal
from dragoman.web.http.connection_limits import BODY_BYTES, ConnectionLimits
from dragoman.web.http.request import STATUS, ServerRequest
from dragoman.wire.json import MAX_TOKENS, count_tokens
from dragoman.wire.repeated_head import RepeatedHead, learn_head

log = logging.getLogger(__name__)

HEAD_SECONDS = 10.0
"""Time for the head of a request, also of the first on a new connection."""
BODY_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 75.0
SCARCE_SECONDS = 5.0
"""Keep-alive of connections without a principal while connections are scarce."""
LAST_SECONDS = 10.0
"""Time for written data to leave a connection that is being closed."""
HEAD_BYTES = 64 * 1024
DRAIN_BYTES = 4 * BODY_BYTES
"""A body over the limit but under this is read and discarded, so that its sender reads the
response."""
BUDGET_BYTES = 64 * 1024 * 1024
SMALL_BYTES = 16 * 1024
"""A smaller body is not counted: a principal that has used up its budget can still send requests
and cancel them."""
FRAMING_PER_BYTE = 4
"""Bytes of chunk sizes and line ends that may come with a byte of a body, beyond `HEAD_BYTES`.
Chunks of one byte have five, and those that programs send while they write JSON less than two."""
MAX_PIPELINED = 16
"""Requests that may wait behind the one being answered; no more are parsed until there is room."""
SLICE_BYTES = 4096
"""The parser cannot be stopped, so it is fed in slices."""
PIECES_A_TURN = 1000
"""How much of one connection is parsed before it yields to others, in pieces of bodies."""
PIECES_A_REQUEST = 25
"""What parsing and beginning a request counts for."""
ENDING_SECONDS = 0.25
"""Time for the request of a principal that has lost access to end by itself."""
UNREAD_BYTES = 1024 * 1024
"""Bytes buffered for a client that does not read, before its stream waits."""
UNREAD_BYTES_ALL = 256 * 1024 * 1024
"""Bytes buffered for all clients; beyond this the slowest readers are disconnected."""
UNREAD_SECONDS = 60.0
"""A client that has read nothing for this long is disconnected."""

NEVER = float("inf")
RETRY_AFTER = b"retry-after: 1\r\n"
_SPACE = ord(" ")
_PLAIN_TEXT = [(b"content-type", b"text/plain")]


AdmitLater = Callable[[], Work[bool]]
KnownHead = tuple[RepeatedHead, str, str, bytes, dict[bytes, bytes]]
"""A head, with its method, path, query and headers."""


class Application(Protocol):
    def admit(self, request: ServerRequest) -> bool | AdmitLater:
        """Whether the body is read; otherwise it is discarded without waiting for it. Returns what
        finds out if that may take a while: no more of the connection is read meanwhile."""

    def answer(self, request: ServerRequest) -> Work[None] | None: ...


_NONE: frozenset[bytes] = frozenset()
_OFFERING = frozenset({b"connection", b"upgrade", b"http2-settings"})


class HttpConnection(asyncio.Protocol):
    # An instance with more than 30 attributes in a dictionary loses the fast path to all of them.
    __slots__ = (
        "_admitting", "_app", "_at_body", "_body", "_budget", "_closing", "_current", "_discarding",
        "_drained", "_due", "_fields", "_going_on", "_head_bytes", "_held", "_idle", "_in_head",
        "_input", "_known", "_last", "_length", "_parser", "_paused", "_pausing", "_pieces",
        "_queue", "_reading", "_register", "_repeated", "_repeated_before", "_resuming", "_runner",
        "_sample", "_size", "_task", "_timed", "_timer", "_tokens", "_transport", "_unfinished",
        "_unread", "_url", "_waiter", "_waiting", "_without_offer", "is_stranger", "loop", "lost",
        "owner", "peer",
    )  # fmt: skip

    def __init__(
        self,
        app: Application,
        register: ConnectionLimits,
        loop: asyncio.AbstractEventLoop,
        budget: BodyBudget,
    ) -> None:
        self.loop = loop
        self.lost = False
        self.owner: Hashable = ""
        """The client's address, or the principal once a request has been authenticated."""
        self.is_stranger = True
        self.peer: tuple[Principal | None] | None = None
        """The principal at the other end, once `find_peer` has looked for it."""
        self._app = app
        self._register = register
        self._budget = budget
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._reading: ServerRequest | None = None
        """The request being received."""
        self._current: ServerRequest | None = None
        """The request being answered."""
        self._queue: deque[ServerRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._runner: asyncio.Task[None]
        """The task of the newest request."""
        self._waiter: asyncio.Future[tuple[ServerRequest, Work[None] | None] | None] | None = None
        """What the task of an answered request waits for: the next request, or None at the end."""
        self._timer: asyncio.TimerHandle | None = None
        self._timed = 0.0  # when it began to wait
        self._due = NEVER
        """When the wait times out. The timer may fire earlier and is then set again, so that a busy
        connection sets no timer for each request."""
        self._known: KnownHead | None = None
        """The head of an earlier request, which most clients repeat."""
        self._sample = b""  # data that begins with a head to remember
        self._url = b""
        self._fields: dict[bytes, bytes] = {}
        self._repeated: frozenset[bytes] = frozenset()
        self._body: bytes | bytearray = b""
        self._size = 0
        """Bytes of the body so far."""
        self._length = 0
        """Its Content-Length."""
        self._tokens = 0
        """Structural characters of JSON in the pieces of a large body so far."""
        self._pausing: asyncio.TimerHandle | None = None
        """Ends a pause that lets other connections be read."""
        self._head_bytes = 0
        """Bytes of the head so far, or after it of the rest of the request."""
        self._at_body = 0
        """The value of `_head_bytes` at the last piece of the body."""
        self._waiting = 0
        """Bytes that `_reading` needs of the budget, while it waits for them."""
        self._input: memoryview | None = None
        """Data that was read and not parsed yet; no more is read meanwhile."""
        self._held: tuple[Principal | None, int] | None = None
        """The principal and size of input that waits behind a full queue."""
        self._resuming = False
        self._going_on = False
        self._paused = False
        self._pieces = 0
        self._admitting = False  # whether `_reading` waits for its admission
        self._closing = False  # whether nothing more is parsed
        self._last = b""
        """Sent after the last response, before the connection is closed."""
        self._drained: asyncio.Future[None] | None = None
        self._unread = 0, NEVER
        """Bytes that the client has not read, and since when."""
        self._unfinished = False
        """A request has begun and not ended."""
        self._in_head = True
        self._discarding = False
        """The rest of the body is discarded: the request is or will be answered without it."""
        self._idle = False  # between two requests
        self._without_offer = b""
        """The head of a request that offers an upgrade, rewritten without the offer."""
        self._repeated_before: frozenset[bytes] = frozenset()
        """The headers that such a head repeats; the rewritten one has them joined."""

    # --- asyncio.Protocol ----------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The client's IP address; empty if it has none."""
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) and peer else ""

    @property
    def is_encrypted(self) -> bool:
        return self._transport.get_extra_info("sslcontext") is not None

    def find_peer(self, find: Callable[[Any], Principal | None]) -> Principal | None:
        principal = find(self._transport)
        self.peer = (principal,)
        return principal

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES)
        peer = transport.get_extra_info("peername")
        self.owner = peer[0] if isinstance(peer, tuple) else ""
        if self._register.add(self):
            self._time(HEAD_SECONDS)
        else:
            self._refuse(503, b"too many connections; try again shortly", RETRY_AFTER)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._register.discard(self)
        self._due = NEVER
        if self._timer is not None:
            self._timer.cancel()
        if self._pausing is not None:
            self._pausing.cancel()
        self._input = None
        self._release_input()
        self._forget_unanswered()
        del self._parser  # a reference cycle, which would need the garbage collector
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        # Not cancelled: the error would keep the frame of the task, and so the connection.
        resolve(self._waiter, None)
        if self._current is not None:
            self._current.disconnect()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._idle:
            self._idle = False
            self._due = NEVER
            if self._repeat_head(data):
                return
        if self._input is not None:  # read before the pause took effect
            self._input = memoryview(bytes(self._input) + data)
        elif len(data) > SLICE_BYTES and self._size + len(data) > self._length:
            self._input = memoryview(data)
            self._parse_input()
        else:
            self._feed(data)
        if self._size > SMALL_BYTES and self._unfinished:
            self._pause_body(len(data))

    def _pause_body(self, size: int) -> None:
        """Stops reading a large body for a moment if its principal sends too fast."""
        seconds = self.pace(size)
        if seconds and self._pausing is None and not self.lost:
            self._pausing = self.loop.call_later(seconds, self._end_pause)
            self._adjust_reading()

    def pace(self, size: int) -> float:
        """Seconds to pause after work on so many bytes of a body."""
        return self._budget.pace(self.owner, size)

    def _end_pause(self) -> None:
        self._pausing = None
        self._adjust_reading()

    def _parse_input(self) -> None:
        """Parses input while there is room for requests, and until it is the turn of others."""
        self._release_input()
        self._pieces = 0
        while (data := self._input) is not None and not self._closing:
            if self._pieces >= PIECES_A_TURN:
                self._resume_soon()
                break
            if self._waiting or self._drained is not None or self._admitting:
                break
            if len(self._queue) >= MAX_PIPELINED:
                self._hold_input(len(data))
                break
            self._input = data[SLICE_BYTES:] or None
            self._feed(data[:SLICE_BYTES])
        self._adjust_reading()

    def _resume_soon(self) -> None:
        if self._input is not None and not self._resuming:
            self._resuming = True
            self.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = False
        if not self.lost and not self._closing:
            self._parse_input()

    def _hold_input(self, size: int) -> None:
        """Charges input behind a full queue to the budget."""
        owner = self._queue[-1].principal
        if self._budget.take(owner, size):
            self._held = owner, size
        else:
            self._refuse(503, b"too many requests are waiting; try again shortly", RETRY_AFTER)

    def _release_input(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._budget.give_back(*held)

    def _feed(self, data: bytes | memoryview) -> None:
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._feed_after_upgrade(memoryview(data)[offer.args[0] :])
        except Exception:  # of the parser, or of the application that admits the request
            self._refuse(400, b"invalid HTTP request")
        if self._closing:
            return
        if self._unfinished and not self._in_head:
            self._check_framing()
        elif self._head_bytes > HEAD_BYTES:
            self._refuse(431, b"the head of the request is too large")
        if self._current is None and self._due is NEVER and not self._closing:
            self._time(HEAD_SECONDS if self._reading is None else BODY_SECONDS)

    def _repeat_head(self, data: bytes) -> bool:
        """Begins a request if `data` is a whole one with the head of the last one. llhttp is
        between two requests, so it need not see this one."""
        known = self._known
        found = known[0].find_body(data) if known is not None else None
        if known is None or found is None:
            self._sample = data if len(data) <= SLICE_BYTES else b""
            return False
        _, method, path, query, fields = known
        length, body = found
        fields = fields.copy()
        fields[b"content-length"] = length
        request = ServerRequest(self, self.loop, method, path, query, True, fields, _NONE)
        try:
            admitted = self._app.admit(request)
        except Exception:
            self._refuse(400, b"invalid HTTP request")
            return True
        if admitted is True and not self.is_stranger and self._drained is None:  # as for most
            request.body = body
            self._begin(request)
            return True
        self.on_message_begin()  # from here on as llhttp's callbacks do
        self._in_head = False
        self._fields, self._length = fields, len(body)
        self._receive(request, admitted)
        if self._reading is not None:
            self._size, self._body = len(body), body
        self.on_message_complete()
        return True

    def _check_framing(self) -> None:
        """Bounds chunk sizes, their extensions and trailers, whether the body is kept or not."""
        framing = self._head_bytes - self._size
        if (
            self._head_bytes - self._at_body > HEAD_BYTES
            or framing > HEAD_BYTES + FRAMING_PER_BYTE * self._size
        ):
            self._refuse(413, b"too much chunk framing around the body of the request")

    def _feed_after_upgrade(self, rest: memoryview) -> None:
        """Continues after a request that offers h2c, as curl and Java's client do. llhttp takes
        such a head for the whole request; it is parsed again without the offer, followed by `rest`.
        Every turn of the loop takes the head of a request out of `rest`, so it ends."""
        while not self._closing:
            head, self._without_offer = self._without_offer, b""
            self._parser = httptools.HttpRequestParser(self)
            try:
                self._parser.feed_data(head)
            except httptools.HttpParserError:  # also another upgrade, which was removed
                self._refuse(400, b"invalid HTTP request")
                return
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                rest = rest[max(1, offer.args[0]) :]
            except httptools.HttpParserError:
                self._refuse(400, b"invalid HTTP request")
                return
            else:
                return

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Stops reading from a client that does not read its responses."""
        if self._drained is None:
            self._drained = self.loop.create_future()
            self._unread = self._transport.get_write_buffer_size(), self.loop.time()
            self._adjust_reading()
            self._leave_others()

    def _leave_others(self) -> None:
        """Bounds the buffered responses of all clients: small requests may have large responses."""
        waiting = [one for one in self._register if one._drained is not None]
        unread = sum(one._transport.get_write_buffer_size() for one in waiting)
        if unread > UNREAD_BYTES_ALL:
            for one in sorted(waiting, key=lambda one: one._unread[1]):
                if one is not self and unread > UNREAD_BYTES_ALL:
                    unread -= one._transport.get_write_buffer_size()
                    one._transport.abort()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
        self._go_on()

    def _adjust_reading(self) -> None:
        """Reads unless earlier input has to wait: TCP then slows the client down."""
        paused = bool(
            self._queue
            or self._waiting
            or self._input is not None
            or self._drained is not None
            or self._pausing is not None
            or self._admitting
        )
        if paused != self._paused and not self.lost:
            self._paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # --- llhttp's callbacks --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._unfinished = self._in_head = True
        self._discarding = False
        self._url = b""
        self._fields = {}
        self._repeated = frozenset()
        self._body = b""
        self._size = self._length = self._tokens = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # trailers are ignored
        name = name.lower()
        if value and value[-1] <= _SPACE:  # RFC 9110, 5.5: not part of it; llhttp keeps it
            value = value.rstrip(b" \t")
        fields = self._fields
        if name in fields:
            self._repeated |= {name}
            value = fields[name] + b", " + value
        fields[name] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        sample, self._sample = self._sample, b""
        if self._closing:
            return  # after a refused request in the same packet
        if self._parser.should_upgrade():
            self._decline_upgrade()
            return
        if b"transfer-encoding" in self._fields and not self._is_chunked_only():
            return
        if self._head_bytes > HEAD_BYTES and _size(self._url, self._fields) > HEAD_BYTES:
            self._refuse(431, b"the head of the request is too large")
            return
        self._head_bytes = self._at_body = 0
        self._pieces += PIECES_A_REQUEST
        parser = self._parser
        keep = parser.should_keep_alive()
        if not keep and parser.get_http_version() not in ("1.1", "1.0"):
            self._refuse(505, b"unsupported HTTP version: use HTTP/1.1")
            return
        method, (path, _, query) = parser.get_method(), self._url.partition(b"?")
        repeated = self._repeated
        if self._repeated_before:
            repeated |= self._repeated_before
            self._repeated_before = _NONE
        self._repeated = repeated
        text, where = method.decode("latin-1"), path.decode("latin-1")
        if sample and keep and not repeated and b"expect" not in self._fields:
            length = self._fields.get(b"content-length", b"-")
            if (head := learn_head(sample, length)) is not None:
                self._known = head, text, where, query, self._fields.copy()
        self._admit(text, where, query, keep)

    def _admit(self, method: str, path: str, query: bytes, keep: bool) -> None:
        """Begins a request whose head is complete."""
        loop, fields = self.loop, self._fields
        request = ServerRequest(self, loop, method, path, query, keep, fields, self._repeated)
        admitted = self._app.admit(request)
        length = fields.get(b"content-length", b"")
        self._length = int(length) if length.isdigit() else 0
        self._receive(request, admitted)

    def _receive(self, request: ServerRequest, admitted: bool | AdmitLater) -> None:
        """Reads or discards the body of a request, or waits for its admission."""
        if admitted is True or admitted is False:
            request.kept = admitted
            self._begin_body(request)
        else:
            self._reading = request
            self._admitting = True
            self._due = NEVER  # the application has a timeout of its own
            request.admission = start_task(self._admit_later(request, admitted()), self.loop)
            self._adjust_reading()

    def _begin_body(self, request: ServerRequest) -> None:
        """Reads or discards the body of a request, some of which may have been read already."""
        if self.is_stranger and request.principal is not None and not self._identify(request):
            return
        if not request.kept:  # the response need not wait for a discarded body
            self._discarding = True
            self._body = b""
            self._ready(request)
            return
        self._reading = request
        self._due = NEVER  # the body has a timeout of its own
        if self._length > SMALL_BYTES:
            self._begin_large_body(request, self._length)
        if b"expect" in self._fields and self._continues():
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._size > SMALL_BYTES:
            self._takes_more(request)

    async def _admit_later(self, request: ServerRequest, admission: Work[bool]) -> None:
        try:
            request.kept = await admission
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            self._transport.abort()
            return
        request.admission = None
        if request is self._reading:
            self._reading = None
            self._admitting = False
            self._begin_body(request)
        elif request in self._queue:  # with its body
            if self.is_stranger and request.principal is not None and not self._identify(request):
                self._queue.clear()
                return
            if not request.kept:
                request.body = b""
        self._go_on()

    def _identify(self, request: ServerRequest) -> bool:
        if self._register.identify(self, request.principal):
            return True
        self._refuse(503, b"too many connections of one principal; try again shortly", RETRY_AFTER)
        return False

    def _begin_large_body(self, request: ServerRequest, size: int) -> None:
        if size <= self._register.body_bytes:
            self._reserve(request, min(size, BODY_BYTES))
            return
        request.refused = 413
        if size > DRAIN_BYTES:
            request.keep_alive = False
            self._closing = True
            self._ready(request)

    def _reserve(self, request: ServerRequest, size: int) -> None:
        """Reserves budget for a body, waits for it, or refuses the request."""
        if self._budget.take(request.principal, size):
            request.reserved = size
        elif self._budget.wait(request.principal, size, self):
            self._waiting = size
        else:
            self._refuse_body(request, 503)

    def _refuse_body(self, request: ServerRequest, status: int) -> None:
        """Answers without the rest of the body, which is discarded."""
        self._body = b""
        request.refused = status
        self._discarding = True
        self._ready(request)

    def grant_body(self) -> None:
        """The budget has room for the body now."""
        request, size = self._reading, self._waiting
        assert request is not None
        request.reserved, self._waiting = size, 0
        if not self._size and b"expect" in self._fields and self._continues():
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._adjust_reading()
        self._resume_soon()

    def take_room(self, request: ServerRequest, size: int) -> bool:
        """Changes the reservation of a body whose size changes after it was read."""
        more = size - request.reserved
        if more > 0 and not self._budget.take(request.principal, more):
            return False
        if more < 0:
            self._budget.give_back(request.principal, -more)
        request.reserved = size
        return True

    def hand_over(self, request: ServerRequest, principal: Principal | None) -> None:
        """Makes a request that of another principal, and charges its body to it."""
        self._budget.move(request.principal, principal, request.reserved)
        request.principal = principal

    def _release(self, request: ServerRequest) -> None:
        size, request.reserved = request.reserved, 0
        self._budget.give_back(request.principal, size)

    def _forget_unanswered(self) -> None:
        """Drops requests that will not be answered."""
        if self._waiting and self._reading is not None:
            self._waiting = 0
            self._budget.leave(self._reading.principal, self)
        for request in (self._reading, *self._queue):
            if request is not None and request.reserved:
                self._release(request)
        self._reading = None
        self._admitting = False
        self._body = b""
        self._queue.clear()

    def _decline_upgrade(self) -> None:
        """Ignores the offer of another protocol and serves the request (RFC 9110, 7.8), except
        for CONNECT, which llhttp reports as an upgrade whatever its headers say."""
        if self._parser.get_method() == b"CONNECT":
            self._refuse(
                405,
                b"CONNECT is not supported: the hub is not a proxy",
                b"allow: GET, POST, PATCH, DELETE, OPTIONS\r\n",
            )
            return
        self._without_offer = _without_offer(self._parser, self._url, self._fields)
        self._repeated_before = self._repeated

    def _is_chunked_only(self) -> bool:
        if self._fields[b"transfer-encoding"].lower() == b"chunked":
            return True
        self._refuse(501, b"unsupported transfer coding: use chunked")
        return False

    def _continues(self) -> bool:
        """Whether the client waits for `100 Continue`."""
        return (
            self._fields[b"expect"].lower() == b"100-continue"
            and self._current is None
            and not self._waiting
        )

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        self._at_body = self._head_bytes
        self._size += len(body)
        request = self._reading
        if request is None:
            if self._size > DRAIN_BYTES:
                self._stop()
            return
        if self._size > SMALL_BYTES and not self._takes_more(request):
            return
        # One buffer, not a list of pieces: chunks of two bytes would take twenty times their size.
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
        if self._size > SMALL_BYTES and b"content-encoding" not in self._fields:
            # Found here in pieces, since to search a whole body takes ten milliseconds.
            self._tokens += count_tokens(body)
            if self._tokens > MAX_TOKENS and self._register.body_bytes == BODY_BYTES:
                self._refuse_body(request, 400)

    def _takes_more(self, request: ServerRequest) -> bool:
        """Whether a body that has become large is kept."""
        if self._size > self._register.body_bytes:
            self._body = b""
            request.refused = 413
            if self._size > DRAIN_BYTES:
                request.keep_alive = False
                self._closing = True
                self._ready(request)
        elif not (self._length or request.reserved or self._waiting or request.admission):
            self._reserve(request, BODY_BYTES)  # chunked: the size is not known
        return not request.refused

    def on_message_complete(self) -> None:
        if self._without_offer:
            return
        self._unfinished = self._discarding = False
        self._head_bytes = 0
        request = self._reading
        if request is None or (self._closing and request.refused):
            return
        if self._waiting:  # all of it had been read already
            self._waiting = 0
            self._budget.leave(request.principal, self)
        if request.reserved > self._size:
            self._budget.give_back(request.principal, request.reserved - self._size)
            request.reserved = self._size
        body, self._body = self._body, b""
        request.body = body if isinstance(body, bytes) else bytes(body)
        self._ready(request)

    # --- requests, one after the other -----------------------------------------------------------

    def _ready(self, request: ServerRequest) -> None:
        self._reading = None
        self._admitting = False
        self._due = NEVER
        is_next = self._current is None and not self._queue and self._drained is None
        if is_next and request.admission is None:
            self._begin(request)
        else:
            self._queue.append(request)
            self._adjust_reading()

    def _begin(self, request: ServerRequest) -> None:
        self._current = request
        try:
            answer = self._app.answer(request)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            answer = None
        if answer is None and request.answered:
            if request.reserved:
                self._release(request)
            return
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result((request, answer))
        else:
            self._runner = start_task(self._run(request, answer), self.loop)
        if self._current is request:  # else it was answered at once, and another has begun
            self._task = self._runner

    async def _run(self, request: ServerRequest, answer: Work[None] | None) -> None:
        """Runs a request, and then the next ones: to create and register a task takes longer than
        to parse a request. A cancelled task, and one whose context variables were changed, runs no
        other request."""
        task, context = asyncio.current_task(), copy_context()
        while True:
            try:
                if answer is not None:
                    await answer
            except asyncio.CancelledError:
                if not self.lost and not request.answered:
                    self._transport.abort()
                raise
            except Exception:
                log.exception("%s %s failed", request.method, request.path)
            finally:
                if request.reserved:
                    self._release(request)
            if not (request.answered or self.lost):
                self._end_unanswered(request)
            is_idle = task is self._runner and not (self._closing or self.lost or task.cancelling())
            if not is_idle or copy_context() != context:
                return
            del request, answer
            waiter = self._waiter = self.loop.create_future()
            try:
                following = await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled() and (following := waiter.result()) is not None:
                    self._drop_unstarted(*following)
                raise
            if following is None:
                return
            request, answer = following
            del following

    def _end_unanswered(self, request: ServerRequest) -> None:
        if request.streaming:
            self._transport.abort()  # a truncated response must not look complete
        else:
            request.reply(500, _PLAIN_TEXT, b"internal error; see the hub's log\n")

    def _drop_unstarted(self, request: ServerRequest, answer: Work[None] | None) -> None:
        """Drops a request whose task was cancelled before the first step."""
        if answer is not None:
            answer.close()
        if request.reserved:
            self._release(request)

    def finish(self, request: ServerRequest, data: bytes = b"") -> None:
        """Sends the last bytes of a response."""
        request.answered = True
        if data and not self.lost:
            self._transport.write(data)
        self._current = None
        self._task = None
        if not request.keep_alive:
            self._close()
        elif self.lost:
            return
        elif self._queue:
            self._go_on()
        else:
            self._rest()

    def end_principal(self, why_ended: WhyEnded) -> None:
        """Ends the running request of a principal that has lost access, unless it ends by itself
        soon. Authenticates requests that have not begun again."""
        for waiting in (self._reading, *self._queue):
            if waiting is not None and (caller := waiting.principal) and why_ended(caller):
                admitted = self._app.admit(waiting)
                if admitted is not True and admitted is not False:
                    waiting.refused = 401
                waiting.principal = caller  # its body is charged to it
        request = self._current
        if request is not None and request.principal and (why := why_ended(request.principal)):
            self.loop.call_later(ENDING_SECONDS, self._end_request, request, why)

    def _end_request(self, request: ServerRequest, why: str) -> None:
        if self._current is not request or self.lost:
            return
        task = self._task
        if request.streaming:
            self._transport.abort()
        else:
            headers = [*_PLAIN_TEXT, (b"www-authenticate", b"Bearer")]
            request.reply(401, headers, f"{why}\n".encode())
        if task is not None:
            task.cancel(why)

    def _go_on(self) -> None:
        """Begins the next request once the response before it has been sent."""
        if self._going_on or self.lost:
            return
        self._going_on = True  # a request that is answered at once calls this again
        while self._queue and self._current is None and self._drained is None:
            if self._queue[0].admission is not None:
                break
            self._due = NEVER
            self._begin(self._queue.popleft())
        self._going_on = False
        if self._drained is not None:
            if self._current is None:
                self._time(KEEP_ALIVE_SECONDS)
            return
        self._adjust_reading()
        self._resume_soon()

    def _rest(self) -> None:
        """Waits for the next request or the rest of one, with the timeout of each."""
        if self._closing:
            self.write(self._last)
            self._close()
        elif self._input is not None:
            self._resume_soon()
        elif self._reading is not None:
            self._time(BODY_SECONDS)
        elif self._unfinished:
            self._time(HEAD_SECONDS)
        else:
            self._idle = True
            brief = self.is_stranger and self._register.scarce
            self._time(SCARCE_SECONDS if brief else KEEP_ALIVE_SECONDS)

    @property
    def idle_since(self) -> float | None:
        """Since when it has had no request; None while it has one."""
        if self._current is not None or self._reading is not None or self._queue:
            return None
        return self._timed

    @property
    def is_expecting(self) -> bool:
        """Whether its client has just connected, or has begun to send a request."""
        return self._current is None and not (self._idle or self._closing or self.lost)

    def close_idle(self) -> None:
        """Closes the connection to make room for others."""
        if self._drained is None:
            self._close()
        else:
            self._transport.abort()

    def _refuse(self, status: int, text: bytes, headers: bytes = b"") -> None:
        """Sends the refusal after earlier responses and closes the connection; sends
        nothing if this request has been answered already."""
        if self._closing:
            return
        if self._discarding:
            self._stop()
            return
        head = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self._stop(STATUS[status] + headers + head % (len(text) + 1) + text + b"\n")

    def _stop(self, last: bytes = b"") -> None:
        """Parses nothing more, and closes the connection after the remaining responses."""
        self._closing = True
        self._input = None
        self._release_input()
        self._last = last
        if self._current is None and not self._queue:
            self.write(last)
            self._close()

    # --- writing, timing, ending -----------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.lost:
            self._transport.write(data)

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """Writes large parts without joining them first."""
        if not self.lost:
            self._transport.writelines(parts)

    async def wait_writable(self) -> None:
        while (drained := self._drained) is not None and not self.lost:
            unread = self._transport.get_write_buffer_size()
            await asyncio.wait([drained], timeout=UNREAD_SECONDS)
            if not drained.done() and self._transport.get_write_buffer_size() >= unread:
                self._transport.abort()
                return

    def is_read(self) -> bool:
        """Whether the client reads; one that has not for long is disconnected."""
        if self._drained is None or self.lost:
            return not self.lost
        unread, since = self._transport.get_write_buffer_size(), self.loop.time()
        if unread < self._unread[0]:
            self._unread = unread, since
        elif since - self._unread[1] > UNREAD_SECONDS:
            self._transport.abort()
        return False

    def _time(self, seconds: float) -> None:
        self._timed = now = self.loop.time()
        self._due = due = now + seconds
        if self._timer is None or self._timer.when() > due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(due, self._late)

    def _late(self) -> None:
        self._timer = None
        if self._due is NEVER:
            return
        if self.loop.time() < self._due:
            self._timer = self.loop.call_at(self._due, self._late)
            return
        if self._reading is None:
            self._close()
        elif self._waiting:
            self._refuse(503, b"too many requests are waiting; try again shortly", RETRY_AFTER)
        else:
            self._refuse(408, b"timed out waiting for the body")

    def _close(self) -> None:
        """Flushes, then closes; aborts after LAST_SECONDS."""
        self._closing = True
        self._forget_unanswered()
        self._due = NEVER
        if self._timer is not None:
            self._timer.cancel()
        if not self.lost:
            self._transport.close()
            self._timer = self.loop.call_later(LAST_SECONDS, self._transport.abort)

    def serve_by(self, app: Application) -> None:
        """Has further requests served by another application."""
        self._app = app

    def drain(self) -> None:
        """Accepts no further requests; finishes the running response."""
        self._closing = True
        self._forget_unanswered()
        if self._current is None:
            self._close()
        else:
            self._current.keep_alive = False

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if not self.lost:
            self._transport.abort()


def _without_offer(
    parser: httptools.HttpRequestParser, url: bytes, fields: dict[bytes, bytes]
) -> bytes:
    version = parser.get_http_version().encode()
    lines = [b"%b %b HTTP/%b\r\n" % (parser.get_method(), url, version)]
    lines += [b"%b: %b\r\n" % pair for pair in fields.items() if pair[0] not in _OFFERING]
    if version == b"1.1" and not parser.should_keep_alive():
        lines.append(b"connection: close\r\n")
    return b"".join(lines) + b"\r\n"


def _size(url: bytes, fields: dict[bytes, bytes]) -> int:
    return len(url) + sum(len(name) + len(value) + 4 for name, value in fields.items())
