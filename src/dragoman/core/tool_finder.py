"""Finds the tools for a task, described in words, among those that a caller may see."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.text_search import TextIndex, find_action, weigh_words
from dragoman.core.tool import TOOL, Tool
from dragoman.core.tool_filter import View

SLICE = 20
"""Tools that are indexed at once."""
MAX_KEPT = 32
"""Indexes, of groups of callers that see the same."""
MAX_TRIES = 3

NAME, SERVER, FIRST, REST, PARAMETERS, PARAMETER_TEXTS = 8.0, 1.0, 1.5, 0.8, 0.7, 0.4
"""The weights of the parts of a definition."""
_FIRST_CHARS, _REST_CHARS, _PARAMETER_CHARS = 300, 1_500, 200


class FoundTools(NamedTuple):
    tools: Sequence[Tool]
    """The best first."""
    total: int
    """The tools that were searched."""


def select_for_models(tools: Sequence[Tool]) -> Sequence[Tool]:
    """Leaves out the tools that only user interfaces call."""
    return [tool for tool in tools if tool.is_for_models]


class ToolFinder:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._words: dict[str, tuple[Tool, dict[str, float]]] = {}
        """The words of each tool, while its definition stays as it is."""
        self._kept: dict[Hashable, tuple[Sequence[Tool], TextIndex]] = {}
        self._kept_of: Hashable = None

    async def find(
        self,
        caller: Principal,
        query: str,
        limit: int,
        *,
        view: View,
        door: str,
        hidden: frozenset[str],
    ) -> FoundTools:
        """Finds tools of `view` for a task that the caller may see at that entry point and that are
        not `hidden`; or the one tool that has the query as its name."""
        tools, index = await self._find_index(caller, view, door, hidden)
        exact = self._hub.find(query.strip(), view).name
        for tool in tools:
            if tool.name == exact:
                return FoundTools([tool], len(tools))
        best = index.search(query, limit)
        return FoundTools([tools[number] for number, _ in best], len(tools))

    async def _find_index(
        self, caller: Principal, view: View, door: str, hidden: frozenset[str]
    ) -> tuple[Sequence[Tool], TextIndex]:
        hub = self._hub
        for _ in range(MAX_TRIES):
            version = hub.catalog.version, hub.authorizer.version
            if self._kept_of != version or len(self._kept) > MAX_KEPT:
                self._kept, self._kept_of = {}, version
            group = hub.authorizer.group_of_principal(caller)
            key = group, door, view, hidden
            if (kept := self._kept.get(key)) is not None:
                return kept
            tools = select_for_models(hub.list_tools(caller, view, TOOL, door, hidden))
            await self._weigh(tools)
            if (hub.catalog.version, hub.authorizer.version) == version:
                kept = self._kept[key] = self._build(tools)
                return kept
        # The lists change all the time: what the caller may see now is indexed at once.
        tools = hub.list_tools(caller, view, TOOL, door, hidden)
        return self._build(select_for_models(tools))

    async def _weigh(self, tools: Sequence[Tool]) -> None:
        """Weighs the words of the tools that are new, and lets other requests proceed."""
        new = [tool for tool in tools if self._words.get(tool.name, (None,))[0] is not tool]
        if len(self._words) > 2 * max(len(self._hub.catalog), len(tools)):
            self._words.clear()
            new = list(tools)
        for start in range(0, len(new), SLICE):
            for tool in new[start : start + SLICE]:
                self._words[tool.name] = tool, weigh_tool(tool)
            await asyncio.sleep(0)

    def _build(self, tools: Sequence[Tool]) -> tuple[Sequence[Tool], TextIndex]:
        documents = []
        for tool in tools:
            known = self._words.get(tool.name)
            fresh = known is not None and known[0] is tool
            documents.append(known[1] if known is not None and fresh else weigh_tool(tool))
        groups = [tool.target.name for tool in tools]
        actions = [
            find_action(tool.remote_name) or find_action(tool.description, 4) for tool in tools
        ]
        return tools, TextIndex(documents, groups, actions)


def weigh_tool(tool: Tool) -> dict[str, float]:
    """The weights of the words of a definition: names say more than descriptions, and the first
    sentence says more than the rest."""
    text = tool.definition.get("description")
    text = text if isinstance(text, str) else tool.description
    first = text.split("\n", 1)[0].split(". ", 1)[0][:_FIRST_CHARS]
    schema = tool.definition.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    parameters = properties if isinstance(properties, dict) else {}
    texts = (one.get("description") for one in parameters.values() if isinstance(one, dict))
    return weigh_words(
        (
            (NAME, tool.remote_name),
            (SERVER, tool.target.name),
            (FIRST, first),
            (REST, text[:_REST_CHARS]),
            (PARAMETERS, " ".join(map(str, parameters))),
            (
                PARAMETER_TEXTS,
                " ".join(one[:_PARAMETER_CHARS] for one in texts if isinstance(one, str)),
            ),
        )
    )
