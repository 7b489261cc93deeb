"""Addresses of resources that no list has: which server returned one first, and the address under
which clients can read it where another server has the same.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from dragoman.core.tool import Target

MAX_URI = 8_192
MAX_MENTIONS = 2_000
"""Of one server; the one that it returned longest ago is forgotten first."""

UI = "ui://"
"""The scheme of MCP Apps: hosts take no other, so a prefix before it will not do."""
_UI_OWN = ".dragoman/"
_UI_WRITTEN = re.compile(r"ui://[a-z0-9_-]+\.dragoman/")
LINK = "resource_link"
LINKING = frozenset({LINK, "resource"})
"""The types of content that have an address of a resource."""


def build_own_uri(target: str, uri: str) -> str:
    """The address that is this server's alone, whatever addresses others have."""
    if uri.startswith(UI):
        return f"{UI}{_host(target)}{_UI_OWN}{uri[len(UI) :]}"
    return f"{target}.{uri}"


def parse_own_uri(target: str, uri: str) -> str:
    """What the server itself calls an address of the form that `own_address` makes, or `target.uri`
    in any case; empty for any other."""
    if uri.startswith(prefix := f"{UI}{_host(target)}{_UI_OWN}"):
        return UI + uri[len(prefix) :]
    return uri[len(target) + 1 :] if uri.startswith(f"{target}.") else ""


def build_listed_uri(target: str, uri: str) -> str:
    """The address that a resource of this server is listed by: the server's own, unless that has
    the form in which the hub writes addresses of one server. None may take another's."""
    return build_own_uri(target, uri) if _UI_WRITTEN.match(uri) else uri


def _host(target: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", target.lower())


def has_resources(target: Target) -> bool:
    """Whether it can be asked for a resource at all."""
    return target.traits.has_resources


def can_be_subscribed(target: Target) -> bool:
    """Whether it can be asked to tell of changes of a resource at all."""
    return target.traits.has_resources or target.traits.announces_resources


def find_uri(block: Any) -> str:
    """The address of a resource that a block of content has; empty for none. What is on the web
    everybody can fetch without a server."""
    if not isinstance(block, dict) or block.get("type") not in LINKING:
        return ""
    holder = block if block["type"] == LINK else block.get("resource")
    uri = holder.get("uri") if isinstance(holder, dict) else None
    return uri if isinstance(uri, str) and len(uri) <= MAX_URI and not _is_web(uri) else ""


def replace_uri(block: Mapping[str, Any], uri: str) -> Mapping[str, Any]:
    """A block that has an address, with another one."""
    if block["type"] == LINK:
        return {**block, "uri": uri}
    return {**block, "resource": {**block["resource"], "uri": uri}}


def _is_web(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


class ReturnedUris:
    """The addresses that servers returned. An address is the server's that returned it first."""

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
