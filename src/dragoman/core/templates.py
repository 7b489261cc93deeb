"""Whose a resource is that no list names: which template could have led to its address.

RFC 6570 read backwards, roughly: what stands between the expressions must be there, in order. In
time that grows with the length of the address alone, whatever the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dragoman.core.tool import Tool

MAX_URI = 8_192
_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
_ACROSS = frozenset("+#/?&;")
"""Operators whose expansion may hold a slash."""


def matches(template: str, uri: str) -> bool:
    """Whether `uri` is an expansion of `template`."""
    if len(uri) > MAX_URI:
        return False
    literals, operators = _parts(template)
    if not operators:
        return uri == template
    if not uri.startswith(literals[0]):
        return False
    at = len(literals[0])
    for operator, literal in zip(operators[:-1], literals[1:-1], strict=True):
        found = uri.find(literal, at)
        if found < 0 or not _fits(uri[at:found], operator):
            return False
        at = found + len(literal)
    end = len(uri) - len(literals[-1])
    return end >= at and uri.endswith(literals[-1]) and _fits(uri[at:end], operators[-1])


def owner_of(uri: str, templates: Iterable[Tool], resources: Sequence[Tool]) -> Tool | None:
    """A template or resource whose target is the one to ask for `uri`.

    The template that says the most fits best; without any, the only server that has resources at
    all is asked. Where several could be meant nobody is: a read must not go round.
    """
    best: tuple[int, Tool] | None = None
    for tool in templates:
        template = tool.alias
        if matches(template, uri) or matches(tool.name, uri):
            weight = sum(map(len, _parts(template)[0]))
            if best is None or weight > best[0]:
                best = weight, tool
    if best is not None:
        return best[1]
    named = [tool for tool in resources if uri.startswith(f"{tool.target.name}.")]
    targets = {tool.target.name: tool for tool in named or resources}
    return next(iter(targets.values())) if len(targets) == 1 else None


def _parts(template: str) -> tuple[list[str], list[str]]:
    pieces = _EXPRESSION.split(template)
    return pieces[::2], pieces[1::2]


def _fits(text: str, operator: str) -> bool:
    return operator in _ACROSS or ("/" not in text and text != "")
