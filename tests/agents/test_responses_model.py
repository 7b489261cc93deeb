"""Models behind the Responses API of OpenAI: requests, and answers in the forms they come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.agents.agent_rig import open_rig
from tests.agents.test_models import TOOL, Http, stream, whole
from tests.peers.scripted_model import running_model, say, use

from dragoman.agents.models.chat import CUT, ModelReply, ModelUnavailable
from dragoman.agents.models.openai import OpenAiSettings
from dragoman.agents.models.responses import ResponsesModel
from dragoman.wire.http import HttpReply

pytestmark = pytest.mark.promise("T1")

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "what is it?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        ],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
]
USAGE = {"input_tokens": 3, "output_tokens": 2}


async def ask(*replies: HttpReply, **settings: Any) -> tuple[ModelReply, list[str], dict[str, Any]]:
    http, texts = Http(*replies), list[str]()
    given = {"model": "m", "base_url": "http://x/v1/", "api_key": "sk-secret", **settings}
    model = ResponsesModel(OpenAiSettings(**given), http)
    reply = await model.complete(MESSAGES, [TOOL], texts.append, {"type": "object"})
    return reply, texts, http.sent[0]


async def test_conversation_is_sent_as_items_and_an_answer_need_not_be_streamed() -> None:
    output = [
        {"type": "reasoning", "summary": []},
        {"type": "message", "content": [{"type": "output_text", "text": "A cat."}]},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": '{"a": 1}'},
    ]
    body = {"model": "m-1", "status": "completed", "output": output, "usage": USAGE, "error": None}
    reply, texts, sent = await ask(whole(body), temperature=0.5, max_tokens=9)
    assert (reply.text, texts, reply.model) == ("A cat.", ["A cat."], "m-1")
    assert [(one.id, one.name, one.arguments) for one in reply.tool_requests] == [
        ("c2", "g", '{"a": 1}')
    ]
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, 2)
    assert sent["url"] == "http://x/v1/responses" and sent["store"] is False
    assert sent["max_output_tokens"] == 9 and sent["temperature"] == 0.5
    assert sent["tools"][0]["name"] == "get_weather"
    assert sent["text"]["format"]["type"] == "json_schema"
    system, user, call, result = sent["input"]
    assert system == {"role": "system", "content": "Be brief."}
    assert [one["type"] for one in user["content"]] == ["input_text", "input_image"]
    assert call == {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    assert result == {"type": "function_call_output", "call_id": "c1", "output": "a cat"}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{"type": "error", "code": "server_error", "message": "overheated"}], "overheated"),
        (
            [
                {
                    "type": "response.failed",
                    "response": {"status": "failed", "error": {"message": "sk-secret failed"}},
                }
            ],
            "failed",
        ),
        ([{"type": "response.failed", "response": {"status": "failed"}}], "gave no reason"),
        ([{"type": "response.output_text.delta", "delta": "half"}], "before the answer was"),
        (["nonsense"], "invalid answer"),
        ([{"type": "response.completed"}], "not an object"),
    ],
)
async def test_failures_are_explained(events: list[Any], said: str) -> None:
    with pytest.raises(ModelUnavailable, match=said) as raised:
        await ask(stream(*events))
    assert "sk-secret" not in str(raised.value)


async def test_answer_that_became_too_long_is_cut() -> None:
    response = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    delta = {"type": "response.output_text.delta", "delta": "half"}
    reply, _, _ = await ask(stream(delta, {"type": "response.incomplete", "response": response}))
    assert reply.text == "half" and reply.ending == CUT


async def test_agent_works_over_the_responses_api(short_tmp: Path) -> None:
    with running_model() as model:
        model.answers += [use(("system_time", {}), text="Let me see."), say("It is late.")]
        async with open_rig(short_tmp) as rig:
            await rig.write(
                "clock",
                f'[model]\nmodel = "m"\napi = "responses"\nbase_url = "{model.url}"\n'
                '[capabilities]\ntools = ["system_time"]\n',
            )
            assert await rig.ask("clock", "what time is it?") == "It is late."
            (row,) = rig.app.parts.stores.usage.summarize(["agent"], 0, {})
            assert (row["input_tokens"], row["output_tokens"], row["tool_calls"]) == (22, 14, 1)
        items = model.requests[1]["input"]
        assert [one.get("type", one.get("role")) for one in items] == [
            "user", "assistant", "function_call", "function_call_output",
        ]  # fmt: skip
        assert "timeZone" in json.dumps(items[-1])
