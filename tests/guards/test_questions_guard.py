from __future__ import annotations

from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub, call_tool

from dragoman.core.bus import Bus
from dragoman.core.call import FORM, Call, Question, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import BadReply, InvalidInput, NeedsInput
from dragoman.core.hub import Hub
from dragoman.core.principal import OWNER, Principal
from dragoman.core.question_handles import MAX_QUESTIONS, QuestionHandles
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.questions import Questions

CAN: dict[str, Any] = {"elicitation": {}}


class Asker:
    """Asks for a name, twice if it is empty, and greets."""

    traits = DEFAULT_TRAITS
    name = "asker"

    def __init__(self, questions: int = 1) -> None:
        self.calls: list[Call] = []
        self.questions = questions

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        if call.handle is not None and call.answers:
            assert call.handle == "the asker's own"
            return Result(content=[{"type": "text", "text": call.answers["0"]["content"]["name"]}])
        asked = {
            str(n): Question(FORM, {"message": "Your name?", "requestedSchema": {}})
            for n in range(self.questions)
        }
        return Result(questions=asked, handle="the asker's own")


def hub_of(asker: Asker) -> Hub:
    catalog = Catalog(review=admit_all)
    catalog.offer(
        "asker", [Tool(name="asker.greet", alias="greet", remote_name="greet", target=asker)]
    )
    return build_permissive_hub(catalog, Bus(), [Questions(QuestionHandles(b"k" * 32, 60))])


async def test_question_is_sealed_and_its_answer_returns_to_the_target() -> None:
    asker = Asker()
    hub = hub_of(asker)
    asking = await call_tool(hub, OWNER, "greet", {}, door="t", view=EVERYTHING, features=CAN)
    assert asking.questions is not None and asking.handle is not None
    assert "own" not in asking.handle
    answers = {"0": {"action": "accept", "content": {"name": "Ada"}}}
    done = await call_tool(hub,
        OWNER, "greet", {}, door="t", view=EVERYTHING, features=CAN,
        answers=answers, handle=asking.handle,
    )  # fmt: skip
    assert done.questions is None and done.content[0]["text"] == "Ada"


async def test_replayed_handle_never_reaches_the_target() -> None:
    asker = Asker()
    hub = hub_of(asker)
    asking = await call_tool(hub, OWNER, "greet", {}, door="t", view=EVERYTHING, features=CAN)
    answers = {"0": {"action": "accept", "content": {"name": "Ada"}}}
    for caller in (Principal("key", "mallory"), OWNER, OWNER):
        try:
            await call_tool(hub,
                caller, "greet", {}, door="t", view=EVERYTHING, features=CAN,
                answers=answers, handle=asking.handle,
            )  # fmt: skip
        except InvalidInput:
            continue
        assert caller is OWNER
    assert len(asker.calls) == 2, "the question, and one answer"


async def test_incapable_caller_gets_the_question_as_an_error() -> None:
    with pytest.raises(NeedsInput, match="Your name"):
        await call_tool(hub_of(Asker()), OWNER, "greet", {}, door="t", view=EVERYTHING)


async def test_flood_of_questions_is_a_bad_reply() -> None:
    hub = hub_of(Asker(MAX_QUESTIONS + 1))
    with pytest.raises(BadReply, match="questions at once"):
        await call_tool(hub, OWNER, "greet", {}, door="t", view=EVERYTHING, features=CAN)
