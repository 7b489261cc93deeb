"""Event streams to HTTP clients, the replay of lost events, and keep-alive comments.

From 2025-03-26 to 2025-11-25 a client whose connection breaks can resume a stream on another:
events have ids, the latest are kept for a while, and the client names the last one that it has
received (`Last-Event-ID`). Ids are looked up within one session. Where several hubs work as one,
events are also handed over: the heir of a hub that has died continues its streams of notifications,
and ends its responses. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from secrets import token_hex
from time import monotonic
from typing import Protocol

from dragoman.core.background import resolve
from dragoman.core.deadlines import Deadlines
from dragoman.core.ports import Handover, KeptEvent
from dragoman.wire import sse
from dragoman.wire.http import HttpRequest

Headers = list[tuple[bytes, bytes]]

WATCH_AFTER = 1.0
"""Seconds after which a request is watched for a disconnect."""
KEEPALIVE_SECONDS = 15.0
SLOTS = 15
RETRY_MS = 1000
"""How long a client waits before it reconnects (2025-11-25)."""

MAX_EVENTS = 512
MAX_BYTES = 16 * 1024 * 1024
MAX_STREAMS = 64
"""Limits of one session's replay buffer; the oldest event is dropped first."""
MAX_BYTES_IN_ALL = 64 * 1024 * 1024
KEEP_SECONDS = 300.0
"""A session's events are dropped this long after the last one."""
EVENT_COST = 300
"""Memory of a kept event beside its bytes, with its share of the stream."""

RESPONSE, NOTIFICATIONS = "p", "g"
"""How a stream's id begins: the stream of a response, or a GET stream of notifications."""

STREAM_HEADERS: Headers = sse.HEADERS


class EventStream:
    """A stream of events as the body of one HTTP response."""

    __slots__ = ("_ended", "request")

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self._ended: asyncio.Future[None] | None = None

    def open(self, headers: Headers | None = None) -> None:
        self.request.start(200, [*STREAM_HEADERS, *(headers or ())])

    def send(self, message: bytes) -> bool:
        """Never waits; False if it could not be sent."""
        return self.request.send(sse.encode_event(message, name="message"))

    async def finish(self, answer: bytes | None) -> None:
        """Sends the last event and ends the stream."""
        if answer is not None:
            await self.request.write(sse.encode_event(answer, name="message"))
        self.request.end()

    def send_keepalive(self) -> None:
        self.request.send(sse.KEEPALIVE)

    async def wait_closed(self, request: HttpRequest) -> None:
        """Waits until the client disconnects, or the stream ends or moves to another connection."""
        ended = self._ended = request.loop.create_future()
        request.gone.add_done_callback(lambda _: resolve(ended, None))
        await ended

    def end(self) -> None:
        self.request.end()
        resolve(self._ended, None)


class ReplayStream(EventStream):
    """A stream that can be resumed."""

    __slots__ = ("_is_primed", "buffer", "events", "first", "id", "is_finished")

    def __init__(
        self,
        request: HttpRequest,
        buffer: ReplayBuffer,
        kind: str,
        is_primed: bool = False,
    ) -> None:
        """`kind` is how its id begins. `is_primed`: the first event has an id and no data, so that
        it can be resumed at once."""
        super().__init__(request)
        self.id = kind + token_hex(8)
        self.first = 1
        """The number of the first kept event."""
        self.events: list[bytes] = []
        self.is_finished = False
        self._is_primed = is_primed
        self.buffer = buffer
        buffer.add(self)

    def continue_from(self, id: str, number: int) -> None:
        """Continues a stream that another hub has begun, after the event of that number."""
        del self.buffer.streams[self.id]
        self.id, self.first = id, number + 1
        self.buffer.streams[id] = self

    def open(self, headers: Headers | None = None) -> None:
        super().open(headers)
        if self._is_primed:
            self.request.send(b"id: %b-0\nretry: %d\ndata: \n\n" % (self.id.encode(), RETRY_MS))

    def send(self, message: bytes) -> bool:
        """A client that has disconnected gets the message when it resumes the stream."""
        data = self._event(message)
        if not self.request.lost and not self.request.send(data):
            return False
        self._keep(data)
        return True

    async def finish(self, answer: bytes | None) -> None:
        request, self.is_finished = self.request, True
        if answer is not None:
            data = self._event(answer)
            self._keep(data)
            await request.write(data)
        self.buffer.drop_if_empty(self)
        request.end()
        self.end()

    def resume(self, request: HttpRequest, number: int) -> None:
        """Continues as the response to `request`, whose head has been sent, with the events after
        that number. The connection before ends, if it is still open."""
        missed = b"".join(self.events[max(0, number + 1 - self.first) :])
        if missed:
            request.send(missed)
        if self.is_finished:
            request.end()
            return
        self.end()
        self.request = request

    def _keep(self, data: bytes) -> None:
        buffer = self.buffer
        if buffer.store.handover is not None:
            number = self.first + len(self.events)
            event = KeptEvent(number, data, self.is_finished)
            buffer.store.handover.keep_event(buffer.owner, self.id, event)
        buffer.keep(self, data)

    def _event(self, message: bytes) -> bytes:
        number = self.first + len(self.events)
        return sse.encode_event(message, name="message", id=f"{self.id}-{number}")


