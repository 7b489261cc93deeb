"""The identity of a tool: the one name by which pins, policies, the audit and every alias know it.

Clients see and call a tool under several spellings: in lower case, with underscores for hyphens,
with or without a prefix. All of them fold to one identity, so that no change of spelling makes
another tool of it. Pure. Addresses of resources are case-sensitive and are not folded.
"""

from __future__ import annotations

import hashlib
import re

MAX_NAME = 128
"""2025-11-25, server/tools, tool names: 1 to 128 of `A-Z a-z 0-9 _ - .`"""

_OTHER = re.compile(r"[^a-z0-9_]")


MAX_PORTABLE = 48
"""Characters of a name that every known client takes. Their models take 64, and clients put the
name of the server before it: `mcp__dragoman__` in Claude Code, and in Cursor both have 60."""
_PORTABLE = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_PORTABLE}}}")


def build_portable_names(usual: str, safe: str, canonical: str) -> dict[str, str]:
    """What a tool is called for clients that refuse dots and long names: its usual name (`usual`)
    where that will do, else one made from `safe`, which has no dots. `portable!` is its own
    whatever others are called."""
    names = {"portable!": append_digest(safe, canonical, MAX_PORTABLE)}
    if not _PORTABLE.fullmatch(usual):
        names["portable"] = shorten(safe, MAX_PORTABLE, canonical)
    return names


def fold_name(name: str) -> str:
    """What a target calls a tool, folded: lower case, `_` for everything but letters and digits.

    A name with characters outside ASCII ends with its digest: names that consist of nothing else
    would all fold to the same underscores."""
    folded = _OTHER.sub("_", name.lower())
    return folded if name.isascii() else f"{folded}_{compute_digest(name)}"


def fold_server_name(server: str) -> str:
    """Folds the name of a server to the namespace of its aliases."""
    return server.lower().replace("-", "_").replace(" ", "_")


def fold_id(id: str) -> str:
    """A canonical name, `target.tool`, with the part behind the target folded; idempotent."""
    target, dot, name = id.partition(".")
    return build_identity(target, name) if dot else id


def build_identity(target: str, name: str) -> str:
    """The canonical name of what `target` calls `name`."""
    return shorten(f"{target}.{fold_name(name)}")


def shorten(name: str, most: int = MAX_NAME, original: str = "") -> str:
    """`name`, or its beginning with a digest where it is longer than `most`."""
    return name if len(name) <= most else append_digest(name, original or name, most)


def append_digest(name: str, original: str, most: int = MAX_NAME) -> str:
    """`name` with a digest of `original` behind it, in at most `most` characters."""
    return f"{name[: most - 9]}_{compute_digest(original)}"


def compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
