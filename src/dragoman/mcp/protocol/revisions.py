"""What each of MCP's five revisions knows, as tables, and the shaping that follows from them.

Standard library only and cheap to import: the relay answers `initialize` from here before anything
else is loaded. Knows nothing of transports, sessions or the hub.

Two eras: the first four revisions shake hands (`initialize`) and keep a session; from 2026-07-28 on
every request carries its revision in `_meta` and nothing is kept.
"""

from __future__ import annotations

from dragoman import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

R2024, R2503, R2506, R2511, R2607 = range(5)
NAMES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
NUMBERS = {name: number for number, name in enumerate(NAMES)}
HANDSHAKE = NAMES[:R2607]
MODERN = NAMES[R2607:]
LATEST_HANDSHAKE = R2511
ASSUMED = R2503
"""What a client speaks over HTTP that names no revision (2025-06-18, transports)."""

MODERN_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
RELATED_KEY = "io.modelcontextprotocol/related-task"
TASKS = "io.modelcontextprotocol/tasks"
"""The extension of 2026-07-28 (SEP-2663); 2025-11-25 has tasks of another form."""

SERVER_NAME = "dragoman"

# --- methods -----------------------------------------------------------------------------------

METHODS = {
    # method: (first revision that has it, last one)
    "initialize": (R2024, R2511),
    "ping": (R2024, R2511),
    "server/discover": (R2607, R2607),
    "tools/list": (R2024, R2607),
    "tools/call": (R2024, R2607),
    "prompts/list": (R2024, R2607),
    "prompts/get": (R2024, R2607),
    "resources/list": (R2024, R2607),
    "resources/templates/list": (R2024, R2607),
    "resources/read": (R2024, R2607),
    "resources/subscribe": (R2024, R2511),
    "resources/unsubscribe": (R2024, R2511),
    "subscriptions/listen": (R2607, R2607),
    "completion/complete": (R2024, R2607),
    "logging/setLevel": (R2024, R2511),
    "tasks/get": (R2511, R2607),
    "tasks/cancel": (R2511, R2607),
    "tasks/update": (R2607, R2607),
    "tasks/result": (R2511, R2511),
    "tasks/list": (R2511, R2511),
}
"""The requests the hub's own face answers; anything else is unknown to it."""


def knows(revision: int, method: str) -> bool:
    since, until = METHODS.get(method, (R2607 + 1, R2607))
    return since <= revision <= until


# --- the first words ---------------------------------------------------------------------------


def negotiate(wanted: object) -> int:
    """The revision to speak with a client that shakes hands: its own, else the newest that does."""
    number = NUMBERS.get(wanted, R2607) if isinstance(wanted, str) else R2024
    return number if number < R2607 else LATEST_HANDSHAKE


def server_info(revision: int) -> dict[str, Any]:
    if revision < R2506:
        return {"name": SERVER_NAME, "version": __version__}
    return {"name": SERVER_NAME, "title": "Dragoman", "version": __version__}


