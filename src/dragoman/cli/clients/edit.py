"""A client's file with the hub's entry in it, or out of it again.

The text is edited where the entry goes and left byte for byte elsewhere; what comes out is parsed
and must be the old content and exactly our entry, or nothing is given back. Writes nothing.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from dragoman.cli.base import toml_edit
from dragoman.cli.base.errors import Unreadable
from dragoman.cli.base.files import backups, decode, read_bytes
from dragoman.cli.clients import jsonc
from dragoman.cli.clients.known_clients import Client, servers_at


def parse(format: str, data: bytes) -> Any:
    """What a configuration file says, as plain values; an empty file says {}."""
    text = decode(data)[1]
    if format == "toml":
        return toml_edit.parse_toml(text)
    node = jsonc.parse_jsonc(text)
    return {} if node is None else node.value


def with_entry(client: Client, data: bytes | None, name: str, entry: dict[str, Any]) -> bytes:
    """The file with exactly this entry added, or changed."""
    mark, text = decode(data or b"")
    old = parse(client.format, data or b"")
    keys, _ = servers_at(old, client)
    edit = toml_edit.with_table if client.format == "toml" else jsonc.with_member
    new = edit(text, keys, name, entry)
    expected = copy.deepcopy(old)
    inner = expected
    for key in keys:
        inner = inner.setdefault(key, {})
    if client.format == "toml":
        inner.pop(name, None)
    inner[name] = entry
    return _checked(client, mark + new, expected)


def without_entry(client: Client, data: bytes, name: str) -> bytes:
    """The file with exactly this entry taken out."""
    mark, text = decode(data)
    expected = copy.deepcopy(parse(client.format, data))
    keys, found = servers_at(expected, client)
    found.pop(name)
    edit = toml_edit.without_table if client.format == "toml" else jsonc.without_member
    return _checked(client, mark + edit(text, keys, name), expected)


def _checked(client: Client, text: str, expected: Any) -> bytes:
    try:
        data = text.encode()
        same = repr(parse(client.format, data)) == repr(expected)
    except (Unreadable, UnicodeEncodeError):
        same = False
    if not same:
        raise Unreadable("it is laid out in a way that cannot be edited safely")
    return data


def undone(client: Client, path: Path, data: bytes, name: str) -> bytes | None:
    """The bytes of before the installation, where a backup proves them; else `without_entry`.

    None: there was no file before.
    """
    entry = servers_at(parse(client.format, data), client)[1][name]
    for backup in reversed(backups(path)):
        try:
            before = read_bytes(backup)
        except Unreadable:
            continue
        if before is not None and _leads_to(client, before, name, entry, data):
            return before
    if _leads_to(client, None, name, entry, data):
        return None
    return without_entry(client, data, name)


def _leads_to(client: Client, before: bytes | None, name: str, entry: Any, data: bytes) -> bool:
    try:
        if before and name in servers_at(parse(client.format, before), client)[1]:
            return False
        return with_entry(client, before, name, entry) == data
    except Unreadable:
        return False
