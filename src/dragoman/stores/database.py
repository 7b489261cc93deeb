"""The port between stores and databases: the same statements run on SQLite and on PostgreSQL.

A store opens its tables with `open_database` at a `StorePlace`: the home, where each store is a
SQLite file, or a PostgreSQL server. Statements have `?` for values and use SQL that both
understand; errors are those of `sqlite3` for both (PEP 249). Where both need different statements,
a store asks `engine`.

On SQLite, `db` is the connection itself, so that the port costs nothing. `PostgresConnection` has
the part of its methods that stores use.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dragoman.core.errors import ConfigError, LeaseExpired, StorageFailed
from dragoman.core.secret_references import SecretResolver, is_reference
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.core.shared_settings import STORE_URL
from dragoman.stores.sqlite import (
    BUSY_SECONDS,
    LOOP_BUSY_SECONDS,
    SqliteWriter,
    WatchedFile,
    open_store,
)

if TYPE_CHECKING:
    from dragoman.stores.fence import Fence
    from dragoman.stores.postgres import PostgresServer

SQLITE, POSTGRES = "sqlite", "postgres"
Error, IntegrityError = sqlite3.Error, sqlite3.IntegrityError
DataError, OperationalError = sqlite3.DataError, sqlite3.OperationalError
"""What statements raise on both. `IntegrityError`: a constraint is not met."""


class DatabaseAway(sqlite3.OperationalError):
    """A shared database does not answer for now, or has ended a transaction."""


class FencedError(DatabaseAway):
    """The other hubs have declared this one dead, so that it may not write."""


def build_write_error(error: BaseException, text: str) -> StorageFailed:
    """Builds the error of a store that cannot be written, with `text`, or one which says that this
    hub may not."""
    return LeaseExpired(str(error)) if isinstance(error, FencedError) else StorageFailed(text)


class Rows(Protocol):
    """The outcome of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class DatabaseConnection(Protocol):
    """What stores use of `sqlite3.Connection`. Only one thread uses it. Statements that write
    belong into a transaction."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Rows: ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Rows: ...


Statement = tuple[str, Sequence[Any]]
"""With its values."""


class DatabaseWriter(Protocol):
    def transaction(self) -> AbstractContextManager[None]:
        """A transaction is atomic. It raises `Error`, and is rolled back by any exception."""


class Database(Protocol):
    """The tables of one store, used by the thread that opened it."""

    engine: str
    name: str
    """The file or the address of the server, for messages."""
    db: DatabaseConnection
    writer: DatabaseWriter

    def insert(self, statement: str, values: Sequence[Any], key: str) -> int:
        """Inserts a row in the open transaction; returns its number, in the column `key`."""

    def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Executes statements as one transaction, on a server in one round trip: none can depend on
        the outcome of another."""

    def check(self) -> None:
        """Raises `Error` if what was written by others would go unnoticed."""

    def read_version(self, *, now: bool = True) -> int:
        """Reads a number that differs after another process, or another hub, has changed the store.
        It may be a second old on a server, except with `now`."""

    def allow(self, seconds: float) -> AbstractContextManager[None]:
        """Lets statements take so long, where a server would end them earlier."""

    def close(self) -> None: ...


StorePlace: TypeAlias = "Path | PostgresServer"
"""Where stores are: a home directory, or a database server."""


@dataclass(frozen=True, slots=True)
class StoreTables:
    """The tables of a store, which has a file of its own on SQLite."""

    store: str
    """The name of the store, for its version and its changes."""
    file: str
    migrations: Sequence[str]
    renamed: Mapping[str, str] | None = None
    """Tables and columns that have other names in PostgreSQL, because another store has the same,
    or the name is reserved."""
    extra: str = ""
    """A script of further tables, which a file gets when they are first needed."""
    counted: str = ""
    """The name under which transactions are counted, so that other hubs notice them; they run one
    after the other, as in SQLite. Empty: they are not counted, and overlap."""
    oldest: int = 0
    """The first version of the tables since which migrations have only added, so that hubs with
    that version can use them, too. 0: there is none before the last, and the last migration is
    refused while other hubs use the database."""


@dataclass(frozen=True, slots=True)
class PostgresLimits:
    """Seconds."""

    connect: float = 1.0
    statement: float = 1.0
    """How long a statement may take, and how long a hub that has lost the server waits for it."""
    slow: float = 60.0
    """The same for migrations, and for what is read at the start."""
    poll: float = 1.0
    """How often changes by other hubs are read, besides notifications; also the watch's pulse."""
    probe: float = 0.5
    """How long the watch waits for an answer."""
    retry: float = 0.5
    """How long the watch waits before it connects again."""
    release: float = 2.0
    """How long the server may take to notice that a hub which used the database has ended."""


