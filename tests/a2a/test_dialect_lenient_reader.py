"""Lenient parsing of what real agents return, whatever version they claim."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.a2a.protocol.dialects import v01, v03, v10
from dragoman.a2a.protocol.dialects.lenient_reader import ends_stream
from dragoman.a2a.protocol.dialects.operations import (
    CARD,
    GET,
    LIST,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    SEND,
)
from dragoman.a2a.protocol.errors import A2aError

ALL = [v01, v03, v10]


@pytest.mark.promise("L1")
@pytest.mark.parametrize("dialect", ALL)
def test_hybrid_of_dialects_is_parsed(dialect: Any) -> None:
    """fasta2a: 1.0's wrapper, states in lower case, no kind, times without a zone."""
    answer = {
        "task": {
            "id": "t",
            "context_id": "c",
            "status": {"state": "completed", "timestamp": "2026-01-01T10:00:00.123456"},
            "history": [
                {"role": "user", "parts": [{"kind": "text", "text": "hi"}], "message_id": "m"}
            ],
            "artifacts": [
                {"artifact_id": "a", "name": "result", "parts": [{"text": "yes", "type": "text"}]}
            ],
        }
    }
    assert dialect.parse_result(SEND, answer) == {
        "task": {
            "id": "t",
            "contextId": "c",
            "status": {
                "state": "TASK_STATE_COMPLETED",
                "timestamp": "2026-01-01T10:00:00.123456Z",
            },
            "history": [{"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}],
            "artifacts": [{"artifactId": "a", "name": "result", "parts": [{"text": "yes"}]}],
        }
    }


@pytest.mark.promise("L1")
@pytest.mark.parametrize("dialect", ALL)
def test_bare_task_reply_becomes_an_artifact(dialect: Any) -> None:
    answer = {
        "id": "t",
        "sessionId": "s",
        "status": "completed",
        "messages": [
            {"role": "user", "parts": [{"type": "text", "text": "hi"}]},
            {"role": "agent", "parts": [{"type": "text", "text": "hello"}]},
        ],
        "artifacts": [],
    }
    task = dialect.parse_result(SEND, answer)["task"]
    assert task["contextId"] == "s"
    assert task["artifacts"] == [
        {"artifactId": "response", "name": "response", "parts": [{"text": "hello"}]}
    ]
    assert [each["role"] for each in task["history"]] == ["ROLE_USER"]
    failed = dialect.parse_result(GET, {**answer, "status": "failed"})
    assert failed["status"]["message"]["parts"] == [{"text": "hello"}]
    assert "artifacts" not in failed


@pytest.mark.promise("L1")
@pytest.mark.parametrize("dialect", ALL)
def test_python_a2a_task_is_parsed(dialect: Any) -> None:
    answer = {
        "id": "t",
        "sessionId": "s",
        "status": {
            "state": "failed",
            "message": {"error": "it broke"},
            "timestamp": "2026-01-01T10:00:00",
        },
        "message": {"content": {"type": "text", "text": "hi"}, "role": "user", "message_id": "m"},
    }
    task = dialect.parse_result(SEND, answer)["task"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert task["status"]["message"]["parts"] == [{"text": "it broke"}]
    assert task["status"]["message"]["role"] == "ROLE_AGENT"
    message = {"content": {"type": "text", "text": "hello"}, "role": "agent", "message_id": "m"}
    assert dialect.parse_result(SEND, message)["message"]["parts"] == [{"text": "hello"}]


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("input-required", "TASK_STATE_INPUT_REQUIRED"),
        ("input_required", "TASK_STATE_INPUT_REQUIRED"),
        ("InputRequired", "TASK_STATE_INPUT_REQUIRED"),
        ("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_INPUT_REQUIRED"),
        ("canceled", "TASK_STATE_CANCELED"),
        ("cancelled", "TASK_STATE_CANCELED"),
        ("TASK_STATE_CANCELLED", "TASK_STATE_CANCELED"),
        ("auth-required", "TASK_STATE_AUTH_REQUIRED"),
        ("waiting", "TASK_STATE_WORKING"),
        ("unknown", "TASK_STATE_UNSPECIFIED"),
        ("", "TASK_STATE_UNSPECIFIED"),
        (7, "TASK_STATE_UNSPECIFIED"),
        (None, "TASK_STATE_UNSPECIFIED"),
    ],
)
def test_every_spelling_of_a_state_is_parsed(said: Any, state: str) -> None:
    for status in ({"state": said}, {"state": said, "timestamp": 7}):
        assert v10.parse_result(GET, {"id": "t", "status": status})["status"] == {"state": state}


@pytest.mark.parametrize(
    ("said", "time"),
    [
        ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
        ("2026-01-01T10:00:00", "2026-01-01T10:00:00Z"),
        ("2026-01-01 10:00:00.5", "2026-01-01T10:00:00.500Z"),
        ("2026-01-01T12:00:00+02:00", "2026-01-01T10:00:00.000Z"),
        ("today", None),
        (1, None),
    ],
)
def test_timestamp_is_utc(said: Any, time: str | None) -> None:
    status = {"state": "working", "timestamp": said}
    found = v10.parse_result(GET, {"id": "t", "status": status})
    assert found["status"].get("timestamp") == time


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("hi", {"text": "hi"}),
        ({"type": "text", "text": "hi"}, {"text": "hi"}),
        ({"kind": "text", "text": "hi"}, {"text": "hi"}),
        ({"text": "hi", "mediaType": "text/html"}, {"text": "hi", "mediaType": "text/html"}),
        ({"text": "hi", "filename": 7, "metadata": []}, {"text": "hi"}),
        ({"text": 7}, {"data": {"text": 7}}),
        ({"kind": "tune", "x": 1}, {"data": {"kind": "tune", "x": 1}}),
        (7, {"data": 7}),
        ({}, {"data": {}}),
        ({"raw": "dGVzdA"}, {"raw": "dGVzdA=="}),
        ({"raw": "!"}, {"data": {"raw": "!"}}),
        ({"raw": "dGVzdA==", "url": "x"}, {"raw": "dGVzdA=="}),
        ({"data": None}, {"data": None}),
        (
            {"kind": "file", "file": {"bytes": "dGVzdA==", "mimeType": "text/plain"}},
            {"raw": "dGVzdA==", "mediaType": "text/plain"},
        ),
        ({"type": "file", "file": {"uri": "x:y", "bytes": ""}}, {"url": "x:y"}),
        (
            {"type": "function_response", "name": "f", "response": {"a": 1}},
            {"data": {"function_response": {"name": "f", "response": {"a": 1}}}},
        ),
    ],
)
def test_unusual_part_is_parsed_or_kept_as_data(part: Any, found: Any) -> None:
    message = {"role": "agent", "parts": [part]}
    assert v10.parse_result(SEND, message)["message"]["parts"] == [found]


