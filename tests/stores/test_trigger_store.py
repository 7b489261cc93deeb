"""How far the schedules of workflows are, and which webhooks were delivered."""

from __future__ import annotations

from contextlib import closing

from dragoman.core.structs import replace
from dragoman.core.triggers import ScheduleState
from dragoman.stores.database import StorePlace
from dragoman.stores.triggers import DatabaseTriggers


def test_schedules_and_deliveries_are_stored(store_place: StorePlace) -> None:
    state = ScheduleState(id="s1", workflow="w", next_at=5.5)
    with closing(DatabaseTriggers(store_place, max_deliveries=2)) as store:
        store.save_schedule(state)
        state = replace(state, next_at=9.0, missed=2, outcome="why")
        store.save_schedule(state)
        store.save_schedule(replace(state, id="s2"))
        store.delete_schedules(["s2", "unknown"])
        for id in ("d1", "d2", "d3"):
            store.add_delivery(id, 1.0)
        assert [store.has_delivery(f"d{n}") for n in (1, 2, 3)] == [False, True, True]
    with closing(DatabaseTriggers(store_place)) as store:
        assert store.load_schedules() == [state]
        store.add_delivery("d3", 2.0)
        assert store.has_delivery("d2") and store.has_delivery("d3")
