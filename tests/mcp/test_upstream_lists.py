"""Servers that list more to clients with elicitation, and lists that appear together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.http_stub_server import Mini, Request, serve_stub
from tests.mcp.upstream_hub import Scripted, UpstreamHub, http, run_hub, stdio, until

from dragoman.core.tool import PROMPT, TOOL

WHOLE: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}


def names(world: UpstreamHub, kind: str = TOOL) -> list[str]:
    return [tool.name for tool in world.hub.catalogs[kind].list_tools()]


class SelectiveServer:
    """A server of the old era whose sessions that can be asked are listed other tools."""

    def __init__(self) -> None:
        self.plain, self.asked = ["plain"], ["plain", "asks"]
        self.declared: dict[str, Any] = {}
        self.opens_more = True

    def __call__(self, request: Request) -> None:
        session = request.headers.get("mcp-session-id", "")
        if request.method == "DELETE":
            del self.declared[session]
            request.reply(200)
        elif request.asked == "server/discover":
            request.fail(-32600)
        elif request.asked == "initialize":
            self._greet(request)
        elif request.asked.startswith("notifications/"):
            request.reply(202)
        elif request.asked == "tools/list":
            listed = self.asked if self.declared[session] else self.plain
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in listed]
            request.result({"tools": tools})
        else:
            request.result({"content": [{"type": "text", "text": session}]})

    def _greet(self, request: Request) -> None:
        features = request.message["params"]["capabilities"]
        if features and not self.opens_more:
            request.fail(-32603)
            return
        session = f"s{len(self.declared) + 1}"
        self.declared[session] = features
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "choosy", "version": "1"},
        }
        request.result(result, mcp_session_id=session)

    def used_by(self, server: Mini, session: str) -> list[str]:
        return [
            request.asked or request.method
            for request in server.requests
            if request.headers.get("mcp-session-id") == session
        ]


@pytest.mark.promise("B5")
async def test_lists_for_capable_clients_are_offered(
    short_tmp: Path,
) -> None:
    choosy = SelectiveServer()
    async with run_hub(short_tmp) as world, serve_stub(choosy) as server:
        upstream = await world.add(http("s", server.url, interactive=True))
        assert sorted(names(world)) == ["s.asks", "s.plain"] and upstream.catalog.problems == []

        await until(lambda: list(choosy.declared) == ["s1"])
        greetings = [one.message["params"]["capabilities"] for one in server.sent("initialize")]
        assert greetings == [{}, WHOLE]
        assert choosy.used_by(server, "s2") == [
            "notifications/initialized",
            "tools/list",
            "DELETE",
        ]
        answer = await world.call("s.plain")
        assert answer.content[0]["text"] == "s1"


@pytest.mark.promise("B5")
async def test_only_an_asking_server_is_listed_on_a_second_connection(
    short_tmp: Path,
) -> None:
    async with run_hub(short_tmp) as world, serve_stub(SelectiveServer()) as server:
        await world.add(http("s", server.url))
        assert sorted(names(world)) == ["s.plain"]
        assert len(server.sent("initialize")) == 1


@pytest.mark.promise("B5")
async def test_failed_second_connection_falls_back_to_shared_lists(
    short_tmp: Path,
) -> None:
    choosy = SelectiveServer()
    choosy.opens_more = False
    async with run_hub(short_tmp) as world, serve_stub(choosy) as server:
        upstream = await world.add(http("s", server.url, interactive=True))
        assert sorted(names(world)) == ["s.plain"]
        (problem,) = upstream.catalog.problems
        assert "clients that can be asked is unknown" in problem and "-32603" in problem

        choosy.opens_more = True
        upstream.note_missed()
        await until(lambda: sorted(names(world)) == ["s.asks", "s.plain"])
        assert upstream.catalog.problems == []

        choosy.opens_more = False  # what was found out stays
        choosy.plain.append("new")
        upstream.note_missed()
        await until(lambda: upstream.catalog.problems)
        assert sorted(names(world)) == ["s.asks", "s.new", "s.plain"]


@pytest.mark.promise("B7")
async def test_shared_session_changes_are_applied(short_tmp: Path) -> None:
    choosy = SelectiveServer()
    choosy.plain, choosy.asked = ["old", "plain"], ["asks", "old", "plain"]
    async with run_hub(short_tmp) as world, serve_stub(choosy) as server:
        upstream = await world.add(http("s", server.url, interactive=True))
        assert sorted(names(world)) == ["s.asks", "s.old", "s.plain"]

        # Each session has a state of its own here: the other lists still what it did.
        choosy.plain = ["new", "plain"]
        upstream.note_missed()
        await until(lambda: sorted(names(world)) == ["s.asks", "s.new", "s.plain"])


@pytest.mark.promise("B7")
async def test_change_in_one_of_two_children_is_applied(short_tmp: Path) -> None:
    async with run_hub(short_tmp) as world:
        await world.add(stdio("m", "matrix_server", "--era", "legacy", interactive=True))
        await world.call("m.change", {"what": "tools"})
        await until(lambda: any("extra" in name for name in names(world)))


@pytest.mark.promise("B5")
async def test_question_on_a_list_connection_is_refused(short_tmp: Path) -> None:
    listed = {
        "first": [{"id": 9, "method": "roots/list"}],
        "tools": [{"name": "t", "inputSchema": {"type": "object"}}],
    }
    server = Scripted(short_tmp, "legacy", {"tools/list": listed})
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry(interactive=True))

        def answers() -> list[Any]:
            return [one for one in server.sent() if one.get("id") == 9]

        await until(lambda: len(answers()) == 2)
        assert all(one["error"]["code"] == -32601 for one in answers())
        assert sorted(names(world)) == ["s.t"] and upstream.catalog.problems == []


@pytest.mark.promise("B5")
async def test_modern_list_request_declares_capabilities(
    short_tmp: Path,
) -> None:
    server = Scripted(short_tmp, "modern", {})
    async with run_hub(short_tmp) as world:
        await world.add(server.entry(interactive=True))
        key = "io.modelcontextprotocol/clientCapabilities"
        declared = [one["params"]["_meta"][key] for one in server.sent("tools/list")]
        assert sorted(declared, key=len) == [{}, WHOLE]
        (found,) = server.sent("server/discover")
        assert found["params"]["_meta"][key] == {}


@pytest.mark.promise("B5")
async def test_lists_of_a_server_appear_together(short_tmp: Path) -> None:
    late = asyncio.Event()

    async def handle(request: Request) -> None:
        if request.asked == "initialize":
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "prompts": {}},
                "serverInfo": {"name": "late", "version": "1"},
            }
            request.result(result)
        elif request.asked == "tools/list":
            request.result({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
        elif request.asked == "prompts/list":
            await late.wait()
            request.result({"prompts": [{"name": "p"}]})
        elif request.asked == "server/discover":
            request.fail(-32600)
        else:
            request.reply(202)

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        adding = asyncio.create_task(world.add(http("s", server.url)))
        await until(lambda: server.sent("prompts/list") and server.sent("tools/list"))
        assert sorted(names(world)) == []
        late.set()
        await until(lambda: names(world))
        assert names(world, PROMPT) == ["s.p"]
        await adding


@pytest.mark.promise("B5")
async def test_missing_list_delays_tools_for_a_bounded_time(
    short_tmp: Path,
) -> None:
    server = Scripted(
        short_tmp,
        "legacy",
        {"prompts/list": {"silent": True}},
        capabilities={"tools": {}, "prompts": {}},
    )
    async with run_hub(short_tmp, list_secs=0.2) as world:
        upstream = await world.add(server.entry())
        assert sorted(names(world)) == ["s.t"]
        assert "no prompts are listed" in upstream.catalog.problems[0]


@pytest.mark.promise("B5")
async def test_server_answering_everything_with_null_is_not_modern(
    short_tmp: Path,
) -> None:
    choosy = SelectiveServer()

    def handle(request: Request) -> None:
        if request.asked == "server/discover":
            request.result({})
        else:
            choosy(request)

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        upstream = await world.add(http("s", server.url))
        assert upstream.connection.modern is False and sorted(names(world)) == ["s.plain"]