@pytest.mark.promise("L1")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"id": "t", "status": {"state": "working"}, "final": False}, "statusUpdate"),
        ({"id": "t", "status": {"state": "working"}}, "statusUpdate"),
        ({"taskId": "t", "status": {"state": "working"}}, "statusUpdate"),
        ({"status_update": {"task_id": "t", "status": {}}}, "statusUpdate"),
        ({"kind": "status-update", "taskId": "t", "status": {}}, "statusUpdate"),
        ({"id": "t", "artifact": {"parts": [], "index": 2}}, "artifactUpdate"),
        ({"artifact_update": {"task_id": "t", "artifact": {}}}, "artifactUpdate"),
        ({"id": "t", "status": {}, "artifacts": []}, "task"),
        ({"id": "t", "contextId": "c", "status": {}}, "task"),
        ({"kind": "task", "id": "t", "status": {}}, "task"),
        ({"kind": "message", "parts": []}, "message"),
        ({"message": {"role": "agent", "parts": []}}, "message"),
        ({"role": "agent", "content": "hi"}, "message"),
    ],
)
def test_event_kind_is_inferred_from_its_members(value: Any, kind: str) -> None:
    for dialect in ALL:
        found = dialect.parse_event(value)
        assert list(found) == [kind]


@pytest.mark.promise("L1")
def test_chunks_of_0_1_form_one_artifact() -> None:
    artifact = {"parts": [{"type": "text", "text": "a"}], "index": 2, "append": True}
    update = v01.parse_event({"id": "t", "artifact": artifact})["artifactUpdate"]
    assert update["artifact"]["artifactId"] == "artifact-2"
    assert update["append"] is True
    last = v01.parse_event({"id": "t", "artifact": {**artifact, "lastChunk": True}})
    assert last["artifactUpdate"]["lastChunk"] is True
    assert last["artifactUpdate"]["artifact"]["artifactId"] == "artifact-2"


def test_final_event_flag_is_read() -> None:
    assert ends_stream({"kind": "status-update", "final": True})
    assert ends_stream({"statusUpdate": {"final": True}})
    assert ends_stream({"status_update": {"final": True}})
    assert not ends_stream({"final": "yes"})
    assert not ends_stream({"task": {}})
    assert not ends_stream([])


@pytest.mark.parametrize("value", [None, [], "x", 7, {}, {"x": 1}, {"id": 7.5, "kind": "task"}])
def test_non_response_is_refused(value: Any) -> None:
    for dialect in ALL:
        for op in (SEND, GET):
            with pytest.raises(A2aError) as caught:
                dialect.parse_result(op, value)
            assert caught.value.reason == "INVALID_AGENT_RESPONSE"


def test_artifact_is_not_a_response_to_a_message() -> None:
    with pytest.raises(A2aError):
        v10.parse_result(SEND, {"artifactUpdate": {"taskId": "t", "artifact": {}}})


def test_lists_cards_and_webhooks_are_parsed() -> None:
    task = {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}
    page = {"tasks": [task], "nextPageToken": "n", "pageSize": 1, "totalSize": 9}
    assert v10.parse_result(LIST, page) == page
    assert v03.parse_result(LIST, [task]) == {**page, "nextPageToken": "", "totalSize": 1}
    assert v10.parse_result(LIST, {}) == {
        "tasks": [],
        "nextPageToken": "",
        "pageSize": 0,
        "totalSize": 0,
    }
    with pytest.raises(A2aError):
        v10.parse_result(LIST, {"tasks": "x"})
    flat = {"taskId": "t", "id": "c", "url": "https://a.example/"}
    nested = {"taskId": "t", "pushNotificationConfig": {"id": "c", "url": "https://a.example/"}}
    assert v03.parse_result(PUSH_GET, nested) == flat
    assert v10.parse_result(PUSH_GET, flat) == flat
    assert v01.parse_result(
        PUSH_GET, {"id": "t", "pushNotificationConfig": {"url": "https://a.example/"}}
    ) == {"taskId": "t", "url": "https://a.example/"}
    for value in ([nested], {"configs": [flat]}):
        assert v03.parse_result(PUSH_LIST, value)["configs"] == [flat]
    assert v03.parse_result(PUSH_DELETE, None) == {}
    assert v10.parse_result(CARD, {"name": "x"}) == {"name": "x"}
    with pytest.raises(A2aError):
        v10.parse_result(CARD, [])
