"""Fuzzes every way in with messages: well-formed ones, changed by structure and by bytes.

No answer may be an HTTP 500 or the JSON-RPC error -32603, and every request is answered in time.
A case is a pure function of the door, the seed and its number.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.bytes_fuzz import ANSWER_SECONDS
from faults.harness import Outcome
from faults.message_seeds import DOORS, Seed
from faults.mutations import build_case

AT_ONCE = 16
STREAM_SECONDS = 0.1
"""How long a stream that does not end is read."""
INTERNAL = re.compile(rb"[: ]-32603\b")
"""The code of an internal error; an id may have the same digits."""
NAMED = re.compile(rb'"reason": ?"(?!INTERNAL)[A-Z_]+"')
"""A typed error of A2A for which an older dialect has no code but -32603."""


class Connection:
    """Keeps one HTTP connection to the hub, and opens it again when it is gone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def exchange(self, case: Seed, more: dict[str, str]) -> tuple[int, bytes]:
        """Status and body; of a stream that goes on, its beginning."""
        body = case.body or b""
        kept = more if case.method != "DELETE" else {}  # the session that the others use stays
        sent = {"Content-Type": "application/json", "Accept": wire.ACCEPT, **kept, **case.headers}
        lines = [f"{case.method} {case.path} HTTP/1.1", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in sent.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        data = "\r\n".join(lines).encode("latin-1", "replace") + body
        for attempt in (1, 2):
            fresh = self._reader is None
            if self._reader is None or self._writer is None:
                connected = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
                self._reader, self._writer = connected
            try:
                self._writer.write(data)
                return await self._receive(self._reader)
            except (asyncio.IncompleteReadError, OSError):
                self.close()
                if fresh or attempt == 2:
                    raise
        raise AssertionError

    async def _receive(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head[9:12])
        if status in (100, 101):
            self.close()
            return status, b""
        if "\r\ncontent-length: " in head:
            size = int(head.partition("\r\ncontent-length: ")[2].partition("\r\n")[0])
            body = await reader.readexactly(size) if size else b""
            if "\r\nconnection: close" in head:
                self.close()
            return status, body
        body = b""
        try:
            async with asyncio.timeout(STREAM_SECONDS):
                while chunk := await reader.read(65536):
                    body += chunk
                    if b"0\r\n\r\n" in chunk[-8:]:
                        return status, body
        except TimeoutError:
            pass
        self.close()
        return status, body


def judge(status: int, body: bytes) -> str:
    if status == 500 or status > 504:
        return f"HTTP {status}: {body[:300]!r}"
    if INTERNAL.search(body) and not NAMED.search(body):
        return f"internal error: {body[:300]!r}"
    return ""


async def fuzz_door(
    door: str, port: int, numbers: Sequence[int], seed: int, outcome: Outcome, session: str
) -> None:
    left = iter(numbers)
    more = {"Mcp-Session-Id": session} if session else {}

    async def work() -> None:
        connection = Connection(port)
        for number in left:
            if len(outcome.failures) > 10:
                break
            case = build_case(door, DOORS[door], seed, number)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    status, body = await connection.exchange(case, more)
                problem = judge(status, body)
                outcome.count("accepted", status in (200, 202) and b'"error"' not in body)
            except TimeoutError:
                connection.close()
                problem = f"no answer within {ANSWER_SECONDS:.0f} s"
            except (asyncio.IncompleteReadError, OSError) as error:
                # A head that is no HTTP may be answered by closing; a good one may not.
                problem = "" if not is_clean(case) else f"closed without an answer: {error!r}"
            outcome.count("messages")
            if problem:
                shown = f"{case.method} {case.path} {case.headers} {(case.body or b'')[:300]!r}"
                outcome.fail(f"{door} --seed {seed} --case {number}: {problem}: {shown}")
        connection.close()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def is_clean(case: Seed) -> bool:
    """Whether the head of the request is one that HTTP allows."""
    values = "".join(case.headers.values())
    return case.path.isascii() and " " not in case.path and values.isprintable()


def open_session(hub: RunningHub) -> str:
    """A session of the handshake era, into which mutated requests go."""
    answer = wire.post(hub.mcp_url, wire.request(0, "initialize", wire.initialize_params()), {})
    return answer.headers["mcp-session-id"]
