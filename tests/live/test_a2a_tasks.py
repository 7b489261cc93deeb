"""Tasks as their owners see them: contexts, history, lists, cancellation, idempotency,
retention.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.a2a_hub import (
    AGENTS,
    BINDINGS,
    CANCEL,
    GET,
    LIST,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    PUSH_SET,
    REST10,
    SEND,
    STREAM,
    SUBSCRIBE,
    V01,
    V03,
    V10,
    Caller,
    HubRig,
    a2a_config,
    agent_entry,
    agents_env,
    reason,
    run_a2a_hub,
    steps,
    text_from_parts,
    with_key,
)
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_concurrently, until
from tests.peers import wire
from tests.table_outage import take_away

API_KEY = "the key of the configuration"


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    agents = (*AGENTS, agent_entry("stubborn", "stubborn"))
    config = f'api_key = "{API_KEY}"'
    with run_a2a_hub(agents, config=config, a2a={"push_private": True}) as made:
        yield made


@pytest.fixture(scope="module")
def others(rig: HubRig) -> list[Caller]:
    """Two callers with keys of their own, who speak to `actor`."""
    return [with_key(rig.hub, name, "actor") for name in ("ann", "ben")]


@pytest.fixture
def actor(rig: HubRig) -> Caller:
    return Caller(rig.hub, "actor")


def ids(listed: Any) -> list[str]:
    return [task["id"] for task in listed["tasks"]]


# --- contexts and history -------------------------------------------------------------------------


@pytest.mark.promise("K1")
def test_context_is_created_kept_inferred_and_enforced(actor: Caller) -> None:
    made = actor.send("x")
    assert made["contextId"] and made["contextId"] != actor.send("x")["contextId"]
    params = V10.params("x")
    params["message"]["contextId"] = "my own"
    assert actor.ask(SEND, params).value["task"]["contextId"] == "my own"
    asked = actor.send(steps(["ask", "Which?"]))
    wrong = V10.params("this", task=asked["id"])
    wrong["message"]["contextId"] = "another"
    refused = actor.ask(SEND, wrong)
    assert refused.error["code"] == -32602 and '"another"' in refused.error["message"]
    assert actor.get(asked["id"]) == asked  # nothing of it was taken
    right = V10.params("this", task=asked["id"])
    done = actor.ask(SEND, right).value["task"]
    assert (done["id"], done["contextId"]) == (asked["id"], asked["contextId"])
    assert all(message["contextId"] == asked["contextId"] for message in done["history"])


@pytest.mark.promise("K1")
def test_message_to_a_missing_finished_or_working_task_is_refused(
    rig: HubRig, actor: Caller
) -> None:
    unknown = actor.ask(SEND, V10.params("x", task="nobody"))
    assert unknown.error["code"] == -32001 and "nobody" in unknown.error["message"]
    for step, state in ((["reply", "x"], "COMPLETED"), (["fail", "x"], "FAILED")):
        task = actor.send(steps(step))
        late = actor.ask(SEND, V10.params("more", task=task["id"]))
        assert late.error["code"] == -32004 and state in late.error["message"]
        assert actor.get(task["id"]) == task
    working = actor.send(steps(["wait", "busy"]), at_once=True)["id"]
    early = actor.ask(SEND, V10.params("more", task=working))
    assert early.error["code"] == -32004 and "at work" in early.error["message"]
    rig.open("busy")


@pytest.mark.promise("K1")
def test_history_has_the_requested_length(rig: HubRig, actor: Caller) -> None:
    id = actor.send(steps(["say", "one"], ["say", "two"], ["ask", "three?"]))["id"]
    whole = actor.send("four", task=id)
    said = [text_from_parts(message) for message in whole["history"]]
    assert said == ["", "one", "two", "three?", "four"]
    assert "history" not in actor.get(id, historyLength=0)
    assert [
        text_from_parts(message) for message in actor.get(id, historyLength=2)["history"]
    ] == said[-2:]
    assert actor.get(id, historyLength=100) == whole
    by_rest = Caller(rig.hub, binding=REST10)
    assert [text_from_parts(m) for m in by_rest.get(id, historyLength=1)["history"]] == ["four"]
    assert "history" not in V03.ask(rig.hub, GET, {"id": id, "historyLength": 0}).value
    configured = {**V10.params("x"), "configuration": {"historyLength": 0}}
    assert "history" not in actor.ask(SEND, configured).value["task"]
    for bad in (-1, "x", 1.5, True):
        assert actor.ask(GET, {"id": id, "historyLength": bad}).error["code"] == -32602
    listed = actor.ask(LIST, {"historyLength": 1, "contextId": whole["contextId"]}).value
    assert [text_from_parts(message) for message in listed["tasks"][0]["history"]] == ["four"]


# --- lists ----------------------------------------------------------------------------------------


@pytest.mark.promise("J3")
def test_lists_are_filtered_by_context_state_and_time(rig: HubRig) -> None:
    mine = with_key(rig.hub, "lister", "actor")
    done = mine.send("x")
    later = time.time() + 0.002
    until(lambda: time.time() > later)  # in another millisecond, the resolution of times
    asked = mine.send(steps(["ask", "?"]))
    echoed = mine.ask(SEND, V10.params("hi"), agent="echo").value["task"]
    everywhere = Caller(mine.hub, "", mine.headers)
    listed = everywhere.ask(LIST, {}).value
    assert ids(listed) == [echoed["id"], asked["id"], done["id"]]
    assert set(listed) == {"tasks", "nextPageToken", "pageSize", "totalSize"}
    assert (listed["nextPageToken"], listed["pageSize"], listed["totalSize"]) == ("", 50, 3)
    assert all("artifacts" not in task for task in listed["tasks"])
    assert ids(mine.ask(LIST, {}).value) == [asked["id"], done["id"]]  # of this agent's path
    whole = mine.ask(LIST, {"includeArtifacts": True}).value
    assert whole["tasks"][1] == done and done["artifacts"]
    for filter_, found in (
        ({"contextId": done["contextId"]}, [done["id"]]),
        ({"status": "TASK_STATE_INPUT_REQUIRED"}, [asked["id"]]),
        ({"status": "TASK_STATE_FAILED"}, []),
        ({"statusTimestampAfter": asked["status"]["timestamp"]}, [asked["id"]]),
        ({"statusTimestampAfter": "2999-01-01T00:00:00Z"}, []),
        ({"status": "TASK_STATE_COMPLETED", "contextId": asked["contextId"]}, []),
    ):
        for binding in (V10, REST10):
            value = Caller(mine.hub, "actor", mine.headers, binding).ask(LIST, filter_).value
            assert ids(value) == found, filter_
            assert value["totalSize"] == len(found)


@pytest.mark.promise("J3")
def test_invalid_task_list_request_is_refused(actor: Caller) -> None:
    for wrong in (
        {"status": "TASK_STATE_DONE"},
        {"status": "completed"},
        {"status": 3},
        {"pageSize": 0},
        {"pageSize": 101},
        {"pageSize": "many"},
        {"pageToken": "made up"},
        {"statusTimestampAfter": "yesterday"},
        {"includeArtifacts": "perhaps"},
        {"historyLength": -1},
    ):
        refused = actor.ask(LIST, wrong)
        assert refused.error["code"] == -32602, wrong
        (field,) = refused.error["data"][1]["fieldViolations"]
        assert field["field"] == next(iter(wrong))
        by_rest = Caller(actor.hub, binding=REST10).ask(LIST, wrong)
        assert by_rest.answer.status == 400, wrong


@pytest.mark.promise("J3")
def test_pages_list_every_task_once_during_changes(rig: HubRig) -> None:
    mine = with_key(rig.hub, "pager", "actor")
    made = [mine.send(steps(["ask", f"{n}?"]))["id"] for n in range(7)]
    first = mine.ask(LIST, {"pageSize": 3}).value
    assert ids(first) == made[:3:-1] and first["totalSize"] == 7
    mine.send("answer", task=made[4])  # the last of the page moves to the front
    mine.send("answer", task=made[2])  # and one that was still to come
    new = mine.send("another")["id"]
    second = mine.ask(LIST, {"pageSize": 3, "pageToken": first["nextPageToken"]}).value
    assert ids(second) == [made[3], made[1], made[0]] and second["nextPageToken"] == ""
    again = mine.ask(LIST, {"pageSize": 100}).value
    assert ids(again) == [new, made[2], made[4], made[6], made[5], made[3], made[1], made[0]]
    walked, token = [], ""
    while True:
        page = mine.ask(LIST, {"pageSize": 1, **({"pageToken": token} if token else {})}).value
        walked += ids(page)
        token = page["nextPageToken"]
        if not token:
            break
    assert walked == ids(again)


# --- other people's -------------------------------------------------------------------------------


@pytest.mark.promise("J2", "J3")
def test_tasks_of_other_principals_are_not_found(rig: HubRig, others: list[Caller]) -> None:
    ann, ben = others
    task = ann.send(steps(["ask", "Which?"]))
    id = task["id"]
    for op, params in (
        (GET, {"id": id}),
        (CANCEL, {"id": id}),
        (SUBSCRIBE, {"id": id}),
        (SEND, V10.params("this", task=id)),
        (STREAM, V10.params("this", task=id)),
        (PUSH_SET, {"taskId": id, "url": "http://127.0.0.1:9/"}),
        (PUSH_GET, {"taskId": id, "id": "x"}),
        (PUSH_LIST, {"taskId": id}),
        (PUSH_DELETE, {"taskId": id, "id": "x"}),
    ):
        for caller in (ben, Caller(rig.hub)):
            assert caller.ask(op, params).error["code"] == -32001, op
        told = Caller(ben.hub, "", ben.headers, REST10).ask(op, params)
        assert told.answer.status == 404, op
        unknown = ben.ask(op, _renamed(params, id))
        assert unknown.error["code"] == -32001  # and looks like one that never existed
    assert ids(ben.ask(LIST, {"contextId": task["contextId"]}).value) == []
    for path, method in ((f"/a2a/tasks/{id}", "GET"), (f"/a2a/tasks/{id}/cancel", "POST")):
        seen = wire.http_request(method, ben.hub.url + path, None, ben.headers)
        assert seen.status == 404
    assert ann.get(id) == task


def _renamed(params: Any, id: str) -> Any:
    if "message" in params:
        return V10.params("this", task="never-was")
    return {key: "never-was" if value == id else value for key, value in params.items()}


@pytest.mark.promise("J3")
def test_client_chosen_ids_are_scoped_to_the_principal(others: list[Caller]) -> None:
    found = []
    for caller in others:
        params = {**V01.params(f"of {caller.headers}"), "id": "same"}
        found.append(V01.ask(caller.hub, SEND, params, "actor", caller.headers).value)
    assert [task["id"] for task in found] == ["same", "same"]
    assert found[0]["messages"] != found[1]["messages"]


# --- cancelling -----------------------------------------------------------------------------------


@pytest.mark.promise("J5")
def test_cancel_stops_the_work_and_is_the_last_event(rig: HubRig, actor: Caller) -> None:
    todo = steps(["mark", "c-begun"], ["wait", "never"], ["mark", "c-after"])
    with actor.stream(STREAM, V10.params(todo)) as stream:
        id = V10.event(stream.next())["task"]["id"]
        rig.seen("c-begun")
        cancelled = actor.ask(CANCEL, {"id": id, "metadata": {"why": "late"}}).value
        assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
        assert V10.events(stream)[-1][1]["statusUpdate"]["status"]["state"].endswith("CANCELED")
    rig.seen(f"{id}.cancelled")
    assert not (rig.gates / "c-after").exists()
    again = actor.ask(CANCEL, {"id": id})
    assert again.error["code"] == -32002 and "CANCELED already" in again.error["message"]
    assert actor.get(id) == cancelled


@pytest.mark.promise("J5")
def test_pending_question_is_cancellable_and_a_finished_task_is_not(actor: Caller) -> None:
    asked = actor.send(steps(["ask", "Which?"]))["id"]
    assert actor.ask(CANCEL, {"id": asked}).value["status"]["state"].endswith("CANCELED")
    assert actor.ask(SEND, V10.params("this", task=asked)).error["code"] == -32004
    for step in (["reply", "x"], ["fail", "x"], ["decline", "x"]):
        id = actor.send(steps(step))["id"]
        assert actor.ask(CANCEL, {"id": id}).error["code"] == -32002
    by_rest = Caller(actor.hub, binding=REST10).ask(CANCEL, {"id": asked})
    assert by_rest.answer.status == 400 and reason(by_rest.error) == "TASK_NOT_CANCELABLE"


@pytest.mark.promise("J5")
def test_agent_ignoring_cancel_changes_nothing(rig: HubRig) -> None:
    caller = Caller(rig.hub, "stubborn")
    id = caller.send("x", at_once=True)["id"]
    rig.seen(f"{id}.begun")
    cancelled = caller.ask(CANCEL, {"id": id}).value
    rig.seen(f"{id}.late")
    assert caller.send("x", at_once=True)["id"] != id  # every running task has ended by now
    assert caller.get(id) == cancelled
    with caller.stream(SUBSCRIBE, {"id": id}, headers={"Last-Event-ID": "1"}) as stream:
        events = [event for _, event in V10.events(stream)]
    assert [list(event) for event in events] == [["statusUpdate"], ["statusUpdate"]]


@pytest.mark.promise("J5")
def test_cancel_racing_completion_is_never_overwritten(actor: Caller) -> None:
    """A task that was answered as cancelled stays so; one that could not be is completed."""

    def race(worker: int) -> list[bool]:
        found = []
        for turn in range(40):
            seconds = 0.015 + (turn * 8 + worker) % 20 / 1000
            id = actor.send(steps(["pause", seconds], ["reply", "end"]), at_once=True)["id"]
            reply = actor.ask(CANCEL, {"id": id})
            won = reply.error is None
            found.append(won)
            task = actor.get(id)
            if won:
                assert reply.value["status"]["state"] == "TASK_STATE_CANCELED"
                assert task == reply.value
            else:
                assert reply.error["code"] == -32002
                assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        return found

    outcomes = [one for found in run_concurrently(race, 8) for one in found]
    assert len(outcomes) == 320 and True in outcomes and False in outcomes
    left = actor.ask(LIST, {"status": "TASK_STATE_WORKING"}).value  # of this agent's
    assert left["totalSize"] == 0


# --- sending once ---------------------------------------------------------------------------------


@pytest.mark.promise("J3")
def test_send_repeated_with_a_key_runs_once(rig: HubRig, actor: Caller) -> None:
    key = {"Idempotency-Key": "k-1"}
    params = V10.params(steps(["mark", "once-1"], ["pause", 0.05], ["reply", "x"]))

    def send(_: int) -> Any:
        reply = actor.ask(SEND, params, headers=key)
        assert reply.error is None, reply.error
        return reply.value["task"]

    tasks = run_concurrently(send, 8)
    assert all(task == tasks[0] for task in tasks)
    assert send(0) == tasks[0]
    assert (rig.gates / "once-1").read_text(encoding="utf-8") == "x"
    changed = V10.params("something else")
    other = actor.ask(SEND, changed, headers=key)
    assert other.error["code"] == -32600 and "Idempotency-Key" in other.error["message"]
    by_rest = Caller(actor.hub, "actor", binding=REST10).ask(SEND, params, headers=key)
    assert by_rest.value["task"]["id"] == tasks[0]["id"]
    with actor.stream(STREAM, params, headers=key) as stream:
        ((_, event),) = V10.events(stream)
    assert event["task"] == tasks[0]
    assert actor.send("x")["id"] != actor.send("x")["id"]  # without a key


@pytest.mark.promise("J3")
def test_idempotency_key_is_scoped_to_principal_and_agent(others: list[Caller]) -> None:
    ann, ben = others
    key = {"Idempotency-Key": "shared"}
    params = V10.params("x")
    first = ann.ask(SEND, params, headers=key).value["task"]["id"]
    assert ben.ask(SEND, params, headers=key).value["task"]["id"] != first
    assert ann.ask(SEND, params, headers=key, agent="echo").value["task"]["id"] != first
    assert ann.ask(SEND, params, headers=key).value["task"]["id"] == first
    for bad in ("x" * 257, "caf\xe9\x80"):
        refused = ann.ask(SEND, params, headers={"Idempotency-Key": bad})
        assert refused.error["code"] == -32600


@pytest.mark.promise("J3", "K2")
def test_answer_repeated_with_a_key_is_applied_once(actor: Caller) -> None:
    asked = actor.send(steps(["ask", "Which?"]))
    params = V10.params("this", task=asked["id"])
    key = {"Idempotency-Key": "answer-1"}
    first = actor.ask(SEND, params, headers=key).value["task"]
    assert first["status"]["state"] == "TASK_STATE_COMPLETED"
    assert actor.ask(SEND, params, headers=key).value["task"] == first


@pytest.mark.promise("J3", "K2")
def test_answer_with_a_key_reaches_its_agent_once_it_is_stored(rig: HubRig, actor: Caller) -> None:
    asked = actor.send(steps(["ask", "Which?"]))
    params = V10.params(steps(["mark", "answered"], ["reply", "done"]), task=asked["id"])
    key = {"Idempotency-Key": "answer-2"}
    with take_away(rig.hub.home, "tasks.db", "tasks"):
        assert "cannot be stored" in actor.ask(SEND, params, headers=key).error["message"]
        for _ in range(20):  # it would be called meanwhile
            assert rig.hub.get("/healthz").status == 200
        assert not (rig.gates / "answered").exists()
    done = actor.ask(SEND, params, headers=key).value["task"]
    assert done["id"] == asked["id"]
    until(lambda: actor.get(asked["id"])["status"]["state"] == "TASK_STATE_COMPLETED")
    rig.seen("answered")


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.promise("K2")
def test_full_task_store_evicts_the_oldest_finished_or_refuses() -> None:
    config = f'api_key = "{API_KEY}"'
    with run_a2a_hub(config=config, a2a={"max_tasks": 4, "store": "memory"}) as rig:
        mine, other = Caller(rig.hub, "actor"), with_key(rig.hub, "other", "actor")
        waiting = mine.send(steps(["ask", "?"]))["id"]
        done = [mine.send(str(n))["id"] for n in range(3)]
        fifth = mine.send("more")["id"]
        assert mine.ask(GET, {"id": done[0]}).error["code"] == -32001
        gone = rig.hub.get(f"/a2a/tasks/{done[0]}")
        assert gone.status == 404
        for id in (waiting, done[1], done[2], fifth):
            mine.get(id)
        open_ = [waiting, *(mine.send(steps(["ask", "?"]))["id"] for _ in range(3))]
        for binding in BINDINGS:
            full = binding.ask(rig.hub, SEND, binding.params("x"), "actor")
            assert "4 tasks of this caller are unfinished" in str(full.error)
            assert full.answer.status == (429 if binding.rest else 200)
        assert other.send("x")["status"]["state"] == "TASK_STATE_COMPLETED"
        assert sorted(ids(mine.ask(LIST, {}).value)) == sorted(open_)
        mine.ask(CANCEL, {"id": open_[1]})
        assert mine.send("again")["status"]["state"] == "TASK_STATE_COMPLETED"
        assert mine.ask(GET, {"id": open_[1]}).error["code"] == -32001


@pytest.mark.promise("K2")
def test_tasks_survive_a_restart_and_running_ones_fail_with_a_reason(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    env = agents_env(short_tmp)
    first = hub(config=a2a_config(AGENTS), env=env)
    caller = Caller(first, "actor")
    done = caller.send(steps(["say", "half"], ["reply", "whole"]))
    asked = caller.send(steps(["ask", "Which?"]))
    running = caller.send(steps(["mark", "ran"], ["wait", "never"]), at_once=True)
    key = {"Idempotency-Key": "before"}
    params = V10.params(steps(["mark", "once"], ["reply", "x"]))
    sent = caller.ask(SEND, params, headers=key).value["task"]
    until((short_tmp / "ran").exists)
    first.kill()
    second = hub(home=first.home, env=env)
    caller = Caller(second, "actor")
    assert caller.get(done["id"]) == done
    assert caller.get(asked["id"]) == asked
    failed = caller.get(running["id"])
    assert failed["status"]["state"] == "TASK_STATE_FAILED"
    assert "interrupted" in text_from_parts(failed["status"]["message"])
    assert caller.ask(SEND, params, headers=key).value["task"] == sent
    changed = caller.ask(SEND, V10.params("other"), headers=key)
    assert changed.error["code"] == -32600
    assert (short_tmp / "once").read_text(encoding="utf-8") == "x"
    assert (short_tmp / "ran").read_text(encoding="utf-8") == "x"
    last = {"Last-Event-ID": "1"}
    with caller.stream(SUBSCRIBE, {"id": done["id"]}, headers=last) as stream:
        assert [id for id, _ in V10.events(stream)] == ["2", "3", "4", "5"]
    answered = caller.send("this", task=asked["id"])
    assert text_from_parts(answered["artifacts"][0]) == "2: this"
    assert second.stop() == 0
    third = hub(home=first.home, env=env)
    assert Caller(third).get(answered["id"]) == answered
    assert Caller(third).ask(LIST, {"status": "TASK_STATE_WORKING"}).value["totalSize"] == 0
