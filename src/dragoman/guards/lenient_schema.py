"""Relaxes a schema to what servers accept that convert their arguments. Pure.

Most servers accept `"1"` for an integer, `null` for an optional argument, a list written as JSON,
and unknown arguments: pydantic and zod convert or ignore these, which no schema says. The result of
`relax` accepts all that such a server may accept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dragoman.core.nearest_names import find_nearest
from dragoman.guards.schema_references import DATA, NAMED

_INTEGER = r"^\s*[+-]?[0-9][0-9_]*(\.0*)?\s*$"
_NUMBER = r"^\s*[+-]?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+|inf|infinity|nan)([eE][+-]?[0-9]+)?\s*$"
_TRUE, _FALSE = ("true", "1", "yes", "y", "on", "t"), ("false", "0", "no", "n", "off", "f")
_TRUTHS = [
    spelled for word in (*_TRUE, *_FALSE) for spelled in {word, word.upper(), word.capitalize()}
]
_TYPES: Mapping[str, list[dict[str, Any]]] = {
    "integer": [{"type": ["integer", "boolean"]}, {"type": "string", "pattern": _INTEGER}],
    "number": [{"type": ["number", "boolean"]}, {"type": "string", "pattern": _NUMBER}],
    "boolean": [{"type": "boolean"}, {"enum": [0, 1, *_TRUTHS]}],
    "string": [{"type": ["string", "number", "boolean"]}],
    "array": [{"type": "array"}, {"type": "string", "pattern": r"^\s*\["}],
    "object": [{"type": "object"}, {"type": "string", "pattern": r"^\s*\{"}],
    "null": [{"type": "null"}, {"type": "string", "pattern": r"^\s*null\s*$"}],
}
_DROPPED = frozenset({
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems",
    "unevaluatedProperties", "unevaluatedItems", "dependentSchemas", "dependencies",
    "propertyNames", "minProperties", "maxProperties", "additionalProperties", "additionalItems",
})  # fmt: skip
"""What could refuse a value before it is converted; the server checks that itself."""
_DEFINED = frozenset(("patternProperties", "$defs", "definitions"))
_LISTED = frozenset(("anyOf", "allOf", "prefixItems"))
MAX_NAMED = 5
MAX_NAME = 100
ALIKE = 0.75


def relax(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    relaxed: dict[str, Any] = {}
    demands: list[dict[str, Any]] = []
    for word, value in schema.items():
        if word == "type":
            kinds = value if isinstance(value, list) else [value]
            demands.append({"anyOf": [one for kind in kinds for one in _TYPES.get(kind, ())]})
        elif word == "properties" and isinstance(value, dict):
            required = schema.get("required")
            needed = required if isinstance(required, list) else []
            relaxed[word] = {
                name: relax(inner)
                if name in needed
                else {"anyOf": [relax(inner), {"type": "null"}]}
                for name, inner in value.items()
            }
        elif word in ("enum", "const"):
            values = value if word == "enum" and isinstance(value, list) else [value]
            demands.append({"enum": [*values, *(text for one in values for text in _texts(one))]})
        elif word in _DEFINED and isinstance(value, dict):
            relaxed[word] = {name: relax(inner) for name, inner in value.items()}
        elif word in _LISTED and isinstance(value, list):
            relaxed[word] = [relax(inner) for inner in value]
        elif word == "oneOf" and isinstance(value, list):  # several branches may match now
            demands.append({"anyOf": [relax(inner) for inner in value]})
        elif word == "items":
            relaxed[word] = (
                [relax(one) for one in value] if isinstance(value, list) else relax(value)
            )
        elif word not in _DROPPED:
            relaxed[word] = value
    if demands:
        relaxed["allOf"] = [*relaxed.get("allOf", []), *demands]
    return relaxed


def _texts(value: Any) -> list[Any]:
    if value is True or value is False:
        return [one for one in _TRUTHS if (one.lower() in _TRUE) is value]
    if isinstance(value, int | float):
        return [str(value)]
    return ["null"] if value is None else []


def strip_patterns(schema: Any, is_regex: Callable[[str], bool]) -> Any:
    """Removes the patterns that this regex engine cannot parse; the server checks them."""
    if isinstance(schema, list):
        return [strip_patterns(one, is_regex) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for word, value in schema.items():
        if word == "pattern" and isinstance(value, str) and not is_regex(value):
            continue
        if word == "patternProperties" and isinstance(value, dict):
            value = {one: inner for one, inner in value.items() if is_regex(one)}
            if len(value) < len(schema[word]):
                kept["additionalProperties"] = True
        if word == "additionalProperties" and word in kept:
            continue
        if word in NAMED and isinstance(value, dict):  # an argument may be called "default"
            kept[word] = {name: strip_patterns(inner, is_regex) for name, inner in value.items()}
        else:
            kept[word] = value if word in DATA else strip_patterns(value, is_regex)
    return kept


# --- misspelt names ------------------------------------------------------------------------------


def find_misspelt(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Names unknown arguments that look like a missing one; empty if there are none."""
    known, unknown = _split_names(schema, arguments)
    left = {_fold(name): name for name in known if name not in arguments}
    found = []
    for name in unknown[:MAX_NAMED]:  # a caller may send any number of them
        if near := find_nearest(_fold(name), left, cutoff=ALIKE):
            found.append(f'unknown argument {quote_names([name])}: did you mean "{left[near]}"?')
    return "; ".join(found)


def name_unknown(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Names the unknown arguments of a call that lacks a required one."""
    _, unknown = _split_names(schema, arguments)
    word = "argument" if len(unknown) == 1 else "arguments"
    return f"unknown {word} {quote_names(unknown)}" if unknown else ""


def quote_names(names: Sequence[str]) -> str:
    """Quotes the first of `names`, shortened, for a message."""
    return ", ".join(f'"{name[:MAX_NAME]}"' for name in names[:MAX_NAMED])


def _split_names(
    schema: Mapping[str, Any], arguments: Mapping[str, Any]
) -> tuple[Collection[str], list[str]]:
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    if not known or "patternProperties" in schema or len(known) + len(arguments) > 1_000:
        return known, []
    return known, [name for name in arguments if name not in known]


def _fold(name: str) -> str:
    return name[:MAX_NAME].lower().replace("_", "").replace("-", "")
