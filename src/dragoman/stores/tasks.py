"""Tasks in the hub's home, or in memory where that is wanted: headers, and logs in pieces.

What is saved at once of one task is one piece: a row, however many entries are in it, unless they
are long. So the statements of a save grow with the tasks that it tells of, not with what happened
to them. Knows nothing of what entries say.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.ports import StoredPush, StoredTask, TaskChange
from dragoman.core.principal import Principal
from dragoman.core.tasks import Entry
from dragoman.stores.sqlite import LOOP_BUSY_SECONDS, SqliteWriter, describe_remedy, open_store

DATABASE = "tasks.db"
MAX_DEPTH = 100
PIECE_BYTES = 256 * 1024
"""A piece that is longer is made of one entry: so a long log can be read bit by bit."""

T = TypeVar("T")

MIGRATIONS = (
    """
CREATE TABLE tasks (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL, owner TEXT NOT NULL, org TEXT NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    created REAL NOT NULL, updated REAL NOT NULL,
    about BLOB NOT NULL
) STRICT;
CREATE TABLE task_log (
    task INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (task, first)
) STRICT, WITHOUT ROWID;
CREATE TABLE pushes (
    task INTEGER NOT NULL, id TEXT NOT NULL, config BLOB NOT NULL,
    cursor INTEGER NOT NULL, attempts INTEGER NOT NULL, next_at REAL NOT NULL, dead TEXT NOT NULL,
    PRIMARY KEY (task, id)
) STRICT, WITHOUT ROWID;
""",
)

_INSERT = (
    "INSERT INTO tasks (kind, owner, org, id, state, created, updated, about)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = "UPDATE tasks SET state = ?, updated = ?, about = ? WHERE key = ?"
_LOG = "INSERT INTO task_log (task, first, count, body) VALUES (?, ?, ?, ?)"
_LOAD = """
SELECT t.key, t.id, t.kind, t.owner, t.org, t.state, t.created, t.updated, t.about,
       total(l.count), total(length(l.body))
