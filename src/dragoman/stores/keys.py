"""API keys: shown once when they are created, stored as hashes.

Does not know HTTP and does not decide what a key may do, only whose it is. Rows are never deleted:
after its last key is revoked, a hub is closed, not open.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import string
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dragoman.core.errors import InvalidInput, NotFound, StorageFailed
from dragoman.core.nearest_names import find_nearest
from dragoman.stores.database import (
    POSTGRES,
    Error,
    IntegrityError,
    StorePlace,
    StoreTables,
    open_database,
)
from dragoman.stores.row_seals import SealedTable, find_seals
from dragoman.stores.sqlite import BUSY_SECONDS

log = logging.getLogger(__name__)

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
    "ALTER TABLE keys ADD COLUMN view TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE keys ADD COLUMN scopes_chosen INT NOT NULL DEFAULT 0;",
)

CREATE, REVOKE, REMOVE = "key.create", "key.revoke", "key.remove"
RECORDED_TABLE = (
    "CREATE TABLE IF NOT EXISTS keys_recorded (name TEXT PRIMARY KEY, revoked INT NOT NULL)"
)
TABLES = StoreTables("keys", DATABASE, MIGRATIONS, extra=RECORDED_TABLE, counted="keys")
SEALED = SealedTable(
    "keys",
    "key",
    (
        "name", "id", "hash", "owner", "org", "scopes", "created_at", "expires_at", "revoked_at",
        "roles", "target", "view", "scopes_chosen",
    ),
)  # fmt: skip
_NOTE_RECORDED = (
    "INSERT INTO keys_recorded (name, revoked) VALUES (?, ?) "
    "ON CONFLICT (name) DO UPDATE SET revoked = excluded.revoked"
)

RecordKey = Callable[[str, str, Mapping[str, Any]], None]
"""Gets a verb, the name of a key and details. May raise `StorageFailed`."""

LOOK_SECONDS = 0.25
"""How long a change by another process may go unnoticed. A refresh takes some microseconds."""
MISS_SECONDS = 0.001
"""The same for unknown keys, however many are tried: keys are used as soon as they are created."""
SERVER_MISS_SECONDS = 0.02
"""The same where it takes a query to a server."""
MAX_SCOPES = 100
"""Also the limit of roles."""

RESERVED = frozenset({"api_key"})
"""Names of other principals of kind `key`."""

PREFIX = "dgm_"
_ID_LETTERS = string.ascii_lowercase + string.digits
_KEY = re.compile(r"dgm_([a-z0-9]{8})_[A-Za-z0-9_-]{43}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
"""Roles appear in policies."""
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


@dataclass(frozen=True, slots=True)
class KeyRecord:
    name: str
    id: str
    """The public part of the key."""
    hash: bytes = field(repr=False)
    owner: str
    org: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None
    """None: it does not expire."""
    revoked_at: float | None
    roles: tuple[str, ...] = ()
    target: str = ""
    """The server or agent that owns the key: its calls while it serves a call belong to that call's
    chain. Empty for keys of people and programs."""
    view: str = ""
    """The view that the key is bound to; empty: none."""
    scopes_chosen: int = 1
    """0: its scopes are older than their effect, so that they may have been meant otherwise."""

    def get_state(self, now: float) -> str:
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "active"


class KeyStore:
    def __init__(
        self, place: StorePlace, *, busy_seconds: float = BUSY_SECONDS, had_keys: bool = False
    ) -> None:
        """`had_keys`: there were keys once, whatever the database says now."""
        self.base = open_database(place, TABLES, busy_seconds=busy_seconds)
        self._db, self._seals = self.base.db, find_seals(place)
        is_local = self.base.engine != POSTGRES
        self._miss_seconds = MISS_SECONDS if is_local else SERVER_MISS_SECONDS
        self._by_id: dict[str, KeyRecord] = {}
        self._version = -1
        self._looked = 0.0
        self._asked = 0.0
        self.version = 0
        """Increases whenever the keys are read again."""
        self._had_keys = had_keys
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
        view: str = "",
    ) -> str:
        """Creates and returns a key, which cannot be retrieved again. It never expires if
        `expires_at` is None; an empty `target` means that no server or agent owns it, an empty
        `view` that it is bound to none."""
        now = time.time()
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"invalid key name {name!r}: use up to 64 letters, digits, dots, hyphens and "
                "underscores, beginning with a letter or a digit"
            )
        if name in RESERVED:
            raise InvalidInput(
                f'"{name}" is reserved for the key in config.toml; choose another name'
            )
        _check_fields(name, owner, org, scopes, roles, target)
        if view and not _NAME.fullmatch(view):
            raise InvalidInput(f"invalid view of a key {view!r}: use the name of a view")
        if expires_at is not None and not now < expires_at < float("inf"):
            raise InvalidInput(f'key "{name}" would already be expired; choose a later time')
        id = "".join(secrets.choice(_ID_LETTERS) for _ in range(8))
        key = f"{PREFIX}{id}_{secrets.token_urlsafe(32)}"
        lists = [msgspec.json.encode(list(each)).decode() for each in (scopes, roles)]
        until = None if expires_at is None else float(expires_at)
        row = (
            name, id, _hash_key(key), owner, org, lists[0], now, until, None, lists[1], target,
            view, 1,
        )  # fmt: skip
        try:
            with self.base.writer.transaction():
                places = ", ".join("?" * len(row))
                self._db.execute(f"INSERT INTO keys ({SEALED.listed}) VALUES ({places})", row)
                self._seals.put(self._db, SEALED, row)
        except IntegrityError as error:
            raise InvalidInput(
                f'a key named "{name}" already exists, and names of revoked keys cannot be used '
                "again; choose another name"
            ) from error
        except Error as error:
            raise self._build_write_error(error) from error
        self._load()
        return key

    def revoke(self, name: str) -> None:
        """Revokes a key; other processes notice within a second."""
        now = time.time()
        self._update(name, ("revoked_at",), "revoked_at = coalesce(revoked_at, ?)", (now,))

    def set_scopes(self, name: str, scopes: Sequence[str]) -> None:
        """Replaces the scopes of a key; other processes notice within a second."""
        _check_fields(name, name, name, scopes, (), "")
        listed = msgspec.json.encode(list(scopes)).decode()
        columns = ("scopes", "scopes_chosen")
        self._update(name, columns, "scopes = ?, scopes_chosen = ?", (listed, 1))

    def _update(
        self, name: str, columns: tuple[str, ...], change: str, values: tuple[Any, ...]
    ) -> None:
        try:
            with (
                self.base.writer.transaction(),
                self._seals.change(self._db, SEALED, name, sets=columns),
            ):
                done = self._db.execute(f"UPDATE keys SET {change} WHERE name = ?", (*values, name))
        except Error as error:
            raise self._build_write_error(error) from error
        self._load()
        if done.rowcount == 0:
            names = [record.name for record in self._by_id.values()]
            near = find_nearest(name, names)
            hint = f'; did you mean "{near}"?' if near else ""
            raise NotFound(f'there is no key named "{name}"{hint}')

    def find(self, key: str) -> KeyRecord | None:
        """Finds the record of `key`; None if it is unknown, expired or revoked."""
        shape = _KEY.fullmatch(key)
        if shape is None:
            return None
        self._refresh()
        record = self._by_id.get(shape[1])
        if record is None:  # it may have just been created
            self._refresh_now()
            record = self._by_id.get(shape[1])
        if record is None or not hmac.compare_digest(record.hash, _hash_key(key)):
            return None
        return record if record.get_state(time.time()) == "active" else None

    def explain_invalid(self, name: str, org: str) -> str:
        """Explains why the key of that name is refused; empty while it is valid."""
        record = next((one for one in self._by_id.values() if one.name == name), None)
        if record is None or record.org != org:
            return "the key does not exist"
        state = record.get_state(time.time())
        return {"active": "", "expired": "the key has expired"}.get(state, "the key was revoked")

    def find_next_expiry(self, now: float) -> float:
        """Returns when the next of the active keys expires."""
        times = (one.expires_at for one in self._by_id.values() if one.get_state(now) == "active")
        return min((at for at in times if at is not None), default=float("inf"))

    def refresh(self) -> None:
        """Reads the keys again if another process has changed them."""
        self._refresh(0.0)

    def has_keys(self) -> bool:
        """Whether a key was ever created, including revoked and expired ones."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._refresh()
        return self._had_keys or bool(self._by_id)

    def list(self) -> tuple[KeyRecord, ...]:
        """Lists all keys, ordered by name."""
        self._refresh()
        return tuple(sorted(self._by_id.values(), key=lambda record: record.name))

    def close(self) -> None:
        self.base.close()

    def _refresh_now(self) -> None:
        """Asks the database itself: a server's note of a change may arrive later."""
        at = time.monotonic()
        if at - self._asked >= self._miss_seconds:
            self._asked = at
            self._refresh(0.0, now=True)

    def _refresh(self, pause: float = LOOK_SECONDS, *, now: bool = False) -> None:
        at = time.monotonic()
        if at - self._looked < pause:
            return
        try:
            self.base.check()  # revocations in a replaced file would go unnoticed
            changed = self.base.read_version(now=now) != self._version
        except Error as error:
            raise self._build_read_error(error) from error
        if changed:
            self._load()
        self._looked = at

    def _load(self) -> None:
        try:
            # Read first: a change in between is then noticed at the next refresh.
            version = self.base.read_version()
            selection = self._seals.build_selection(SEALED)
            rows = self._db.execute(f"SELECT {selection} FROM keys").fetchall()
            admitted = (row for row in rows if self._seals.admits(SEALED, row))
            self._by_id = {row[1]: _record_from_row(row[:-1]) for row in admitted}
            self._had_keys = self._had_keys or bool(rows)  # refused ones, too: the hub is closed
            self.version += 1
        except (Error, msgspec.DecodeError) as error:
            raise self._build_read_error(error) from error
        self._version = version

    def _build_read_error(self, error: Exception) -> StorageFailed:
        return StorageFailed(f'keys cannot be checked: "{self.base.name}" cannot be read ({error})')

    def _build_write_error(self, error: Exception) -> StorageFailed:
        return StorageFailed(
            f'the key was not stored: "{self.base.name}" cannot be written ({error})'
        )


