from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.core.errors import ConfigError, Full, NotFound
from dragoman.stores.audit import MAX_PENDING, SqliteAudit
from dragoman.stores.records import AuditReader
from dragoman.stores.verify import verify

DONE = {"outcome": "completed", "duration_ms": 1.5}


def entry(verb: str = "files.read", caller: str = "key:ci", trace: str = "t1") -> dict[str, str]:
    return {"verb": verb, "caller": caller, "trace": trace}


async def write(audit: SqliteAudit, count: int) -> list[int]:
    """`count` calls, one after the other, each concluded."""
    seqs = []
    for _ in range(count):
        seqs.append(await audit.intend(entry()))
        audit.conclude(seqs[-1], DONE)
    audit.flush()
    return seqs


async def test_a_call_is_one_record_of_an_intent_and_its_outcome(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    reader = AuditReader(tmp_path)
    seq = await audit.intend(entry())
    (record,) = reader.records(10)
    assert (record.seq, record.outcome, record.intent) == (seq, "running", entry())
    assert abs(record.at - time.time()) < 60
    audit.conclude(seq, DONE)
    audit.flush()
    (record,) = reader.records(10)
    assert (record.seq, record.outcome, record.conclusion) == (seq, "completed", DONE)
    assert record.last > seq
    reader.close()
    audit.close()
    assert verify(tmp_path).ok
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert {"audit.db", "audit.key", "audit.head"} <= set(modes)
    assert set(modes.values()) == {0o600}


async def test_a_thousand_intents_of_one_turn_are_one_commit(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    before = audit.commits
    waiting = [audit.intend(entry(str(n))) for n in range(1000)]
    assert not any(each.done() for each in waiting)
    first = await waiting[0]
    assert audit.commits == before + 1
    assert [each.result() for each in waiting] == list(range(first, first + 1000))
    reader = AuditReader(tmp_path)
    assert [record.intent["verb"] for record in reader.records(2)] == ["999", "998"]
    reader.close()
    audit.close()


async def test_outcomes_are_written_soon_even_if_no_other_call_comes(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    seqs = await asyncio.gather(*(audit.intend(entry()) for _ in range(3)))
    before = audit.commits
    for seq in seqs:
        audit.conclude(seq, DONE)
    assert audit.commits == before
    reader = AuditReader(tmp_path)
    for _ in range(400):
        if reader.records(9, outcome="completed"):
            break
        await asyncio.sleep(0.005)
    assert len(reader.records(9, outcome="completed")) == 3
    assert audit.commits == before + 1
    reader.close()
    audit.close()


async def test_outcomes_go_with_the_next_intent_and_only_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = SqliteAudit(tmp_path)
    seq = await audit.intend(entry())
    before = audit.commits
    audit.conclude(seq, DONE)
    audit.conclude(seq, {"outcome": "failed"})
    assert "has an outcome already" in caplog.text
    await audit.intend(entry())
    assert audit.commits == before + 1
    reader = AuditReader(tmp_path)
    assert [record.outcome for record in reader.records(9)] == ["running", "completed"]
    reader.close()
    audit.close()


async def test_a_call_given_up_before_it_was_stored_is_recorded_as_cancelled(
    tmp_path: Path,
) -> None:
    audit = SqliteAudit(tmp_path)
    gone = audit.intend(entry("gone"))
    gone.cancel()
    await audit.intend(entry("here"))
    reader = AuditReader(tmp_path)
    states = {record.intent["verb"]: record.outcome for record in reader.records(9)}
    assert states == {"gone": "cancelled", "here": "running"}
    reader.close()
    audit.close()
    assert verify(tmp_path).ok


async def test_records_are_found_by_filter_and_page(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    long_one = await audit.intend(entry("slow.one"))
    for n in range(20):
        seq = await audit.intend(entry(f"v{n % 2}", f"key:{n % 3}", f"t{n}"))
        audit.conclude(seq, {"outcome": "refused" if n == 7 else "completed"})
    audit.conclude(long_one, DONE)
    audit.flush()
    reader = AuditReader(tmp_path)
    assert len(reader.records(100, verb="v1")) == 10
    assert len(reader.records(100, verb="v1", caller="key:0")) == 3
    assert [record.intent["trace"] for record in reader.records(9, outcome="refused")] == ["t7"]
    assert [record.intent["verb"] for record in reader.records(9, trace="t4")] == ["v0"]
    paged = []
    before = None
    while page := reader.records(6, before=before):
        paged += page
        before = page[-1].seq
    assert [record.seq for record in paged] == [record.seq for record in reader.records(100)]
    assert paged[-1].seq == long_one
    assert paged[-1].outcome == "completed"
    reader.close()
    audit.close()


async def test_calls_can_be_followed_as_they_end(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    reader = AuditReader(tmp_path)
    place = reader.last_seq()
    first = await audit.intend(entry("first"))
    second = await audit.intend(entry("second"))
    assert reader.records_after(place) == []
    audit.conclude(second, DONE)
    audit.flush()
    (record,) = reader.records_after(place)
    assert (record.seq, record.intent["verb"], record.outcome) == (second, "second", "completed")
    audit.conclude(first, {"outcome": "failed"})
    audit.flush()
    (record,) = reader.records_after(record.last)
    assert (record.seq, record.outcome) == (first, "failed")
    assert reader.records_after(record.last) == []
    reader.close()
    audit.close()


async def test_a_call_whose_hub_is_gone_is_unknown(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    lost = await audit.intend(entry("lost"))
    audit.close()
    reader = AuditReader(tmp_path)
    assert [record.outcome for record in reader.records(9)] == ["unknown"]
    audit = SqliteAudit(tmp_path)
    await audit.intend(entry("new"))
    assert [record.outcome for record in reader.records(9)] == ["running", "unknown"]
    assert reader.records(9)[1].seq == lost
    reader.close()
    audit.close()


def test_where_no_hub_has_run_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no audit"):
        AuditReader(tmp_path)
    assert not verify(tmp_path).ok
    assert list(tmp_path.iterdir()) == []


def test_two_hubs_cannot_write_one_audit(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    with pytest.raises(ConfigError, match="another hub writes the audit"):
        SqliteAudit(tmp_path)
    audit.close()
    audit.close()
    SqliteAudit(tmp_path).close()
    assert verify(tmp_path).ok


async def test_a_closed_audit_refuses_calls(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    seq = await audit.intend(entry())
    waiting = audit.intend(entry())
    audit.close()
    assert await waiting == seq + 1
    with pytest.raises(Full, match="going down"):
        audit.intend(entry())
    audit.conclude(seq, DONE)


async def test_an_audit_that_waits_for_the_disk_reads_the_same(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path, durable=True)
    await write(audit, 3)
    audit.close()
    assert verify(tmp_path).ok
    assert verify(tmp_path).entries == 7


async def test_the_log_is_copied_into_the_database_while_calls_go_on(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    database = tmp_path / "audit.db"
    before = database.stat().st_size
    for _ in range(40):  # well before the log is so long that SQLite does it unasked
        if database.stat().st_size > before + 100_000:
            break
        await write(audit, 100)
    assert database.stat().st_size > before + 100_000
    audit.close()
    assert verify(tmp_path).ok


def test_entries_that_were_changed_can_still_be_listed(tmp_path: Path) -> None:
    SqliteAudit(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "audit.db", isolation_level=None)) as db:
        for seq, body in enumerate([b"{", b"[]", '{"verb": 1', 7, 1.5], 10):
            row = (seq, "intent", None, 1.5, body, b"")
            db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
    reader = AuditReader(tmp_path)
    assert [record.intent for record in reader.records(9)] == [{"damaged": True}] * 5
    reader.close()


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    waiting = [audit.intend(entry()) for _ in range(MAX_PENDING)]
    with pytest.raises(Full, match="wait for the audit"):
        audit.intend(entry())
    await asyncio.gather(*waiting)
    await audit.intend(entry())
    audit.close()


async def test_calls_are_refused_while_the_database_is_held_and_made_again_after(
    tmp_path: Path,
) -> None:
    audit = SqliteAudit(tmp_path)
    running = await audit.intend(entry("running"))
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    audit.conclude(running, DONE)
    with pytest.raises(Full, match=r"cannot be written \(database is locked\)"):
        await audit.intend(entry("refused"))
    started = time.monotonic()
    with pytest.raises(Full, match="locked"):
        audit.intend(entry("refused at once"))
    assert time.monotonic() - started < 0.05
    with pytest.raises(Full, match="locked"):
        audit.flush()
    other.execute("ROLLBACK")
    other.close()
    async with asyncio.timeout(5):
        while True:
            try:
                await audit.intend(entry("again"))
                break
            except Full:
                await asyncio.sleep(0.02)
    reader = AuditReader(tmp_path)
    states = {record.intent["verb"]: record.outcome for record in reader.records(9)}
    assert states == {"running": "completed", "again": "running"}
    reader.close()
    audit.close()
    assert verify(tmp_path).ok


async def test_calls_are_refused_once_the_database_was_taken_away(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    await audit.intend(entry())
    (tmp_path / "audit.db").rename(tmp_path / "elsewhere.db")
    async with asyncio.timeout(5):
        with pytest.raises(Full, match=r"audit\.db"):
            while True:
                await audit.intend(entry())
                await asyncio.sleep(0.02)
    (tmp_path / "elsewhere.db").rename(tmp_path / "audit.db")
    async with asyncio.timeout(5):
        while True:
            try:
                await audit.intend(entry())
                break
            except Full:
                await asyncio.sleep(0.02)
    audit.close()
    assert verify(tmp_path).ok


FULL_DISK = """
import asyncio, json, resource, sys
from pathlib import Path
from dragoman.core.errors import Full
from dragoman.stores.audit import SqliteAudit

async def main():
    home = Path(sys.argv[1])
    audit = SqliteAudit(home)
    running = [await audit.intend({"verb": "before"}) for _ in range(50)]
    size = max(path.stat().st_size for path in home.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, resource.RLIM_INFINITY))
    passed = refused = most = 0
    for _ in range(3000):
        try:
            running.append(await audit.intend({"verb": "during", "filler": "x" * 200}))
            passed += 1
        except Full as error:
            message = str(error)
            refused += 1
        most = max(most, len(audit._pending))
    for seq in running:
        audit.conclude(seq, {"outcome": "completed"})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    async with asyncio.timeout(10):
        while True:
            try:
                await audit.intend({"verb": "after"})
                break
            except Full:
                await asyncio.sleep(0.02)
    audit.close()
    print(json.dumps([passed, refused, most, len(running), message]))

asyncio.run(main())
"""


def test_calls_are_refused_while_the_disk_is_full_and_made_again_after(tmp_path: Path) -> None:
    run = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=50)
    passed, refused, most, running, message = json.loads(done.stdout)
    assert passed < 100
    assert passed + refused == 3000
    assert most < 10
    assert "the call was refused: the audit in" in message
    verdict = verify(tmp_path)
    assert verdict.ok, verdict
    reader = AuditReader(tmp_path)
    assert len(reader.records(9999, outcome="completed")) == running == passed + 50
    assert len(reader.records(9999, verb="during")) == passed
    reader.close()


async def test_a_head_that_cannot_be_written_refuses_the_call_and_says_so_in_its_record(
    tmp_path: Path,
) -> None:
    audit = SqliteAudit(tmp_path)
    head = os.dup(audit._head)
    shut = os.open(tmp_path / "audit.head", os.O_RDONLY)
    os.dup2(shut, audit._head)
    with pytest.raises(Full, match="cannot be written"):
        await audit.intend(entry())
    os.dup2(head, audit._head)
    os.close(head)
    os.close(shut)
    audit.flush()
    reader = AuditReader(tmp_path)
    assert [record.outcome for record in reader.records(9)] == ["refused"]
    reader.close()
    audit.close()
    assert verify(tmp_path).ok


async def test_old_entries_are_pruned_and_the_rest_is_still_proved(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    await write(audit, 1500)
    last = audit._tip.seq
    assert await audit.prune(3600, 10_000) == 0
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    turn()
    assert await audit.prune(3600, 1000) == last - 1000
    assert turns >= 4
    verdict = verify(tmp_path)
    assert verdict.ok, verdict
    assert (verdict.entries, verdict.first_seq, verdict.last_seq) == (1000, last - 999, last)
    assert await audit.prune(0, 10_000) == 1000
    assert verify(tmp_path).ok
    assert verify(tmp_path).entries == 0
    audit.close()
    audit = SqliteAudit(tmp_path)
    await write(audit, 1)
    audit.close()
    verdict = verify(tmp_path)
    assert verdict.ok, verdict
    assert (verdict.first_seq, verdict.entries) == (last + 1, 3)


async def test_a_call_that_still_runs_is_never_pruned(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    done = await write(audit, 10)
    running = await audit.intend(entry("running"))
    await write(audit, 10)
    assert await audit.prune(0, 0) == running - 1
    reader = AuditReader(tmp_path)
    assert reader.records(99)[-1].seq == running
    assert reader.records(99)[-1].outcome == "running"
    audit.conclude(running, DONE)
    assert await audit.prune(0, 0) > 20
    assert reader.records(99) == []
    assert done
    reader.close()
    audit.close()
    assert verify(tmp_path).ok
