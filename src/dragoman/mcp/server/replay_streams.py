"""Streams of server-sent events to clients, and what of them can be had again.

A stream goes over one connection. From 2025-03-26 to 2025-11-25 it can be taken up over another
when that breaks: its events have ids, the last of them are kept for a while, and a client that
names the last one it has seen (`Last-Event-ID`) gets those after it. Knows nothing of messages or
of who is asking: ids are looked up within what one session was sent.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from secrets import token_hex
from time import monotonic
from typing import Protocol

from dragoman.core.deadlines import Deadlines
from dragoman.wire import sse
from dragoman.wire.http import HttpRequest

Headers = list[tuple[bytes, bytes]]

WATCH_AFTER = 1.0
"""What takes longer is watched for its client going away."""
KEEPALIVE_SECONDS = 15.0
SLOTS = 15
RETRY_MS = 1000
"""How long a client waits before it comes again (2025-11-25)."""

MAX_EVENTS = 512
MAX_BYTES = 16 * 1024 * 1024
MAX_STREAMS = 64
"""What is kept for one session; the oldest goes first."""
MAX_BYTES_IN_ALL = 64 * 1024 * 1024
KEEP_SECONDS = 300.0
"""Nothing is kept for a session longer than this after it was last sent something."""
EVENT_COST = 300
"""What keeping an event takes beside its bytes, with its share of the stream."""

RESPONSE, NOTIFICATIONS = "p", "g"
"""How a stream's id begins: that of a request's answer, or one for what is said unasked."""

STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Events to a client, over the connection of one request."""

    __slots__ = ("_ended", "request")

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self._ended: asyncio.Future[None] | None = None

    def open(self, headers: Headers | None = None, *, primed: bool = False) -> None:
        self.request.start(200, [*STREAM_HEADERS, *(headers or ())])

    def send(self, message: bytes) -> bool:
        """Never waits; False when it could not be sent."""
        return self.request.send(sse.encode_event(message, name="message"))

    async def finish(self, answer: bytes | None) -> None:
        """The last event, and the end."""
        if answer is not None:
            await self.request.write(sse.encode_event(answer, name="message"))
        self.request.end()

    def send_keepalive(self) -> None:
        self.request.send(sse.KEEPALIVE)

    async def wait_closed(self, request: HttpRequest) -> None:
        """Until the client goes, or the stream ends or goes on over another connection."""
        ended = self._ended = request.loop.create_future()
        request.gone.add_done_callback(lambda _: _settle(ended))
        await ended

    def end(self) -> None:
        self.request.end()
        if self._ended is not None:
            _settle(self._ended)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class ReplayStream(EventStream):
    """A stream that can be taken up again."""

    __slots__ = ("buffer", "events", "first", "id", "is_finished")

    def __init__(self, request: HttpRequest, shelf: ReplayBuffer, kind: str) -> None:
        super().__init__(request)
        self.id = kind + token_hex(8)
        self.first = 1
        """The number of the first event that is kept."""
        self.events: list[bytes] = []
        self.is_finished = False
        self.buffer = shelf
        shelf.add(self)

    def open(self, headers: Headers | None = None, *, primed: bool = False) -> None:
        """`primed`: the client has something to come back with from the first moment."""
        super().open(headers)
        if primed:
            self.request.send(b"id: %b-0\nretry: %d\ndata: \n\n" % (self.id.encode(), RETRY_MS))

    def send(self, message: bytes) -> bool:
        """What a client that has gone did not get is there when it comes again."""
        data = self._event(message)
        if not self.request.lost and not self.request.send(data):
            return False
        self.buffer.keep(self, data)
        return True

    async def finish(self, answer: bytes | None) -> None:
        request, self.is_finished = self.request, True
        if answer is not None:
            data = self._event(answer)
            self.buffer.keep(self, data)
            await request.write(data)
        self.buffer.drop_if_empty(self)
        request.end()
        self.end()

    def resume(self, request: HttpRequest, number: int) -> None:
        """Goes on over the connection of `request` (its head has been sent) with what came after
        the event of that number; the one before, if it is still there, ends."""
        missed = b"".join(self.events[max(0, number + 1 - self.first) :])
        if missed:
            request.send(missed)
        if self.is_finished:
            request.end()
            return
        self.end()
        self.request = request

    def _event(self, message: bytes) -> bytes:
        number = self.first + len(self.events)
        return sse.encode_event(message, name="message", id=f"{self.id}-{number}")


