"""The identity of a tool: the name by which pins, policies, the audit and every alias know it.

Clients use several spellings of a name: in lower case, with underscores for hyphens, with or
without a prefix. All fold to one identity, so that another spelling is not another tool. Pure.
Addresses of resources are case-sensitive and not folded.
"""

from __future__ import annotations

import hashlib
import re

MAX_NAME = 128
"""2025-11-25, server/tools, tool names: 1 to 128 of `A-Z a-z 0-9 _ - .`"""

BUILTIN = "builtin"
"""The target of the built-in tools; no server or agent can have that name."""
HUB = "dragoman"
"""The name of the hub itself among agents, and the target of the tools that it offers to every
client; no server or agent can have it either."""
WORKFLOW = "workflow"
"""The target of the workflows that are tools, which no server or agent can have either; and the
entry point of the calls that runs of workflows make."""
KEY_META = "dragoman.hub/idempotencyKey"
"""Key in the `_meta` of these calls: equal for all attempts of one execution of a step."""
RESERVED = (BUILTIN, HUB, WORKFLOW)

_OTHER = re.compile(r"[^a-z0-9_]")


MAX_PORTABLE = 64
"""Characters of a name that the APIs of most models accept. A name below that has no digest."""
MAX_UNIQUE = 48
"""Characters of `portable!`: as before, so that names with a digest that clients have kept stay
callable."""
_PORTABLE = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_PORTABLE}}}")


def build_portable_names(usual: str, safe: str, canonical: str) -> dict[str, str]:
    """Builds names for clients that refuse dots and long names: `usual` where possible, else one
    made from `safe`, which has no dots. `portable!` is unique to the tool."""
    names = {"portable!": append_digest(safe, canonical, MAX_UNIQUE)}
    if not _PORTABLE.fullmatch(usual):
        names["portable"] = shorten(safe, MAX_PORTABLE, canonical)
    return names


def fold_name(name: str) -> str:
    """Folds a target's own name: lower case, `_` for everything but letters and digits.

    A name with characters outside ASCII ends with its digest: such names would otherwise all fold
    to underscores.
    """
    folded = _OTHER.sub("_", name.lower())
    return folded if name.isascii() else f"{folded}_{compute_digest(name)}"


def fold_server_name(server: str) -> str:
    """Folds the name of a server to the namespace of its aliases."""
    return server.lower().replace("-", "_").replace(" ", "_")


def fold_id(id: str) -> str:
    """Folds the part after the target of a canonical name; idempotent."""
    target, dot, name = id.partition(".")
    return build_identity(target, name) if dot else id


def build_identity(target: str, name: str) -> str:
    """Builds the canonical name of a target's tool."""
    return shorten(f"{target}.{fold_name(name)}")


def shorten(name: str, most: int = MAX_NAME, original: str = "") -> str:
    """Shortens a name longer than `most` to its beginning and a digest."""
    return name if len(name) <= most else append_digest(name, original or name, most)


def append_digest(name: str, original: str, most: int = MAX_NAME) -> str:
    """Appends a digest of `original`, within `most` characters."""
    return f"{name[: most - 9]}_{compute_digest(original)}"


def compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