class KeyChanges:
    """Records created and revoked keys in the audit log.

    The command line writes to `hub.db` directly, whether or not a hub is running. The hub therefore
    compares the keys with those that it has recorded, in a table of the same database. The table is
    outside the migrations, so that older versions can still open the database.
    """

    def __init__(self, keys: KeyStore, record: RecordKey) -> None:
        self._keys = keys
        self._is_shared = keys.base.engine == POSTGRES
        self._record = record
        self._seen = -1
        """The version of the keys that was compared last."""
        self._recorded: dict[str, bool] | None = None
        """The recorded keys, and whether their revocation is recorded."""
        self._unsaved: set[str] = set()

    def record_changes(self) -> None:
        """Records all changes. Raises `StorageFailed` if that is not possible now."""
        keys = {record.name: record for record in self._keys.list()}
        if self._seen == self._keys.version and not self._unsaved:
            return
        if self._is_shared:
            self._record_shared(keys)
            return
        if self._recorded is None:
            self._recorded = self._load()
        self._record_all(keys)
        self._save()

    def _record_shared(self, keys: Mapping[str, KeyRecord]) -> None:
        """The same where several hubs do it: each change is recorded by one of them."""
        self._recorded = self._load()
        seen = self._keys.version
        if self._has_changes(keys):
            try:
                with self._keys.base.writer.transaction():
                    self._recorded = self._load()  # another hub may have been faster
                    self._record_all(keys)
                    self._write()
            except Error as error:
                raise StorageFailed(
                    f"the list of recorded keys cannot be written ({error})"
                ) from error
            finally:
                self._unsaved.clear()
        self._seen = seen

    def _has_changes(self, keys: Mapping[str, KeyRecord]) -> bool:
        assert self._recorded is not None
        gone = any(name not in keys for name in self._recorded)
        return gone or any(list(self._find_changes(record)) for record in keys.values())

    def _record_all(self, keys: Mapping[str, KeyRecord]) -> None:
        assert self._recorded is not None
        for name in [name for name in self._recorded if name not in keys]:
            self._record(REMOVE, name, {})
            del self._recorded[name]
            self._unsaved.add(name)
        for record in keys.values():
            for verb in self._find_changes(record):
                self._record(verb, record.name, _describe(record))
                self._recorded[record.name] = verb == REVOKE
                self._unsaved.add(record.name)
        self._seen = self._keys.version

    def _find_changes(self, record: KeyRecord) -> Iterator[str]:
        assert self._recorded is not None
        was = self._recorded.get(record.name)
        if was is None:
            yield CREATE
        if record.revoked_at is not None and not was:
            yield REVOKE

    def _load(self) -> dict[str, bool]:
        try:
            if not self._is_shared:
                with self._keys.base.writer.transaction():
                    self._keys.base.db.execute(RECORDED_TABLE)
            rows = self._keys.base.db.execute("SELECT name, revoked FROM keys_recorded").fetchall()
        except Error as error:
            raise StorageFailed(f"the list of recorded keys cannot be read ({error})") from error
        return {name: bool(revoked) for name, revoked in rows}

    def _save(self) -> None:
        """Saves the recorded keys; retried later. A hub that ends before records a change twice."""
        if not self._unsaved:
            return
        try:
            with self._keys.base.writer.transaction():
                self._write()
        except Error as error:
            log.debug("the list of recorded keys could not be saved: %s", error)
            return
        self._unsaved.clear()

    def _write(self) -> None:
        assert self._recorded is not None
        db, recorded = self._keys.base.db, self._recorded
        gone = [(name,) for name in self._unsaved if name not in recorded]
        there = [(name, recorded[name]) for name in self._unsaved if name in recorded]
        db.executemany("DELETE FROM keys_recorded WHERE name = ?", gone)
        db.executemany(_NOTE_RECORDED, there)


