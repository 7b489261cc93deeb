"""Addresses of unlisted resources: which server returned one first, and an address that is unique
to its server."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from dragoman.core.tool import Target

MAX_URI = 8_192
MAX_MENTIONS = 2_000
"""Per server; the one returned longest ago is forgotten first."""

UI = "ui://"
"""The scheme of MCP Apps: hosts accept no other, so a prefix is not possible."""
_UI_OWN = ".dragoman/"
_UI_WRITTEN = re.compile(r"ui://[a-z0-9_-]+\.dragoman/")
LINK = "resource_link"
LINKING = frozenset({LINK, "resource"})
"""Content types with the address of a resource."""


def build_own_uri(target: str, uri: str) -> str:
    """Builds an address that is unique to this server."""
    if uri.startswith(UI):
        return f"{UI}{_host(target)}{_UI_OWN}{uri[len(UI) :]}"
    return f"{target}.{uri}"


def parse_own_uri(target: str, uri: str) -> str:
    """Parses an address built by `build_own_uri`, or `target.uri`, to the server's own; empty for
    any other."""
    if uri.startswith(prefix := f"{UI}{_host(target)}{_UI_OWN}"):
        return UI + uri[len(prefix) :]
    return uri[len(target) + 1 :] if uri.startswith(f"{target}.") else ""


def build_listed_uri(target: str, uri: str) -> str:
    """The address that lists show for a resource: the server's own, unless that has the form of
    `build_own_uri`, which could take another server's."""
    return build_own_uri(target, uri) if _UI_WRITTEN.match(uri) else uri


def _host(target: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", target.lower())


def has_resources(target: Target) -> bool:
    """Whether the target can be asked for a resource."""
    return target.traits.has_resources


def can_be_subscribed(target: Target) -> bool:
    """Whether the target can be asked to announce changes of a resource."""
    return target.traits.has_resources or target.traits.announces_resources


def find_uri(block: Any) -> str:
    """Finds the address of a resource in a content block; empty for none. Web addresses do not
    count: clients fetch them without a server."""
    if not isinstance(block, dict) or block.get("type") not in LINKING:
        return ""
    holder = block if block["type"] == LINK else block.get("resource")
    uri = holder.get("uri") if isinstance(holder, dict) else None
    return uri if isinstance(uri, str) and len(uri) <= MAX_URI and not _is_web(uri) else ""


def replace_uri(block: Mapping[str, Any], uri: str) -> Mapping[str, Any]:
    """Replaces the address in a block."""
    if block["type"] == LINK:
        return {**block, "uri": uri}
    return {**block, "resource": {**block["resource"], "uri": uri}}


def _is_web(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


class ReturnedUris:
    """The addresses that servers returned; each belongs to the first that returned it."""

    def __init__(self, most: int = MAX_MENTIONS) -> None:
        self._most = most
        self._owners: dict[str, str] = {}
        self._of: dict[str, OrderedDict[str, None]] = {}

    def find_owner(self, uri: str) -> str | None:
        return self._owners.get(uri)

    def add(self, target: str, uri: str) -> None:
        if self._owners.setdefault(uri, target) != target:
            return
        known = self._of.setdefault(target, OrderedDict())
        known[uri] = None
        known.move_to_end(uri)
        if len(known) > self._most:
            del self._owners[known.popitem(last=False)[0]]

    def forget(self, target: str) -> None:
        for uri in self._of.pop(target, ()):
            del self._owners[uri]
