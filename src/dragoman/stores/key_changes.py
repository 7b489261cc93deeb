"""Records created and revoked keys in the audit log.

The command line writes to `hub.db` directly, whether or not a hub is running. The hub therefore
compares the keys with those that it has recorded, in a table of the same database. The table is
outside the migrations, so that older versions can still open the database.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dragoman.core.errors import StorageFailed
from dragoman.stores.keys import KeyRecord, KeyStore

log = logging.getLogger(__name__)

CREATE, REVOKE, REMOVE = "key.create", "key.revoke", "key.remove"
_TABLE = "CREATE TABLE IF NOT EXISTS keys_recorded (name TEXT PRIMARY KEY, revoked INT NOT NULL)"

Record = Callable[[str, str, Mapping[str, Any]], None]
"""Gets a verb, the name of a key and details. May raise `StorageFailed`."""


class KeyChanges:
    def __init__(self, keys: KeyStore, record: Record) -> None:
        self._keys = keys
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
        if self._recorded is None:
            self._recorded = self._load()
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
        self._save()

    def _find_changes(self, record: KeyRecord) -> Iterator[str]:
        assert self._recorded is not None
        was = self._recorded.get(record.name)
        if was is None:
            yield CREATE
        if record.revoked_at is not None and not was:
            yield REVOKE

    def _load(self) -> dict[str, bool]:
        try:
            self._keys.db.execute(_TABLE)
            rows = self._keys.db.execute("SELECT name, revoked FROM keys_recorded").fetchall()
        except sqlite3.Error as error:
            raise StorageFailed(f"the list of recorded keys cannot be read ({error})") from error
        return {name: bool(revoked) for name, revoked in rows}

    def _save(self) -> None:
        """Saves the recorded keys; retried later. A hub that ends before records a change twice."""
        if not self._unsaved or self._recorded is None:
            return
        db, recorded = self._keys.db, self._recorded
        gone = [(name,) for name in self._unsaved if name not in recorded]
        there = [(name, recorded[name]) for name in self._unsaved if name in recorded]
        try:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("DELETE FROM keys_recorded WHERE name = ?", gone)
            db.executemany("INSERT OR REPLACE INTO keys_recorded VALUES (?, ?)", there)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            log.debug("the list of recorded keys could not be saved: %s", error)
            return
        self._unsaved.clear()


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
    if record.revoked_at is not None:
        told["revoked_at"] = record.revoked_at
    return told