def _check_fields(
    name: str, owner: str, org: str, scopes: Sequence[str], roles: Sequence[str], target: str
) -> None:
    for what, given in (("scopes", scopes), ("roles", roles)):
        if isinstance(given, str) or len(given) > MAX_SCOPES:
            raise InvalidInput(f'the {what} of key "{name}" must be a list of at most {MAX_SCOPES}')
    texts = [("owner", owner), ("org", org), *(("scope", each) for each in scopes)]
    for what, text in [*texts, ("target", target)] if target else texts:
        if not _TEXT.fullmatch(text):
            raise InvalidInput(f"invalid {what} of a key {text!r}: use 1 to 200 characters")
    for role in roles:
        if not _ROLE.fullmatch(role):
            raise InvalidInput(
                f"invalid role {role!r}: use up to 64 letters, digits, dots, colons, "
                "hyphens and underscores, beginning with a letter or a digit"
            )


def _hash_key(key: str) -> bytes:
    # Plain SHA-256 is enough: a key has 256 random bits and cannot be guessed.
    return hashlib.sha256(key.encode()).digest()


def _record_from_row(
    row: tuple[
        str, str, bytes, str, str, str, float, float | None, float | None, str, str, str, int
    ],
) -> KeyRecord:
    lists = _decode_texts(row[5]), _decode_texts(row[9])
    return KeyRecord(*row[:5], lists[0], *row[6:9], lists[1], *row[10:])


def _decode_texts(listed: str) -> tuple[str, ...]:
    return msgspec.json.decode(listed, type=tuple[str, ...])


def _describe(record: KeyRecord) -> dict[str, Any]:
    told: dict[str, Any] = {
        "key_id": record.id,
        "owner": record.owner,
        "made_at": record.created_at,
    }
    if record.roles:
        told["roles"] = list(record.roles)
    if record.target:
        told["for"] = record.target
    if record.view:
        told["view"] = record.view
    if record.revoked_at is not None:
        told["revoked_at"] = record.revoked_at
    return told