COMMAND_LIMITS = PostgresLimits(connect=5.0, statement=30.0)
"""For commands, which run outside of an event loop."""


def open_database(
    place: StorePlace,
    tables: StoreTables,
    *,
    durable: bool = False,
    busy_seconds: float = LOOP_BUSY_SECONDS,
    functions: Mapping[str, Callable[[str], str]] | None = None,
) -> Database:
    """Opens or creates the tables of a store and runs its migrations. `durable`, `busy_seconds` and
    `functions` are for SQLite (see `open_store`): PostgreSQL is durable as it is configured. Raises
    `ConfigError`."""
    if isinstance(place, Path):
        path = place / tables.file
        return SqliteDatabase(path, tables.migrations, durable, busy_seconds, functions)
    return place.open(tables)


def open_place(
    home: Path,
    url: str | None,
    secrets: SecretResolver,
    limits: PostgresLimits | None = None,
    create: bool = True,
    fence: Fence | None = None,
) -> StorePlace:
    """Opens the place of the stores: the home, or the server of `[store] url`. `fence` is that of
    this hub in a cluster. Raises `ConfigError`."""
    if url is None:
        return home
    if is_reference(url):
        url = secrets.resolve_local(url, SecretUse(Author.OWNER, STORE_URL))
    return connect_server(url, limits, create, fence)


def connect_server(
    url: str,
    limits: PostgresLimits | None = None,
    create: bool = True,
    fence: Fence | None = None,
) -> PostgresServer:
    """Connects, and creates the schema if it is missing, unless `create` is False. Raises
    `ConfigError` if the database cannot be used, or the driver is not installed."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise ConfigError(
            "[store] url needs another package: pip install 'dragoman-hub[postgres]'"
        ) from None
    from dragoman.stores.postgres import PostgresServer

    return PostgresServer(url, limits, create=create, fence=fence)


def render_reason(problem: str) -> str:
    """Renders why a database is not available for those who may not know its address, users and
    tables."""
    return re.sub(r'"[^"]*"', '"…"', problem.rpartition(" failed: ")[2])


class SqliteDatabase:
    engine = SQLITE

    def __init__(
        self,
        path: Path,
        migrations: Sequence[str],
        durable: bool = False,
        busy_seconds: float = BUSY_SECONDS,
        functions: Mapping[str, Callable[[str], str]] | None = None,
    ) -> None:
        self.name = str(path)
        db = open_store(
            path, migrations, durable=durable, busy_seconds=busy_seconds, functions=functions
        )
        self._sqlite = db
        self.db: DatabaseConnection = db
        self.writer: DatabaseWriter = SqliteWriter(db, path, busy_seconds)
        self._file = WatchedFile(path)

    def insert(self, statement: str, values: Sequence[Any], key: str) -> int:
        return self._sqlite.execute(statement, values).lastrowid or 0

    def run(self, statements: Sequence[Statement]) -> list[Rows]:
        with self.writer.transaction():
            return [self.db.execute(*one) for one in statements]

    def check(self) -> None:
        self._file.check()

    def read_version(self, *, now: bool = True) -> int:
        version: int = self._sqlite.execute("PRAGMA data_version").fetchone()[0]
        return version

    def allow(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self._sqlite.close()


class LoopStore:
    """A store that only the event loop's thread uses. Its methods raise `StorageFailed`."""

    def __init__(
        self,
        place: StorePlace,
        tables: StoreTables,
        functions: Mapping[str, Callable[[str], str]] | None = None,
        *,
        durable: bool = False,
    ) -> None:
        self._base: Database = open_database(place, tables, durable=durable, functions=functions)
        self._name, self._db, self._writer = self._base.name, self._base.db, self._base.writer

    def close(self) -> None:
        self._base.close()

    def read_version(self) -> int:
        """Reads a number that differs after another process, or another hub, has changed the store;
        on a server it may be a second old."""
        try:
            return self._base.read_version(now=False)
        except Error as error:
            raise self._build_read_error(error) from error

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except Error as error:
            raise self._build_read_error(error) from error

    @contextmanager
    def _transact(self) -> Iterator[DatabaseConnection]:
        try:
            with self._writer.transaction():
                yield self._db
        except Error as error:
            raise build_write_error(error, f'"{self._name}" cannot be written ({error})') from error

    def _build_read_error(self, error: Exception) -> StorageFailed:
        return StorageFailed(f'"{self._name}" cannot be read ({error})')
