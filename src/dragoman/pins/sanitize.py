"""Takes out of texts what a model reads and a person does not see. Pure.

Control characters but for line ends and tabs, what turns the direction of writing, what has no
width, tag characters, the escapes of terminals. Long runs of white space and endless texts are cut
short: white space is no change to a pin. What must be said to the far side as it is (names,
values of an enum, patterns) is left: whether it has such is `hidden`.
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
"""One behind an emoji is usual; a row of them is a message."""

_PLAIN = bytes(range(0x7F))

MAX_DESCRIPTION, MAX_NESTED = 16_384, 4_096
"""Characters that are shown of what something says of itself, and of a text within its schemas."""
MAX_BLANKS, MAX_LINES = 32, 3
"""In a row: blanks within a line, and line ends."""
CUT = "…"
_BLANKS = re.compile(rf"[^\S\n]{{{MAX_BLANKS + 1},}}")
_LINES = re.compile(rf"(?:[^\S\n]*\n){{{MAX_LINES + 1},}}")
_SPACES = b" " * (MAX_BLANKS + 1)
_TABS = re.compile(rb"(?: |\\t){%d}" % (MAX_BLANKS + 1))
_ENDS = re.compile(rb"\\n(?:(?: |\\t)*\\n){%d}" % MAX_LINES)
"""The same in JSON."""
_TEXTS = frozenset(("description", "title"))

EXACT = frozenset({
    "enum", "const", "pattern", "required", "dependentRequired", "format", "name", "id", "$ref",
    "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "uri", "uriTemplate",
})  # fmt: skip
"""What stands under these is used, and not only read."""
SHOWN = EXACT - {"name"}
"""The same where a name is what people read."""


def clean_text(text: str) -> str:
    return _SELECTORS.sub("", _HIDDEN.sub("", _ESCAPES.sub("", text)))


def escape_hidden(text: str) -> str:
    """With what nobody would see written out, for people and their terminals."""
    return _HIDDEN.sub(_escape_match, _SELECTORS.sub(_escape_match, text))


def _escape_match(found: re.Match[str]) -> str:
    return "".join(f"<U+{ord(one):04X}>" for one in found[0])


def has_hidden(data: bytes) -> bool:
    """Whether JSON, as `wire.json.encode` writes it, has anything in it that nobody sees."""
    if b"\\u00" in data or b"\\r" in data or b"\\b" in data or b"\\f" in data:
        left = data.replace(b"\\\\", b"")  # what begins an escape now is one
        if b"\\u00" in left or b"\\r" in left or b"\\b" in left or b"\\f" in left:
            return True
    if data.isascii():
        return b"\x7f" in data
    rest = data.translate(None, _PLAIN).decode()
    if _HIDDEN.search(rest):
        return True
    return _SELECTORS.search(rest) is not None and _SELECTORS.search(data.decode()) is not None


def clean_value(value: Any, exact: frozenset[str] = EXACT) -> Any:
    """`value` without what can be taken out; the same object where there is no such."""
    return _clean_value(value, exact) if has_hidden(encode(value)) else value


def _clean_value(value: Any, exact: frozenset[str], key: str = "") -> Any:
    if key in exact:
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        named = key in ("properties", "$defs", "definitions")  # what is called "enum" there is none
        return {
            name: _clean_value(inner, exact, "" if named else name) for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_clean_value(item, exact) for item in value]
    return value


def shorten_text(text: str, most: int) -> str:
    """With no long runs of white space, and not longer than `most`."""
    # Blanks first: then no run of them is long enough to make the second search slow.
    if len(text) > MAX_BLANKS and ("  " in text or "\t" in text or not text.isascii()):
        text = _BLANKS.sub(" " * MAX_BLANKS, text)
    if text.count("\n") > MAX_LINES:
        text = _LINES.sub("\n" * MAX_LINES, text)
    return text if len(text) <= most else text[: most - len(CUT)] + CUT


def is_short(data: bytes) -> bool:
    """Whether JSON can have nothing in it that `shorten` would change."""
    if len(data) > MAX_NESTED or not data.isascii() or _SPACES in data:
        return False
    return not (b"\\t" in data and _TABS.search(data)) and _ENDS.search(data) is None


def shorten(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """A definition with its descriptions, titles and examples shortened; the same object where
    nothing is too long. What is used, and not only read, stays as it is."""
    return _keep_equal(definition, {
        name: shorten_text(value, MAX_DESCRIPTION)
        if name in _TEXTS and isinstance(value, str)
        else _shorten_value(value, name)
        for name, value in definition.items()
    })  # fmt: skip


def _shorten_value(value: Any, key: str = "") -> Any:
    if isinstance(value, str):
        return shorten_text(value, MAX_NESTED) if key in _TEXTS else value
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
