"""Workflows against real agents, A2A 1.0 by the official SDK and 0.3 handwritten: over the API, the
command line, MCP and A2A."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.live.a2a_hub import SEND, V10, Caller, run_a2a_hub
from tests.live.bridge_fixture import external
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.process import HttpPeer, read_log

pytestmark = pytest.mark.promise("R14")

SKILLS = ("--skill", "review:code", "--skill", "typescript:qa")
SKILL = "urn:dragoman:a2a:skill:v1"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
PR = "https://example.org/pull/7"

# The two examples of the bridge's documentation as they stand, and a step after each.
REVIEW = """
steps:
- id: run-code-review
  type: action
  nodeId: agent.invoke
  config:
    agentCardId: "{{ nodes.agent-ref.agentCardId }}"
    skillId: review
    args:
      prUrl: "{{ $trigger.prUrl }}"
- id: report
  nodeId: agent.invoke
  config:
    agent: old
    message: "echo review {{ nodes.run-code-review.text }}"
output: "{{ nodes.report.text }}"
expose: true
inputs: {prUrl: string}
agents: {agent-ref: new}
"""
DISPATCH = """
steps:
- id: dispatch-qa
  type: action
  nodeId: agent.dispatch
  config:
    workType: qa
    description: Run integration tests for the new feature
    requiredSkills:
    - typescript
- id: report
  nodeId: transform
  config:
    value: "{{ nodes.dispatch-qa.agent }} said {{ nodes.dispatch-qa.text }}"
"""
ASKS = """
expose: true
steps:
- id: ask
  nodeId: agent.invoke
  config: {agent: new, message: "ask me"}
output: {answer: "{{ nodes.ask.text }}"}
"""
HANGS = """
expose: true
steps:
- id: hang
  nodeId: agent.invoke
  config: {agent: new, message: "hang on"}
