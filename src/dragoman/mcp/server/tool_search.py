"""Search mode: clients of a view, or those that take no more than a number of tools, get
`find_tools` and `call_tool` instead of all tools.

`find_tools` ranks the tools that the caller may see and that are for models, and names no others.
`call_tool` is not a tool of its own: the call handler makes the call that it names, so guards and
records see that one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.errors import InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.token_estimate import estimate_tokens, select_shown
from dragoman.core.tool import Nowhere, Tool
from dragoman.core.tool_filter import View
from dragoman.core.tool_finder import select_for_models
from dragoman.core.views import ALWAYS, NamedView
from dragoman.wire.json import Malformed, decode, encode

FIND_TOOLS, CALL_TOOL = "find_tools", "call_tool"
SEARCH_TOOLS = frozenset({FIND_TOOLS, CALL_TOOL})
DEFAULT_LIMIT, MAX_LIMIT = 5, 20
MIN_RESULT_TOKENS, DEFAULT_RESULT_TOKENS = 500, 2_000
"""Estimated tokens of one answer of `find_tools`: half of the view's budget, at least the first;
the second for a view without a budget."""
MAX_SERVERS = 25
"""Servers that the description of `find_tools` names."""


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
