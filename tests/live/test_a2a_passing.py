"""What passes between an A2A client and an agent of others behind the hub: all that either says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.a2a_hub import (
    GET,
    REST10,
    SEND,
    STREAM,
    V03,
    V10,
    Caller,
    Grounds,
    a2a_config,
    agents_env,
    words,
)
from tests.live.bridge_grounds import external
from tests.live.lasting import lasting_hub, until
from tests.peers.process import HttpPeer

EXTENSION = "https://example.com/ext/v1"
AGENTS = {
    "streaming": ("--declare", "JSONRPC:1.0"),
    "older": ("--declare", "JSONRPC:0.3", "--no-streaming"),
}
each_agent = pytest.mark.parametrize("agent", list(AGENTS))


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    gates = tmp_path_factory.mktemp("gates")
    with (
        HttpPeer("a2a_sdk_agent", "--require", EXTENSION, *AGENTS["streaming"]) as streaming,
        HttpPeer("a2a_sdk_agent", "--require", EXTENSION, *AGENTS["older"]) as older,
    ):
        urls = {"streaming": streaming.url, "older": older.url}
        agents = [external(name, url) for name, url in urls.items()]
        config = a2a_config([], "", None) + "\n" + "\n".join(agents)
        with lasting_hub((), config, agents_env(gates)) as hub:
            until(lambda: hub.api("/a2a/agents")["total"] >= len(urls))
            yield Grounds(hub, gates)


def caller(grounds: Grounds, agent: str, way: Any = V10) -> Caller:
    return Caller(grounds.hub, agent, {"A2A-Extensions": EXTENSION}, way)


def data_of(task: Any) -> Any:
    return next(part["data"] for part in task["artifacts"][0]["parts"] if "data" in part)


@pytest.mark.promise("J3", "K4")
@each_agent
def test_what_a_client_says_beside_its_message_reaches_the_agent(
    grounds: Grounds, agent: str
) -> None:
    asking = caller(grounds, agent)
    first = asking.send("echo one")
    params = V10.params("report")
    params["metadata"] = {"of": "request", "agent": "elsewhere"}
    params["configuration"] = {"acceptedOutputModes": ["application/json"], "historyLength": 3}
    params["message"]["metadata"] = {"of": "message"}
    params["message"]["extensions"] = [EXTENSION]
    params["message"]["referenceTaskIds"] = [first["id"], "of-nobody"]
    saw = data_of(asking.ask(SEND, params).value["task"])
    assert saw["metadata"] == {"of": "request"}
    assert saw["message_metadata"]["of"] == "message"
    assert saw["accepted"] == ["application/json"] and saw["history"] == 3
    assert saw["activated"] == saw["extensions"] == [EXTENSION]
    (reference,) = saw["references"]
    assert reference not in ("of-nobody", first["id"])  # the name that the agent has given it


@pytest.mark.promise("J3", "I3")
def test_an_extension_that_an_agent_requires_is_on_its_card_here_and_demanded(
    grounds: Grounds,
) -> None:
    card = grounds.hub.api("/a2a/streaming/.well-known/agent-card.json")
    assert card["capabilities"]["extensions"] == [{"uri": EXTENSION, "required": True}]
    refused = Caller(grounds.hub, "streaming").ask(SEND, V10.params("echo"))
    assert refused.error["code"] == -32008


@pytest.mark.promise("J3", "K4")
@each_agent
def test_what_an_agent_says_beside_what_it_makes_reaches_the_client(
    grounds: Grounds, agent: str
) -> None:
    asking = caller(grounds, agent)
    with asking.stream(STREAM, V10.params("rich")) as stream:
        events = [event for _, event in V10.events(stream)]
    task = asking.get(events[0]["task"]["id"])
    (artifact,) = task["artifacts"]
    assert (words(artifact), artifact["metadata"]) == ("made", {"of": "artifact"})
    closing = task["status"]["message"]
    assert words(closing) == "that was all" and closing["parts"][1]["data"] == {"n": 1}
    assert task["metadata"]["cost"] == "2"
    by_rest = caller(grounds, agent, REST10).ask(GET, {"id": task["id"]}).value
    assert by_rest == task
    older = V03.ask(grounds.hub, GET, {"id": task["id"]}, agent, asking.headers).value
    assert older["status"]["message"]["parts"][1] == {"kind": "data", "data": {"n": 1}}
    if agent == "streaming":
        said = [event["statusUpdate"] for event in events if "statusUpdate" in event]
        (step,) = [one for one in said if "step" in json.dumps(one)]
        assert step["metadata"] == {"of": "status"}
        assert step["status"]["message"]["metadata"] == {"of": "message"}


@pytest.mark.promise("J3")
@each_agent
def test_a_task_that_is_completed_without_a_word_has_no_artifact(
    grounds: Grounds, agent: str
) -> None:
    task = caller(grounds, agent).send("starting")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "artifacts" not in task and "message" not in task["status"]


@pytest.mark.promise("J3", "K1")
@each_agent
def test_a_question_a_failure_and_an_answer_pass_whole(grounds: Grounds, agent: str) -> None:
    asking = caller(grounds, agent)
    asked = asking.send("form")
    question = asked["status"]["message"]
    assert words(question) == "which size?"
    assert question["parts"][1]["data"] == {"sizes": ["s", "m"]}
    done = asking.send("report", {"size": "m"}, task=asked["id"])
    assert words(done["artifacts"][0]) == "you said: report"
    failed = asking.send("broken")
    assert failed["status"]["state"] == "TASK_STATE_FAILED"
    assert failed["status"]["message"]["parts"][1]["data"] == {"free": 0}


@pytest.mark.promise("J3", "K1")
@each_agent
def test_a_login_elsewhere_is_followed_without_another_message(
    grounds: Grounds, tmp_path: Path, agent: str
) -> None:
    asking, gate = caller(grounds, agent), tmp_path / "in"
    asked = asking.send(f"outside {gate}")
    assert asked["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert json.dumps(asked["status"]).count("https://login.example/x") == 1
    gate.touch()
    done = asking.until(asked["id"], "completed")
    assert words(done["artifacts"][0]) == "logged in"
    answered = asking.send(f"outside {tmp_path / 'never'}")
    assert asking.ask("cancel", {"id": answered["id"]}).error is None
