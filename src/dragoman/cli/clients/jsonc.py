"""JSON with comments and trailing commas: read, and edited where it stands.

The reader remembers where each member is, so that the text around an edit stays as it was, byte
for byte. Does no I/O and knows no client.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from dragoman.cli.base.errors import Unreadable
from dragoman.cli.base.files import is_broken, newline_of

MAX_DEPTH = 200


@dataclass(slots=True)
class Node:
    """A value of a JSON text and where it stands."""

    value: Any
    start: int
    end: int
    members: list[Member] = field(default_factory=list)


@dataclass(slots=True)
class Member:
    key: str
    start: int
    node: Node
    comma: int | None = None
    """Where the comma after it stands."""


_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


def parse_jsonc(text: str) -> Node | None:
    """JSON with comments and trailing commas; None where there is nothing but space."""
    start = _skip(text, 0)
    if start == len(text):
        return None
    node = _value(text, start, 0)
    end = _skip(text, node.end)
    if end != len(text):
        raise _wrong(text, end, "there is more after the end of the document")
    return node


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise _wrong(text, at, f"it is nested more than {MAX_DEPTH} deep")
    if text.startswith("{", at):
        return _object(text, at, depth)
    if text.startswith("[", at):
        return _array(text, at, depth)
    if text.startswith('"', at):
        value, end = _string(text, at)
        return Node(value, at, end)
    if found := _SCALAR.match(text, at):
        try:
            return Node(json.loads(found.group()), at, found.end())
        except ValueError:  # Python's bound on the digits of an integer
            return Node(found.group(), at, found.end())
    raise _wrong(text, at, f"a value is expected, not {_shown(text, at)}")


def _string(text: str, at: int) -> tuple[str, int]:
    if found := _STRING.match(text, at):
        try:
            return str(json.loads(found.group())), found.end()
        except ValueError:
            pass
    raise _wrong(text, at, "this string has no end, or a character or escape JSON does not allow")


def _object(text: str, at: int, depth: int) -> Node:
    node = Node({}, at, at)
    place = _skip(text, at + 1)
    while not text.startswith("}", place):
        if node.members and node.members[-1].comma is None:
            raise _wrong(text, place, f"',' or '}}' is expected, not {_shown(text, place)}")
        if not text.startswith('"', place):
            raise _wrong(text, place, f"a name in quotes is expected, not {_shown(text, place)}")
        key, end = _string(text, place)
        colon = _skip(text, end)
        if not text.startswith(":", colon):
            raise _wrong(text, colon, f"':' is expected, not {_shown(text, colon)}")
        child = _value(text, _skip(text, colon + 1), depth + 1)
        member = Member(key, place, child)
        node.value[key] = child.value
        node.members.append(member)
        place = _skip(text, child.end)
        if text.startswith(",", place):
            member.comma = place
            place = _skip(text, place + 1)
    node.end = place + 1
    return node


def _array(text: str, at: int, depth: int) -> Node:
    node = Node([], at, at)
    place = _skip(text, at + 1)
    comma = True
    while not text.startswith("]", place):
        if not comma:
            raise _wrong(text, place, f"',' or ']' is expected, not {_shown(text, place)}")
        child = _value(text, place, depth + 1)
        node.value.append(child.value)
        place = _skip(text, child.end)
        comma = text.startswith(",", place)
        if comma:
            place = _skip(text, place + 1)
    node.end = place + 1
    return node


def _shown(text: str, at: int) -> str:
    return repr(text[at]) if at < len(text) else "the end of the file"


def _wrong(text: str, at: int, what: str) -> Unreadable:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return Unreadable(f"line {line}, column {column}: {what}")


# --- editing ------------------------------------------------------------------------------------


def _line_start(text: str, at: int) -> int:
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def _indent(text: str, at: int) -> str:
    """The white space that begins the line where `at` stands."""
    line = text[_line_start(text, at) :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _render(value: Any, indent: str, unit: str, newline: str) -> str:
    """Objects over several lines, everything else on one."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + unit
    members = (
        f"{inner}{json.dumps(key, ensure_ascii=False)}: {_render(item, inner, unit, newline)}"
        for key, item in value.items()
    )
    return f"{{{newline}{f',{newline}'.join(members)}{newline}{indent}}}"


