from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.errors import ConfigError
from dragoman.core.routing import OutcomeKey, OutcomeRow, RoutingDecision
from dragoman.stores.database import StorePlace
from dragoman.stores.dispatches import DATABASE as DISPATCHES
from dragoman.stores.dispatches import MIGRATIONS, DispatchStore
from dragoman.stores.routing import DATABASE, DatabaseRouting

ROW = OutcomeRow(1.5, 0.25, 0.1, 1.0, 30.0, 2.0, 7, 9, 1234.5)


def build(id: str, *attempts: dict[str, Any]) -> RoutingDecision:
    body = {"chosen": "a", "candidates": [{"agent": "a"}]}
    return RoutingDecision(id=id, org="o", caller="key:a", at=1.0, body=body, attempts=attempts)


def test_outcomes_are_stored_by_org_agent_and_work_type(store_place: StorePlace) -> None:
    keys = [OutcomeKey("o", "a", "qa"), OutcomeKey("o", "a", "review"), OutcomeKey("p", "a", "qa")]
    with closing(DatabaseRouting(store_place, 100)) as store:
        for key in keys:
            store.save_outcome(key, OutcomeRow())
            store.save_outcome(key, ROW)
        store.delete_outcomes(keys[1:])
    with closing(DatabaseRouting(store_place, 100)) as store:
        assert store.load_outcomes() == [(keys[0], ROW)]


def test_oldest_decisions_go_beyond_the_limit(store_place: StorePlace) -> None:
    with closing(DatabaseRouting(store_place, 3)) as store:
        for number in range(5):
            store.add_decision(build(f"d{number}"))
            for error in (None, "Unreachable"):
                store.add_attempt(f"d{number}", {"agent": "a", "error": error})
        store.add_attempt("unknown", {"agent": "a"})
        found = [store.find_decision(f"d{number}") for number in range(5)]
        attempts = ({"agent": "a", "error": None}, {"agent": "a", "error": "Unreachable"})
        assert found == [None, None, *(build(f"d{number}", *attempts) for number in (2, 3, 4))]


def test_damaged_routing_database_is_reported_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match=r"routing\.db.*damaged.*the router learns again"):
        DatabaseRouting(tmp_path, 100)


async def test_dispatches_of_an_earlier_version_are_explicit(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DISPATCHES)) as db:
        db.executescript(MIGRATIONS[0] + "PRAGMA user_version=1;")
        db.execute(
            "INSERT INTO dispatches (id, org, agent_id, agent, skill, verb, asked_as, trace, "
            "session, caller, status, kind, started) VALUES ('i', 'default', 'c', 'a', 's', 'a.s', "
            "'a.s', 't', 'x', 'key:a', 'completed', 'explicit', 1.0)"
        )
        db.commit()
    store = DispatchStore(tmp_path, 100)
    try:
        (row,), _ = await store.find(10, None, org="default", caller="*", id="i")
        assert (row["kind"], row["workType"], row["decisionId"]) == ("explicit", None, None)
    finally:
        await store.close()
