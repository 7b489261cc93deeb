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
from dragoman.core.tool import Tool
from dragoman.wire.json import encode

SLICE = 100
"""Tools authorized and encoded per loop iteration."""
MAX_KEPT = 16
"""Cached lists; the oldest is dropped first."""
MAX_TRIES = 3
"""Restarts because the catalog or the policies changed meanwhile; then a list is built at once."""


@dataclass(frozen=True, slots=True)
class ToolListing:
    total: int
    summaries: bytes
    """A JSON array of all tools."""
    by_server: dict[str, tuple[int, bytes]]
    """By target name: the number of its tools, and a JSON array of them."""


@dataclass(slots=True)
class _Draft:
    summaries: list[bytes] = field(default_factory=list)
    by_server: dict[str, list[bytes]] = field(default_factory=dict)

    def finish(self) -> ToolListing:
        by_server = {name: (len(held), _join_array(held)) for name, held in self.by_server.items()}
        return ToolListing(len(self.summaries), _join_array(self.summaries), by_server)


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
            tools = self._hub.catalog.list_tools()
            for start in range(0, len(tools), SLICE):
                self._add(draft, tools[start : start + SLICE], caller)
                await asyncio.sleep(0)
                if self._find_version() != version:
                    break  # decisions of old and new policies must not be mixed
            else:
                return draft.finish()
        draft = _Draft()
        self._add(draft, self._hub.catalog.list_tools(), caller)
        return draft.finish()

    def _add(self, draft: _Draft, tools: Iterable[Tool], caller: Principal | None) -> None:
        sees = self._hub.authorizer.can_see
        for tool in tools:
            if caller is not None and not sees(caller, tool, "api"):
                continue
            summary = summarize_tool(self._hub, tool)
            draft.summaries.append(encode(summary))
            brief = encode({"name": summary["name"], "description": tool.description})
            draft.by_server.setdefault(tool.target.name, []).append(brief)


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
