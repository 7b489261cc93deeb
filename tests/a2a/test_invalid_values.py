"""Every member of every request in every dialect with values of a wrong type: parsed or refused as
a client error, never a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.a2a.protocol.dialects import v01, v03, v10
from dragoman.a2a.protocol.errors import A2aError

ODD: tuple[Any, ...] = (
    *([], {}, [[]], [{}], {"a": []}, None, True, "", "x", -1, 0, 0.5, 1e308, -1e308),
    *(2**31, 2**63, 2**64 - 1, "9999999999999999999999", "\x00", "0001-01-01T00:00:00+23:59"),
)

PUSH_10 = {
    "id": "c",
    "url": "https://example.com/hook",
    "token": "t",
    "authentication": {"scheme": "Bearer", "credentials": "x"},
}
PUSH_03 = {**PUSH_10, "authentication": {"schemes": ["Bearer"], "credentials": "x"}}
FILE = {"name": "a", "mimeType": "text/plain", "bytes": "aGk="}
PARAMS: dict[Any, dict[str, dict[str, Any]]] = {
    v10: {
        "SendMessage": {
            "tenant": "t",
            "metadata": {"a": 1},
            "message": {
                "messageId": "m",
                "contextId": "c",
                "taskId": "t",
                "role": "ROLE_USER",
                "parts": [{"text": "hi", "metadata": {}}, {"raw": "aGk=", "filename": "f"}],
                "metadata": {},
                "extensions": ["u"],
                "referenceTaskIds": ["t"],
            },
            "configuration": {
                "acceptedOutputModes": ["text/plain"],
                "historyLength": 1,
                "returnImmediately": True,
                "taskPushNotificationConfig": PUSH_10,
            },
        },
        "GetTask": {"id": "t", "historyLength": 1},
        "ListTasks": {
            "contextId": "c",
            "status": "TASK_STATE_WORKING",
            "pageSize": 10,
            "pageToken": "p",
            "historyLength": 1,
            "statusTimestampAfter": "2026-01-31T12:00:00Z",
            "includeArtifacts": True,
            "tenant": "t",
        },
        "CancelTask": {"id": "t", "metadata": {}},
        "CreateTaskPushNotificationConfig": {"taskId": "t", **PUSH_10},
        "ListTaskPushNotificationConfigs": {"taskId": "t", "pageSize": 1, "pageToken": "p"},
        "GetTaskPushNotificationConfig": {"taskId": "t", "id": "c"},
        "GetExtendedAgentCard": {"tenant": "t"},
    },
    v03: {
        "message/send": {
            "metadata": {},
            "message": {
                "kind": "message",
                "messageId": "m",
                "contextId": "c",
                "taskId": "t",
                "role": "user",
                "parts": [
                    {"kind": "text", "text": "hi"},
                    {"kind": "file", "file": FILE},
                    {"kind": "data", "data": {"a": 1}},
                ],
            },
            "configuration": {
                "acceptedOutputModes": ["text/plain"],
                "historyLength": 1,
                "blocking": True,
                "pushNotificationConfig": PUSH_03,
            },
        },
        "tasks/get": {"id": "t", "historyLength": 1, "metadata": {}},
        "tasks/cancel": {"id": "t", "metadata": {}},
        "tasks/pushNotificationConfig/set": {"taskId": "t", "pushNotificationConfig": PUSH_03},
        "tasks/pushNotificationConfig/get": {"id": "t", "pushNotificationConfigId": "c"},
        "tasks/pushNotificationConfig/list": {"id": "t"},
    },
    v01: {
        "tasks/send": {
            "id": "t",
            "sessionId": "s",
            "message": {
                "role": "user",
                "parts": [
                    {"type": "text", "text": "hi", "metadata": {}},
                    {"type": "file", "file": FILE},
                    {"type": "data", "data": {"a": 1}},
                ],
            },
            "acceptedOutputModes": ["text"],
            "historyLength": 1,
            "pushNotification": PUSH_03,
            "metadata": {},
        },
        "tasks/get": {"id": "t", "historyLength": 1},
        "tasks/cancel": {"id": "t"},
        "tasks/pushNotification/set": {"id": "t", "pushNotificationConfig": PUSH_03},
        "tasks/pushNotification/get": {"id": "t"},
    },
}


def with_invalid(value: Any) -> Iterator[Any]:
    """`value` with one thing in it replaced, each in turn by each odd one."""
    yield from ODD
    if isinstance(value, dict):
        for name, held in value.items():
            for odd in with_invalid(held):
                yield {**value, name: odd}
    elif isinstance(value, list):
        for index, held in enumerate(value):
            for odd in with_invalid(held):
                yield [*value[:index], odd, *value[index + 1 :]]


@pytest.mark.parametrize(
    ("dialect", "method"), [(one, name) for one, named in PARAMS.items() for name in named]
)
def test_invalid_member_value_is_a_client_error(dialect: Any, method: str) -> None:
    right = PARAMS[dialect][method]
    op = dialect.METHODS[method]
    assert isinstance(dialect.parse_params(op, right), dict)
    refused = 0
    for params in with_invalid(right):
        try:
            read = dialect.parse_params(op, params)
        except A2aError as error:
            refused += 1
            assert error.reason != "INTERNAL", params
        else:
            assert isinstance(read, dict), params
    assert refused
