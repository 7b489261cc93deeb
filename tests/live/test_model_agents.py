"""Agents from manifests in a running hub, with a model server over real HTTP: the seeds' code
reviewer through every entry point, faults of the model, grants, conversations, live reload.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CreateMessageResult, TextContent
from tests.live.a2a_hub import BINDINGS, SEND, V10, Caller, DialectBinding, text_from_parts
from tests.live.configurable_servers import run_configurable_hub, tool
from tests.live.conftest import RunningHub
from tests.live.module_hub import error_kind, run_concurrently, until
from tests.peers import wire
from tests.peers.scripted_model import ScriptedModel, running_model, say, use

from mcp import Client

pytestmark = pytest.mark.promise("T1", "P1", "F3", "Q4")

CONFIG = """
[mcp]
stdio_expose = ["*"]
[a2a]
enabled = true
"""
OFFERS = {
    "tools": [tool("read"), tool("status"), tool("secret")],
    "results": {"read": {"content": [{"type": "text", "text": "def f(): pass"}]}},
}
REVIEWER = """
name = "code-reviewer"
description = "Reviews code"
version = "2.1.0"
[model]
provider = "openai"
model = "scripted-1"
base_url = "{url}"
system_prompt = "You review code."
[capabilities]
tools = ["files.read", "mcp_files_status"]
agents = ["helper"]
"""
HELPER = """
[model]
model = "scripted-1"
base_url = "{url}"
[capabilities]
agents = ["code-reviewer"]
"""


class Rig:
    def __init__(self, hub: RunningHub, model: ScriptedModel) -> None:
        self.hub = hub
        self.model = model

    def write(self, name: str, text: str) -> Path:
        folder = self.hub.home / "agents" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "agent.toml").write_text(text.replace("{url}", self.model.url), encoding="utf-8")
        return folder

    def ask(self, message: str, agent: str = "code-reviewer", **more: Any) -> dict[str, Any]:
        called = self.hub.call(f"{agent}.message", {"message": message}, **more)
        return dict(called["result"])

    def text(self, message: str, agent: str = "code-reviewer", **more: Any) -> str:
        return str(self.ask(message, agent, **more)["content"][0]["text"])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    place = tmp_path_factory.mktemp("agents")
    with (
        running_model() as model,
        run_configurable_hub(place, CONFIG, files={"offers": OFFERS}) as (hub, _),
    ):
        rig = Rig(hub, model)
        rig.write("code-reviewer", REVIEWER)
        rig.write("helper", HELPER)
        until(lambda: {"code-reviewer", "helper"} <= set(list_agents(hub)))
        yield rig


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.model.answers.clear()
    shared.model.rules.clear()
    shared.model.requests.clear()
    shared.model.broken.clear()
    return shared


def list_agents(hub: RunningHub) -> list[str]:
    return list(hub.api("/api/status")["agents"]["local"])


# --- the loop -------------------------------------------------------------------------------------


def test_agent_calls_a_tool_and_answers(rig: Rig) -> None:
    rig.model.answers += [use(("mcp_files_read", {"path": "a.py"})), say("It does nothing.")]
    result = rig.ask("Review a.py")
    assert result["content"][0]["text"] == "It does nothing."
    first, second = rig.model.requests
    assert [one["role"] for one in first["messages"]] == ["system", "user"]
    assert first["messages"][0]["content"] == "You review code."
    names = {one["function"]["name"] for one in first["tools"]}
    assert names == {"mcp_files_read", "mcp_files_status", "dragoman_agent_helper"}
    assert second["messages"][-1]["role"] == "tool"
    assert second["messages"][-1]["content"] == "def f(): pass"
    asked = second["messages"][-2]["tool_calls"][0]
    assert json.loads(asked["function"]["arguments"]) == {"path": "a.py"}
    assert asked["id"] == second["messages"][-1]["tool_call_id"]


def test_calls_of_an_agent_are_one_trace(rig: Rig) -> None:
    rig.model.answers += [use(("mcp_files_read", {})), say("done")]
    rig.ask("trace me")
    rows = rig.hub.audit()[-2:]
    assert [one["verb"] for one in rows] == ["code-reviewer.message", "files.read"]
    assert rows[0]["trace"] == rows[1]["trace"]
    assert rows[1]["caller"] == "agent:code-reviewer" and rows[1]["depth"] == 1
    assert rows[1]["on_behalf_of"] == rows[0]["caller"]
    usage = rows[0]["usage"]
    assert (usage["model_calls"], usage["tool_calls"]) == (2, 1)
    assert (usage["input_tokens"], usage["output_tokens"]) == (22, 14)


def test_parallel_tool_calls_are_answered_in_their_order(rig: Rig) -> None:
    calls = [(name, {"n": n}) for n, name in enumerate(["mcp_files_read", "mcp_files_status"] * 3)]
    rig.model.answers += [use(*calls), say("all done")]
    assert rig.text("many") == "all done"
    results = [one for one in rig.model.requests[1]["messages"] if one["role"] == "tool"]
    asked = rig.model.requests[1]["messages"][2]["tool_calls"]
    assert [one["tool_call_id"] for one in results] == [one["id"] for one in asked]
    assert [one["content"] for one in results] == ["def f(): pass", "arrived: status"] * 3


def test_conversation_continues_in_its_context(rig: Rig) -> None:
    rig.model.answers += [say("one"), say("two"), say("three")]
    first = rig.ask("first", era="modern")
    context = first["_meta"]["dragoman.hub/context"]
    more = {"message": "second", "context": context}
    rig.hub.call("code-reviewer.message", more)
    rig.hub.call("code-reviewer.message", {"message": "other"})
    texts = [[one["content"] for one in each["messages"]] for each in rig.model.requests]
    assert texts[1] == ["You review code.", "first", "one", "second"]
    assert texts[2] == ["You review code.", "other"]


@pytest.mark.parametrize("binding", BINDINGS, ids=str)
def test_agent_answers_over_a2a(rig: Rig, binding: DialectBinding) -> None:
    rig.model.answers += [use(("mcp_files_read", {})), say("Looks fine to me.")]
    params = binding.params("Review it")
    params["message"]["metadata"] = {"skillId": "code-reviewer.message"}
    reply = binding.ask(rig.hub, SEND, params)
    assert "Looks fine to me." in json.dumps(reply.value)


def test_agent_answers_over_stdio_under_its_seed_name(rig: Rig) -> None:
    rig.model.answers += [say("from stdio")]
    relay = rig.hub.relay()
    relay.initialize()
    try:
        named = {"name": "dragoman_agent_code_reviewer", "arguments": {"message": "hi"}}
        result = relay.request("tools/call", named)["result"]
    finally:
        relay.close()
    assert result["content"][0]["text"] == "from stdio"


# --- grants ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["files.secret", "mcp_files_secret", "files.nothing", "x", ""])
def test_what_is_not_granted_is_unknown(rig: Rig, name: str) -> None:
    rig.model.answers += [use((name or "no", {})), say("I could not.")]
    assert rig.text("try") == "I could not."
    said = rig.model.requests[1]["messages"][-1]["content"]
    assert said.startswith(f'Error: there is no tool "{name or "no"}"')


def test_agents_stop_when_they_call_each_other_in_a_circle(rig: Rig) -> None:
    rig.model.rules += [
        ("begin", use(("dragoman_agent_helper", {"message": "your turn"}))),
        ("your turn", use(("dragoman_agent_code_reviewer", {"message": "back to you"}))),
        ("would wait for itself", say("helper: refused")),
        ("helper: refused", say("stopped")),
    ]
    begun = time.monotonic()
    assert rig.text("begin") == "stopped"
    assert time.monotonic() - begun < 20
    refused = [one for one in rig.hub.audit()[-4:] if one["outcome"] == "refused"]
    assert [one["error"] for one in refused] == ["Looping"]


def test_circle_of_three_agents_is_refused_where_it_closes(rig: Rig) -> None:
    for name, next_one in (("one", "two"), ("two", "three"), ("three", "one")):
        rig.write(name, HELPER.replace("code-reviewer", next_one))
    until(lambda: {"one", "two", "three"} <= set(list_agents(rig.hub)))
    rig.model.rules += [
        ("begin", use(("dragoman_agent_two", {"message": "from one"}))),
        ("from one", use(("dragoman_agent_three", {"message": "from two"}))),
        ("from two", use(("dragoman_agent_one", {"message": "from three"}))),
        ("would wait for itself", say("three: refused")),
        ("three: refused", say("two: refused")),
        ("two: refused", say("stopped")),
    ]
    assert rig.text("begin", "one") == "stopped"
    verbs = [(one["verb"], one["outcome"]) for one in rig.hub.audit()[-4:]]
    assert [verb for verb, _ in verbs].count("one.message") == 2
    assert ("one.message", "refused") in verbs


# --- faults of the model --------------------------------------------------------------------------


def test_malformed_arguments_and_invented_tools_are_explained_to_the_model(rig: Rig) -> None:
    rig.model.answers += [
        use(("mcp_files_read", '{"path": '), ("mcp_files_read", "[1]"), ("made_up", {})),
        say("sorry"),
    ]
    assert rig.text("go") == "sorry"
    results = [one["content"] for one in rig.model.requests[1]["messages"] if one["role"] == "tool"]
    assert [one.split(":")[1].strip() for one in results[:2]] == [
        "the arguments are not a JSON object"
    ] * 2
    assert results[2].startswith('Error: there is no tool "made_up"')


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "body": {"error": {"message": "overloaded"}}},
        {"status": 429, "body": {}, "headers": {"retry-after": "0"}},
        {"text": "begun", "drop": True},
        {"raw": b"data: not json\n\n"},
        {"raw": b""},
        {"whole": "nonsense"},
    ],
    ids=["503", "429", "dropped", "garbage", "empty", "no-message"],
)
def test_model_that_fails_once_is_asked_again(rig: Rig, fault: dict[str, Any]) -> None:
    rig.model.answers += [fault, say("better now")]
    assert rig.text("try") == "better now"
    assert len(rig.model.requests) == 2


def test_model_that_keeps_failing_is_reported(rig: Rig) -> None:
    rig.model.answers += [{"status": 500, "body": {"error": {"message": "kaput"}}}] * 3
    failed = rig.ask("try")
    assert failed["isError"] and "kaput" in failed["content"][0]["text"]
    assert "no model that answers" in failed["content"][0]["text"]
    rig.model.answers += [{"status": 401, "body": {"error": {"message": "bad key"}}}]
    refused = rig.ask("try")
    assert "status 401: bad key" in refused["content"][0]["text"]


def test_model_that_asks_for_a_hundred_tools_is_bounded(rig: Rig) -> None:
    rig.model.answers += [use(*[("mcp_files_read", {"n": n}) for n in range(120)]), say("enough")]
    assert rig.text("all of them") == "enough"
    results = [one["content"] for one in rig.model.requests[1]["messages"] if one["role"] == "tool"]
    assert len(results) == 120
    made = sum(one == "def f(): pass" for one in results)
    assert made <= 100 and sum("Error" in one for one in results) == 120 - made


def test_model_that_never_stops_calling_tools_is_stopped(rig: Rig) -> None:
    rig.model.rules += [("", use(("mcp_files_status", {})))]
    failed = rig.ask("loop")
    assert failed["isError"]
    assert "turns" in failed["content"][0]["text"]
    refusals = [one for one in rig.hub.audit() if one.get("error") == "Repeating"]
    assert refusals, "the loop guard refuses the repeated calls meanwhile"


def test_cancelled_call_reaches_the_model_connection(rig: Rig) -> None:
    rig.model.answers += [{"text": "slow", "stall": True}]
    called = {"name": "code-reviewer.message", "arguments": {"message": "stall"}}
    relay = rig.hub.relay()
    relay.initialize()
    try:
        relay.send(wire.request(77, "tools/call", called))
        until(lambda: rig.model.open == 1)
        relay.notify("notifications/cancelled", {"requestId": 77, "reason": "enough"})
        assert rig.model.broken.wait(60)
    finally:
        relay.close()


# --- manifests ------------------------------------------------------------------------------------


def test_changed_manifest_takes_effect_and_the_others_stay(rig: Rig) -> None:
    hub = rig.hub
    folder = rig.write("temp", REVIEWER.replace('"code-reviewer"', '"temp"'))
    until(lambda: "temp" in list_agents(hub))
    rig.write("temp", "name = 'temp'\nnonsense = 1\n")
    until(lambda: "temp" in hub.api("/api/status")["agents"]["failed"])
    assert "unknown field" in hub.api("/api/status")["agents"]["failed"]["temp"]
    rig.model.answers += [say("still the old one")]
    assert rig.text("hi", "temp") == "still the old one"
    rig.write("temp", '[[script]]\nsay = "scripted: {message}"\n')
    until(lambda: rig.text("hi", "temp") == "scripted: hi")
    (folder / "agent.toml").unlink()
    until(lambda: "temp" not in list_agents(hub))
    assert error_kind(hub.call("temp.message", {"message": "hi"})) == "NotFound"


def test_fifty_messages_at_once_are_answered_each(rig: Rig) -> None:
    rig.model.rules += [(f"message {n} ", say(f"answer {n}")) for n in range(50)]
    answers = run_concurrently(lambda n: rig.text(f"message {n} please"), 50)
    assert answers == [f"answer {n}" for n in range(50)]


def test_messages_of_one_context_are_answered_in_their_order(rig: Rig) -> None:
    rig.model.rules += [("slow", say("slow one")), ("quick", say("quick one"))]
    binding = next(one for one in BINDINGS if one.version == "1.0")
    context = str(uuid4())

    def send(text: str) -> Any:
        params = binding.params(text)
        params["message"] |= {
            "metadata": {"skillId": "code-reviewer.message"},
            "contextId": context,
        }
        return binding.ask(rig.hub, SEND, params).value

    run_concurrently(lambda n: send(["slow", "quick"][n % 2]), 6)
    lengths = sorted(len(one["messages"]) for one in rig.model.requests)
    assert lengths == [2, 4, 6, 8, 10, 12]  # each has seen what came before it


# --- an agent as an MCP server of its own ---------------------------------------------------------

EXPOSING = """
[model]
model = "scripted-1"
base_url = "{url}"
[capabilities]
mcp_servers = ["files"]
[mcp]
expose_tools = ["files:read", "files:secret", "mcp_files_stat*"]
private_tools = ["files:secret"]
"""


@pytest.mark.promise("Q1", "Q2", "Q3", "G4")
def test_agent_is_an_mcp_server_of_its_own(rig: Rig) -> None:
    hub = rig.hub
    rig.write("exposing", f'name = "openstarry-coder"\nversion = "1.0.0"\n{EXPOSING}')
    until(lambda: "openstarry-coder" in list_agents(hub))
    session = wire.Session(f"{hub.url}/agents/openstarry-coder/mcp", "2024-11-05")
    begun = session.result
    assert begun["serverInfo"] == {"name": "openstarry-coder", "version": "1.0.0"}
    assert begun["capabilities"]["tools"] == {"listChanged": True}
    assert begun["capabilities"]["resources"]["listChanged"] is True
    names = [one["name"] for one in session.request("tools/list")["result"]["tools"]]
    assert names == ["files:read", "mcp_files_status"]
    for name in ("files:read", "files.read", "mcp_files_read"):
        called = session.request("tools/call", {"name": name, "arguments": {}})
        assert called["result"]["content"] == [{"type": "text", "text": "def f(): pass"}], name
    for name in ("files:secret", "files.secret", "mcp_files_secret", "files.look"):
        refused = session.request("tools/call", {"name": name, "arguments": {}})
        assert error_kind(refused) == "NotFound" or "there is no tool" in json.dumps(refused), name
    rows = [one for one in hub.audit() if one["verb"].endswith("read")][-2:]
    assert [one["caller"] for one in rows] == ["local:local", "agent:openstarry-coder"]
    assert rows[0]["trace"] == rows[1]["trace"]


@pytest.mark.promise("Q3")
def test_agent_exposes_nothing_by_default(rig: Rig) -> None:
    session = wire.Session(f"{rig.hub.url}/agents/code-reviewer/mcp", "2025-11-25")
    assert session.request("tools/list")["result"]["tools"] == []
    unknown = wire.post(f"{rig.hub.url}/agents/nobody/mcp", wire.request(1, "ping"), {})
    assert unknown.status == 404
    other = wire.post(f"{rig.hub.url}/agents/code-reviewer/other", wire.request(1, "ping"), {})
    assert other.status == 404


@pytest.mark.promise("I1")
def test_card_has_a_skill_for_each_granted_tool(rig: Rig) -> None:
    listed = rig.hub.api("/a2a/agents")["agents"]
    (card,) = [one for one in listed if one["name"] == "code-reviewer"]
    assert card["version"] == "2.1.0" and card["description"] == "Reviews code"
    skills = {one["id"]: one for one in card["skills"]}
    assert set(skills) == {"mcp_files_read", "mcp_files_status", "dragoman_agent_helper"}
    skill = skills["mcp_files_status"]
    assert skill["name"] == "mcp files status" and skill["tags"] == ["tool"]
    assert skill.get("examples", []) == []


# --- usage ----------------------------------------------------------------------------------------

METERED = """
[model]
model = "scripted-1"
base_url = "{url}"
[limits]
tokens_per_day = 30
"""


def test_usage_is_shown_and_a_budget_refuses(rig: Rig) -> None:
    hub = rig.hub
    rig.write("metered", METERED)
    until(lambda: "metered" in list_agents(hub))
    rig.model.rules += [("", say("fine"))]
    assert rig.text("one", "metered") == rig.text("two", "metered") == "fine"
    refused = hub.call("metered.message", {"message": "three"})
    assert error_kind(refused) == "RateLimited"
    assert 'the budget of agent "metered" for today is used up: 36 of 30' in str(refused)
    (row,) = hub.api("/api/usage?agent=metered&by=agent,origin")["usage"]
    assert (row["messages"], row["input_tokens"], row["output_tokens"]) == (2, 22, 14)
    assert row["origin"] == "local:local" and row["seconds"] > 0
    shown = hub.command("usage", "--agent", "metered", "--by", "model")
    assert shown.returncode == 0 and "scripted-1" in shown.stdout and "$0.0000" in shown.stdout
    wrong = hub.get("/api/usage?by=colour")
    assert wrong.status == 400 and b"by must be of" in wrong.body


# --- a small model ---

CONSTRAINED = """
[model]
provider = "llamacpp"
model = "small"
base_url = "{url}"
tool_mode = "constrained"
[capabilities]
tools = ["files.read"]
"""


def test_small_model_calls_tools_by_json_that_matches_a_schema(rig: Rig) -> None:
    rig.write("small", CONSTRAINED)
    until(lambda: "small" in list_agents(rig.hub))
    rig.model.answers += [
        say('{"tool": "mcp_files_read", "args": {"path": "a.py"}}'),
        say('{"final": "It is empty."}'),
    ]
    assert rig.text("Read a.py", "small") == "It is empty."
    first, second = rig.model.requests
    forms = first["response_format"]["json_schema"]["schema"]["anyOf"]
    assert forms[0]["properties"]["tool"] == {"const": "mcp_files_read"}
    assert "tools" not in first
    assert second["messages"][-1]["content"] == "Result of the tool: def f(): pass"


# --- a provider with an API of its own ---

CLAUDE = """
[model]
provider = "anthropic"
model = "scripted-1"
base_url = "{url}"
api_key_env = "SCRIPTED_KEY"
[capabilities]
tools = ["files.read"]
"""


def test_agent_uses_a_provider_of_the_extra(rig: Rig) -> None:
    hub, root = rig.hub, rig.model.url.removesuffix("/v1")
    rig.write("claude", CLAUDE.replace("{url}", root))
    until(lambda: "claude" in hub.api("/api/status")["agents"]["failed"])
    why = hub.api("/api/status")["agents"]["failed"]["claude"]
    assert 'the variable "SCRIPTED_KEY" is not set' in why
    variables = hub.home / "env"
    variables.touch(mode=0o600)
    variables.write_text("SCRIPTED_KEY=sk-scripted\n", encoding="utf-8")
    until(lambda: "claude" in list_agents(hub))
    rig.model.answers += [
        use(("mcp_files_read", '{"path": "a.py"'), ("mcp_files_read", {}), text="Let me see."),
        say("It does nothing."),
    ]
    assert rig.text("Review a.py", "claude") == "It does nothing."
    results = rig.model.requests[1]["messages"][-1]["content"]
    assert "not a JSON object" in json.dumps(results[0])
    assert "def f(): pass" in json.dumps(results[1])
    assert "sk-scripted" in str(rig.model.headers[-1])
    (row,) = hub.api("/api/usage?agent=claude")["usage"]
    assert (row["input_tokens"], row["output_tokens"]) == (22, 14)


# --- the client's model ---------------------------------------------------------------------------


async def test_model_of_the_client_thinks_by_sampling(rig: Rig) -> None:
    hub = rig.hub
    rig.write("borrower", '[model]\nprovider = "client"\n[capabilities]\ntools = ["files.read"]\n')
    until(lambda: "borrower" in list_agents(hub))
    asked: list[Any] = []
    answers = ['{"tool": "mcp_files_read", "args": {}}', '{"final": "It is empty."}']

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        asked.append(params)
        text = TextContent(type="text", text=answers[len(asked) - 1])
        return CreateMessageResult(role="assistant", content=text, model="the-ide")

    async with httpx2.AsyncClient() as http:
        target = streamable_http_client(hub.mcp_url, http_client=http)
        async with Client(target, mode="legacy", sampling_callback=sample) as client:
            result = await client.call_tool("borrower.message", {"message": "Read it"})
    assert result.content[0].text == "It is empty."  # type: ignore[union-attr]
    assert "mcp_files_read" in asked[0].system_prompt
    assert "def f(): pass" in asked[1].messages[-1].content.text
    cannot = hub.call("borrower.message", {"message": "Read it"})
    assert error_kind(cannot) == "NeedsInput"


# --- other runtimes, and skills -------------------------------------------------------------------

PROGRAM = """
import json, sys
asked = json.loads(sys.stdin.readline())
print(json.dumps({"type": "progress", "message": "thinking"}))
print(json.dumps({"type": "text", "text": "program: " + asked["text"]}))
"""


def test_manifest_can_name_a_program_or_a_function(rig: Rig) -> None:
    hub = rig.hub
    folder = rig.write("program", f'[command]\nargv = ["{sys.executable}", "answer.py"]\n')
    (folder / "workspace").mkdir(exist_ok=True)
    (folder / "workspace" / "answer.py").write_text(PROGRAM, encoding="utf-8")
    (hub.home / "shouting.py").write_text("def shout(text: str):\n    return text.upper()\n")
    rig.write("shouter", 'function = "shouting:shout"\ndescription = "Shouts"\n')
    until(lambda: {"program", "shouter"} <= set(list_agents(hub)))
    assert rig.text("hi", "program") == "program: hi"
    assert rig.text("hi", "shouter") == "HI"
    listed = {one["name"]: one for one in hub.api("/api/agents")["agents"]}
    assert listed["program"]["runtime"] == "command" and listed["shouter"]["runtime"] == "function"
    assert listed["shouter"]["source"].endswith("shouter/agent.toml")
    assert re.search(r"^program +command ", hub.command("agents").stdout, re.MULTILINE)


def test_model_reads_the_texts_of_its_skills_on_demand(rig: Rig, tmp_path: Path) -> None:
    hub = rig.hub
    for name in ("tidy-code", "other"):
        place = tmp_path / name
        place.mkdir()
        text = f"---\nname: {name}\ndescription: How to {name}.\n---\nFirst, read it all.\n"
        (place / "SKILL.md").write_text(text, encoding="utf-8")
        (place / "list.md").write_text("a checklist", encoding="utf-8")
        assert hub.command("skills", "add", str(place), "--yes").returncode == 0
    rig.write("skilled", HELPER.replace("[model]", 'skills = ["tidy-*"]\n[model]'))
    until(lambda: "skilled" in list_agents(hub))
    until(lambda: len(hub.api("/api/skills")["skills"]) == 2)
    rig.model.answers += [
        use(("load_skill", {"name": "tidy-code"}), ("load_skill", {"name": "other"}),
            ("load_skill", {"name": "tidy-code", "file": "list.md"})),
        say("tidied"),
    ]  # fmt: skip
    assert rig.text("tidy up", "skilled") == "tidied"
    (offered,) = [one["function"] for one in rig.model.requests[0]["tools"]
                  if one["function"]["name"] == "load_skill"]  # fmt: skip
    assert "tidy-code: How to tidy-code." in offered["description"]
    assert offered["parameters"]["properties"]["name"]["enum"] == ["tidy-code"]
    results = [one["content"] for one in rig.model.requests[1]["messages"] if one["role"] == "tool"]
    assert results[0].startswith("First, read it all.") and "list.md" in results[0]
    assert results[1].startswith("Error: there is no skill") and results[2] == "a checklist"


@pytest.mark.promise("Q1", "Q2")
def test_exposed_files_of_the_workspace_are_resources(rig: Rig) -> None:
    hub = rig.hub
    folder = rig.write("keeper", HELPER + '[mcp]\nexpose_files = ["docs/*.md", "*.bin"]\n')
    docs = folder / "workspace" / "docs"
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "a b.md").write_text("# Hello", encoding="utf-8")
    (docs / "secret.txt").write_text("hidden", encoding="utf-8")
    (folder / "workspace" / "x.bin").write_bytes(b"\xff\x00")
    (folder / "workspace" / "out.md").symlink_to("/etc/hostname")
    until(lambda: "keeper" in list_agents(hub))
    session = wire.Session(f"{hub.url}/agents/keeper/mcp", "2025-11-25")
    listed = session.request("resources/list")["result"]["resources"]
    uris = [one["uri"] for one in listed]
    assert uris == ["workspace://keeper/docs/a%20b.md", "workspace://keeper/x.bin"]
    read = session.request("resources/read", {"uri": uris[0]})["result"]["contents"]
    assert read == [{"uri": uris[0], "mimeType": "text/markdown", "text": "# Hello"}]
    binary = session.request("resources/read", {"uri": uris[1]})["result"]["contents"][0]
    assert binary["blob"] == "/wA="
    for uri in ("workspace://keeper/docs/secret.txt", "file:///etc/hostname"):
        assert "error" in session.request("resources/read", {"uri": uri})
    with wire.stream("GET", session.url, headers=session.headers) as events:
        (docs / "new.md").write_text("x", encoding="utf-8")
        changed = events.next_json()
    assert changed["method"] == "notifications/resources/list_changed"
    assert len(session.request("resources/list")["result"]["resources"]) == 3


def test_agent_looks_at_an_image_with_its_own_model(rig: Rig) -> None:
    hub = rig.hub
    seeing = HELPER.replace("[capabilities]", '[capabilities]\ntools = ["image_analyze"]')
    folder = rig.write("seer", seeing)
    until(lambda: "seer" in list_agents(hub))
    (folder / "workspace").mkdir(exist_ok=True)
    (folder / "workspace" / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 20)
    ask = {"path": "cat.png", "prompt": "What is it?"}
    rig.model.rules += [
        ("What is it?", say("A cat.")),
        ("look", use(("image_analyze", ask))),
        ("A cat.", say("I saw a cat.")),
    ]
    assert rig.text("look", "seer") == "I saw a cat."
    (seen,) = [one for one in rig.model.requests if "image_url" in json.dumps(one)]
    parts = seen["messages"][-1]["content"]
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgp4")


@pytest.mark.promise("I3")
def test_input_modes_of_an_agent_follow_from_what_its_model_can_see(rig: Rig) -> None:
    hub, picture = rig.hub, {"raw": "iVBORw0KGgp4", "mediaType": "image/png"}
    params = V10.params("What is it?")
    params["message"]["parts"].append(picture)
    rig.write("sighted", HELPER)
    rig.write("blind", HELPER.replace("[model]", "[model]\nvision = false"))
    rig.write("narrow", f'{HELPER}[a2a]\ninput_modes = ["text/plain"]\n')
    rig.write("scripted", '[[script]]\nsay = "{message}"\n')
    until(lambda: {"sighted", "blind", "narrow", "scripted"} <= set(list_agents(hub)))
    rig.model.rules += [("What is it?", say("A cat."))]
    task = Caller(hub, "sighted").ask(SEND, params).value["task"]
    assert text_from_parts(task["artifacts"][0]) == "A cat."
    assert "data:image/png;base64,iVBORw0KGgp4" in json.dumps(rig.model.requests[-1])
    for name in ("blind", "narrow", "scripted"):
        assert Caller(hub, name).ask(SEND, params).error["code"] == -32005
    modes = {
        name: hub.api(f"/a2a/{name}/.well-known/agent-card.json")["defaultInputModes"]
        for name in ("sighted", "blind", "narrow")
    }
    text = ["text/plain", "application/json"]
    images = ["image/png", "image/jpeg", "image/gif", "image/webp"]
    assert modes["sighted"][:6] == [*text, *images]
    assert not any(mode.startswith("image") for mode in modes["blind"] + modes["narrow"])
