from __future__ import annotations

import http.server
import threading
import time
from typing import Any

import jsonschema_rs
import pytest

from dragoman.core.call import Call, Result
from dragoman.core.errors import AuthorizationError, InvalidInput, NotFound
from dragoman.core.pipeline import build_pipeline
from dragoman.core.principal import OWNER
from dragoman.core.tool import Tool, Validator, accept_anything, build_missing_tool
from dragoman.core.trace import new_trace
from dragoman.guards.validate import (
    LENIENT,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_NODES,
    STRICT,
    SchemaCheck,
    Validate,
    compile_schema,
)


def call_with(validate: Validator, arguments: Any) -> Call:
    nowhere = build_missing_tool("files.read", NotFound("nowhere"))
    tool = Tool(
        name="files.read",
        alias="x",
        remote_name="read",
        validate=validate,
        target=nowhere.target,
    )
    return Call(
        principal=OWNER,
        tool=tool,
        requested_name="x",
        arguments=arguments,
        trace=new_trace(),
        door="test",
    )


SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "limits": {"type": "array", "maxItems": 1}},
    "required": ["path"],
    "additionalProperties": False,
}


async def test_valid_arguments_pass_and_invalid_ones_never_reach_the_target() -> None:
    reached: list[Any] = []

    async def target(call: Call) -> Result:
        reached.append(call.arguments)
        return Result()

    skill_hub = build_pipeline([Validate()], target)
    validate = compile_schema(SCHEMA)
    await skill_hub(call_with(validate, {"path": "/tmp"}))
    for wrong, words in (
        ({}, '"path" is a required property'),
        ({"path": 5}, 'path: 5 is not of type "string"'),
        ({"path": "x", "limits": [1, 2]}, "limits: [1,2] has more than 1 item"),
        ({"path": "x", "more": 1}, "Additional properties are not allowed"),
    ):
        with pytest.raises(InvalidInput) as raised:
            await skill_hub(call_with(validate, wrong))
        assert str(raised.value).startswith('invalid arguments for "files.read": ')
        assert words in str(raised.value)
    assert reached == [{"path": "/tmp"}]


def test_empty_schema_costs_nothing() -> None:
    assert compile_schema({}) is accept_anything
    assert compile_schema({"type": "object"}) is accept_anything
    assert compile_schema({"type": "object", "properties": {}}) is not accept_anything


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "texty"}}},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": {"a": {"minLength": -1}}},
    ],
)
def test_invalid_schema_is_refused_when_offered(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        compile_schema(schema)


def test_schema_depth_and_size_are_bounded() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(MAX_SCHEMA_DEPTH):
        deep = {"properties": {"a": deep}}
    with pytest.raises(ValueError, match="nested deeper than"):
        compile_schema(deep)
    wide: dict[str, Any] = {"properties": {str(n): {} for n in range(MAX_SCHEMA_NODES)}}
    with pytest.raises(ValueError, match="more than 20000 parts"):
        compile_schema(wide)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "$ref": "#"},
        {"type": "object", "allOf": [{"$ref": "#"}], "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"type": "object", "properties": {"a": {"pattern": "(a+)+$"}}},
        {"type": "object", "properties": {"a": {"pattern": "(?=(a+))\\1*b$"}}},
    ],
)
def test_recursive_or_backtracking_schema_still_answers(
    schema: dict[str, Any],
) -> None:
    compile_schema(schema)({"a": "a" * 5_000 + "!"})


def test_external_reference_is_neither_fetched_nor_refused() -> None:
    asked: list[str] = []

    class Watch(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Watch)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        place = f"http://127.0.0.1:{server.server_port}/schema.json"
        for schema in (
            {"type": "object", "$ref": place},
            {"type": "object", "$schema": place, "properties": {}},
            {"type": "object", "properties": {"a": {"$ref": f"{place}#/x"}}},
            {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
        ):
            assert compile_schema(schema)({"a": 1}) is None
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()
    assert asked == []


def test_validation_message_is_bounded() -> None:
    validate = compile_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    problem = validate({"a": "x" * 100_000})
    assert problem is not None and len(problem) <= 300 and problem.endswith("...")


def doubling(levels: int, word: str) -> dict[str, Any]:
    """Each part asks for the next one twice."""
    parts: dict[str, Any] = {
        f"p{n}": {word: [{"$ref": f"#/$defs/p{n + 1}"}] * 2} for n in range(levels)
    }
    return {"type": "object", "$defs": {**parts, f"p{levels}": {}}, "$ref": "#/$defs/p0"}


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_expanding_schema_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="with its references"):
        compile_schema(doubling(60, word))
    fits = compile_schema(doubling(6, word))({}) is None
    assert fits is (word != "oneOf")  # of which both fit


