"""The conformance agent behind a running hub: what the official kits rely on, and the parts of
1.0.1 that they do not test, over every binding.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from google.protobuf.json_format import MessageToDict, ParseDict
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub
from tests.peers import wire
from tests.peers.conformance_profiles import KEY, REQUIRED_EXTENSION, settings

ROOT = str(Path(__file__).resolve().parents[2])
V1 = {"A2A-Version": "1.0"}
MEDIA = "application/a2a+json"
BINDINGS = ("jsonrpc", "http", "grpc")


class Reply(NamedTuple):
    """An answer in the words of its binding: a status, and the object or the error's reason."""

    status: Any
    body: dict[str, Any]
    reason: str | None = None


# --- asking, the same over each binding -----------------------------------------------------------

ROUTES = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"),
    "CreateTaskPushNotificationConfig": ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
}
REQUESTS = {
    "SendStreamingMessage": pb.SendMessageRequest,
    "CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig,
}


def ask(
    hub: RunningHub,
    binding: str,
    operation: str,
    params: Mapping[str, Any],
    headers: Mapping[str, str] = V1,
) -> Reply:
    over = {"jsonrpc": over_jsonrpc, "http": over_http, "grpc": over_grpc}[binding]
    return over(hub, operation, params, {**V1, **hub.headers, **headers})


def over_jsonrpc(
    hub: RunningHub, operation: str, params: Mapping[str, Any], headers: Mapping[str, str]
) -> Reply:
    answer = wire.post(f"{hub.url}/a2a", wire.request(1, operation, params), headers)
    body = answer.messages()[0]
    if "error" in body:
        return Reply(body["error"]["code"], {}, reason_in(body["error"].get("data")))
    return Reply(answer.status, body["result"])


def over_http(
    hub: RunningHub, operation: str, params: Mapping[str, Any], headers: Mapping[str, str]
) -> Reply:
    method, path = ROUTES[operation]
    url = f"{hub.url}/a2a{path.format_map(params)}"
    answer = (
        wire.get(url, headers)
        if method == "GET"
        else wire.post(url, params, {"Content-Type": MEDIA, **headers})
    )
    if answer.headers["content-type"].startswith("text/event-stream"):
        return Reply(answer.status, answer.events()[0].json())
    assert answer.headers["content-type"] == MEDIA, answer
    body = answer.json()
    if "error" in body:
        assert body["error"]["code"] == answer.status
        return Reply(answer.status, {}, reason_in(body["error"].get("details")))
    return Reply(answer.status, body)


def over_grpc(
    hub: RunningHub, operation: str, params: Mapping[str, Any], headers: Mapping[str, str]
) -> Reply:
    card = hub.get("/.well-known/agent-card.json", V1).json()
    (where,) = {i["url"] for i in card["supportedInterfaces"] if i["protocolBinding"] == "GRPC"}
    kind = REQUESTS.get(operation) or getattr(pb, f"{operation}Request")
    metadata = [(name.lower(), value) for name, value in headers.items()]
    with grpc.insecure_channel(where) as channel:
        call = getattr(A2AServiceStub(channel), operation)
        try:
            answer = call(ParseDict(dict(params), kind()), metadata=metadata, timeout=60)
            if isinstance(answer, grpc.Call):  # a stream
                answer = next(answer)
        except grpc.RpcError as error:
            return Reply(error.code().name, {}, grpc_reason(error))
    return Reply("OK", MessageToDict(answer))


def reason_in(details: Any) -> str | None:
    for detail in details or []:
        if detail["@type"].endswith("google.rpc.ErrorInfo"):
            assert detail["domain"] == "a2a-protocol.org"
            return str(detail["reason"])
    return None


def grpc_reason(error: Any) -> str | None:
    from google.rpc import error_details_pb2, status_pb2

    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                found = error_details_pb2.ErrorInfo()
                if detail.Unpack(found):
                    return str(found.reason)
    return None


def message(words: str = "hello", *, id: str = "", **members: Any) -> dict[str, Any]:
    parts = [{"text": words}]
    sent = {"messageId": id or uuid.uuid4().hex, "role": "ROLE_USER", "parts": parts, **members}
    return {"message": sent}


