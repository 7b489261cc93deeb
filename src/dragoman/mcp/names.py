"""What a server's tool is called in the hub: the canonical `server.tool`, and the listed alias."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from dragoman.mcp.config import namespace

MAX_NAME = 128
"""2025-11-25, server/tools, tool names: 1 to 128 of `A-Z a-z 0-9 _ - .`"""

MAX_SAFE = 64
"""What the APIs of most models take, and no dot."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def format_mcp_tool_name(server: str, tool: str) -> str:
    """`mcp_{server}_{tool}`, lower case, hyphens to underscores."""
    return f"mcp_{namespace(server)}_{tool.lower().replace('-', '_')}"


def is_mcp_tool(name: str) -> bool:
    return name.startswith("mcp_")


def extract_mcp_server(tool_name: str, servers: Iterable[str]) -> str | None:
    """The one of the known `servers` whose tool this is; the longest name that fits wins."""
    fitting = [s for s in servers if tool_name.startswith(f"mcp_{namespace(s)}_")]
    return max(fitting, key=len, default=None)


def canonical_name(server: str, tool: str) -> str:
    """`server.tool` in the characters and the length that every revision takes."""
    return _fit(f"{_UNSAFE.sub('_', server)}.{_UNSAFE.sub('_', tool)}", f"{server}.{tool}")


def alias_name(server: str, tool: str) -> str:
    """`mcp_{server}_{tool}`, in characters and length that every revision takes."""
    name = format_mcp_tool_name(server, tool)
    return _fit(_UNSAFE.sub("_", name), name)


def safe_name(prefix: str, tool: str) -> str:
    """`prefix_tool` as every model's API takes it."""
    joined = f"{prefix}_{tool}" if prefix else tool
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", joined)
    return safe if len(safe) <= MAX_SAFE else _told_apart(safe, joined)


def other_names(server: str, prefix: str | None, tool: str, canonical: str) -> dict[str, str]:
    """What it is called in each style of naming; `safe!` is its own whatever others are called."""
    before = server if prefix is None else prefix
    safe = safe_name(before, tool)
    names = {
        "dotted": canonical,
        "safe": safe,
        "safe!": _told_apart(safe, canonical),
    }
    if prefix == "":
        names["dotted"] = names["seed"] = tool
    elif prefix is not None:
        names["dotted"] = canonical_name(prefix, tool)
        names["seed"] = alias_name(prefix, tool)
    return names


def _told_apart(safe: str, original: str) -> str:
    return f"{safe[: MAX_SAFE - 9]}_{hashlib.sha256(original.encode()).hexdigest()[:8]}"


def _fit(safe: str, original: str) -> str:
    """`safe`, or its beginning with a digest of the original when it is too long."""
    if len(safe) <= MAX_NAME:
        return safe
    return f"{safe[: MAX_NAME - 9]}_{hashlib.sha256(original.encode()).hexdigest()[:8]}"


def distinct(canonical: str, tool: str) -> str:
    """Another name for a tool whose canonical name is taken by one spelt almost the same."""
    return f"{canonical[: MAX_NAME - 9]}_{hashlib.sha256(tool.encode()).hexdigest()[:8]}"
