"""Dialect 0.1, its bare task, and what python-a2a clients need."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.a2a.protocol.dialects import python_a2a, v01
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    GET,
    LIST,
    PUSH_GET,
    PUSH_SET,
    SEND,
    STREAM,
    SUBSCRIBE,
)
from dragoman.a2a.protocol.errors import A2aError

REPLY: dict[str, Any] = {
    "artifactId": "response",
    "name": "response",
    "parts": [{"text": "I found 2 potential issues..."}],
}
TASK: dict[str, Any] = {
    "id": "t",
    "contextId": "s",
    "status": {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-01-01T00:00:00Z"},
    "artifacts": [
        {
            "artifactId": "a",
            "name": "report",
            "parts": [
                {"raw": "dGNr", "filename": "r.txt", "mediaType": "text/plain"},
                {"data": [1]},
                {"url": "https://a.example/r"},
            ],
        },
        REPLY,
    ],
    "history": [{"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Review this"}]}],
}


def in_state(state: str, words: str | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"state": state}
    if words is not None:
        parts = [{"text": words}]
        status["message"] = {"messageId": "n", "role": "ROLE_AGENT", "parts": parts}
    return {**TASK, "status": status, "artifacts": []}


@pytest.mark.promise("J2")
def test_request_0_1_is_parsed() -> None:
    found = v01.parse_params(
        SEND,
        {
            "message": {
                "role": "user",
                "parts": [
                    {"type": "text", "text": "Review this code"},
                    {"type": "file", "name": "a.py", "mime_type": "text/x-python", "data": "dGNr"},
                    {"type": "data", "mime_type": "application/json", "data": {"a": 1}},
                ],
            },
            "sessionId": "session-123",
        },
    )
    assert found["message"].pop("messageId"), "there is none in this dialect, and one in ours"
    assert found == {
        "message": {
            "role": "ROLE_USER",
            "contextId": "session-123",
            "parts": [
                {"text": "Review this code"},
                {"raw": "dGNr", "filename": "a.py", "mediaType": "text/x-python"},
                {"data": {"a": 1}, "mediaType": "application/json"},
            ],
        }
    }


@pytest.mark.promise("J3")
def test_client_task_id_is_kept() -> None:
    found = v01.parse_params(
        SEND,
        {
            "id": "mine",
            "message": {
                "role": "user",
                "parts": [
                    {"type": "file", "file": {"bytes": "dGNr", "mimeType": "text/plain"}},
                    {"type": "file", "file": {"uri": "https://a.example/"}},
                ],
                "metadata": {"skillId": "s"},
            },
            "historyLength": 3,
            "pushNotification": {
                "url": "https://a.example/h",
                "authentication": {"schemes": ["X"]},
            },
            "metadata": {"a": 1},
        },
    )
    assert found["_taskId"] == "mine"
    assert found["message"]["parts"] == [
        {"raw": "dGNr", "mediaType": "text/plain"},
        {"url": "https://a.example/"},
    ]
    assert found["message"]["metadata"] == {"skillId": "s"}
    assert found["configuration"] == {
        "historyLength": 3,
        "taskPushNotificationConfig": {
            "url": "https://a.example/h",
            "authentication": {"scheme": "X"},
        },
    }


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"message": {}},
        {"message": {"role": "user", "parts": []}},
        {"message": {"role": "agent", "parts": [{"type": "text", "text": "x"}]}},
        {"message": {"role": "user", "parts": [{"type": "tune"}]}},
        {"message": {"role": "user", "parts": [{"type": "text", "text": "x"}]}, "id": "x" * 257},
        {"message": {"role": "user", "parts": [{"type": "text", "text": "x"}]}, "sessionId": 7},
        {
            "message": {"role": "user", "parts": [{"type": "text", "text": "x"}]},
            "historyLength": -1,
        },
    ],
)
def test_invalid_request_is_refused(params: Any) -> None:
    for op in (SEND, STREAM):
        with pytest.raises(A2aError) as caught:
            v01.parse_params(op, params)
        assert v01.render_error(caught.value)["code"] == -32602


@pytest.mark.promise("J3")
def test_a_task_has_the_shape_of_0_1_and_the_bare_messages() -> None:
    out = v01.render_result(SEND, {"task": TASK})
    assert out["id"] == "t"
    assert out["sessionId"] == "s"
    assert out["status"] == {"state": "completed", "timestamp": "2026-01-01T00:00:00Z"}
    assert out["artifacts"][1] == {
        "name": "response",
        "index": 0,
        "parts": [{"type": "text", "text": "I found 2 potential issues..."}],
    }
    assert out["artifacts"][0]["parts"][0] == {
        "type": "file",
        "file": {"bytes": "dGNr", "name": "r.txt", "mimeType": "text/plain"},
    }
    assert out["artifacts"][0]["parts"][1]["data"] == {"value": [1]}
    assert out["history"] == [{"role": "user", "parts": [{"type": "text", "text": "Review this"}]}]
    assert [each["role"] for each in out["messages"]] == ["user", "agent"]
    assert v01.render_result(GET, TASK) == out
    assert v01.render_result(CANCEL, TASK) == out
    assert v01.render_result(LIST, {"tasks": [TASK]}) == [out]
    assert v01.render_push({}, TASK) == out


@pytest.mark.promise("J2")
def test_bare_task_is_rendered_for_0_1() -> None:
    assert v01.render_bare_task({**TASK, "artifacts": [REPLY]}) == {
        "id": "t",
        "sessionId": "s",
        "status": "completed",
        "messages": [
            {"role": "user", "parts": [{"type": "text", "text": "Review this"}]},
            {"role": "agent", "parts": [{"type": "text", "text": "I found 2 potential issues..."}]},
        ],
        "artifacts": [],
    }


@pytest.mark.promise("K4")
def test_bare_parts_have_their_own_members() -> None:
    assert v01.render_bare_task(TASK)["artifacts"] == [
        {
            "name": "report",
            "parts": [
                {"type": "file", "name": "r.txt", "mime_type": "text/plain", "data": "dGNr"},
                {"type": "data", "mime_type": "application/json", "data": [1]},
                {
                    "type": "file",
                    "name": "",
                    "mime_type": "application/octet-stream",
                    "uri": "https://a.example/r",
                },
            ],
        }
    ]


@pytest.mark.promise("K1")
@pytest.mark.parametrize(
    ("state", "said", "bare_state"),
    [
        ("TASK_STATE_SUBMITTED", "submitted", "submitted"),
        ("TASK_STATE_WORKING", "working", "working"),
        ("TASK_STATE_INPUT_REQUIRED", "input-required", "input-required"),
        ("TASK_STATE_AUTH_REQUIRED", "input-required", "input-required"),
        ("TASK_STATE_COMPLETED", "completed", "completed"),
        ("TASK_STATE_CANCELED", "canceled", "cancelled"),
        ("TASK_STATE_FAILED", "failed", "failed"),
        ("TASK_STATE_REJECTED", "failed", "failed"),
    ],
)
def test_missing_state_maps_to_the_nearest(state: str, said: str, bare_state: str) -> None:
    task = in_state(state, "why")
    assert v01.render_result(GET, task)["status"]["state"] == said
    bare = v01.render_bare_task(task)
    assert bare["status"] == bare_state
    assert bare["messages"][-1] == {"role": "agent", "parts": [{"type": "text", "text": "why"}]}


@pytest.mark.promise("J3")
def test_message_response_becomes_a_completed_task() -> None:
    message = {"messageId": "n", "role": "ROLE_AGENT", "parts": [{"text": "hello"}]}
    out = v01.render_result(SEND, {"message": message, "_taskId": "mine"})
    assert out["id"] == "mine"
    assert out["status"] == {"state": "completed"}
    assert out["artifacts"][0]["parts"] == [{"type": "text", "text": "hello"}]
    assert v01.render_result(SEND, {"message": message})["id"] == "n"
    event = v01.render_event({"message": message, "_taskId": "mine"}, final=True)
    assert event == {
        "id": "mine",
        "status": {
            "state": "completed",
            "message": {"role": "agent", "parts": [{"type": "text", "text": "hello"}]},
        },
        "final": True,
    }


@pytest.mark.promise("J3")
def test_events_0_1_are_status_or_artifact() -> None:
    status = {"state": "TASK_STATE_WORKING"}
    event = {"statusUpdate": {"taskId": "t", "contextId": "s", "status": status}}
    assert v01.render_event(event, final=False) == {
        "id": "t",
        "status": {"state": "working"},
        "final": False,
    }
    assert v01.render_event({"task": TASK}, final=True)["final"] is True
    update = {"taskId": "t", "contextId": "s", "artifact": TASK["artifacts"][0], "append": True}
    first = v01.render_event({"artifactUpdate": update}, final=False)
    assert first["id"] == "t"
    assert (first["artifact"]["append"], first["artifact"]["lastChunk"]) == (True, False)
    last = v01.render_event({"artifactUpdate": {**update, "lastChunk": True}}, final=False)
    assert last["artifact"]["lastChunk"] is True
    assert last["artifact"]["index"] == first["artifact"]["index"], "chunks of one artifact"
    assert v01.render_result(GET, TASK)["artifacts"][0]["index"] == first["artifact"]["index"]


def test_webhooks_0_1_use_the_task_id() -> None:
    config = {"url": "https://a.example/h", "token": "x"}
    params = {"id": "t", "pushNotificationConfig": config}
    flat = {"taskId": "t", **config}
    assert v01.parse_params(PUSH_SET, params) == flat
    assert v01.parse_params(PUSH_GET, {"id": "t"}) == {"taskId": "t"}
    assert v01.render_result(PUSH_SET, {**flat, "id": "c"}) == params
    assert v01.render_result(PUSH_GET, flat) == params
    assert v01.build_request(PUSH_SET, flat) == ("tasks/pushNotification/set", params)
    assert v01.build_request(PUSH_GET, flat) == ("tasks/pushNotification/get", {"id": "t"})


@pytest.mark.promise("L1")
def test_request_to_0_1_has_a_task_id() -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}], "contextId": "s"}
    method, params = v01.build_request(SEND, {"message": message, "_taskId": "mine"})
    assert method == "tasks/send"
    assert (params["id"], params["sessionId"]) == ("mine", "s")
    assert v01.parse_params(SEND, params)["message"]["parts"] == [{"text": "x"}]
    again = {"message": {**message, "taskId": "t"}, "_taskId": "mine"}
    assert v01.build_request(STREAM, again)[1]["id"] == "t"
    assert len(v01.build_request(SEND, {"message": message})[1]["id"]) == 36
    assert v01.build_request(SUBSCRIBE, {"id": "t"}) == ("tasks/resubscribe", {"id": "t"})
    with pytest.raises(A2aError):
        v01.build_request(LIST, {})


# --- python-a2a -----------------------------------------------------------------------------------

MESSAGE = {
    "content": {"type": "text", "text": "hi"},
    "role": "user",
    "message_id": "m",
    "conversation_id": "c",
}


@pytest.mark.promise("J3")
@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({"id": "t", "sessionId": "s", "status": {}, "message": MESSAGE}, python_a2a.TASK),
        (MESSAGE, python_a2a.MESSAGE),
        ({"role": "user", "parts": [], "metadata": {}}, python_a2a.MESSAGE),
        ({"conversation_id": "c", "messages": [MESSAGE]}, python_a2a.CONVERSATION),
        ({"jsonrpc": "2.0", "messages": []}, None),
        ({"id": "t"}, None),
        ([], None),
    ],
)
def test_bare_body_is_detected_by_its_members(body: Any, form: str | None) -> None:
    assert python_a2a.find_form(body) == form


@pytest.mark.promise("J3")
@pytest.mark.parametrize(
    "body",
    [
        {"id": "t", "sessionId": "s", "status": {"state": "submitted"}, "message": MESSAGE},
        MESSAGE,
        {"conversation_id": "c", "messages": [{"role": "agent"}, MESSAGE]},
        {
            "role": "user",
            "parts": [{"type": "text", "text": "hi"}],
            "metadata": {"message_id": "m", "conversation_id": "c"},
        },
    ],
)
def test_bare_body_is_parsed_as_a_request(body: Any) -> None:
    found = python_a2a.parse_params(SEND, body)
    assert found["message"]["parts"] == [{"text": "hi"}]
    assert found["message"]["messageId"] == "m"
    assert found["message"]["contextId"] == "c"
    assert found.get("_taskId") == body.get("id")


def test_function_call_part_becomes_data() -> None:
    content = {"type": "function_call", "name": "f", "parameters": [{"name": "x", "value": 1}]}
    found = python_a2a.parse_params(SEND, {**MESSAGE, "content": content})
    assert found["message"]["parts"] == [
        {"data": {"function_call": {"name": "f", "parameters": [{"name": "x", "value": 1}]}}}
    ]


@pytest.mark.parametrize("body", [{"messages": []}, {"messages": [1]}, {"message": 7}, {}])
def test_empty_bare_body_is_refused(body: Any) -> None:
    with pytest.raises(A2aError):
        python_a2a.parse_params(SEND, body)


@pytest.mark.promise("J3")
@pytest.mark.parametrize(
    ("task", "text"),
    [
        (TASK, "I found 2 potential issues..."),
        (in_state("TASK_STATE_FAILED", "it broke"), "it broke"),
        (in_state("TASK_STATE_INPUT_REQUIRED", "which?"), "which?"),
        (in_state("TASK_STATE_CANCELED"), ""),
        ({**TASK, "artifacts": [{"artifactId": "a", "parts": [{"data": {"a": 1}}]}]}, ""),
    ],
)
def test_python_a2a_client_always_gets_a_text(task: dict[str, Any], text: str) -> None:
    """Or it sends the same again to the next address."""
    out = python_a2a.render_result(SEND, {"task": task})
    last = [part for part in out["artifacts"][-1]["parts"] if part["type"] == "text"]
    assert last == [{"type": "text", "text": text}]


def test_running_task_is_not_read_as_completed() -> None:
    out = python_a2a.render_result(GET, in_state("TASK_STATE_WORKING"))
    assert out["status"]["state"] == "waiting"


@pytest.mark.promise("J3")
def test_message_and_conversation_get_their_own_kind_back() -> None:
    value = {"task": TASK}
    reply = python_a2a.render_rest_answer(python_a2a.MESSAGE, MESSAGE, value)
    assert reply["content"] == {"type": "text", "text": "I found 2 potential issues..."}
    assert (reply["role"], reply["parent_message_id"], reply["conversation_id"]) == (
        "agent",
        "m",
        "c",
    )
    parts = {"role": "user", "parts": [], "message_id": "m"}
    other = python_a2a.render_rest_answer(python_a2a.MESSAGE, parts, value)
    assert other["parts"] == [{"type": "text", "text": "I found 2 potential issues..."}]
    assert other["metadata"]["parent_message_id"] == "m"
    body = {"conversation_id": "c", "messages": [MESSAGE]}
    whole = python_a2a.render_rest_answer(python_a2a.CONVERSATION, body, value)
    assert whole["conversation_id"] == "c"
    assert [each["role"] for each in whole["messages"]] == ["user", "agent"]
    assert python_a2a.render_rest_answer(python_a2a.TASK, {}, value) == python_a2a.render_task(TASK)


def test_python_a2a_streams_are_tasks_or_text_chunks() -> None:
    assert python_a2a.render_event(TASK, final=False)[0] == "update"
    assert python_a2a.render_event(TASK, final=True) == ("complete", python_a2a.render_task(TASK))
    update = {"taskId": "t", "contextId": "s", "artifact": REPLY}
    chunk = python_a2a.render_chunk({"artifactUpdate": update}, final=False)
    assert chunk == {
        "content": "I found 2 potential issues...",
        "append": True,
        "lastChunk": False,
    }
    assert python_a2a.render_chunk({"task": TASK}, final=False) is None
    failed = in_state("TASK_STATE_FAILED", "it broke")["status"]
    event = {"statusUpdate": {"taskId": "t", "contextId": "s", "status": failed}}
    assert python_a2a.render_chunk(event, final=False) is None
    last = python_a2a.render_chunk(event, final=True)
    assert last is not None
    assert (last["content"], last["lastChunk"]) == ("it broke", True)
    done = {"statusUpdate": {"taskId": "t", "contextId": "s", "status": TASK["status"]}}
    assert python_a2a.render_chunk(done, final=True) is None, "its client shows what has no text"


def test_python_a2a_errors_have_an_error_status() -> None:
    status, error = python_a2a.render_error(A2aError("TASK_NOT_FOUND", "no such task"))
    assert status == 404
    assert error["code"] == -32001


def test_python_a2a_parameters_are_distinguished() -> None:
    assert python_a2a.is_python_a2a(
        {"id": "t", "status": {"state": "submitted"}, "message": MESSAGE}
    )
    assert python_a2a.is_python_a2a({"message": MESSAGE})
    assert not python_a2a.is_python_a2a({"message": {"role": "user", "parts": []}})
    assert not python_a2a.is_python_a2a([])