def send(hub: RunningHub, params: Mapping[str, Any]) -> Any:
    return ask(hub, "jsonrpc", "SendMessage", params).body


# --- the hubs -------------------------------------------------------------------------------------


def running(profile: str) -> Iterator[RunningHub]:
    with run_module_hub([], settings(profile, grpc_port=0), {"PYTHONPATH": ROOT}) as hub:
        yield hub


@pytest.fixture(scope="module")
def full() -> Iterator[RunningHub]:
    yield from running("full")


@pytest.fixture(scope="module")
def bare() -> Iterator[RunningHub]:
    yield from running("bare")


# --- the triggers ---------------------------------------------------------------------------------

STATES = {
    "tck-complete-task": "COMPLETED",
    "tck-artifact-text": "COMPLETED",
    "tck-artifact-file": "COMPLETED",
    "tck-artifact-file-url": "COMPLETED",
    "tck-artifact-data": "COMPLETED",
    "tck-input-required": "INPUT_REQUIRED",
    "tck-auth-required": "AUTH_REQUIRED",
    "tck-reject-task": "REJECTED",
    "tck-task-failure": "FAILED",
}


@pytest.mark.promise("K1")
@pytest.mark.parametrize("by", ["id", "text"])
def test_conformance_trigger_works_by_message_id_and_text(full: RunningHub, by: str) -> None:
    for word, state in STATES.items():
        given = message(id=f"{word}-{uuid.uuid4()}") if by == "id" else message(f"{word} please")
        task = send(full, given)["task"]
        assert task["status"]["state"] == f"TASK_STATE_{state}", word


@pytest.mark.promise("K4")
def test_each_artifact_kind_is_returned_unchanged(full: RunningHub) -> None:
    parts = {
        kind: send(full, message(f"tck-artifact-{kind}"))["task"]["artifacts"][0]["parts"][0]
        for kind in ("text", "file", "file-url", "data")
    }

    assert parts["text"]["text"] == "Generated text content"
    assert parts["file"]["raw"] == "dGNr"
    assert parts["file"]["filename"] == "output.txt"
    assert parts["file"]["mediaType"] == "text/plain"
    assert parts["file-url"]["url"] == "https://example.com/output.txt"
    assert parts["file-url"]["filename"] == "output.txt"
    assert parts["data"]["data"] == {"key": "value", "count": 42}


@pytest.mark.promise("J3")
def test_text_reply_is_a_message_without_a_task(full: RunningHub) -> None:
    for binding in BINDINGS:
        said = ask(full, binding, "SendMessage", message("tck-message-response"))
        assert list(said.body) == ["message"], (binding, said)
        assert said.body["message"]["role"] == "ROLE_AGENT"


@pytest.mark.promise("K1")
def test_conversation_continues_until_done(full: RunningHub) -> None:
    task = send(full, message("tck-multi-turn start"))["task"]
    states = [task["status"]["state"]]
    for words in ("here is more", "done"):
        task = send(full, message(words, taskId=task["id"]))["task"]
        states.append(task["status"]["state"])

    assert states == [f"TASK_STATE_{s}" for s in ("INPUT_REQUIRED", "INPUT_REQUIRED", "COMPLETED")]


# --- what 1.0.1 says and the kit's branch does not ------------------------------------------------


def provoke(hub: RunningHub, binding: str, reason: str) -> Reply:
    """The error of that name, by what a client of the full profile can do."""
    done = send(hub, message("tck-complete-task"))["task"]["id"]
    foreign = [{"raw": "dGNr", "mediaType": "application/x-nobody-has-this"}]
    operation, params, headers = {
        "TASK_NOT_FOUND": ("GetTask", {"id": str(uuid.uuid4())}, {}),
        "TASK_NOT_CANCELABLE": ("CancelTask", {"id": done}, {}),
        "UNSUPPORTED_OPERATION": ("SubscribeToTask", {"id": done}, {}),
        "CONTENT_TYPE_NOT_SUPPORTED": ("SendMessage", message(parts=foreign), {}),
        "VERSION_NOT_SUPPORTED": ("SendMessage", message(), {"A2A-Version": "9.9"}),
    }[reason]
    return ask(hub, binding, operation, params, headers)


