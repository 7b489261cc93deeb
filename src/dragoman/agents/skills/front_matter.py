"""The front matter of SKILL.md: the part of YAML that such files use. Pure.

Top-level keys with a text (plain, quoted, or a block after `|` or `>`), a list, or a mapping.
Values are parsed when they are read, so that a key which the hub does not know may have any form. A
YAML library would be a dependency of the core for four keys.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.errors import InvalidInput

MARK = "---"
_KEY = re.compile(r"([A-Za-z0-9_.-]+)\s*:(?:\s+(.*))?$")
_BLOCK = re.compile(r"([|>])[+-]?\d?\s*(?:#.*)?$")
_COMMENT = re.compile(r"\s+#.*$")


class FrontMatter:
    """The keys of a front matter; each method returns an empty value for a missing key."""

    def __init__(self, raw: Mapping[str, Sequence[str]]) -> None:
        self._raw = raw
        """The lines of each value; the first is what follows the key."""

    def __iter__(self) -> Any:
        return iter(self._raw)

    def read_text(self, key: str) -> str:
        """Returns a text; the words of a list are joined by spaces."""
        value = self._read(key)
        if isinstance(value, list):
            return " ".join(map(str, value))
        return "" if isinstance(value, dict) else value

    def read_list(self, key: str) -> list[str]:
        """Returns a list; the words of a text, which may be separated by commas, are one too."""
        value = self._read(key)
        if isinstance(value, str):
            return value.replace(",", " ").split()
        return list(map(str, value)) if isinstance(value, list) else []

    def read_mapping(self, key: str) -> dict[str, Any]:
        value = self._read(key)
        return value if isinstance(value, dict) else {}

    def _read(self, key: str) -> str | list[Any] | dict[str, Any]:
        lines = self._raw.get(key)
        return "" if lines is None else _parse_value(lines[0], lines[1:])


def parse_front_matter(text: str) -> tuple[FrontMatter, str]:
    """Returns the front matter and what follows it. Raises `InvalidInput`."""
    lines = text.removeprefix("\ufeff").splitlines()
    ends = [at for at, line in enumerate(lines) if line.rstrip() == MARK]
    if not ends or ends[0] != 0:
        raise InvalidInput(f'it must begin with a front matter: a line "{MARK}", then name: …')
    if len(ends) < 2:
        raise InvalidInput(f'its front matter has no end: a line "{MARK}"')
    body = "\n".join(lines[ends[1] + 1 :]).strip("\n")
    return FrontMatter(_split_keys(lines[1 : ends[1]], 2)), body + "\n" if body else ""


def _split_keys(lines: Sequence[str], first: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate(lines, first):
        match = _KEY.match(line)
        if match is not None:
            if match[1] in found:
                raise InvalidInput(f'line {number} has "{match[1]}" for the second time')
            current = found[match[1]] = [(match[2] or "").strip()]
        elif line.startswith("#") and (current is None or not line[1:].strip()):
            continue
        elif current is not None and (not line.strip() or line[0] in " \t-#"):
            current.append(line)
        elif line.strip():
            raise InvalidInput(f'line {number} is not "key: value": {line[:60]!r}')
    return found


def _parse_value(inline: str, rest: Sequence[str]) -> str | list[Any] | dict[str, Any]:
    if block := _BLOCK.match(inline):
        return _parse_block(rest, folds=block[1] == ">")
    rest = [line for line in rest if line.strip() and not line.lstrip().startswith("#")]
    if inline and not inline.startswith("#"):
        return _parse_inline(" ".join([inline, *(line.strip() for line in rest)]))
    inner = textwrap.dedent("\n".join(rest)).splitlines()
    if not inner:
        return ""
    if inner[0].startswith("-"):
        return [_parse_scalar(line.lstrip()[1:].strip()) for line in inner if line.startswith("-")]
    try:
        keys = _split_keys(inner, 1)
    except InvalidInput:
        return _parse_inline(" ".join(line.strip() for line in inner))
    return {key: _parse_value(lines[0], lines[1:]) for key, lines in keys.items()}


def _parse_inline(text: str) -> str | list[Any] | dict[str, Any]:
    if text[0] in "[{":
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if isinstance(value, list | dict):
            return value
        if text[0] == "[" and text.endswith("]"):
            return [_parse_scalar(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    return _parse_scalar(text)


def _parse_scalar(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return _COMMENT.sub("", text)


def _parse_block(lines: Sequence[str], folds: bool) -> str:
    text = textwrap.dedent("\n".join(lines)).strip("\n")
    if not folds:
        return text
    paragraphs = re.split(r"\n{2,}", text)
    return "\n".join(" ".join(one.split("\n")) for one in paragraphs)
