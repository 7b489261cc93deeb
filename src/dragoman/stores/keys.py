"""The keys that callers show: made once, shown once, kept as hashes.

Knows nothing of HTTP and decides nothing about what a key may do; it says whose a key is. Rows are
never deleted: a hub whose last key is revoked is closed, not open.
"""

from __future__ import annotations

import difflib
import hashlib
import hmac
import re
import secrets
import sqlite3
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dragoman.core.errors import InvalidInput, NotFound, StorageFailed
from dragoman.stores.sqlite import BUSY_SECONDS, WatchedFile, open_store

DATABASE = "hub.db"
MIGRATIONS = (
    """
    CREATE TABLE keys (
        name TEXT PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        hash BLOB NOT NULL,
        owner TEXT NOT NULL,
        org TEXT NOT NULL,
        scopes TEXT NOT NULL,
        created_at REAL NOT NULL,
        expires_at REAL,
        revoked_at REAL
    );
    """,
    """
    ALTER TABLE keys ADD COLUMN roles TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE keys ADD COLUMN target TEXT NOT NULL DEFAULT '';
    """,
)

LOOK_SECONDS = 0.25
"""How long a change that another process made may go unseen. A look takes some microseconds."""
MISS_SECONDS = 0.02
"""The same for a key that nobody knows, however often strangers try."""
MAX_SCOPES = 100
"""And as many roles."""

RESERVED = frozenset({"api_key"})
"""Callers of one name are one caller."""