class ReplayBuffer:
    """What one session can have again."""

    __slots__ = ("bytes", "count", "store", "streams", "touched")

    def __init__(self, store: ReplayStore) -> None:
        self.store = store
        self.streams: dict[str, ReplayStream] = {}
        self.bytes = 0
        self.count = 0
        self.touched = 0.0

    def find(self, last: str) -> tuple[ReplayStream, int] | None:
        """The stream of an event with that id, and the event's number."""
        self.store.sweep()
        id, _, number = last.rpartition("-")
        stream = self.streams.get(id)
        if stream is None or not (number.isascii() and number.isdigit()) or len(number) > 9:
            return None
        return stream, int(number)

    def add(self, stream: ReplayStream) -> None:
        if len(self.streams) >= MAX_STREAMS:
            kept = self.streams.values()
            over = (one for one in kept if one.is_finished or one.request.lost)
            self.drop(next(over, next(iter(kept))))
        self.streams[stream.id] = stream

    def keep(self, stream: ReplayStream, data: bytes) -> None:
        if stream.id not in self.streams:
            stream.first += 1  # nobody can ask for it; the number has been used all the same
            return
        stream.events.append(data)
        self._count(1, len(data) + EVENT_COST)
        while self.count > MAX_EVENTS or self.bytes > MAX_BYTES:
            self._forget_one()
        self.store.touch(self)

    def drop_if_empty(self, stream: ReplayStream) -> None:
        """A stream that is over and has nothing to give is none."""
        if not stream.events:
            self.streams.pop(stream.id, None)

    def drop(self, stream: ReplayStream) -> None:
        if self.streams.pop(stream.id, None) is not None:
            self._count(-len(stream.events), -sum(map(_cost, stream.events)))
            stream.first += len(stream.events)
            stream.events.clear()

    def clear(self, *, all: bool = False) -> None:
        """Forgets the events, and the streams of which nothing more can come or, for a session
        that has ended, all of them."""
        for stream in tuple(self.streams.values()):
            live = not stream.is_finished
            self.drop(stream)
            if live and not all:
                self.streams[stream.id] = stream
        self.store.forget(self)

    def _forget_one(self) -> None:
        oldest = next(one for one in self.streams.values() if one.events)
        self._count(-1, -_cost(oldest.events.pop(0)))
        oldest.first += 1
        if oldest.is_finished:
            self.drop_if_empty(oldest)

    def _count(self, events: int, size: int) -> None:
        self.count += events
        self.bytes += size
        self.store.bytes += size


class ReplayStore:
    """All shelves that hold something, the one that was used longest ago first."""

    def __init__(self) -> None:
        self.bytes = 0
        self._shelves: OrderedDict[ReplayBuffer, None] = OrderedDict()

    def touch(self, shelf: ReplayBuffer) -> None:
        shelf.touched = monotonic()
        self._shelves[shelf] = None
        self._shelves.move_to_end(shelf)
        self.sweep()

    def sweep(self) -> None:
        limit = monotonic() - KEEP_SECONDS
        while self._shelves:
            oldest = next(iter(self._shelves))
            if self.bytes <= MAX_BYTES_IN_ALL and oldest.touched >= limit:
                return
            oldest.clear()

    def forget(self, shelf: ReplayBuffer) -> None:
        self._shelves.pop(shelf, None)


def _cost(event: bytes) -> int:
    return len(event) + EVENT_COST


class KeepaliveMember(Protocol):
    def send_keepalive(self) -> None: ...


class StreamKeepalive:
    """Keeps one connection's stream alive."""

    __slots__ = ("_request",)

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def send_keepalive(self) -> None:
        self._request.send(sse.KEEPALIVE)


class Keepalive:
    """Keeps idle streams alive with a comment now and then: one timer for all of them, which sees
    to a part of them each time."""

    def __init__(self) -> None:
        self._slots: list[set[KeepaliveMember]] = [set() for _ in range(SLOTS)]
        self._at = 0
        self._timer: asyncio.TimerHandle | None = None
        self.watched = Deadlines(WATCH_AFTER)

    def add(self, one: KeepaliveMember, loop: asyncio.AbstractEventLoop) -> set[KeepaliveMember]:
        """Whoever leaves takes himself out of the set that is given."""
        if self._timer is None:
            self._timer = loop.call_later(KEEPALIVE_SECONDS / SLOTS, self._tick, loop)
        slot = self._slots[self._at]  # its turn has just been
        slot.add(one)
        return slot

    def members(self) -> list[object]:
        """All that are kept alive, and those that are not watched yet."""
        begun = [getattr(watch, "__self__", None) for watch in self.watched.list_waiting()]
        return [*begun, *(one for slot in self._slots for one in slot)]

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._at = (self._at + 1) % SLOTS
        for one in tuple(self._slots[self._at]):
            one.send_keepalive()
        self._timer = None
        if any(self._slots):
            self._timer = loop.call_later(KEEPALIVE_SECONDS / SLOTS, self._tick, loop)
