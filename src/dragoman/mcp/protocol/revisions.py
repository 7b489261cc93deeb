"""The revisions of MCP: what each can do, and how definitions and results are shaped for each.

Standard library only and cheap to import: the relay answers `initialize` from here before anything
else is loaded. Knows nothing of transports, sessions or the hub.

There are two eras. The first four revisions begin with a handshake (`initialize`) and keep a
session. From 2026-07-28 on each request carries its revision and capabilities in `_meta`, and no
state is kept between requests.
"""

from __future__ import annotations

from dragoman import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Revision:
    """One revision. Revisions compare by age; code outside `mcp.protocol` asks the capabilities."""

    # Not a subclass of `int`: Python has no fast path to the attributes of one, and a call reads a
    # dozen of them.

    name: str
    """As on the wire: `2025-06-18`."""
    methods: frozenset[str]
    """The requests that the hub's MCP server answers."""

    def __init__(self, number: int) -> None:
        since_2503, since_2506, since_2511 = number >= 1, number >= 2, number >= 3
        is_modern = number >= 4
        self._number = number
        self.has_sessions = not is_modern
        """Begins with `initialize`; later requests rely on what was said there. Otherwise each
        request names its revision and capabilities in `_meta`."""

        # transports
        self.has_batches = number == 1
        self.has_resumable_streams = since_2503 and not is_modern
        """SSE events have ids, and `Last-Event-ID` resumes a stream."""
        self.has_priming_events = since_2511 and not is_modern
        """A stream begins with an event that has an id and no data. Older clients fail at it."""
        self.has_version_header = since_2506
        self.has_mirrored_headers = is_modern
        """`Mcp-Method`, `Mcp-Name` and `Mcp-Param-*` repeat the body."""
        self.disconnect_cancels = is_modern
        """A client that closes the connection has cancelled its request."""
        self.has_error_statuses = is_modern
        """JSON-RPC errors have HTTP statuses of their own; older clients read them from a 200."""

        # requests and results
        self.asks_by_result = is_modern
        """Questions are a result (`InputRequiredResult`), not requests of the server."""
        self.has_elicitation = since_2506
        self.has_elicitation_modes = since_2511
        """`elicitation/create` has `mode` (form or url), and choices with titles are `oneOf`."""
        self.has_elicitation_ids = since_2511 and not is_modern
        """A url elicitation has an id, its completion is announced, and the error -32042 asks for
        one."""
        self.has_sampling_tools = since_2511
        """Sampling has tools and context, and a message has several blocks of content."""
        self.has_audio = since_2503
        self.has_progress_messages = since_2503
        self.has_completions_capability = since_2503
        """2024-11-05 has `completion/complete` without a capability that declares it."""
        self.has_completion_context = since_2506
        self.has_wrapped_results = since_2506 and not is_modern
        """`structuredContent` must be an object: other values are wrapped in one."""
        self.has_cache_hints = is_modern
        self.has_task_requests = since_2511 and not is_modern
        """The client asks for a task with the member `task` of a call."""
        self.has_task_extension = is_modern
        """The server may answer a call of a client that declares the extension with a task."""
        self.has_extensions = since_2511

    def __index__(self) -> int:
        return self._number

    def __lt__(self, other: Revision) -> bool:
        return self._number < other._number

    def __le__(self, other: Revision) -> bool:
        return self._number <= other._number

    def __gt__(self, other: Revision) -> bool:
        return self._number > other._number

    def __ge__(self, other: Revision) -> bool:
        return self._number >= other._number


NAMES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
R2024, R2503, R2506, R2511, R2607 = ORDERED = tuple(map(Revision, range(len(NAMES))))
NEVER = Revision(len(NAMES))
"""Later than all of them."""
REVISIONS = dict(zip(NAMES, ORDERED, strict=True))
HANDSHAKE = NAMES[:R2607]
MODERN = NAMES[R2607:]
OLDEST, LATEST, LATEST_HANDSHAKE = R2024, ORDERED[-1], R2511
ASSUMED = R2503
"""The revision of an HTTP client that names none (2025-06-18, transports)."""


def is_modern(version: str) -> bool:
    """Whether a client that speaks this version needs no handshake; False for no version."""
    return version in MODERN


def choose_modern(supported: object) -> Revision | None:
    """Returns the newest revision without a handshake among the versions that a server supports."""
    versions = supported if isinstance(supported, list) else ()
    return next((REVISIONS[name] for name in reversed(MODERN) if name in versions), None)


MODERN_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
RELATED_KEY = "io.modelcontextprotocol/related-task"
TASKS = "io.modelcontextprotocol/tasks"
"""The extension of 2026-07-28 (SEP-2663); 2025-11-25 has tasks of another form."""

APPS = "io.modelcontextprotocol/ui"
"""MCP Apps (SEP-1865)."""
APP_TYPE = "text/html;profile=mcp-app"
CARRIED = frozenset({APPS})
"""Official extensions that need only results, `_meta` and resources. Others have methods of their
own, or concern one connection."""

SERVER_NAME = "dragoman"

# --- methods -----------------------------------------------------------------------------------