FROM tasks t LEFT JOIN task_log l ON l.task = t.key GROUP BY t.key ORDER BY t.key
"""
_ENTRIES = "SELECT body FROM task_log WHERE task = ? AND first + count - 1 > ? ORDER BY first"
_PUSH = (
    "INSERT OR REPLACE INTO pushes (task, id, config, cursor, attempts, next_at, dead)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_log = msgspec.json.Decoder(list[tuple[int, float, dict[str, Any]]]).decode


def _pieces(entries: Sequence[Entry]) -> list[tuple[int, int, bytes]]:
    """The number of the first entry, how many they are, and what they say."""
    if not entries:
        return []
    body = _written([(entry.number, entry.at, entry.event) for entry in entries])
    if len(body) <= PIECE_BYTES or len(entries) == 1:
        return [(entries[0].number, len(entries), body)]
    half = len(entries) // 2
    return [*_pieces(entries[:half]), *_pieces(entries[half:])]


def _written(value: Any) -> bytes:
    """Agents are other people's code: what is no JSON in what one has made becomes text, so that it
    cannot keep the tasks of all others from being stored."""
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _encode(_plain(value))


def _plain(value: Any, within: tuple[int, ...] = ()) -> Any:
    if id(value) not in within and len(within) < MAX_DEPTH:
        within = (*within, id(value))
        if is_dataclass(value):
            value = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, Mapping):
            return {_text(key): _plain(each, within) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [_plain(each, within) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):  # of a kind of its own, perhaps, which is no JSON
        return int(value) if isinstance(value, int) else float(value)
    return _text(value)


def _text(value: Any) -> str:
    text = str(value) if isinstance(value, str | int | float) else f"<{type(value).__name__}>"
    return text.encode("utf-8", "replace").decode()


def _entries(piece: bytes) -> list[Entry]:
    return [Entry(*entry) for entry in _decode_log(piece)]


def _behind(entries: list[Entry], after: int) -> list[Entry]:
    """Without those that share a piece with the first that is wanted."""
    return [entry for entry in entries if entry.number > after] if after else entries


class SqliteTaskStore:
    """A `TaskStore` in `tasks.db` of the hub's home. Used by the thread of the loop alone."""

    def __init__(self, home: Path, *, durable: bool = False) -> None:
        self._path = home / DATABASE
        busy = LOOP_BUSY_SECONDS
        self._db = open_store(self._path, MIGRATIONS, durable=durable, busy_seconds=busy)
        self._writer = SqliteWriter(self._db, self._path, busy)
        self._gone: list[int] = []
        """Deleted, and not yet so in the database."""
        self.statements = 0

    def load(self) -> list[StoredTask]:
        return [
            StoredTask(
                key, id, Principal(kind, owner, org), state, created, updated,
                self._read(_decode, about), int(count), int(size),
            )
            for key, id, kind, owner, org, state, created, updated, about, count, size
            in self._rows(_LOAD)
        ]  # fmt: skip

    def load_entries(self, key: int, after: int = 0, most: int | None = None) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        try:
            for (body,) in self._db.execute(_ENTRIES, (key, after)):
                found += self._read(_entries, body)
                size += len(body)
                if most is not None and size >= most:
                    break
        except sqlite3.Error as error:
            raise self._damaged(error) from error
        return _behind(found, after)

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def _read(self, read: Callable[[bytes], T], body: bytes) -> T:
        try:
            return read(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> ConfigError:
        return ConfigError(
            f'"{self._path.name}" cannot be read ({error}); {describe_remedy(self._path)}'
        )

    def save(self, changes: Sequence[TaskChange]) -> list[tuple[int, int]]:
        db = self._db
        saved: list[tuple[int, int]] = []
        written = [(change, _written(change.about), _pieces(change.entries)) for change in changes]
        try:
            with self._writer.transaction():
                self.statements += 2
                if self._gone:
                    self._delete()
                for change, about, pieces in written:
                    saved.append(self._change(db, change, about, pieces))
        except (sqlite3.Error, OverflowError) as error:
            raise StorageFailed(
                f"the task cannot be stored ({error}); see {self._path.name}"
            ) from error
        self._gone.clear()
        return saved

    def _change(
        self,
        db: sqlite3.Connection,
        change: TaskChange,
        about: bytes,
        pieces: Sequence[tuple[int, int, bytes]],
    ) -> tuple[int, int]:
        key = change.key
        if key:
            db.execute(_UPDATE, (change.state, change.updated, about, key))
        else:
            owner = change.owner
            row = (
                owner.kind, owner.id, owner.org, change.id, change.state, change.created,
                change.updated, about,
            )  # fmt: skip
            key = db.execute(_INSERT, row).lastrowid or 0
        self.statements += 1
        for piece in pieces:
            db.execute(_LOG, (key, *piece))
            self.statements += 1
        return key, sum(len(body) for _, _, body in pieces)

    def delete(self, key: int) -> None:
        self._gone.append(key)

    def _delete(self) -> None:
        keys = [(key,) for key in self._gone]
        for table, column in (("tasks", "key"), ("task_log", "task"), ("pushes", "task")):
            self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", keys)
            self.statements += len(keys)

    def load_pushes(self) -> list[StoredPush]:
        rows = self._rows("SELECT task, id, config, cursor, attempts, next_at, dead FROM pushes")
        return [
            StoredPush(task, id, self._read(_decode, config), cursor, attempts, next_at, dead)
            for task, id, config, cursor, attempts, next_at, dead in rows
        ]

    def save_push(self, push: StoredPush) -> None:
        row = (
            push.task, push.id, _encode(push.config), push.cursor, push.attempts, push.next_at,
            push.dead,
        )  # fmt: skip
        self._one(_PUSH, row)

    def delete_push(self, task: int, id: str) -> None:
        self._one("DELETE FROM pushes WHERE task = ? AND id = ?", (task, id))

    def _one(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            with self._writer.transaction():
                self._db.execute(statement, values)
            self.statements += 1
        except (sqlite3.Error, OverflowError) as error:
            raise StorageFailed(f"it cannot be stored ({error}); see {self._path.name}") from error

    def close(self) -> None:
        try:
            if self._gone:
                self.save(())
        finally:
            self._db.close()


class MemoryTaskStore:
    """A `TaskStore` that forgets with the hub."""

    def __init__(self) -> None:
        self._last = 0
        self._logs: dict[int, list[tuple[int, int, bytes]]] = {}

    def load(self) -> list[StoredTask]:
        return []

    def load_entries(self, key: int, after: int = 0, most: int | None = None) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for first, count, body in self._logs.get(key, ()):
            if first + count - 1 > after:
                found += _entries(body)
                size += len(body)
                if most is not None and size >= most:
                    break
        return _behind(found, after)

    def save(self, changes: Sequence[TaskChange]) -> list[tuple[int, int]]:
        saved = []
        for change in changes:
            key = change.key
            if not key:
                self._last = key = self._last + 1
            pieces = _pieces(change.entries)
            if pieces:
                self._logs.setdefault(key, []).extend(pieces)
            saved.append((key, sum(len(body) for _, _, body in pieces)))
        return saved

    def delete(self, key: int) -> None:
        self._logs.pop(key, None)

    def load_pushes(self) -> list[StoredPush]:
        return []

    def save_push(self, push: StoredPush) -> None:
        """Whoever pushes knows it already."""

    def delete_push(self, task: int, id: str) -> None: ...

    def close(self) -> None:
        self._logs.clear()
