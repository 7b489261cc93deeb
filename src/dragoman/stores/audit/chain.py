"""How the audit's entries are sealed, so that no change to what was written goes unseen.

Each entry's MAC covers the MAC before it and every field. Where the chain ends is kept at the end
of the journal, and outside of both journal and database in the head; where it begins, once a prefix
was pruned, in the anchor; all are sealed with the same key. Whoever holds the key can forge it all,
and whoever puts back old copies of database, journal and head together cannot be told from time
standing still: keep copies elsewhere.
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
from typing import NamedTuple

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
MANY = 32
INSERT_MANY = INSERT + ", (?, ?, ?, ?, ?, ?)" * (MANY - 1)
"""One statement for many rows costs a fifth less than one for each."""

START = "start"
"""A hub opened the audit. Intents before it that have no outcome never will."""
INTENT = "intent"
OUTCOME = "outcome"
BREAK = "break"
"""A hub opened the audit and found it other than it was left."""


EntryRow = tuple[int, str, int | None, float, bytes, bytes]
"""seq, kind, of, at, body, mac"""


class ChainTip(NamedTuple):
    """Where a chain stands. Numbers begin at 1 and have no gaps, so `seq` is also the count."""

    seq: int
    mac: bytes


ORIGIN = ChainTip(0, bytes(32))

FIRST_HEAD = b"H"
"""The head of an audit that has no journal yet: of a first start."""
HEAD_BESIDE_JOURNAL = b"K"
TRAILER = b"J"
HEADS = (FIRST_HEAD, HEAD_BESIDE_JOURNAL)
TRAILERS = (TRAILER,)


class ChainBroken(Exception):
    """The chain does not hold: what, in one sentence, and at which entry."""

    def __init__(self, problem: str, seq: int | None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.seq = seq


MISSHAPEN = (struct.error, TypeError, AttributeError, ValueError)
"""What sealing raises for a value of another type than was written; SQLite holds a text where a
blob belongs without complaint."""


ENTRY = struct.Struct(">c32sq?qdII")
"""A kind of its own, the MAC before, seq, whether there is an `of`, of, at, and the lengths of kind
and body, which follow."""
TIP = struct.Struct(">c32sq")
"""What it is the tip for, mac, seq. Where an entry has the MAC before it, this has its own."""


class AuditSeal:
    """Everything that takes the key. The first byte of what is sealed says what it is, so that no
    seal of one kind passes for another; widths are fixed or written out, so that no byte can move
    from one field to the next."""

    _ANCHOR = struct.Struct(">cq32sd")

    def __init__(self, key: bytes) -> None:
        # HMAC-SHA256 with both pads taken in beforehand: a third of the time of `hmac.digest`.
        self._key = key
        self._inner, self._outer = _precompute_pads(key)
        # Every call needs one of these; keyed BLAKE2b takes a third of the time of the HMAC.
        self._tips = hashlib.blake2b(key=key, digest_size=32, person=b"dragoman tip")
        self._arguments = hashlib.blake2b(key=key, digest_size=32, person=b"dragoman args")

    def seal_entry(
        self, before: bytes, seq: int, kind: str, of: int | None, at: float, body: bytes
    ) -> tuple[bytes, bytes]:
        """The entry as it is sealed, and its MAC."""
        name = kind.encode()
        fields = ENTRY.pack(b"E", before, seq, of is not None, of or 0, at, len(name), len(body))
        sealed = fields + name + body
        inner = self._inner.copy()
        inner.update(sealed)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return sealed, outer.digest()

    def hash_arguments(self, arguments: bytes) -> str:
        """A MAC: short arguments could be guessed from a plain hash."""
        mac = self._arguments.copy()
        mac.update(arguments)
        return mac.hexdigest()

    def seal_tip(self, kind: bytes, seq: int, mac: bytes) -> bytes:
        """What says where the chain ends: always the same length, so that one write replaces it."""
        fields = TIP.pack(kind, mac, seq)
        seal = self._tips.copy()
        seal.update(fields)
        return fields + seal.digest()

    def read_tip(self, kinds: tuple[bytes, ...], record: bytes) -> ChainTip | None:
        """None if it is not one of these, or not ours."""
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
    """None when there is none."""
    path = home / KEY
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f'"{path}" cannot be read ({error.strerror})') from error
    if len(key) != 32:
        raise ConfigError(
            f'"{path}" is damaged: {len(key)} bytes where 32 belong; restore it from a backup, '
            "or remove it: the audit then goes on with a new key, and records that"
        )
    return key


def create_key(home: Path) -> bytes:
    """A new key, on the disk whole or not at all."""
    path = home / KEY
    draft = path.with_suffix(".new")
    key = secrets.token_bytes(32)
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
    return key


def read_anchor(db: sqlite3.Connection, seal: AuditSeal) -> ChainTip:
    """Where the entries that are kept begin. Raises `Broken` for an anchor that is not ours."""
    row = db.execute("SELECT seq, mac, at, seal FROM anchor").fetchone()
    if row is None:
        return ORIGIN
    seq, mac, at, found = row
    try:
        holds = hmac.compare_digest(seal.seal_anchor(ChainTip(seq, mac), at), found)
    except MISSHAPEN:
        holds = False
    if not holds:
        raise ChainBroken("the anchor that pruning left was changed or forged", seq)
    return ChainTip(seq, mac)


def read_entries_after(db: sqlite3.Connection, after: int) -> Iterator[EntryRow]:
    """The entries in the database after that number, in order."""
    return db.execute(
        "SELECT seq, kind, of, at, body, mac FROM entries WHERE seq > ? ORDER BY seq", (after,)
    )


def insert_entries(db: sqlite3.Connection, rows: list[EntryRow]) -> None:
    """All or none of them."""
    if not rows:
        return
    db.execute("BEGIN IMMEDIATE")
    whole = len(rows) - len(rows) % MANY
    for at in range(0, whole, MANY):
        db.execute(INSERT_MANY, list(chain.from_iterable(rows[at : at + MANY])))
    db.executemany(INSERT, rows[whole:])
    db.execute("COMMIT")


def verify_entries(rows: Iterable[EntryRow], seal: AuditSeal, tip: ChainTip) -> Iterator[ChainTip]:
    """Each of the entries after `tip`, proved to follow the one before. Raises `Broken` at the
    first that does not, and at one that records a break."""
    for seq, kind, of, at, body, mac in rows:
        if seq != tip.seq + 1 and kind != BREAK:
            raise ChainBroken(f"entries {tip.seq + 1} to {seq - 1} are missing", tip.seq + 1)
        try:
            holds = seal.seal_entry(tip.mac, seq, kind, of, at, body)[1] == mac
        except MISSHAPEN:
            holds = False
        if not holds:
            raise ChainBroken(
                f"entry {seq} does not match its seal: it was changed, moved or put in, "
                "or the key is not the one it was written with",
                seq,
            )
        if kind == BREAK:
            raise ChainBroken(f"entry {seq} records a break: {body.decode(errors='replace')}", seq)
        tip = ChainTip(seq, mac)
        yield tip


def find_tail(db: sqlite3.Connection) -> ChainTip:
    """Where the database ends, as it says itself."""
    row = db.execute("SELECT seq, mac FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    row = row or db.execute("SELECT seq, mac FROM anchor").fetchone() or ORIGIN
    seq, mac = row
    whole = isinstance(mac, bytes) and len(mac) == 32
    return ChainTip(seq, mac if whole else ORIGIN.mac)
