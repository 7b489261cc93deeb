"""Content between an A2A client and an external agent behind the hub passes completely, in both
directions.
"""

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
    HubRig,
    a2a_config,
    agents_env,
    text_from_parts,
)
from tests.live.bridge_fixture import external
from tests.live.module_hub import run_module_hub, until
from tests.peers.process import HttpPeer

EXTENSION = "https://example.com/ext/v1"
AGENTS = {
    "streaming": ("--declare", "JSONRPC:1.0"),
    "older": ("--declare", "JSONRPC:0.3", "--no-streaming"),
}
each_agent = pytest.mark.parametrize("agent", list(AGENTS))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubRig]:
    gates = tmp_path_factory.mktemp("gates")
    with (
        HttpPeer("a2a_sdk_agent", "--require", EXTENSION, *AGENTS["streaming"]) as streaming,
        HttpPeer("a2a_sdk_agent", "--require", EXTENSION, *AGENTS["older"]) as older,
    ):
        urls = {"streaming": streaming.url, "older": older.url}
        agents = [external(name, url) for name, url in urls.items()]
        config = a2a_config([], "", None) + "\n" + "\n".join(agents)
        with run_module_hub((), config, agents_env(gates)) as hub:
            until(lambda: hub.api("/a2a/agents")["total"] >= len(urls))
            yield HubRig(hub, gates)


def caller(rig: HubRig, agent: str, binding: Any = V10) -> Caller:
    return Caller(rig.hub, agent, {"A2A-Extensions": EXTENSION}, binding)


def data_of(task: Any) -> Any:
    return next(part["data"] for part in task["artifacts"][0]["parts"] if "data" in part)


@pytest.mark.promise("J3", "K4")
@each_agent
def test_client_metadata_reaches_the_agent(rig: HubRig, agent: str) -> None:
    asking = caller(rig, agent)
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
def test_extension_required_by_an_agent_is_declared_and_enforced(
    rig: HubRig,
) -> None:
    card = rig.hub.api("/a2a/streaming/.well-known/agent-card.json")
    assert card["capabilities"]["extensions"] == [{"uri": EXTENSION, "required": True}]
    refused = Caller(rig.hub, "streaming").ask(SEND, V10.params("echo"))
    assert refused.error["code"] == -32008


@pytest.mark.promise("J3", "K4")
@each_agent
def test_agent_metadata_reaches_the_client(rig: HubRig, agent: str) -> None:
    asking = caller(rig, agent)
    with asking.stream(STREAM, V10.params("rich")) as stream:
        events = [event for _, event in V10.events(stream)]
    task = asking.get(events[0]["task"]["id"])
    (artifact,) = task["artifacts"]
    assert (text_from_parts(artifact), artifact["metadata"]) == ("made", {"of": "artifact"})
    closing = task["status"]["message"]
    assert text_from_parts(closing) == "that was all" and closing["parts"][1]["data"] == {"n": 1}
    assert task["metadata"]["cost"] == "2"
    by_rest = caller(rig, agent, REST10).ask(GET, {"id": task["id"]}).value
    assert by_rest == task
    older = V03.ask(rig.hub, GET, {"id": task["id"]}, agent, asking.headers).value
    assert older["status"]["message"]["parts"][1] == {"kind": "data", "data": {"n": 1}}
    if agent == "streaming":
        said = [event["statusUpdate"] for event in events if "statusUpdate" in event]
        (step,) = [one for one in said if "step" in json.dumps(one)]
        assert step["metadata"] == {"of": "status"}
        assert step["status"]["message"]["metadata"] == {"of": "message"}


@pytest.mark.promise("J3")
@each_agent
def test_task_completed_without_output_has_no_artifact(rig: HubRig, agent: str) -> None:
    task = caller(rig, agent).send("starting")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "artifacts" not in task and "message" not in task["status"]


@pytest.mark.promise("J3", "K1")
@each_agent
def test_question_failure_and_answer_pass_completely(rig: HubRig, agent: str) -> None:
    asking = caller(rig, agent)
    asked = asking.send("form")
    question = asked["status"]["message"]
    assert text_from_parts(question) == "which size?"
    assert question["parts"][1]["data"] == {"sizes": ["s", "m"]}
    done = asking.send("report", {"size": "m"}, task=asked["id"])
    assert text_from_parts(done["artifacts"][0]) == "you said: report"
    failed = asking.send("broken")
    assert failed["status"]["state"] == "TASK_STATE_FAILED"
    assert failed["status"]["message"]["parts"][1]["data"] == {"free": 0}


@pytest.mark.promise("J3", "K1")
@each_agent
def test_external_login_continues_without_another_message(
    rig: HubRig, tmp_path: Path, agent: str
) -> None:
    asking, gate = caller(rig, agent), tmp_path / "in"
    asked = asking.send(f"outside {gate}")
    assert asked["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert json.dumps(asked["status"]).count("https://login.example/x") == 1
    gate.touch()
    done = asking.until(asked["id"], "completed")
    assert text_from_parts(done["artifacts"][0]) == "logged in"
    answered = asking.send(f"outside {tmp_path / 'never'}")
    assert asking.ask("cancel", {"id": answered["id"]}).error is None


@pytest.mark.promise("J3", "J4")
@each_agent
def test_agent_decides_which_media_types_it_accepts(rig: HubRig, agent: str) -> None:
    """Its card names text and JSON alone; the agent takes what comes, as it does without a hub."""
    csv = {"raw": "YSxi", "mediaType": "text/csv", "filename": "t.csv"}
    for file in (csv, {**csv, "mediaType": "application/x-protobuf"}):
        params = V10.params("echo it")
        params["message"]["parts"].append(file)
        for binding in (V10, REST10):
            task = caller(rig, agent, binding).ask(SEND, params).value["task"]
            assert text_from_parts(task["artifacts"][0]) == "echo: it"
        params = V10.params("ask")
        asking = caller(rig, agent)
        asked = asking.ask(SEND, params).value["task"]
        params = V10.params("small", task=asked["id"])
        params["message"]["parts"].append(file)
        assert asking.ask(SEND, params).error is None
