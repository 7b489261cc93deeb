"""Reads the audit logs of all hubs from PostgreSQL, in the order of time, newest first.

What the database does not have yet of the hub that reads comes from its home. Does not verify the
chains: see `shared_verify`.
"""

from __future__ import annotations

import heapq
import json
import math
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.audit_queries import SHADOW, RecordQuery
from dragoman.core.errors import InvalidInput, NotFound, StorageFailed
from dragoman.stores.audit.chain import BREAK, INTENT, OUTCOME, EntryRow
from dragoman.stores.audit.reader import (
    RUNNING,
    UNKNOWN,
    AuditReader,
    AuditRecord,
    MayMatch,
    decode_body,
    read_outcome,
)
from dragoman.stores.audit.shared_keys import read_chain_id
from dragoman.stores.audit.shared_tables import SHADOW_MARK, clip
from dragoman.stores.postgres_connections import connect, describe_failure, find_errors, is_idle

if TYPE_CHECKING:
    from dragoman.stores.postgres_connections import Connection

FIRST_PAGE, PAGE = 100, 1_000
MAX_TAIL = 20_000
"""Entries of the home that the database does not have, of which the newest are read."""
MAX_IDLE = 2
"""Connections that are kept between queries."""
ALIVE_SECONDS = 20
"""A hub that was not seen for so long does not run any more."""

_CHAIN_BITS, _SEQ_BITS = 32, 48
_TIME = struct.Struct(">d")
_LISTED = "i.kind IN ('intent', 'break')"
_SELECT = (
    "SELECT i.chain, i.seq, i.kind, i.at, i.body, o.seq, o.body FROM audit_entries i "
    "LEFT JOIN audit_entries o ON o.chain = i.chain AND o.seq = i.ended WHERE "
)
_ORDER = " ORDER BY i.at DESC, i.chain DESC, i.seq DESC LIMIT %s"
_CHAINS = (
    "SELECT chain, id, node, started, head_seq, "
    f"coalesce(seen_at > now() - interval '{ALIVE_SECONDS} seconds', false) FROM audit_chains"
)
_ENDED = (
    "SELECT o.chain, o.seq, o.kind, o.at, o.body, i.seq, i.at, i.body FROM audit_chains c "
    "CROSS JOIN LATERAL (SELECT * FROM audit_entries e WHERE e.chain = c.chain "
    "AND e.seq > coalesce((%s::jsonb ->> c.id)::bigint, 0) AND e.kind IN ('outcome', 'break') "
    "ORDER BY e.seq LIMIT %s) o "
    "LEFT JOIN audit_entries i ON i.chain = o.chain AND i.seq = o.of ORDER BY o.at LIMIT %s"
)


@dataclass(frozen=True, slots=True)
class KnownChain:
    id: str
    node: str
    started: int
    """Calls before this entry that have no outcome will never get one."""
    head_seq: int
    is_alive: bool


@dataclass(slots=True)
class _Tail:
    """What only the home has: records, newest first, and outcomes of calls that were copied."""

    chain: int = 0
    records: list[tuple[int, AuditRecord | None]] = field(default_factory=list)
    ends: dict[int, tuple[int, bytes]] = field(default_factory=dict)


def build_position(at: float, chain: int, seq: int) -> int:
    """A number that is ordered as the records are: by time, then by chain and entry. The bits of
    positive floats are ordered as the floats."""
    bits = int.from_bytes(_TIME.pack(max(at, 0.0)), "big")
    return (bits << (_CHAIN_BITS + _SEQ_BITS)) | (chain << _SEQ_BITS) | seq


def split_position(position: int) -> tuple[float, int, int]:
    """Raises `InvalidInput` for a number that is not a position."""
    chain = (position >> _SEQ_BITS) & ((1 << _CHAIN_BITS) - 1)
    bits = position >> (_CHAIN_BITS + _SEQ_BITS)
    try:
        (at,) = _TIME.unpack(bits.to_bytes(8, "big"))
    except OverflowError:
        at = math.nan
    if not math.isfinite(at) or chain > 0x7FFFFFFF:
        raise InvalidInput("invalid cursor: use nextCursor of the page before")
    return at, chain, position & ((1 << _SEQ_BITS) - 1)


