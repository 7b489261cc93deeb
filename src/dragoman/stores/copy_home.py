"""Copies the stores of a home, which are SQLite files, into a PostgreSQL database.

Each store is one transaction, with the counts of its tables compared before the commit: it is
copied whole or not at all. A copy that was interrupted continues with the stores that are missing.
The audit log is not copied here: it stays in the home.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from dragoman.core.errors import ConfigError, InvalidInput
from dragoman.core.tool_identity import fold_id, fold_name
from dragoman.stores.all_tables import ALL_TABLES
from dragoman.stores.database import StoreTables
from dragoman.stores.postgres import PostgresServer
from dragoman.stores.postgres_connections import render_failure
from dragoman.stores.postgres_sql import convert_values
from dragoman.stores.postgres_watch import SCHEMA
from dragoman.stores.sqlite import open_store
from dragoman.stores.store_inventory import KEY_FILE

if TYPE_CHECKING:
    from dragoman.stores.postgres_watch import DeadlineConnection

BATCH = 1_000
"""Rows between two notes of progress."""
STEP_SECONDS = 60.0
"""How long the server may take for one step."""
LEFT_OUT = ("home_store", "memory_words")
"""Tables with another meaning in a file: the record of the home, the index of words."""
_COPIES = (
    f"CREATE TABLE IF NOT EXISTS {SCHEMA}.copies "
    "(store TEXT PRIMARY KEY, source TEXT NOT NULL, rows BIGINT NOT NULL, "
    "at DOUBLE PRECISION NOT NULL)"
)

NoteProgress = Callable[[str, int, int], None]
"""Gets the store, the rows that are copied, and all rows."""


class CopiedStore(NamedTuple):
    store: str
    tables: dict[str, int]
    """The number of rows of each."""
    is_new: bool
    """False if an earlier, interrupted copy had it already."""

    @property
    def rows(self) -> int:
        return sum(self.tables.values())


def copy_home(
    home: Path, server: PostgresServer, note: NoteProgress = lambda store, done, total: None
) -> list[CopiedStore]:
    """Copies every store that the home has. The process must hold the home. Raises `InvalidInput`
    if the database has other data, and `ConfigError` if a store cannot be read or written."""
    source = _identify(home)
    found = [tables for tables in ALL_TABLES if (home / tables.file).exists()]
    for tables in found:
        server.open(tables).close()  # its migrations
    try:
        with closing(server.connect(STEP_SECONDS)) as connection:
            connection.execute("SET statement_timeout = 0; SET lock_timeout = 0")
            connection.execute("SET default_transaction_read_only = off")  # no hub is running
            connection.execute(_COPIES)
            copied = _list_copied(connection, source)
            for tables in found:
                if tables.store not in copied:
                    _refuse_rows(connection, tables, server.place)
            return [_copy_store(home, connection, one, source, copied, note) for one in found]
    except (psycopg.Error, OSError) as error:
        raise ConfigError(
            f'the copy to "{server.place}" has failed: {render_failure(error)}; what was copied '
            "whole stays, and the same command continues"
        ) from None


def has_copied(home: Path, server: PostgresServer) -> bool:
    """Whether the home was copied into the database. Raises `ConfigError`."""
    try:
        source = _identify(home)
    except InvalidInput:
        return False
    find = "SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'copies'"
    try:
        with closing(server.connect()) as connection:
            if connection.execute(find, (SCHEMA,)).fetchone() is None:
                return False
            rows = connection.execute(
                f"SELECT 1 FROM {SCHEMA}.copies WHERE source = $1 LIMIT 1", (source,)
            )
            return rows.fetchone() is not None
    except (psycopg.Error, OSError) as error:
        raise ConfigError(f'"{server.place}" cannot be read: {render_failure(error)}') from None


def count_rows(server: PostgresServer) -> dict[str, int]:
    """Counts the rows of each store in the database."""
    found = {}
    with closing(server.connect(STEP_SECONDS)) as connection:
        for tables in ALL_TABLES:
            if tables.store in server.known:
                names = _list_targets(connection, tables)
                found[tables.store] = sum(_count(connection, name) for name in names)
    return found


def _identify(home: Path) -> str:
    """Names the home by its key, so that another home does not continue its copy."""
    try:
        data = (home / KEY_FILE).read_bytes()
    except OSError as error:
        raise InvalidInput(
            f'"{home}" has no stores to copy: its {KEY_FILE} cannot be read ({error.strerror})'
        ) from None
    return hashlib.sha256(b"dragoman copy\0" + data).hexdigest()[:32]


def _list_copied(connection: DeadlineConnection, source: str) -> set[str]:
    rows = connection.execute(f"SELECT store, source FROM {SCHEMA}.copies").fetchall()
    if any(one != source for _, one in rows):
        raise InvalidInput("the database has the stores of another home; use an empty database")
    return {str(store) for store, _ in rows}


def _refuse_rows(connection: DeadlineConnection, tables: StoreTables, place: str) -> None:
    for name in _list_targets(connection, tables):
        if _count(connection, name):
            raise InvalidInput(
                f'the database at "{place}" is not empty: its table {SCHEMA}.{name} has rows; use '
                "an empty database, or drop the schema first"
            )


def _list_targets(connection: DeadlineConnection, tables: StoreTables) -> list[str]:
    """Lists the tables of a store that the database has."""
    scripts = (*tables.migrations, tables.extra)
    names = {_rename(tables, name) for script in scripts for name in _find_names(script)}
    rows = connection.execute(
        f"SELECT table_name::text FROM information_schema.tables WHERE table_schema = '{SCHEMA}'"
    ).fetchall()
    return sorted(names & {str(name) for (name,) in rows})


def _find_names(script: str) -> Iterator[str]:
    for found in re.finditer(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", script):
        yield found[1]


def _rename(tables: StoreTables, name: str) -> str:
    return (tables.renamed or {}).get(name, name)


def _count(connection: DeadlineConnection, name: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {SCHEMA}.{name}").fetchone()
    return int(row[0]) if row else 0


@contextmanager
def _open_file(path: Path, tables: StoreTables) -> Iterator[sqlite3.Connection]:
    """Opens the file of a store, with the migrations that a start of the hub would run."""
    folds = {"fold_name": fold_name, "fold_id": fold_id}
    with closing(open_store(path, tables.migrations, functions=folds)) as db:
        try:
            yield db
        except sqlite3.Error as error:
            raise ConfigError(f'"{path}" cannot be read ({error})') from error


def _copy_store(
    home: Path,
    connection: DeadlineConnection,
    tables: StoreTables,
    source: str,
    copied: set[str],
    note: NoteProgress,
) -> CopiedStore:
    store = tables.store
    with _open_file(home / tables.file, tables) as db:
        names = [
            name
            for (name,) in db.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
                "ORDER BY rowid"
            )
            if not name.startswith(LEFT_OUT)
        ]
        counts = {name: _count_local(db, name) for name in names}
        if store in copied:
            return CopiedStore(store, counts, False)
        total, done = sum(counts.values()), 0
        note(store, 0, total)
        with connection.transaction():
            for name in names:
                for rows in _copy_table(db, connection, name, tables):
                    done += rows
                    note(store, done, total)
                there = _count(connection, _rename(tables, name))
                if there != counts[name]:
                    raise ConfigError(
                        f'"{tables.file}" was not copied: table {name} has {counts[name]} rows, '
                        f"and {there} arrived"
                    )
            connection.execute(
                f"INSERT INTO {SCHEMA}.copies VALUES ($1, $2, $3, $4)",
                (store, source, total, time.time()),
            )
        return CopiedStore(store, counts, True)


def _count_local(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])


def _copy_table(
    db: sqlite3.Connection, connection: DeadlineConnection, name: str, tables: StoreTables
) -> Iterator[int]:
    """Copies the rows of a table; yields how many each batch has."""
    columns = [(str(row[1]), bool(row[5])) for row in db.execute(f'PRAGMA table_info("{name}")')]
    target = f"{SCHEMA}.{_rename(tables, name)}"
    listed = ", ".join(f'"{column}"' for column, _ in columns)
    rows = db.execute(f'SELECT {listed} FROM "{name}"')
    with connection.cursor() as cursor:
        while batch := rows.fetchmany(BATCH):
            with cursor.copy(f"COPY {target} ({listed}) FROM STDIN".encode()) as copy:
                for row in batch:
                    copy.write_row(convert_values(row))
            yield len(batch)
    for column, is_key in columns:
        if is_key:
            _continue_numbers(connection, target, column)


def _continue_numbers(connection: DeadlineConnection, target: str, column: str) -> None:
    """Continues the numbers of a table after the copied ones."""
    row: Any = connection.execute(
        "SELECT pg_get_serial_sequence($1, $2)", (target, column)
    ).fetchone()
    if row and row[0]:
        connection.execute(
            f'SELECT setval($1::regclass, greatest((SELECT max("{column}") FROM {target}), 1))',
            (row[0],),
        )
