"""Which tools a server offers: globs over their names. What it does not list it does not call.

The address of a resource is chosen by its server or even by the client: `pub.*` means what the
server `pub` has, not what others call `pub.something`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

from dragoman.core.tool import RESOURCE, TEMPLATE, Tool

_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_ADDRESSED = frozenset({RESOURCE, TEMPLATE})


@dataclass(frozen=True)
class View:
    patterns: tuple[str, ...]
    agents: bool = False
    """Whether agents are included, whatever their names."""

    # Without annotations: these are no fields, and `core.views` sets them.
    name = ""
    """Of a view in the configuration."""
    can_search = False
    """Whether clients may find its tools by `find_tools`."""
    may_search = True
    """The same for clients that take no more than a number of tools."""
    real_names = _NO_NAMES
    """The names in this view that are not the tools' own, and those."""

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
    """Whether a pattern begins like an address, not like a server's name."""
    scheme, colon, _ = pattern.partition(":")
    return bool(colon) and "." not in scheme


EVERYTHING = View(("*",))
