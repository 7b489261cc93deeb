"""Encodes and parses server-sent events. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAX_EVENT = 10 * 1024 * 1024
KEEPALIVE = b": keep-alive\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
"""The headers of a response that is a stream of events."""


PIECE = 16 * 1024
"""Bytes that are parsed in one step."""
TURN = 64
"""Events that are read before other tasks of the hub run."""


class EventTooLong(ValueError):
    """The event is larger than the limit."""


@dataclass(slots=True)
class ServerEvent:
    event: str
    data: bytes
    id: str | None


def encode_event(data: bytes, *, name: str | None = None, id: str | None = None) -> bytes:
    """Encodes one event. `data` is compact JSON, without line breaks."""
    head = (f"id: {id}\n" if id is not None else "") + (f"event: {name}\n" if name else "")
    return head.encode() + b"data: " + data + b"\n\n"


def split_pieces(chunk: bytes) -> Iterator[bytes]:
    """Splits a chunk of a stream into pieces that each take little time to parse."""
    if len(chunk) <= PIECE:
        yield chunk
        return
    for at in range(0, len(chunk), PIECE):
        yield chunk[at : at + PIECE]


class SseParser:
    """Returns complete events from the bytes it is fed. `retry` is the last one received."""

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self.limit = limit
        self.retry: int | None = None
        self._pending = bytearray()
        self._searched = 0
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""
        self._id: str | None = None
        self._first = True
        self._after_cr = False
        """Whether the last byte was a CR that ended a line: its LF may follow."""

    @property
    def pending(self) -> int:
        """Bytes of an event that is not complete."""
        return len(self._pending) + self._size

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        self._pending += chunk
        events: list[ServerEvent] = []
        start = 0
        while (end := self._line_end(start)) is not None:
            line = bytes(self._pending[start : end[0]])
            start = end[1]
            self._searched = start
            if done := self._line(line):
                events.append(done)
        del self._pending[:start]
        self._searched -= start
        if self.pending > self.limit:
            raise EventTooLong(f"an event is larger than {self.limit} bytes")
        return events

    def _line_end(self, start: int) -> tuple[int, int] | None:
        """Where the line ends and the next begins; lines end in LF, CRLF or CR."""
        buffer = self._pending
        at = max(start, self._searched)
        newline = buffer.find(b"\n", at)
        carriage = buffer.find(b"\r", at, newline if newline >= 0 else len(buffer))
        if carriage >= 0:
            if carriage + 1 == len(buffer):
                self._after_cr = True
                return carriage, carriage + 1
            return carriage, carriage + (2 if buffer[carriage + 1] == 0x0A else 1)
        if newline >= 0:
            return newline, newline + 1
        self._searched = len(buffer)
        return None

    def _line(self, line: bytes) -> ServerEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
            if self._size > self.limit:
                raise EventTooLong(f"an event is larger than {self.limit} bytes")
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self.retry = int(value)
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, self._data, self._size = self._data, [], 0
        event, self._event = self._event, ""
        if not data:
            return None
        return ServerEvent(event or "message", b"\n".join(data), self._id)
