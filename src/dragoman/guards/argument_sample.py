"""Takes a bounded sample of arguments, for the explanation of what is wrong with them. Pure.

Whether arguments match a schema is found out at once. To say why not, a schema engine describes
every item for every alternative: the arguments' size times the schema's, at microseconds each, and
where alternatives contain arrays even for the first error alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

MAX_ITEMS = 20
"""Of each array and object below the arguments."""
MAX_TEXT = 1_000
"""Characters of a text."""
MAX_DESCRIBED = 4_000
"""Values times parts of the schema, which take about 10 ms to describe."""
MAX_RELAXED = 1_000
"""The same for a relaxed schema, which has several alternatives for each part."""
FEW_ITEMS = 3
"""Of each array and object that is described by a relaxed schema."""
MIN_VALUES = 20
"""Values that are looked at with a schema of any size."""
_ABSENT = object()


def sample_arguments(
    arguments: Mapping[str, Any], schema_size: int, *, is_relaxed: bool = False
) -> Mapping[str, Any]:
    """Returns the arguments if they are small for a schema of this size, otherwise a copy of the
    first values, those nearest to the top first."""
    described, items = (MAX_RELAXED, FEW_ITEMS) if is_relaxed else (MAX_DESCRIBED, MAX_ITEMS)
    most = described // max(schema_size, 1)
    if has_at_most(arguments, most if is_relaxed else max(MIN_VALUES, most)):
        return arguments
    most = max(MIN_VALUES, most)
    sample: dict[str, Any] = {}
    left: deque[tuple[Any, Any]] = deque([(arguments, sample)])
    while left:
        value, copy = left.popleft()
        room = most if copy is sample else min(most, items)
        for key, inner in islice(_list_members(value), room):
            if isinstance(inner, dict | list):
                kept: Any = type(inner)()
                left.append((inner, kept))
            else:
                kept = inner[:MAX_TEXT] if isinstance(inner, str) else inner
            if isinstance(copy, list):
                copy.append(kept)
            else:
                copy[key] = kept
            most -= 1
    return sample


def is_whole(sample: Any, arguments: Any, place: Sequence[Any]) -> bool:
    """Whether the value at `place` is in the sample with all of its own items or characters."""
    kept, value = _find(sample, place), _find(arguments, place)
    if isinstance(value, str | dict | list):
        return type(kept) is type(value) and len(kept) == len(value)
    return kept is not _ABSENT


def has_at_most(arguments: Mapping[str, Any], most: int) -> bool:
    """Whether the arguments have at most so many values; a long text counts as several."""
    left: list[Any] = [arguments]
    while left:
        value = left.pop()
        if isinstance(value, str):
            most -= len(value) // MAX_TEXT
        elif isinstance(value, dict | list):
            most -= len(value)
            if most >= 0:
                left += value.values() if isinstance(value, dict) else value
        if most < 0:
            return False
    return True


def _list_members(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items()) if isinstance(value, dict) else enumerate(value)


def _find(value: Any, place: Sequence[Any]) -> Any:
    for step in place:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return value
