"""Seals the entries of the audit log in a MAC chain, so that any change is detected.

Each entry's MAC covers the previous MAC and every field. The end of the chain is stored in the
journal's trailer and, outside journal and database, in the head; the anchor stores where the chain
begins after pruning. All are sealed with the same key. A holder of the key can forge everything,
and restoring old copies of database, journal and head together cannot be detected: keep copies
elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.core.errors import ConfigError

DATABASE = "audit.db"
KEY = "audit.key"
HEAD = "audit.head"

MIGRATIONS = (
    """
    CREATE TABLE entries (
        seq INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        of INTEGER,
        at REAL NOT NULL,
        body BLOB NOT NULL,
        mac BLOB NOT NULL
    );
    CREATE TABLE anchor (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        seq INTEGER NOT NULL,
        mac BLOB NOT NULL,
        at REAL NOT NULL,
        seal BLOB NOT NULL
    );
    """,
)

INSERT = "INSERT INTO entries (seq, kind, of, at, body, mac) VALUES (?, ?, ?, ?, ?, ?)"
MANY = 64
INSERT_MANY = INSERT + ", (?, ?, ?, ?, ?, ?)" * (MANY - 1)
"""One statement for many rows costs a fifth less than one statement per row."""

START = "start"
"""A hub opened the audit log. Earlier intents without an outcome will never get one."""
INTENT = "intent"
OUTCOME = "outcome"
BREAK = "break"
"""A hub opened the audit log and found it changed or damaged."""


EntryRow = tuple[int, str, int | None, float, bytes, bytes]
"""seq, kind, of, at, body, mac"""


PendingEntry = tuple[str, int | None, float, bytes]
"""kind, of, at, body"""


class ChainTip(NamedTuple):
    """A position in the chain. Numbers begin at 1 without gaps, so `seq` is also the count."""

    seq: int
    mac: bytes


ORIGIN = ChainTip(0, bytes(32))


FIRST_HEAD = b"H"
"""The head of an audit log without a journal: of a first start."""
HEAD_BESIDE_JOURNAL = b"K"
TRAILER = b"J"
HEADS = (FIRST_HEAD, HEAD_BESIDE_JOURNAL)
TRAILERS = (TRAILER,)


class ChainBroken(Exception):
    """The chain is broken: a one-sentence description, and the entry."""

    def __init__(self, problem: str, seq: int | None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.seq = seq


MISSHAPEN = (struct.error, TypeError, AttributeError, ValueError)
"""Errors of sealing a value of the wrong type: SQLite accepts a text in a blob column."""


ENTRY = struct.Struct(">c32sq?qdII")
"""Record type, previous MAC, seq, whether `of` is present, of, at, lengths of kind and body."""
TIP = struct.Struct(">c32sq")
"""Record type, mac, seq. The MAC is that of the last entry, at the offset of `previous MAC`."""


class AuditSeal:
    """All operations that need the key. The first sealed byte is the record type, so that a seal of
    one type cannot be used for another; all widths are fixed or written out, so that no byte can
    move between fields."""

    _ANCHOR = struct.Struct(">cq32sd")

    def __init__(self, key: bytes) -> None:
        # HMAC-SHA256 with precomputed pads takes a third of the time of `hmac.digest`.
        self._key = key
        self._inner, self._outer = _precompute_pads(key)
        # Needed for every call; keyed BLAKE2b takes a third of the time of the HMAC.
        self._tips = hashlib.blake2b(key=key, digest_size=32, person=b"dragoman tip")
        self._arguments = hashlib.blake2b(key=key, digest_size=32, person=b"dragoman args")

    def seal_entry(
        self, before: bytes, seq: int, kind: str, of: int | None, at: float, body: bytes
    ) -> tuple[bytes, bytes]:
        """Returns the encoded entry and its MAC."""
        name = kind.encode()
        fields = ENTRY.pack(b"E", before, seq, of is not None, of or 0, at, len(name), len(body))
        sealed = fields + name + body
        inner = self._inner.copy()
        inner.update(sealed)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return sealed, outer.digest()

    def seal_batch(
        self, pending: Iterable[PendingEntry], tip: ChainTip
    ) -> tuple[list[bytes], list[EntryRow], ChainTip]:
        """Appends entries to the chain that ends at `tip`. Returns them as the journal stores them
        and as the database does, and the new tip."""
        seq, mac = tip
        encoded, rows = [], []
        for kind, of, at, body in pending:
            seq += 1
            sealed, mac = self.seal_entry(mac, seq, kind, of, at, body)
            encoded.append(sealed)
            rows.append((seq, kind, of, at, body, mac))
        return encoded, rows, ChainTip(seq, mac)

    def hash_arguments(self, arguments: bytes) -> str:
        """Returns a MAC: short arguments could be guessed from a plain hash."""
        mac = self._arguments.copy()
        mac.update(arguments)
        return mac.hexdigest()

    def seal_tip(self, kind: bytes, seq: int, mac: bytes) -> bytes:
        """Returns a sealed position, always of the same length, so that one write replaces it."""
        fields = TIP.pack(kind, mac, seq)
        seal = self._tips.copy()
        seal.update(fields)
        return fields + seal.digest()

    def read_tip(self, kinds: tuple[bytes, ...], record: bytes) -> ChainTip | None:
        """Returns None if it is not of one of these types, or its seal is invalid."""
        if len(record) != TIP.size + 32:
            return None
        kind, mac, seq = TIP.unpack_from(record)
        ours = hmac.compare_digest(self.seal_tip(kind, seq, mac), record)
        return ChainTip(seq, mac) if ours and kind in kinds else None

    def seal_anchor(self, tip: ChainTip, at: float) -> bytes:
        return hmac.digest(self._key, self._ANCHOR.pack(b"A", *tip, at), "sha256")


def _precompute_pads(key: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
    return inner, hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))


def read_key(home: Path) -> bytes | None:
    """Returns None if there is no key."""
    remedy = "remove it: the audit log then continues with a new key, and records that"
    return read_key_file(home / KEY, remedy)


def read_key_file(path: Path, remedy: str) -> bytes | None:
    """Returns None if there is no key; `remedy` is what to do about a damaged one without a
    backup."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f'"{path}" cannot be read ({error.strerror})') from error
    if len(key) != 32:
        raise ConfigError(
            f'"{path}" is damaged: {len(key)} bytes instead of 32; restore it from a backup, or '
            f"{remedy}"
        )
    return key


