"""The same cells over stdio: `dragoman mcp` in front of a server of either era.

The tests are those of the other parts, with the clients below.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.live.matrix_client import REVISIONS, Client
from tests.live.matrix_grounds import Grounds, matrix_grounds
from tests.live.test_matrix_content import (
    test_a_client_is_told_when_a_list_has_changed_and_sees_the_new_one,
    test_a_client_is_told_when_a_resource_that_it_follows_has_changed,
    test_a_prompt_is_filled_in,
    test_a_resource_is_read_as_its_server_has_it,
    test_a_resource_that_is_not_there_is_not_found_in_the_words_of_the_revision,
    test_arguments_of_prompts_and_templates_are_completed,
)
from tests.live.test_matrix_questions import (
    test_a_call_on_a_connection_of_its_own_is_cancelled_at_the_server,
    test_a_call_that_is_cancelled_while_its_question_is_open_asks_no_more,
    test_a_client_that_cannot_be_asked_is_told_what_was_asked,
    test_a_client_with_a_connection_of_its_own_is_told_of_what_it_follows,
    test_a_prompt_and_a_resource_may_ask_too,
    test_a_question_reaches_the_client_and_its_answer_the_server,
    test_a_server_that_looks_first_and_does_not_ask_is_understood,
    test_a_server_that_looks_first_asks_who_can_answer,
    test_an_error_that_sends_to_a_page_reaches_each_client_in_the_way_of_its_revision,
    test_an_error_that_sends_to_a_page_says_where_to_who_cannot_be_asked,
    test_several_questions_at_once_and_one_after_the_other_are_all_answered,
    test_the_server_is_told_what_this_client_can_do_and_never_more,
    test_what_is_shared_declares_nothing,
    test_what_the_client_declines_the_server_sees_declined,
)
from tests.live.test_matrix_tools import (
    test_a_call_comes_back_whole,
    test_a_log_comes_from_the_level_on_that_the_client_asked_for,
    test_a_structured_result_that_is_no_object_is_one_for_older_clients,
    test_each_revision_has_its_own_methods_and_no_other,
    test_every_list_has_what_every_server_offers_as_the_revision_knows_it,
    test_progress_comes_on_the_stream_of_the_call,
    test_what_went_wrong_comes_back_as_the_server_said_it,
)

__all__ = [
    "test_a_call_comes_back_whole",
    "test_a_call_on_a_connection_of_its_own_is_cancelled_at_the_server",
    "test_a_call_that_is_cancelled_while_its_question_is_open_asks_no_more",
    "test_a_client_is_told_when_a_list_has_changed_and_sees_the_new_one",
    "test_a_client_is_told_when_a_resource_that_it_follows_has_changed",
    "test_a_client_that_cannot_be_asked_is_told_what_was_asked",
    "test_a_client_with_a_connection_of_its_own_is_told_of_what_it_follows",
    "test_a_log_comes_from_the_level_on_that_the_client_asked_for",
    "test_a_prompt_and_a_resource_may_ask_too",
    "test_a_prompt_is_filled_in",
    "test_a_question_reaches_the_client_and_its_answer_the_server",
    "test_a_resource_is_read_as_its_server_has_it",
    "test_a_resource_that_is_not_there_is_not_found_in_the_words_of_the_revision",
    "test_a_server_that_looks_first_and_does_not_ask_is_understood",
    "test_a_server_that_looks_first_asks_who_can_answer",
    "test_a_structured_result_that_is_no_object_is_one_for_older_clients",
    "test_an_error_that_sends_to_a_page_reaches_each_client_in_the_way_of_its_revision",
    "test_an_error_that_sends_to_a_page_says_where_to_who_cannot_be_asked",
    "test_arguments_of_prompts_and_templates_are_completed",
    "test_each_revision_has_its_own_methods_and_no_other",
    "test_every_list_has_what_every_server_offers_as_the_revision_knows_it",
    "test_progress_comes_on_the_stream_of_the_call",
    "test_several_questions_at_once_and_one_after_the_other_are_all_answered",
    "test_the_server_is_told_what_this_client_can_do_and_never_more",
    "test_what_is_shared_declares_nothing",
    "test_what_the_client_declines_the_server_sees_declined",
    "test_what_went_wrong_comes_back_as_the_server_said_it",
]

pytestmark = pytest.mark.promise("B12", "B13", "F6", "F7")


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with matrix_grounds() as made:
        yield made


@pytest.fixture(scope="module", params=REVISIONS)
def client(request: pytest.FixtureRequest, grounds: Grounds) -> Iterator[Client]:
    """Declares nothing: it shares the hub's connections."""
    with grounds.connect((request.param, "stdio"), {}) as made:
        yield made


@pytest.fixture(scope="module", params=REVISIONS)
def able(request: pytest.FixtureRequest, grounds: Grounds) -> Iterator[Client]:
    """Declares all that its revision has."""
    with grounds.connect((request.param, "stdio")) as made:
        yield made


@pytest.fixture(params=["legacy_stdio", "modern_http"])
def upstream(request: pytest.FixtureRequest) -> str:
    return str(request.param)
