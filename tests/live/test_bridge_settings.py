"""Bridge settings, entry points beside MCP, work that outlasts a client's wait, and the dispatch
records, on a running hub.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.live.bridge_fixture import EXPOSE, external, tool_names
from tests.live.conftest import RunningHub
from tests.live.matrix_transports import connect
from tests.live.module_hub import ERROR_KEY, error_text, run_module_hub, text_of, until
from tests.live.recording_agents import RecordingAgent, run_agents
from tests.peers import wire
from tests.peers.process import HttpPeer, read_log

A2A = "[a2a]\nenabled = true\n"
ERAS = ("legacy", "modern")
ODD = (
    "a.b", "c_d", "x" * 80, "x" * 79 + "y", "Täst 1", "tools/run",
)  # fmt: skip
SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")
PATIENCE = 1.0
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


@contextmanager
def a_member(config: str, *skills: str) -> Iterator[tuple[RunningHub, RecordingAgent]]:
    agent = RecordingAgent("Vercel Ops", *skills)
    with (
        run_agents(agent),
        run_module_hub([], config + A2A + external(agent.name, agent.url)) as hub,
    ):
        until(lambda: len(hub.rpc("tools/list")["result"]["tools"]) > len(skills))
        yield hub, agent


def listing(hub: RunningHub, era: str) -> dict[str, Any]:
    return {one["name"]: one for one in hub.rpc("tools/list", era=era)["result"]["tools"]}


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.promise("R1")
def test_aliases_are_listed_when_configured() -> None:
    with a_member("[bridge]\nlist_aliases = true\n", "deploy", "logs") as (hub, agent):
        for era in ERAS:
            listed = listing(hub, era)
            assert sorted(name for name in listed if "agent" not in name) == [
                "a2a_vercel_ops_deploy",
                "a2a_vercel_ops_logs",
                "vercel_ops.deploy",
                "vercel_ops.logs",
            ]
            twin = {**listed["a2a_vercel_ops_deploy"], "name": "vercel_ops.deploy"}
            assert twin == listed["vercel_ops.deploy"]
            for name in ("a2a_vercel_ops_deploy", "vercel_ops.deploy"):
                assert text_of(hub.call(name, {}, era=era)) == "done"
        assert len(agent.sent) == 4 and hub.audit()[-2]["asked_as"] == "a2a_vercel_ops_deploy"


@pytest.mark.promise("R1")
def test_every_skill_has_a_portable_name() -> None:
    with a_member('[mcp]\nnames = "safe"\n', *ODD) as (hub, agent):
        reached = []
        for era in ERAS:
            names = [name for name in listing(hub, era) if not name.startswith("dragoman_agent")]
            assert len(set(names)) == len(ODD), names
            assert all(SAFE.fullmatch(name) for name in names), names
            for name in names:
                before = len(agent.sent)
                assert text_of(hub.call(name, {"n": 1}, era=era)) == "done"
                (message,) = agent.sent[before:]
                reached.append(message["metadata"]["urn:dragoman:a2a:skill:v1"]["skillId"])
        assert sorted(reached) == sorted([*ODD, *ODD]), "each is its own skill"


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.promise("R6")
@pytest.mark.parametrize(("setting", "coded"), [("codes", True), ("result", False)])
def test_configured_error_style_applies_to_all_clients(setting: str, coded: bool) -> None:
    with HttpPeer("a2a_skill_agent", "--declare", "JSONRPC:1.0") as agent:
        config = f'[bridge]\nerrors = "{setting}"\ntimeout_secs = {PATIENCE}\n{A2A}'
        with run_module_hub([], config + external("SDK", agent.url)) as hub:
            until(lambda: "sdk.echo" in tool_names(hub))
            for era in ERAS:
                failed = hub.call("sdk.echo", {"text": "fail"}, era=era)
                assert_error(failed, coded, -32204, "RemoteA2ATaskFailedError", "the disk is full")
                late = hub.call("sdk.echo", {"text": "hang"}, era=era)
                assert_error(late, coded, -32201, "RemoteA2ATimeoutError", "took longer than 1 s")
            assert hub.post("/api/policies", {"name": "no", "text": NO_CALLS})["ok"]
            for era in ERAS:
                denied = hub.call("sdk.echo", {"text": "say no"}, era=era)
                assert_error(denied, coded, -32003, "AuthorizationError", "a policy forbids")


NO_CALLS = (
    '@id("no-calls") forbid (principal, action in Hub::Action::"any_call", '
    'resource in Hub::RemoteAgent::"SDK");'
)


def assert_error(answer: Any, coded: bool, code: int, kind: str, words: str) -> None:
    assert words in error_text(answer), answer
    if coded:
        assert answer["error"]["code"] == code and answer["error"]["data"]["kind"] == kind
    else:
        said = answer["result"]["_meta"][ERROR_KEY]
        assert answer["result"]["isError"] is True
        assert (said["code"], said["kind"]) == (code, kind)


# --- the other ways in ----------------------------------------------------------------------------


@pytest.mark.promise("R1", "R10", "G1")
def test_external_skill_is_a_hub_skill_and_a_cli_tool() -> None:
    with a_member(EXPOSE, "deploy") as (hub, agent):
        (skill,) = wire.get(f"{hub.url}/a2a/dragoman/.well-known/agent-card.json").json()["skills"]
        assert skill["id"] == "vercel_ops.deploy"
        assert skill["description"].startswith("Invokes the deploy skill on remote A2A agent")
        message = {
            "messageId": "1",
            "role": "ROLE_USER",
            "parts": [{"data": {"branch": "a"}}],
            "metadata": {"urn:dragoman:a2a:skill:v1": {"skillId": skill["id"]}},
        }
        body = wire.request(1, "SendMessage", {"message": message})
        answer = wire.post(f"{hub.url}/a2a/dragoman", body, {"A2A-Version": "1.0"}).json()["result"]
        assert "done" in json.dumps(answer)

        listed = hub.command("tools")
        assert re.search(r"^vercel_ops\.deploy +Invokes the deploy skill", listed.stdout, re.M)
        assert_dispatches = hub.command("tools", "show", "vercel_ops.deploy")
        assert "(agent Vercel Ops)" in assert_dispatches.stdout
        assert "try: dragoman call vercel_ops.deploy" in assert_dispatches.stdout
        for name in ("vercel_ops.deploy", "a2a_vercel_ops_deploy"):
            called = hub.command("call", name, "branch=main", "dry=true")
            assert (called.returncode, called.stdout) == (0, "done\n"), called.stderr
        with hub.relay() as ide:
            ide.initialize()
            names = [one["name"] for one in ide.request("tools/list")["result"]["tools"]]
            assert "vercel_ops.deploy" in names
        data = [message["parts"][0]["data"] for message in agent.sent]
        assert data == [{"branch": "a"}, *[{"branch": "main", "dry": True}] * 2]


# --- long work ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slow:
    """A hub that gives skills half a second, and an agent that works until a gate is opened."""

    hub: RunningHub
    url: str
    folder: Path

    def opened(self, name: str) -> None:
        (self.folder / name).touch()

    def words(self, name: str) -> dict[str, str]:
        return {"text": f"wait {self.folder / name}"}

    def cancels(self) -> list[Any]:
        return [one for one in read_log(self.folder / "log") if one["event"] == "cancel"]


@pytest.fixture
def slow(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[Slow]:
    config = f"[mcp]\ntask_after_secs = 0.1\n[bridge]\ntimeout_secs = {PATIENCE}\n{A2A}"
    log = ("--log", short_tmp / "log")
    with (
        HttpPeer("a2a_skill_agent", "--declare", request.param, *log) as agent,
        run_module_hub([], config + external("SDK", agent.url)) as hub,
    ):
        until(lambda: "sdk.echo" in tool_names(hub))
        yield Slow(hub, agent.url, short_tmp)


@pytest.mark.promise("R4", "R5")
@pytest.mark.parametrize("slow", ["JSONRPC:1.0", "JSONRPC:0.3"], indirect=True)
def test_client_without_tasks_gets_the_running_task_id(slow: Slow) -> None:
    for era in ERAS:
        late = slow.hub.call("sdk.echo", slow.words(era), era=era)
        assert_error(late, era == "legacy", -32201, "RemoteA2ATimeoutError", "took longer than 1 s")
        said = re.search(r"`dragoman a2a task (\S+) (\S+)`", error_text(late))
        assert said is not None and said[1] == slow.url, late
        assert slow.hub.audit()[-1]["far_task"] == said[2]
        run_three_calls = slow.hub.command("a2a", "task", said[1], said[2])
        assert "working" in run_three_calls.stdout.lower(), run_three_calls
        slow.opened(era)

        def made(url: str = said[1], task: str = said[2]) -> bool:
            return "it is there" in slow.hub.command("a2a", "task", url, task).stdout

        until(made)
    assert not slow.cancels(), "it was not cancelled"


@pytest.mark.promise("R4")
@pytest.mark.parametrize("slow", ["JSONRPC:1.0"], indirect=True)
def test_client_with_tasks_gets_one_and_waits(slow: Slow) -> None:
    for revision, features in (("2026-07-28", TASKS), ("2025-11-25", {})):
        with connect(slow.hub, revision, "http", features) as client:
            params: dict[str, Any] = {"name": "sdk.echo", "arguments": slow.words(revision)}
            if revision == "2025-11-25":
                params["task"] = {}
            begun = time.monotonic()
            made = client.request("tools/call", params)["result"]
            id = made["task"]["taskId"] if "task" in made else made["taskId"]

            def status(client: Any = client, id: str = id) -> Any:
                return client.request("tasks/get", {"taskId": id})["result"]

            def is_late(begun: float = begun) -> bool:
                return time.monotonic() > begun + 2 * PATIENCE

            def is_completed(status: Callable[[], Any] = status) -> bool:
                return bool(status()["status"] == "completed")

            until(is_late)
            assert status()["status"] == "working"
            slow.opened(revision)
            until(is_completed)
            if revision == "2025-11-25":
                answer = client.request("tasks/result", {"taskId": id})["result"]
            else:
                answer = status()["result"]
            assert answer["content"][0]["text"] == "it is there"


# --- dispatches -----------------------------------------------------------------------------------


@pytest.mark.promise("R12", "R8")
def test_dispatches_show_each_call_with_its_status_latency_and_session(short_tmp: Path) -> None:
    with (
        HttpPeer("a2a_skill_agent", "--log", short_tmp / "log") as agent,
        run_module_hub([], EXPOSE + A2A + external("SDK", agent.url)) as hub,
    ):
        until(lambda: "sdk.echo" in tool_names(hub))
        number = run_three_calls(hub, short_tmp)
        assert text_of(hub.call("a2a_sdk_echo", {"text": "say hi"})) == "echo: hi"
        hub.call("sdk.echo", {"text": "fail"})
        with connect(hub, "2026-07-28", "http", {"elicitation": {"form": {}}}) as client:
            params = {"name": "sdk.ask", "arguments": {"text": "ask"}}
            asked = client.wait(client.begin("tools/call", params))
            assert asked["result"]["resultType"] == "input_required"
        assert hub.post("/api/policies", {"name": "no", "text": NO_CALLS})["ok"]
        hub.call("sdk.echo", {"text": "say no"})
        assert_dispatches(hub, number)


def dispatches(hub: RunningHub, query: str = "") -> list[dict[str, Any]]:
    return list(hub.api(f"/api/a2a/dispatches{query}")["dispatches"])


def three(found: list[Any]) -> list[Any]:
    return found if len(found) == 3 else []


def run_three_calls(hub: RunningHub, folder: Path) -> int:
    """Three calls at once are the agent's load; then one is cancelled and the others are done."""
    with connect(hub, "2026-07-28", "http", {}) as client:
        text = {"text": f"wait {folder / 'gate'}"}
        numbers = [
            client.begin("tools/call", {"name": "sdk.echo", "arguments": text}) for _ in range(3)
        ]
        running = until(lambda: three(dispatches(hub, "?status=running")))
        for one in running:
            assert one["completedAt"] is one["latencyMs"] is one["errorCode"] is None
        assert len(dispatches(hub, "?agent=SDK&status=running")) == 3
        assert [one["active"] for one in hub.api("/api/a2a/agents")["agents"]] == [3]
        assert dispatches(hub, "?agent=other&status=running") == []
        until(lambda: sum(one["event"] == "execute" for one in read_log(folder / "log")) == 3)
        client.cancel(numbers[0])
        until(lambda: len(dispatches(hub, "?status=cancelled")) == 1)
        assert len(dispatches(hub, "?status=running")) == 2
        (folder / "gate").touch()
        for number in numbers[1:]:
            assert text_of(client.wait(number)) == "it is there"
    until(lambda: not dispatches(hub, "?status=running"))
    return len(numbers)


