"""Which tools a face shows: globs over their names. What it does not show, it does not call."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from dragoman.core.tool import Tool


@dataclass(frozen=True, slots=True)
class View:
    patterns: tuple[str, ...]

    def includes(self, tool: Tool) -> bool:
        return any(
            pattern == "*" or fnmatchcase(tool.name, pattern) or fnmatchcase(tool.alias, pattern)
            for pattern in self.patterns
        )


EVERYTHING = View(("*",))
