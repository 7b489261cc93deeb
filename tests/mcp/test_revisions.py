"""What each revision sees, as tables. Pure; live in tests/live/test_mcp_server_revisions.py."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest

from dragoman.core import errors as e
from dragoman.mcp.protocol.errors import adapt_error, encode_error, render_error_result
from dragoman.mcp.protocol.revisions import (
    HANDSHAKE,
    METHODS,
    MODERN,
    NAMES,
    ORDERED,
    R2024,
    R2503,
    R2506,
    R2511,
    R2607,
    SERVER_KEY,
    Revision,
    build_discover_result,
    build_initialize_result,
    build_list_tail,
    is_wrapped,
    shape_content,
    shape_prompt,
    shape_resource,
    shape_result,
    shape_tool,
)

ALL = ORDERED
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SINCE_2503, SINCE_2506, SINCE_2511, SINCE_2607 = (
    set(ALL[first:]) for first in (R2503, R2506, R2511, R2607)
)

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
    "execution": {"taskSupport": "optional"},
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
    "execution": {R2511},
    "example.com/unknown": set(ALL),
}


@pytest.mark.parametrize("field", TOOL_FIELD_SEEN_BY)
@pytest.mark.parametrize("revision", ALL)
def test_tool_has_the_fields_of_the_revision(field: str, revision: Revision) -> None:
    assert set(TOOL_FIELD_SEEN_BY) == set(TOOL)
    before = copy.deepcopy(TOOL)
    shaped = shape_tool(TOOL, revision)
    assert (field in shaped) == (revision in TOOL_FIELD_SEEN_BY[field])
    assert shaped.get(field, TOOL[field]) == TOOL[field]
    assert before == TOOL


@pytest.mark.parametrize("said", [None, "required", "optional", "forbidden", 7])
def test_task_support_follows_the_server_and_is_never_required(
    said: Any,
) -> None:
    tool = {"name": "t", "execution": {"taskSupport": said}} if said else {"name": "t"}
    shown = "forbidden" if said == "forbidden" else "optional"
    assert shape_tool(tool, R2511)["execution"] == {"taskSupport": shown}
    for revision in set(ALL) - {R2511}:
        assert "execution" not in shape_tool(tool, revision)


OTHER_SCHEMAS: list[Any] = [
    {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}},
    {"anyOf": [{"type": "object"}, {"$ref": "#"}], "$schema": DIALECT},
    {"type": ["object", "null"]},
    {"type": "array", "$id": "https://example.com/s", "items": {"$ref": "#/$defs/n"}, "$defs": {}},
    {"type": "string"},
    True,
    {},
]


@pytest.mark.parametrize("schema", OTHER_SCHEMAS)
@pytest.mark.parametrize("revision", ALL)
def test_non_object_output_schema_is_wrapped_for_older_revisions(
    schema: Any, revision: Revision
) -> None:
    before = copy.deepcopy(schema)
    shaped = shape_tool({**TOOL, "outputSchema": schema}, revision)
    if revision >= R2607:
        assert shaped["outputSchema"] == schema
    elif revision < R2506:
        assert "outputSchema" not in shaped
    else:
        wrapper = shaped["outputSchema"]
        assert wrapper["type"] == "object" and wrapper["required"] == ["result"]
        inner = wrapper["properties"]["result"]
        if isinstance(schema, dict):
            assert wrapper.get("$schema") == schema.get("$schema")
            for key in schema.keys() - {"$schema"}:
                assert inner[key] == schema[key]
        else:
            assert inner is schema
    assert schema == before


@pytest.mark.parametrize("schema", [None, 7, "x", []])
@pytest.mark.parametrize("revision", ALL)
def test_untyped_output_schema_is_shown_to_the_newest_only(schema: Any, revision: Revision) -> None:
    shaped = shape_tool({**TOOL, "outputSchema": schema}, revision)
    assert ("outputSchema" in shaped) == (revision >= R2607)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (OTHER_SCHEMAS[0], [1, 2], ["x"]),
        ({**OTHER_SCHEMAS[0], "$schema": DIALECT}, [1], [None]),
        ({"type": ["object", "null"]}, None, 7),
        ({"type": "array", "items": {"$ref": "#"}}, [[], [[]]], [[7]]),
        ({"type": "string"}, "x", 7),
    ],
)
@pytest.mark.parametrize("revision", [R2506, R2511])
def test_wrapped_value_validates_against_its_schema(
    schema: Any, good: Any, bad: Any, revision: Revision
) -> None:
    wrapper = shape_tool({**TOOL, "outputSchema": schema}, revision)["outputSchema"]
    check = jsonschema.validators.validator_for(wrapper)(wrapper).is_valid
    result = {"content": [], "structuredContent": good}
    assert check(shape_result(result, revision, wrapped=True)["structuredContent"])
    assert not check({"result": bad})


@pytest.mark.parametrize("value", [{"a": 1}, [1], "x", 7, None])
@pytest.mark.parametrize("revision", ALL)
def test_wrapping_follows_the_schema_first(value: Any, revision: Revision) -> None:
    result = {"content": [], "structuredContent": value}
    for schema, wrapped in (*((one, True) for one in OTHER_SCHEMAS), ({"type": "object"}, False)):
        assert is_wrapped(schema, revision) == (wrapped and revision < R2607)
    shaped = shape_result(result, revision, wrapped=True)
    if revision in (R2506, R2511):
        assert shaped["structuredContent"] == {"result": value}


@pytest.mark.parametrize("revision", ALL)
def test_untyped_input_schema_gets_type_object(revision: Revision) -> None:
    schema: dict[str, Any] = {"properties": {"a": {}}}
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
def test_content_is_kept_or_converted_for_the_revision(kind: str, revision: Revision) -> None:
    block = BLOCKS[kind]
    expected = block if revision in BLOCK_SEEN_BY[kind] else STANDS_FOR[kind]
    assert shape_content(block, revision) == expected
    assert shape_result({"content": [block]}, revision)["content"] == [expected]


@pytest.mark.parametrize("revision", ALL)
def test_content_fields_follow_the_revision(revision: Revision) -> None:
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
def test_structured_content_is_sent_where_known(revision: Revision, value: Any) -> None:
    shaped = shape_result({"content": [], "structuredContent": value}, revision)
    assert ("structuredContent" in shaped) == (revision in SINCE_2506)
    plain = revision >= R2607 or isinstance(value, dict)
    expected = value if plain else {"result": value}
    assert shaped.get("structuredContent", expected) == expected


MODERN_MEMBERS = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public"}


@pytest.mark.parametrize("revision", ALL)
def test_modern_members_are_absent_from_older_revisions(revision: Revision) -> None:
    meta = {SERVER_KEY: {"name": "another"}, "example.com/x": 1}
    result = {"content": [], "isError": True, "_meta": meta, "example.com/y": 2, **MODERN_MEMBERS}
    shaped = shape_result(result, revision)
    assert shaped["isError"] is True
    assert shaped["example.com/y"] == 2
    assert shaped["_meta"]["example.com/x"] == 1
    if revision >= R2607:
        assert shaped["resultType"] == "complete"
        assert shaped["_meta"][SERVER_KEY]["name"] == "dragoman"
    else:
        assert not shaped.keys() & MODERN_MEMBERS.keys()
        assert SERVER_KEY not in shaped["_meta"]
    assert meta[SERVER_KEY] == {"name": "another"}


@pytest.mark.parametrize("revision", ALL)
@pytest.mark.parametrize("meta", [None, 7, [], "x", {}, {SERVER_KEY: 1}])
def test_empty_or_internal_meta_is_omitted(revision: Revision, meta: Any) -> None:
    shaped = shape_result({"content": [], "_meta": meta}, revision)
    if revision >= R2607:
        assert set(shaped["_meta"]) == {SERVER_KEY}
    else:
        assert "_meta" not in shaped


@pytest.mark.parametrize("revision", ALL)
def test_list_has_ttl_members_in_the_modern_revision_only(revision: Revision) -> None:
    tail = build_list_tail(revision)
    if revision < R2607:
        assert tail == {}
    else:
        assert tail["resultType"] == "complete"
        assert tail["ttlMs"] == 0
        assert tail["cacheScope"] == "private"
        assert tail["_meta"][SERVER_KEY]["name"] == "dragoman"


METHODS_KNOWN_BY = {
    "initialize": set(ALL) - SINCE_2607,
    "ping": set(ALL) - SINCE_2607,
    "server/discover": SINCE_2607,
    "tools/list": set(ALL),
    "tools/call": set(ALL),
    "prompts/list": set(ALL),
    "prompts/get": set(ALL),
    "resources/list": set(ALL),
    "resources/templates/list": set(ALL),
    "resources/read": set(ALL),
    "resources/subscribe": set(ALL) - SINCE_2607,
    "resources/unsubscribe": set(ALL) - SINCE_2607,
    "subscriptions/listen": SINCE_2607,
    "completion/complete": set(ALL),
    "logging/setLevel": set(ALL) - SINCE_2607,
    "tasks/get": SINCE_2511,
    "tasks/cancel": SINCE_2511,
    "tasks/update": SINCE_2607,
    "tasks/result": {R2511},
    "tasks/list": {R2511},
    "roots/list": set(),
    "no/such": set(),
    "": set(),
}


@pytest.mark.parametrize("method", METHODS_KNOWN_BY)
@pytest.mark.parametrize("revision", ALL)
def test_methods_follow_the_revision(method: str, revision: Revision) -> None:
    assert set(METHODS) <= set(METHODS_KNOWN_BY)
    assert (method in revision.methods) == (revision in METHODS_KNOWN_BY[method])


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
def test_handshake_selects_a_shared_revision(wanted: Any, spoken: str) -> None:
    result = build_initialize_result({"protocolVersion": wanted})
    assert result["protocolVersion"] == spoken
    assert ("title" in result["serverInfo"]) == (spoken >= "2025-06-18")
    able = result["capabilities"]
    assert able["tools"] == able["prompts"] == {"listChanged": True}
    assert able["resources"] == {"subscribe": True, "listChanged": True}
    assert able["logging"] == {}
    assert ("completions" in able) == (spoken >= "2025-03-26")
    assert ("tasks" in able) == (spoken == "2025-11-25") and "extensions" not in able


@pytest.mark.promise("F6")
def test_initialize_accepts_empty_params() -> None:
    assert build_initialize_result({})["protocolVersion"] == "2024-11-05"


def test_discovery_names_every_revision() -> None:
    found = build_discover_result(R2607)
    assert found["supportedVersions"] == list(NAMES) == [*HANDSHAKE, *MODERN]
    assert found["resultType"] == "complete"
    assert found["_meta"][SERVER_KEY]["name"] == "dragoman"
    able = found["capabilities"]
    common = {"tools", "resources", "prompts", "logging", "completions"}
    assert set(able) == {*common, "extensions"}
    assert able["extensions"] == {"io.modelcontextprotocol/tasks": {}}


PROMPT: dict[str, Any] = {
    "name": "p",
    "description": "d",
    "arguments": [{"name": "a", "description": "d", "required": True, "title": "A"}, 7],
    "title": "P",
    "_meta": {"example.com/x": 1},
    "icons": [{"src": "data:,"}],
    "example.com/unknown": 1,
}
RESOURCE: dict[str, Any] = {
    "uri": "a:b",
    "uriTemplate": "a:{b}",
    "name": "r",
    "description": "d",
    "mimeType": "text/plain",
    "size": 7,
    "annotations": {"audience": ["user"], "priority": 1, "lastModified": "2025-01-12T15:00:58Z"},
    "title": "R",
    "_meta": {"example.com/x": 1},
    "icons": [{"src": "data:,"}],
    "example.com/unknown": 1,
}
SEEN_BY = {"title": SINCE_2506, "_meta": SINCE_2506, "icons": SINCE_2511}


@pytest.mark.parametrize("field", RESOURCE)
@pytest.mark.parametrize("revision", ALL)
def test_resource_has_the_fields_of_the_revision(field: str, revision: Revision) -> None:
    before = copy.deepcopy(RESOURCE)
    shaped = shape_resource(RESOURCE, revision)
    assert (field in shaped) == (revision in SEEN_BY.get(field, set(ALL)))
    if field == "annotations":
        seen = {"audience", "priority"} | ({"lastModified"} if revision in SINCE_2506 else set())
        assert set(shaped[field]) == seen
    else:
        assert shaped.get(field, RESOURCE[field]) == RESOURCE[field]
    assert before == RESOURCE


@pytest.mark.parametrize("field", PROMPT)
@pytest.mark.parametrize("revision", ALL)
def test_prompt_has_the_fields_of_the_revision(field: str, revision: Revision) -> None:
    before = copy.deepcopy(PROMPT)
    shaped = shape_prompt(PROMPT, revision)
    assert (field in shaped) == (revision in SEEN_BY.get(field, set(ALL)))
    if field == "arguments":
        first, odd = shaped[field]
        assert ("title" in first) == (revision in SINCE_2506)
        assert first["required"] is True and odd == 7
    else:
        assert shaped.get(field, PROMPT[field]) == PROMPT[field]
    assert before == PROMPT


# --- errors: a code, or a result that a model can read

ITS_OWN = range(-32022, -32019)

CODES: dict[type[e.HubError], tuple[int | str, ...]] = {
    #            24      03      06      11        26
    e.Denied: (-32003, -32003, -32003, -32003, 40300),
    e.AuthorizationError: (*(-32003,) * 4, "result"),
    e.InsufficientScope: (*(-32003,) * 4, 40300),
    e.ApprovalPending: ("result",) * 5,
    e.ApprovalDenied: ("result",) * 5,
    e.ApprovalClosed: ("result",) * 5,
    e.TooDeep: ("result",) * 5,
    e.Looping: ("result",) * 5,
    e.Repeating: ("result",) * 5,
    e.Tainted: ("result",) * 5,
    e.NoCandidate: ("result",) * 5,
    e.Quarantined: ("result",) * 5,
    e.RemoteA2ATimeoutError: (*(-32201,) * 4, "result"),
    e.RemoteA2ATransportError: (*(-32202,) * 4, "result"),
    e.RemoteA2AInvalidResponseError: (*(-32203,) * 4, "result"),
    e.RemoteA2ATaskFailedError: (*(-32204,) * 4, "result"),
    e.Overloaded: (-32000, -32000, -32000, -32000, 42900),
    e.ShuttingDown: (-32000, -32000, -32000, -32000, 42900),
    e.LeaseExpired: (-32000, -32000, -32000, -32000, 42900),
    e.RateLimited: (-32000, -32000, -32000, -32000, 42900),
    e.StorageFailed: (-32603,) * 5,
    e.NotFound: (-32602,) * 5,
    e.AmbiguousName: (-32602,) * 5,
    e.InvalidInput: (-32602, -32602, -32602, "result", "result"),
    e.Unreachable: ("result",) * 5,
    e.TimedOut: ("result",) * 5,
    e.BadReply: ("result",) * 5,
    e.WorkFailed: ("result",) * 5,
    e.TaskLost: ("result",) * 5,
    e.AnswerRefused: ("result",) * 5,
    e.AnswerFiltered: ("result",) * 5,
    e.EmptyAnswer: ("result",) * 5,
    e.Declined: ("result",) * 5,
    e.NeedsInput: ("result", "result", "result", "result", -32021),
    e.LoginRequired: ("result",) * 5,
    e.ConfigError: (-32603,) * 5,
}


def test_every_error_has_an_mcp_row() -> None:
    assert set(e.list_leaves()) == set(CODES)


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("revision", ALL)
def test_errors_are_codes_or_results_by_revision(
    kind: type[e.HubError], revision: Revision
) -> None:
    error = kind("it did not work")
    error.trace = "0123456789abcdef"
    shown, codes = render_error_result(error, revision), CODES[kind]
    expected = codes[min(int(revision), len(codes) - 1)]
    if expected == "result":
        assert shown is not None and shown["isError"] is True
        assert shown["content"] == [{"type": "text", "text": "it did not work (trace 01234567)"}]
        assert shown["_meta"]["dragoman.hub/error"]["kind"] == kind.kind
    else:
        assert shown is None
        answer = json.loads(encode_error(1, error, revision))["error"]
        assert answer["code"] == expected
        assert answer["message"] == "it did not work (trace 01234567)"
        more: dict[type[e.HubError], dict[str, Any]] = {
            e.NeedsInput: {"requiredCapabilities": {}},
            e.RateLimited: {"retryAfter": 1.0},
            e.InsufficientScope: {"scope": ""},
        }
        told = more.get(kind, {})
        assert answer["data"] == {"kind": kind.kind, "trace": error.trace, **told}
    if revision >= R2607 and isinstance(expected, int) and expected not in ITS_OWN:
        assert not -32099 <= expected <= -32000, "that range is the specification's"


@pytest.mark.parametrize("revision", ALL)
def test_missing_capability_is_named_in_the_protocols_form(revision: Revision) -> None:
    error = e.NeedsInput("it asks for a form", {"elicitation": {"form": {}}})
    answer = json.loads(encode_error(1, error, revision))["error"]
    assert answer["code"] == (-32021 if revision >= R2607 else -32603)
    assert answer["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}


@pytest.mark.parametrize("revision", ALL)
def test_missing_resource_has_its_code_until_the_newest_revision(
    revision: Revision,
) -> None:
    code = -32602 if revision >= R2607 else -32002
    error = json.loads(encode_error(1, e.NotFound("no such"), revision, "a:b"))["error"]
    assert (error["code"], error["data"]["uri"]) == (code, "a:b")
    for native in (
        {"code": -32002, "message": "m"},
        {"code": -32002, "message": "m", "data": {"uri": "a:b"}},
        {"code": -32602, "message": "m", "data": {"uri": "a:b"}},
    ):
        answer = encode_error(1, e.WorkFailed("it failed", native), revision, "a:b")
        error = json.loads(answer)["error"]
        assert (error["code"], error["data"]["uri"]) == (code, "a:b")
    other = e.WorkFailed("it failed", {"code": -32602, "message": "m"})
    assert json.loads(encode_error(1, other, revision, "a:b"))["error"]["code"] == -32602


@pytest.mark.parametrize("revision", ALL)
@pytest.mark.parametrize(
    ("code", "newest"),
    [(-32602, -32602), (-32002, -32602), (-32042, -32603), (7, 7), ("x", -32603)],
)
def test_server_error_passes_unchanged(code: Any, newest: int, revision: Revision) -> None:
    native = {"code": code, "message": "mine", "data": {"uri": "a:b"}}
    error = e.WorkFailed("it failed", native)
    assert render_error_result(error, revision) is None
    answer = json.loads(encode_error("a", error, revision))
    assert answer["id"] == "a"
    old = code if isinstance(code, int) else -32603
    assert answer["error"] == {**native, "code": newest if revision >= R2607 else old}


PAGE = {"mode": "url", "url": "https://example.com/go", "message": "Go", "elicitationId": "e"}


@pytest.mark.parametrize("revision", ALL)
def test_capability_needed_by_an_older_server_is_translated(
    revision: Revision,
) -> None:
    able: dict[str, Any] = {"elicitation": {"url": {}}}
    form: dict[str, Any] = {"elicitation": {"form": {}}}
    lacks = e.WorkFailed(
        "x", {"code": -32021, "message": "A form!", "data": {"requiredCapabilities": form}}
    )
    page = e.WorkFailed("x", {"code": -32042, "message": "Go!", "data": {"elicitations": [PAGE]}})
    lacks.trace = page.trace = "t"
    shown = adapt_error(lacks, revision, {})
    if revision >= R2607:
        assert shown is lacks  # its own
    else:
        assert isinstance(shown, e.NeedsInput)
        assert (str(shown), shown.missing, shown.trace) == ("A form!", form, "t")
    shown = adapt_error(page, revision, able)
    if revision == R2511:
        assert shown is page
        shown = adapt_error(page, revision, {"elicitation": {}})
    assert isinstance(shown, e.NeedsInput)
    assert "https://example.com/go" in str(shown) and shown.missing == able
    for other in (e.WorkFailed("x"), e.WorkFailed("x", {"code": 7}), e.Denied("x")):
        assert adapt_error(other, revision, {}) is other
    for odd in (None, 7, {}, {"requiredCapabilities": 7}, {"elicitations": [7, {}]}):
        for code in (-32021, -32042):
            adapt_error(e.WorkFailed("x", {"code": code, "data": odd}), revision, {})


def test_oldest_revision_has_index_zero() -> None:
    assert ALL[:5] == (R2024, R2503, R2506, R2511, R2607)
