"""Named views: the part of the hub that a key, a client or an address is served.

A view object lives as long as the hub and takes over new rules in place, so that sessions follow a
change of the configuration at once. A view that is not configured includes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from urllib.parse import unquote

from dragoman.core.call import empty_mapping
from dragoman.core.local_agents import fold_tool_pattern, matches_any
from dragoman.core.tool import RESOURCE, TEMPLATE, Tool
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.core.tool_identity import BUILTIN

AUTO, ALWAYS, NEVER = "auto", "always", "never"
"""When a view is served as `find_tools` and `call_tool`: above its budget, always, never."""
NO_TAGS: frozenset[str] = frozenset()
MAX_KEPT = 1_000
"""Views that are kept although they may not be configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRule:
    """What a view includes and how it is shown. All patterns are globs. A tool is included if one
    of the four selectors matches it, or there are none, and `exclude` does not match it."""

    name: str
    description: str = ""
    include: tuple[str, ...] = ()
    """Names of tools."""
    exclude: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=empty_mapping)
    """The names that tools have in this view, by any of their own names."""
    describe: Mapping[str, str] = field(default_factory=empty_mapping)
    """The descriptions that tools have in this view, by any of their names."""
    description_chars: int = 0
    """Characters of a description, of a tool and of a parameter; 0: all."""
    token_budget: int = 0
    """Estimated tokens that the list of tools may have; 0: any number."""
    search: str = AUTO


_NOTHING = ViewRule(name="", exclude=("*",))
_ADDRESS = re.compile(r"[^?#]*?/(?:mcp|sse)/v/(.*)", re.DOTALL)


def find_view_name(urls: Iterable[str]) -> str:
    """Returns the name of the view whose address all these URLs of the hub are; empty if one of
    them is the address of something else. URLs of several views, and those below the address of a
    view, give a name that no view has."""
    found = {
        unquote(match[1].rstrip("/")) or "\0" if (match := _ADDRESS.fullmatch(url)) else ""
        for url in urls
    }
    return "" if "" in found else found.pop() if len(found) == 1 else "\0"


class NamedView(View):
    """Compared by identity."""

    def __init__(self, name: str) -> None:
        super().__init__(())
        self.name = name
        self.is_configured = False
        self.apply(_NOTHING, empty_mapping())

    def apply(self, rule: ViewRule, tags: Mapping[str, frozenset[str]]) -> None:
        """Puts a rule in force. `tags` are those of servers and agents, by name."""
        self.rule = rule
        self._tags = tags
        self._included = View(_fold(rule.include))
        self._excluded = View(_fold(rule.exclude))
        self._selects_all = not (rule.include or rule.servers or rule.agents or rule.tags)
        self.real_names = {shown: name for name, shown in rule.rename.items()}
        self.may_search = rule.search in (AUTO, ALWAYS)
        self.can_search = rule.search == ALWAYS or (rule.search == AUTO and rule.token_budget > 0)

    def includes(self, tool: Tool) -> bool:
        if tool.origin is not None:  # an agent passes on calls of it
            tool = tool.origin
        return (self._selects_all or self._selects(tool)) and not self._excludes(tool)

    def _selects(self, tool: Tool) -> bool:
        return self._included.includes(tool) or self._selects_target(tool)

    def _selects_target(self, tool: Tool) -> bool:
        rule, name = self.rule, tool.target.name
        if rule.tags and any(matches_any(tag, rule.tags) for tag in self._find_tags(tool)):
            return True
        if tool.target.traits.facts.type == "Server":
            return name != BUILTIN and bool(rule.servers) and matches_any(name, rule.servers)
        return bool(rule.agents) and matches_any(name, rule.agents)

    def _find_tags(self, tool: Tool) -> frozenset[str]:
        """Those that the operator gave: servers cannot tag themselves into a view."""
        found = self._tags.get(tool.target.name, NO_TAGS)
        if tool.agent is not None and tool.target.traits.facts.type == "Agent":
            found = found.union(*(one.get("tags", ()) for one in tool.agent.skills))
        return found

    def _excludes(self, tool: Tool) -> bool:
        if not self._excluded.patterns:
            return False
        if self._excluded.includes(tool):
            return True
        return tool.kind not in (RESOURCE, TEMPLATE) and any(
            fnmatchcase(name, pattern)
            for name in tool.other_names.values()
            for pattern in self._excluded.patterns
        )

    # --- how tools are shown -----------------------------------------------------------------

    def find_shown_name(self, tool: Tool) -> str | None:
        return _find_entry(self.rule.rename, tool)

    def find_description(self, tool: Tool) -> str | None:
        return _find_entry(self.rule.describe, tool)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class NarrowedView(View):
    """What two views include."""

    def __init__(self, first: View, second: NamedView) -> None:
        super().__init__(())
        self._first, self._second = first, second
        self.real_names = second.real_names
        self.may_search = first.may_search and second.may_search

    def includes(self, tool: Tool) -> bool:
        return self._first.includes(tool) and self._second.includes(tool)


class Views:
    """The views of a hub, by name, and which of them clients get by their own names."""

    def __init__(self) -> None:
        self._by_name: dict[str, NamedView] = {}
        self._for_clients: Mapping[str, str] = {}
        self.chooses_by_client = False
        """Whether a client's name may choose a view."""

    def apply(
        self,
        rules: Iterable[ViewRule],
        tags: Mapping[str, frozenset[str]],
        for_clients: Mapping[str, str],
    ) -> bool:
        """Puts new rules in force; returns whether anything has changed. `for_clients` are names of
        views by globs of client names."""
        wanted = {rule.name: rule for rule in rules}
        before = [(one.rule, one._tags) for one in self._by_name.values()], self._for_clients
        for name in wanted:
            self._by_name.setdefault(name, NamedView(name))
        for name, view in self._by_name.items():
            view.is_configured = name in wanted
            view.apply(wanted.get(name, _NOTHING), tags)
        self._for_clients = dict(for_clients)
        self.chooses_by_client = bool(for_clients)
        return before != (
            [(one.rule, one._tags) for one in self._by_name.values()],
            self._for_clients,
        )

    def find(self, name: str) -> NamedView | None:
        """Finds a configured view."""
        view = self._by_name.get(name)
        return view if view is not None and view.is_configured else None

    def get_bound(self, name: str) -> NamedView:
        """The view of a principal that is bound to it, empty unless it is configured."""
        view = self._by_name.get(name)
        if view is None:
            view = NamedView(name)
            if len(self._by_name) < MAX_KEPT:  # tokens may name any number of views
                self._by_name[name] = view
        return view

    def list_views(self) -> list[NamedView]:
        return [one for one in self._by_name.values() if one.is_configured]

    def narrow(self, view: View, name: str) -> View:
        """What `view` includes for a principal that is bound to the view `name`."""
        bound = self.get_bound(name)
        return bound if view is EVERYTHING or view is bound else NarrowedView(view, bound)

    def find_for_client(self, client: str) -> NamedView | None:
        """Finds the view that a client gets by its name."""
        for pattern, name in self._for_clients.items():
            if fnmatchcase(client.lower(), pattern.lower()):
                return self.find(name)
        return None


def _fold(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(form for one in patterns for form in (one, fold_tool_pattern(one))))


def _find_entry(table: Mapping[str, str], tool: Tool) -> str | None:
    if not table:
        return None
    names = (tool.name, tool.alias, *tool.other_names.values())
    return next((table[name] for name in names if name in table), None)
