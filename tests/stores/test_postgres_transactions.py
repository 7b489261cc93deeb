"""Transactions in PostgreSQL end, whatever fails in them, and leave what they leave in SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.core.errors import ConfigError, LeaseExpired, StorageFailed
from dragoman.stores.database import (
    Database,
    DatabaseAway,
    FencedError,
    Statement,
    StoreTables,
    connect_server,
    open_database,
    render_reason,
)
from dragoman.stores.fence import Fence
from dragoman.stores.postgres import PostgresConnection, PostgresDatabase, PostgresServer
from dragoman.stores.postgres_async import AsyncLane
from dragoman.stores.postgres_connections import is_temporary, render_failure
from dragoman.stores.runs_postgres import open_postgres_runs

SECONDS = 30.0


def _build_tables(store: str, counted: str) -> StoreTables:
    script = f"CREATE TABLE {store} (key INTEGER PRIMARY KEY, value TEXT NOT NULL) STRICT;"
    return StoreTables(store, f"{store}.db", (script,), counted=counted)


APPLES = _build_tables("apples", "apples")
PEARS = _build_tables("pears", "pears")
PLUMS = _build_tables("plums", "")
STORES = (APPLES, PEARS, PLUMS)


@pytest.fixture
def server(postgres_url: str) -> Iterator[PostgresServer]:
    with closing(connect_server(postgres_url)) as server:
        server.watch(exclusive=True)
        yield server


@pytest.fixture
def other(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another program that uses the database."""
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        yield connection


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)


def list_open(other: psycopg.Connection[Any]) -> list[str]:
    """Lists the states of the hub's connections that are in a transaction."""
    rows = other.execute(
        b"SELECT state FROM pg_stat_activity WHERE datname = current_database() "
        b"AND application_name = 'dragoman' AND state <> 'idle'"
    )
    return [row[0] for row in rows.fetchall()]


def find_lane(store: Database) -> PostgresConnection:
    assert isinstance(store, PostgresDatabase) and store._lane is not None
    return store._lane


def add(store: Database, name: str, key: int, value: str) -> None:
    with store.writer.transaction():
        store.db.execute(f"INSERT INTO {name} VALUES (?, ?)", (key, value))


def read(store: Database, name: str) -> list[Any]:
    return store.db.execute(f"SELECT key, value FROM {name} ORDER BY key").fetchall()


def test_a_lock_of_another_program_fails_one_transaction_and_no_later_use(
    server: PostgresServer, other: psycopg.Connection[Any]
) -> None:
    apples, pears = server.open(APPLES), server.open(PEARS)
    with other.transaction():
        other.execute(b"UPDATE dragoman.changes SET number = number WHERE store = 'apples'")
        with pytest.raises(sqlite3.OperationalError, match="lock timeout"):
            add(apples, "apples", 1, "while it is locked")
        assert list_open(other) == []
        assert read(pears, "pears") == []
        add(pears, "pears", 1, "another store")
    add(apples, "apples", 2, "after it")
    assert read(apples, "apples") == [(2, "after it")]


def test_a_transaction_that_is_refused_halfway_is_rolled_back(server: PostgresServer) -> None:
    apples, pears = server.open(APPLES), server.open(PEARS)
    with pytest.raises(sqlite3.OperationalError), apples.writer.transaction():
        apples.db.execute("INSERT INTO apples VALUES (1, 'half')")
        server._problem = "as of another thread"
        apples.db.execute("INSERT INTO apples VALUES (2, 'other half')")
        raise sqlite3.OperationalError("the watch was faster")
    server.note_success()
    add(pears, "pears", 1, "another store")
    assert read(apples, "apples") == [] and read(pears, "pears") == [(1, "another store")]


def test_a_commit_that_is_refused_leaves_nothing_behind(server: PostgresServer) -> None:
    apples, pears = server.open(APPLES), server.open(PEARS)
    lane = find_lane(apples)
    lane.begin("apples")
    apples.db.execute("INSERT INTO apples VALUES (1, 'half')")
    server._problem = "as of another thread"
    with pytest.raises(sqlite3.OperationalError, match="not available"):
        lane.commit("apples")
    server.note_success()
    add(pears, "pears", 1, "another store")
    assert read(apples, "apples") == []


def test_a_failed_statement_whose_error_is_ignored_fails_the_transaction(
    server: PostgresServer,
) -> None:
    apples = server.open(APPLES)
    with pytest.raises(sqlite3.OperationalError, match="rolled back"), apples.writer.transaction():
        apples.db.execute("INSERT INTO apples VALUES (1, 'first')")
        with pytest.raises(sqlite3.IntegrityError):
            apples.db.execute("INSERT INTO apples VALUES (1, 'twice')")
    assert read(apples, "apples") == []
    add(apples, "apples", 1, "whole")


