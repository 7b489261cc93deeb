"""Copies the entries of a home's audit log to the database that all hubs share.

Entries are copied in order, in transactions that also move the sealed head of the chain: whatever
ends one in the middle, the rows in the database end at the head. Nothing is copied twice, because a
transaction locks the chain and continues at its head. The home needs no record of how far it came.

A chain that no longer contains what was copied (a home restored from a backup, entries pruned
before they were copied, a head that was changed) continues as a new chain, after the last entry
that both have; the old one stays as it is.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.core.errors import ConfigError
from dragoman.stores.audit import chain
from dragoman.stores.audit.chain import AuditSeal, ChainTip, EntryRow
from dragoman.stores.audit.shared_keys import (
    HEAD_IN_DATABASE,
    ChainKeys,
    create_chain_id,
    read_chain_id,
)
from dragoman.stores.audit.shared_tables import (
    COPY,
    COPY_HEADER,
    COPY_TRAILER,
    LateOutcome,
    build_rows,
    encode_rows,
    find_last_start,
)
from dragoman.stores.sqlite import open_to_read

if TYPE_CHECKING:
    from dragoman.stores.postgres_connections import AsyncConnection

log = logging.getLogger(__name__)

BATCH_ENTRIES, BATCH_BYTES = 2_000, 4 * 1024 * 1024
SLICE_ENTRIES = 100
"""So many are encoded at once: the event loop waits for about a millisecond."""

_FIND = "SELECT chain, head, sealed_key FROM audit_chains WHERE id = %s"
_ADD = (
    "INSERT INTO audit_chains (id, node, sealed_key, seen_at, started, anchor_seq, anchor_mac, "
    "anchor_at, anchor_seal, head_seq, head) "
    "VALUES (%s, %s, %s, now(), 0, %s, %s, %s, %s, %s, %s) "
    "ON CONFLICT (id) DO NOTHING"
)
_LOCK = "SELECT head FROM audit_chains WHERE chain = %s FOR UPDATE"
_MOVE = (
    "UPDATE audit_chains SET head_seq = %s, head = %s, seen_at = now(), "
    "started = greatest(started, %s) WHERE chain = %s"
)
_COMPLETE = (
    "UPDATE audit_entries SET ended = late.ended, outcome = late.outcome, "
    "decision = late.decision FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[]) "
    "AS late (of, ended, outcome, decision) "
    "WHERE audit_entries.chain = %s AND audit_entries.seq = late.of "
    "AND audit_entries.kind = 'intent'"
)
_SEEN = "UPDATE audit_chains SET seen_at = CASE WHEN %s THEN now() END WHERE chain = %s"


class LocalAnchor(NamedTuple):
    tip: ChainTip
    at: float
    seal: bytes | None
    """None for the beginning of the chain."""


class ChainCopier:
    """Copies one home's chain. Its methods raise the errors of the driver."""

    def __init__(self, home: Path, keys: ChainKeys, node: str) -> None:
        key = chain.read_key(home)
        if key is None:
            raise ConfigError(f'there is no audit log in "{home}"')
        self._home = home
        self._key = key
        self._seal = AuditSeal(key)
        self._keys = keys
        self._node = node
        self._db = open_to_read(home / chain.DATABASE, len(chain.MIGRATIONS))
        self._chain = 0
        self.id = ""
        self.copied = chain.ORIGIN
        """The last entry that the database has."""
        self.continues = ""
        """The chain that this one continues, if this hub has just begun it."""

    def close(self) -> None:
        self._db.close()

    async def align(self, db: AsyncConnection) -> None:
        """Finds out how far the chain was copied, and begins it in the database if need be."""
        id = read_chain_id(self._home) or create_chain_id(self._home)
        found = await (await db.execute(_FIND, (id,))).fetchone()
        if found is None:
            await self._begin(db, id, self._read_anchor())
        else:
            number, head, sealed = found
            tip = self._seal.read_tip((HEAD_IN_DATABASE,), bytes(head))
            if tip is not None and self._contains(tip):
                self._chain, self.id, self.copied = number, id, tip
                if sealed is None or self._keys.open(id, bytes(sealed)) != self._key:
                    await self._save_key(db)
            else:
                await self._continue_as_new(db, id, number, tip)
        await db.execute(_SEEN, (True, self._chain))

    async def copy_batch(self, db: AsyncConnection) -> int:
        """Copies the next entries, and returns how many; 0 if there are none."""
        entries = self._load_batch()
        if not entries:
            return 0
        rows, late = build_rows(self._chain, entries)
        tip = ChainTip(entries[-1][0], entries[-1][5])
        async with db.transaction(), db.cursor() as cursor:
            await cursor.execute(_LOCK, (self._chain,))
            found = await cursor.fetchone()
            head = self._seal.read_tip((HEAD_IN_DATABASE,), bytes(found[0])) if found else None
            if head != self.copied:
                # A transaction of an earlier connection came through, or the head was changed.
                self._chain = 0
                return -1
            async with cursor.copy(COPY) as copy:
                await copy.write(COPY_HEADER)
                for at in range(0, len(rows), SLICE_ENTRIES):
                    await copy.write(encode_rows(rows[at : at + SLICE_ENTRIES]))
                await copy.write(COPY_TRAILER)
            if late:
                await cursor.execute(_COMPLETE, _build_late(late, self._chain))
            record = self._seal.seal_tip(HEAD_IN_DATABASE, *tip)
            await cursor.execute(_MOVE, (tip.seq, record, find_last_start(entries), self._chain))
        self.copied = tip
        return len(rows)

    async def note_seen(self, db: AsyncConnection, *, running: bool) -> None:
        """Notes that the hub runs, or that it ends."""
        await db.execute(_SEEN, (running, self._chain))

    def _load_batch(self) -> list[EntryRow]:
        entries: list[EntryRow] = []
        size = 0
        expected = self.copied.seq + 1
        with closing(
            self._db.execute(
                "SELECT seq, kind, of, at, body, mac FROM entries WHERE seq > ? ORDER BY seq "
                "LIMIT ?",
                (self.copied.seq, BATCH_ENTRIES),
            )
        ) as rows:
            for row in rows:
                if row[0] != expected and row[1] != chain.BREAK:
                    break  # `align` decides what to do about entries that are missing
                entries.append(row)
                size += len(row[4])
                expected = row[0] + 1
                if size > BATCH_BYTES:
                    break
        return entries

    async def _begin(self, db: AsyncConnection, id: str, anchor: LocalAnchor) -> None:
        record = self._seal.seal_tip(HEAD_IN_DATABASE, *anchor.tip)
        values = (*anchor.tip, anchor.at, anchor.seal, anchor.tip.seq, record)
        await db.execute(_ADD, (id, self._node, self._keys.seal(id, self._key), *values))
        found = await (await db.execute(_FIND, (id,))).fetchone()
        assert found is not None
        self._chain, self.id, self.copied = found[0], id, anchor.tip

    async def _save_key(self, db: AsyncConnection) -> None:
        sealed = self._keys.seal(self.id, self._key)
        if sealed is not None:
            await db.execute(
                "UPDATE audit_chains SET sealed_key = %s WHERE chain = %s", (sealed, self._chain)
            )

    async def _continue_as_new(
        self, db: AsyncConnection, old: str, number: int, head: ChainTip | None
    ) -> None:
        anchor = await self._find_shared(db, number, head) or self._read_anchor()
        log.error(
            "the audit log in %s does not contain what was copied from it to the database (chain "
            "%s); it continues there as a new chain after entry %d. Usual reasons are a home that "
            "was restored from a backup, and one that was copied for another hub",
            self._home, old, anchor.tip.seq,
        )  # fmt: skip
        await self._begin(db, create_chain_id(self._home), anchor)
        self.continues = old

    async def _find_shared(
        self, db: AsyncConnection, number: int, head: ChainTip | None
    ) -> LocalAnchor | None:
        """Finds the last entry that home and database agree on: all before it are the same."""
        low = self._read_anchor().tip.seq
        high = chain.find_tail(self._db).seq
        if head is not None:
            high = min(high, head.seq)
        shared: ChainTip | None = None
        while low < high:
            middle = (low + high + 1) // 2
            mac = self._find_mac(middle)
            cursor = await db.execute(
                "SELECT mac FROM audit_entries WHERE chain = %s AND seq = %s", (number, middle)
            )
            row = await cursor.fetchone()
            if mac is not None and row is not None and bytes(row[0]) == mac:
                shared, low = ChainTip(middle, mac), middle
            else:
                high = middle - 1
        if shared is None:
            return None
        at = float(self._db.execute("SELECT at FROM entries WHERE seq = ?", (shared.seq,))
                   .fetchone()[0])  # fmt: skip
        return LocalAnchor(shared, at, self._seal.seal_anchor(shared, at))

    def _read_anchor(self) -> LocalAnchor:
        row = self._db.execute("SELECT seq, mac, at, seal FROM anchor").fetchone()
        if row is None:
            return LocalAnchor(chain.ORIGIN, 0.0, None)
        return LocalAnchor(ChainTip(row[0], row[1]), row[2], row[3])

    def _contains(self, tip: ChainTip) -> bool:
        """Whether the home has this entry, or begins after it without a gap."""
        if tip == self._read_anchor().tip:
            return True
        return self._find_mac(tip.seq) == tip.mac

    def _find_mac(self, seq: int) -> bytes | None:
        row = self._db.execute("SELECT mac FROM entries WHERE seq = ?", (seq,)).fetchone()
        return row[0] if row else None


def _build_late(late: list[LateOutcome], number: int) -> tuple[Any, ...]:
    columns: list[list[Any]] = [list(one) for one in zip(*late, strict=True)]
    return (*columns, number)


LOCAL_ERRORS = (sqlite3.Error,)
