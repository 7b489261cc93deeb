"""Whatever is done to the audit behind the hub's back is found."""

from __future__ import annotations

import hmac
import os
import re
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.core.errors import ConfigError
from dragoman.stores.audit import SqliteAudit
from dragoman.stores.chain import ORIGIN, Seal, Tip, read_key
from dragoman.stores.records import AuditReader
from dragoman.stores.verify import verify

CALLS = 20
LAST = 1 + 2 * CALLS
"""The start, then an intent and an outcome each."""


async def make(home: Path, *, keep: int = 10**6) -> None:
    home.mkdir()
    audit = SqliteAudit(home)
    for n in range(CALLS):
        seq = await audit.intend({"verb": f"files.read{n}", "caller": "key:ci"})
        audit.conclude(seq, {"outcome": "completed"})
        audit.flush()
    await audit.prune(3600, keep)
    audit.close()


def sql(*statements: str) -> Callable[[Path], None]:
    def tamper(home: Path) -> None:
        with closing(sqlite3.connect(home / "audit.db", isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    return tamper


def remove(*names: str) -> Callable[[Path], None]:
    def tamper(home: Path) -> None:
        for name in names:
            (home / name).unlink()

    return tamper


def overwrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def tamper(home: Path) -> None:
        path = home / name
        path.write_bytes(change(path.read_bytes()))

    return tamper


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def seal_head_with_another_key(home: Path) -> None:
    with closing(sqlite3.connect(home / "audit.db")) as db:
        mac = db.execute("SELECT mac FROM entries WHERE seq = 9").fetchone()[0]
        db.execute("DELETE FROM entries WHERE seq > 9")
        db.commit()
    (home / "audit.head").write_bytes(Seal(os.urandom(32)).head(Tip(9, mac)))


def append_with_another_key(home: Path) -> None:
    with closing(sqlite3.connect(home / "audit.db")) as db:
        mac = db.execute("SELECT mac FROM entries WHERE seq = ?", (LAST,)).fetchone()[0]
        forged = Seal(os.urandom(32)).entry(mac, LAST + 1, "intent", None, 1.5, b"{}")
        row = (LAST + 1, "intent", None, 1.5, b"{}", forged)
        db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
        db.commit()


def forge_anchor(home: Path) -> None:
    with closing(sqlite3.connect(home / "audit.db")) as db:
        mac = db.execute("SELECT mac FROM entries WHERE seq = 9").fetchone()[0]
        db.execute("DELETE FROM entries WHERE seq <= 9")
        seal = Seal(os.urandom(32)).anchor(Tip(9, mac), 1.5)
        db.execute("INSERT INTO anchor VALUES (1, 9, ?, 1.5, ?)", (mac, seal))
        db.commit()


CHANGED = "does not match its seal"
TAMPERINGS: dict[str, tuple[Callable[[Path], None], str, int | None]] = {
    "kind": (sql("UPDATE entries SET kind = 'outcome' WHERE seq = 8"), CHANGED, 8),
    "kind to a start": (sql("UPDATE entries SET kind = 'start' WHERE seq = 8"), CHANGED, 8),
    "kind to a blob": (sql("UPDATE entries SET kind = CAST(kind AS BLOB) WHERE seq = 8"),
                       CHANGED, 8),
    "of": (sql("UPDATE entries SET of = 6 WHERE seq = 9"), CHANGED, 9),
    "of taken away": (sql("UPDATE entries SET of = NULL WHERE seq = 9"), CHANGED, 9),
    "of put in": (sql("UPDATE entries SET of = 0 WHERE seq = 8"), CHANGED, 8),
    "of to a text": (sql("UPDATE entries SET of = 'x' WHERE seq = 9"), CHANGED, 9),
    "at": (sql("UPDATE entries SET at = at + 0.001 WHERE seq = 8"), CHANGED, 8),
    "body": (sql("UPDATE entries SET body = replace(body, 'key:ci', 'key:cd') WHERE seq = 8"),
             CHANGED, 8),
    "body to a text": (sql("UPDATE entries SET body = CAST(body AS TEXT) WHERE seq = 8"),
                       CHANGED, 8),
    "body emptied": (sql("UPDATE entries SET body = x'' WHERE seq = 8"), CHANGED, 8),
    "mac": (sql("UPDATE entries SET mac = zeroblob(32) WHERE seq = 8"), CHANGED, 8),
    "mac of the last": (sql(f"UPDATE entries SET mac = zeroblob(32) WHERE seq = {LAST}"),
                        CHANGED, LAST),
    "seq of the last": (sql(f"UPDATE entries SET seq = {LAST + 1} WHERE seq = {LAST}"),
                        "are missing", LAST),
    "the first deleted": (sql("DELETE FROM entries WHERE seq = 1"), "entries 1 to 1 are missing",
                          1),
    "one in the middle deleted": (sql("DELETE FROM entries WHERE seq = 8"),
                                  "entries 8 to 8 are missing", 8),
    "one in the middle deleted and the rest moved up": (
        sql("DELETE FROM entries WHERE seq = 8", "UPDATE entries SET seq = -seq WHERE seq > 8",
            "UPDATE entries SET seq = -seq - 1 WHERE seq < 0"), CHANGED, 8),
    "the last deleted": (sql(f"DELETE FROM entries WHERE seq = {LAST}"), "missing from the end",
                         LAST),
    "the last ten deleted": (sql(f"DELETE FROM entries WHERE seq > {LAST - 10}"),
                             "missing from the end", LAST - 9),
    "all deleted": (sql("DELETE FROM entries"), "missing from the end", 1),
    "two swapped": (sql("UPDATE entries SET seq = 0 WHERE seq = 8",
                        "UPDATE entries SET seq = 8 WHERE seq = 10",
                        "UPDATE entries SET seq = 10 WHERE seq = 0"), CHANGED, 8),
    "two bodies swapped": (
        sql("CREATE TEMP TABLE two AS SELECT seq, body FROM entries WHERE seq IN (8, 10)",
            "UPDATE entries SET body = (SELECT body FROM two WHERE two.seq = 18 - entries.seq) "
            "WHERE seq IN (8, 10)"), CHANGED, 8),
    "one put in before the first": (
        sql("INSERT INTO entries SELECT 0, kind, of, at, body, mac FROM entries WHERE seq = 8"),
        "stands before", 0),
    "one put in at the end": (
        sql(f"INSERT INTO entries SELECT {LAST + 1}, kind, of, at, body, mac FROM entries "
            "WHERE seq = 8"), CHANGED, LAST + 1),
    "one put in at the end with another key": (append_with_another_key, CHANGED, LAST + 1),
    "one put in far behind": (
        sql("INSERT INTO entries SELECT 999, kind, of, at, body, mac FROM entries WHERE seq = 8"),
        "are missing", LAST + 1),
    "a break put in": (
        sql(f"INSERT INTO entries SELECT {LAST + 9}, 'break', of, at, body, mac FROM entries "
            "WHERE seq = 8"), CHANGED, LAST + 9),
    "a byte moved from kind to body": (
        sql("UPDATE entries SET kind = 'inten', body = CAST('t' || body AS BLOB) WHERE seq = 8"),
        CHANGED, 8),
    "bytes moved from body to kind": (
        sql("UPDATE entries SET kind = kind || '{\"', body = substr(body, 3) WHERE seq = 8"),
        CHANGED, 8),
    "the table gone": (sql("DROP TABLE entries"), "cannot be read", None),
    "a trigger that eats entries": (
        sql("CREATE TRIGGER eat AFTER UPDATE ON entries BEGIN DELETE FROM entries "
            "WHERE seq = new.seq; END", "UPDATE entries SET at = at WHERE seq = 8"),
        "are missing", 8),
    "the database gone": (remove("audit.db"), "is missing, though a hub has written one", None),
    "the database emptied": (overwrite("audit.db", lambda whole: b""), "cannot be read", None),
    "the database damaged": (overwrite("audit.db", lambda whole: b"x" * len(whole)),
                             "cannot be read", None),
    "the head gone": (remove("audit.head"), "the head .* is missing", None),
    "the head emptied": (overwrite("audit.head", lambda whole: b""), "changed, forged", None),
    "the head cut short": (overwrite("audit.head", lambda whole: whole[:-1]), "changed, forged",
                           None),
    "the head made longer": (overwrite("audit.head", lambda whole: whole + b"\0"),
                             "changed, forged", None),
    "the head's number changed": (overwrite("audit.head", flip(8)), "changed, forged", None),
    "the head's seal changed": (overwrite("audit.head", flip(60)), "changed, forged", None),
    "the head sealed with another key": (seal_head_with_another_key, "changed, forged", None),
    "the key gone": (remove("audit.key"), "the key .* is missing", None),
    "the key changed": (overwrite("audit.key", flip(3)), "changed, forged", None),
    "the key cut short": (overwrite("audit.key", lambda whole: whole[:9]), "damaged", None),
    "database and head gone": (remove("audit.db", "audit.head"), "is missing", None),
    "all gone": (remove("audit.db", "audit.head", "audit.key"), "there is no audit", None),
    "a prefix deleted and an anchor forged": (forge_anchor, "anchor .* forged", 9),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
async def test_every_tampering_is_found_and_told_where(name: str, tmp_path: Path) -> None:
    tamper, problem, at = TAMPERINGS[name]
    home = tmp_path / "home"
    await make(home)
    whole = verify(home)
    assert whole.ok
    assert (whole.entries, whole.first_seq, whole.last_seq) == (LAST, 1, LAST)
    tamper(home)
    verdict = verify(home)
    assert not verdict.ok
    assert verdict.problem is not None
    assert re.search(problem, verdict.problem), verdict
    assert verdict.at_seq == at
    if at is not None and at > 1:
        assert verdict.entries in (at - 1, LAST, 0)


PRUNED_TAMPERINGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "the anchor deleted": (sql("DELETE FROM anchor"), "entries 1 to 31 are missing"),
    "the anchor's number changed": (sql("UPDATE anchor SET seq = 32"), "anchor"),
    "the anchor's mac changed": (sql("UPDATE anchor SET mac = zeroblob(32)"), "anchor"),
    "the anchor's mac made no mac": (sql("UPDATE anchor SET mac = 7"), "anchor"),
    "the anchor's time changed": (sql("UPDATE anchor SET at = at + 1"), "anchor"),
    "the anchor's seal changed": (sql("UPDATE anchor SET seal = zeroblob(32)"), "anchor"),
    "more deleted than the anchor says": (sql("DELETE FROM entries WHERE seq = 32"),
                                          "entries 32 to 32 are missing"),
    "an entry put back": (
        sql("INSERT INTO entries SELECT 31, kind, of, at, body, mac FROM entries WHERE seq = 33"),
        "stands before"),
    "all deleted": (sql("DELETE FROM entries"), "missing from the end"),
}  # fmt: skip


@pytest.mark.parametrize("name", PRUNED_TAMPERINGS)
async def test_every_tampering_with_what_pruning_left_is_found(name: str, tmp_path: Path) -> None:
    tamper, problem = PRUNED_TAMPERINGS[name]
    home = tmp_path / "home"
    await make(home, keep=10)
    assert verify(home).ok
    tamper(home)
    verdict = verify(home)
    assert not verdict.ok
    assert problem in (verdict.problem or "")


async def test_a_head_from_before_the_pruning_is_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    old = (home / "audit.head").read_bytes()
    audit = SqliteAudit(home)
    await audit.intend({})
    await audit.prune(0, 1)
    audit.close()
    assert verify(home).ok
    (home / "audit.head").write_bytes(old)
    assert "put back" in (verify(home).problem or "")


async def test_a_head_of_another_history_with_the_same_key_is_found(tmp_path: Path) -> None:
    homes = tmp_path / "one", tmp_path / "other"
    await make(homes[0])
    shutil.copytree(*homes)
    for home in homes:
        audit = SqliteAudit(home)
        await audit.intend({"verb": home.name})
        audit.close()
        assert verify(home).ok
    shutil.copy(homes[1] / "audit.head", homes[0])
    verdict = verify(homes[0])
    assert "is not the one the head was made of" in (verdict.problem or "")
    assert verdict.at_seq == LAST + 2


def test_a_first_start_that_failed_is_no_break(tmp_path: Path) -> None:
    (tmp_path / "audit.db-wal").mkdir()
    with pytest.raises(ConfigError, match=r"audit\.db"):
        SqliteAudit(tmp_path)
    (tmp_path / "audit.db-wal").rmdir()
    SqliteAudit(tmp_path).close()
    assert verify(tmp_path).ok


async def test_a_database_put_back_from_an_older_copy_is_found_by_the_head(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    shutil.copy(home / "audit.db", tmp_path / "old.db")
    audit = SqliteAudit(home)
    await audit.intend({})
    audit.close()
    assert verify(home).ok
    shutil.copy(tmp_path / "old.db", home / "audit.db")
    verdict = verify(home)
    assert verdict.problem is not None
    assert f"entries {LAST + 1} to {LAST + 2} are missing from the end" in verdict.problem


BREAKS: dict[str, Callable[[Path], None]] = {
    "the head was missing": remove("audit.head"),
    "the head was forged": overwrite("audit.head", flip(8)),
    "the head was forged or damaged": overwrite("audit.head", lambda whole: whole + b"x"),
    "the key was missing": remove("audit.key"),
    f"the head says {LAST} entries were written, the database ends at 0": remove("audit.db"),
    f"the head says {LAST} entries were written, the database ends at {LAST - 3}": sql(
        f"DELETE FROM entries WHERE seq > {LAST - 3}"
    ),
    "is not the one the head was made of": sql(
        f"UPDATE entries SET mac = zeroblob(32) WHERE seq = {LAST}"
    ),
    "does not match its seal": sql(
        f"INSERT INTO entries SELECT {LAST + 1}, kind, of, at, body, mac FROM entries WHERE seq = 8"
    ),
    "the head was missing, the database ends at entry 0": remove("audit.db", "audit.head"),
}


@pytest.mark.parametrize("finding", BREAKS)
async def test_a_hub_that_finds_the_audit_changed_starts_and_records_that_for_good(
    finding: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    await make(home)
    BREAKS[finding](home)
    audit = SqliteAudit(home)
    assert finding in caplog.text
    seq = await audit.intend({"verb": "after"})
    assert "database ends at entry 0" in finding or seq > LAST
    audit.close()
    reader = AuditReader(home)
    after, broken = reader.records(2)
    reader.close()
    assert after.intent == {"verb": "after"}
    assert broken.outcome == "break"
    assert finding in broken.conclusion["problem"]
    assert not verify(home).ok
    caplog.clear()
    SqliteAudit(home).close()
    assert not caplog.text
    assert not verify(home).ok


async def test_a_break_cannot_be_taken_out_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    whole = (home / "audit.head").read_bytes()
    remove("audit.head")(home)
    SqliteAudit(home).close()
    assert f"entry {LAST + 1} records a break" in (verify(home).problem or "")
    sql(f"DELETE FROM entries WHERE seq > {LAST}")(home)
    assert "missing from the end" in (verify(home).problem or "")
    (home / "audit.head").write_bytes(whole)
    # Head and database put back together are as they were: only a copy kept elsewhere tells.
    assert verify(home).ok


async def test_a_database_ahead_of_the_head_is_accepted_if_it_follows(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    head = (home / "audit.head").read_bytes()
    audit = SqliteAudit(home)
    await audit.intend({})
    audit.close()
    (home / "audit.head").write_bytes(head)
    assert verify(home).ok
    SqliteAudit(home).close()
    assert verify(home).ok
    assert verify(home).entries == LAST + 3


async def test_a_damaged_key_or_database_stops_the_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    key = (home / "audit.key").read_bytes()
    (home / "audit.key").write_bytes(key[:9])
    with pytest.raises(ConfigError, match=r"audit\.key.* is damaged"):
        SqliteAudit(home)
    (home / "audit.key").write_bytes(key)
    database = (home / "audit.db").read_bytes()
    (home / "audit.db").write_bytes(b"x" * len(database))
    with pytest.raises(ConfigError, match=r"audit\.db.* is damaged"):
        SqliteAudit(home)
    (home / "audit.db").write_bytes(database)
    SqliteAudit(home).close()
    assert verify(home).ok


async def test_progress_is_told_on_the_way(tmp_path: Path) -> None:
    audit = SqliteAudit(tmp_path)
    for _ in range(3):
        waiting = [audit.intend({}) for _ in range(4000)]
        await waiting[-1]
    audit.close()
    told: list[tuple[int, int]] = []
    assert verify(tmp_path, lambda done, total: told.append((done, total))).ok
    assert told == [(10_000, 12_001), (12_001, 12_001)]


async def test_seals_are_hmac_sha256_over_every_field(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    key = read_key(home)
    assert key is not None
    before = ORIGIN.mac
    with closing(sqlite3.connect(home / "audit.db")) as db:
        rows = db.execute("SELECT * FROM entries ORDER BY seq").fetchall()
    assert len(rows) == LAST
    for seq, kind, of, at, body, mac in rows:
        fields = b"E" + before + struct.pack(">q?qd", seq, of is not None, of or 0, at)
        lengths = struct.pack(">II", len(kind), len(body))
        message = fields + lengths + kind.encode() + body
        assert mac == hmac.digest(key, message, "sha256")
        before = mac
