"""Tasks that are followed: what comes first, in which order, to how many, and from where on."""

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
    Grounds,
    Way,
    run_a2a_hub,
    steps,
    words,
)
from tests.live.lasting import until
from tests.peers import wire

pytestmark = pytest.mark.promise("J3")


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with run_a2a_hub() as made:
        yield made


@pytest.fixture
def actor(grounds: Grounds) -> Caller:
    return Caller(grounds.hub, "actor")


def state_of(status: Any) -> str:
    return str(status["state"]).removeprefix("TASK_STATE_").lower()


def told(event: Any) -> str:
    """An event of 1.0 in one word."""
    if "task" in event:
        return "task " + state_of(event["task"]["status"])
    if "artifactUpdate" in event:
        return "artifact " + words(event["artifactUpdate"]["artifact"])
    status = event["statusUpdate"]["status"]
    said = f" {words(status['message'])}" if "message" in status else ""
    return state_of(status) + said


def of(event: Any) -> str:
    """The id of the task that it is of."""
    inner = event.get("statusUpdate") or event.get("artifactUpdate")
    return str(inner["taskId"] if inner else event["task"]["id"])


# --- order ----------------------------------------------------------------------------------------


def test_the_task_comes_first_and_then_what_happens_in_order(actor: Caller) -> None:
    todo = steps(
        ["say", "one"],
        ["artifact", "A", {"name": "x", "id": "x", "last": False}],
        ["artifact", "B", {"id": "x", "append": True}],
        ["say", "two"],
        ["reply", "end"],
    )
    with actor.stream(STREAM, V10.params(todo)) as stream:
        events = V10.events(stream)
    assert [told(event) for _, event in events] == [
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
    assert [words(one) for one in task["artifacts"]] == ["A\nB", "end"]
    assert [words(one) for one in task["history"][1:]] == ["one", "two"]


def test_all_who_follow_hear_the_same_and_one_who_leaves_disturbs_nobody(
    grounds: Grounds, actor: Caller
) -> None:
    todo = steps(["wait", "s-1"], ["say", "one"], ["wait", "s-2"], ["say", "two"], ["reply", "z"])
    with actor.stream(STREAM, V10.params(todo)) as sending:
        id = of(V10.event(sending.next()))
        sending.next()
        with (
            actor.stream(SUBSCRIBE, {"id": id}) as stays,
            Caller(grounds.hub, way=REST10).stream(SUBSCRIBE, {"id": id}) as other,
        ):
            assert told(V10.event(stays.next())) == told(REST10.event(other.next()))
            with actor.stream(SUBSCRIBE, {"id": id}) as leaves:
                assert told(V10.event(leaves.next())) == "task working"
                grounds.open("s-1")
                assert told(V10.event(leaves.next())) == "working one"
            grounds.open("s-2")
            expected = V10.events(sending)
            assert [told(event) for _, event in expected] == [
                "working one",
                "working two",
                "artifact z",
                "completed",
            ]
            assert V10.events(stays) == expected
            assert REST10.events(other) == expected


def test_a_stream_of_an_answer_begins_with_the_answer_in_history(
    actor: Caller,
) -> None:
    asked = actor.send(steps(["say", "before"], ["ask", "Which?"]))
    with actor.stream(STREAM, V10.params("this", task=asked["id"])) as stream:
        events = [event for _, event in V10.events(stream)]
    assert [told(event) for event in events] == [
        "task working",
        "working",
        "artifact 2: this",
        "completed",
    ]
    said = [words(message) for message in events[0]["task"]["history"]]
    assert said == ["this"]
    whole = actor.get(asked["id"])["history"]
    assert [words(message) for message in whole[1:]] == ["before", "Which?", "this"]
    asked = actor.send(steps(["say", "before"], ["ask", "Which?"]))
    longer = {**V10.params("this", task=asked["id"]), "configuration": {"historyLength": 2}}
    with actor.stream(STREAM, longer) as stream:
        first = V10.event(stream.next())["task"]
    assert [words(message) for message in first["history"]] == ["Which?", "this"]


def test_a_stream_ends_where_input_is_needed_and_goes_on_where_a_login_is(
    grounds: Grounds, actor: Caller
) -> None:
    with actor.stream(STREAM, V10.params(steps(["ask", "Which?"]))) as stream:
        assert told(V10.events(stream)[-1][1]) == "input_required Which?"
    login = steps(["auth", "Log in", "https://example.com/login"])
    with actor.stream(STREAM, V10.params(login)) as stream:
        events = [V10.event(stream.next()) for _ in range(3)]
        assert told(events[-1]).startswith("auth_required Log in")
        url = events[-1]["statusUpdate"]["status"]["message"]["parts"][1]["data"]["url"]
        assert url == "https://example.com/login"
        assert actor.send("I am in", task=of(events[0]))["status"]["state"].endswith("COMPLETED")
        assert [told(event) for _, event in V10.events(stream)] == [
            "working",
            "artifact 2: I am in",
            "completed",
        ]


@pytest.mark.promise("K1")
def test_a_finished_or_unknown_task_cannot_be_followed(grounds: Grounds, actor: Caller) -> None:
    done = actor.send("x")["id"]
    wanted = {"0.3-rpc": -32004, "1.0-rpc": -32004, "0.3-rest": "UnsupportedOperationError"}
    for way in NEWER:
        late = way.ask(grounds.hub, SUBSCRIBE, {"id": done})
        assert way.code(late.error) == wanted.get(str(way), "FAILED_PRECONDITION")
        nobody = way.ask(grounds.hub, SUBSCRIBE, {"id": "nobody"})
        assert "nobody" in json.dumps(nobody.error)


# --- taking it up again ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", [V10, REST10, V03], ids=str)
def test_one_who_was_cut_off_goes_on_where_he_was_without_loss_or_repeat(
    grounds: Grounds, way: Way
) -> None:
    hub, key = grounds.hub, f"r-{way}"
    todo = steps(["say", "one"], ["say", "two"], ["wait", key], ["say", "three"], ["reply", "four"])
    with way.stream(hub, STREAM, way.params(todo), "actor") as stream:
        first = stream.next()
        id = way.task(way.event(first))["id"]
        heard = [(first.id, way.event(first)), *_read(way, stream, 2)]
    last = {"Last-Event-ID": heard[-1][0]}
    with way.stream(hub, SUBSCRIBE, {"id": id}, headers=last) as stream:
        heard += _read(way, stream, 1)
    grounds.open(key)
    last = {"Last-Event-ID": heard[-1][0]}
    with way.stream(hub, SUBSCRIBE, {"id": id}, headers=last) as stream:
        heard += way.events(stream)
    numbers = [int(id) for id, _ in heard]
    assert numbers == list(range(numbers[0], numbers[0] + 7))
    assert [word for word in ("one", "two", "three", "four") if word in json.dumps(heard)] == [
        "one",
        "two",
        "three",
        "four",
    ]
    for place, (number, _) in enumerate(heard):  # the same again, now that all is over
        with way.stream(hub, SUBSCRIBE, {"id": id}, headers={"Last-Event-ID": number}) as stream:
            assert stream.status == 200
            assert way.events(stream) == heard[place + 1 :]


def _read(way: Way, stream: wire.Stream, count: int) -> list[tuple[str, Any]]:
    events = [stream.next() for _ in range(count)]
    return [(event.id, way.event(event)) for event in events]


def test_a_last_event_id_that_is_none_begins_with_the_task(grounds: Grounds, actor: Caller) -> None:
    id = actor.send(steps(["wait", "never"]), at_once=True)["id"]
    for last in ("x", "-1", "999", "1.5", ""):
        with actor.stream(SUBSCRIBE, {"id": id}, headers={"Last-Event-ID": last}) as stream:
            assert told(V10.event(stream.next())) == "task working", last
    actor.ask(CANCEL, {"id": id})


# --- those who read slowly, or not at all ---------------------------------------------------------


def test_one_who_reads_nothing_holds_nobody_up(grounds: Grounds, actor: Caller) -> None:
    size = 40_000
    pieces = [["artifact", "x" * size, {"id": f"a{n}"}] for n in range(150)]
    todo = steps(["wait", "slow-go"], *pieces, ["reply", "end"])
    id = actor.send(todo, at_once=True)["id"]
    port = urlsplit(grounds.hub.url).port
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
            grounds.open("slow-go")
            begun = time.monotonic()
            events = V10.events(stream)
            assert len(events) == len(pieces) + 2 and told(events[-1][1]) == "completed"
        assert Caller(grounds.hub).send("hello")["status"]["state"].endswith("COMPLETED")
        assert time.monotonic() - begun < 10


@pytest.mark.promise("K1")
def test_one_who_hangs_up_leaves_the_task_at_work(grounds: Grounds, actor: Caller) -> None:
    with actor.stream(STREAM, V10.params(steps(["wait", "hang-1"], ["reply", "kept"]))) as stream:
        id = of(V10.event(stream.next()))
    method, path, body, headers = V10.request(
        SEND, V10.params(steps(["mark", "hang-2"], ["wait", "hang-3"], ["mark", "hang-4"])), "actor"
    )
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(grounds.hub.url).port)
    sent = {"Content-Type": "application/json", **headers}
    connection.request(method, path, json.dumps(body), sent)
    grounds.seen("hang-2")
    connection.close()
    for key in ("hang-1", "hang-3"):
        grounds.open(key)
    assert words(actor.until(id, "completed")["artifacts"][0]) == "kept"
    grounds.seen("hang-4")


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.promise("K2")
def test_silence_is_filled_streams_have_an_end_and_the_hub_ends_with_them() -> None:
    settings = {"stream_secs": 1, "idle_secs": 0.5}
    with run_a2a_hub(a2a=settings, env={"A2A_QUICK": "1"}) as grounds:
        actor = Caller(grounds.hub, "actor")
        id = actor.send(steps(["wait", "never"]), at_once=True)["id"]
        begun = time.monotonic()
        lines = _lines(grounds, id)
        assert 0.9 < time.monotonic() - begun < 5
        assert lines[0].startswith("id: ")
        assert lines.count(": keep-alive") >= 2, lines
        assert actor.get(id)["status"]["state"] == "TASK_STATE_WORKING"  # it runs: it is not idle
        asked = actor.send(steps(["ask", "Anybody?"]))["id"]
        gone = until(lambda: _if_failed(actor.get(asked)))
        assert "expired" in words(gone["status"]["message"])
        refused = actor.ask(SEND, V10.params("late", task=asked))
        assert refused.error["code"] == -32004
        with actor.stream(SUBSCRIBE, {"id": id}) as stream:
            stream.next()
            assert grounds.hub.stop() == 0
            assert [told(event) for _, event in V10.events(stream)] in ([], ["failed"])


def _if_failed(task: Any) -> Any:
    return task if task["status"]["state"] == "TASK_STATE_FAILED" else None


def _lines(grounds: Grounds, id: str) -> list[str]:
    """All lines of a subscription, comments among them."""
    method, path, body, headers = V10.request(SUBSCRIBE, {"id": id})
    sent = {"Content-Type": "application/json", **headers}
    data = json.dumps(body).encode()
    answer = wire.http_request(method, grounds.hub.url + path, data, sent)
    return [line for line in answer.body.decode().splitlines() if line]


def test_a_task_of_another_path_is_not_followed(grounds: Grounds, actor: Caller) -> None:
    id = actor.send(steps(["ask", "x"]))["id"]
    for op in (SUBSCRIBE, GET, CANCEL):
        assert Caller(grounds.hub, "echo").ask(op, {"id": id}).error["code"] == -32001
