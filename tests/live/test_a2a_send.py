"""Each operation in every dialect and binding: responses and errors in the dialect's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.a2a_hub import (
    AGENTS,
    BINDINGS,
    CANCEL,
    GET,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    PUSH_SET,
    REST03,
    REST10,
    SEND,
    STREAM,
    SUBSCRIBE,
    V01,
    V03,
    V10,
    Caller,
    DialectBinding,
    HubRig,
    agent_entry,
    reason,
    run_a2a_hub,
    steps,
)
from tests.live.conftest import RunningHub
from tests.peers import wire

NOWHERE = "http://127.0.0.1:9/hook"
each_way = pytest.mark.parametrize("binding", BINDINGS, ids=str)


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    plain = agent_entry("plain", "echo", output_modes=["text/plain"])
    agents = (*AGENTS, agent_entry("maker", "maker"), plain)
    with run_a2a_hub(agents, a2a={"push_private": True}) as made:
        yield made


@pytest.fixture
def served(rig: HubRig) -> RunningHub:
    return rig.hub


# --- each operation in each dialect ---------------------------------------------------------------


@pytest.mark.promise("J3")
@each_way
def test_message_is_answered_with_a_task_in_each_dialect(
    served: RunningHub, binding: DialectBinding
) -> None:
    reply = binding.ask(served, SEND, binding.params("hello"))
    task = binding.task(reply.value)
    assert task["status"]["state"] == binding.state("completed")
    (artifact,) = task["artifacts"]
    assert binding.said(artifact) == "hello"
    assert task["history"][0]["role"] == binding.message("x")["role"]
    assert task.get("kind") == ("task" if binding is V03 else None)
    assert ("sessionId" if binding is V01 else "contextId") in task
    assert binding.ask(served, GET, {"id": task["id"]}).value == task
    kind = reply.answer.headers["content-type"]
    assert kind == ("application/a2a+json" if binding is REST10 else "application/json")


@pytest.mark.promise("J3")
@each_way
def test_message_is_streamed_in_each_dialect(served: RunningHub, binding: DialectBinding) -> None:
    told = steps(["say", "half"], ["artifact", "made", {"name": "a", "id": "a"}], ["reply", "end"])
    with binding.stream(served, STREAM, binding.params(told), "actor") as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream"
        events = [event for _, event in binding.events(stream)]
    first = events[0] if binding is V01 else binding.task(events[0])
    assert first["status"]["state"] == binding.state("submitted")
    found = []
    for event in events[1:]:
        inner = event.get("statusUpdate") or event.get("artifactUpdate") or event
        if "artifact" in inner:
            found.append(f"{inner['artifact']['name']}: {binding.said(inner['artifact'])}")
        else:
            found.append(inner["status"]["state"])
            last = inner["status"]["state"] == binding.state("completed")
            assert inner.get("final") is (None if binding.version == "1.0" else last)
        if binding is V03:
            expected = "artifact-update" if "artifact" in inner else "status-update"
            assert inner["kind"] == expected
    working = binding.state("working")
    assert found == [working, working, "a: made", "response: end", binding.state("completed")]


@pytest.mark.promise("J3")
@each_way
def test_stream_of_an_answer_shows_the_task_working(
    served: RunningHub, binding: DialectBinding
) -> None:
    begun = binding.params(steps(["ask", "Which?"]))
    asked = binding.task(binding.ask(served, SEND, begun, "actor").value)
    assert asked["status"]["state"] == binding.state("input-required")
    with binding.stream(
        served, STREAM, binding.params("this", task=asked["id"]), "actor"
    ) as stream:
        events = [event for _, event in binding.events(stream)]
    first = events[0] if binding is V01 else binding.task(events[0])
    assert first["status"]["state"] == binding.state("working")
    assert binding.state("input-required") not in json.dumps(events)
    assert "2: this" in json.dumps(events)
    task = binding.ask(served, GET, {"id": asked["id"]}, "actor").value
    assert task["status"]["state"] == binding.state("completed")


@pytest.mark.promise("J3")
@each_way
def test_unavailable_output_media_types_are_not_an_error(
    served: RunningHub, binding: DialectBinding
) -> None:
    modes = {"acceptedOutputModes": ["application/json"]}
    wanted = {**binding.params("hello"), **(modes if binding is V01 else {"configuration": modes})}
    reply = binding.ask(served, SEND, wanted, "plain")
    assert reply.error is None
    assert binding.said(binding.task(reply.value)["artifacts"][0]) == "hello"


@pytest.mark.promise("J3")
@each_way
def test_function_returning_none_adds_no_artifact(
    served: RunningHub, binding: DialectBinding
) -> None:
    task = binding.task(binding.ask(served, SEND, binding.params("one"), "maker").value)
    assert [binding.said(artifact) for artifact in task["artifacts"]] == ["one"]
    with binding.stream(served, STREAM, binding.params("one"), "maker") as stream:
        events = json.dumps([event for _, event in binding.events(stream)])
    assert events.count('"artifact":') == 1
    bare = binding.task(binding.ask(served, SEND, binding.params("nothing"), "maker").value)
    assert bare["status"]["state"] == binding.state("completed")
    assert not bare.get("artifacts")


@pytest.mark.promise("J3", "J5")
@each_way
def test_task_is_subscribed_and_cancelled_in_every_dialect(
    rig: HubRig, binding: DialectBinding
) -> None:
    hub = rig.hub
    with binding.stream(hub, STREAM, binding.params(steps(["wait", "never"])), "actor") as sending:
        first = binding.event(sending.next())
        id = (first if binding is V01 else binding.task(first))["id"]
    with binding.stream(hub, SUBSCRIBE, {"id": id}) as stream:
        now = binding.event(stream.next())
        now = now if binding is V01 else binding.task(now)
        assert now["id"] == id and now["status"]["state"] == binding.state("working")
        cancelled = binding.ask(hub, CANCEL, {"id": id}).value
        assert cancelled["status"]["state"] == binding.state("canceled")
        ((_, last),) = binding.events(stream)
    last = last.get("statusUpdate", last)
    assert last["status"]["state"] == binding.state("canceled")
    rig.seen(f"{id}.cancelled")
    again = binding.ask(hub, CANCEL, {"id": id})
    wanted = {V01: -32002, V03: -32002, REST03: "TaskNotCancelableError", V10: -32002}
    assert binding.code(again.error) == wanted.get(binding, "FAILED_PRECONDITION")
    assert again.answer.status == {REST03: 409, REST10: 400}.get(binding, 200)


@pytest.mark.promise("J3")
def test_webhooks_are_set_read_listed_and_deleted_in_1_0(rig: HubRig) -> None:
    for binding in (V10, REST10):
        caller = Caller(rig.hub, "actor", binding=binding)
        id = caller.send(steps(["wait", "never"]), at_once=True)["id"]
        secret = {"scheme": "Bearer", "credentials": "c"}
        config = {"taskId": id, "id": "one", "url": NOWHERE, "token": "t", "authentication": secret}
        made = caller.ask(PUSH_SET, config).value
        assert {name: made[name] for name in ("taskId", "id", "url", "token")} == {
            name: config[name] for name in ("taskId", "id", "url", "token")
        }
        key = {"taskId": id, "id": "one"}
        assert caller.ask(PUSH_GET, key).value == made
        other = caller.ask(PUSH_SET, {"taskId": id, "url": NOWHERE}).value
        assert other["id"] not in ("", "one")
        listed = caller.ask(PUSH_LIST, {"taskId": id}).value
        assert {one["id"] for one in listed["configs"]} == {"one", other["id"]}
        assert caller.ask(PUSH_DELETE, key).value == {}
        assert caller.ask(PUSH_DELETE, key).value == {}  # it is gone either way
        gone = caller.ask(PUSH_GET, key)
        assert reason(gone.error) == "TASK_NOT_FOUND"
        caller.ask(CANCEL, {"id": id})


@pytest.mark.promise("J3")
def test_webhooks_are_set_read_listed_and_deleted_in_older_dialects(rig: HubRig) -> None:
    hub = rig.hub
    id = Caller(hub, "actor", binding=V03).send(steps(["wait", "never"]), at_once=True)["id"]
    inner = {"id": "one", "url": NOWHERE, "token": "t"}
    made = V03.ask(hub, PUSH_SET, {"taskId": id, "pushNotificationConfig": inner}).value
    assert made["taskId"] == id and made["pushNotificationConfig"]["url"] == NOWHERE
    key = {"id": id, "pushNotificationConfigId": "one"}
    assert V03.ask(hub, PUSH_GET, key).value == made
    assert V03.ask(hub, PUSH_LIST, {"id": id}).value == [made]
    by_rest = REST03.ask(hub, PUSH_GET, {"taskId": id, "id": "one"}).value
    assert by_rest["name"] == f"tasks/{id}/pushNotificationConfigs/one"
    assert by_rest["pushNotificationConfig"]["token"] == "t"
    assert REST03.ask(hub, PUSH_LIST, {"taskId": id}).value == {"configs": [by_rest]}
    deleted = V03.ask(hub, PUSH_DELETE, key)
    assert (deleted.value, deleted.error) == (None, None)
    body = {"taskId": id, "configId": "two", "config": {"pushNotificationConfig": {"url": NOWHERE}}}
    assert REST03.ask(hub, PUSH_SET, body).value["name"].endswith("/two")
    assert REST03.ask(hub, PUSH_DELETE, {"taskId": id, "id": "two"}).value == {}
    first = {"id": id, "pushNotificationConfig": {"url": NOWHERE}}
    assert V01.ask(hub, PUSH_SET, first).value == first
    assert V01.ask(hub, PUSH_GET, {"id": id}).value == first
    V03.ask(hub, CANCEL, {"id": id})


@pytest.mark.promise("J3")
@each_way
def test_errors_have_the_form_of_the_dialect(served: RunningHub, binding: DialectBinding) -> None:
    gone = binding.ask(served, GET, {"id": "no-such-task"})
    assert gone.answer.status == (404 if binding.rest else 200)
    done = binding.task(binding.ask(served, SEND, binding.params("x")).value)["id"]
    late = binding.ask(served, SEND, binding.params("more", task=done))
    bad = binding.params("x")
    bad["message"]["parts" if "parts" in bad["message"] else "content"] = []
    empty = binding.ask(served, SEND, bad)
    found = [binding.code(reply.error) for reply in (gone, late, empty)]
    if binding is REST10:
        assert found == ["NOT_FOUND", "FAILED_PRECONDITION", "INVALID_ARGUMENT"]
        error = gone.error["error"]
        assert error["code"] == 404 and "no-such-task" in error["message"]
        assert gone.answer.headers["content-type"] == "application/a2a+json"
    elif binding is REST03:
        assert found == ["TaskNotFoundError", "UnsupportedOperationError", "InvalidParamsError"]
        assert (late.answer.status, empty.answer.status) == (501, 400)
    else:
        assert found == [-32001, -32004, -32602]
        assert "no-such-task" in gone.error["message"]
    if binding.version == "1.0":
        details = (gone.error["data"] if binding is V10 else gone.error["error"]["details"])[0]
        assert details["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
        assert (details["reason"], details["domain"]) == ("TASK_NOT_FOUND", "a2a-protocol.org")
        assert [reason(one.error) for one in (late, empty)] == [
            "UNSUPPORTED_OPERATION",
            "INVALID_PARAMS",
        ]


@pytest.mark.promise("J3")
def test_json_rpc_errors_use_json_rpc_codes(served: RunningHub) -> None:
    url = f"{served.url}/a2a"

    def code(body: Any, **headers: str) -> tuple[int, Any]:
        answer = wire.post(url, body, headers)
        assert answer.status == 200
        found = answer.json()
        return found["error"]["code"], found["id"]

    assert code(b"{no json") == (-32700, None)
    assert code(b"[]") == (-32600, None)
    assert code({"jsonrpc": "1.0", "id": 3, "method": "GetTask"})[0] == -32600
    assert code({"jsonrpc": "2.0", "id": 3}) == (-32600, 3)
    for params in (42, "text", [1], True):
        assert code({"jsonrpc": "2.0", "id": 3, "method": "GetTask", "params": params}) == (
            -32602,
            3,
        )
    assert code(wire.request("x", "NoSuchMethod")) == (-32601, "x")
    assert code(wire.request(4, "tasks/nonsense")) == (-32601, 4)
    assert code(wire.request(4, "GetTask", {})) == (-32602, 4)
    assert code(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"GetTask"}')[0] == -32600
    plain = wire.http_request("POST", url, b"{}", {"Content-Type": "text/plain"})
    assert plain.json()["error"]["code"] == -32005
    assert wire.get(url).status == 405 and wire.get(url).headers["allow"] == "POST"
    notified = wire.post(url, wire.notification("SendMessage", V10.params("x")))
    assert notified.status == 204 and notified.body == b""
    bad_key = {"Idempotency-Key": "x" * 257}
    refused = wire.post(url, wire.notification("SendMessage", V10.params("x")), bad_key)
    assert (refused.status, refused.json()["error"]["code"]) == (200, -32600)


@pytest.mark.promise("J3")
def test_near_dialect_clients_are_answered(served: RunningHub) -> None:
    """An id that is null, messages without any kind, JSON-RPC where others have plain HTTP."""
    message = {"messageId": "m", "role": "user", "parts": [{"text": "hello"}]}

    def ask(path: str, id: Any, method: str, params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        answer = wire.post(f"{served.url}{path}", body).json()
        assert answer["id"] == id and "error" not in answer, answer
        return answer["result"]

    sent = ask("/a2a/", "a", "message/send", {"message": message})
    task = sent["task"]  # as fasta2a reads it
    assert task["status"]["state"] == "completed" and task["history"][0]["role"] == "user"
    assert task["artifacts"][0]["parts"] == [{"text": "hello"}]
    assert (sent["kind"], sent["id"]) == ("task", task["id"])  # as others read it
    assert sent["artifacts"][0]["parts"] == [{"kind": "text", "text": "hello"}]
    assert ask("/a2a/", None, "tasks/get", {"id": task["id"]})["id"] == task["id"]
    streamed = wire.request(1, "message/stream", {"message": message})
    with wire.stream("POST", f"{served.url}/a2a/", streamed, {}) as stream:
        events = [event for _, event in V03.events(stream)]
    assert [next(name for name in one if name.endswith(("task", "Update"))) for one in events] == [
        "task",
        "statusUpdate",
        "artifactUpdate",
        "statusUpdate",
    ]
    assert events[-1]["statusUpdate"]["status"]["state"] == "completed" and events[-1]["final"]
    for path in ("/a2a/echo/message/send", "/a2a/echo/v1/message:send", "/a2a/v1/message:send"):
        found = ask(path, 5, "message/send", {"message": V03.message("hello")})
        assert found["status"]["state"] == "completed" and "task" not in found


@pytest.mark.promise("J3")
def test_unknown_paths_and_wrong_methods_are_reported(served: RunningHub) -> None:
    version = {"A2A-Version": "1.0"}
    lost = served.get("/a2a/tasks/x/nothing", version)
    assert lost.status == 404 and lost.json()["error"]["status"] == "NOT_FOUND"
    wrong = served.get("/a2a/message:send", version)
    assert wrong.status == 405 and wrong.headers["allow"] == "POST"
    nobody = wire.post(f"{served.url}/a2a/nobody", wire.request(1, "SendMessage", V10.params("x")))
    assert nobody.json()["error"]["code"] == -32602
    assert 'agent "nobody" was not found' in nobody.json()["error"]["message"]
    many = served.get("/a2a/tasks/x?" + "&".join(f"a{n}=1" for n in range(40)))
    assert many.status == 400 and "more than 32" in many.json()["error"]["message"]


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.promise("J3")
def test_named_version_wins_over_the_method(served: RunningHub) -> None:
    url = f"{served.url}/a2a"
    message = wire.request(1, "tasks/get", {"id": "none"})
    for version, code in (("1.0", -32601), ("0.3", -32001), ("0.2.5", -32001), ("0.1", -32001)):
        answer = wire.post(url, message, {"A2A-Version": version}).json()
        assert answer["error"]["code"] == code, version
    old = wire.post(url, wire.request(1, "SendMessage", V10.params("x")), {"A2A-Version": "0.3"})
    assert old.json()["error"]["code"] == -32601
    good = wire.post(f"{url}?A2A-Version=1.0.7", wire.request(1, "GetTask", {"id": "none"}))
    assert good.json()["error"]["code"] == -32001


@pytest.mark.promise("J3")
@pytest.mark.parametrize("version", ["1.7", "2.0", "0.4", "one", "1"])
def test_unsupported_version_is_refused_on_every_operation(
    served: RunningHub, version: str
) -> None:
    named = {"A2A-Version": version}
    for method in ("SendMessage", "GetTask", "ListTasks", "CancelTask", "message/send"):
        message = wire.request(1, method, V10.params("x"))
        for answer in (
            wire.post(f"{served.url}/a2a", message, named),
            wire.post(f"{served.url}/a2a?A2A-Version={version}", message),
        ):
            error = answer.json()["error"]
            assert error["code"] == -32009 and f'"{version}"' in error["message"]
    for path in ("/a2a/tasks", "/a2a/tasks/x", "/a2a/v1/tasks/x", "/a2a/tasks/x:subscribe"):
        assert served.get(path, named).status == 400, path
    card = served.get("/.well-known/agent-card.json", named)
    assert card.status == 400 and f'"{version}"' in card.json()["error"]["message"]


@pytest.mark.promise("J3")
def test_message_form_decides_the_version_unless_required(rig: HubRig) -> None:
    url = f"{rig.hub.url}/a2a"
    assert (
        "task" in wire.post(url, wire.request(1, "SendMessage", V10.params("x"))).json()["result"]
    )
    with run_a2a_hub(a2a={"require_version": True}) as strict:
        url = f"{strict.hub.url}/a2a"
        refused = wire.post(url, wire.request(1, "SendMessage", V10.params("x"))).json()
        assert refused["error"]["code"] == -32009
        rest = wire.post(f"{url}/message:send", V10.params("x"))
        assert rest.status == 400 and reason(rest.json()) == "VERSION_NOT_SUPPORTED"
        for binding in BINDINGS:  # the rest is unmistakable, or says it
            task = binding.task(binding.ask(strict.hub, SEND, binding.params("x")).value)
            assert task["status"]["state"] == binding.state("completed")
