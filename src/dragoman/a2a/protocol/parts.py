"""Converts parts of A2A to the hub's content blocks and back, and results to parts. Pure.

Blocks are MCP's, and one more: `{"type": "data", "data": …}`. A file's name and a part's metadata,
for which a block has no member, are kept in its `_meta`, so that the conversion is reversible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from dragoman.core.agent_tool import PART_META
from dragoman.core.call import ABSENT, Result

META: Final = PART_META
STRUCTURED: Final = "dragoman.hub/structured"
"""Marks in the metadata of a data part that it is a tool's structured result, and the other parts
its text for people. Another hub restores the result from it."""
FILE: Final = "file:///"
"""The URI of a file that was sent with its contents, made of its name."""
UNNAMED: Final = "unnamed"
OCTETS: Final = "application/octet-stream"
JSON: Final = "application/json"

Part = dict[str, Any]
Block = dict[str, Any]


def block_from_part(part: Mapping[str, Any]) -> Block:
    if len(part) == 1 and "text" in part:  # the usual case
        return {"type": "text", "text": part["text"]}
    media, name = part.get("mediaType"), part.get("filename")
    kept: dict[str, Any] = {}
    if part.get("metadata"):
        kept["metadata"] = part["metadata"]
    if "text" in part:
        block: Block = {"type": "text", "text": part["text"]}
        _keep_members(kept, mediaType=media, filename=name)
    elif "data" in part:
        block = {"type": "data", "data": part["data"]}
        if media:
            block["mimeType"] = media
        _keep_members(kept, filename=name)
    elif "url" in part:
        block = {
            "type": "resource_link",
            "uri": part["url"],
            "name": name or _name_from_uri(part["url"]),
        }
        if media:
            block["mimeType"] = media
        if not name:
            kept["unnamed"] = True
    else:
        block = _block_from_file(part, media, name, kept)
    if kept:
        block["_meta"] = {META: kept}
    return block


def _block_from_file(part: Mapping[str, Any], media: Any, name: Any, kept: dict[str, Any]) -> Block:
    kind = str(media or "").partition("/")[0].lower()
    if kind in ("image", "audio"):
        _keep_members(kept, filename=name)
        return {"type": kind, "data": part["raw"], "mimeType": media}
    resource = {"uri": FILE + quote(name or UNNAMED), "blob": part["raw"]}
    if media:
        resource["mimeType"] = media
    if name:
        kept["filename"] = name
    return {"type": "resource", "resource": resource}


def part_from_block(block: Any) -> Part:
    """Converts a block of unknown type to data."""
    if not isinstance(block, dict):
        return {"text": block} if isinstance(block, str) else {"data": block}
    meta = block.get("_meta")
    kept = meta.get(META) if isinstance(meta, dict) else None
    if not isinstance(kept, dict):  # the usual case
        return _convert_block(block, {})
    part = _convert_block(block, kept)
    for name in ("filename", "mediaType"):
        if isinstance(kept.get(name), str):
            part.setdefault(name, kept[name])
    if isinstance(kept.get("metadata"), dict):
        part["metadata"] = kept["metadata"]
    return part


def _convert_block(block: Mapping[str, Any], kept: Mapping[str, Any]) -> Part:
    kind = block.get("type")
    if kind == "text":
        return {"text": str(block.get("text", ""))}
    if kind == "data":
        return _set_members({"data": block.get("data")}, mediaType=block.get("mimeType"))
    if kind in ("image", "audio") and isinstance(block.get("data"), str):
        return _set_members({"raw": block["data"]}, mediaType=block.get("mimeType") or OCTETS)
    if kind == "resource_link" and isinstance(block.get("uri"), str):
        name = None if kept.get("unnamed") else block.get("name")
        return _set_members({"url": block["uri"]}, filename=name, mediaType=block.get("mimeType"))
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        return _part_from_resource(resource)
    return {"data": dict(block)}


def _part_from_resource(resource: Mapping[str, Any]) -> Part:
    uri, media = resource.get("uri"), resource.get("mimeType")
    uri = uri if isinstance(uri, str) else ""
    # The name is the rest of our own file URI, or the last segment of another URI.
    name = unquote(uri.removeprefix(FILE)) if uri.startswith(FILE) else _name_from_uri(uri)
    part: Part
    if isinstance(resource.get("blob"), str):
        part = {"raw": resource["blob"]}
    elif isinstance(resource.get("text"), str):
        part = {"text": resource["text"]}
    else:
        part = {"url": uri}
    if uri and not uri.startswith(FILE):
        part["metadata"] = {"uri": uri}
    return _set_members(part, filename=name if name != UNNAMED else None, mediaType=media)


def parts_from_result(result: Result, accepted: Sequence[str] = ()) -> list[Part]:
    """Returns the content of a result, and its structured value unless the content has data
    already. At least one part, as A2A requires.

    The structured value is equivalent to the text, so it comes first for a client that accepts
    JSON and no text. Both are sent: some clients read another form than they ask for."""
    parts = [part_from_block(block) for block in result.content]
    if result.structured is not ABSENT and not _has_data(result.content):
        data: Part = {"data": result.structured, "mediaType": JSON}
        if parts:
            data["metadata"] = {STRUCTURED: True}
        parts.insert(0 if _prefers_data(accepted) else len(parts), data)
    return parts or [{"text": ""}]


def find_structured_part(parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the only part that is a structured result; None if there is none or several."""
    found = [one for one in parts if "data" in one and _is_structured(one.get("metadata"))]
    return found[0] if len(found) == 1 else None


def _is_structured(metadata: Any) -> bool:
    return isinstance(metadata, dict) and metadata.get(STRUCTURED) is True


def _prefers_data(accepted: Sequence[str]) -> bool:
    kinds = {mode.partition(";")[0].strip().lower() for mode in accepted}
    return JSON in kinds and not any(kind.startswith(("text", "*")) for kind in kinds)


def _has_data(content: Sequence[Any]) -> bool:
    return any(isinstance(block, dict) and block.get("type") == "data" for block in content)


def join_texts(parts: Sequence[Mapping[str, Any]]) -> str:
    """Joins the texts of the parts, one per line."""
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _keep_members(kept: dict[str, Any], **members: Any) -> None:
    for name, value in members.items():
        if value:
            kept[name] = value


def _set_members(part: Part, **members: Any) -> Part:
    for name, value in members.items():
        if isinstance(value, str) and value:
            part[name] = value
    return part


def _name_from_uri(uri: str) -> str:
    return unquote(uri.partition("?")[0].rstrip("/").rpartition("/")[2])[:200] or UNNAMED
