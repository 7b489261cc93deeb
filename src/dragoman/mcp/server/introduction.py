"""The instructions and extensions of the servers behind the hub, for `initialize` and
`server/discover`. A client learns of a server only if it may see a tool of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any
from unicodedata import normalize

from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.tool import Target
from dragoman.core.tool_filter import View
from dragoman.mcp.protocol.revisions import CARRIED, TASKS
from dragoman.wire.json import encode

Budget = tuple[int, int]
"""Characters of the instructions of one server, and of all servers together."""

MAX_KEPT = 64
MAX_EXTENSIONS = 32
MAX_SETTINGS = 4_096
"""Bytes of a server's settings of one extension."""
_OFFICIAL = "io.modelcontextprotocol/"
_EXTENSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,127}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

HEADING = '# MCP server "'
_LIKE_HEADING = re.compile(
    r"""[\W_]*#[\W_]*mcp[\W_]*server|[\W_]*mcp[\W_]*server[\W_]*["'`\u2018-\u201f\u00ab\u00bb]""",
    re.IGNORECASE,
)
"""A line that a model could take for the heading of a section."""
PREAMBLE = (
    "This hub passes on the tools of several MCP servers. Each section below was written by the "
    "server that it is named after and is about the tools of that server alone."
)


class Introduction:
    def __init__(self, hub: Hub, budget: Callable[[], Budget]) -> None:
        self._hub = hub
        self._budget = budget
        self._kept: dict[Hashable, tuple[Sequence[Target], str]] = {}
        self._kept_of: Hashable = None

    def render_instructions(self, caller: Principal, view: View, door: str) -> str:
        """Joins the instructions of all servers of which the principal may see a tool."""
        return self._find(caller, view, door)[1]

    def merge_extensions(self, caller: Principal, view: View, door: str) -> dict[str, Any]:
        """Merges the extensions of those servers that the hub can carry. If two servers disagree
        about the settings of an extension, it has none."""
        found: dict[str, Any] = {}
        for target in self._find(caller, view, door)[0]:
            for name, settings in find_extensions(target).items():
                if name not in found and len(found) >= MAX_EXTENSIONS:
                    continue
                found[name] = settings if found.get(name, settings) == settings else {}
        return found

    def _find(self, caller: Principal, view: View, door: str) -> tuple[Sequence[Target], str]:
        hub, budget = self._hub, self._budget()
        versions = tuple(catalog.version for catalog in hub.offered.values())
        state = versions, hub.authorizer.version, budget
        if state != self._kept_of or len(self._kept) > MAX_KEPT:
            self._kept.clear()
            self._kept_of = state
        key = hub.authorizer.group_of_principal(caller), door, view
        found = self._kept.get(key)
        if found is None:
            seen = {
                tool.target.name: tool.target
                for kind in hub.catalogs
                for tool in hub.list_tools(caller, view, kind, door)
            }
            targets = [seen[name] for name in sorted(seen)]
            found = self._kept[key] = targets, self._join(targets, budget)
        return found

    def _join(self, targets: Sequence[Target], budget: Budget) -> str:
        texts = {
            target.name: tool.description
            for target in targets
            for tool in self._hub.instructions.list_offered(target.name)
            if tool.description
        }
        return join_instructions(texts, budget)


def join_instructions(texts: Mapping[str, str], budget: Budget) -> str:
    """Joins texts with a heading for each server. If all together are too long, each is cut to an
    equal share."""
    each, total = budget
    if not texts or not each:
        return ""
    share = min(each, total // len(texts))
    sections = [
        f'{HEADING}{name}"\n\n{_cut(_quote_headings(text), share)}' for name, text in texts.items()
    ]
    return "\n\n".join([PREAMBLE, *sections])


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[cut: {len(text) - most} of {len(text)} characters left out]"


def _quote_headings(text: str) -> str:
    """Quotes lines that look like a heading: no server may imitate the section of another."""
    return "\n".join(
        f"> {line}" if _LIKE_HEADING.match(normalize("NFKC", line)) else line
        for line in text.splitlines()
    )


def find_extensions(target: Target) -> dict[str, Any]:
    """Returns the extensions of a server that the hub can carry. The hub handles tasks itself."""
    found: dict[str, Any] = {}
    for name, settings in target.traits.extensions.items():
        official = str(name).startswith(_OFFICIAL)
        if name == TASKS or (official and name not in CARRIED):
            continue
        if isinstance(name, str) and _EXTENSION.fullmatch(name):
            fits = isinstance(settings, dict) and len(encode(settings)) <= MAX_SETTINGS
            found[name] = settings if fits else {}
    return found
