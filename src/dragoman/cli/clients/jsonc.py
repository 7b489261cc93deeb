"""Parses JSON with comments and trailing commas, and edits its text in place.

Nodes have positions, so that the text around an edit stays byte for byte. Does no I/O and knows no
client.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from dragoman.cli.base.errors import UnreadableFile
from dragoman.cli.base.files import detect_newline, has_line_break

MAX_DEPTH = 200


@dataclass(slots=True)
class JsonNode:
    """A value with its position in the text."""

    value: Any
    start: int
    end: int
    members: list[JsonMember] = field(default_factory=list)


@dataclass(slots=True)
class JsonMember:
    key: str
    start: int
    node: JsonNode
    comma: int | None = None
    """Position of the comma after it."""


_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


def parse_jsonc(text: str) -> JsonNode | None:
    """Parses a document; returns None if it has only white space and comments."""
    start = _skip(text, 0)
    if start == len(text):
        return None
    node = _parse_value(text, start, 0)
    end = _skip(text, node.end)
    if end != len(text):
        raise _build_error(text, end, "unexpected text after the end of the document")
    return node


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _parse_value(text: str, at: int, depth: int) -> JsonNode:
    if depth > MAX_DEPTH:
        raise _build_error(text, at, f"nested more than {MAX_DEPTH} levels deep")
    if text.startswith("{", at):
        return _parse_object(text, at, depth)
    if text.startswith("[", at):
        return _parse_array(text, at, depth)
    if text.startswith('"', at):
        value, end = _parse_string(text, at)
        return JsonNode(value, at, end)
    if found := _SCALAR.match(text, at):
        try:
            return JsonNode(json.loads(found.group()), at, found.end())
        except ValueError:  # Python's bound on the digits of an integer
            return JsonNode(found.group(), at, found.end())
    raise _build_unexpected(text, at, "a value")


def _parse_string(text: str, at: int) -> tuple[str, int]:
    if found := _STRING.match(text, at):
        try:
            return str(json.loads(found.group())), found.end()
        except ValueError:
            pass
    raise _build_error(
        text, at, "unterminated string, or a character or escape that JSON does not allow"
    )


def _parse_object(text: str, at: int, depth: int) -> JsonNode:
    node = JsonNode({}, at, at)
    place = _skip(text, at + 1)
    while not text.startswith("}", place):
        if node.members and node.members[-1].comma is None:
            raise _build_unexpected(text, place, "',' or '}'")
        if not text.startswith('"', place):
            raise _build_unexpected(text, place, "a quoted name")
        key, end = _parse_string(text, place)
        colon = _skip(text, end)
        if not text.startswith(":", colon):
            raise _build_unexpected(text, colon, "':'")
        child = _parse_value(text, _skip(text, colon + 1), depth + 1)
        member = JsonMember(key, place, child)
        node.value[key] = child.value
        node.members.append(member)
        place = _skip(text, child.end)
        if text.startswith(",", place):
            member.comma = place
            place = _skip(text, place + 1)
    node.end = place + 1
    return node


def _parse_array(text: str, at: int, depth: int) -> JsonNode:
    node = JsonNode([], at, at)
    place = _skip(text, at + 1)
    comma = True
    while not text.startswith("]", place):
        if not comma:
            raise _build_unexpected(text, place, "',' or ']'")
        child = _parse_value(text, place, depth + 1)
        node.value.append(child.value)
        place = _skip(text, child.end)
        comma = text.startswith(",", place)
        if comma:
            place = _skip(text, place + 1)
    node.end = place + 1
    return node


def _build_unexpected(text: str, at: int, wanted: str) -> UnreadableFile:
    found = repr(text[at]) if at < len(text) else "the end of the file"
    return _build_error(text, at, f"expected {wanted}, not {found}")


def _build_error(text: str, at: int, what: str) -> UnreadableFile:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return UnreadableFile(f"line {line}, column {column}: {what}")


# --- editing ------------------------------------------------------------------------------------


def _find_line_start(text: str, at: int) -> int:
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def _find_indent(text: str, at: int) -> str:
    """Returns the white space at the beginning of the line of `at`."""
    line = text[_find_line_start(text, at) :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _render(value: Any, indent: str, unit: str, newline: str) -> str:
    """Renders objects over several lines, everything else on one."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + unit
    members = (
        f"{inner}{json.dumps(key, ensure_ascii=False)}: {_render(item, inner, unit, newline)}"
        for key, item in value.items()
    )
    return f"{{{newline}{f',{newline}'.join(members)}{newline}{indent}}}"


_COMMENTS_HERE = re.compile(r"(?:[ \t]*(?:/\*.*?\*/|//[^\r\n]*))*", re.DOTALL)


