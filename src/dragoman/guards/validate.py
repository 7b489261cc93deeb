"""Arguments against the tool's schema, compiled at registration, before anything leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

import jsonschema_rs

from dragoman.core.call import Call, Result
from dragoman.core.errors import InvalidInput
from dragoman.core.pipeline import Next
from dragoman.core.tool import Validator, anything

MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_NODES = 20_000


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
    try:
        validator = jsonschema_rs.validator_for(dict(schema), offline=True)
    except jsonschema_rs.ValidationError as error:
        if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
            return anything  # points outside itself: only the far side can check that
        raise ValueError(_short(error.message)) from None

    def validate(arguments: Mapping[str, Any]) -> str | None:
        if validator.is_valid(arguments):
            return None
        for error in validator.iter_errors(arguments):
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


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."
