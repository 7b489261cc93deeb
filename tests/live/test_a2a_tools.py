"""MCP tools as A2A skills of the hub, and agents as MCP tools."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.a2a_hub import (
    AGENTS,
    CANCEL,
    REST10,
    SEND,
    STREAM,
    V01,
    V03,
    V10,
    Caller,
    HubRig,
    a2a_config,
    agent_entry,
    agents_env,
    run_a2a_hub,
    text_from_parts,
)
from tests.live.conftest import RunningHub
from tests.live.matrix_fixture import Log
from tests.live.module_hub import text_of, until
from tests.peers.process import server_entry

from dragoman.a2a.cards.parse import parse_card

SKILL = "urn:dragoman:a2a:skill:v1"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ERAS = ("modern", "legacy")
each_era = pytest.mark.parametrize("era", ERAS)


@pytest.fixture(scope="module")
def logs() -> Iterator[dict[str, Log]]:
    with tempfile.TemporaryDirectory(prefix="dgl", dir="/tmp") as folder:
        yield {era: Log(Path(folder) / era) for era in ERAS}


@pytest.fixture(scope="module")
def rig(logs: dict[str, Log]) -> Iterator[HubRig]:
    """Without agents: the hub itself is the one that answers."""
    servers = [
        server_entry(era, "matrix_server", "--era", era, "--log", logs[era].file, interactive=True)
        for era in ERAS
    ]
    with run_a2a_hub((), servers) as made:
        made.hub.wait_connected(*ERAS)
        yield made


@pytest.fixture
def caller(rig: HubRig) -> Caller:
    return Caller(rig.hub)


def to(skill: str, *contents: Any, **how: Any) -> dict[str, Any]:
    """The parameters of a message to a skill."""
    params = V10.params(*contents, **how)
    params["message"]["metadata"] = {SKILL: {"skillId": skill}}
    return params


def sent(caller: Caller, skill: str, *contents: Any, **how: Any) -> Any:
    reply = caller.ask(SEND, to(skill, *contents, **how))
    assert reply.error is None, reply.error
    return reply.value["task"]


def state(task: Any) -> str:
    return str(task["status"]["state"].removeprefix("TASK_STATE_").lower())


# --- skills ---------------------------------------------------------------------------------------


@pytest.mark.promise("I1", "I2")
def test_hub_agent_skills_are_its_tools(rig: HubRig) -> None:
    card = rig.hub.api("/.well-known/agent.json")
    assert card["name"] == "dragoman" and card["url"] == f"{rig.hub.url}/a2a/dragoman"
    skills = {skill["id"]: skill for skill in card["skills"]}
    assert {"modern.echo", "modern.ask_form", "legacy.ask_form", "legacy.add"} <= set(skills)
    assert len(skills) == len(card["skills"])
    echo = skills["modern.echo"]
    assert (echo["description"], echo["tags"], echo["examples"]) == (
        "[MCP:modern] The tool echo",
        ["tool"],
        [],
    )
    assert echo["inputModes"] == ["text/plain", "application/json"]
    asks = skills["legacy.ask_form"]
    assert asks["name"] == "legacy.ask form"
    assert asks["description"] == "Can use the legacy.ask_form tool"
    assert skills["modern.add"]["inputModes"] == ["application/json"]
    assert card["capabilities"]["extensions"][0]["uri"] == SKILL
    schemas = card["capabilities"]["extensions"][0]["params"]["inputSchemas"]
    assert schemas["modern.add"]["required"] == ["a", "b"]
    read = {skill["id"]: skill for skill in parse_card(card)["skills"]}  # as another hub reads it
    assert read["modern.add"]["inputSchema"] == schemas["modern.add"]
    listed = rig.hub.api("/a2a/agents")  # where there is no other agent
    assert [one["name"] for one in listed["agents"]] == ["dragoman"] and listed["total"] == 1


@pytest.mark.promise("J4")
def test_data_parts_are_tool_arguments_and_structured_results_are_data(caller: Caller) -> None:
    task = sent(caller, "modern.add", {"a": 1, "b": 2})
    assert state(task) == "completed"
    (artifact,) = task["artifacts"]
    assert {"sum": 3} in [part.get("data") for part in artifact["parts"]]
    as_text = sent(caller, "modern.add", '{"a": 2, "b": 2}')
    assert '"sum": 4' in json.dumps(as_text["artifacts"])
    two = sent(caller, "legacy.add", {"a": 3}, {"b": 2})
    assert '"sum": 5' in json.dumps(two["artifacts"])


@pytest.mark.promise("J4")
def test_text_reaches_a_single_string_tool_in_every_dialect(caller: Caller) -> None:
    assert text_from_parts(sent(caller, "modern.echo", "hello")["artifacts"][0]) == "hello"
    assert text_from_parts(sent(caller, "modern_echo", "by its other name")["artifacts"][0])
    for metadata in ({"skillId": "modern.echo"}, {"skill": "modern.echo"}):
        old = {"message": V03.message("hi", metadata=metadata)}
        done = V03.ask(caller.hub, SEND, old).value
        assert done["artifacts"][0]["parts"] == [{"kind": "text", "text": "hi"}]
    rensei = {"message": V03.message("hi", skill={"skillId": "modern.echo"})}
    assert V03.ask(caller.hub, SEND, rensei).value["status"]["state"] == "completed"
    first = {**V01.params("hi"), "metadata": {"skillId": "modern.echo"}}
    assert V01.ask(caller.hub, SEND, first).value["messages"][-1]["parts"][0]["text"] == "hi"


@pytest.mark.promise("J4", "K1")
def test_missing_or_invalid_arguments_are_asked_for(
    caller: Caller,
) -> None:
    asked = sent(caller, "modern.add", {"a": 1})
    assert state(asked) == "input_required"
    assert '"b"' in text_from_parts(asked["status"]["message"])
    done = caller.send({"b": 41}, task=asked["id"])
    assert (done["id"], state(done)) == (asked["id"], "completed")
    assert '"sum": 42' in json.dumps(done["artifacts"])
    wrong = sent(caller, "legacy.add", {"a": "one", "b": 2})
    assert state(wrong) == "input_required"
    still = caller.send({"b": 3}, task=wrong["id"])
    assert state(still) == "input_required"
    right = caller.send({"a": 4}, task=wrong["id"])
    assert '"sum": 7' in json.dumps(right["artifacts"])
    nothing = sent(caller, "modern.add", "one and two")
    assert state(nothing) == "input_required"


@pytest.mark.promise("J4")
def test_unknown_skill_or_argument_is_an_error(caller: Caller) -> None:
    before = caller.ask("list", {}).value["totalSize"]
    for params in (to("modern.nothing", "x"), to("nowhere", {"a": 1})):
        refused = caller.ask(SEND, params)
        assert refused.error["code"] == -32602, refused.error
        assert "modern.nothing" in refused.error["message"] or "nowhere" in refused.error["message"]
        by_rest = Caller(caller.hub, binding=REST10).ask(SEND, params)
        assert by_rest.answer.status == 400
    file = to("modern.echo", "x")
    file["message"]["parts"] = [{"raw": "aGk=", "mediaType": "text/plain"}]
    assert caller.ask(SEND, file).error["code"] == -32005
    assert caller.ask("list", {}).value["totalSize"] == before


@pytest.mark.promise("J4")
def test_message_without_a_skill_is_asked_which(caller: Caller) -> None:
    asked = caller.send("hello")
    assert state(asked) == "input_required"
    question = text_from_parts(asked["status"]["message"])
    assert question.startswith("Which skill is this for?") and "legacy.add" in question
    again = caller.send("no such thing", task=asked["id"])
    assert state(again) == "input_required"
    done = caller.send("modern.echo", task=asked["id"])
    assert state(done) == "completed" and text_from_parts(done["artifacts"][0]) == "hello"
    other = caller.send("hi")
    named = to("modern.echo", "this", task=other["id"])
    assert text_from_parts(caller.ask(SEND, named).value["task"]["artifacts"][0]) == "this"


@pytest.mark.promise("J4")
def test_text_names_a_tool_and_its_argument(caller: Caller) -> None:
    done = caller.send("modern.echo hello  world")
    assert state(done) == "completed"
    assert text_from_parts(done["artifacts"][0]) == "hello  world"
    both = caller.send('modern.add {"a": 1, "b": 2}')
    assert '"sum": 3' in json.dumps(both["artifacts"])
    asked = caller.send("what can you do?")
    assert state(asked) == "input_required"
    done = caller.send("modern.echo this", task=asked["id"])
    assert text_from_parts(done["artifacts"][0]) == "this"
    partly = caller.send("modern.add many")
    assert state(partly) == "input_required" and '"a", "b"' in json.dumps(
        text_from_parts(partly["status"]["message"])
    ).replace("\\", "")
    unknown = caller.send("modern.nothing at all")
    assert text_from_parts(unknown["status"]["message"]).startswith("Which skill is this for?")


@pytest.mark.promise("J4")
def test_text_client_names_skill_and_arguments(caller: Caller) -> None:
    asked = caller.send("modern.add")
    assert state(asked) == "input_required"
    said, form = asked["status"]["message"]["parts"]
    assert '"a", "b"' in said["text"]
    assert form["data"]["schema"]["required"] == ["a", "b"]
    still = caller.send({"a": 1}, task=asked["id"])
    assert state(still) == "input_required" and '"b"' in text_from_parts(still["status"]["message"])
    wrong = caller.send("many", task=asked["id"])
    assert state(wrong) == "input_required"
    done = caller.send(" 41 ", task=asked["id"])
    assert '"sum": 42' in json.dumps(done["artifacts"])
    led = caller.send("modern.add")
    away = caller.send("modern.echo", task=led["id"])
    assert state(away) == "input_required" and "text" in json.dumps(away["status"]["message"])
    assert (
        text_from_parts(caller.send("modern.add", task=led["id"])["artifacts"][0]) == "modern.add"
    )
    led = caller.send("legacy.add")
    named = to("modern.echo", "instead", task=led["id"])
    assert text_from_parts(caller.ask(SEND, named).value["task"]["artifacts"][0]) == "instead"
    by_name = caller.send("legacy.ask form")  # as the card calls it
    assert by_name["status"]["message"]["parts"] and "Which skill" not in json.dumps(by_name)


@pytest.mark.promise("J4")
def test_part_accepted_by_no_skill_is_refused(caller: Caller) -> None:
    params = V10.params("x")
    for part in ({"raw": "aGk=", "mediaType": "image/png"}, {"text": "x", "mediaType": "x/y"}):
        params["message"]["parts"] = [part]
        assert caller.ask(SEND, params).error["code"] == -32005
        assert Caller(caller.hub, binding=REST10).ask(SEND, params).answer.status == 400


# --- what a server asks and tells -----------------------------------------------------------------


@pytest.mark.promise("J4", "K1")
@each_era
def test_server_question_is_answered_by_form_or_text(caller: Caller, era: str) -> None:
    for number, answer in enumerate(({"name": "Ann", "size": "s"}, "Ann")):
        asked = sent(caller, f"{era}.ask_form", {"key": f"f{number}"})
        assert state(asked) == "input_required"
        said, form = asked["status"]["message"]["parts"]
        assert said["text"] == "What is your name?"
        assert form["data"]["schema"]["required"] == ["name"]
        done = caller.send(answer, task=asked["id"])
        assert state(done) == "completed", done
        got = json.loads(text_from_parts(done["artifacts"][0]))
        assert got["action"] == "accept" and got["content"]["name"] == "Ann"


@each_era
def test_question_is_declined_repeated_and_asked_in_rounds(caller: Caller, era: str) -> None:
    asked = sent(caller, f"{era}.ask_form", {"key": "d"})
    again = caller.send({"size": "s"}, task=asked["id"])
    assert state(again) == "input_required" and "Name" in text_from_parts(
        again["status"]["message"]
    )
    done = caller.send("Ben", task=asked["id"])
    got = json.loads(text_from_parts(done["artifacts"][0]))
    assert got["content"] == {"name": "Ben", "size": "s"}
    asked = sent(caller, f"{era}.ask_form", {"key": "no"})
    done = caller.send({"action": "decline"}, task=asked["id"])
    assert json.loads(text_from_parts(done["artifacts"][0]))["action"] == "decline"
    first = sent(caller, f"{era}.ask_rounds", {"key": "r"})
    second = caller.send("one", task=first["id"])
    assert state(second) == "input_required"
    assert text_from_parts(second["status"]["message"]) == "Second?"
    third = caller.send("two", task=first["id"])
    assert text_from_parts(third["artifacts"][0]) == "one and two"


@each_era
def test_server_login_is_auth_required_and_continues_when_done(caller: Caller, era: str) -> None:
    asked = sent(caller, f"{era}.ask_url", {"key": "u"})
    assert state(asked) == "auth_required"
    data = asked["status"]["message"]["parts"][1]["data"]
    assert data["url"] == "https://example.com/sign-in?x=1"
    done = caller.send("I have", task=asked["id"])
    assert state(done) == "completed"
    assert json.loads(text_from_parts(done["artifacts"][0]))["action"] == "accept"


@each_era
def test_server_progress_becomes_status_updates(caller: Caller, era: str) -> None:
    with caller.stream(STREAM, to(f"{era}.progress", {"steps": 3, "pause": 0.02})) as stream:
        events = [event for _, event in V10.events(stream)]
    statuses = [event["statusUpdate"]["status"] for event in events if "statusUpdate" in event]
    said = [text_from_parts(status["message"]) for status in statuses if "message" in status]
    assert said == ["step 1", "step 2", "step 3"]
    assert {status["state"] for status in statuses[:-1]} == {"TASK_STATE_WORKING"}
    assert statuses[-1]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.promise("J5")
@each_era
def test_cancel_reaches_the_working_server(caller: Caller, logs: dict[str, Log], era: str) -> None:
    task = sent(caller, f"{era}.slow", {"seconds": 30, "key": "c"}, at_once=True)
    until(lambda: logs[era].entries(event="started", key="c"))
    assert caller.ask(CANCEL, {"id": task["id"]}).error is None
    until(lambda: logs[era].entries(event="cancelled", key="c"))
    assert not logs[era].entries(event="finished", key="c")
    if era != "modern":
        until(lambda: logs[era].entries(event="message", method="notifications/cancelled"))


@pytest.mark.promise("J5")
def test_cancelled_question_releases_its_server(caller: Caller, logs: dict[str, Log]) -> None:
    asked = sent(caller, "legacy.ask_form", {"key": "left"})
    assert state(asked) == "input_required"
    caller.ask(CANCEL, {"id": asked["id"]})
    until(
        lambda: (
            logs["legacy"].entries(event="lost", key="left")
            or logs["legacy"].entries(event="answered", key="left")
        )
    )


@pytest.mark.promise("K4")
def test_tool_results_map_to_a2a_parts(caller: Caller) -> None:
    (image,) = sent(caller, "modern.image", {})["artifacts"][0]["parts"]
    assert image["mediaType"] == "image/png" and image["raw"]
    (audio,) = sent(caller, "modern.audio", {})["artifacts"][0]["parts"]
    assert audio["mediaType"] == "audio/wav" and audio["raw"]
    (link,) = sent(caller, "modern.link", {})["artifacts"][0]["parts"]
    assert link["url"] == "test://linked"
    (inner,) = sent(caller, "modern.resource", {})["artifacts"][0]["parts"]
    assert inner["text"] == "embedded"
    failed = sent(caller, "modern.fail", {})
    assert state(failed) == "failed"
    assert text_from_parts(failed["status"]["message"]) == "it went wrong"


def test_every_a2a_call_passes_the_pipeline(caller: Caller) -> None:
    task = sent(caller, "modern.echo", "audited")
    records = [one for one in caller.hub.audit() if one["verb"] == "modern.echo"]
    assert state(task) == "completed"
    assert any("a2a" in json.dumps(one) for one in records), records[-1:]


# --- agents as tools ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_agents() -> Iterator[HubRig]:
    agents = (*AGENTS, agent_entry("asking", "asking"), agent_entry("code-reviewer", "echo"))
    with run_a2a_hub(agents) as made:
        yield made


@pytest.mark.promise("F3")
@each_era
def test_agent_is_listed_as_a_tool_over_http(with_agents: HubRig, era: str) -> None:
    hub = with_agents.hub
    tools = {tool["name"]: tool for tool in hub.rpc("tools/list", era=era)["result"]["tools"]}
    assert {"dragoman_agent_echo", "dragoman_agent_code_reviewer"} <= set(tools)
    echo = tools["dragoman_agent_echo"]
    assert echo["description"] == "Says it again"
    assert echo["inputSchema"]["required"] == ["message"]
    assert text_of(hub.call("dragoman_agent_echo", {"message": "hello"}, era=era)) == "hello"
    assert text_of(hub.call("echo.message", {"message": "hello"}, era=era)) == "hello"
    mirror = hub.call("dragoman_agent_mirror", {"message": "see"}, era=era)["result"]
    assert mirror["structuredContent"]["text"] == "see"
    bad = hub.call("dragoman_agent_echo", {"message": 3}, era=era)
    assert "error" in bad or bad["result"]["isError"]


@pytest.mark.promise("F3")
def test_agent_is_listed_over_stdio_without_exposed_tools(with_agents: HubRig) -> None:
    with with_agents.hub.relay() as stdio:
        stdio.initialize()
        listed = stdio.request("tools/list")["result"]["tools"]
        assert "dragoman_agent_echo" in {tool["name"] for tool in listed}
        call = {"name": "dragoman_agent_echo", "arguments": {"message": "hi"}}
        answer = stdio.request("tools/call", call)
        assert text_of(answer) == "hi"


def test_agent_tool_prefix_is_configurable(hub: Callable[..., RunningHub], short_tmp: Path) -> None:
    config = a2a_config(config='[mcp]\nagent_prefix = "openfang_agent_"')
    running = hub(config=config, env=agents_env(short_tmp))
    names = {tool["name"] for tool in running.rpc("tools/list")["result"]["tools"]}
    assert "openfang_agent_echo" in names and "dragoman_agent_echo" not in names
    assert text_of(running.call("openfang_agent_echo", {"message": "hi"})) == "hi"


def test_agent_question_becomes_an_elicitation(with_agents: HubRig) -> None:
    hub = with_agents.hub
    meta: dict[str, Any] = {CAPABILITIES: {"elicitation": {"form": {}}}}
    params = {"name": "dragoman_agent_asking", "arguments": {"message": "hm"}, "_meta": meta}
    asked = hub.rpc("tools/call", params)["result"]
    assert asked["resultType"] == "input_required"
    ((name, question),) = asked["inputRequests"].items()
    assert question["method"] == "elicitation/create"
    assert question["params"]["message"] == "Your name?"
    answer = {name: {"action": "accept", "content": {"reply": "Ann"}}}
    more = {"inputResponses": answer, "requestState": asked["requestState"]}
    done = hub.rpc("tools/call", {**params, **more})["result"]
    assert done["content"][0]["text"] == "Hello, Ann!"
    declined = {name: {"action": "decline"}}
    asked = hub.rpc("tools/call", params)["result"]
    more = {"inputResponses": declined, "requestState": asked["requestState"]}
    refused = hub.rpc("tools/call", {**params, **more})["result"]
    assert refused["isError"] and "not answered" in refused["content"][0]["text"]


def test_agents_and_tools_are_both_skills(with_agents: HubRig) -> None:
    hub = with_agents.hub
    own = hub.api("/a2a/dragoman/.well-known/agent-card.json")
    assert own["name"] == "dragoman" and own["url"] == f"{hub.url}/a2a/dragoman"
    by_skill = to("dragoman_agent_mirror", "see")
    task = Caller(hub).ask(SEND, by_skill).value["task"]
    assert task["artifacts"][0]["parts"][0]["data"]["text"] == "see"
