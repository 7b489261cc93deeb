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

SERVER_NAME = "dragoman"

# --- methods -----------------------------------------------------------------------------------

METHODS = {
    # method: (first revision that has it, last one)
    "initialize": (R2024, R2511),
    "ping": (R2024, R2511),
    "server/discover": (R2607, R2607),
    "tools/list": (R2024, R2607),
    "tools/call": (R2024, R2607),
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


def initialize_result(params: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to `initialize`. Without a version the oldest is spoken."""
    revision = negotiate(params.get("protocolVersion"))
    return {
        "protocolVersion": NAMES[revision],
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": server_info(revision),
    }


def discover_result() -> dict[str, Any]:
    return {
        "supportedVersions": list(NAMES),
        "capabilities": {"tools": {}},
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

TOOL_FIELDS_DROPPED = frozenset({"execution"})
"""Promises of a server that the hub does not keep for it: it runs no tasks yet."""


def shape_tool(definition: Mapping[str, Any], revision: int) -> dict[str, Any]:
    """A tool's definition as `revision` may see it."""
    shaped: dict[str, Any] = {}
    for field, value in definition.items():
        if field in TOOL_FIELDS_DROPPED or TOOL_FIELDS_SINCE.get(field, 0) > revision:
            continue
        if field == "outputSchema" and revision < R2607 and not _is_object_schema(value):
            continue
        if field == "inputSchema" and "type" not in value:
            value = {"type": "object", **value}  # many clients refuse a whole list for want of it
        shaped[field] = value
    return shaped


def _is_object_schema(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "object"


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
    shaped = _known_fields(block, revision)
    resource = shaped.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        shaped["resource"] = _known_fields(resource, revision)
    return shaped


def _known_fields(block: Mapping[str, Any], revision: int) -> dict[str, Any]:
    return {
        field: value
        for field, value in block.items()
        if CONTENT_FIELDS_SINCE.get(field, R2024) <= revision
    }


def _older(block: Mapping[str, Any], kind: object) -> dict[str, Any]:
    if kind == "audio":
        mime = block.get("mimeType", "application/octet-stream")
        resource = {"uri": "audio:content", "mimeType": mime, "blob": block.get("data", "")}
        return {"type": "resource", "resource": resource}
    words = [str(block[field]) for field in ("name", "description", "uri") if block.get(field)]
    return {"type": "text", "text": "\n".join(words)}


def shape_result(result: Mapping[str, Any], revision: int) -> dict[str, Any]:
    """The members of a tool's result that `revision` knows; `result` itself is not changed."""
    if revision == R2607:
        shaped = dict(result)
        meta = shaped.get("_meta")
        shaped["_meta"] = {**meta, SERVER_KEY: _INFO} if isinstance(meta, dict) else _OWN_META
        shaped["resultType"] = "complete"
        return shaped
    shaped = {key: value for key, value in result.items() if key not in _MODERN_MEMBERS}
    meta = shaped.pop("_meta", None)
    if isinstance(meta, dict):
        meta = {key: value for key, value in meta.items() if key != SERVER_KEY}
        if meta:
            shaped["_meta"] = meta
    if "structuredContent" in shaped and (
        revision < R2506 or not isinstance(shaped["structuredContent"], dict)
    ):
        del shaped["structuredContent"]
    if revision < R2511:
        shaped["content"] = [shape_content(block, revision) for block in shaped["content"]]
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
