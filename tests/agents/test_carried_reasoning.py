"""What a model's server wants back of its own answers: a server that refuses a conversation without
it, as the real ones do, and models of others, which never see it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from tests.agents.model_keys import build_keys
from tests.peers.scripted_model import Answer, ScriptedModel, running_model, say

from dragoman.agents.manifest import parse_manifest
from dragoman.agents.model_factory import build_models
from dragoman.agents.model_loop import (
    LoopLimits,
    LoopState,
    ModelLoop,
    fit_conversation,
    measure_message,
)
from dragoman.agents.models.chat import (
    CARRY,
    ChatModel,
    Message,
    ModelReply,
    OfferedTool,
    find_carried,
)
from dragoman.agents.models.constrained import flatten_message
from dragoman.agents.models.openai import MAX_BLOCKS, ChatAnswer, ReasoningBlocks
from dragoman.core.call import Result
from dragoman.core.errors import BadReply, WorkFailed
from dragoman.net.client import OutboundHttp

pytestmark = pytest.mark.promise("T1")

TOOL = OfferedTool("look", "Looks.", {"type": "object"})
Strict = Callable[[dict[str, Any]], Answer]


def refuse(message: str) -> Answer:
    return {"status": 400, "body": {"error": {"message": message}}}


def stream(*events: dict[str, Any], named: bool = False) -> Answer:
    lines = [
        (f"event: {one['type']}\n" if named else "") + f"data: {json.dumps(one)}\n\n"
        for one in events
    ]
    return {"raw": "".join(lines).encode()}


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "model": "m-1", "choices": [choice]}


def piece(index: int, **more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    return {"index": index, "id": f"call_{index}", "type": "function", "function": function, **more}


def list_answers(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Lists the answers with tool calls that the request brings back."""
    return [one for one in body["messages"] if one.get("tool_calls")]


# --- servers that refuse as the real ones do ------------------------------------------------------


def be_deepseek(body: dict[str, Any]) -> Answer:
    if any(one.get("reasoning_content") != "I must look." for one in list_answers(body)):
        return refuse("Missing `reasoning_content` field in the assistant message")
    if body["messages"][-1]["role"] == "tool":
        return say("done")
    return stream(
        chunk(role="assistant", content=None, reasoning_content="I must "),
        chunk(reasoning_content="look."),
        chunk(tool_calls=[piece(0)]),
        chunk("tool_calls"),
    )


def be_gemini(body: dict[str, Any]) -> Answer:
    for answer in list_answers(body):
        signed = [one.get("extra_content", {}).get("google", {}) for one in answer["tool_calls"]]
        if signed != [{"thought_signature": "sig-0"}, {}]:  # the first of parallel calls has it
            return refuse("Function call is missing a thought_signature")
    if body["messages"][-1]["role"] == "tool":
        return say("done")
    signature = {"google": {"thought_signature": "sig-0"}}
    return stream(
        chunk(tool_calls=[piece(0, extra_content=signature), piece(1)]), chunk("tool_calls")
    )


THOUGHTS = {"type": "reasoning.text", "text": "I must look.", "signature": "sig", "index": 0,
            "format": "anthropic-claude-v1"}  # fmt: skip


def be_openrouter(body: dict[str, Any]) -> Answer:
    if any(one.get("reasoning_details") != [THOUGHTS] for one in list_answers(body)):
        return refuse("messages.1.content.0: Expected `thinking`, but found `tool_use`")
    if body["messages"][-1]["role"] == "tool":
        return say("done")
    begun = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1"}
    return stream(
        chunk(reasoning_details=[{**begun, "text": "I must "}]),
        chunk(reasoning_details=[{**begun, "text": "look."}]),
        chunk(reasoning_details=[{**begun, "text": None, "signature": "sig"}]),
        chunk(tool_calls=[piece(0)]),
        chunk("tool_calls"),
    )


def be_responses(body: dict[str, Any]) -> Answer:
    items = body["input"]
    if body["store"] or body["include"] != ["reasoning.encrypted_content"]:
        return refuse("the reasoning will be lost")
    calls = [at for at, one in enumerate(items) if one.get("type") == "function_call"]
    for at in calls:
        if items[at - 1].get("encrypted_content") != "gAAA":
            return refuse("function_call was provided without its required 'reasoning' item")
    known = {items[at]["call_id"] for at in calls}
    results = {one["call_id"] for one in items if one.get("type") == "function_call_output"}
    if known != results:
        return refuse("No tool output found for function call")
    if items[-1].get("type") == "function_call_output":
        return say("done")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    call = {"type": "function_call", "id": "fc_1", "call_id": f"call/{len(items)}", "name": "look",
            "arguments": "{}", "status": "completed"}  # fmt: skip
    response = {"status": "completed", "model": "m-1", "output": [reasoning, call]}
    return stream(
        *({"type": "response.output_item.done", "item": one} for one in (reasoning, call)),
        {"type": "response.completed", "response": response},
    )


