"""Opens SQLite files the one way the hub uses them, and brings their tables forward.

Knows no table: each store hands in its migrations. SQLite's own errors become `ConfigError` here,
because a file that cannot be opened is something for the operator to mend.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from dragoman.core.errors import ConfigError

BUSY_SECONDS = 2.0


def open_store(
    path: Path,
    migrations: Sequence[str],
    *,
    durable: bool = False,
    busy_seconds: float = BUSY_SECONDS,
) -> sqlite3.Connection:
    """The database at `path`, made if there is none, its tables brought forward by `migrations`.

    A commit survives kill -9; with `durable` it survives a loss of power too, and costs an fsync.
    Transactions are begun and ended by hand.
    """
    db: sqlite3.Connection | None = None
    try:
        _keep_private(path)
        db = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)
        _check_version(db, path, len(migrations))
        if db.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            raise ConfigError(f'"{path}" must be on a local file system: SQLite cannot log there')
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        db.execute("PRAGMA foreign_keys=ON")
        db.execute("PRAGMA trusted_schema=OFF")
        _migrate(db, migrations)
    except (OSError, sqlite3.Error) as error:
        if db is not None:
            db.close()
        raise ConfigError(_why(path, error)) from error
    except ConfigError:
        if db is not None:
            db.close()
        raise
    return db


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
        raise ConfigError(_why(path, error)) from error
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
                for statement in _statements(migrations[version]):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version={version + 1}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        if version >= len(migrations):
            return


def _statements(script: str) -> Iterator[str]:
    """One at a time, because `executescript` commits whatever transaction is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement


def _why(path: Path, error: Exception) -> str:
    if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return (
            f'"{path}" is damaged or is no database ({error}); restore it from a backup, '
            "or move it away and start again"
        )
    if not path.parent.is_dir():
        return f'"{path}" cannot be opened: there is no directory "{path.parent}"'
    return f'"{path}" cannot be opened ({error}); check who may write there and the space left'
