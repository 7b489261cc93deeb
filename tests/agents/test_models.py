"""Answers of model servers in the forms that they come in, the script, JSON instead of tool calls,
and what a long conversation is shortened to.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from tests.agents.model_keys import build_keys

from dragoman.agents.manifest import parse_manifest
from dragoman.agents.model_factory import build_models
from dragoman.agents.model_loop import (
    LoopLimits,
    LoopState,
    ModelLoop,
    compact,
    fit_conversation,
    measure_message,
    render_result,
    weigh_message,
)
from dragoman.agents.models.chat import (
    CUT,
    REFUSED,
    SHOWN,
    ContextTooLong,
    Message,
    ModelReply,
    ModelUnavailable,
    OfferedTool,
    TakeText,
    ToolRequest,
)
from dragoman.agents.models.constrained import ConstrainedModel
from dragoman.agents.models.openai import OpenAiModel, OpenAiSettings
from dragoman.agents.models.script import ScriptCall, ScriptModel, ScriptStep
from dragoman.core.call import FORM, Question, Result
from dragoman.core.errors import Looping, Unreachable, WorkFailed
from dragoman.wire.http import HttpReply

pytestmark = pytest.mark.promise("T1")

TOOL = OfferedTool("get_weather", "The weather.", {"type": "object"})


class Body:
    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks
        self.closed = False

    async def read(self, limit: int) -> bytes:
        return b"".join(self._chunks)[:limit]

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def reserve(self, size: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Http:
    """Answers each request with the next reply."""

    def __init__(self, *replies: HttpReply | Exception) -> None:
        self.replies = list(replies)
        self.sent: list[dict[str, Any]] = []
        self.headers: Mapping[str, str] = {}

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"", **_: Any
    ) -> HttpReply:
        self.headers = headers
        self.sent.append({"url": url, **json.loads(body)})
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def stream(*events: Any, split: int = 0) -> HttpReply:
    text = "".join(
        f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in events
    ).encode()
    size = split or len(text)
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    return HttpReply(200, {"content-type": "text/event-stream; charset=utf-8"}, Body(chunks))


def whole(body: Any, status: int = 200, **headers: str) -> HttpReply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpReply(status, {"content-type": "application/json", **headers}, Body([data]))


async def ask(
    *replies: HttpReply | Exception, **settings: Any
) -> tuple[ModelReply, list[str], Http]:
    http, texts = Http(*replies), list[str]()
    given = {"model": "m", "base_url": "http://x/v1/", "api_key": "sk-secret", **settings}
    model = OpenAiModel(OpenAiSettings(**given), http)
    reply = await model.complete([{"role": "user", "content": "hi"}], [TOOL], texts.append)
    return reply, texts, http


def delta(content: Any = None, **more: Any) -> dict[str, Any]:
    finish = more.pop("finish", None)
    inner = {**({"content": content} if content is not None else {}), **more}
    return {"model": "m-1", "choices": [{"index": 0, "delta": inner, "finish_reason": finish}]}


# --- the forms of answers -------------------------------------------------------------------------


@pytest.mark.parametrize("split", [0, 1, 7])
async def test_streamed_text_arrives_in_pieces(split: int) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.01}
    events = [
        delta("", role="assistant"), delta("Go"), delta("od ü"), delta(finish="stop"),
        {"choices": [], "usage": usage}, "[DONE]",
    ]  # fmt: skip
    reply, texts, http = await ask(stream(*events, split=split))
    assert (reply.text, texts) == ("Good ü", ["Go", "od ü"])
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cost) == (3, 2, 0.01)
    assert reply.model == "m-1" and not reply.ending
    sent = http.sent[0]
    assert sent["url"] == "http://x/v1/chat/completions" and sent["stream"] is True
    assert sent["tools"][0]["function"]["name"] == "get_weather"
    assert http.headers["authorization"] == "Bearer sk-secret"


async def test_fragments_of_tool_calls_are_put_together() -> None:
    def piece(index: int, **function: str) -> dict[str, Any]:
        more = {"id": f"c{index}", "type": "function"} if "name" in function else {}
        return delta(tool_calls=[{"index": index, **more, "function": function}])

    reply, _, _ = await ask(
        stream(
            piece(0, name="get_weather", arguments=""), piece(1, name="get_time", arguments="{}"),
            piece(0, arguments='{"city":'), piece(0, arguments=' "Oslo"}'),
            delta(finish="tool_calls"), "[DONE]",
        )
    )  # fmt: skip
    assert reply.tool_requests == [
        ToolRequest("c0", "get_weather", '{"city": "Oslo"}'),
        ToolRequest("c1", "get_time", "{}"),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("<think>Two and two </thin is</think>\n\n4", "4"),
        (" \n<think>\n\n</think>\n\nFour < 5 </think>", "Four < 5 </think>"),
        ("<think>never ends", ""),
        ("<think>no answer</think> \n", ""),
        ("<thinker> is a word", "<thinker> is a word"),
        ("Use <think>this</think>", "Use <think>this</think>"),
        (" <thin", " <thin"),
        ("<", "<"),
        ("", ""),
    ],
)
async def test_thoughts_at_the_beginning_are_not_text(size: int, written: str, text: str) -> None:
    pieces = [delta(written[at : at + size]) for at in range(0, len(written), size)]
    reply, texts, _ = await ask(stream(*pieces, delta(finish="stop"), "[DONE]"))
    assert (reply.text, "".join(texts)) == (text, text)
    called = delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "get_weather"}}])
    reply, _, _ = await ask(stream(*pieces, called, delta(finish="tool_calls"), "[DONE]"))
    assert reply.text == text and len(reply.tool_requests) == 1


FORMS: dict[str, Any] = {
    "openai": {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
        "choices": [{"index": 0, "message": {
            "role": "assistant", "content": None, "refusal": None, "annotations": [],
            "tool_calls": [{"id": "call_a", "type": "function",
                            "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}]},
            "logprobs": None, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11,
                  "prompt_tokens_details": {"cached_tokens": 0}},
        "service_tier": "default", "system_fingerprint": None,
    },
    "ollama": {
        "id": "chatcmpl-907", "object": "chat.completion", "model": "llama3.2",
        "system_fingerprint": "fp_ollama",
        "choices": [{"index": 0, "message": {
            "role": "assistant", "content": "",
            "tool_calls": [{"id": "call_x", "index": 0, "type": "function",
                            "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]},
            "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11},
    },
    "without ids": {
        "choices": [{"message": {"content": "", "tool_calls": [
            {"function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}]}}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6},
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
async def test_whole_answers_of_known_servers_are_understood(form: str) -> None:
    reply, _, _ = await ask(whole(FORMS[form]))
    (request,) = reply.tool_requests
    assert request.name == "get_weather" and json.loads(request.arguments) == {"city": "Oslo"}
    assert request.id and (reply.usage.input_tokens, reply.usage.output_tokens) == (5, 6)


def call(index: int | None, id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"id": id, "function": {"name": name, "arguments": arguments}}
    return {**made, "type": "function"} if index is None else {**made, "index": index}


USAGE = {"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 13}
STREAMS: dict[str, tuple[list[Any], str, list[tuple[str, str]]]] = {
    # What arrives; the text and the tool calls that it means.
    "OpenAI: usage is null until the end": (
        [{**delta("", role="assistant", refusal=None), "usage": None},
         {**delta("Hi"), "usage": None}, {**delta(finish="stop"), "usage": None},
         {"model": "m-1", "choices": [], "usage": USAGE, "obfuscation": "xyz"}, "[DONE]"],
        "Hi", []),
    "Azure: the filter's results come first, without a model": (
        [{"model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
         delta("Hi"), {**delta(finish="stop"), "usage": USAGE}, "[DONE]"], "Hi", []),
    "OpenAI: a refusal": (
        [delta(role="assistant", content=None, refusal=""), delta(refusal="I can"),
         delta(refusal="not."), {**delta(finish="stop"), "usage": USAGE}, "[DONE]"],
        "I cannot.", []),
    "DeepSeek: it thinks aloud first": (
        [delta(role="assistant", content=None, reasoning_content="Hm, "),
         delta(reasoning_content="so", content=None), delta("4", reasoning_content=None),
         {**delta("", finish="stop"), "usage": {**USAGE, "prompt_cache_hit_tokens": 0}}, "[DONE]"],
        "4", []),
    "OpenRouter: reasoning, and a last event whose reason is null": (
        [delta("", reasoning="Two", reasoning_details=[{"type": "reasoning.text", "text": "Two"}]),
         delta("4", reasoning=None), delta("", finish="stop", reasoning_details=[]),
         {**delta(""), "usage": {**USAGE, "cost": 0}}, "[DONE]"], "4", []),
    "llama.cpp: timings": (
        [delta(None, role="assistant"), delta("Hi"), delta(finish="stop"),
         {"choices": [], "usage": USAGE, "timings": {"prompt_n": 4, "predicted_ms": 1.5}},
         "[DONE]"], "Hi", []),
    "vLLM: usage in each event, and no end but the end": (
        [{**delta("Hi"), "usage": {"prompt_tokens": 4, "completion_tokens": 1}},
         {**delta("", finish="stop", tool_calls=[]), "usage": USAGE, "prompt_logprobs": None}],
        "Hi", []),
    "Ollama: whole calls, all with index 0": (
        [delta("", role="assistant", tool_calls=[call(0, "call_a", "t", '{"n":1}')]),
         delta("", role="assistant", tool_calls=[call(0, "call_b", "t", '{"n":2}')]),
         delta("", role="assistant", finish="tool_calls"),
         {"choices": [], "usage": USAGE}, "[DONE]"], "", [("t", '{"n":1}'), ("t", '{"n":2}')]),
    "Gemini: the same, and without ids": (
        [delta(tool_calls=[call(0, "", "t", '{"n":1}')]),
         delta(tool_calls=[call(0, "", "u", '{"n":2}')]),
         {**delta(finish="tool_calls"), "usage": USAGE}, "[DONE]"],
        "", [("t", '{"n":1}'), ("u", '{"n":2}')]),
    "one call whose name comes with each piece": (
        [delta(tool_calls=[call(0, "call_a", "t", '{"n"')]),
         delta(tool_calls=[call(0, "call_a", "t", ":1}")]),
         {**delta(finish="tool_calls"), "usage": USAGE}, "[DONE]"], "", [("t", '{"n":1}')]),
    "two calls with one id": (
        [delta(tool_calls=[call(0, "x", "t", "{}"), call(1, "x", "u", "{}")]),
         {**delta(finish="tool_calls"), "usage": USAGE}, "[DONE]"], "", [("t", "{}"), ("u", "{}")]),
    "null in each place": (
        [{"model": None, "choices": None, "usage": None},
         {"choices": [{"index": None, "delta": None, "finish_reason": None}]},
         delta("Hi", tool_calls=None, function_call=None),
         delta(tool_calls=[call(0, None, "t", None)]),
         delta(tool_calls=[call(0, "call_a", None, "{}")]),
         {**delta(finish="stop"), "usage": USAGE}, "[DONE]"], "Hi", [("t", "{}")]),
    "functions, before there were tools": (
        [delta(None, role="assistant", function_call={"name": "t", "arguments": ""}),
         delta(function_call={"arguments": '{"n":'}), delta(function_call={"arguments": "1}"}),
         {**delta(finish="function_call"), "usage": USAGE}, "[DONE]"], "", [("t", '{"n":1}')]),
    "empty calls and reasons that mean nothing": (
        [delta("Hi", function_call={"name": "", "arguments": ""}, finish=""),
         delta("", tool_calls=[{"index": 0, "function": {"name": "", "arguments": ""}}]),
         {**delta("", finish="stop"), "usage": USAGE}, "[DONE]"], "Hi", []),
    "more choices than were asked for": (
        [delta("Hi"), {"choices": [{"index": 1, "delta": {"content": "Ho"}}]},
         {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
         {**delta(finish="stop"), "usage": USAGE}, "[DONE]"], "Hi", []),
}  # fmt: skip


@pytest.mark.parametrize("form", STREAMS)
async def test_streams_of_known_servers_are_understood(form: str) -> None:
    events, text, calls = STREAMS[form]
    reply, texts, _ = await ask(stream(*events))
    assert (reply.text, "".join(texts)) == (text, text)
    assert [(one.name, one.arguments) for one in reply.tool_requests] == calls
    ids = [one.id for one in reply.tool_requests]
    assert all(ids) and len(set(ids)) == len(ids)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (4, 9)
    assert reply.model == "m-1" and reply.ending == (REFUSED if "a refusal" in form else "")


@pytest.mark.parametrize("split", [0, 1, 5])
async def test_comments_and_any_line_ends_are_understood(split: int) -> None:
    good = [json.dumps(one) for one in (delta("G"), delta("o"), delta(finish="stop"))]
    lines = [": OPENROUTER PROCESSING", "", ": keep-alive", "", *(f"data:{one}" for one in good)]
    text = "\ufeff" + "\r\n\r\n".join(lines) + "\r\n\r\nevent: message\r\ndata: [DONE]\r\n\r\n"
    data = text.encode()
    size = split or len(data)
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    headers = {"content-type": "text/event-stream"}
    reply, _, _ = await ask(HttpReply(200, headers, Body(chunks)))
    assert reply.text == "Go"


async def test_content_parts_and_a_cut_answer_are_understood() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"choices": [{"message": {"content": parts}, "finish_reason": "length"}]}
    reply, texts, _ = await ask(whole(body))
    assert (reply.text, texts, reply.ending) == ("ab", ["ab"], CUT)


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        ('provider = "openai"', "sk-openai"),
        ('provider = "openai"\nbase_url = "http://models.example/v1"', ""),
        ('base_url = "http://models.example/v1"\napi_key_env = "OTHER"', "sk-other"),
    ],
)
def test_key_of_a_provider_is_not_sent_elsewhere(model: str, sent: str) -> None:
    text = f'[model]\nmodel = "m"\n{model}\n'
    manifest = parse_manifest(text, Path("/home/agents/a/agent.toml")).manifest
    variables = {"OPENAI_API_KEY": "sk-openai", "OTHER": "sk-other"}
    (made,) = build_models(manifest, lambda url, private: Http(), build_keys(variables))
    assert isinstance(made, OpenAiModel) and made.settings.api_key == sent


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (whole({"error": {"message": "slow down"}}, 429, **{"retry-after": "7"}),
         ModelUnavailable, "status 429: slow down"),
        (whole({"error": "loading"}, 503), ModelUnavailable, "status 503: loading"),
        (whole(b"<html>", 502), ModelUnavailable, "<html>"),
        (whole({"error": {"code": "context_length_exceeded", "message": "x"}}, 400),
         ContextTooLong, "context_length_exceeded"),
        (whole({"error": {"message": "no model; key sk-secret"}}, 404), WorkFailed, "key …"),
        (whole(b"", 400), WorkFailed, "no reason given"),
        (whole([]), ModelUnavailable, "not an object"),
        (whole({"choices": []}), ModelUnavailable, "no message"),
        (stream("{"), ModelUnavailable, "invalid answer"),
        (stream("[1]"), ModelUnavailable, "not an object"),
        (stream({"error": {"message": "out of memory"}}), ModelUnavailable, "out of memory"),
        (stream({"choices": []}), ModelUnavailable, "before the answer was complete"),
        (stream(delta("half"), delta(" of it")), ModelUnavailable, "before the answer was"),
        (stream(delta("x"), {**delta(""), "error": {"code": 429, "message": "too fast"}}, "[DONE]"),
         ModelUnavailable, "status 429: 429: too fast"),
        (stream(delta("x"), {"error": {"code": 401, "message": "bad key sk-secret"}}, "[DONE]"),
         WorkFailed, "bad key …"),
        (stream({"error": {"code": "server_error", "message": "lost"}, "choices": []}, "[DONE]"),
         ModelUnavailable, "server_error: lost"),
        (stream(delta("x"), delta("", finish="error"), "[DONE]"), ModelUnavailable, "no reason"),
        (whole({"error": {"message": "Provider returned error", "code": 502}}), ModelUnavailable,
         "Provider returned error"),
        (whole([{"error": {"code": 400, "message": "API key not valid"}}], 400), WorkFailed,
         "API key not valid"),
        (whole({"object": "error", "message": "maximum context length is 8 tokens"}, 400),
         ContextTooLong, "maximum context length"),
        (whole({"detail": "Not Found"}, 404), WorkFailed, "status 404: Not Found"),
        (whole({"error": {"code": 500, "message": "the request exceeds the context size"}}, 500),
         ContextTooLong, "context size"),
        (whole({"error": {"message": "too many tokens per minute"}}, 429), ModelUnavailable,
         "per minute"),
        (Unreachable("refused", sent=False), ModelUnavailable, "cannot be reached: refused"),
    ],
)  # fmt: skip
async def test_error_says_whether_another_try_may_help(
    reply: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as raised:
        await ask(reply)
    assert said in str(raised.value) and "sk-secret" not in str(raised.value)
    if isinstance(raised.value, ModelUnavailable) and "slow down" in said:
        assert raised.value.retry_after == 7


DATES = {"date": "Wed, 18 Nov 2026 10:00:00 GMT", "retry-after": "Wed, 18 Nov 2026 10:00:04 GMT"}
RETRY_INFO = {
    "error": {
        "code": 429,
        "message": "Quota exceeded",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure"},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2.5s"},
        ],
    }
}


@pytest.mark.parametrize(
    ("reply", "pause"),
    [
        (whole({"error": "slow"}, 429, **{"retry-after": "7"}), 7),
        (whole({"error": "slow"}, 429, **{"retry-after": " 0.5 "}), 0.5),
        (whole({"error": "slow"}, 503, **{"retry-after-ms": "2500", "retry-after": "3"}), 2.5),
        (whole({"error": "slow"}, 429, **DATES), 4),
        (whole({"error": "slow"}, 429, **{**DATES, "retry-after": "Wed Nov 18 10:00:04 2026"}), 4),
        (whole({"error": "slow"}, 429, **{"retry-after": "Wed, 18 Nov 1998 10:00:04 GMT"}), 0),
        (whole([RETRY_INFO], 429), 2.5),
        (whole(RETRY_INFO, 429, **{"retry-after": "soon"}), 2.5),
        (stream(RETRY_INFO, "[DONE]"), 2.5),
        (whole({"error": "slow"}, 429, **{"retry-after": "nan"}), None),
        (whole({"error": {"code": "insufficient_quota", "message": "x"}}, 429), math.inf),
        (whole({"error": {"code": "rate_limit_exceeded", "message": "x"}}, 429), None),
    ],
)  # fmt: skip
async def test_pause_that_a_server_asks_for_is_found(reply: HttpReply, pause: float | None) -> None:
    with pytest.raises(ModelUnavailable) as raised:
        await ask(reply)
    assert raised.value.retry_after == pause


async def test_pause_until_a_date_is_counted_from_now_if_the_server_has_no_clock() -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    with pytest.raises(ModelUnavailable) as raised:
        await ask(whole({"error": "slow"}, 429, **{"retry-after": then}))
    assert 60 < (raised.value.retry_after or 0) <= 100


async def test_model_without_quota_is_not_tried_again() -> None:
    first = Scripted(ModelUnavailable("no quota", math.inf))
    rig = LoopRig(first, Scripted(ModelReply("hi")))
    assert (await rig.run()).text == "hi" and not rig.pauses and not first.answers


async def test_answer_is_bounded() -> None:
    many = [{"index": n, "function": {"name": "x"}} for n in range(200)]
    with pytest.raises(ModelUnavailable, match="more than 128 tool calls"):
        await ask(stream(delta(tool_calls=many)))
    with pytest.raises(ModelUnavailable, match="larger than"):
        await ask(stream(*[delta("x" * 1_000_000)] * 11, split=1_000_000))


# --- the loop -------------------------------------------------------------------------------------


class Scripted:
    """A model that answers or fails in turn."""

    def __init__(self, *answers: ModelReply | Exception, name: str = "scripted") -> None:
        self.name = name
        self.answers = list(answers)
        self.asked: list[list[Message]] = []

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        on_text: TakeText,
        schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        self.asked.append(list(messages))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def use(*names: str) -> ModelReply:
    return ModelReply("", [ToolRequest(f"c{n}", name, "{}") for n, name in enumerate(names)])


class LoopRig:
    def __init__(self, *models: Scripted, **limits: Any) -> None:
        self.models = models
        self.pauses: list[float] = []
        self.loop = ModelLoop(models, "be brief", LoopLimits(**limits), "a", self._sleep)
        self.state = LoopState([{"role": "user", "content": "go"}], [TOOL])
        self.called: list[tuple[str, Any, Any]] = []
        self.result: Result | Exception = Result(content=[{"type": "text", "text": "sunny"}])

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def _call(self, name: str, arguments: Any, answers: Any, handle: Any) -> Result:
        self.called.append((name, answers, handle))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    async def run(self, answers: Any = None) -> Any:
        return await self.loop.run(self.state, self._call, lambda: lambda text: None, answers)


async def test_model_is_tried_again_and_then_the_next_one() -> None:
    busy = ModelUnavailable("busy")
    first, second = Scripted(busy, busy, busy), Scripted(ModelReply("hi"), name="other")
    rig = LoopRig(first, second)
    assert (await rig.run()).text == "hi"
    assert len(rig.pauses) == 2 and all(0 < one < 3 for one in rig.pauses)
    failing = LoopRig(Scripted(busy, busy, busy))
    with pytest.raises(WorkFailed, match="no model that answers: busy"):
        await failing.run()


@pytest.mark.parametrize(("asked", "pauses"), [(0.25, [0.25, 0.25]), (3600.0, [])])
async def test_pause_that_a_provider_asks_for_is_kept_or_not_waited_for(
    asked: float, pauses: list[float]
) -> None:
    busy = ModelUnavailable("busy", asked)
    rig = LoopRig(Scripted(busy, busy, busy), Scripted(ModelReply("hi")))
    assert (await rig.run()).text == "hi" and rig.pauses == pauses


async def test_conversation_that_is_too_long_is_shortened() -> None:
    rig = LoopRig(
        Scripted(ContextTooLong("too long"), ContextTooLong("too long"), ModelReply("ok"))
    )
    rig.state.messages[:0] = [{"role": "user", "content": "x" * 60_000}] * 8
    assert (await rig.run()).text == "ok"
    sizes = [sum(len(str(one["content"])) for one in asked) for asked in rig.models[0].asked]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
    with pytest.raises(ContextTooLong):
        await LoopRig(Scripted(*[ContextTooLong("no")] * 20)).run()


async def test_refusal_of_a_tool_reaches_the_model() -> None:
    rig = LoopRig(Scripted(use("get_weather"), ModelReply("I cannot.")))
    rig.result = Looping('"x" was refused: it would wait for itself')
    assert (await rig.run()).text == "I cannot."
    assert rig.models[0].asked[1][-1]["content"].startswith('Error: "x" was refused')


async def test_run_is_suspended_while_tools_ask_and_continues_with_the_answers() -> None:
    rig = LoopRig(Scripted(use("a", "b"), ModelReply("thanks")))
    question = Question(FORM, {"message": "Which?"})
    rig.result = Result(questions={"q": question}, handle="h")
    asked = await rig.run()
    assert asked == {"c0/q": question, "c1/q": question}
    rig.result = Result(content=[{"type": "text", "text": "done"}])
    rig.called.clear()
    done = await rig.run({"c0/q": 1, "c1/q": 2})
    assert done.text == "thanks"
    assert rig.called == [("a", {"q": 1}, "h"), ("b", {"q": 2}, "h")]
    assert [one["content"] for one in rig.models[0].asked[1][-2:]] == ["done", "done"]


async def test_turns_tool_calls_and_parallel_calls_are_bounded() -> None:
    rig = LoopRig(Scripted(*[use("x")] * 10), turns=4)
    with pytest.raises(WorkFailed, match="not answered after 4 turns"):
        await rig.run()
    few = LoopRig(Scripted(use(*"abcdef"), ModelReply("ok")), tool_calls=4)
    assert (await few.run()).text == "ok" and len(few.called) == 4
    assert "may make 4 tool calls" in few.models[0].asked[1][-1]["content"]
    running = most = 0

    async def call(*_: Any) -> Result:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Result()

    wide = LoopRig(Scripted(use(*"abcdefgh"), ModelReply("ok")), parallel=3)
    await wide.loop.run(wide.state, call, lambda: lambda text: None)
    assert most == 3


def test_results_are_rendered_for_a_model() -> None:
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "image", "mimeType": "image/png", "data": "…"},
        {"type": "resource", "resource": {"uri": "x", "text": "b"}},
        {"type": "resource_link", "uri": "file:///c"},
    ]
    assert (
        render_result(Result(content=blocks))
        == "a\n[image image/png]\nb\n[resource_link file:///c]"
    )
    assert render_result(Result(structured={"n": 1})) == '{"n":1}'
    assert render_result(Result(content=blocks[:1], failed=True)) == "Error: a"


def test_compaction_keeps_requests_and_results_together() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    messages: list[Message] = []
    for number in range(20):
        messages += [
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "r" * 5_000},
            {"role": "assistant", "content": f"answer {number}"},
        ]
    assert compact(messages, 1_000_000) == messages
    for tokens in (20_000, 5_000, 2_000, 500, 10):
        kept = compact(messages, tokens)
        assert kept[-1] == messages[-1]
        open_calls = 0
        for message in kept:
            open_calls += len(message.get("tool_calls") or ())
            if message["role"] == "tool":
                open_calls -= 1
                assert open_calls >= 0, "a result without its request"
    running = [*messages, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "c", "content": "r" * 9_000}]  # fmt: skip
    assert [one["role"] for one in compact(running, 10)][-2:] == ["assistant", "tool"]


CALL = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}


def build_exchange(question: Any, *results: str) -> list[Message]:
    made: list[Message] = [{"role": "user", "content": question}]
    for result in results:
        made.append({"role": "assistant", "content": None, "tool_calls": [CALL]})
        made.append({"role": "tool", "tool_call_id": "c", "content": result})
    return made


def picture(size: int) -> list[dict[str, Any]]:
    url = {"url": "data:image/png;base64," + "x" * size}
    return [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": url}]


def test_picture_counts_as_a_picture_and_stays_with_its_question() -> None:
    messages = build_exchange(picture(900_000), "a" * 1_000)
    assert compact(messages, 5_000) == messages
    assert compact(messages, 1_000)[0] == messages[0]
    assert measure_message(messages[0]) > 900_000, "where it is stored, it is as large as it is"


def test_compaction_removes_in_the_order_of_use() -> None:
    old = build_exchange(picture(10), "o" * 8_000)
    messages = [*old, {"role": "assistant", "content": "a cat"}]
    messages += build_exchange("and now?", "1" * 8_000, "2" * 8_000)
    seen: list[str] = []
    for tokens in range(8_000, 200, -50):
        kept = compact(messages, tokens)
        assert {"role": "user", "content": "and now?"} in kept
        text = json.dumps(kept)
        gone = {
            "picture": "data:image" not in text,
            "old result": "o" * 8_000 not in text,
            "old messages": "earlier messages were removed" in text,
            "older result": "1" * 8_000 not in text,
            "newest result": "2" * 8_000 not in text,
            "older call": "tool calls for this question were removed" in text,
        }
        seen += [name for name, is_gone in gone.items() if is_gone and name not in seen]
        if not gone["older call"]:
            assert sum(map(weigh_message, kept)) <= tokens * 4 + 200
    assert seen == ["picture", "old result", "old messages", "older result", "newest result",
                    "older call"]  # fmt: skip


def test_newest_results_share_what_is_left() -> None:
    calls = [{**CALL, "id": f"c{number}"} for number in range(3)]
    messages: list[Message] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": one["id"], "content": text}
          for one, text in zip(calls, ("a" * 100_000, "short", "c" * 50_000), strict=True)),
    ]  # fmt: skip
    kept = compact(messages, 5_000)
    first, second, third = (len(one["content"]) for one in kept[2:])
    assert second == 5 and 9_000 < first < 10_000 and abs(first - third) < 100
    assert "characters were removed]" in kept[2]["content"]


def test_pictures_that_the_hub_shows_are_no_question() -> None:
    shown: Message = {"role": "user", "content": picture(10), SHOWN: True}
    messages = [*build_exchange("look", "1" * 400), shown]
    messages += build_exchange("look", "2" * 400)[1:]
    kept = compact(messages, 700)
    assert kept[0]["content"] == "look" and "data:image" not in json.dumps(kept)
    assert fit_conversation(messages, 3, 10_000)[0]["content"] == "look"


class SmallModel(Scripted):
    """A model that can read 5,000 tokens."""

    async def complete(self, messages: Sequence[Message], *args: Any) -> ModelReply:
        if len(json.dumps(messages)) / 4 > 5_000:
            raise ContextTooLong("maximum context length is 5000 tokens")
        return await super().complete(messages, *args)


@pytest.mark.parametrize("tokens", [5_000, 100_000])
async def test_long_result_does_not_end_an_agent_with_a_small_context(tokens: int) -> None:
    model = SmallModel(*[use("get_weather")] * 6, ModelReply("ok"))
    rig = LoopRig(model, context_tokens=tokens)
    rig.result = Result(content=[{"type": "text", "text": "r" * 50_000}])
    assert (await rig.run()).text == "ok" and len(rig.called) == 6
    assert all(one[1]["content"] == "go" for one in model.asked)
    assert len(model.asked[-1][-1]["content"]) > 1_000, "the newest result can be read"


@pytest.mark.parametrize("count", [3, 4, 10, 61, 200])
@pytest.mark.parametrize("size", [60, 500, 3_000, 30_000, 10_000_000])
def test_fitted_conversation_ends_with_the_last_message_and_its_answer(
    count: int, size: int
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    work: list[Message] = []
    for _ in range(30):
        work.append({"role": "assistant", "content": None, "tool_calls": [call, call]})
        work += [{"role": "tool", "tool_call_id": "c", "content": "r" * 2_000}] * 2
    for middle in ([], work[:3], work):
        messages: list[Message] = []
        for number in range(4):
            messages.append({"role": "user", "content": f"question {number}"})
            messages += [*middle, {"role": "assistant", "content": f"answer {number}"}]
        kept = fit_conversation(messages, count, size)
        assert kept[0]["role"] == "user" and kept[-1] == messages[-1]
        assert [one for one in kept if one["role"] == "user"][-1]["content"] == "question 3"
        assert len(kept) <= count and sum(map(measure_message, kept)) <= size
        open_calls = 0
        for message in kept:
            if message["role"] != "tool":
                assert open_calls == 0, "a request without its results"
                open_calls = len(message.get("tool_calls") or ())
            else:
                open_calls -= 1
                assert open_calls >= 0, "a result without its request"
        assert fit_conversation(kept, count, size) == kept
        if count >= len(messages) and size > 1_000_000:
            assert kept == messages


def test_fitted_conversation_has_what_is_left_of_large_messages() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:" + "x" * 5_000}}
    parts = [{"type": "text", "text": "What is this?"}, image]
    question: Message = {"role": "user", "content": parts}
    answer: Message = {"role": "assistant", "content": "It is " + "long " * 1_000}
    first, second = fit_conversation([question, answer], 10, 2_000)
    assert first["content"] == "What is this?\n[image_url removed]"
    assert second["content"].startswith("It is long ") and len(second["content"]) < 1_100
    assert fit_conversation([question, answer], 10, 100_000) == [question, answer]


# --- the script, and JSON instead of tool calls ---------------------------------------------------


async def say(model: Any, *messages: Message, tools: Sequence[OfferedTool] = (TOOL,)) -> ModelReply:
    reply = await model.complete(list(messages), tools, lambda text: None)
    assert isinstance(reply, ModelReply)
    return reply


async def test_script_answers_by_the_first_step_that_fits() -> None:
    model = ScriptModel(
        [
            ScriptStep(
                when=r"weather in (\w+)",
                call=[
                    ScriptCall(
                        tool="get_weather", arguments={"city": "{match}", "l": ["{message}"]}
                    )
                ],
            ),
            ScriptStep(after="get_weather", say="It is {result}."),
            ScriptStep(when="^bye", say="Goodbye"),
        ]
    )
    user = {"role": "user", "content": "The weather in Oslo?"}
    reply = await say(model, user)
    (request,) = reply.tool_requests
    assert json.loads(request.arguments) == {"city": "Oslo", "l": ["The weather in Oslo?"]}
    call = {"id": request.id, "function": {"name": "get_weather", "arguments": "{}"}}
    made = {"role": "assistant", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": request.id, "content": "sunny"}
    assert (await say(model, user, made, result)).text == "It is sunny."
    assert (await say(model, {"role": "user", "content": "Bye now"})).text == "Goodbye"
    with pytest.raises(WorkFailed, match="no step for the message 'what'"):
        await say(model, {"role": "user", "content": "what"})
    with pytest.raises(ValueError, match="not a regular expression"):
        ScriptModel([ScriptStep(when="(")])


@pytest.mark.parametrize(
    ("answer", "text", "tool"),
    [
        ('{"tool": "get_weather", "args": {"city": "Oslo"}}', "", "get_weather"),
        ('{"final": "sunny"}', "sunny", None),
        ("not json", "not json", None),
    ],
)
async def test_json_stands_for_tool_calls(answer: str, text: str, tool: str | None) -> None:
    inner = Scripted(ModelReply(answer), ModelReply("plain"))
    model = ConstrainedModel(inner)
    call = {"id": "c", "function": {"name": "t", "arguments": '{"a":1}'}}
    history: list[Message] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]
    reply = await say(model, *history)
    assert reply.text == text
    assert [one.name for one in reply.tool_requests] == ([tool] if tool else [])
    sent = inner.asked[0]
    assert "get_weather: The weather." in sent[0]["content"]
    assert sent[2]["content"] == '{"tool": "t", "args": {"a":1}}' and "Result" in sent[3]["content"]
    assert (await say(model, history[0], tools=())).text == "plain"


async def test_requests_with_one_id_get_ids_of_their_own() -> None:
    twice = ModelReply("", [ToolRequest("x", "a", "{}"), ToolRequest("x", "b", "{}"),
                            ToolRequest("", "c", "{}"), ToolRequest("y/z", "d", "{}")])  # fmt: skip
    rig = LoopRig(Scripted(twice, ModelReply("ok")))
    assert (await rig.run()).text == "ok"
    made, *results = rig.models[0].asked[1][-5:]
    ids = [one["id"] for one in made["tool_calls"]]
    assert len(set(ids)) == 4 and not any("/" in id for id in ids)
    assert [one["tool_call_id"] for one in results] == ids
