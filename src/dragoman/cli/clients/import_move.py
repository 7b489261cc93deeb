"""`import --move` removes imported servers from the client's file once the hub is connected to
them; `import --undo` puts them back.

Removed entries are recorded in `moved.json` in the hub's home, which may hold secrets and is
readable only by its owner.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dragoman.cli.base import toml_edit
from dragoman.cli.base.errors import CommandFailed, UnreadableFile
from dragoman.cli.base.files import decode_text, read_bytes, replace_file
from dragoman.cli.base.hub_client import connect_hub, connect_running
from dragoman.cli.clients import jsonc
from dragoman.cli.clients.edit import parse_document
from dragoman.cli.clients.import_plan import FoundServer

RECORD = "moved.json"
MAX_MOVES = 50
"""Older records are dropped."""


@dataclass(slots=True)
class FileMove:
    """The entries that one command removed from one file."""

    path: str
    format: str
    entries: list[dict[str, Any]]
    """Each with its `keys`, `name` and `entry`."""
    after: str
    """SHA-256 of the file afterwards."""
    backup: str | None = None

    @property
    def names(self) -> list[str]:
        return [str(one["name"]) for one in self.entries]


@dataclass(slots=True)
class MoveResult:
    """The outcome of `import --move`."""

    moved: list[FileMove] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    """The reason for each server that was not moved, by name."""

    def build_json(self) -> dict[str, Any]:
        moved = [{"file": m.path, "servers": m.names, "backup": m.backup} for m in self.moved]
        return {"moved": moved, "left": self.left}


def move_servers(home: Path, wanted: Iterable[tuple[FoundServer, str]]) -> MoveResult:
    """Removes each server from its file if the hub is connected to it under the given name."""
    done = MoveResult()
    states = _connect_servers(home, [name for _, name in wanted])
    by_file: dict[Path, list[FoundServer]] = {}
    for found, name in wanted:
        state = states[name]
        if found.path is None:
            done.left[found.name] = "it does not come from a file"
        elif not state.get("connected"):
            done.left[found.name] = f"the hub is not connected to it: {state.get('reason', '')}"
        else:
            by_file.setdefault(found.path, []).append(found)
    for path, servers in by_file.items():
        try:
            done.moved.append(_remove_from_file(home, path, servers))
        except (UnreadableFile, CommandFailed) as error:
            done.left |= {found.name: str(error) for found in servers}
    return done


def _connect_servers(home: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    if not names:
        return {}
    running = connect_running(str(home))
    if running is not None and (problem := running.send("POST", "/api/reload")["problem"]):
        return {name: {"reason": f"the hub rejected config.toml: {problem}"} for name in names}
    with connect_hub(str(home)) as hub:
        return {name: hub.wait_for_server(name) for name in names}


def _remove_from_file(home: Path, path: Path, servers: list[FoundServer]) -> FileMove:
    data = read_bytes(path)
    if data is None:
        raise UnreadableFile(f'"{path}" no longer exists')
    format = "toml" if path.suffix == ".toml" else servers[0].client.format
    mark, text = decode_text(data)
    document = parse_document(format, data)
    expected = copy.deepcopy(document)
    entries = []
    for found in servers:
        holder = expected
        for key in found.keys:
            holder = holder[key]
        if holder.get(found.name) != found.entry:
            raise UnreadableFile(
                f'"{path}" was changed by another program just now; run this again'
            )
        del holder[found.name]
        entries.append({"keys": list(found.keys), "name": found.name, "entry": found.entry})
        edit = toml_edit.remove_table if format == "toml" else jsonc.remove_member
        text = edit(text, found.keys, found.name)
    new = (mark + text).encode()
    _check_result(format, new, expected)
    # Recorded first, so that a removed entry can be restored after a crash.
    earlier = read_moves(home)
    move = FileMove(str(path), format, entries, hashlib.sha256(new).hexdigest())
    _write_moves(home, [*earlier, move])
    try:
        backup = replace_file(path, new, data)
    except CommandFailed:
        _write_moves(home, earlier)
        raise
    move.backup = str(backup) if backup else None
    _write_moves(home, [*earlier, move])
    return move


def _check_result(format: str, data: bytes, expected: Any) -> None:
    try:
        same = _drop_empty(parse_document(format, data)) == _drop_empty(expected)
    except UnreadableFile:
        same = False
    if not same:
        raise UnreadableFile("its layout cannot be edited safely")


def _drop_empty(document: Any) -> Any:
    """Drops empty tables: in TOML a table without content or sub-tables disappears."""
    if not isinstance(document, dict):
        return document
    return {key: _drop_empty(value) for key, value in document.items() if value != {}}


def undo_move(home: Path, file: Path | None) -> FileMove:
    """Puts the servers of the last move back, of that file or of any."""
    moves = read_moves(home)
    chosen = [one for one in moves if file is None or Path(one.path) == file]
    if not chosen:
        what = f" from {file}" if file else ""
        raise CommandFailed(f"nothing to undo: no servers were moved{what}")
    move = chosen[-1]
    path = Path(move.path)
    data = read_bytes(path)
    before = read_bytes(Path(move.backup)) if move.backup else None
    if data is not None and hashlib.sha256(data).hexdigest() == move.after and before is not None:
        replace_file(path, before, data)
    else:
        replace_file(path, _render_restored(move, data), data)
    _write_moves(home, [one for one in moves if one is not move])
    return move


def _render_restored(move: FileMove, data: bytes | None) -> bytes:
    """Renders the current file with the entries added."""
    mark, text = decode_text(data or b"")
    expected = parse_document(move.format, data or b"")
    for one in move.entries:
        keys, name = tuple(one["keys"]), one["name"]
        holder = expected
        for key in keys:
            holder = holder.setdefault(key, {})
        if name in holder:
            raise CommandFailed(f'{move.path} already has another "{name}"; nothing was changed')
        holder[name] = one["entry"]
        if move.format == "toml":
            text = toml_edit.append_toml(text, toml_edit.render_table((*keys, name), one["entry"]))
        else:
            text = jsonc.set_member(text, keys, name, one["entry"])
    new = (mark + text).encode()
    _check_result(move.format, new, expected)
    return new


def read_moves(home: Path) -> list[FileMove]:
    data = read_bytes(home / RECORD)
    try:
        return [FileMove(**one) for one in json.loads(data or b"[]")]
    except (ValueError, TypeError):
        raise CommandFailed(
            f'"{home / RECORD}" is damaged; restore the client file from its backup'
        ) from None


def _write_moves(home: Path, moves: list[FileMove]) -> None:
    data = json.dumps([asdict(one) for one in moves[-MAX_MOVES:]], indent=1).encode()
    replace_file(home / RECORD, data, read_bytes(home / RECORD), backup=False)
