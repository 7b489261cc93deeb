"""The attacker, a process of its own at the lowest priority: what it does to a port, and how often.

It takes commands on stdin, a line of JSON each, and answers each with one: `{"attack": NAME,
"port": N, ...}` begins an attack, `{}` ends it and answers what it has counted. The same attack can
be directed at `sink`, a listener that reads and discards: what callers of the hub notice of that
is not of the hub's making. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ANSWER_SECONDS = 60.0
SLOW_BODY = 1_000
MEGABYTE = 1 << 20
CONNECTING = 500
"""Connections that an attacker opens in a second; as many are closed after their ten seconds."""

Seen = Counter[str]
Headers = Mapping[str, str]


def build_request(path: str, body: bytes, headers: Headers, **more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def read_answer(reader: asyncio.StreamReader, seen: Seen) -> bool:
    """Reads and counts one response; returns whether the connection can be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = head[9:12]
    length = int(head.partition("content-length:")[2].partition("\r\n")[0] or 0)
    await reader.readexactly(length)
    seen[status] += 1
    if status in ("429", "503"):
        seen["with retry-after"] += "retry-after:" in head
    return "connection: close" not in head


class Pace:
    """Lets all who wait for it go on, one after the other, `per_second` times a second."""

    def __init__(self, per_second: float) -> None:
        self._gap = 1 / per_second
        self._next = time.monotonic()

    async def wait(self) -> None:
        now = time.monotonic()
        self._next = max(self._next, now - 10 * self._gap)
        due, self._next = self._next, self._next + self._gap
        if due > now:
            await asyncio.sleep(due - now)


async def repeat_request(port: int, request: bytes, pace: Pace, seen: Seen) -> None:
    """Sends the request again and again; opens a new connection where the old one is closed."""
    while True:
        await pace.wait()
        writer = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            usable = True
            while usable:
                writer.write(request)
                seen["sent"] += 1
                await writer.drain()
                usable = await read_answer(reader, seen)
                await pace.wait()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            seen["closed"] += 1
        finally:
            if writer is not None:
                writer.transport.abort()


async def repeat_in_parallel(how: dict[str, Any], seen: Seen, request: bytes) -> None:
    pace = Pace(how["per_second"])
    senders = range(how["senders"])
    await asyncio.gather(*(repeat_request(how["port"], request, pace, seen) for _ in senders))


# --- the attacks


async def hold_connections(how: dict[str, Any], seen: Seen) -> None:
    """Heads that come line by line, bodies that come byte by byte, and silent connections; each is
    opened again when it has been closed."""
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
    whole = build_request("/mcp", b" " * SLOW_BODY, how["headers"])[:-SLOW_BODY]
    kinds = ["body"] * how["bodies"] + ["head"] * how["heads"] + ["silent"] * how["silent"]
    first = {"head": head, "body": whole, "silent": b""}
    more = {"head": b"X-Header: more\r\n", "body": b" "}
    pace = Pace(CONNECTING)
    longest: dict[str, float] = {}

    async def hold(kind: str) -> None:
        while True:
            writer = None
            try:
                await pace.wait()
                reader, writer = await asyncio.open_connection("127.0.0.1", how["port"])
                begun = time.monotonic()
                seen[kind] += 1
                writer.write(first[kind])
                await drip(reader, writer, more.get(kind, b""))
                longest[kind] = max(longest.get(kind, 0.0), time.monotonic() - begun)
                seen[f"{kind} closed"] += 1
            except OSError:
                seen[f"{kind} closed"] += 1
                await asyncio.sleep(0.1)
            finally:
                if writer is not None:
                    writer.transport.abort()

    async def drip(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: bytes
    ) -> None:
        """Until the other side closes the connection."""
        ended = asyncio.ensure_future(reader.read(1000))
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=1 if piece else None)
                if piece and not ended.done():
                    writer.write(piece)
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    try:
        await asyncio.gather(*(hold(kind) for kind in kinds))
    finally:
        for kind, seconds in longest.items():
            seen[f"{kind} longest ms"] = int(1000 * seconds)


