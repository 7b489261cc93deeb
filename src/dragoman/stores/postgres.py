"""Stores in PostgreSQL: connections, transactions, migrations, and changes by other hubs.

Statements run on the thread of the event loop, so every wait has a deadline of its own: a server
that is stopped keeps its connections open, and its own timeouts do not run. After a failure, all
statements fail at once until a thread that watches the server has reached it again.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.adapt import Buffer, Loader
from psycopg.types.numeric import NumericBinaryLoader

from dragoman.core.errors import ConfigError
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.shared_settings import STORE_URL, check_database_url
from dragoman.core.urls import render_origin
from dragoman.stores.database import (
    POSTGRES,
    DatabaseAway,
    DatabaseConnection,
    DatabaseWriter,
    FencedError,
    PostgresLimits,
    Rows,
    Statement,
    StoreTables,
)
from dragoman.stores.fence import BEGIN, IDLE, LOST, READ_ONLY, Fence, is_refusal
from dragoman.stores.postgres_connections import is_idle, render_failure
from dragoman.stores.postgres_sql import (
    Names,
    convert_values,
    quote,
    translate,
    translate_script,
    unescape,
)
from dragoman.stores.postgres_watch import (
    CHANNEL,
    COUNTERS,
    SCHEMA,
    DatabaseWatch,
    DeadlineConnection,
    is_shared,
    read_pairs,
)
from dragoman.stores.row_seals import NO_SEALS

T = TypeVar("T")

OLDEST_SERVER = 14
FIRST_CONNECT = 5.0
"""Seconds for the first connection: no event loop waits for it."""
MIGRATION_LOCK = 0x647261676D696772
"""The key of an advisory lock: the migrations of a database."""

_BASE = f"""
CREATE TABLE {SCHEMA}.versions (store TEXT PRIMARY KEY, number BIGINT NOT NULL, oldest BIGINT);
CREATE TABLE {SCHEMA}.changes (store TEXT PRIMARY KEY, number BIGINT NOT NULL);
CREATE TABLE {SCHEMA}.identity (id TEXT NOT NULL);
"""
_FIND_IDENTITY = f"SELECT FROM pg_tables WHERE schemaname = '{SCHEMA}' AND tablename = 'identity'"
_BUMP = (
    "WITH bumped AS "
    f"(UPDATE {SCHEMA}.changes SET number = number + 1 WHERE store = {{0}} RETURNING number) "
    f"SELECT number, pg_notify('{CHANNEL}', {{0}}) FROM bumped"
)
_TRIAL: Sequence[Statement] = (
    ("SET LOCAL lock_timeout = 20", ()),
    (f"UPDATE {SCHEMA}.changes SET number = number WHERE false", ()),
    ("SELECT txid_current()", ()),
)
"""Needs what a write does: the right to it, the lock of a table, the id of a transaction. Changes
no row, so that hubs do not wait for each other."""
_PREPARED = frozenset(("26000", "42P05", "0A000", "42601"))
"""SQLSTATEs of statements that are right: what the driver or the server has prepared for an earlier
one is not, and stays so while the connection lasts. No other error of a statement costs a
connection."""
# By JSON, because databases of earlier versions do not have the column.
_OLDEST = "coalesce((to_jsonb(v) ->> 'oldest')::bigint, number)"
_FIND_VERSION = f"SELECT number, {_OLDEST} FROM {SCHEMA}.versions v WHERE store = $1"


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        return unescape(str(data, "utf-8"))


class _NumericLoader(NumericBinaryLoader):
    """Sums of integers are numeric."""

    def load(self, data: Buffer) -> Any:
        value = super().load(data)
        return int(value) if value == value.to_integral_value() else float(value)


class _BinaryTextLoader(_TextLoader):
    format = psycopg.pq.Format.BINARY


def _dial(url: str, seconds: float, **more: str | None) -> DeadlineConnection:
    """Connects within `seconds`, which libpq cannot."""
    params = psycopg.conninfo.make_conninfo(url, application_name="dragoman", **more)
    try:
        connection = waiting.wait_conn(DeadlineConnection._connect_gen(params), 0.1, seconds)
    except psycopg.errors._WaitTimeout:
        raise psycopg.errors.ConnectionTimeout(
            f"the server did not answer within {seconds:g} s"
        ) from None
    connection._autocommit = True
    connection.seconds = seconds
    adapters = connection.adapters
    adapters.register_loader("text", _TextLoader)
    adapters.register_loader("text", _BinaryTextLoader)
    adapters.register_loader("numeric", _NumericLoader)
    connection.cursor_factory = psycopg.RawCursor
    return connection


def _prepare(connection: DeadlineConnection, seconds: float) -> None:
    # The server's own limits come first: they leave the connection usable.
    limit = max(int(seconds * 900), 100)
    connection.execute(
        f"SET search_path = {SCHEMA}; SET statement_timeout = {limit}; "
        f"SET lock_timeout = {max(limit // 3, 100)}; SET client_encoding = 'UTF8'; "
        f"{IDLE}; {READ_ONLY}; SET default_transaction_isolation = 'read committed'"
    )


def _is_unfit(error: psycopg.Error | OSError) -> bool:
    """Whether a connection that is open cannot be used again after this error. One without a
    SQLSTATE comes from the driver, about its own state."""
    if not isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError):
        return False
    return error.sqlstate is None or error.sqlstate in _PREPARED


def _convert(error: psycopg.Error | OSError) -> sqlite3.Error:
    if is_refusal(error):
        return FencedError(LOST)
    kind: type[sqlite3.Error] = sqlite3.OperationalError
    if isinstance(error, psycopg.IntegrityError):
        kind = sqlite3.IntegrityError
    elif isinstance(error, psycopg.DataError):
        kind = sqlite3.DataError
    return kind(render_failure(error))


class PostgresServer:
    """A database in which stores are opened. The thread that opens a store uses it; the stores of a
    thread share a connection."""

    def __init__(
        self,
        url: str,
        limits: PostgresLimits | None = None,
        setting: str = STORE_URL,
        *,
        create: bool = True,
        fence: Fence | None = None,
    ) -> None:
        """Connects, and creates the schema if it is missing, unless `create` is False. `fence` is
        that of this hub in a cluster. Raises `ConfigError`."""
        check_database_url(url, STORE_URL)
        self.place = render_origin(url)
        self.limits = limits or PostgresLimits()
        self.url = url
        self._address: dict[str, str | None] = {}
        """Where the last connection went, so that no statement waits for a name server."""
        self._lanes: dict[int, PostgresConnection] = {}
        self._lock = threading.Lock()
        """Of all below."""
        self._problem = ""
        """Why statements fail at once; empty while they are tried."""
        self._unfit = ""
        """Why the last trial of a transaction has failed."""
        self._counters: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        """Of each store: how many changes by others were noticed."""
        self._backends: set[int] = set()
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._watch: DatabaseWatch | None = None
        self.fence = fence or Fence()
        """What the write transactions of the stores begin with."""
        self.seals = NO_SEALS
        """Of the rows that give rights; set before stores are opened."""
        self._counted: set[str] = set()
        self._oldest: dict[str, int] = {}
        try:
            connection = self.connect(patience=FIRST_CONNECT)
            try:
                self.known = self._prepare_schema(connection, create)
            finally:
                connection.close()
        except (psycopg.Error, OSError) as error:
            raise self._build_error(error) from None

    def _build_error(self, error: Exception) -> ConfigError:
        place = f'"{self.place}" of {STORE_URL}'
        return ConfigError(f"the database at {place} cannot be used: {render_failure(error)}")

    # --- connections ------------------------------------------------------------------------------

    def connect(
        self, seconds: float = 0.0, *, again: bool = False, patience: float = 0.0
    ) -> DeadlineConnection:
        """Opens a connection within `patience`; `again` to the address of the last one. Each
        statement may take `seconds`. Raises `psycopg.Error`."""
        more = self._address if again else {}
        connection = _dial(self.url, max(patience, self.limits.connect), **more)
        connection.seconds = seconds or self.limits.statement
        _prepare(connection, connection.seconds)
        info = connection.info
        connection.backend = info.backend_pid
        if info.hostaddr:
            self._address = {"host": info.host, "hostaddr": info.hostaddr, "port": str(info.port)}
        with self._lock:
            self._backends.add(connection.backend)
        return connection

    def open(self, tables: StoreTables) -> PostgresDatabase:
        """Opens the tables of a store and runs their migrations. Raises `ConfigError`."""
        thread = threading.get_ident()
        with self._lock:
            lane = self._lanes.get(thread)
            if lane is None:
                lane = self._lanes[thread] = PostgresConnection(self)
            lane.users += 1
        try:
            self._migrate(tables)
        except (psycopg.Error, OSError, sqlite3.Error) as error:
            self.release(lane)
            raise ConfigError(
                f'the tables of "{tables.store}" in the database at "{self.place}" cannot be '
                f"used: {render_failure(error)}"
            ) from None
        except ConfigError:
            self.release(lane)
            raise
        return PostgresDatabase(self, lane, tables)

    def release(self, lane: PostgresConnection) -> None:
        with self._lock:
            lane.users -= 1
            if lane.users > 0:
                return
            self._lanes = {key: one for key, one in self._lanes.items() if one is not lane}
        lane.close()

    def close(self) -> None:
        """Ends the watch and all connections."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        for lane in list(self._lanes.values()):
            lane.close()
        self._lanes.clear()

    # --- tables -----------------------------------------------------------------------------------

    def _prepare_schema(self, connection: DeadlineConnection, create: bool) -> dict[str, int]:
        self.version = connection.info.parameter_status("server_version") or ""
        version = connection.info.server_version // 10_000
        if version < OLDEST_SERVER:
            raise ConfigError(
                f'the database at "{self.place}" is PostgreSQL {version}; the hub needs '
                f"{OLDEST_SERVER} or newer"
            )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in ("UTF8", "SQL_ASCII"):
            raise ConfigError(
                f'the database at "{self.place}" has the encoding {encoding}; the hub needs UTF8'
            )
        # Not `to_regclass`, whose cache does not see what others create meanwhile.
        found = f"SELECT EXISTS ({_FIND_IDENTITY})"
        row = connection.execute(found).fetchone()
        if not (row and row[0]):
            if not create:
                return {}
            connection.seconds = self.limits.slow
            with _lock_migrations(connection):
                row = connection.execute(found).fetchone()
                if not (row and row[0]):
                    # Only where it is missing: the statement needs a right even if it does nothing.
                    there = f"SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{SCHEMA}')"
                    row = connection.execute(there).fetchone()
                    if not (row and row[0]):
                        connection.execute(f"CREATE SCHEMA {SCHEMA}")
                    connection.execute(_BASE)
                    id = secrets.token_hex(16)
                    connection.execute(f"INSERT INTO {SCHEMA}.identity VALUES ($1)", (id,))
        self._counted = set(read_pairs(connection, COUNTERS))
        self._oldest = read_pairs(connection, f"SELECT store, {_OLDEST} FROM {SCHEMA}.versions v")
        return read_pairs(connection, f"SELECT store, number FROM {SCHEMA}.versions")

    def is_usable(self, tables: StoreTables) -> bool:
        """Whether the tables, as they were when this connected, need no migration."""
        version, wanted = self.known.get(tables.store, 0), len(tables.migrations)
        return version >= wanted >= min(version, self._oldest.get(tables.store, version))

    def read_identity(self) -> str:
        """Reads the random id of the database; empty if it has no schema of the hub."""
        with self._open_briefly() as connection:
            if connection.execute(_FIND_IDENTITY).fetchone() is None:
                return ""
            row = connection.execute(f"SELECT id FROM {SCHEMA}.identity").fetchone()
        return str(row[0]) if row else ""

    def can_create_tables(self) -> bool:
        """Whether the database has the hub's schema, and its user may create tables there."""
        find = (
            "SELECT coalesce(has_schema_privilege(oid, 'CREATE'), false) "
            f"FROM pg_namespace WHERE nspname = '{SCHEMA}'"
        )
        with self._open_briefly() as connection:
            row = connection.execute(find).fetchone()
        return bool(row and row[0])

    @contextmanager
    def _open_briefly(self) -> Iterator[DeadlineConnection]:
        try:
            connection = self.connect()
            try:
                yield connection
            finally:
                connection.close()
        except (psycopg.Error, OSError) as error:
            raise self._build_error(error) from None

    def _migrate(self, tables: StoreTables) -> None:
        """Runs the migrations that the database does not have, in one transaction under a lock."""
        store, wanted = tables.store, len(tables.migrations)
        is_counted = not tables.counted or tables.counted in self._counted
        if self.known.get(store) == wanted and is_counted:
            return
        names = _list_names(tables)
        connection = self.connect(self.limits.slow)
        try:
            with _lock_migrations(connection):
                row = connection.execute(_FIND_VERSION, (store,)).fetchone()
                version, oldest = row or (0, 0)
                if version > wanted and oldest > wanted:
                    raise ConfigError(
                        f'the tables of "{store}" in the database at "{self.place}" were written '
                        f"by a newer dragoman: their version is {version}, this one supports up to "
                        f"{wanted}; nothing was changed: install the newer dragoman"
                    )
                if 0 < version < (tables.oldest or wanted):
                    self._refuse_if_shared(connection, store)
                for script in tables.migrations[version:]:
                    for statement in translate_script(script, names, is_empty=not version):
                        connection.execute(statement)
                if not version:
                    for statement in translate_script(tables.extra, names, is_empty=True):
                        connection.execute(statement)
                if version < wanted:
                    connection.execute(
                        f"ALTER TABLE {SCHEMA}.versions ADD COLUMN IF NOT EXISTS oldest BIGINT"
                    )
                    connection.execute(
                        f"INSERT INTO {SCHEMA}.versions (store, number, oldest) "
                        "VALUES ($1, $2, $3) ON CONFLICT (store) "
                        "DO UPDATE SET number = excluded.number, oldest = excluded.oldest",
                        (store, wanted, tables.oldest or wanted),
                    )
                if tables.counted:
                    connection.execute(
                        f"INSERT INTO {SCHEMA}.changes VALUES ($1, 1) ON CONFLICT DO NOTHING",
                        (tables.counted,),
                    )
            self.known[store] = wanted
            self._counted.add(tables.counted)
        finally:
            connection.close()

    def _refuse_if_shared(self, connection: DeadlineConnection, store: str) -> None:
        """Refuses a migration after which hubs of the previous version could not go on."""
        if is_shared(connection):
            raise ConfigError(
                f'the tables of "{store}" in the database at "{self.place}" need a migration that '
                "the running hubs could not use: stop all hubs of this database, then start this "
                "one; nothing was changed"
            )

    # --- failures ---------------------------------------------------------------------------------

    def refuse_if_down(self) -> None:
        if self._problem:
            cause = psycopg.OperationalError(self._problem)
            raise DatabaseAway(f"the database is not available: {cause}") from cause

    def note_failure(self, error: BaseException) -> None:
        """Lets statements fail at once until the watch has reached the server again. A server that
        is not watched is tried again by each statement."""
        if self._watch is not None:
            why = render_failure(error)
            STORAGE_OUTAGE.note(f'the database at "{self.place}" is not available: {why}')
            self._problem = why
            self._watch.wake()

    def note_success(self) -> None:
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why the database is not available; empty while it is."""
        return self._problem or self._unfit

    @property
    def is_refusing(self) -> bool:
        """Whether statements fail at once."""
        return bool(self._problem)

    def try_transaction(self) -> None:
        """Executes a transaction that can write on the connection of this thread, and notes why it
        fails: reading alone does not show that a hub can do its work."""
        lane = self._lanes.get(threading.get_ident())
        if lane is None or lane.in_transaction or self._problem:
            return
        try:
            lane.run(_TRIAL, ())
            self._unfit = ""
        except sqlite3.Error as error:
            self._unfit = render_failure(error)
        if self._unfit and not self._problem:
            STORAGE_OUTAGE.note(f'the database at "{self.place}" is not usable: {self._unfit}')

    # --- changes by others ------------------------------------------------------------------------

    def watch(self, *, exclusive: bool) -> None:
        """Locks the database for this hub, `exclusive` or together with hubs that are not, and
        watches it. Raises `ConfigError` if the lock is held by others."""
        assert self._watch is None
        try:
            self._watch = DatabaseWatch(self, exclusive)
        except (psycopg.Error, OSError) as error:
            raise self._build_error(error) from None

    def follow(self, store: str, notify: Callable[[], None]) -> None:
        """Has `notify` called, by the watch's thread, when others have changed the store."""
        self._listeners.setdefault(store, []).append(notify)

    def read_version(self, store: str, lane: PostgresConnection, now: bool) -> int:
        # What was never counted is read: a change that came first would go unnoticed.
        if now or self._watch is None or store not in self._counters:
            rows = lane.execute(f"{COUNTERS} WHERE store = ?", (store,)).fetchall()
            self.note_counters(dict(rows))
        else:
            self.refuse_if_down()
            self._watch.check()
        return self._versions.get(store, 0)

    def note_own(self, store: str, number: int) -> None:
        """Notes a change by this process, if no other one came before it."""
        with self._lock:
            if self._counters.get(store) == number - 1:
                self._counters[store] = number

    def note_counters(self, counters: dict[str, int]) -> None:
        changed = []
        with self._lock:
            for store, number in counters.items():
                known = self._counters.get(store)
                if known is None or number > known:
                    self._counters[store] = number
                    if known is not None:
                        self._versions[store] = self._versions.get(store, 0) + 1
                        changed.append(store)
        for store in changed:
            for notify in self._listeners.get(store, ()):
                notify()

    def is_own(self, backend: int) -> bool:
        return backend in self._backends

    def forget_backend(self, backend: int) -> None:
        with self._lock:
            self._backends.discard(backend)


