"""Questions of a server, put to clients of both eras. The server is a few lines in here, the stage
that seals the handles is the real one."""

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


class Curious:
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


def curious(*rounds: dict[str, Question], seconds: float = 5.0) -> tuple[McpServer, Curious]:
    target = Curious(*rounds)
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


# --- the new era: the client is told what is asked, and comes again


async def modern(
    face: McpServer,
    method: str,
    params: dict[str, Any],
    able: Any = ALL_ABLE,
    principal: Principal = OWNER,
) -> Any:
    meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": able}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    answer = await face.answer(message, ClientState(principal, "test", EVERYTHING, R2607))
    assert answer is not None
    return json.loads(answer)


@pytest.mark.promise("B12")
@pytest.mark.parametrize(("method", "params"), REQUESTS)
async def test_a_modern_client_is_answered_with_the_questions_and_comes_again(
    method: str, params: dict[str, Any]
) -> None:
    face, target = curious(
        {"q": QUESTIONS[FORM], "m": QUESTIONS[SAMPLING]}, {"r": QUESTIONS[ROOTS]}
    )
    first = (await modern(face, method, params))["result"]
    assert first["resultType"] == "input_required" and first["_meta"][SERVER_KEY]
    assert first["inputRequests"] == {
        "q": {"method": "elicitation/create", "params": QUESTIONS[FORM].body},
        "m": {"method": "sampling/createMessage", "params": QUESTIONS[SAMPLING].body},
    }
    answers = {"q": ANSWERS[FORM], "m": ANSWERS[SAMPLING], "unasked": {"action": "accept"}}
    again = {"inputResponses": answers, "requestState": first["requestState"]}
    second = (await modern(face, method, {**params, **again}))["result"]
    assert second["inputRequests"] == {"r": {"method": "roots/list", "params": {}}}
    assert second["requestState"] != first["requestState"]
    again = {"inputResponses": {"r": ANSWERS[ROOTS]}, "requestState": second["requestState"]}
    last = (await modern(face, method, {**params, **again}))["result"]
    assert last["resultType"] == "complete"
    assert text_of(last) == {"r": ANSWERS[ROOTS]}
    assert [call.handle for call in target.calls] == [None, "1", "2"]
    assert target.calls[1].answers == answers


async def test_answers_without_a_handle_are_passed_on_and_a_handle_alone_is_no_answer() -> None:
    face, target = curious({"q": QUESTIONS[FORM]})
    method, params = REQUESTS[0]
    first = await modern(face, method, {**params, "inputResponses": {"q": ANSWERS[FORM]}})
    assert target.calls[-1].answers == {"q": ANSWERS[FORM]} and target.calls[-1].handle is None
    state = first["result"]["requestState"]
    await modern(face, method, {**params, "requestState": state})
    assert target.calls[-1].answers == {} and target.calls[-1].handle == "1"


async def test_a_server_that_only_wants_to_be_asked_again_is_passed_on_like_that() -> None:
    face, _ = curious({})
    first = (await modern(face, *REQUESTS[0]))["result"]
    assert first["resultType"] == "input_required"
    assert "inputRequests" not in first and first["requestState"]


@pytest.mark.promise("B12")
@pytest.mark.parametrize("number", range(3))
async def test_a_handle_is_good_once_for_its_call_by_its_caller(number: int) -> None:
    method, params = REQUESTS[number]
    face, target = curious({"q": QUESTIONS[FORM]})
    state = (await modern(face, method, params))["result"]["requestState"]
    again = {"inputResponses": {"q": ANSWERS[FORM]}, "requestState": state}
    other_method, other_params = REQUESTS[number - 1]
    stranger = Principal("key", "stranger", "")
    refused = [
        await modern(face, method, {**params, **again}, principal=stranger),
        await modern(face, other_method, {**other_params, **again}),
        await modern(face, method, {**params, **again, "requestState": state + "-TAMPERED"}),
        await modern(face, method, {**params, **again, "requestState": ""}),
    ]
    if method == "tools/call":
        refused.append(await modern(face, method, {**params, "arguments": {"x": 2}, **again}))
    for answer in refused:
        assert answer["error"]["code"] == -32602, answer
    assert len(target.calls) == 1  # nothing was answered there
    assert "result" in await modern(face, method, {**params, **again})
    assert (await modern(face, method, {**params, **again}))["error"]["code"] == -32602
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
async def test_answers_that_are_none_are_refused(again: dict[str, Any]) -> None:
    face, target = curious({"q": QUESTIONS[FORM]})
    method, params = REQUESTS[0]
    assert (await modern(face, method, {**params, **again}))["error"]["code"] == -32602
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
async def test_a_modern_client_that_cannot_be_asked_is_told_what_it_would_need(
    method: str, params: dict[str, Any], kind: str, able: Any, missing: Any
) -> None:
    face, _ = curious({"q": QUESTIONS[kind]})
    error = (await modern(face, method, params, able))["error"]
    assert error["code"] == -32021
    assert error["data"]["requiredCapabilities"] == missing
    assert "who?" in error["message"] or kind != FORM


