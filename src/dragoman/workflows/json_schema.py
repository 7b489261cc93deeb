"""Checks JSON against the part of JSON Schema that definitions use, with messages of our own.

The guard of arguments has a complete validator; this one says what is wrong in one sentence, and
suggests the nearest key. A `title` is a noun phrase: "must be a time such as 30s".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from dragoman.core.nearest_names import find_nearest

Path = tuple[str | int, ...]
Schema = Mapping[str, Any]
KEYWORDS: Final = (
    "type", "enum", "const", "properties", "required", "additionalProperties", "items",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems",
)  # fmt: skip
"""The keywords that schemas of inputs may use. Patterns are not among them: a text from outside
could make one take forever."""


MAX_NEAREST: Final = 20
"""Violations of one of several options: the options around it look at each of them again."""


class Violation(NamedTuple):
    path: Path
    message: str


def find_violations(
    value: Any, schema: Schema, definitions: Mapping[str, Schema], path: Path = ()
) -> Iterator[Violation]:
    """Finds where a value breaks a schema. `definitions` are those that `$ref` names."""
    schema = _follow(schema, definitions)
    if "anyOf" in schema:
        yield from _check_options(value, schema, definitions, path)
        return
    if (wanted := schema.get("type")) is not None and not has_type(value, wanted):
        yield Violation(path, f"{name_path(path)} must be {_name_expected(schema)}")
        return
    if message := _check_choice(value, schema, path) or _check_bounds(value, schema, path):
        yield Violation(path, message)
        return
    if isinstance(value, Mapping):
        yield from _check_object(value, schema, definitions, path)
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from find_violations(item, schema["items"], definitions, (*path, index))


def has_type(value: Any, wanted: str | Sequence[str]) -> bool:
    return any(_HAS_TYPE[one](value) for one in ([wanted] if isinstance(wanted, str) else wanted))


def suggest(name: str, known: Sequence[str]) -> str:
    """Names the nearest known name, or some of them if there is none."""
    near = find_nearest(name, known, cutoff=0.5)
    if near:
        return f'did you mean "{near}"?'
    return f"known: {', '.join(known[:20])}" if known else "there is none"


def name_path(path: Path) -> str:
    """Names a value by its last key, such as `"requiredSkills[2]"`."""
    indexes = ""
    for step in reversed(path):
        if isinstance(step, str):
            return f'"{step[:80]}{indexes}"'
        indexes = f"[{step}]{indexes}"
    return "the definition"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_HAS_TYPE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == int(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
TYPES: Final = tuple(_HAS_TYPE)
_PHRASES: Final = {
    "object": "an object", "array": "a list", "string": "a text", "number": "a number",
    "integer": "a whole number", "boolean": "true or false", "null": "null",
}  # fmt: skip


def _follow(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    while (reference := schema.get("$ref")) is not None:
        schema = definitions[str(reference).removeprefix("#/$defs/")]
    return schema


def _name_expected(schema: Schema) -> str:
    if title := schema.get("title"):
        return str(title)
    wanted = schema.get("type", ())
    return " or ".join(_PHRASES[one] for one in ([wanted] if isinstance(wanted, str) else wanted))


def _check_options(
    value: Any, schema: Schema, definitions: Mapping[str, Schema], path: Path
) -> Iterator[Violation]:
    """Reports what is wrong with the option whose type the value has, if that says more."""
    nearest: list[Violation] = []
    for option in schema["anyOf"]:
        found = list(islice(find_violations(value, option, definitions, path), MAX_NEAREST))
        if not found:
            return
        fits = has_type(value, _follow(option, definitions).get("type", ()))
        if fits and isinstance(value, Mapping | list):
            nearest = nearest or found
    if nearest:
        yield from nearest
    else:
        yield Violation(path, f"{name_path(path)} must be {schema['title']}")


def _check_choice(value: Any, schema: Schema, path: Path) -> str:
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is None or any(value == one and type(value) is type(one) for one in choices):
        return ""
    if not isinstance(value, str):
        return f"{name_path(path)} must be one of {', '.join(map(json.dumps, choices))}"
    what = schema.get("title", "value")
    known = [one for one in choices if isinstance(one, str)]
    return f'{name_path(path)}: unknown {what} "{value[:80]}"; {suggest(value, known)}'


def _check_bounds(value: Any, schema: Schema, path: Path) -> str:
    def fail(words: str) -> str:
        return f"{name_path(path)} must {words}"

    if _is_number(value):
        for keyword, is_good, words in _NUMBER_BOUNDS:
            if keyword in schema and not is_good(value, schema[keyword]):
                return fail(f"be {words} {schema[keyword]}")
    pattern = schema.get("pattern") if isinstance(value, str) else None
    if pattern is not None and re.search(pattern, value) is None:
        return fail(f"be {schema['title']}")
    for kind, least, most, unit in (
        (str, "minLength", "maxLength", "characters"),
        (list, "minItems", "maxItems", "items"),
        (dict, "minProperties", "maxProperties", "members"),
    ):
        if isinstance(value, kind):
            if len(value) < schema.get(least, 0) == 1:
                return fail("not be empty")
            if len(value) < schema.get(least, 0):
                return fail(f"have at least {schema[least]} {unit}")
            if len(value) > schema.get(most, len(value)):
                return fail(f"have at most {schema[most]} {unit}")
    return ""


_NUMBER_BOUNDS: Final[Sequence[tuple[str, Callable[[Any, Any], bool], str]]] = (
    ("minimum", lambda value, bound: value >= bound, "at least"),
    ("maximum", lambda value, bound: value <= bound, "at most"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "more than"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "less than"),
)


def _check_object(
    value: Mapping[str, Any], schema: Schema, definitions: Mapping[str, Schema], path: Path
) -> Iterator[Violation]:
    known: Mapping[str, Schema] = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    where = schema.get("title", name_path(path))
    for key, inner in value.items():
        at = (*path, key)
        if key in known:
            yield from find_violations(inner, known[key], definitions, at)
        elif others is False:
            hint = suggest(key, list(known))
            yield Violation(at, f'unknown key "{key[:80]}" in {where}; {hint}')
        elif isinstance(others, Mapping):
            yield from find_violations(inner, others, definitions, at)
        if message := _check_key(key, schema):
            yield Violation(at, message)
    for key in schema.get("required", ()):
        if key not in value:
            yield Violation(path, f'{where} has no "{key}"')
    yield from _check_alternatives(value, schema, where, path)
    for rule in schema.get("allOf", ()):
        if not any(find_violations(value, rule["if"], definitions, path)):
            yield from find_violations(value, rule["then"], definitions, path)


def _check_key(key: str, schema: Schema) -> str:
    rule = schema.get("propertyNames")
    if rule is None or re.search(rule["pattern"], key):
        return ""
    return f'the name "{key[:80]}" must be {rule["title"]}'


def _check_alternatives(
    value: Mapping[str, Any], schema: Schema, where: str, path: Path
) -> Iterator[Violation]:
    """`oneOf` requires one of several keys, and no second one of them."""
    keys = [option["required"][0] for option in schema.get("oneOf", ())]
    given = [key for key in keys if key in value]
    if keys and not given:
        names = " or ".join(f'"{key}"' for key in keys)
        yield Violation(path, f"{where} needs {names}")
    elif len(given) > 1:
        names = " and ".join(f'"{key}"' for key in given)
        yield Violation((*path, given[1]), f"{where} has {names}; only one of them can be used")
