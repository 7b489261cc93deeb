"""Headers that repeat members of a message (2026-07-28, transports): how values are encoded, and
which arguments of a tool are repeated. Pure; server and client use it.

A tool's schema marks an argument with `x-mcp-header`; its value is then also sent as
`Mcp-Param-{name}`. Values that a header cannot contain are sent as base64 between marks.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

HEADER_MISMATCH = -32020
NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"),
}
"""The methods with an `Mcp-Name`, and the parameter it repeats (the last three: SEP-2663)."""
PREFIX = "mcp-param-"
MARK = "x-mcp-header"
MAX_HEADERS = 64
"""Mirrored arguments of one tool; the head of a request has no room for more."""

_OPENED, _CLOSED = "=?base64?", "?="
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TYPES = frozenset({"string", "integer", "boolean"})
_DATA = frozenset({"const", "default", "enum", "examples", "example"})
"""Keywords whose values are data, not schemas."""
_NAMED = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose members have names of the author's and are schemas."""

Path = tuple[str, ...]


def find_mirrored_params(schema: Any) -> dict[str, Path]:
    """Returns the headers of a tool with this inputSchema: the name in lower case, and the path of
    the argument. ValueError says what is wrong with a mark; such a tool must not be used."""
    found: dict[str, Path] = {}
    for path, place in _places(schema):
        if MARK not in place:
            continue
        if not path:
            raise ValueError(f"{MARK} is not on an argument of the tool")
        name, where = place[MARK], ".".join(path)[:100]
        if not isinstance(name, str) or not _TOKEN.fullmatch(name) or len(name) > 100:
            raise ValueError(f'{MARK} of "{where}" is not a valid header name')
        kind = place.get("type")
        if not isinstance(kind, str) or kind not in _TYPES:
            raise ValueError(f'{MARK} of "{where}" needs type string, integer or boolean')
        header = PREFIX + name.lower()
        if header in found:
            raise ValueError(f'{MARK} "{name}" is repeated')
        if len(found) >= MAX_HEADERS:
            raise ValueError(f"too many {MARK}: at most {MAX_HEADERS}")
        found[header] = path
    return found


def _places(root: Any) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """Yields every schema within `root` and its path of property names; None if other keywords lead
    to it. Follows no `$ref`, and does not recurse."""
    left: list[tuple[Path | None, Any]] = [((), root)]
    while left:
        path, place = left.pop()
        if isinstance(place, list):
            left.extend((None, item) for item in place)
        if not isinstance(place, dict):
            continue
        yield path, place
        for keyword, value in place.items():
            if keyword in _DATA or not isinstance(value, dict | list):
                continue
            if keyword == "properties" and isinstance(value, dict):
                for name, inner in value.items():
                    left.append((None if path is None else (*path, name), inner))
            elif keyword in _NAMED and isinstance(value, dict):
                left.extend((None, inner) for inner in value.values())
            else:
                left.append((None, value))


def build_param_headers(params: Mapping[str, Path], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Builds the headers for these arguments; one that is absent or null has none."""
    headers = {}
    for header, path in params.items():
        text = render_value(find_argument(path, arguments))
        if text is not None:
            headers[header] = encode_value(text)
    return headers


def find_argument(path: Path, arguments: Mapping[str, Any]) -> Any:
    """Returns the argument at a path; None if there is none."""
    value: Any = arguments
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def render_value(value: Any) -> str | None:
    """Renders a value for a header; None if it is not mirrored."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or value.bit_length() > 1_000:
        return None
    return str(value)


def is_equal(text: str, value: Any) -> bool:
    """Whether the decoded text of a header equals a value; numbers are compared as numbers."""
    wanted = render_value(value)
    if wanted is None or text == wanted:
        return wanted is not None
    if isinstance(value, str | bool) or len(text) > 400:
        return False
    try:
        return float(text) == value and re.fullmatch(r"[-+0-9.eE]+", text) is not None
    except (ValueError, OverflowError):
        return False


def encode_value(text: str) -> str:
    """Encodes text for a header."""
    if (
        text.isascii()
        and text.isprintable()
        and text == text.strip()
        and not (text.startswith(_OPENED) and text.endswith(_CLOSED))
    ):
        return text
    return f"{_OPENED}{base64.b64encode(text.encode('utf-8', 'replace')).decode()}{_CLOSED}"


def decode_value(value: str) -> str | None:
    """Decodes the text of a header; None for invalid base64 between the marks."""
    if not (
        value.startswith(_OPENED)
        and value.endswith(_CLOSED)
        and len(value) >= len(_OPENED) + len(_CLOSED)
    ):
        return value
    inner = value[len(_OPENED) : -len(_CLOSED)]
    try:
        data = base64.b64decode(inner, validate=True)
        # One encoding per text: the unused bits of the last character must be zero.
        return data.decode() if base64.b64encode(data).decode() == inner else None
    except (binascii.Error, ValueError):
        return None
