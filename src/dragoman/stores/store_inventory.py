"""Notices when a store of the home disappears: a hub must not take a lost store for a new one.

Each store has a random id. One record says which stores the home has, whether keys and policies of
its own were ever made, and where the audit ended when it was last looked at. The record is sealed
with `hub.key`; it is in `stores.json`, and a copy is in every store, so that no file that is
deleted takes the evidence with it. Of several copies the one with the highest number counts.

The table for it is outside of the stores' migrations, so that an older version opens them still.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import shlex
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dragoman.core.admin_audit import record_done
from dragoman.core.errors import ConfigError, InvalidInput
from dragoman.stores import dispatches, keys, pins, registry, tasks
from dragoman.stores.audit import chain, journal
from dragoman.stores.audit.chain import ChainTip
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.sqlite import find_damage, is_damage, open_to_read
from dragoman.stores.steady_clock import SteadyClock

RECORD_FILE = "stores.json"
KEY_FILE = "hub.key"
HOME_KEY, POLICIES, AUDIT, KEYS = "home-key", "policies", "audit", "keys"
DATABASES: Mapping[str, str] = {
    KEYS: keys.DATABASE,
    "pins": pins.DATABASE,
    AUDIT: chain.DATABASE,
    "registry": registry.DATABASE,
    "tasks": tasks.DATABASE,
}
"""What `accept-loss` calls each, and its file. Not `dispatches.db`: the audit has what
is in it."""
NAMES = (*DATABASES, POLICIES, HOME_KEY)
FILES = (*DATABASES.values(), dispatches.DATABASE)
VERSIONS: Mapping[str, int] = {
    store.DATABASE: len(store.MIGRATIONS)
    for store in (keys, pins, chain, registry, tasks, dispatches)
}
ALWAYS = (KEYS, "pins", AUDIT, "registry")
"""Those that every home has had since its first start."""
MEANING: Mapping[str, str] = {
    KEYS: "without it nobody could be asked for a key",
    "pins": "without it every changed definition would be approved as a first one",
    AUDIT: "without it nothing that was done could be proved",
    "registry": "without it the registered agents are unknown",
    "tasks": "without it the A2A tasks and their webhooks are unknown",
    POLICIES: "without it the default policies would hold, which permit more",
    HOME_KEY: "without it nothing that the hub has sealed can be checked",
}

BUSY_SECONDS = 0.05
CHECK_SECONDS = 2.0
_TABLE = "CREATE TABLE IF NOT EXISTS home_store (id TEXT NOT NULL, record BLOB NOT NULL)"


class HomeRecord(msgspec.Struct, frozen=True):
    number: int = 0
    stores: dict[str, str] = {}
    """The id of each store that there is."""
    keys_made: bool = False
    """Whether a key was ever made: then callers need one, whatever `hub.db` says."""
    policies_made: bool = False
    """Whether there is a folder of policies."""
    api_key_set: bool = False
    """Whether config.toml had a key at the last start."""
    audit_seq: int = 0
    audit_mac: str = ""
    clock_seen: float = 0.0
    """When the wall clock was last looked at, and since when it is new: see `SteadyClock`."""
    clock_new_since: float = 0.0
    servers: dict[str, str] | None = None
    """The keyed hash of each configured server, to record what has changed; None: never looked."""


class SealedRecord(msgspec.Struct, frozen=True):
    record: msgspec.Raw
    seal: str


@dataclass(frozen=True, slots=True)
class StoreLoss:
    name: str
    file: Path
    how: str

    def __str__(self) -> str:
        return f'"{self.file}" {self.how}: {MEANING[self.name]}'


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """What a file says of itself."""

    there: bool
    damage: str = ""
    id: str | None = ""
    """Empty where it has none; None where that cannot be read just now."""
    copy: bytes = b""


@dataclass(frozen=True, slots=True)
class StoreSurvey:
    """What was found in a home, nothing of it changed."""

    key: bytes | None
    record: HomeRecord
    databases: Mapping[str, DatabaseState]
    losses: tuple[StoreLoss, ...]
    new: bool
    """Whether this home was never used by a version that keeps a record."""


def survey_stores(home: Path, policies: Path) -> StoreSurvey:
    """Looks for what the home must have. Raises `ConfigError` for a key that is damaged."""
    key = _read_key(home)
    databases = {name: _read_database(home / file) for name, file in DATABASES.items()}
    copies = [database.copy for database in databases.values() if database.copy]
    with contextlib.suppress(OSError):
        copies.append((home / RECORD_FILE).read_bytes())
    known = list(filter(None, map(_decode, copies)))
    ours = [record for record, ok in ((one, _has_valid_seal(two, key)) for one, two in known) if ok]
    claims = ours or [record for record, _ in known]
    record = max(claims, key=lambda one: one.number, default=HomeRecord())
    losses = list(_find_losses(home, policies, record, databases))
    if known and not ours and record.stores:
        how = "is gone" if key is None else "is not the one that sealed the records of this home"
        losses.append(StoreLoss(HOME_KEY, home / KEY_FILE, how))
    if not known:
        losses += _find_losses_without_record(home, databases)
    return StoreSurvey(key, record, databases, tuple(losses), not known)


def _find_losses(
    home: Path, policies: Path, record: HomeRecord, databases: Mapping[str, DatabaseState]
) -> Iterable[StoreLoss]:
    for name, found in databases.items():
        path, id = home / DATABASES[name], record.stores.get(name)
        if found.damage:
            yield StoreLoss(name, path, f"is damaged or is no database ({found.damage})")
        elif id is None:
            continue
        elif not found.there:
            yield StoreLoss(name, path, "is empty" if path.exists() else "is gone")
        elif found.id is None:
            continue  # the store itself says why, when it is opened
        elif found.id != id:
            yield StoreLoss(name, path, "is not the file that this home had")
        elif name == AUDIT and (how := _find_rollback(path, record)):
            yield StoreLoss(name, path, how)
    if record.policies_made and not os.path.lexists(policies):
        yield StoreLoss(POLICIES, policies, "is gone")


def _find_losses_without_record(
    home: Path, databases: Mapping[str, DatabaseState]
) -> Iterable[StoreLoss]:
    """Neither a record nor a database, but what only a hub that had them can have left."""
    left = [KEY_FILE, chain.KEY, chain.HEAD, journal.JOURNAL]
    there = [name for name in left if (home / name).exists()]
    if there and not any(found.there or found.damage for found in databases.values()):
        for name in ALWAYS:
            how = f"is gone, though {there[0]} is there"
            yield StoreLoss(name, home / DATABASES[name], how)


def _find_rollback(path: Path, record: HomeRecord) -> str:
    """Why the audit is older than it was; empty where it is not."""
    try:
        with closing(_connect(path, "ro")) as db:
            end = chain.find_tail(db)
            row = db.execute("SELECT mac FROM entries WHERE seq = ?", (record.audit_seq,))
            found = row.fetchone()
    except sqlite3.Error as error:
        return f"cannot be read ({error})"
    if end.seq < record.audit_seq:
        return f"ends at entry {end.seq}, but had {record.audit_seq}: it is older than it was"
    if found is not None and record.audit_mac and found[0].hex() != record.audit_mac:
        return f"has another entry {record.audit_seq} than it had"
    return ""


class StoreInventory:
    """The record of a home that a hub holds. Its files are written by one thread at a time."""

    def __init__(self, home: Path, policies: Path) -> None:
        """Raises `ConfigError` where a store was lost. Makes `hub.key` at the first start."""
        found = survey_stores(home, policies)
        if found.losses:
            raise ConfigError(describe_losses(found.losses))
        self._home = home
        _remove_leftovers(home)
        self.record = found.record
        self.key = found.key or os.urandom(32)
        if found.key is None:
            # The record first: a key without a record is then never a first start's own doing.
            self._write_file()
            write_private(home / KEY_FILE, self.key)
        self._inodes: dict[str, int] = {}
        self._policies = policies
        self._noted = False
        """Whether the record in memory is newer than the files."""

    def register_stores(self) -> None:
        """Takes up the stores that are there now. What is in the record is on the disk: a loss of
        power must not look like the loss of a store."""
        ids = dict(self.record.stores)
        for name, file in DATABASES.items():
            if not (self._home / file).exists():
                continue
            if name not in ids:
                ids[name] = assign_id(self._home / file)
            self._inodes[name] = (self._home / file).stat().st_ino
        self.update(stores=ids, policies_made=self.record.policies_made or self._policies.exists())
        if self._noted:
            self.write()

    def update(self, **facts: object) -> bool:
        """Changes the record in memory; whether it must be written."""
        changed = {name: value for name, value in facts.items()
                   if getattr(self.record, name) != value}  # fmt: skip
        if changed:
            self.record = msgspec.structs.replace(
                self.record, number=self.record.number + 1, **changed
            )
            self._noted = True
        return self._noted

    def update_audit_tip(self, tip: ChainTip, clock: SteadyClock) -> None:
        """`tip` must be on the disk."""
        self.update(
            audit_seq=tip.seq,
            audit_mac=tip.mac.hex(),
            clock_seen=clock.seen,
            clock_new_since=clock.new_since,
        )

    def hash_value(self, value: object) -> str:
        """Tells whether two values are the same, and nobody without the key what they are."""
        data = b"dragoman value\0" + msgspec.json.encode(value)
        return hmac.digest(self.key, data, "sha256").hex()[:32]

    def write(self) -> None:
        """Writes the record and its copies. Waits for the disk: not for the event loop. A store
        that cannot be written now keeps an older copy, which does no harm."""
        record = self.record
        self._noted = False
        try:
            self._write_file()
        except ConfigError:
            self._noted = True
            raise
        sealed = _encode(record, self.key)
        for name, id in record.stores.items():
            with contextlib.suppress(sqlite3.Error):
                _write_copy(self._home / DATABASES[name], id, sealed)

    def find_replaced(self) -> list[str]:
        """The files that are not the ones that the hub has open: what goes there is lost."""
        found = []
        for name, inode in self._inodes.items():
            path = self._home / DATABASES[name]
            try:
                if path.stat().st_ino == inode:
                    continue
                found.append(f"{path.name} was replaced")
            except OSError:
                found.append(f"{path.name} is gone")
        return found

    def _write_file(self) -> None:
        write_private(self._home / RECORD_FILE, _encode(self.record, self.key))


def describe_losses(losses: Sequence[StoreLoss]) -> str:
    names = " ".join(dict.fromkeys(loss.name for loss in losses))
    what = "; ".join(map(str, losses))
    return (
        f"the hub does not start: {what}. Restore {'it' if len(losses) == 1 else 'them'} from a "
        f"backup, or go on without: dragoman stores accept-loss {names}"
    )


def accept_losses(home: Path, policies: Path, names: Sequence[str], by: str) -> list[StoreLoss]:
    """Goes on without what was lost, and records that. The home must be held. A damaged file is
    moved aside; another file than the home had is taken for its own from now on."""
    found = survey_stores(home, policies)
    lost = {loss.name: loss for loss in [*_find_damaged(home), *found.losses]}
    for name in names:
        if name not in lost:
            raise InvalidInput(
                f'"{name}" was not lost, and nothing was changed; to go on without it all the '
                "same, move it away first"
            )
    if AUDIT in lost and AUDIT not in names:
        raise InvalidInput(
            f'{lost[AUDIT]}; the loss of "{names[0]}" is recorded there, so accept both: '
            f"dragoman stores accept-loss audit {' '.join(names)}"
        )
    if HOME_KEY in lost and HOME_KEY not in names:
        raise InvalidInput(f"{lost[HOME_KEY]}; accept that too: add home-key")
    record, key = found.record, found.key
    if key is None or HOME_KEY in names:
        key = os.urandom(32)
        write_private(home / KEY_FILE, key)
    accepted = [lost[name] for name in dict.fromkeys(names)]
    ids = dict(record.stores)
    for name in (name for name in names if name in DATABASES):
        ids.pop(name, None)
        _set_aside(home / DATABASES[name], found.databases[name])
    _record_losses(home, accepted, by, record if AUDIT in names else None)
    for name, file in DATABASES.items():
        if name not in ids and (home / file).exists():
            ids[name] = assign_id(home / file)
    after = msgspec.structs.replace(
        record,
        number=record.number + 1,
        stores=ids,
        keys_made=record.keys_made or KEYS in names,
        policies_made=record.policies_made and POLICIES not in names,
        audit_seq=0 if AUDIT in names else record.audit_seq,
        audit_mac="" if AUDIT in names else record.audit_mac,
    )
    write_private(home / RECORD_FILE, _encode(after, key))
    return accepted


def find_obstacle(path: Path) -> str:
    """Why a start cannot use a database that may well be whole, and what to do; empty if nothing is
    in the way."""
    if not path.is_file():
        return f'"{path}" is no file; move it away'
    if not os.access(path, os.R_OK | os.W_OK):
        return (
            f'"{path}" cannot be written; run: sudo chown {os.geteuid()} {shlex.quote(str(path))}'
        )
    try:
        open_to_read(path, VERSIONS[path.name]).close()
    except ConfigError as error:
        cause = error.__cause__
        return "" if isinstance(cause, Exception) and is_damage(cause) else str(error)
    return ""


def describe_damage(home: Path) -> str:
    """Which stores are damaged, and what to do; empty if none was found to be."""
    found = list(_find_damaged(home))
    return describe_losses(found) if found else ""


def _find_damaged(home: Path) -> Iterable[StoreLoss]:
    for name, file in DATABASES.items():
        path = home / file
        if path.exists() and (damage := find_damage(path, CHECK_SECONDS)):
            yield StoreLoss(name, path, f"is damaged ({damage})")


def _set_aside(path: Path, found: DatabaseState) -> None:
    """A damaged database, or an empty file. One that can be read stays."""
    if not path.exists() or (found.there and not find_damage(path, CHECK_SECONDS)):
        return
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{end}", f"{path}.lost-{stamp}{end}")


def _record_losses(
    home: Path, losses: Sequence[StoreLoss], by: str, lost: HomeRecord | None
) -> None:
    """`lost` is the record of a home whose audit is among what was lost."""
    what = "; ".join(f"{loss.file.name} {loss.how}" for loss in losses)
    broken = (lost.audit_seq, f"{what}; {by} has accepted the loss") if lost is not None else None
    audit = SqliteAuditLog(home, broken=broken)
    try:
        for loss in losses:
            told = {"message": f"{loss.file.name} {loss.how}"}
            record_done(audit, "stores.accept_loss", loss.name, by, "cli", told)
        audit.flush()
    finally:
        audit.close()


# --- files ----------------------------------------------------------------------------------------


def _read_key(home: Path) -> bytes | None:
    path = home / KEY_FILE
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f'"{path}" cannot be read ({error.strerror})') from error
    if len(key) != 32:
        raise ConfigError(
            f"{path} is damaged: {len(key)} bytes where 32 belong; restore it from a backup, or "
            "delete it, and if the hub then misses it: dragoman stores accept-loss home-key"
        )
    return key


def _read_database(path: Path) -> DatabaseState:
    try:
        if path.stat().st_size == 0:
            return DatabaseState(False)
    except OSError:
        return DatabaseState(False)
    try:
        with closing(_connect(path, "ro")) as db:
            row = None
            if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'home_store'").fetchone():
                row = db.execute("SELECT id, record FROM home_store").fetchone()
            return DatabaseState(True, "", *(row or ("", b"")))
    except sqlite3.Error as error:
        return DatabaseState(True, str(error)) if is_damage(error) else DatabaseState(True, id=None)


def assign_id(path: Path) -> str:
    """A new id, in the store and on the disk."""
    id = secrets.token_hex(16)
    try:
        with closing(_connect(path, "rw", 2.0)) as db:
            db.execute("PRAGMA synchronous=FULL")
            db.execute("BEGIN IMMEDIATE")
            db.execute(_TABLE)
            db.execute("DELETE FROM home_store")
            db.execute("INSERT INTO home_store (id, record) VALUES (?, x'')", (id,))
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise ConfigError(
            f'"{path}" cannot be written ({error}); check who may write there and the space left'
        ) from error
    _sync_folder(path.parent)
    return id


def _write_copy(path: Path, id: str, sealed: bytes) -> None:
    with closing(_connect(path, "rw")) as db:
        # The store is locked while this is written, and who writes to it waits for 20 ms only: the
        # disk may take longer. If the copy does not survive a loss of power, the older one does.
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("UPDATE home_store SET record = ? WHERE id = ?", (sealed, id))


def _connect(path: Path, mode: str, seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=seconds, isolation_level=None)


def write_private(path: Path, data: bytes) -> None:
    """In one step, and on the disk."""
    ready = ""
    try:
        handle, ready = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(ready, path)
        _sync_folder(path.parent)
    except OSError as error:
        if ready:
            with contextlib.suppress(OSError):
                os.unlink(ready)
        raise ConfigError(f'"{path}" cannot be written ({error.strerror})') from error


def _remove_leftovers(home: Path) -> None:
    """What a hub that was killed in `write_private` has left."""
    for name in (RECORD_FILE, KEY_FILE):
        for left in home.glob(f".{name}.*.tmp"):
            with contextlib.suppress(OSError):
                left.unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _encode(record: HomeRecord, key: bytes) -> bytes:
    body = msgspec.json.encode(record)
    return msgspec.json.encode(SealedRecord(msgspec.Raw(body), _compute_seal(body, key))) + b"\n"


def _compute_seal(body: bytes, key: bytes) -> str:
    return hmac.digest(key, b"dragoman stores\0" + body, "sha256").hex()


def _decode(copy: bytes) -> tuple[HomeRecord, SealedRecord] | None:
    try:
        sealed = msgspec.json.decode(copy, type=SealedRecord)
        return msgspec.json.decode(sealed.record, type=HomeRecord), sealed
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _has_valid_seal(sealed: SealedRecord, key: bytes | None) -> bool:
    return key is not None and hmac.compare_digest(
        _compute_seal(bytes(sealed.record), key), sealed.seal
    )
