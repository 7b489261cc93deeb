"""Shortens structured content without changing its shape, by cutting long texts. Pure.

Base64 data stays whole, because a part of it is useless; so does a text that would violate the
schema if cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from dragoman.wire.json import encode

SHORTEST = 200
"""No text is cut to less than this many characters."""
ROUNDS = 30
CHECKED_ALONE = 32
"""Texts that are checked one by one if all together violate the schema."""

MARKED, BARE, WHOLE = "marked", "bare", "whole"
"""How a text is cut: with a marker at its end, without one, or not at all."""

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}\s*")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")
_LOOKED_AT = 4_096

Mark = Callable[[int, int], str]
"""The marker for a text of `length` characters of which `left` remain."""
Fits = Callable[[Any], bool]


class _Text(NamedTuple):
    number: int
    text: str


def count_chars(value: Any) -> int:
    """The characters of `value` as JSON, without binary data."""
    return len(encode(value).decode()) - sum(len(one) for one in _find_binary(value))


def shorten(value: Any, most: int, mark: Mark, fits: Fits) -> Any | None:
    """Shortens `value` to about `most` characters; None if cutting texts does not suffice.

    `fits` validates a value against its schema. If `value` itself is invalid, the result may be,
    too.
    """
    chars = count_chars(value)
    if chars <= most:
        return value
    texts = sorted(_find_texts(value), key=lambda one: len(one.text))
    modes: dict[int, str] = {}
    shorter = _to_size(value, chars, most, mark, texts, modes)
    if shorter is None or fits(shorter) or not fits(value):
        return shorter
    longest = texts[-CHECKED_ALONE:]
    modes = {one.number: WHOLE for one in texts[:-CHECKED_ALONE]}
    for one in longest:
        modes[one.number] = _find_mode(value, one, mark, fits)
    movable = [one for one in texts if modes[one.number] != WHOLE]
    shorter = _to_size(value, chars, most, mark, movable, modes)
    return shorter if shorter is not None and fits(shorter) else None


def _to_size(
    value: Any, chars: int, most: int, mark: Mark, texts: list[_Text], modes: Mapping[int, str]
) -> Any | None:
    """Cuts all texts to one length: the largest at which the whole is short enough."""
    cap = _first_cap([len(one.text) for one in texts], chars - most)
    for _ in range(ROUNDS):
        if cap < SHORTEST:
            return None
        shorter = _cut_texts(value, cap, mark, lambda number: modes.get(number, MARKED))
        if count_chars(shorter) <= most:
            return shorter
        cap = cap * 3 // 4  # escapes and markers count, too
    return None


def _first_cap(lengths: list[int], over: int) -> int:
    """The length to which texts must be cut to save `over` characters; `lengths` are sorted."""
    longer = 0
    for count, length in enumerate(reversed(lengths), 1):
        longer += length
        next_length = lengths[-count - 1] if count < len(lengths) else 0
        if longer - count * next_length >= over:
            return (longer - over) // count
    return 0


def _find_mode(value: Any, one: _Text, mark: Mark, fits: Fits) -> str:
    """How this text may be cut so that the value stays valid."""
    cap = max(SHORTEST, len(one.text) // 2)
    for mode in (MARKED, BARE):

        def mode_of(number: int, mode: str = mode) -> str:
            return mode if number == one.number else WHOLE

        if fits(_cut_texts(value, cap, mark, mode_of)):
            return mode
    return WHOLE


def _cut_texts(value: Any, cap: int, mark: Mark, mode_of: Callable[[int], str]) -> Any:
    number = -1

    def cut(text: str) -> str:
        nonlocal number
        number += 1
        mode = mode_of(number)
        if len(text) <= cap or mode == WHOLE:
            return text
        return text[:cap] + mark(len(text), cap) if mode == MARKED else text[:cap]

    return _rebuild(value, cut)


def _rebuild(value: Any, cut: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return value if _is_short(value) or _is_binary(value) else cut(value)
    if isinstance(value, list | tuple):
        return [_rebuild(item, cut) for item in value]
    if isinstance(value, dict):
        encoded = _binary_member(value)
        return {key: item if key == encoded else _rebuild(item, cut) for key, item in value.items()}
    return value


def _find_texts(value: Any) -> Iterator[_Text]:
    """Lists what `_cut_texts` may cut, with its number there."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    _rebuild(value, note)
    return (_Text(number, text) for number, text in enumerate(found))


def _find_binary(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not _is_short(value) and _is_binary(value):
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_binary(item)
    elif isinstance(value, dict):
        encoded = _binary_member(value)
        for key, item in value.items():
            if key == encoded:
                yield item
            else:
                yield from _find_binary(item)


def _is_short(text: str) -> bool:
    return len(text) <= SHORTEST


def _binary_member(value: Mapping[str, Any]) -> str | None:
    """The member with binary data of an image, audio or blob."""
    if isinstance(value.get("blob"), str):
        return "blob"
    if isinstance(value.get("data"), str) and isinstance(value.get("mimeType"), str):
        return "data"
    return None


def _is_binary(text: str) -> bool:
    """Whether a long text looks like base64."""
    if match := _DATA_URL.match(text):
        return _BASE64.fullmatch(text, match.end()) is not None
    if 60 <= text.find("\n") <= 80:  # MIME breaks it into lines
        text = text.replace("\r", "").replace("\n", "")
    seen = text[:_LOOKED_AT]
    mixed = any(c.isupper() for c in seen) and any(c.islower() for c in seen)
    mixed = mixed and any(c.isdigit() for c in seen)
    return mixed and _BASE64.fullmatch(text) is not None