async def test_a_model_is_asked_to_use_tools_only_if_its_client_said_that_it_can() -> None:
    body = {**QUESTIONS[SAMPLING].body, "tools": [], "includeContext": "thisServer"}
    asks = {"q": Question(SAMPLING, body)}
    error = (await modern(curious(asks)[0], *REQUESTS[0], {"sampling": {}}))["error"]
    assert error["data"]["requiredCapabilities"] == {"sampling": {"tools": {}}}
    result = (await modern(curious(asks)[0], *REQUESTS[0], {"sampling": {"tools": {}}}))["result"]
    params = result["inputRequests"]["q"]["params"]
    assert "tools" in params and "includeContext" not in params
    result = (await modern(curious(asks)[0], *REQUESTS[0]))["result"]
    assert result["inputRequests"]["q"]["params"] == body


async def test_a_completion_that_asks_is_an_error() -> None:
    face, target = curious({"q": QUESTIONS[FORM]})
    ref = {"type": "ref/prompt", "name": "mcp_curious_p"}
    params = {"ref": ref, "argument": {"name": "a", "value": ""}}
    answer = await modern(face, "completion/complete", params)
    assert answer["error"]["code"] == -32603
    assert target.calls[0].tool.kind == COMPLETION


# --- the old era: the client is sent requests while its own waits


class Client:
    """A client that shakes hands, with `replies` to what it is asked."""

    def __init__(
        self,
        face: McpServer,
        revision: Revision,
        able: Any = ALL_ABLE,
        reply: Callable[[Any], Any] = dict,
    ) -> None:
        self.face = face
        self.peer = ClientState(OWNER, "test", EVERYTHING, revision, client="session")
        self.peer.features = parse_capabilities(able, revision)
        self.heard: list[Any] = []
        self.asked = asyncio.Event()
        self.reply = reply
        self.deaf = False

    def push(self, message: bytes) -> bool:
        if self.deaf:
            return False
        heard = json.loads(message)
        self.heard.append(heard)
        if "id" in heard:
            reply = self.reply(heard)
            if reply is not None:
                loop = asyncio.get_running_loop()
                answer = {"jsonrpc": "2.0", "id": heard["id"], **reply}
                self.answering = loop.create_task(self.face.answer(answer, self.peer))
            self.asked.set()
        return True

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        async with asyncio.timeout(5):
            answer = await self.face.answer(message, self.peer, self.push)
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
async def test_a_client_that_shakes_hands_is_asked_in_its_own_words_or_told_what_was_asked(
    method: str, params: dict[str, Any], revision: Revision, kind: str
) -> None:
    face, target = curious({"q": QUESTIONS[kind]})
    client = Client(face, revision, reply=answering)
    answer = await client.ask(method, params)
    if revision in CAN_BE_ASKED[kind]:
        assert text_of(answer["result"]) == {"q": ANSWERS[kind]}
        assert client.heard[0]["method"] == client_questions.METHOD[kind]
        assert target.calls[1].handle == "1"
    elif method == "tools/call":
        assert answer["result"]["isError"] is True
        said = answer["result"]["content"][0]["text"]
        assert QUESTIONS[kind].body["message"] in said
        assert not client.heard
    else:
        assert answer["error"]["code"] == -32603
        assert QUESTIONS[kind].body["message"] in answer["error"]["message"]
    assert not client.peer.pending


async def test_several_questions_are_asked_together_and_in_rounds() -> None:
    rounds = [{"a": QUESTIONS[FORM], "b": QUESTIONS[SAMPLING]}, {}, {"c": QUESTIONS[ROOTS]}]
    face, target = curious(*rounds)
    client = Client(face, R2511, reply=answering)
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert text_of(result) == {"c": ANSWERS[ROOTS]}
    assert target.calls[1].answers == {"a": ANSWERS[FORM], "b": ANSWERS[SAMPLING]}
    assert target.calls[2].answers == {}
    ids = [one["id"] for one in client.heard]
    assert len(set(ids)) == len(ids) == 3


async def test_a_server_that_never_stops_asking_is_stopped() -> None:
    face, target = curious(*[{"q": QUESTIONS[FORM]}] * 50)
    client = Client(face, R2511, reply=answering)
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert result["isError"] is True and "20 times" in result["content"][0]["text"]
    assert len(target.calls) == 21


# --- shapes


async def asked_as(question: Question, revision: Revision, able: Any = ALL_ABLE) -> Any:
    client = Client(curious({"q": question})[0], revision, able, reply=answering)
    await client.ask(*REQUESTS[0])
    return client.heard[0]["params"], client.heard[1:]


