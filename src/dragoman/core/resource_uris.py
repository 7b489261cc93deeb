"""Addresses of resources: one that is unique to its server, and the owner of an unlisted one.

The owner is the server whose template could expand to the address. Templates are matched roughly as
RFC 6570 in reverse: the literals between the expressions must occur in order. This takes time
linear in the length of the address, whatever the template.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from dragoman.core.tool import Target, Tool

MAX_URI = 8_192
TOO_LONG = f"the address of the resource is too long: at most {MAX_URI} characters"
MAX_READERS = 2_000
MAX_OPENED = 16
"""Per client."""
MAX_MENTIONS = 2_000
"""Per server; the one returned longest ago is forgotten first."""

UI = "ui://"
"""The scheme of MCP Apps: hosts accept no other, so a prefix is not possible."""
_UI_OWN = ".dragoman/"
_UI_WRITTEN = re.compile(r"ui://[a-z0-9_-]+\.dragoman/")
LINK = "resource_link"
LINKING = (LINK, "resource")  # no set: a server may send a type that cannot be hashed
"""Content types with the address of a resource."""
_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
_ACROSS = frozenset("+#/?&;")
"""Operators whose expansion may contain a slash."""


def build_own_uri(target: str, uri: str) -> str:
    """Builds an address that is unique to this server."""
    if uri.startswith(UI):
        return f"{UI}{_host(target)}{_UI_OWN}{uri[len(UI) :]}"
    return f"{target}.{uri}"


def parse_own_uri(target: str, uri: str) -> str:
    """Parses what `build_own_uri` built, or `target.uri`, to the server's own; else empty."""
    if uri.startswith(prefix := f"{UI}{_host(target)}{_UI_OWN}"):
        return UI + uri[len(prefix) :]
    return uri[len(target) + 1 :] if uri.startswith(f"{target}.") else ""


def build_listed_uri(target: str, uri: str) -> str:
    """The address that lists show for a resource: the server's own, unless that has the form of
    `build_own_uri`, which could take another server's."""
    return build_own_uri(target, uri) if _UI_WRITTEN.match(uri) else uri


def _host(target: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "-", target.lower())


def find_uri(block: Any) -> str:
    """Finds the address of a resource in a content block; empty for none. Web addresses do not
    count: clients fetch them without a server."""
    if not isinstance(block, dict) or block.get("type") not in LINKING:
        return ""
    holder = block if block["type"] == LINK else block.get("resource")
    uri = holder.get("uri") if isinstance(holder, dict) else None
    if not isinstance(uri, str) or len(uri) > MAX_URI or uri.startswith(("http://", "https://")):
        return ""
    return uri


def replace_uri(block: Mapping[str, Any], uri: str) -> Mapping[str, Any]:
    """Replaces the address in a block."""
    if block["type"] == LINK:
        return {**block, "uri": uri}
    return {**block, "resource": {**block["resource"], "uri": uri}}


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


class OpenedApps:
    """Whose user interfaces (`ui://`) each client has read."""

    def __init__(self, most: int = MAX_READERS) -> None:
        self._most = most
        self._targets: OrderedDict[Hashable, list[str]] = OrderedDict()
        """The last one last."""

    def add(self, reader: Hashable, target: str) -> None:
        targets = self._targets.setdefault(reader, [])
        self._targets.move_to_end(reader)
        if target in targets:
            targets.remove(target)
        targets.append(target)
        del targets[:-MAX_OPENED]
        if len(self._targets) > self._most:
            self._targets.popitem(last=False)

    def list_targets(self, reader: Hashable) -> Sequence[str]:
        """Lists them, the last one first."""
        return self._targets.get(reader, [])[::-1]


class ResourceOwners:
    """The owners of addresses. Built once per offer: parsing templates dominates the cost."""

    def __init__(
        self,
        templates: Iterable[Tool],
        listing: Iterable[Target],
        others: Iterable[Target] = (),
        tools: Iterable[Tool] = (),
    ) -> None:
        """`listing` are the servers that list resources, `others` all servers; `tools` may name
        resources that belong to them."""
        read = [(tool, *_split_template(tool.alias)) for tool in templates]
        weighed = [(sum(map(len, one[1])), *one) for one in read]
        self._templates = sorted(weighed, key=lambda one: -one[0])
        self._listing = {target.name: target for target in listing}
        self._all = {target.name: target for target in others} | self._listing
        self._declared: dict[str, dict[str, Target]] = {}
        for tool in tools:
            for uri in tool.resources:
                self._declared.setdefault(uri, {})[tool.target.name] = tool.target

    def find_owner(
        self, uri: str, mentioned_by: str | None = None, *, to_subscribe: bool = False
    ) -> tuple[Target, str] | None:
        """Finds the server to ask for `uri`, and its own address for it. A server that lists no
        resources may still have some, or announce their changes.

        An address that names its server belongs to it. Otherwise the most specific template
        decides, then the server whose tools name the address, then the one that returned it
        (`mentioned_by`), then the only one that lists or may have resources. If several remain,
        none is asked.
        """
        if len(uri) > MAX_URI:
            return None
        able = {
            name: one
            for name, one in self._all.items()
            if one.traits.has_resources or (to_subscribe and one.traits.announces_resources)
        } | self._listing
        named = [one for one in able.values() if parse_own_uri(one.name, uri)]
        if len(named) == 1:
            return named[0], parse_own_uri(named[0].name, uri)
        best: tuple[int, Target, str] | None = None
        for weight, tool, literals, operators in self._templates:
            if best is not None and weight < best[0]:
                break
            for inner in (uri, parse_own_uri(tool.target.name, uri)):
                if _matches_parts(literals, operators, inner):
                    if best is not None and best[1] is not tool.target:
                        return None
                    best = best or (weight, tool.target, inner)
                    break
        if best is not None:
            return best[1], best[2]
        found = self._declared.get(uri, {})
        if not found and mentioned_by is not None and mentioned_by in self._all:
            found = {mentioned_by: self._all[mentioned_by]}
        if not found:
            found = self._listing or able
        return (next(iter(found.values())), uri) if len(found) == 1 else None

    def find_target(self, name: str) -> Target | None:
        return self._all.get(name)


def _split_template(template: str) -> tuple[list[str], list[str]]:
    pieces = _EXPRESSION.split(template)
    return pieces[::2], pieces[1::2]


def _matches_parts(literals: list[str], operators: list[str], uri: str) -> bool:
    if not uri.startswith(literals[0]):
        return False
    if not operators:
        return uri == literals[0]
    at = len(literals[0])
    for operator, literal in zip(operators[:-1], literals[1:-1], strict=True):
        found = uri.find(literal, at)
        if found < 0 or not _can_expand_to(uri[at:found], operator):
            return False
        at = found + len(literal)
    end = len(uri) - len(literals[-1])
    return end >= at and uri.endswith(literals[-1]) and _can_expand_to(uri[at:end], operators[-1])


def _can_expand_to(text: str, operator: str) -> bool:
    return operator in _ACROSS or ("/" not in text and text != "")
