"""Opens SQLite databases with the hub's settings and runs migrations.

Knows no table: each store passes its migrations. SQLite's errors become `ConfigError` here, because
an operator must fix a database that cannot be opened.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import NoneType, TracebackType

from dragoman.core.errors import ConfigError

# Values of other types than str, int and float pass through an adapter. Without a registered one,
# `sqlite3` looks for one in each value and fails, which costs more than storing a row.
sqlite3.register_adapter(bytes, bytes.__bytes__)
sqlite3.register_adapter(NoneType, lambda none: none)

PAGE_BYTES = 4096
"""SQLite's default."""
BUSY_SECONDS = 2.0
LOOP_BUSY_SECONDS = 0.02
"""How long a connection of the event loop waits for a lock: the hub's other connections hold it for
less. The loop does not wait for other programs: see `SqliteWriter`."""
CHECK_SECONDS = 0.05
"""How often a writer checks that its database file is still in place."""


def open_store(
    path: Path,
    migrations: Sequence[str],
    *,
    durable: bool = False,
    busy_seconds: float = BUSY_SECONDS,
    functions: Mapping[str, Callable[[str], str]] | None = None,
    page_bytes: int = PAGE_BYTES,
) -> sqlite3.Connection:
    """Opens or creates the database at `path` and runs `migrations`, which may use `functions` of
    one text. A database that exists keeps the size of its pages.

    A commit survives kill -9; with `durable` also a power failure, at the cost of an fsync.
    Transactions are explicit. `busy_seconds` is how long the open connection waits for a lock;
    opening waits for BUSY_SECONDS.
    """
    db: sqlite3.Connection | None = None
    try:
        _keep_private(path)
        db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        db.execute(f"PRAGMA page_size={page_bytes}")
        _check_version(db, path, len(migrations))
        if db.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            raise ConfigError(
                f'"{path}" must be on a local file system: SQLite cannot use WAL there'
            )
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        db.execute("PRAGMA foreign_keys=ON")
        db.execute("PRAGMA trusted_schema=OFF")
        for name, function in (functions or {}).items():
            db.create_function(name, 1, function, deterministic=True)
        _migrate(db, migrations)
        _set_busy(db, busy_seconds)
    except (OSError, sqlite3.Error, ConfigError) as error:
        if db is not None:
            db.close()
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(_describe_error(path, error)) from error
    return db


def _set_busy(db: sqlite3.Connection, seconds: float) -> None:
    db.execute(f"PRAGMA busy_timeout={int(seconds * 1000)}")


class WatchedFile:
    """Detects that the file of an open database was removed or replaced: such a file still accepts
    writes, which are lost."""

    def __init__(self, path: Path, every_seconds: float = 0.0) -> None:
        """After a successful check, the file is not checked again for `every_seconds`."""
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
            what = "was removed"
        name = os.path.basename(self._path)
        raise sqlite3.OperationalError(
            f"{name} {what} while the hub runs; put it back, or restart the hub"
        )


class SqliteWriter:
    """Write transactions of a connection of the event loop: `with writer.transaction():` is atomic
    and raises `sqlite3.Error`. After waiting in vain for another program's lock, it does not wait
    again until a write succeeds."""

    def __init__(self, db: sqlite3.Connection, path: Path, busy_seconds: float) -> None:
        self._db = db
        # Writes shortly after a file was deleted are lost like everything in it.
        self._file = WatchedFile(path, CHECK_SECONDS)
        self._busy_seconds = busy_seconds
        self._waits = True

    def transaction(self) -> SqliteWriter:
        # A class, not a generator: storing a task takes several transactions.
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
            pass  # the transaction is already gone

    def _wait(self, waits: bool) -> None:
        if waits is not self._waits:
            self._waits = waits
            _set_busy(self._db, self._busy_seconds if waits else 0)


def connect(path: Path, mode: str, seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Opens an existing database; `mode` is `ro` or `rw`. Waits `seconds` for a lock."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=seconds, isolation_level=None)


@contextmanager
def transact(db: sqlite3.Connection) -> Iterator[None]:
    """Begins a write transaction; commits it, or rolls it back if the block raises."""
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def open_to_read(path: Path, known: int) -> sqlite3.Connection:
    """Opens the database at `path`, of version `known` or older, for reading only."""
    try:
        db = connect(path, "ro")
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
    """Makes the file private; SQLite gives its companion files the same mode.

    An existing file is changed by name and never opened: closing any descriptor of a file drops all
    locks that this process holds on it, including SQLite's.
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
            f'"{path}" was written by a newer dragoman: its version is {version}, this one '
            f"supports up to {known}; nothing was changed: install the newer dragoman, or use "
            "another home"
        )


def _migrate(db: sqlite3.Connection, migrations: Sequence[str]) -> None:
    while db.execute("PRAGMA user_version").fetchone()[0] < len(migrations):
        with transact(db):
            # Checked again under the write lock: another process may have been faster.
            version: int = db.execute("PRAGMA user_version").fetchone()[0]
            if version < len(migrations):
                for statement in split_statements(migrations[version]):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version={version + 1}")


def split_statements(script: str) -> Iterator[str]:
    """Splits a script, because `executescript` would commit the open transaction."""
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
    """Whether another connection has locked the database; nothing was written."""
    name: str = getattr(error, "sqlite_errorname", "")
    return name.startswith("SQLITE_BUSY")


def find_damage(path: Path, seconds: float) -> str:
    """Describes damage of the database, without changing it; empty if none was found within
    `seconds`. Looks for damaged pages first, then whether the indexes have every row."""
    until = time.monotonic() + seconds
    try:
        with closing(connect(path, "ro", 5.0)) as db:
            db.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            for check in ("quick_check", "integrity_check"):
                row = db.execute(f"PRAGMA {check}(1)").fetchone()
                if row is not None and row[0] != "ok":
                    return str(row[0])
    except sqlite3.Error as error:
        return str(error) if is_damage(error) else ""
    return ""


def describe_remedy(path: Path) -> str:
    """Describes what to do about a damaged database."""
    if path.name == "dispatches.db":
        return "restore it from a backup, or move it away: the audit log contains the same calls"
    if path.name == "routing.db":
        return "restore it from a backup, or move it away: the router learns again"
    if path.name == "runs.db":
        return "restore it from a backup, or move it away: unfinished workflow runs are lost"
    if path.name == "approvals.db":
        return "restore it from a backup, or move it away: what waits for approval is asked again"
    if path.name == "credentials.db":
        return "restore it from a backup, or move it away and log in again everywhere"
    name = "keys" if path.name == "hub.db" else path.stem
    return (
        "restore it from a backup, or move it away and continue without its contents: "
        f"dragoman stores accept-loss {name}"
    )


def _describe_error(path: Path, error: Exception) -> str:
    if is_damage(error):
        return f'"{path}" is damaged or not a database ({error}); {describe_remedy(path)}'
    if not path.parent.is_dir():
        return f'"{path}" cannot be opened: there is no directory "{path.parent}"'
    return f'"{path}" cannot be opened ({error}); check the permissions and the free space'
