"""TOML that is added to and taken out of as text. Does no I/O and knows no client."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from dragoman.cli.errors import Unreadable
from dragoman.cli.files import is_broken, newline_of


def parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error) or "it is nested too deeply") from None


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, int | float):
        return repr(value)
    raise Unreadable(f"{value!r} is no value that is written here; edit it by hand")


def append_toml(text: str, block: str) -> str:
    """The text, an empty line, and the block, in the text's own line ends."""
    newline = newline_of(text)
    gap = "" if not text else newline if is_broken(text[-1]) else newline * 2
    return f"{text}{gap}{block.replace(chr(10), newline)}"


def with_table(text: str, keys: tuple[str, ...], name: str, entry: Any) -> str:
    lines = [f"{key} = {toml_value(value)}" for key, value in entry.items()]
    header = ".".join((*keys, name))
    return append_toml(without_table(text, keys, name), "\n".join([f"[{header}]", *lines]) + "\n")


def without_table(text: str, keys: tuple[str, ...], name: str) -> str:
    """Without the table of that name and those below it.

    A line of a multi-line string can look like a header; then the comparison afterwards refuses.
    """
    path = r"\s*\.\s*".join(
        rf"""(?:{re.escape(k)}|"{re.escape(k)}"|'{re.escape(k)}')""" for k in (*keys, name)
    )
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