@pytest.mark.promise("J3")
@pytest.mark.parametrize(
    ("reason", "code", "http", "status"),
    [
        ("TASK_NOT_FOUND", -32001, 404, "NOT_FOUND"),
        ("TASK_NOT_CANCELABLE", -32002, 400, "FAILED_PRECONDITION"),
        ("UNSUPPORTED_OPERATION", -32004, 400, "FAILED_PRECONDITION"),
        ("CONTENT_TYPE_NOT_SUPPORTED", -32005, 400, "INVALID_ARGUMENT"),
        ("VERSION_NOT_SUPPORTED", -32009, 400, "FAILED_PRECONDITION"),
    ],
)
def test_an_error_has_the_codes_of_1_0_1_over_every_binding(
    full: RunningHub, reason: str, code: int, http: int, status: str
) -> None:
    expected = {"jsonrpc": code, "http": http, "grpc": status}
    for binding in BINDINGS:
        said = provoke(full, binding, reason)
        assert (said.status, said.reason) == (expected[binding], reason), binding


@pytest.mark.promise("I3", "J3")
def test_undeclared_capability_is_refused_over_every_binding(bare: RunningHub) -> None:
    task = send(bare, message("tck-input-required"))["task"]["id"]
    hook = {"taskId": task, "url": "http://127.0.0.1:9/hook"}
    asked = {
        "UNSUPPORTED_OPERATION": ("SendStreamingMessage", message(), -32004),
        "PUSH_NOTIFICATION_NOT_SUPPORTED": ("CreateTaskPushNotificationConfig", hook, -32003),
    }
    for reason, (operation, params, code) in asked.items():
        for binding in BINDINGS:
            said = ask(bare, binding, operation, params)
            expected = {"jsonrpc": code, "http": 400, "grpc": "FAILED_PRECONDITION"}[binding]
            assert (said.status, said.reason) == (expected, reason), binding


@pytest.mark.promise("J3")
def test_http_json_uses_its_media_type_for_errors_too(
    full: RunningHub,
) -> None:
    good = ask(full, "http", "SendMessage", message())  # asserts the media type
    bad = ask(full, "http", "GetTask", {"id": str(uuid.uuid4())})

    assert (good.status, bad.status) == (200, 404)


@pytest.mark.promise("J3")
def test_required_extension_is_enforced_over_every_binding() -> None:
    for hub in running("extension"):
        for binding in BINDINGS:
            without = ask(hub, binding, "SendMessage", message())
            known = {"A2A-Extensions": REQUIRED_EXTENSION}
            with_it = ask(hub, binding, "SendMessage", message(), known)
            expected = {"jsonrpc": -32008, "http": 400, "grpc": "FAILED_PRECONDITION"}[binding]
            assert (without.status, without.reason) == (expected, "EXTENSION_SUPPORT_REQUIRED")
            assert with_it.body["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.promise("J3", "I3")
def test_extended_card_needs_a_key() -> None:
    for hub in running("extended"):
        public = wire.get(f"{hub.url}/.well-known/agent-card.json", V1)
        assert public.status == 200
        assert public.json()["capabilities"]["extendedAgentCard"] is True
        for binding in BINDINGS:
            said = ask(hub, binding, "GetExtendedAgentCard", {})
            assert said.body.get("name") == "conformance", (binding, said)
        stranger = wire.get(f"{hub.url}/a2a/extendedAgentCard", V1)
        assert stranger.status == 401
        wrong = {**V1, "Authorization": f"Bearer {KEY}x"}
        assert wire.get(f"{hub.url}/a2a/extendedAgentCard", wrong).status == 401


@pytest.mark.promise("K1")
def test_repeated_message_id_makes_two_tasks_without_a_key(
    full: RunningHub,
) -> None:
    """The kit gives the same id to many messages."""
    same = f"tck-complete-task-{uuid.uuid4()}"
    first = send(full, message("one", id=same))["task"]["id"]
    second = send(full, message("two", id=same))["task"]["id"]

    assert first != second
