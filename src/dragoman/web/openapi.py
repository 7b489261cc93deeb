"""The OpenAPI document of the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman import __version__


def build_document(more: Sequence[tuple[Any, ...]] = ()) -> dict[str, Any]:
    """`more` are the operations of the parts with their own modules."""
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
        "paths": _build_paths(more),
    }


def _build_paths(more: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, method, *about in [*_OPERATIONS, *more]:
        paths.setdefault(path, {})[method] = _build_operation(path, *about)
    return paths


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

_OPERATIONS: list[tuple[Any, ...]] = [
    ("/", "get", "What this is, as text", None, []),
    ("/healthz", "get", "Whether the hub is alive", None, []),
    ("/readyz", "get", "Whether the hub serves", None, [503]),
    ("/metrics", "get", "Counters for Prometheus; needs admin or the scope metrics", None, [403]),
    ("/openapi.json", "get", "This document", "Object", []),
    ("/api/status", "get", "The hub: version, uptime, counts", "Object", []),
    ("/api/mcp/servers", "get", "MCP servers, configured and connected", "Object", []),
    ("/api/mcp/servers/{name}/logs", "get", "The end of a server's stderr", "Object", [403, 404]),
    ("/api/tools", "get", "All tools", "Tools", []),
    ("/api/tools/{name}", "get", "One tool, by name or id", "Tool", [404, 409]),
    (
        "/api/tools/{name}/call",
        "post",
        "Call a tool",
        "Result",
        [400, 403, 404, 409, 502, 503, 504],
        "Arguments",
    ),
]


def _build_operation(
    path: str, summary: str, answer: str | None, errors: list[int], body: str | None = None
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": _build_content(answer)}}
    for status in [401, *errors] if answer is not None else errors:
        operation["responses"][str(status)] = _build_content("Error", "It could not be done")
    if "{name}" in path:
        name = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
        operation["parameters"] = [name]
    if body is not None:
        operation["requestBody"] = {"required": True, **_build_content(body)}
        operation["requestBody"].pop("description")
    return operation


def _build_content(schema: str | None, description: str = "As asked") -> dict[str, Any]:
    if schema is None:
        return {"description": description, "content": {"text/plain": {"schema": _TEXT}}}
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": description, "content": {"application/json": {"schema": reference}}}
