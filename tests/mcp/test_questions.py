"""What servers ask, as the hub's questions, and what of a client's features a server is told."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.core.call import FORM, ROOTS, SAMPLING, URL, Question
from dragoman.mcp.protocol.elicitation import (
    build_answer,
    is_answerable,
    question_from_request,
    questions_from_url_error,
    select_askable,
)
from dragoman.mcp.protocol.revisions import R2024, R2503, R2506, R2511, Revision

ALL: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}, "odd": {}},
    "roots": {"listChanged": True},
    "experimental": {"x": {}},
    "extensions": {"x": {}},
    "tasks": {},
}


@pytest.mark.parametrize(
    ("features", "revision", "declared"),
    [
        (ALL, R2024, {"sampling": {}, "roots": {"listChanged": True}}),
        (ALL, R2503, {"sampling": {}, "roots": {"listChanged": True}}),
        (ALL, R2506, {"sampling": {}, "roots": {"listChanged": True}, "elicitation": {}}),
        (
            ALL,
            R2511,
            {
                "sampling": {"tools": {}, "context": {}},
                "roots": {"listChanged": True},
                "elicitation": {"form": {}, "url": {}},
            },
        ),
        ({"elicitation": {}}, R2511, {"elicitation": {"form": {}}}),
        ({"elicitation": {"url": {}}}, R2511, {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": {}}}, R2506, {}),
        ({"elicitation": {}}, R2503, {}),
        ({"sampling": None, "roots": [], "elicitation": True}, R2511, {}),
        ({}, R2511, {}),
    ],
)
@pytest.mark.promise("B13")
def test_a_session_declares_what_its_client_can_be_asked_in_the_words_of_the_revision(
    features: dict[str, Any], revision: Revision, declared: dict[str, Any]
) -> None:
    assert select_askable(features, revision) == declared


@pytest.mark.parametrize(
    ("method", "params", "question"),
    [
        ("roots/list", {"_meta": {"progressToken": 1}}, Question(ROOTS, {})),
        ("roots/list", None, Question(ROOTS, {})),
        ("elicitation/create", {"message": "m", "task": {}}, Question(FORM, {"message": "m"})),
        (
            "elicitation/create",
            {"mode": "url", "url": "u", "elicitationId": "7", "x-more": 1},
            Question(URL, {"mode": "url", "url": "u", "x-more": 1}),
        ),
        ("sampling/createMessage", {"maxTokens": 1}, Question(SAMPLING, {"maxTokens": 1})),
        ("tools/call", {}, None),
        (7, {}, None),
    ],
)
def test_a_request_of_a_server_becomes_a_question_in_the_newest_words(
    method: Any, params: Any, question: Question | None
) -> None:
    assert question_from_request(method, params) == question


def test_a_question_with_tools_is_for_models_that_use_them() -> None:
    plain, tools = Question(SAMPLING, {}), Question(SAMPLING, {"tools": []})
    assert is_answerable(plain, {"sampling": {}})
    assert not is_answerable(tools, {"sampling": {}})
    assert is_answerable(tools, {"sampling": {"tools": {}}})
    assert not is_answerable(plain, {})


def test_an_answer_of_several_blocks_is_cut_to_one_for_a_server_that_knows_one() -> None:
    question = Question(SAMPLING, {})
    several = {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "x"}]}
    assert build_answer(question, several, R2511) == several
    assert build_answer(question, several, R2506) == {
        "role": "assistant",
        "content": {"type": "text", "text": "a"},
    }
    assert build_answer(question, "none", R2511) is None


@pytest.mark.parametrize(
    "native",
    [
        None,
        {"code": -32603},
        {"code": -32042},
        {"code": -32042, "data": {"elicitations": "x"}},
        {"code": -32042, "data": {"elicitations": [{}, 7]}},
    ],
)
def test_an_error_without_addresses_asks_nothing(native: Any) -> None:
    assert questions_from_url_error(native) == {}