def be_anthropic(body: dict[str, Any]) -> Answer:
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        if any(one["type"] == "tool_use" for one in blocks) and (
            blocks[0].get("thinking"), blocks[0].get("signature")
        ) != ("I must look.", "sig"):  # fmt: skip
            return refuse("messages.1.content.0.type: Expected `thinking`, but found `tool_use`")
    last = body["messages"][-1]["content"]
    if isinstance(last, list) and last[-1]["type"] == "tool_result":
        return say("done")
    begun: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "content": [],
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}

    def delta(index: int, **more: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": more}

    return stream(
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": thinking},
        delta(0, type="thinking_delta", thinking="I must "),
        delta(0, type="thinking_delta", thinking="look."),
        delta(0, type="signature_delta", signature="sig"),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": use},
        delta(1, type="input_json_delta", partial_json="{}"),
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
         "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
        named=True,
    )  # fmt: skip


SERVERS: dict[str, tuple[Strict, str]] = {
    "deepseek": (be_deepseek, ""),
    "gemini": (be_gemini, ""),
    "openrouter": (be_openrouter, ""),
    "responses": (be_responses, 'api = "responses"'),
    "anthropic": (be_anthropic, 'provider = "anthropic"\napi_key_env = "KEY"'),
}


class Rig:
    def __init__(self, net: OutboundHttp) -> None:
        self.net = net
        self.messages: list[Message] = []

    def build(self, server: ScriptedModel, more: str, name: str = "m-1") -> ChatModel:
        base = server.url.removesuffix("/v1") if "anthropic" in more else server.url
        text = f'[model]\nmodel = "{name}"\nbase_url = "{base}"\n{more}\n'
        manifest = parse_manifest(text, Path("/home/agents/a/agent.toml")).manifest

        def open_http(url: str, allow_private: bool) -> Any:
            return self.net.open_configured(url, allow_private=allow_private)

        (model,) = build_models(manifest, open_http, build_keys({"KEY": "sk-1"}))
        return model

    async def ask(self, *models: ChatModel) -> str:
        """Asks once more in the conversation, which is stored in between."""
        self.messages = json.loads(json.dumps(self.messages))
        state = LoopState([*self.messages, {"role": "user", "content": "go"}], [TOOL])
        loop = ModelLoop(models, "", LoopLimits(), "a")
        reply = await loop.run(state, self._call, lambda: lambda text: None)
        assert isinstance(reply, ModelReply)
        self.messages = state.messages
        return reply.text

    async def _call(self, *_: Any) -> Result:
        return Result(content=[{"type": "text", "text": "seen"}])


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    net = OutboundHttp()
    yield Rig(net)
    await net.close()


@pytest.mark.parametrize("kind", SERVERS)
async def test_server_gets_back_what_it_requires(kind: str, rig: Rig) -> None:
    strict, more = SERVERS[kind]
    with running_model() as server:
        server.answers = [strict] * 4
        model = rig.build(server, more)
        assert [await rig.ask(model), await rig.ask(model)] == ["done", "done"]
        assert len(server.requests) == 4 and "carry" not in json.dumps(server.requests)


@pytest.mark.parametrize("kind", SERVERS)
async def test_other_model_and_other_server_get_the_conversation_without_it(
    kind: str, rig: Rig
) -> None:
    strict, more = SERVERS[kind]
    with running_model() as server, running_model() as other:
        server.answers = [strict] * 2
        assert await rig.ask(rig.build(server, more)) == "done"
        assert any(CARRY in one for one in rig.messages)
        other.answers = [say("moved"), say("as items"), say("constrained")]
        assert await rig.ask(rig.build(other, "")) == "moved"
        assert await rig.ask(rig.build(other, 'api = "responses"')) == "as items"
        assert await rig.ask(rig.build(other, 'tool_mode = "constrained"')) == "constrained"
        server.answers = [say("renamed")]
        assert await rig.ask(rig.build(server, more, "m-2")) == "renamed"
        for request in (*other.requests, server.requests[-1]):
            sent = json.dumps(request)
            for secret in ("I must", "sig", "gAAA", "carry", "origin"):
                assert secret not in sent
            assert "seen" in sent


REFUSALS = {
    "deepseek": "reasoning_content is not allowed",
    "gemini": "Corrupted thought signature.",
    "openrouter": "messages.1.content.0: Invalid `signature` in `thinking` block",
    "responses": "The encrypted content gAAA could not be verified.",
    "anthropic": "messages.1.content.0: Invalid `signature` in `thinking` block",
}


@pytest.mark.parametrize("kind", SERVERS)
async def test_conversation_goes_on_when_its_server_no_longer_reads_its_own(
    kind: str, rig: Rig
) -> None:
    strict, more = SERVERS[kind]

    def be_another(body: dict[str, Any]) -> Answer:
        sent = json.dumps(body)
        is_old = any(one in sent for one in ("I must look", '"sig', "gAAA"))
        return refuse(REFUSALS[kind]) if is_old else say("done")

    with running_model() as server:
        server.answers = [strict, strict, be_another, be_another]
        model = rig.build(server, more)
        assert [await rig.ask(model), await rig.ask(model)] == ["done", "done"]
        assert len(server.requests) == 4 and "seen" in json.dumps(server.requests[-1])
        server.answers = [refuse("the account is closed")]
        with pytest.raises(WorkFailed, match="account is closed"):
            await rig.ask(model)
        assert len(server.requests) == 5


async def test_fallback_of_another_origin_gets_the_conversation_without_it(rig: Rig) -> None:
    with running_model() as server, running_model() as other:
        server.answers = [be_deepseek, {"status": 503, "body": {"error": "busy"},
                                        "headers": {"retry-after": "60"}}]  # fmt: skip
        other.answers = [say("instead")]
        assert await rig.ask(rig.build(server, ""), rig.build(other, "")) == "instead"
        assert "reasoning_content" not in json.dumps(other.requests)


def test_pieces_of_one_block_are_merged_and_others_are_kept_apart() -> None:
    blocks = ReasoningBlocks()
    for one in (
        {"type": "reasoning.text", "index": 0, "text": "a", "id": "x"},
        {"type": "reasoning.text", "index": 0, "text": "b", "signature": None},
        {"type": "reasoning.text", "index": 0, "signature": "s"},
        {"type": "reasoning.text", "index": 1, "text": "c"},
        {"type": "reasoning.encrypted", "index": 0, "data": "d"},
        {"type": "reasoning.encrypted", "index": 0, "data": "e"},
        {"type": "reasoning.text", "text": "f"},
        {"type": "reasoning.text", "text": "g"},
    ):
        blocks.add(one)
    details = blocks.build()
    assert details[0] == {
        "type": "reasoning.text", "index": 0, "text": "ab", "id": "x", "signature": "s",
    }  # fmt: skip
    assert [one.get("text", one.get("data")) for one in details[1:]] == ["c", "d", "e", "f", "g"]


def test_answers_in_many_pieces_take_linear_time_and_bounded_blocks() -> None:
    begun = process_time()
    answer = ChatAnswer("m", lambda text: None, (), "o")
    for _ in range(200_000):
        answer._take_delta(
            {
                "reasoning_content": "ten chars.",
                "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "ten chars."}],
                "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "ten chars."}}],
            }
        )
    assert process_time() - begun < 30.0  # takes a second or two where it is linear
    reply = answer.build()
    assert len(reply.tool_requests[0].arguments) == 2_000_000 and reply.carry is not None
    message = reply.carry["data"]["message"]
    assert len(message["reasoning_content"]) == 2_000_000
    assert len(message["reasoning_details"][0]["text"]) == 2_000_000
    spaces = ChatAnswer("m", lambda text: None, (), "o")
    for _ in range(200_000):
        spaces._take_delta({"content": "          "})
    assert len(spaces.build().text) == 2_000_000
    with pytest.raises(BadReply, match="blocks of reasoning"):
        answer._take_delta({"reasoning_details": [{"text": "x"}] * (MAX_BLOCKS + 1)})


def test_carry_counts_and_goes_with_what_is_shortened() -> None:
    carry = {"origin": "o", "data": {"message": {"reasoning_content": "t" * 5_000}}}
    message: Message = {"role": "assistant", "content": "answer", CARRY: carry}
    assert measure_message(message) > 5_000
    assert find_carried(message, "o") and not find_carried(message, "other")
    question: Message = {"role": "user", "content": "q"}
    assert fit_conversation([question, message], 10, 20_000)[1] == message
    assert fit_conversation([question, message], 10, 1_000)[1] == {
        "role": "assistant", "content": "answer",
    }  # fmt: skip
    assert CARRY not in flatten_message(message)
