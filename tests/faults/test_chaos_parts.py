"""What the random experiments are built of: the plan, the ledger's judgement, the proxies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from faults.chaos import DECK, plan_faults
from faults.chaos_loads import list_repeated
from faults.ledger import count_effects, note
from faults.links import CUT, PASS, run_links
from faults.statements import CLOSED_AFTER, CLOSED_BEFORE, CODES, StatementLink
from psycopg.pq import TransactionStatus
from tests.live.cluster_rig import find_shared_server
from tests.peers.postgres_server import create_database

MINUTE = 1_800_000_000.0 // 60 * 60


def test_plan_of_a_seed_is_repeated_and_has_every_fault() -> None:
    plans = [[draw() for _ in DECK] for draw in (plan_faults(7, 3), plan_faults(7, 3))]
    assert plans[0] == plans[1]
    assert Counter(fault.kind for fault in plans[0]) == Counter(DECK)
    assert all(fault.seconds >= 1.0 for fault in plans[0])


@pytest.mark.parametrize(
    ("moments", "repeated"),
    [
        ([0.2, 60.2, 120.4], 0),
        ([0.2, 33.0, 60.2], 1),
        ([0.2, 0.9], 1),
        ([0.2, 119.9, 120.6], 0),
        ([0.2, 120.3, 121.5], 0),  # the first of both is that of the minute before, and late
    ],
)
def test_run_of_a_schedule_in_a_minute_that_had_one_is_a_repetition(
    moments: list[float], repeated: int
) -> None:
    assert len(list_repeated([MINUTE + moment for moment in moments])) == repeated


def test_ledger_counts_what_has_begun(tmp_path: Path) -> None:
    for event, key in (("begun", "a"), ("ended", "a"), ("begun", "b"), ("begun", "a")):
        note(tmp_path / "ledger", event, key)
    assert count_effects(tmp_path / "ledger") == Counter({"a": 2, "b": 1})


@pytest.fixture
def proxied() -> Iterator[tuple[StatementLink, str]]:
    """A proxy before a database with one row, and its address."""
    database = create_database(find_shared_server())
    port = database.rpartition(":")[2].partition("/")[0]
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE things (x INTEGER)")
        connection.execute("INSERT INTO things VALUES (1)")
    link = StatementLink()
    link.target = int(port)
    with run_links() as links:
        links.start(link)
        yield link, database.replace(f":{port}/", f":{link.port}/")


def count_rows(connection: psycopg.Connection[tuple[int]]) -> int:
    row = connection.execute("SELECT count(*) FROM things").fetchone()
    return row[0] if row else -1


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("prepared", [False, True])
def test_server_itself_fails_the_statement(
    proxied: tuple[StatementLink, str], code: str, prepared: bool
) -> None:
    """The transaction is aborted as by a real error, and the connection goes on."""
    link, url = proxied
    insert = "INSERT INTO things VALUES (%s)"
    with psycopg.connect(url, autocommit=True, prepare_threshold=0 if prepared else 5) as database:
        database.execute(insert, (2,), prepare=prepared)
        with database.transaction(force_rollback=True):
            link.arm("INSERT INTO things VALUES ($1)", code)
            with pytest.raises(psycopg.Error) as failure:
                database.execute(insert, (3,), prepare=prepared)
            assert failure.value.sqlstate == code and link.fired.is_set()
            assert database.info.transaction_status == TransactionStatus.INERROR
        database.execute(insert, (4,), prepare=prepared)
        assert count_rows(database) == 3


def test_part_of_a_query_fails_after_the_parts_before_it(
    proxied: tuple[StatementLink, str],
) -> None:
    link, url = proxied
    with psycopg.connect(url, autocommit=True) as database:
        link.arm("UPDATE things SET x = 2", "55P03")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            database.execute("BEGIN; UPDATE things SET x = 2")
        assert database.info.transaction_status == TransactionStatus.INERROR
        database.execute("ROLLBACK")


def test_failed_commit_ends_the_transaction_without_its_changes(
    proxied: tuple[StatementLink, str],
) -> None:
    link, url = proxied
    with psycopg.connect(url, autocommit=True) as database, database.pipeline():
        database.execute("BEGIN")
        database.execute("INSERT INTO things VALUES (2)")
        link.arm("COMMIT", "40001")
        with pytest.raises(psycopg.errors.SerializationFailure):
            database.execute("COMMIT").fetchone()
    with psycopg.connect(url, autocommit=True) as database:
        assert count_rows(database) == 1


@pytest.mark.parametrize(("fault", "rows"), [(CLOSED_BEFORE, 1), (CLOSED_AFTER, 2)])
def test_connection_is_closed_before_or_after_the_statement_is_executed(
    proxied: tuple[StatementLink, str], fault: str, rows: int
) -> None:
    link, url = proxied
    with psycopg.connect(url, autocommit=True) as database:
        link.arm("INSERT INTO things VALUES (2)", fault)
        with pytest.raises(psycopg.OperationalError):
            database.execute("INSERT INTO things VALUES (2)")
    with psycopg.connect(url, autocommit=True) as database:
        assert count_rows(database) == rows


def test_link_that_is_cut_resets_and_refuses_until_it_passes_again() -> None:
    database = create_database(find_shared_server())
    port = database.rpartition(":")[2].partition("/")[0]
    with run_links() as links:
        link = links.add(int(port))
        url = database.replace(f":{port}/", f":{link.port}/")
        with psycopg.connect(url, autocommit=True) as connection:
            links.set(link, CUT)
            with pytest.raises(psycopg.OperationalError):
                while True:
                    connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        links.set(link, PASS)
        while True:
            try:
                psycopg.connect(url).close()
                break
            except psycopg.OperationalError:
                continue
