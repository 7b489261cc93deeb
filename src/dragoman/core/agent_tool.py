"""The tool of an agent, local or remote: it takes a message with data and files."""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from dragoman.core.conversations import CONTEXT, NEW
from dragoman.core.errors import InvalidInput
from dragoman.core.tool import AgentFacts, Target, Tool, Validator
from dragoman.core.tool_identity import build_portable_names

MESSAGE, DATA, FILES, PARTS = "message", "data", "files", "parts"
"""`PARTS` is for protocols that carry content blocks; it replaces the others."""

MAX_FILES = 20
MAX_INLINE = 7 * 1024 * 1024
"""Total bytes of inline files; in base64, with the rest, they just fit into a message."""
MAX_URL = 2_000
PART_META = "dragoman.hub/part"
"""Key in the `_meta` of a block for the members of a part that a block cannot hold."""

TEXT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {MESSAGE: {"type": "string", "description": "What to say to the agent."}},
    "required": [MESSAGE],
}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        **TEXT_SCHEMA["properties"],
        CONTEXT: {
            "type": "string",
            "description": "The id of an earlier conversation to continue, from its result, or "
            f'"{NEW}" to start another. By default the conversation of this session continues.',
        },
        DATA: {"type": "object", "description": "Structured data to send with the message."},
        FILES: {
            "type": "array",
            "maxItems": MAX_FILES,
            "description": "Files to send with the message.",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "mediaType": {"type": "string", "description": "Such as application/pdf."},
                    "data": {"type": "string", "description": "The contents, in base64."},
                    "url": {
                        "type": "string",
                        "description": "Instead of data: the http or https address that the agent "
                        "fetches the file from.",
                    },
                },
            },
        },
    },
    "required": [MESSAGE],
}

_SPACE = re.compile(r"\s+")
OCTETS = "application/octet-stream"

Block = dict[str, Any]


def build_agent_tool(
    target: Target,
    facts: AgentFacts,
    prefix: str,
    validate: Validator,
    schema: Mapping[str, Any] = SCHEMA,
) -> Tool:
    """`prefix` precedes the names of agents in lists; `validate` validates `schema`."""
    alias = f"{prefix}{facts.name.replace('-', '_').replace(' ', '_')}"
    name = build_tool_name(facts.name)
    return Tool(
        name=name,
        alias=alias,
        other_names={
            "dotted": name,
            "safe": alias[:64],
            **build_portable_names(alias, re.sub(r"[^A-Za-z0-9_-]", "_", alias), name),
        },
        remote_name=MESSAGE,
        description=facts.description,
        definition={"name": MESSAGE, "description": facts.description, "inputSchema": schema},
        validate=validate,
        agent=facts,
        target=target,
    )


def build_tool_name(agent: str) -> str:
    """Builds the canonical name of an agent's tool."""
    return f"{agent}.{MESSAGE}"


# --- the contents of a message --------------------------------------------------------------------


def blocks_from_arguments(arguments: Mapping[str, Any]) -> list[Any]:
    """Returns the message as content blocks: text, then data and files. Raises `InvalidInput` for
    files that cannot be sent."""
    parts = arguments.get(PARTS)
    if isinstance(parts, list) and parts:
        return parts
    text, data, files = arguments.get(MESSAGE), arguments.get(DATA), arguments.get(FILES)
    if data is None and files is None:
        return [{"type": "text", "text": str(text or "")}]
    blocks: list[Any] = []
    if data is not None:
        blocks.append({"type": "data", "data": data, "mimeType": "application/json"})
    left = MAX_INLINE
    for number, file in enumerate(files if isinstance(files, list) else (), 1):
        block, size = _block_from_file(file if isinstance(file, dict) else {}, number)
        left -= size
        if left < 0:
            raise InvalidInput(
                f"the files are larger than {MAX_INLINE >> 20} MB in total; pass URLs instead"
            )
        blocks.append(block)
    if text or not blocks:
        blocks.insert(0, {"type": "text", "text": str(text or "")})
    return blocks


def _block_from_file(file: Mapping[str, Any], number: int) -> tuple[Block, int]:
    """Returns the block and the size of its file in bytes."""
    name, media = (_text(file.get(member)) for member in ("name", "mediaType"))
    data, url = file.get("data"), file.get("url")
    if isinstance(url, str) == isinstance(data, str):
        raise InvalidInput(f'file {number} must have either "data" in base64 or a "url"')
    if isinstance(url, str):
        return _build_link(url, name, media, number), 0
    raw = _SPACE.sub("", str(data))
    size = len(raw) * 3 // 4
    if size <= MAX_INLINE:  # larger files are refused anyway
        try:
            binascii.a2b_base64(raw, strict_mode=True)
        except (binascii.Error, ValueError):
            raise InvalidInput(f'the "data" of file {number} is not base64') from None
    kind = media.partition("/")[0].lower()
    if kind in ("image", "audio"):
        block: Block = {"type": kind, "data": raw, "mimeType": media}
    else:
        where = f"file:///{quote(name or 'unnamed')}"
        held = {"uri": where, "blob": raw, "mimeType": media or OCTETS}
        block = {"type": "resource", "resource": held}
    if name:
        block["_meta"] = {PART_META: {"filename": name}}
    return block, size


def _build_link(url: str, name: str, media: str, number: int) -> Block:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable or len(url) > MAX_URL or not url.isprintable() or " " in url:
        raise InvalidInput(f'the "url" of file {number} is not an http:// or https:// address')
    block: Block = {"type": "resource_link", "uri": url, "name": name or "unnamed"}
    if media:
        block["mimeType"] = media
    if not name:
        block["_meta"] = {PART_META: {"unnamed": True}}
    return block


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) and value.isprintable() else ""


def find_media_type(block: Mapping[str, Any]) -> str:
    """Finds the media type of a block; the default is plain text, JSON or octets."""
    kind = block.get("type")
    resource = block.get("resource")
    said = resource.get("mimeType") if isinstance(resource, dict) else block.get("mimeType")
    if isinstance(said, str) and said:
        return said.partition(";")[0].strip().lower()
    return {"text": "text/plain", "data": "application/json"}.get(str(kind), OCTETS)


def is_accepted(modes: Sequence[str], media: str) -> bool:
    """Whether a list of media types, possibly with wildcards, includes `media`."""
    for mode in modes:
        mode = mode.partition(";")[0].strip().lower()
        kind, slash, sub = mode.partition("/")
        if mode in (media, "*/*", "*") or (sub == "*" and media.startswith(f"{kind}/")):
            return True
        if not slash and media.startswith(f"{kind}/"):  # dialect 0.1 says "text"
            return True
    return False
