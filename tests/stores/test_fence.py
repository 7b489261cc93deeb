"""No store of a hub in a cluster writes after the other hubs have declared it dead."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dragoman.stores
from dragoman.core.errors import LeaseExpired, StorageFailed
from dragoman.core.ports import TaskChange
from dragoman.core.principal import Principal
from dragoman.stores.all_tables import ALL_TABLES
from dragoman.stores.cluster import SCHEMA
from dragoman.stores.database import FencedError, LoopStore, StoreTables, connect_server
from dragoman.stores.fence import Fence
from dragoman.stores.postgres import PostgresServer
from dragoman.stores.postgres_async import AsyncLane
from dragoman.stores.runs_postgres import open_postgres_runs
from dragoman.stores.tasks import DatabaseTaskStore

MARK, OTHER = "aaaaaaaa", "bbbbbbbb"
JOIN = (
    "INSERT INTO dragoman.hubs (id, node, version, address, state) "
    "VALUES (%s, 'n', '1', 'x', 'ready')"
)
ANN = Principal("key", "ann", "default")
STORES = Path(dragoman.stores.__path__[0])

EXEMPT = {
    "fence.py": "begins the fenced transactions",
    "cluster.py": "the membership itself: each statement is conditional; tables are created alone",
    "copy_home.py": "a command, which no hub runs beside",
    "audit/copy_home.py": "a command, which no hub runs beside",
    "audit/shared_copy.py": "a chain belongs to a home, and goes on only at its sealed head",
    "audit/shipper.py": "as shared_copy.py, which it uses",
    "audit/shared_prune.py": "deletes what is old, at whichever hub",
    "audit/verify.py": "SQLite",
    "audit/chain.py": "SQLite",
    "audit/log.py": "SQLite",
    "audit/shared_verify.py": "reads",
    "sqlite.py": "SQLite",
    "handover.py": "fenced lanes",
    "runs_postgres.py": "a pool whose connections are read-only, and fenced transactions",
    "postgres_async.py": "defines lanes",
    "postgres_connections.py": "defines connections",
}
"""The modules that open connections or begin transactions of their own, and why they may."""


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        connection.execute(SCHEMA.encode())
        for mark in (MARK, OTHER):
            connection.execute(JOIN, (mark,))
        yield connection


@pytest.fixture
def server(postgres_url: str, admin: psycopg.Connection[Any]) -> Iterator[PostgresServer]:
    with closing(connect_server(postgres_url)) as server:
        server.fence.mark = MARK
        yield server


def declare_dead(admin: psycopg.Connection[Any], mark: str = MARK) -> None:
    admin.execute("UPDATE dragoman.hubs SET state = 'dead', heir = 'h' WHERE id = %s", (mark,))


@pytest.mark.parametrize("tables", ALL_TABLES, ids=lambda tables: tables.store)
def test_no_store_writes_after_its_hub_was_declared_dead(
    server: PostgresServer, admin: psycopg.Connection[Any], tables: StoreTables
) -> None:
    with closing(LoopStore(server, tables)) as store:
        write = "UPDATE dragoman.identity SET id = id"
        with pytest.raises(sqlite3.OperationalError, match="read-only"):
            store._db.execute(write)  # there is no other way than a transaction
        with store._transact() as db:
            db.execute(write)
        store._base.run([(write, ())])
        declare_dead(admin)
        with pytest.raises(LeaseExpired, match="send it again"), store._transact():
            raise AssertionError("a transaction was begun")
        with pytest.raises(FencedError):
            store._base.run([(write, ())])
        assert store._read("SELECT 1") == [(1,)]
        server.fence.mark = OTHER  # it has joined again
        with store._transact() as db:
            db.execute(write)


async def test_no_lane_of_the_event_loop_writes_after_its_hub_was_declared_dead(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    fence = Fence()
    fence.mark = MARK
    lane, runs = AsyncLane(postgres_url, fence), None
    try:
        with pytest.raises(StorageFailed, match="read-only"):
            await lane.run("DELETE FROM dragoman.leases")
        await lane.write("DELETE FROM dragoman.leases")
        runs = await open_postgres_runs(postgres_url, fence, is_shared=True)
        with pytest.raises(StorageFailed, match="read-only"):
            await runs._read("DELETE FROM leases RETURNING name")
        await runs.rescue()
        declare_dead(admin)
        with pytest.raises(LeaseExpired):
            await lane.write("DELETE FROM dragoman.leases")
        with pytest.raises(LeaseExpired):
            await runs.rescue()
        assert await lane.run("SELECT 1") == [(1,)]
    finally:
        lane.close()
        if runs is not None:
            await runs.aclose()


def build_change(id: str) -> TaskChange:
    return TaskChange(0, id, ANN, "working", 1.0, 1.0, {}, ())


def test_a_task_and_its_key_are_not_stored_by_a_hub_that_was_declared_dead(
    server: PostgresServer, admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    with (
        closing(connect_server(postgres_url)) as elsewhere,
        closing(DatabaseTaskStore(server, hub=MARK)) as dead,
        closing(DatabaseTaskStore(elsewhere, hub=OTHER)) as heir,
    ):
        elsewhere.fence.mark = OTHER
        assert dead.claim_key(ANN, "stored", f"{MARK}-1") == f"{MARK}-1"
        dead.save([build_change(f"{MARK}-1")])
        assert dead.claim_key(ANN, "claimed", f"{MARK}-2") == f"{MARK}-2"
        assert heir.claim_key(ANN, "claimed", f"{OTHER}-2") == f"{MARK}-2"
        assert heir.find_left([MARK]) == {MARK} and not heir.find_left([OTHER])
        declare_dead(admin)
        with pytest.raises(LeaseExpired):
            dead.save([build_change(f"{MARK}-2")])
        with pytest.raises(LeaseExpired):
            dead.claim_key(ANN, "late", f"{MARK}-3")
        # A key without a task is free at once; one with a task stays with the task.
        assert heir.claim_key(ANN, "claimed", f"{OTHER}-2") == f"{OTHER}-2"
        assert heir.claim_key(ANN, "stored", f"{OTHER}-1") == f"{MARK}-1"
        [ended] = heir.load_ended(MARK)
        assert heir.take_over(MARK, [ended.key], []) == {ended.key}
        assert not heir.find_left([MARK])


def test_a_key_is_free_again_if_its_task_was_stored_and_the_answer_was_lost(
    server: PostgresServer, admin: psycopg.Connection[Any]
) -> None:
    """The client got an error, and sends the message again."""
    with closing(DatabaseTaskStore(server, hub=MARK)) as store:
        run = store._base.run

        def lose(statements: Any) -> Any:
            run(statements)
            raise sqlite3.OperationalError("the answer was lost")

        assert store.claim_key(ANN, "k", f"{MARK}-1") == f"{MARK}-1"
        store._base.run = lose  # type: ignore[method-assign]
        with pytest.raises(StorageFailed):
            store.save([build_change(f"{MARK}-1")])
        store._base.run = run  # type: ignore[method-assign]
        assert store.claim_key(ANN, "k", f"{MARK}-2") == f"{MARK}-2"
        store.save([build_change(f"{MARK}-2")])
        assert [task.id for task in store.load()] == [f"{MARK}-2"]


def test_transactions_begin_in_one_place() -> None:
    """What begins a transaction of PostgreSQL without the fence is listed, with a reason."""
    begins = r"\.transaction\(\)|[\"']BEGIN|READ WRITE|read_only = off"
    pattern = re.compile(rf"{begins}|connect_async\(|AsyncLane\(|class AsyncLane")
    found = set()
    for file in STORES.rglob("*.py"):
        text = re.sub(r"writer\.transaction\(\)", "", file.read_text(encoding="utf-8"))
        if pattern.search(text):
            found.add(str(file.relative_to(STORES)))
    assert found == set(EXEMPT)
