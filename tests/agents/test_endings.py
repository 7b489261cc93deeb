"""How answers end that are not whole: cut, refused, filtered or empty; what the caller, a workflow
and the router see of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.agents.agent_rig import AgentRig, open_rig, read_text
from tests.agents.test_models import LoopRig, Scripted, ask, delta, stream, use, whole
from tests.agents.test_responses_model import ask as ask_responses
from tests.peers.scripted_model import Answer, ScriptedModel, running_model, say

from dragoman.agents.models.chat import CUT, FILTERED, REFUSED, ModelReply, ModelUnavailable
from dragoman.core.call import Artifact, Result
from dragoman.core.errors import AnswerFiltered, AnswerRefused, EmptyAnswer, WorkFailed
from dragoman.core.principal import OWNER
from dragoman.workflows.step_calls import output_from_result

pytestmark = pytest.mark.promise("T1")


@pytest.mark.parametrize(
    ("events", "ending"),
    [
        ([delta("half", finish="length")], CUT),
        ([delta("half"), delta(finish="content_filter")], FILTERED),
        ([delta("half"), delta(finish="SAFETY")], FILTERED),
        ([delta(refusal="I can"), delta(refusal="not."), delta(finish="stop")], REFUSED),
        ([delta("whole", refusal=""), delta(finish="stop", refusal=None)], ""),
    ],
)
async def test_endings_of_chat_completions(events: list[Any], ending: str) -> None:
    reply, _, _ = await ask(stream(*events, "[DONE]"))
    assert reply.ending == ending and reply.text in ("half", "I cannot.", "whole")


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize(
    ("content", "end", "ending"),
    [
        ({"type": "output_text", "text": "half"}, {"reason": "max_output_tokens"}, CUT),
        ({"type": "output_text", "text": "half"}, {"reason": "content_filter"}, FILTERED),
        ({"type": "refusal", "refusal": "I cannot."}, None, REFUSED),
        ({"type": "output_text", "text": "whole"}, None, ""),
    ],
)
async def test_endings_of_the_responses_api(
    is_streamed: bool, content: dict[str, Any], end: Any, ending: str
) -> None:
    item = {"type": "message", "role": "assistant", "content": [content]}
    status = "completed" if end is None else "incomplete"
    response = {"status": status, "incomplete_details": end, "output": [item], "model": "m-1"}
    text = content.get("text") or content["refusal"]
    if is_streamed:
        sent = stream(
            {"type": f"response.{content['type']}.delta", "delta": text},
            {"type": "response.output_item.done", "item": item},
            {"type": f"response.{status}", "response": response},
        )
    else:
        sent = whole(response)
    reply, texts, _ = await ask_responses(sent)
    assert (reply.ending, reply.text, "".join(texts)) == (ending, text, text)


# --- the loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (ModelReply("I will\nnot.", ending=REFUSED, model="m"), AnswerRefused,
         'the model "m" refused to answer: I will not.'),
        (ModelReply("", ending=REFUSED, model="m"), AnswerRefused, "no reason"),
        (ModelReply("half", ending=FILTERED, model="m"), AnswerFiltered,
         'a content filter of the provider of the model "m" stopped the answer'),
    ],
)  # fmt: skip
async def test_answer_that_was_not_given_fails(
    reply: ModelReply, kind: type[WorkFailed], said: str
) -> None:
    model, other = Scripted(reply), Scripted(ModelReply("x"))
    rig = LoopRig(model, other)
    with pytest.raises(kind, match=said):
        await rig.run()
    assert not other.asked and rig.state.usage.model_calls == 1


async def test_filtered_tool_calls_are_not_made() -> None:
    asked = use("get_weather")
    rig = LoopRig(Scripted(ModelReply("", asked.tool_requests, ending=FILTERED)))
    with pytest.raises(AnswerFiltered):
        await rig.run()
    assert not rig.called


async def test_empty_answer_is_asked_for_once_more_and_then_of_the_next_model() -> None:
    empty = ModelReply(" \n", model="m")
    again = LoopRig(Scripted(empty, ModelReply("hi")))
    assert (await again.run()).text == "hi"
    assert [one["role"] for one in again.state.messages] == ["user", "assistant"]
    assert again.state.usage.model_calls == 2
    rig = LoopRig(Scripted(empty, empty), Scripted(ModelReply("hi"), name="other"))
    assert (await rig.run()).text == "hi"
    failing = LoopRig(Scripted(empty, empty), Scripted(empty, empty))
    with pytest.raises(EmptyAnswer, match='the model "m" answered with nothing'):
        await failing.run()
    assert failing.state.usage.model_calls == 4 and not failing.pauses
    mixed = LoopRig(Scripted(empty, empty), Scripted(*[ModelUnavailable("busy")] * 3))
    with pytest.raises(WorkFailed, match="answered with nothing; busy") as raised:
        await mixed.run()
    assert type(raised.value) is WorkFailed


async def test_limit_that_was_used_up_before_an_answer_is_named() -> None:
    model = Scripted(ModelReply("", ending=CUT, model="m"))
    with pytest.raises(EmptyAnswer, match=r"its limit of tokens \(model\.max_tokens\) up"):
        await LoopRig(model).run()
    assert len(model.asked) == 1


# --- what others see ------------------------------------------------------------------------------


async def write_agent(rig: AgentRig, model: ScriptedModel, more: str = "") -> None:
    await rig.write("poet", f'[model]\nmodel = "m"\nbase_url = "{model.url}"\n{more}')


async def test_cut_answer_says_so(short_tmp: Path) -> None:
    with running_model() as model:
        async with open_rig(short_tmp) as rig:
            await write_agent(rig, model)
            model.answers = [say("A robot may not", finish="length"), say("whole")]
            updates: list[Any] = []
            result = await rig.send("poet", "the laws?", updates=updates.append)
            assert result.ending == "cut" and not result.failed
            assert result.extra["_meta"]["dragoman.hub/ending"] == "cut"
            text = read_text(result)
            assert text.startswith("A robot may not\n\n[The answer is cut here")
            pieces = [one for one in updates if isinstance(one, Artifact)]
            assert "".join(block["text"] for one in pieces for block in one.content) == text
            assert output_from_result(result)["ending"] == "cut"
            result = await rig.send("poet", "go on")
            assert not result.ending and "dragoman.hub/ending" not in result.extra["_meta"]
            assert "ending" not in output_from_result(result)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (say("half of", finish="content_filter"), AnswerFiltered, "content filter"),
        (say("", finish="length"), EmptyAnswer, "limit of tokens"),
        (say('{"a": ', finish="length"), WorkFailed, "JSON: it reached its limit of tokens"),
    ],
)
async def test_answer_that_failed_is_not_part_of_the_conversation(
    short_tmp: Path, answer: Answer, kind: type[WorkFailed], said: str
) -> None:
    with running_model() as model:
        async with open_rig(short_tmp) as rig:
            await write_agent(rig, model)
            model.answers = [say("hello")]
            first = await rig.send("poet", "hi")
            context = first.extra["_meta"]["dragoman.hub/context"]
            asked = {"message": "write", "context": context}
            options: dict[str, Any] = {}
            if "JSON" in said:
                options["meta"] = {"dragoman.hub/output-schema": {"type": "object"}}
            model.answers = [answer, say("better")]
            with pytest.raises(kind, match=said):
                await rig.call(OWNER, "poet.message", asked, **options)
            assert read_text(await rig.call(OWNER, "poet.message", asked)) == "better"
            texts = [one["content"] for one in model.requests[-1]["messages"]]
            assert texts == ["hi", "hello", "write"]


def test_output_of_a_step_has_the_ending() -> None:
    block = {"type": "text", "text": "half"}
    cut = Result(content=[block], ending="cut")
    assert output_from_result(cut) == {"text": "half", "ending": "cut"}
    assert output_from_result(Result(content=[block])) == {"text": "half"}
