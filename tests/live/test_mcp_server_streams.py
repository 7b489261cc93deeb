"""Streams of the real hub: broken connections, hub restarts, many listeners."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import rss, text_of
from tests.peers import wire
from tests.peers.process import read_log, run_client, server_entry, wait_for_log
from tests.peers.sdk_client import conversation

LISTENERS = 500
KB = 1024


@pytest.mark.promise("G2", "B12")
def test_call_continues_when_its_stream_breaks_and_is_replayed(
    hub: Callable[..., RunningHub], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    running = hub([server_entry("s", "sdk_server", "--log", log)])
    running.wait_connected("s")
    session = wire.Session(running.mcp_url)
    slow = {"name": "s.slow", "arguments": {"seconds": 2}}
    message = wire.request("c", "tools/call", slow)
    with wire.stream("POST", running.mcp_url, message, session.headers) as stream:
        first = stream.next()  # it comes after a second, and without an answer
        assert (first.data, bool(first.id)) == ("", True)
    wait_for_log(log, event="finished", name="slow")
    resume = {**session.headers, "Last-Event-ID": first.id}
    with wire.stream("GET", running.mcp_url, headers=resume) as stream:
        answer = stream.next()
        assert text_of(answer.json()) == "slept 2" and answer.json()["id"] == "c"
        with pytest.raises(EOFError):
            stream.next()
    again = {**resume, "Last-Event-ID": answer.id}
    with wire.stream("GET", running.mcp_url, headers=again) as stream, pytest.raises(EOFError):
        stream.next()
    other = {**wire.Session(running.mcp_url).headers, "Last-Event-ID": first.id}
    assert wire.get(running.mcp_url, {**other, "Accept": "text/event-stream"}).status == 400
    assert not [one for one in read_log(log) if one.get("event") == "cancelled"]
    assert [one["outcome"] for one in running.audit()] == ["completed"]


class Breaking:
    """Stands between client and hub, and breaks every connection once `sign` has gone through."""

    def __init__(self, hub: RunningHub, sign: bytes) -> None:
        self._to = int(hub.url.rpartition(":")[2])
        self._sign = sign
        self._writers: set[asyncio.StreamWriter] = set()
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])
        self.broken = False
        self.port = 0

    async def _run(self) -> None:
        self._over = asyncio.Event()
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._up.set()
            await self._over.wait()
            server.close()
            self._break()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._to)
        both = {writer, there[1]}
        self._writers |= both
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        self._writers -= both

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
                if self._sign in data and not self.broken:
                    self.broken = True
                    self._break()
        target.close()

    def _break(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def __enter__(self) -> Breaking:
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)
        self._loop.close()


@pytest.mark.promise("G2", "F7")
@pytest.mark.parametrize("client", ["sdk", "mcp1"])
def test_official_clients_resume_after_a_broken_connection(
    hub: Callable[..., RunningHub], client: str
) -> None:
    running = hub([server_entry("s", "sdk_server")])
    running.wait_connected("s")
    with Breaking(running, b"id: p") as between:  # the answer's stream has begun
        slow = ("--call", "mcp_s_slow", "--arguments", '{"seconds": 2}')
        where = ("--http", f"http://127.0.0.1:{between.port}/mcp")
        if client == "sdk":
            got = conversation("--mode", "legacy", *slow, *where)
        else:
            got = run_client("mcp1_client", *slow, *where)
        assert between.broken
    assert got["result"]["content"][0]["text"] == "slept 2", got
    assert [one["outcome"] for one in running.audit()] == ["completed"]


@pytest.mark.promise("G2", "B12", "B7")
def test_session_capabilities_survive_a_restart(
    hub: Callable[..., RunningHub],
) -> None:
    first = hub([server_entry("m", "matrix_server", "--era", "modern")])
    port = first.url.rpartition(":")[2]
    params = {**wire.initialize_params(), "capabilities": {"elicitation": {}}}
    begun = wire.post(first.mcp_url, wire.request(0, "initialize", params))
    headers = {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
    assert first.stop() == 0
    second = hub(home=first.home, args=["--port", port])
    second.wait_connected("m")
    call = wire.request("c", "tools/call", {"name": "m.ask_form", "arguments": {"key": "k"}})
    with wire.stream("POST", second.mcp_url, call, headers) as stream:
        asked = stream.next_json()
        assert asked["method"] == "elicitation/create"
        given = {"action": "accept", "content": {"name": "Ada"}}
        reply = {"jsonrpc": "2.0", "id": asked["id"], "result": given}
        accepted = wire.post(second.mcp_url, reply, headers)
        assert (accepted.status, accepted.body) == (202, b"")
        assert json.loads(text_of(stream.next_json())) == given


@pytest.mark.promise("Q2", "N1")
def test_many_listeners_take_little_memory_and_are_all_notified(
    hub: Callable[..., RunningHub],
) -> None:
    running = hub([server_entry("s", "sdk_server")])
    running.wait_connected("s")
    port = int(running.url.rpartition(":")[2])
    wants = {"notifications": {"toolsListChanged": True}}
    body = json.dumps(wire.request(1, "subscriptions/listen", wire.modern_params(wants))).encode()
    headers = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Accept": wire.ACCEPT,
        "Content-Length": str(len(body)),
        **wire.modern_headers("subscriptions/listen"),
    }
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    sent = "\r\n".join([*lines, "", ""]).encode() + body

    async def listen() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await reader.readuntil(b"notifications/subscriptions/acknowledged")
        return reader, writer

    async def run() -> None:
        async with asyncio.timeout(60):
            for _, writer in await asyncio.gather(*(listen() for _ in range(100))):
                writer.close()  # so that what is made once is there
            before = rss(running.pid)
            opened = [await listen() for _ in range(LISTENERS)]
            each = (rss(running.pid) - before) / LISTENERS
            assert each < 12 * KB, f"{each / KB:.1f} KB"
            await asyncio.to_thread(running.call, "mcp_s_toggle")
            for reader, _ in opened:
                await reader.readuntil(b"notifications/tools/list_changed")
            stopping = asyncio.create_task(asyncio.to_thread(running.stop))
            for reader, writer in opened:
                last = await reader.read()
                assert b'"result"' in last and last.endswith(b"0\r\n\r\n")
                writer.close()
            assert await stopping == 0

    asyncio.run(run())
