"""The pages of the four lists: encoded once for all clients that see the same, and cached until the
catalog or the policies change.

Servers are sorted by name, and the entries of each are in its own order. A list is one page unless
it exceeds the size of a message. A cursor names the last entry of the page, so it stays valid while
entries come and go. It is sealed, so it cannot be forged.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from dragoman.core.hub import Hub
from dragoman.core.logins import NO_LOGINS
from dragoman.core.ports import Interfaces
from dragoman.core.principal import Principal
from dragoman.core.token_estimate import estimate_tokens, select_shown
from dragoman.core.tool import PROMPT, RESOURCE, TEMPLATE, TOOL, Nowhere, Tool
from dragoman.core.tool_filter import View
from dragoman.core.views import NamedView
from dragoman.mcp.protocol.revisions import (
    Revision,
    build_list_tail,
    shape_prompt,
    shape_resource,
    shape_tool,
)
from dragoman.mcp.protocol.translate import add_ui, find_ui_addresses, replace_ui_addresses
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.tool_search import build_search_tools, may_search, needs_search
from dragoman.mcp.server.view_shapes import shape_for_view
from dragoman.wire.json import decode, encode

PAGE_BYTES = 8 * 1024 * 1024
MAX_KEPT = 64
"""Cached forms of one list; in use there are a few."""
MAX_COSTS = 16
"""Lists of which the cost of each tool is kept."""
MAX_SIGHTS = 10_000
MAC_BYTES = 16

METHODS = {
    "tools/list": TOOL,
    "prompts/list": PROMPT,
    "resources/list": RESOURCE,
    "resources/templates/list": TEMPLATE,
}
_MEMBER = {
    TOOL: b"tools",
    PROMPT: b"prompts",
    RESOURCE: b"resources",
    TEMPLATE: b"resourceTemplates",
}
_SHAPE: Mapping[str, Callable[[Mapping[str, Any], Revision], dict[str, Any]]] = {
    TOOL: shape_tool,
    PROMPT: shape_prompt,
    RESOURCE: shape_resource,
    TEMPLATE: shape_resource,
}
LOGIN_KEY = "dragoman.hub/login"
"""In the `_meta` of an entry: which login it needs."""
LOGINS_KEY = "dragoman.hub/logins"
"""In the `_meta` of a list: the servers and agents in it that need a login."""
_NAMED = {TOOL: "name", PROMPT: "name", RESOURCE: "uri", TEMPLATE: "uriTemplate"}
"""The member with the name that clients use."""

NO_INTERFACES: Interfaces = frozenset()
Pages = list[tuple[str, bytes]]
"""Encoded results, each with the name of its last entry."""
Sight = tuple[Principal, str, View]
"""A principal, its entry point and the tools that this offers."""


class EncodedList(NamedTuple):
    pages: Pages
    tools: Sequence[Tool]
    names: tuple[str, ...]
    """The canonical names of the tools."""

    def find_page_after(self, target: str, name: str) -> bytes:
        """Returns the page with what follows that tool. If the tool is gone, what follows begins
        with its target: some of that may come twice, and nothing is left out."""
        numbers = {one: number for number, one in enumerate(self.names)}
        if name in numbers:
            wanted = numbers[name] + 1
        else:
            wanted = sum(tool.target.name < target for tool in self.tools)
        for last, page in self.pages:
            if numbers.get(last, wanted) >= wanted:
                return page
        return self.pages[-1][1]


class ToolCost(NamedTuple):
    """What a tool costs in a list."""

    name: str
    """As it is listed."""
    id: str
    server: str
    tokens: int
    """An estimate."""


class ListPages:
    def __init__(self, hub: Hub, key: bytes, aliases: bool = False) -> None:
        """`aliases`: whether tools are also listed under their alias."""
        self._hub = hub
        self._aliases = aliases
        self._key = hmac.digest(key, b"cursors of lists", "sha256")
        self._kept: dict[str, dict[tuple[Hashable, ...], EncodedList]] = {
            kind: {} for kind in _MEMBER
        }
        self._sights: dict[str, OrderedDict[Sight, Any]] = {kind: OrderedDict() for kind in _MEMBER}
        """The names that each was listed last; in a view, how it was listed and the pages."""
        self._kept_of: dict[str, Hashable] = {}
        self._costs: dict[tuple[Hashable, ...], Sequence[ToolCost]] = {}
        self._costs_of: Hashable = None
        self._refers = -1, False
        """A version of the catalog, and whether its tools name resources."""

    def find_page(
        self,
        kind: str,
        cursor: Any,
        client: ClientState,
        revision: Revision,
        style: str,
        hidden: frozenset[str] = frozenset(),
        logins: frozenset[str] = NO_LOGINS,
        interfaces: Interfaces = NO_INTERFACES,
        most: int = 0,
    ) -> bytes | None:
        """Returns the encoded result; None for an invalid cursor. `hidden` are canonical names that
        are not listed to this client, `logins` the targets that need a login before it can call
        them, `interfaces` what it alone sees of user interfaces. Above `most` tools it gets those
        of search mode; 0: any number."""
        caller, door, view = client.principal, client.door, client.view
        how = revision, style, hidden, logins, interfaces, most
        found = self._find_pages(kind, caller, door, view, *how)
        sights = self._sights[kind]
        sights[caller, door, view] = (how, found.pages) if view.name else found.names
        if len(sights) > MAX_SIGHTS:
            sights.popitem(last=False)
        if cursor is None:
            return found.pages[0][1]
        after = self._open_cursor(cursor, kind)
        return found.find_page_after(*after) if after is not None else None

    def _find_pages(
        self,
        kind: str,
        caller: Principal,
        door: str,
        view: View,
        revision: Revision,
        style: str,
        hidden: frozenset[str],
        logins: frozenset[str],
        interfaces: Interfaces,
        most: int,
    ) -> EncodedList:
        judge = self._hub.authorizer
        version = self._version(kind), judge.version
        kept = self._kept[kind]
        if self._kept_of.get(kind) != version or len(kept) > MAX_KEPT:
            kept.clear()
            self._kept_of[kind] = version
        group = judge.group_of_principal(caller)
        key = (group, door, view, revision, style, hidden, logins, interfaces, most)
        found = kept.get(key)
        if found is None:
            tools = self._hub.list_tools(caller, view, kind, door, hidden)
            if logins and kind == TOOL:
                tools = self._add_login_tools(tools, caller, view, door)
            interface_of = dict(interfaces)
            entries = []
            for tool in tools:
                interface = interface_of.get(tool.name)
                shown = tool if interface is None else _add_interface(tool, interface)
                for name in self._list_names(tool, kind, style, view):
                    entry = self.render_definition(shown, name, kind, revision, view, logins)
                    entries.append((tool.name, encode(entry)))
            if kind == TOOL:
                entries = self._limit_tools(entries, tools, view, revision, most)
            tail = build_list_tail(revision)
            if logins and (needed := sorted({one.target.name for one in tools} & logins)):
                tail["_meta"] = {**tail.get("_meta", {}), LOGINS_KEY: needed}
            pages = self._split_pages(kind, entries, tail, tools)
            found = kept[key] = EncodedList(pages, tools, tuple(tool.name for tool in tools))
        return found

    def _limit_tools(
        self, entries: Pages, tools: Sequence[Tool], view: View, revision: Revision, most: int
    ) -> Pages:
        """Returns the entries, or the two of search mode if all would be more than the client
        takes, or would exceed the budget of the view."""
        searches = 0 < most < len(entries) and may_search(self._hub, view)
        if not searches and isinstance(view, NamedView) and view.can_search:
            searches = needs_search(view, sum(_estimate_entry(entry) for _, entry in entries))
        if not searches:
            return entries
        definitions = build_search_tools(tools)
        return [(one["name"], encode(shape_tool(one, revision))) for one in definitions]

    def list_costs(
        self, caller: Principal, door: str, view: View, revision: Revision, style: str
    ) -> Sequence[ToolCost]:
        """What each tool of the list costs a client, whether or not it would be listed."""
        judge = self._hub.authorizer
        version = self._version(TOOL), judge.version
        if self._costs_of != version or len(self._costs) > MAX_COSTS:
            self._costs.clear()
            self._costs_of = version
        key = (judge.group_of_principal(caller), door, view, revision, style)
        if key not in self._costs:
            self._costs[key] = [
                ToolCost(
                    name,
                    tool.name,
                    tool.target.name,
                    _estimate(self.render_definition(tool, name, TOOL, revision, view)),
                )
                for tool in self._hub.list_tools(caller, view, TOOL, door)
                for name in self._list_names(tool, TOOL, style, view)
            ]
        return self._costs[key]

    def list_search_costs(
        self, caller: Principal, door: str, view: View, revision: Revision
    ) -> list[ToolCost]:
        """What the two tools of search mode cost."""
        tools = self._hub.list_tools(caller, view, TOOL, door)
        return [
            ToolCost(one["name"], one["name"], "", _estimate(shape_tool(one, revision)))
            for one in build_search_tools(tools)
        ]

    def _add_login_tools(
        self, tools: list[Tool], caller: Principal, view: View, door: str
    ) -> list[Tool]:
        """Adds what stands for the tools of servers that need a login first."""
        assert self._hub.logins is not None
        sees = self._hub.authorizer.can_see
        found = [
            tool
            for tool in self._hub.logins.list_login_tools()
            if view.includes(tool) and sees(caller, tool, door)
        ]
        return sorted([*tools, *found], key=lambda tool: tool.target.name)

    def _version(self, kind: str) -> Hashable:
        """Returns the version of all that a list depends on. The address of a tool's user interface
        depends on the resources, but most hubs have no such tool."""
        catalog = self._hub.catalogs[kind]
        if kind != TOOL:
            return catalog.version
        if self._refers[0] != catalog.version:
            self._refers = catalog.version, any(tool.resources for tool in catalog.list_tools())
        if not self._refers[1]:
            return catalog.version
        return tuple(one.version for one in self._hub.catalogs.values())

    def has_changed(self, kind: str, caller: Principal, door: str, view: View) -> bool:
        """Whether the list differs from the last one, which at first is empty: by its names, and in
        a view by all that it shows."""
        before = self._sights[kind].get((caller, door, view), ())
        if view.name:
            if not before:
                return True
            how, pages = before
            return bool(self._find_pages(kind, caller, door, view, *how).pages != pages)
        tools = self._hub.list_tools(caller, view, kind, door)
        return bool(before != tuple(tool.name for tool in tools))

    def find_shown_name(self, tool: Tool, kind: str, style: str, view: View) -> str:
        """The name of a tool in the list of that view."""
        catalog = self._hub.catalogs[kind]
        shown = catalog.listed_name(tool, style)
        if shown == tool.name and isinstance(catalog.find(shown).target, Nowhere):
            shown = tool.other_names.get(style, tool.alias)  # it stands for others
        if isinstance(view, NamedView) and kind == TOOL:
            renamed = view.find_shown_name(tool)
            if renamed is not None and catalog.find_within(renamed, view).name == tool.name:
                return renamed
            if shown in view.real_names:  # which leads to another tool here
                return tool.name
        return shown

    def _list_names(self, tool: Tool, kind: str, style: str, view: View) -> Iterator[str]:
        shown = self.find_shown_name(tool, kind, style, view)
        yield shown
        alias = tool.other_names.get("alias", shown) if self._aliases else shown
        if alias != shown and self._hub.catalogs[kind].find(alias) is tool:
            yield alias

    def render_definition(
        self,
        tool: Tool,
        name: str,
        kind: str,
        revision: Revision,
        view: View,
        logins: frozenset[str] = NO_LOGINS,
    ) -> dict[str, Any]:
        definition = tool.definition
        if tool.resources:
            find_uri = partial(self._hub.find_readable_uri, tool.target)
            definition = replace_ui_addresses(definition, find_uri)
        definition = {"name": name, **definition, _NAMED[kind]: name}
        if tool.description:
            definition["description"] = tool.description
        elif definition.get("description") is None:
            definition.pop("description", None)
        if isinstance(view, NamedView):
            definition = shape_for_view(definition, tool, view)
        if logins and tool.target.name in logins:
            _mark_login(definition, tool.target.name)
        return _SHAPE[kind](definition, revision)

    def _split_pages(
        self, kind: str, entries: Pages, tail: Mapping[str, Any], tools: Sequence[Tool]
    ) -> Pages:
        pages: Pages = []
        start = size = 0
        for index, (_, entry) in enumerate(entries):
            if size + len(entry) > PAGE_BYTES and index > start:
                last = entries[index - 1][0]
                target = next((tool.target.name for tool in tools if tool.name == last), "")
                rest = {**tail, "nextCursor": self._seal_cursor(target, last, kind)}
                pages.append((last, _encode_page(kind, entries[start:index], rest)))
                start, size = index, 0
            size += len(entry) + 1
        pages.append((entries[-1][0] if entries else "", _encode_page(kind, entries[start:], tail)))
        return pages

    # --- cursors -----------------------------------------------------------------------------

    def _seal_cursor(self, target: str, name: str, kind: str) -> str:
        body = f"{target}\n{name}".encode()
        return base64.urlsafe_b64encode(self._mac(body, kind) + body).decode()

    def _open_cursor(self, cursor: Any, kind: str) -> tuple[str, str] | None:
        if not isinstance(cursor, str):
            return None
        try:
            raw = base64.b64decode(cursor, b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, body = raw[:MAC_BYTES], raw[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body, kind)):
            return None
        target, _, name = body.decode().rpartition("\n")
        return target, name

    def _mac(self, body: bytes, kind: str) -> bytes:
        return hmac.digest(self._key, kind.encode() + b"\n" + body, "sha256")[:MAC_BYTES]


def _add_interface(tool: Tool, interface: bytes) -> Tool:
    definition = add_ui(tool.definition, decode(interface))
    addresses = tuple(uri for _, uri in find_ui_addresses(definition))
    return replace(tool, definition=definition, resources=addresses)


def _mark_login(definition: dict[str, Any], server: str) -> None:
    """Says that a login is needed, for programs and for models."""
    meta = definition.get("_meta")
    known = meta if isinstance(meta, Mapping) else {}
    definition["_meta"] = {**known, LOGIN_KEY: {"server": server, "state": "needs_login"}}
    words = f'(Needs a login at "{server}" first: call it to get the link.)'
    definition["description"] = f"{definition.get('description') or ''} {words}".strip()


def _estimate_entry(entry: bytes) -> int:
    return _estimate(decode(entry))


def _estimate(definition: Mapping[str, Any]) -> int:
    return estimate_tokens(len(encode(select_shown(definition))))


def _encode_page(kind: str, entries: Pages, rest: Mapping[str, Any]) -> bytes:
    members = encode(rest)[1:] if rest else b"}"
    joined = b",".join(entry for _, entry in entries)
    comma = b"," if rest else b""
    return b'{"' + _MEMBER[kind] + b'":[' + joined + b"]" + comma + members
