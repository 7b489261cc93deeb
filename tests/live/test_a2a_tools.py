"""MCP's tools as skills of the hub, by A2A; and agents as tools, by MCP."""

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
    Grounds,
    a2a_config,
    agent_entry,
    agents_env,
    run_a2a_hub,
    words,
)
from tests.live.conftest import RunningHub
from tests.live.lasting import text_of, until
from tests.live.matrix_grounds import Log
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
def grounds(logs: dict[str, Log]) -> Iterator[Grounds]:
    """Without agents: the hub itself is the one that answers."""
    servers = [
        server_entry(era, "matrix_server", "--era", era, "--log", logs[era].file, interactive=True)
        for era in ERAS
    ]
    with run_a2a_hub((), servers) as made:
        made.hub.wait_connected(*ERAS)
        yield made


@pytest.fixture
def caller(grounds: Grounds) -> Caller:
    return Caller(grounds.hub)


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
def test_the_hub_is_an_agent_whose_skills_are_its_tools(grounds: Grounds) -> None:
    card = grounds.hub.api("/.well-known/agent.json")
    assert card["name"] == "dragoman" and card["url"] == f"{grounds.hub.url}/a2a"
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
    listed = grounds.hub.api("/a2a/agents")  # where there is no other agent
    assert [one["name"] for one in listed["agents"]] == ["dragoman"] and listed["total"] == 1


@pytest.mark.promise("J4")
def test_data_are_the_arguments_of_a_tool_and_structured_results_are_data(caller: Caller) -> None:
    task = sent(caller, "modern.add", {"a": 1, "b": 2})
    assert state(task) == "completed"
    (artifact,) = task["artifacts"]
    assert {"sum": 3} in [part.get("data") for part in artifact["parts"]]
    as_text = sent(caller, "modern.add", '{"a": 2, "b": 2}')
    assert '"sum": 4' in json.dumps(as_text["artifacts"])
    two = sent(caller, "legacy.add", {"a": 3}, {"b": 2})
    assert '"sum": 5' in json.dumps(two["artifacts"])


@pytest.mark.promise("J4")
def test_a_text_goes_to_a_tool_that_takes_one_string_in_every_dialect(caller: Caller) -> None:
    assert words(sent(caller, "modern.echo", "hello")["artifacts"][0]) == "hello"
    assert words(sent(caller, "modern_echo", "by its other name")["artifacts"][0])
    for metadata in ({"skillId": "modern.echo"}, {"skill": "modern.echo"}):
        old = {"message": V03.message("hi", metadata=metadata)}
        done = V03.ask(caller.hub, SEND, old).value
        assert done["artifacts"][0]["parts"] == [{"kind": "text", "text": "hi"}]
    rensei = {"message": V03.message("hi", skill={"skillId": "modern.echo"})}
    assert V03.ask(caller.hub, SEND, rensei).value["status"]["state"] == "completed"
    first = {**V01.params("hi"), "metadata": {"skillId": "modern.echo"}}
    assert V01.ask(caller.hub, SEND, first).value["messages"][-1]["parts"][0]["text"] == "hi"


@pytest.mark.promise("J4", "K1")
def test_arguments_that_are_missing_or_wrong_are_asked_for_and_then_it_goes_on(
    caller: Caller,
) -> None:
    asked = sent(caller, "modern.add", {"a": 1})
    assert state(asked) == "input_required"
    assert '"b"' in words(asked["status"]["message"])
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
def test_what_is_no_skill_and_what_is_no_argument_is_an_error(caller: Caller) -> None:
    before = caller.ask("list", {}).value["totalSize"]
    for params in (to("modern.nothing", "x"), to("nowhere", {"a": 1})):
        refused = caller.ask(SEND, params)
        assert refused.error["code"] == -32602, refused.error
        assert "modern.nothing" in refused.error["message"] or "nowhere" in refused.error["message"]
        by_rest = Caller(caller.hub, way=REST10).ask(SEND, params)
        assert by_rest.answer.status == 400
    file = to("modern.echo", "x")
    file["message"]["parts"] = [{"raw": "aGk=", "mediaType": "text/plain"}]
    assert caller.ask(SEND, file).error["code"] == -32005
    assert caller.ask("list", {}).value["totalSize"] == before


