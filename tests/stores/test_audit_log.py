from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.errors import ConfigError, NotFound, ShuttingDown, StorageFailed
from dragoman.stores.audit import reader as reader_module
from dragoman.stores.audit.journal import SIZE
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.reader import AuditReader
from dragoman.stores.audit.verify import verify

DONE = {"outcome": "completed", "duration_ms": 1.5}


def entry(verb: str = "files.read", caller: str = "key:ci", trace: str = "t1") -> dict[str, str]:
    return {"verb": verb, "caller": caller, "trace": trace}


def saved(home: Path) -> int:
    """How many entries the database itself has."""
    with closing(sqlite3.connect(home / "audit.db")) as db:
        count: int = db.execute("SELECT count(*) FROM entries").fetchone()[0]
    return count


async def write(audit: SqliteAuditLog, count: int) -> list[int]:
    """`count` calls, one after the other, each concluded."""
    seqs = []
    for _ in range(count):
        seqs.append(audit.intend(entry()))
        audit.conclude(seqs[-1], DONE)
    audit.flush()
    return seqs


async def test_a_call_is_one_record_of_an_intent_and_its_outcome(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    reader = AuditReader(tmp_path)
    seq = audit.intend(entry())
    (record,) = reader.list_records(10)
    assert (record.seq, record.outcome, record.intent) == (seq, "running", entry())
    assert abs(record.at - time.time()) < 60
    audit.conclude(seq, DONE)
    audit.flush()
    (record,) = reader.list_records(10)
    assert (record.seq, record.outcome, record.conclusion) == (seq, "completed", DONE)
    assert record.last > seq
    reader.close()
    audit.close()
    assert verify(tmp_path).ok
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert {"audit.db", "audit.key", "audit.head"} <= set(modes)
    assert set(modes.values()) == {0o600}


async def test_search_decodes_only_records_that_may_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    decode_body = reader_module.decode_body

    def decode(body: bytes) -> Mapping[str, Any]:
        decoded.append(body)
        return decode_body(body)

    monkeypatch.setattr(reader_module, "decode_body", decode)
    audit = SqliteAuditLog(tmp_path)
    await write(audit, 50)
    seq = audit.intend({**entry(), "verb": 'say."\u00e9t\u00e9"'})
    audit.conclude(seq, DONE)
    audit.flush()
    reader = AuditReader(tmp_path)
    assert reader.list_records(10, verb="no.thing") == [] == reader.list_records(10, trace="none")
    assert decoded == []
    (record,) = reader.list_records(10, verb='say."\u00e9t\u00e9"', outcome="completed")
    assert record.seq == seq and len(decoded) == 2
    assert len(reader.list_records(99, verb=entry()["verb"])) == 50
    reader.close()
    audit.close()


async def test_intents_of_one_loop_turn_are_stored_in_one_commit(
    tmp_path: Path,
) -> None:
    audit = SqliteAuditLog(tmp_path)
    reader = AuditReader(tmp_path)
    before = audit.commits
    seqs = [audit.intend(entry(str(n))) for n in range(1000)]
    assert seqs == list(range(seqs[0], seqs[0] + 1000))
    assert (audit.commits, saved(tmp_path)) == (before, 1)
    listed = reader.list_records(2000)
    assert [record.seq for record in listed] == seqs[::-1]
    assert {record.outcome for record in listed} == {"running"}
    assert reader.find_last_seq() == seqs[-1]
    async with asyncio.timeout(60):
        while audit.commits == before:
            await asyncio.sleep(0.005)
    assert (audit.commits, saved(tmp_path)) == (before + 1, 1001)
    assert reader.list_records(2000) == listed
    assert reader.find_last_seq() == seqs[-1]
    reader.close()
    audit.close()


async def test_entries_reach_the_database_soon_without_further_calls(
    tmp_path: Path,
) -> None:
    audit = SqliteAuditLog(tmp_path)
    seqs = [audit.intend(entry()) for _ in range(3)]
    audit.flush()
    before = audit.commits
    for seq in seqs:
        audit.conclude(seq, DONE)
    assert audit.commits == before
    async with asyncio.timeout(60):
        while saved(tmp_path) < 7:
            await asyncio.sleep(0.005)
    reader = AuditReader(tmp_path)
    listed = reader.list_records(9, outcome="completed")
    assert [record.seq for record in listed] == seqs[::-1]
    assert audit.commits == before + 1
    reader.close()
    audit.close()


async def test_outcomes_are_stored_with_the_next_intent(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    before = audit.commits
    seqs = [audit.intend(entry()) for _ in range(3)]
    for seq in seqs:
        audit.conclude(seq, DONE)
    reader = AuditReader(tmp_path)
    assert [record.outcome for record in reader.list_records(9)] == ["running"] * 3
    last = audit.intend(entry())
    states = [(record.seq, record.outcome) for record in reader.list_records(9)]
    assert states == [(last, "running"), *((seq, "completed") for seq in seqs[::-1])]
    assert (audit.commits, saved(tmp_path)) == (before, 1)
    assert verify(tmp_path).entries == 8
    reader.close()
    audit.close()


async def test_a_call_has_one_outcome(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = SqliteAuditLog(tmp_path)
    seq = audit.intend(entry())
    audit.conclude(seq, DONE)
    audit.conclude(seq, {"outcome": "failed"})
    assert "already has an outcome" in caplog.text
    audit.intend(entry())
    reader = AuditReader(tmp_path)
    assert [record.outcome for record in reader.list_records(9)] == ["running", "completed"]
    reader.close()
    audit.close()


async def test_records_are_found_by_filter_and_page(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    long_one = audit.intend(entry("slow.one"))
    for n in range(20):
        seq = audit.intend(entry(f"v{n % 2}", f"key:{n % 3}", f"t{n}"))
        audit.conclude(seq, {"outcome": "refused" if n == 7 else "completed"})
    audit.conclude(long_one, DONE)
    audit.flush()
    reader = AuditReader(tmp_path)
    assert len(reader.list_records(100, verb="v1")) == 10
    assert len(reader.list_records(100, verb="v1", caller="key:0")) == 3
    assert [record.intent["trace"] for record in reader.list_records(9, outcome="refused")] == [
        "t7"
    ]
    assert [record.intent["verb"] for record in reader.list_records(9, trace="t4")] == ["v0"]
    paged = []
    before = None
    while page := reader.list_records(6, before=before):
        paged += page
        before = page[-1].seq
    assert [record.seq for record in paged] == [record.seq for record in reader.list_records(100)]
    assert paged[-1].seq == long_one
    assert paged[-1].outcome == "completed"
    reader.close()
    audit.close()


async def test_audit_tail_follows_calls_as_they_end(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    reader = AuditReader(tmp_path)
    place = reader.find_last_seq()
    first = audit.intend(entry("first"))
    second = audit.intend(entry("second"))
    assert reader.list_records_after(place) == []
    audit.conclude(second, DONE)
    audit.intend(entry("third"))
    (record,) = reader.list_records_after(place)
    assert (record.seq, record.intent["verb"], record.outcome) == (second, "second", "completed")
    audit.flush()
    assert reader.list_records_after(place) == [record]
    audit.conclude(first, {"outcome": "failed"})
    audit.intend(entry("fourth"))
    assert len(reader.list_records_after(place, 1)) == 1
    assert len(reader.list_records_after(place, 2)) == 2
    (record,) = reader.list_records_after(record.last)
    assert (record.seq, record.intent["verb"], record.outcome) == (first, "first", "failed")
    audit.flush()
    assert reader.list_records_after(record.last) == []
    reader.close()
    audit.close()


async def test_call_of_a_dead_hub_has_an_unknown_outcome(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    lost = audit.intend(entry("lost"))
    audit.close()
    reader = AuditReader(tmp_path)
    assert [record.outcome for record in reader.list_records(9)] == ["unknown"]
    audit = SqliteAuditLog(tmp_path)
    audit.intend(entry("new"))
    assert [record.outcome for record in reader.list_records(9)] == ["running", "unknown"]
    assert reader.list_records(9)[1].seq == lost
    reader.close()
    audit.close()


def test_audit_of_an_unused_home_is_empty(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no audit"):
        AuditReader(tmp_path)
    assert not verify(tmp_path).ok
    assert list(tmp_path.iterdir()) == []


def test_second_writer_of_an_audit_is_refused(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    with pytest.raises(ConfigError, match="another hub uses the audit log"):
        SqliteAuditLog(tmp_path)
    audit.close()
    audit.close()
    SqliteAuditLog(tmp_path).close()
    assert verify(tmp_path).ok


async def test_a_closed_audit_refuses_calls(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    seq = audit.intend(entry())
    audit.close()
    assert saved(tmp_path) == 2
    with pytest.raises(ShuttingDown, match="shutting down"):
        audit.intend(entry())
    audit.conclude(seq, DONE)


async def test_durable_audit_reads_like_a_normal_one(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path, durable=True)
    await write(audit, 3)
    audit.close()
    assert verify(tmp_path).ok
    assert verify(tmp_path).entries == 7


async def test_journal_is_copied_into_the_database_during_calls(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    database = tmp_path / "audit.db"
    before = database.stat().st_size
    for _ in range(40):  # well before the log is so long that SQLite does it unasked
        if database.stat().st_size > before + 100_000:
            break
        for _ in range(100):
            await write(audit, 1)
            await asyncio.sleep(0)
    assert database.stat().st_size > before + 100_000
    audit.close()
    assert verify(tmp_path).ok


def test_changed_entries_are_still_listed(tmp_path: Path) -> None:
    SqliteAuditLog(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "audit.db", isolation_level=None)) as db:
        for seq, body in enumerate([b"{", b"[]", '{"verb": 1', 7, 1.5], 10):
            row = (seq, "intent", None, 1.5, body, b"")
            db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
    reader = AuditReader(tmp_path)
    assert [record.intent for record in reader.list_records(9)] == [{"damaged": True}] * 5
    reader.close()


async def test_full_journal_is_checkpointed_and_reused(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    before = audit.commits
    seqs = [audit.intend(entry("x" * 20_000)) for _ in range(500)]
    assert audit.commits == before + 500 // (SIZE // 20_000)
    for seq in seqs:
        audit.conclude(seq, DONE)
    assert verify(tmp_path).ok
    audit.close()
    reader = AuditReader(tmp_path)
    assert len(reader.list_records(999, outcome="completed")) == 500
    reader.close()
    assert (tmp_path / "audit.journal").stat().st_size == SIZE
    assert saved(tmp_path) == verify(tmp_path).entries == 1001


async def test_pending_database_writes_are_bounded_without_losing_outcomes(
    tmp_path: Path,
) -> None:
    audit = SqliteAuditLog(tmp_path)
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    seqs: list[int] = []
    with pytest.raises(StorageFailed, match="locked"):
        while len(seqs) < 1000:
            seqs.append(audit.intend(entry("x" * 20_000)))
    assert 40 < len(seqs) <= SIZE // 20_000
    for seq in seqs:
        audit.conclude(seq, {"outcome": "completed", "message": "x" * 300})
    assert saved(tmp_path) == 1
    other.execute("ROLLBACK")
    other.close()
    audit.flush()
    reader = AuditReader(tmp_path)
    assert len(reader.list_records(999, outcome="completed")) == len(seqs)
    reader.close()
    with pytest.raises(StorageFailed, match="too long"):
        audit.intend(entry("x" * 70_000))
    audit.close()
    assert verify(tmp_path).ok


async def test_calls_continue_while_the_database_is_locked(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(60):  # several attempts to save fall in this time
        audit.conclude(audit.intend(entry("stored")), DONE)
        await asyncio.sleep(0.01)
    assert saved(tmp_path) == 1
    with pytest.raises(StorageFailed, match="locked"):
        audit.flush()  # as checkpoints do
    assert await audit.prune(0.0, 0) == 0
    audit.conclude(audit.intend(entry("stored")), DONE)
    other.execute("ROLLBACK")
    other.close()
    async with asyncio.timeout(60):
        while audit.has_unsaved_entries:
            await asyncio.sleep(0.02)
    assert saved(tmp_path) == 123
    audit.close()
    assert verify(tmp_path).ok


async def test_calls_are_refused_when_the_journal_of_a_locked_database_is_full(
    tmp_path: Path,
) -> None:
    audit = SqliteAuditLog(tmp_path)
    running = audit.intend(entry("running"))
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    audit.conclude(running, DONE)
    stored = 0
    async with asyncio.timeout(60):
        with pytest.raises(StorageFailed, match=r"cannot be written \(database is locked\)"):
            while True:
                audit.conclude(audit.intend(entry("x" * 60_000)), DONE)
                stored += 1
                await asyncio.sleep(0.005)
    assert 0 < stored < 20
    spent = time.thread_time()
    with pytest.raises(StorageFailed, match="locked"):
        audit.intend(entry("refused at once"))
    assert time.thread_time() - spent < 0.05
    with pytest.raises(StorageFailed, match="locked"):
        audit.flush()
    other.execute("ROLLBACK")
    other.close()
    async with asyncio.timeout(60):
        while True:
            try:
                audit.intend(entry("again"))
                break
            except StorageFailed:
                await asyncio.sleep(0.02)
    reader = AuditReader(tmp_path)
    states = [(record.intent["verb"], record.outcome) for record in reader.list_records(99)]
    assert states == [
        ("again", "running"),
        ("x" * 60_000, "refused"),
        *[("x" * 60_000, "completed")] * stored,
        ("running", "completed"),
    ]
    reader.close()
    audit.close()
    assert verify(tmp_path).ok


async def test_deleted_journal_is_created_again(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    audit.intend(entry())
    (tmp_path / "audit.journal").unlink()
    audit.flush()
    seq = audit.intend(entry("after"))
    reader = AuditReader(tmp_path)
    assert reader.list_records(1)[0].seq == seq
    reader.close()
    assert verify(tmp_path).entries == 3
    assert (tmp_path / "audit.journal").stat().st_mode & 0o777 == 0o600
    audit.close()
    assert verify(tmp_path).ok


async def test_calls_are_refused_after_the_database_is_deleted(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    audit.intend(entry())
    (tmp_path / "audit.db").rename(tmp_path / "elsewhere.db")
    async with asyncio.timeout(60):
        with pytest.raises(StorageFailed, match=r"audit\.db"):
            while True:
                audit.intend(entry())
                await asyncio.sleep(0.02)
    (tmp_path / "elsewhere.db").rename(tmp_path / "audit.db")
    async with asyncio.timeout(60):
        while True:
            try:
                audit.intend(entry())
                break
            except StorageFailed:
                await asyncio.sleep(0.02)
    audit.close()
    assert verify(tmp_path).ok


FULL_DISK = """
import asyncio, json, resource, sys
from pathlib import Path
from dragoman.core.errors import ShuttingDown, StorageFailed
from dragoman.stores.audit.log import SqliteAuditLog

async def main():
    home = Path(sys.argv[1])
    audit = SqliteAuditLog(home)
    running = [audit.intend({"verb": "before"}) for _ in range(50)]
    audit.flush()
    size = max(path.stat().st_size for path in home.glob("audit.db*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, resource.RLIM_INFINITY))
    passed = refused = most = 0
    for _ in range(600):
        try:
            running.append(audit.intend({"verb": "during", "filler": "x" * 200}))
            passed += 1
        except StorageFailed as error:
            message = str(error)
            refused += 1
        most = max(most, len(audit._unsaved))
        await asyncio.sleep(0.002)
    for seq in running:
        audit.conclude(seq, {"outcome": "completed"})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    async with asyncio.timeout(60):
        while True:
            try:
                audit.intend({"verb": "after"})
                break
            except StorageFailed:
                await asyncio.sleep(0.02)
    audit.close()
    print(json.dumps([passed, refused, most, len(running), message]))

asyncio.run(main())
"""


def test_calls_are_refused_while_the_disk_is_full_and_resume_after(tmp_path: Path) -> None:
    run = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60)
    passed, refused, most, running, message = json.loads(done.stdout)
    assert passed < 100
    assert passed + refused == 600
    assert most < 120
    assert "the call was refused: the audit log in" in message
    verdict = verify(tmp_path)
    assert verdict.ok, verdict
    reader = AuditReader(tmp_path)
    assert len(reader.list_records(9999, outcome="completed")) == running == passed + 50
    assert len(reader.list_records(9999, verb="during")) == passed
    reader.close()


async def test_unwritable_head_refuses_calls_until_writable(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    head = os.dup(audit._head)
    shut = os.open(tmp_path / "audit.head", os.O_RDONLY)
    os.dup2(shut, audit._head)
    audit.conclude(audit.intend(entry("before")), DONE)
    with pytest.raises(StorageFailed, match="cannot be written"):
        audit.flush()
    with pytest.raises(StorageFailed, match="cannot be written"):
        audit.intend(entry("refused"))
    assert verify(tmp_path).entries == 3
    os.dup2(head, audit._head)
    os.close(head)
    os.close(shut)
    audit.flush()
    audit.intend(entry("after"))
    audit.close()
    reader = AuditReader(tmp_path)
    states = [(record.intent["verb"], record.outcome) for record in reader.list_records(9)]
    assert states == [("after", "unknown"), ("before", "completed")]
    reader.close()
    assert verify(tmp_path).ok


async def test_unwritable_journal_refuses_calls_until_the_database_catches_up(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    audit = SqliteAuditLog(home)
    running = audit.intend(entry("running"))
    journal = os.dup(audit._journal._file)
    shut = os.open(home / "audit.journal", os.O_RDONLY)
    os.dup2(shut, audit._journal._file)
    with pytest.raises(StorageFailed, match="cannot be written"):
        audit.intend(entry("refused"))
    shutil.copytree(home, tmp_path / "killed now")
    os.dup2(journal, audit._journal._file)
    os.close(journal)
    os.close(shut)
    audit.conclude(running, DONE)  # behind a gap it would be unreadable, so it waits
    shutil.copytree(home, tmp_path / "killed later")
    for killed in ("killed now", "killed later"):
        verdict = verify(tmp_path / killed)
        assert (verdict.problem, verdict.entries) == (None, 2)
    audit.flush()
    audit.intend(entry("again"))
    reader = AuditReader(home)
    states = [(record.intent["verb"], record.outcome) for record in reader.list_records(9)]
    assert states == [("again", "running"), ("refused", "refused"), ("running", "completed")]
    reader.close()
    audit.close()
    assert verify(home).ok


HALF_A_WRITE = """
import resource, shutil, sys
from pathlib import Path
from dragoman.core.errors import ShuttingDown, StorageFailed
from dragoman.stores.audit.log import SqliteAuditLog

home = Path(sys.argv[1])
audit = SqliteAuditLog(home / "alive")
audit.intend({"verb": "before"})
limit = audit._journal._end + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    audit.intend({"verb": "refused"})
except StorageFailed as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
shutil.copytree(home / "alive", home / "killed")
audit.flush()
audit.intend({"verb": "after"})
audit.close()
"""


@pytest.mark.parametrize("taken", [1, 40, 120])
def test_partial_journal_write_refuses_the_call_without_a_break(tmp_path: Path, taken: int) -> None:
    (tmp_path / "alive").mkdir()
    run = [sys.executable, "-c", HALF_A_WRITE, str(tmp_path), str(taken)]
    done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60)
    assert "only a part of" in done.stdout
    verdict = verify(tmp_path / "killed")
    assert (verdict.problem, verdict.entries) == (None, 2)
    assert verify(tmp_path / "alive").ok
    reader = AuditReader(tmp_path / "alive")
    states = [(record.intent["verb"], record.outcome) for record in reader.list_records(9)]
    assert states == [("after", "unknown"), ("refused", "refused"), ("before", "unknown")]
    reader.close()


async def test_audit_closed_with_a_locked_database_is_complete_after_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = SqliteAuditLog(tmp_path)
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    audit.conclude(audit.intend(entry()), DONE)
    audit.close()
    assert "could not be saved; the journal has it" in caplog.text
    other.execute("ROLLBACK")
    other.close()
    assert (saved(tmp_path), verify(tmp_path).entries) == (1, 3)
    caplog.clear()
    SqliteAuditLog(tmp_path).close()
    assert not caplog.text
    assert (saved(tmp_path), verify(tmp_path).entries) == (4, 4)
    reader = AuditReader(tmp_path)
    assert [record.outcome for record in reader.list_records(9)] == ["completed"]
    reader.close()


async def test_outcomes_are_journaled_while_the_database_is_unwritable(
    tmp_path: Path,
) -> None:
    audit = SqliteAuditLog(tmp_path)
    seq = audit.intend(entry())
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    audit.conclude(seq, DONE)
    reader = AuditReader(tmp_path)
    async with asyncio.timeout(60):
        while reader.list_records(1)[0].outcome != "completed":
            await asyncio.sleep(0.01)
    assert verify(tmp_path).entries == 3
    assert saved(tmp_path) == 1
    other.execute("ROLLBACK")
    other.close()
    reader.close()
    audit.close()
    assert verify(tmp_path).ok


@pytest.mark.parametrize("durable", [True, False])
async def test_only_a_durable_audit_syncs_each_intent(
    tmp_path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = SqliteAuditLog(tmp_path, durable=durable)
    synced: list[int] = []
    fsync = os.fsync

    def counted(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", counted)
    inodes = [(tmp_path / name).stat().st_ino for name in ("audit.journal", "audit.head")]
    audit.intend(entry())
    assert synced == (inodes[:1] if durable else [])
    audit.flush()
    assert synced == ([inodes[0], *inodes] if durable else [])
    audit.close()


async def test_failed_journal_sync_refuses_the_call_and_keeps_the_journal_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = SqliteAuditLog(tmp_path, durable=True)
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    def fails(file: int) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(StorageFailed, match="the disk is gone"):
            audit.intend(entry())
    audit.close()
    other.execute("ROLLBACK")
    other.close()
    assert (verify(tmp_path).problem, verify(tmp_path).entries) == (None, 3)
    reader = AuditReader(tmp_path)
    assert [record.outcome for record in reader.list_records(9)] == ["refused"]
    reader.close()


async def test_journal_that_could_not_be_reset_receives_no_writes(
    tmp_path: Path,
) -> None:
    audit = SqliteAuditLog(tmp_path)
    first, second = audit.intend(entry()), audit.intend(entry())
    journal = os.dup(audit._journal._file)
    shut = os.open(tmp_path / "audit.journal", os.O_RDONLY)
    os.dup2(shut, audit._journal._file)
    audit.conclude(first, DONE)
    with pytest.raises(StorageFailed, match="cannot be written"):
        audit.flush()
    assert saved(tmp_path) == 4
    os.dup2(journal, audit._journal._file)
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    audit.conclude(second, DONE)
    audit.close()
    other.execute("ROLLBACK")
    other.close()
    os.close(journal)
    os.close(shut)
    assert (verify(tmp_path).problem, verify(tmp_path).entries) == (None, 4)


async def test_old_entries_are_pruned_and_the_rest_still_verifies(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    await write(audit, 1500)
    last = audit.tip.seq
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
    audit = SqliteAuditLog(tmp_path)
    await write(audit, 1)
    audit.close()
    verdict = verify(tmp_path)
    assert verdict.ok, verdict
    assert (verdict.first_seq, verdict.entries) == (last + 1, 3)


async def test_running_call_is_never_pruned(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    done = await write(audit, 10)
    running = audit.intend(entry("running"))
    await write(audit, 10)
    assert await audit.prune(0, 0) == running - 1
    reader = AuditReader(tmp_path)
    assert reader.list_records(99)[-1].seq == running
    assert reader.list_records(99)[-1].outcome == "running"
    audit.conclude(running, DONE)
    assert await audit.prune(0, 0) > 20
    assert reader.list_records(99) == []
    assert done
    reader.close()
    audit.close()
    assert verify(tmp_path).ok