def test_too_deep_reference_chain_is_refused() -> None:
    parts: dict[str, Any] = {f"p{n}": {"$ref": f"#/$defs/p{n + 1}"} for n in range(5_000)}
    with pytest.raises(ValueError, match="too deep"):
        compile_schema({"type": "object", "$defs": {**parts, "p5000": {}}, "$ref": "#/$defs/p0"})


ELSEWHERE = "https://example.com/elsewhere.json"
STRING = {"type": "string"}
OPAQUE: list[dict[str, Any]] = [
    {"$ref": ELSEWHERE},
    {"$ref": ELSEWHERE + "#/$defs/x", "required": ["b"]},
    {"properties": {"a": {"$ref": ELSEWHERE}, "b": STRING}, "additionalProperties": False},
    {"properties": {"a": {"not": {"$ref": ELSEWHERE}}, "b": STRING}},
    {"properties": {"a": {"oneOf": [{"$ref": ELSEWHERE}, STRING]}}, "required": ["a"]},
    {"properties": {"a": {"oneOf": [{"$ref": "#/$defs/x"}, STRING], "anyOf": [STRING, {}]}},
     "$defs": {"x": {"allOf": [{"$ref": ELSEWHERE}]}}},
    {"if": {"properties": {"a": {"$ref": ELSEWHERE}}}, "then": {"required": ["b"]},
     "else": {"required": ["c"]}},
    {"allOf": [{"$ref": ELSEWHERE}], "unevaluatedProperties": False},
    {"properties": {"a": {"contains": {"$ref": ELSEWHERE}, "maxContains": 1}}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {
        "a": {"$ref": ELSEWHERE, "type": "array", "minLength": 9}}, "definitions": {"a": True}},
    {"$id": "https://example.com/tool.json", "properties": {"a": {"$ref": "elsewhere.json"}}},
]  # fmt: skip
VALUES: list[Any] = [
    "x", 1, True, None, [], ["x", "y", 1], {}, {"a": "x"}, {"b": "x"}, {"a": "x", "b": "y"},
]  # fmt: skip


@pytest.mark.parametrize("schema", OPAQUE)
@pytest.mark.parametrize(
    "elsewhere", [STRING, {"type": ["integer", "array"]}, {"required": ["b"]}, {"not": {}}, {}]
)
def test_external_reference_never_makes_the_rest_stricter(
    schema: dict[str, Any], elsewhere: dict[str, Any]
) -> None:
    registry = jsonschema_rs.Registry([(ELSEWHERE, {**elsewhere, "$defs": {"x": STRING}})])
    knowing = jsonschema_rs.validator_for(schema, registry=registry)
    for check in (compile_schema(schema), compile_schema(schema, LENIENT)):
        for name in ("a", "b", "c"):
            for value in VALUES:
                if knowing.is_valid({name: value}):
                    assert check({name: value}) is None, (name, value)


def test_schema_beside_an_external_reference_applies() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": ELSEWHERE},
            "n": {"type": "integer"},
            "l": {"type": "array", "items": {"$ref": "#/$defs/nowhere"}},
        },
        "required": ["n"],
    }
    check = compile_schema(schema)
    assert check({"n": 1, "a": object.__name__, "l": [1, "x"]}) is None
    for wrong in ({"a": 1}, {"n": "x", "a": 1}, {"n": 1, "l": "x"}):
        assert check(wrong) is not None, wrong


