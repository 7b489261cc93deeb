"""Agents that are functions: what they are asked by callers that have no parts of their own."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.agent import Ask, Request
from dragoman.agents.config import AgentEntry
from dragoman.agents.function import FunctionAgent
from dragoman.agents.messages import blocks_from_content
from dragoman.core.call import Call
from dragoman.core.errors import Declined, InvalidInput
from dragoman.core.principal import OWNER
from dragoman.core.structs import replace
from dragoman.core.tool import accept_anything
from dragoman.core.trace import new_trace


async def asking(request: Request) -> Any:
    return Ask("which colour?") if request.text == "ask" else request.text


async def listing(request: Request) -> Any:
    return {"parts": list(request.parts)}


def agent(function: str, *modes: str) -> FunctionAgent:
    entry = AgentEntry(name="own", function=f"{__name__}:{function}", input_modes=list(modes))
    return FunctionAgent(entry, "dragoman_agent_", accept_anything)


def call(to: FunctionAgent, arguments: dict[str, Any], answers: Any = None) -> Call:
    return Call(
        principal=OWNER,
        tool=to.tool,
        requested_name="own",
        arguments=arguments,
        trace=new_trace(),
        door="mcp-http",
        session="s",
        answers=answers,
    )


async def test_unanswered_question_is_declined() -> None:
    own = agent("asking", "text/plain")
    asked = await own.run(call(own, {"message": "ask"}))
    assert asked.questions is not None
    with pytest.raises(Declined, match="its question was not answered"):
        await own.run(call(own, {"message": "ask"}, {"reply": {"action": "decline"}}))


async def counting(request: Request) -> Any:
    return Ask("once more?") if request.turn < 3 else f"turn {request.turn}: {request.text}"


async def test_each_answer_is_the_next_turn_without_a2a() -> None:
    own = agent("counting", "text/plain")
    asked = await own.run(call(own, {"message": "go"}))
    for reply in ("a", "b"):
        assert asked.questions is not None
        answers = {"reply": {"action": "accept", "content": {"reply": reply}}}
        again = replace(call(own, {"message": "go"}, answers), handle=asked.handle)
        asked = await own.run(again)
    assert asked.content[0]["text"] == "turn 3: b"


@pytest.mark.parametrize(
    "arguments",
    [
        {"message": "", "data": {"n": 1}},
        {"message": "x", "files": [{"data": "AAEC", "mediaType": "application/pdf"}]},
        {"message": "x", "parts": [{"type": "image", "data": "AA==", "mimeType": "image/png"}]},
    ],
)
async def test_unsupported_input_of_a_function_agent_is_refused(arguments: dict[str, Any]) -> None:
    own = agent("listing", "text/plain")
    with pytest.raises(InvalidInput, match="it accepts text/plain"):
        await own.run(call(own, arguments))
    takes_all = agent("listing", "*/*")
    result = await takes_all.run(call(takes_all, arguments))
    assert result.structured["parts"]


def test_mapping_whose_type_is_no_text_is_data() -> None:
    for value in ({"type": [], "text": "x"}, {"type": {}, "text": "x"}, {"type": None}):
        assert blocks_from_content(value) == [{"type": "data", "data": value}]