METHODS = {
    # method: (first revision that has it, last one; LATEST if it was not removed)
    "initialize": (R2024, R2511),
    "ping": (R2024, R2511),
    "server/discover": (R2607, LATEST),
    "tools/list": (R2024, LATEST),
    "tools/call": (R2024, LATEST),
    "prompts/list": (R2024, LATEST),
    "prompts/get": (R2024, LATEST),
    "resources/list": (R2024, LATEST),
    "resources/templates/list": (R2024, LATEST),
    "resources/read": (R2024, LATEST),
    "resources/subscribe": (R2024, R2511),
    "resources/unsubscribe": (R2024, R2511),
    "subscriptions/listen": (R2607, LATEST),
    "completion/complete": (R2024, LATEST),
    "logging/setLevel": (R2024, R2511),
    "tasks/get": (R2511, LATEST),
    "tasks/cancel": (R2511, LATEST),
    "tasks/update": (R2607, LATEST),
    "tasks/result": (R2511, R2511),
    "tasks/list": (R2511, R2511),
}
"""The requests that the hub's MCP server answers."""

for _name, _revision in REVISIONS.items():
    _revision.name = _name
    _revision.methods = frozenset(
        method for method, (first, last) in METHODS.items() if first <= _revision <= last
    )

# --- initialize and server/discover --------------------------------------------------------------


def negotiate(requested: object) -> Revision:
    """Returns the revision to speak after a handshake: the requested one if it has handshakes, else
    the latest that has."""
    revision = REVISIONS.get(requested, LATEST) if isinstance(requested, str) else OLDEST
    return revision if revision.has_sessions else LATEST_HANDSHAKE


def build_server_info(revision: Revision) -> dict[str, Any]:
    if revision < R2506:
        return {"name": SERVER_NAME, "version": __version__}
    return {"name": SERVER_NAME, "title": "Dragoman", "version": __version__}


