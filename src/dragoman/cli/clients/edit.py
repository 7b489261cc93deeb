"""Adds the hub's entry to the text of a client's file, or removes it. Writes nothing.

Everything else stays byte for byte. The result is parsed and must equal the old content with
exactly the entry changed.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from dragoman.cli.base import toml_edit
from dragoman.cli.base.errors import UnreadableFile
from dragoman.cli.base.files import decode_text, list_backups, read_bytes
from dragoman.cli.clients import jsonc
from dragoman.cli.clients.known_clients import KnownClient, find_servers


def parse_document(format: str, data: bytes) -> Any:
    """Parses a configuration file to plain values; an empty file is {}."""
    text = decode_text(data)[1]
    if format == "toml":
        return toml_edit.parse_toml(text)
    node = jsonc.parse_jsonc(text)
    return {} if node is None else node.value


def set_entry(client: KnownClient, data: bytes | None, name: str, entry: dict[str, Any]) -> bytes:
    """Returns the file with exactly this entry added or changed."""
    mark, text = decode_text(data or b"")
    old = parse_document(client.format, data or b"")
    keys, _ = find_servers(old, client)
    edit = toml_edit.set_table if client.format == "toml" else jsonc.set_member
    new = edit(text, keys, name, entry)
    expected = copy.deepcopy(old)
    inner = expected
    for key in keys:
        inner = inner.setdefault(key, {})
    if client.format == "toml":
        inner.pop(name, None)
    inner[name] = entry
    return _encode_checked(client, mark + new, expected)


def remove_entry(client: KnownClient, data: bytes, name: str) -> bytes:
    """Returns the file with exactly this entry removed."""
    mark, text = decode_text(data)
    expected = copy.deepcopy(parse_document(client.format, data))
    keys, found = find_servers(expected, client)
    found.pop(name)
    edit = toml_edit.remove_table if client.format == "toml" else jsonc.remove_member
    return _encode_checked(client, mark + edit(text, keys, name), expected)


def _encode_checked(client: KnownClient, text: str, expected: Any) -> bytes:
    try:
        data = text.encode()
        same = repr(parse_document(client.format, data)) == repr(expected)
    except (UnreadableFile, UnicodeEncodeError):
        same = False
    if not same:
        raise UnreadableFile("its layout cannot be edited safely")
    return data


def restore_original(client: KnownClient, path: Path, data: bytes, name: str) -> bytes | None:
    """Returns the bytes before the installation if a backup has them, else the file without the
    entry; None if there was no file before."""
    entry = find_servers(parse_document(client.format, data), client)[1][name]
    for backup in reversed(list_backups(path)):
        try:
            before = read_bytes(backup)
        except UnreadableFile:
            continue
        if before is not None and _is_original(client, before, name, entry, data):
            return before
    if _is_original(client, None, name, entry, data):
        return None
    return remove_entry(client, data, name)


def _is_original(
    client: KnownClient, before: bytes | None, name: str, entry: Any, data: bytes
) -> bool:
    try:
        if before and name in find_servers(parse_document(client.format, before), client)[1]:
            return False
        return set_entry(client, before, name, entry) == data
    except UnreadableFile:
        return False
