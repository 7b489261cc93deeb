"""Reads YAML as JSON, with the line of each value. Knows no workflows.

The core schema of YAML 1.2: `on`, `yes` and dates are texts. Without tags, anchors and aliases, so
that no short file becomes a large value, and without duplicate keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import yaml
from yaml import events

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 40
MAX_VALUES = 20_000
MAX_PROBLEMS = 20
"""Problems after which a definition is not looked at any further: a text from outside could have
one in each value, and to describe one takes a hundred times longer than to find none."""
Path = tuple[str | int, ...]
"""Keys and indexes from the top to a value."""


class Problem(NamedTuple):
    """What is wrong with a definition, and where."""

    line: int
    message: str


class EnoughProblems(Exception):
    """More than `MAX_PROBLEMS` were found; the rest of the definition is not checked."""


class YamlError(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(line, message)


class YamlDocument(NamedTuple):
    value: Any
    lines: dict[Path, int]
    """The line of each value, from 1; that of its key if it has one."""

    def find_line(self, path: Path) -> int:
        """Returns the line of a value, or of the nearest one around it."""
        for length in range(len(path), -1, -1):
            if (line := self.lines.get(path[:length])) is not None:
                return line
        return 1


def read_yaml(text: str) -> YamlDocument:
    """Raises `YamlError`."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        line = text[: error.start].count("\n") + 1
        raise YamlError(line, "the text is not valid Unicode") from None
    if size > MAX_BYTES:
        raise YamlError(1, f"the definition is too large: more than {MAX_BYTES // 1024} KB")
    reader = _YamlReader(text.removeprefix("\ufeff"))
    try:
        return reader.read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = error.problem or error.context or "it cannot be parsed"
        raise YamlError(mark.line + 1 if mark else 1, f"invalid YAML: {words}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise YamlError(line, "invalid YAML: it contains a control character") from None
    except yaml.YAMLError as error:
        raise YamlError(1, f"invalid YAML: {error}") from None


_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = re.compile(r"|~|null|Null|NULL")
_TRUE, _FALSE = re.compile(r"true|True|TRUE"), re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class _YamlReader:
    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_Loader))
        self._lines: dict[Path, int] = {}
        self._count = 0

    def read(self) -> YamlDocument:
        value: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, events.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _fail(event, "the file has a second document; write one workflow a file")
            elif isinstance(event, events.NodeEvent):
                self._lines[()] = _find_line(event)
                value = self._read_value(event, ())
        return YamlDocument(value, self._lines)

    def _read_value(self, event: Any, path: Path) -> Any:
        self._count += 1
        if self._count > MAX_VALUES:
            raise _fail(event, f"the definition has more than {MAX_VALUES} values")
        if len(path) > MAX_DEPTH:
            raise _fail(event, f"the definition is nested more than {MAX_DEPTH} levels deep")
        _refuse_references(event)
        if isinstance(event, events.MappingStartEvent):
            return self._read_mapping(event, path)
        if isinstance(event, events.SequenceStartEvent):
            return self._read_sequence(path)
        return _read_scalar(event)

    def _read_mapping(self, start: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(key := next(self._events), events.MappingEndEvent):
            name = _read_key(key, start)
            if name in found:
                raise _fail(key, f'the key "{name[:80]}" is there twice')
            self._lines[(*path, name)] = _find_line(key)
            found[name] = self._read_value(next(self._events), (*path, name))
        return found

    def _read_sequence(self, path: Path) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), events.SequenceEndEvent):
            at = (*path, len(found))
            self._lines[at] = _find_line(event)
            found.append(self._read_value(event, at))
        return found


def _read_key(event: Any, mapping: Any) -> str:
    _refuse_references(event)
    if isinstance(event, events.ScalarEvent):
        return str(event.value)
    if mapping.flow_style:
        raise _fail(event, 'a template must be in quotes: "{{ … }}"')
    raise _fail(event, "a key must be a text")


def _refuse_references(event: Any) -> None:
    if isinstance(event, events.AliasEvent) or getattr(event, "anchor", None):
        raise _fail(event, "anchors and aliases (& and *) are not supported; quote the text")
    if getattr(event, "tag", None):
        raise _fail(event, "tags (!) are not supported; quote the text")


def _read_scalar(event: Any) -> Any:
    text = str(event.value)
    if not event.implicit[0]:  # quoted, or a block
        return text
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _INTEGER.fullmatch(text):
        return _read_integer(event, text)
    if _NOT_FINITE.fullmatch(text) or (_FLOAT.fullmatch(text) and not math.isfinite(float(text))):
        raise _fail(event, f'the number "{text[:40]}" is not finite; quote it if it is a text')
    return float(text) if _FLOAT.fullmatch(text) else text


def _read_integer(event: Any, text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    number = int(text, base) if len(text) <= 24 else 2**64
    if not -(2**63) <= number < 2**64:
        raise _fail(event, f'the number "{text[:40]}" is too large; quote it if it is a text')
    return number


def _find_line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _fail(event: Any, message: str) -> YamlError:
    return YamlError(_find_line(event), message)
