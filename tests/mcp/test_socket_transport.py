"""The MCP server on a stream: one connection is one client, which may stop reading."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import ROOTS, Call, LogMessage, Progress, Question, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.events import ClientGone, ResourceUpdated
from dragoman.core.principal import OWNER
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.startup import Startup
from dragoman.core.tool import DEFAULT_TRAITS, PROMPT, RESOURCE, TEMPLATE, TOOL, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.questions import Questions
from dragoman.mcp.server import socket_transport
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.mcp.server.socket_transport import UNREAD_BYTES, SocketConnection
from dragoman.wire import rpc

META = "io.modelcontextprotocol/"
MODERN_META = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}


class NoisyTarget:
    traits = DEFAULT_TRAITS
    name = "talkative"

    def __init__(self) -> None:
        self.said = asyncio.Event()

    async def run(self, call: Call) -> Result:
        for number in range(20_000):
            call.updates(Progress(progress=number, message="x" * 1000))
        self.said.set()
        return Result()


@pytest.mark.promise("N1")
async def test_slow_client_gets_no_further_notifications() -> None:
    loop = asyncio.get_running_loop()
    catalog = Catalog(review=admit_all)
    target = NoisyTarget()
    catalog.offer("talkative", [Tool(name="t.t", alias="t", remote_name="t", target=target)])
    mcp_server = McpServer(build_permissive_hub(catalog, Bus(), []))
    ours, theirs = socket.socketpair()
    with theirs:
        transport, connection = await loop.create_connection(
            lambda: SocketConnection(mcp_server, lambda _: OWNER, lambda: EVERYTHING, set()),
            sock=ours,
        )
        params = {"name": "t.t", "_meta": {"progressToken": 1}}
        connection.data_received(rpc.encode_request(1, "tools/call", params) + b"\n")
        async with asyncio.timeout(60):
            await target.said.wait()
        assert UNREAD_BYTES / 2 < transport.get_write_buffer_size() < 2 * UNREAD_BYTES
        transport.abort()
        await asyncio.sleep(0)


# --- a client that reads


class Server:
    """Its tools and prompts do what their names say; its resources can be followed."""

    traits = DEFAULT_TRAITS
    name = "server"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.last: Call | None = None

    async def run(self, call: Call) -> Result:
        self.last = call
        if call.tool.remote_name == "wait":
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        if call.tool.remote_name == "ask" and call.handle is None:
            return Result(questions={"q": Question(ROOTS, {})}, handle="h")
        if call.tool.remote_name == "log":
            call.updates(LogMessage(level="warning", data="careful"))
        return Result(content=[{"type": "text", "text": json.dumps(call.answers)}])


def offered(kind: str, name: str, target: Any) -> Tool:
    return Tool(name=f"server.{name}", alias=name, kind=kind, remote_name=name, target=target)


class Client:
    def __init__(self, mcp_server: McpServer, reader: asyncio.StreamReader, writer: Any) -> None:
        self.mcp_server = mcp_server
        self.reader = reader
        self.writer = writer

    def send(self, message: Any) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")

    def request(self, id: Any, method: str, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})

    def notify(self, method: str, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def hear(self) -> Any:
        async with asyncio.timeout(60):
            return json.loads(await self.reader.readline())

    async def shake(self, version: str = "2025-11-25", **capabilities: Any) -> None:
        self.request(0, "initialize", protocolVersion=version, capabilities=capabilities)
        assert (await self.hear())["result"]["protocolVersion"] == version
        self.notify("notifications/initialized")


@contextlib.asynccontextmanager
async def connected(target: Any, startup: Startup | None = None) -> AsyncIterator[Client]:
    loop = asyncio.get_running_loop()
    hub = build_permissive_hub(
        Catalog(review=admit_all),
        Bus(),
        [Questions(QuestionHandles(b"k" * 32, 60))],
        startup=startup,
    )
    names = {TOOL: ("wait", "ask", "log"), PROMPT: ("ask",), RESOURCE: ("a:b",)}
    for kind, some in names.items():
        hub.catalogs[kind].offer("server", [offered(kind, name, target) for name in some])
    mcp_server = McpServer(hub)
    ours, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(
        lambda: SocketConnection(mcp_server, lambda _: OWNER, lambda: EVERYTHING, set()),
        sock=ours,
    )
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        await reader.readline()  # what the hub says of itself
        yield Client(mcp_server, reader, writer)
    finally:
        writer.close()
        transport.abort()
        await asyncio.sleep(0)


@pytest.mark.promise("B12")
@pytest.mark.parametrize(
    ("kind", "list"),
    [(TOOL, "tools"), (PROMPT, "prompts"), (RESOURCE, "resources"), (TEMPLATE, "resources")],
)
async def test_client_is_notified_after_initialized(kind: str, list: str) -> None:
    target = Server()
    async with connected(target) as client:
        client.mcp_server.hub.catalogs[kind].offer("early", [offered(kind, "e", target)])
        await client.shake()
        client.request(1, "ping")
        assert (await client.hear())["id"] == 1
        client.mcp_server.hub.catalogs[kind].offer("more", [offered(kind, "x", target)])
        assert (await client.hear())["method"] == f"notifications/{list}/list_changed"


@pytest.mark.promise("B12")
async def test_subscription_lasts_as_long_as_its_connection() -> None:
    target = Server()
    async with connected(target) as client:
        hub, gone = client.mcp_server.hub, asyncio.Event()
        clients: list[str] = []

        def left(event: ClientGone) -> None:
            clients.append(event.client)
            gone.set()

        hub.bus.observe(ClientGone, left)
        await client.shake()
        client.request(1, "resources/subscribe", uri="a:b")
        assert (await client.hear())["result"] == {}
        hub.bus.emit(ResourceUpdated("server.a:b"))
        told = await client.hear()
        assert (told["method"], told["params"]) == (
            "notifications/resources/updated",
            {"uri": "a:b"},
        )
        client.writer.close()
        async with asyncio.timeout(60):
            await gone.wait()
        assert target.last is not None and clients == [target.last.client]
        assert not client.mcp_server.subscriptions._subscribers


@pytest.mark.promise("B12")
@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
async def test_question_and_answer_share_the_stream(
    method: str,
) -> None:
    async with connected(Server()) as client:
        await client.shake(roots={})
        client.request(1, method, name="ask")
        asked = await client.hear()
        assert asked["method"] == "roots/list"
        client.request(2, "ping")  # others are answered meanwhile
        assert (await client.hear())["id"] == 2
        client.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}})
        answer = await client.hear()
        assert answer["id"] == 1 and "roots" in json.dumps(answer["result"])


@pytest.mark.promise("B12")
async def test_batched_question_is_withdrawn_on_cancel() -> None:
    async with connected(Server()) as client:
        await client.shake("2025-03-26", roots={})
        call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "ask"}}
        client.send([{**call, "id": 1}, {**call, "id": 2}])
        first, second = await client.hear(), await client.hear()
        client.notify("notifications/cancelled", requestId=1)
        cancelled = await client.hear()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == first["id"]
        client.send([{"jsonrpc": "2.0", "id": second["id"], "result": {"roots": []}}])
        (answer,) = await client.hear()
        assert answer["id"] == 2 and answer["result"]["content"]


@pytest.mark.promise("B12")
async def test_log_level_is_scoped_to_the_connection() -> None:
    async with connected(Server()) as client:
        await client.shake()
        client.request(1, "tools/call", name="log")
        assert (await client.hear())["params"] == {"level": "warning", "data": "careful"}
        assert (await client.hear())["id"] == 1
        client.request(2, "logging/setLevel", level="error")
        client.request(3, "tools/call", name="log")
        assert [(await client.hear())["id"], (await client.hear())["id"]] == [2, 3]


@pytest.mark.promise("B12")
async def test_modern_client_subscribes_during_calls_and_cancels_it() -> None:
    target = Server()
    async with connected(target) as client:
        hub = client.mcp_server.hub
        for id in ("one", "two"):
            client.request(
                id,
                "subscriptions/listen",
                notifications={"toolsListChanged": True},
                _meta=MODERN_META,
            )
            acknowledged = await client.hear()
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            assert acknowledged["params"]["_meta"] == {META + "subscriptionId": id}
        client.notify("notifications/cancelled", requestId="one")
        client.request(1, "tools/call", name="log", _meta=MODERN_META)
        assert (await client.hear())["id"] == 1
        hub.catalog.offer("more", [offered(TOOL, "x", target)])
        told = await client.hear()
        assert told["params"]["_meta"] == {META + "subscriptionId": "two"}
        client.mcp_server.subscriptions.close()
        ended = await client.hear()
        assert ended["id"] == "two" and ended["result"]["resultType"] == "complete"


@pytest.mark.parametrize("method", ["tools/call", "resources/read", "prompts/get"])
async def test_any_call_can_be_cancelled(method: str) -> None:
    target = Server()
    async with connected(target) as client:
        for kind in (PROMPT, RESOURCE):
            client.mcp_server.hub.catalogs[kind].offer("server", [offered(kind, "wait", target)])
        client.request(1, method, name="wait", uri="wait")
        async with asyncio.timeout(60):
            await target.begun.wait()
            client.notify("notifications/cancelled", requestId=1)
            await target.cancelled.wait()
        client.request(1, "ping")
        assert (await client.hear())["id"] == 1


@pytest.mark.parametrize(
    ("kind", "method", "params"),
    [
        (TOOL, "tools/list", {}),
        (PROMPT, "prompts/list", {}),
        (RESOURCE, "resources/list", {}),
        (TEMPLATE, "resources/templates/list", {}),
        (TOOL, "tools/call", {"name": "later"}),
        (PROMPT, "prompts/get", {"name": "later"}),
    ],
)
async def test_early_list_and_unknown_name_wait_for_servers(
    kind: str, method: str, params: dict[str, Any]
) -> None:
    target, startup = Server(), Startup(lambda name: None)
    async with connected(target, startup) as client:
        client.request(1, method, **params)
        client.request(2, "ping")
        assert (await client.hear())["id"] == 2
        client.mcp_server.hub.catalogs[kind].offer("later", [offered(kind, "later", target)])
        if not params:
            startup.settle()
        answer = await client.hear()
        assert answer["id"] == 1 and "result" in answer
        if not params:
            assert "later" in json.dumps(answer["result"])


@pytest.mark.promise("N1")
async def test_missed_notifications_are_sent_when_the_client_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_transport, "UNREAD_BYTES", -1)
    monkeypatch.setattr(socket_transport, "RETRY_SECONDS", 0.01)
    target = Server()
    async with connected(target) as client:
        await client.shake()
        client.request(1, "resources/subscribe", uri="a:b")
        assert (await client.hear())["result"] == {}
        for _ in range(3):
            client.mcp_server.hub.bus.emit(ResourceUpdated("server.a:b"))
        client.request(2, "tools/call", name="log", _meta={"progressToken": 1})
        assert (await client.hear())["id"] == 2  # what belongs to a call is lost
        monkeypatch.setattr(socket_transport, "UNREAD_BYTES", 1_000_000)
        assert (await client.hear())["params"] == {"uri": "a:b"}
        client.request(3, "ping")
        assert (await client.hear())["id"] == 3  # once
