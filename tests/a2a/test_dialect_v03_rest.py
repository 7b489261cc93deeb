"""Dialect 0.3 over HTTP, checked against the official SDK's proto, which rejects
unknown members.
"""

from __future__ import annotations

from typing import Any

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as proto
from a2a.compat.v0_3 import proto_utils, types
from google.protobuf.json_format import MessageToDict, ParseDict

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

PARTS: list[dict[str, Any]] = [
    {"text": "hi", "metadata": {"a": 1}},
    {"raw": "iVBORw==", "filename": "o.png", "mediaType": "image/png"},
    {"url": "https://a.example/x", "filename": "x", "mediaType": "text/html"},
    {"data": {"k": 1.0}},
]
TASK: dict[str, Any] = {
    "id": "t",
    "contextId": "c",
    "status": {
        "state": "TASK_STATE_CANCELED",
        "timestamp": "2026-01-01T00:00:00Z",
        "message": {"messageId": "n", "role": "ROLE_AGENT", "parts": [{"text": "stopped"}]},
    },
    "artifacts": [{"artifactId": "a", "name": "out", "parts": PARTS}],
    "history": [
        {
            "messageId": "m",
            "role": "ROLE_USER",
            "parts": PARTS,
            "contextId": "c",
            "taskId": "t",
            "referenceTaskIds": ["r"],
        }
    ],
    "metadata": {"x": 1.0},
}


def sent_by_the_sdk(message: types.Message, **configuration: Any) -> Any:
    """The body that its REST client makes of a message."""
    return MessageToDict(
        proto.SendMessageRequest(
            request=proto_utils.ToProto.message(message),
            configuration=proto_utils.ToProto.message_send_configuration(
                types.MessageSendConfiguration(**configuration)
            ),
        )
    )


@pytest.mark.promise("J3")
def test_sdk_client_requests_are_parsed() -> None:
    file = types.FileWithBytes(bytes="iVBORw==", name="o.png", mime_type="image/png")
    body = sent_by_the_sdk(
        types.Message(
            message_id="m",
            role=types.Role.user,
            context_id="c",
            parts=[
                types.Part(root=types.TextPart(text="hi", metadata={"a": 1})),
                types.Part(root=types.FilePart(file=file)),
                types.Part(root=types.FilePart(file=types.FileWithUri(uri="https://a.example/"))),
                types.Part(root=types.DataPart(data={"data": {"k": 1}})),
            ],
        ),
        blocking=True,
        accepted_output_modes=["text/plain"],
        push_notification_config=types.PushNotificationConfig(id="p", url="https://a.example/h"),
    )
    assert v03.parse_rest_params(SEND, {}, {}, body) == {
        "message": {
            "messageId": "m",
            "contextId": "c",
            "role": "ROLE_USER",
            "parts": [
                {"text": "hi", "metadata": {"a": 1.0}},
                {"raw": "iVBORw==", "filename": "o.png", "mediaType": "image/png"},
                {"url": "https://a.example/"},
                {"data": {"data": {"k": 1.0}}},
            ],
        },
        "configuration": {
            "acceptedOutputModes": ["text/plain"],
            "taskPushNotificationConfig": {"id": "p", "url": "https://a.example/h"},
        },
    }


@pytest.mark.promise("J3")
def test_tck_requests_are_parsed() -> None:
    body = {
        "message": {
            "message_id": "m",
            "task_id": "t",
            "role": "ROLE_USER",
            "content": [
                {"text": "hi"},
                {
                    "file": {
                        "mime_type": "text/plain",
                        "file_with_uri": "",
                        "file_with_bytes": "_-8",
                    }
                },
                {"file": {"mime_type": "", "file_with_uri": "https://a.example/"}},
                {"data": {"data": {"my_key": 1}}},
            ],
        },
        "configuration": {"history_length": 3, "blocking": False},
    }
    found = v03.parse_rest_params(STREAM, {}, {}, body)
    assert found["configuration"] == {"historyLength": 3, "returnImmediately": True}
    assert found["message"]["taskId"] == "t"
    assert found["message"]["parts"] == [
        {"text": "hi"},
        {"raw": "/+8=", "mediaType": "text/plain"},
        {"url": "https://a.example/"},
        {"data": {"my_key": 1}},
    ]