def test_named_references_are_resolved_inside_the_schema() -> None:
    needs_a = {"type": "object", "required": ["a"]}
    tree = {
        "$id": "Node",
        "type": "object",
        "properties": {"a": STRING, "in": {"type": "array", "items": {"$ref": "Node"}}},
        "definitions": {"s": STRING},
        "required": ["a"],
    }
    own = "https://example.com/own.json"
    for schema, fits, fails in (
        ({"$defs": {"n": {"$anchor": "it", **needs_a}}, "$ref": "#it"}, {"a": 1}, {}),
        ({"$id": own, "$defs": {"n": needs_a}, "$ref": f"{own}#/$defs/n"}, {"a": 1}, {}),
        ({"$id": own, "$defs": {"n": needs_a}, "$ref": "own.json#/$defs/n"}, {"a": 1}, {}),
        ({"properties": {"tree": tree}}, {"tree": {"a": "x", "in": [{"a": "y"}]}},
         {"tree": {"a": "x", "in": [{"a": 5}]}}),
        ({"properties": {"tree": tree | {"properties": {"a": {"$ref": "#/definitions/s"}}}}},
         {"tree": {"a": "x"}}, {"tree": {"a": 5}}),
        ({"components": {"schemas": {"n": needs_a, "any": True}},
          "allOf": [{"$ref": "#/components/schemas/n"}, {"$ref": "#/components/schemas/any"}]},
         {"a": 1}, {}),
    ):  # fmt: skip
        check = compile_schema({"type": "object", **schema})
        assert isinstance(check, SchemaCheck)
        assert check(fits) is None and check(fails) is not None, schema
    # References by name cannot hide how many parts there are.
    hidden = doubling(60, "allOf")
    for n, part in enumerate(hidden["$defs"].values()):
        part["$anchor"] = f"n{n}"
        part["allOf"] = [{"$ref": f"#n{n + 1}"}] * 2 if "allOf" in part else []
    with pytest.raises(ValueError, match="with its references"):
        compile_schema(hidden)


@pytest.mark.parametrize("check", [LENIENT, STRICT])
async def test_policies_do_not_read_externally_described_arguments(check: str) -> None:
    async def target(call: Call) -> Result:
        return Result()

    read = build_pipeline([Validate(lambda tool: True)], target)
    unread = build_pipeline([Validate(lambda tool: False)], target)
    part = {"properties": {"force": {"$ref": ELSEWHERE}, "path": STRING}}
    extra = {"properties": {"path": STRING}, "additionalProperties": {"$ref": ELSEWHERE}}
    unused = {"properties": {"force": STRING}, "$defs": {"x": {"$ref": ELSEWHERE}}}
    for schema, taken, refused in (
        (part, [{}, {"path": "x"}, {"other": 1}], [{"force": "yes"}, {"path": "x", "force": True}]),
        (extra, [{}, {"path": "x"}], [{"force": True}]),
        (unused, [{"force": "x"}], []),
        ({"properties": {"force": STRING}, "allOf": [{"$ref": ELSEWHERE}]}, [{}], [{"force": "x"}]),
        ({"$ref": "#/$defs/all", "$defs": {"all": part}}, [{}], [{"path": "x"}]),
        ({"$schema": "https://example.com/dialect", "properties": {"path": STRING}}, [{}],
         [{"path": "x"}]),
    ):  # fmt: skip
        validate = compile_schema({"type": "object", **schema}, check)
        for sent in taken:
            await read(call_with(validate, sent))
        for sent in refused:
            await unread(call_with(validate, sent))
            call = call_with(validate, sent)
            with pytest.raises(AuthorizationError, match="policies read its arguments") as raised:
                await read(call)
            assert "https://example.com/" in str(raised.value)
            assert 'check_arguments = "off"' in str(raised.value)
            assert call.notes.decision is not None and not call.notes.decision.allowed
    with pytest.raises(InvalidInput):
        await read(call_with(compile_schema({"type": "object", **part}, check), {"path": 5}))


