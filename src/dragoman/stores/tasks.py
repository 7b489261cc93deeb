"""Stores tasks in the hub's home, or in memory: headers, and logs in pieces.

The entries of one task that are saved together are one piece: one row, unless they are long. So the
statements of a save grow with the number of tasks, not of events. Does not know what entries mean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from time import time
from typing import Any, TypeVar

import msgspec

from dragoman.core.cluster import MARK_CHARS
from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.ports import EndedTask, StoredPush, StoredTask, TaskChange
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct, asdict
from dragoman.core.task_registry import VolatileTaskStore
from dragoman.core.tasks import ENDS, Entry
from dragoman.stores.database import (
    POSTGRES,
    DataError,
    Error,
    FencedError,
    IntegrityError,
    OperationalError,
    Statement,
    StorePlace,
    StoreTables,
    build_write_error,
    open_database,
)
from dragoman.stores.sqlite import describe_remedy

log = logging.getLogger(__name__)

DATABASE = "tasks.db"
MAX_DEPTH = 100
PIECE_BYTES = 256 * 1024
"""A longer piece has one entry, so that a long log can be read bit by bit."""

T = TypeVar("T")
Pieces = list[tuple[int, int, bytes]]
"""For each piece: the number of its first entry, the number of entries, the encoded entries."""

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
    # The hub that owns the task, where several share the database.
    """
ALTER TABLE tasks ADD COLUMN hub TEXT NOT NULL DEFAULT '';
CREATE INDEX tasks_by_id ON tasks (id) WHERE hub != '';
CREATE INDEX tasks_by_hub ON tasks (hub) WHERE hub != '';
""",
    # The idempotency keys of messages, where several hubs share the database.
    """
