"""Whose a resource is that no list names: which template could have led to its address.

RFC 6570 read backwards, roughly: what stands between the expressions must be there, in order. In
time that grows with the length of the address alone, whatever the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dragoman.core.tool import Tool

MAX_URI = 8_192
_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
_ACROSS = frozenset("+#/?&;")
"""Operators whose expansion may hold a slash."""


def matches(template: str, uri: str) -> bool:
    """Whether `uri` is an expansion of `template`."""
    return len(uri) <= MAX_URI and _fits(*_parts(template), uri)


class Owners:
    """Whose an address is. Made once of what is offered: reading a template takes longer than all
    the rest."""

    def __init__(self, templates: Iterable[Tool], others: Iterable[Tool]) -> None:
        """`others` are resources, one of each target that has any."""
        read = [(tool, *_parts(tool.alias)) for tool in templates]
        weighed = [(sum(map(len, one[1])), *one) for one in read]
        self._templates = sorted(weighed, key=lambda one: -one[0])
        self._others = {tool.target.name: tool for tool in others}

    def of(self, uri: str) -> Tool | None:
        """A template or resource whose target is the one to ask for `uri`.

        The template that says the most fits best; without any, the only server that has resources
        at all is asked. Where several could be meant nobody is: a read must not go round.
        """
        if len(uri) > MAX_URI:
            return None
        best: tuple[int, Tool] | None = None
        for weight, tool, literals, operators in self._templates:
            if best is not None and weight < best[0]:
                break
            if _fits(literals, operators, uri) or _fits(literals, operators, _own(uri, tool)):
                if best is not None and best[1].target is not tool.target:
                    return None
                best = best or (weight, tool)
        if best is not None:
            return best[1]
        named = [one for one in self._others.values() if _own(uri, one)]
        found = named or list(self._others.values())
        return found[0] if len(found) == 1 else None


def _own(uri: str, tool: Tool) -> str:
    """What stands behind the name of the tool's server; nothing where that does not stand there."""
    server = tool.target.name
    if not uri.startswith(server) or uri[len(server) : len(server) + 1] != ".":
        return ""
    return uri[len(server) + 1 :]


def _parts(template: str) -> tuple[list[str], list[str]]:
    pieces = _EXPRESSION.split(template)
    return pieces[::2], pieces[1::2]


def _fits(literals: list[str], operators: list[str], uri: str) -> bool:
    if not uri.startswith(literals[0]):
        return False
    if not operators:
        return uri == literals[0]
    at = len(literals[0])
    for operator, literal in zip(operators[:-1], literals[1:-1], strict=True):
        found = uri.find(literal, at)
        if found < 0 or not _expands(uri[at:found], operator):
            return False
        at = found + len(literal)
    end = len(uri) - len(literals[-1])
    return end >= at and uri.endswith(literals[-1]) and _expands(uri[at:end], operators[-1])


def _expands(text: str, operator: str) -> bool:
    return operator in _ACROSS or ("/" not in text and text != "")
