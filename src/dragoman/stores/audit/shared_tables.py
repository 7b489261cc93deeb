"""The tables of the audit logs of several hubs in PostgreSQL, and how entries become rows.

Each hub has a chain of its own, which the database keeps entry by entry as the hub has written it.
The columns after `mac` repeat what is in the bodies, for searches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.stores.audit.chain import BREAK, INTENT, OUTCOME, START, EntryRow
from dragoman.stores.database import COMMAND_LIMITS, StoreTables, connect_server

MIGRATIONS = (
    """
    CREATE TABLE audit_chains (
        chain INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        node TEXT NOT NULL,
        sealed_key BYTEA,
        created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
        seen_at TIMESTAMPTZ,
        started BIGINT NOT NULL,
        anchor_seq BIGINT NOT NULL,
        anchor_mac BYTEA NOT NULL,
        anchor_at DOUBLE PRECISION NOT NULL,
        anchor_seal BYTEA,
        head_seq BIGINT NOT NULL,
        head BYTEA NOT NULL
    );
    CREATE TABLE audit_entries (
        chain INTEGER NOT NULL,
        seq BIGINT NOT NULL,
        kind TEXT NOT NULL,
        of BIGINT,
        at DOUBLE PRECISION NOT NULL,
        body BYTEA NOT NULL,
        mac BYTEA NOT NULL,
        ended BIGINT,
        verb TEXT, caller TEXT, org TEXT, trace TEXT, target TEXT, agent TEXT,
        outcome TEXT, decision TEXT,
        PRIMARY KEY (chain, seq)
    );
    CREATE INDEX audit_by_time ON audit_entries (at, chain, seq)
        WHERE kind IN ('intent', 'break');
    CREATE INDEX audit_by_trace ON audit_entries (trace) WHERE trace IS NOT NULL;
    CREATE INDEX audit_by_verb ON audit_entries (verb, at, chain, seq) WHERE verb IS NOT NULL;
    CREATE INDEX audit_by_caller ON audit_entries (caller, at, chain, seq)
        WHERE caller IS NOT NULL;
    CREATE INDEX audit_by_target ON audit_entries (target, at, chain, seq)
        WHERE target IS NOT NULL;
    CREATE INDEX audit_by_agent ON audit_entries (agent, at, chain, seq) WHERE agent IS NOT NULL;
    CREATE INDEX audit_by_outcome ON audit_entries (outcome, at, chain, seq)
        WHERE outcome <> 'completed';
    CREATE INDEX audit_by_open ON audit_entries (at, chain, seq)
        WHERE kind = 'intent' AND outcome IS NULL;
    CREATE INDEX audit_by_decision ON audit_entries (decision, at, chain, seq)
        WHERE decision <> 'permit';
    """,
)

TABLES = StoreTables("audit", "", MIGRATIONS)
"""In PostgreSQL only."""

SHADOW_MARK = "+shadow"
"""Follows the decision of a call that policies in shadow mode would have denied."""
MAX_TEXT = 200
"""Of a column for searches. A search compares the whole text afterwards."""
_INTENT_COLUMNS = ("verb", "caller", "org", "trace", "target", "agent")
COLUMNS = (
    "chain", "seq", "kind", "of", "at", "body", "mac", "ended", *_INTENT_COLUMNS, "outcome",
    "decision",
)  # fmt: skip
COPY = f"COPY audit_entries ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)"
COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"

SharedRow = tuple[Any, ...]
"""The values of COLUMNS."""

_HEAD = struct.Struct(">hiqiq")
_NUMBER = struct.Struct(">iq")
_TIME = struct.Struct(">id")
_SIZE = struct.Struct(">i")
_NULL = _SIZE.pack(-1)

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class LateOutcome(NamedTuple):
    """The outcome of a call whose intent was copied earlier."""

    of: int
    ended: int
    outcome: str | None
    decision: str | None


def clip(value: object) -> str | None:
    """Returns the text as a column for searches has it; PostgreSQL stores no NUL."""
    if not isinstance(value, str):
        return None
    return value[:MAX_TEXT].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def read_outcome(body: bytes) -> tuple[str | None, str | None]:
    """Returns the columns `outcome` and `decision`."""
    found = _decode_body(body)
    decision = clip(found.get("decision"))
    if "shadow" in found:
        decision = (decision or "") + SHADOW_MARK
    return clip(found.get("outcome")), decision


def build_rows(
    chain: int, entries: Iterable[EntryRow]
) -> tuple[list[SharedRow], list[LateOutcome]]:
    """Builds the rows of successive entries, and what an earlier row has to be completed with."""
    entries = list(entries)
    ends = {
        entry[2]: (entry[0], *read_outcome(entry[4])) for entry in entries if entry[1] == OUTCOME
    }
    rows: list[SharedRow] = []
    for entry in entries:
        rows.append((chain, *entry, *_build_columns(entry, ends)))
    late = [LateOutcome(of, *end) for of, end in ends.items() if of is not None]
    return rows, late


def _build_columns(
    entry: EntryRow, ends: dict[int | None, tuple[int, str | None, str | None]]
) -> tuple[Any, ...]:
    seq, kind, _, _, body, _ = entry
    if kind != INTENT:
        return (None,) * 9
    found = _decode_body(body)
    ended, outcome, decision = ends.pop(seq, (None, None, None))
    return (ended, *(clip(found.get(name)) for name in _INTENT_COLUMNS), outcome, decision)


def encode_rows(rows: Sequence[SharedRow]) -> bytes:
    """Encodes rows for COPY in the binary format, without its header and trailer."""
    parts: list[bytes] = []
    add = parts.append
    for chain, seq, kind, of, at, body, mac, ended, *texts in rows:
        add(_HEAD.pack(len(COLUMNS), 8, chain, 8, seq))
        name = kind.encode()
        add(_SIZE.pack(len(name)) + name)
        add(_NULL if of is None else _NUMBER.pack(8, of))
        add(_TIME.pack(8, at))
        add(_SIZE.pack(len(body)) + body)
        add(_SIZE.pack(len(mac)) + mac)
        add(_NULL if ended is None else _NUMBER.pack(8, ended))
        for text in texts:
            if text is None:
                add(_NULL)
            else:
                encoded = text.encode()
                add(_SIZE.pack(len(encoded)) + encoded)
    return b"".join(parts)


def find_last_start(entries: Sequence[EntryRow]) -> int:
    """The number of the newest start among the entries; 0 if there is none."""
    return max((entry[0] for entry in entries if entry[1] in (START, BREAK)), default=0)


def _decode_body(body: bytes) -> Mapping[str, Any]:
    try:
        return _decode(body)
    except (msgspec.MsgspecError, ValueError):
        return {}


def open_tables(url: str) -> None:
    """Creates the tables of the audit logs in a database that lacks them. Raises `ConfigError`."""
    server = connect_server(url, COMMAND_LIMITS)
    try:
        server.open(TABLES).close()
    finally:
        server.close()
