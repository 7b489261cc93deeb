"""Names to tools, in memory. Knows where nothing comes from.

A tool has a canonical name, which is unique, and an alias, which may not be. Each target replaces
its whole offer at once; a name that two targets claim belongs to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dragoman.core.errors import AmbiguousName, ConfigError
from dragoman.core.tool import TOOL, Tool, tool_nowhere, unknown
from dragoman.core.view import View


class Catalog:
    def __init__(self, kind: str = TOOL) -> None:
        self.kind = kind
        self.version = 0
        """Moves with every change, so that whoever keeps something made from it can tell."""
        self._offers: dict[str, tuple[Tool, ...]] = {}
        self._by_name: dict[str, Tool] = {}
        self._by_alias: dict[str, list[Tool]] = {}
        self._sorted: tuple[Tool, ...] | None = None
        self._listeners: list[Callable[[], None]] = []

    def offer(self, target: str, tools: Iterable[Tool]) -> None:
        """Put `tools` in the place of all that `target` offered before."""
        new = tuple(tools)
        names = [tool.name for tool in new]
        if len(set(names)) != len(names):
            raise ConfigError(f"target {target!r} offers a name twice")
        for tool in self._offers.get(target, ()):
            del self._by_name[tool.name]
            for alias in _aliases(tool):
                sharers = self._by_alias[alias]
                sharers.remove(tool)
                if not sharers:
                    del self._by_alias[alias]
        taken = [name for name in names if name in self._by_name]
        new = tuple(tool for tool in new if tool.name not in self._by_name)
        for tool in new:
            self._by_name[tool.name] = tool
            for alias in _aliases(tool):
                self._by_alias.setdefault(alias, []).append(tool)
        self._offers[target] = new
        self._changed()
        if taken:
            raise ConfigError(
                f"target {target!r} offers names that others hold: {', '.join(taken)}"
            )

    def withdraw(self, target: str) -> None:
        if self._offers.get(target):
            self.offer(target, ())
        self._offers.pop(target, None)

    def find(self, name: str) -> Tool:
        """The tool that `name` stands for; a tool nowhere if it stands for none or for several."""
        tool = self._by_name.get(name)
        if tool is not None:
            return tool
        return self._of(name, self._by_alias.get(name, ()))

    def find_within(self, name: str, view: View) -> Tool:
        """The same for somebody to whom there is nothing beyond `view`, not even as another that
        is called alike."""
        tool = self._by_name.get(name)
        if tool is not None and view.includes(tool):
            return tool
        return self._of(name, [one for one in self._by_alias.get(name, ()) if view.includes(one)])

    def _of(self, name: str, sharers: Sequence[Tool]) -> Tool:
        if not sharers:
            return unknown(name, self.kind)
        if len(sharers) == 1:
            return sharers[0]
        full = ", ".join(f'"{tool.name}"' for tool in sorted(sharers, key=lambda tool: tool.name))
        problem = f'"{name}" stands for several {self.kind}s; ask for one by its full name: {full}'
        return tool_nowhere(name, AmbiguousName(problem), self.kind)

    def shown(self, tool: Tool, style: str = "") -> str:
        """What a list calls it in that style of naming. Where that is another's name too, it is
        the name that reaches this one alone: `{style}!` if there is such, else the canonical."""
        alias = tool.other_names.get(style, tool.alias)
        sharers = self._by_alias.get(alias, ())
        if len(sharers) > 1 or self._by_name.get(alias, tool) is not tool:
            return tool.other_names.get(f"{style}!", tool.name)
        return alias

    def tools(self) -> tuple[Tool, ...]:
        """All tools, in the order of their names: the same catalog always reads the same."""
        if self._sorted is None:
            self._sorted = tuple(sorted(self._by_name.values(), key=lambda tool: tool.name))
        return self._sorted

    def targets(self) -> list[Tool]:
        """One tool of each target that offers any."""
        return [tools[0] for tools in self._offers.values() if tools]

    def offered_by(self, target: str) -> tuple[Tool, ...]:
        return self._offers.get(target, ())

    def __len__(self) -> int:
        return len(self._by_name)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` after every change; what is returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _changed(self) -> None:
        self.version += 1
        self._sorted = None
        for listener in tuple(self._listeners):
            listener()


def _aliases(tool: Tool) -> set[str]:
    return {tool.alias, *tool.other_names.values()}
