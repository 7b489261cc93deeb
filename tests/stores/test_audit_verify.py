"""Every manipulation of the audit is detected."""

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
from dragoman.stores.audit.chain import (
    HEAD_BESIDE_JOURNAL,
    ORIGIN,
    TIP,
    TRAILER,
    AuditSeal,
    ChainTip,
    EntryRow,
    read_key,
)
from dragoman.stores.audit.journal import PAGE, SIZE, Journal, measure_gap, read_journal
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.reader import AuditReader
from dragoman.stores.audit.verify import verify

CALLS = 20
LAST = 1 + 2 * CALLS
"""The start, then an intent and an outcome each."""


async def make(home: Path, *, keep: int = 10**6) -> None:
    home.mkdir()
    audit = SqliteAuditLog(home)
    for n in range(CALLS):
        seq = audit.intend({"verb": f"files.read{n}", "caller": "key:ci"})
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
    (home / "audit.head").write_bytes(
        AuditSeal(os.urandom(32)).seal_tip(HEAD_BESIDE_JOURNAL, 9, mac)
    )


def append_with_another_key(home: Path) -> None:
    with closing(sqlite3.connect(home / "audit.db")) as db:
        mac = db.execute("SELECT mac FROM entries WHERE seq = ?", (LAST,)).fetchone()[0]
        _, forged = AuditSeal(os.urandom(32)).seal_entry(mac, LAST + 1, "intent", None, 1.5, b"{}")
        row = (LAST + 1, "intent", None, 1.5, b"{}", forged)
        db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)
        db.commit()


def forge_anchor(home: Path) -> None:
    with closing(sqlite3.connect(home / "audit.db")) as db:
        mac = db.execute("SELECT mac FROM entries WHERE seq = 9").fetchone()[0]
        db.execute("DELETE FROM entries WHERE seq <= 9")
        seal = AuditSeal(os.urandom(32)).seal_anchor(ChainTip(9, mac), 1.5)
        db.execute("INSERT INTO anchor VALUES (1, 9, ?, 1.5, ?)", (mac, seal))
        db.commit()


def copied(source: str, target: str) -> Callable[[Path], None]:
    def tamper(home: Path) -> None:
        (home / target).write_bytes((home / source).read_bytes()[:73])

    return tamper


def both(*tamperings: Callable[[Path], None]) -> Callable[[Path], None]:
    def tamper(home: Path) -> None:
        for one in tamperings:
            one(home)

    return tamper


CHANGED = "does not match its seal"
JOURNAL_CHANGED = "the journal was changed, forged or damaged"
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
        "is before the beginning", 0),
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
    "the database gone": (remove("audit.db"), "is missing, although a hub has written one", None),
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
    "only the journal left": (remove("audit.db", "audit.head", "audit.key"), "the key .* missing",
                              None),
    "all gone": (remove("audit.db", "audit.head", "audit.key", "audit.journal"),
                 "there is no audit", None),
    "the journal gone": (remove("audit.journal"), "the journal is missing", LAST + 1),
    "the journal emptied": (overwrite("audit.journal", lambda whole: b""), JOURNAL_CHANGED,
                            LAST + 1),
    "the journal cut short": (overwrite("audit.journal", lambda whole: whole[:72]),
                              JOURNAL_CHANGED, LAST + 1),
    "the journal zeroed": (overwrite("audit.journal", lambda whole: bytes(len(whole))),
                           JOURNAL_CHANGED, LAST + 1),
    "the journal's number changed": (overwrite("audit.journal", flip(40)), JOURNAL_CHANGED,
                                     LAST + 1),
    "the journal's seal changed": (overwrite("audit.journal", flip(60)), JOURNAL_CHANGED,
                                   LAST + 1),
    "the head put in the journal's place": (copied("audit.head", "audit.journal"),
                                            JOURNAL_CHANGED, LAST + 1),
    "the journal's end put in the head's place": (copied("audit.journal", "audit.head"),
                                                  "the head .* was changed, forged", None),
    "journal and last entries gone": (
        both(sql(f"DELETE FROM entries WHERE seq > {LAST - 3}"), remove("audit.journal")),
        "missing from the end", LAST - 2),
    "a prefix deleted and an anchor forged": (forge_anchor, "anchor .* forged", 9),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
