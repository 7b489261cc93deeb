"""Verifies the audit logs of all hubs as the database has them.

Each chain must begin at its sealed anchor, continue without a gap to its sealed head, and contain
what the other hubs have recorded of it. The columns for searches must say the same as the entries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import StorageFailed
from dragoman.stores.audit import chain
from dragoman.stores.audit.chain import INTENT, OUTCOME, TIP, AuditSeal, ChainBroken, ChainTip
from dragoman.stores.audit.shared_keys import HEAD_IN_DATABASE, ChainKeys, read_chain_id
from dragoman.stores.audit.shared_tables import COLUMNS, SharedRow, build_rows
from dragoman.stores.audit.verify import PROGRESS_ENTRIES, Progress, VerifiedRange, ignore_progress
from dragoman.stores.postgres_connections import (
    LONG_SECONDS,
    connect,
    describe_failure,
    find_errors,
)
from dragoman.stores.sqlite import open_to_read

if TYPE_CHECKING:
    from dragoman.stores.postgres_connections import AsyncConnection, Connection

ANCHOR = "audit.anchor"
"""The verb of a record of where other chains end."""
_ANCHOR_MARK = f'"verb":"{ANCHOR}"'.encode()
PAGE = 2_000

_CHAINS = (
    "SELECT chain, id, node, sealed_key, anchor_seq, anchor_mac, anchor_at, anchor_seal, head "
    "FROM audit_chains ORDER BY chain"
)
_PAGE = (
    f"SELECT {', '.join(COLUMNS)} FROM audit_entries WHERE chain = %s AND seq > %s "
    "ORDER BY seq LIMIT %s"
)


@dataclass(frozen=True, slots=True)
class ChainReport:
    chain: str
    node: str
    entries: int
    first_seq: int
    last_seq: int
    problem: str | None
    at_seq: int | None


@dataclass(frozen=True, slots=True)
class SharedReport:
    """The members of `VerifyReport`, over all chains, and each chain."""

    ok: bool
    entries: int
    first_seq: int
    last_seq: int
    problem: str | None
    at_seq: int | None
    chains: list[ChainReport] = field(default_factory=list)


@dataclass(slots=True)
class _Claims:
    """What verified chains record of other chains."""

    newest: dict[str, ChainTip] = field(default_factory=dict)
    by: dict[str, str] = field(default_factory=dict)

    def add(self, by: str, body: bytes) -> None:
        try:
            found = json.loads(body)["chains"].items()
            for id, (seq, mac) in found:
                if seq > self.newest.get(id, chain.ORIGIN).seq:
                    self.newest[id] = ChainTip(int(seq), bytes.fromhex(mac))
                    self.by[id] = by
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # an entry of this verb that a client has caused


def verify_shared(
    url: str, homes: Sequence[Path], keys: ChainKeys, progress: Progress = ignore_progress
) -> SharedReport:
    """Verifies every chain in constant memory. `homes` are those of hubs on this machine, which
    must contain what was copied from them. Raises `StorageFailed` if the database is away."""
    try:
        with connect(url, LONG_SECONDS) as db:
            # One snapshot: hubs go on writing.
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return _verify(db, homes, keys, progress)
    except find_errors() as error:
        raise StorageFailed(describe_failure(url, error)) from error


def _verify(
    db: Connection, homes: Sequence[Path], keys: ChainKeys, progress: Progress
) -> SharedReport:
    claims = _Claims()
    own = {id: home for home in homes if (id := read_chain_id(home)) is not None}
    home_keys = (key for home in homes if (key := chain.read_key(home)) is not None)
    home_key = next(home_keys, None)
    found = db.execute(_CHAINS).fetchall()
    total = _count(db)
    done = 0
    reports: list[ChainReport] = []
    for row in found:
        proved, problem, at = VerifiedRange(), None, None
        id, sealed = row[1], row[3]
        key = keys.open(id, bytes(sealed)) if sealed is not None else None
        try:
            if id in own:
                key = chain.read_key(own[id])
            elif sealed is None:
                key = home_key
            if key is None:
                why = "was changed, or sealed with another secret" if sealed else "is missing"
                raise ChainBroken(f"its key {why}, so nothing can be verified", None)
            for _ in _verify_chain(db, row, AuditSeal(key), claims, proved):
                done += 1
                if done % PROGRESS_ENTRIES == 0:
                    progress(done, total)
            if id in own:
                _compare_home(db, row, own[id], AuditSeal(key))
        except ChainBroken as broken:
            problem, at = broken.problem, broken.seq
        reports.append(
            ChainReport(id, row[2], proved.entries, proved.first, proved.last, problem, at)
        )
    progress(done, total)
    for id in sorted(own.keys() - {row[1] for row in found}):
        said = f'the chain of "{own[id]}" is not in the database'
        reports.append(ChainReport(id, "", 0, 0, 0, said, None))
    reports = [_check_claim(db, found, claims, report) for report in reports]
    known = {report.chain for report in reports}
    for id in sorted(claims.newest.keys() - known):
        tip = claims.newest[id]
        said = f"the chain is missing: chain {claims.by[id]} recorded that it had {tip.seq} entries"
        reports.append(ChainReport(id, "", 0, 0, 0, said, None))
    return sum_up(reports)


def sum_up(reports: list[ChainReport]) -> SharedReport:
    """Builds the report of all chains."""
    entries = sum(one.entries for one in reports)
    first = min((one.first_seq for one in reports if one.entries), default=0)
    last = max((one.last_seq for one in reports), default=0)
    broken = next((one for one in reports if one.problem is not None), None)
    if not reports:
        said = "there is no audit log in the database"
        return SharedReport(False, 0, 0, 0, said, None, [])
    problem = None
    if broken is not None:
        of = f" of {broken.node}" if broken.node else ""
        problem = f"chain {broken.chain}{of}: {broken.problem}"
    at = broken.at_seq if broken is not None else None
    return SharedReport(broken is None, entries, first, last, problem, at, reports)


def _count(db: Connection) -> int:
    row = db.execute("SELECT coalesce(sum(head_seq - anchor_seq), 0) FROM audit_chains").fetchone()
    return int(row[0]) if row else 0


def _verify_chain(
    db: Connection, row: tuple[Any, ...], seal: AuditSeal, claims: _Claims, proved: VerifiedRange
) -> Iterator[None]:
    number, id, _, _, seq, mac, at, anchor_seal, record = row
    anchor = ChainTip(seq, bytes(mac))
    if anchor != chain.ORIGIN and (
        anchor_seal is None or seal.seal_anchor(anchor, at) != bytes(anchor_seal)
    ):
        raise ChainBroken("the anchor of the pruned entries was changed or forged", seq)
    head = seal.read_tip((HEAD_IN_DATABASE,), bytes(record))
    if head is None:
        raise ChainBroken("the head was changed, forged or damaged", None)
    early = db.execute(
        "SELECT seq FROM audit_entries WHERE chain = %s AND seq <= %s LIMIT 1", (number, seq)
    ).fetchone()
    if early is not None:
        raise ChainBroken(f"entry {early[0]} is before the beginning of the chain", early[0])
    last, anchors = anchor, set[int]()
    waiting: dict[int, SharedRow] = {}
    while page := _read_page(db, number, last.seq):
        entries = [entry[1:7] for entry in page]
        tips = chain.verify_entries(entries, seal, last)
        for entry, last in zip(entries, tips, strict=True):
            proved.first = proved.first or last.seq
            proved.last = last.seq
            proved.entries += 1
            if entry[1] == INTENT and _ANCHOR_MARK in entry[4]:
                anchors.add(entry[0])
            elif entry[1] == OUTCOME and entry[2] in anchors:
                anchors.discard(entry[2])
                claims.add(id, entry[4])
            yield
        _check_columns(row, page, waiting)
    if last.seq != head.seq:
        _raise_end(last, head)
    if last.mac != head.mac:
        raise ChainBroken(f"entry {head.seq} is not the one that the head names", head.seq)
    if waiting:
        seq = min(waiting)
        raise ChainBroken(f"the columns of entry {seq} name an outcome that is missing", seq)


def _raise_end(last: ChainTip, head: ChainTip) -> None:
    if last.seq < head.seq:
        raise ChainBroken(
            f"entries {last.seq + 1} to {head.seq} are missing from the end: the head says "
            f"{head.seq} were copied",
            last.seq + 1,
        )
    raise ChainBroken(f"entries after {head.seq} do not belong to the chain", head.seq + 1)


def _read_page(db: Connection, number: int, after: int) -> list[SharedRow]:
    rows = db.execute(_PAGE, (number, after, PAGE), binary=True).fetchall()
    return [(*row[:5], bytes(row[5]), bytes(row[6]), *row[7:]) for row in rows]


def _check_columns(
    of: tuple[Any, ...], page: list[SharedRow], waiting: dict[int, SharedRow]
) -> None:
    """Compares the columns for searches with the entries. `waiting` has the intents whose outcome
    is on a later page."""
    number, begin = of[0], of[4]
    rebuilt, late = build_rows(number, [row[1:7] for row in page])
    for stored, built in zip(page, rebuilt, strict=True):
        if stored == built:
            continue
        if built[2] != INTENT or built[7] is not None or stored[8:14] != built[8:14]:
            raise ChainBroken(f"the columns of entry {stored[1]} do not match it", stored[1])
        waiting[stored[1]] = stored
    for one in late:
        row = waiting.pop(one.of, None)
        found = (row[7], row[14], row[15]) if row is not None else ()
        if one.of > begin and found != (one.ended, one.outcome, one.decision):
            raise ChainBroken(f"the columns of entry {one.of} do not match its outcome", one.of)


def _compare_home(db: Connection, row: tuple[Any, ...], home: Path, seal: AuditSeal) -> None:
    """The home must have the entry at the head of its copy, or have pruned it."""
    head = seal.read_tip((HEAD_IN_DATABASE,), bytes(row[8]))
    path = home / chain.DATABASE
    if head is None or head == chain.ORIGIN or not path.exists():
        return
    local = open_to_read(path, len(chain.MIGRATIONS))
    try:
        found = local.execute("SELECT mac FROM entries WHERE seq = ?", (head.seq,)).fetchone()
        begins = chain.read_anchor(local, seal)
    finally:
        local.close()
    if found is None and begins.seq < head.seq:
        raise ChainBroken(f"the home lacks entry {head.seq}, which was copied from it", head.seq)
    if found is not None and found[0] != head.mac:
        raise ChainBroken(f"entry {head.seq} is not the one in the home", head.seq)


def _check_claim(
    db: Connection, chains: list[tuple[Any, ...]], claims: _Claims, report: ChainReport
) -> ChainReport:
    """Compares a chain with what other hubs have recorded of it."""
    tip = claims.newest.get(report.chain)
    row = next((one for one in chains if one[1] == report.chain), None)
    if tip is None or row is None or report.problem is not None or tip.seq <= row[4]:
        return report
    found = db.execute(
        "SELECT mac FROM audit_entries WHERE chain = %s AND seq = %s", (row[0], tip.seq)
    ).fetchone()
    if found is not None and bytes(found[0]) == tip.mac:
        return report
    said = (
        f"entry {tip.seq} is missing or another one than chain {claims.by[report.chain]} has "
        "recorded: an old copy of the chain was restored, or its end was replaced"
    )
    return ChainReport(
        report.chain, report.node, report.entries, report.first_seq, report.last_seq, said, tip.seq
    )


async def list_heads(db: AsyncConnection) -> list[tuple[str, ChainTip]]:
    """Lists where each chain with entries ends, as the database says."""
    # By the head itself: a chain could be hidden by a change of the columns that no seal protects.
    cursor = await db.execute("SELECT id, head FROM audit_chains ORDER BY chain")
    heads = []
    for id, record in await cursor.fetchall():
        if len(record) >= TIP.size:
            _, mac, seq = TIP.unpack_from(bytes(record))
            if seq:
                heads.append((id, ChainTip(seq, mac)))
    return heads