@pytest.mark.promise("J4")
def test_one_who_names_no_skill_is_asked_which(caller: Caller) -> None:
    asked = caller.send("hello")
    assert state(asked) == "input_required"
    question = words(asked["status"]["message"])
    assert question.startswith("Which skill is this for?") and "legacy.add" in question
    again = caller.send("no such thing", task=asked["id"])
    assert state(again) == "input_required"
    done = caller.send("modern.echo", task=asked["id"])
    assert state(done) == "completed" and words(done["artifacts"][0]) == "hello"
    other = caller.send("hi")
    named = to("modern.echo", "this", task=other["id"])
    assert words(caller.ask(SEND, named).value["task"]["artifacts"][0]) == "this"


@pytest.mark.promise("J4")
def test_a_client_of_plain_text_names_a_skill_and_gives_its_arguments(caller: Caller) -> None:
    asked = caller.send("modern.add")
    assert state(asked) == "input_required"
    said, form = asked["status"]["message"]["parts"]
    assert '"a", "b"' in said["text"]
    assert form["data"]["schema"]["required"] == ["a", "b"]
    still = caller.send({"a": 1}, task=asked["id"])
    assert state(still) == "input_required" and '"b"' in words(still["status"]["message"])
    wrong = caller.send("many", task=asked["id"])
    assert state(wrong) == "input_required"
    done = caller.send(" 41 ", task=asked["id"])
    assert '"sum": 42' in json.dumps(done["artifacts"])
    led = caller.send("modern.add")
    away = caller.send("modern.echo", task=led["id"])
    assert state(away) == "input_required" and "text" in json.dumps(away["status"]["message"])
    assert words(caller.send("modern.add", task=led["id"])["artifacts"][0]) == "modern.add"
    led = caller.send("legacy.add")
    named = to("modern.echo", "instead", task=led["id"])
    assert words(caller.ask(SEND, named).value["task"]["artifacts"][0]) == "instead"
    by_name = caller.send("legacy.ask form")  # as the card calls it
    assert by_name["status"]["message"]["parts"] and "Which skill" not in json.dumps(by_name)


@pytest.mark.promise("J4")
def test_what_no_skill_takes_is_refused_where_none_is_named(caller: Caller) -> None:
    params = V10.params("x")
    for part in ({"raw": "aGk=", "mediaType": "image/png"}, {"text": "x", "mediaType": "x/y"}):
        params["message"]["parts"] = [part]
        assert caller.ask(SEND, params).error["code"] == -32005
        assert Caller(caller.hub, way=REST10).ask(SEND, params).answer.status == 400


# --- what a server asks and tells -----------------------------------------------------------------


@pytest.mark.promise("J4", "K1")
@each_era
def test_a_question_of_a_server_is_answered_by_a_form_or_a_word(caller: Caller, era: str) -> None:
    for number, answer in enumerate(({"name": "Ann", "size": "s"}, "Ann")):
        asked = sent(caller, f"{era}.ask_form", {"key": f"f{number}"})
        assert state(asked) == "input_required"
        said, form = asked["status"]["message"]["parts"]
        assert said["text"] == "What is your name?"
        assert form["data"]["schema"]["required"] == ["name"]
        done = caller.send(answer, task=asked["id"])
        assert state(done) == "completed", done
        got = json.loads(words(done["artifacts"][0]))
        assert got["action"] == "accept" and got["content"]["name"] == "Ann"


@each_era
def test_a_question_is_declined_put_again_and_put_in_rounds(caller: Caller, era: str) -> None:
    asked = sent(caller, f"{era}.ask_form", {"key": "d"})
    again = caller.send({"size": "s"}, task=asked["id"])
    assert state(again) == "input_required" and "Name" in words(again["status"]["message"])
    done = caller.send("Ben", task=asked["id"])
    got = json.loads(words(done["artifacts"][0]))
    assert got["content"] == {"name": "Ben", "size": "s"}
    asked = sent(caller, f"{era}.ask_form", {"key": "no"})
    done = caller.send({"action": "decline"}, task=asked["id"])
    assert json.loads(words(done["artifacts"][0]))["action"] == "decline"
    first = sent(caller, f"{era}.ask_rounds", {"key": "r"})
    second = caller.send("one", task=first["id"])
    assert state(second) == "input_required"
    assert words(second["status"]["message"]) == "Second?"
    third = caller.send("two", task=first["id"])
    assert words(third["artifacts"][0]) == "one and two"