async def test_every_tampering_is_detected_with_its_position(name: str, tmp_path: Path) -> None:
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
        "is before the beginning"),
    "all deleted": (sql("DELETE FROM entries"), "missing from the end"),
}  # fmt: skip


@pytest.mark.parametrize("name", PRUNED_TAMPERINGS)
async def test_tampering_with_pruned_audit_is_detected(name: str, tmp_path: Path) -> None:
    tamper, problem = PRUNED_TAMPERINGS[name]
    home = tmp_path / "home"
    await make(home, keep=10)
    assert verify(home).ok
    tamper(home)
    verdict = verify(home)
    assert not verdict.ok
    assert problem in (verdict.problem or "")


async def test_head_from_before_pruning_is_detected(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    old = (home / "audit.head").read_bytes()
    audit = SqliteAuditLog(home)
    audit.intend({})
    await audit.prune(0, 1)
    audit.close()
    assert verify(home).ok
    (home / "audit.head").write_bytes(old)
    assert "an old copy was restored" in (verify(home).problem or "")


async def test_head_of_another_history_with_the_same_key_is_detected(tmp_path: Path) -> None:
    homes = tmp_path / "one", tmp_path / "other"
    await make(homes[0])
    shutil.copytree(*homes)
    for home in homes:
        audit = SqliteAuditLog(home)
        audit.intend({"verb": home.name})
        audit.close()
        assert verify(home).ok
    shutil.copy(homes[1] / "audit.head", homes[0])
    verdict = verify(homes[0])
    assert "is not the entry that the head names" in (verdict.problem or "")
    assert verdict.at_seq == LAST + 2


def test_failed_first_start_is_not_a_chain_break(tmp_path: Path) -> None:
    (tmp_path / "audit.db-wal").mkdir()
    with pytest.raises(ConfigError, match=r"audit\.db"):
        SqliteAuditLog(tmp_path)
    (tmp_path / "audit.db-wal").rmdir()
    SqliteAuditLog(tmp_path).close()
    assert verify(tmp_path).ok


def test_first_start_without_a_journal_is_not_a_chain_break(tmp_path: Path) -> None:
    (tmp_path / "audit.journal.new").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        SqliteAuditLog(tmp_path)
    (tmp_path / "audit.journal.new").rmdir()
    SqliteAuditLog(tmp_path).close()
    assert (verify(tmp_path).problem, verify(tmp_path).entries) == (None, 1)


async def test_restored_older_database_is_detected_by_the_head(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    shutil.copy(home / "audit.db", tmp_path / "old.db")
    audit = SqliteAuditLog(home)
    audit.intend({})
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
    "is not the entry that the head names": sql(
        f"UPDATE entries SET mac = zeroblob(32) WHERE seq = {LAST}"
    ),
    "does not match its seal": sql(
        f"INSERT INTO entries SELECT {LAST + 1}, kind, of, at, body, mac FROM entries WHERE seq = 8"
    ),
    "the head was missing, the database ends at entry 0": remove("audit.db", "audit.head"),
    "the key was missing, so no entry": remove("audit.key", "audit.head", "audit.db"),
    "the journal is missing": remove("audit.journal"),
    "the journal was changed": overwrite("audit.journal", flip(8)),
    "the journal was changed, forged or damaged": overwrite("audit.journal", lambda whole: b""),
}


@pytest.mark.parametrize("finding", BREAKS)
async def test_hub_with_a_tampered_audit_starts_and_records_the_break(
    finding: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    await make(home)
    BREAKS[finding](home)
    audit = SqliteAuditLog(home)
    assert finding in caplog.text
    seq = audit.intend({"verb": "after"})
    assert seq > LAST or "database ends at entry 0" in finding or "so no entry" in finding
    audit.close()
    reader = AuditReader(home)
    after, broken = reader.list_records(2)
    reader.close()
    assert after.intent == {"verb": "after"}
    assert broken.outcome == "break"
    assert finding in broken.conclusion["problem"]
    assert not verify(home).ok
    caplog.clear()
    SqliteAuditLog(home).close()
    assert not caplog.text
    assert not verify(home).ok


async def test_recorded_break_cannot_be_removed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    whole = {name: (home / name).read_bytes() for name in ("audit.head", "audit.journal")}
    remove("audit.head")(home)
    SqliteAuditLog(home).close()
    assert f"entry {LAST + 1} records a break" in (verify(home).problem or "")
    sql(f"DELETE FROM entries WHERE seq > {LAST}")(home)
    assert "missing from the end" in (verify(home).problem or "")
    (home / "audit.head").write_bytes(whole["audit.head"])
    assert "missing from the end" in (verify(home).problem or "")
    (home / "audit.journal").write_bytes(whole["audit.journal"])
    # All put back together are as they were: only a copy kept elsewhere tells.
    assert verify(home).ok


async def test_database_ahead_of_the_head_is_accepted_if_it_continues_the_chain(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    await make(home)
    head = (home / "audit.head").read_bytes()
    audit = SqliteAuditLog(home)
    audit.intend({})
    audit.close()
    (home / "audit.head").write_bytes(head)
    assert verify(home).ok
    SqliteAuditLog(home).close()
    assert verify(home).ok
    assert verify(home).entries == LAST + 3


async def test_a_damaged_key_or_database_stops_the_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    key = (home / "audit.key").read_bytes()
    (home / "audit.key").write_bytes(key[:9])
    with pytest.raises(ConfigError, match=r"audit\.key.* is damaged"):
        SqliteAuditLog(home)
    (home / "audit.key").write_bytes(key)
    database = (home / "audit.db").read_bytes()
    (home / "audit.db").write_bytes(b"x" * len(database))
    with pytest.raises(ConfigError, match=r"audit\.db.* is damaged"):
        SqliteAuditLog(home)
    (home / "audit.db").write_bytes(database)
    SqliteAuditLog(home).close()
    assert verify(home).ok


async def test_verification_reports_progress(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    for _ in range(3):
        for _ in range(4000):
            audit.intend({})
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


INTENT = ("intent", None, 1.5, b"")
LEFT = LAST + 1
"""What `leave` leaves: all that, and a call that still ran."""


async def leave(home: Path) -> bytes:
    """What a hub leaves in `home` that was killed before anything but its start was saved. Gives
    the journal as it was before the last write."""
    alive = home.with_name(home.name + "-alive")
    alive.mkdir()
    audit = SqliteAuditLog(alive)
    for n in range(CALLS):
        seq = audit.intend({"verb": f"files.read{n}", "caller": "key:ci"})
        audit.conclude(seq, {"outcome": "completed"})
    before = (alive / "audit.journal").read_bytes()
    audit.intend({"verb": "running"})
    shutil.copytree(alive, home)
    audit.close()
    return before


def rewrite(change: Callable[[list[EntryRow]], list[EntryRow]]) -> Callable[[Path], None]:
    """The journal with other entries and the old trailer, each where it belongs."""

    def tamper(home: Path) -> None:
        left = read_journal(home)
        assert left is not None
        with closing(sqlite3.connect(home / "audit.db")) as db:
            mac = db.execute("SELECT max(seq), mac FROM entries").fetchone()[1]
        seal = AuditSeal(bytes(32))
        whole = b""
        for seq, kind, of, at, body, own in change(left.rows):
            whole += seal.seal_entry(mac, seq, kind, of, at, body)[0]
            whole += bytes(measure_gap(len(whole)))
            mac = own
        (home / "audit.journal").write_bytes(whole + left.trailer + bytes(999))

    return tamper


def forged(rows: list[EntryRow]) -> list[EntryRow]:
    _, mac = AuditSeal(os.urandom(32)).seal_entry(rows[-1][5], LEFT + 1, "intent", None, 1.5, b"{}")
    return [*rows, (LEFT + 1, "intent", None, 1.5, b"{}", mac)]


def edited(which: int, **fields: object) -> Callable[[list[EntryRow]], list[EntryRow]]:
    names = ("seq", "kind", "of", "at", "body", "mac")

    def change(rows: list[EntryRow]) -> list[EntryRow]:
        values = dict(zip(names, rows[which], strict=True)) | fields
        rows[which] = tuple(values.values())  # type: ignore[assignment]
        return rows

    return change


def end_of(home: Path) -> int:
    """Where the trailer stands."""
    left = read_journal(home)
    assert left is not None
    return (home / "audit.journal").read_bytes().index(left.trailer)


def trailer(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def tamper(home: Path) -> None:
        end = end_of(home)
        overwrite("audit.journal", lambda whole: whole[:end] + change(whole[end:]))(home)

    return tamper


def cut_at_an_entry(home: Path) -> None:
    """Ends behind the first three, with what a trailer would be for them, sealed with no key."""
    left = read_journal(home)
    assert left is not None
    seq, _, _, _, _, mac = left.rows[2]
    rewrite(lambda rows: rows[:3])(home)
    end = TIP.pack(TRAILER, mac, seq) + left.trailer[-32:]
    path = home / "audit.journal"
    path.write_bytes(path.read_bytes().replace(left.trailer, end))


MISSING = "missing from the end: the journal says"
JOURNAL_TAMPERINGS: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "deleted": (remove("audit.journal"), "the journal is missing; entries after 1 may be lost", 2),
    "emptied": (overwrite("audit.journal", lambda whole: b""), JOURNAL_CHANGED, 2),
    "cut": (overwrite("audit.journal", lambda whole: whole[:400]), JOURNAL_CHANGED, 5),
    "zeroed": (overwrite("audit.journal", lambda whole: bytes(len(whole))), JOURNAL_CHANGED, 2),
    "begun anew": (overwrite("audit.journal", lambda whole: bytes(73) + whole[73:]),
                   JOURNAL_CHANGED, 2),
    "the head put in its place": (copied("audit.head", "audit.journal"), JOURNAL_CHANGED, 2),
    "noise": (overwrite("audit.journal", lambda whole: b"x" * len(whole)), JOURNAL_CHANGED, 2),
    "a bit of a body": (overwrite("audit.journal", flip(300)), CHANGED, 4),
    "a bit of a mac": (overwrite("audit.journal", flip(5)),
                                           "entry 1 is not the entry that the journal names", 1),
    "the trailer gone": (trailer(lambda rest: b""), JOURNAL_CHANGED, LEFT),
    "the trailer zeroed": (trailer(lambda rest: bytes(73) + rest[73:]), CHANGED, LEFT),
    "the trailer's mac changed": (trailer(flip(1)), CHANGED, LEFT),
    "the trailer's number changed": (trailer(flip(40)), JOURNAL_CHANGED, LEFT + 1),
    "the trailer's seal changed": (trailer(flip(72)), JOURNAL_CHANGED, LEFT + 1),
    "the trailer cut": (trailer(lambda rest: rest[:72]), JOURNAL_CHANGED, LEFT + 1),
    "cut at an entry": (cut_at_an_entry, JOURNAL_CHANGED, 5),
    "all but the trailer taken out": (rewrite(lambda rows: []), MISSING, 2),
    "the last taken out": (rewrite(lambda rows: rows[:-1]), CHANGED, LEFT - 1),
    "one in the middle taken out": (rewrite(lambda rows: rows[:6] + rows[7:]),
                                    "entries 8 to 8 are missing", 8),
    "the first taken out": (rewrite(lambda rows: rows[1:]), "entries 2 to 2 are missing", 2),
    "two swapped": (rewrite(lambda rows: [rows[1], rows[0], *rows[2:]]), "are missing", 2),
    "body": (rewrite(edited(6, body=b"{}")), CHANGED, 8),
    "kind": (rewrite(edited(6, kind="outcome")), CHANGED, 8),
    "of": (rewrite(edited(7, of=6)), CHANGED, 9),
    "of taken away": (rewrite(edited(7, of=None)), CHANGED, 9),
    "at": (rewrite(edited(6, at=1.5)), CHANGED, 8),
    "mac": (rewrite(edited(6, mac=bytes(32))), CHANGED, 8),
    "seq": (rewrite(edited(-1, seq=1)), MISSING, LEFT),
    "one put in at the end with another key": (rewrite(forged), CHANGED, LEFT + 1),
    "the last twice": (rewrite(lambda rows: [*rows, (LEFT + 1, *rows[-1][1:])]), CHANGED, LEFT + 1),
    "the database emptied": (sql("DELETE FROM entries"), "entries 1 to 1 are missing", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", JOURNAL_TAMPERINGS)
async def test_tampering_after_a_kill_is_detected_and_recorded(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tamper, problem, at = JOURNAL_TAMPERINGS[name]
    home = tmp_path / "home"
    await leave(home)
    whole = verify(home)
    assert (whole.ok, whole.entries, whole.last_seq) == (True, LEFT, LEFT)
    tamper(home)
    verdict = verify(home)
    assert not verdict.ok
    assert problem in (verdict.problem or "")
    assert (verdict.at_seq, verdict.entries) == (at, at - 1)
    audit = SqliteAuditLog(home)
    assert "was changed or damaged" in caplog.text
    seq = audit.intend({"verb": "after"})
    assert seq > verdict.entries
    audit.close()
    reader = AuditReader(home)
    after, broken = reader.list_records(2)
    kept = reader.list_records(99)
    reader.close()
    assert (after.intent, broken.outcome) == ({"verb": "after"}, "break")
    assert len([record for record in kept if record.seq < broken.seq]) >= verdict.entries // 2
    assert "records a break" in (verify(home).problem or "")
    caplog.clear()
    SqliteAuditLog(home).close()
    assert not caplog.text


@pytest.mark.parametrize("name", ["number", "trailer"])
async def test_sequence_numbers_stay_unique_after_a_break(name: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    await leave(home)
    rewrite({"number": edited(0, body=b"{}"), "trailer": lambda rows: []}[name])(home)
    audit = SqliteAuditLog(home)
    assert audit.intend({}) > LEFT
    audit.close()


@pytest.mark.parametrize("with_gaps", [True, False])
def test_journal_is_read_wherever_its_pages_end(with_gaps: bool, tmp_path: Path) -> None:
    seal = AuditSeal(bytes(32))
    journal = Journal(tmp_path)
    size = len(seal.seal_entry(ORIGIN.mac, 1, *INTENT)[0])
    for room in (*range(90), 3000):  # that the second leaves in its page
        bodies = (b"", bytes(PAGE - room - 2 * size), b"")
        whole, rows, tip = b"", [], ORIGIN
        journal.restart(seal.seal_tip(TRAILER, *tip))
        for body in bodies:
            entries, new, tip = seal.seal_batch([(*INTENT[:3], body)], tip)
            trailer = seal.seal_tip(TRAILER, *tip)
            assert journal.append(entries, trailer)
            rows += new
            whole += entries[0]
            stored = (tmp_path / "audit.journal").read_bytes()
            at = stored.index(trailer)
            assert at // PAGE == (at + len(trailer) - 1) // PAGE
        if not with_gaps:  # as version 0.1 wrote it
            (tmp_path / "audit.journal").write_bytes((whole + trailer).ljust(SIZE, b"E"))
        left = read_journal(tmp_path, seal)
        assert left is not None
        assert (left.before, left.rows, left.trailer) == (ORIGIN.mac, rows, trailer), room
    journal.close()


async def test_torn_write_is_a_break_that_keeps_earlier_entries(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    before = await leave(home)
    after = (home / "audit.journal").read_bytes()
    end = end_of(home)
    begin = next(at for at in range(end) if before[at] != after[at])
    for cut in (begin + 1, begin + 20, begin + 60, end - 1, end + 1, end + 40, end + 72):
        torn = tmp_path / f"torn at {cut}"
        shutil.copytree(home, torn)
        (torn / "audit.journal").write_bytes(after[:cut] + before[cut:])
        verdict = verify(torn)
        assert not verdict.ok
        assert verdict.entries >= LAST - 1
        SqliteAuditLog(torn).close()
        reader = AuditReader(torn)
        broken, *kept = reader.list_records(99)
        reader.close()
        assert broken.outcome == "break"
        assert len([record for record in kept if record.intent["verb"] != "running"]) == CALLS


async def test_stale_journal_is_detected(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await make(home)
    old = (home / "audit.journal").read_bytes()
    audit = SqliteAuditLog(home)
    audit.intend({})
    audit.close()
    assert verify(home).ok
    (home / "audit.journal").write_bytes(old)
    verdict = verify(home)
    assert "the journal is older than the head: an old copy was restored" in (verdict.problem or "")
    assert verdict.entries == LAST + 2


async def test_journal_of_another_history_with_the_same_key_is_detected(tmp_path: Path) -> None:
    homes = tmp_path / "one", tmp_path / "other"
    await make(homes[0])
    shutil.copytree(*homes)
    audits = []
    for home in homes:
        audits.append(SqliteAuditLog(home))
        audits[-1].intend({"verb": home.name})
    mixed = tmp_path / "mixed"
    shutil.copytree(homes[0], mixed)
    assert verify(mixed).ok
    shutil.copy(homes[1] / "audit.journal", mixed)
    for audit in audits:
        audit.close()
    assert "is not the entry that the journal names" in (verify(mixed).problem or "")
    shutil.copy(homes[1] / "audit.journal", homes[0])
    assert "is not the entry that the journal names" in (verify(homes[0]).problem or "")


async def test_journal_of_a_killed_hub_is_replayed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    await leave(home)
    reader = AuditReader(home)
    before = reader.list_records(99)
    assert [record.outcome for record in before] == ["unknown"] + ["completed"] * CALLS
    assert len(reader.list_records_after(0)) == CALLS
    assert len(reader.list_records(99, before=20)) == 9
    audit = SqliteAuditLog(home)
    assert reader.list_records(99) == before
    assert audit.intend({}) == LEFT + 2
    audit.close()
    reader.close()
    assert not caplog.text
    verdict = verify(home)
    assert (verdict.ok, verdict.entries) == (True, LEFT + 2)


async def test_hub_killed_between_any_two_writes_leaves_a_valid_chain(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alive = tmp_path / "alive"
    alive.mkdir()
    audit = SqliteAuditLog(alive)
    audit.conclude(audit.intend({}), {"outcome": "completed"})
    audit.intend({})
    head, journal = ((alive / name).read_bytes() for name in ("audit.head", "audit.journal"))
    homes = [tmp_path / name for name in ("in journal", "committed", "journal begun anew", "all")]
    shutil.copytree(alive, homes[0])
    audit.flush()
    for home in homes[1:]:
        shutil.copytree(alive, home)
    audit.close()
    (homes[1] / "audit.journal").write_bytes(journal)
    for home in homes[1:3]:
        (home / "audit.head").write_bytes(head)
    for home in homes:
        assert (verify(home).ok, verify(home).entries) == (True, 4)
        reader = AuditReader(home)
        assert [record.seq for record in reader.list_records(9)] == [4, 2]
        reader.close()
        SqliteAuditLog(home).close()
        assert (verify(home).ok, verify(home).entries) == (True, 5)
    assert not caplog.text


async def test_hub_killed_during_a_start_leaves_no_break(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "audit.db-wal").mkdir()
    with pytest.raises(ConfigError):
        SqliteAuditLog(home)  # now there are the key and the head
    (home / "audit.db-wal").rmdir()
    (home / "audit.db").unlink()
    shutil.copytree(home, tmp_path / "key and head")
    first_head = (home / "audit.head").read_bytes()
    SqliteAuditLog(home).close()
    shutil.copytree(home, tmp_path / "committed")
    seal = AuditSeal((home / "audit.key").read_bytes())
    (tmp_path / "committed" / "audit.head").write_bytes(first_head)
    (tmp_path / "committed" / "audit.journal").write_bytes(seal.seal_tip(TRAILER, *ORIGIN))
    old_journal, old_head = ((home / name).read_bytes() for name in ("audit.journal", "audit.head"))
    SqliteAuditLog(home).close()
    shutil.copytree(home, tmp_path / "next committed")
    (tmp_path / "next committed" / "audit.head").write_bytes(old_head)
    (tmp_path / "next committed" / "audit.journal").write_bytes(old_journal)
    for name, entries in {"key and head": 1, "committed": 2, "next committed": 3}.items():
        SqliteAuditLog(tmp_path / name).close()
        assert (verify(tmp_path / name).problem, verify(tmp_path / name).entries) == (None, entries)
    assert not caplog.text
    # A first head is no excuse for a journal that is gone, once there is an entry.
    (home / "audit.head").write_bytes(first_head)
    assert verify(home).ok
    (home / "audit.journal").unlink()
    assert "the journal is missing" in (verify(home).problem or "")
