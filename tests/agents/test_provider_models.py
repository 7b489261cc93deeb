"""Models of providers with an API of their own, through the library of the extra `agents`, the
hub's HTTP client and real HTTP: Anthropic's Messages API.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.model_keys import build_keys
from tests.peers.scripted_model import Answer, ScriptedModel, running_model, say, use

from dragoman.agents.manifest import parse_manifest
from dragoman.agents.model_factory import build_models
from dragoman.agents.models.chat import (
    CUT,
    REFUSED,
    ChatModel,
    ContextTooLong,
    Message,
    ModelReply,
    ModelUnavailable,
    OfferedTool,
)
from dragoman.agents.models.provider import check_installed
from dragoman.core.errors import ConfigError, WorkFailed
from dragoman.net.client import OutboundHttp

pytestmark = pytest.mark.promise("T1")

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = OfferedTool("get_weather", "The weather.", SCHEMA)
KEY = "sk-ant-secret"
HI: list[Message] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedModel]:
    with running_model() as model:
        yield model


class Rig:
    def __init__(self, server: ScriptedModel, net: OutboundHttp) -> None:
        self.server = server
        self.net = net
        self.texts: list[str] = []
        self.model = self.build()

    def build(self, more: str = "", keys: dict[str, str] | None = None) -> ChatModel:
        text = f"""
        [model]
        provider = "anthropic"
        model = "scripted-1"
        api_key_env = "MY_KEY"
        base_url = "{self.server.url.removesuffix("/v1")}"
        {more}
        """
        manifest = parse_manifest(text, Path("/home/agents/a/agent.toml")).manifest

        def open_http(url: str, allow_private: bool) -> Any:
            return self.net.open_configured(url, allow_private=allow_private)

        (model,) = build_models(
            manifest, open_http, build_keys({"MY_KEY": KEY} if keys is None else keys)
        )
        return model

    async def ask(
        self, *answers: Answer, messages: list[Message] | None = None, schema: Any = None
    ) -> ModelReply:
        self.server.answers = list(answers)
        self.server.requests.clear()
        self.server.broken.clear()
        self.texts.clear()
        return await self.model.complete(messages or HI, [TOOL], self.texts.append, schema)


@pytest.fixture
async def rig(server: ScriptedModel) -> AsyncIterator[Rig]:
    net = OutboundHttp()
    yield Rig(server, net)
    await net.close()


async def test_text_is_streamed_with_usage(rig: Rig) -> None:
    reply = await rig.ask(say("Good morning, ü"))
    assert reply.text == "Good morning, ü" == "".join(rig.texts) and len(rig.texts) > 2
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (11, 7)
    assert reply.model == "scripted-1" and not reply.ending
    sent = rig.server.requests[0]
    assert sent["stream"] is True and sent["model"] == "scripted-1"
    assert sent["tools"][0]["name"] == "get_weather"
    assert sent["tools"][0]["input_schema"]["required"] == ["city"]
    assert KEY in str(rig.server.headers[-1])
    assert (await rig.ask(say("cut", finish="max_tokens"))).ending == CUT
    assert (await rig.ask(say("no", finish="refusal"))).ending == REFUSED


async def test_tool_calls_and_the_conversation_are_translated(rig: Rig) -> None:
    reply = await rig.ask(
        use(("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"}), text="Let me see")
    )
    assert [json.loads(one.arguments)["city"] for one in reply.tool_requests] == ["Oslo", "Rome"]
    first, second = reply.tool_requests
    calls = [
        {"id": first.id, "function": {"name": first.name, "arguments": first.arguments}},
        {"id": second.id, "function": {"name": second.name, "arguments": "{broken"}},
    ]
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    link = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}
    history: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Which?"}, picture, link]},
        {"role": "assistant", "content": "Let me see", "tool_calls": calls},
        {"role": "tool", "tool_call_id": first.id, "content": "sunny"},
        {"role": "tool", "tool_call_id": second.id, "content": "Error: malformed"},
    ]
    assert (await rig.ask(say("Sunny."), messages=history)).text == "Sunny."
    sent = rig.server.requests[0]
    assert "Be brief." in json.dumps(sent["system"])
    user, assistant, results = sent["messages"]
    assert [one["type"] for one in user["content"]] == ["text", "image", "text"]
    assert user["content"][1]["source"]["media_type"] == "image/png"
    assert assistant["content"][1]["input"] == {"city": "Oslo"}
    assert assistant["content"][2]["input"] == {"malformed": "{broken"}
    assert [one["tool_use_id"] for one in results["content"]] == [first.id, second.id]


@pytest.mark.parametrize(
    ("answer", "kind", "said", "retry_after"),
    [
        ({"status": 429, "body": {"type": "error", "error": {"message": "slow down"}},
          "headers": {"retry-after": "7"}}, ModelUnavailable, "slow down", 7),
        ({"status": 529, "body": {"type": "error", "error": {"type": "overloaded_error",
          "message": "Overloaded"}}}, ModelUnavailable, "Overloaded", None),
        ({"status": 429, "body": {"error": {"message": "slow down", "details": [
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"}]}}},
         ModelUnavailable, "slow down", 3),
        ({"status": 429, "body": {"error": {"message": "slow down"}},
          "headers": {"retry-after-ms": "1500"}}, ModelUnavailable, "slow down", 1.5),
        ({"status": 500, "body": "<html>"}, ModelUnavailable, "html", None),
        ({"status": 400, "body": {"type": "error", "error": {"type": "invalid_request_error",
          "message": "prompt is too long: 9 tokens > 8 maximum"}}}, ContextTooLong, "too long",
         None),
        ({"status": 401, "body": {"type": "error", "error": {"type": "authentication_error",
          "message": f"invalid key {KEY}"}}}, WorkFailed, "invalid key …", None),
        ({"text": "begun", "drop": True}, ModelUnavailable, "", None),
        ({"raw": b"event: message_start\ndata: not json\n\n"}, ModelUnavailable, "", None),
        ({"raw": b"event: error\ndata: {\"type\": \"error\", \"error\": {\"type\": "
                 b"\"overloaded_error\", \"message\": \"Overloaded\"}}\n\n"},
         ModelUnavailable, "Overloaded", None),
        ({"raw": b""}, ModelUnavailable, "", None),
    ],
    ids=["429", "retry-info", "ms", "529", "500", "too-long", "401", "dropped",
         "garbage", "error-event", "empty"],
)  # fmt: skip
async def test_error_says_whether_another_try_may_help(
    rig: Rig, answer: Answer, kind: type[Exception], said: str, retry_after: float | None
) -> None:
    with pytest.raises(kind) as raised:
        await rig.ask(answer)
    assert said in str(raised.value) and KEY not in str(raised.value)
    assert getattr(raised.value, "retry_after", None) == retry_after
    assert len(rig.server.requests) == 1, "tries are the loop's"
    assert (await rig.ask(say("better"))).text == "better"


async def test_server_that_cannot_be_reached_is_unavailable(rig: Rig) -> None:
    with running_model() as rig.server:
        rig.model = rig.build()
    with pytest.raises(ModelUnavailable, match="is unavailable: could not connect"):
        await rig.ask(say("never"))


async def test_private_address_is_refused_by_the_hubs_client(server: ScriptedModel) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    net = OutboundHttp(resolve)
    rig = Rig(server, net)
    server.url, kept = "http://models.example/v1", server.url
    try:
        rig.model = rig.build()
    finally:
        server.url = kept
    with pytest.raises(ModelUnavailable, match="private"):
        await rig.ask(say("never"))
    assert not server.requests
    await net.close()


async def test_server_that_hangs_is_unavailable_after_the_timeout(rig: Rig) -> None:
    rig.model = rig.build("timeout_secs = 0.5")
    with pytest.raises(ModelUnavailable):
        await rig.ask({"hang": True})
    assert await asyncio.to_thread(rig.server.broken.wait, 10)


async def test_cancelled_request_closes_the_connection(rig: Rig) -> None:
    await rig.ask(say("the library is loaded"))
    messages: list[Message] = [{"role": "user", "content": "take your time"}]
    asking = asyncio.ensure_future(rig.ask({"text": "slow", "stall": True}, messages=messages))
    async with asyncio.timeout(60):
        while "take your time" not in str(rig.server.requests):
            await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(rig.server.broken.wait, 10)


async def test_answer_in_json_is_asked_for(rig: Rig) -> None:
    reply = await rig.ask(say('{"city": "Oslo"}'), schema=SCHEMA)
    assert json.loads(reply.text) == {"city": "Oslo"}
    assert "city" in json.dumps({**rig.server.requests[0], "tools": []})


def test_missing_library_is_said_with_the_command_that_installs_it() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'dragoman-hub\[agents\]'$"):
        check_installed('agent "a"', "anthropic", lambda package: False)
    with pytest.raises(ConfigError, match=r"\[agents\]' 'pydantic-ai-slim\[cohere\]'$"):
        check_installed('agent "a"', "cohere")
    check_installed('agent "a"', "anthropic")


async def test_missing_key_is_said_when_the_manifest_is_read(rig: Rig) -> None:
    with pytest.raises(ConfigError, match='the variable "MY_KEY" is not set'):
        rig.build(keys={})


def test_library_is_not_loaded_before_the_first_message() -> None:
    code = """
import sys
from pathlib import Path
from dragoman.agents.manifest import parse_manifest
from dragoman.agents.model_factory import ModelKeys, build_models
text = '[model]\\nprovider = "anthropic"\\nmodel = "m"\\napi_key_env = "K"\\n'
manifest = parse_manifest(text, Path("/h/agents/a/agent.toml")).manifest
build_models(manifest, lambda url, private: None, ModelKeys({"K": "x"}, None))
print(sorted({one.split(".")[0] for one in sys.modules} & {"pydantic_ai", "httpx2", "anthropic"}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
