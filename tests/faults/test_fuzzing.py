"""Short versions of the fuzzers of `make faults`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults.bytes_fuzz import fuzz_bytes
from faults.cpu_fuzz import fuzz_cpu
from faults.doors import fuzz_messages
from faults.fixtures import run_costly_hub, run_fuzzed_hub
from faults.harness import SEED, Outcome
from faults.message_seeds import DOORS
from faults.openapi import check_api
from faults.tools_fuzz import fuzz_commands, fuzz_files
from faults.upstream_fuzz import UPSTREAMS, fetch_cards, fuzz_lists, fuzzed_hub, send_calls
from tests.faults.judging import judge
from tests.live.conftest import RunningHub


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[RunningHub]:
    """One hub for all fuzzers; its log has no traceback at the end."""
    outcome = Outcome()
    with run_fuzzed_hub(outcome) as hub:
        yield hub
    assert not outcome.failures, "\n".join(outcome.failures)


@pytest.mark.promise("N1")
def test_fuzzed_bytes_neither_hang_nor_break_the_listener(fuzzed: RunningHub) -> None:
    outcome = Outcome()
    fuzz_bytes(fuzzed, 2_000, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("N1")
@pytest.mark.parametrize("door", DOORS)
def test_fuzzed_messages_are_all_answered(fuzzed: RunningHub, door: str) -> None:
    outcome = Outcome()
    fuzz_messages(fuzzed, door, 700, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("N1")
def test_no_request_holds_the_loop_far_longer_than_an_ordinary_one() -> None:
    outcome = Outcome()
    with run_costly_hub(outcome) as hub:
        fuzz_cpu(hub, 150, SEED, outcome, factor=25)  # five in a whole run, on a quiet machine
    judge(outcome)


@pytest.mark.promise("B7")
def test_fuzzing_servers_and_agents_get_a_typed_error_and_are_used_again() -> None:
    outcome = Outcome()
    with fuzzed_hub(SEED, outcome) as (hub, url):
        for upstream in UPSTREAMS:
            send_calls(hub, upstream, range(300), SEED, outcome)
        fetch_cards(hub, url, 80, outcome)
    judge(outcome)


@pytest.mark.promise("B5")
def test_server_with_fuzzed_lists_is_used_once_it_answers_well() -> None:
    outcome = Outcome()
    fuzz_lists(60, SEED, outcome)
    judge(outcome)


@pytest.mark.promise("N1")
@pytest.mark.timeout(300)
def test_api_answers_as_its_openapi_document_says() -> None:
    outcome = Outcome()
    check_api(1, SEED, outcome, "--phases", "coverage")
    judge(outcome)


@pytest.mark.promise("T2")
@pytest.mark.parametrize("fuzz", [fuzz_files, fuzz_commands])
def test_fuzzed_built_in_tools_stay_inside_their_grants(fuzz) -> None:
    outcome = Outcome()
    fuzz(500, SEED, outcome)
    judge(outcome)
    assert all(outcome.figures.values()), outcome.figures
