"""Routing of A2A messages, requirements of the target, and how agents shape the task."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.a2a_hub import (
    AGENTS,
    BINDINGS,
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
    Caller,
    HubRig,
    agent_entry,
    reason,
    run_a2a_hub,
    steps,
    text_from_parts,
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
def rig() -> Iterator[HubRig]:
    with run_a2a_hub((*AGENTS, *MORE), a2a={"push_private": True}) as made:
        yield made


@pytest.fixture
def served(rig: HubRig) -> RunningHub:
    return rig.hub


# --- what it reaches ------------------------------------------------------------------------------


def mirrored(reply: Any) -> Any:
    """What the agent `mirror` saw, of an answer of 1.0."""
    assert reply.error is None, reply.error
    (artifact,) = reply.value["task"]["artifacts"]
    return artifact["parts"][0]["data"]


@pytest.mark.promise("J4")
def test_target_is_chosen_by_path_tenant_metadata_then_default(
    served: RunningHub,
) -> None:
    caller = Caller(served)
    assert text_from_parts(caller.send("default")["artifacts"][0]) == "default"
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
def test_named_skill_reaches_the_agent(served: RunningHub) -> None:
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
def test_all_part_kinds_round_trip_through_the_agent(served: RunningHub) -> None:
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
def test_unsupported_media_types_are_refused(served: RunningHub) -> None:
    caller = Caller(served, "narrow")
    wrong = caller.ask(SEND, V10.params({"some": "data"}))
    assert wrong.error["code"] == -32005 and '"application/json"' in wrong.error["message"]
    by_rest = Caller(served, "narrow", binding=REST10).ask(SEND, V10.params({"some": "data"}))
    assert by_rest.answer.status == 400 and reason(by_rest.error) == "CONTENT_TYPE_NOT_SUPPORTED"
    old = V03.ask(served, SEND, V03.params({"some": "data"}), "narrow")
    assert old.error["code"] == -32005


@pytest.mark.promise("J3", "I3")
def test_capability_denied_by_the_card_is_refused(served: RunningHub) -> None:
    card = served.api("/a2a/quiet/.well-known/agent-card.json")
    assert card["capabilities"]["streaming"] is False
    assert card["capabilities"]["pushNotifications"] is False
    caller = Caller(served, "quiet")
    task = caller.send(steps(["ask", "what?"]))
    for op, params in ((STREAM, V10.params("x")), (SUBSCRIBE, {"id": task["id"]})):
        assert caller.ask(op, params).error["code"] == -32004
        assert Caller(served, "quiet", binding=REST10).ask(op, params).answer.status == 400
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
def test_required_extension_must_be_named(served: RunningHub) -> None:
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
def test_required_extension_cannot_be_bypassed_by_metadata(
    served: RunningHub,
) -> None:
    params = {**V10.params("x"), "metadata": {"agent": "strict"}}
    assert Caller(served).ask(SEND, params).error["code"] == -32008
    streamed = {**V10.params("x"), "metadata": {"agent": "quiet"}}
    assert Caller(served).ask(STREAM, streamed).error["code"] == -32004


# --- what an agent may answer ---------------------------------------------------------------------


@pytest.mark.promise("K1")
def test_agent_actions_determine_the_task_state(served: RunningHub) -> None:
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
        assert said in text_from_parts(task["status"]["message"]), step
        assert task["status"]["message"]["role"] == "ROLE_AGENT"
        assert "artifacts" not in task


@pytest.mark.promise("K1")
def test_invalid_agent_actions_affect_only_their_task(served: RunningHub) -> None:
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
    assert "exit the hub" in text_from_parts(task["status"]["message"])


@pytest.mark.promise("J5")
def test_hanging_function_blocks_neither_task_nor_hub(rig: HubRig) -> None:
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
        assert time.monotonic() - begun < 30


@pytest.mark.promise("K1")
def test_dialect_0_1_maps_rejected_and_auth_required(served: RunningHub) -> None:
    for step, state in (
        (["decline", "no"], "failed"),
        (["auth", "Log in", "https://example.com"], "input-required"),
    ):
        task = V01.ask(served, SEND, V01.params(steps(step)), "actor").value
        assert task["status"]["state"] == state
    for step, state in ((["decline", "no"], "rejected"), (["auth", "Log in", ""], "auth-required")):
        for binding in NEWER:
            task = binding.task(
                binding.ask(served, SEND, binding.params(steps(step)), "actor").value
            )
            assert task["status"]["state"] == binding.state(state)


@pytest.mark.promise("J3")
def test_direct_reply_is_a_message_without_a_task(served: RunningHub) -> None:
    told = steps(["direct", "just a word"])
    caller = Caller(served, "actor")
    before = caller.ask(LIST, {}).value["totalSize"]
    value = caller.ask(SEND, V10.params(told)).value
    assert set(value) == {"message"}
    assert (
        value["message"]["role"] == "ROLE_AGENT"
        and text_from_parts(value["message"]) == "just a word"
    )
    assert caller.ask(LIST, {}).value["totalSize"] == before
    old = V03.ask(served, SEND, V03.params(told), "actor").value
    assert old["kind"] == "message" and old["parts"][0]["text"] == "just a word"
    first = V01.ask(served, SEND, V01.params(told), "actor").value
    assert first["status"]["state"] == "completed"
    for binding in (V10, V03, REST03, REST10):
        with binding.stream(served, STREAM, binding.params(told), "actor") as stream:
            ((_, only),) = binding.events(stream)
        message = only.get("message", only)
        assert "just a word" in json.dumps(message)


@pytest.mark.promise("K1", "J4")
def test_question_is_answered_and_the_task_continues_in_every_dialect(served: RunningHub) -> None:
    for binding in BINDINGS:
        caller = Caller(served, "counter", binding=binding)
        asked = caller.send("some")
        assert asked["status"]["state"] == binding.state("input-required")
        assert "How many?" in json.dumps(asked["status"]["message"])
        done = caller.send("3", task=asked["id"])
        assert done["id"] == asked["id"]
        assert done["status"]["state"] == binding.state("completed")
        assert '"n": 3' in json.dumps(done["artifacts"])


@pytest.mark.promise("K1")
def test_non_blocking_send_returns_the_working_task(rig: HubRig) -> None:
    for binding in NEWER:
        caller = Caller(rig.hub, "actor", binding=binding)
        key = f"gate-{binding}"
        task = caller.send(steps(["wait", key]), at_once=True)
        assert task["status"]["state"] in (binding.state("working"), binding.state("submitted"))
        rig.open(key)
        caller.until(task["id"], "completed")


@pytest.mark.promise("M2")
def test_unusable_external_agent_is_reported_and_stops_nothing() -> None:
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
