"""Detects lost stores: a hub must not mistake a lost store for a new one.

Each store has a random id. A record lists the stores of the home, whether keys and policies were
ever created, and the last known end of the audit log. The record is sealed with `hub.key` and kept
in `stores.json`, with a copy in every store, so that no deleted file takes the evidence with it.
The copy with the highest number counts.

The copy's table is outside the stores' migrations, so that older versions can still open them.
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
from dragoman.core.shared_settings import STORE_URL
from dragoman.stores import (
    agents_db,
    approvals,
    credentials,
    dispatches,
    keys,
    pins,
    registry,
    routing,
    runs_db,
    tasks,
    triggers,
    usage,
    users,
)
from dragoman.stores.audit import chain, journal
from dragoman.stores.audit.chain import ChainTip
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.sqlite import connect, find_damage, is_damage, open_to_read, transact
from dragoman.stores.steady_clock import SteadyClock

RECORD_FILE = "stores.json"
KEY_FILE = "hub.key"
HOME_KEY, POLICIES, AUDIT, KEYS = "home-key", "policies", "audit", "keys"
SERVER = "database"
"""The PostgreSQL database of `[store] url`, which has the stores except for the audit log."""
AS_RECORDED = "*"
"""Stands for the id of the database that the record has: it is not compared."""
DATABASES: Mapping[str, str] = {
    KEYS: keys.DATABASE,
    "pins": pins.DATABASE,
    AUDIT: chain.DATABASE,
    "registry": registry.DATABASE,
    "tasks": tasks.DATABASE,
    "agents": agents_db.DATABASE,
    "users": users.DATABASE,
}
"""The stores by the names that `accept-loss` uses. Not `dispatches.db`: the audit log has the same
calls. Not `approvals.db`: what it has is asked again. Not `runs.db`: an unknown run does nothing.
Not `credentials.db`: without it people log in again."""
NAMES = (*DATABASES, SERVER, POLICIES, HOME_KEY)
FILES = (
    *DATABASES.values(),
    dispatches.DATABASE,
    usage.DATABASE,
    routing.DATABASE,
    approvals.DATABASE,
    runs_db.DATABASE,
    triggers.DATABASE,
    credentials.DATABASE,
)
VERSIONS: Mapping[str, int] = {
    store.DATABASE: len(store.MIGRATIONS)
    for store in (
        *(keys, pins, chain, registry, tasks, agents_db, users),
        *(dispatches, usage, routing, approvals, runs_db, triggers, credentials),
    )
}
ALWAYS = (KEYS, "pins", AUDIT, "registry")
"""The stores that every home has from its first start."""
MEANING: Mapping[str, str] = {
    KEYS: "without it the hub would not require keys",
    "pins": "without it every changed definition would count as a first sight",
    AUDIT: "without it past calls cannot be proved",
    "registry": "without it the registered agents are unknown",
    "tasks": "without it the A2A tasks and their webhooks are unknown",
    "agents": "without it the agents' memory, tasks, schedules and conversations are unknown",
    "users": "without it users cannot sign in, and the names of removed users are unknown",
    SERVER: "without it keys, users, pins, agents and tasks are unknown",
    POLICIES: "without it the default policies would apply, which permit more",
    HOME_KEY: "without it the hub's seals cannot be verified",
}

BUSY_SECONDS = 0.05
CHECK_SECONDS = 2.0
_TABLE = "CREATE TABLE IF NOT EXISTS home_store (id TEXT NOT NULL, record BLOB NOT NULL)"


class HomeRecord(msgspec.Struct, frozen=True):
    number: int = 0
    stores: dict[str, str] = {}
    keys_made: bool = False
    """Whether a key was ever created: then every caller needs one, whatever `hub.db` says."""
    policies_made: bool = False
    api_key_set: bool = False
    """Whether config.toml had a key at the last start."""
    audit_seq: int = 0
    audit_mac: str = ""
    clock_seen: float = 0.0
    """The last reading of the wall clock; see `SteadyClock`."""
    clock_new_since: float = 0.0
    servers: dict[str, str] | None = None
    """The keyed hash of each configured server, to record changes; None before the first start."""
    skills: dict[str, str] | None = None
    """The same of each skill; None before the first one."""
    notices: int = 0
    """How many of the notices about changes between versions the owner was given."""


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
    """What was read from a database file."""

    there: bool
    damage: str = ""
    id: str | None = ""
    """Empty if it has none; None if it cannot be read now."""
    copy: bytes = b""


@dataclass(frozen=True, slots=True)
class StoreSurvey:
    """The state of a home's stores."""

    key: bytes | None
    record: HomeRecord
    databases: Mapping[str, DatabaseState]
    losses: tuple[StoreLoss, ...]
    new: bool
    """Whether no version that keeps a record has used this home."""


