"""Reads the audit log from any process, whether or not a hub is running.

A record is an intent joined with its outcome. Does not verify the chain: see `verify`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from dragoman.core.errors import NotFound
from dragoman.stores.audit.chain import (
    BREAK,
    DATABASE,
    HEAD,
    INTENT,
    MIGRATIONS,
    OUTCOME,
    START,
    EntryRow,
)
from dragoman.stores.audit.journal import read_journal
from dragoman.stores.sqlite import open_to_read

RUNNING = "running"
UNKNOWN = "unknown"
"""The hub ended without writing an outcome: the call may or may not have happened."""


DAMAGED: Mapping[str, Any] = {"damaged": True}
MayMatch = Callable[[bytes, bytes], bool]
_decoder = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One call, or one break of the chain (then `outcome` is `break`)."""

    seq: int
    """The number of the intent or the break."""
    last: int
    """The number of its newest entry: the position for `list_records_after`."""
    at: float
    intent: Mapping[str, Any]
    """Empty if the intent was pruned and the outcome was not."""
    outcome: str
    conclusion: Mapping[str, Any]
    """Empty if there is no outcome."""
    hub: str = ""
    """The hub that wrote it, where several share a database."""


class AuditReader:
    def __init__(self, home: Path) -> None:
        self._home = home
        if not (home / DATABASE).exists():
            raise NotFound(
                f'there is no audit log in "{home}"; the hub creates it at its first start'
            )
        self._db = open_to_read(home / DATABASE, len(MIGRATIONS))

    def list_records(
        self,
        limit: int,
        *,
        before: int | None = None,
        verb: str | None = None,
        caller: str | None = None,
        outcome: str | None = None,
        trace: str | None = None,
    ) -> list[AuditRecord]:
        """Lists up to `limit` records, newest first, before the record with the number `before`."""
        members = {"verb": verb, "caller": caller, "trace": trace}
        wanted = {name: value for name, value in members.items() if value is not None}
        found: list[AuditRecord] = []
        needles = build_needles(wanted)

        def may_match(intent: bytes, conclusion: bytes) -> bool:
            return all(needle in intent for needle in needles)

        for record in self._iterate_newest_first(before, may_match if needles else None):
            if len(found) >= limit:
                break
            if isinstance(record, int):
                continue
            if outcome is not None and record.outcome != outcome:
                continue
            if all(record.intent.get(name) == value for name, value in wanted.items()):
                found.append(record)
        return found

    def scan(self, before: int | None, may_match: MayMatch) -> Iterator[AuditRecord | int]:
        """Iterates over the records before the record with the number `before`, newest first.
        Yields only the number of one whose intent and outcome, as they are stored, do not match:
        most of a search is spent on these."""
        return self._iterate_newest_first(before, may_match)

    def list_records_after(self, seq: int, limit: int = 1000) -> list[AuditRecord]:
        """Lists ended calls and breaks after entry `seq`, in the order of writing. To follow the
        log, begin at `find_last_seq()` and continue from the `last` of the newest record."""
        stored, waiting = self._read_unsaved()
        rows = self._db.execute(
            "SELECT o.seq, o.kind, o.at, o.body, i.seq, i.at, i.body "
            "FROM entries o LEFT JOIN entries i ON i.seq = o.of "
            "WHERE o.seq > ? AND o.seq <= ? AND o.kind IN ('outcome', 'break') "
            "ORDER BY o.seq LIMIT ?",
            (seq, stored, limit),
        )
        found = []
        for last, kind, ended, conclusion, intent_seq, at, intent in rows:
            if kind == BREAK:
                found.append(self._build_break(last, ended, conclusion))
            else:
                found.append(self._build_record(last, ended, conclusion, intent_seq, at, intent))
        intents = {row[0]: row for row in waiting if row[1] == INTENT}
        for last, kind, of, ended, conclusion, _ in waiting:
            if len(found) >= limit:
                break
            if kind == OUTCOME and last > seq:
                began = (
                    intents.get(of or 0)
                    or self._db.execute(
                        "SELECT seq, kind, of, at, body FROM entries WHERE seq = ?", (of,)
                    ).fetchone()
                )
                intent_seq, at, intent = (began[0], *began[3:5]) if began else (last, ended, None)
                found.append(self._build_record(last, ended, conclusion, intent_seq, at, intent))
        return found

    def read_newest(self, after: int, limit: int) -> list[EntryRow]:
        """Reads up to `limit` entries after a number, newest first."""
        stored, waiting = self._read_unsaved()
        newest = [row for row in reversed(waiting) if row[0] > after][:limit]
        rows = self._db.execute(
            "SELECT seq, kind, of, at, body, mac FROM entries WHERE seq > ? AND seq <= ? "
            "ORDER BY seq DESC LIMIT ?",
            (after, stored, limit - len(newest)),
        )
        return [*newest, *rows]

    def find_last_seq(self) -> int:
        stored, waiting = self._read_unsaved()
        return waiting[-1][0] if waiting else stored

    def close(self) -> None:
        self._db.close()

    def _read_unsaved(self) -> tuple[int, list[EntryRow]]:
        """Returns the last number in the database and the rows that only the journal has. The
        journal is read first, so that entries moving to the database are not missed."""
        left = read_journal(self._home)
        stored = self._db.execute("SELECT max(seq) FROM entries").fetchone()[0] or 0
        return stored, [row for row in left.rows if row[0] > stored] if left else []

    def _iterate_newest_first(
        self, before: int | None, may_match: MayMatch | None
    ) -> Iterator[AuditRecord | int]:
        # Checked before the entries are read: if the hub is already gone, missing outcomes stay
        # missing, while a hub that ends now has written its outcomes first.
        without_outcome = RUNNING if _is_open(self._home) else UNKNOWN
        limit = before if before is not None else 1 << 62
        stored, waiting = self._read_unsaved()
        rows = self._db.execute(
            "SELECT seq, kind, of, at, body FROM entries WHERE seq <= ? "
            "AND (seq < ? OR of < ? OR kind = 'start') ORDER BY seq DESC",
            (stored, limit, limit),
        )
        newest = (
            row[:5] for row in reversed(waiting) if row[0] < limit or (row[2] or limit) < limit
        )
        # Reading backwards, an outcome comes before its intent: only the outcomes of concurrent
        # calls are held here, and the writer needs no index.
        ends: dict[int, tuple[int, bytes]] = {}
        for seq, kind, of, at, body in chain(newest, rows):
            if kind == OUTCOME:
                ends[of] = (seq, body)
            elif kind == BREAK:
                yield self._build_break(seq, at, body)
            elif kind == INTENT:
                last, conclusion = ends.pop(seq, (seq, b""))
                if may_match is not None and not may_match(body, conclusion):
                    yield seq
                elif conclusion:
                    end = decode_body(conclusion)
                    yield AuditRecord(seq, last, at, decode_body(body), read_outcome(end), end)
                else:
                    yield AuditRecord(seq, seq, at, decode_body(body), without_outcome, {})
            elif kind == START:
                without_outcome = UNKNOWN  # earlier entries belong to a previous hub

    def _build_record(
        self, last: int, ended: float, conclusion: bytes, seq: int, at: float, intent: bytes | None
    ) -> AuditRecord:
        end = decode_body(conclusion)
        if intent is None:
            return AuditRecord(last, last, ended, {}, read_outcome(end), end)
        return AuditRecord(seq, last, at, decode_body(intent), read_outcome(end), end)

    def _build_break(self, seq: int, at: float, body: bytes) -> AuditRecord:
        return AuditRecord(seq, seq, at, {}, BREAK, decode_body(body))


def build_needles(members: Mapping[str, str]) -> list[bytes]:
    """Returns what the text of every intent with these members contains: a search need not decode
    the others."""
    return [
        f'"{name}":{json.dumps(value, ensure_ascii=False)}'.encode()
        for name, value in members.items()
    ]


def decode_body(body: bytes) -> Mapping[str, Any]:
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return DAMAGED  # the entry was changed; `verify` reports it


def read_outcome(conclusion: Mapping[str, Any]) -> str:
    return str(conclusion.get("outcome", UNKNOWN))


def _is_open(home: Path) -> bool:
    """Whether a hub has the audit log open: it holds a lock on the head file."""
    try:
        head = os.open(home / HEAD, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(head, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(head)
    return False
