"""Conversion between A2A parts and MCP blocks."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.a2a.protocol.parts import (
    block_from_part,
    join_texts,
    part_from_block,
    parts_from_result,
)
from dragoman.a2a.protocol.validation import validate_part
from dragoman.core.call import Result

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
CONTENT = st.one_of(
    st.builds(lambda text: {"text": text}, st.text(max_size=20)),
    st.builds(lambda data: {"data": data}, JSON),
    st.builds(lambda raw: {"raw": b64encode(raw).decode()}, st.binary(max_size=20)),
    st.builds(lambda tail: {"url": f"https://a.example/{tail}"}, st.text("abc/?.%", max_size=8)),
)
REST = st.fixed_dictionaries(
    {},
    optional={
        "filename": st.text(min_size=1, max_size=10),
        "mediaType": st.sampled_from(
            ["text/plain", "image/png", "audio/wav", "application/json", "application/pdf"]
        ),
        "metadata": st.dictionaries(st.text(max_size=4), JSON, min_size=1, max_size=2),
    },
)


@pytest.mark.promise("K4")
@given(CONTENT, REST)
def test_part_round_trips(content: dict[str, Any], rest: dict[str, Any]) -> None:
    part = {**content, **rest}
    assert part_from_block(block_from_part(part)) == part


@pytest.mark.promise("K4")
@pytest.mark.parametrize(
    ("part", "block"),
    [
        ({"text": "hi"}, {"type": "text", "text": "hi"}),
        ({"data": [1]}, {"type": "data", "data": [1]}),
        (
            {"raw": "AA==", "mediaType": "image/png"},
            {"type": "image", "data": "AA==", "mimeType": "image/png"},
        ),
        (
            {"url": "https://a.example/b.txt", "filename": "b", "mediaType": "text/plain"},
            {
                "type": "resource_link",
                "uri": "https://a.example/b.txt",
                "name": "b",
                "mimeType": "text/plain",
            },
        ),
    ],
)
def test_part_becomes_the_mcp_block(part: dict[str, Any], block: dict[str, Any]) -> None:
    assert block_from_part(part) == block


def test_file_becomes_a_named_resource() -> None:
    block = block_from_part({"raw": "dGNr", "filename": "a b.txt", "mediaType": "text/plain"})
    assert block["resource"] == {
        "uri": "file:///a%20b.txt",
        "blob": "dGNr",
        "mimeType": "text/plain",
    }


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ("hi", {"text": "hi"}),
        (7, {"data": 7}),
        ({"type": "text", "text": "hi"}, {"text": "hi"}),
        (
            {"type": "audio", "data": "AA=="},
            {"raw": "AA==", "mediaType": "application/octet-stream"},
        ),
        (
            {"type": "resource", "resource": {"uri": "test://x/y.md", "text": "# hi"}},
            {"text": "# hi", "filename": "y.md", "metadata": {"uri": "test://x/y.md"}},
        ),
        (
            {"type": "resource", "resource": {"uri": "https://a.example/y"}},
            {
                "url": "https://a.example/y",
                "filename": "y",
                "metadata": {"uri": "https://a.example/y"},
            },
        ),
        ({"type": "resource_link", "uri": "x:y", "name": "n"}, {"url": "x:y", "filename": "n"}),
        ({"type": "new", "a": 1}, {"data": {"type": "new", "a": 1}}),
        ({"type": "resource"}, {"data": {"type": "resource"}}),
        ({"type": "image", "data": 1}, {"data": {"type": "image", "data": 1}}),
    ],
)
def test_tool_block_becomes_a_part(block: Any, part: dict[str, Any]) -> None:
    assert part_from_block(block) == part
    assert validate_part(part, "part") == part, "which fits"


def test_result_parts_cover_all_content() -> None:
    result = Result(content=[{"type": "text", "text": "1"}], structured={"a": 1})
    assert parts_from_result(result) == [
        {"text": "1"},
        {
            "data": {"a": 1},
            "mediaType": "application/json",
            "metadata": {"dragoman.hub/structured": True},
        },
    ]
    said = Result(content=[{"type": "data", "data": {"a": 1}}], structured={"a": 1})
    assert parts_from_result(said) == [{"data": {"a": 1}}]


def test_empty_result_becomes_an_empty_text() -> None:
    assert parts_from_result(Result()) == [{"text": ""}]


def test_text_of_parts_joins_texts_by_line() -> None:
    assert join_texts([{"text": "a"}, {"data": 1}, {"text": "b"}]) == "a\nb"
    assert join_texts([]) == ""