def assert_dispatches(hub: RunningHub, before: int) -> None:
    found = dispatches(hub)
    assert [one["status"] for one in found] == [
        "denied", "asked", "failed", "completed", *[one["status"] for one in found[-before:]],
    ]  # fmt: skip
    assert sorted(one["status"] for one in found[-before:]) == [
        "cancelled",
        "completed",
        "completed",
    ]
    (agent,) = hub.api("/api/a2a/agents")["agents"]
    rows = {row["trace"]: row for row in hub.audit() if "trace" in row}
    for one in found:
        row = rows[one["traceId"]]
        skill = "ask" if one["status"] == "asked" else "echo"
        assert (one["agentId"], one["agentName"], one["skillId"]) == (agent["id"], "SDK", skill)
        assert one["verb"] == row["verb"] == f"sdk.{skill}" and one["askedAs"] == row["asked_as"]
        assert one["sessionId"] == f"a2a-{agent['id']}-{skill}-{one['traceId']}"
        assert one["caller"] == row["caller"] == "local:local" and one["kind"] == "explicit"
        assert one["taskId"] == row.get("far_task")
        assert 0 < one["latencyMs"] < 20_000 and one["startedAt"] <= one["completedAt"]
        assert dispatches(hub, f"?session={one['sessionId']}") == [one]
    codes = {one["status"]: one["errorCode"] for one in found}
    assert codes["completed"] is codes["asked"] is None
    assert (codes["failed"], codes["denied"]) == (-32204, -32003)
    pages, cursor = [], ""
    while True:
        page = hub.api(f"/api/a2a/dispatches?limit=3{cursor}")
        pages += page["dispatches"]
        if page["nextCursor"] is None:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert pages == found
