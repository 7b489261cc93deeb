"""Dialects 0.2 and 0.3 over JSON-RPC, checked against the official SDK's models."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.compat.v0_3 import types

from dragoman.a2a.protocol.dialects import v03
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

TASK = {
    "id": "t",
    "contextId": "c",
    "status": {
        "state": "TASK_STATE_AUTH_REQUIRED",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "message": {"messageId": "n", "role": "ROLE_AGENT", "parts": [{"text": "who?"}]},
    },
    "artifacts": [
        {
            "artifactId": "a",
            "name": "out",
            "parts": [
                {"raw": "dGNr", "filename": "o.txt", "mediaType": "text/plain"},
                {"url": "https://a.example/x", "mediaType": "text/html"},
                {"data": {"k": 1}},
                {"data": [1, 2], "metadata": {"m": 1}},
            ],
        }
    ],
    "history": [
        {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}], "contextId": "c"}
    ],
    "metadata": {"x": 1},
}


def message(**more: Any) -> dict[str, Any]:
    parts = [{"kind": "text", "text": "hi"}]
    return {"kind": "message", "messageId": "m", "role": "user", "parts": parts, **more}


@pytest.mark.promise("J3")
def test_message_is_parsed_with_all_parts() -> None:
    parts = [
        {"kind": "text", "text": "hi", "metadata": {"a": 1}},
        {"kind": "file", "file": {"bytes": "dGNr", "name": "a", "mimeType": "text/plain"}},
        {"kind": "file", "file": {"uri": "https://a.example/b"}},
        {"kind": "data", "data": {"a": [1]}},
        {"kind": "data", "data": {"value": 7}, "metadata": {"data_part_compat": True}},
    ]
    found = v03.parse_params(
        SEND,
        {
            "message": message(parts=parts, taskId="t", contextId=None, extra=1),
            "configuration": {
                "blocking": False,
                "historyLength": 2,
                "acceptedOutputModes": ["text/plain"],
                "pushNotificationConfig": {
                    "id": "p",
                    "url": "https://a.example/hook",
                    "authentication": {"schemes": ["Basic", "Bearer"], "credentials": "x"},
                },
            },
            "metadata": {"z": 1},
        },
    )
    assert found == {
        "message": {
            "messageId": "m",
            "role": "ROLE_USER",
            "taskId": "t",
            "parts": [
                {"text": "hi", "metadata": {"a": 1}},
                {"raw": "dGNr", "filename": "a", "mediaType": "text/plain"},
                {"url": "https://a.example/b"},
                {"data": {"a": [1]}},
                {"data": 7},
            ],
        },
        "configuration": {
            "acceptedOutputModes": ["text/plain"],
            "historyLength": 2,
            "returnImmediately": True,
            "taskPushNotificationConfig": {
                "id": "p",
                "url": "https://a.example/hook",
                "authentication": {"scheme": "Bearer", "credentials": "x"},
            },
        },
        "metadata": {"z": 1},
    }


def test_blocking_is_the_default() -> None:
    for configuration in ({}, {"blocking": True}, {"blocking": None}):
        found = v03.parse_params(SEND, {"message": message(), "configuration": configuration})
        assert "returnImmediately" not in found["configuration"]


def test_message_skill_moves_to_metadata() -> None:
    found = v03.parse_params(SEND, {"message": message(skill={"skillId": "s"}, metadata={"a": 1})})
    assert found["message"]["metadata"] == {"a": 1, "skillId": "s"}


@pytest.mark.promise("J3")
@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "message"),
        ({"message": {"kind": "message"}}, "message.messageId"),
        ({"message": message(messageId=None)}, "message.messageId"),
        ({"message": message(role=None)}, "message.role"),
        ({"message": message(role="agent")}, "message.role"),
        ({"message": message(role=["user"])}, "message.role"),
        ({"message": message(parts=None)}, "message.parts"),
        ({"message": message(parts=[])}, "message.parts"),
        ({"message": message(parts=[{"kind": "image", "x": 1}])}, "message.parts[0]"),
        ({"message": message(parts=[{"kind": "text"}])}, "message.parts[0]"),
        ({"message": message(parts=[{"kind": "file"}])}, "message.parts[0]"),
        ({"message": message(parts=[{"kind": "file", "file": {}}])}, "message.parts[0]"),
        ({"message": message(parts=["x"])}, "message.parts[0]"),
        ({"message": message(parts=[{}] * 1001)}, "message.parts"),
        ({"message": message(), "configuration": {"blocking": 1}}, "configuration.blocking"),
        (
            {"message": message(), "configuration": {"historyLength": -1}},
            "configuration.historyLength",
        ),
        (
            {"message": message(), "configuration": {"pushNotificationConfig": "x"}},
            "configuration.taskPushNotificationConfig",
        ),
    ],
)
def test_invalid_message_is_refused_as_invalid_params(params: dict[str, Any], field: str) -> None:
    with pytest.raises(A2aError) as caught:
        v03.parse_params(SEND, params)
    assert v03.render_error(caught.value)["code"] == -32602
    assert caught.value.violations[0][0] == field


@pytest.mark.parametrize("op", [SEND, GET, CANCEL, SUBSCRIBE, PUSH_SET, PUSH_GET, PUSH_DELETE])
@pytest.mark.parametrize("params", [None, [], "x", {}, {"id": 7}, {"id": ""}])
def test_invalid_parameters_are_refused(op: str, params: Any) -> None:
    with pytest.raises(A2aError) as caught:
        v03.parse_params(op, params)
    assert caught.value.reason == "INVALID_PARAMS"


@pytest.mark.promise("J3")
def test_tasks_match_the_sdk_model() -> None:
    out = v03.render_result(GET, TASK)
    task = types.Task.model_validate(out)
    assert out["kind"] == "task"
    assert task.status.state is types.TaskState.auth_required
    assert task.status.message is not None
    assert task.status.message.role is types.Role.agent
    assert task.history is not None
    assert task.history[0].context_id == "c"
    assert [part["kind"] for part in out["artifacts"][0]["parts"]] == [
        "file",
        "file",
        "data",
        "data",
    ]
    assert out["artifacts"][0]["parts"][0]["file"] == {
        "bytes": "dGNr",
        "name": "o.txt",
        "mimeType": "text/plain",
    }
    assert out["artifacts"][0]["parts"][3] == {
        "kind": "data",
        "data": {"value": [1, 2]},
        "metadata": {"m": 1, "data_part_compat": True},
    }


@pytest.mark.promise("J3")
def test_response_is_a_task_or_message_with_its_kind() -> None:
    assert v03.render_result(SEND, {"task": TASK}) == v03.render_result(CANCEL, TASK)
    out = v03.render_result(SEND, {"message": TASK["history"][0]})  # type: ignore[index]
    assert types.Message.model_validate(out).role is types.Role.user
    assert out["kind"] == "message"
    assert [each["id"] for each in v03.render_result(LIST, {"tasks": [TASK]})] == ["t"]


@pytest.mark.promise("J3")
def test_last_stream_status_is_final() -> None:
    event = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": TASK["status"]}}
    for final in (True, False):
        out = v03.render_event(event, final=final)
        assert types.TaskStatusUpdateEvent.model_validate(out).final is final
        assert out["kind"] == "status-update"
    artifact = TASK["artifacts"][0]  # type: ignore[index]
    update = {"taskId": "t", "contextId": "c", "artifact": artifact, "lastChunk": True}
    out = v03.render_event({"artifactUpdate": update}, final=False)
    assert types.TaskArtifactUpdateEvent.model_validate(out).last_chunk is True
    assert "final" not in out
    assert v03.render_event({"task": TASK}, final=False)["kind"] == "task"
    assert v03.render_event({"message": TASK["history"][0]}, final=True)["kind"] == "message"  # type: ignore[index]


@pytest.mark.promise("J3")
def test_webhook_receives_the_task() -> None:
    assert v03.render_push({"statusUpdate": {}}, TASK) == v03.render_result(GET, TASK)


@pytest.mark.promise("J3")
def test_push_configurations_are_nested_objects() -> None:
    flat = {
        "taskId": "t",
        "id": "c",
        "url": "https://a.example/",
        "token": "x",
        "authentication": {"scheme": "Bearer", "credentials": "y"},
    }
    nested = {
        "taskId": "t",
        "pushNotificationConfig": {
            "id": "c",
            "url": "https://a.example/",
            "token": "x",
            "authentication": {"schemes": ["Bearer"], "credentials": "y"},
        },
    }
    assert v03.render_result(PUSH_SET, flat) == nested
    assert v03.render_result(PUSH_GET, flat) == nested
    assert v03.render_result(PUSH_LIST, {"configs": [flat], "nextPageToken": ""}) == [nested]
    assert v03.parse_params(PUSH_SET, nested) == flat
    types.TaskPushNotificationConfig.model_validate(nested)
    assert v03.render_result(PUSH_DELETE, {}) is None


def test_webhook_request_id_is_the_task_id() -> None:
    assert v03.parse_params(PUSH_GET, {"id": "t"}) == {"taskId": "t"}
    key = {"id": "t", "pushNotificationConfigId": "c"}
    assert v03.parse_params(PUSH_GET, key) == {"taskId": "t", "id": "c"}
    assert v03.parse_params(PUSH_DELETE, key) == {"taskId": "t", "id": "c"}
    assert v03.parse_params(PUSH_LIST, {"id": "t"}) == {"taskId": "t"}
    with pytest.raises(A2aError):
        v03.parse_params(PUSH_DELETE, {"id": "t"})


def test_a_webhook_without_a_scheme_has_no_authentication() -> None:
    authentication: dict[str, Any] | None
    for authentication in ({}, {"schemes": []}, None):
        config: dict[str, Any] = {"url": "https://a.example/", "authentication": authentication}
        found = v03.parse_params(PUSH_SET, {"taskId": "t", "pushNotificationConfig": config})
        assert "authentication" not in found


@pytest.mark.parametrize(
    ("op", "request_"),
    [
        (GET, {"id": "t", "historyLength": 2}),
        (CANCEL, {"id": "t", "metadata": {"a": 1}}),
        (SUBSCRIBE, {"id": "t"}),
        (PUSH_GET, {"taskId": "t", "id": "c"}),
        (PUSH_LIST, {"taskId": "t"}),
        (PUSH_DELETE, {"taskId": "t", "id": "c"}),
        (PUSH_SET, {"taskId": "t", "url": "https://a.example/", "token": "x"}),
        (CARD, {}),
        (
            STREAM,
            {
                "message": {
                    "messageId": "m",
                    "contextId": "c",
                    "role": "ROLE_USER",
                    "parts": [{"data": None}, {"url": "https://a.example/", "filename": "f"}],
                },
                "configuration": {
                    "returnImmediately": True,
                    "acceptedOutputModes": ["text/plain"],
                    "taskPushNotificationConfig": {"url": "https://a.example/hook"},
                },
                "metadata": {"k": "v"},
            },
        ),
    ],
)
def test_sent_requests_are_parsed(op: str, request_: dict[str, Any]) -> None:
    method, params = v03.build_request(op, request_)
    assert v03.METHODS[method] == op
    assert v03.parse_params(op, params) == request_


def test_list_tasks_is_unknown_in_0_3() -> None:
    with pytest.raises(A2aError) as caught:
        v03.build_request(LIST, {})
    assert caught.value.reason == "UNSUPPORTED_OPERATION"