class SharedRecords:
    """Thread-safe. Its methods block, and raise `StorageFailed` if the database is away."""

    def __init__(self, url: str, *homes: Path) -> None:
        """`homes` are those of hubs on this machine that copy their chains to this database."""
        self._url = url
        self._homes = homes
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()

    def list_chains(self) -> dict[int, KnownChain]:
        with self._borrow() as db:
            return {row[0]: KnownChain(*row[1:]) for row in db.execute(_CHAINS).fetchall()}

    def scan(
        self, wanted: RecordQuery, before: int | None, may_match: MayMatch
    ) -> Iterator[tuple[int, AuditRecord | None]]:
        """Implements `queries.RecordScanner`. The caller compares each record with the query: a
        column for searches may be cut off."""
        with self._borrow() as db:
            chains = {row[0]: KnownChain(*row[1:]) for row in db.execute(_CHAINS).fetchall()}
            tails = [self._read_tail(chains, home) for home in self._homes]
            fresh = (
                [one for one in tail.records if before is None or one[0] < before] for tail in tails
            )
            copied = {tail.chain: tail for tail in tails}
            stored = self._read_stored(db, chains, copied, wanted, before, may_match)
            yield from heapq.merge(*fresh, stored, key=lambda one: one[0], reverse=True)

    def list_ended_after(
        self, positions: Mapping[str, int], limit: int = 1_000
    ) -> tuple[list[AuditRecord], dict[str, int]]:
        """Lists calls that ended, and breaks, after the given entry of each chain, in the order of
        time; returns the positions to continue from. Entries that were not copied yet follow
        later."""
        after = dict(positions)
        records = []
        with self._borrow() as db:
            chains = {row[0]: KnownChain(*row[1:]) for row in db.execute(_CHAINS).fetchall()}
            rows = db.execute(_ENDED, (json.dumps(after), limit, limit)).fetchall()
        for number, last, kind, ended, conclusion, seq, at, intent in rows:
            known = chains.get(number)
            name = known.node if known is not None else ""
            end = decode_body(bytes(conclusion))
            if known is not None:
                after[known.id] = max(last, after.get(known.id, 0))
            if kind == BREAK:
                records.append(AuditRecord(last, last, ended, {}, BREAK, end, name))
            elif intent is None:
                records.append(AuditRecord(last, last, ended, {}, read_outcome(end), end, name))
            else:
                begun = decode_body(bytes(intent))
                records.append(AuditRecord(seq, last, at, begun, read_outcome(end), end, name))
        return records, after

    def find_positions(self) -> dict[str, int]:
        """Where each chain ends now, for `list_ended_after`."""
        return {known.id: known.head_seq for known in self.list_chains().values()}

    def _read_stored(
        self,
        db: Connection,
        chains: Mapping[int, KnownChain],
        tails: Mapping[int, _Tail],
        wanted: RecordQuery,
        before: int | None,
        may_match: MayMatch,
    ) -> Iterator[tuple[int, AuditRecord | None]]:
        where, values = build_conditions(wanted)
        size = FIRST_PAGE
        place = split_position(before) if before is not None else None
        while True:
            conditions, more = where, values
            if place is not None:
                conditions = [*where, "(i.at, i.chain, i.seq) < (%s, %s, %s)"]
                more = [*values, *place]
            statement = _SELECT + " AND ".join(conditions) + _ORDER
            rows = db.execute(statement, (*more, size), binary=True).fetchall()
            for chain, seq, kind, at, body, last, conclusion in rows:
                known = chains.get(chain)
                if (tail := tails.get(chain)) is not None:
                    if known is not None and seq > known.head_seq:
                        continue  # copied a moment ago: the tail has it
                    if last is None and seq in tail.ends:
                        last, conclusion = tail.ends[seq]
                record = None
                if kind == BREAK or may_match(body, conclusion or b""):
                    record = _build_record(known, seq, kind, at, body, last, conclusion)
                yield build_position(at, chain, seq), record
            if len(rows) < size:
                return
            chain, seq, _, at = rows[-1][:4]
            place = (at, chain, seq)
            size = PAGE

    def _read_tail(self, chains: Mapping[int, KnownChain], home: Path) -> _Tail:
        """Reads the newest entries of a home, which the database does not have yet."""
        own = read_chain_id(home)
        number, known = next(
            ((number, one) for number, one in chains.items() if one.id == own), (0, None)
        )
        try:
            reader = AuditReader(home)
        except NotFound:
            return _Tail()
        with closing(reader):
            entries = reader.read_newest(known.head_seq if known is not None else 0, MAX_TAIL)
        return _build_tail(number, known, entries)

    @contextmanager
    def _borrow(self) -> Iterator[Connection]:
        with self._lock:
            db = self._idle.pop() if self._idle else None
        if db is not None and db.closed:
            db = None
        try:
            if db is None:
                db = connect(self._url)
            yield db
        except find_errors() as error:
            if db is not None:
                db.close()
            raise StorageFailed(describe_failure(self._url, error)) from error
        finally:
            if db is not None and not db.closed:
                with self._lock:
                    kept = is_idle(db) and len(self._idle) < MAX_IDLE
                    if kept:
                        self._idle.append(db)
                if not kept:
                    db.close()


