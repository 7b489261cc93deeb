"""Two hubs refuse quickly while PostgreSQL is away, and recover by themselves."""

from __future__ import annotations

from faults.database_away import lose_in_each_way
from faults.harness import Outcome


def test_two_hubs_outlast_an_outage_of_postgresql() -> None:
    outcome = Outcome()
    lose_in_each_way(("stopped", "paused", "restarted"), 0.5, outcome, slack=3.0)
    assert not outcome.failures, outcome
    assert outcome.figures["paused: health served"] > 0