def test_a_time_limit_that_cannot_be_reset_ends_with_its_connection(server: PostgresServer) -> None:
    apples = server.open(APPLES)
    with apples.allow(50.0):
        server._problem = "as of another thread"
    server.note_success()
    shown = apples.db.execute("SELECT current_setting('statement_timeout')").fetchone()
    assert shown == ("900ms",)


def test_a_connection_that_cannot_leave_a_pipeline_is_not_used_again(
    server: PostgresServer,
) -> None:
    apples = server.open(APPLES)
    add(apples, "apples", 1, "before")
    lane = find_lane(apples)
    assert lane._connection is not None
    lane._connection.pgconn.enter_pipeline_mode()  # as psycopg leaves it after some errors
    with suppress(sqlite3.Error):
        add(apples, "apples", 2, "may fail")
    add(apples, "apples", 3, "after")
    assert [key for key, _ in read(apples, "apples") if key != 2] == [1, 3]


def test_the_driver_logs_nothing_about_errors_that_are_raised(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    apples = server.open(APPLES)
    add(apples, "apples", 1, "before")
    connection = find_lane(apples)._connection
    assert connection is not None
    with pytest.raises(psycopg.errors.DivisionByZero), connection.pipeline():
        first = connection.execute("SELECT 1 / 0")
        connection.execute("SELECT 2")
        first.fetchone()
    assert not caplog.records
    assert apples.db.execute("SELECT 1").fetchone() == (1,)


def test_the_script_that_begins_a_transaction_is_never_prepared(server: PostgresServer) -> None:
    apples = server.open(APPLES)
    add(apples, "apples", 1, "before")
    lane = find_lane(apples)
    assert lane._connection is not None
    lane._connection.prepare_threshold = 0  # as after many uses
    add(apples, "apples", 2, "after")
    assert read(apples, "apples") == [(1, "before"), (2, "after")]


def test_an_error_of_the_drivers_own_state_ends_with_its_connection(
    server: PostgresServer, other: psycopg.Connection[Any]
) -> None:
    apples = server.open(APPLES)
    add(apples, "apples", 1, "before")
    lane = find_lane(apples)
    assert lane._connection is not None
    lane._connection.prepare_threshold = 0
    assert len(read(apples, "apples")) == 1  # is prepared now, and is not on the server any more
    lane._connection.pgconn.exec_(b"DEALLOCATE ALL")
    with pytest.raises(sqlite3.Error, match="prepared statement"):
        read(apples, "apples")
    assert len(read(apples, "apples")) == 1


def test_an_error_of_a_statement_costs_no_connection(server: PostgresServer) -> None:
    apples = server.open(APPLES)
    add(apples, "apples", 1, "before")
    before = find_lane(apples)._connection
    with pytest.raises(sqlite3.Error, match="does not exist"):
        read(apples, "oranges")
    assert len(read(apples, "apples")) == 1
    assert find_lane(apples)._connection is before is not None


async def test_a_lane_of_the_event_loop_is_used_again_only_if_it_is_idle(
    server: PostgresServer, other: psycopg.Connection[Any]
) -> None:
    server.open(APPLES).close()
    lane = AsyncLane(server.url)

    async def leave_open(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(b"BEGIN")
        await connection.execute(b"INSERT INTO dragoman.apples VALUES (1, 'half')")

    async def fail(connection: psycopg.AsyncConnection[Any]) -> None:
        await leave_open(connection)
        raise ValueError("a defect")

    async def wait(connection: psycopg.AsyncConnection[Any]) -> None:
        await leave_open(connection)
        await connection.execute(b"SELECT pg_sleep(60)")

    await lane.attempt(leave_open, SECONDS)
    assert await lane.run("SELECT key FROM dragoman.apples") == []
    with pytest.raises(ValueError, match="a defect"):
        await lane.attempt(fail, SECONDS)
    assert await lane.run("SELECT key FROM dragoman.apples") == []
    waiting = asyncio.ensure_future(lane.attempt(wait, SECONDS))
    async with asyncio.timeout(SECONDS):
        while "active" not in list_open(other):
            await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert await lane.run("SELECT key FROM dragoman.apples") == []
    with pytest.raises(StorageFailed):
        await lane.run("SELECT nothing")
    assert await lane.run("SELECT 1") == [(1,)]
    lane.close()


async def test_a_pool_of_runs_keeps_no_connection_that_is_in_a_transaction(
    postgres_url: str,
) -> None:
    runs = await open_postgres_runs(postgres_url, Fence(), is_shared=False)
    async with runs._pool.take() as connection:
        await connection.execute("BEGIN")
    assert runs._pool.free == []
    async with runs._pool.take() as connection:
        await connection.execute("SELECT 1")
    assert len(runs._pool.free) == 1
    await runs.aclose()


# --- what kind of failure it is ------------------------------------------------------------------

REFUSED_BY_SERVER = 'connection to server at "127.0.0.1", port 5432 failed: FATAL:  '


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg.errors.LockNotAvailable("a lock"), True),
        (psycopg.errors.QueryCanceled("too slow"), True),
        (psycopg.errors.TooManyConnections("full"), True),
        (psycopg.errors.ReadOnlySqlTransaction("a standby"), True),
        (psycopg.errors.ConnectionTimeout("no answer"), True),
        (psycopg.OperationalError("connection failed: Connection refused"), True),
        (psycopg.OperationalError("failed to resolve host 'db'"), True),
        (psycopg.OperationalError(f"{REFUSED_BY_SERVER}the database system is starting up"), True),
        (psycopg.OperationalError(f"{REFUSED_BY_SERVER}sorry, too many clients already"), True),
        (psycopg.OperationalError(f"{REFUSED_BY_SERVER}password authentication failed"), False),
        (psycopg.OperationalError(f'{REFUSED_BY_SERVER}database "x" does not exist'), False),
        (psycopg.OperationalError(f'{REFUSED_BY_SERVER}no pg_hba.conf entry for host "y"'), False),
        (psycopg.errors.InsufficientPrivilege("permission denied for schema"), False),
        (psycopg.errors.UndefinedTable("no such table"), False),
        (psycopg.errors.UniqueViolation("twice"), False),
        (TimeoutError(), True),
        (PermissionError("a file"), False),
        (DatabaseAway("the connection to the database was lost"), True),
        (FencedError("this hub counts as dead"), True),
        (LeaseExpired("this hub counts as dead"), True),
        (sqlite3.OperationalError("disk I/O error"), False),
    ],
)
def test_an_outage_is_distinguished_from_a_wrong_setting(error: Exception, expected: bool) -> None:
    assert is_temporary(error) is expected
    assert render_failure(error)
    with pytest.raises(ConfigError) as raised:
        try:
            raise error
        except Exception:
            raise ConfigError("the hub cannot start") from None
    assert is_temporary(raised.value) is expected