async def send_many_values(how: dict[str, Any], seen: Seen) -> None:
    """Bodies of `size` bytes of `{}`: small on the wire, huge as objects."""
    values = b"{}," * (how["size"] // 3)
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + values + b"{}]}}"
    await repeat_in_parallel(how, seen, build_request("/mcp", body, how["headers"]))


def build_bomb(inflated: int) -> bytes:
    """`gzip.compress(b" " * inflated, 9)` of whole megabytes, in a tenth of the time: the same
    block again and again."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = packer.compress(b" " * MEGABYTE) + packer.flush(zlib.Z_FULL_FLUSH)
    check = 0
    for _ in range(inflated // MEGABYTE):
        check = zlib.crc32(b" " * MEGABYTE, check)
    head, trailer = b"\x1f\x8b\x08\0\0\0\0\0\x02\xff", struct.pack("<II", check, inflated)
    return head + block * (inflated // MEGABYTE) + packer.flush() + trailer


async def send_bombs(how: dict[str, Any], seen: Seen) -> None:
    """Bodies of 200 KB that inflate to 200 MB."""
    bomb = build_bomb(how["inflated"])
    request = build_request("/mcp", bomb, how["headers"], Content_Encoding="gzip")
    await repeat_in_parallel(how, seen, request)


async def call_tool(how: dict[str, Any], seen: Seen) -> None:
    """Calls of a tool, each on a connection of its sender."""
    body = json.dumps({"arguments": how["arguments"]}).encode()
    path = f"/api/tools/{how['tool']}/call"
    await repeat_in_parallel(how, seen, build_request(path, body, how["headers"]))


async def read_upstream(how: dict[str, Any], seen: Seen) -> None:
    """Reads what an upstream sends, and discards it: the hub's part in a call, without a hub."""
    request = build_request(how["path"], b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', {})
    pace = Pace(how["per_second"])

    async def read() -> None:
        while True:
            await pace.wait()
            writer = None
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", how["port"])
                writer.write(request)
                read, end = 0, time.monotonic() + how["seconds"]
                while (piece := await reader.read(1 << 18)) and time.monotonic() < end:
                    read += len(piece)
                    if read >= how["bytes"]:
                        break
                seen["read"] += 1
            except OSError:
                seen["closed"] += 1
            finally:
                if writer is not None:
                    writer.transport.abort()

    await asyncio.gather(*(read() for _ in range(how["senders"])))


ATTACKS: dict[str, Callable[[dict[str, Any], Seen], Awaitable[None]]] = {
    "hold": hold_connections,
    "values": send_many_values,
    "bombs": send_bombs,
    "call": call_tool,
    "read": read_upstream,
}


# --- the sink


class Sink(asyncio.Protocol):
    """Reads a request, discards its body and refuses it."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._left:
            head, found, body = (self._head + data).partition(b"\r\n\r\n")
            if not found:
                self._head = head
                return
            self._head = b""
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._left, data = int(length or 0), body
        self._left -= len(data)
        if self._left <= 0:
            self._left = 0
            answer = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"
            assert isinstance(self._transport, asyncio.WriteTransport)
            self._transport.write(answer)


async def sink() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Sink, "127.0.0.1", 0, backlog=2048)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # its end is ours
    server.close()


# --- the process


async def obey() -> None:
    running: asyncio.Future[None] | None = None
    seen: Seen = Counter()
    while line := await asyncio.to_thread(sys.stdin.readline):
        how = json.loads(line)
        if running is not None:
            running.cancel()
            (ended,) = await asyncio.gather(running, return_exceptions=True)
            running = None
            if isinstance(ended, Exception):
                seen[f"error {type(ended).__name__}"] += 1
        print(json.dumps(seen), flush=True)
        if how:
            seen = Counter()
            running = asyncio.ensure_future(ATTACKS[how["attack"]](how, seen))


def main() -> None:
    os.nice(19)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(sink() if sys.argv[1:] == ["sink"] else obey())


class Process:
    """The attacker, or with "sink" the listener that discards; use it with `with`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.attackers", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline() or "{}"))

    def begin(self, attack: str, port: int, **how: Any) -> None:
        self._send({"attack": attack, "port": port, **how})

    def end(self) -> dict[str, Any]:
        """Ends the attack; gives what it has counted."""
        return self._send({})

    def _send(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.read()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        self.process.stdout.close()


if __name__ == "__main__":
    main()
