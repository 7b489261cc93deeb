"""The explanation of refused arguments takes a bounded time, and is right about what it names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cpu_time import measure_cpu

from dragoman.guards.argument_sample import MAX_ITEMS, MAX_TEXT, is_whole, sample_arguments
from dragoman.guards.lenient_schema import find_misspelt
from dragoman.guards.validate import LENIENT, MISMATCH, STRICT, LenientCheck, compile_schema

ALTERNATIVES = [
    {"type": "object", "required": [f"k{number}"], "properties": {f"k{number}": {"type": "string"}}}
    for number in range(60)
]
ITEMS: dict[str, dict[str, Any]] = {
    "any of objects": {"type": "array", "items": {"anyOf": ALTERNATIVES}},
    "one of objects": {"type": "array", "items": {"oneOf": ALTERNATIVES}},
    "array in an alternative": {
        "oneOf": [{"type": "array", "items": {"anyOf": ALTERNATIVES}}, {"type": "boolean"}]
    },
    "enum": {"type": "array", "items": {"enum": [f"v{number}" for number in range(300)]}},
}


def explain(schema: dict[str, Any], mode: str, arguments: dict[str, Any]) -> str:
    check = compile_schema({"type": "object", "properties": {"values": schema}}, mode)
    problem = check(arguments)
    assert problem is not None
    if isinstance(check, LenientCheck):
        problem = check.find_problem(arguments, problem)
    return problem


@pytest.mark.parametrize("mode", [STRICT, LENIENT])
@pytest.mark.parametrize("schema", ITEMS.values(), ids=ITEMS)
def test_cost_of_a_refusal_does_not_grow_with_the_arguments(
    schema: dict[str, Any], mode: str
) -> None:
    few, many = {"values": [1.5] * 200}, {"values": [1.5] * 12_800}
    assert explain(schema, mode, many)
    small = measure_cpu(lambda: explain(schema, mode, few))
    # 64 times the items: described one by one, they take 64 times as long.
    assert measure_cpu(lambda: explain(schema, mode, many)) < 8 * max(small, 0.001)


def test_misspelt_arguments_are_cut_before_they_are_compared() -> None:
    names = [f"a_rather_long_name_of_a_property_number_{number:03}" for number in range(60)]
    schema = {"type": "object", "properties": {name: {} for name in names}}
    few, many = ({f"{name}x{copy}": 1 for name in names[:5] for copy in range(copies)}
                 for copies in (1, 40))  # fmt: skip
    assert "did you mean" in find_misspelt(schema, many)
    small = measure_cpu(lambda: find_misspelt(schema, few))
    assert measure_cpu(lambda: find_misspelt(schema, many)) < 8 * small


BOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "library": {"type": "string"},
        "count": {"type": "integer"},
        "sort": {"enum": ["name", "date"]},
        "author": {"type": "object", "required": ["name"], "properties": {"age": {"minimum": 0}}},
    },
    "required": ["query", "library"],
}


@pytest.mark.parametrize("mode", [STRICT, LENIENT])
def test_all_problems_are_named(mode: str) -> None:
    missing = '"query" is a required property; "library" is a required property'
    assert explain_whole(BOOK, mode, {}) == missing
    problem = explain_whole(BOOK, mode, {"count": "x", "sort": "size", "author": {"age": -1}})
    for part in (
        '"query" is a required', '"library" is a required', 'count: "x" is not of type "integer"',
        'sort: "size" is not one of', 'author: "name" is a required', "author/age: -1 is less",
    ):  # fmt: skip
        assert part in problem, problem
    assert problem.count("; ") == 5


def test_what_a_server_converts_is_not_named_as_a_problem() -> None:
    problem = explain_whole(BOOK, LENIENT, {"query": "q", "count": "5", "sort": "size"})
    assert '"library" is a required property' in problem and "sort: " in problem
    assert "count" not in problem
    assert "count" in explain_whole(BOOK, STRICT, {"query": "q", "count": "5"})


@pytest.mark.parametrize("mode", [STRICT, LENIENT])
def test_named_problems_are_bounded(mode: str) -> None:
    names = [f"p{number}" for number in range(40)]
    schema = {
        "type": "object",
        "properties": {key: {"type": "integer"} for key in names},
        "required": names,
    }
    problem = explain_whole(schema, mode, {"p0": "x"})
    assert '"p1" is a required property; "p2"' in problem and problem.endswith("; and more")
    assert problem.count("; ") == 10
    # Too many values to describe all errors of: what is missing is named nevertheless.
    large = {"p0": "x", "more": [[1] * 50] * 1_000}
    assert explain_whole(schema, mode, large).count("is a required property") == 10


@pytest.mark.parametrize("mode", [STRICT, LENIENT])
def test_cost_of_a_refusal_does_not_grow_with_the_required_names(mode: str) -> None:
    def build(count: int) -> Any:
        required = [f"name_{number}" for number in range(count)]
        check = compile_schema({"type": "object", "required": required}, mode)
        problem = check({})
        assert problem is not None and problem.count("is a required property") == 10
        return lambda: check({})

    small = measure_cpu(build(3_000))
    assert measure_cpu(build(300_000)) < 8 * max(small, 0.001)


def explain_whole(schema: dict[str, Any], mode: str, arguments: dict[str, Any]) -> str:
    check = compile_schema(schema, mode)
    problem = check(arguments)
    assert problem is not None
    return check.find_problem(arguments, problem) if isinstance(check, LenientCheck) else problem


def test_explanation_names_what_is_wrong_in_the_first_items() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    problem = explain(schema, LENIENT, {"values": [1, "x", *range(50_000)]})
    assert problem == 'values/1: "x" is not of type "integer"'


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, [*range(50_000), "x"]),
        ({"type": "array", "minItems": 60_000}, list(range(50_000))),
        ({"type": "array", "uniqueItems": True}, [*range(50_000), 1]),
        ({"type": "object", "required": ["last"]}, {f"m{one}": 1 for one in range(50_000)}),
        ({"type": "string", "pattern": "b$"}, "a" * 5_000_000),
    ],
)
def test_explanation_does_not_invent_an_error_that_the_sample_alone_has(
    schema: dict[str, Any], value: Any
) -> None:
    problem = explain(schema, STRICT, {"values": value})
    assert problem == MISMATCH or "60000" in problem.replace(",", "")


def test_small_arguments_are_explained_whole() -> None:
    arguments = {"a": [1, {"b": "x" * MAX_TEXT}], "c": None}
    assert sample_arguments(arguments, 10) is arguments


def test_sample_has_the_first_values_of_each_level() -> None:
    arguments = {"text": "x" * 1_000_000, "list": [[number] * 50 for number in range(5_000)]}
    sample = sample_arguments(arguments, 1)
    assert sample["text"] == "x" * MAX_TEXT
    assert len(sample["list"]) == MAX_ITEMS
    assert sample["list"][3] == [3] * MAX_ITEMS
    assert is_whole(sample, arguments, ["list", 3, 5])
    assert not is_whole(sample, arguments, ["list", 3])
    assert not is_whole(sample, arguments, ["list", 4_000])
    assert not is_whole(sample, arguments, ["text"])


def test_pattern_of_a_server_is_matched_in_linear_time() -> None:
    schema = {"type": "string", "pattern": r"^(a|aa)+$"}
    check = compile_schema({"type": "object", "properties": {"values": schema}}, STRICT)
    assert check({"values": "a" * 100_000 + "!"})
    assert check({"values": "a" * 100_000}) is None


@pytest.mark.parametrize("pattern", [r"(a+)+\1$", r"^(?=.*b)(a|aa)+$"])
def test_pattern_that_only_backtracking_can_match_is_left_to_the_server(pattern: str) -> None:
    schema = {"properties": {"values": {"type": "string", "pattern": pattern, "maxLength": 50}}}
    check = compile_schema(schema, STRICT)
    assert check({"values": "a" * 44 + "!"}) is None
    assert check({"values": "a" * 51})