def generate_key() -> bytes:
    return secrets.token_bytes(32)


def store_key(home: Path, key: bytes) -> None:
    """Writes the key to disk atomically."""
    path = home / KEY
    draft = path.with_suffix(".new")
    try:
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.write(file, key)
            os.fsync(file)
        finally:
            os.close(file)
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f'"{path}" cannot be written ({error.strerror})') from error


def read_anchor(db: sqlite3.Connection, seal: AuditSeal) -> ChainTip:
    """Returns where the stored entries begin. Raises `ChainBroken` for an invalid anchor."""
    row = db.execute("SELECT seq, mac, at, seal FROM anchor").fetchone()
    if row is None:
        return ORIGIN
    seq, mac, at, found = row
    try:
        holds = hmac.compare_digest(seal.seal_anchor(ChainTip(seq, mac), at), found)
    except MISSHAPEN:
        holds = False
    if not holds:
        raise ChainBroken("the anchor of the pruned entries was changed or forged", seq)
    return ChainTip(seq, mac)


def read_entries_after(db: sqlite3.Connection, after: int) -> Iterator[EntryRow]:
    """Reads the entries of the database after a number, in order."""
    return db.execute(
        "SELECT seq, kind, of, at, body, mac FROM entries WHERE seq > ? ORDER BY seq", (after,)
    )


def insert_entries(db: sqlite3.Connection, rows: list[EntryRow]) -> None:
    """Inserts entries in one transaction."""
    if not rows:
        return
    db.execute("BEGIN IMMEDIATE")
    whole = len(rows) - len(rows) % MANY
    for at in range(0, whole, MANY):
        values: list[Any] = list(chain.from_iterable(rows[at : at + MANY]))
        # The module looks for adapters of each `bytes`, which takes a third of the whole time.
        values[4::6] = map(bytearray, values[4::6])
        values[5::6] = map(bytearray, values[5::6])
        db.execute(INSERT_MANY, values)
    db.executemany(INSERT, rows[whole:])
    db.execute("COMMIT")


def verify_entries(rows: Iterable[EntryRow], seal: AuditSeal, tip: ChainTip) -> Iterator[ChainTip]:
    """Yields the position of each entry after `tip`, verified to follow the previous one. Raises
    `ChainBroken` at the first that does not, and at an entry that records a break."""
    for seq, kind, of, at, body, mac in rows:
        if seq != tip.seq + 1 and kind != BREAK:
            raise ChainBroken(f"entries {tip.seq + 1} to {seq - 1} are missing", tip.seq + 1)
        try:
            holds = seal.seal_entry(tip.mac, seq, kind, of, at, body)[1] == mac
        except MISSHAPEN:
            holds = False
        if not holds:
            raise ChainBroken(
                f"entry {seq} does not match its seal: it was changed, moved or inserted, "
                "or it was written with another key",
                seq,
            )
        if kind == BREAK:
            raise ChainBroken(f"entry {seq} records a break: {body.decode(errors='replace')}", seq)
        tip = ChainTip(seq, mac)
        yield tip


def find_tail(db: sqlite3.Connection) -> ChainTip:
    """Returns the last position in the database, unverified."""
    row = db.execute("SELECT seq, mac FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    row = row or db.execute("SELECT seq, mac FROM anchor").fetchone() or ORIGIN
    seq, mac = row
    whole = isinstance(mac, bytes) and len(mac) == 32
    return ChainTip(seq, mac if whole else ORIGIN.mac)