def survey_stores(home: Path, policies: Path, database: str | None = None) -> StoreSurvey:
    """Checks which stores of the home are lost, without changes. `database` is the id of the
    database of `[store] url`; None if the stores are in the home. Raises `ConfigError` for a
    damaged key."""
    remedy = "delete it and accept the loss: dragoman stores accept-loss home-key"
    key = chain.read_key_file(home / KEY_FILE, remedy)
    databases = {name: _read_database(home / file) for name, file in DATABASES.items()}
    copies = [database.copy for database in databases.values() if database.copy]
    with contextlib.suppress(OSError):
        copies.append((home / RECORD_FILE).read_bytes())
    known = list(filter(None, map(_decode, copies)))
    ours = [record for record, ok in ((one, _has_valid_seal(two, key)) for one, two in known) if ok]
    claims = ours or [record for record, _ in known]
    record = max(claims, key=lambda one: one.number, default=HomeRecord())
    recorded = record.stores.get(SERVER)
    if database == AS_RECORDED:
        database = recorded
    if database is not None:
        databases = {AUDIT: databases[AUDIT]}
    losses = list(_find_losses(home, policies, record, databases))
    if recorded is not None and recorded != database:
        how = "is missing" if database is None else "names another database than before"
        losses.append(StoreLoss(SERVER, Path(STORE_URL), how))
    if known and not ours and record.stores:
        how = "is missing" if key is None else "is not the key that sealed this home's records"
        losses.append(StoreLoss(HOME_KEY, home / KEY_FILE, how))
    if not known:
        losses += _find_losses_without_record(home, databases)
    return StoreSurvey(key, record, databases, tuple(losses), not known)


def read_recorded_database(home: Path) -> str | None:
    """Reads the id of the database of `[store] url` that the home has used; None if there is
    none."""
    try:
        found = _decode((home / RECORD_FILE).read_bytes())
    except OSError:
        return None
    return found[0].stores.get(SERVER) if found is not None else None


def _find_losses(
    home: Path, policies: Path, record: HomeRecord, databases: Mapping[str, DatabaseState]
) -> Iterable[StoreLoss]:
    for name, found in databases.items():
        path, id = home / DATABASES[name], record.stores.get(name)
        if found.damage:
            yield StoreLoss(name, path, f"is damaged or not a database ({found.damage})")
        elif id is None:
            continue
        elif not found.there:
            yield StoreLoss(name, path, "is empty" if path.exists() else "is missing")
        elif found.id is None:
            continue  # opening the store reports the reason
        elif found.id != id:
            yield StoreLoss(name, path, "was replaced by another file")
        elif name == AUDIT and (how := _find_rollback(path, record)):
            yield StoreLoss(name, path, how)
    if record.policies_made and not os.path.lexists(policies):
        yield StoreLoss(POLICIES, policies, "is missing")


def _find_losses_without_record(
    home: Path, databases: Mapping[str, DatabaseState]
) -> Iterable[StoreLoss]:
    """Finds losses of a home without record and databases, from files that only a hub creates."""
    left = [KEY_FILE, chain.KEY, chain.HEAD, journal.JOURNAL]
    there = [name for name in left if (home / name).exists()]
    if there and not any(found.there or found.damage for found in databases.values()):
        for name in (name for name in ALWAYS if name in databases):
            how = f"is missing, although {there[0]} exists"
            yield StoreLoss(name, home / DATABASES[name], how)