class PostgresConnection:
    """Executes statements for the stores of one thread, with the methods of `sqlite3.Connection`
    that stores use. Raises `sqlite3.Error`."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._thread = threading.get_ident()
        self._connection: DeadlineConnection | None = None
        self._seconds = server.limits.statement
        self.users = 0
        """How many stores use it."""
        self.in_transaction = False
        """Whether a transaction was begun that a caller ends. Otherwise the connection is idle."""
        self._number = 0
        """Of the change that the transaction makes."""

    def execute(
        self, statement: str, values: Sequence[Any] = (), /, names: Names = ()
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        text = translate(statement, names)
        # What only reads can be repeated on another connection.
        again = not self.in_transaction and text.lstrip()[:6].upper() == "SELECT"
        return self._try(
            lambda connection: connection.execute(
                text.encode(), convert_values(values), binary=True
            ),
            again,
        )

    def executemany(
        self, statement: str, rows: Iterable[Sequence[Any]], /, names: Names = ()
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        text = translate(statement, names).encode()

        def run(connection: DeadlineConnection) -> psycopg.Cursor[tuple[Any, ...]]:
            cursor = connection.cursor()
            cursor.executemany(text, [convert_values(row) for row in rows])
            return cursor

        return self._try(run, False)

    def begin(self, store: str) -> None:
        """Begins a transaction; with the name of a store, one that is counted as its change and
        that no other counted one overlaps."""
        assert not self.in_transaction

        bump = [_BUMP.format(quote(store))] if store else []
        text = "; ".join([self._server.fence.build_begin(), *bump])

        def run(connection: DeadlineConnection) -> None:
            row = _list_rows(connection.execute(text, prepare=False))[-1]
            self._number = int(row[0]) if store and row else 0
            self.in_transaction = True

        self._try(run, True)

    def commit(self, store: str) -> None:
        try:
            done = self._try(lambda connection: connection.execute("COMMIT"), False)
        finally:
            self.roll_back()
        if done.statusmessage != "COMMIT":  # it ends a transaction that has failed, without error
            raise DatabaseAway("the transaction was rolled back: a statement failed")
        if store:
            self._server.note_own(store, self._number)

    def run(
        self, statements: Sequence[Statement], names: Names
    ) -> list[psycopg.Cursor[tuple[Any, ...]]]:
        """Executes statements as one transaction, which are sent together."""
        assert not self.in_transaction
        sent = [
            (translate(text, names).encode(), convert_values(values)) for text, values in statements
        ]

        def run(connection: DeadlineConnection) -> list[psycopg.Cursor[tuple[Any, ...]]]:
            with connection.pipeline():
                for text in self._server.fence.build_begin().split("; "):
                    connection.execute(text)
                done = [connection.execute(*one, binary=True) for one in sent]
                connection.execute("COMMIT")
            return done

        return self._try(run, False)

    def roll_back(self) -> None:
        """Ends whatever is open, also while statements are refused. A connection that the server
        does not report idle afterwards is dropped, so that the server rolls back."""
        self.in_transaction = False
        connection = self._connection
        if connection is None or is_idle(connection):
            return
        try:
            if (
                not self._server.is_refusing
            ):  # nothing waits again for a server that does not answer
                connection.execute("ROLLBACK")
        except (psycopg.Error, OSError):
            pass  # it is dropped
        finally:
            if not is_idle(connection):
                self._drop()

    @contextmanager
    def allow(self, seconds: float) -> Iterator[None]:
        before = self._seconds
        try:
            self._set_seconds(seconds)
            yield
        finally:
            try:
                self._set_seconds(before)
            except sqlite3.Error:
                self._drop()  # the event loop would wait too long on it

    def _set_seconds(self, seconds: float) -> None:
        self._seconds = seconds

        def run(connection: DeadlineConnection) -> None:
            connection.seconds = seconds
            _prepare(connection, seconds)

        self._try(run, not self.in_transaction)

    def close(self) -> None:
        self._drop()

    def _try(self, run: Callable[[DeadlineConnection], T], again: bool) -> T:
        """Runs statements; on a lost connection `again` on another one."""
        if threading.get_ident() != self._thread:
            raise sqlite3.ProgrammingError("a store was used by another thread")
        self._server.refuse_if_down()
        connection = self._connection
        is_new = connection is None
        try:
            if connection is None:
                if self.in_transaction:
                    raise DatabaseAway("the connection to the database was lost")
                connection = self._connection = self._server.connect(self._seconds, again=True)
            return run(connection)
        except (psycopg.Error, OSError) as error:
            if connection is not None and not connection.closed:
                if _is_unfit(error):
                    self._drop()
                raise _convert(error) from error
            self._drop()
            is_late = isinstance(error, psycopg.errors.ConnectionTimeout)
            if again and not is_new and not is_late:
                return self._try(run, False)
            self._server.note_failure(error)
            raise _convert(error) from error
        finally:
            if not self.in_transaction:
                self.roll_back()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._server.forget_backend(connection.backend)
            connection.close()


class PostgresDatabase:
    """The tables of one store."""

    engine = POSTGRES

    def __init__(
        self, server: PostgresServer, lane: PostgresConnection, tables: StoreTables
    ) -> None:
        self.name = server.place
        self.server = server
        self._lane: PostgresConnection | None = lane
        self._counted = tables.counted or tables.store
        names = self._names = _list_names(tables)
        self.db: DatabaseConnection = RenamedTables(lane, names) if names else lane
        self.writer: DatabaseWriter = PostgresWriter(lane, tables.counted)

    def insert(self, statement: str, values: Sequence[Any], key: str) -> int:
        row = self.db.execute(f"{statement} RETURNING {key}", values).fetchone()
        return int(row[0]) if row else 0

    def run(self, statements: Sequence[Statement]) -> list[Rows]:
        assert self._lane is not None
        return [*self._lane.run(statements, self._names)]

    def check(self) -> None:
        self.server.refuse_if_down()

    def read_version(self, *, now: bool = True) -> int:
        assert self._lane is not None
        return self.server.read_version(self._counted, self._lane, now)

    def allow(self, seconds: float) -> AbstractContextManager[None]:
        assert self._lane is not None
        return self._lane.allow(seconds)

    def close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            self.server.release(lane)


class RenamedTables:
    """A connection for a store some of whose tables have other names in PostgreSQL."""

    def __init__(self, lane: PostgresConnection, names: Names) -> None:
        self._lane = lane
        self._names = names

    def execute(
        self, statement: str, values: Sequence[Any] = (), /
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._lane.execute(statement, values, names=self._names)

    def executemany(
        self, statement: str, rows: Iterable[Sequence[Any]], /
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._lane.executemany(statement, rows, names=self._names)


class PostgresWriter:
    """Write transactions of a store: `with writer.transaction():`, as `SqliteWriter`."""

    def __init__(self, lane: PostgresConnection, store: str) -> None:
        self._lane = lane
        self._store = store

    def transaction(self) -> PostgresWriter:
        return self

    def __enter__(self) -> None:
        self._lane.begin(self._store)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._lane.commit(self._store)
        else:
            self._lane.roll_back()


@contextmanager
def _lock_migrations(connection: DeadlineConnection) -> Iterator[None]:
    """A transaction that no other migration overlaps."""
    _prepare(connection, connection.seconds)
    connection.execute("SET lock_timeout = 0")
    connection.execute(BEGIN)
    try:
        connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if not connection.closed:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
        raise


def _list_rows(cursor: psycopg.Cursor[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
    """Lists the first row of each of the statements that were sent together."""
    rows = []
    while True:
        rows.append(cursor.fetchone() if cursor.description else None)
        if not cursor.nextset():
            return rows


def _list_names(tables: StoreTables) -> Names:
    return tuple((tables.renamed or {}).items())