def test_json_rpc_form_is_accepted_over_http() -> None:
    message = {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
    found = v03.parse_rest_params(SEND, {}, {}, {"message": message})
    assert found["message"]["parts"] == [{"text": "hi"}]


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"message": {}},
        {"message": {"message_id": "m", "role": "ROLE_UNSPECIFIED", "content": [{"text": "x"}]}},
        {"message": {"message_id": "m", "role": "ROLE_USER", "content": []}},
        {"message": {"message_id": "m", "role": "ROLE_USER", "content": [{}]}},
        {"message": {"message_id": "m", "role": "ROLE_USER", "content": [{"file": {}}]}},
        {"message": {"message_id": "m", "role": "ROLE_USER", "content": ["x"]}},
        {"message": {"message_id": "m", "role": "ROLE_AGENT", "content": [{"text": "x"}]}},
    ],
)
def test_invalid_message_is_a_bad_request(body: Any) -> None:
    with pytest.raises(A2aError) as caught:
        v03.parse_rest_params(SEND, {}, {}, body)
    status, out = v03.render_rest_error(caught.value)
    assert (status, out["error"], out["code"]) == (400, "InvalidParamsError", -32602)


@pytest.mark.promise("J3")
def test_tasks_parse_in_the_sdk_client() -> None:
    parsed = ParseDict(v03.render_rest_result(GET, TASK), proto.Task())
    task = proto_utils.FromProto.task(parsed)
    assert task.status.state is types.TaskState.canceled
    assert task.status.message is not None
    assert task.status.message.parts[0].root.text == "stopped"  # type: ignore[union-attr]
    assert task.artifacts is not None
    file = task.artifacts[0].parts[1].root.file  # type: ignore[union-attr]
    assert (file.bytes, file.name, file.mime_type) == ("iVBORw==", "o.png", "image/png")  # type: ignore[union-attr]
    assert task.artifacts[0].parts[3].root.data == {"k": 1}  # type: ignore[union-attr]
    answer = v03.render_rest_result(SEND, {"task": TASK})
    ParseDict(answer, proto.SendMessageResponse())
    message = v03.render_rest_result(SEND, {"message": TASK["history"][0]})
    assert ParseDict(message, proto.SendMessageResponse()).msg.message_id == "m"


@pytest.mark.promise("J3")
def test_events_parse_in_the_sdk_client() -> None:
    status = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": TASK["status"]}}
    for final in (True, False):
        out = v03.render_rest_event(status, final=final)
        assert ParseDict(out, proto.StreamResponse()).status_update.final is final
    update = {"taskId": "t", "contextId": "c", "artifact": TASK["artifacts"][0], "append": True}
    out = v03.render_rest_event({"artifactUpdate": update}, final=False)
    assert ParseDict(out, proto.StreamResponse()).artifact_update.append is True
    for event in ({"task": TASK}, {"message": TASK["history"][0]}):
        ParseDict(v03.render_rest_event(event, final=False), proto.StreamResponse())


@pytest.mark.promise("J3")
def test_task_list_is_an_array_in_json_rpc_form() -> None:
    out = v03.render_rest_result(LIST, {"tasks": [TASK], "nextPageToken": ""})
    assert [(each["kind"], each["contextId"]) for each in out] == [("task", "c")]
    assert v03.parse_rest_params(LIST, {}, {"page_size": "5", "filter": "x"}, None) == {
        "pageSize": 5
    }


@pytest.mark.promise("J3")
@pytest.mark.parametrize(
    "body",
    [
        {
            "parent": "tasks/t",
            "configId": "c",
            "config": {
                "name": "tasks/t/pushNotificationConfigs/c",
                "pushNotificationConfig": {"id": "c", "url": "https://a.example/h"},
            },
        },
        {
            "parent": "tasks/t",
            "config_id": "c",
            "config": {
                "push_notification_config": {
                    "url": "https://a.example/h",
                    "token": "",
                    "authentication": {},
                }
            },
        },
        {"pushNotificationConfig": {"id": "c", "url": "https://a.example/h"}},
        {"id": "c", "url": "https://a.example/h"},
    ],
)
def test_webhook_is_accepted_in_every_form(body: Any) -> None:
    found = v03.parse_rest_params(PUSH_SET, {"taskId": "t"}, {}, body)
    assert found == {"taskId": "t", "id": "c", "url": "https://a.example/h"}


def test_webhooks_parse_in_the_sdk_client() -> None:
    config = {
        "taskId": "t",
        "id": "c",
        "url": "https://a.example/h",
        "authentication": {"scheme": "Bearer", "credentials": "x"},
    }
    out = v03.render_rest_result(PUSH_SET, config)
    parsed = ParseDict(out, proto.TaskPushNotificationConfig())
    seen = proto_utils.FromProto.task_push_notification_config(parsed)
    assert seen.task_id == "t"
    assert seen.push_notification_config.authentication is not None
    assert seen.push_notification_config.authentication.schemes == ["Bearer"]
    assert v03.render_rest_result(PUSH_LIST, {"configs": [config]}) == {"configs": [out]}
    assert v03.render_rest_result(PUSH_DELETE, {}) == {}
    assert v03.parse_rest_result(PUSH_GET, out) == config
    assert v03.parse_rest_result(PUSH_LIST, {"configs": [out]})["configs"] == [config]


