"""MCP's words to the hub's and back: definitions to tools, results to results. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.call import ABSENT, Result
from dragoman.core.errors import BadReply
from dragoman.core.ports import SchemaCompiler
from dragoman.core.tool import Target, Tool
from dragoman.mcp.names import alias_name, canonical_name, distinct, other_names
from dragoman.wire.json import encode

MAX_NAME = 256
_SPOKEN_FOR = frozenset({"content", "structuredContent", "isError"})


class BadTool(ValueError):
    """A definition that cannot be offered; the text says why."""


def tool_from_definition(
    definition: Any,
    target: Target,
    taken: Mapping[str, str],
    compile_schema: SchemaCompiler,
    prefix: str | None = None,
) -> Tool:
    """A server's tool as the hub offers it. `taken` are the names given already, and to which."""
    if not isinstance(definition, dict):
        raise BadTool("it is no object")
    name = definition.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise BadTool(f"its name is no text of 1 to {MAX_NAME} characters")
    schema = definition.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise BadTool(f'"{name}" has no inputSchema of type object')
    description = definition.get("description", "")
    if not isinstance(description, str | None):
        raise BadTool(f'"{name}" has a description that is no text')
    try:
        validate = compile_schema(schema)
    except ValueError as error:
        raise BadTool(f'"{name}" has a bad inputSchema: {error}') from None
    canonical = canonical_name(target.name, name)
    if taken.get(canonical, name) != name:
        canonical = distinct(canonical, name)
    if canonical in taken:
        raise BadTool(f'"{name}" is listed twice')
    others = other_names(target.name, prefix, name, canonical)
    return Tool(
        name=canonical,
        alias=others.pop("seed", "") or alias_name(target.name, name),
        other_names=others,
        remote_name=name,
        description=f"[MCP:{target.name}] {description or ''}".rstrip(),
        definition=definition,
        validate=validate,
        target=target,
    )


def result_from_mcp(value: Any, size: int, server: str) -> Result:
    """What a server answered to `tools/call`, whole."""
    if not isinstance(value, dict):
        raise BadReply(f'server "{server}" answered a call with no object')
    kind = value.get("resultType", "complete")
    if kind != "complete":
        raise BadReply(
            f'server "{server}" answered a call with a result of type "{kind}", which this hub '
            "cannot carry on"
        )
    content = value.get("content", [])
    if not isinstance(content, list):
        raise BadReply(f'server "{server}" answered a call with content that is no list')
    return Result(
        content=content,
        structured=value.get("structuredContent", ABSENT),
        failed=value.get("isError") is True,
        extra={key: item for key, item in value.items() if key not in _SPOKEN_FOR},
        size=size,
    )


def mcp_from_result(result: Result) -> dict[str, Any]:
    """A result in MCP's newest form; `revisions.shape_result` makes the older ones of it."""
    value: dict[str, Any] = {"content": result.content, **result.extra}
    if result.structured is not ABSENT:
        value["structuredContent"] = result.structured
        if not result.content:
            value["content"] = [{"type": "text", "text": encode(result.structured).decode()}]
    if result.failed:
        value["isError"] = True
    return value


def meta_to_pass(params: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's `_meta` without what belongs to this hop."""
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        return {}
    return {
        key: value
        for key, value in meta.items()
        if key != "progressToken" and not key.startswith("io.modelcontextprotocol/")
    }
