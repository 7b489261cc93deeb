"""A thousand clients connect, list, call and disconnect, many abruptly: nothing of them remains."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.live.conftest import RunningHub, _descendants
from tests.live.module_hub import rss, run_module_hub, until
from tests.peers import wire
from tests.peers.process import server_entry

MB = 1024 * 1024
AT_ONCE = 40
CALL = {"name": "mcp_r_echo", "arguments": {"text": "hello"}}


class Http:
    """One connection of HTTP, by hand: a thousand of them cost little."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.headers: dict[str, str] = {}

    @classmethod
    async def to(cls, hub: RunningHub) -> Http:
        return cls(*await asyncio.open_connection("127.0.0.1", int(hub.url.rpartition(":")[2])))

    def send(self, method: str, message: Any = None, **headers: str) -> None:
        body = b"" if message is None else json.dumps(message).encode()
        lines = [f"{method} /mcp HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += ["Content-Type: application/json", "Accept: application/json, text/event-stream"]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        lines += [f"{name}: {value}" for name, value in {**self.headers, **named}.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def receive(self) -> tuple[dict[str, str], Any]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in head[1:])}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return headers, json.loads(body) if body else None

    async def ask(self, message: Any, **headers: str) -> tuple[dict[str, str], Any]:
        self.send("POST", message, **headers)
        return await self.receive()

    def reset(self) -> None:
        """The end without a goodbye."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


async def legacy(hub: RunningHub, number: int) -> int:
    """Gives the number of calls it made."""
    http = await Http.to(hub)
    headers, _ = await http.ask(wire.request(0, "initialize", wire.initialize_params()))
    http.headers["Mcp-Session-Id"] = headers["mcp-session-id"]
    await http.ask(wire.notification("notifications/initialized"))
    _, listed = await http.ask(wire.request(1, "tools/list"))
    assert listed["result"]["tools"]
    _, called = await http.ask(wire.request(2, "tools/call", CALL))
    assert called["result"]["content"][0]["text"] == "hello"
    way = number % 5
    if way == 0:
        http.send("DELETE")
        await http.receive()
    elif way == 1:
        http.reset()
    elif way == 2:
        http.writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n{")
        await http.writer.drain()
    elif way == 3:
        http.send("GET")
        await http.reader.readuntil(b"keep-alive\n\n")
        if number % 2:
            http.reset()
    await http.close()
    return 1


async def modern(hub: RunningHub, number: int) -> int:
    http = await Http.to(hub)
    for id, (method, params) in enumerate([("tools/list", {}), ("tools/call", CALL)]):
        named = wire.modern_headers(method, params)
        _, answer = await http.ask(
            wire.request(id, method, wire.modern_params(params)),
            **{name.replace("-", "_"): value for name, value in named.items()},
        )
        assert "result" in answer, answer
    if number % 3 == 0:
        http.reset()
    elif number % 3 == 1:
        http.writer.write(b"POST /mcp HT")
    await http.close()
    return 1


async def stdio(hub: RunningHub, number: int) -> int:
    path = json.loads((hub.home / "daemon.json").read_bytes())["mcp_socket"]
    reader, writer = await asyncio.open_unix_connection(path, limit=MB)
    await reader.readline()
    for id, (method, params) in enumerate(
        [("initialize", wire.initialize_params()), ("tools/list", {}), ("tools/call", CALL)]
    ):
        body = json.dumps(wire.request(id, method, params)).encode()
        head = b"Content-Length: %d\r\n\r\n" % len(body) if number % 2 else b""
        writer.write(head + body + (b"" if head else b"\n"))
        answer: Any = {}
        while answer.get("id") != id:
            line = await reader.readline()
            if line.startswith(b"Content-Length"):
                await reader.readline()
                line = await reader.readexactly(int(line.split()[1]))
            answer = json.loads(line)
        assert "result" in answer, answer
        if method == "initialize":
            writer.write(
                json.dumps(wire.notification("notifications/initialized")).encode() + b"\n"
            )
    if number % 4 == 0:
        writer.write(b'{"jsonrpc":"2.0","id":9,"meth')
    elif number % 4 == 1:
        writer.write(b"Content-Length: 1000\r\n\r\n{")
    elif number % 4 == 2:
        writer.transport.abort()
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return 1


Client = Callable[[RunningHub, int], Awaitable[int]]


def many(hub: RunningHub, clients: dict[Client, int]) -> Counter[str]:
    """Runs so many of each, some at a time; the calls they made, by door."""
    made: Counter[str] = Counter()

    async def run() -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(client: Client, number: int) -> None:
            async with room, asyncio.timeout(60):
                calls = await client(hub, number)
                made["mcp-stdio" if client is stdio else "mcp-http"] += calls

        await asyncio.gather(
            *(one(client, n) for client, count in clients.items() for n in range(count))
        )

    asyncio.run(run())
    return made


def files(hub: RunningHub) -> int:
    """What it has open, by its own count: no other process of its user may look."""
    text = hub.get("/metrics").body.decode()
    (line,) = [line for line in text.splitlines() if line.startswith("process_open_fds ")]
    return int(float(line.split()[1]))


@pytest.mark.promise("N1", "B13", "G1")
def test_thousand_clients_leave_nothing_behind() -> None:
    config = '[mcp]\nstdio_expose = ["*"]\n'
    with run_module_hub([server_entry("r", "faulty_server", "ok")], config) as hub:
        hub.wait_connected("r")
        fresh = files(hub)
        made = many(hub, {legacy: 100, modern: 60, stdio: 40})
        until(lambda: files(hub) <= fresh + 1)  # the connection that asks is one
        processes, memory = len(_descendants(hub.pid)), rss(hub.pid)

        made += many(hub, {legacy: 500, modern: 300, stdio: 200})

        until(lambda: files(hub) <= fresh + 1)
        assert len(_descendants(hub.pid)) == processes
        grown = (rss(hub.pid) - memory) / MB
        assert grown < 15, f"{grown:.1f} MB"
        clients = hub.api("/api/status")["clients"]
        assert clients["stdio"] == 0
        assert clients["http_sessions"] == 480, "abandoned sessions, until they expire"
        records = hub.audit()
        assert Counter(record["door"] for record in records) == made
        assert {record["outcome"] for record in records} == {"completed"}
        assert "Traceback" not in hub.log()
