"""Adds and removes TOML tables as text, so that everything else stays byte for byte.

Does no I/O and knows no client. Decision 69 says why no library does this.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from dragoman.cli.base.errors import UnreadableFile
from dragoman.cli.base.files import detect_newline, has_line_break


def parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(str(error) or "nested too deeply") from None


def render_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(render_value, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(
            f"{render_value(key)} = {render_value(item)}" for key, item in value.items()
        )
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, int | float):
        return repr(value)
    raise UnreadableFile(f"cannot write the value {value!r}; edit the file by hand")


def append_toml(text: str, block: str) -> str:
    """Appends a block after an empty line, with the line ends of the text."""
    newline = detect_newline(text)
    gap = "" if not text else newline if has_line_break(text[-1]) else newline * 2
    return f"{text}{gap}{block.replace(chr(10), newline)}"


def render_table(keys: tuple[str, ...], entry: Mapping[str, Any]) -> str:
    """Renders a table with its values first, then its sub-tables."""
    inner = {key: value for key, value in entry.items() if isinstance(value, dict)}
    header = ".".join(
        key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else render_value(key) for key in keys
    )
    lines = [f"[{header}]"]
    lines += [f"{key} = {render_value(value)}" for key, value in entry.items() if key not in inner]
    tables = [render_table((*keys, key), value) for key, value in inner.items()]
    return "\n".join(["\n".join(lines) + "\n", *tables])


def set_table(text: str, keys: tuple[str, ...], name: str, entry: Any) -> str:
    lines = [f"{key} = {render_value(value)}" for key, value in entry.items()]
    header = ".".join((*keys, name))
    return append_toml(remove_table(text, keys, name), "\n".join([f"[{header}]", *lines]) + "\n")


def remove_table(text: str, keys: tuple[str, ...], name: str) -> str:
    """Removes a table and its sub-tables.

    A line of a multi-line string can look like a header: callers must parse the result and compare.
    """
    path = r"\s*\.\s*".join(_build_key_pattern(key) for key in (*keys, name))
    ours = re.compile(rf"\s*\[\s*{path}\s*(?:\.[^\]]*)?\]\s*(?:#.*)?$")
    kept: list[str] = []
    pending: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        is_header = re.match(r"\s*\[", line) is not None
        if is_header:
            was, inside = inside, bool(ours.match(line))
            kept += [] if inside else pending
            pending = []
            if inside and not was and kept and not kept[-1].strip():
                kept.pop()
        if not inside:
            kept.append(line)
        elif not line.strip() or line.lstrip().startswith("#"):
            pending.append(line)  # comments before the next table belong to it
        else:
            pending = []
    return "".join(kept + [line for line in pending if line.strip()])


# --- arrays of tables ----------------------------------------------------------------------------

_HEADER = re.compile(r"\s*\[")


def _build_key_pattern(key: str) -> str:
    return rf"""(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')"""


def _find_element(lines: list[str], key: str, index: int) -> tuple[int, int]:
    """Finds the line range of element `index` of `[[key]]`, with its sub-tables.

    Blank lines and comments before the next table belong to that table.
    """
    begins = re.compile(rf"\s*\[\[\s*{_build_key_pattern(key)}\s*\]\]\s*(?:#.*)?$")
    belongs = re.compile(rf"\s*\[\[?\s*{_build_key_pattern(key)}\s*\.")
    found: list[tuple[int, int]] = []
    start: int | None = None
    last = 0
    for number, line in enumerate(lines):
        if _HEADER.match(line) and not (start is not None and belongs.match(line)):
            if start is not None:
                found.append((start, last + 1))
            start = number if begins.match(line) else None
        if line.strip() and not line.lstrip().startswith("#"):
            last = number
    if start is not None:
        found.append((start, last + 1))
    if index >= len(found):
        raise UnreadableFile(f"{key} is not written as [[{key}]] tables")
    return found[index]


def remove_element(text: str, key: str, index: int) -> str:
    """Removes element `index` of the array of tables `key`."""
    lines = text.splitlines(keepends=True)
    start, end = _find_element(lines, key, index)
    if start and not lines[start - 1].strip():
        start -= 1  # leave one of the two empty lines around it
    elif end < len(lines) and not lines[end].strip():
        end += 1
    return "".join(lines[:start] + lines[end:])


def set_element_value(text: str, key: str, index: int, name: str, value: Any) -> str:
    """Sets `name = value` in element `index` of the array of tables `key`."""
    lines = text.splitlines(keepends=True)
    start, end = _find_element(lines, key, index)
    own = next((n for n in range(start + 1, end) if _HEADER.match(lines[n])), end)
    written = re.compile(rf"(\s*{_build_key_pattern(name)}\s*=\s*)(true|false)(?=\s|#|$)")
    for number in range(start + 1, own):
        if match := written.match(lines[number]):
            lines[number] = match.group(1) + render_value(value) + lines[number][match.end() :]
            return "".join(lines)
    named = re.compile(rf"\s*{_build_key_pattern('name')}\s*=")
    after = next((n for n in range(start + 1, own) if named.match(lines[n])), start)
    newline = detect_newline(text)
    if not has_line_break(lines[after][-1:]):
        lines[after] += newline
    lines.insert(after + 1, f"{name} = {render_value(value)}{newline}")
    return "".join(lines)
