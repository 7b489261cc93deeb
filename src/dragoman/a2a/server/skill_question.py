"""Asks a client whose message names no skill which one it is for, with the nearest to its words.

It shows a person how the best of them is called; programs name a skill in the metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from dragoman.a2a.cards.build import find_text_argument
from dragoman.a2a.config import DOOR
from dragoman.a2a.server.form_answers import SCALARS, find_properties, list_required
from dragoman.core.errors import RateLimited
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import REQUEST
from dragoman.core.safe_text import escape_line
from dragoman.core.tool import TOOL, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_finder import ToolFinder, select_for_models
from dragoman.wire.json import encode

SHOWN = 5
MAX_SENTENCE = 160
MAX_INPUTS = 5
"""Arguments that an example names."""
SEARCH = "find skills"
"""How a search is charged."""
QUESTION = "Which skill is this for?"
PLAIN_QUESTION = f"{QUESTION} Answer with the id of one."


class SkillQuestion:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._finder = ToolFinder(hub)

    async def build(self, text: str, principal: Principal) -> str:
        """The question to a client that has sent `text`. It names only skills that the principal
        may see."""
        hub = self._hub
        try:
            if (charged := hub.limiter.charge(principal, REQUEST, SEARCH)) is not None:
                await charged
        except RateLimited:
            return PLAIN_QUESTION
        agents = {tool.name for tool in hub.catalog.list_tools() if tool.agent is not None}
        hidden = hub.list_client_only_names(TOOL) | agents
        found = await self._finder.find(
            principal, text, SHOWN, view=EVERYTHING, door=DOOR, hidden=hidden
        )
        if found.total == 0:
            return f"{QUESTION} There are none that you may use."
        if found.tools:
            return _render(f"The nearest of {found.total}:", found.tools)
        visible = select_for_models(hub.list_tools(principal, EVERYTHING, TOOL, DOOR, hidden))
        shown = _select_some(visible)
        intro = f"Some of {found.total}; describe what you need, and the nearest are shown:"
        return _render(intro if len(shown) < found.total else "There are these:", shown)


def _select_some(tools: Iterable[Tool]) -> Sequence[Tool]:
    """The first tools of each target in turn."""
    groups: dict[str, list[Tool]] = {}
    for tool in tools:
        group = groups.setdefault(tool.target.name, [])
        if len(group) < SHOWN:
            group.append(tool)
    turns = zip_longest(*groups.values())
    return [tool for turn in turns for tool in turn if tool is not None][:SHOWN]


def _render(intro: str, tools: Sequence[Tool]) -> str:
    lines = [f"{QUESTION} {intro}"]
    for tool in tools:
        sentence = _find_sentence(tool)
        lines.append(f"- {tool.name}: {sentence}" if sentence else f"- {tool.name}")
    example = _build_example(tools[0].name, tools[0].definition.get("inputSchema"))
    lines.append(f"Answer with the id of one, or with its input in the same line: {example}")
    return "\n".join(lines)


def _find_sentence(tool: Tool) -> str:
    text = tool.definition.get("description")
    if not isinstance(text, str):
        return ""
    lines = text.strip().split("\n", 1)
    sentence = lines[0].partition(". ")[0].strip()
    shown = sentence if len(sentence) <= MAX_SENTENCE else f"{sentence[: MAX_SENTENCE - 1]}…"
    return escape_line(shown)


def _build_example(name: str, schema: Any) -> str:
    """A line that calls the tool, with … for each value."""
    if not isinstance(schema, Mapping) or not find_properties(schema):
        return name
    properties = find_properties(schema)
    names = list_required(schema) or list(properties)
    wanted = properties.get(names[0]) if len(names) == 1 else None
    is_text = find_text_argument(schema) is not None
    if is_text or (isinstance(wanted, Mapping) and wanted.get("type") in SCALARS):
        return f"{name} {escape_line(str(names[0]))}…"
    inputs = {str(one): "…" for one in names[:MAX_INPUTS]}
    return f"{name} {escape_line(encode(inputs).decode())}"
