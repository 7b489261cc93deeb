"""Work that the hub routes to real agents: A2A 1.0 by the official SDK, 0.3 handwritten, one of the
hub and one that cannot be reached; over the API, MCP and the command line."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.live.a2a_hub import agent_entry, run_a2a_hub
from tests.live.bridge_fixture import external
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.process import HttpPeer, read_log

pytestmark = pytest.mark.promise("R12", "R13")

DISPATCH, DISPATCHES = "/api/a2a/dispatch", "/api/a2a/dispatches"
KEY = "k" * 40
NOWHERE = "http://127.0.0.1:9"
ECHO = {"description": "Say it again", "workType": "echo", "requiredSkills": ["echo"]}


@dataclass(frozen=True)
class Rig:
    hub: RunningHub
    peers: dict[str, HttpPeer]
    folder: Path

    def dispatch(self, **body: Any) -> dict[str, Any]:
        return self.post({**ECHO, **body})

    def post(self, body: Any) -> dict[str, Any]:
        """The answer as JSON: a client that accepts a stream gets the updates of the agent too."""
        headers = {**self.hub.headers, "Accept": "application/json"}
        found: dict[str, Any] = wire.post(self.hub.url + DISPATCH, body, headers).json()
        return found

    def say(self, text: str, **body: Any) -> tuple[str, str]:
        """Has an agent echo the text; returns the agent and its answer."""
        found = self.dispatch(args={"text": f"echo {text}"}, **body)
        assert "error" not in found, found
        return found["agent"], found["content"][0]["text"]

    def count_work(self, agent: str) -> int:
        return sum(one["event"] == "execute" for one in read_log(self.folder / agent))


@contextmanager
def run_routing_hub() -> Iterator[Rig]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="dgr", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        declared = ("--declare", "JSONRPC:1.0")
        new = HttpPeer("a2a_skill_agent", *declared, "--log", folder / "new")
        peers = {"new": stack.enter_context(new)}
        peers["old"] = stack.enter_context(HttpPeer("a2a_v03_agent", "--log", folder / "old"))
        agents = [
            *(external(name, peer.url) for name, peer in peers.items()),
            external("gone", NOWHERE),
            agent_entry("local", "echo", description="Tells the weather"),
        ]
        config = f'api_key = "{KEY}"\n[routing]\nseed = 3\n'
        hub = stack.enter_context(run_a2a_hub(agents, config=config)).hub
        rig = Rig(hub, peers, folder)

        def are_ready() -> bool:
            states = {one["name"]: one["health"] for one in hub.api("/api/a2a/agents")["agents"]}
            return states == {"new": "healthy", "old": "healthy", "gone": "unreachable"}

        until(are_ready)
        yield rig


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with run_routing_hub() as made:
        yield made


def test_work_is_routed_to_agents_of_both_dialects_and_recorded(rig: Rig) -> None:
    said = [rig.say(f"number {number}") for number in range(12)]
    assert [text for _, text in said] == [f"echo: number {number}" for number in range(12)]
    chosen = Counter(agent for agent, _ in said)
    assert set(chosen) == {"new", "old"}, chosen
    assert {name: rig.count_work(name) for name in chosen} == chosen
    rows = rig.hub.api(f"{DISPATCHES}?kind=routed")["dispatches"]
    assert Counter(row["agentName"] for row in rows) == chosen
    ids = {one["name"]: one["id"] for one in rig.hub.api("/api/a2a/agents")["agents"]}
    for row in rows:
        assert row["agentId"] == ids[row["agentName"]] and row["skillId"] == "echo"
        assert (row["status"], row["workType"], row["askedAs"]) == (
            "completed",
            "echo",
            row["verb"],
        )
    decision = rig.hub.api(f"{DISPATCHES}/{rows[0]['dispatchId']}/decision")
    assert decision == rig.hub.api(f"{DISPATCHES}/{rows[0]['decisionId']}/decision")
    assert decision["chosen"] == rows[0]["agentName"]
    reasons = {one["agent"]: one["reasons"] for one in decision["candidates"]}
    assert reasons == {
        "new": [],
        "old": [],
        "gone": ["it is unreachable"],
        "local": ['it has no skill "echo"', 'no skill of it is for the work type "echo"'],
    }
    verbs = Counter(one["verb"] for one in rig.hub.audit())
    assert verbs["dragoman.dispatch"] == 12 and verbs["new.echo"] == chosen["new"]


def test_text_goes_to_the_agent_of_the_hub_that_fits_it(rig: Rig) -> None:
    found = rig.post({"description": "Is it raining?", "workType": "weather"})
    assert (found["agent"], found["tool"]) == ("local", "local.message")
    assert found["content"][0]["text"] == "Is it raining?"
    (row,) = rig.hub.api(f"{DISPATCHES}?agent=local")["dispatches"]
    assert (row["kind"], row["agentId"], row["verb"]) == ("routed", None, "local.message")


def test_mcp_client_lists_and_calls_the_tool(rig: Rig) -> None:
    (tool,) = [
        one
        for one in rig.hub.rpc("tools/list")["result"]["tools"]
        if one["name"] == "dragoman.dispatch"
    ]
    assert tool["inputSchema"]["required"] == ["description"]
    result = rig.hub.call("dragoman.dispatch", {**ECHO, "args": {"text": "echo by MCP"}})["result"]
    assert result["content"][0]["text"] == "echo: by MCP"
    about = result["_meta"]["dragoman.hub/dispatch"]
    assert about["tool"] == f"{about['agent']}.echo"
    refused = rig.hub.call("dragoman.dispatch", {"description": "x", "workType": "cooking"})
    assert refused["result"]["isError"] is True
    assert '"gone": it is unreachable' in refused["result"]["content"][0]["text"]
    assert refused["result"]["_meta"]["dragoman.hub/error"]["kind"] == "NoCandidate"


def test_command_dispatches_and_explains(rig: Rig) -> None:
    work = ("dispatch", "Say it again", "--work-type", "echo", "--skill", "echo")
    dry = rig.hub.command(*work, "--dry-run")
    assert dry.returncode == 0 and "would be chosen" in dry.stdout
    assert "it is unreachable" in dry.stdout and not dry.stderr
    before = rig.count_work("new") + rig.count_work("old")
    done = rig.hub.command(*work, "--args", '{"text": "echo typed"}')
    assert (done.returncode, done.stdout) == (0, "echo: typed\n")
    assert rig.count_work("new") + rig.count_work("old") == before + 1
    id = done.stderr.split()[-1]
    shown = rig.hub.command("dispatch", "explain", id)
    assert shown.returncode == 0 and "was chosen" in shown.stdout
    assert shown.stdout.splitlines()[-1].endswith(".echo: completed")
    found = json.loads(rig.hub.command("dispatch", "explain", id, "--json").stdout)
    assert found["decisionId"] == id and found["caller"] == "owner:owner"
    none = rig.hub.command("dispatch", "Cook", "--work-type", "cooking", "--json")
    assert none.returncode == 4
    assert json.loads(none.stdout)["error"]["kind"] == "NoCandidate"
    assert rig.hub.command("dispatch", "explain", "0" * 32).returncode == 5
    bad = rig.hub.command(*work, "--args", "[1]")
    assert bad.returncode == 2 and "one JSON object" in bad.stderr


def test_caller_sees_its_own_decisions_only(rig: Rig) -> None:
    made = rig.hub.command("keys", "create", "ci", "--json")
    key = {
        "Authorization": f"Bearer {json.loads(made.stdout)['key']}",
        "Accept": "application/json",
    }

    def get(id: str) -> int:
        return wire.get(f"{rig.hub.url}{DISPATCHES}/{id}/decision", key).status

    until(lambda: get("unknown") == 404)  # a new key is known within a second
    body = {**ECHO, "args": {"text": "echo mine"}}
    own = wire.post(f"{rig.hub.url}{DISPATCH}", body, key).json()
    assert get(own["decisionId"]) == 200
    other = rig.dispatch(args={"text": "echo theirs"})
    assert get(other["decisionId"]) == 404
    (row,) = rig.hub.api(f"{DISPATCHES}?decision={other['decisionId']}")["dispatches"]
    assert get(row["dispatchId"]) == 404
    assert "result" in rig.hub.call("new.echo", {"text": "echo named"})
    (row, *_) = rig.hub.api(f"{DISPATCHES}?kind=explicit")["dispatches"]
    answer = rig.hub.get(f"{DISPATCHES}/{row['dispatchId']}/decision")
    assert answer.status == 404 and b"the caller named the agent" in answer.body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"description": "x", "workTyp": "y"}, 400),
        ({"description": "x", "can": "form"}, 400),
        ({"description": "x", "answers": {}}, 400),
        ({"description": "x", "workType": "cooking"}, 409),
    ],
)
def test_invalid_requests_have_a_status(body: dict[str, Any], status: int, rig: Rig) -> None:
    answer = wire.post(f"{rig.hub.url}{DISPATCH}", body, rig.hub.headers)
    assert answer.status == status, answer.body


def test_another_agent_takes_over_from_one_that_has_crashed(rig: Rig) -> None:
    """Last: it ends an agent. The hub does not know of that until a call fails."""
    rig.peers["old"].kill()
    failed: list[dict[str, Any]] = []
    for number in range(50):
        assert rig.say(f"after {number}") == ("new", f"echo: after {number}")
        failed = rig.hub.api(f"{DISPATCHES}?kind=routed&status=failed")["dispatches"]
        if failed:
            break
    (row,) = failed
    assert row["agentName"] == "old"
    attempts = rig.hub.api(f"{DISPATCHES}/{row['decisionId']}/decision")["attempts"]
    assert [(one["agent"], one["outcome"]) for one in attempts] == [
        ("old", "failed"),
        ("new", "completed"),
    ]
