"""Proves that the audit holds all that was written to it, unchanged, or says where it does not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dragoman.core.errors import ConfigError
from dragoman.stores.chain import (
    DATABASE,
    HEAD,
    KEY,
    MIGRATIONS,
    Broken,
    Seal,
    Tip,
    read_anchor,
    read_key,
    walk,
)
from dragoman.stores.sqlite import open_to_read

TRIES = 5
PROGRESS_ENTRIES = 10_000

Progress = Callable[[int, int], None]
"""Entries proved so far, and entries in all."""


@dataclass(frozen=True, slots=True)
class Verdict:
    ok: bool
    entries: int
    """How many were proved: all of them, or those before the problem."""
    first_seq: int
    last_seq: int
    problem: str | None
    at_seq: int | None


@dataclass(slots=True)
class Proved:
    entries: int = 0
    first: int = 0
    last: int = 0


def silent(done: int, total: int) -> None:
    """Where progress goes that nobody asked for."""


def verify(home: Path, progress: Progress = silent) -> Verdict:
    """Walks the chain from its beginning to its head, in constant memory. A hub may be running."""
    proved = Proved()
    problem: str | None = None
    at: int | None = None
    try:
        seal = _seal(home)
        with closing(_open(home)) as db:
            _prove(db, seal, home, proved, progress)
    except Broken as broken:
        problem, at = broken.problem, broken.seq
    except (OSError, sqlite3.Error, ConfigError) as error:
        problem = f"the audit cannot be read: {error}"
    return Verdict(problem is None, proved.entries, proved.first, proved.last, problem, at)


def _seal(home: Path) -> Seal:
    key = read_key(home)
    if key is None:
        if (home / DATABASE).exists() or (home / HEAD).exists():
            raise Broken(f'the key "{home / KEY}" is missing, so nothing can be proved', None)
        raise Broken(f'there is no audit in "{home}"', None)
    return Seal(key)


def _open(home: Path) -> sqlite3.Connection:
    path = home / DATABASE
    if not path.exists():
        raise Broken(f'the database "{path}" is missing, though a hub has written one', None)
    return open_to_read(path, len(MIGRATIONS))


def _prove(
    db: sqlite3.Connection, seal: Seal, home: Path, proved: Proved, progress: Progress
) -> None:
    head, anchor = _ends(db, seal, home)
    early = db.execute("SELECT seq FROM entries WHERE seq <= ? LIMIT 1", (anchor.seq,)).fetchone()
    if early is not None:
        raise Broken(f"entry {early[0]} stands before the place where the chain begins", early[0])
    total = db.execute("SELECT count(*) FROM entries").fetchone()[0]
    tip = anchor
    _meets(head, tip)
    for tip in walk(db, seal, anchor):
        _meets(head, tip)
        proved.first = proved.first or tip.seq
        proved.last = tip.seq
        proved.entries += 1
        if proved.entries % PROGRESS_ENTRIES == 0:
            progress(proved.entries, total)
    if head.seq > tip.seq:
        raise Broken(
            f"entries {tip.seq + 1} to {head.seq} are missing from the end: the head says "
            f"{head.seq} were written",
            tip.seq + 1,
        )
    progress(proved.entries, total)


def _ends(db: sqlite3.Connection, seal: Seal, home: Path) -> tuple[Tip, Tip]:
    """The head, and the anchor in a snapshot of the database that is not older than it: a hub
    commits first and moves the head after. A hub that prunes meanwhile is asked again."""
    for _ in range(TRIES):
        head = _head(home, seal)
        db.execute("BEGIN")
        anchor = read_anchor(db, seal)
        if head.seq >= anchor.seq:
            return head, anchor
        db.execute("ROLLBACK")
    raise Broken("the head is older than the entries that were pruned: it was put back", head.seq)


def _head(home: Path, seal: Seal) -> Tip:
    for _ in range(TRIES):  # it may be read in the middle of being written
        try:
            record = (home / HEAD).read_bytes()
        except FileNotFoundError:
            raise Broken(f'the head "{home / HEAD}" is missing', None) from None
        head = seal.tip_from_head(record)
        if head is not None:
            return head
    raise Broken(f'the head "{home / HEAD}" was changed, forged or damaged', None)


def _meets(head: Tip, tip: Tip) -> None:
    if tip.seq == head.seq and tip.mac != head.mac:
        raise Broken(f"entry {tip.seq} is not the one the head was made of", tip.seq)
