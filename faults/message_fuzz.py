"""Fuzzes every way in with messages: well-formed ones, changed by structure and by bytes.

No answer may be an HTTP 500 or the JSON-RPC error -32603, and every request is answered in time.
A case is a pure function of the door, the seed and its number.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.bytes_fuzz import ANSWER_SECONDS
from faults.harness import Outcome
from faults.message_seeds import DOORS, Seed

AT_ONCE = 8
STREAM_SECONDS = 0.3
BATCH = 100
ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**31, 2**63, 2**64, -(2**63), 1e308, "", "x" * 3000, "\0",
    "\U0001f600", "\ud800", "../..", "%00", "${HOME}", "é" * 100, [], {}, [[]], {"": ""},
    [None] * 50, {"a": {"b": {"c": []}}}, "dragoman", "__proto__", "2026-07-28", "ROLE_USER",
    "TASK_STATE_WORKING", "NaN", "2026-13-45T99:99:99Z", "1970-01-01T00:00:00Z", [1, [2, [3]]],
]  # fmt: skip
NAMED = re.compile(rb'"reason": ?"(?!INTERNAL)[A-Z_]+"')
"""A typed error of A2A for which an older dialect has no code but -32603."""
KEYS = [
    "id", "method", "params", "jsonrpc", "result", "error", "metadata", "taskId", "_meta", "name",
    "arguments", "parts", "x",
]  # fmt: skip
HEADERS: dict[str, list[str]] = {
    "Mcp-Protocol-Version": ["2025-11-25", "2026-07-28", "1999-01-01", "", "\t"],
    "Mcp-Session-Id": ["x", "\xe9", "a" * 500],
    "Mcp-Method": ["tools/call", "", "x"],
    "Mcp-Name": ["mcp_r_echo", "=?base64?eA==?=", "\xff"],
    "A2A-Version": ["1.0", "0.3", "9", "x", ""],
    "A2A-Extensions": ["https://a/b", ",", "x" * 2000],
    "Idempotency-Key": ["k", "", "k" * 400, "\xe9"],
    "Last-Event-ID": ["0", "-1", "zz", "9" * 40],
    "Accept": ["*/*", "text/event-stream", "application/json", "x", "a/b;q=z, */*;q=0"],
    "Content-Type": ["text/plain", "application/json; charset=utf-16", "application/a2a+json", ""],
    "Content-Encoding": ["gzip", "identity"],
    "traceparent": ["00-0-0-0", "x" * 200, f"00-{'f' * 32}-{'f' * 16}-01"],
    "Authorization": ["Bearer", "Bearer x", "Basic eDp5"],
    "Origin": ["null", "http://evil.example"],
}


def mutate(value: Any, chance: random.Random, odd: float = 0.02) -> Any:
    """The same shape with some values replaced, some members gone, renamed, added or repeated.

    The deeper a value lies, the likelier it is replaced by an odd one.
    """
    if chance.random() < odd:
        return copy.deepcopy(chance.choice(ODD))
    if isinstance(value, dict):
        made = {}
        for name, member in value.items():
            kind = chance.random()
            if kind < 0.04:
                continue
            renamed = chance.choice([*KEYS, name.upper(), name + " "]) if kind < 0.06 else name
            deeper = min(2 * odd + 0.04, 0.2)
            made[renamed] = mutate(member, chance, deeper) if chance.random() < 0.5 else member
        if chance.random() < 0.1:
            made[chance.choice(KEYS)] = copy.deepcopy(chance.choice(ODD))
        return made
    if isinstance(value, list):
        return [mutate(one, chance, odd) for one in value] * chance.choice([1, 1, 1, 0, 3])
    return value


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    kind = chance.random()
    if kind < 0.08 and made:
        for _ in range(chance.randint(1, 4)):
            made[chance.randrange(len(made))] = chance.randrange(256)
    elif kind < 0.1:
        del made[chance.randrange(len(made) + 1) :]
    elif kind < 0.11:
        made = bytearray(b"[" * chance.randint(1, 3000) + made)
    return bytes(made)


def mutate_path(path: str, chance: random.Random) -> str:
    if chance.random() > 0.1:
        return path
    odd = quote(str(chance.choice(ODD)).encode("utf-8", "surrogatepass"))[:400]
    parts = path.split(chance.choice("/=?&"))
    parts[chance.randrange(len(parts))] = odd
    return chance.choice("/=&").join(parts) if not chance.randrange(3) else "/".join(parts)


def build_case(door: str, seed: int, number: int) -> Seed:
    chance = random.Random(f"{door}:{seed}:{number}")
    begun = chance.choice(DOORS[door])
    path = mutate_path(begun.path, chance)
    headers = dict(begun.headers)
    for name in chance.sample(list(HEADERS), chance.choice([0, 0, 0, 1, 1, 2])):
        headers[name] = chance.choice(HEADERS[name])
    if chance.random() < 0.05 and headers:
        headers.pop(chance.choice(list(headers)))
    body = None
    if begun.body is not None:
        body = mutate_bytes(json.dumps(mutate(begun.body, chance)).encode(), chance)
    elif chance.random() < 0.05:
        body = b"{}"
    return Seed(path if path.startswith("/") else "/" + path, body, begun.method, headers)


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
    if b"-32603" in body and not NAMED.search(body):
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
            case = build_case(door, seed, number)
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


async def fuzz_stdio(hub: RunningHub, numbers: Sequence[int], seed: int, outcome: Outcome) -> None:
    """Sends lines to the socket that `dragoman mcp` uses; a ping ends each batch."""
    path = json.loads((hub.home / "daemon.json").read_bytes())["mcp_socket"]
    for start in range(0, len(numbers), BATCH):
        batch = numbers[start : start + BATCH]
        reader, writer = await asyncio.open_unix_connection(path, limit=2**24)
        came = b""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await reader.readline()
                for number in batch:
                    line = (build_case("stdio", seed, number).body or b"").replace(b"\n", b" ")
                    framed = b"Content-Length: %d\r\n\r\n%s" % (len(line), line)
                    writer.write(framed if number % 3 == 0 else line + b"\n")
                    outcome.count("messages")
                for last in (b"one", b"two"):  # earlier requests are answered by then
                    writer.write(b'\n{"jsonrpc":"2.0","id":"%s","method":"ping"}\n' % last)
                    while b'"%s"' % last not in came:
                        chunk = await reader.read(65536)
                        if not chunk:
                            raise ConnectionResetError("the hub closed the socket")
                        came += chunk
        except TimeoutError:
            outcome.fail(f"stdio --seed {seed} --case {batch[0]}-{batch[-1]}: no answer to a ping")
        except OSError as error:
            outcome.fail(f"stdio --seed {seed} --case {batch[0]}-{batch[-1]}: {error!r}")
        finally:
            writer.transport.abort()
        outcome.count("accepted", came.count(b'"result"'))
        if b"-32603" in came:
            at = came.index(b"-32603")
            shown = came[max(0, at - 300) : at + 300]
            outcome.fail(f"stdio --seed {seed} --case {batch[0]}-{batch[-1]}: {shown!r}")


def fuzz_messages(
    hub: RunningHub, door: str, cases: int, seed: int, outcome: Outcome, only: int | None = None
) -> None:
    numbers = range(cases) if only is None else range(only, only + 1)
    if door == "stdio":
        asyncio.run(fuzz_stdio(hub, numbers, seed, outcome))
    else:
        session = open_session(hub) if door == "MCP, handshake era" else ""
        port = urlsplit(hub.url).port or 0
        asyncio.run(fuzz_door(door, port, numbers, seed, outcome, session))
    if only is None:  # a fuzzer that is turned away at the door shows nothing
        share = outcome.figures.get("accepted", 0) / max(1, outcome.figures.get("messages", 0))
        outcome.check(share > 0.05, f"{door}: {share:.1%} of the messages were accepted")
    try:
        healthy = wire.get(hub.url + "/healthz", timeout=ANSWER_SECONDS).status == 200
    except OSError:
        healthy = False
    if not outcome.check(healthy, f"{door}: /healthz does not answer"):
        hub.kill()
