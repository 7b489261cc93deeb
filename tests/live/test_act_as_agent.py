"""Calls that an administrator makes as an agent of the hub: with the agent's grants, the rights of
both, and records that name both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.live.configurable_servers import run_configurable_hub, tool
from tests.live.conftest import RunningHub, open_keys
from tests.live.intruder_server import Unix
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.process import HttpPeer

pytestmark = pytest.mark.promise("U7", "F3")

CONFIG = 'api_key = "owner-of-the-tests-0123456789"\n[tools]\ncommand_sandbox = "off"\n'
OFFERS = {
    "tools": [tool(name) for name in ("read", "write", "drop", "secret")],
    "results": {"read": {"content": [{"type": "text", "text": "what was read"}]}},
}
MANIFEST = """
org = "ORG"
[model]
model = "never-asked"
base_url = "http://127.0.0.1:9"
[capabilities]
tools = ["files.read", "files.write", "files.drop", "peer.ask", "shell_exec", "workflow.runs"]
shell = ["touch *"]
"""
WORKFLOW = """
expose: true
steps:
  - {id: go, nodeId: tool.call, config: {tool: shell_exec, arguments: {command: "touch made"}}}
"""
POLICIES = """
@id("registrars")
permit (principal in Hub::Role::"registrar", action == Hub::Action::"registry", resource);
@id("boss-reads")
forbid (principal == Hub::User::"key:boss", action in Hub::Action::"any_call",
  resource == Hub::Tool::"files.write");
@id("worker-keeps")
forbid (principal == Hub::Agent::"worker", action in Hub::Action::"any_call",
  resource == Hub::Tool::"files.drop");
"""


class Rig:
    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self.keys = {
            name: json.loads(hub.command("keys", "create", name, *roles, "--json").stdout)["key"]
            for name, roles in {"boss": ("--role", "owner"), "ci": ()}.items()
        }
        with open_keys(hub.home) as store:
            scopes = ["call", "registry"]
            self.keys["registrar"] = store.create(
                "registrar", owner="o", expires_at=None, scopes=scopes, roles=["registrar"]
            )

    def act(self, who: str, agent: str, body: Any, **headers: str) -> wire.Answer:
        known = {"Authorization": f"Bearer {self.keys[who]}", "Accept": "application/json"}
        headers = {**known, **headers}
        return wire.post(f"{self.hub.url}/api/agents/{agent}/call", body, headers)

    def act_as_owner(self, agent: str, body: Any) -> tuple[int, str]:
        """On the Unix socket of the home, as the console does for the owner."""
        to = str(self.hub.home / "run" / "http.sock")
        sent = {"Content-Type": "application/json"}
        with closing(Unix(to)) as connection:
            connection.request("POST", f"/api/agents/{agent}/call", json.dumps(body), sent)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def list_records(self, trace: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.hub.api(f"/api/traces/{trace}")["records"]
        return found


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    place = tmp_path_factory.mktemp("agents")
    with (
        HttpPeer("a2a_sdk_agent") as peer,
        run_configurable_hub(place, CONFIG, files={"offers": OFFERS}) as (hub, _),
    ):
        for name, org in {"worker": "default", "stranger": "acme"}.items():
            folder = hub.home / "agents" / name
            folder.mkdir(parents=True)
            text = MANIFEST.replace("ORG", org)
            (folder / "agent.toml").write_text(text, encoding="utf-8")
        done = hub.post("/api/workflows", {"name": "runs", "source": WORKFLOW})
        assert done.get("name") == "runs", done
        hub.post("/api/a2a/agents", {"url": peer.url, "name": "peer"})
        done = hub.post("/api/policies", {"name": "mine", "text": POLICIES})
        assert done.get("ok"), done
        until(lambda: len(hub.api("/api/status")["agents"]["local"]) == 2)
        yield Rig(hub)


def test_call_has_the_grants_of_the_agent_and_both_are_recorded(rig: Rig) -> None:
    trace = "4f" * 16
    sent = {"traceparent": f"00-{trace}-{'ab' * 8}-01"}
    done = rig.act("boss", "worker", {"tool": "files.read", "arguments": {}}, **sent)
    assert done.json()["content"][0]["text"] == "what was read"
    until(lambda: len(rig.list_records(trace)) == 2)
    acted, called = sorted(rig.list_records(trace), key=lambda one: one["seq"])
    assert (acted["verb"], acted["caller"]) == ("agent.act_as", "key:boss")
    assert acted["asked_as"] == "agent:worker"
    assert (called["verb"], called["caller"]) == ("files.read", "agent:worker")
    assert (called["on_behalf_of"], called["door"]) == ("key:boss", "agent")


@pytest.mark.parametrize(
    ("wanted", "status", "said"),
    [
        ("files.secret", 404, "there is no tool"),  # not granted
        ("files.nothing", 404, "there is no tool"),
        ("files.write", 404, "there is no tool"),  # the caller may not see it
        ("files.drop", 403, 'a policy forbids agent "worker"'),
    ],
)
def test_nothing_is_possible_that_one_of_both_may_not_do(
    rig: Rig, wanted: str, status: int, said: str
) -> None:
    refused = rig.act("boss", "worker", {"tool": wanted})
    assert refused.status == status, refused.body
    assert said in refused.json()["error"]["message"]


def test_no_right_of_an_administrator_runs_a_program_as_an_agent(rig: Rig) -> None:
    """The tools of the hub itself reach what the agent was granted: only the owner uses those."""
    made = rig.hub.home / "agents" / "worker" / "workspace" / "made"
    run = {"arguments": {"command": "touch made"}}
    for who in ("boss", "registrar"):
        for name in ("shell_exec", "builtin.shell_exec", "Bash"):
            refused = rig.act(who, "worker", {"tool": name, **run})
            assert refused.status == 403, refused.body
            message = refused.json()["error"]["message"]
            assert "only the owner of the hub may" in message
        refused = rig.act(who, "worker", {"tool": "workflow.runs"})
        assert refused.status == 403, refused.body
        assert rig.act(who, "worker", {"tool": "files.read"}).status == 200
    assert not made.exists()
    status, body = rig.act_as_owner("worker", {"tool": "shell_exec", **run})
    assert (status, made.exists()) == (200, True), body


def test_only_administrators_act_as_agents_of_their_org(rig: Rig) -> None:
    wanted = {"tool": "files.read"}
    refused = rig.act("ci", "worker", wanted)
    assert refused.status == 403 and "admin" in refused.json()["error"]["message"]
    for name in ("nobody", "stranger", "peer", "owner:owner"):
        assert rig.act("boss", name, wanted).status == 404, name
    for body in (
        {},
        {"tool": 1},
        {"tool": "files.read", "as": "key:ci"},
        {**wanted, "handle": "x"},
    ):
        assert rig.act("boss", "worker", body).status == 400, body
    assert rig.act("boss", "worker", {**wanted, "arguments": []}).status == 400


def test_questions_are_answered_and_progress_is_streamed(rig: Rig) -> None:
    wanted = {"tool": "peer.ask", "arguments": {"message": "ask"}, "can": ["form"]}
    found = rig.act("boss", "worker", wanted).json()
    assert found["questions"], found
    ((name, _),) = found["questions"].items()
    answers = {name: {"action": "accept", "content": {"reply": "blue"}}}
    again = {**wanted, "handle": found["handle"], "answers": answers}
    done = rig.act("boss", "worker", again, Accept="text/event-stream")
    assert done.status == 200 and b"blue" in done.body, done.body
