from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from dragoman.core.call import ABSENT, Call, Result
from dragoman.core.errors import BadReply
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.guards.validate import compile_schema
from dragoman.mcp.protocol.translate import (
    BadTool,
    mcp_from_result,
    result_from_mcp,
    select_meta,
    tool_from_definition,
)

OBJECT = {"type": "object"}


class Server:
    traits = DEFAULT_TRAITS
    name = "my-server"

    async def run(self, call: Call) -> Result:
        raise AssertionError


def made(definition: Any, taken: Collection[str] = ()) -> Tool:
    return tool_from_definition(definition, Server(), taken, compile_schema)


@pytest.mark.promise("B3", "B4")
def test_definition_becomes_a_tool_with_both_names_and_the_server_prefix() -> None:
    definition = {"name": "Do-Thing", "description": "Does it", "inputSchema": OBJECT, "x": [1]}
    tool = made(definition)
    assert (tool.name, tool.alias, tool.remote_name) == (
        "my-server.do_thing", "mcp_my_server_do_thing", "Do-Thing",
    )  # fmt: skip
    assert tool.description == "[MCP:my-server] Does it"
    assert tool.definition is definition
    assert tool.target.name == "my-server"


@pytest.mark.promise("B4")
@pytest.mark.parametrize("description", [{}, {"description": ""}, {"description": None}])
def test_tool_without_a_description_has_none(description: dict[str, Any]) -> None:
    assert made({"name": "x", "inputSchema": OBJECT, **description}).description == ""


@pytest.mark.promise("B5")
@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("x", "it is not an object"),
        ([], "it is not an object"),
        ({"inputSchema": OBJECT}, "its name is not a string"),
        ({"name": 5, "inputSchema": OBJECT}, "its name is not a string"),
        ({"name": "", "inputSchema": OBJECT}, "its name is not a string"),
        ({"name": "x" * 257, "inputSchema": OBJECT}, "its name is not a string"),
        ({"name": "x"}, '"x" has no inputSchema of type object'),
        ({"name": "x", "inputSchema": "none"}, '"x" has no inputSchema of type object'),
        ({"name": "x", "inputSchema": {"type": "array"}}, '"x" has no inputSchema of type object'),
        (
            {"name": "x", "inputSchema": {"type": "object", "required": 5}},
            '"x" has an invalid inputSchema: 5 is not',
        ),
        ({"name": "x", "inputSchema": OBJECT, "description": 5}, '"x" has a description that is'),
    ],
)
def test_invalid_definition_is_refused_with_the_reason(definition: Any, words: str) -> None:
    with pytest.raises(BadTool) as raised:
        made(definition)
    assert words in str(raised.value)


@pytest.mark.promise("B3")
def test_spellings_share_one_name_and_are_listed_once() -> None:
    taken: set[str] = set()
    for name in ("a b", "a/b", "a_b", "A-B"):
        tool = made({"name": name, "inputSchema": OBJECT}, taken)
        assert (tool.name, tool.remote_name) == ("my-server.a_b", name)
        taken.add(name)
    for name in ("a b", "a/b", "a_b"):
        with pytest.raises(BadTool, match=f'"{name}" is listed twice'):
            made({"name": name, "inputSchema": OBJECT}, taken)


@pytest.mark.promise("B12")
def test_result_round_trips() -> None:
    value = {
        "content": [
            {"type": "text", "text": "x", "annotations": {"audience": ["user"]}, "_meta": {"k": 1}},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "kind of tomorrow", "anything": [1, None]},
            "no object",
        ],
        "structuredContent": {"a": [1, 2.5, None, "é"]},
        "isError": True,
        "_meta": {"example.com/x": 1},
        "somethingNew": {"y": 2},
    }
    result = result_from_mcp(value, 123, "s")
    assert (result.failed, result.structured, result.size) == (
        True,
        value["structuredContent"],
        123,
    )
    assert mcp_from_result(result) == value


@pytest.mark.parametrize("structured", [None, 0, False, [], "text", {"a": 1}])
def test_any_json_value_is_structured_content(structured: Any) -> None:
    result = result_from_mcp({"content": [], "structuredContent": structured}, 1, "s")
    assert result.structured is structured
    assert mcp_from_result(result)["structuredContent"] is structured


def test_structured_result_without_content_gets_text_for_older_clients() -> None:
    result = result_from_mcp({"structuredContent": {"a": 1}}, 1, "s")
    assert mcp_from_result(result)["content"] == [{"type": "text", "text": '{"a":1}'}]
    bare = result_from_mcp({}, 1, "s")
    assert bare.structured is ABSENT
    assert mcp_from_result(bare) == {"content": []}


@pytest.mark.parametrize("error", ["yes", 1, None, False])
def test_only_is_error_true_is_an_error(error: Any) -> None:
    assert result_from_mcp({"isError": error}, 1, "s").failed is False


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "no object"),
        ([], "no object"),
        ({"content": "x"}, "content that is no list"),
        ({"resultType": "input_required"}, 'a result of type "input_required"'),
    ],
)
def test_non_result_is_a_bad_reply(value: Any, words: str) -> None:
    with pytest.raises(BadReply, match=f'^server "s" answered a call with {words}'):
        result_from_mcp(value, 1, "s")


@pytest.mark.promise("B12")
def test_meta_passes_without_hop_specific_members() -> None:
    meta = {
        "progressToken": 5,
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "ide"},
        "traceparent": "00-x",
        "example.com/mine": {"a": 1},
    }
    assert select_meta({"_meta": meta}) == {"traceparent": "00-x", "example.com/mine": {"a": 1}}
    assert select_meta({}) == select_meta({"_meta": "x"}) == {}
