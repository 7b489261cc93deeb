from __future__ import annotations

import base64
from typing import Any

import pytest

from dragoman.core import question_handles
from dragoman.core.call import FORM, ROOTS, SAMPLING, URL, Call, Question, Result
from dragoman.core.errors import BadReply, InvalidInput, NeedsInput, Overloaded
from dragoman.core.principal import OWNER, Principal
from dragoman.core.question_handles import (
    MAX_HANDLE,
    QuestionHandles,
    build_needs_input,
    can_answer,
)
from dragoman.core.structs import replace
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.core.trace import new_trace

KEY = b"k" * 32


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class FakeTarget:
    traits = DEFAULT_TRAITS
    name = "place"

    async def run(self, call: Call) -> Result:
        return Result()


def call_of(name: str = "a.x", caller: Principal = OWNER, **arguments: Any) -> Call:
    tool = Tool(name=name, alias=name, remote_name=name, target=FakeTarget())
    return Call(
        principal=caller, tool=tool, requested_name=name, arguments=arguments, trace=new_trace(),
        door="test",
    )  # fmt: skip


def test_handle_returns_its_state_to_its_owner() -> None:
    handles = QuestionHandles(KEY, 60)
    call = call_of(a=1, b="é")
    handle = handles.seal(call, "state ☂")
    assert handles.open(replace(call, handle=handle)) == "state ☂"


OTHERS = {
    "another principal": call_of(caller=Principal("key", "mallory"), a=1),
    "another tool": call_of("a.y", a=1),
    "other arguments": call_of(a=2),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_handle_is_refused_for_other_principals_and_calls(other: Call) -> None:
    handles = QuestionHandles(KEY, 60)
    call = call_of(a=1)
    handle = handles.seal(call, "s")
    with pytest.raises(InvalidInput, match="not issued to this client"):
        handles.open(replace(other, handle=handle))
    assert handles.open(replace(call, handle=handle)) == "s", "and is still good where it belongs"


def test_handle_is_valid_once_and_until_expiry() -> None:
    clock = Clock()
    handles = QuestionHandles(KEY, 60, clock)
    call = call_of()
    used, late = handles.seal(call, "1"), handles.seal(call, "2")
    handles.open(replace(call, handle=used))
    with pytest.raises(InvalidInput, match="already been answered"):
        handles.open(replace(call, handle=used))
    clock.now += 61
    with pytest.raises(InvalidInput, match="has expired"):
        handles.open(replace(call, handle=late))
    with pytest.raises(InvalidInput, match="has expired"):
        handles.open(replace(call, handle=used))


def test_forged_and_damaged_handles_are_refused() -> None:
    call = call_of()
    handle = QuestionHandles(KEY, 60).seal(call, "s")
    raw = bytearray(base64.urlsafe_b64decode(handle))
    raw[-3] ^= 1
    damaged = base64.urlsafe_b64encode(bytes(raw)).decode()
    foreign = QuestionHandles(b"o" * 32, 60).seal(call, "s")
    for bad in ("", "x", "%%%", damaged, foreign, handle[:-4], "é"):
        with pytest.raises(InvalidInput):
            QuestionHandles(KEY, 60).open(replace(call, handle=bad))


def test_oversized_state_is_refused() -> None:
    with pytest.raises(BadReply):
        QuestionHandles(KEY, 60).seal(call_of(), "s" * MAX_HANDLE)


def test_flood_of_answers_affects_only_its_principal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(question_handles, "MAX_USED", 3)
    now = 1_000.0
    handles = QuestionHandles(KEY, 60, lambda: now)
    call, other = call_of(), replace(call_of(), principal=Principal("key", "another"))

    def answer(call: Call) -> str:
        return handles.open(replace(call, handle=handles.seal(call, "s")))

    assert [answer(call) for _ in range(3)] == ["s"] * 3
    with pytest.raises(Overloaded, match="too many questions"):
        answer(call)
    assert answer(other) == "s"
    now += 61
    assert answer(call) == "s"


CAN = [
    (FORM, {"elicitation": {}}, True),
    (FORM, {"elicitation": {"form": {}}}, True),
    (FORM, {"elicitation": {"url": {}}}, False),
    (URL, {"elicitation": {}}, False),
    (URL, {"elicitation": {"form": {}, "url": {}}}, True),
    (SAMPLING, {"sampling": {}}, True),
    (SAMPLING, {"roots": {}}, False),
    (ROOTS, {"roots": {"listChanged": True}}, True),
    (ROOTS, {"roots": None}, False),
    (FORM, {"elicitation": True}, False),
    (FORM, {}, False),
]


@pytest.mark.parametrize(("kind", "features", "can"), CAN)
def test_client_is_asked_only_what_it_declared(
    kind: str, features: dict[str, Any], can: bool
) -> None:
    assert can_answer(kind, features) is can


def test_incapable_client_gets_the_question_as_an_error() -> None:
    asked = {
        "1": Question(FORM, {"message": "Your name?"}),
        "2": Question(URL, {"message": "Sign in", "url": "https://x.example/login"}),
        "3": Question(ROOTS, {}),
    }
    call = replace(call_of(), features={"roots": {}})
    error = build_needs_input(asked, call)
    assert isinstance(error, NeedsInput)
    assert "Your name?" in str(error) and "Sign in https://x.example/login" in str(error)
    assert error.missing == {"elicitation": {"form": {}, "url": {}}}
    assert build_needs_input({"3": asked["3"]}, call) is None
