"""Maps names to tools, in memory.

A tool has a unique canonical name, and aliases that each belong to the tool that had it first (see
`core.name_claims`). Each target replaces its whole offer at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from dragoman.core.errors import ConfigError, Quarantined, StorageFailed
from dragoman.core.loop_turns import LoopTurns
from dragoman.core.name_claims import NameClaims, list_aliases
from dragoman.core.tool import (
    INSTRUCTIONS,
    PROMPT,
    RESOURCE,
    TEMPLATE,
    TOOL,
    Nowhere,
    Tool,
    build_missing_tool,
    build_unknown_tool,
)
from dragoman.core.tool_filter import View


class UncheckedReason(str):
    """Why it is unknown whether a definition was approved: the store failed, which says nothing of
    the definition."""


class ReviewResult(NamedTuple):
    """The outcome of reviewing a target's offer."""

    admitted: Sequence[Tool]
    """At most one of each name."""
    quarantined: Mapping[str, str]
    """Why the others are not offered, by name."""
    remarks: Sequence[str] = ()
    """Notes for the operator."""


Review = Callable[[str, Sequence[Tool]], ReviewResult]
"""Takes a target and its offer, which may contain several spellings of one name."""


class KindReview(Protocol):
    """Reviews what a target offers of one kind."""

    def __call__(self, target: str, tools: Sequence[Tool], kind: str) -> ReviewResult: ...


class TurnedReview(Protocol):
    """The same in several turns of the event loop. Its result holds until the next turn."""

    async def __call__(
        self, target: str, tools: Sequence[Tool], kind: str, turns: LoopTurns
    ) -> ReviewResult: ...


PART = 200
"""Tools whose names are claimed in one turn of the event loop."""


def admit_all(target: str, tools: Sequence[Tool], kind: str = TOOL) -> ReviewResult:
    """Admits everything: for catalogs without review."""
    chosen, remarks = choose_spellings(tools, lambda tool: False)
    return ReviewResult(chosen, {}, remarks)


def choose_spellings(
    tools: Sequence[Tool], is_preferred: Callable[[Tool], bool]
) -> tuple[Sequence[Tool], list[str]]:
    """Chooses one tool of each name, and returns a remark on each that is rejected. The first
    spelling of a name wins, unless another is preferred."""
    by_name: dict[str, Tool] = {}
    several: set[str] = set()
    for tool in tools:
        if tool.name not in by_name:
            by_name[tool.name] = tool
            continue
        several.add(tool.name)
        if is_preferred(tool) and not is_preferred(by_name[tool.name]):
            by_name[tool.name] = tool
    if not several:
        return tools, []
    chosen, remarks = [], []
    for tool in tools:
        taken = by_name[tool.name]
        if tool is taken:
            chosen.append(tool)
        else:
            remarks.append(
                f'{tool.kind} "{tool.remote_name[:200]}" is not offered: it is another spelling of '
                f'"{taken.remote_name[:200]}", and both would be called "{tool.name}"'
            )
    return chosen, remarks


