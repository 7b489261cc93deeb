"""TOML that is added to and taken out of as text. Does no I/O and knows no client."""

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
        raise UnreadableFile(str(error) or "it is nested too deeply") from None


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
    raise UnreadableFile(f"{value!r} is no value that is written here; edit it by hand")


def append_toml(text: str, block: str) -> str:
    """The text, an empty line, and the block, in the text's own line ends."""
    newline = detect_newline(text)
    gap = "" if not text else newline if has_line_break(text[-1]) else newline * 2
    return f"{text}{gap}{block.replace(chr(10), newline)}"


def render_table(keys: tuple[str, ...], entry: Mapping[str, Any]) -> str:
    """A table and, after its own values, the tables in it."""
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
    """Without the table of that name and those below it.

    A line of a multi-line string can look like a header; then the comparison afterwards refuses.
    """
    path = r"\s*\.\s*".join(_build_key_pattern(key) for key in (*keys, name))
    ours = re.compile(rf"\s*\[\s*{path}\s*(?:\.[^\]]*)?\]\s*(?:#.*)?$")
    kept: list[str] = []
    held: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        is_header = re.match(r"\s*\[", line) is not None
        if is_header:
            was, inside = inside, bool(ours.match(line))
            kept += [] if inside else held
            held = []
            if inside and not was and kept and not kept[-1].strip():
                kept.pop()
        if not inside:
            kept.append(line)
        elif not line.strip() or line.lstrip().startswith("#"):
            held.append(line)  # what stands before the next table belongs to that one
        else:
            held = []
    return "".join(kept + [line for line in held if line.strip()])


# --- arrays of tables ----------------------------------------------------------------------------

_HEADER = re.compile(r"\s*\[")


def _build_key_pattern(key: str) -> str:
    return rf"""(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')"""


def _find_elements(lines: list[str], key: str) -> list[tuple[int, int]]:
    """The lines, from and to, of each `[[key]]` with the tables below it.

    Blank lines and comments before the next table belong to that one.
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
    return found


def remove_element(text: str, key: str, index: int) -> str:
    """The text without element `index` of the array of tables `key`."""
    lines = text.splitlines(keepends=True)
    elements = _find_elements(lines, key)
    if index >= len(elements):
        raise UnreadableFile(f"{key} is not written as [[{key}]] tables")
    start, end = elements[index]
    if start and not lines[start - 1].strip():
        start -= 1  # one of the two gaps around it
    elif end < len(lines) and not lines[end].strip():
        end += 1
    return "".join(lines[:start] + lines[end:])


def set_element_value(text: str, key: str, index: int, name: str, value: Any) -> str:
    """The text with `name = value` in element `index` of the array of tables `key`."""
    lines = text.splitlines(keepends=True)
    elements = _find_elements(lines, key)
    if index >= len(elements):
        raise UnreadableFile(f"{key} is not written as [[{key}]] tables")
    start, end = elements[index]
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
