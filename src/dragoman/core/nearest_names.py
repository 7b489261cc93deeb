"""Finds the known name that a misspelt one is like, in bounded time. Pure.

Both names come from callers, servers and files. To compare two names takes the product of their
lengths, so long names are like none, and only the few that have the same letters are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from itertools import islice

MAX_NAME = 64
"""Characters of a name; one that is longer is like no other."""
MAX_KNOWN = 300
"""Names that are looked at."""
MAX_COMPARED = 5
"""Names that are compared letter by letter: to count common letters takes a twentieth."""
ALIKE = 0.6


def find_nearest(name: str, known: Iterable[str], cutoff: float = ALIKE) -> str | None:
    """Returns the known name that is most like `name`; None if none is alike by `cutoff`, from 0 to
    1. Of many names, only those that begin alike are looked at."""
    if len(name) > MAX_NAME:
        return None
    names = [other for other in known if 0 < len(other) <= MAX_NAME]
    if len(names) > MAX_KNOWN:
        first = name[:1].lower()
        names = list(islice((other for other in names if other[0].lower() == first), MAX_KNOWN))
    matcher = SequenceMatcher()
    matcher.set_seq2(name)
    candidates: list[tuple[float, str]] = []
    for other in names:
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() >= cutoff and (likeness := matcher.quick_ratio()) >= cutoff:
            candidates.append((likeness, other))
    nearest, best = None, cutoff
    for _, other in sorted(candidates, reverse=True)[:MAX_COMPARED]:
        matcher.set_seq1(other)
        if (likeness := matcher.ratio()) >= best:
            nearest, best = other, likeness
    return nearest
