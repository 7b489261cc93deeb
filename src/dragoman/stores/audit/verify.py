"""Verifies that the audit log is complete and unchanged, or reports where it is not."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import ConfigError
from dragoman.stores.audit import chain
from dragoman.stores.audit.chain import AuditSeal, ChainBroken, ChainTip, EntryRow
from dragoman.stores.audit.journal import JOURNAL, JournalContents, read_journal
from dragoman.stores.sqlite import open_to_read

TRIES = 5
PROGRESS_ENTRIES = 10_000

Progress = Callable[[int, int], None]
"""Gets the number of verified entries and the total."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    ok: bool
    entries: int
    """The number of verified entries: all of them, or those before the problem."""
    first_seq: int
    last_seq: int
    problem: str | None
    at_seq: int | None


@dataclass(slots=True)
class VerifiedRange:
    entries: int = 0
    first: int = 0
    last: int = 0


class ChainEnds(NamedTuple):
    """Where the chain ends according to head and journal."""

    head: ChainTip
    first: bool
    """Whether the head was written before there was a journal."""
    left: JournalContents | None


def ignore_progress(done: int, total: int) -> None:
    """Discards progress."""


def verify(home: Path, progress: Progress = ignore_progress) -> VerifyReport:
    """Verifies the whole chain in constant memory. A hub may be running."""
    proved = VerifiedRange()
    problem: str | None = None
    at: int | None = None
    try:
        seal = _load_seal(home)
        with closing(_open_database(home)) as db:
            _verify_database(db, seal, home, proved, progress)
    except ChainBroken as broken:
        problem, at = broken.problem, broken.seq
    except (OSError, sqlite3.Error, ConfigError) as error:
        problem = f"the audit log cannot be read: {error}"
    return VerifyReport(problem is None, proved.entries, proved.first, proved.last, problem, at)


def find_discrepancy(
    db: sqlite3.Connection, seal: AuditSeal, record: bytes, left: JournalContents | None
) -> str | None:
    """Describes how database and journal differ from the ends in head and journal, checking only
    entries after the head; None if they agree. The database may be ahead of both by a valid
    commit made just before the hub was killed."""
    end = chain.find_tail(db)
    head = seal.read_tip(chain.HEADS, record)
    if head is None:
        how = "forged or damaged" if record else "missing"
        return f"the head was {how}, the database ends at entry {end.seq}"
    if head.seq > end.seq:
        return (
            f"the head says {head.seq} entries were written, the database ends at {end.seq}: "
            "entries were removed, or lost in a power failure"
        )
    try:
        row = db.execute("SELECT mac FROM entries WHERE seq = ?", (head.seq,)).fetchone()
        at_head = ChainTip(head.seq, row[0] if row else chain.read_anchor(db, seal).mac)
        for _ in verify_chain(
            db, seal, at_head, ChainEnds(head, record[:1] == chain.FIRST_HEAD, left)
        ):
            pass
    except ChainBroken as broken:
        return broken.problem
    return None


def list_journal_rows_after(end: ChainTip, left: JournalContents | None) -> list[EntryRow]:
    """Lists the rows that only the journal has."""
    return [row for row in left.rows if row[0] > end.seq] if left else []


def verify_chain(
    db: sqlite3.Connection, seal: AuditSeal, tip: ChainTip, ends: ChainEnds
) -> Iterator[ChainTip]:
    """Yields the position of each verified entry after `tip`, from the database and then the
    journal, up to the end that head and journal record. Raises `ChainBroken`."""
    left = ends.left
    end = chain.find_tail(db)
    trailer = None if left is None else seal.read_tip(chain.TRAILERS, left.trailer)
    marks = [("head", ends.head)]
    if left is not None and left.rows:
        marks.append(("journal", ChainTip(left.rows[0][0] - 1, left.before)))
    if trailer is not None:
        marks.append(("journal", trailer))
    places = {mark.seq for _, mark in marks}
    if tip.seq in places:
        _check_marks(marks, tip)
    last = tip
    for last in chain.verify_entries(
        itertools.chain(chain.read_entries_after(db, tip.seq), list_journal_rows_after(end, left)),
        seal,
        tip,
    ):
        if last.seq in places:
            _check_marks(marks, last)
        yield last
    for name, mark in marks:
        if mark.seq > last.seq:
            raise ChainBroken(
                f"entries {last.seq + 1} to {mark.seq} are missing from the end: the {name} says "
                f"{mark.seq} were written",
                last.seq + 1,
            )
    problem = _find_journal_problem(ends, trailer, end)
    if problem is not None:
        raise ChainBroken(
            f"the journal {problem}; entries after {last.seq} may be lost", last.seq + 1
        )


