"""A proxy before PostgreSQL that reads its protocol, and lets one statement of a hub fail.

The server itself fails: an error is raised in place of the statement, on the same connection, so
that the state of the transaction is the real one.
"""

from __future__ import annotations

import asyncio
import re
import struct
import threading
import time
from collections import Counter, deque
from contextlib import suppress

from faults.links import CUT, Link

CODES = ("55P03", "57014", "40P01", "40001")
"""lock_not_available, query_canceled, deadlock_detected, serialization_failure."""
LATE, CLOSED_BEFORE, CLOSED_AFTER = "answered late", "closed before it", "closed after it"
FAULTS = (*CODES, LATE, CLOSED_BEFORE, CLOSED_AFTER)
LATE_SECONDS = 3.0
"""More than any deadline of the hub's statements that a request waits for."""
_SSL, _GSS = 80877103, 80877104
_NO_PARAMETERS = struct.pack("!h", 0)


def normalize(text: str) -> str:
    """The same text for lists of any length."""
    text = re.sub(r"\$\d+(?:, ?\$\d+)+", "$+", " ".join(text.split()))
    return re.sub(r"\(\$\+\)(?:, ?\(\$\+\))+", "($+)", text)


def build_error(code: str) -> str:
    return f"DO $$BEGIN RAISE EXCEPTION 'of the experiment' USING ERRCODE = '{code}'; END$$"


def _build(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _build_extended(text: str) -> tuple[bytes, ...]:
    """Parse, Bind and Execute of a statement without values."""
    return (
        _build(b"P", b"\0" + text.encode() + b"\0" + _NO_PARAMETERS),
        _build(b"B", b"\0\0" + _NO_PARAMETERS * 3),
        _build(b"E", b"\0" + struct.pack("!I", 0)),
    )


class StatementLink(Link):
    """Counts statements by their text. The next one with the text that is armed meets the fault."""

    def __init__(self) -> None:
        super().__init__(0)
        self.seen: Counter[str] = Counter()
        self.fired = threading.Event()
        self._armed: tuple[str, str] | None = None
        self._lock = threading.Lock()

    def arm(self, text: str, fault: str) -> None:
        with self._lock:
            self.fired.clear()
            self._armed = (text, fault)

    def disarm(self) -> None:
        with self._lock:
            self._armed = None

    def take_fault(self, text: str) -> str:
        """The fault that this statement meets; empty if it meets none."""
        found = normalize(text)
        with self._lock:
            self.seen[found] += 1
            if self._armed is None or self._armed[0] != found:
                return ""
            fault, self._armed = self._armed[1], None
            self.fired.set()
            return fault

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            await self._wait()
            near, far = await asyncio.open_connection("127.0.0.1", self.target)
            self._open.add(far)
            await _Conversation(self, reader, writer, near, far).run()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for one in filter(None, (writer, far)):
                self._open.discard(one)
                one.transport.abort()


class _Conversation:
    """One connection of the hub."""

    def __init__(
        self,
        link: StatementLink,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self._link = link
        self._client, self._to_client = client, to_client
        self._server, self._to_server = server, to_server
        self._expected: deque[tuple[bytes, bool]] = deque()
        """The messages that the server has not answered: their kind, and whether the answer is
        kept from the hub, which has not sent them."""
        self._names: dict[bytes, str] = {}
        self._parsed: set[bytes] = set()
        """The statements that were sent since the last Sync."""
        self._held_until = 0.0
        self._ends = False
        """Whether the connection is closed in place of the next answer."""

    async def run(self) -> None:
        await self._start()
        both = [asyncio.ensure_future(self._ask()), asyncio.ensure_future(self._answer())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _start(self) -> None:
        while True:
            size = await self._client.readexactly(4)
            body = await self._client.readexactly(struct.unpack("!I", size)[0] - 4)
            if struct.unpack("!I", body[:4])[0] not in (_SSL, _GSS):
                break
            self._to_client.write(b"N")
        self._to_server.write(size + body)

    async def _ask(self) -> None:
        while True:
            head = await self._client.readexactly(5)
            body = await self._client.readexactly(struct.unpack("!I", head[1:])[0] - 4)
            if self._link.mode == CUT:
                return
            if not self._pass_on(head[:1], body):
                return
            await self._to_server.drain()

    def _pass_on(self, kind: bytes, body: bytes) -> bool:
        """Sends a message to the server, or what takes its place; False closes the connection."""
        if kind == b"Q":
            body, goes_on = self._change_query(body)
            if not goes_on:
                return False
        elif kind in (b"P", b"B") and not self._change_statement(kind, body):
            return False
        if kind == b"S":
            self._parsed.clear()
        if self._to_server.is_closing():
            return False
        if kind in b"QPBDES":
            self._expected.append((kind, False))
        self._to_server.write(_build(kind, body))
        return True

    def _change_query(self, body: bytes) -> tuple[bytes, bool]:
        parts = [part.strip() for part in body[:-1].decode().split(";") if part.strip()]
        for place, part in enumerate(parts):
            fault = self._link.take_fault(part)
            if fault in CODES:
                before = ["ROLLBACK"] if part.upper() == "COMMIT" else parts[:place]
                return "; ".join([*before, build_error(fault)]).encode() + b"\0", True
            if not self._meet(fault):
                return body, False
        return body, True

    def _change_statement(self, kind: bytes, body: bytes) -> bool:
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._names[name] = text.decode()
            self._parsed.add(name)
        else:
            _, name, _ = body.split(b"\0", 2)
            if name in self._parsed:
                return True  # met already
        fault = self._link.take_fault(self._names.get(name, ""))
        if fault in CODES:
            is_commit = self._names.get(name, "").strip().upper() == "COMMIT"
            for instead in (["ROLLBACK"] if is_commit else []) + [build_error(fault)]:
                for message in _build_extended(instead):
                    self._expected.append((message[:1], True))
                    self._to_server.write(message)
            return True
        return self._meet(fault)

    def _meet(self, fault: str) -> bool:
        if fault == LATE:
            self._held_until = time.monotonic() + LATE_SECONDS
        self._ends = self._ends or fault == CLOSED_AFTER
        return fault != CLOSED_BEFORE

    async def _answer(self) -> None:
        while True:
            head = await self._server.readexactly(5)
            body = await self._server.readexactly(struct.unpack("!I", head[1:])[0] - 4)
            is_kept = self._is_kept(head[:1])
            if self._ends:
                if head[:1] == b"Z":
                    return
                continue
            late = self._held_until - time.monotonic()
            if late > 0:
                await asyncio.sleep(late)
            if self._to_client.is_closing():
                return
            if not is_kept:
                self._to_client.write(head + body)
                with suppress(ConnectionError):
                    await self._to_client.drain()

    def _is_kept(self, kind: bytes) -> bool:
        """Whether the hub must not see this answer."""
        expected = self._expected
        if kind in b"NASKR" or not expected or (kind == b"Z" and expected[0][0] not in b"QS"):
            return False  # of the start, or of no message
        first, is_ours = expected[0]
        if kind == b"Z":
            expected.popleft()
            return False
        if first == b"Q":
            return False
        if kind == b"E":  # the server skips everything until Sync
            while expected and expected[0][0] != b"S":
                expected.popleft()
            return False
        if kind in b"12CIsTn" and kind != b"t":
            expected.popleft()
        return is_ours