def _find_rollback(path: Path, record: HomeRecord) -> str:
    """Describes how the audit log was rolled back; empty if it was not."""
    try:
        with closing(connect(path, "ro", BUSY_SECONDS)) as db:
            end = chain.find_tail(db)
            row = db.execute("SELECT mac FROM entries WHERE seq = ?", (record.audit_seq,))
            found = row.fetchone()
    except sqlite3.Error as error:
        return f"cannot be read ({error})"
    if end.seq < record.audit_seq:
        return f"ends at entry {end.seq}, but had {record.audit_seq}: it is an older copy"
    if found is not None and record.audit_mac and found[0].hex() != record.audit_mac:
        return f"has a different entry {record.audit_seq} than before"
    return ""


class StoreInventory:
    """The record of a home that this process holds. One thread at a time writes its files."""

    def __init__(self, home: Path, policies: Path, database: str | None = None) -> None:
        """`database` is the id of the database of `[store] url`; None if the stores are in the
        home. Raises `ConfigError` if a store was lost. Creates `hub.key` at the first start."""
        found = survey_stores(home, policies, database)
        self._database = database
        self._files = DATABASES if database is None else {AUDIT: DATABASES[AUDIT]}
        if found.losses:
            raise ConfigError(describe_losses(found.losses))
        self.home = home
        _remove_leftovers(home)
        self.record = found.record
        self.key = found.key or os.urandom(32)
        if found.key is None:
            # The record first: a key without a record then always means a loss.
            self._write_file()
            write_private(home / KEY_FILE, self.key)
        self._inodes: dict[str, int] = {}
        """By the paths of the database files."""
        self._policies = policies
        self._noted = False
        """Whether the record in memory is newer than the files."""

    def register_stores(self) -> None:
        """Adds the existing stores to the record. A store is synced to disk first: a power failure
        must not look like a lost store."""
        ids = dict(self.record.stores)
        if self._database is not None:
            ids[SERVER] = self._database
        for name, file in self._files.items():
            path = self.home / file
            if not path.exists():
                continue
            if name not in ids:
                ids[name] = assign_id(path)
            self._inodes[str(path)] = path.stat().st_ino
        self.update(stores=ids, policies_made=self.record.policies_made or self._policies.exists())
        if self._noted:
            self.write()

    def update(self, **facts: object) -> bool:
        """Changes the record in memory; returns whether it must be written."""
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
        """Returns a keyed hash, which reveals nothing without the key."""
        data = b"dragoman value\0" + msgspec.json.encode(value)
        return hmac.digest(self.key, data, "sha256").hex()[:32]

    def write(self) -> None:
        """Writes the record and its copies. Waits for the disk, so not for the event loop. A store
        that cannot be written now keeps an older copy, which does no harm."""
        record = self.record
        self._noted = False
        try:
            self._write_file()
        except ConfigError:
            self._noted = True
            raise
        sealed = _encode(record, self.key)
        for name in self._files.keys() & record.stores.keys():
            id = record.stores[name]
            with contextlib.suppress(sqlite3.Error):
                _write_copy(self.home / DATABASES[name], id, sealed)

    def find_replaced(self) -> list[str]:
        """Lists database files that were removed or replaced: writes to them are lost."""
        found = []
        for path, inode in self._inodes.items():
            try:
                if os.stat(path).st_ino == inode:
                    continue
                found.append(f"{os.path.basename(path)} was replaced")
            except OSError:
                found.append(f"{os.path.basename(path)} was removed")
        return found

    def _write_file(self) -> None:
        write_private(self.home / RECORD_FILE, _encode(self.record, self.key))


def describe_losses(losses: Sequence[StoreLoss]) -> str:
    names = " ".join(dict.fromkeys(loss.name for loss in losses))
    what = "; ".join(map(str, losses))
    return (
        f"the hub does not start: {what}. Restore {'it' if len(losses) == 1 else 'them'} from a "
        f"backup, or continue without: dragoman stores accept-loss {names}"
    )


