"""Dialect 1.0: requests and responses in JSON-RPC and over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from a2a import types
from dragoman.a2a.protocol.dialects import v10
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    CARD,
    GET,
    LIST,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    PUSH_SET,
    SEND,
    STREAM,
    SUBSCRIBE,
)
from dragoman.a2a.protocol.errors import A2aError

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}


@pytest.mark.promise("J3")
def test_request_and_result_of_1_0_are_not_copied() -> None:
    request = {"message": MESSAGE}
    assert v10.parse_params(SEND, request) is request
    value: dict[str, Any]
    for value in ({"task": {}}, {"message": {}}):
        assert v10.render_result(SEND, value) is value
        assert v10.render_event(value, final=True) is value
        assert v10.render_push(value, {"id": "t"}) is value
        assert v10.render_rest_event(value, final=False) is value


def test_proto_field_names_are_accepted() -> None:
    """proto-JSON has a parser accept both."""
    found = v10.parse_params(
        SEND,
        {
            "message": {
                "message_id": "m",
                "context_id": "c",
                "role": "ROLE_USER",
                "parts": [{"data": {"a_b": 1}, "media_type": "application/json"}],
                "metadata": {"my_key": 1},
            },
            "configuration": {"history_length": 3},
        },
    )
    assert found == {
        "message": {
            "messageId": "m",
            "contextId": "c",
            "role": "ROLE_USER",
            "parts": [{"data": {"a_b": 1}, "mediaType": "application/json"}],
            "metadata": {"my_key": 1},
        },
        "configuration": {"historyLength": 3},
    }
    assert v10.parse_params(GET, {"id": "t", "history_length": 3}) == {
        "id": "t",
        "historyLength": 3,
    }


REQUESTS: list[tuple[str, dict[str, Any], Any]] = [
    (SEND, {"message": MESSAGE, "tenant": "echo", "metadata": {"a": 1}}, types.SendMessageRequest),
    (STREAM, {"message": MESSAGE}, types.SendMessageRequest),
    (GET, {"id": "a/b", "historyLength": 0}, types.GetTaskRequest),
    (
        LIST,
        {
            "contextId": "c",
            "status": "TASK_STATE_WORKING",
            "pageSize": 7,
            "pageToken": "p",
            "historyLength": 1,
            "statusTimestampAfter": "2026-01-01T00:00:00Z",
            "includeArtifacts": True,
        },
        types.ListTasksRequest,
    ),
    (CANCEL, {"id": "t", "metadata": {"why": "x"}}, types.CancelTaskRequest),
    (SUBSCRIBE, {"id": "t", "tenant": "echo"}, types.SubscribeToTaskRequest),
    (
        PUSH_SET,
        {
            "taskId": "t",
            "id": "c",
            "url": "https://a.example/",
            "token": "x",
            "authentication": {"scheme": "Bearer", "credentials": "y"},
        },
        types.TaskPushNotificationConfig,
    ),
    (PUSH_GET, {"taskId": "t", "id": "c"}, types.GetTaskPushNotificationConfigRequest),
    (
        PUSH_LIST,
        {"taskId": "t", "pageSize": 3, "pageToken": "p"},
        types.ListTaskPushNotificationConfigsRequest,
    ),
    (PUSH_DELETE, {"taskId": "t", "id": "c"}, types.DeleteTaskPushNotificationConfigRequest),
    (CARD, {}, types.GetExtendedAgentCardRequest),
]


@pytest.mark.promise("J3")
@pytest.mark.parametrize(("op", "request_", "proto"), REQUESTS)
def test_every_sent_request_matches_the_proto_and_parses(
    op: str, request_: dict[str, Any], proto: Any
) -> None:
    ParseDict(request_, proto())
    method, params = v10.build_request(op, request_)
    assert v10.METHODS[method] == op
    assert v10.parse_params(op, params) == request_


@pytest.mark.promise("J3")
@pytest.mark.parametrize(("op", "request_", "proto"), REQUESTS)
def test_every_request_round_trips_over_http(op: str, request_: dict[str, Any], proto: Any) -> None:
    http, path, query, body = v10.build_rest_request(op, request_)
    if tenant := request_.get("tenant"):
        assert path.startswith(f"/{tenant}/")
        path = path.removeprefix(f"/{tenant}")
    found = v10.ROUTES.find(http, path)
    assert found is not None
    assert found[0] == op
    wanted = {name: value for name, value in request_.items() if name != "tenant"}
    assert v10.parse_rest_params(op, found[1], query, body) == wanted


@pytest.mark.parametrize(
    ("op", "path", "query", "body"),
    [
        (GET, {"id": "t"}, {"historyLength": "-1"}, None),
        (GET, {"id": "t"}, {"historyLength": "many"}, None),
        (GET, {"id": "t"}, {"historyLength": "9" * 5000}, None),
        (LIST, {}, {"status": "working"}, None),
        (LIST, {}, {"pageSize": "0"}, None),
        (LIST, {}, {"pageSize": "101"}, None),
        (LIST, {}, {"includeArtifacts": "perhaps"}, None),
        (CANCEL, {"id": "t"}, {}, {"id": "another"}),
        (CANCEL, {"id": "t"}, {}, []),
        (PUSH_SET, {"taskId": "t"}, {}, {"taskId": "u", "url": "https://a.example"}),
        (PUSH_SET, {"taskId": "t"}, {}, None),
        (SEND, {}, {}, None),
    ],
)
def test_invalid_http_request_is_refused(
    op: str, path: dict[str, str], query: dict[str, str], body: Any
) -> None:
    with pytest.raises(A2aError) as caught:
        v10.parse_rest_params(op, path, query, body)
    assert caught.value.reason == "INVALID_PARAMS"


def test_query_numbers_and_booleans_are_parsed_from_text() -> None:
    found = v10.parse_rest_params(
        LIST, {}, {"pageSize": "10", "include_artifacts": "TRUE", "A2A-Version": "1.0"}, None
    )
    assert found == {"pageSize": 10, "includeArtifacts": True}
