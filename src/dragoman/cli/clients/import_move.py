"""`import --move`: takes servers out of the file that they were imported from, once the hub has
connected to them; and `import --undo`, which puts them back.

What was taken out is recorded in `moved.json` in the hub's home: it may hold secrets, and only its
owner can read it.
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
from dragoman.cli.base.errors import Failed, Unreadable
from dragoman.cli.base.files import decode, read_bytes, write
from dragoman.cli.base.hub_client import HubClient, connected, running
from dragoman.cli.clients import jsonc
from dragoman.cli.clients.edit import parse
from dragoman.cli.clients.import_plan import Found

RECORD = "moved.json"
MAX_MOVES = 50
"""So many are remembered; the oldest go first."""


@dataclass(slots=True)
class Move:
    """What was taken out of one file at one time."""

    path: str
    format: str
    entries: list[dict[str, Any]]
    """Each with its `keys`, `name` and `entry`."""
    after: str
    """The SHA-256 of the file as it was left."""
    backup: str | None = None

    @property
    def names(self) -> list[str]:
        return [str(one["name"]) for one in self.entries]


@dataclass(slots=True)
class Moving:
    """What a move came to."""

    moved: list[Move] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    """By the name of a server that stays in its file, why."""

    def as_json(self) -> dict[str, Any]:
        moved = [{"file": m.path, "servers": m.names, "backup": m.backup} for m in self.moved]
        return {"moved": moved, "left": self.left}


def move(home: Path, wanted: Iterable[tuple[Found, str]]) -> Moving:
    """Takes each server out of its file that the hub is connected to, under that name."""
    done = Moving()
    states = _states(home, [name for _, name in wanted])
    by_file: dict[Path, list[Found]] = {}
    for found, name in wanted:
        state = states[name]
        if found.path is None:
            done.left[found.name] = "it was found in no file"
        elif not state.get("connected"):
            done.left[found.name] = f"the hub is not connected to it: {state.get('reason', '')}"
        else:
            by_file.setdefault(found.path, []).append(found)
    for path, servers in by_file.items():
        try:
            done.moved.append(_take_out(home, path, servers))
        except (Unreadable, Failed) as error:
            done.left |= {found.name: str(error) for found in servers}
    return done


def _states(home: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    daemon = running(str(home)) if names else None
    if daemon is not None:
        hub = HubClient(str(home), daemon.socket)
        problem = hub.send("POST", "/api/reload")["problem"]
        if problem:
            return {name: {"reason": f"it does not use config.toml: {problem}"} for name in names}
        return {name: hub.wait_server(name) for name in names}
    if not names:
        return {}
    with connected(str(home)) as own:
        return {name: own.wait_server(name) for name in names}


def _take_out(home: Path, path: Path, servers: list[Found]) -> Move:
    data = read_bytes(path)
    if data is None:
        raise Unreadable(f'"{path}" is gone')
    format = "toml" if path.suffix == ".toml" else servers[0].client.format
    mark, text = decode(data)
    document = parse(format, data)
    expected = copy.deepcopy(document)
    entries = []
    for found in servers:
        holder = expected
        for key in found.keys:
            holder = holder[key]
        if holder.get(found.name) != found.entry:
            raise Unreadable(f'"{path}" was changed by another program just now; run this again')
        del holder[found.name]
        entries.append({"keys": list(found.keys), "name": found.name, "entry": found.entry})
        edit = toml_edit.without_table if format == "toml" else jsonc.without_member
        text = edit(text, found.keys, found.name)
    new = (mark + text).encode()
    _check(format, new, expected)
    # Recorded first: what is taken out of a file must be found again, whatever happens here.
    earlier = read_moves(home)
    move = Move(str(path), format, entries, hashlib.sha256(new).hexdigest())
    _record(home, [*earlier, move])
    try:
        backup = write(path, new, data)
    except Failed:
        _record(home, earlier)
        raise
    move.backup = str(backup) if backup else None
    _record(home, [*earlier, move])
    return move


def _check(format: str, data: bytes, expected: Any) -> None:
    try:
        same = _without_empty(parse(format, data)) == _without_empty(expected)
    except Unreadable:
        same = False
    if not same:
        raise Unreadable("it is laid out in a way that cannot be edited safely")


def _without_empty(document: Any) -> Any:
    """A table of TOML that has lost its last table is not there any more."""
    if not isinstance(document, dict):
        return document
    return {key: _without_empty(value) for key, value in document.items() if value != {}}


def undo(home: Path, file: Path | None) -> Move:
    """Puts back what was moved last, out of that file or out of any."""
    moves = read_moves(home)
    chosen = [one for one in moves if file is None or Path(one.path) == file]
    if not chosen:
        what = f"out of {file}" if file else "out of any file"
        raise Failed(f"nothing was moved {what}, so there is nothing to put back")
    move = chosen[-1]
    path = Path(move.path)
    data = read_bytes(path)
    before = read_bytes(Path(move.backup)) if move.backup else None
    if data is not None and hashlib.sha256(data).hexdigest() == move.after and before is not None:
        write(path, before, data)
    else:
        write(path, _put_back(move, data), data)
    _record(home, [one for one in moves if one is not move])
    return move


def _put_back(move: Move, data: bytes | None) -> bytes:
    """The file as it is now, with the entries in it."""
    mark, text = decode(data or b"")
    expected = parse(move.format, data or b"")
    for one in move.entries:
        keys, name = tuple(one["keys"]), one["name"]
        holder = expected
        for key in keys:
            holder = holder.setdefault(key, {})
        if name in holder:
            raise Failed(f'{move.path} has another "{name}" by now; nothing was changed')
        holder[name] = one["entry"]
        if move.format == "toml":
            text = toml_edit.append_toml(text, toml_edit.render_table((*keys, name), one["entry"]))
        else:
            text = jsonc.with_member(text, keys, name, one["entry"])
    new = (mark + text).encode()
    _check(move.format, new, expected)
    return new


def read_moves(home: Path) -> list[Move]:
    data = read_bytes(home / RECORD)
    try:
        return [Move(**one) for one in json.loads(data or b"[]")]
    except (ValueError, TypeError):
        raise Failed(f'"{home / RECORD}" is damaged; put the file back from its backup') from None


def _record(home: Path, moves: list[Move]) -> None:
    data = json.dumps([asdict(one) for one in moves[-MAX_MOVES:]], indent=1).encode()
    write(home / RECORD, data, read_bytes(home / RECORD), backup=False)
