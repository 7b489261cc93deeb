"""The operations of the API, and the OpenAPI document that describes them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from dragoman import __version__

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    """`{name}` stands for one segment."""
    summary: str
    errors: tuple[int, ...] = ()
    body: str | None = None
    """The schema of the body; None if there is none."""
    answer: str | None = "Object"
    """The schema of the response; None for plain text."""
    admin: bool = False
    """Whether the API refuses principals without the action `admin`."""
    calls: bool = False
    """Whether it makes a call, which the pipeline charges."""

    @property
    def pattern(self) -> str:
        return re.escape(self.path).replace(r"\{name\}", "([^/]+)")


EVENTS = Operation(
    "GET",
    "/api/events",
    "Live events as server-sent events",
    (400, 401, 403, 429, 503),
    answer=None,
)
"""Served by a stream that is mounted beside the API."""


def route(
    where: str,
    summary: str,
    errors: tuple[int, ...] = (),
    body: str | None = "Object",
    answer: str | None = "Object",
    admin: bool = False,
    calls: bool = False,
) -> Callable[[Handler], Handler]:
    """Marks a method as the handler of `where`, a method and a path. Only POST and PATCH have a
    `body`."""
    method, path = where.split(" ")
    schema = body if method in ("POST", "PATCH") else None
    operation = Operation(method, path, summary, errors, schema, answer, admin, calls)

    def mark(handler: Handler) -> Handler:
        vars(handler)["operation"] = operation
        return handler

    return mark


def admin_route(
    where: str, summary: str, errors: tuple[int, ...] = (), body: str | None = "Object"
) -> Callable[[Handler], Handler]:
    """Like `route`, for a handler that only administrators reach: the API refuses others."""
    return route(where, summary, tuple(sorted({*errors, 403})), body, admin=True)


def list_routes(part: object) -> Iterator[tuple[Operation, Callable[..., Awaitable[Any]]]]:
    """Lists the operations whose handlers are methods of `part`."""
    for name, member in vars(type(part)).items():
        operation = getattr(member, "operation", None)
        if isinstance(operation, Operation):
            yield operation, getattr(part, name)


def build_document(operations: Iterable[Operation]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in (*operations, EVENTS):
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dragoman",
            "version": __version__,
            "description": "An agent interoperability hub. MCP clients use POST /mcp.",
        },
        "security": [{"key": []}, {}],
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": _SCHEMAS,
        },
        "paths": paths,
    }


_TEXT: dict[str, Any] = {"type": "string"}
_SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message"],
                "properties": {
                    "message": _TEXT,
                    "kind": _TEXT,
                    "trace": {"type": ["string", "null"]},
                    "retry_after": {
                        "type": "number",
                        "description": "With 429: seconds after which there is budget for it.",
                    },
                },
            }
        },
    },
    "Tool": {
        "type": "object",
        "required": ["name", "id", "description", "source", "server"],
        "properties": {
            "name": {"type": "string", "description": "The listed name."},
            "id": {"type": "string", "description": "The canonical name, server.tool."},
            "description": _TEXT,
            "source": _TEXT,
            "server": _TEXT,
            "definition": {"type": "object", "description": "What the server said of it."},
        },
    },
    "Tools": {
        "type": "object",
        "required": ["tools", "total"],
        "properties": {
            "tools": {"type": "array", "items": {"$ref": "#/components/schemas/Tool"}},
            "total": {"type": "integer"},
        },
    },
    "Arguments": {
        "type": "object",
        "properties": {
            "arguments": {"type": "object"},
            "can": {
                "type": "array",
                "items": {"enum": ["form", "url"]},
                "description": "The kinds of questions that can be answered.",
            },
            "answers": {
                "type": "object",
                "description": "To the questions of the call before, by their names there.",
            },
            "handle": {"type": "string", "description": "What came with the questions."},
        },
        "additionalProperties": False,
    },
    "Result": {
        "type": "object",
        "required": ["content", "failed"],
        "properties": {
            "content": {"type": "array", "items": {"type": "object"}},
            "structured": {},
            "failed": {"type": "boolean", "description": "The tool ran and says it failed."},
            "extra": {"type": "object"},
            "questions": {
                "type": "object",
                "description": "There is no result yet: answer these, and call again.",
            },
            "handle": {"type": "string", "description": "Goes with the answers."},
        },
    },
    "Object": {"type": "object"},
}


def _describe(operation: Operation) -> dict[str, Any]:
    errors = operation.errors if operation.answer is None else (401, 429, *operation.errors)
    failed = _build_content("Error", "It could not be done")
    responses = {"200": _build_content(operation.answer), **{str(one): failed for one in errors}}
    described: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if "{name}" in operation.path:
        name = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
        described["parameters"] = [name]
    if operation.body is not None:
        described["requestBody"] = {"required": True, **_build_content(operation.body)}
        described["requestBody"].pop("description")
    return described


def _build_content(schema: str | None, description: str = "As asked") -> dict[str, Any]:
    if schema is None:
        return {"description": description, "content": {"text/plain": {"schema": _TEXT}}}
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": description, "content": {"application/json": {"schema": reference}}}