def _insert(text: str, root: JsonNode, into: JsonNode, key: str, value: Any) -> str:
    newline, unit = detect_newline(text), _find_indent_unit(text, root)
    if _is_inline(text, into) or (not into.members and _is_inline(text, root)):
        member = json.dumps({key: value}, ensure_ascii=False)[1:-1]
        if not into.members:
            return text[: into.start + 1] + member + text[into.start + 1 :]
        end = into.members[-1].node.end
        return f"{text[:end]}, {member}{text[end:]}"
    if into.members:
        last = into.members[-1]
        indent = _find_indent(text, into.members[0].start)
        member = f"{json.dumps(key)}: {_render(value, indent, unit, newline)}"
        end = last.node.end if last.comma is None else last.comma + 1
        found = _COMMENTS_HERE.match(text, end)  # a comment stays on its line
        after = found.end() if found else end
        comma, trailing = (",", "") if last.comma is None else ("", ",")
        return (
            f"{text[:end]}{comma}{text[end:after]}{newline}{indent}{member}{trailing}{text[after:]}"
        )
    base = _find_indent(text, into.start)
    indent = base + unit
    inside = text[into.start + 1 : into.end - 1]
    after = into.start + 1 + len(inside.rstrip(" \t\r\n"))
    close = "" if has_line_break(text[after : into.end - 1]) else newline + base
    member = f"{json.dumps(key)}: {_render(value, indent, unit, newline)}"
    return f"{text[:after]}{newline}{indent}{member}{close}{text[after:]}"


def _is_inline(text: str, node: JsonNode) -> bool:
    return bool(node.members) and not has_line_break(text[node.start : node.members[0].start])


def _find_indent_unit(text: str, root: JsonNode) -> str:
    if root.members and not _is_inline(text, root):
        return (
            _find_indent(text, root.members[0].start).removeprefix(_find_indent(text, root.start))
            or "  "
        )
    return "  "


def _cut(text: str, node: JsonNode, index: int) -> str:
    """Removes the member with its line and the superfluous comma."""
    member = node.members[index]
    begin, end, comma = member.start, member.node.end, member.comma
    if comma is None and index:
        comma = node.members[index - 1].comma
    if comma is not None and comma >= end and not text[end:comma].strip():
        end = comma + 1
    gap = text[: member.start].rstrip(" \t")
    follows = re.match(r"[ \t]*(?=[\r\n]|$)", text[end:])
    if has_line_break(gap[-1:]):
        above = gap.removesuffix("\n").removesuffix("\r")
        # After a // comment the line must still end somewhere.
        if follows or "//" not in above[_find_line_start(above, len(above)) :]:
            begin, end = len(above), end + (follows.end() if follows else 0)
    elif index:
        begin = len(gap)
    elif comma is not None:
        end += len(text[end:]) - len(text[end:].lstrip(" \t"))
    if comma is None or begin <= comma < end:
        return text[:begin] + text[end:]
    if comma < begin:
        return text[:comma] + text[comma + 1 : begin] + text[end:]
    return text[:begin] + text[end:comma] + text[comma + 1 :]


def _find(node: JsonNode, key: str) -> int | None:
    """Finds the last member of this name, which is the one that parsers use."""
    return next((i for i, m in reversed(list(enumerate(node.members))) if m.key == key), None)


def set_member(text: str, keys: tuple[str, ...], name: str, entry: Any) -> str:
    root = parse_jsonc(text)
    if root is None:
        newline = detect_newline(text)
        document: Any = {name: entry}
        for key in reversed(keys):
            document = {key: document}
        gap = "" if not text or has_line_break(text[-1]) else newline
        return f"{text}{gap}{_render(document, '', '  ', newline)}{newline}"
    node, path = root, "the document"
    for position, key in enumerate((*keys, name)):
        if not isinstance(node.value, dict):
            raise UnreadableFile(f"{path} is not an object ({{…}}); cannot add a server to it")
        index = _find(node, key)
        if index is None:
            for missing in reversed((*keys, name)[position + 1 :]):
                entry = {missing: entry}
            return _insert(text, root, node, key, entry)
        node, path = node.members[index].node, f'"{key}"'
    indent = _find_indent(text, node.start)
    value = _render(entry, indent, _find_indent_unit(text, root), detect_newline(text))
    return text[: node.start] + value + text[node.end :]


def remove_member(text: str, keys: tuple[str, ...], name: str) -> str:
    node = parse_jsonc(text)
    for key in keys:
        index = _find(node, key) if node else None
        node = node.members[index].node if node and index is not None else None
    index = _find(node, name) if node else None
    return text if node is None or index is None else _cut(text, node, index)