async def test_a_form_of_2025_06_18_has_no_mode_and_its_own_word_for_titles() -> None:
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


async def test_an_address_of_2025_11_25_has_an_id_and_its_end_is_told() -> None:
    params, after = await asked_as(QUESTIONS[URL], R2511)
    id = params["elicitationId"]
    assert params == {**QUESTIONS[URL].body, "elicitationId": id} and len(id) == 32
    assert [one["method"] for one in after] == ["notifications/elicitation/complete"]
    assert after[0]["params"] == {"elicitationId": id}
    own = Question(URL, {**QUESTIONS[URL].body, "elicitationId": "theirs"})
    params, after = await asked_as(own, R2511)
    assert params["elicitationId"] == after[0]["params"]["elicitationId"] == "theirs"
    result = (await modern(curious({"q": own})[0], *REQUESTS[0]))["result"]
    assert result["inputRequests"]["q"]["params"] == QUESTIONS[URL].body


async def test_an_address_that_nobody_went_to_has_no_end() -> None:
    face, _ = curious({"q": QUESTIONS[URL]})
    client = Client(face, R2511, reply=lambda _: {"result": {"action": "decline"}})
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert text_of(result) == {"q": {"action": "decline"}}
    assert len(client.heard) == 1


@pytest.mark.parametrize("revision", [R2024, R2503, R2506, R2511])
async def test_what_a_model_is_asked_is_what_its_revision_knows(revision: Revision) -> None:
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
async def test_what_a_client_declares_is_kept_as_far_as_its_revision_has_it(
    revision: Revision,
) -> None:
    face, _ = curious()
    peer = ClientState(OWNER, "test", EVERYTHING, client="s")
    params = {
        "protocolVersion": NAMES[revision],
        "capabilities": {**ALL_ABLE, "experimental": {"x": {}}},
        "clientInfo": {"name": "n" * 1000},
    }
    await face.answer(json.loads(rpc.encode_request(1, "initialize", params)), peer)
    kept = {"roots": {"listChanged": True}, "experimental": {"x": {}}, **TASKS_ONLY}
    kept["sampling"] = ALL_ABLE["sampling"] if revision == R2511 else {}
    if revision >= R2506:
        kept["elicitation"] = ALL_ABLE["elicitation"] if revision == R2511 else {}
    assert (peer.features, peer.client_name) == (kept, "n" * 200)


@pytest.mark.promise("N1")
@pytest.mark.parametrize("able", [None, [], "x", {"roots": {}, "x": "y" * 20_000}])
def test_capabilities_that_are_none_or_too_many_are_not_kept(able: Any) -> None:
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
async def test_an_answer_to_a_form_that_is_none_cancels_it(reply: Any) -> None:
    face, _ = curious({"q": QUESTIONS[FORM]})
    client = Client(face, R2511, reply=lambda _: reply)
    assert text_of((await client.ask(*REQUESTS[0]))["result"]) == {"q": {"action": "cancel"}}


@pytest.mark.promise("B12")
@pytest.mark.parametrize("kind", [SAMPLING, ROOTS])
@pytest.mark.parametrize(
    ("reply", "said"),
    [({"error": {"code": -1, "message": "User rejected"}}, "User rejected"), ({"result": 7}, "")],
)
async def test_a_model_or_folders_that_are_refused_end_the_call(
    kind: str, reply: Any, said: str
) -> None:
    face, target = curious({"q": QUESTIONS[kind]})
    client = Client(face, R2511, reply=lambda _: reply)
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert result["isError"] is True and said in result["content"][0]["text"]
    assert len(target.calls) == 1
    answer = await client.ask(*REQUESTS[1])
    assert answer["error"]["code"] == -32603 and said in answer["error"]["message"]


@pytest.mark.promise("N1")
async def test_a_question_that_is_not_answered_in_time_is_withdrawn() -> None:
    face, target = curious({"a": QUESTIONS[FORM], "b": QUESTIONS[ROOTS]}, seconds=0.05)
    client = Client(face, R2511, reply=lambda one: answering(one) if "roots" in str(one) else None)
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert result["isError"] is True and "who?" in result["content"][0]["text"]
    first, _, last = client.heard
    assert last["method"] == "notifications/cancelled"
    assert last["params"]["requestId"] == first["id"]
    assert not client.peer.pending and len(target.calls) == 1
    late = {"jsonrpc": "2.0", "id": first["id"], "result": ANSWERS[FORM]}
    assert await face.answer(late, client.peer) is None


