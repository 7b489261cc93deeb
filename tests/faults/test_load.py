"""Short versions of the experiments with load and attacks: no time is judged."""

from __future__ import annotations

import pytest
from faults.harness import SEED, Outcome

from faults import attacks, load, peers, shutdown


def judge(outcome: Outcome) -> None:
    print(outcome.figures)
    assert not outcome.failures, "\n".join(outcome.failures)


@pytest.mark.promise("N1")
@pytest.mark.parametrize(
    "experiment",
    [attacks.many_values, attacks.request_bombs, attacks.response_bombs, attacks.drips],
    ids=["values", "request-bombs", "response-bombs", "drips"],
)
def test_attacks_take_bounded_memory_and_leave_others_served(experiment) -> None:
    outcome = Outcome()
    experiment(1, SEED, outcome)
    judge(outcome)


def test_overload_is_refused_with_retry_after_and_leaves_others_served() -> None:
    outcome = Outcome()
    attacks.overload(1, SEED, outcome)
    judge(outcome)


def test_steady_load_is_answered_correctly() -> None:
    outcome = Outcome()
    load.steady_load(2, SEED, outcome)
    judge(outcome)


def test_clients_and_servers_that_come_and_go_leave_nothing_behind() -> None:
    outcome = Outcome()
    load.soak(1, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("B9")
def test_shutdown_answers_fifty_calls_in_flight() -> None:
    outcome = Outcome()
    shutdown.end_under_load(1, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("B7")
def test_misbehaving_http_servers_do_not_affect_others() -> None:
    outcome = Outcome()
    peers.misbehaving_http_servers(1, SEED, outcome)
    judge(outcome)
