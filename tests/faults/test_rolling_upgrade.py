"""One of two hubs stops under load, and no request fails."""

from __future__ import annotations

from faults.harness import Outcome
from faults.rolling_upgrade import stop_one


def test_no_request_fails_while_a_hub_stops() -> None:
    outcome = Outcome()
    stop_one(outcome)
    assert not outcome.failures, outcome
    assert outcome.figures["long calls"] > 0, outcome
