"""The simulation behind docs/sizing.md, held against what can be calculated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.simulate_cluster import Assumptions, Costs, simulate
from bench.sizing import PAGE, load_figures, render_assumptions, render_measured

COSTS = Costs(100.0, 200.0, 10.0, 0.01, 0.001, 80.0)
ASSUMED = Assumptions(
    sessions_share=0.5, notifications_per_second=0, limiter_us=0, valkey_us=5, client_kb=1024
)


def test_work_is_what_the_calls_cost() -> None:
    found = simulate(10, 10_000, COSTS, ASSUMED, calls=20_000)
    assert found.calls_per_second == 1_000
    # Half of the calls have a session, and nine of ten of those arrive at another hub.
    assert found.forwarded_per_second == pytest.approx(450, rel=0.05)
    assert found.database_share == pytest.approx(1_000 * 10e-6 + 10 * 0.001)
    assert found.valkey_share == pytest.approx(1_000 * 5e-6)
    hubs_us = 100 + 0.45 * 200 + 10 * 0.01 * 1e6 / 1_000
    assert found.cpu_us == pytest.approx(hubs_us + 20 + 5, rel=0.05)
    assert found.hub_mb == 80 + 1_000
    assert found.hub_share == pytest.approx(0.01 + 0.019, rel=0.2)


def test_calls_wait_at_a_hub_that_is_nearly_full() -> None:
    fixed = replace(ASSUMED, sessions_share=0, spread=0)
    costs = replace(COSTS, idle_hub_share=0)
    quiet = simulate(1, 1_000, costs, fixed, calls=20_000)
    assert quiet.p50_ms == pytest.approx(0.1)
    # 8,000 calls of 0.1 ms a second: the mean wait of an M/D/1 queue at 80 % is 0.2 ms.
    full = simulate(1, 80_000, costs, fixed, calls=20_000)
    assert full.hub_share == pytest.approx(0.8, rel=0.05)
    assert 0.15 < full.p50_ms < 0.4 < full.p99_ms


def test_page_has_the_stored_figures() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render_measured(load_figures()) in page
    assert render_assumptions(Assumptions()) in page
