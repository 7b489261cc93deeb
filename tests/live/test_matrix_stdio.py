"""The matrix over stdio: `dragoman mcp` in front of a server of either era. Reuses the tests of the
other parts with the clients below.

The tests are those of the other parts, with the clients below.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.live.matrix_client import REVISIONS, Client
from tests.live.matrix_fixture import HubRig, run_matrix_hub
from tests.live.test_matrix_content import (
    test_list_change_is_announced_and_the_new_list_returned,
    test_missing_resource_is_not_found_in_the_form_of_the_revision,
    test_prompt_and_template_arguments_are_completed,
    test_prompt_is_rendered,
    test_resource_is_read_as_the_server_returns_it,
    test_subscribed_resource_update_is_delivered,
)
from tests.live.test_matrix_questions import (
    test_call_on_a_client_session_is_cancelled_at_the_server,
    test_cancelled_call_withdraws_its_question,
    test_client_session_delivers_subscribed_updates,
    test_client_without_elicitation_gets_the_question_as_an_error,
    test_concurrent_and_sequential_questions_are_answered,
    test_declined_question_reaches_the_server_as_declined,
    test_prompts_and_resources_may_elicit,
    test_question_reaches_the_client_and_its_answer_the_server,
    test_server_checking_capabilities_asks_capable_clients,
    test_server_not_asking_is_handled,
    test_server_sees_only_capabilities_of_the_client,
    test_shared_session_declares_no_capabilities,
    test_url_elicitation_error_has_the_form_of_the_revision,
    test_url_elicitation_error_names_the_url_for_incapable_clients,
)
from tests.live.test_matrix_tools import (
    test_call_result_is_complete,
    test_each_revision_has_only_its_methods,
    test_every_list_has_all_entries_in_the_form_of_the_revision,
    test_logs_arrive_from_the_requested_level,
    test_non_object_structured_result_is_wrapped_for_older_clients,
    test_progress_arrives_on_the_stream_of_the_call,
    test_server_error_is_passed_unchanged,
)

__all__ = [
    "test_call_on_a_client_session_is_cancelled_at_the_server",
    "test_call_result_is_complete",
    "test_cancelled_call_withdraws_its_question",
    "test_client_session_delivers_subscribed_updates",
    "test_client_without_elicitation_gets_the_question_as_an_error",
    "test_concurrent_and_sequential_questions_are_answered",
    "test_declined_question_reaches_the_server_as_declined",
    "test_each_revision_has_only_its_methods",
    "test_every_list_has_all_entries_in_the_form_of_the_revision",
    "test_list_change_is_announced_and_the_new_list_returned",
    "test_logs_arrive_from_the_requested_level",
    "test_missing_resource_is_not_found_in_the_form_of_the_revision",
    "test_non_object_structured_result_is_wrapped_for_older_clients",
    "test_progress_arrives_on_the_stream_of_the_call",
    "test_prompt_and_template_arguments_are_completed",
    "test_prompt_is_rendered",
    "test_prompts_and_resources_may_elicit",
    "test_question_reaches_the_client_and_its_answer_the_server",
    "test_resource_is_read_as_the_server_returns_it",
    "test_server_checking_capabilities_asks_capable_clients",
    "test_server_error_is_passed_unchanged",
    "test_server_not_asking_is_handled",
    "test_server_sees_only_capabilities_of_the_client",
    "test_shared_session_declares_no_capabilities",
    "test_subscribed_resource_update_is_delivered",
    "test_url_elicitation_error_has_the_form_of_the_revision",
    "test_url_elicitation_error_names_the_url_for_incapable_clients",
]

pytestmark = pytest.mark.promise("B12", "B13", "F6", "F7")


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_matrix_hub() as made:
        yield made


@pytest.fixture(scope="module", params=REVISIONS)
def client(request: pytest.FixtureRequest, rig: HubRig) -> Iterator[Client]:
    """Declares nothing: it shares the hub's connections."""
    with rig.connect((request.param, "stdio"), {}) as made:
        yield made


@pytest.fixture(scope="module", params=REVISIONS)
def able(request: pytest.FixtureRequest, rig: HubRig) -> Iterator[Client]:
    """Declares all that its revision has."""
    with rig.connect((request.param, "stdio")) as made:
        yield made


@pytest.fixture(params=["legacy_stdio", "modern_http"])
def upstream(request: pytest.FixtureRequest) -> str:
    return str(request.param)