@pytest.mark.promise("B12")
async def test_a_call_that_is_cancelled_takes_its_questions_back() -> None:
    face, _ = curious({"q": QUESTIONS[FORM]})
    client = Client(face, R2511, reply=lambda _: None)
    call = asyncio.ensure_future(client.ask(*REQUESTS[0]))
    async with asyncio.timeout(5):
        await client.asked.wait()
    call.cancel()
    assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], BaseException)
    asked, cancelled = client.heard
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == asked["id"]
    assert not client.peer.pending


@pytest.mark.parametrize("how", ["cancelled", "late", "refused", "left", "unsent"])
async def test_a_server_whose_question_nobody_will_answer_is_told_if_it_understands(
    how: str,
) -> None:
    face, target = curious({"q": QUESTIONS[ROOTS]}, seconds=0.05 if how == "late" else 5.0)
    refused = {"error": {"code": -1, "message": "no"}}
    client = Client(face, R2511, reply=lambda _: refused if how == "refused" else None)
    client.deaf = how == "unsent"
    for understands in (False, True):
        target.calls.clear()
        client.asked.clear()
        target.traits = TargetTraits(ends_questions=understands)
        call = asyncio.ensure_future(client.ask(*REQUESTS[0]))
        if how in ("cancelled", "left"):
            async with asyncio.timeout(5):
                await client.asked.wait()
            call.cancel() if how == "cancelled" else face.leave(client.peer)
        await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(5):
            await asyncio.gather(*face.call_handler._background._tasks)
        assert len(target.calls) == (2 if understands else 1)
        client.peer.closed = False
    last = target.calls[-1]
    assert (last.handle, last.answers) == ("1", None)


async def test_a_client_that_leaves_answers_nothing_any_more() -> None:
    face, target = curious({"q": QUESTIONS[SAMPLING]})
    client = Client(face, R2511, reply=lambda _: None)
    call = asyncio.ensure_future(client.ask(*REQUESTS[0]))
    async with asyncio.timeout(5):
        await client.asked.wait()
    face.leave(client.peer)
    result = (await call)["result"]
    assert result["isError"] is True and "it disconnected" in result["content"][0]["text"]
    assert len(target.calls) == 1


async def test_a_question_that_cannot_be_sent_fails_the_call_at_once() -> None:
    face, _ = curious({"q": QUESTIONS[FORM]})
    client = Client(face, R2511)
    client.deaf = True
    result = (await client.ask(*REQUESTS[0]))["result"]
    assert result["isError"] is True and "could not be asked" in result["content"][0]["text"]
    assert not client.peer.pending


@pytest.mark.promise("N1")
async def test_a_client_has_only_so_many_questions_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_questions, "MAX_ASKED", 1)
    face, _ = curious({"a": QUESTIONS[FORM], "b": QUESTIONS[ROOTS]})
    client = Client(face, R2511)
    assert (await client.ask(*REQUESTS[0]))["error"]["code"] == -32000
    assert not client.heard


async def test_nobody_answers_for_another() -> None:
    face, _ = curious({"q": QUESTIONS[FORM]})
    client = Client(face, R2511, reply=lambda _: None)
    other = ClientState(OWNER, "test", EVERYTHING, R2511, client="other")
    call = asyncio.ensure_future(client.ask(*REQUESTS[0]))
    async with asyncio.timeout(5):
        await client.asked.wait()
    stolen = {"jsonrpc": "2.0", "id": client.heard[0]["id"], "result": ANSWERS[FORM]}
    await face.answer(stolen, other)
    assert client.peer.pending
    await face.answer({**stolen, "result": {"action": "decline"}}, client.peer)
    assert text_of((await call)["result"]) == {"q": {"action": "decline"}}


@pytest.mark.promise("F7")
async def test_requests_in_a_batch_ask_too_and_can_be_cancelled_one_by_one() -> None:
    face, _ = curious({"q": QUESTIONS[ROOTS]})
    client = Client(face, R2503, reply=lambda _: None)
    method, params = REQUESTS[0]
    one = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    ping = {"jsonrpc": "2.0", "id": 3, "method": "ping"}
    running: dict[Any, Any] = {}
    messages = [one, {**one, "id": 2}, ping, {**one, "id": 2}]
    work = face.answer_tracked(messages, client.peer, client.push, running)
    batch = asyncio.ensure_future(work)
    async with asyncio.timeout(5):
        while len(client.heard) < 2:
            client.asked.clear()
            await client.asked.wait()
    assert set(running) == {(int, 1), (int, 2)}
    running[int, 1]()
    for asked in client.heard[:2]:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": ANSWERS[ROOTS]}
        await face.answer(answer, client.peer)
    answers = json.loads(await batch or b"")
    assert [answer["id"] for answer in answers] == [2, 3, 2]
    assert text_of(answers[0]["result"]) == {"q": ANSWERS[ROOTS]}
    assert answers[2]["error"]["code"] == -32600
    assert not running
