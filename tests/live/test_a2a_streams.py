"""Task subscriptions: first event, order, number of subscribers, resumption."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.live.a2a_hub import (
    CANCEL,
    GET,
    NEWER,
    REST10,
    SEND,
    STREAM,
    SUBSCRIBE,
    V03,
    V10,
    Caller,
    DialectBinding,
    HubRig,
    run_a2a_hub,
    steps,
    text_from_parts,
)
from tests.live.module_hub import until
from tests.peers import wire

pytestmark = pytest.mark.promise("J3")


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_a2a_hub() as made:
        yield made


@pytest.fixture
def actor(rig: HubRig) -> Caller:
    return Caller(rig.hub, "actor")


def state_of(status: Any) -> str:
    return str(status["state"]).removeprefix("TASK_STATE_").lower()


def describe_event(event: Any) -> str:
    """An event of 1.0 in one word."""
    if "task" in event:
        return "task " + state_of(event["task"]["status"])
    if "artifactUpdate" in event:
        return "artifact " + text_from_parts(event["artifactUpdate"]["artifact"])
    status = event["statusUpdate"]["status"]
    said = f" {text_from_parts(status['message'])}" if "message" in status else ""
    return state_of(status) + said


def of(event: Any) -> str:
    """The id of the task that it is of."""
    inner = event.get("statusUpdate") or event.get("artifactUpdate")
    return str(inner["taskId"] if inner else event["task"]["id"])


# --- order ----------------------------------------------------------------------------------------


def test_stream_sends_the_task_then_events_in_order(actor: Caller) -> None:
    todo = steps(
        ["say", "one"],
        ["artifact", "A", {"name": "x", "id": "x", "last": False}],
        ["artifact", "B", {"id": "x", "append": True}],
        ["say", "two"],
        ["reply", "end"],
    )
    with actor.stream(STREAM, V10.params(todo)) as stream:
        events = V10.events(stream)
    assert [describe_event(event) for _, event in events] == [
        "task submitted",
        "working",
        "working one",
        "artifact A",
        "artifact B",
        "working two",
        "artifact end",
        "completed",
    ]
    numbers = [int(id) for id, _ in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(events)))
    assert len({of(event) for _, event in events}) == 1
    first, second = events[3][1]["artifactUpdate"], events[4][1]["artifactUpdate"]
    assert (first.get("append"), first.get("lastChunk")) == (None, None)
    assert (second["append"], second["lastChunk"]) == (True, True)
    task = actor.get(of(events[0][1]))
    assert [text_from_parts(one) for one in task["artifacts"]] == ["A\nB", "end"]
    assert [text_from_parts(one) for one in task["history"][1:]] == ["one", "two"]


def test_subscribers_get_equal_events_and_leave_independently(rig: HubRig, actor: Caller) -> None:
    todo = steps(["wait", "s-1"], ["say", "one"], ["wait", "s-2"], ["say", "two"], ["reply", "z"])
    with actor.stream(STREAM, V10.params(todo)) as sending:
        id = of(V10.event(sending.next()))
        sending.next()
        with (
            actor.stream(SUBSCRIBE, {"id": id}) as stays,
            Caller(rig.hub, binding=REST10).stream(SUBSCRIBE, {"id": id}) as other,
        ):
            assert describe_event(V10.event(stays.next())) == describe_event(
                REST10.event(other.next())
            )
            with actor.stream(SUBSCRIBE, {"id": id}) as leaves:
                assert describe_event(V10.event(leaves.next())) == "task working"
                rig.open("s-1")
                assert describe_event(V10.event(leaves.next())) == "working one"
            rig.open("s-2")
            expected = V10.events(sending)
            assert [describe_event(event) for _, event in expected] == [
                "working one",
                "working two",
                "artifact z",
                "completed",
            ]
            assert V10.events(stays) == expected
            assert REST10.events(other) == expected


def test_stream_of_an_answer_starts_with_the_answer_in_history(
    actor: Caller,
) -> None:
    asked = actor.send(steps(["say", "before"], ["ask", "Which?"]))
    with actor.stream(STREAM, V10.params("this", task=asked["id"])) as stream:
        events = [event for _, event in V10.events(stream)]
    assert [describe_event(event) for event in events] == [
        "task working",
        "working",
        "artifact 2: this",
        "completed",
    ]
    said = [text_from_parts(message) for message in events[0]["task"]["history"]]
    assert said == ["this"]
    whole = actor.get(asked["id"])["history"]
    assert [text_from_parts(message) for message in whole[1:]] == ["before", "Which?", "this"]
    asked = actor.send(steps(["say", "before"], ["ask", "Which?"]))
    longer = {**V10.params("this", task=asked["id"]), "configuration": {"historyLength": 2}}
    with actor.stream(STREAM, longer) as stream:
        first = V10.event(stream.next())["task"]
    assert [text_from_parts(message) for message in first["history"]] == ["Which?", "this"]


def test_stream_ends_at_input_required_and_continues_at_auth_required(
    rig: HubRig, actor: Caller
) -> None:
    with actor.stream(STREAM, V10.params(steps(["ask", "Which?"]))) as stream:
        assert describe_event(V10.events(stream)[-1][1]) == "input_required Which?"
    login = steps(["auth", "Log in", "https://example.com/login"])
    with actor.stream(STREAM, V10.params(login)) as stream:
        events = [V10.event(stream.next()) for _ in range(3)]
        assert describe_event(events[-1]).startswith("auth_required Log in")
        url = events[-1]["statusUpdate"]["status"]["message"]["parts"][1]["data"]["url"]
        assert url == "https://example.com/login"
        assert actor.send("I am in", task=of(events[0]))["status"]["state"].endswith("COMPLETED")
        assert [describe_event(event) for _, event in V10.events(stream)] == [
            "working",
            "artifact 2: I am in",
            "completed",
        ]


@pytest.mark.promise("K1")
def test_finished_or_unknown_task_cannot_be_subscribed(rig: HubRig, actor: Caller) -> None:
    done = actor.send("x")["id"]
    wanted = {"0.3-rpc": -32004, "1.0-rpc": -32004, "0.3-rest": "UnsupportedOperationError"}
    for binding in NEWER:
        late = binding.ask(rig.hub, SUBSCRIBE, {"id": done})
        assert binding.code(late.error) == wanted.get(str(binding), "FAILED_PRECONDITION")
        nobody = binding.ask(rig.hub, SUBSCRIBE, {"id": "nobody"})
        assert "nobody" in json.dumps(nobody.error)


# --- taking it up again ---------------------------------------------------------------------------


@pytest.mark.parametrize("binding", [V10, REST10, V03], ids=str)
def test_resumed_subscription_neither_loses_nor_repeats_events(
    rig: HubRig, binding: DialectBinding
) -> None:
    hub, key = rig.hub, f"r-{binding}"
    todo = steps(["say", "one"], ["say", "two"], ["wait", key], ["say", "three"], ["reply", "four"])
    with binding.stream(hub, STREAM, binding.params(todo), "actor") as stream:
        first = stream.next()
        id = binding.task(binding.event(first))["id"]
        received = [(first.id, binding.event(first)), *_read(binding, stream, 2)]
    last = {"Last-Event-ID": received[-1][0]}
    with binding.stream(hub, SUBSCRIBE, {"id": id}, headers=last) as stream:
        received += _read(binding, stream, 1)
    rig.open(key)
    last = {"Last-Event-ID": received[-1][0]}
    with binding.stream(hub, SUBSCRIBE, {"id": id}, headers=last) as stream:
        received += binding.events(stream)
    numbers = [int(id) for id, _ in received]
    assert numbers == list(range(numbers[0], numbers[0] + 7))
    assert [word for word in ("one", "two", "three", "four") if word in json.dumps(received)] == [
        "one",
        "two",
        "three",
        "four",
    ]
    for place, (number, _) in enumerate(received):  # the same again, now that all is over
        with binding.stream(
            hub, SUBSCRIBE, {"id": id}, headers={"Last-Event-ID": number}
        ) as stream:
            assert stream.status == 200
            assert binding.events(stream) == received[place + 1 :]


def _read(binding: DialectBinding, stream: wire.Stream, count: int) -> list[tuple[str, Any]]:
    events = [stream.next() for _ in range(count)]
    return [(event.id, binding.event(event)) for event in events]


def test_invalid_last_event_id_restarts_with_the_task(rig: HubRig, actor: Caller) -> None:
    id = actor.send(steps(["wait", "never"]), at_once=True)["id"]
    for last in ("x", "-1", "999", "1.5", ""):
        with actor.stream(SUBSCRIBE, {"id": id}, headers={"Last-Event-ID": last}) as stream:
            assert describe_event(V10.event(stream.next())) == "task working", last
    actor.ask(CANCEL, {"id": id})


# --- those who read slowly, or not at all ---------------------------------------------------------


def test_slow_subscriber_blocks_no_other(rig: HubRig, actor: Caller) -> None:
    size = 40_000
    pieces = [["artifact", "x" * size, {"id": f"a{n}"}] for n in range(150)]
    todo = steps(["wait", "slow-go"], *pieces, ["reply", "end"])
    id = actor.send(todo, at_once=True)["id"]
    port = urlsplit(rig.hub.url).port
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port))
        body = json.dumps(wire.request(1, "SubscribeToTask", {"id": id})).encode()
        deaf.sendall(
            b"POST /a2a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"A2A-Version: 1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        assert deaf.recv(16).startswith(b"HTTP/1.1 200")
        with actor.stream(SUBSCRIBE, {"id": id}) as stream:
            stream.next()
            rig.open("slow-go")
            begun = time.monotonic()
            events = V10.events(stream)
            assert len(events) == len(pieces) + 2 and describe_event(events[-1][1]) == "completed"
        assert Caller(rig.hub).send("hello")["status"]["state"].endswith("COMPLETED")
        assert time.monotonic() - begun < 30


@pytest.mark.promise("K1")
def test_disconnect_leaves_the_task_running(rig: HubRig, actor: Caller) -> None:
    with actor.stream(STREAM, V10.params(steps(["wait", "hang-1"], ["reply", "kept"]))) as stream:
        id = of(V10.event(stream.next()))
    method, path, body, headers = V10.request(
        SEND, V10.params(steps(["mark", "hang-2"], ["wait", "hang-3"], ["mark", "hang-4"])), "actor"
    )
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(rig.hub.url).port)
    sent = {"Content-Type": "application/json", **headers}
    connection.request(method, path, json.dumps(body), sent)
    rig.seen("hang-2")
    connection.close()
    for key in ("hang-1", "hang-3"):
        rig.open(key)
    assert text_from_parts(actor.until(id, "completed")["artifacts"][0]) == "kept"
    rig.seen("hang-4")


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.promise("K2")
def test_silent_streams_get_keep_alives_and_end_with_the_hub() -> None:
    settings = {"stream_secs": 1, "idle_secs": 0.5}
    with run_a2a_hub(a2a=settings, env={"A2A_QUICK": "1"}) as rig:
        actor = Caller(rig.hub, "actor")
        id = actor.send(steps(["wait", "never"]), at_once=True)["id"]
        begun = time.monotonic()
        lines = _lines(rig, id)
        assert 0.9 < time.monotonic() - begun < 30
        assert lines[0].startswith("id: ")
        assert lines.count(": keep-alive") >= 2, lines
        assert actor.get(id)["status"]["state"] == "TASK_STATE_WORKING"  # it runs: it is not idle
        asked = actor.send(steps(["ask", "Anybody?"]))["id"]
        gone = until(lambda: _if_failed(actor.get(asked)))
        assert "expired" in text_from_parts(gone["status"]["message"])
        refused = actor.ask(SEND, V10.params("late", task=asked))
        assert refused.error["code"] == -32004
        with actor.stream(SUBSCRIBE, {"id": id}) as stream:
            stream.next()
            assert rig.hub.stop() == 0
            assert [describe_event(event) for _, event in V10.events(stream)] in ([], ["failed"])


def _if_failed(task: Any) -> Any:
    return task if task["status"]["state"] == "TASK_STATE_FAILED" else None


def _lines(rig: HubRig, id: str) -> list[str]:
    """All lines of a subscription, comments among them."""
    method, path, body, headers = V10.request(SUBSCRIBE, {"id": id})
    sent = {"Content-Type": "application/json", **headers}
    data = json.dumps(body).encode()
    answer = wire.http_request(method, rig.hub.url + path, data, sent)
    return [line for line in answer.body.decode().splitlines() if line]


def test_task_of_another_agent_cannot_be_subscribed(rig: HubRig, actor: Caller) -> None:
    id = actor.send(steps(["ask", "x"]))["id"]
    for op in (SUBSCRIBE, GET, CANCEL):
        assert Caller(rig.hub, "echo").ask(op, {"id": id}).error["code"] == -32001
