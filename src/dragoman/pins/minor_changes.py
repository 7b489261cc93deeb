"""Tells minor changes of a tool or prompt from those that must be approved. Pure.

A definition with only minor changes stays available. What is offered then is the approved
definition, without the arguments that the server has dropped and with its stricter hints: no new
text reaches a client or model before a person has approved it. Changes are always those since the
approval, so several small ones never add up. Whatever is not known to be minor is not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from dragoman.core.argument_names import COMMAND_ARGUMENTS, URL_ARGUMENTS
from dragoman.core.call import ABSENT
from dragoman.core.tool import PROMPT, TOOL
from dragoman.pins.digest import NAMED_SCHEMAS, normalize
from dragoman.pins.sanitize import has_hidden
from dragoman.wire.json import encode

KINDS = frozenset({TOOL, PROMPT})

ORDER, TITLE, SCHEMA, HINT, DROPPED, CLOSED = (
    "order", "title", "$schema", "stricter hint", "dropped argument", "closed schema",
)  # fmt: skip

MAX_TITLE = 1_000
MAX_DEPTH = 64

HINTS: Mapping[str, tuple[bool, bool]] = {
    "readOnlyHint": (False, False),
    "destructiveHint": (True, True),
    "idempotentHint": (False, False),
    "openWorldHint": (True, True),
}
"""By hint of the MCP specification: its value where it is absent, and the stricter value."""

_DIALECT = re.compile(
    r"https?://json-schema\.org/(?:draft-0[3467]|draft/2019-09|draft/2020-12)/schema#?"
)
_SCHEMAS = frozenset({
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})

_WORD = r"[\w*/@+-]++(?:[.:][\w*/@+-]++)*+"
_ITEM = rf"""["'`]?{_WORD}["'`]?"""
_SERIES = re.compile(
    rf"(?<![\w.:*/@+-]){_ITEM}(?P<sign>[ \t]*[,|;][ \t]*){_ITEM}(?:(?P=sign){_ITEM})*+"
)
"""Words that are joined by the same sign. It starts only where a word does: the time is linear."""
_SIGN = re.compile(r"[ \t]*[,|;][ \t]*")
MIN_SERIES = 3
"""Items that a series within a description has at least; two may be a phrase."""


class MinorChange(NamedTuple):
    what: str
    path: tuple[str, ...]


class MinorChanges(NamedTuple):
    definition: dict[str, Any]
    """What is offered: never a text that was not approved."""
    changes: tuple[MinorChange, ...]

    @property
    def is_order_only(self) -> bool:
        return all(change.what == ORDER for change in self.changes)

    def describe(self) -> str:
        """Names the kinds of changes: `dropped argument, title`."""
        return ", ".join(sorted({change.what for change in self.changes}))


class _Significant(Exception):
    """A change that is not minor."""


def find_minor_changes(
    kind: str, approved: Mapping[str, Any], offered: Mapping[str, Any]
) -> MinorChanges | None:
    """Compares the pinned members of two definitions; None if any change is not minor, or if
    there is none."""
    if kind not in KINDS:
        return None
    comparison = _Comparison()
    try:
        definition = comparison.compare_definition(kind, approved, offered)
    except _Significant:
        return None
    if not comparison.changes:
        return None
    return MinorChanges(definition, tuple(comparison.changes))


class _Comparison:
    """Each method returns what is offered of a part, or raises `_Significant`."""

    def __init__(self) -> None:
        self.changes: list[MinorChange] = []

    def compare_definition(
        self, kind: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name in [*old, *(name for name in new if name not in old)]:
            was, now = old.get(name, ABSENT), new.get(name, ABSENT)
            path = (name,)
            if kind == TOOL and name in ("inputSchema", "outputSchema"):
                value = self._compare_schema(was, now, path)
            elif kind == TOOL and name == "annotations":
                value = self._compare_annotations(was, now)
            elif kind == PROMPT and name == "arguments":
                value = self._compare_prompt_arguments(was, now)
            else:
                value = self._compare_member(name, was, now, path)
            if value is not ABSENT:
                made[name] = value
        return made

    def _compare_member(self, name: str, was: Any, now: Any, path: tuple[str, ...]) -> Any:
        """Compares a member whose name has its usual meaning."""
        if _is_equal(name, was, now):
            return was
        if name == "title" and _is_title(was) and _is_title(now):
            self._note(TITLE, path)
        elif (name == "default" and _is_permuted(was, now)) or (
            (name == "examples" and _is_permuted_list(was, now))
            or (name == "description" and _has_permuted_series(was, now))
        ):
            self._note(ORDER, path)
        else:
            raise _Significant
        return was

    # --- annotations and arguments ----------------------------------------------------------------

    def _compare_annotations(self, was: Any, now: Any) -> Any:
        if not all(value is ABSENT or isinstance(value, Mapping) for value in (was, now)):
            return self._compare_member("annotations", was, now, ("annotations",))
        old, new = (({} if value is ABSENT else value) for value in (was, now))
        made = dict(old)
        for name in [*old, *(name for name in new if name not in old)]:
            path = ("annotations", name)
            before, after = old.get(name, ABSENT), new.get(name, ABSENT)
            if name not in HINTS or _is_equal(name, before, after):
                value = self._compare_member(name, before, after, path)
            else:
                value = self._compare_hint(name, before, after, path)
            if value is not ABSENT:
                made[name] = value
        return was if was is ABSENT and not made else made

    def _compare_hint(self, name: str, was: Any, now: Any, path: tuple[str, ...]) -> Any:
        absent, strict = HINTS[name]
        before, after = (absent if value is ABSENT else value for value in (was, now))
        if not isinstance(before, bool) or not isinstance(after, bool):
            raise _Significant
        if before != after and after != strict:
            raise _Significant
        self._note(HINT, path)
        # An explicit hint is never removed: guards may take its absence for less.
        return was if before == after and now is ABSENT else after

    def _compare_prompt_arguments(self, was: Any, now: Any) -> Any:
        path = ("arguments",)
        if _is_equal("arguments", was, now):
            return was
        old, new = _index_arguments(was), _index_arguments(now)
        if new.keys() - old.keys():
            raise _Significant
        if [name for name in old if name in new] != list(new):
            raise _Significant  # clients may take them by position
        made = []
        for name, argument in old.items():
            if name not in new:
                if argument.get("required"):
                    raise _Significant
                self._note(DROPPED, (*path, name))
                continue
            other, value = new[name], dict(argument)
            for key in [*argument, *(key for key in other if key not in argument)]:
                before, after = argument.get(key, ABSENT), other.get(key, ABSENT)
                self._compare_member(key, before, after, (*path, name, key))
            made.append(value)
        return made

    # --- schemas ----------------------------------------------------------------------------------

    def _compare_schema(self, was: Any, now: Any, path: tuple[str, ...]) -> Any:
        if _is_equal("", was, now):
            return was
        if not isinstance(was, Mapping) or not isinstance(now, Mapping) or len(path) > MAX_DEPTH:
            raise _Significant
        made = dict(was)
        for name in [*was, *(name for name in now if name not in was)]:
            if _is_equal(name, was.get(name, ABSENT), now.get(name, ABSENT)):
                continue
            value = self._compare_keyword(name, was, now, path)
            if value is not ABSENT:
                made[name] = value
        return made

    def _compare_keyword(
        self, name: str, was: Mapping[str, Any], now: Mapping[str, Any], path: tuple[str, ...]
    ) -> Any:
        """Compares a keyword of the schemas `was` and `now`."""
        before, after = was.get(name, ABSENT), now.get(name, ABSENT)
        inner = (*path, name)
        if path == ("inputSchema",) and name == "properties":
            return self._compare_arguments(was, now)
        if name in NAMED_SCHEMAS:
            return self._compare_map(before, after, inner)
        if name in _LISTS:
            return self._compare_list(before, after, inner)
        if name == "additionalProperties" and path[0] == "inputSchema" and after is False:
            if before is not ABSENT and before is not True:
                raise _Significant
            self._note(CLOSED, inner)
            return False
        if name in _SCHEMAS:
            return self._compare_schema(before, after, inner)
        if name == "$schema" and len(path) == 1:
            if not _is_dialect(before) or not _is_dialect(after):
                raise _Significant
            self._note(SCHEMA, inner)
            return before
        return self._compare_member(name, before, after, inner)

    def _compare_arguments(self, was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        """Compares the arguments of a tool. An optional one may be dropped, unless guards judge
        the tool by it, or something else in the schema may be about it."""
        path = ("inputSchema", "properties")
        old, new = was.get("properties", ABSENT), now.get("properties", ABSENT)
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            raise _Significant
        dropped = [name for name in old if name not in new]
        if dropped:
            rest = {name: value for name, value in now.items() if name != "properties"}
            mentioned, texts = _list_strings(rest), _list_strings(now)
            for name in dropped:
                if name in mentioned or name in URL_ARGUMENTS | COMMAND_ARGUMENTS:
                    raise _Significant
                if any(f"/properties/{name}" in text for text in texts):  # a reference
                    raise _Significant
                self._note(DROPPED, (*path, name))
        kept = {name: value for name, value in old.items() if name in new}
        return self._compare_map(kept, new, path)

    def _compare_map(self, was: Any, now: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(was, Mapping) or not isinstance(now, Mapping):
            raise _Significant
        if was.keys() != now.keys():
            raise _Significant
        return {
            name: self._compare_schema(value, now[name], (*path, name))
            for name, value in was.items()
        }

    def _compare_list(self, was: Any, now: Any, path: tuple[str, ...]) -> list[Any]:
        if not isinstance(was, list) or not isinstance(now, list) or len(was) != len(now):
            raise _Significant
        return [
            self._compare_schema(one, other, (*path, str(number)))
            for number, (one, other) in enumerate(zip(was, now, strict=True))
        ]

    def _note(self, what: str, path: tuple[str, ...]) -> None:
        self.changes.append(MinorChange(what, path))


def _is_equal(name: str, was: Any, now: Any) -> bool:
    if was is ABSENT or now is ABSENT:
        return was is now
    return encode(normalize(was, name)) == encode(normalize(now, name))


def _is_title(value: Any) -> bool:
    return value is ABSENT or (
        isinstance(value, str) and len(value) <= MAX_TITLE and not has_hidden(encode(value))
    )


def _is_dialect(value: Any) -> bool:
    return value is ABSENT or (isinstance(value, str) and bool(_DIALECT.fullmatch(value)))


def _index_arguments(value: Any) -> dict[str, Mapping[str, Any]]:
    """Returns the arguments of a prompt by their names."""
    if not isinstance(value, list):
        raise _Significant
    found = {}
    for argument in value:
        name = argument.get("name") if isinstance(argument, Mapping) else None
        if not isinstance(name, str) or name in found:
            raise _Significant
        found[name] = argument
    return found


def _list_strings(value: Any) -> Collection[str]:
    """Returns every string in a value, keys included."""
    found: set[str] = set()
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, str):
            found.add(part)
        elif isinstance(part, Mapping):
            found.update(part)
            left += part.values()
        elif isinstance(part, list):
            left += part
    return found


# --- order ----------------------------------------------------------------------------------------


def _is_permuted(was: Any, now: Any) -> bool:
    """Whether two defaults have the same items in another order."""
    if isinstance(was, str) and isinstance(now, str):
        return _has_permuted_series(was, now, 2)
    return _is_permuted_list(was, now)


def _is_permuted_list(was: Any, now: Any) -> bool:
    """Whether two lists have the same items in another order; texts in them may be series."""
    if not isinstance(was, list) or not isinstance(now, list):
        return False
    before, after = (Counter(_order_item(item) for item in side) for side in (was, now))
    return before == after


def _order_item(item: Any) -> bytes:
    if isinstance(item, str) and _SERIES.fullmatch(item):
        return encode(sorted(_split(item)))
    return encode(normalize(item))


def _is_same_series(was: str, now: str) -> bool:
    """Whether both are nothing but the same words, joined by the same sign."""
    return (
        bool(_SERIES.fullmatch(was) and _SERIES.fullmatch(now))
        and sorted(_split(was)) == sorted(_split(now))
        and _list_signs(was) == _list_signs(now)
    )


def _has_permuted_series(was: Any, now: Any, least: int = MIN_SERIES) -> bool:
    """Whether two texts differ only in the order within series such as `a, b, c`."""
    if not isinstance(was, str) or not isinstance(now, str):
        return False
    was, now = " ".join(was.split()), " ".join(now.split())
    if len(was) != len(now):
        return False
    before, after = list(_SERIES.finditer(was)), list(_SERIES.finditer(now))
    if [match.span() for match in before] != [match.span() for match in after]:
        return False
    if _SERIES.sub("", was) != _SERIES.sub("", now):
        return False
    return all(
        one[0] == other[0] or (_is_same_series(one[0], other[0]) and len(_split(one[0])) >= least)
        for one, other in zip(before, after, strict=True)
    )


def _split(text: str) -> list[str]:
    return _SIGN.split(text)


def _list_signs(text: str) -> Counter[str]:
    return Counter(_SIGN.findall(text))