_COMMENTS_HERE = re.compile(r"(?:[ \t]*(?:/\*.*?\*/|//[^\r\n]*))*", re.DOTALL)


def _insert(text: str, root: Node, into: Node, key: str, value: Any) -> str:
    newline, unit = newline_of(text), _unit(text, root)
    if _is_inline(text, into) or (not into.members and _is_inline(text, root)):
        member = json.dumps({key: value}, ensure_ascii=False)[1:-1]
        if not into.members:
            return text[: into.start + 1] + member + text[into.start + 1 :]
        end = into.members[-1].node.end
        return f"{text[:end]}, {member}{text[end:]}"
    if into.members:
        last = into.members[-1]
        indent = _indent(text, into.members[0].start)
        member = f"{json.dumps(key)}: {_render(value, indent, unit, newline)}"
        end = last.node.end if last.comma is None else last.comma + 1
        found = _COMMENTS_HERE.match(text, end)  # a comment stays with the line it is on
        after = found.end() if found else end
        comma, trailing = (",", "") if last.comma is None else ("", ",")
        return (
            f"{text[:end]}{comma}{text[end:after]}{newline}{indent}{member}{trailing}{text[after:]}"
        )
    base = _indent(text, into.start)
    indent = base + unit
    inside = text[into.start + 1 : into.end - 1]
    after = into.start + 1 + len(inside.rstrip(" \t\r\n"))
    close = "" if is_broken(text[after : into.end - 1]) else newline + base
    member = f"{json.dumps(key)}: {_render(value, indent, unit, newline)}"
    return f"{text[:after]}{newline}{indent}{member}{close}{text[after:]}"


def _is_inline(text: str, node: Node) -> bool:
    return bool(node.members) and not is_broken(text[node.start : node.members[0].start])


def _unit(text: str, root: Node) -> str:
    if root.members and not _is_inline(text, root):
        return _indent(text, root.members[0].start).removeprefix(_indent(text, root.start)) or "  "
    return "  "


def _cut(text: str, node: Node, index: int) -> str:
    """The text without the member: with its line, and with the one comma too many."""
    member = node.members[index]
    begin, end, comma = member.start, member.node.end, member.comma
    if comma is None and index:
        comma = node.members[index - 1].comma
    if comma is not None and comma >= end and not text[end:comma].strip():
        end = comma + 1
    gap = text[: member.start].rstrip(" \t")
    follows = re.match(r"[ \t]*(?=[\r\n]|$)", text[end:])
    if is_broken(gap[-1:]):
        above = gap.removesuffix("\n").removesuffix("\r")
        # After a // comment the line must still end somewhere.
        if follows or "//" not in above[_line_start(above, len(above)) :]:
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


def _find(node: Node, key: str) -> int | None:
    """The last member of this name: the one that a reader goes by."""
    return next((i for i, m in reversed(list(enumerate(node.members))) if m.key == key), None)


def with_member(text: str, keys: tuple[str, ...], name: str, entry: Any) -> str:
    root = parse_jsonc(text)
    if root is None:
        newline = newline_of(text)
        document: Any = {name: entry}
        for key in reversed(keys):
            document = {key: document}
        gap = "" if not text or is_broken(text[-1]) else newline
        return f"{text}{gap}{_render(document, '', '  ', newline)}{newline}"
    node, path = root, "the document"
    for position, key in enumerate((*keys, name)):
        if not isinstance(node.value, dict):
            raise Unreadable(f"{path} is no object ({{…}}), so no server can be put into it")
        index = _find(node, key)
        if index is None:
            for missing in reversed((*keys, name)[position + 1 :]):
                entry = {missing: entry}
            return _insert(text, root, node, key, entry)
        node, path = node.members[index].node, f'"{key}"'
    indent = _indent(text, node.start)
    value = _render(entry, indent, _unit(text, root), newline_of(text))
    return text[: node.start] + value + text[node.end :]


def without_member(text: str, keys: tuple[str, ...], name: str) -> str:
    node = parse_jsonc(text)
    for key in keys:
        index = _find(node, key) if node else None
        node = node.members[index].node if node and index is not None else None
    index = _find(node, name) if node else None
    return text if node is None or index is None else _cut(text, node, index)
