"""Arguments against the tool's schema, compiled at registration, before anything leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

from dragoman.core.call import Call, Result
from dragoman.core.errors import InvalidInput
from dragoman.core.pipeline import Next
from dragoman.core.tool import Validator, anything

MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_NODES = 20_000
MAX_EXPANDED = 250_000
"""Parts to be checked when every reference is followed: a short schema can come to 2^60 of them."""
MAX_EXPLAINED = 1_000
"""To say what is wrong costs a thousand times more than to find that something is."""


class Validate:
    def __call__(self, call: Call, next: Next) -> Awaitable[Result]:
        problem = call.tool.validate(call.arguments)
        if problem is not None:
            raise InvalidInput(f'the arguments of "{call.tool.name}" do not fit: {problem}')
        return next(call)  # it has nothing to do on the way back


def compile_schema(schema: Mapping[str, Any]) -> Validator:
    """A validator that fetches nothing; ValueError says what is wrong with the schema."""
    _measure(schema)
    if not schema.keys() - {"type"} and schema.get("type", "object") == "object":
        return anything
    size = _expanded_size(schema)
    if size is None:
        return anything
    try:
        validator = jsonschema_rs.validator_for(dict(schema), offline=True)
    except jsonschema_rs.ValidationError as error:
        if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
            return anything  # points outside itself: only the far side can check that
        raise ValueError(_short(error.message)) from None
    explainer = validator
    if size > MAX_EXPLAINED:
        explainer = jsonschema_rs.validator_for(_outline(schema), offline=True)

    def validate(arguments: Mapping[str, Any]) -> str | None:
        if validator.is_valid(arguments):
            return None
        try:
            explainer.validate(arguments)  # stops at the first; `iter_errors` would find them all
        except jsonschema_rs.ValidationError as error:
            place = "/".join(str(step) for step in error.instance_path)
            return _short(f"{place}: {error.message}" if place else error.message)
        return "they do not match the schema"

    return validate


def _measure(schema: Any) -> None:
    """Refuses what is too large or too deep to be a schema of arguments."""
    level, nodes = [schema], 0
    for _ in range(MAX_SCHEMA_DEPTH):
        inner: list[Any] = []
        for item in level:
            values = item.values() if isinstance(item, dict) else item
            inner.extend(value for value in values if isinstance(value, dict | list))
        nodes += len(inner)
        if nodes > MAX_SCHEMA_NODES:
            raise ValueError(f"the schema has more than {MAX_SCHEMA_NODES} parts")
        if not inner:
            return
        level = inner
    raise ValueError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}")


class _Elsewhere(Exception):
    """A reference by name rather than by place; what it leads to only an engine can tell."""


def _expanded_size(schema: Mapping[str, Any]) -> int | None:
    """How many parts the schema has once its references are followed, one that leads back to itself
    counting as very many; None where they cannot be followed here."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(node: Any) -> int:
        key = id(node)
        if key in open_:
            return MAX_EXPLAINED  # recursive: the engine keeps what it found, its words it does not
        if key not in sizes:
            open_.add(key)
            values = node.values() if isinstance(node, dict) else node
            total = 1 + sum(size(value) for value in values if isinstance(value, dict | list))
            if isinstance(node, dict):
                total += sum(size(target) for target in _targets(node, schema))
            open_.remove(key)
            if total > MAX_EXPANDED:
                raise ValueError(f"it comes to more than {MAX_EXPANDED} parts with its references")
            sizes[key] = total
        return sizes[key]

    try:
        return size(schema)
    except _Elsewhere:
        return None
    except RecursionError:
        raise ValueError("its references lead too deep") from None


def _targets(node: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    """What the references of `node` lead to."""
    if node is not root and isinstance(node.get("$id"), str):
        raise _Elsewhere
    found: list[Any] = []
    for word in ("$ref", "$recursiveRef", "$dynamicRef"):
        reference = node.get(word)
        if not isinstance(reference, str):
            continue
        if reference != "#" and not reference.startswith("#/"):
            raise _Elsewhere
        target: Any = root
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and step.isdigit() and int(step) < len(target):
                target = target[int(step)]
            else:
                target = target.get(step) if isinstance(target, dict) else None
        if isinstance(target, dict | list):
            found.append(target)
    return found


def _outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The outermost demands alone, which nearly all mistakes are about."""
    outline: dict[str, Any] = {
        word: schema[word]
        for word in ("type", "required", "additionalProperties")
        if word in schema and (word != "additionalProperties" or schema[word] is False)
    }
    properties = schema.get("properties")
    if isinstance(properties, dict):
        outline["properties"] = {
            name: {"type": inner["type"]} if isinstance(inner, dict) and "type" in inner else {}
            for name, inner in properties.items()
        }
    if "patternProperties" in schema:
        outline.pop("additionalProperties", None)
    return outline


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."