class ReplayBuffer:
    """The replay buffer of one session (`Last-Event-ID`)."""

    __slots__ = ("bytes", "count", "owner", "store", "streams", "touched")

    def __init__(self, store: ReplayStore, owner: str = "") -> None:
        self.store = store
        self.owner = owner
        """The session, as other hubs know it."""
        self.streams: dict[str, ReplayStream] = {}
        self.bytes = 0
        self.count = 0
        self.touched = 0.0

    def find(self, last: str) -> tuple[ReplayStream, int] | None:
        """Finds the stream of an event id, and the event's number."""
        self.store.sweep()
        parsed = parse_event_id(last)
        stream = self.streams.get(parsed[0]) if parsed is not None else None
        return (stream, parsed[1]) if stream is not None and parsed is not None else None

    def add(self, stream: ReplayStream) -> None:
        if len(self.streams) >= MAX_STREAMS:
            kept = self.streams.values()
            over = (one for one in kept if one.is_finished or one.request.lost)
            self.drop(next(over, next(iter(kept))))
        self.streams[stream.id] = stream

    def keep(self, stream: ReplayStream, data: bytes) -> None:
        if stream.id not in self.streams:
            stream.first += 1  # it cannot be resumed, but its numbers go on
            return
        stream.events.append(data)
        self._count(1, len(data) + EVENT_COST)
        while self.count > MAX_EVENTS or self.bytes > MAX_BYTES:
            self._forget_one()
        self.store.touch(self)

    def drop_if_empty(self, stream: ReplayStream) -> None:
        """Drops a finished stream that has no events left."""
        if not stream.events:
            self.streams.pop(stream.id, None)

    def drop(self, stream: ReplayStream) -> None:
        if self.streams.pop(stream.id, None) is not None:
            self._count(-len(stream.events), -sum(map(_cost, stream.events)))
            stream.first += len(stream.events)
            stream.events.clear()

    def clear(self, *, all: bool = False) -> None:
        """Drops the events and the finished streams; at the end of a session, all streams."""
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


def parse_event_id(last: str) -> tuple[str, int] | None:
    """Returns the stream of an event and its number in it."""
    id, _, number = last.rpartition("-")
    if not (number.isascii() and number.isdigit()) or len(number) > 9:
        return None
    return id, int(number)


class ReplayStore:
    """All buffers with events, the least recently used first."""

    def __init__(self, handover: Handover | None = None) -> None:
        self.handover = handover
        """Where several hubs work as one: keeps the events for the heir of this one, too."""
        self.bytes = 0
        self._buffers: OrderedDict[ReplayBuffer, None] = OrderedDict()

    def touch(self, buffer: ReplayBuffer) -> None:
        buffer.touched = monotonic()
        self._buffers[buffer] = None
        self._buffers.move_to_end(buffer)
        self.sweep()

    def sweep(self) -> None:
        limit = monotonic() - KEEP_SECONDS
        while self._buffers:
            oldest = next(iter(self._buffers))
            if self.bytes <= MAX_BYTES_IN_ALL and oldest.touched >= limit:
                return
            oldest.clear()

    def forget(self, buffer: ReplayBuffer) -> None:
        self._buffers.pop(buffer, None)


def _cost(event: bytes) -> int:
    return len(event) + EVENT_COST


class KeepaliveMember(Protocol):
    def send_keepalive(self) -> None: ...


class StreamKeepalive:
    """Keeps the stream of one connection alive."""

    __slots__ = ("_request",)

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def send_keepalive(self) -> None:
        self._request.send(sse.KEEPALIVE)


class Keepalive:
    """Sends comments to idle streams: one timer for all, which serves one slot of them a tick."""

    def __init__(self) -> None:
        self._slots: list[set[KeepaliveMember]] = [set() for _ in range(SLOTS)]
        self._at = 0
        self._timer: asyncio.TimerHandle | None = None
        self.watched = Deadlines(WATCH_AFTER)

    def add(self, one: KeepaliveMember, loop: asyncio.AbstractEventLoop) -> set[KeepaliveMember]:
        """Adds a member; to leave, it removes itself from the returned slot."""
        if self._timer is None:
            self._timer = loop.call_later(KEEPALIVE_SECONDS / SLOTS, self._tick, loop)
        slot = self._slots[self._at]  # served a moment ago
        slot.add(one)
        return slot

    def members(self) -> list[object]:
        """Returns all members, and the requests that are not watched yet."""
        begun = [getattr(watch, "__self__", None) for watch in self.watched.list_waiting()]
        return [*begun, *(one for slot in self._slots for one in slot)]

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._at = (self._at + 1) % SLOTS
        for one in tuple(self._slots[self._at]):
            one.send_keepalive()
        self._timer = None
        if any(self._slots):
            self._timer = loop.call_later(KEEPALIVE_SECONDS / SLOTS, self._tick, loop)
