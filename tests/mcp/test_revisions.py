"""What each revision is shown, as tables. Pure; live in tests/live/test_faces_revisions.py."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from dragoman.core import errors as e
from dragoman.mcp.errors import TABLE, as_error, as_result
from dragoman.mcp.revisions import (
    HANDSHAKE,
    METHODS,
    MODERN,
    NAMES,
    R2024,
    R2503,
    R2506,
    R2511,
    R2607,
    SERVER_KEY,
    discover_result,
    initialize_result,
    knows,
    list_tail,
    shape_content,
    shape_result,
    shape_tool,
)

ALL = range(5)
SINCE_2503 = {R2503, R2506, R2511, R2607}
SINCE_2506 = {R2506, R2511, R2607}
SINCE_2511 = {R2511, R2607}

pytestmark = pytest.mark.promise("F7")

TOOL: dict[str, Any] = {
    "name": "t",
    "description": "d",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "title": "T",
    "outputSchema": {"type": "object", "properties": {}},
    "_meta": {"example.com/x": 1},
    "icons": [{"src": "data:,"}],
    "execution": {"taskSupport": "required"},
    "example.com/unknown": 1,
}
TOOL_FIELD_SEEN_BY = {
    "name": set(ALL),
    "description": set(ALL),
    "inputSchema": set(ALL),
    "annotations": SINCE_2503,
    "title": SINCE_2506,
    "outputSchema": SINCE_2506,
    "_meta": SINCE_2506,
    "icons": SINCE_2511,
    "execution": set(),  # nobody: the hub does not keep that promise
    "example.com/unknown": set(ALL),
}


@pytest.mark.parametrize("field", TOOL_FIELD_SEEN_BY)
@pytest.mark.parametrize("revision", ALL)
def test_a_tool_shows_the_fields_of_the_revision(field: str, revision: int) -> None:
    assert set(TOOL_FIELD_SEEN_BY) == set(TOOL)
    before = copy.deepcopy(TOOL)
    shaped = shape_tool(TOOL, revision)
    assert (field in shaped) == (revision in TOOL_FIELD_SEEN_BY[field])
    assert shaped.get(field, TOOL[field]) == TOOL[field]
    assert before == TOOL


@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"anyOf": []}, {"type": ["object", "null"]}, True, {}, None, 7]
)
@pytest.mark.parametrize("revision", ALL)
def test_only_the_newest_sees_an_output_schema_that_is_no_object(
    schema: Any, revision: int
) -> None:
    shaped = shape_tool({**TOOL, "outputSchema": schema}, revision)
    assert ("outputSchema" in shaped) == (revision == R2607)


@pytest.mark.parametrize("revision", ALL)
def test_an_input_schema_without_a_type_gets_the_one_it_can_have(revision: int) -> None:
    schema = {"properties": {"a": {}}}
    shaped = shape_tool({**TOOL, "inputSchema": schema}, revision)
    assert shaped["inputSchema"] == {"type": "object", "properties": {"a": {}}}
    assert "type" not in schema


BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": "x"},
    "image": {"type": "image", "data": "AA==", "mimeType": "image/png"},
    "resource": {"type": "resource", "resource": {"uri": "a:b", "text": "x"}},
    "audio": {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
    "resource_link": {"type": "resource_link", "uri": "a:b", "name": "n", "description": "d"},
    "of the future": {"type": "hologram", "depth": 3},
}
BLOCK_SEEN_BY = {
    "text": set(ALL),
    "image": set(ALL),
    "resource": set(ALL),
    "audio": SINCE_2503,
    "resource_link": SINCE_2506,
    "of the future": set(ALL),
}
STANDS_FOR = {
    "audio": {
        "type": "resource",
        "resource": {"uri": "audio:content", "mimeType": "audio/wav", "blob": "AA=="},
    },
    "resource_link": {"type": "text", "text": "n\nd\na:b"},
}


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("revision", ALL)
def test_content_is_shown_as_it_is_or_as_what_the_revision_knows(kind: str, revision: int) -> None:
    block = BLOCKS[kind]
    expected = block if revision in BLOCK_SEEN_BY[kind] else STANDS_FOR[kind]
    assert shape_content(block, revision) == expected
    assert shape_result({"content": [block]}, revision)["content"] == [expected]


@pytest.mark.parametrize("revision", ALL)
def test_fields_of_content_are_those_of_the_revision(revision: int) -> None:
    block = {"type": "text", "text": "x", "_meta": {"a": 1}, "annotations": {"priority": 1}}
    link = {**BLOCKS["resource_link"], "icons": [{"src": "data:,"}]}
    inside = {"uri": "a:b", "text": "x", "_meta": {"a": 1}}
    content = [block, {"type": "resource", "resource": inside}, link]
    first, second, third = shape_result({"content": content}, revision)["content"]
    assert ("_meta" in first) == (revision in SINCE_2506)
    assert ("_meta" in second["resource"]) == (revision in SINCE_2506)
    assert ("icons" in third) == (revision in SINCE_2511)
    assert first["annotations"] == {"priority": 1}
    assert "icons" in link and "_meta" in inside


@pytest.mark.parametrize("revision", ALL)
@pytest.mark.parametrize("value", [{"a": 1}, [1], "x", 7, None, True])
def test_structured_content_is_shown_where_it_is_known(revision: int, value: Any) -> None:
    shaped = shape_result({"content": [], "structuredContent": value}, revision)
    known = revision == R2607 or (revision in SINCE_2506 and isinstance(value, dict))
    assert ("structuredContent" in shaped) == known
    assert shaped.get("structuredContent", value) == value


MODERN_MEMBERS = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public"}


@pytest.mark.parametrize("revision", ALL)
def test_the_members_of_the_new_era_stay_in_it(revision: int) -> None:
    meta = {SERVER_KEY: {"name": "another"}, "example.com/x": 1}
    result = {"content": [], "isError": True, "_meta": meta, "example.com/y": 2, **MODERN_MEMBERS}
    shaped = shape_result(result, revision)
    assert shaped["isError"] is True
    assert shaped["example.com/y"] == 2
    assert shaped["_meta"]["example.com/x"] == 1
    if revision == R2607:
        assert shaped["resultType"] == "complete"
        assert shaped["_meta"][SERVER_KEY]["name"] == "dragoman"
    else:
        assert not shaped.keys() & MODERN_MEMBERS.keys()
        assert SERVER_KEY not in shaped["_meta"]
    assert meta[SERVER_KEY] == {"name": "another"}


@pytest.mark.parametrize("revision", ALL)
@pytest.mark.parametrize("meta", [None, 7, [], "x", {}, {SERVER_KEY: 1}])
def test_meta_that_is_none_or_only_ours_leaves_no_trace(revision: int, meta: Any) -> None:
    shaped = shape_result({"content": [], "_meta": meta}, revision)
    if revision == R2607:
        assert set(shaped["_meta"]) == {SERVER_KEY}
    else:
        assert "_meta" not in shaped


@pytest.mark.parametrize("revision", ALL)
def test_a_list_has_a_tail_in_the_new_era_only(revision: int) -> None:
    tail = list_tail(revision)
    if revision < R2607:
        assert tail == {}
    else:
        assert tail["resultType"] == "complete"
        assert tail["ttlMs"] == 0
        assert tail["cacheScope"] == "private"
        assert tail["_meta"][SERVER_KEY]["name"] == "dragoman"


METHODS_KNOWN_BY = {
    "initialize": set(ALL) - {R2607},
    "ping": set(ALL) - {R2607},
    "server/discover": {R2607},
    "tools/list": set(ALL),
    "tools/call": set(ALL),
    "logging/setLevel": set(),
    "no/such": set(),
    "": set(),
}


@pytest.mark.parametrize("method", METHODS_KNOWN_BY)
@pytest.mark.parametrize("revision", ALL)
def test_each_revision_knows_its_methods(method: str, revision: int) -> None:
    assert set(METHODS) <= set(METHODS_KNOWN_BY)
    assert knows(revision, method) == (revision in METHODS_KNOWN_BY[method])


@pytest.mark.promise("F6")
@pytest.mark.parametrize(
    ("wanted", "spoken"),
    [
        *((name, name) for name in HANDSHAKE),
        ("2026-07-28", "2025-11-25"),
        ("2027-01-01", "2025-11-25"),
        ("", "2025-11-25"),
        (None, "2024-11-05"),
        (7, "2024-11-05"),
        (["2025-11-25"], "2024-11-05"),
    ],
)
def test_the_handshake_settles_on_a_revision_both_speak(wanted: Any, spoken: str) -> None:
    result = initialize_result({"protocolVersion": wanted})
    assert result["protocolVersion"] == spoken
    assert ("title" in result["serverInfo"]) == (spoken >= "2025-06-18")
    assert result["capabilities"]["tools"] == {"listChanged": True}


@pytest.mark.promise("F6")
def test_empty_params_shake_hands_as_the_seed_shows() -> None:
    assert initialize_result({})["protocolVersion"] == "2024-11-05"


def test_discovery_names_every_revision() -> None:
    found = discover_result()
    assert found["supportedVersions"] == list(NAMES) == [*HANDSHAKE, *MODERN]
    assert found["resultType"] == "complete"
    assert found["_meta"][SERVER_KEY]["name"] == "dragoman"


# --- errors: a code, or a result that a model can read

CODES: dict[type[e.HubError], tuple[int | str, ...]] = {
    #            24      03      06      11        26
    e.Denied: (-32003, -32003, -32003, -32003, 40300),
    e.Full: (-32000, -32000, -32000, -32000, 42900),
    e.NotFound: (-32602,) * 5,
    e.AmbiguousName: (-32602,) * 5,
    e.InvalidInput: (-32602, -32602, -32602, "result", "result"),
    e.Unreachable: ("result",) * 5,
    e.TimedOut: ("result",) * 5,
    e.BadReply: ("result",) * 5,
    e.WorkFailed: ("result",) * 5,
    e.ConfigError: (-32603,) * 5,
}


def test_every_error_has_a_row() -> None:
    assert set(e.leaves()) == set(CODES) == set(TABLE)


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("revision", ALL)
def test_each_error_is_a_code_or_a_result_as_the_revision_has_it(
    kind: type[e.HubError], revision: int
) -> None:
    error = kind("it did not work")
    error.trace = "0123456789abcdef"
    shown, expected = as_result(error, revision), CODES[kind][revision]
    if expected == "result":
        assert shown is not None and shown["isError"] is True
        assert shown["content"] == [{"type": "text", "text": "it did not work (trace 01234567)"}]
        assert shown["_meta"]["dragoman.hub/error"]["kind"] == kind.__name__
    else:
        assert shown is None
        answer = json.loads(as_error(1, error, revision))["error"]
        assert answer["code"] == expected
        assert answer["message"] == "it did not work (trace 01234567)"
        assert answer["data"] == {"kind": kind.__name__, "trace": error.trace}
    if revision == R2607 and isinstance(expected, int):
        assert not -32099 <= expected <= -32000, "that range is the specification's"


@pytest.mark.parametrize("revision", ALL)
@pytest.mark.parametrize(
    ("code", "newest"),
    [(-32602, -32602), (-32002, -32602), (-32042, -32603), (7, 7), ("x", -32603)],
)
def test_a_servers_own_error_goes_through_as_it_is(code: Any, newest: int, revision: int) -> None:
    native = {"code": code, "message": "mine", "data": {"uri": "a:b"}}
    error = e.WorkFailed("it failed", native)
    assert as_result(error, revision) is None
    answer = json.loads(as_error("a", error, revision))
    assert answer["id"] == "a"
    old = code if isinstance(code, int) else -32603
    assert answer["error"] == {**native, "code": newest if revision == R2607 else old}


def test_the_oldest_revision_is_number_zero() -> None:
    assert tuple(ALL) == (R2024, R2503, R2506, R2511, R2607)