def build_capabilities(revision: Revision) -> dict[str, Any]:
    """Returns the hub's capabilities. They do not depend on its servers, which come and go."""
    able: dict[str, Any] = {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "logging": {},
    }
    if revision >= R2503:
        able["completions"] = {}
    if revision == R2511:
        able["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    elif revision >= R2607:
        able["extensions"] = {TASKS: {}}
    return able


def build_initialize_result(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of `initialize`. A client that names no version gets the oldest."""
    revision = negotiate(params.get("protocolVersion"))
    return {
        "protocolVersion": revision.name,
        "capabilities": build_capabilities(revision),
        "serverInfo": build_server_info(revision),
    }


def build_discover_result(revision: Revision) -> dict[str, Any]:
    return {
        "supportedVersions": list(NAMES),
        "capabilities": build_capabilities(revision),
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_KEY: build_server_info(revision)},
    }


def find_version(message: Any) -> Any:
    """Returns the revision that a message names in `_meta`; None if it names none."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(MODERN_KEY) if isinstance(meta, dict) else None


# --- tools -------------------------------------------------------------------------------------

TOOL_FIELDS_SINCE = {
    "annotations": R2503,
    "title": R2506,
    "outputSchema": R2506,
    "_meta": R2506,
    "icons": R2511,
}
"""Fields of a tool that older revisions do not know. Fields that no revision knows pass."""

EXECUTION = "execution"
"""A tool's field in 2025-11-25: whether it may be called as a task."""


def shape_tool(definition: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """Returns a tool's definition with the fields that `revision` knows."""
    shaped: dict[str, Any] = {}
    for field, value in definition.items():
        if field == EXECUTION or TOOL_FIELDS_SINCE.get(field, R2024) > revision:
            continue
        if field == "outputSchema" and revision < R2607 and not _is_object_schema(value):
            if not isinstance(value, dict | bool):
                continue
            value = wrap_schema(value)
        if field == "inputSchema" and "type" not in value:
            value = {"type": "object", **value}  # many clients reject the whole list without it
        shaped[field] = value
    if revision == R2511:
        shaped[EXECUTION] = {"taskSupport": find_task_support(definition.get(EXECUTION))}
    return shaped


def find_task_support(execution: object) -> str:
    """Returns "forbidden" if the server says so, else "optional": the hub creates the task itself
    or waits for the server's."""
    support = execution.get("taskSupport") if isinstance(execution, dict) else None
    return "forbidden" if support == "forbidden" else "optional"


def _is_object_schema(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "object"


WRAPPED = "result"
"""The member that holds a structured result which is not an object, before 2026-07-28."""


def is_wrapped(schema: object, revision: Revision) -> bool:
    """Whether all results of a tool with this outputSchema are wrapped in an object."""
    return revision < R2607 and isinstance(schema, dict | bool) and not _is_object_schema(schema)


def unwrap_result(result: Any, schema: object) -> Any:
    """Undoes the wrapping in a result of a handshake session if `schema`, the tool's outputSchema
    as listed in the modern era, says that the server of both eras wrapped the value."""
    structured = result.get("structuredContent") if isinstance(result, dict) else None
    if not isinstance(structured, dict) or structured.keys() != {WRAPPED}:
        return result
    if not is_wrapped(schema, R2511):
        return result
    return {**result, "structuredContent": structured[WRAPPED]}


def wrap_schema(schema: dict[str, Any] | bool) -> dict[str, Any]:
    """Returns the schema of `{"result": value}` for values of `schema`."""
    wrapper: dict[str, Any] = {"type": "object", "required": [WRAPPED]}
    if isinstance(schema, dict):
        schema = dict(schema)
        if "$schema" in schema:
            wrapper["$schema"] = schema.pop("$schema")
        if "$id" not in schema and (text := _render_if_referring(schema)):
            # "#/..." means the root of the schema resource, which must stay this one
            from hashlib import sha256

            schema["$id"] = f"urn:dragoman:output:{sha256(text.encode()).hexdigest()[:16]}"
    wrapper["properties"] = {WRAPPED: schema}
    return wrapper


def _render_if_referring(schema: dict[str, Any]) -> str:
    """Returns the schema as JSON text if it contains a reference, else an empty string."""
    import json

    text = json.dumps(schema, sort_keys=True)
    return text if '"$ref"' in text or '"$dynamicRef"' in text else ""


# --- prompts and resources -----------------------------------------------------------------------

FIELDS_SINCE = {"title": R2506, "_meta": R2506, "icons": R2511}
"""Fields of prompts, resources and templates that older revisions do not know."""
ARGUMENT_FIELDS_SINCE = {"title": R2506}
"""Likewise for the arguments of prompts."""
ANNOTATIONS_SINCE = {"lastModified": R2506}
"""Likewise for the annotations of resources and templates."""


def shape_prompt(definition: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """Returns a prompt's definition with the fields that `revision` knows."""
    shaped = _select_known(FIELDS_SINCE, definition, revision)
    arguments = shaped.get("arguments")
    if revision < R2506 and isinstance(arguments, list):
        shaped["arguments"] = [
            _select_known(ARGUMENT_FIELDS_SINCE, one, revision) if isinstance(one, dict) else one
            for one in arguments
        ]
    return shaped


def shape_resource(definition: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """Returns the definition of a resource or template with the fields that `revision` knows."""
    shaped = _select_known(FIELDS_SINCE, definition, revision)
    annotations = shaped.get("annotations")
    if revision < R2506 and isinstance(annotations, dict):
        shaped["annotations"] = _select_known(ANNOTATIONS_SINCE, annotations, revision)
    return shaped


def _select_known(
    table: Mapping[str, Revision], fields: Mapping[str, Any], revision: Revision
) -> dict[str, Any]:
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


def shape_content(block: Any, revision: Revision) -> Any:
    """Returns a content block in a form that `revision` knows, at worst as text; never drops it."""
    if not isinstance(block, dict):
        return {"type": "text", "text": str(block)}
    kind = block.get("type")
    if CONTENT_SINCE.get(str(kind), R2024) > revision:
        return _downgrade_block(block, kind)
    shaped = _select_known(CONTENT_FIELDS_SINCE, block, revision)
    resource = shaped.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        shaped["resource"] = _select_known(CONTENT_FIELDS_SINCE, resource, revision)
    return shaped


def _downgrade_block(block: Mapping[str, Any], kind: object) -> dict[str, Any]:
    if kind == "audio":
        mime = block.get("mimeType", "application/octet-stream")
        resource = {"uri": "audio:content", "mimeType": mime, "blob": block.get("data", "")}
        return {"type": "resource", "resource": resource}
    lines = [str(block[field]) for field in ("name", "description", "uri") if block.get(field)]
    return {"type": "text", "text": "\n".join(lines)}


def shape_result(
    result: Mapping[str, Any], revision: Revision, wrapped: bool = False
) -> dict[str, Any]:
    """Returns a tool's result with the members that `revision` knows; does not change `result`.
    `wrapped` is what `is_wrapped` says of the tool's outputSchema."""
    shaped = shape_members(result, revision)
    if not revision.has_sessions:
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


def shape_members(result: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """Adds or removes the members that results of every kind have."""
    if not revision.has_sessions:
        shaped = dict(result)
        meta = shaped.get("_meta")
        shaped["_meta"] = {**meta, SERVER_KEY: _INFO} if isinstance(meta, dict) else _OWN_META
        shaped.setdefault("resultType", "complete")  # extensions define others
        return shaped
    shaped = {key: value for key, value in result.items() if key not in _MODERN_MEMBERS}
    meta = shaped.pop("_meta", None)
    if isinstance(meta, dict):
        meta = {key: value for key, value in meta.items() if key != SERVER_KEY}
        if meta:
            shaped["_meta"] = meta
    return shaped


_MODERN_MEMBERS = frozenset({"resultType", "ttlMs", "cacheScope"})
_INFO = build_server_info(LATEST)
_OWN_META = {SERVER_KEY: _INFO}


def build_list_tail(revision: Revision) -> dict[str, Any]:
    """Returns the members of a list result beside its entries."""
    if revision < R2607:
        return {}
    return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": _OWN_META}