def test_a_reason_for_everybody_names_no_address_and_no_user() -> None:
    text = f'connection failed: {REFUSED_BY_SERVER}role "bob" cannot connect'
    assert render_reason(text) == 'FATAL:  role "…" cannot connect'
    assert render_reason("the server did not answer within 1 s").startswith("the server")


# --- random transactions with random failures --------------------------------------------------

CODES = ("55P03", "57014", "40P01", "40001")
CLOSED, LATE, REFUSED = "closed", "late", "refused"
# The n-th statement that follows fails: a counter that no roll-back resets. At a commit, the
# trigger of a constraint that is checked last fails.
FAULTS = """
CREATE SEQUENCE dragoman.steps;
CREATE TABLE dragoman.fault (at BIGINT, kind TEXT);
CREATE FUNCTION dragoman.fail() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE fault RECORD;
BEGIN
  SELECT * INTO fault FROM dragoman.fault;
  IF nextval('dragoman.steps') = fault.at THEN
    IF fault.kind = 'closed' THEN PERFORM pg_terminate_backend(pg_backend_pid());
    ELSIF fault.kind = 'late' THEN PERFORM pg_sleep(0.3);
    ELSE RAISE EXCEPTION 'injected' USING ERRCODE = fault.kind;
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER fail BEFORE UPDATE ON dragoman.changes EXECUTE FUNCTION dragoman.fail();
"""
FAULTS_OF = """
CREATE TRIGGER fail BEFORE INSERT OR UPDATE OR DELETE ON dragoman.{0}
  EXECUTE FUNCTION dragoman.fail();
CREATE CONSTRAINT TRIGGER fail_last AFTER INSERT ON dragoman.{0}
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dragoman.fail();
"""


@dataclass(frozen=True)
class Transaction:
    store: StoreTables
    writes: list[tuple[str, int, str]]
    is_sent_together: bool
    fault: str
    fault_at: int
    """Which of its statements fails, counted from the one that begins it."""

    def build(self) -> list[Statement]:
        texts = {
            "insert": "INSERT INTO {0} VALUES (?, ?)",
            "update": "UPDATE {0} SET value = ? WHERE key = ?",
            "delete": "DELETE FROM {0} WHERE key = ?",
        }
        values: dict[str, Callable[[int, str], tuple[Any, ...]]] = {
            "insert": lambda key, value: (key, value),
            "update": lambda key, value: (value, key),
            "delete": lambda key, value: (key,),
        }
        return [
            (texts[kind].format(self.store.store), values[kind](key, value))
            for kind, key, value in self.writes
        ]


