"""The Streamable HTTP client: stream resumption, headers, questions."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.http_stub_server import Mini, Request, legacy, modern, serve_stub
from tests.mcp.upstream_hub import EVERYTHING_ASKED, http, run_hub, until

from dragoman.core.body_budget import BodyBudget
from dragoman.core.call import Progress, WantedUpdates
from dragoman.core.errors import TimedOut, Unreachable, WorkFailed
from dragoman.core.tool import COMPLETION, PROMPT, RESOURCE
from dragoman.mcp.client import session as sessions

DONE = {"content": [{"type": "text", "text": "done"}]}


def answer(request: Request | None, result: Any = DONE) -> dict[str, Any]:
    assert request is not None
    return {"id": request.message["id"], "result": result}


def refuse_stream(request: Request) -> bool:
    """Answers a GET for the stream of the session, of which there is none; whether it did."""
    if request.method != "GET" or "last-event-id" in request.headers:
        return False
    request.reply(405)
    return True


def resumptions(server: Mini) -> list[Request]:
    return [request for request in server.requests if "last-event-id" in request.headers]


@pytest.mark.promise("B7")
@pytest.mark.parametrize("revision", ["2025-03-26", "2025-11-25"])
async def test_interrupted_stream_is_resumed_where_it_ended(revision: str, short_tmp: Path) -> None:
    call: list[Request] = []
    times: list[float] = []
    clock = asyncio.get_running_loop().time

    def handle(request: Request) -> None:
        if legacy(request, revision) or refuse_stream(request):
            return
        request.stream()
        if request.asked == "tools/call":
            call.append(request)
            request.event(None, id="e1", retry=300)
            token = request.message["params"]["_meta"]["progressToken"]
            told = {"progressToken": token, "progress": 1}
            request.event({"method": "notifications/progress", "params": told}, id="e2")
            times.append(clock())
        elif len(call) == 1 and len(times) < 3:
            times.append(clock())
            request.event(None, id=f"e{len(times) + 1}")  # not yet
        else:
            times.append(clock())
            request.event(answer(call[0]), id="e9")

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url))
        seen: list[Any] = []

        wanted = WantedUpdates(progress=True)
        result = await world.call("s.t", updates=seen.append, wanted_updates=wanted, client="c")

        assert result.content == DONE["content"]
        assert [one.progress for one in seen if isinstance(one, Progress)] == [1]
        gets = resumptions(server)
        assert [get.headers["last-event-id"] for get in gets] == ["e2", "e3", "e4"]
        assert all(get.headers["mcp-session-id"] == "s1" for get in gets)
        # The server says how long to wait, until it says otherwise.
        assert all(later - sooner >= 0.28 for sooner, later in pairwise(times))


@pytest.mark.promise("B7", "B8")
async def test_stream_resumption_is_bounded(short_tmp: Path) -> None:
    refusing = False

    def handle(request: Request) -> None:
        if legacy(request) or refuse_stream(request):
            return
        if request.method == "GET" and refusing:
            request.reply(405)
            return
        request.stream()
        request.event(None, id="e1", retry=10)

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url, timeout_secs=2))

        with pytest.raises(Unreachable, match="may or may not have been executed"):
            await world.call("s.t")
        gets = resumptions(server)
        assert len(gets) == 10  # none of which brought anything new
        refusing = True
        with pytest.raises(Unreachable, match="did not resume it"):
            await world.call("s.t")


@pytest.mark.promise("B8")
async def test_request_timeout_covers_all_its_streams(short_tmp: Path) -> None:
    number = 0

    def handle(request: Request) -> None:
        nonlocal number
        if legacy(request) or refuse_stream(request):
            return
        number += 1
        request.stream()
        request.event(None, id=f"e{number}", retry=100)

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url, timeout_secs=1))

        with pytest.raises(TimedOut):
            await world.call("s.t")
        await until(lambda: server.sent("notifications/cancelled"))


@pytest.mark.promise("B7")
async def test_streams_without_ids_and_modern_ones_are_not_resumed(
    short_tmp: Path,
) -> None:
    def old(request: Request) -> None:
        if not legacy(request) and not refuse_stream(request):
            request.stream()

    def new(request: Request) -> None:
        if not modern(request, [{"name": "t", "inputSchema": {"type": "object"}}]):
            request.stream()
            request.event(None, id="e1", retry=10)

    for handle in (old, new):
        async with run_hub(short_tmp) as world, serve_stub(handle) as server:
            await world.add(http("s", server.url))
            with pytest.raises(Unreachable, match="without a response"):
                await world.call("s.t")
            assert not resumptions(server)


@pytest.mark.promise("B13")
async def test_question_on_the_session_stream_belongs_to_the_newest_call_of_the_client(
    short_tmp: Path,
) -> None:
    streams: list[Request] = []
    open_, answered = asyncio.Event(), asyncio.Event()

    async def handle(request: Request) -> None:
        if legacy(request):
            return
        if request.method == "GET":
            request.stream()
            streams.append(request)
            await open_.wait()
        elif request.asked == "tools/call":
            await until(lambda: len(streams) == 2)  # it is opened in the background
            streams[1].event({"id": 7, "method": "roots/list"})
            await answered.wait()
            request.result(DONE)
        elif request.asked == "ping":
            request.result({})
        else:  # an answer of ours
            request.reply(202)
            answered.set()

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url, interactive=True))
        await until(lambda: streams)  # that of the shared session
        how: dict[str, Any] = {"client": "c", "features": EVERYTHING_ASKED}

        asking = await world.call("s.t", **how)
        assert asking.questions is not None
        (key,) = asking.questions
        folders = {"roots": [{"uri": "file:///x"}]}
        done = await world.call("s.t", answers={key: folders}, handle=asking.handle, **how)

        assert done.content == DONE["content"]
        (said,) = [
            one.message for one in server.requests if one.message and "result" in one.message
        ]
        assert said == {"jsonrpc": "2.0", "id": 7, "result": folders}
        open_.set()


@pytest.mark.promise("B13")
async def test_concurrent_questions_are_asked_together_and_answered_separately(
    short_tmp: Path,
) -> None:
    answered: dict[int, Any] = {}

    async def handle(request: Request) -> None:
        if legacy(request):
            return
        if request.asked == "tools/call":
            request.stream()
            for number in (7, 8, 9):
                form = {"message": f"{number}?", "requestedSchema": {"type": "object"}}
                request.event({"id": number, "method": "elicitation/create", "params": form})
                for _ in range(10):  # so that each is read on its own
                    await asyncio.sleep(0)
            await until(lambda: len(answered) == 3)
            request.event({"id": request.message["id"], "result": DONE})
        else:  # an answer of ours
            answered[request.message["id"]] = request.message["result"]["content"]["to"]
            request.reply(202)

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url, interactive=True))
        how: dict[str, Any] = {"client": "c", "features": EVERYTHING_ASKED}

        asking = await world.call("s.t", **how)
        assert asking.questions is not None and len(asking.questions) == 3
        answers = {
            key: {"action": "accept", "content": {"to": question.body["message"]}}
            for key, question in asking.questions.items()
        }
        done = await world.call("s.t", answers=answers, handle=asking.handle, **how)

        assert done.content == DONE["content"]
        assert answered == {7: "7?", 8: "8?", 9: "9?"}


PLAIN = {"name": "plain", "inputSchema": {"type": "object"}}
MARKED = {
    "name": "marked",
    "inputSchema": {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "n": {"type": "integer", "x-mcp-header": "N"},
            "rest": {"type": "string"},
        },
    },
}
BROKEN = {
    "name": "broken",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
}


@pytest.mark.promise("B12")
async def test_headers_mirror_the_message(short_tmp: Path) -> None:
    def handle(request: Request) -> None:
        if modern(request, [PLAIN, MARKED, BROKEN], prompts={}, resources={}, completions={}):
            return
        members: dict[str, dict[str, Any]] = {
            "prompts/list": {"prompts": [{"name": "été"}]},
            "resources/list": {"resources": [{"name": "a", "uri": "x://a b"}]},
            "resources/templates/list": {"resourceTemplates": []},
            "prompts/get": {"messages": []},
            "resources/read": {"contents": []},
            "completion/complete": {"completion": {"values": []}},
        }
        request.result({"resultType": "complete", **members.get(request.asked, DONE)})

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        upstream = await world.add(http("s", server.url))
        assert [tool.remote_name for tool in world.hub.catalog.list_tools()] == ["plain", "marked"]
        (problem,) = upstream.catalog.problems
        assert "broken" in problem and "x-mcp-header" in problem

        await world.call("s.plain", {"region": "none of its"})
        await world.call("s.marked", {"region": " é", "n": 42, "rest": "r"})
        await world.call("s.marked", {"n": 7})
        (prompt,) = world.hub.catalogs[PROMPT].list_tools()
        await world.call(prompt.name, kind=PROMPT)
        await world.call("x://a b", kind=RESOURCE)
        argument = {"ref": {}, "argument": {"name": "a", "value": ""}}
        await world.call(prompt.name, argument, kind=COMPLETION)

        def told(method: str) -> list[dict[str, str]]:
            return [
                {
                    name: value
                    for name, value in request.headers.items()
                    if name.startswith("mcp-") and name != "mcp-protocol-version"
                }
                for request in server.sent(method)
            ]

        assert told("tools/call") == [
            {"mcp-method": "tools/call", "mcp-name": "plain"},
            {
                "mcp-method": "tools/call",
                "mcp-name": "marked",
                "mcp-param-region": "=?base64?IMOp?=",
                "mcp-param-n": "42",
            },
            {"mcp-method": "tools/call", "mcp-name": "marked", "mcp-param-n": "7"},
        ]
        assert told("prompts/get") == [
            {"mcp-method": "prompts/get", "mcp-name": "=?base64?w6l0w6k=?="}
        ]
        assert told("resources/read") == [{"mcp-method": "resources/read", "mcp-name": "x://a b"}]
        assert told("completion/complete") == [{"mcp-method": "completion/complete"}]
        assert told("tools/list") == [{"mcp-method": "tools/list"}]


@pytest.mark.promise("B12")
async def test_tool_with_changed_headers_is_reread_and_called_again(
    short_tmp: Path,
) -> None:
    wanted = False

    def handle(request: Request) -> None:
        tool = {**MARKED, "name": "t"} if wanted else {**PLAIN, "name": "t"}
        if modern(request, [tool]):
            return
        if wanted and request.headers.get("mcp-param-region") != "r":
            request.fail(-32020)
        else:
            request.result({"resultType": "complete", **DONE})

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url))
        await world.call("s.t", {"region": "r"})
        wanted = True

        await world.call("s.t", {"region": "r"})

        assert len(server.sent("tools/call")) == 3
        with pytest.raises(WorkFailed):
            await world.call("s.t", {"region": "x"})  # which no other header would help
        assert len(server.sent("tools/call")) == 4


async def test_a_server_that_refuses_the_revision_and_names_only_older_ones_gets_a_handshake(
    short_tmp: Path,
) -> None:
    def handle(request: Request) -> None:
        if request.asked == "server/discover":
            request.fail(-32022, data={"supported": ["2025-11-25"], "requested": "2026-07-28"})
        elif not (legacy(request) or refuse_stream(request)):
            request.result(DONE)

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        upstream = await world.add(http("s", server.url))
        assert upstream.connection.version == "2025-11-25"
        await world.call("s.t")


@pytest.mark.parametrize("is_stream", [False, True], ids=["JSON", "stream"])
async def test_large_results_wait_for_room_instead_of_being_discarded(
    is_stream: bool, short_tmp: Path
) -> None:
    """In a stream, whose length is unknown, each takes all the room that one caller has."""
    result = {"content": [{"type": "text", "text": "x" * 1_000_000}]}
    calls = 0
    together = asyncio.Event()

    async def handle(request: Request) -> None:
        nonlocal calls
        if legacy(request) or refuse_stream(request):
            return
        calls += 1
        if calls == 6:
            together.set()
        await together.wait()
        if is_stream:
            request.stream()
            request.event(answer(request, result))
        else:
            request.result(result)

    async with serve_stub(handle) as server, run_hub(short_tmp) as world:
        room = world.net.room = BodyBudget(20 * 1024 * 1024)
        await world.add(http("s", server.url))
        held: list[int] = []
        grant = room._add

        def note(owner: object, size: int) -> None:
            grant(owner, size)
            held.append(room.held)

        room._add = note  # type: ignore[method-assign]
        results = await asyncio.gather(*(world.call("s.t") for _ in range(6)))
        assert [len(one.content[0]["text"]) for one in results] == [1_000_000] * 6
        assert 0 < max(held) <= room.share and room.held == 0


@pytest.mark.promise("P3")
async def test_progress_restarts_the_request_timeout(short_tmp: Path) -> None:
    async def handle(request: Request) -> None:
        if legacy(request):
            return
        request.stream()
        token = request.message["params"]["_meta"].get("progressToken", "none")
        for step in range(8):
            told = {"progressToken": token, "progress": step}
            request.event({"method": "notifications/progress", "params": told})
            await asyncio.sleep(0.2)
        request.event(answer(request))

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        await world.add(http("s", server.url, timeout_secs=1))

        how: dict[str, Any] = {
            "updates": lambda _: None,
            "wanted_updates": WantedUpdates(progress=True),
        }
        assert (await world.call("s.t", meta={"a": 1}, **how)).content
        with pytest.raises(TimedOut):
            await world.call("s.t", meta={"a": 1})


@pytest.mark.promise("B7", "B8")
@pytest.mark.parametrize("how", ["refused", "page", "broken off"])
async def test_server_without_a_session_stream_is_used(
    how: str, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FIRST_PAUSE", 0.01)

    def handle(request: Request) -> None:
        if legacy(request):
            return
        if request.method == "GET":
            if how == "refused":
                request.reply(405)
            elif how == "page":
                request.reply(200, {"this": "is a server"}, **{"content-type": "text/html"})
        elif request.asked == "ping":
            request.result({})
        else:
            request.result(DONE)

    async with run_hub(short_tmp) as world, serve_stub(handle) as server:
        upstream = await world.add(http("s", server.url))
        first = upstream.connection.session
        assert first is not None and first.notifications._keeper is not None
        await until(first.notifications._keeper.done)
        assert (await world.call("s.t")).content == DONE["content"]
        gets = [request for request in server.requests if request.method == "GET"]
        assert len(gets) == (3 if how == "broken off" else 1)
        assert upstream.connection.session is first and len(server.sent("initialize")) == 1
