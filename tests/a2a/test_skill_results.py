"""Results and errors of skill calls for every kind of agent response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.a2a.bridged_skill import bridged, card_of_10
from tests.a2a.scripted_agent import Request, task_10
from tests.peers.process import HttpPeer
from tests.permissive_hub import build_permissive_hub, call_tool

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.remote.remote_agent import RemoteAgent
from dragoman.core.bus import Bus
from dragoman.core.call import ABSENT, Progress, Result, Update, WantedUpdates
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import (
    BadReply,
    Declined,
    HubError,
    NeedsInput,
    RemoteA2AInvalidResponseError,
    RemoteA2ATaskFailedError,
    RemoteA2ATransportError,
    Unreachable,
)
from dragoman.core.principal import OWNER
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.validate import compile_schema
from dragoman.net.client import OutboundHttp

TEXT, DATA = {"kind": "text", "text": "done"}, {"kind": "data", "data": {"n": 1}}
FILE = {"kind": "file", "file": {"uri": "https://x.example/a.pdf", "name": "a.pdf"}}
IMAGE = {"kind": "file", "file": {"bytes": "AAE=", "mimeType": "image/png"}}


def artifact(*parts: Any, id: str = "a", **more: Any) -> dict[str, Any]:
    return {"artifactId": id, "name": "report", **more, "parts": list(parts)}


def task_03(*artifacts: Any, state: str = "completed", **status: Any) -> dict[str, Any]:
    return {
        "kind": "task",
        "id": "t1",
        "contextId": "c1",
        "status": {"state": state, **status},
        "artifacts": list(artifacts),
    }


def build_message(*parts: Any) -> dict[str, Any]:
    return {"kind": "message", "messageId": "m", "role": "agent", "parts": list(parts)}


def answering(value: Any) -> Any:
    return lambda request: request.result(value)


async def result_of(value: Any) -> Result:
    async with bridged(answering(value)) as ground:
        return await ground.call()


def texts(result: Result) -> list[Any]:
    return [block.get("text") for block in result.content]


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.promise("R4")
@pytest.mark.parametrize("answer", [task_03(artifact(DATA)), build_message(DATA)])
async def test_single_data_part_becomes_its_object(answer: Any) -> None:
    result = await result_of(answer)
    assert result.structured == {"n": 1} and texts(result) == ['{"n":1}']
    assert result.artifacts[0].content[0]["data"] == {"n": 1}


@pytest.mark.promise("R4")
@pytest.mark.parametrize("answer", [task_03(artifact(TEXT)), build_message(TEXT)])
async def test_single_text_part_becomes_its_string(answer: Any) -> None:
    result = await result_of(answer)
    assert result.structured is ABSENT and result.content == [{"type": "text", "text": "done"}]


@pytest.mark.promise("R4")
async def test_several_parts_become_the_artifact_in_the_agents_dialect() -> None:
    whole = artifact(TEXT, DATA, FILE, description="d")
    result = await result_of(task_03(whole))
    assert result.structured == whole
    assert texts(result)[:2] == ["done", '{"n":1}']
    assert result.content[2]["uri"] == "https://x.example/a.pdf"


async def test_several_parts_of_1_0_keep_the_form_of_1_0() -> None:
    parts = [{"text": "done"}, {"data": [1, 2], "mediaType": "application/json"}]
    whole = {"artifactId": "a", "parts": parts}
    answer = {"task": task_10(artifacts=[whole])}
    async with bridged(answering(answer), card_of_10) as ground:
        result = await ground.call()
    assert result.structured == whole and texts(result) == ["done", "[1,2]"]


@pytest.mark.promise("R4")
async def test_several_artifacts_are_all_returned() -> None:
    made = [artifact(TEXT, id="a"), artifact(DATA, id="b")]
    result = await result_of(task_03(*made))
    assert result.structured == {"artifacts": made} and texts(result) == ["done", '{"n":1}']
    assert [one.id for one in result.artifacts] == ["a", "b"]


@pytest.mark.promise("R4")
async def test_result_without_an_artifact_is_the_final_message() -> None:
    result = await result_of(task_03(message=build_message(TEXT)))
    assert texts(result) == ["done"] and result.structured is ABSENT
    result = await result_of(task_03(message=build_message(DATA)))
    assert result.structured == {"n": 1}
    result = await result_of(task_03(message=build_message(TEXT, DATA)))
    assert result.structured == {"parts": [TEXT, DATA]}


@pytest.mark.promise("R4")
async def test_empty_completed_task_is_reported_as_completed() -> None:
    async with bridged(answering(task_03())) as ground:
        result = await ground.call()
    assert texts(result) == ['agent "Vercel Ops" completed the task without a result']
    assert len(ground.server.sent("tasks/get")) == 1, "the one that finds out what it speaks"


@pytest.mark.promise("R4")
async def test_message_of_several_parts_returns_all() -> None:
    result = await result_of(build_message(TEXT, IMAGE))
    assert result.direct and result.structured == {"parts": [TEXT, IMAGE]}
    assert [block["type"] for block in result.content] == ["text", "image"]


@pytest.mark.promise("R4")
@pytest.mark.parametrize(
    ("part", "block"),
    [
        (IMAGE, {"type": "image", "data": "AAE=", "mimeType": "image/png"}),
        (FILE, {"type": "resource_link", "uri": "https://x.example/a.pdf", "name": "a.pdf"}),
        (
            {"kind": "file", "file": {"bytes": "AAE=", "name": "a b.bin"}},
            {"type": "resource", "resource": {"uri": "file:///a%20b.bin", "blob": "AAE="}},
        ),
    ],
)
async def test_file_becomes_a_block_of_its_kind(part: Any, block: Any) -> None:
    result = await result_of(task_03(artifact(part)))
    (made,) = result.content
    assert {key: made[key] for key in block} == block and result.structured is ABSENT


# --- states ---------------------------------------------------------------------------------------


async def error_of(value: Any) -> HubError:
    async with bridged(answering(value)) as ground:
        with pytest.raises(HubError) as raised:
            await ground.call()
    return raised.value


@pytest.mark.promise("R4")
@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ("failed", RemoteA2ATaskFailedError, 'agent "Vercel Ops" failed: done'),
        ("canceled", RemoteA2ATaskFailedError, "cancelled its task: done"),
        ("rejected", Declined, 'agent "Vercel Ops" rejected the task: done'),
    ],
)
async def test_unsuccessful_task_is_an_error_with_the_agents_message(
    state: str, kind: type[HubError], words: str
) -> None:
    error = await error_of(task_03(state=state, message=build_message(TEXT)))
    assert type(error) is kind and words in str(error)


@pytest.mark.promise("R4")
@pytest.mark.parametrize("wire", ["auto", "skill-only"])
async def test_skill_question_is_input_required_and_its_answer_continues_the_task(
    wire: str,
) -> None:
    def answer(request: Request) -> None:
        if "taskId" in request.params["message"]:
            request.result(task_03(artifact(TEXT)))
        else:
            request.result(task_03(state="input-required", message=build_message(TEXT)))

    async with bridged(answer, wire=wire) as ground:
        asked = await ground.call()
        assert asked.questions is not None and asked.questions["reply"].text == "done"
        answers = {"reply": {"action": "accept", "content": {"reply": "blue"}}}
        result = await ground.call(handle=asked.handle, answers=answers)
        assert texts(result) == ["done"]
    message = ground.sent[1].params["message"]
    assert (message["taskId"], message["contextId"]) == ("t1", "c1")
    assert message["parts"] == [{"kind": "text", "text": "blue"}]
    assert message["skill"] == {"skillId": "deploy"}


@pytest.mark.promise("R4")
async def test_auth_required_skill_elicits_with_the_url() -> None:
    words = {"kind": "text", "text": "log in at https://login.example/x"}
    async with bridged(
        answering(task_03(state="auth-required", message=build_message(words)))
    ) as ground:
        asked = await ground.call()
        assert asked.questions is not None
        assert asked.questions["auth"].kind == "url"
        assert asked.questions["auth"].body["url"] == "https://login.example/x"
        with pytest.raises(NeedsInput, match=r"login\.example"):
            await ground.call(features={})


async def test_unfinished_task_is_polled() -> None:
    def answer(request: Request) -> None:
        done = request.rpc == "tasks/get"
        request.result(task_03(artifact(DATA)) if done else task_03(state="working"))

    async with bridged(answer) as ground:
        assert (await ground.call()).structured == {"n": 1}
        assert ground.calls[0].notes.remote_task == "t1"


@pytest.mark.promise("R8")
async def test_reported_usage_is_noted() -> None:
    usage = {"totalTokens": 12, "usd": 0.5, "model": "x", "n": True, "none": None}
    task = {**task_03(artifact(TEXT)), "metadata": {"usage": usage}}
    async with bridged(answering(task)) as ground:
        await ground.call()
        assert ground.calls[0].notes.usage == {"totalTokens": 12, "usd": 0.5}


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.promise("R6")
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b"<html>", RemoteA2AInvalidResponseError),
        (200, b"", RemoteA2AInvalidResponseError),
        (200, b'{"id":"t1","status":{"state":"completed"}}', RemoteA2AInvalidResponseError),
        (200, b'{"jsonrpc":"2.0","id":1,"result":7}', RemoteA2AInvalidResponseError),
        (500, b"oops", RemoteA2ATransportError),
        (503, b"", RemoteA2ATransportError),
        (404, b"", RemoteA2ATransportError),
        (401, b"", RemoteA2ATransportError),
        (
            500,
            b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"m"}}',
            RemoteA2ATransportError,
        ),
        (
            200,
            b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"the words"}}',
            RemoteA2ATaskFailedError,
        ),
    ],
)
@pytest.mark.parametrize("wire", ["auto", "skill-only"])
async def test_invalid_responses_map_to_their_errors(
    status: int, body: bytes, kind: type[HubError], wire: str
) -> None:
    async with bridged(lambda request: request.reply(status, body), wire=wire) as ground:
        with pytest.raises(HubError) as raised:
            await ground.call()
    assert type(raised.value) is kind
    if b"the words" in body:
        assert str(raised.value) == 'agent "Vercel Ops" answered: the words'


@pytest.mark.promise("R6")
async def test_lost_connection_is_a_transport_error() -> None:
    async with bridged(lambda request: request.writer.close()) as ground:
        with pytest.raises(RemoteA2ATransportError) as raised:
            await ground.call()
        assert raised.value.sent


async def test_agent_tool_keeps_the_general_errors() -> None:
    async with bridged(lambda request: request.reply(200, b"<html>")) as ground:
        with pytest.raises(BadReply) as raised:
            await ground.call({"message": "hi"}, "Vercel Ops.message")
    assert type(raised.value) is BadReply


async def test_unreachable_agent_is_not_contacted_for_a_while() -> None:
    async with bridged(lambda request: request.reply(503, b"")) as ground:
        for _ in range(5):
            with pytest.raises(RemoteA2ATransportError, match="503"):
                await ground.call()
        before = len(ground.sent)
        with pytest.raises(RemoteA2ATransportError, match="next attempt is in 30 s") as raised:
            await ground.call()
        assert not raised.value.sent
        with pytest.raises(Unreachable, match="next attempt is in"):
            await ground.call({"message": "hi"}, "Vercel Ops.message")
        assert len(ground.sent) == before
        ground.agent.breaker.record_success()  # as a good look at its health does
        with pytest.raises(RemoteA2ATransportError, match="503"):
            await ground.call()
        assert len(ground.sent) == before + 1


async def test_error_responses_do_not_open_the_breaker() -> None:
    async with bridged(lambda request: request.fail(-32603)) as ground:
        for _ in range(7):
            with pytest.raises(RemoteA2ATaskFailedError):
                await ground.call()
        assert len(ground.sent) == 7 and not ground.agent.breaker.is_open


# --- with the official SDK ------------------------------------------------------------------------


@asynccontextmanager
async def sdk_skill(url: str, updates: list[Update]) -> AsyncIterator[Callable[..., Any]]:
    """What calls the skill `echo` of the agent there."""
    net = OutboundHttp()
    hub = build_permissive_hub(Catalog(review=admit_all), Bus(), [])
    agent = RemoteAgent(
        ExternalAgent(name="SDK", url=url),
        lambda url, private: net.open_configured(url, allow_private=private),
        hub.catalog,
        compile_schema,
        headers={},
        signatures="ignore",
    )

    async def call(text: str, **more: Any) -> Result:
        return await call_tool(
            hub,
            OWNER,
            "sdk.echo",
            {"text": text},
            door="test",
            view=EVERYTHING,
            features={"elicitation": {"form": {}}},
            updates=updates.append,
            wanted_updates=WantedUpdates(progress=True),
            **more,
        )

    try:
        async with asyncio.timeout(60):
            agent.offer(await agent.client.find_probed(url), "1")
            yield call
    finally:
        await agent.stop()
        await net.close()


@pytest.mark.promise("R3", "R4")
@pytest.mark.parametrize(
    ("binding", "more"),
    [
        ("JSONRPC:1.0", ["--text-only"]),
        ("JSONRPC:0.3", ["--no-streaming"]),
        ("HTTP+JSON:0.3", []),
    ],
)
async def test_official_sdk_agents_are_called_by_skill(
    binding: str, more: list[str], http_peer: Callable[..., HttpPeer]
) -> None:
    updates: list[Update] = []
    peer = http_peer("a2a_skill_agent", "--declare", binding, *more)
    async with sdk_skill(peer.url, updates) as call:
        assert texts(await call("say hello")) == ["echo: hello"]
        assert (await call("data")).structured == {"answer": 42}
        assert texts(await call("slow")) == ["all steps done"]
        assert any(isinstance(update, Progress) for update in updates)
        with pytest.raises(RemoteA2ATaskFailedError, match="the disk is full"):
            await call("fail")
        asked = await call("ask")
        answers = {"reply": {"action": "accept", "content": {"reply": "blue"}}}
        done = await call("ask", handle=asked.handle, answers=answers)
        assert texts(done) == ["you said: blue"]
        peer.kill()
        for _ in range(2):  # the first may go to a connection that is not known to be dead
            with pytest.raises(RemoteA2ATransportError) as raised:
                await call("say hello")
        assert not raised.value.sent, "and may be sent again"
