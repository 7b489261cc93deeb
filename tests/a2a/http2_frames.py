"""A client that writes HTTP/2 frames of gRPC calls itself, and stops in the middle of a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
FRAME_BYTES = 16_384


def encode_header(name: str, value: str) -> bytes:
    """HPACK: a literal without indexing, not compressed (RFC 7541, 6.2.2)."""
    parts = (name.encode(), value.encode())
    assert max(map(len, parts)) < 127
    return b"\0" + b"".join(bytes([len(part)]) + part for part in parts)


class Http2Connection:
    """Sends what flow control allows, and notes how the server ends each stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._initial = self._window = 65_535
        self._windows: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        """Bytes of messages, by stream."""
        self.ended: dict[int, bytes] = {}
        """The last frame of a stream that the server ended."""
        self._changed = asyncio.Event()

    def write_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self._writer.write(head + payload)

    def open(self, stream: int, path: str, metadata: dict[str, str]) -> None:
        headers = {
            ":method": "POST", ":scheme": "http", ":path": path, ":authority": "hub",
            "content-type": "application/grpc", "te": "trailers", **metadata,
        }  # fmt: skip
        block = b"".join(encode_header(name, value) for name, value in headers.items())
        self.write_frame(HEADERS, END_HEADERS, stream, block)
        self._windows[stream], self.sent[stream] = self._initial, 0

    async def send_unfinished(self, stream: int, size: int) -> None:
        """Sends a message of `size` bytes but for the last one; ends early with the stream."""
        left = memoryview(b"\0" + size.to_bytes(4, "big") + b"\x12" * (size - 1))
        while left and stream not in self.ended:
            room = min(self._window, self._windows[stream], FRAME_BYTES, len(left))
            if room <= 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            self.write_frame(DATA, 0, stream, bytes(left[:room]))
            left = left[room:]
            self._window -= room
            self._windows[stream] -= room
            self.sent[stream] += room
            await self._writer.drain()

    def reset(self, stream: int) -> None:
        self.write_frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big"))  # CANCEL

    async def wait_end(self, stream: int) -> bytes:
        while stream not in self.ended:
            self._changed.clear()
            await self._changed.wait()
        return self.ended[stream]

    async def read_frames(self) -> None:
        while True:
            head = await self._reader.readexactly(9)
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big")
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            if kind == SETTINGS and not flags & ACK:
                self._apply_settings(payload)
                self.write_frame(SETTINGS, ACK, 0, b"")
            elif kind == PING and not flags & ACK:
                self.write_frame(PING, ACK, 0, payload)
            elif kind == WINDOW_UPDATE:
                size = int.from_bytes(payload, "big")
                if stream:
                    self._windows[stream] += size
                else:
                    self._window += size
            elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
                self.ended.setdefault(stream, payload)
            self._changed.set()

    def _apply_settings(self, payload: bytes) -> None:
        for start in range(0, len(payload), 6):
            if int.from_bytes(payload[start : start + 2], "big") == INITIAL_WINDOW_SIZE:
                size = int.from_bytes(payload[start + 2 : start + 6], "big")
                for stream in self._windows:
                    self._windows[stream] += size - self._initial
                self._initial = size


@asynccontextmanager
async def connect_http2(port: int) -> AsyncIterator[Http2Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Http2Connection(reader, writer)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    connection.write_frame(SETTINGS, 0, 0, b"")
    reading = asyncio.create_task(connection.read_frames())
    try:
        yield connection
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        writer.close()
