"""Deletes old entries of all chains in the shared database.

One hub does it at a time. It needs the key of a chain to seal where the rest begins: with a cluster
secret, those of all chains, so that the chains of hubs that are gone are pruned too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.core.errors import StorageFailed
from dragoman.stores.audit import chain
from dragoman.stores.audit.chain import AuditSeal, ChainTip
from dragoman.stores.audit.shared_keys import ChainKeys, read_chain_id
from dragoman.stores.postgres_connections import (
    LONG_SECONDS,
    connect,
    describe_failure,
    find_errors,
)

if TYPE_CHECKING:
    from dragoman.stores.postgres_connections import Connection

LOCK = 0x6472616770727565
BATCH = 2_000
MAX_BATCHES = 5_000

_CHAINS = (
    "SELECT c.chain, c.id, c.sealed_key, c.head_seq - c.anchor_seq, f.at FROM audit_chains c "
    "CROSS JOIN LATERAL (SELECT at FROM audit_entries e WHERE e.chain = c.chain "
    "ORDER BY seq LIMIT 1) f ORDER BY f.at"
)
_FIRST = "SELECT seq, at, mac FROM audit_entries WHERE chain = %s ORDER BY seq LIMIT %s"
_MOVE = (
    "UPDATE audit_chains SET anchor_seq = %s, anchor_mac = %s, anchor_at = %s, anchor_seal = %s "
    "WHERE chain = %s AND anchor_seq < %s"
)


class _PrunedChain(NamedTuple):
    number: int
    id: str
    entries: int
    first_at: float
    seal: AuditSeal


def prune_shared(
    url: str, home: Path, keys: ChainKeys, age: float, max_entries: int
) -> Mapping[str, int]:
    """Deletes entries older than `age` seconds, and the oldest beyond `max_entries` of all chains
    together. Returns how many of each chain; nothing if another hub is doing it. Blocks: run it in
    a thread. Raises `StorageFailed`."""
    removed: dict[str, int] = {}
    try:
        with connect(url, LONG_SECONDS) as db:
            found = db.execute("SELECT pg_try_advisory_lock(%s)", (LOCK,)).fetchone()
            if found is None or not found[0]:
                return removed
            for _ in range(MAX_BATCHES):
                done = _prune_batch(db, home, keys, time.time() - age, max_entries)
                if done is None:
                    break
                removed[done[0]] = removed.get(done[0], 0) + done[1]
    except find_errors() as error:
        raise StorageFailed(describe_failure(url, error)) from error
    return removed


def _prune_batch(
    db: Connection, home: Path, keys: ChainKeys, before: float, max_entries: int
) -> tuple[str, int] | None:
    """Deletes from the chain with the oldest entry; returns None if nothing is left to delete."""
    rows = db.execute(_CHAINS).fetchall()
    excess = sum(row[3] for row in rows) - max_entries
    found = next(iter(_list_own(rows, home, keys)), None)
    if found is None or (found.first_at >= before and excess <= 0):
        return None
    last: ChainTip | None = None
    count = 0
    # Of entries beyond the limit, few at a time: those of other chains may be as old.
    most = BATCH if found.first_at < before else min(excess, BATCH // 10)
    for seq, at, mac in db.execute(_FIRST, (found.number, most)).fetchall():
        if at >= before and count >= excess:
            break
        last = ChainTip(seq, bytes(mac))
        count += 1
    if last is None:
        return None
    now = time.time()
    with db.transaction():
        values = (*last, now, found.seal.seal_anchor(last, now), found.number, last.seq)
        db.execute(_MOVE, values)
        db.execute(
            "DELETE FROM audit_entries WHERE chain = %s AND seq <= %s", (found.number, last.seq)
        )
    return found.id, count


def _list_own(rows: list[tuple[Any, ...]], home: Path, keys: ChainKeys) -> list[_PrunedChain]:
    """Lists the chains whose keys are known, the one with the oldest entry first."""
    own, home_key = read_chain_id(home), chain.read_key(home)
    chains = []
    for number, id, sealed, count, at in rows:
        key = home_key if id == own else keys.open(id, bytes(sealed) if sealed else None)
        if key is not None:
            chains.append(_PrunedChain(number, id, count, at, AuditSeal(key)))
    return chains
