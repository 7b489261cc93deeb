"""Escapes what a terminal interprets, a reader cannot see or a log line cannot hold. Pure.

Text from outside (names, errors, stderr of servers) could otherwise move the cursor, set titles,
change the writing direction, or imitate another log line.
"""

from __future__ import annotations

import re

_CONTROLS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without \t and \n, DEL, C1
    "\u00ad\u034f\u061c\u180e\u200b-\u200f"  # soft hyphen, zero width, marks of direction
    "\u2028-\u202e\u2060-\u206f"  # line and paragraph separators, bidi controls
    "\ufeff\ufff9-\ufffb\ud800-\udfff"  # byte order mark, annotations, lone surrogates
    "\U000e0000-\U000e0fff"  # tags, selectors
)
_IN_TEXT = re.compile(f"[{_CONTROLS}]")
_IN_LINE = re.compile(f"[\t\n{_CONTROLS}]")


def escape_controls(text: str) -> str:
    """Escapes control characters as `\\x1b`; line breaks and tabs stay."""
    return text if text.isascii() and text.isprintable() else _IN_TEXT.sub(_escaped, text)


def escape_line(text: str) -> str:
    """Escapes control characters, line breaks and tabs."""
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(_escaped, text)


def escape_json(text: str) -> str:
    """Escapes control characters in JSON text as `\\uXXXX`; the value stays the same."""
    return text if text.isascii() and "\x7f" not in text else _IN_TEXT.sub(_escaped_in_json, text)


_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def _escaped(found: re.Match[str]) -> str:
    one = found[0]
    code = ord(one)
    if code < 0x100:
        return _SHORT.get(one) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped_in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