def capabilities(revision: int) -> dict[str, Any]:
    """What the hub can do: always the same, whatever its servers can, since those come and go."""
    able: dict[str, Any] = {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "logging": {},
    }
    if revision >= R2503:  # 2024-11-05 has the method, and no word for it here
        able["completions"] = {}
    if revision == R2511:
        able["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    elif revision == R2607:
        able["extensions"] = {TASKS: {}}
    return able


def initialize_result(params: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to `initialize`. Without a version the oldest is spoken."""
    revision = negotiate(params.get("protocolVersion"))
    return {
        "protocolVersion": NAMES[revision],
        "capabilities": capabilities(revision),
        "serverInfo": server_info(revision),
    }


def discover_result() -> dict[str, Any]:
    return {
        "supportedVersions": list(NAMES),
        "capabilities": capabilities(R2607),
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_KEY: server_info(R2607)},
    }


# --- tools -------------------------------------------------------------------------------------

TOOL_FIELDS_SINCE = {
    "annotations": R2503,
    "title": R2506,
    "outputSchema": R2506,
    "_meta": R2506,
    "icons": R2511,
}
"""Fields of a tool that older revisions do not know. What no revision knows passes."""

EXECUTION = "execution"
"""Of a tool in 2025-11-25: whether it may be called as a task."""


def shape_tool(definition: Mapping[str, Any], revision: int) -> dict[str, Any]:
    """A tool's definition as `revision` may see it."""
    shaped: dict[str, Any] = {}
    for field, value in definition.items():
        if field == EXECUTION or TOOL_FIELDS_SINCE.get(field, 0) > revision:
            continue
        if field == "outputSchema" and revision < R2607 and not _is_object_schema(value):
            if not isinstance(value, dict | bool):
                continue
            value = wrapped_schema(value)
        if field == "inputSchema" and "type" not in value:
            value = {"type": "object", **value}  # many clients refuse a whole list for want of it
        shaped[field] = value
    if revision == R2511:
        shaped[EXECUTION] = {"taskSupport": task_support(definition.get(EXECUTION))}
    return shaped


def task_support(execution: object) -> str:
    """Whether a tool may be called as a task: the server's word where it forbids that. Else it may
    and need not: the hub makes the task itself, or waits for the server's."""
    said = execution.get("taskSupport") if isinstance(execution, dict) else None
    return "forbidden" if said == "forbidden" else "optional"


def _is_object_schema(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "object"


WRAPPED = "result"
"""Before 2026-07-28 a structured result is an object: any other value is the only member of one."""


def is_wrapped(schema: object, revision: int) -> bool:
    """Whether results of a tool with this outputSchema are shown wrapped, whatever they are."""
    return revision < R2607 and isinstance(schema, dict | bool) and not _is_object_schema(schema)


def unwrap_result(result: Any, schema: object) -> Any:
    """A tool's result of the handshake era as the modern era has it, where `schema`, the tool's
    outputSchema, is of that era: a server of both eras has wrapped a value that is no object."""
    structured = result.get("structuredContent") if isinstance(result, dict) else None
    if not isinstance(structured, dict) or structured.keys() != {WRAPPED}:
        return result
    if not is_wrapped(schema, R2511):
        return result
    return {**result, "structuredContent": structured[WRAPPED]}


def wrapped_schema(schema: dict[str, Any] | bool) -> dict[str, Any]:
    """The schema of `{"result": value}`, for values of `schema`."""
    wrapper: dict[str, Any] = {"type": "object", "required": [WRAPPED]}
    if isinstance(schema, dict):
        schema = dict(schema)
        if "$schema" in schema:
            wrapper["$schema"] = schema.pop("$schema")
        if "$id" not in schema and (text := _referring(schema)):
            # "#/…" means the root of the resource, which must stay this one
            from hashlib import sha256

            schema["$id"] = f"urn:dragoman:output:{sha256(text.encode()).hexdigest()[:16]}"
    wrapper["properties"] = {WRAPPED: schema}
    return wrapper


def _referring(schema: dict[str, Any]) -> str:
    """The schema as text, if something in it refers to something."""
    import json

    text = json.dumps(schema, sort_keys=True)
    return text if '"$ref"' in text or '"$dynamicRef"' in text else ""


# --- prompts and resources -----------------------------------------------------------------------

FIELDS_SINCE = {"title": R2506, "_meta": R2506, "icons": R2511}
"""Fields of prompts, resources and templates that older revisions do not know."""
ARGUMENT_FIELDS_SINCE = {"title": R2506}
"""The same for the arguments of prompts."""
ANNOTATIONS_SINCE = {"lastModified": R2506}
"""The same for the annotations of resources and templates."""


def shape_prompt(definition: Mapping[str, Any], revision: int) -> dict[str, Any]:
    """A prompt's definition as `revision` may see it."""
    shaped = _since(FIELDS_SINCE, definition, revision)
    arguments = shaped.get("arguments")
    if revision < R2506 and isinstance(arguments, list):
        shaped["arguments"] = [
            _since(ARGUMENT_FIELDS_SINCE, one, revision) if isinstance(one, dict) else one
            for one in arguments
        ]
    return shaped


def shape_resource(definition: Mapping[str, Any], revision: int) -> dict[str, Any]:
    """A resource's or a template's definition as `revision` may see it."""
    shaped = _since(FIELDS_SINCE, definition, revision)
    annotations = shaped.get("annotations")
    if revision < R2506 and isinstance(annotations, dict):
        shaped["annotations"] = _since(ANNOTATIONS_SINCE, annotations, revision)
    return shaped


def _since(table: Mapping[str, int], fields: Mapping[str, Any], revision: int) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if table.get(name, R2024) <= revision}


# --- results -----------------------------------------------------------------------------------

CONTENT_SINCE = {
    "text": R2024,
    "image": R2024,
    "resource": R2024,
    "audio": R2503,
    "resource_link": R2506,
}
CONTENT_FIELDS_SINCE = {"_meta": R2506, "icons": R2511}


def shape_content(block: Any, revision: int) -> Any:
    """A block of content as `revision` may see it; never lost, at worst put in words."""
    if not isinstance(block, dict):
        return {"type": "text", "text": str(block)}
    kind = block.get("type")
    if CONTENT_SINCE.get(str(kind), R2024) > revision:
        return _older(block, kind)
    shaped = _since(CONTENT_FIELDS_SINCE, block, revision)
    resource = shaped.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        shaped["resource"] = _since(CONTENT_FIELDS_SINCE, resource, revision)
    return shaped


def _older(block: Mapping[str, Any], kind: object) -> dict[str, Any]:
    if kind == "audio":
        mime = block.get("mimeType", "application/octet-stream")
        resource = {"uri": "audio:content", "mimeType": mime, "blob": block.get("data", "")}
        return {"type": "resource", "resource": resource}
    words = [str(block[field]) for field in ("name", "description", "uri") if block.get(field)]
    return {"type": "text", "text": "\n".join(words)}


def shape_result(result: Mapping[str, Any], revision: int, wrapped: bool = False) -> dict[str, Any]:
    """The members of a tool's result that `revision` knows; `result` itself is not changed.
    `wrapped` as `is_wrapped` says of the tool's outputSchema."""
    shaped = shape_members(result, revision)
    if revision == R2607:
        return shaped
    if "structuredContent" in shaped:
        structured = shaped["structuredContent"]
        if revision < R2506:
            del shaped["structuredContent"]
        elif wrapped or not isinstance(structured, dict):
            shaped["structuredContent"] = {WRAPPED: structured}
    shaped.setdefault("content", [])
    if revision < R2511:
        shaped["content"] = [shape_content(block, revision) for block in shaped["content"]]
    return shaped


def shape_members(result: Mapping[str, Any], revision: int) -> dict[str, Any]:
    """What is the same in any result: what it says of itself."""
    if revision == R2607:
        shaped = dict(result)
        meta = shaped.get("_meta")
        shaped["_meta"] = {**meta, SERVER_KEY: _INFO} if isinstance(meta, dict) else _OWN_META
        shaped.setdefault("resultType", "complete")  # an extension may have others
        return shaped
    shaped = {key: value for key, value in result.items() if key not in _MODERN_MEMBERS}
    meta = shaped.pop("_meta", None)
    if isinstance(meta, dict):
        meta = {key: value for key, value in meta.items() if key != SERVER_KEY}
        if meta:
            shaped["_meta"] = meta
    return shaped


_MODERN_MEMBERS = frozenset({"resultType", "ttlMs", "cacheScope"})
_INFO = server_info(R2607)
_OWN_META = {SERVER_KEY: _INFO}


def list_tail(revision: int) -> dict[str, Any]:
    """The members that a list carries beside its entries."""
    if revision < R2607:
        return {}
    return {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": _OWN_META,
    }
