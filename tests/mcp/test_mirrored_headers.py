"""Which arguments are mirrored as headers, and how values are encoded and decoded."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.mcp.protocol.mirrored_headers import (
    build_param_headers,
    decode_value,
    encode_value,
    find_mirrored_params,
    is_equal,
)


def marked(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXTS = [
    # 2026-07-28, transports, value encoding
    ("us-west1", "us-west1"),
    ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
    (" padded ", "=?base64?IHBhZGRlZCA=?="),
    ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
    ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ("", ""),
    ("in between", "in between"),
    ("a\tb", "=?base64?YQli?="),
    ("=?base64?", "=?base64?"),
]


@pytest.mark.parametrize(("text", "header"), TEXTS)
def test_unrepresentable_header_value_travels_as_base64(text: str, header: str) -> None:
    assert encode_value(text) == header
    assert decode_value(header) == text


@pytest.mark.parametrize(
    "header", ["=?base64?!!?=", "=?base64?YQ?=", "=?base64?YR==?=", "=?base64?/w==?="]
)
def test_marks_around_invalid_base64_are_not_decoded(header: str) -> None:
    assert decode_value(header) is None


def test_marked_arguments_become_headers_below_properties_only() -> None:
    schema = marked(
        region={"type": "string", "x-mcp-header": "Region"},
        where={"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
        on={"type": "boolean", "x-mcp-header": "Method"},
        plain={"type": "number", "default": {"x-mcp-header": "none of ours"}},
    )
    schema["properties"]["x-mcp-header"] = {"type": "string"}  # an argument of that name

    params = find_mirrored_params(schema)

    assert params == {
        "mcp-param-region": ("region",),
        "mcp-param-n": ("where", "n"),
        "mcp-param-method": ("on",),
    }
    assert build_param_headers(
        params, {"region": "é", "where": {"n": -7}, "on": False, "plain": 1.5}
    ) == {
        "mcp-param-region": "=?base64?w6k=?=",
        "mcp-param-n": "-7",
        "mcp-param-method": "false",
    }
    assert build_param_headers(params, {"region": None, "where": "elsewhere"}) == {}
    assert build_param_headers(params, {"where": {"n": 42.0}}) == {"mcp-param-n": "42"}
    assert find_mirrored_params({"type": "object"}) == {}


TEXT = {"type": "string", "x-mcp-header": "A"}


@pytest.mark.parametrize(
    "schema",
    [
        marked(a={"type": "string", "x-mcp-header": ""}),
        marked(a={"type": "string", "x-mcp-header": "a b"}),
        marked(a={"type": "string", "x-mcp-header": "a:b"}),
        marked(a={"type": "string", "x-mcp-header": "é"}),
        marked(a={"type": "string", "x-mcp-header": "a\n"}),
        marked(a={"type": "string", "x-mcp-header": 3}),
        marked(a={"type": "number", "x-mcp-header": "A"}),
        marked(a={"type": "object", "x-mcp-header": "A"}),
        marked(a={"type": "array", "items": {"type": "string"}, "x-mcp-header": "A"}),
        marked(a={"type": "null", "x-mcp-header": "A"}),
        marked(a={"type": ["string"], "x-mcp-header": "A"}),
        marked(a={"x-mcp-header": "A"}),
        marked(a=TEXT, b=TEXT),
        marked(a=TEXT, b={"type": "string", "x-mcp-header": "a"}),
        marked(a={"type": "array", "items": TEXT}),
        marked(a={"anyOf": [TEXT]}),
        {"type": "object", "$defs": {"a": TEXT}},
        {"type": "object", "if": marked(a=TEXT)},
        {"type": "string", "x-mcp-header": "A"},
        marked(**{f"a{n}": {"type": "string", "x-mcp-header": f"A{n}"} for n in range(65)}),
    ],
)
def test_invalid_mark_makes_the_tool_unusable(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="x-mcp-header"):
        find_mirrored_params(schema)


def test_deeply_nested_schema_does_not_overflow_the_stack() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": TEXT}}
    for _ in range(5_000):
        schema = {"type": "object", "properties": {"a": schema}}

    assert len(find_mirrored_params(schema)["mcp-param-a"]) == 5_001


@pytest.mark.parametrize(
    ("text", "value", "agreed"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("42", 42, True),
        ("42.0", 42, True),
        ("4.2e1", 42, True),
        ("43", 42, False),
        ("nan", 42, False),
        ("42", "42.0", False),
        ("true", True, True),
        ("1", True, False),
        ("True", True, False),
        ("", None, False),
        ("9" * 5_000, 42, False),
    ],
)
def test_mirrored_numbers_compare_numerically_and_others_exactly(
    text: str, value: Any, agreed: bool
) -> None:
    assert is_equal(text, value) is agreed