@each_era
def test_a_login_at_a_server_is_auth_required_and_goes_on_when_it_is_done(
    caller: Caller, era: str
) -> None:
    asked = sent(caller, f"{era}.ask_url", {"key": "u"})
    assert state(asked) == "auth_required"
    data = asked["status"]["message"]["parts"][1]["data"]
    assert data["url"] == "https://example.com/sign-in?x=1"
    done = caller.send("I have", task=asked["id"])
    assert state(done) == "completed"
    assert json.loads(words(done["artifacts"][0]))["action"] == "accept"


@each_era
def test_what_a_server_reports_becomes_updates_of_the_status(caller: Caller, era: str) -> None:
    with caller.stream(STREAM, to(f"{era}.progress", {"steps": 3, "pause": 0.02})) as stream:
        events = [event for _, event in V10.events(stream)]
    statuses = [event["statusUpdate"]["status"] for event in events if "statusUpdate" in event]
    said = [words(status["message"]) for status in statuses if "message" in status]
    assert said == ["step 1", "step 2", "step 3"]
    assert {status["state"] for status in statuses[:-1]} == {"TASK_STATE_WORKING"}
    assert statuses[-1]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.promise("J5")
@each_era
def test_cancelling_is_told_to_the_server_that_does_the_work(
    caller: Caller, logs: dict[str, Log], era: str
) -> None:
    task = sent(caller, f"{era}.slow", {"seconds": 30, "key": "c"}, at_once=True)
    until(lambda: logs[era].entries(event="started", key="c"))
    assert caller.ask(CANCEL, {"id": task["id"]}).error is None
    until(lambda: logs[era].entries(event="cancelled", key="c"))
    assert not logs[era].entries(event="finished", key="c")
    told = logs[era].entries(event="message", method="notifications/cancelled")
    assert told or era == "modern"


@pytest.mark.promise("J5")
def test_cancelling_a_question_lets_the_server_go_that_has_put_it(
    caller: Caller, logs: dict[str, Log]
) -> None:
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
def test_what_tools_give_back_has_the_kinds_that_a2a_has(caller: Caller) -> None:
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
    assert words(failed["status"]["message"]) == "it went wrong"


def test_every_call_takes_the_one_road(caller: Caller) -> None:
    task = sent(caller, "modern.echo", "audited")
    records = [one for one in caller.hub.audit() if one["verb"] == "modern.echo"]
    assert state(task) == "completed"
    assert any("a2a" in json.dumps(one) for one in records), records[-1:]


# --- agents as tools ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_agents() -> Iterator[Grounds]:
    agents = (*AGENTS, agent_entry("asking", "asking"), agent_entry("code-reviewer", "echo"))
    with run_a2a_hub(agents) as made:
        yield made


@pytest.mark.promise("F3")
@each_era
def test_an_agent_is_a_tool_over_http(with_agents: Grounds, era: str) -> None:
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
def test_an_agent_is_a_tool_over_stdio_though_nothing_is_exposed(with_agents: Grounds) -> None:
    with with_agents.hub.relay() as stdio:
        stdio.initialize()
        listed = stdio.request("tools/list")["result"]["tools"]
        assert "dragoman_agent_echo" in {tool["name"] for tool in listed}
        call = {"name": "dragoman_agent_echo", "arguments": {"message": "hi"}}
        answer = stdio.request("tools/call", call)
        assert text_of(answer) == "hi"


def test_the_prefix_of_agents_is_the_operators(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    config = a2a_config(config='[mcp]\nagent_prefix = "openfang_agent_"')
    running = hub(config=config, env=agents_env(short_tmp))
    names = {tool["name"] for tool in running.rpc("tools/list")["result"]["tools"]}
    assert "openfang_agent_echo" in names and "dragoman_agent_echo" not in names
    assert text_of(running.call("openfang_agent_echo", {"message": "hi"})) == "hi"


def test_a_question_of_an_agent_is_an_elicitation(with_agents: Grounds) -> None:
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


def test_agents_and_tools_are_skills_beside_each_other(with_agents: Grounds) -> None:
    hub = with_agents.hub
    own = hub.api("/a2a/dragoman/.well-known/agent-card.json")
    assert own["name"] == "dragoman" and own["url"] == f"{hub.url}/a2a/dragoman"
    by_skill = to("dragoman_agent_mirror", "see")
    task = Caller(hub).ask(SEND, by_skill).value["task"]
    assert task["artifacts"][0]["parts"][0]["data"]["text"] == "see"
