"""Clients that exceed their share or send deceptive requests: stored and shown data stay bounded,
and other clients are unaffected.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.a2a_hub import (
    CANCEL,
    LIST,
    SEND,
    V10,
    Caller,
    HubRig,
    reason,
    run_a2a_hub,
    steps,
)
from tests.peers import wire

LARGE = "x" * 9_000_000
TASK_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_a2a_hub() as made:
        yield made


@pytest.fixture
def actor(rig: HubRig) -> Caller:
    return Caller(rig.hub, "actor")


def answered(actor: Caller, task: str, *contents: Any) -> Any:
    """The answer to one more message of a task, without what was said before."""
    params = V10.params(*contents, task=task)
    params["configuration"] = {"historyLength": 0}
    return actor.ask(SEND, params)


@pytest.mark.parametrize("agent", ["actor", "dragoman"])
def test_repeatedly_asking_task_does_not_grow_unbounded(rig: HubRig, agent: str) -> None:
    caller = Caller(rig.hub, agent)
    asked = caller.send(steps(["ask", "Again?"]) if agent == "actor" else "hello")
    again = (LARGE, steps(["ask", "Again?"])) if agent == "actor" else (LARGE,)
    taken = 0
    while (reply := answered(caller, asked["id"], *again)).error is None:
        taken += 1
        assert taken * len(LARGE) < 2 * TASK_BYTES
    assert reason(reply.error) == "RESOURCE_EXHAUSTED"
    assert taken >= 5
    # It can still be ended, and what was said is there.
    cancelled = caller.ask(CANCEL, {"id": asked["id"]})
    assert cancelled.value["status"]["state"] == "TASK_STATE_CANCELED"
    assert caller.send("small")["id"] != asked["id"]


def test_list_of_large_tasks_is_split_into_pages(rig: HubRig) -> None:
    echo = Caller(rig.hub, "echo")
    sent = {echo.send(LARGE)["id"] for _ in range(3)}
    found, token, pages = [], "", 0
    while True:
        params = {"pageSize": 100, "includeArtifacts": True}
        listed = echo.ask(LIST, {**params, "pageToken": token} if token else params)
        assert len(listed.answer.body) < 30_000_000
        assert listed.value["totalSize"] == 3
        found += [task["id"] for task in listed.value["tasks"]]
        pages += 1
        token = listed.value["nextPageToken"]
        if not token:
            break
    assert (set(found), len(found)) == (sent, 3)
    assert pages > 1


def test_answer_key_of_one_task_does_not_apply_to_another(actor: Caller) -> None:
    first, second = (actor.send(steps(["ask", "Sure?"]))["id"] for _ in range(2))
    key = {"Idempotency-Key": "yes-1"}
    for _ in range(2):
        reply = actor.ask(SEND, V10.params("yes", task=first), headers=key)
        assert reply.value["task"]["id"] == first
    refused = actor.ask(SEND, V10.params("yes", task=second), headers=key)
    assert reason(refused.error) == "INVALID_REQUEST"
    assert actor.get(second)["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


@pytest.mark.parametrize("port", ["1" * 1_000, "123456", "²", ""])
def test_host_with_an_invalid_port_is_refused(rig: HubRig, port: str) -> None:
    host = f"localhost:{port}".encode("latin-1").decode("latin-1")
    card = wire.get(f"{rig.hub.url}/.well-known/agent-card.json", {"Host": host})
    assert card.status == 421


def test_state_of_the_wrong_type_is_a_client_error(actor: Caller) -> None:
    for status in ([], {}, ["TASK_STATE_WORKING"], {"state": 1}, 7):
        assert reason(actor.ask(LIST, {"status": status}).error) == "INVALID_PARAMS"