def test_deep_or_long_arguments_are_rejected_quickly() -> None:
    tree = {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"type": "string"}, "in": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}},
    }
    deep: dict[str, Any] = {"kind": 5}
    for _ in range(40):
        deep = {"kind": "x", "in": deep}
    wide = {"type": "object", "properties": {"l": {"items": {"anyOf": [{"type": "null"}] * 4}}}}
    begun = time.process_time()
    assert compile_schema(tree)(deep) == "they do not match the schema"
    assert compile_schema(tree)({"kind": 5}) == 'kind: 5 is not of type "string"'
    assert compile_schema(tree)({"kind": "x", "in": {"kind": "y"}}) is None
    assert "l/0" in (compile_schema(wide)({"l": list(range(100_000))}) or "")
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("pattern", [r"^\S+\Z", "^[^]*$", r"[\b]", "a{,3}", r"\k<q>", "("])
def test_unsupported_pattern_is_left_to_the_server(pattern: str) -> None:
    inner = {"type": "string", "pattern": pattern, "maxLength": 3}
    for schema in (
        {"type": "object", "properties": {"a": inner}},
        {"type": "object", "properties": {"a": inner, "default": inner, "enum": inner}},
        {"type": "object", "$defs": {"x": inner}, "properties": {"a": {"$ref": "#/$defs/x"}}},
    ):
        validate = compile_schema(schema)
        assert validate({"a": "a"}) is None
        assert validate({"a": "abcd"}) is not None, "the rest of the schema holds"
    named = {"patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    assert compile_schema({"type": "object", **named})({"a": 1}) is None


CONVERTED: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "integer"}, ["1", " -3 ", "2.0", True], ["x", "1.5", 1.5, [1], {}, ""]),
    ({"type": "number", "minimum": 2}, ["1.5", "-1e3", ".5", False], ["x", 1, [], "1,5"]),
    ({"type": "boolean"}, ["true", "No", 0, 1, "OFF"], ["maybe", 2, []]),
    ({"type": "string", "maxLength": 3}, [5, True, 1.5], ["long text", [], {}]),
    ({"type": "array", "items": {"type": "integer"}}, ["[1, 2]", ["1"]], ["1, 2", 1, ["x"]]),
    ({"type": "object", "properties": {"b": {"type": "integer"}}}, ['{"b": 1}', {"b": "1"}],
     ["b=1", [], {"b": "x"}]),
    ({"enum": [1, 2, True]}, ["1", "yes"], ["3", "x"]),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ["x", []]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["1"], ["x"]),
    ({"$ref": "#/$defs/n"}, ["7"], ["seven"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "taken", "refused"), CONVERTED)
async def test_convertible_values_pass_and_meaningless_ones_are_refused(
    schema: dict[str, Any], taken: list[Any], refused: list[Any]
) -> None:
    reached: list[Any] = []

    async def target(call: Call) -> Result:
        reached.append(call.arguments)
        return Result()

    skill_hub = build_pipeline([Validate(lambda tool: False)], target)
    exact = build_pipeline([Validate(lambda tool: True)], target)
    whole = {
        "type": "object",
        "$defs": {"n": {"type": "integer"}},
        "properties": {"a": schema, "c": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    lenient = compile_schema(whole, LENIENT)
    for value in taken:
        sent = {"a": value, "c": None, "unheard_of": 1}
        await skill_hub(call_with(lenient, sent))
        assert reached.pop() is sent
        with pytest.raises(InvalidInput):
            await skill_hub(call_with(compile_schema(whole), sent))
        with pytest.raises(InvalidInput, match="policies read arguments"):
            await exact(call_with(lenient, sent))
    for value in refused:
        with pytest.raises(InvalidInput, match=r'"files.read": a[:/]'):
            await skill_hub(call_with(lenient, {"a": value, "c": None}))
    for sent in ({"c": "1"}, {}):
        with pytest.raises(InvalidInput):
            await skill_hub(call_with(lenient, sent))
    await skill_hub(call_with(compile_schema(whole, "off"), {"a": object}))


async def test_misspelt_argument_gets_a_suggestion() -> None:
    async def target(call: Call) -> Result:
        return Result()

    skill_hub = build_pipeline([Validate(lambda tool: False)], target)
    open_ = {
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "dry_run": {"type": "boolean"}},
        "required": ["file_path"],
    }
    closed = {**open_, "additionalProperties": False}
    for schema, sent, words in (
        (open_, {"filePath": "x"}, 'unknown argument "filePath": did you mean "file_path"?'),
        (open_, {"zzz": "x"}, 'unknown argument "zzz"'),
        # One that may be left out: the server would go on without it.
        (closed, {"file_path": "x", "dryrun": True},
         'unknown argument "dryrun": did you mean "dry_run"?'),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as raised:
            await skill_hub(call_with(compile_schema(schema, LENIENT), sent))
        assert words in str(raised.value)
