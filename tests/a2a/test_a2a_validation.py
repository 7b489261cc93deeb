"""Request validation: valid requests pass, invalid ones are refused with their field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dragoman.a2a.protocol import validation
from dragoman.a2a.protocol.errors import A2aError

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}


def refused(read: Callable[[Any], Any], params: Any) -> tuple[str, str]:
    with pytest.raises(A2aError) as caught:
        read(params)
    assert caught.value.reason == "INVALID_PARAMS"
    return caught.value.violations[0]


def test_valid_request_is_passed_unchanged() -> None:
    request: dict[str, Any] = {"message": dict(MESSAGE)}
    assert validation.validate_send(request) is request
    request = {"message": {**MESSAGE, "contextId": "c", "metadata": {"a": 1}}}
    assert validation.validate_send(request)["message"] is request["message"]


def test_unknown_and_null_members_are_dropped() -> None:
    found = validation.validate_send(
        {
            "message": {
                **MESSAGE,
                "kind": "message",
                "taskId": None,
                "contextId": "",
                "metadata": None,
                "parts": [{"text": "hello", "type": "text", "metadata": None}],
            },
            "more": 1,
            "metadata": None,
        }
    )
    assert found == {"message": MESSAGE}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"messageId": None}, "message.messageId"),
        ({"messageId": ""}, "message.messageId"),
        ({"messageId": 7}, "message.messageId"),
        ({"messageId": "m" * 257}, "message.messageId"),
        ({"messageId": "a\nb"}, "message.messageId"),
        ({"role": None}, "message.role"),
        ({"role": "ROLE_AGENT"}, "message.role"),
        ({"role": "ROLE_UNSPECIFIED"}, "message.role"),
        ({"role": "user"}, "message.role"),
        ({"role": ["ROLE_USER"]}, "message.role"),
        ({"parts": None}, "message.parts"),
        ({"parts": []}, "message.parts"),
        ({"parts": {}}, "message.parts"),
        ({"parts": [{"text": "x"}] * 1001}, "message.parts"),
        ({"parts": ["x"]}, "message.parts[0]"),
        ({"parts": [{}]}, "message.parts[0]"),
        ({"parts": [{"text": None}]}, "message.parts[0]"),
        ({"parts": [{"metadata": {}}]}, "message.parts[0]"),
        ({"parts": [{"text": "x", "data": 1}]}, "message.parts[0]"),
        ({"parts": [{"text": 1}]}, "message.parts[0].text"),
        ({"parts": [{"text": "x"}, {"raw": "not base64!"}]}, "message.parts[1].raw"),
        ({"parts": [{"raw": "abcde"}]}, "message.parts[0].raw"),
        ({"parts": [{"raw": 1}]}, "message.parts[0].raw"),
        ({"parts": [{"url": ""}]}, "message.parts[0].url"),
        ({"parts": [{"url": "x" * 65537}]}, "message.parts[0].url"),
        ({"parts": [{"text": "x", "mediaType": 1}]}, "message.parts[0].mediaType"),
        ({"parts": [{"text": "x", "filename": []}]}, "message.parts[0].filename"),
        ({"parts": [{"text": "x", "metadata": "y"}]}, "message.parts[0].metadata"),
        ({"contextId": "c" * 257}, "message.contextId"),
        ({"contextId": 7}, "message.contextId"),
        ({"taskId": {}}, "message.taskId"),
        ({"metadata": []}, "message.metadata"),
        ({"extensions": "x"}, "message.extensions"),
        ({"extensions": [1]}, "message.extensions"),
        ({"referenceTaskIds": ["x"] * 101}, "message.referenceTaskIds"),
    ],
)
def test_invalid_message_is_refused_with_its_field(change: dict[str, Any], field: str) -> None:
    message = {**MESSAGE, **change}
    assert refused(validation.validate_send, {"message": message})[0] == field


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "message"),
        ({"message": "hello"}, "message"),
        ({"message": MESSAGE, "configuration": []}, "configuration"),
        ({"message": MESSAGE, "metadata": 1}, "metadata"),
        ({"message": MESSAGE, "tenant": 1}, "tenant"),
        (
            {"message": MESSAGE, "configuration": {"historyLength": -1}},
            "configuration.historyLength",
        ),
        (
            {"message": MESSAGE, "configuration": {"historyLength": True}},
            "configuration.historyLength",
        ),
        (
            {"message": MESSAGE, "configuration": {"returnImmediately": "yes"}},
            "configuration.returnImmediately",
        ),
        (
            {"message": MESSAGE, "configuration": {"taskPushNotificationConfig": {"id": "x"}}},
            "configuration.taskPushNotificationConfig.url",
        ),
    ],
)
def test_invalid_request_is_refused_with_its_field(params: dict[str, Any], field: str) -> None:
    assert refused(validation.validate_send, params)[0] == field


@pytest.mark.parametrize("params", [None, [], "x", 7])
def test_parameters_must_be_an_object(params: Any) -> None:
    with pytest.raises(A2aError) as caught:
        validation.validate_send(params)
    assert caught.value.reason == "INVALID_PARAMS"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("dGVzdA==", "dGVzdA=="),
        ("dGVzdA", "dGVzdA=="),
        ("_-8", "/+8="),
        ("_-8=", "/+8="),
        ("", ""),
    ],
)
def test_every_proto_json_base64_is_accepted_and_normalized(given: str, kept: str) -> None:
    parts = [{"raw": given, "mediaType": "text/plain"}]
    found = validation.validate_send({"message": {**MESSAGE, "parts": parts}})
    assert found["message"]["parts"] == [{"raw": kept, "mediaType": "text/plain"}]


def test_null_is_valid_data() -> None:
    request = {"message": {**MESSAGE, "parts": [{"data": None}]}}
    assert validation.validate_send(request)["message"]["parts"] == [{"data": None}]


def test_configuration_keeps_only_set_members() -> None:
    found = validation.validate_send(
        {
            "message": MESSAGE,
            "configuration": {
                "acceptedOutputModes": ["text/plain"],
                "historyLength": 2.0,
                "returnImmediately": True,
                "taskPushNotificationConfig": {"url": "https://a.example/", "authentication": {}},
                "blocking": True,
            },
        }
    )
    assert found["configuration"] == {
        "acceptedOutputModes": ["text/plain"],
        "historyLength": 2,
        "returnImmediately": True,
        "taskPushNotificationConfig": {"url": "https://a.example/"},
    }


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"status": "working"}, "status"),
        ({"status": "TASK_STATE_NONE"}, "status"),
        ({"status": 2}, "status"),
        ({"pageSize": 0}, "pageSize"),
        ({"pageSize": 101}, "pageSize"),
        ({"pageSize": "x"}, "pageSize"),
        ({"historyLength": -1}, "historyLength"),
        ({"historyLength": 2**31}, "historyLength"),
        ({"statusTimestampAfter": "yesterday"}, "statusTimestampAfter"),
        ({"statusTimestampAfter": "2026-01-01T00:00:00"}, "statusTimestampAfter"),
        ({"statusTimestampAfter": "2026-13-01T00:00:00Z"}, "statusTimestampAfter"),
        ({"includeArtifacts": "true"}, "includeArtifacts"),
        ({"pageToken": "x" * 2049}, "pageToken"),
        ({"contextId": "\x00"}, "contextId"),
    ],
)
def test_invalid_list_request_is_refused(params: dict[str, Any], field: str) -> None:
    assert refused(validation.validate_list, params)[0] == field


def test_list_request_without_options_has_none() -> None:
    assert (
        validation.validate_list({"status": "TASK_STATE_UNSPECIFIED", "pageToken": "", "x": 1})
        == {}
    )
    wishes = {"status": "TASK_STATE_WORKING", "pageSize": 100, "includeArtifacts": False}
    assert validation.validate_list(wishes) == wishes


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"taskId": ""}, "taskId"),
        ({"url": "ftp://a.example"}, "url"),
        ({"url": "https://a.example/\r\nx"}, "url"),
        ({"url": "https://" + "a" * 2048}, "url"),
        ({"url": None}, "url"),
        ({"token": "a\r\nX-Other: 1"}, "token"),
        ({"token": "t" * 4097}, "token"),
        ({"authentication": {"credentials": "x"}}, "authentication.scheme"),
        ({"authentication": {"scheme": "Bearer x"}}, "authentication.scheme"),
        (
            {"authentication": {"scheme": "Bearer", "credentials": "a\nb"}},
            "authentication.credentials",
        ),
        ({"authentication": "Bearer"}, "authentication"),
        ({"id": "x\ty"}, "id"),
    ],
)
def test_invalid_webhook_config_is_refused(change: dict[str, Any], field: str) -> None:
    config = {"taskId": "t", "url": "https://a.example/hook", **change}
    assert refused(validation.validate_push_set, config)[0] == field


@pytest.mark.parametrize(
    ("read", "params"),
    [
        (validation.validate_get, {}),
        (validation.validate_task_key, {"id": 7}),
        (validation.validate_cancel, {"id": "t", "metadata": []}),
        (validation.validate_push_key, {"taskId": "t"}),
        (validation.validate_push_key, {"id": "t"}),
        (validation.validate_push_list, {"id": "t"}),
        (validation.validate_push_list, {"taskId": "t", "pageSize": 101}),
        (validation.validate_card_request, {"tenant": []}),
    ],
)
def test_other_requests_need_their_ids(read: Callable[[Any], Any], params: Any) -> None:
    refused(read, params)


def test_timestamp_is_parsed_with_its_zone() -> None:
    assert validation.seconds_from_timestamp("1970-01-01T00:00:01Z") == 1.0
    assert validation.seconds_from_timestamp("1970-01-01T01:00:01.5+01:00") == 1.5
    assert validation.seconds_from_timestamp("1970-01-01T00:00:00.123456789Z") == 0.123456
    assert validation.seconds_from_timestamp("1970-01-01T00:00:00") is None
    assert validation.seconds_from_timestamp("1970-02-30T00:00:00Z") is None
