"""Builds the names of a server's tool in the hub: the canonical `server.tool` and its aliases."""

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
"""The length of a tool name that the APIs of most models accept."""

_MCP = re.compile(r"mcp[-_ ]", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def format_mcp_tool_name(server: str, tool: str) -> str:
    """Returns `mcp_{server}_{tool}` in lower case, with underscores for hyphens."""
    return f"mcp_{fold_server_name(server)}_{tool.lower().replace('-', '_')}"


def is_mcp_tool(name: str) -> bool:
    return name.startswith("mcp_")


def extract_mcp_server(tool_name: str, servers: Iterable[str]) -> str | None:
    """Finds the server of a tool among `servers`; the longest name that matches wins."""
    matching = (s for s in servers if tool_name.startswith(f"mcp_{fold_server_name(s)}_"))
    return max(matching, key=len, default=None)


def build_canonical_name(server: str, tool: str) -> str:
    """Returns `server.tool`, the identity of the tool: see `core.tool_identity`."""
    return build_identity(_UNSAFE.sub("_", server), tool)


def build_spelled_name(server: str, tool: str) -> str:
    """Returns `server.tool` as the server spells it, in characters that every revision permits."""
    spelled = f"{server}.{_fold_to_ascii(tool)}"
    return shorten(_UNSAFE.sub("_", spelled), original=spelled)


def build_alias(server: str, tool: str) -> str:
    """Returns `mcp_{server}_{tool}` in characters and a length that every revision permits."""
    name = format_mcp_tool_name(server, _fold_to_ascii(tool))
    return shorten(_UNSAFE.sub("_", name), original=name)


def build_safe_name(prefix: str, tool: str) -> str:
    """Returns `prefix_tool` in characters and a length that every model's API accepts."""
    tool = _fold_to_ascii(tool)
    joined = f"{prefix}_{tool}" if prefix else tool
    return shorten(re.sub(r"[^A-Za-z0-9_-]", "_", joined), MAX_SAFE, joined)


def build_portable_name(server: str, prefix: str | None, tool: str) -> str:
    """Returns the tool's name in the style `portable`: one form for all tools of a server, with the
    server's own spelling. `files` and `mcp-files` cannot both be servers of a hub, so the name of
    the server needs no `mcp`."""
    return build_safe_name(_shorten_server(server) if prefix is None else prefix, tool)


def is_shortened(server: str, prefix: str | None, tool: str) -> bool:
    """Whether that name is too long and ends with a digest."""
    part = _shorten_server(server) if prefix is None else prefix
    return len(part) + bool(part) + len(_fold_to_ascii(tool)) > MAX_SAFE


def _shorten_server(server: str) -> str:
    found = _MCP.match(server)
    return server[found.end() :] or server if found else server


def build_other_names(server: str, prefix: str | None, tool: str) -> dict[str, str]:
    """Returns the tool's name in each naming style; `safe!` and `portable!` are unique to it."""
    canonical = build_canonical_name(server, tool)
    spelled = build_spelled_name(server, tool)
    safe = build_safe_name(server if prefix is None else prefix, tool)
    names = {"dotted": spelled, "safe": safe, "safe!": append_digest(safe, canonical, MAX_SAFE)}
    if spelled != canonical:
        names["spelled"] = spelled
    legacy = tool if prefix == "" else build_alias(server if prefix is None else prefix, tool)
    names |= build_portable_names(legacy, safe, canonical)
    names["portable"] = build_portable_name(server, prefix, tool)
    if prefix == "":
        names["dotted"] = names["legacy"] = tool
    elif prefix is not None:
        names["dotted"] = build_spelled_name(prefix, tool)
        names["legacy"] = build_alias(prefix, tool)
    return names


def _fold_to_ascii(tool: str) -> str:
    """Folds a name that is not ASCII, so that something is left of it in ASCII."""
    return tool if tool.isascii() else fold_name(tool)
