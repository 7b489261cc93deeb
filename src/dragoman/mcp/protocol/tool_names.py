"""What a server's tool is called in the hub: the canonical `server.tool`, and the listed alias."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dragoman.core.tool_identity import (
    append_digest,
    build_identity,
    build_portable_names,
    fold_name,
    fold_server_name,
    shorten,
)

MAX_SAFE = 64
"""What the APIs of most models take, and no dot."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def format_mcp_tool_name(server: str, tool: str) -> str:
    """`mcp_{server}_{tool}`, lower case, hyphens to underscores."""
    return f"mcp_{fold_server_name(server)}_{tool.lower().replace('-', '_')}"


def is_mcp_tool(name: str) -> bool:
    return name.startswith("mcp_")


def extract_mcp_server(tool_name: str, servers: Iterable[str]) -> str | None:
    """The one of the known `servers` whose tool this is; the longest name that fits wins."""
    fitting = [s for s in servers if tool_name.startswith(f"mcp_{fold_server_name(s)}_")]
    return max(fitting, key=len, default=None)


def build_canonical_name(server: str, tool: str) -> str:
    """`server.tool`, the identity of the tool: see `core.identity`."""
    return build_identity(_UNSAFE.sub("_", server), tool)


def build_spelled_name(server: str, tool: str) -> str:
    """`server.tool` as the server spells the tool, in the characters that every revision takes."""
    spelled = f"{server}.{_ascii(tool)}"
    return shorten(_UNSAFE.sub("_", spelled), original=spelled)


def build_alias(server: str, tool: str) -> str:
    """`mcp_{server}_{tool}`, in characters and length that every revision takes."""
    name = format_mcp_tool_name(server, _ascii(tool))
    return shorten(_UNSAFE.sub("_", name), original=name)


def build_safe_name(prefix: str, tool: str) -> str:
    """`prefix_tool` as every model's API takes it."""
    tool = _ascii(tool)
    joined = f"{prefix}_{tool}" if prefix else tool
    return shorten(re.sub(r"[^A-Za-z0-9_-]", "_", joined), MAX_SAFE, joined)


def build_other_names(server: str, prefix: str | None, tool: str) -> dict[str, str]:
    """What it is called in each style of naming; `safe!` is its own whatever others are called."""
    canonical = build_canonical_name(server, tool)
    spelled = build_spelled_name(server, tool)
    safe = build_safe_name(server if prefix is None else prefix, tool)
    names = {
        "dotted": spelled,
        "safe": safe,
        "safe!": append_digest(safe, canonical, MAX_SAFE),
    }
    if spelled != canonical:
        names["spelled"] = spelled
    legacy = tool if prefix == "" else build_alias(server if prefix is None else prefix, tool)
    names |= build_portable_names(legacy, safe, canonical)
    if prefix == "":
        names["dotted"] = names["legacy"] = tool
    elif prefix is not None:
        names["dotted"] = build_spelled_name(prefix, tool)
        names["legacy"] = build_alias(prefix, tool)
    return names


def _ascii(tool: str) -> str:
    """As it is spelled, unless nothing would be left of it in ASCII."""
    return tool if tool.isascii() else fold_name(tool)
