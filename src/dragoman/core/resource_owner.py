"""Finds the owner of an unlisted resource: the server whose template could expand to its address.

Roughly RFC 6570 in reverse: the literals between the expressions must occur in order. Takes time
linear in the length of the address, whatever the template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from dragoman.core.tool import Target, Tool
from dragoman.core.unlisted_resources import MAX_URI, has_resources, parse_own_uri

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
_ACROSS = frozenset("+#/?&;")
"""Operators whose expansion may contain a slash."""


def matches(template: str, uri: str) -> bool:
    """Whether `uri` may be an expansion of `template`."""
    return len(uri) <= MAX_URI and _matches_parts(*_split_template(template), uri)


class ResourceOwners:
    """The owners of addresses. Built once per offer: parsing templates dominates the cost."""

    def __init__(
        self,
        templates: Iterable[Tool],
        listing: Iterable[Target],
        others: Iterable[Target] = (),
        tools: Iterable[Tool] = (),
    ) -> None:
        """`listing` are the servers that list resources, `others` all servers; `tools` may name
        resources that belong to them."""
        read = [(tool, *_split_template(tool.alias)) for tool in templates]
        weighed = [(sum(map(len, one[1])), *one) for one in read]
        self._templates = sorted(weighed, key=lambda one: -one[0])
        self._listing = {target.name: target for target in listing}
        self._all = {target.name: target for target in others} | self._listing
        self._declared: dict[str, dict[str, Target]] = {}
        for tool in tools:
            for uri in tool.resources:
                self._declared.setdefault(uri, {})[tool.target.name] = tool.target

    def find_owner(
        self,
        uri: str,
        mentioned_by: str | None = None,
        is_able: Callable[[Target], bool] = has_resources,
    ) -> tuple[Target, str] | None:
        """Finds the server to ask for `uri`, and its own address for it. `is_able` says whether a
        server that lists no resources can be asked.

        An address that names its server belongs to it. Otherwise the most specific template
        decides, then the server whose tools name the address, then the one that returned it
        (`mentioned_by`), then the only one that lists or may have resources. If several remain,
        none is asked.
        """
        if len(uri) > MAX_URI:
            return None
        able = {name: one for name, one in self._all.items() if is_able(one)}
        able |= self._listing
        named = [one for one in able.values() if parse_own_uri(one.name, uri)]
        if len(named) == 1:
            return named[0], parse_own_uri(named[0].name, uri)
        best: tuple[int, Target, str] | None = None
        for weight, tool, literals, operators in self._templates:
            if best is not None and weight < best[0]:
                break
            for inner in (uri, parse_own_uri(tool.target.name, uri)):
                if _matches_parts(literals, operators, inner):
                    if best is not None and best[1] is not tool.target:
                        return None
                    best = best or (weight, tool.target, inner)
                    break
        if best is not None:
            return best[1], best[2]
        found = self._declared.get(uri, {})
        if not found and mentioned_by is not None and mentioned_by in self._all:
            found = {mentioned_by: self._all[mentioned_by]}
        if not found:
            found = self._listing or able
        return (next(iter(found.values())), uri) if len(found) == 1 else None

    def find_target(self, name: str) -> Target | None:
        return self._all.get(name)


def _split_template(template: str) -> tuple[list[str], list[str]]:
    pieces = _EXPRESSION.split(template)
    return pieces[::2], pieces[1::2]


def _matches_parts(literals: list[str], operators: list[str], uri: str) -> bool:
    if not uri.startswith(literals[0]):
        return False
    if not operators:
        return uri == literals[0]
    at = len(literals[0])
    for operator, literal in zip(operators[:-1], literals[1:-1], strict=True):
        found = uri.find(literal, at)
        if found < 0 or not _can_expand_to(uri[at:found], operator):
            return False
        at = found + len(literal)
    end = len(uri) - len(literals[-1])
    return end >= at and uri.endswith(literals[-1]) and _can_expand_to(uri[at:end], operators[-1])


def _can_expand_to(text: str, operator: str) -> bool:
    return operator in _ACROSS or ("/" not in text and text != "")
