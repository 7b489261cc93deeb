"""Requests of every kind to calls, and what came of them to the words of the client's revision.

Pure. What a result is made of, per kind, is said in `core.call`; who may see which member, in
`revisions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.call import ABSENT, Result
from dragoman.core.errors import BadReply
from dragoman.core.tool import COMPLETION, PROMPT, RESOURCE, TOOL
from dragoman.mcp.protocol.revisions import Revision, shape_content, shape_members

METHODS = {
    "tools/call": TOOL,
    "prompts/get": PROMPT,
    "resources/read": RESOURCE,
    "completion/complete": COMPLETION,
}
MAX_VALUES = 100
"""Of a completion, in every revision."""

_NAMED = frozenset({TOOL, PROMPT})

Asked = tuple[str, dict[str, Any]]
"""The name and the arguments of a call."""

# --- requests ------------------------------------------------------------------------------------


def parse_call(kind: str, params: Mapping[str, Any], revision: Revision) -> Asked | str:
    """What a request asks for, or what is wrong with it."""
    if kind in _NAMED:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            return f'"name" must be the name of a {kind}'
        if arguments is None:
            return name, {}
        if not isinstance(arguments, dict):
            return '"arguments" must be an object'
        return name, arguments
    if kind == RESOURCE:
        uri = params.get("uri")
        return (uri, {}) if isinstance(uri, str) else '"uri" must be the address of a resource'
    return _completion_asked(params, revision)


def _completion_asked(params: Mapping[str, Any], revision: Revision) -> Asked | str:
    ref, argument, context = (params.get(key) for key in ("ref", "argument", "context"))
    member = {"ref/prompt": "name", "ref/resource": "uri"}
    kind = ref.get("type") if isinstance(ref, dict) else None
    name = (
        ref.get(member.get(kind, "")) if isinstance(ref, dict) and isinstance(kind, str) else None
    )
    if not isinstance(name, str):
        return '"ref" must name a prompt (ref/prompt) or a template (ref/resource)'
    if not isinstance(argument, dict) or not all(
        isinstance(argument.get(key), str) for key in ("name", "value")
    ):
        return '"argument" must be an object with a "name" and a "value"'
    arguments: dict[str, Any] = {"ref": ref, "argument": argument}
    if context is not None and revision.has_completion_context:
        if not isinstance(context, dict):
            return '"context" must be an object'
        arguments["context"] = context
    return name, arguments


# --- results -------------------------------------------------------------------------------------


def render_result(
    kind: str, result: Result, revision: Revision, name: str, *, fresh: bool
) -> dict[str, Any]:
    """The result of a call of `name`, but for a tool's; `fresh` says that it must not be kept."""
    if kind == PROMPT:
        return _prompt(result, revision)
    if kind == RESOURCE:
        return _resource(result, revision, name, fresh)
    return _completion(result, revision, name)


def _prompt(result: Result, revision: Revision) -> dict[str, Any]:
    extra = dict(result.extra)
    roles = extra.pop("roles", ())
    messages = [
        {
            "role": roles[number] if number < len(roles) else "user",
            "content": shape_content(block, revision),
        }
        for number, block in enumerate(result.content)
    ]
    return shape_members({**extra, "messages": messages}, revision)


def _resource(result: Result, revision: Revision, uri: str, fresh: bool) -> dict[str, Any]:
    contents = [_contents(shape_content(block, revision), uri) for block in result.content]
    shaped = shape_members({**result.extra, "contents": contents}, revision)
    if revision.has_cache_hints:
        ttl = shaped.get("ttlMs")
        if fresh or type(ttl) is not int or ttl < 0:
            shaped["ttlMs"] = 0
        # what the server shows to all, the hub need not
        shaped["cacheScope"] = "private"
    return shaped


def _contents(block: Mapping[str, Any], uri: str) -> Any:
    resource = block.get("resource")
    if isinstance(resource, dict):
        return resource
    return {"uri": uri, "mimeType": "text/plain", "text": str(block.get("text", ""))}


def _completion(result: Result, revision: Revision, name: str) -> dict[str, Any]:
    completion = result.structured
    values = completion.get("values") if isinstance(completion, dict) else None
    if completion is ABSENT or not isinstance(values, list):
        raise BadReply(f'"{name[:200]}" was completed with something that is no completion')
    if len(values) > MAX_VALUES:
        completion = {**completion, "values": values[:MAX_VALUES], "hasMore": True}
    return shape_members({**result.extra, "completion": completion}, revision)