WRITES = st.tuples(
    st.sampled_from(["insert", "insert", "update", "delete"]),
    st.integers(1, 5),
    st.text("ab\0é", max_size=3),
)
TRANSACTIONS = st.builds(
    Transaction,
    st.sampled_from(STORES),
    st.lists(WRITES, min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([*CODES, *CODES, CLOSED, CLOSED, LATE, REFUSED, ""]),
    st.integers(1, 6),
)


def run_on(store: Database, transaction: Transaction, before: Callable[[int], None]) -> None:
    """Raises `sqlite3.Error`. Calls `before` with the number of each statement."""
    statements = transaction.build()
    before(0)
    if transaction.is_sent_together:
        store.run(statements)
        return
    with store.writer.transaction():
        for number, statement in enumerate(statements, 1):
            before(number)
            store.db.execute(*statement)
        before(len(statements) + 1)


class Rig:
    """The same stores in PostgreSQL and in SQLite."""

    def __init__(self, server: PostgresServer, home: Path, other: psycopg.Connection[Any]) -> None:
        self._server = server
        self._other = other
        self._postgres: dict[str, Database] = {
            tables.store: server.open(tables) for tables in STORES
        }
        self._sqlite: dict[str, Database] = {
            tables.store: open_database(home, tables) for tables in STORES
        }
        other.execute(FAULTS.encode())
        for tables in STORES:
            other.execute(FAULTS_OF.format(tables.store).encode())
        self.failed = 0

    def clear(self) -> None:
        for name in self._sqlite:
            self._sqlite[name].db.execute(f"DELETE FROM {name}")
            self._other.execute(f"TRUNCATE dragoman.{name}".encode())

    def run(self, transaction: Transaction) -> None:
        """Runs it on PostgreSQL; then on SQLite, where it fails if it has failed before."""
        name = transaction.store.store
        before = self._read(self._postgres)
        error = self._try(transaction)
        # A commit whose answer was lost may have taken place, but not by half.
        is_unknown = error is not None and self._read(self._postgres) != before
        if is_unknown:
            assert transaction.fault in (CLOSED, LATE)
        if error is None or is_unknown:
            run_on(self._sqlite[name], transaction, lambda number: None)
        else:
            self.failed += 1
            with pytest.raises(sqlite3.Error), self._sqlite[name].writer.transaction():
                for statement in transaction.build():
                    self._sqlite[name].db.execute(*statement)
                raise sqlite3.OperationalError("as on the other side")
        assert self._read(self._postgres) == self._read(self._sqlite)

    def _try(self, transaction: Transaction) -> sqlite3.Error | None:
        fault = transaction.fault
        self._other.execute(b"TRUNCATE dragoman.fault")
        self._other.execute(b"ALTER SEQUENCE dragoman.steps RESTART")
        if fault not in ("", REFUSED):
            values = (transaction.fault_at, fault)
            self._other.execute(b"INSERT INTO dragoman.fault VALUES (%s, %s)", values)
        store = self._postgres[transaction.store.store]
        lane = find_lane(store)

        def prepare(number: int) -> None:
            if fault == REFUSED and number == transaction.fault_at:
                self._server.note_failure(OSError("lost by another thread"))
            if fault == LATE and lane._connection is not None:
                # Shorter than the server sleeps; it is another connection afterwards.
                lane._connection.seconds = 0.15

        try:
            run_on(store, transaction, prepare)
            error = None
        except sqlite3.Error as failure:
            error = failure
        wait_until(lambda: not self._server.problem)
        wait_until(lambda: list_open(self._other) == [])
        if lane._connection is not None:
            lane._connection.seconds = 1.0
        return error

    def _read(self, stores: dict[str, Database]) -> dict[str, list[Any]]:
        return {name: read(store, name) for name, store in stores.items()}


@pytest.fixture
def rig(server: PostgresServer, tmp_path: Path, other: psycopg.Connection[Any]) -> Iterator[Rig]:
    rig = Rig(server, tmp_path, other)
    yield rig
    assert rig.failed > 10  # the failures do occur


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(transactions=st.lists(TRANSACTIONS, min_size=1, max_size=6))
def test_a_failure_at_any_statement_leaves_what_it_leaves_in_sqlite(
    rig: Rig, transactions: list[Transaction]
) -> None:
    rig.clear()
    for transaction in transactions:
        rig.run(transaction)
