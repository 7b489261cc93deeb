"""Short versions of the experiments of `make faults`: the same code with small sizes."""

from __future__ import annotations

import pytest
from faults.harness import SEED, NotHere, Outcome
from tests.faults.judging import judge

from faults import (
    clients,
    clock,
    databases,
    descriptors,
    disk,
    injections,
    kills,
    model_agents,
    peers,
    policies,
    reload,
    run_kills,
    task_store,
)


@pytest.mark.promise("K2", "N1")
@pytest.mark.parametrize("experiment", [kills.kill_tasks, kills.kill_calls])
def test_killed_hub_loses_and_repeats_nothing_it_acknowledged(experiment) -> None:
    outcome = Outcome()
    experiment(5, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("K2", "R14")
def test_killed_hub_continues_its_runs_and_repeats_nothing_that_may_not_be() -> None:
    outcome = Outcome()
    run_kills.kill_runs(5, SEED, outcome)
    judge(outcome)
    assert outcome.figures["completed"] == outcome.figures["runs"]


@pytest.mark.promise("K2", "N1")
@pytest.mark.parametrize("experiment", [disk.disk_full, disk.disk_read_only])
def test_hub_on_a_full_or_read_only_disk_refuses_and_recovers(experiment) -> None:
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
def test_failing_disk_or_clock_jump_loses_nothing(experiment, size) -> None:
    outcome = Outcome()
    try:
        experiment(size, SEED, outcome)
    except NotHere as reason:
        pytest.skip(str(reason))
    judge(outcome)


def test_hub_without_free_descriptors_keeps_serving_and_recovers() -> None:
    outcome = Outcome()
    descriptors.exhaust_descriptors(1, SEED, outcome)
    judge(outcome)


@pytest.mark.parametrize(
    ("experiment", "size"),
    [(databases.damage_stores, 5), (databases.delete_stores, 2), (databases.lock_stores, 2)],
    ids=["damaged", "deleted", "locked"],
)
def test_hub_without_a_database_refuses_what_it_protected(experiment, size) -> None:
    outcome = Outcome()
    experiment(size, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("B7")
@pytest.mark.parametrize("experiment", [peers.misbehaving_servers, peers.misbehaving_agents])
def test_misbehaving_servers_and_agents_do_not_affect_others(experiment) -> None:
    outcome = Outcome()
    experiment(1, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("T1", "K2")
@pytest.mark.parametrize(
    ("experiment", "size"),
    [(model_agents.kill_agents, 2), (model_agents.fail_models, 1)],
    ids=["killed", "faults"],
)
def test_agents_survive_kills_and_faults_of_their_model(experiment, size) -> None:
    outcome = Outcome()
    experiment(size, SEED, outcome)
    judge(outcome)


def test_flooding_client_does_not_affect_others() -> None:
    outcome = Outcome()
    clients.flood_with_calls(2, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("K2")
def test_full_task_store_evicts_finished_tasks_in_order_and_keeps_waiting_ones() -> None:
    outcome = Outcome()
    task_store.fill_task_store(50, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("R11")
def test_changing_policies_permit_nothing_more_and_refuse_nothing_permitted() -> None:
    outcome = Outcome()
    policies.change_policies(200, SEED, outcome)
    judge(outcome)


def test_every_configuration_edit_is_applied_while_servers_start() -> None:
    outcome = Outcome()
    reload.edit_configuration(15, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("P5", "R9")
def test_injected_instructions_and_changed_definitions_are_refused() -> None:
    outcome = Outcome()
    injections.inject(8, SEED, outcome)
    judge(outcome)
