"""PostgreSQL under the stores: deadlines, failures, migrations and changes by other hubs."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.peers.postgres_server import PostgresPeer, create_database, run_peer

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.stores.database import LoopStore, PostgresLimits, StoreTables, connect_server
from dragoman.stores.postgres import PostgresServer
from dragoman.stores.postgres_sql import convert_values, translate, translate_script, unescape
from dragoman.stores.postgres_watch import HUB_LOCK

NOTES = StoreTables(
    "notes",
    "notes.db",
    (
        "CREATE TABLE notes (number INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL, "
        "body BLOB NOT NULL DEFAULT x'', at REAL NOT NULL DEFAULT 0, UNIQUE (text)) STRICT;",
        "ALTER TABLE notes ADD COLUMN size INTEGER NOT NULL DEFAULT 1;\n"
        "UPDATE notes SET size = fold_name(text);",
    ),
    counted="notes",
)
RECOVERY = 60.0


class Notes(LoopStore):
    def add(self, text: str) -> None:
        with self._transact() as db:
            db.execute("INSERT INTO notes (text) VALUES (?)", (text,))

    def list(self) -> list[str]:
        return [row[0] for row in self._read("SELECT text FROM notes ORDER BY number")]


@pytest.fixture(scope="module")
def peer() -> Iterator[PostgresPeer]:
    """A server of its own, because the tests stop it."""
    with run_peer() as peer:
        yield peer


@pytest.fixture
def url(peer: PostgresPeer) -> str:
    return create_database(peer.url)


@pytest.fixture
def server(url: str) -> Iterator[PostgresServer]:
    server = connect_server(url)
    yield server
    server.close()


def wait_for(done: Callable[[], Any], seconds: float = RECOVERY) -> float:
    """Waits until it neither fails nor returns False; returns how long that took."""
    begun = time.monotonic()
    while True:
        try:
            if done() is not False:
                return time.monotonic() - begun
        except (StorageFailed, psycopg.Error):
            pass
        assert time.monotonic() < begun + seconds, "it did not recover in time"
        time.sleep(0.01)


def measure(run: Callable[[], Any]) -> float:
    begun = time.monotonic()
    with pytest.raises(StorageFailed, match="cannot be"):
        run()
    return time.monotonic() - begun


def test_a_paused_server_fails_in_time_then_at_once_and_recovers(
    peer: PostgresPeer, server: PostgresServer
) -> None:
    server.watch(exclusive=True)
    notes = Notes(server, NOTES)
    notes.add("before")
    peer.pause()
    try:
        assert measure(lambda: notes.add("lost")) < 5
        # Whatever comes next does not wait again, while the watch keeps trying.
        until = time.monotonic() + 1.5
        slowest = 0.0
        while time.monotonic() < until:
            slowest = max(slowest, measure(notes.list), measure(lambda: notes.add("lost")))
            time.sleep(0.01)
        assert slowest < 0.4  # a try takes half a second at least
        assert server.problem
    finally:
        peer.resume()
    assert wait_for(lambda: notes.add("after")) < RECOVERY
    assert notes.list()[0] == "before" and notes.list()[-1] == "after"
    assert not server.problem


def test_the_watch_notices_a_paused_server_before_a_statement_does(
    peer: PostgresPeer, server: PostgresServer
) -> None:
    server.watch(exclusive=True)
    notes = Notes(server, NOTES)
    peer.pause()
    try:
        wait_for(lambda: bool(server.problem))
        assert measure(notes.list) < 0.1
    finally:
        peer.resume()
    wait_for(notes.list)


def test_a_restart_and_a_killed_connection(peer: PostgresPeer, url: str) -> None:
    server = connect_server(url)
    server.watch(exclusive=True)
    notes = Notes(server, NOTES)
    notes.add("one")
    with closing(psycopg.connect(url, autocommit=True)) as other:
        kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> "
        other.execute(kill.encode() + b"pg_backend_pid() AND application_name = 'dragoman'")
    # Only the connections were lost: neither a read nor a transaction that begins needs to fail.
    wait_for(lambda: notes.list() == ["one"])
    wait_for(lambda: notes.add("two"))
    peer.stop()
    assert measure(lambda: notes.add("lost")) < 5
    assert measure(notes.list) < 0.1
    peer.start()
    wait_for(lambda: notes.add("three"))
    assert notes.list() == ["one", "two", "three"]
    server.close()


def test_a_connection_that_dies_in_a_transaction_fails_it_whole(
    server: PostgresServer, url: str
) -> None:
    notes = Notes(server, NOTES)
    with pytest.raises(StorageFailed), notes._transact() as db:
        db.execute("INSERT INTO notes (text) VALUES (?)", ("half",))
        with closing(psycopg.connect(url, autocommit=True)) as other:
            other.execute(
                b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                b"WHERE pid <> pg_backend_pid() AND application_name = 'dragoman'"
            )
        db.execute("INSERT INTO notes (text) VALUES (?)", ("other half",))
    assert notes.list() == []
    notes.add("whole")
    assert notes.list() == ["whole"]


def test_a_newer_version_is_refused_and_changes_nothing(url: str) -> None:
    newer = StoreTables("notes", "notes.db", (*NOTES.migrations, "CREATE TABLE more (x INTEGER);"))
    with closing(connect_server(url)) as server:
        Notes(server, newer).close()
    with closing(connect_server(url)) as server:
        with pytest.raises(ConfigError, match=r"newer dragoman: their version is 3, .* up to 2"):
            Notes(server, NOTES)
        assert server.read_identity()


WIDER = "ALTER TABLE notes ADD COLUMN more TEXT;"


def test_tables_that_a_newer_version_has_only_extended_are_used(url: str) -> None:
    newer = StoreTables("notes", "notes.db", (*NOTES.migrations, WIDER), oldest=2)
    with closing(connect_server(url)) as running, closing(connect_server(url)) as server:
        running.watch(exclusive=False)
        notes = Notes(running, NOTES)
        with closing(psycopg.connect(url, autocommit=True)) as other:  # a hub of this version
            hold_hub_lock(other)
            Notes(server, newer).close()  # is not refused
        notes.add("by a hub that runs")
    with closing(connect_server(url)) as server:
        again = Notes(server, NOTES)
        again.add("by one that was started again")
        assert len(again.list()) == 2
        assert server.known["notes"] == 2
    oldest = StoreTables("notes", "notes.db", NOTES.migrations[:1])
    refusal = pytest.raises(ConfigError, match=r"newer dragoman: their version is 3, .* up to 1")
    with closing(connect_server(url)) as server, refusal:
        Notes(server, oldest)


def test_a_migration_that_ends_earlier_versions_needs_all_hubs_stopped(url: str) -> None:
    with closing(connect_server(url)) as server:
        Notes(server, NOTES).close()
        # As a database that was created before the versions had their column.
        with closing(psycopg.connect(url, autocommit=True)) as other:
            other.execute(b"ALTER TABLE dragoman.versions DROP COLUMN oldest")
    newer = StoreTables("notes", "notes.db", (*NOTES.migrations, WIDER))
    with closing(psycopg.connect(url, autocommit=True)) as other:
        hold_hub_lock(other)
        with closing(connect_server(url)) as server:
            server.watch(exclusive=False)
            with pytest.raises(ConfigError, match="stop all hubs of this database"):
                Notes(server, newer)
            assert Notes(server, NOTES).list() == []
    with closing(connect_server(url)) as server:
        server.watch(exclusive=False)  # its own lock is none of another hub
        Notes(server, newer).close()
        assert server.known["notes"] == 3


def hold_hub_lock(connection: psycopg.Connection[Any]) -> None:
    """Does as another hub does."""
    connection.execute(f"SELECT pg_advisory_lock_shared({HUB_LOCK})".encode())


def _migrate(url: str, ready: Any, done: Any) -> None:
    ready.wait(60)
    with closing(connect_server(url)) as server:
        notes = Notes(server, NOTES)
        notes.add(f"by {multiprocessing.current_process().name}")
        done.put(server.read_identity())


def test_two_processes_that_migrate_at_once_agree(url: str) -> None:
    forks = multiprocessing.get_context("spawn")
    ready, done = forks.Event(), forks.Queue()
    started = [forks.Process(target=_migrate, args=(url, ready, done)) for _ in range(2)]
    for process in started:
        process.start()
    ready.set()
    assert done.get(timeout=60) == done.get(timeout=60)
    for process in started:
        process.join(60)
    with closing(connect_server(url)) as server:
        assert len(Notes(server, NOTES).list()) == 2


def test_changes_of_another_hub_are_noticed_and_own_ones_are_not(url: str) -> None:
    with closing(connect_server(url)) as here, closing(connect_server(url)) as there:
        here.watch(exclusive=False)
        there.watch(exclusive=False)
        mine, theirs = Notes(here, NOTES), Notes(there, NOTES)
        heard = threading.Event()
        here.follow("notes", heard.set)
        wait_for(lambda: "notes" in here._counters)
        before = mine._base.read_version(now=False)
        mine.add("mine")
        time.sleep(0.1)  # nothing is to come
        assert mine._base.read_version() == before and not heard.is_set()
        begun = time.monotonic()
        theirs.add("theirs")
        assert heard.wait(60)
        assert time.monotonic() - begun < 0.9  # by the notification, not by the poll
        assert mine._base.read_version(now=False) > before
        before = mine._base.read_version()
        theirs.add("more")
        assert mine._base.read_version() > before  # at once


def test_a_defect_in_a_listener_does_not_end_the_watch(url: str) -> None:
    with closing(connect_server(url)) as here, closing(connect_server(url)) as there:
        here.watch(exclusive=False)
        mine, theirs = Notes(here, NOTES), Notes(there, NOTES)
        heard = threading.Event()

        def fail() -> None:
            heard.set()
            raise ValueError("a defect")

        here.follow("notes", fail)
        wait_for(lambda: "notes" in here._counters)
        for words in ("first", "second"):
            heard.clear()
            theirs.add(words)
            assert heard.wait(60)
        wait_for(lambda: not here.problem)
        mine.add("mine")


def test_a_hub_alone_excludes_others_and_several_together_do_not(url: str) -> None:
    with closing(connect_server(url)) as first, closing(connect_server(url)) as second:
        first.watch(exclusive=True)
        with pytest.raises(ConfigError, match=r"in use by another hub.*\[cluster\] secret"):
            second.watch(exclusive=True)
        with pytest.raises(ConfigError, match="in use by another hub"):
            second.watch(exclusive=False)
    with closing(connect_server(url)) as first, closing(connect_server(url)) as second:
        first.watch(exclusive=False)
        second.watch(exclusive=False)
    with closing(connect_server(url)) as third:
        third.watch(exclusive=True)


def test_a_hub_that_follows_at_once_waits_for_the_end_of_its_predecessor(url: str) -> None:
    """The server releases the lock of a hub that has ended only when it notices the end."""
    with psycopg.connect(url, autocommit=True) as ended:
        ended.execute(f"SELECT pg_advisory_lock({HUB_LOCK})")
        unlock = f"SELECT pg_advisory_unlock({HUB_LOCK})"
        release = threading.Timer(0.3, ended.execute, (unlock,))
        with closing(connect_server(url, PostgresLimits(release=60.0))) as server:
            release.start()
            server.watch(exclusive=True)
            release.join()


def test_values_errors_and_bulk_inserts_are_those_of_sqlite(store_place: Any) -> None:
    notes = Notes(store_place, NOTES, {"fold_name": lambda text: text})
    texts = ["a\0b", "é \U0001f600", "\ufdd0", "\ufdd00\0\0", "", "%s ' \\ $1 :x"]
    with notes._transact() as db:
        many = [(text, text.encode(), 1.5) for text in texts]
        db.executemany("INSERT INTO notes (text, body, at) VALUES (?, ?, ?)", many)
        number = notes._base.insert("INSERT INTO notes (text) VALUES (?)", ("last",), "number")
    assert notes.list() == [*texts, "last"]
    rows = notes._read("SELECT text, body, at, size FROM notes WHERE text = ?", ("a\0b",))
    assert rows == [("a\0b", b"a\0b", 1.5, 1)]
    assert notes._read("SELECT body FROM notes WHERE number = ?", (number,)) == [(b"",)]
    (total,) = notes._read("SELECT sum(size + size), sum(at), count(*) FROM notes")
    assert total == (14, 9.0, 7) and [type(one) for one in total] == [int, float, int]
    with pytest.raises(sqlite3.IntegrityError), notes._writer.transaction():
        notes._db.execute("INSERT INTO notes (text) VALUES (?)", ("last",))
    with notes._transact() as db:
        assert db.execute("DELETE FROM notes WHERE size = ?", (True,)).rowcount == 7
    with pytest.raises(StorageFailed, match="cannot be read"):
        notes._read("SELECT nothing FROM notes")
    assert notes.list() == []


def test_a_store_belongs_to_the_thread_that_opened_it(server: PostgresServer) -> None:
    notes = Notes(server, NOTES)
    found: list[Any] = []

    def run() -> None:
        try:
            notes.list()
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert isinstance(found[0], StorageFailed) and "another thread" in str(found[0])


def test_statements_that_take_too_long_fail_alone(server: PostgresServer) -> None:
    server.watch(exclusive=True)
    notes = Notes(server, NOTES)
    assert measure(lambda: notes._read("SELECT pg_sleep(5)")) < 1.2
    assert notes.list() == [] and not server.problem
    with notes._base.allow(10.0):
        notes._read("SELECT pg_sleep(1.2)")
    assert measure(lambda: notes._read("SELECT pg_sleep(5)")) < 1.2


def test_a_server_that_cannot_be_used_is_one_sentence() -> None:
    for url, why in (
        ("postgresql://u:secret@127.0.0.1:9/x", "cannot be used"),
        ("nonsense", "is invalid"),
        ("postgresql:/u:secret@h/x", "is invalid"),
        ("mysql://u:secret@h/x", "is invalid"),
        ("postgresql://u:a@secret@127.0.0.1:9/x", "is invalid: .* %40"),
        ("postgresql://u:1/secret@127.0.0.1:9/x", "is invalid"),
        ("postgresql://u:a secret@127.0.0.1:9/x", "is invalid"),
        ("postgresql://u:a%secret@127.0.0.1:9/x", "is invalid"),
        ("postgresql://u@127.0.0.1:9/x?password=a&secret", "is invalid"),
        ("postgresql://u@127.0.0.1:9/x?password=secret&host=::1", "cannot be used"),
        ("postgres://u:se%63ret@[::1]:9,127.0.0.1:9", "cannot be used"),
        ("postgresql:///x?host=/nowhere", "cannot be used"),
    ):
        with pytest.raises(ConfigError, match=why) as raised:
            connect_server(url)
        assert "secret" not in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("statement", "translated"),
    [
        ("SELECT a FROM b WHERE c = ? AND d = ?", "SELECT a FROM b WHERE c = $1 AND d = $2"),
        ("UPDATE t SET r = x''", "UPDATE t SET r = ''::bytea"),
        ("SELECT instr(a, ?) FROM t", "SELECT strpos(a, $1) FROM t"),
    ],
)
def test_translated_statements(statement: str, translated: str) -> None:
    assert translate(statement) == translated


def test_translated_tables() -> None:
    script = """
    CREATE TABLE schedules (
        id INTEGER PRIMARY KEY, size INTEGER NOT NULL, name TEXT, at REAL, body BLOB
    ) STRICT, WITHOUT ROWID;
    CREATE VIRTUAL TABLE words USING fts5 (key);
    UPDATE schedules SET size = 1;
    """
    names = (("schedules", "other"),)
    (first,) = translate_script(script, names, is_empty=True)
    for part in ("TABLE other", "id BIGINT GENERATED", "size BIGINT", "DOUBLE", "BYTEA", '"C"'):
        assert part in first
    assert "STRICT" not in first and "ROWID" not in first
    assert "UPDATE other" in list(translate_script(script, names, is_empty=False))[-1]


def test_texts_with_nul_keep_their_value() -> None:
    for text in ("a\0b", "\ufdd0", "\ufdd00", "\ufdd01\0", "plain"):
        (stored,) = convert_values([text])
        assert "\0" not in stored and unescape(stored) == text
