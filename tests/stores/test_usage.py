"""Usage: what is added up, whose it is, and budgets per day."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.core.errors import RateLimited
from dragoman.core.usage import Budget, UsageEntry, check_budget
from dragoman.stores.database import StorePlace
from dragoman.stores.usage import DatabaseUsage

NOON = 1_794_916_800.0
DAY = 86_400.0


def entry(at: float = NOON, **more: Any) -> UsageEntry:
    given = {"agent": "a", "principal": "key:x", "origin": "key:x", "trace": "t1", "model": "m",
             "model_calls": 2, "tool_calls": 1, "input_tokens": 100, "output_tokens": 20,
             "cost": 0.5, "seconds": 1.5}  # fmt: skip
    return UsageEntry(at=at, **{**given, **more})


def test_usage_is_added_up_by_agent_day_and_trace(store_place: StorePlace) -> None:
    store = DatabaseUsage(store_place)
    for one in (
        entry(), entry(trace="t2", agent="b", origin="key:y"), entry(NOON + DAY, trace="t3"),
        entry(NOON - 50 * DAY),
    ):  # fmt: skip
        store.record(one)
    rows = store.summarize(["agent"], NOON - DAY, {})
    assert [(one["agent"], one["messages"], one["input_tokens"]) for one in rows] == [
        ("a", 2, 200), ("b", 1, 100),
    ]  # fmt: skip
    assert rows[0]["cost"] == 1.0 and rows[0]["seconds"] == 3.0 and rows[0]["model_calls"] == 4
    days = store.summarize(["day", "agent"], NOON - DAY, {"agent": "a"})
    assert len(days) == 2 and {one["agent"] for one in days} == {"a"}
    (own,) = store.summarize(["trace"], 0, {"origin": "key:y"})
    assert own["trace"] == "t2"
    store.close()


def test_budget_of_a_day_refuses_until_midnight(store_place: StorePlace) -> None:
    store = DatabaseUsage(store_place)
    budget = Budget(tokens=240)

    def check(now: float, budget: Budget = budget, name: str = "a") -> None:
        check_budget(store, budget, "agent", name, now, "limits")

    check(NOON)
    store.record(entry())
    check(NOON + 1)
    store.record(entry(NOON + 2))
    with pytest.raises(RateLimited) as raised:
        check(NOON + 3)
    assert "240 of 240 tokens (limits). It is renewed at midnight UTC" in str(raised.value)
    assert 0 < raised.value.retry_after <= DAY
    check(NOON + 3 + raised.value.retry_after)
    check(NOON + 3, name="b")
    check(NOON + 3, Budget())
    with pytest.raises(RateLimited, match=r"\$1.00 of \$0.75"):
        check(NOON + 3, Budget(cost=0.75))
    store.close()
    again = DatabaseUsage(store_place)  # a restart forgets nothing
    with pytest.raises(RateLimited):
        check_budget(again, budget, "agent", "a", NOON + 4, "limits")
    again.close()
