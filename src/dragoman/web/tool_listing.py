"""The tool lists of the API, encoded once per group of principals that see the same.

Cached until the catalog or the policies change. Built in slices, so that other requests are served
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dragoman.core.background import start_task
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.token_estimate import estimate_tokens, select_shown
from dragoman.core.tool import Tool
from dragoman.wire.json import encode

SLICE = 100
"""Tools authorized and encoded per loop iteration."""
MAX_KEPT = 16
"""Cached lists; the oldest is dropped first."""
MAX_TRIES = 3
"""Restarts because the catalog or the policies changed meanwhile; then a list is built at once."""


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """A tool as the search sees it."""

    summary: dict[str, Any]
    text: str
    """What is searched, in lower case."""
    name: str
    """The listed name in lower case."""


@dataclass(slots=True)
class ToolListing:
    total: int
    summaries: bytes
    """A JSON array of all tools."""
    by_server: dict[str, tuple[int, bytes]]
    """By target name: the number of its tools, and a JSON array of them."""
    tools: list[Tool]
    entries: list[ToolEntry] = field(default_factory=list)
    """Built when the list is searched for the first time."""


@dataclass(slots=True)
class _Draft:
    summaries: list[bytes] = field(default_factory=list)
    by_server: dict[str, list[bytes]] = field(default_factory=dict)
    tools: list[Tool] = field(default_factory=list)

    def finish(self) -> ToolListing:
        by_server = {name: (len(held), _join_array(held)) for name, held in self.by_server.items()}
        summaries = _join_array(self.summaries)
        return ToolListing(len(self.summaries), summaries, by_server, self.tools)


@dataclass(frozen=True, slots=True)
class ToolQuery:
    words: tuple[str, ...] = ()
    """All of them must occur, in any case."""
    server: str = ""
    source: str = ""
    sort: str = "name"
    descending: bool = False

    def select(self, entries: list[ToolEntry]) -> list[ToolEntry]:
        """Selects the entries that match, in order. Those whose name has the first word come first,
        unless another order than that of names is wanted."""
        found = [
            one
            for one in entries
            if (not self.server or one.summary["server"] == self.server)
            and (not self.source or one.summary["source"] == self.source)
            and all(word in one.text for word in self.words)
        ]
        if self.sort != "name" or self.descending:
            found.sort(key=lambda one: one.summary[self.sort], reverse=self.descending)
        elif self.words:
            first = self.words[0]
            found.sort(key=lambda one: (first not in one.name, not one.name.startswith(first)))
        return found


class ToolListings:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._version: Hashable = None
        self._kept: dict[Hashable, asyncio.Task[ToolListing]] = {}

    async def list_visible(self, caller: Principal) -> ToolListing:
        """Lists the tools that the caller may see, ordered by name."""
        return await self._find((self._hub.authorizer.group_of_principal(caller),), caller)

    async def list_offered(self) -> ToolListing:
        """Lists all tools, for administrators."""
        return await self._find((), None)

    async def search(
        self, caller: Principal, wanted: ToolQuery, start: int, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Finds the tools that the caller may see and that match: those from `start` on, at most
        `limit`, and the number of all of them."""
        listing = await self.list_visible(caller)
        if len(listing.entries) < len(listing.tools):
            await self._index(listing)
        found = wanted.select(listing.entries)
        return [one.summary for one in found[start : start + limit]], len(found)

    async def _index(self, listing: ToolListing) -> None:
        entries = []
        for start in range(0, len(listing.tools), SLICE):
            entries += [
                _build_entry(self._hub, tool) for tool in listing.tools[start : start + SLICE]
            ]
            await asyncio.sleep(0)
        listing.entries = entries

    async def _find(self, key: Hashable, caller: Principal | None) -> ToolListing:
        version = self._find_version()
        if self._version != version:
            self._kept.clear()
            self._version = version
        task = self._kept.get(key)
        if task is None:
            if len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            task = start_task(self._build(caller))
            self._kept[key] = task
            task.add_done_callback(lambda done: self._forget_failed(key, done))
        # Other requests may wait for it too: it continues if this one is cancelled.
        return await asyncio.shield(task)

    def _forget_failed(self, key: Hashable, task: asyncio.Task[ToolListing]) -> None:
        if (task.cancelled() or task.exception()) and self._kept.get(key) is task:
            del self._kept[key]

    def _find_version(self) -> Hashable:
        return self._hub.catalog.version, self._hub.authorizer.version

    async def _build(self, caller: Principal | None) -> ToolListing:
        for _ in range(MAX_TRIES):
            version, draft = self._find_version(), _Draft()
            tools = self._list_by_name()
            for start in range(0, len(tools), SLICE):
                self._add(draft, tools[start : start + SLICE], caller)
                await asyncio.sleep(0)
                if self._find_version() != version:
                    break  # decisions of old and new policies must not be mixed
            else:
                return draft.finish()
        draft = _Draft()
        self._add(draft, self._list_by_name(), caller)
        return draft.finish()

    def _list_by_name(self) -> list[Tool]:
        return sorted(self._hub.catalog.list_tools(), key=lambda tool: tool.name)

    def _add(self, draft: _Draft, tools: Iterable[Tool], caller: Principal | None) -> None:
        sees = self._hub.authorizer.can_see
        for tool in tools:
            if caller is not None and not sees(caller, tool, "api"):
                continue
            summary = summarize_tool(self._hub, tool)
            draft.summaries.append(encode(summary))
            draft.tools.append(tool)
            brief = encode({"name": summary["name"], "description": tool.description})
            draft.by_server.setdefault(tool.target.name, []).append(brief)


def _build_entry(hub: Hub, tool: Tool) -> ToolEntry:
    summary = {**summarize_tool(hub, tool), "tokens": estimate_cost(tool)}
    texts = (summary["name"], tool.name, tool.target.name, tool.description)
    return ToolEntry(summary, "\n".join(texts).lower(), summary["name"].lower())


def estimate_cost(tool: Tool) -> int:
    """Estimates the tokens that the tool costs in a list."""
    return estimate_tokens(len(encode(select_shown(tool.definition))))


def summarize_tool(hub: Hub, tool: Tool) -> dict[str, Any]:
    source = "a2a" if tool.bridged is not None else "agent" if tool.agent is not None else "mcp"
    return {
        "name": hub.catalog.listed_name(tool),
        "id": tool.name,
        "description": tool.description,
        "source": source,
        "server": tool.target.name,
    }


def _join_array(encoded: list[bytes]) -> bytes:
    return b"[" + b",".join(encoded) + b"]"
