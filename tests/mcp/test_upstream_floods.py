"""Servers that send much unsolicited data: its cost, and what remains for others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from itertools import pairwise
from pathlib import Path
from time import monotonic, thread_time
from typing import Any

import pytest
from tests.mcp.http_stub_server import Request, legacy, serve_stub
from tests.mcp.upstream_hub import Scripted, http, run_hub, until

from dragoman.core.bus import Bus
from dragoman.core.call import WantedUpdates
from dragoman.core.events import Event, ServerLogged
from dragoman.core.read_pacing import REST, Pace, pause_after_list
from dragoman.mcp.client.jsonrpc_channel import MAX_BATCH, JsonRpcChannel
from dragoman.mcp.client.server_logs import MAX_ANNOUNCED, ServerLogs
from dragoman.processes.child_process import OutputRing
from dragoman.wire.sse import TURN

pytestmark = pytest.mark.promise("N1")

DENSE = {"method": "notifications/odd", "params": {"a": [{"b": n} for n in range(30_000)]}}
"""Not large, but with very many parts."""
TIMES = 5


def note(text: str) -> dict[str, Any]:
    return {"method": "notifications/message", "params": {"level": "info", "data": text}}


async def test_events_that_arrive_at_once_leave_turns_for_others(short_tmp: Path) -> None:
    """Between two turns of another task, a bounded number of events is read."""
    read = 0
    read_at_turns: list[int] = []

    def handle(request: Request) -> None:
        if request.asked != "tools/call":
            legacy(request)
            return
        request.stream()
        token = request.message["params"]["_meta"]["progressToken"]
        for number in range(10_000):
            params = {"progressToken": token, "progress": number}
            request.event({"method": "notifications/progress", "params": params})
        request.event({"id": request.message["id"], "result": {"content": []}})

    def count(update: object) -> None:
        nonlocal read
        read += 1

    async def take_turns() -> None:
        while True:
            read_at_turns.append(read)
            await asyncio.sleep(0)

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url))
        turns = asyncio.create_task(take_turns())
        await world.call("s.t", updates=count, wanted_updates=WantedUpdates(progress=True))
        turns.cancel()
    assert read == 10_000
    assert max(later - before for before, later in pairwise(read_at_turns)) <= 2 * TURN


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_large_unsolicited_messages_leave_time_for_others(way: str, short_tmp: Path) -> None:
    said = [note("begin"), *[DENSE] * TIMES, note("end")]
    encoded = [json.dumps({"jsonrpc": "2.0", **one}).encode() for one in said]
    may_talk = asyncio.Event()

    def handle(request: Request) -> Awaitable[None] | None:
        if request.method == "GET":
            return talk(request)
        legacy(request)
        return None

    async def talk(request: Request) -> None:
        request.stream()
        await may_talk.wait()
        for one in encoded:
            request._writer.write(b"data: " + one + b"\n\n")
            await request._writer.drain()
        await asyncio.Event().wait()

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        script = Scripted(short_tmp, "legacy", {"tools/call": {"first": said, "content": []}})
        entry = http("s", server.url) if way == "http" else script.entry()
        upstream = await world.add(entry)
        calling = asyncio.create_task(world.call("s.t")) if way == "stdio" else None
        may_talk.set()
        await until(lambda: "begin" in upstream.stderr.read_text())
        begun, used = monotonic(), thread_time()
        await until(lambda: "end" in upstream.stderr.read_text())
        took, worked = monotonic() - begun, thread_time() - used
        # Waiting costs a little, too, and the first of them may have come with what was before.
        assert took > worked * (REST - 1) * 0.7, f"{worked:.3f} of {took:.3f} s"
        if calling is not None:
            await calling


async def test_constantly_changing_list_is_reread_in_proportion_to_its_size(
    short_tmp: Path,
) -> None:
    words = "x" * 1_000
    tools = [
        {"name": f"t{n}", "description": words, "inputSchema": {"type": "object"}}
        for n in range(2_000)
    ]
    asked: list[float] = []

    def handle(request: Request) -> Awaitable[None] | None:
        if request.method == "GET":
            return storm(request)
        if request.asked == "tools/list":
            asked.append(monotonic())
            request.result({"tools": tools})
            return None
        legacy(request, tools={"listChanged": True})
        return None

    async def storm(request: Request) -> None:
        request.stream()
        while True:
            request.event({"method": "notifications/tools/list_changed"})
            await request._writer.drain()
            await asyncio.sleep(0.01)

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url))
        await until(lambda: len(asked) >= 5)
        least = pause_after_list(len(json.dumps(tools)))
        pauses = [later - sooner for sooner, later in pairwise(asked[1:])]
        assert 0.3 < least < min(pauses), pauses


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_huge_batch_is_read_only_in_part(way: str, short_tmp: Path) -> None:
    batch = [{"jsonrpc": "2.0", **note(f"n{n}!")} for n in range(MAX_BATCH + 5)]

    def handle(request: Request) -> Awaitable[None] | None:
        if request.method == "GET":
            return talk(request)
        legacy(request)
        return None

    async def talk(request: Request) -> None:
        request.stream()
        request._writer.write(b"data: " + json.dumps(batch).encode() + b"\n\n")
        request.event(note("end"))
        await asyncio.Event().wait()

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        if way == "http":
            upstream = await world.add(http("s", server.url))
        else:
            upstream = await world.add(Scripted(short_tmp, "legacy", {}).entry())
            assert upstream.connection.session is not None
            wire = upstream.connection.session.wire
            assert isinstance(wire, JsonRpcChannel)
            wire.receive(json.dumps(batch).encode())
            wire.receive(json.dumps(note("end")).encode())
        await until(lambda: "end" in upstream.stderr.read_text())
        text = upstream.stderr.read_text()
        assert f"n{MAX_BATCH - 1}!" in text and f"n{MAX_BATCH}!" not in text


def test_huge_log_line_is_truncated() -> None:
    bus, told = Bus(), list[Event]()
    bus.observe(ServerLogged, told.append)
    logs = ServerLogs("s", OutputRing(), bus)
    for data in ("x" * (MAX_ANNOUNCED + 1), [["x"] * MAX_ANNOUNCED], "short"):
        logs.write({"level": "error", "data": data}, None)
    first, second, third = (one.note.data for one in told if isinstance(one, ServerLogged))
    assert len(first) < 3_000 and first.endswith("[cut]")
    assert len(second) < 3_000 and second.endswith("[cut]")
    assert third == "short"


def test_pacing_applies_to_unsolicited_messages_only() -> None:
    pace = Pace()
    assert pace.pause(1) == 0.0
    assert pace.pause(1, 0.5) == 0.5 * REST
    assert pace.pause(0, 0.5) == 0.0
    assert pause_after_list(0) == pause_after_list(100) < pause_after_list(10**7)
    assert pause_after_list(10**9, 100.0) == pause_after_list(0, 1.0)
