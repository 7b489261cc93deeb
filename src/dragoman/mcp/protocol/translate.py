"""Converts definitions to tools, calls to requests and results both ways. Pure.

Repairs what can be repaired in the result of a server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dragoman.core.call import ABSENT, Call, Result
from dragoman.core.errors import BadReply
from dragoman.core.ports import SchemaCompiler
from dragoman.core.resource_uris import MAX_URI, UI
from dragoman.core.tool import COMPLETION, PROMPT, RESOURCE, TOOL, Target, Tool
from dragoman.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    LOG_LEVEL_KEY,
    MODERN_KEY,
    R2506,
    Revision,
)
from dragoman.mcp.protocol.tool_names import build_alias, build_canonical_name, build_other_names
from dragoman.wire.json import encode

MAX_NAME = 256
MAX_COMPLETIONS = 100
"""Values of one completion (2025-03-26 and later)."""
_SPOKEN_FOR = frozenset({"content", "structuredContent", "isError"})


class BadTool(ValueError):
    """An invalid definition; the text says why."""


def tool_from_definition(
    definition: Any,
    target: Target,
    taken: Collection[str],
    compile_schema: SchemaCompiler,
    prefix: str | None = None,
) -> Tool:
    """Builds the hub's tool. `taken` are the names that precede it in the server's list."""
    if not isinstance(definition, dict):
        raise BadTool("it is not an object")
    name = definition.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise BadTool(f"its name is not a string of 1 to {MAX_NAME} characters")
    schema = definition.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise BadTool(f'"{name}" has no inputSchema of type object')
    description = definition.get("description", "")
    if not isinstance(description, str | None):
        raise BadTool(f'"{name}" has a description that is not a string')
    try:
        validate = compile_schema(schema)
    except ValueError as error:
        raise BadTool(f'"{name}" has an invalid inputSchema: {error}') from None
    canonical, alias, others = build_names(target, name, taken, prefix)
    return Tool(
        name=canonical,
        alias=alias,
        other_names=others,
        remote_name=name,
        description=f"[MCP:{target.name}] {description}" if description else "",
        definition=definition,
        validate=validate,
        destructive=_is_destructive(definition),
        resources=tuple(uri for _, uri in find_ui_addresses(definition)),
        is_for_models=_is_for_models(definition),
        target=target,
    )


UI_PLACES = (("ui", "resourceUri"), ("ui/resourceUri",), ("openai/outputTemplate",))
"""Where the `_meta` of a tool names its user interface: MCP Apps, its older form, and the form of
OpenAI's Apps SDK."""


def find_ui_addresses(definition: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each place in `_meta` that names a resource of the tool's user interface, and the address."""
    for place in UI_PLACES:
        value: Any = definition.get("_meta")
        for step in place:
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, str) and 0 < len(value) <= MAX_URI:
            yield place, value


def replace_ui_addresses(
    definition: Mapping[str, Any], readable: Callable[[str], str]
) -> Mapping[str, Any]:
    """Replaces the addresses by those under which clients can read the tool's user interface."""
    changed = [
        (place, shown)
        for place, uri in find_ui_addresses(definition)
        if (shown := readable(uri)) != uri
    ]
    if not changed:
        return definition
    meta = dict(definition["_meta"])
    for (first, *rest), shown in changed:
        meta[first] = {**meta[first], rest[0]: shown} if rest else shown
    return {**definition, "_meta": meta}