@pytest.mark.parametrize(
    ("op", "path", "query", "found"),
    [
        (GET, {"id": "t"}, {"history_length": "3"}, {"id": "t", "historyLength": 3}),
        (GET, {"id": "t"}, {"historyLength": "0"}, {"id": "t", "historyLength": 0}),
        (CANCEL, {"id": "t"}, {}, {"id": "t"}),
        (SUBSCRIBE, {"id": "t"}, {}, {"id": "t"}),
        (PUSH_GET, {"taskId": "t", "id": "c"}, {}, {"taskId": "t", "id": "c"}),
        (PUSH_DELETE, {"taskId": "t", "id": "c"}, {}, {"taskId": "t", "id": "c"}),
        (PUSH_LIST, {"taskId": "t"}, {}, {"taskId": "t"}),
        (CARD, {}, {}, {}),
    ],
)
def test_other_requests_are_parsed(
    op: str, path: dict[str, str], query: dict[str, str], found: Any
) -> None:
    assert v03.parse_rest_params(op, path, query, None) == found


@pytest.mark.parametrize("length", ["-1", "x", "9" * 100])
def test_invalid_history_length_is_refused(length: str) -> None:
    with pytest.raises(A2aError):
        v03.parse_rest_params(GET, {"id": "t"}, {"historyLength": length}, None)


@pytest.mark.parametrize(
    ("reason", "status", "name"),
    [
        ("TASK_NOT_FOUND", 404, "TaskNotFoundError"),
        ("TASK_NOT_CANCELABLE", 409, "TaskNotCancelableError"),
        ("PUSH_NOTIFICATION_NOT_SUPPORTED", 501, "PushNotificationNotSupportedError"),
        ("UNSUPPORTED_OPERATION", 501, "UnsupportedOperationError"),
        ("CONTENT_TYPE_NOT_SUPPORTED", 415, "ContentTypeNotSupportedError"),
        ("INVALID_AGENT_RESPONSE", 502, "InvalidAgentResponseError"),
        (
            "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
            404,
            "AuthenticatedExtendedCardNotConfiguredError",
        ),
        ("PARSE_ERROR", 400, "JSONParseError"),
        ("INTERNAL", 500, "InternalError"),
    ],
)
def test_errors_have_0_3_names(reason: str, status: int, name: str) -> None:
    seen, body = v03.render_rest_error(A2aError(reason, "because"))
    assert (seen, body["error"], body["message"]) == (status, name, "because")


@pytest.mark.promise("L1")
def test_sent_requests_parse_in_the_sdk_server() -> None:
    request = {
        "message": {"messageId": "m", "role": "ROLE_USER", "parts": PARTS, "contextId": "c"},
        "configuration": {"taskPushNotificationConfig": {"id": "p", "url": "https://a.example/"}},
    }
    http, path, query, body = v03.build_rest_request(SEND, request)
    assert (http, path, query) == ("POST", "/v1/message:send", {})
    ParseDict(body, proto.SendMessageRequest())
    assert v03.parse_rest_params(SEND, {}, {}, body) == request
    config = {"taskId": "t", "id": "c", "url": "https://a.example/h"}
    http, path, query, body = v03.build_rest_request(PUSH_SET, config)
    assert path == "/v1/tasks/t/pushNotificationConfigs"
    ParseDict(body, proto.CreateTaskPushNotificationConfigRequest())
    assert v03.parse_rest_params(PUSH_SET, {"taskId": "t"}, {}, body) == config
    assert v03.build_rest_request(GET, {"id": "a/b", "historyLength": 2}) == (
        "GET",
        "/v1/tasks/a%2Fb",
        {"historyLength": "2"},
        None,
    )


@pytest.mark.promise("L1")
def test_sdk_server_responses_are_parsed() -> None:
    """With the names of the proto, too."""
    for preserving in (False, True):
        answer = MessageToDict(
            ParseDict(v03.render_rest_result(SEND, {"task": TASK}), proto.SendMessageResponse()),
            preserving_proto_field_name=preserving,
        )
        found = v03.parse_result(SEND, answer)["task"]
        del TASK["history"][0]["referenceTaskIds"]
        assert found == {**TASK, "status": {**TASK["status"]}}
        TASK["history"][0]["referenceTaskIds"] = ["r"]
