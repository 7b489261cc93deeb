"""Requests to MCP servers carry a trace: in `_meta`, and over HTTP also in headers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.http_stub_server import Request, legacy, modern, serve_stub
from tests.mcp.upstream_hub import EVERYTHING_ASKED, Scripted, UpstreamHub, http, run_hub, until

from dragoman.core.call import WantedUpdates
from dragoman.core.principal import LOCAL
from dragoman.core.tool import PROMPT
from dragoman.core.trace import CHAIN, MEMBERS, PARENT, STATE, TRACE_ID, Trace, parse_trace
from dragoman.mcp.client.streamable_http import HttpWire
from dragoman.mcp.config import HttpTransport, ServerEntry
from dragoman.mcp.protocol.revisions import TASKS

WHOLE = {"resultType": "complete"}
DONE = {"content": [{"type": "text", "text": "done"}]}
TOOL = {"name": "t", "inputSchema": {"type": "object"}}
CLIENTS: dict[str, Any] = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "rojo=1",
    "X-OpenStarry-Trace-ID": "theirs",
    "dragoman.hub/chain": "v1.theirs.forged",
    "com.example/own": {"a": [1]},
    "baggage": "k=v",
}


def meta_of(message: Any) -> dict[str, Any]:
    found = message["params"]["_meta"]
    assert isinstance(found, dict)
    return found


def check_traced(message: Any) -> None:
    """Every request, whatever it is."""
    meta = meta_of(message)
    id = meta[TRACE_ID]
    assert len(id) == 32 and meta[PARENT].split("-")[1] == id, meta


def check_headers(request: Request) -> None:
    """The same as beside the message, where there is one. A handshake over HTTP has the headers
    alone: `_meta` would make it look like a request of the modern era."""
    headers = request.headers
    assert headers["traceparent"].split("-")[1] == headers["x-openstarry-trace-id"]
    if request.asked == "initialize" and "_meta" not in request.message["params"]:
        assert "mcp-session-id" not in headers
    elif request.message and "id" in request.message and "method" in request.message:
        check_traced(request.message)
        names = (headers.get(one) for one in ("x-openstarry-trace-id", "traceparent", "tracestate"))
        meta = meta_of(request.message)
        assert [*names] == [meta.get(TRACE_ID), meta.get(PARENT), meta.get(STATE)]
        assert headers.get("x-dragoman-chain") == meta.get(CHAIN)


def comes_back(world: UpstreamHub, request: Request) -> Trace:
    """Where a call belongs that brings what this request said."""
    fields = {name.encode(): value.encode() for name, value in request.headers.items()}
    return world.hub.chains.start_trace(LOCAL, "x.y", "x", parse_trace(fields))


@pytest.mark.promise("Q6")
async def test_legacy_http_requests_carry_the_trace(
    short_tmp: Path,
) -> None:
    def handle(request: Request) -> None:
        if request.method == "GET":
            request.stream()
        elif not legacy(request, logging={}, tools={"listChanged": True}):
            request.result({} if request.asked == "logging/setLevel" else DONE)

    async with serve_stub(handle) as server:
        async with run_hub(short_tmp) as world:
            await world.add(http("s", server.url))
            await world.call(
                "s.t", wanted_updates=WantedUpdates(log_level="info"), updates=lambda update: None
            )
            await until(lambda: any(one.method == "GET" for one in server.requests))
        methods = {one.asked for one in server.requests} | {one.method for one in server.requests}
        wanted = {"initialize", "notifications/initialized", "tools/list", "tools/call"}
        assert wanted | {"GET", "DELETE", "logging/setLevel"} <= methods
        for request in server.requests:
            check_headers(request)
        (call,) = server.sent("tools/call")
        assert comes_back(world, call).chain == ("s.t",)
        ids = [one.headers["x-openstarry-trace-id"] for one in server.requests]
        assert len(set(ids)) == len(ids)


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("interactive", [False, True])
async def test_modern_http_requests_carry_the_trace(short_tmp: Path, interactive: bool) -> None:
    prompts = {"prompts": [{"name": "p"}], **WHOLE}

    def handle(request: Request) -> None:
        if request.asked == "subscriptions/listen":
            request.stream()
        elif not modern(request, [TOOL], prompts={}, resources={"subscribe": True}):
            answers = {"prompts/list": prompts, "tools/call": {**WHOLE, **DONE}}
            request.result(answers.get(request.asked, {**WHOLE, "messages": [], "resources": []}))

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url, interactive=interactive))
        features: dict[str, Any] = {"features": EVERYTHING_ASKED} if interactive else {}
        for _ in range(2):  # the second one with headers that are known
            await world.call("s.t", **features)
        await world.call("s.p", kind=PROMPT)
        for request in server.requests:
            check_headers(request)
        assert {"server/discover", "tools/list", "prompts/get"} <= {
            one.asked for one in server.requests
        }
        first, second = server.sent("tools/call")
        assert first.headers["mcp-name"] == second.headers["mcp-name"] == "t"
        assert comes_back(world, first).id != comes_back(world, second).id
        for call in (first, second):
            assert comes_back(world, call).chain == ("s.t",)
            assert call.headers["x-openstarry-trace-id"] == comes_back(world, call).id


@pytest.mark.promise("Q6")
async def test_legacy_sse_requests_carry_the_trace(short_tmp: Path) -> None:
    streams: list[Request] = []

    async def handle(request: Request) -> None:
        if request.method == "GET":
            streams.append(request)
            request.stream()
            request._writer.write(b"event: endpoint\ndata: /messages\n\n")
            await asyncio.wait_for(over.wait(), 60)
            return
        request.reply(202)
        answers = {
            "initialize": {
                "protocolVersion": "2024-11-05",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "serve_stub", "version": "1"},
            },
            "tools/list": {"tools": [TOOL]},
            "tools/call": DONE,
        }
        if request.asked in answers:
            result = {"id": request.message["id"], "result": answers[request.asked]}
            streams[-1].event(result)

    over = asyncio.Event()
    async with serve_stub(handle) as server:
        async with run_hub(short_tmp) as world:
            await world.add(http("s", server.url.replace("/mcp", "/sse")))
            assert (await world.call("s.t")).content == DONE["content"]
        over.set()
        assert {"initialize", "notifications/initialized", "tools/call"} <= {
            one.asked for one in server.requests
        }
        for request in server.requests:
            check_headers(request)
        assert comes_back(world, server.sent("tools/call")[0]).chain == ("s.t",)


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_stdio_requests_carry_the_trace_in_meta(short_tmp: Path, era: str) -> None:
    server = Scripted(short_tmp, era, {"tools/call": {**WHOLE, **DONE}})
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())
        await world.call("s.t", meta={"com.example/own": 1})
        requests = [one for one in server.sent() if "id" in one]
        assert {"tools/list", "tools/call"} <= {one["method"] for one in requests}
        for one in requests:
            check_traced(one)
        meta = meta_of(server.sent("tools/call")[0])
        assert meta["com.example/own"] == 1
        trace = world.hub.chains.start_trace(LOCAL, "x.y", "x", parse_trace({}, meta))
        assert trace.chain == ("s.t",) and trace.id == meta[TRACE_ID]


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("interactive", [False, True])
async def test_client_trace_members_are_replaced_and_others_kept(
    short_tmp: Path, interactive: bool
) -> None:
    server = Scripted(short_tmp, "legacy", {"tools/call": DONE})
    async with run_hub(short_tmp) as world:
        await world.add(server.entry(interactive=interactive))
        features: dict[str, Any] = (
            {"features": EVERYTHING_ASKED, "client": "c"} if interactive else {}
        )
        carried = parse_trace({}, CLIENTS)
        await world.call("s.t", meta=CLIENTS, trace_context=carried, **features)
        meta = meta_of(server.sent("tools/call")[0])
        assert {name: meta[name] for name in meta if name not in MEMBERS} == {
            "com.example/own": {"a": [1]},
            "baggage": "k=v",
        }
        assert not any(meta[name] == CLIENTS[name] for name in MEMBERS)
        assert meta[TRACE_ID] == CLIENTS["traceparent"][3:35]  # the trace goes on,
        assert meta[PARENT].startswith(CLIENTS["traceparent"][:36])
        assert meta[STATE].endswith(",rojo=1")  # and so does what others say of it
        assert CLIENTS["X-OpenStarry-Trace-ID"] == "theirs"  # nothing of the caller's was changed


@pytest.mark.promise("Q6")
async def test_server_task_is_polled_in_the_trace_of_its_call(
    short_tmp: Path,
) -> None:
    made = {"resultType": "task", "taskId": "t1", "status": "working", "pollIntervalMs": 1}
    over = {"taskId": "t1", "status": "completed", "result": DONE, **WHOLE}
    answers = {"tools/call": made, "tasks/get": over}
    features: dict[str, Any] = {"tools": {}, "extensions": {TASKS: {}}}
    server = Scripted(short_tmp, "modern", answers, capabilities=features)
    async with run_hub(short_tmp) as world:
        await world.add(server.entry())
        result = await world.call(
            "s.t",
            features={"extensions": {TASKS: {}}},
            wanted_updates=WantedUpdates(task_start=True),
            updates=lambda update: None,
        )
        assert result.content == DONE["content"]
        call, asked = server.sent("tools/call")[0], server.sent("tasks/get")[0]
        for name in (TRACE_ID, PARENT, STATE):
            assert meta_of(call)[name] == meta_of(asked)[name]


@pytest.mark.promise("Q6")
async def test_configured_headers_do_not_override_trace_headers(
    short_tmp: Path,
) -> None:
    def handle(request: Request) -> None:
        if not modern(request, [TOOL]):
            request.result({**WHOLE, **DONE})

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        transport = HttpTransport(url=server.url, headers=["TraceParent: fixed", "X-Own: 1"])
        upstream = await world.add(ServerEntry(name="s", transport=transport))
        for _ in range(2):
            await world.call("s.t")
        assert upstream.connection.session is not None and isinstance(
            upstream.connection.session.wire, HttpWire
        )
        fixed = upstream.connection.session.wire._find_headers("tools/call", "t")
        assert "traceparent" not in {name.lower() for name in fixed}
        assert fixed.encoded.count(b"\r\n") == len(fixed) and b"x-own: 1" in fixed.encoded
        for request in server.requests:
            assert request.headers["x-own"] == "1" and request.headers["traceparent"] != "fixed"
            check_headers(request)
