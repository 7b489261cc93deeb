"""Which tools a face shows: globs over their names. What it does not show, it does not call.

The address of a resource is its server's choice, or even the caller's: `pub.*` means all that the
server `pub` has, and not what others call `pub.something`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from dragoman.core.tool import RESOURCE, TEMPLATE, Tool

_ADDRESSED = frozenset({RESOURCE, TEMPLATE})


@dataclass(frozen=True, slots=True)
class View:
    patterns: tuple[str, ...]
    agents: bool = False
    """Whether agents are among it, whatever they are called."""

    def includes(self, tool: Tool) -> bool:
        if tool.agent and self.agents:
            return True
        addressed = tool.kind in _ADDRESSED
        return any(
            pattern == "*"
            or fnmatchcase(tool.name, pattern)
            or fnmatchcase(tool.other_names.get("spelled", tool.name), pattern)
            or (fnmatchcase(tool.alias, pattern) and (not addressed or _is_address(pattern)))
            for pattern in self.patterns
        )


def _is_address(pattern: str) -> bool:
    """Whether it begins as an address does, and not with a server's name."""
    scheme, colon, _ = pattern.partition(":")
    return bool(colon) and "." not in scheme


EVERYTHING = View(("*",))