"""


@dataclass(frozen=True)
class Rig:
    hub: RunningHub
    folder: Path

    def define(self, name: str, source: str) -> None:
        found = self.hub.post("/api/workflows", {"name": name, "source": source})
        assert found["state"] == "active", found

    def start(self, name: str, **body: Any) -> str:
        sent = wire.post(self.hub.url + f"/api/workflows/{name}/run", body, self.hub.headers)
        assert sent.status == 202, sent.json()
        return str(sent.json()["run"]["id"])

    def until(self, id: str, *states: str) -> dict[str, Any]:
        wanted = states or ("completed", "failed", "cancelled")

        def find() -> dict[str, Any] | None:
            found: dict[str, Any] = self.hub.api(f"/api/runs/{id}")
            return found if found["run"]["state"] in wanted else None

        found = until(find)
        assert found is not None
        return found

    def count(self, agent: str, event: str) -> int:
        return sum(one["event"] == event for one in read_log(self.folder / agent))


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="dgw", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        declared = ("--declare", "JSONRPC:1.0", *SKILLS)
        new = stack.enter_context(HttpPeer("a2a_sdk_agent", *declared, "--log", folder / "new"))
        old = stack.enter_context(HttpPeer("a2a_v03_agent", *SKILLS, "--log", folder / "old"))
        agents = [
            external("new", new.url),
            external("old", old.url),
        ]
        hub = stack.enter_context(run_a2a_hub(agents)).hub

        def are_ready() -> bool:
            return all(one["health"] == "healthy" for one in hub.api("/api/a2a/agents")["agents"])

        until(are_ready)
        made = Rig(hub, folder)
        for name, source in (
            ("review", REVIEW), ("dispatch", DISPATCH), ("asks", ASKS), ("hangs", HANGS),
        ):  # fmt: skip
            made.define(name, source)
        yield made


def test_the_documented_examples_run_on_agents_of_both_dialects(rig: Rig) -> None:
    for agent in ("new", "old"):
        id = rig.start("review", inputs={"prUrl": PR}, agents={"agent-ref": agent})
        found = rig.until(id)
        assert found["output"] == f"echo: review echo: {PR}", found
        steps = {one["id"]: one for one in found["steps"]}
        assert (steps["run-code-review"]["agent"], steps["report"]["agent"]) == (agent, "old")
        assert steps["run-code-review"]["tool"] == f"{agent}.review"
        assert found["run"]["digest"] and found["run"]["startedBy"] == "local:local"
    found = rig.until(rig.start("dispatch"))
    agent, said = found["steps"][0]["agent"], found["output"]["report"]
    assert (
        agent in ("new", "old")
        and said == f"{agent} said echo: integration tests for the new feature"
    )
    # Every step is a call: recorded as one, in the trace of its run.
    verbs = [one["verb"] for one in rig.hub.audit() if one.get("door") == "workflow"]
    assert {"new.review", "old.review", "old.message", "dragoman.dispatch"} <= set(verbs)


def test_runs_are_started_followed_and_answered_on_the_command_line(rig: Rig) -> None:
    done = rig.hub.command("workflows", "run", "review", f"prUrl={PR}", "--follow")
    assert (done.returncode, done.stdout) == (0, f"echo: review echo: {PR}\n"), done
    assert "run-code-review: completed" in done.stderr and "report: completed" in done.stderr
    missing = rig.hub.command("workflows", "run", "review")
    assert missing.returncode == 2 and 'needs the input "prUrl"' in missing.stderr

    id = json.loads(rig.hub.command("workflows", "run", "asks", "--json").stdout)["id"]
    rig.until(id, "waiting")
    watched = rig.hub.command("runs", "watch", id)
    assert watched.returncode == 1 and f"dragoman runs answer {id} ask" in watched.stderr
    asked = rig.hub.api(f"/api/runs/{id}")["steps"][0]
    (name,) = asked["questions"]
    assert "handle" not in json.dumps(asked)
    schema = asked["questions"][name]["requestedSchema"]
    field = next(iter(schema["properties"]))
    answered = rig.hub.command("runs", "answer", id, "ask", f"{field}=green")
    assert answered.returncode == 0, answered
    assert "green" in rig.until(id)["output"]["answer"]
    shown = rig.hub.command("runs", "show", id)
    assert "ask" in shown.stdout and "completed" in shown.stdout, shown
    listed = json.loads(rig.hub.command("runs", "list", "--workflow", "asks", "--json").stdout)
    assert [one["id"] for one in listed] == [id]

    id = rig.start("hangs")
    assert rig.hub.get("/api/runs/unknown/events").status == 404
    until(lambda: rig.count("new", "execute") and rig.hub.api(f"/api/runs/{id}")["steps"][0])
    rig.until(id, "running")
    before = rig.count("new", "cancel")
    until(lambda: any(one.get("word") == "hang" for one in read_log(rig.folder / "new")))
    until(lambda: rig.hub.api(f"/api/runs/{id}")["steps"][0]["message"])  # of the agent
    with wire.stream(
        "GET", rig.hub.url + f"/api/runs/{id}/events", headers=rig.hub.headers
    ) as events:
        assert rig.hub.command("runs", "cancel", id).returncode == 0
        seen = [events.next()]
        while seen[-1].name != "run-changed":
            seen.append(events.next())
        assert {one.json()["run"] for one in seen} == {id}
        assert seen[-1].json()["state"] == "cancelled"
    assert rig.until(id)["run"]["state"] == "cancelled"
    until(lambda: rig.count("new", "cancel") > before)  # down to the agent
    again = rig.hub.command("runs", "cancel", id)
    assert again.returncode == 2 and "has ended already" in again.stderr


def test_mcp_and_a2a_clients_use_a_workflow_as_a_tool(rig: Rig) -> None:
    tools = {one["name"]: one for one in rig.hub.rpc("tools/list")["result"]["tools"]}
    assert tools["workflow.review"]["inputSchema"]["required"] == ["prUrl"]
    assert "workflow.dispatch" not in tools
    result = rig.hub.call("workflow.review", {"prUrl": PR})["result"]
    assert result["structuredContent"] == {"output": f"echo: review echo: {PR}"}, result
    id = result["_meta"]["dragoman.hub/run"]
    assert rig.hub.api(f"/api/runs/{id}")["run"]["trigger"]["kind"] == "tool"
    refused = rig.hub.call("workflow.review", {})
    assert refused["result"]["isError"] is True or "error" in refused
    can_answer: dict[str, Any] = {"_meta": {CAPABILITIES: {"elicitation": {}}}}
    asked = rig.hub.rpc("tools/call", {"name": "workflow.asks", "arguments": {}, **can_answer})
    (name,) = asked["result"]["inputRequests"]
    schema = asked["result"]["inputRequests"][name]["params"]["requestedSchema"]
    content = dict.fromkeys(schema["properties"], "red")
    answer = {
        "inputResponses": {name: {"action": "accept", "content": content}},
        "requestState": asked["result"]["requestState"],
    }
    done = rig.hub.rpc(
        "tools/call", {"name": "workflow.asks", "arguments": {}, **can_answer, **answer}
    )
    assert "red" in done["result"]["structuredContent"]["answer"], done

    # As a skill on the card of the hub, and as the work of an A2A task, which asks and is answered.
    card = rig.hub.get("/a2a/dragoman/.well-known/agent-card.json", rig.hub.headers).json()
    assert "workflow.review" in {one["id"] for one in card["skills"]}
    caller = Caller(rig.hub)
    params = V10.params({})
    params["message"]["metadata"] = {SKILL: {"skillId": "workflow.asks"}}
    task = caller.ask(SEND, params).value["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", task
    task = caller.ask(SEND, V10.params("blue", task=task["id"])).value["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED" and "blue" in json.dumps(task), task


def test_a_cancelled_call_of_the_tool_cancels_the_run(rig: Rig) -> None:
    before = rig.count("new", "cancel")
    with pytest.raises(TimeoutError):
        rig.hub.call("workflow.hangs", timeout=1.5)

    def find() -> dict[str, Any] | None:
        (run, *_) = rig.hub.api("/api/runs?workflow=hangs&limit=1")["runs"]
        return run if run["state"] == "cancelled" else None

    until(find)
    until(lambda: rig.count("new", "cancel") > before)


def test_definitions_are_checked_replaced_and_deleted_by_the_api(rig: Rig) -> None:
    bad = "steps:\n- id: a\n  nodeId: tool.cal\n  config: {tool: x}\n"
    found = rig.hub.post("/api/workflows/check", {"source": bad})["problems"]
    assert found[0]["line"] == 3 and "tool.call" in found[0]["message"]
    assert "error" in rig.hub.post("/api/workflows", {"name": "bad", "source": bad})
    names = [one["name"] for one in rig.hub.api("/api/workflows")["workflows"]]
    assert names == ["asks", "dispatch", "hangs", "review"]
    graph = rig.hub.api("/api/workflows/review")["graph"]["nodes"]
    assert [(one["id"], one["dependsOn"]) for one in graph] == [
        ("run-code-review", []), ("report", ["run-code-review"]),
    ]  # fmt: skip
    rig.define("gone", ASKS)
    removed = wire.http_request(
        "DELETE", rig.hub.url + "/api/workflows/gone", None, rig.hub.headers
    )
    assert removed.status == 200
    assert rig.hub.get("/api/workflows/gone").status == 404
