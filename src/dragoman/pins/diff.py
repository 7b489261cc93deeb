"""Renders the diff of two definitions, member by member, safe for a terminal. Pure.

Definitions with the same normalized form have no diff.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dragoman.core.call import ABSENT
from dragoman.pins.digest import normalize
from dragoman.pins.sanitize import escape_hidden
from dragoman.wire.json import encode

MAX_VALUE = 20_000
"""Characters rendered of one value."""
MAX_CHANGES = 300
MAX_LINES = 400
"""Longer texts are rendered one after the other."""
MAX_STRANGE = 8
LONG_LINE = 160
"""Characters from which only the part of a line that differs is rendered, with its context."""
CONTEXT = 60
"""Characters rendered before and after that part."""


class DefinitionChange(NamedTuple):
    path: tuple[str, ...]
    old: Any
    """ABSENT if there was none."""
    new: Any


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[DefinitionChange]:
    """Finds each member that differs, in order. Lists are compared as a whole."""
    yield from _find_changes(old, new, normalize(old), normalize(new), ())


def _find_changes(
    old: Any, new: Any, was: Any, now: Any, path: tuple[str, ...]
) -> Iterator[DefinitionChange]:
    """`was` and `now` are the normalized forms of `old` and `new`."""
    if not isinstance(was, dict) or not isinstance(now, dict):
        if ABSENT in (was, now) or encode(was) != encode(now):
            yield DefinitionChange(path, old, new)
        return
    for name in sorted(was.keys() | now.keys()):
        yield from _find_changes(
            old.get(name, ABSENT),
            new.get(name, ABSENT),
            was.get(name, ABSENT),
            now.get(name, ABSENT),
            (*path, name),
        )


def render_diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Renders a paragraph per member: the old value with `-`, the new one with `+`."""
    paragraphs = []
    for count, change in enumerate(find_changes(old, new)):
        if count == MAX_CHANGES:
            paragraphs.append("… and more; see all of them with --json")
            break
        lines = [_render_path(change.path), *(f"  {line}" for line in _render_change(change))]
        if strange := _find_strange(change):
            lines.append(f"  ! new characters: {strange}")
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def _render_path(path: tuple[str, ...]) -> str:
    return escape_hidden(
        ".".join(name if name.isidentifier() else _encode_text(name) for name in path)
    )


def _render_change(change: DefinitionChange) -> list[str]:
    old, new = change.old, change.new
    if isinstance(old, str) and isinstance(new, str):
        return _render_text_change(old.split("\n"), new.split("\n"))
    if isinstance(old, list) and isinstance(new, list):
        return _render_list_change(old, new)
    return _render_value("-", old) + _render_value("+", new)


def _render_text_change(old: list[str], new: list[str]) -> list[str]:
    if max(len(old), len(new)) > MAX_LINES:
        return _render_value("-", "\n".join(old)) + _render_value("+", "\n".join(new))
    found: list[str] = []
    lines = list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:]
    for line in _shorten_pairs(lines):
        found += ["  …"] if line.startswith("@@") and found else []
        if not line.startswith("@@"):
            found.append(f"{line[0]} {_cut(escape_hidden(line[1:]))}")
    return found


def _shorten_pairs(lines: list[str]) -> list[str]:
    """Shortens long lines that were replaced one by one to what differs."""
    made, place = list(lines), 0
    while place < len(made):
        ends: list[int] = []
        for sign in "-+":
            end = ends[-1] if ends else place
            while end < len(made) and made[end].startswith(sign):
                end += 1
            ends.append(end)
        removed, added = range(place, ends[0]), range(ends[0], ends[1])
        if len(removed) == len(added):
            for one, other in zip(removed, added, strict=True):
                before, after = _shorten_pair(made[one][1:], made[other][1:])
                made[one], made[other] = f"-{before}", f"+{after}"
        place = max(ends[1], place + 1)
    return made


def _shorten_pair(old: str, new: str) -> tuple[str, str]:
    """Leaves out what both lines begin and end with, except for some context. What differs is
    always rendered."""
    if max(len(old), len(new)) < LONG_LINE:
        return old, new
    begin = _count_equal(old, new)
    most = min(len(old), len(new)) - begin
    end = min(most, _count_equal(old[::-1], new[::-1]))
    first = max(0, begin - CONTEXT)
    last = max(0, end - CONTEXT)
    start, stop = "…" * bool(first), "…" * bool(last)
    return (
        f"{start}{old[first : len(old) - last]}{stop}",
        f"{start}{new[first : len(new) - last]}{stop}",
    )


def _count_equal(one: str, other: str) -> int:
    """Counts the characters that both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _render_list_change(old: list[Any], new: list[Any]) -> list[str]:
    """Renders removed and added items; the whole lists if only the order has changed."""
    before, after = ([encode(normalize(item)) for item in side] for side in (old, new))
    gone = [item for item, code in zip(old, before, strict=True) if code not in set(after)]
    come = [item for item, code in zip(new, after, strict=True) if code not in set(before)]
    if not gone and not come:
        gone, come = [old], [new]
    return [line for item in gone for line in _render_value("-", item)] + [
        line for item in come for line in _render_value("+", item)
    ]


def _render_value(sign: str, value: Any) -> list[str]:
    if value is ABSENT:
        return []
    text = value if isinstance(value, str) else _encode_text(value)
    return [f"{sign} {line}" for line in escape_hidden(_cut(text)).split("\n")]


def _cut(text: str) -> str:
    if len(text) <= MAX_VALUE:
        return text
    return f"{text[:MAX_VALUE]}\n… and {len(text) - MAX_VALUE} more characters; see --json"


def _encode_text(value: Any) -> str:
    return encode(value).decode()


def _find_strange(change: DefinitionChange) -> str:
    """Names new characters outside ASCII, which may look like the previous ones."""
    if change.new is ABSENT:
        return ""
    old = set() if change.old is ABSENT else set(_encode_text(change.old))
    come = sorted({one for one in _encode_text(change.new) if not one.isascii()} - old)
    names = [f"U+{ord(one):04X} {unicodedata.name(one, '')}".strip() for one in come]
    more = [f"and {len(names) - MAX_STRANGE} more"] if len(names) > MAX_STRANGE else []
    return ", ".join(names[:MAX_STRANGE] + more)