def accept_losses(
    home: Path, policies: Path, names: Sequence[str], by: str, database: str | None = None
) -> list[StoreLoss]:
    """Accepts losses and records them in the audit log. The process must hold the home. A damaged
    file is moved aside; a replaced file is accepted."""
    found = survey_stores(home, policies, database)
    lost = {loss.name: loss for loss in [*_find_damaged(home), *found.losses]}
    for name in names:
        if name not in lost:
            raise InvalidInput(
                f'"{name}" is not lost, and nothing was changed; to continue without it anyway, '
                "move it away first"
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
    ids = {name: id for name, id in record.stores.items() if name != SERVER or name not in names}
    for name in (name for name in names if name in DATABASES):
        ids.pop(name, None)
        _set_aside(home / DATABASES[name], found.databases[name])
    _record_losses(home, accepted, by, record if AUDIT in names else None)
    for name in found.databases:
        if name not in ids and (home / DATABASES[name]).exists():
            ids[name] = assign_id(home / DATABASES[name])
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
    """Describes why a start cannot use an undamaged database, and the fix; empty if it can."""
    if not path.is_file():
        return f'"{path}" is not a file; move it away'
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
    """Describes damaged stores and the fix; empty if none was found."""
    found = list(_find_damaged(home))
    return describe_losses(found) if found else ""


def _find_damaged(home: Path) -> Iterable[StoreLoss]:
    for name, file in DATABASES.items():
        path = home / file
        if path.exists() and (damage := find_damage(path, CHECK_SECONDS)):
            yield StoreLoss(name, path, f"is damaged ({damage})")


def _set_aside(path: Path, found: DatabaseState) -> None:
    """Renames a damaged database or an empty file; a readable database stays."""
    if not path.exists() or (found.there and not find_damage(path, CHECK_SECONDS)):
        return
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{end}", f"{path}.lost-{stamp}{end}")


def _record_losses(
    home: Path, losses: Sequence[StoreLoss], by: str, lost: HomeRecord | None
) -> None:
    """`lost` is the record of the home if the audit log itself was lost."""
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


def _read_database(path: Path) -> DatabaseState:
    try:
        if path.stat().st_size == 0:
            return DatabaseState(False)
    except OSError:
        return DatabaseState(False)
    try:
        with closing(connect(path, "ro", BUSY_SECONDS)) as db:
            row = None
            if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'home_store'").fetchone():
                row = db.execute("SELECT id, record FROM home_store").fetchone()
            return DatabaseState(True, "", *(row or ("", b"")))
    except sqlite3.Error as error:
        return DatabaseState(True, str(error)) if is_damage(error) else DatabaseState(True, id=None)


def assign_id(path: Path) -> str:
    """Assigns a new id to a store and syncs it to disk."""
    id = secrets.token_hex(16)
    try:
        with closing(connect(path, "rw", 2.0)) as db:
            db.execute("PRAGMA synchronous=FULL")
            with transact(db):
                db.execute(_TABLE)
                db.execute("DELETE FROM home_store")
                db.execute("INSERT INTO home_store (id, record) VALUES (?, x'')", (id,))
    except sqlite3.Error as error:
        raise ConfigError(
            f'"{path}" cannot be written ({error}); check the permissions and the free space'
        ) from error
    _sync_folder(path.parent)
    return id


def _write_copy(path: Path, id: str, sealed: bytes) -> None:
    with closing(connect(path, "rw", BUSY_SECONDS)) as db:
        # The store is locked during this write and its writers wait for 20 ms only, but a sync may
        # take longer. If this copy does not survive a power failure, the older one does.
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("UPDATE home_store SET record = ? WHERE id = ?", (sealed, id))


def write_private(path: Path, data: bytes) -> None:
    """Writes a private file atomically and syncs it to disk."""
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
    """Removes temporary files of a hub that was killed in `write_private`."""
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