def build_conditions(wanted: RecordQuery) -> tuple[list[str], list[Any]]:
    """Builds what the database can decide of a query."""
    where, values = [_LISTED], list[Any]()
    for name in ("verb", "caller", "org"):
        if value := getattr(wanted, name):
            where.append(f"i.{name} = %s")
            values.append(clip(value))
    if wanted.trace:
        where.append("i.trace LIKE %s")
        escaped = (clip(wanted.trace) or "").replace("\\", "\\\\")
        values.append(escaped.replace("%", "\\%").replace("_", "\\_") + "%")
    if wanted.agent:
        where.append("(i.target = %s OR i.agent = %s)")
        values += [clip(wanted.agent)] * 2
    if wanted.outcome == BREAK:
        where.append("i.kind = 'break'")
    elif wanted.outcome in (RUNNING, UNKNOWN):
        # `unknown` is also the outcome of an entry that does not say one.
        where.append("(i.outcome IS NULL OR i.outcome = 'unknown') AND i.kind = 'intent'")
    elif wanted.outcome:
        where.append("i.outcome = %s")
        values.append(clip(wanted.outcome))
    if wanted.decision == SHADOW:
        where.append("i.decision = ANY(%s)")
        values.append([f"{one}{SHADOW_MARK}" for one in ("permit", "deny", "")])
    elif wanted.decision:
        where.append("i.decision = ANY(%s)")
        values.append([clip(wanted.decision), f"{clip(wanted.decision)}{SHADOW_MARK}"])
    if wanted.since > 0:
        where.append("i.at >= %s")
        values.append(wanted.since)
    if wanted.until < 1e11:
        where.append("i.at < %s")
        values.append(wanted.until)
    return where, values


def _build_tail(number: int, known: KnownChain | None, entries: Sequence[EntryRow]) -> _Tail:
    """Builds records of entries, which are newest first."""
    tail = _Tail(number)
    alive = True
    for seq, kind, of, at, body, _ in entries:
        if kind == OUTCOME and of is not None:
            tail.ends[of] = (seq, body)
        elif kind in (INTENT, BREAK):
            last, conclusion = tail.ends.pop(seq, (None, None))
            record = _build_record(known, seq, kind, at, body, last, conclusion, alive)
            tail.records.append((build_position(at, number, seq), record))
        else:
            alive = False  # earlier calls belong to a hub that has ended
    tail.records.sort(key=lambda one: one[0], reverse=True)
    return tail


def _build_record(
    known: KnownChain | None,
    seq: int,
    kind: str,
    at: float,
    body: bytes,
    last: int | None,
    conclusion: bytes | None,
    alive: bool | None = None,
) -> AuditRecord:
    name = known.node if known is not None else ""
    found = decode_body(bytes(body))
    if kind == BREAK:
        return AuditRecord(seq, seq, at, {}, BREAK, found, name)
    if last is None or conclusion is None:
        if alive is None:
            alive = known is not None and known.is_alive and seq > known.started
        return AuditRecord(seq, seq, at, found, RUNNING if alive else UNKNOWN, {}, name)
    end = decode_body(bytes(conclusion))
    return AuditRecord(seq, last, at, found, read_outcome(end), end, name)
