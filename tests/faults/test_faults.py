"""Short versions of the experiments of `make faults`: the same code with small sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults.bytes_fuzz import fuzz_bytes
from faults.grounds import EVERYTHING, echo_server, write_agents
from faults.harness import (
    SEED,
    NotHere,
    Outcome,
    running_hub,
    temporary_home,
    write_config,
)
from faults.message_fuzz import fuzz_messages
from faults.message_seeds import DOORS
from tests.live.conftest import RunningHub

from faults import clients, clock, databases, descriptors, disk, kills, peers, reload


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[RunningHub]:
    """One hub for all fuzzers; its log has no traceback at the end."""
    outcome = Outcome()
    with temporary_home() as home:
        agents = write_agents(home, "quick", "asking")
        write_config(home, [echo_server()], EVERYTHING + agents)
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            yield hub
    assert not outcome.failures, "\n".join(outcome.failures)


def judge(outcome: Outcome) -> None:
    print(outcome.figures)
    assert not outcome.failures, "\n".join(outcome.failures)


@pytest.mark.promise("N1")
def test_no_bytes_hang_or_break_the_listener(fuzzed: RunningHub) -> None:
    outcome = Outcome()
    fuzz_bytes(fuzzed, 2_000, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("N1")
@pytest.mark.parametrize("door", DOORS)
def test_no_message_is_left_unanswered_or_breaks_the_hub(fuzzed: RunningHub, door: str) -> None:
    outcome = Outcome()
    fuzz_messages(fuzzed, door, 700, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("K2", "N1")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("experiment", [kills.kill_tasks, kills.kill_calls])
def test_a_killed_hub_loses_nothing_it_answered_and_repeats_nothing(experiment) -> None:
    outcome = Outcome()
    experiment(5, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("K2", "N1")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("experiment", [disk.disk_full, disk.disk_read_only])
def test_a_hub_on_a_full_or_read_only_disk_refuses_and_heals(experiment) -> None:
    outcome = Outcome()
    try:
        experiment(1, SEED, outcome)
    except NotHere:
        disk.limit_file_size(1, SEED, outcome)  # the nearest that every machine has
    judge(outcome)


@pytest.mark.parametrize(
    ("experiment", "size"),
    [(disk.fail_operations, 2), (disk.slow_disk, 3), (clock.jump, 1)],
    ids=["failing", "slow", "clock"],
)
@pytest.mark.timeout(120)
def test_a_disk_that_fails_or_is_slow_and_a_clock_that_jumps_lose_nothing(experiment, size) -> None:
    outcome = Outcome()
    try:
        experiment(size, SEED, outcome)
    except NotHere as reason:
        pytest.skip(str(reason))
    judge(outcome)


def test_a_hub_out_of_descriptors_serves_whom_it_has_and_heals() -> None:
    outcome = Outcome()
    descriptors.exhaust_descriptors(1, SEED, outcome)
    judge(outcome)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("experiment", "size"),
    [(databases.damage_stores, 5), (databases.delete_stores, 2), (databases.lock_stores, 2)],
    ids=["damaged", "deleted", "locked"],
)
def test_a_hub_without_one_of_its_databases_closes_what_it_protected(experiment, size) -> None:
    outcome = Outcome()
    experiment(size, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("B7")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("experiment", [peers.misbehaving_servers, peers.misbehaving_agents])
def test_servers_and_agents_that_misbehave_harm_nobody_else(experiment) -> None:
    outcome = Outcome()
    experiment(1, SEED, outcome)
    judge(outcome)


def test_a_caller_who_floods_takes_nothing_from_another() -> None:
    outcome = Outcome()
    clients.flood_with_calls(2, SEED, outcome)
    judge(outcome)


def test_edits_of_the_configuration_while_servers_start_are_all_followed() -> None:
    outcome = Outcome()
    reload.edit_configuration(15, SEED, outcome)
    judge(outcome)
