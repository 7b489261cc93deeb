"""Search mode: clients of a view, or those that take no more than a number of tools, get
`find_tools` and `call_tool` instead of all tools.

`find_tools` ranks the tools that the caller may see and that are for models, and names no others.
`call_tool` is not a tool of its own: the call handler makes the call that it names, so guards and
records see that one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.core.errors import InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.text_search import TextIndex, find_action, weigh_words
from dragoman.core.token_estimate import estimate_tokens, select_shown
from dragoman.core.tool import TOOL, Nowhere, Tool
from dragoman.core.tool_filter import View
from dragoman.core.views import ALWAYS, NamedView
from dragoman.mcp.server.client_state import ClientState
from dragoman.wire.json import Malformed, decode, encode

FIND_TOOLS, CALL_TOOL = "find_tools", "call_tool"
SEARCH_TOOLS = frozenset({FIND_TOOLS, CALL_TOOL})
DEFAULT_LIMIT, MAX_LIMIT = 5, 20
MIN_RESULT_TOKENS, DEFAULT_RESULT_TOKENS = 500, 2_000
"""Estimated tokens of one answer of `find_tools`: half of the view's budget, at least the first;
the second for a view without a budget."""
MAX_SERVERS = 25
"""Servers that the description of `find_tools` names."""
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


def may_search(hub: Hub, view: View) -> bool:
    """Whether clients of the view may get the two tools because of their own limits: unless it says
    never, or has tools of these names."""
    return view.may_search and all(
        isinstance(hub.find(name, view).target, Nowhere) for name in SEARCH_TOOLS
    )


def needs_search(view: NamedView, tokens: int) -> bool:
    """Whether clients of the view get the two tools, where its list costs so many tokens."""
    budget = view.rule.token_budget
    return view.rule.search == ALWAYS or (view.can_search and 0 < budget < tokens)


def build_search_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The definitions of the two tools, for a caller that sees `tools`."""
    tools = select_for_models(tools)
    counts = Counter(tool.target.name for tool in tools)
    named = [f"{name} ({count})" for name, count in counts.most_common(MAX_SERVERS)]
    if len(counts) > MAX_SERVERS:
        named.append(f"and {len(counts) - MAX_SERVERS} more")
    return [
        {
            "name": CALL_TOOL,
            "description": "Calls a tool that find_tools has found, by its name, with arguments "
            "that match its inputSchema.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "The tool's name from find_tools."},
                    "arguments": {"type": "object", "description": "The tool's arguments."},
                },
                "required": ["name"],
            },
        },
        {
            "name": FIND_TOOLS,
            "description": f"Finds tools for a task among {len(tools)} tools. Call it before you "
            "conclude that something cannot be done, then use call_tool. Describe one step of the "
            'task in a few words, with the product that it concerns, e.g. "create a GitHub '
            f'issue". Servers and their tools: {", ".join(named) or "none"}.',
            "inputSchema": {
                "type": "object",
                "properties": {
                    "query": {
                        "type": "string",
                        "description": "What the tool should do, or the exact name of a tool.",
                    },
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MAX_LIMIT,
                        "description": f"How many tools to return; default {DEFAULT_LIMIT}.",
                    },
                },
                "required": ["query"],
            },
            "execution": {"taskSupport": "forbidden"},
            "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
        },
    ]


def select_for_models(tools: Sequence[Tool]) -> Sequence[Tool]:
    """Leaves out the tools that only user interfaces call."""
    return [tool for tool in tools if tool.is_for_models]


def parse_find(arguments: Mapping[str, Any]) -> tuple[str, int]:
    """The query and the limit. Raises `InvalidInput`."""
    query, limit = arguments.get("query"), arguments.get("limit", DEFAULT_LIMIT)
    if not isinstance(query, str) or not query.strip():
        raise InvalidInput('"query" must be a text that says what the tool should do')
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidInput(f'"limit" must be a whole number from 1 to {MAX_LIMIT}')
    return query, min(limit, MAX_LIMIT)


def parse_inner_call(arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The tool that `call_tool` is to call, and its arguments. Raises `InvalidInput`."""
    name, inner = arguments.get("name"), arguments.get("arguments")
    if not isinstance(name, str) or not name:
        raise InvalidInput('"name" must be the name of a tool; find one with find_tools')
    if isinstance(inner, str):  # some models send JSON in a text
        try:
            inner = decode(inner.encode())
        except Malformed:
            inner = 0
    if inner is None:
        return name, {}
    if not isinstance(inner, dict):
        raise InvalidInput('"arguments" must be an object')
    return name, inner


class ToolFinder:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._words: dict[str, tuple[Tool, dict[str, float]]] = {}
        """The words of each tool, while its definition stays as it is."""
        self._kept: dict[Hashable, tuple[Sequence[Tool], TextIndex]] = {}
        self._kept_of: Hashable = None

    async def find(
        self, client: ClientState, query: str, limit: int, hidden: frozenset[str]
    ) -> FoundTools:
        """Finds tools for a task, or the one tool that has the query as its name."""
        tools, index = await self._find_index(client, hidden)
        hub = self._hub
        exact = hub.find(query.strip(), client.view).name
        for tool in tools:
            if tool.name == exact:
                return FoundTools([tool], len(tools))
        best = index.search(query, limit)
        return FoundTools([tools[number] for number, _ in best], len(tools))

    async def _find_index(
        self, client: ClientState, hidden: frozenset[str]
    ) -> tuple[Sequence[Tool], TextIndex]:
        hub, caller = self._hub, client.principal
        for _ in range(MAX_TRIES):
            version = hub.catalog.version, hub.authorizer.version
            if self._kept_of != version or len(self._kept) > MAX_KEPT:
                self._kept, self._kept_of = {}, version
            group = hub.authorizer.group_of_principal(caller)
            key = group, client.door, client.view, hidden
            if (kept := self._kept.get(key)) is not None:
                return kept
            tools = select_for_models(
                hub.list_tools(caller, client.view, TOOL, client.door, hidden)
            )
            await self._weigh(tools)
            if (hub.catalog.version, hub.authorizer.version) == version:
                kept = self._kept[key] = self._build(tools)
                return kept
        # The lists change all the time: what the caller may see now is indexed at once.
        tools = hub.list_tools(caller, client.view, TOOL, client.door, hidden)
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


def render_found(definitions: Sequence[Mapping[str, Any]], budget: int) -> str:
    """The answer of `find_tools`, as JSON. Schemas that do not fit into half of the view's budget
    are left out; a single tool is shown whole."""
    left = max(budget // 2 or DEFAULT_RESULT_TOKENS, MIN_RESULT_TOKENS)
    shown: list[dict[str, Any]] = []
    for definition in definitions:
        entry = select_shown(definition)
        if isinstance(schema := entry.get("inputSchema"), dict):
            entry["inputSchema"] = {key: schema[key] for key in schema if key != "$schema"}
        cost = estimate_tokens(len(encode(entry)))
        if cost > left and len(definitions) > 1:
            entry.pop("inputSchema", None)
            entry["description"] = str(entry.get("description", ""))[:200]
            entry["note"] = "for its inputSchema, call find_tools with this name as the query"
            cost = estimate_tokens(len(encode(entry)))
            if cost > left:
                break
        left -= cost
        shown.append(entry)
    found: dict[str, Any] = {"tools": shown}
    if not shown:
        found["note"] = "no tool matches; try other words, or the name of a server"
    return encode(found).decode()
