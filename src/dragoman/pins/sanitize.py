"""Removes from texts what a model reads and a person does not see. Pure.

That is control characters except line ends and tabs, direction marks, zero-width and tag
characters, and terminal escapes. Long runs of white space and very long texts are shortened: white
space does not change a pin. Values that are sent back (names, enum values, patterns) are kept;
`has_hidden` tells whether they contain such characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.wire.json import encode

_CLASS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without \t and \n, DEL, C1
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # invisible in their scripts
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f"  # zero width, bidi, invisible operators
    "\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"  # fillers, selectors, annotations
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # format, tags, selectors
)
_HIDDEN = re.compile(f"[{_CLASS}]")
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # links, titles
    r"|\x1b[ -/]*[0-~]"
)
_SELECTORS = re.compile("(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]+")
"""One after an emoji is usual; a sequence can encode a message."""

_PLAIN = bytes(range(0x7F))

MAX_DESCRIPTION = 65_536
"""Characters shown of a description, also of one within a schema."""
MAX_BLANKS, MAX_LINES = 32, 3
"""The most consecutive blanks within a line, and line ends."""
CUT = "…"
_BLANKS = re.compile(rf"[^\S\n]{{{MAX_BLANKS + 1},}}")
_LINES = re.compile(rf"(?:[^\S\n]*\n){{{MAX_LINES + 1},}}")
_SPACES = b" " * (MAX_BLANKS + 1)
_TABS = re.compile(rb"(?: |\\t){%d}" % (MAX_BLANKS + 1))
_ENDS = re.compile(rb"\\n(?:(?: |\\t)*\\n){%d}" % MAX_LINES)
"""The same limits in JSON."""
_TEXTS = frozenset(("description", "title"))

EXACT = frozenset({
    "enum", "const", "pattern", "required", "dependentRequired", "format", "name", "id", "$ref",
    "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "uri", "uriTemplate",
})  # fmt: skip
"""The values of these are used, and not only read."""
SHOWN = EXACT - {"name"}
"""The same for kinds whose name is only read."""


def clean_text(text: str) -> str:
    return _SELECTORS.sub("", _HIDDEN.sub("", _ESCAPES.sub("", text)))


def escape_hidden(text: str) -> str:
    """Replaces invisible characters by their code points, for people and terminals."""
    return _HIDDEN.sub(_escape_match, _SELECTORS.sub(_escape_match, text))


def _escape_match(found: re.Match[str]) -> str:
    return "".join(f"<U+{ord(one):04X}>" for one in found[0])


def has_hidden(data: bytes) -> bool:
    """Whether JSON of `wire.json.encode` contains invisible characters."""
    if b"\\u00" in data or b"\\r" in data or b"\\b" in data or b"\\f" in data:
        left = data.replace(b"\\\\", b"")  # every remaining backslash begins an escape
        if b"\\u00" in left or b"\\r" in left or b"\\b" in left or b"\\f" in left:
            return True
    if data.isascii():
        return b"\x7f" in data
    rest = data.translate(None, _PLAIN).decode()
    if _HIDDEN.search(rest):
        return True
    return _SELECTORS.search(rest) is not None and _SELECTORS.search(data.decode()) is not None


def clean_value(value: Any, exact: frozenset[str] = EXACT) -> Any:
    """Returns `value` without what can be removed; the same object if there is nothing."""
    return _clean_value(value, exact) if has_hidden(encode(value)) else value


def _clean_value(value: Any, exact: frozenset[str], key: str = "") -> Any:
    if key in exact:
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        named = key in ("properties", "$defs", "definitions")  # there "enum" is a name
        return {
            name: _clean_value(inner, exact, "" if named else name) for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_clean_value(item, exact) for item in value]
    return value


def shorten_text(text: str, most: int = MAX_DESCRIPTION) -> str:
    """Shortens long runs of white space, and the text to `most` characters."""
    # Blanks first: long runs of them would make the second search slow.
    if len(text) > MAX_BLANKS and ("  " in text or "\t" in text or not text.isascii()):
        text = _BLANKS.sub(" " * MAX_BLANKS, text)
    if text.count("\n") > MAX_LINES:
        text = _LINES.sub("\n" * MAX_LINES, text)
    return text if len(text) <= most else text[: most - len(CUT)] + CUT


def is_short(data: bytes) -> bool:
    """Whether `shorten` certainly changes nothing in this JSON."""
    if len(data) > MAX_DESCRIPTION or not data.isascii() or _SPACES in data:
        return False
    return not (b"\\t" in data and _TABS.search(data)) and _ENDS.search(data) is None


def shorten(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Shortens the descriptions, titles and examples of a definition; returns the same object if
    nothing is too long. Values that are used, and not only read, stay unchanged."""
    return _keep_equal(
        definition, {name: _shorten_value(value, name) for name, value in definition.items()}
    )


def _shorten_value(value: Any, key: str = "") -> Any:
    if isinstance(value, str):
        return shorten_text(value) if key in _TEXTS else value
    if key in EXACT or key == "default":
        return value
    if isinstance(value, Mapping):
        named = key in ("properties", "$defs", "definitions", "patternProperties")
        return _keep_equal(value, {
            name: _shorten_value(inner, "" if named else name) for name, inner in value.items()
        })  # fmt: skip
    if isinstance(value, list | tuple):
        words = "description" if key == "examples" else ""
        items = [_shorten_value(item, words) for item in value]
        return items if items != list(value) else value
    return value


def _keep_equal(value: Mapping[str, Any], found: dict[str, Any]) -> Mapping[str, Any]:
    return found if found != value else value
