"""Server questions put to clients of both eras. The target is defined here; the stage that seals
the handles is the real one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import FORM, ROOTS, SAMPLING, URL, Call, Question, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.principal import OWNER, Principal
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.tool import COMPLETION, PROMPT, RESOURCE, TOOL, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.questions import Questions
from dragoman.mcp.protocol.elicitation import TASKS_ONLY
from dragoman.mcp.protocol.revisions import (
    NAMES,
    R2024,
    R2503,
    R2506,
    R2511,
    R2607,
    SERVER_KEY,
    Revision,
)
from dragoman.mcp.server import client_questions
from dragoman.mcp.server.client_questions import parse_capabilities
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.wire import rpc

META = "io.modelcontextprotocol/"
ALL_ABLE = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {"listChanged": True},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "m"}]},
    },
    "required": ["name"],
    "$schema": "https://json-schema.org/draft/2020-12/schema",
}
SAID = [{"role": "user", "content": {"type": "text", "text": "say hi"}}]
QUESTIONS = {
    FORM: Question(FORM, {"mode": "form", "message": "who?", "requestedSchema": SCHEMA}),
    URL: Question(URL, {"mode": "url", "message": "go", "url": "https://example.com/go"}),
    SAMPLING: Question(SAMPLING, {"messages": SAID, "maxTokens": 10, "includeContext": "none"}),
    ROOTS: Question(ROOTS, {}),
}
ANSWERS = {
    FORM: {"action": "accept", "content": {"name": "Ann"}},
    URL: {"action": "accept"},
    SAMPLING: {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"},
    ROOTS: {"roots": [{"uri": "file:///a"}]},
}
METHOD_KIND = {"elicitation/create": FORM, "sampling/createMessage": SAMPLING, "roots/list": ROOTS}


class AskingTarget:
    """Asks `rounds` of questions, one set a call, then tells what it was answered."""

    name = "curious"

    def __init__(self, *rounds: dict[str, Question]) -> None:
        self.rounds = rounds
        self.traits = TargetTraits(ends_questions=False)
        self.calls: list[Call] = []

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        number = int(call.handle or 0)
        if number < len(self.rounds):
            return Result(questions=self.rounds[number], handle=str(number + 1))
        text = json.dumps(call.answers)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if call.tool.kind == RESOURCE:
            content = [{"type": "resource", "resource": {"uri": "a:b", "text": text}}]
        return Result(content=content)


def build_asking_server(
    *rounds: dict[str, Question], seconds: float = 60.0
) -> tuple[McpServer, AskingTarget]:
    target = AskingTarget(*rounds)
    stage = Questions(QuestionHandles(b"k" * 32, 60))
    hub = build_permissive_hub(Catalog(review=admit_all), Bus(), [stage])
    for kind, alias in ((TOOL, "mcp_curious_t"), (PROMPT, "mcp_curious_p"), (RESOURCE, "a:b")):
        tool = Tool(name=f"curious.{alias}", alias=alias, kind=kind, remote_name="x", target=target)
        hub.catalogs[kind].offer("curious", [tool])
    return McpServer(hub, question_seconds=seconds), target


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "mcp_curious_t", "arguments": {"x": 1}}),
    ("prompts/get", {"name": "mcp_curious_p"}),
    ("resources/read", {"uri": "a:b"}),
]


def text_of(result: dict[str, Any]) -> Any:
    """What the server was answered, from a result of any kind."""
    if "contents" in result:
        return json.loads(result["contents"][0]["text"])
    block = result["messages"][0]["content"] if "messages" in result else result["content"][0]
    return json.loads(block["text"])


# --- modern clients: they get the questions and call again


async def modern(
    mcp_server: McpServer,
    method: str,
    params: dict[str, Any],
    able: Any = ALL_ABLE,
    principal: Principal = OWNER,
) -> Any:
    meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": able}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    answer = await mcp_server.answer(message, ClientState(principal, "test", EVERYTHING, R2607))
    assert answer is not None
    return json.loads(answer)


@pytest.mark.promise("B12")
@pytest.mark.parametrize(("method", "params"), REQUESTS)
async def test_modern_client_gets_the_questions_and_resumes(
    method: str, params: dict[str, Any]
) -> None:
    mcp_server, target = build_asking_server(
        {"q": QUESTIONS[FORM], "m": QUESTIONS[SAMPLING]}, {"r": QUESTIONS[ROOTS]}
    )
    first = (await modern(mcp_server, method, params))["result"]
    assert first["resultType"] == "input_required" and first["_meta"][SERVER_KEY]
    assert first["inputRequests"] == {
        "q": {"method": "elicitation/create", "params": QUESTIONS[FORM].body},
        "m": {"method": "sampling/createMessage", "params": QUESTIONS[SAMPLING].body},
    }
    answers = {"q": ANSWERS[FORM], "m": ANSWERS[SAMPLING], "unasked": {"action": "accept"}}
    again = {"inputResponses": answers, "requestState": first["requestState"]}
    second = (await modern(mcp_server, method, {**params, **again}))["result"]
    assert second["inputRequests"] == {"r": {"method": "roots/list", "params": {}}}
    assert second["requestState"] != first["requestState"]
    again = {"inputResponses": {"r": ANSWERS[ROOTS]}, "requestState": second["requestState"]}
    last = (await modern(mcp_server, method, {**params, **again}))["result"]
    assert last["resultType"] == "complete"
    assert text_of(last) == {"r": ANSWERS[ROOTS]}
    assert [call.handle for call in target.calls] == [None, "1", "2"]
    assert target.calls[1].answers == answers


async def test_answers_without_a_handle_pass_and_a_bare_handle_does_not() -> None:
    mcp_server, target = build_asking_server({"q": QUESTIONS[FORM]})
    method, params = REQUESTS[0]
    first = await modern(mcp_server, method, {**params, "inputResponses": {"q": ANSWERS[FORM]}})
    assert target.calls[-1].answers == {"q": ANSWERS[FORM]} and target.calls[-1].handle is None
    state = first["result"]["requestState"]
    await modern(mcp_server, method, {**params, "requestState": state})
    assert target.calls[-1].answers == {} and target.calls[-1].handle == "1"


async def test_retry_request_of_a_server_is_passed_on() -> None:
    mcp_server, _ = build_asking_server({})
    first = (await modern(mcp_server, *REQUESTS[0]))["result"]
    assert first["resultType"] == "input_required"
    assert "inputRequests" not in first and first["requestState"]


@pytest.mark.promise("B12")
@pytest.mark.parametrize("number", range(3))
async def test_handle_is_valid_once_for_its_call_and_principal(number: int) -> None:
    method, params = REQUESTS[number]
    mcp_server, target = build_asking_server({"q": QUESTIONS[FORM]})
    state = (await modern(mcp_server, method, params))["result"]["requestState"]
    again = {"inputResponses": {"q": ANSWERS[FORM]}, "requestState": state}
    other_method, other_params = REQUESTS[number - 1]
    stranger = Principal("key", "stranger", "")
    refused = [
        await modern(mcp_server, method, {**params, **again}, principal=stranger),
        await modern(mcp_server, other_method, {**other_params, **again}),
        await modern(mcp_server, method, {**params, **again, "requestState": state + "-TAMPERED"}),
        await modern(mcp_server, method, {**params, **again, "requestState": ""}),
    ]
    if method == "tools/call":
        refused.append(await modern(mcp_server, method, {**params, "arguments": {"x": 2}, **again}))
    for answer in refused:
        assert answer["error"]["code"] == -32602, answer
    assert len(target.calls) == 1  # nothing was answered there
    assert "result" in await modern(mcp_server, method, {**params, **again})
    assert (await modern(mcp_server, method, {**params, **again}))["error"]["code"] == -32602
    assert len(target.calls) == 2


@pytest.mark.parametrize(
    "again",
    [
        {"inputResponses": None},
        {"inputResponses": []},
        {"inputResponses": {"q": 12345}},
        {"inputResponses": {"q": None}},
        {"requestState": 7},
        {"requestState": None},
    ],
)
async def test_invalid_answers_are_refused(again: dict[str, Any]) -> None:
    mcp_server, target = build_asking_server({"q": QUESTIONS[FORM]})
    method, params = REQUESTS[0]
    assert (await modern(mcp_server, method, {**params, **again}))["error"]["code"] == -32602
    assert not target.calls


@pytest.mark.promise("B12", "B13")
@pytest.mark.parametrize(
    ("kind", "able", "missing"),
    [
        (FORM, {}, {"elicitation": {"form": {}}}),
        (FORM, {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        (URL, {"elicitation": {}}, {"elicitation": {"url": {}}}),
        (SAMPLING, {"roots": {}}, {"sampling": {}}),
        (ROOTS, {"sampling": {}}, {"roots": {}}),
    ],
)
@pytest.mark.parametrize(("method", "params"), REQUESTS)
async def test_incapable_modern_client_gets_the_missing_capability(
    method: str, params: dict[str, Any], kind: str, able: Any, missing: Any
) -> None:
    mcp_server, _ = build_asking_server({"q": QUESTIONS[kind]})
    error = (await modern(mcp_server, method, params, able))["error"]
    assert error["code"] == -32021
    assert error["data"]["requiredCapabilities"] == missing
    assert "who?" in error["message"] or kind != FORM


async def test_sampling_with_tools_needs_the_declared_capability() -> None:
    body = {**QUESTIONS[SAMPLING].body, "tools": [], "includeContext": "thisServer"}
    asks = {"q": Question(SAMPLING, body)}
    error = (await modern(build_asking_server(asks)[0], *REQUESTS[0], {"sampling": {}}))["error"]
    assert error["data"]["requiredCapabilities"] == {"sampling": {"tools": {}}}
    result = (
        await modern(build_asking_server(asks)[0], *REQUESTS[0], {"sampling": {"tools": {}}})
    )["result"]
    params = result["inputRequests"]["q"]["params"]
    assert "tools" in params and "includeContext" not in params
    result = (await modern(build_asking_server(asks)[0], *REQUESTS[0]))["result"]
    assert result["inputRequests"]["q"]["params"] == body


async def test_completion_with_questions_is_an_error() -> None:
    mcp_server, target = build_asking_server({"q": QUESTIONS[FORM]})
    ref = {"type": "ref/prompt", "name": "mcp_curious_p"}
    params = {"ref": ref, "argument": {"name": "a", "value": ""}}
    answer = await modern(mcp_server, "completion/complete", params)
    assert answer["error"]["code"] == -32603
    assert target.calls[0].tool.kind == COMPLETION


# --- the old era: the client is sent requests while its own waits


class Client:
    """A client that shakes hands, with `replies` to what it is asked."""

    def __init__(
        self,
        mcp_server: McpServer,
        revision: Revision,
        able: Any = ALL_ABLE,
        reply: Callable[[Any], Any] = dict,
    ) -> None:
        self.mcp_server = mcp_server
        self.peer = ClientState(OWNER, "test", EVERYTHING, revision, client="session")
        self.peer.features = parse_capabilities(able, revision)
        self.received: list[Any] = []
        self.asked = asyncio.Event()
        self.reply = reply
        self.deaf = False

    def push(self, message: bytes) -> bool:
        if self.deaf:
            return False
        received = json.loads(message)
        self.received.append(received)
        if "id" in received:
            reply = self.reply(received)
            if reply is not None:
                loop = asyncio.get_running_loop()
                answer = {"jsonrpc": "2.0", "id": received["id"], **reply}
                self.answering = loop.create_task(self.mcp_server.answer(answer, self.peer))
            self.asked.set()
        return True

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        async with asyncio.timeout(60):
            answer = await self.mcp_server.answer(message, self.peer, self.push)
        assert answer is not None
        return json.loads(answer)


def answering(request: Any) -> Any:
    kind = METHOD_KIND[request["method"]]
    if request["params"].get("mode") == "url":
        kind = URL
    return {"result": ANSWERS[kind]}


CAN_BE_ASKED = {
    FORM: {R2506, R2511},
    URL: {R2511},
    SAMPLING: {R2024, R2503, R2506, R2511},
    ROOTS: {R2024, R2503, R2506, R2511},
}


@pytest.mark.promise("B12")
@pytest.mark.parametrize("kind", CAN_BE_ASKED)
@pytest.mark.parametrize("revision", [R2024, R2503, R2506, R2511])
@pytest.mark.parametrize(("method", "params"), REQUESTS)
async def test_handshake_client_is_elicited_in_its_revision_or_gets_an_error(
    method: str, params: dict[str, Any], revision: Revision, kind: str
) -> None:
    mcp_server, target = build_asking_server({"q": QUESTIONS[kind]})
    client = Client(mcp_server, revision, reply=answering)
    answer = await client.ask(method, params)
    if revision in CAN_BE_ASKED[kind]:
        assert text_of(answer["result"]) == {"q": ANSWERS[kind]}
        assert client.received[0]["method"] == client_questions.METHOD[kind]
        assert target.calls[1].handle == "1"
    elif method == "tools/call":
        assert answer["result"]["isError"] is True
        said = answer["result"]["content"][0]["text"]
        assert QUESTIONS[kind].body["message"] in said
        assert not client.received
    else:
        assert answer["error"]["code"] == -32603
        assert QUESTIONS[kind].body["message"] in answer["error"]["message"]
    assert not client.peer.pending


async def test_questions_are_asked_together_and_in_rounds() -> None:
    rounds = [{"a": QUESTIONS[FORM], "b": QUESTIONS[SAMPLING]}, {}, {"c": QUESTIONS[ROOTS]}]
    mcp_server, target = build_asking_server(*rounds)
    client = Client(mcp_server, R2511, reply=answering)
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert text_of(result) == {"c": ANSWERS[ROOTS]}
    assert target.calls[1].answers == {"a": ANSWERS[FORM], "b": ANSWERS[SAMPLING]}
    assert target.calls[2].answers == {}
    ids = [one["id"] for one in client.received]
    assert len(set(ids)) == len(ids) == 3


async def test_endlessly_asking_server_is_stopped() -> None:
    mcp_server, target = build_asking_server(*[{"q": QUESTIONS[FORM]}] * 50)
    client = Client(mcp_server, R2511, reply=answering)
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert result["isError"] is True and "20 times" in result["content"][0]["text"]
    assert len(target.calls) == 21


# --- shapes


async def asked_as(question: Question, revision: Revision, able: Any = ALL_ABLE) -> Any:
    client = Client(build_asking_server({"q": question})[0], revision, able, reply=answering)
    await client.ask(*REQUESTS[0])
    return client.received[0]["params"], client.received[1:]


async def test_form_of_2025_06_18_has_no_mode_and_enum_names() -> None:
    params, _ = await asked_as(QUESTIONS[FORM], R2506)
    assert "mode" not in params
    schema = params["requestedSchema"]
    assert "$schema" not in schema and schema["required"] == ["name"]
    size = schema["properties"]["size"]
    assert size == {"type": "string", "enum": ["s", "m"], "enumNames": ["Small", "m"]}
    assert (await asked_as(QUESTIONS[FORM], R2511))[0] == QUESTIONS[FORM].body
    for odd in ({}, {"requestedSchema": 7}, {"requestedSchema": {"properties": {"a": 7}}}):
        params, _ = await asked_as(Question(FORM, {"message": "m", **odd}), R2506)
        assert params == {"message": "m", **odd}


async def test_url_elicitation_of_2025_11_25_has_an_id_and_a_completion() -> None:
    params, after = await asked_as(QUESTIONS[URL], R2511)
    id = params["elicitationId"]
    assert params == {**QUESTIONS[URL].body, "elicitationId": id} and len(id) == 32
    assert [one["method"] for one in after] == ["notifications/elicitation/complete"]
    assert after[0]["params"] == {"elicitationId": id}
    own = Question(URL, {**QUESTIONS[URL].body, "elicitationId": "theirs"})
    params, after = await asked_as(own, R2511)
    assert params["elicitationId"] == after[0]["params"]["elicitationId"] == "theirs"
    result = (await modern(build_asking_server({"q": own})[0], *REQUESTS[0]))["result"]
    assert result["inputRequests"]["q"]["params"] == QUESTIONS[URL].body


async def test_unvisited_url_elicitation_has_no_completion() -> None:
    mcp_server, _ = build_asking_server({"q": QUESTIONS[URL]})
    client = Client(mcp_server, R2511, reply=lambda _: {"result": {"action": "decline"}})
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert text_of(result) == {"q": {"action": "decline"}}
    assert len(client.received) == 1


@pytest.mark.parametrize("revision", [R2024, R2503, R2506, R2511])
async def test_sampling_request_has_only_members_of_the_revision(revision: Revision) -> None:
    text = {"type": "text", "text": "x"}
    audio = {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}
    use = {"type": "tool_use", "id": "1", "name": "n", "input": {}}
    several = {"role": "user", "content": [text, audio, use], "_meta": {"a": 1}}
    body = {"messages": [several, *SAID, 7], "maxTokens": 5, "systemPrompt": "s"}
    params, _ = await asked_as(Question(SAMPLING, body), revision)
    if revision == R2511:
        assert params == body
        return
    assert (params["maxTokens"], params["systemPrompt"]) == (5, "s")
    first, second, third, *rest = params["messages"]
    assert rest == [*SAID, 7]
    assert {first["role"], second["role"], third["role"]} == {"user"}
    assert first["content"] == text and "_meta" not in first
    note = {"type": "text", "text": "[audio: audio/wav]"}
    assert second["content"] == (note if revision == R2024 else audio)
    assert third["content"]["type"] == "text" and "tool_use" in third["content"]["text"]


@pytest.mark.promise("B13")
@pytest.mark.parametrize("revision", [R2024, R2503, R2506, R2511])
async def test_declared_capabilities_are_kept_per_revision(
    revision: Revision,
) -> None:
    mcp_server, _ = build_asking_server()
    peer = ClientState(OWNER, "test", EVERYTHING, client="s")
    params = {
        "protocolVersion": NAMES[revision],
        "capabilities": {**ALL_ABLE, "experimental": {"x": {}}},
        "clientInfo": {"name": "n" * 1000},
    }
    await mcp_server.answer(json.loads(rpc.encode_request(1, "initialize", params)), peer)
    kept = {"roots": {"listChanged": True}, "experimental": {"x": {}}, **TASKS_ONLY}
    kept["sampling"] = ALL_ABLE["sampling"] if revision == R2511 else {}
    if revision >= R2506:
        kept["elicitation"] = ALL_ABLE["elicitation"] if revision == R2511 else {}
    assert (peer.features, peer.client_name) == (kept, "n" * 200)


@pytest.mark.promise("N1")
@pytest.mark.parametrize("able", [None, [], "x", {"roots": {}, "x": "y" * 20_000}])
def test_invalid_or_excessive_capabilities_are_dropped(able: Any) -> None:
    assert parse_capabilities(able, R2511) == {}


# --- clients that do not answer as hoped


@pytest.mark.promise("B12")
@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"code": -1, "message": "User rejected"}},
        {"error": 7},
        {"result": 7},
        {"result": {}},
        {"result": {"action": "accepted"}},
        {"result": {"action": ["accept"]}},
    ],
)
async def test_invalid_form_answer_cancels_the_question(reply: Any) -> None:
    mcp_server, _ = build_asking_server({"q": QUESTIONS[FORM]})
    client = Client(mcp_server, R2511, reply=lambda _: reply)
    assert text_of((await client.ask(*REQUESTS[0]))["result"]) == {"q": {"action": "cancel"}}


@pytest.mark.promise("B12")
@pytest.mark.parametrize("kind", [SAMPLING, ROOTS])
@pytest.mark.parametrize(
    ("reply", "said"),
    [({"error": {"code": -1, "message": "User rejected"}}, "User rejected"), ({"result": 7}, "")],
)
async def test_refused_sampling_or_roots_end_the_call(kind: str, reply: Any, said: str) -> None:
    mcp_server, target = build_asking_server({"q": QUESTIONS[kind]})
    client = Client(mcp_server, R2511, reply=lambda _: reply)
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert result["isError"] is True and said in result["content"][0]["text"]
    assert len(target.calls) == 1
    answer = await client.ask(*REQUESTS[1])
    assert answer["error"]["code"] == -32603 and said in answer["error"]["message"]


@pytest.mark.promise("N1")
async def test_timed_out_question_is_withdrawn() -> None:
    mcp_server, target = build_asking_server(
        {"a": QUESTIONS[FORM], "b": QUESTIONS[ROOTS]}, seconds=0.05
    )
    client = Client(
        mcp_server, R2511, reply=lambda one: answering(one) if "roots" in str(one) else None
    )
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert result["isError"] is True and "who?" in result["content"][0]["text"]
    first, _, last = client.received
    assert last["method"] == "notifications/cancelled"
    assert last["params"]["requestId"] == first["id"]
    assert not client.peer.pending and len(target.calls) == 1
    late = {"jsonrpc": "2.0", "id": first["id"], "result": ANSWERS[FORM]}
    assert await mcp_server.answer(late, client.peer) is None


@pytest.mark.promise("B12")
async def test_cancelled_call_withdraws_its_questions() -> None:
    mcp_server, _ = build_asking_server({"q": QUESTIONS[FORM]})
    client = Client(mcp_server, R2511, reply=lambda _: None)
    call = asyncio.ensure_future(client.ask(*REQUESTS[0]))
    async with asyncio.timeout(60):
        await client.asked.wait()
    call.cancel()
    assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], BaseException)
    asked, cancelled = client.received
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == asked["id"]
    assert not client.peer.pending


@pytest.mark.parametrize("how", ["cancelled", "late", "refused", "left", "unsent"])
async def test_server_is_notified_of_an_unanswerable_question(
    how: str,
) -> None:
    mcp_server, target = build_asking_server(
        {"q": QUESTIONS[ROOTS]}, seconds=0.05 if how == "late" else 5.0
    )
    refused = {"error": {"code": -1, "message": "no"}}
    client = Client(mcp_server, R2511, reply=lambda _: refused if how == "refused" else None)
    client.deaf = how == "unsent"
    for understands in (False, True):
        target.calls.clear()
        client.asked.clear()
        target.traits = TargetTraits(ends_questions=understands)
        call = asyncio.ensure_future(client.ask(*REQUESTS[0]))
        if how in ("cancelled", "left"):
            async with asyncio.timeout(60):
                await client.asked.wait()
            call.cancel() if how == "cancelled" else mcp_server.subscriptions.leave(client.peer)
        await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(60):
            await asyncio.gather(*mcp_server.call_handler._background._tasks)
        assert len(target.calls) == (2 if understands else 1)
        client.peer.closed = False
    last = target.calls[-1]
    assert (last.handle, last.answers) == ("1", None)


async def test_disconnected_client_answers_nothing() -> None:
    mcp_server, target = build_asking_server({"q": QUESTIONS[SAMPLING]})
    client = Client(mcp_server, R2511, reply=lambda _: None)
    call = asyncio.ensure_future(client.ask(*REQUESTS[0]))
    async with asyncio.timeout(60):
        await client.asked.wait()
    mcp_server.subscriptions.leave(client.peer)
    result = (await call)["result"]
    assert result["isError"] is True and "it disconnected" in result["content"][0]["text"]
    assert len(target.calls) == 1


async def test_unsendable_question_fails_the_call_at_once() -> None:
    mcp_server, _ = build_asking_server({"q": QUESTIONS[FORM]})
    client = Client(mcp_server, R2511)
    client.deaf = True
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert result["isError"] is True and "could not be asked" in result["content"][0]["text"]
    assert not client.peer.pending


@pytest.mark.promise("N1")
async def test_open_questions_per_client_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_questions, "MAX_ASKED", 1)
    mcp_server, _ = build_asking_server({"a": QUESTIONS[FORM], "b": QUESTIONS[ROOTS]})
    client = Client(mcp_server, R2511)
    assert (await client.ask(*REQUESTS[0]))["error"]["code"] == -32000
    assert not client.received


async def test_answer_of_another_client_is_refused() -> None:
    mcp_server, _ = build_asking_server({"q": QUESTIONS[FORM]})
    client = Client(mcp_server, R2511, reply=lambda _: None)
    other = ClientState(OWNER, "test", EVERYTHING, R2511, client="other")
    call = asyncio.ensure_future(client.ask(*REQUESTS[0]))
    async with asyncio.timeout(60):
        await client.asked.wait()
    stolen = {"jsonrpc": "2.0", "id": client.received[0]["id"], "result": ANSWERS[FORM]}
    await mcp_server.answer(stolen, other)
    assert client.peer.pending
    await mcp_server.answer({**stolen, "result": {"action": "decline"}}, client.peer)
    assert text_of((await call)["result"]) == {"q": {"action": "decline"}}


@pytest.mark.promise("F7")
async def test_batched_requests_elicit_and_are_cancelled_individually() -> None:
    mcp_server, _ = build_asking_server({"q": QUESTIONS[ROOTS]})
    client = Client(mcp_server, R2503, reply=lambda _: None)
    method, params = REQUESTS[0]
    one = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    ping = {"jsonrpc": "2.0", "id": 3, "method": "ping"}
    running: dict[Any, Any] = {}
    messages = [one, {**one, "id": 2}, ping, {**one, "id": 2}]
    work = mcp_server.answer_tracked(messages, client.peer, client.push, running)
    batch = asyncio.ensure_future(work)
    async with asyncio.timeout(60):
        while len(client.received) < 2:
            client.asked.clear()
            await client.asked.wait()
    assert set(running) == {(int, 1), (int, 2)}
    running[int, 1]()
    for asked in client.received[:2]:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": ANSWERS[ROOTS]}
        await mcp_server.answer(answer, client.peer)
    answers = json.loads(await batch or b"")
    assert [answer["id"] for answer in answers] == [2, 3, 2]
    assert text_of(answers[0]["result"]) == {"q": ANSWERS[ROOTS]}
    assert answers[2]["error"]["code"] == -32600
    assert not running
