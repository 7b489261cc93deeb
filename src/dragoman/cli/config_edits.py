"""Edits of the servers in `config.toml`: as text, with every comment kept, and proved by reading
the result again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.cli.base.errors import NOT_FOUND, CommandFailed, UnreadableFile, fail
from dragoman.cli.base.files import decode_text, read_bytes, replace_file
from dragoman.cli.base.hub_client import suggest
from dragoman.cli.base.toml_edit import parse_toml, remove_element, set_element_value

KEY = "mcp_servers"

Edit = Callable[[str], str]


def remove_server(text: str, name: str) -> str:
    index, document = _find_server(text, name)
    del document[KEY][index]
    if not document[KEY]:
        del document[KEY]
    return _check_result(remove_element(text, KEY, index), document)


def set_enabled(text: str, name: str, enabled: bool) -> str:
    index, document = _find_server(text, name)
    if document[KEY][index].get("enabled", True) == enabled:
        return text
    document[KEY][index]["enabled"] = enabled
    return _check_result(set_element_value(text, KEY, index, "enabled", enabled), document)


def edit_config(file: Path, edit: Edit) -> Path | None:
    """Writes what `edit` makes of the file; returns the backup, or None where nothing changed."""
    data = read_bytes(file)
    try:
        mark, text = decode_text(data or b"")
        new = (mark + edit(text)).encode()
    except UnreadableFile as error:
        raise CommandFailed(f'"{file}": {error}. Nothing was changed; edit it by hand.') from None
    return replace_file(file, new, data) if new != data else None


def list_server_names(text: str) -> list[str]:
    listed = parse_toml(text).get(KEY, [])
    found = listed if isinstance(listed, list) else []
    return [str(one.get("name")) for one in found if isinstance(one, dict)]


def _find_server(text: str, name: str) -> tuple[int, Any]:
    document = parse_toml(text)
    names = list_server_names(text)
    if name not in names:
        hint = suggest(name, names) or "see: dragoman servers"
        fail(f'there is no server "{name}" in config.toml; {hint}', NOT_FOUND)
    return names.index(name), copy.deepcopy(document)


def _check_result(text: str, expected: Any) -> str:
    if parse_toml(text) != expected:
        raise UnreadableFile("its servers are laid out in a way that cannot be edited safely")
    return text
