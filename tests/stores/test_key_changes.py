"""Key changes are recorded once; repeated events are counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.stores.places import execute

from dragoman.core.admin_audit import Tally
from dragoman.core.errors import StorageFailed
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.reader import AuditReader
from dragoman.stores.database import StorePlace
from dragoman.stores.keys import KeyChanges, KeyStore


class RecordedChanges:
    def __init__(self) -> None:
        self.verbs: list[tuple[str, str]] = []
        self.full = False

    def __call__(self, verb: str, name: str, told: Mapping[str, Any]) -> None:
        if self.full:
            raise StorageFailed("it cannot be recorded")
        assert "hash" not in told
        self.verbs.append((verb, name))


def test_key_changes_are_recorded_once_by_any_hub(store_place: StorePlace) -> None:
    keys, told = KeyStore(store_place), RecordedChanges()
    keys.create("a", owner="me", expires_at=None, scopes=["call"])
    changes = KeyChanges(keys, told)
    told.full = True
    with pytest.raises(StorageFailed):
        changes.record_changes()
    told.full = False
    for _ in range(2):
        changes.record_changes()
    assert told.verbs == [("key.create", "a")]
    keys.create("b", owner="me", expires_at=None, scopes=["call"])
    keys.revoke("b")
    keys.revoke("a")
    changes.record_changes()
    assert told.verbs[1:] == [("key.revoke", "a"), ("key.create", "b"), ("key.revoke", "b")]
    keys.close()

    execute(store_place, "hub.db", "DELETE FROM keys WHERE name = 'a'")
    for expected in ([("key.remove", "a")], []):  # the next hub, and the one after that
        keys, told = KeyStore(store_place), RecordedChanges()
        KeyChanges(keys, told).record_changes()
        assert told.verbs == expected
        keys.close()


async def test_wrong_keys_make_a_bounded_number_of_records(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    tally = Tally(audit)
    for number in range(1_000):
        tally.add("auth.failed", f"10.0.{number // 250}.{number % 250}", "nobody", "http")
        tally.add("auth.failed", "10.9.9.9", "nobody", "http")
    tally.flush()  # the minute is not over
    tally.flush(now=True)
    audit.close()
    reader = AuditReader(tmp_path)
    found = reader.list_records(10_000, verb="auth.failed")
    reader.close()
    assert len(found) <= 2 * (Tally.MAX_KINDS + 1)
    assert sum(record.conclusion["count"] for record in found) == 2_000
    same = [one.conclusion["count"] for one in found if one.intent["asked_as"] == "10.9.9.9"]
    assert sorted(same) == [1, 999]
