"""A store whose file is deleted or replaced while open accepts no writes, since they would be
unreadable; and no store waits long for a lock of another program.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.errors import StorageFailed
from dragoman.core.ports import Schedule, StoredPush, TaskChange
from dragoman.core.principal import OWNER
from dragoman.core.routing import OutcomeKey, OutcomeRow
from dragoman.stores.agent_memory import DatabaseMemory
from dragoman.stores.agent_queue import DatabaseQueue
from dragoman.stores.agent_schedules import DatabaseSchedules
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.keys import KeyStore
from dragoman.stores.pins import DatabasePins
from dragoman.stores.registry import RegistryStore
from dragoman.stores.routing import DatabaseRouting
from dragoman.stores.tasks import DatabaseTaskStore

ROW = {"id": "1", "org": "default", "slug": "a"}
CHANGE = TaskChange(0, "one", OWNER, "working", 1.0, 1.0, {}, ())
PUSH = StoredPush(1, "hook", {}, 0, 0, 0.0, "")
SCHEDULE = Schedule("1", "default", "one", "one", "go", "every 60", "UTC", False, 1.0, 1.0)
Use = Callable[[Any], object]

USES: dict[str, tuple[Callable[[Path], Any], str, list[Use]]] = {
    "tasks": (
        DatabaseTaskStore,
        "tasks.db",
        [lambda store: store.save([CHANGE]), lambda store: store.save_push(PUSH)],
    ),
    "registry": (
        RegistryStore,
        "registry.db",
        [
            lambda store: store.save_agent(ROW),
            lambda store: store.delete_agent("1"),
            lambda store: store.save_card("1", "digest", b"{}", 1.0),
        ],
    ),
    "pins": (DatabasePins, "pins.db", [lambda store: store.save([], [])]),
    "memory": (DatabaseMemory, "agents.db", [lambda store: store.store("one", "key", "value")]),
    "queue": (DatabaseQueue, "agents.db", [lambda store: store.claim("default", "one", "", 60)]),
    "schedules": (
        DatabaseSchedules,
        "agents.db",
        [
            lambda store: store.delete("default", "one", "1"),
            lambda store: store.save(SCHEDULE, SCHEDULE),
        ],
    ),
    "routing": (
        lambda home: DatabaseRouting(home, 100),
        "routing.db",
        [
            lambda store: store.save_outcome(OutcomeKey("default", "one", "qa"), OutcomeRow()),
            lambda store: store.add_attempt("1", {}),
        ],
    ),
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_deleted_or_replaced_store_rejects_writes(
    tmp_path: Path, name: str, replaced: bool
) -> None:
    make, file, uses = USES[name]
    store = make(tmp_path)
    path = tmp_path / file
    path.rename(tmp_path / "away")
    if replaced:
        path.write_bytes((tmp_path / "away").read_bytes())
    for use in uses:
        with pytest.raises(
            StorageFailed, match=f"{file} {'was replaced' if replaced else 'was removed'}"
        ):
            use(store)
    os.replace(tmp_path / "away", path)  # put back as it was
    for use in uses:
        use(store)
    store.close()


@pytest.mark.parametrize("name", USES)
def test_no_store_blocks_the_event_loop_on_a_lock(tmp_path: Path, name: str) -> None:
    make, file, uses = USES[name]
    store = make(tmp_path)
    other = sqlite3.connect(tmp_path / file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    for use in uses * 10:
        with pytest.raises(StorageFailed, match="locked"):
            use(store)
    assert time.monotonic() - begun < 4  # SQLite would wait 5 s for each of them
    other.close()
    uses[0](store)
    store.close()


def test_keys_of_a_replaced_database_are_rejected(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    key = store.create("ci", owner="me", expires_at=None, scopes=["call"])
    (tmp_path / "hub.db").unlink()
    KeyStore(tmp_path).close()
    store._looked = 0.0  # as if a second had passed
    with pytest.raises(StorageFailed, match="was replaced"):
        store.find(key)
    store.close()


async def test_deleted_audit_database_refuses_calls(tmp_path: Path) -> None:
    audit = SqliteAuditLog(tmp_path)
    (tmp_path / "audit.db").unlink()
    audit.intend({"verb": "x"})  # in the journal
    with pytest.raises(StorageFailed, match=r"audit\.db was removed"):
        audit.flush()
    audit.close()
