"""The inputs of a workflow: how a definition declares them, and the check of those of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dragoman.core.errors import InvalidInput
from dragoman.workflows.json_schema import find_violations, suggest
from dragoman.workflows.model import Input, Workflow


def build_input(name: str, written: Any) -> Input:
    """Builds an input from its declaration: the name of a type, or a JSON Schema in which
    `required` may be true or false. Raises `InvalidInput`."""
    if isinstance(written, str):
        return Input(schema={"type": written})
    schema = dict(written)
    has_default = "default" in schema
    required = schema.get("required")
    if isinstance(required, bool):
        del schema["required"]
    if required is True and has_default:
        raise InvalidInput(f'the input "{name}" is required and has a default; remove one of them')
    if has_default:
        for violation in find_violations(schema["default"], schema, {}, (name,)):
            raise InvalidInput(f'the default of the input "{name}" is invalid: {violation.message}')
    return Input(
        schema=schema,
        required=required if isinstance(required, bool) else not has_default,
        default=schema.get("default"),
    )


def resolve_inputs(workflow: Workflow, given: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the inputs of a run and adds the defaults. Raises `InvalidInput`, which names the
    first input that is unknown, missing or invalid."""
    declared = workflow.inputs
    if declared is None:
        return dict(given)
    for name in given:
        if name not in declared:
            hint = suggest(name, list(declared))
            raise _build_error(workflow, f"has no input {json.dumps(name[:80])}; {hint}")
    found: dict[str, Any] = {}
    for name, one in declared.items():
        if name in given:
            for violation in find_violations(given[name], one.schema, {}, (name,)):
                raise _build_error(workflow, f"got an invalid input: {violation.message}")
            found[name] = given[name]
        elif one.required:
            raise _build_error(workflow, f'needs the input "{name}"{_describe(one)}')
        elif "default" in one.schema:
            found[name] = one.default
    return found


def build_input_schema(workflow: Workflow) -> dict[str, Any]:
    """Builds the JSON Schema of all inputs, for the tool of an exposed workflow."""
    if workflow.inputs is None:
        return {"type": "object"}
    return {
        "type": "object",
        "properties": {name: dict(one.schema) for name, one in workflow.inputs.items()},
        "required": [name for name, one in workflow.inputs.items() if one.required],
        "additionalProperties": False,
    }


def _describe(one: Input) -> str:
    text = one.schema.get("description") or one.schema.get("title")
    return f": {text}" if text else ""


def _build_error(workflow: Workflow, words: str) -> InvalidInput:
    return InvalidInput(f'the workflow "{workflow.name}" {words}')