def _find_journal_problem(ends: ChainEnds, trailer: ChainTip | None, end: ChainTip) -> str | None:
    if ends.left is None:
        # A first start may have been interrupted before the journal was created.
        return None if ends.first and ends.head == end else "is missing"
    if trailer is None:
        return "was changed, forged or damaged, or truncated by a power failure"
    if trailer.seq < ends.head.seq:
        return "is older than the head: an old copy was restored"
    return None


def _check_marks(marks: list[tuple[str, ChainTip]], tip: ChainTip) -> None:
    for name, mark in marks:
        if tip.seq == mark.seq and tip.mac != mark.mac:
            raise ChainBroken(f"entry {tip.seq} is not the entry that the {name} names", tip.seq)


def _load_seal(home: Path) -> AuditSeal:
    key = chain.read_key(home)
    if key is None:
        if any((home / name).exists() for name in (chain.DATABASE, chain.HEAD, JOURNAL)):
            raise ChainBroken(
                f'the key "{home / chain.KEY}" is missing, so nothing can be verified', None
            )
        raise ChainBroken(f'there is no audit log in "{home}"', None)
    return AuditSeal(key)


def _open_database(home: Path) -> sqlite3.Connection:
    path = home / chain.DATABASE
    if not path.exists():
        raise ChainBroken(f'the database "{path}" is missing, although a hub has written one', None)
    return open_to_read(path, len(chain.MIGRATIONS))


def _verify_database(
    db: sqlite3.Connection, seal: AuditSeal, home: Path, proved: VerifiedRange, progress: Progress
) -> None:
    ends, anchor = _read_ends(db, seal, home)
    early = db.execute("SELECT seq FROM entries WHERE seq <= ? LIMIT 1", (anchor.seq,)).fetchone()
    if early is not None:
        raise ChainBroken(f"entry {early[0]} is before the beginning of the chain", early[0])
    total = db.execute("SELECT count(*) FROM entries").fetchone()[0]
    total += len(list_journal_rows_after(chain.find_tail(db), ends.left))
    for tip in verify_chain(db, seal, anchor, ends):
        proved.first = proved.first or tip.seq
        proved.last = tip.seq
        proved.entries += 1
        if proved.entries % PROGRESS_ENTRIES == 0:
            progress(proved.entries, total)
    progress(proved.entries, total)


def _read_ends(db: sqlite3.Connection, seal: AuditSeal, home: Path) -> tuple[ChainEnds, ChainTip]:
    """Reads the head, the journal, and the anchor in a snapshot of the database, in this order:
    entries known to the head are in the journal or have left it, and entries that have left the
    journal are in the database. Tries again if the hub prunes meanwhile."""
    for _ in range(TRIES):
        head, first = _read_head(home, seal)
        left = read_journal(home, seal)
        db.execute("BEGIN")
        anchor = chain.read_anchor(db, seal)
        if head.seq >= anchor.seq:
            return ChainEnds(head, first, left), anchor
        db.execute("ROLLBACK")
    raise ChainBroken(
        "the head is older than the pruned entries: an old copy was restored", head.seq
    )


def _read_head(home: Path, seal: AuditSeal) -> tuple[ChainTip, bool]:
    for _ in range(TRIES):  # it may be read during a write
        try:
            record = (home / chain.HEAD).read_bytes()
        except FileNotFoundError:
            raise ChainBroken(f'the head "{home / chain.HEAD}" is missing', None) from None
        head = seal.read_tip(chain.HEADS, record)
        if head is not None:
            return head, record[:1] == chain.FIRST_HEAD
    raise ChainBroken(f'the head "{home / chain.HEAD}" was changed, forged or damaged', None)
