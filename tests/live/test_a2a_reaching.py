"""What a message reaches, what is demanded of it there, and what an agent may make of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.a2a_hub import (
    AGENTS,
    CANCEL,
    CARD,
    GET,
    LIST,
    NEWER,
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
    WAYS,
    Caller,
    Grounds,
    agent_entry,
    reason,
    run_a2a_hub,
    steps,
    words,
)
from tests.live.conftest import RunningHub

EXTENSION = "urn:example:strict"
MORE = (
    agent_entry("narrow", "echo", input_modes=["text/plain"], output_modes=["text/plain"]),
    agent_entry("quiet", "actor", streaming=False, push=False),
    agent_entry("strict", "echo", extensions=[{"uri": EXTENSION, "required": True}]),
    agent_entry("counter", "counter", skills=[{"id": "count"}]),
    agent_entry("my oddly-named 1", "oddly"),
    agent_entry("leaving", "leaving"),
)
NOWHERE = "http://127.0.0.1:9/hook"


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with run_a2a_hub((*AGENTS, *MORE), a2a={"push_private": True}) as made:
        yield made


@pytest.fixture
def served(grounds: Grounds) -> RunningHub:
    return grounds.hub


# --- what it reaches ------------------------------------------------------------------------------


def mirrored(reply: Any) -> Any:
    """What the agent `mirror` saw, of an answer of 1.0."""
    assert reply.error is None, reply.error
    (artifact,) = reply.value["task"]["artifacts"]
    return artifact["parts"][0]["data"]


@pytest.mark.promise("J4")
def test_the_target_is_of_the_path_or_the_tenant_or_the_metadata_or_the_default(
    served: RunningHub,
) -> None:
    caller = Caller(served)
    assert words(caller.send("default")["artifacts"][0]) == "default"
    params = V10.params("a")
    assert mirrored(caller.ask(SEND, params, agent="mirror"))["text"] == "a"
    assert mirrored(caller.ask(SEND, {**params, "tenant": "mirror"}))["text"] == "a"
    of_message = V10.params("a")
    of_message["message"]["metadata"] = {"agent": "mirror", "k": 1}
    assert mirrored(caller.ask(SEND, of_message))["metadata"] == {"agent": "mirror", "k": 1}
    of_request = {**params, "metadata": {"agent": "mirror"}}
    assert mirrored(caller.ask(SEND, of_request))["text"] == "a"
    path_wins = {**params, "metadata": {"agent": "actor"}}
    assert mirrored(caller.ask(SEND, path_wins, agent="mirror"))["text"] == "a"
    both = caller.ask(SEND, {**params, "tenant": "echo"}, agent="mirror")
    assert both.error["code"] == -32602 and "tenant" in both.error["message"]
    unknown = caller.ask(SEND, {**params, "tenant": "nobody"})
    assert unknown.error["code"] == -32602


@pytest.mark.promise("J4")
def test_a_skill_that_is_named_reaches_the_agent(served: RunningHub) -> None:
    for metadata in (
        {"skillId": "look"},
        {"skill": "look"},
        {"urn:dragoman:a2a:skill:v1": {"skillId": "look"}},
    ):
        params = V10.params("a")
        params["message"]["metadata"] = metadata
        assert mirrored(Caller(served, "mirror").ask(SEND, params))["skill"] == "look"
    seen = V03.message("a", skill={"skillId": "look"})
    answer = V03.ask(served, SEND, {"message": seen}, "mirror").value
    assert answer["artifacts"][0]["parts"][0]["data"]["skill"] == "look"


@pytest.mark.promise("J4", "K4")
def test_all_kinds_of_parts_reach_the_agent_and_come_back_as_they_were(served: RunningHub) -> None:
    parts = [
        {"text": "one"},
        {"text": "two", "mediaType": "text/markdown", "metadata": {"k": 1}},
        {"raw": "aGVsbG8=", "filename": "a.bin", "mediaType": "application/x-thing"},
        {"raw": "iVBORw==", "mediaType": "image/png"},
        {"url": "https://example.com/b.pdf", "filename": "b.pdf", "mediaType": "application/pdf"},
        {"data": {"n": [1, 2]}},
        {"data": 17},
        {"data": None},
    ]
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": parts, "contextId": "ctx"}
    reply = Caller(served, "mirror").ask(SEND, {"message": message})
    saw = mirrored(reply)
    kinds = [part["type"] for part in saw["parts"]]
    assert kinds == [*["text"] * 2, "resource", "image", "resource_link", *["data"] * 3]
    assert saw["text"] == "one\ntwo" and saw["data"] == {"n": [1, 2]}
    assert saw["parts"][6]["data"] == 17 and saw["parts"][7]["data"] is None
    assert "aGVsbG8=" in json.dumps(saw["parts"][2])
    assert saw["parts"][3]["data"] == "iVBORw==" and saw["parts"][3]["mimeType"] == "image/png"
    assert saw["parts"][4]["uri"] == "https://example.com/b.pdf"
    assert (saw["context"], saw["message_id"], saw["turn"]) == ("ctx", "m-1", 1)
    task = reply.value["task"]
    assert saw["task"] == task["id"]
    assert task["history"][0]["parts"] == parts


@pytest.mark.promise("J3")
def test_media_types_that_an_agent_does_not_take_are_refused(served: RunningHub) -> None:
    caller = Caller(served, "narrow")
    wrong = caller.ask(SEND, V10.params({"some": "data"}))
    assert wrong.error["code"] == -32005 and '"application/json"' in wrong.error["message"]
    by_rest = Caller(served, "narrow", way=REST10).ask(SEND, V10.params({"some": "data"}))
    assert by_rest.answer.status == 400 and reason(by_rest.error) == "CONTENT_TYPE_NOT_SUPPORTED"
    old = V03.ask(served, SEND, V03.params({"some": "data"}), "narrow")
    assert old.error["code"] == -32005


@pytest.mark.promise("J3", "I3")
def test_what_a_card_denies_is_refused(served: RunningHub) -> None:
    card = served.api("/a2a/quiet/.well-known/agent-card.json")
    assert card["capabilities"]["streaming"] is False
    assert card["capabilities"]["pushNotifications"] is False
    caller = Caller(served, "quiet")
    task = caller.send(steps(["ask", "what?"]))
    for op, params in ((STREAM, V10.params("x")), (SUBSCRIBE, {"id": task["id"]})):
        assert caller.ask(op, params).error["code"] == -32004
        assert Caller(served, "quiet", way=REST10).ask(op, params).answer.status == 400
    key = {"taskId": task["id"], "id": "one"}
    for op, params in (
        (PUSH_SET, {**key, "url": NOWHERE}),
        (PUSH_GET, key),
        (PUSH_LIST, {"taskId": task["id"]}),
        (PUSH_DELETE, key),
    ):
        assert caller.ask(op, params).error["code"] == -32003, op
    config = {"taskPushNotificationConfig": {"url": NOWHERE}}
    told = caller.ask(SEND, {**V10.params("x"), "configuration": config})
    assert told.error["code"] == -32003
    hidden = Caller(served).ask(PUSH_SET, {**key, "url": NOWHERE})  # by another agent's path
    assert hidden.error["code"] == -32003
    assert caller.ask(CARD, {}).error["code"] == -32004
    old = V03.ask(served, STREAM, V03.params("x"), "quiet")
    assert old.error["code"] == -32004


@pytest.mark.promise("J3")
def test_an_extension_that_is_required_must_be_named(served: RunningHub) -> None:
    caller = Caller(served, "strict")
    for op, params in ((SEND, V10.params("x")), (GET, {"id": "x"}), (LIST, {})):
        refused = caller.ask(op, params)
        assert refused.error["code"] == -32008 and EXTENSION in refused.error["message"]
    assert Caller(served).ask(SEND, {**V10.params("x"), "tenant": "strict"}).error["code"] == -32008
    down = V03.ask(served, SEND, V03.params("x"), "strict")
    assert down.error["code"] == -32603  # 0.3 has no code for it
    for name in ("A2A-Extensions", "X-A2A-Extensions"):
        named = {name: f"urn:example:unknown, {EXTENSION}"}
        good = caller.ask(SEND, V10.params("x"), headers=named)
        assert good.error is None
        assert good.answer.headers["a2a-extensions"] == EXTENSION
    by_tenant = {**V10.params("x"), "tenant": "strict"}
    good = Caller(served).ask(SEND, by_tenant, headers={"A2A-Extensions": EXTENSION})
    assert good.answer.headers["a2a-extensions"] == EXTENSION


@pytest.mark.promise("J3")
def test_a_required_extension_is_not_gone_round_by_naming_the_agent_in_metadata(
    served: RunningHub,
) -> None:
    params = {**V10.params("x"), "metadata": {"agent": "strict"}}
    assert Caller(served).ask(SEND, params).error["code"] == -32008
    streamed = {**V10.params("x"), "metadata": {"agent": "quiet"}}
    assert Caller(served).ask(STREAM, streamed).error["code"] == -32004


# --- what an agent may answer ---------------------------------------------------------------------


@pytest.mark.promise("K1")
def test_what_an_agent_does_is_what_the_task_becomes(served: RunningHub) -> None:
    caller = Caller(served, "actor")
    for step, state, said in (
        (["fail", "no disk"], "failed", 'agent "actor" failed: no disk'),
        (["decline", "not on Sundays"], "rejected", "not on Sundays"),
        (["failed", "I could not"], "failed", "I could not"),
        (["odd"], "failed", "an invalid answer"),
        (["ask", "Which?"], "input-required", "Which?"),
        (["auth", "Log in first", "https://example.com/login"], "auth-required", "Log in first"),
    ):
        task = caller.send(steps(step))
        assert task["status"]["state"] == V10.state(state), step
        assert said in words(task["status"]["message"]), step
        assert task["status"]["message"]["role"] == "ROLE_AGENT"
        assert "artifacts" not in task


@pytest.mark.promise("K1")
def test_what_an_agent_should_not_do_hurts_its_own_task_alone(served: RunningHub) -> None:
    caller = Caller(served, "my oddly-named 1")
    for text, state, said in (
        ("time", "completed", '"2026-01-31T00:00:00Z"'),
        ("object", "failed", "not JSON"),
        ("artifact", "failed", "not JSON"),
        ("half", "completed", "half ?"),
        ("file", "failed", "no file caf?"),
        ("exit", "failed", "exit the hub"),
        ("stop", "failed", "StopIteration"),
    ):
        task = caller.send(text)
        assert task["status"]["state"] == V10.state(state), (text, task)
        assert said in json.dumps(task), (text, task)
        assert caller.get(task["id"]) == task
    task = Caller(served, "leaving").send("bye")
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "exit the hub" in words(task["status"]["message"])


@pytest.mark.promise("J5")
def test_a_function_that_hangs_keeps_neither_its_task_nor_the_hub(grounds: Grounds) -> None:
    agents = (agent_entry("oddly", "oddly"),)
    with run_a2a_hub(agents) as other:
        caller = Caller(other.hub)
        one, two = (caller.send("hang", at_once=True)["id"] for _ in range(2))
        for id in (one, two):
            other.seen(f"{id}.hangs")
        assert caller.ask(CANCEL, {"id": one}).value["status"]["state"] == "TASK_STATE_CANCELED"
        assert caller.send("x")["status"]["state"] == "TASK_STATE_COMPLETED"
        begun = time.monotonic()
        assert other.hub.stop() == 0
        assert time.monotonic() - begun < 5


@pytest.mark.promise("K1")
def test_the_first_dialect_knows_neither_rejected_nor_auth_required(served: RunningHub) -> None:
    for step, state in (
        (["decline", "no"], "failed"),
        (["auth", "Log in", "https://example.com"], "input-required"),
    ):
        task = V01.ask(served, SEND, V01.params(steps(step)), "actor").value
        assert task["status"]["state"] == state
    for step, state in ((["decline", "no"], "rejected"), (["auth", "Log in", ""], "auth-required")):
        for way in NEWER:
            task = way.task(way.ask(served, SEND, way.params(steps(step)), "actor").value)
            assert task["status"]["state"] == way.state(state)


@pytest.mark.promise("J3")
def test_a_direct_reply_is_a_message_and_no_task(served: RunningHub) -> None:
    told = steps(["direct", "just a word"])
    caller = Caller(served, "actor")
    before = caller.ask(LIST, {}).value["totalSize"]
    value = caller.ask(SEND, V10.params(told)).value
    assert set(value) == {"message"}
    assert value["message"]["role"] == "ROLE_AGENT" and words(value["message"]) == "just a word"
    assert caller.ask(LIST, {}).value["totalSize"] == before
    old = V03.ask(served, SEND, V03.params(told), "actor").value
    assert old["kind"] == "message" and old["parts"][0]["text"] == "just a word"
    first = V01.ask(served, SEND, V01.params(told), "actor").value
    assert first["status"]["state"] == "completed"
    for way in (V10, V03, REST03, REST10):
        with way.stream(served, STREAM, way.params(told), "actor") as stream:
            ((_, only),) = way.events(stream)
        message = only.get("message", only)
        assert "just a word" in json.dumps(message)


@pytest.mark.promise("K1", "J4")
def test_a_question_is_answered_and_the_task_goes_on_in_every_dialect(served: RunningHub) -> None:
    for way in WAYS:
        caller = Caller(served, "counter", way=way)
        asked = caller.send("some")
        assert asked["status"]["state"] == way.state("input-required")
        assert "How many?" in json.dumps(asked["status"]["message"])
        done = caller.send("3", task=asked["id"])
        assert done["id"] == asked["id"]
        assert done["status"]["state"] == way.state("completed")
        assert '"n": 3' in json.dumps(done["artifacts"])


@pytest.mark.promise("K1")
def test_one_who_does_not_wait_gets_the_task_at_work(grounds: Grounds) -> None:
    for way in NEWER:
        caller = Caller(grounds.hub, "actor", way=way)
        key = f"gate-{way}"
        task = caller.send(steps(["wait", key]), at_once=True)
        assert task["status"]["state"] in (way.state("working"), way.state("submitted"))
        grounds.open(key)
        caller.until(task["id"], "completed")


@pytest.mark.promise("M2")
def test_an_agent_of_others_that_cannot_be_used_stops_nobody_and_says_why() -> None:
    far = (
        '[[a2a.external_agents]]\nname = "far"\nurl = "https://far.example"\n'
        'headers = { Authorization = "Bearer ${NOBODY_SET_THIS}" }\n'
    )
    with run_a2a_hub(agents=(*AGENTS, far)) as found:
        assert Caller(found.hub).send("hello")["status"]["state"] == "TASK_STATE_COMPLETED"
        failed = found.hub.api("/api/status")["agents"]["failed"]
        assert failed["far"].startswith('agent "far" needs the environment variable NOBODY_SET_T')
        refused = Caller(found.hub, "far").ask(SEND, V10.params("hello"))
        assert "is not available" in refused.error["message"]