CREATE TABLE task_keys (
    kind TEXT NOT NULL, owner TEXT NOT NULL, org TEXT NOT NULL,
    key TEXT NOT NULL, id TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (kind, owner, org, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_keys_by_time ON task_keys (at);
""",
)
TABLES = StoreTables("tasks", DATABASE, MIGRATIONS)
KEY_SECONDS = 8 * 86_400.0
"""How long an idempotency key is known to other hubs."""
CLAIM_SECONDS = 10.0
"""How long a task may take to be stored after its key was claimed."""
TAKEN_AT_ONCE, TAKEN_BYTES = 100, 4 * 1024 * 1024
"""Tasks of another hub that are taken over in one transaction, and the bytes of their logs."""
DAMAGED = "damaged"
"""Owns tasks of hubs that have ended and that could not be read."""
LOAD_SECONDS = 60.0
"""How long a server may take to load the tasks at the start."""

_INSERT = (
    "INSERT INTO tasks (kind, owner, org, id, state, created, updated, about)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_OWNED = (
    "INSERT INTO tasks (kind, owner, org, id, state, created, updated, about, hub)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = "UPDATE tasks SET state = ?, updated = ?, about = ? WHERE key = ?"
_LOG = "INSERT INTO task_log (task, first, count, body) VALUES (?, ?, ?, ?)"
_LOG_OF_NEW = "INSERT INTO task_log (task, first, count, body) VALUES (lastval(), ?, ?, ?)"
"""On PostgreSQL: of the task that was inserted before."""
_STILL_OWNED = (
    "SELECT 1 / CASE WHEN count(*) = ? THEN 1 ELSE 0 END FROM "
    "(SELECT key FROM tasks WHERE key = ANY(?) AND hub = ? ORDER BY key FOR UPDATE) AS held"
)
"""Fails, and with it the transaction, if other hubs have taken over some of the tasks. Until the
transaction ends, they cannot take over the others."""
_NOT_TAKEN = (
    "SELECT 1 / CASE WHEN count(*) = 0 THEN 1 ELSE 0 END FROM "
    "(SELECT key FROM tasks WHERE key = ? AND hub != ? FOR UPDATE) AS taken"
)
"""Fails if another hub owns the task; not if there is none any more."""
_TABLES = (("tasks", "key"), ("task_log", "task"), ("pushes", "task"))
_LOAD = """
SELECT t.key, t.id, t.kind, t.owner, t.org, t.state, t.created, t.updated, t.about,
       coalesce(sum(l.count), 0), coalesce(sum(length(l.body)), 0)
FROM tasks t LEFT JOIN task_log l ON l.task = t.key {} GROUP BY t.key ORDER BY t.key
"""
_ENTRIES = "SELECT body FROM task_log WHERE task = ? AND first + count - 1 > ? ORDER BY first"
_PUSH = (
    "INSERT INTO pushes (task, id, config, cursor, attempts, next_at, dead)"
    " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (task, id) DO UPDATE SET config = excluded.config,"
    " cursor = excluded.cursor, attempts = excluded.attempts, next_at = excluded.next_at,"
    " dead = excluded.dead"
)
_CLAIM = f"""
INSERT INTO task_keys AS held (kind, owner, org, key, id, at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, owner, org, key) DO UPDATE SET id = excluded.id, at = excluded.at
WHERE (held.at < ? OR left(held.id, {MARK_CHARS}) = ? OR EXISTS (
    SELECT 1 FROM hubs WHERE hubs.id = left(held.id, {MARK_CHARS})
    AND (heir IS NOT NULL OR state IN ('stopped', 'dead'))
)) AND NOT EXISTS (
    SELECT 1 FROM tasks t
    WHERE t.id = held.id AND t.kind = held.kind AND t.owner = held.owner AND t.org = held.org
) RETURNING id
"""
"""A claim without a task is void when its hub has ended, which can store none any more; when this
hub has made it, which would know of the task; or after a while."""
_CLAIMED = "SELECT id FROM task_keys WHERE kind = ? AND owner = ? AND org = ? AND key = ?"
_PUSHES = "SELECT task, id, config, cursor, attempts, next_at, dead FROM pushes"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_log = msgspec.json.Decoder(list[tuple[int, float, dict[str, Any]]]).decode


def _build_pieces(entries: Sequence[Entry]) -> Pieces:
    """Encodes each entry once, whatever its size: encoding a long text takes milliseconds."""
    pieces: Pieces = []
    bodies: list[bytes] = []
    size = 0
    for number, entry in enumerate(entries):
        body = encode_safely((entry.number, entry.at, entry.event))
        if bodies and size + len(body) + 2 > PIECE_BYTES:
            pieces.append(_build_piece(entries[number - len(bodies)], bodies))
            bodies, size = [], 0
        bodies.append(body)
        size += len(body) + 1
    if bodies:
        pieces.append(_build_piece(entries[len(entries) - len(bodies)], bodies))
    return pieces


def _build_piece(first: Entry, bodies: list[bytes]) -> tuple[int, int, bytes]:
    return first.number, len(bodies), b"[%b]" % b",".join(bodies)


def encode_safely(value: Any) -> bytes:
    """What is not JSON becomes text: agents are other people's code, and what one of them makes
    must not keep the tasks of all others from being stored."""
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _encode(_make_plain(value))


def _make_plain(value: Any, within: tuple[int, ...] = ()) -> Any:
    if id(value) not in within and len(within) < MAX_DEPTH:
        within = (*within, id(value))
        if is_dataclass(value):
            value = {field.name: getattr(value, field.name) for field in fields(value)}
        elif isinstance(value, Struct):
            value = asdict(value)
        if isinstance(value, Mapping):
            return {_render_text(key): _make_plain(each, within) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [_make_plain(each, within) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):  # a subclass, perhaps, that does not encode
        return int(value) if isinstance(value, int) else float(value)
    return _render_text(value)


def _render_text(value: Any) -> str:
    text = str(value) if isinstance(value, str | int | float) else f"<{type(value).__name__}>"
    return text.encode("utf-8", "replace").decode()


def _identify(change: TaskChange) -> tuple[Any, ...]:
    owner = change.owner
    return change.id, change.created, owner.kind, owner.id, owner.org


def _build_removal(
    encoded: Sequence[tuple[TaskChange, bytes, Pieces]], doubtful: Iterable[tuple[Any, ...]]
) -> Iterator[Statement]:
    """Removes what earlier attempts to save may have stored: entries of the same changes, and new
    tasks, also those that are not saved again."""
    for change, _, pieces in encoded:
        if change.key and pieces:
            order = "DELETE FROM task_log WHERE task = ? AND first >= ?"
            yield order, (change.key, pieces[0][0])
    same = "id = ? AND created = ? AND kind = ? AND owner = ? AND org = ?"
    for values in doubtful:
        yield f"DELETE FROM task_log WHERE task IN (SELECT key FROM tasks WHERE {same})", values
        yield f"DELETE FROM tasks WHERE {same}", values


def _decode_pieces(pieces: Iterable[bytes], after: int, most: int | None) -> list[Entry]:
    """The entries after that number, of as many pieces as it takes to reach `most` bytes."""
    found: list[Entry] = []
    size = 0
    for body in pieces:
        found += [Entry(*entry) for entry in _decode_log(body)]
        size += len(body)
        if most is not None and size >= most:
            break
    return [entry for entry in found if entry.number > after] if after else found


def _stored_from_row(row: Sequence[Any]) -> StoredTask:
    key, id, kind, owner, org, state, created, updated, about, count, size = row
    return StoredTask(
        key, id, Principal(kind, owner, org), state, created, updated, _decode(about), int(count),
        int(size),
    )  # fmt: skip


def _push_from_row(row: Sequence[Any]) -> StoredPush:
    task, id, config, *state = row
    return StoredPush(task, id, _decode(config), *state)


def _decode_safely(decode: Callable[[Any], T], value: Any) -> T | None:
    """None if the value is damaged."""
    try:
        return decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
        return None


class DatabaseTaskStore:
    """A `TaskStore` in `tasks.db` of the hub's home, or on a server. Only the thread of the event
    loop uses it."""

    def __init__(self, place: StorePlace, *, durable: bool = False, hub: str = "") -> None:
        """`hub` owns the tasks that are stored, where several hubs share the database: others do
        not load them, and nothing is stored of tasks that others have taken over."""
        self._base = open_database(place, TABLES, durable=durable)
        self._server = None if isinstance(place, Path) else place
        self._db, self._writer = self._base.db, self._base.writer
        self._insert = _INSERT_OWNED if hub else _INSERT
        self._unsure: set[int] = set()
        """The tasks that were about to be taken over when the database failed."""
        self._doubtful: set[tuple[Any, ...]] = set()
        """New tasks that a server may have stored, although its answer was lost: no client has
        heard of them."""
        self.rename_hub(hub)
        self._deleted: list[int] = []
        """Deleted, but still in the database."""
        self._is_unsure = False
        """Whether a server may have stored the last save, although its answer was lost."""
        self.statements = 0

    def check(self) -> None:
        if self._server is not None and (why := self._server.problem):
            raise StorageFailed(f'"{self._base.name}" is not available: {why}')

    def rename_hub(self, hub: str) -> None:
        self._hub = hub
        self._more = (hub,) if hub else ()
        self._unsure.clear()
        self._doubtful.clear()  # they are those of its heir

    def load(self) -> list[StoredTask]:
        """Loads the tasks of this hub, which takes those of no hub."""
        if self._hub:
            self._take_unowned()
        return self._load()

    def find_hub(self, owner: Principal, id: str) -> str | None:
        """Finds the hub that owns a task; None if there is no such task."""
        rows = self._read(
            lambda: self._db.execute(
                "SELECT hub FROM tasks WHERE id = ? AND hub != '' AND kind = ? AND owner = ? "
                "AND org = ? ORDER BY key DESC LIMIT 1",
                (id, owner.kind, owner.id, owner.org),
            ).fetchall()
        )
        return str(rows[0][0]) if rows else None

    def load_ended(self, hub: str) -> list[EndedTask]:
        """With those that an attempt before has taken over, if its answer was lost."""
        query = "SELECT key FROM tasks WHERE hub = ? ORDER BY updated, key LIMIT ?"
        read = self._db.execute
        keys = self._read(lambda: read(query, (hub, TAKEN_AT_ONCE)).fetchall())
        wanted = [*(key for (key,) in keys), *self._unsure]
        where = "WHERE t.key = ANY(?) AND t.hub IN (?, ?)"
        statement, values = _LOAD.format(where), (wanted, hub, self._hub)
        rows = self._read(lambda: read(statement, values).fetchall()) if wanted else []
        found: list[tuple[int, str, StoredTask | None]] = []
        open_keys: list[int] = []
        size = 0
        for row in sorted(rows, key=lambda row: (row[7], row[0])):
            key, id, state = row[0], row[1], row[5]
            if state not in ENDS:
                size += int(row[10])
                if open_keys and size > TAKEN_BYTES:
                    break  # the others follow
                open_keys.append(key)
            found.append((key, id, _decode_safely(_stored_from_row, row)))
        pieces: dict[int, list[bytes]] = {}
        logs = "SELECT task, body FROM task_log WHERE task = ANY(?) ORDER BY task, first"
        if open_keys:
            for key, body in self._read(lambda: read(logs, (open_keys,)).fetchall()):
                pieces.setdefault(key, []).append(body)
        ended = []
        for key, id, stored in found:
            entries = _decode_safely(
                lambda bodies: _decode_pieces(bodies, 0, None), pieces.get(key, ())
            )
            ended.append(EndedTask(key, id, stored if entries is not None else None, entries or ()))
        return ended

    def take_over(self, hub: str, keys: Sequence[int], damaged: Sequence[int]) -> set[int]:
        self._unsure.update(keys)
        move = "UPDATE tasks SET hub = ? WHERE key = ANY(?) AND hub IN (?, ?) RETURNING key"
        try:
            with self._writer.transaction():
                taken = self._db.execute(move, (self._hub, list(keys), hub, self._hub)).fetchall()
                if damaged:
                    self._db.execute(move, (DAMAGED, list(damaged), hub, self._hub)).fetchall()
        except Error as error:
            raise self._build_takeover_error(error) from error
        self._unsure.difference_update(keys, damaged)
        return {key for (key,) in taken}

    def find_left(self, hubs: Sequence[str]) -> set[str]:
        query = "SELECT DISTINCT hub FROM tasks WHERE hub != '' AND hub = ANY(?)"
        try:
            return {str(hub) for (hub,) in self._db.execute(query, (list(hubs),)).fetchall()}
        except Error as error:
            raise StorageFailed(f"{self._name} cannot be read ({error})") from error

    def load_elsewhere(self, owner: Principal) -> list[StoredTask]:
        if not self._hub:
            return []
        where = "WHERE t.hub NOT IN (?, ?) AND t.kind = ? AND t.owner = ? AND t.org = ?"
        values = (self._hub, DAMAGED, owner.kind, owner.id, owner.org)
        return self._load_where(where, values)

    def claim_key(self, owner: Principal, key: str, id: str) -> str:
        if not self._hub:
            return id
        who, now = (owner.kind, owner.id, owner.org), time()
        try:
            with self._writer.transaction():
                for statement in _build_removal((), self._doubtful):
                    self._db.execute(*statement)
                self._db.execute("DELETE FROM task_keys WHERE at < ?", (now - KEY_SECONDS,))
                # A claim that is being made elsewhere has no task yet, for a moment.
                rows = self._db.execute(
                    _CLAIM, (*who, key, id, now, now - CLAIM_SECONDS, self._hub)
                ).fetchall()
                if rows:
                    return id
                held = self._db.execute(_CLAIMED, (*who, key)).fetchone()
        except Error as error:
            raise self._build_error(error) from error
        return str(held[0]) if held else id

    def _take_unowned(self) -> None:
        try:
            with self._writer.transaction():
                self._db.execute("UPDATE tasks SET hub = ? WHERE hub = ''", (self._hub,))
        except Error as error:
            raise self._build_takeover_error(error) from error

    def _build_error(self, error: Exception) -> StorageFailed:
        return build_write_error(error, f"the task cannot be stored ({error}); see {self._name}")

    def _build_takeover_error(self, error: Exception) -> StorageFailed:
        return build_write_error(
            error, f"the tasks of another hub cannot be taken over ({error}); see {self._name}"
        )

    def _load(self) -> list[StoredTask]:
        where = "WHERE t.hub = ?" if self._base.engine == POSTGRES else ""
        with self._allow():
            return self._load_where(where, (self._hub,) if where else ())

    def _load_where(self, where: str, values: tuple[Any, ...]) -> list[StoredTask]:
        rows = self._db.execute
        return self._read(
            lambda: [_stored_from_row(row) for row in rows(_LOAD.format(where), values)]
        )

    @contextmanager
    def _allow(self) -> Iterator[None]:
        try:
            with self._base.allow(LOAD_SECONDS):
                yield
        except Error as error:
            raise ConfigError(f'"{self._name}" cannot be read ({error})') from error

    @property
    def _name(self) -> str:
        """For messages: the name of the file, or the address of the server."""
        return DATABASE if self._base.engine != POSTGRES else self._base.name

    def load_entries(self, key: int, after: int = 0, most: int | None = None) -> list[Entry]:
        def read() -> list[Entry]:
            rows = self._db.execute(_ENTRIES, (key, after))
            return _decode_pieces((body for (body,) in rows), after, most)

        return self._read(read)

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            remedy = f"; {describe_remedy(Path(DATABASE))}" if self._name == DATABASE else ""
            raise ConfigError(f'"{self._name}" cannot be read ({error}){remedy}') from error

    def save(self, changes: Sequence[TaskChange]) -> list[tuple[int, int]]:
        encoded = [
            (change, encode_safely(change.about), _build_pieces(change.entries))
            for change in changes
        ]
        try:
            if self._base.engine == POSTGRES:
                return self._save_together(encoded)
            with self._writer.transaction():
                self.statements += 2
                if self._deleted:
                    self._delete()
                saved = [self._change(*one) for one in encoded]
        except (Error, OverflowError) as error:
            raise self._build_error(error) from error
        self._deleted.clear()
        return saved

    def _save_together(
        self, encoded: Sequence[tuple[TaskChange, bytes, Pieces]]
    ) -> list[tuple[int, int]]:
        """Saves in one round trip to the server."""
        statements: list[Statement] = []
        if self._deleted:
            for table, column in _TABLES:
                order = f"DELETE FROM {table} WHERE {column} = ANY(?)"
                statements.append((order, (list(self._deleted),)))
        known = [change.key for change, _, _ in encoded if change.key]
        if self._hub and known:
            statements.append((_STILL_OWNED, (len(set(known)), known, self._hub)))
        if self._is_unsure:
            statements += _build_removal(encoded, self._doubtful)
        inserted: dict[int, int] = {}
        for number, (change, about, pieces) in enumerate(encoded):
            if change.key:
                values = (change.state, change.updated, about, change.key)
                statements.append((_UPDATE, values))
                statements += [(_LOG, (change.key, *piece)) for piece in pieces]
            else:
                inserted[number] = len(statements)
                statements.append((f"{self._insert} RETURNING key", self._build_row(change, about)))
                statements += [(_LOG_OF_NEW, piece) for piece in pieces]
        try:
            done = self._base.run(statements) if statements else []
        except (IntegrityError, FencedError):
            raise
        except DataError as error:
            owned = "another hub has taken the task over" if "zero" in str(error) else error
            raise OperationalError(str(owned)) from error
        except Error:
            self._is_unsure = True
            self._doubtful.update(_identify(change) for change, _, _ in encoded if not change.key)
            raise
        self._is_unsure = False
        self._doubtful.clear()
        self.statements += len(statements) + 2
        self._deleted.clear()
        keys = {number: int(done[at].fetchone()[0]) for number, at in inserted.items()}
        return [
            (change.key or keys[number], sum(len(body) for _, _, body in pieces))
            for number, (change, _, pieces) in enumerate(encoded)
        ]

    def _build_row(self, change: TaskChange, about: bytes) -> tuple[Any, ...]:
        owner = change.owner
        return (
            owner.kind, owner.id, owner.org, change.id, change.state, change.created,
            change.updated, about, *self._more,
        )  # fmt: skip

    def _change(self, change: TaskChange, about: bytes, pieces: Pieces) -> tuple[int, int]:
        db, key = self._db, change.key
        if key:
            db.execute(_UPDATE, (change.state, change.updated, about, key))
        else:
            key = self._base.insert(self._insert, self._build_row(change, about), "key")
        self.statements += 1
        for piece in pieces:
            db.execute(_LOG, (key, *piece))
            self.statements += 1
        return key, sum(len(body) for _, _, body in pieces)

    def delete(self, key: int) -> None:
        self._deleted.append(key)
        self._unsure.discard(key)

    def _delete(self) -> None:
        keys = [(key,) for key in self._deleted]
        for table, column in _TABLES:
            self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", keys)
            self.statements += len(keys)

    def load_pushes(self) -> list[StoredPush]:
        query, values = _PUSHES, list[str]()
        if self._base.engine == POSTGRES:
            query += " WHERE task IN (SELECT key FROM tasks WHERE hub = ?)"
            values.append(self._hub)
        rows = self._read(lambda: self._db.execute(query, values).fetchall())
        if not self._hub:
            return self._read(lambda: [_push_from_row(row) for row in rows])
        # At a takeover, one damaged webhook must not hold up the tasks.
        found = [_decode_safely(_push_from_row, row) for row in rows]
        if damaged := found.count(None):
            log.error("%d webhooks of tasks are damaged and are not used", damaged)
        return [push for push in found if push is not None]

    def save_push(self, push: StoredPush) -> None:
        row = (
            push.task, push.id, _encode(push.config), push.cursor, push.attempts, push.next_at,
            push.dead,
        )  # fmt: skip
        self._execute((_STILL_OWNED, (1, [push.task], self._hub)), (_PUSH, row))

    def delete_push(self, task: int, id: str) -> None:
        delete = "DELETE FROM pushes WHERE task = ? AND id = ?"
        self._execute((_NOT_TAKEN, (task, self._hub)), (delete, (task, id)))

    def _execute(self, check: Statement, statement: Statement) -> None:
        """`check` is executed, too, where several hubs share the database."""
        try:
            self._base.run([check, statement] if self._hub else [statement])
            self.statements += 1
        except DataError as error:
            owned = "another hub has taken the task over" if "zero" in str(error) else error
            raise StorageFailed(f"it cannot be stored ({owned}); see {self._name}") from error
        except (Error, OverflowError) as error:
            text = f"it cannot be stored ({error}); see {self._name}"
            raise build_write_error(error, text) from error

    def close(self) -> None:
        try:
            if self._deleted:
                self.save(())
        finally:
            self._base.close()


class MemoryTaskStore(VolatileTaskStore):
    """A `TaskStore` that ends with the hub; `PushNotifier` keeps the webhooks itself."""

    def __init__(self) -> None:
        self._last = 0
        self._logs: dict[int, Pieces] = {}

    def load_entries(self, key: int, after: int = 0, most: int | None = None) -> list[Entry]:
        logs = self._logs.get(key, ())
        later = (body for first, count, body in logs if first + count - 1 > after)
        return _decode_pieces(later, after, most)

    def save(self, changes: Sequence[TaskChange]) -> list[tuple[int, int]]:
        saved = []
        for change in changes:
            key = change.key
            if not key:
                self._last = key = self._last + 1
            pieces = _build_pieces(change.entries)
            if pieces:
                self._logs.setdefault(key, []).extend(pieces)
            saved.append((key, sum(len(body) for _, _, body in pieces)))
        return saved

    def delete(self, key: int) -> None:
        self._logs.pop(key, None)

    def close(self) -> None:
        self._logs.clear()
