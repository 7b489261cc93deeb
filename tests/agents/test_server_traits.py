"""Members of requests that some servers refuse: known by the host, or learned from the error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agents.model_keys import build_keys
from tests.agents.test_models import TOOL, Http, delta, stream, whole

from dragoman.agents.manifest import parse_manifest
from dragoman.agents.model_factory import build_models
from dragoman.agents.models.chat import CARRY, ChatModel, Message
from dragoman.agents.models.traits import find_refused
from dragoman.core.errors import ConfigError, WorkFailed
from dragoman.wire.http import HttpReply

pytestmark = pytest.mark.promise("T1")

HI: list[Message] = [{"role": "user", "content": "hi"}]


class Server(Http):
    """Refuses requests as `find_problem` says, and answers the others."""

    def __init__(self, find_problem: Callable[[dict[str, Any]], Any], status: int = 400) -> None:
        super().__init__()
        self.find_problem = find_problem
        self.status = status

    async def request(self, *args: Any, **more: Any) -> HttpReply:
        self.replies = [whole({})]
        await super().request(*args, **more)
        problem = self.find_problem(self.sent[-1])
        if problem is not None:
            return whole(problem, self.status)
        if "input" in self.sent[-1]:
            response = {"status": "completed", "model": "m-1", "output": []}
            text = {"type": "response.output_text.delta", "delta": "ok"}
            return stream(text, {"type": "response.completed", "response": response})
        return stream(delta("ok"), delta(finish="stop"), "[DONE]")


def build(server: Http, settings: str) -> ChatModel:
    text = f'[model]\nmodel = "m"\n{settings}\n'
    manifest = parse_manifest(text, Path("/home/agents/a/agent.toml")).manifest
    (model,) = build_models(manifest, lambda url, private: server, build_keys({"KEY": "k"}))
    return model


async def ask(model: ChatModel, messages: list[Message] | None = None) -> str:
    return (await model.complete(messages or HI, [TOOL], lambda text: None)).text


def refuse(member: str, message: str) -> Callable[[dict[str, Any]], Any]:
    return lambda body: {"error": {"message": message}} if member in body else None


ANY = 'base_url = "http://models.example/v1"\n'


@pytest.mark.parametrize(
    ("settings", "has", "has_not"),
    [
        ('provider = "mistral"', "max_tokens", {"stream_options", "max_completion_tokens"}),
        ('provider = "openai"', "max_completion_tokens", {"max_tokens"}),
        ('base_url = "https://me.openai.azure.com/openai/v1"', "max_completion_tokens",
         {"max_tokens"}),
        ('base_url = "https://api.openai.com.example/v1"', "max_tokens",
         {"max_completion_tokens"}),
        (ANY, "max_tokens", {"max_completion_tokens"}),
        (ANY + 'omit = ["stream_options", "max_tokens"]', "model",
         {"stream_options", "max_tokens", "max_completion_tokens"}),
        (ANY + 'api = "responses"\nomit = ["store", "include"]', "max_output_tokens",
         {"store", "include"}),
    ],
)  # fmt: skip
async def test_request_has_what_the_server_takes(
    settings: str, has: str, has_not: set[str]
) -> None:
    server = Server(lambda body: None)
    assert await ask(build(server, f"{settings}\nmax_tokens = 9")) == "ok"
    (sent,) = server.sent
    assert has in sent and not has_not & {*sent}


def test_omit_is_refused_where_it_has_no_effect() -> None:
    settings = 'provider = "anthropic"\napi_key_env = "KEY"\nomit = ["temperature"]'
    with pytest.raises(ConfigError, match=r"model\.omit is for servers with OpenAI's interfaces"):
        build(Http(), settings)


MISTRAL = {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
                       "msg": "Extra inputs are not permitted"}]}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "find_problem", "status", "left_out"),
    [
        ("", lambda body: MISTRAL if "stream_options" in body else None, 422, "stream_options"),
        ("temperature = 0.2", refuse("temperature", "Unsupported value: 'temperature' does not "
         "support 0.2 with this model. Only the default (1) value is supported."), 400,
         "temperature"),
        ("max_tokens = 9", refuse("max_tokens", "Unsupported parameter: 'max_tokens' is not "
         "supported with this model. Use 'max_completion_tokens' instead."), 400, "max_tokens"),
        ('api = "responses"', refuse("include", "Encrypted content is not supported with this "
         "model."), 400, "include"),
    ],
)  # fmt: skip
async def test_member_that_is_refused_is_left_out_from_then_on(
    settings: str, find_problem: Callable[[dict[str, Any]], Any], status: int, left_out: str
) -> None:
    server = Server(find_problem, status)
    model = build(server, ANY + settings)
    assert [await ask(model), await ask(model)] == ["ok", "ok"]
    assert [left_out in one for one in server.sent] == [True, False, False]
    first, *rest = server.sent
    if left_out == "max_tokens":
        assert all(one["max_completion_tokens"] == 9 for one in rest)
    assert all({*first} - {left_out} <= {*one} for one in rest)


async def test_limit_has_its_older_name_where_the_newer_one_is_refused() -> None:
    server = Server(refuse("max_completion_tokens", "unknown field max_completion_tokens"))
    model = build(server, 'provider = "openai"\nmax_tokens = 9')
    assert await ask(model) == "ok" and server.sent[-1]["max_tokens"] == 9
    neither = Server(lambda body: {"error": "max_tokens and max_completion_tokens are unknown"}
                     if {"max_tokens", "max_completion_tokens"} & {*body} else None)  # fmt: skip
    assert await ask(build(neither, ANY + "max_tokens = 9\ntemperature = 1")) == "ok"
    assert len(neither.sent) == 3 and neither.sent[-1]["temperature"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "the messages are invalid"),
        ("max_tokens = 99999", "max_tokens is too large: 99999"),
        ('extra = { reasoning_effort = "huge" }', "invalid reasoning_effort"),
    ],
)
async def test_error_about_anything_else_is_reported(settings: str, message: str) -> None:
    server = Server(lambda body: {"error": {"message": message}})
    with pytest.raises(WorkFailed, match=message):
        await ask(build(server, ANY + settings))
    assert len(server.sent) == 1


async def test_server_that_refuses_everything_is_not_asked_for_ever() -> None:
    server = Server(lambda body: {"error": f"not these: {', '.join(body)}"})
    with pytest.raises(WorkFailed, match="status 400"):
        await ask(build(server, ANY + "max_tokens = 9\ntemperature = 1"))
    assert len(server.sent) <= 4


async def test_member_is_sent_again_if_leaving_it_out_did_not_help() -> None:
    problems = [{"detail": [{"msg": "a role is missing", "input": {"temperature": 1}}]}] * 2
    server = Server(lambda body: problems.pop() if problems else None, 422)
    model = build(server, ANY + "temperature = 1")
    with pytest.raises(WorkFailed, match="a role is missing"):
        await ask(model)
    assert await ask(model) == "ok"
    assert ["temperature" in one for one in server.sent] == [True, False, True]


def test_name_within_another_name_is_another() -> None:
    sent = {"max_tokens": 1, "include": []}
    assert not find_refused(sent, "max_tokens_total and whatever you include are unknown")
    assert find_refused(sent, 'unknown "include"') == {"include"}


async def test_reasoning_that_is_not_taken_back_is_left_out() -> None:
    def find_problem(body: dict[str, Any]) -> Any:
        if any("reasoning_content" in one for one in body["messages"]):
            return {"error": {"message": "reasoning_content is not allowed in the input"}}
        return None

    server = Server(find_problem)
    model = build(server, ANY)
    origin = "http://models.example/v1/chat/completions m"
    carry = {"origin": origin, "data": {"message": {"reasoning_content": "hm"}}}
    answer: Message = {"role": "assistant", "content": "hi", CARRY: carry}
    assert await ask(model, [*HI, answer, *HI]) == "ok"
    assert [len(one["messages"]) for one in server.sent] == [3, 3]
    assert server.sent[1]["messages"][1] == {"role": "assistant", "content": "hi"}
    assert answer[CARRY] == carry, "the conversation is as it was"


async def test_encrypted_reasoning_that_cannot_be_read_is_left_out() -> None:
    def find_problem(body: dict[str, Any]) -> Any:
        is_old = any("encrypted_content" in one for one in body["input"])
        return {"error": "The encrypted content could not be verified"} if is_old else None

    server = Server(find_problem)
    items = [{"type": "reasoning", "encrypted_content": "gAAA"},
             {"type": "message", "role": "assistant", "content": "hi"}]  # fmt: skip
    origin = "http://models.example/v1/responses m"
    answer: Message = {"role": "assistant", "content": "hi",
                       CARRY: {"origin": origin, "data": {"items": items}}}  # fmt: skip
    assert await ask(build(server, ANY + 'api = "responses"'), [*HI, answer, *HI]) == "ok"
    assert server.sent[1]["input"][1] == {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{"a": 1}', {"a": 1}),
        ("{broken", {"malformed": "{broken"}),
        ("", {}),
        ("[1]", {"malformed": "[1]"}),
    ],
)
async def test_earlier_calls_go_back_as_json(
    api: str, written: str, sent: Mapping[str, Any]
) -> None:
    server = Server(lambda body: None)
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": written}}
    asked: list[Message] = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Error: malformed"},
    ]
    assert await ask(build(server, ANY + f'api = "{api}"'), asked) == "ok"
    if api == "responses":
        function = server.sent[0]["input"][1]
    else:
        function = server.sent[0]["messages"][1]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == sent and function["name"] == "t"


async def test_content_is_null_beside_tool_calls_only() -> None:
    server = Server(lambda body: None)
    empty: Message = {"role": "assistant", "content": None}
    assert await ask(build(server, ANY), [*HI, empty, *HI]) == "ok"
    assert server.sent[0]["messages"][1] == {"role": "assistant", "content": ""}