PREFIX = "dgm_"
_ID_LETTERS = string.ascii_lowercase + string.digits
_KEY = re.compile(r"dgm_([a-z0-9]{8})_[A-Za-z0-9_-]{43}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
"""Policies name them."""
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


@dataclass(frozen=True, slots=True)
class KeyRecord:
    name: str
    id: str
    """The part of the key that may be shown."""
    hash: bytes = field(repr=False)
    owner: str
    org: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None
    """None: until it is revoked."""
    revoked_at: float | None
    roles: tuple[str, ...] = ()
    target: str = ""
    """The server or agent whose own it is: what is asked with it while that one serves a call
    belongs to the call. Empty for a person's or a program's."""

    def get_state(self, now: float) -> str:
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "active"


class KeyStore:
    def __init__(self, home: Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self._path = home / DATABASE
        self._db = self.db = open_store(self._path, MIGRATIONS, busy_seconds=busy_seconds)
        self._file = WatchedFile(self._path)
        self._by_id: dict[str, KeyRecord] = {}
        self._version = -1
        self._looked = 0.0
        self.version = 0
        """Grows whenever the keys were read again."""
        self.were_created = False
        """Whether there were keys once, whatever the database says now."""
        self._load()

    def create(
        self,
        name: str,
        *,
        owner: str,
        expires_at: float | None,
        scopes: Sequence[str],
        org: str = "default",
        roles: Sequence[str] = (),
        target: str = "",
    ) -> str:
        """The new key, which nobody can be told again. `expires_at` None: until it is revoked;
        `target` empty: it is no server's or agent's."""
        now = time.time()
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r} cannot name a key: use up to 64 letters, digits, dots, hyphens and "
                "underscores, beginning with a letter or a digit"
            )
        if name in RESERVED:
            raise InvalidInput(
                f'"{name}" is what the key in config.toml is called; choose another name'
            )
        _check_fields(name, owner, org, scopes, roles, target)
        if expires_at is not None and not now < expires_at < float("inf"):
            raise InvalidInput(f'key "{name}" would have expired already; choose a later time')
        id = "".join(secrets.choice(_ID_LETTERS) for _ in range(8))
        key = f"{PREFIX}{id}_{secrets.token_urlsafe(32)}"
        lists = [msgspec.json.encode(list(each)).decode() for each in (scopes, roles)]
        row = (name, id, _hash_key(key), owner, org, *lists, target, now, expires_at)
        try:
            self._db.execute(
                "INSERT INTO keys (name, id, hash, owner, org, scopes, roles, target, created_at, "
                "expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
        except sqlite3.IntegrityError as error:
            raise InvalidInput(
                f'there is a key named "{name}" already, and the names of revoked keys are not '
                "used again; choose another name"
            ) from error
        except sqlite3.Error as error:
            raise self._build_write_error(error) from error
        self._load()
        return key

    def revoke(self, name: str) -> None:
        """From now on it is refused; other processes see it within a second."""
        try:
            done = self._db.execute(
                "UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE name = ?",
                (time.time(), name),
            )
        except sqlite3.Error as error:
            raise self._build_write_error(error) from error
        self._load()
        if done.rowcount == 0:
            names = [record.name for record in self._by_id.values()]
            near = difflib.get_close_matches(name, names, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise NotFound(f'there is no key named "{name}"{hint}')

    def find(self, key: str) -> KeyRecord | None:
        """Whose `key` it is; None if it is nobody's, has expired or was revoked."""
        shape = _KEY.fullmatch(key)
        if shape is None:
            return None
        self._refresh()
        record = self._by_id.get(shape[1])
        if record is None:  # perhaps it was just made
            self._refresh(MISS_SECONDS)
            record = self._by_id.get(shape[1])
        if record is None or not hmac.compare_digest(record.hash, _hash_key(key)):
            return None
        return record if record.get_state(time.time()) == "active" else None

    def explain_invalid(self, name: str, org: str) -> str:
        """Why the key of that name is refused; empty while it is good."""
        record = next((one for one in self._by_id.values() if one.name == name), None)
        if record is None or record.org != org:
            return "the key does not exist"
        state = record.get_state(time.time())
        return {"active": "", "expired": "the key has expired"}.get(state, "the key was revoked")

    def find_next_expiry(self, now: float) -> float:
        """When the next key that is good now expires."""
        times = (one.expires_at for one in self._by_id.values() if one.get_state(now) == "active")
        return min((at for at in times if at is not None), default=float("inf"))

    def refresh(self) -> None:
        """Reads the keys again if another process has changed them."""
        self._refresh(0.0)

    def has_keys(self) -> bool:
        """Whether a key was ever made, revoked and expired ones too."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._refresh()
        return self.were_created or bool(self._by_id)

    def list(self) -> tuple[KeyRecord, ...]:
        """All of them, in the order of their names."""
        self._refresh()
        return tuple(sorted(self._by_id.values(), key=lambda record: record.name))

    def close(self) -> None:
        self._db.close()

    def _refresh(self, pause: float = LOOK_SECONDS) -> None:
        now = time.monotonic()
        if now - self._looked < pause:
            return
        try:
            self._file.check()  # keys that are revoked elsewhere would not be seen here
            changed = self._data_version() != self._version
        except sqlite3.Error as error:
            raise self._build_read_error(error) from error
        if changed:
            self._load()
        self._looked = now

    def _load(self) -> None:
        try:
            # Asked first: a change that comes in between is then seen at the next look.
            version = self._data_version()
            rows = self._db.execute(
                "SELECT name, id, hash, owner, org, scopes, created_at, expires_at, revoked_at, "
                "roles, target FROM keys"
            ).fetchall()
            self._by_id = {row[1]: _record_from_row(row) for row in rows}
            self.version += 1
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise self._build_read_error(error) from error
        self._version = version

    def _data_version(self) -> int:
        version: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _build_read_error(self, error: Exception) -> StorageFailed:
        return StorageFailed(f'no key can be checked: "{self._path}" cannot be read ({error})')

    def _build_write_error(self, error: Exception) -> StorageFailed:
        return StorageFailed(f'the key was not stored: "{self._path}" cannot be written ({error})')


def _check_fields(
    name: str, owner: str, org: str, scopes: Sequence[str], roles: Sequence[str], target: str
) -> None:
    for what, given in (("scopes", scopes), ("roles", roles)):
        if isinstance(given, str) or len(given) > MAX_SCOPES:
            raise InvalidInput(f'the {what} of key "{name}" must be a list of at most {MAX_SCOPES}')
    texts = [("owner", owner), ("org", org), *(("scope", each) for each in scopes)]
    for what, text in [*texts, ("target", target)] if target else texts:
        if not _TEXT.fullmatch(text):
            raise InvalidInput(f"{text!r} cannot be the {what} of a key: use 1 to 200 characters")
    for role in roles:
        if not _ROLE.fullmatch(role):
            raise InvalidInput(
                f"{role!r} cannot be a role of a key: use up to 64 letters, digits, dots, colons, "
                "hyphens and underscores, beginning with a letter or a digit"
            )


def _hash_key(key: str) -> bytes:
    # Plain SHA-256 will do: a key is 256 random bits, nothing that could be guessed.
    return hashlib.sha256(key.encode()).digest()


def _record_from_row(
    row: tuple[str, str, bytes, str, str, str, float, float | None, float | None, str, str],
) -> KeyRecord:
    return KeyRecord(*row[:5], _decode_texts(row[5]), *row[6:9], _decode_texts(row[9]), row[10])


def _decode_texts(listed: str) -> tuple[str, ...]:
    return msgspec.json.decode(listed, type=tuple[str, ...])
