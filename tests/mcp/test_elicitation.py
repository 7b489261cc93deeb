"""Server requests as questions of the hub, and the client capabilities a server sees."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.core.call import FORM, ROOTS, SAMPLING, URL, Question
from dragoman.mcp.protocol.elicitation import (
    build_answer,
    is_answerable,
    question_from_request,
    questions_from_url_error,
    select_declared,
)
from dragoman.mcp.protocol.revisions import APPS, R2024, R2503, R2506, R2511, Revision

RENDERS: dict[str, Any] = {"extensions": {APPS: {"mimeTypes": ["text/html;profile=mcp-app"]}}}
EXPERIMENTAL: dict[str, Any] = {"experimental": {"x": {}}}
OWN_META = {
    "progressToken": 1,
    "io.modelcontextprotocol/related-task": {},
    "dragoman.hub/chain": "of the call",
    "x.test/y": 1,
}
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
        (ALL, R2024, EXPERIMENTAL | {"sampling": {}, "roots": {"listChanged": True}}),
        (ALL, R2503, EXPERIMENTAL | {"sampling": {}, "roots": {"listChanged": True}}),
        (
            ALL,
            R2506,
            EXPERIMENTAL | {"sampling": {}, "roots": {"listChanged": True}, "elicitation": {}},
        ),
        (
            ALL,
            R2511,
            EXPERIMENTAL
            | {
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
        (RENDERS, R2511, RENDERS),
        (RENDERS, R2024, RENDERS),
        ({"extensions": {"com.example/x": {}}, "experimental": {"x": {}}}, R2511, {}),
        ({"roots": {}, "experimental": {"x": {}}}, R2511, {"roots": {}, "experimental": {"x": {}}}),
        ({"extensions": [APPS], "experimental": 1}, R2511, {}),
    ],
)
@pytest.mark.promise("B13")
def test_session_declares_client_capabilities_of_the_revision(
    features: dict[str, Any], revision: Revision, declared: dict[str, Any]
) -> None:
    assert select_declared(features, revision) == declared


@pytest.mark.parametrize(
    ("method", "params", "question"),
    [
        ("roots/list", {"_meta": {"progressToken": 1}}, Question(ROOTS, {})),
        ("roots/list", None, Question(ROOTS, {})),
        ("roots/list", {"_meta": OWN_META}, Question(ROOTS, {"_meta": {"x.test/y": 1}})),
        (
            "elicitation/create",
            {"message": "m", "_meta": OWN_META},
            Question(FORM, {"message": "m", "_meta": {"x.test/y": 1}}),
        ),
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
def test_server_request_becomes_a_question_of_the_newest_revision(
    method: Any, params: Any, question: Question | None
) -> None:
    assert question_from_request(method, params) == question


def test_sampling_with_tools_needs_a_capable_client() -> None:
    plain, tools = Question(SAMPLING, {}), Question(SAMPLING, {"tools": []})
    assert is_answerable(plain, {"sampling": {}})
    assert not is_answerable(tools, {"sampling": {}})
    assert is_answerable(tools, {"sampling": {"tools": {}}})
    assert not is_answerable(plain, {})


def test_multi_block_answer_is_reduced_for_older_servers() -> None:
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
def test_url_error_without_urls_asks_nothing(native: Any) -> None:
    assert questions_from_url_error(native) == {}
