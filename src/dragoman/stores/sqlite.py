"""Opens SQLite files the one way the hub uses them, and brings their tables forward.

Knows no table: each store hands in its migrations. SQLite's own errors become `ConfigError` here,
because a file that cannot be opened is something for the operator to mend.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType

from dragoman.core.errors import ConfigError

BUSY_SECONDS = 2.0
LOOP_BUSY_SECONDS = 0.02
"""How long a connection of the event loop waits for a database that is locked: another connection
of the hub has it for less. For another program nobody waits: see `Writer`."""
CHECK_SECONDS = 0.05
"""How often a database that is written to is looked for in its place."""


def open_store(
    path: Path,
    migrations: Sequence[str],
    *,
    durable: bool = False,
    busy_seconds: float = BUSY_SECONDS,
    functions: Mapping[str, Callable[[str], str]] | None = None,
) -> sqlite3.Connection:
    """The database at `path`, made if there is none, its tables brought forward by `migrations`,
    which may use `functions` of one text.

    A commit survives kill -9; with `durable` it survives a loss of power too, and costs an fsync.
    Transactions are begun and ended by hand. `busy_seconds` is how long the connection waits for a
    lock once it is open; to open it waits for BUSY_SECONDS.
    """
    db: sqlite3.Connection | None = None
    try:
        _keep_private(path)
        db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        _check_version(db, path, len(migrations))
        if db.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            raise ConfigError(f'"{path}" must be on a local file system: SQLite cannot log there')
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        db.execute("PRAGMA foreign_keys=ON")
        db.execute("PRAGMA trusted_schema=OFF")
        for name, function in (functions or {}).items():
            db.create_function(name, 1, function, deterministic=True)
        _migrate(db, migrations)
        _set_busy(db, busy_seconds)
    except (OSError, sqlite3.Error) as error:
        if db is not None:
            db.close()
        raise ConfigError(_describe_error(path, error)) from error
    except ConfigError:
        if db is not None:
            db.close()
        raise
    return db


def _set_busy(db: sqlite3.Connection, seconds: float) -> None:
    db.execute(f"PRAGMA busy_timeout={int(seconds * 1000)}")


class WatchedFile:
    """The file of a database that is open. A file that was removed takes writes for ever, and
    nobody can read them."""

    def __init__(self, path: Path, every_seconds: float = 0.0) -> None:
        """A file that was in its place is not looked at again for `every_seconds`."""
        self._path = str(path)
        self._inode = os.stat(path).st_ino
        self._every = every_seconds
        self._next = 0.0

    def check(self) -> None:
        """Raises `sqlite3.OperationalError` if it was removed or replaced. One system call."""
        now = time.monotonic()
        if now < self._next:
            return
        try:
            if os.stat(self._path).st_ino == self._inode:
                self._next = now + self._every
                return
            what = "was replaced"
        except OSError:
            what = "is gone"
        name = os.path.basename(self._path)
        raise sqlite3.OperationalError(
            f"{name} {what} while the hub runs; put it back, or restart the hub"
        )


class SqliteWriter:
    """Write transactions of a connection that the event loop uses: `with writer.transaction():` is
    all or nothing and raises `sqlite3.Error`. Once it has waited in vain for another program that
    holds the database, it does not wait again until a write succeeds."""

    def __init__(self, db: sqlite3.Connection, path: Path, busy_seconds: float) -> None:
        self._db = db
        # What is written just after a file is deleted is lost like all that was written before.
        self._file = WatchedFile(path, CHECK_SECONDS)
        self._busy_seconds = busy_seconds
        self._waits = True

    def transaction(self) -> SqliteWriter:
        # A class and no generator: a task that is stored has several transactions.
        return self

    def __enter__(self) -> None:
        try:
            self._file.check()
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            self._wait(False)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error:
                self._roll_back()
                self._wait(False)
                raise
            self._wait(True)
        else:
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                self._wait(False)

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # then there is none any more

    def _wait(self, waits: bool) -> None:
        if waits is not self._waits:
            self._waits = waits
            _set_busy(self._db, self._busy_seconds if waits else 0)


def open_to_read(path: Path, known: int) -> sqlite3.Connection:
    """The database at `path`, of version `known` or older, which is never changed. For another
    process than the one that writes, or when none does."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            db.execute("PRAGMA trusted_schema=OFF")
            _check_version(db, path, known)
        except (sqlite3.Error, ConfigError):
            db.close()
            raise
    except sqlite3.Error as error:
        raise ConfigError(_describe_error(path, error)) from error
    return db


def _keep_private(path: Path) -> None:
    """Readable by nobody else; SQLite gives the files beside it the same mode.

    A file that exists is changed by name and never opened here: closing any descriptor of a file
    drops all locks that this process holds on it, SQLite's own included.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _check_version(db: sqlite3.Connection, path: Path, known: int) -> None:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version > known:
        raise ConfigError(
            f'"{path}" was written by a newer dragoman: its version is {version}, this one knows '
            f"{known}; nothing was changed: install the newer dragoman, or use another home"
        )


def _migrate(db: sqlite3.Connection, migrations: Sequence[str]) -> None:
    while True:
        # Asked again under the write lock: another process may have been first.
        db.execute("BEGIN IMMEDIATE")
        try:
            version: int = db.execute("PRAGMA user_version").fetchone()[0]
            if version < len(migrations):
                for statement in _split_statements(migrations[version]):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version={version + 1}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        if version >= len(migrations):
            return


def _split_statements(script: str) -> Iterator[str]:
    """One at a time, because `executescript` commits whatever transaction is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement


def is_damage(error: Exception) -> bool:
    name: str = getattr(error, "sqlite_errorname", "")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def is_locked(error: Exception) -> bool:
    """Whether another connection holds the database, and nothing of the transaction was begun."""
    name: str = getattr(error, "sqlite_errorname", "")
    return name.startswith("SQLITE_BUSY")


def find_damage(path: Path, seconds: float) -> str:
    """What is wrong with the database, found without changing it; empty if nothing was found within
    `seconds`."""
    until = time.monotonic() + seconds
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            found = db.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error) if is_damage(error) else ""
    return "" if found is None or found[0] == "ok" else str(found[0])


def describe_remedy(path: Path) -> str:
    """What can be done about a database that cannot be read."""
    if path.name == "dispatches.db":
        return "restore it from a backup, or move it away: the audit has what was in it"
    name = "keys" if path.name == "hub.db" else path.stem
    return (
        "restore it from a backup, or move it away and go on without what was in it: "
        f"dragoman stores accept-loss {name}"
    )


def _describe_error(path: Path, error: Exception) -> str:
    if is_damage(error):
        return f'"{path}" is damaged or is no database ({error}); {describe_remedy(path)}'
    if not path.parent.is_dir():
        return f'"{path}" cannot be opened: there is no directory "{path.parent}"'
    return f'"{path}" cannot be opened ({error}); check who may write there and the space left'