def select_ui(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Selects of `_meta` what hosts of MCP Apps read of a tool, for one with a user interface."""
    meta = definition.get("_meta")
    ui = meta.get("ui") if isinstance(meta, dict) else None
    found: dict[str, Any] = {}
    for place, uri in find_ui_addresses(definition):
        if not uri.startswith(UI) or not uri.isprintable():
            continue
        if place == UI_PLACES[0]:
            found["ui"] = {"resourceUri": uri}
            if isinstance(ui, dict) and isinstance(visibility := ui.get("visibility"), list):
                found["ui"]["visibility"] = [one for one in ("model", "app") if one in visibility]
        else:
            found[place[0]] = uri
    return found


def add_ui(definition: Mapping[str, Any], ui: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the definition with what `select_ui` selected of another one."""
    meta = definition.get("_meta")
    known = dict(meta) if isinstance(meta, dict) else {}
    for key, value in ui.items():
        before = known.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            value = {**before, **value}
        known[key] = value
    return {**definition, "_meta": known}


def _is_for_models(definition: Mapping[str, Any]) -> bool:
    """MCP Apps: a tool without `model` in its `visibility` is for the user interface alone."""
    meta = definition.get("_meta")
    ui = meta.get("ui") if isinstance(meta, dict) else None
    visibility = ui.get("visibility") if isinstance(ui, dict) else None
    return not isinstance(visibility, list) or "model" in visibility


def _is_destructive(definition: Mapping[str, Any]) -> bool:
    """Whether the annotations declare it; a tool without annotations is not."""
    hints = definition.get("annotations")
    if not isinstance(hints, dict) or hints.get("readOnlyHint") is True:
        return False
    return hints.get("destructiveHint") is True


def build_names(
    target: Target, name: str, taken: Collection[str], prefix: str | None
) -> tuple[str, str, dict[str, str]]:
    """Returns the canonical name, the alias and the other names of a server's tool or prompt."""
    if name in taken:
        raise BadTool(f'"{name}" is listed twice')
    others = build_other_names(target.name, prefix, name)
    alias = others.pop("legacy", "") or build_alias(target.name, name)
    return build_canonical_name(target.name, name), alias, others


METHODS = {
    TOOL: "tools/call",
    PROMPT: "prompts/get",
    RESOURCE: "resources/read",
    COMPLETION: "completion/complete",
}


def request_from_call(call: Call, revision: Revision) -> dict[str, Any]:
    """Builds the parameters of `METHODS[call.tool.kind]` for a server of `revision`."""
    tool, arguments = call.tool, call.arguments
    params: dict[str, Any]
    if tool.kind == TOOL:
        params = {"name": tool.remote_name, "arguments": arguments}
    elif tool.kind == PROMPT:
        params = {"name": tool.remote_name}
        if arguments:
            params["arguments"] = arguments
    elif tool.kind == RESOURCE:
        params = {"uri": tool.remote_name}
    else:
        params = {"ref": _build_reference(call), "argument": arguments.get("argument")}
        if revision >= R2506 and isinstance(arguments.get("context"), dict):
            params["context"] = arguments["context"]
    meta, carried = call.meta, call.trace.build_context()
    params["_meta"] = {**meta, **carried} if meta else carried  # the trace is the hub's
    return params


def _build_reference(call: Call) -> dict[str, Any]:
    tool, given = call.tool, call.arguments.get("ref")
    if "uriTemplate" in tool.definition or "uri" in tool.definition:
        return {"type": "ref/resource", "uri": tool.remote_name}
    title = given.get("title") if isinstance(given, dict) else None
    titled = {"title": title} if isinstance(title, str) else {}
    return {"type": "ref/prompt", "name": tool.remote_name, **titled}


def result_from_mcp(value: Any, size: int, server: str) -> Result:
    """What a server answered to `tools/call`, whole."""
    if not isinstance(value, dict):
        raise BadReply(f'server "{server}" answered a call with no object')
    kind = value.get("resultType", "complete")
    if kind != "complete":
        raise build_unknown_result_error(kind, server)
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


def build_unknown_result_error(kind: Any, server: str) -> BadReply:
    return BadReply(
        f'server "{server}" answered a call with a result of type "{str(kind)[:100]}", which this '
        "hub cannot carry on"
    )


def result_from_reply(tool: Tool, value: Any, size: int, server: str) -> Result:
    """What a server answered to a call of another kind than a tool's."""
    if not isinstance(value, dict):
        raise BadReply(f'server "{server}" answered a call with no object')
    if tool.kind == PROMPT:
        return _prompt(value, size, server)
    if tool.kind == RESOURCE:
        return _resource(value, size, server, tool.remote_name)
    return _completion(value, size, server)


def _prompt(value: Mapping[str, Any], size: int, server: str) -> Result:
    messages = value.get("messages", [])
    if not isinstance(messages, list):
        raise BadReply(f'server "{server}" answered with messages that are no list')
    content: list[Any] = []
    roles: list[str] = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        said = message.get("content") if isinstance(message, dict) else message
        for block in said if isinstance(said, list) else [said]:
            if isinstance(block, str):
                block = {"type": "text", "text": block}
            if not isinstance(block, dict):
                raise BadReply(f'server "{server}" answered with an invalid message')
            content.append(block)
            roles.append(role if role in ("user", "assistant") else "user")
    extra = {key: item for key, item in value.items() if key != "messages"}
    return Result(content=content, extra={**extra, "roles": roles}, size=size)


def _resource(value: Mapping[str, Any], size: int, server: str, uri: str) -> Result:
    contents = value.get("contents", [])
    if isinstance(contents, dict):
        contents = [contents]
    if not isinstance(contents, list):
        raise BadReply(f'server "{server}" answered with contents that are no list')
    # 2026-07-28, resources: an empty list is ambiguous and must not be sent.
    found = [_content(item, uri, server) for item in contents] or [{"uri": uri, "text": ""}]
    extra = {key: item for key, item in value.items() if key != "contents"}
    if "ttlMs" in extra and not (type(extra["ttlMs"]) is int and extra["ttlMs"] >= 0):
        extra["ttlMs"] = 0
    if "cacheScope" in extra and extra["cacheScope"] not in ("public", "private"):
        extra["cacheScope"] = "private"
    content = [{"type": "resource", "resource": item} for item in found]
    return Result(content=content, extra=extra, size=size)


def _content(item: Any, uri: str, server: str) -> Mapping[str, Any]:
    if not isinstance(item, str | dict):
        raise BadReply(f'server "{server}" answered with contents that are none')
    content: dict[str, Any] = {"text": item} if isinstance(item, str) else item
    if not isinstance(content.get("uri"), str):
        content = {**content, "uri": uri}
    if not isinstance(content.get("text"), str) and not isinstance(content.get("blob"), str):
        content = {**content, "text": ""}
    return content


def _completion(value: Mapping[str, Any], size: int, server: str) -> Result:
    completion = value.get("completion")
    values = completion.get("values") if isinstance(completion, dict) else None
    if not isinstance(completion, dict) or not isinstance(values, list):
        raise BadReply(f'server "{server}" answered "completion/complete" with no values')
    fitting = [item for item in values if isinstance(item, str)]
    if len(fitting) > MAX_COMPLETIONS or len(fitting) != len(values):
        more = len(fitting) > MAX_COMPLETIONS
        completion = {**completion, "values": fitting[:MAX_COMPLETIONS]}
        if more:
            completion["hasMore"] = True
    extra = {key: item for key, item in value.items() if key != "completion"}
    return Result(structured=completion, extra=extra, size=size)


NO_COMPLETIONS = {"values": [], "hasMore": False}


def mcp_from_result(result: Result) -> dict[str, Any]:
    """Renders a result for the latest revision; `shape_result` shapes it for older ones."""
    if result.extra.get("resultType", "complete") != "complete":
        return dict(result.extra)  # an extension defines its members
    value: dict[str, Any] = {"content": result.content, **result.extra}
    if result.structured is not ABSENT:
        value["structuredContent"] = result.structured
        if not result.content:
            value["content"] = [{"type": "text", "text": encode(result.structured).decode()}]
    if result.failed:
        value["isError"] = True
    return value


OWN_PREFIX = "dragoman.hub/"
_USUAL_META = {MODERN_KEY, CAPABILITIES_KEY, CLIENT_KEY, LOG_LEVEL_KEY, "progressToken"}


def select_meta(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `_meta` of the request without what belongs to this hop."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or meta.keys() <= _USUAL_META:  # as with most requests
        return {}
    return {
        key: value
        for key, value in meta.items()
        if key != "progressToken" and not key.startswith("io.modelcontextprotocol/")
    }


def select_server_meta(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `_meta` of what a server has started, for the client: likewise, and without members
    of the hub itself, which a server may have copied from a call."""
    found = select_meta(params)
    return {key: value for key, value in found.items() if not key.startswith(OWN_PREFIX)}