class Catalog:
    def __init__(
        self,
        kind: str = TOOL,
        *,
        review: Review,
        claims: NameClaims | None = None,
        review_in_turns: TurnedReview | None = None,
    ) -> None:
        """`claims` says which tool owns a name; by default the catalog has claims of its own.
        Without `review_in_turns`, `review` is fast enough for long lists."""
        self.kind = kind
        self.claims = claims if claims is not None else NameClaims()
        self.review = review
        """Called with every offer before anything else sees it."""
        self._review_in_turns = review_in_turns
        self._preparing: set[str] = set()
        """The targets whose offers are prepared in turns, without those withdrawn meanwhile."""
        self._brought: dict[str, tuple[Tool, ...]] = {}
        """The last offer of each target, before review."""
        self._quarantined: dict[str, Tool] = {}
        """What is not offered, as `Nowhere` tools, by each of its names."""
        self._quarantined_of: dict[str, list[str]] = {}
        self._remarks: dict[str, Sequence[str]] = {}
        self.version = 0
        """Changes with every change of the catalog, for caches."""
        self._offers: dict[str, tuple[Tool, ...]] = {}
        self._by_name: dict[str, Tool] = {}
        self._by_alias: dict[str, Tool] = {}
        """By the aliases that each tool owns."""
        self._by_fallback: dict[str, Tool] = {}
        self._remote_names: dict[str, dict[str, str]] = {}
        """Canonical names by the names that a target gives its tools, for targets with apps; built
        when a name is looked for."""
        self._ordered: tuple[Tool, ...] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.publishing = asyncio.Lock()
        """Held by a target while it prepares and replaces its offer in several turns of the event
        loop; the lock of the tools stands for all kinds."""

    def offer(self, target: str, tools: Iterable[Tool]) -> None:
        """Replaces everything that `target` offered before."""
        brought = tuple(tools)
        _check_names(target, brought)
        result = self.review(target, brought)
        # Quarantined tools keep their names: they must not lead to another tool meanwhile.
        self.claims.claim(self.kind, target, brought)
        self._replace(target, brought, result)

    async def offer_in_turns(self, target: str, tools: Iterable[Tool], turns: LoopTurns) -> None:
        """Like `offer`, in several turns of the event loop: the tools are offered, all of them, in
        the last one, or none if the target is withdrawn before. The caller holds `publishing`."""
        brought = tuple(tools)
        _check_names(target, brought)
        self._preparing.add(target)
        try:
            await self._offer_in_turns(target, brought, turns)
        finally:
            self._preparing.discard(target)

    async def _offer_in_turns(
        self, target: str, brought: tuple[Tool, ...], turns: LoopTurns
    ) -> None:
        releases = self.claims.releases
        for start in range(0, len(brought), PART):
            await turns.give_way()
            if target not in self._preparing:
                return
            self.claims.claim(self.kind, target, brought[start : start + PART])
        if self._review_in_turns is None:
            result = self.review(target, brought)
        else:
            result = await self._review_in_turns(target, brought, self.kind, turns)
        if target not in self._preparing:
            return
        if self.claims.releases != releases:
            self.claims.claim(self.kind, target, brought)
        self._replace(target, brought, result)

    def _replace(self, target: str, brought: tuple[Tool, ...], result: ReviewResult) -> None:
        self._brought[target] = brought
        self._remote_names.pop(target, None)
        was_held = target in self._quarantined_of
        self._note_review(target, brought, result)
        new = tuple(result.admitted)
        names = [tool.name for tool in new]
        for tool in self._offers.get(target, ()):
            del self._by_name[tool.name]
            for alias in list_aliases(tool):
                if self._by_alias.get(alias) is tool:
                    del self._by_alias[alias]
            for name in tool.fallback_names:
                if self._by_fallback.get(name) is tool:
                    del self._by_fallback[name]
        taken = [name for name in names if name in self._by_name]
        new = tuple(tool for tool in new if tool.name not in self._by_name)
        for tool in new:
            self._by_name[tool.name] = tool
            for name in tool.fallback_names:
                self._by_fallback.setdefault(name, tool)
        self._give_names(new)
        # An empty list of another kind is no change; tools are waited for.
        is_change = bool(new or self._offers.get(target) or self._quarantined_of.get(target))
        self._offers[target] = new
        if is_change or was_held or self.kind == TOOL:
            self.mark_changed()
        if taken:
            raise ConfigError(
                f"target {target!r} offers names that others hold: {', '.join(taken)}"
            )

    def _give_names(self, tools: Iterable[Tool]) -> None:
        owner, kind = self.claims.find_owner, self.kind
        for tool in tools:
            for alias in list_aliases(tool):
                if owner(kind, alias) == tool.name:
                    self._by_alias[alias] = tool

    def share_names(self, *first: str) -> None:
        """Assigns names that have become free, the named targets first."""
        for target in (*first, *self._brought):
            self.claims.claim(self.kind, target, self._brought.get(target, ()))
        for tools in self._offers.values():
            self._give_names(tools)
        self.mark_changed()

    def _note_review(self, target: str, tools: tuple[Tool, ...], result: ReviewResult) -> None:
        for name in self._quarantined_of.pop(target, ()):
            self._quarantined.pop(name, None)
        self._remarks.pop(target, None)
        if result.remarks:
            self._remarks[target] = result.remarks
        names = []
        for tool in tools if result.quarantined else ():
            if (why := result.quarantined.get(tool.name)) is not None:
                error = StorageFailed if isinstance(why, UncheckedReason) else Quarantined
                nowhere = build_missing_tool(tool.name, error(why), self.kind, (tool,))
                for name in (tool.name, *list_aliases(tool)):
                    if name == tool.name or self.claims.find_owner(self.kind, name) == tool.name:
                        self._quarantined[name] = nowhere
                        names.append(name)
        if names:
            self._quarantined_of[target] = names

    def review_again(self, target: str) -> None:
        """Reviews the last offer of a target again."""
        if target in self._brought:
            self.offer(target, self._brought[target])

    def withdraw(self, target: str) -> None:
        self._preparing.discard(target)
        if self._offers.get(target) or self._quarantined_of.get(target):
            self.offer(target, ())
        self._offers.pop(target, None)
        self._brought.pop(target, None)
        self._remote_names.pop(target, None)

    def find(self, name: str) -> Tool:
        """Finds a tool by name or alias; returns a `Nowhere` tool if unknown."""
        tool = self._by_name.get(name) or self._by_alias.get(name)
        return tool if tool is not None else self._build_missing(name)

    def find_within(self, name: str, view: View) -> Tool:
        """Like `find`, limited to `view`; tools outside it do not count as ambiguous."""
        if view.real_names:
            name = view.real_names.get(name, name)
        tool = self._by_name.get(name)
        if tool is not None and view.includes(tool):
            return tool
        tool = self._by_alias.get(name)
        return tool if tool is not None and view.includes(tool) else self._build_missing(name)

    def find_fallbacks(self, name: str, view: View) -> list[Tool]:
        """Finds the tool that has `name` as a fallback, and those of targets with apps that their
        target calls so; none if a tool owns the name that is absent. A quarantined tool is found as
        well, as a `Nowhere` tool: its name must not lead to another one meanwhile."""
        if self.claims.find_owner(self.kind, name) is not None:
            return []
        tool = self._by_fallback.get(name)
        found = [tool] if tool is not None and view.includes(tool) else []
        for target, brought in self._brought.items():
            if not brought or not brought[0].target.traits.has_apps:
                continue
            if target not in self._remote_names:
                self._remote_names[target] = {one.remote_name: one.name for one in brought}
            canonical = self._remote_names[target].get(name, "")
            tool = self._by_name.get(canonical) or self._quarantined.get(canonical)
            if tool is not None and view.includes(find_represented(tool)):
                found.append(tool)
        return found

    def _build_missing(self, name: str) -> Tool:
        return self._quarantined.get(name) or build_unknown_tool(name, self.kind)

    def listed_name(self, tool: Tool, style: str = "") -> str:
        """The name of a tool in lists of that naming style. If another tool owns that name: its own
        name, `{style}!` or `own` if it has one, else the canonical name."""
        names = tool.other_names
        for name in (names.get(style, tool.alias), names.get(f"{style}!"), names.get("own")):
            found = (self._by_name.get(name) or self._by_alias.get(name)) if name else None
            if name and found is not None and found.name == tool.name:
                return name
        return tool.name

    def list_tools(self) -> tuple[Tool, ...]:
        """Lists all tools: the targets by name, those of each in its own order."""
        if self._ordered is None:
            offers = self._offers
            self._ordered = tuple(tool for target in sorted(offers) for tool in offers[target])
        return self._ordered

    def list_targets(self) -> list[Tool]:
        """Lists one tool of each target that offers any."""
        return [tools[0] for tools in self._offers.values() if tools]

    def list_offered(self, target: str) -> tuple[Tool, ...]:
        return self._offers.get(target, ())

    def list_remarks(self, target: str) -> Sequence[str]:
        """Lists the remarks of the review of a target's last offer."""
        return self._remarks.get(target, ())

    def __len__(self) -> int:
        return len(self._by_name)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` after every change; returns what unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def mark_changed(self) -> None:
        """Invalidates what is cached of the catalog, and calls the listeners."""
        self.version += 1
        self._ordered = None
        for listener in tuple(self._listeners):
            listener()


def find_represented(tool: Tool) -> Tool:
    """The tool itself, or the one that a `Nowhere` tool stands for alone."""
    target = tool.target
    if isinstance(target, Nowhere) and len(target.stands_for) == 1:
        return target.stands_for[0]
    return tool


def _check_names(target: str, tools: Sequence[Tool]) -> None:
    if len({(tool.name, tool.remote_name) for tool in tools}) != len(tools):
        raise ConfigError(f"target {target!r} offers a name twice")


def build_catalogs(
    review: KindReview, claims: NameClaims, review_in_turns: TurnedReview | None = None
) -> dict[str, Catalog]:
    """Builds one catalog of every kind that a target may offer; all share the claims to names."""
    return {
        kind: Catalog(
            kind,
            review=partial(review, kind=kind),
            claims=claims,
            review_in_turns=review_in_turns,
        )
        for kind in (TOOL, PROMPT, RESOURCE, TEMPLATE, INSTRUCTIONS)
    }
