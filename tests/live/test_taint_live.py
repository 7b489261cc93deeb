"""The taint guard of a running hub: agents that call back over MCP and A2A, nested agents, files,
conversations; the approval of a person; what operators see; and a change of the settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult
from tests.live.a2a_hub import BINDINGS, SEND, DialectBinding
from tests.live.configurable_servers import run_configurable_hub, tool
from tests.live.conftest import RunningHub
from tests.live.module_hub import error_kind, until
from tests.peers import wire

from dragoman.stores.keys import KeyStore
from mcp import Client

pytestmark = pytest.mark.promise("P5")

AGENT = '''
import json, urllib.request

def work(message):
    """Makes the calls of a list, one after the other, and returns the last answer."""
    asked = json.loads(message)
    headers = {"Authorization": f"Bearer {asked['key']}", "Content-Type": "application/json"}
    said = {}
    for name, arguments in asked["calls"]:
        body = json.dumps({"arguments": arguments}).encode()
        request = urllib.request.Request(f"{asked['url']}/api/tools/{name}/call", body, headers)
        try:
            said = json.load(urllib.request.urlopen(request))
        except urllib.error.HTTPError as error:
            said = json.load(error)
    return json.dumps(said)
'''
CONFIG = """
[mcp]
stdio_expose = ["*"]
[a2a]
enabled = true
[[agents]]
name = "worker"
function = "taint_agent:work"
[[agents]]
name = "lead"
function = "taint_agent:work"
"""
TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
OFFERS = {
    "tools": [
        tool("fetch", inputSchema={"type": "object", "properties": {"url": {"type": "string"}}}),
        tool("run", inputSchema={"type": "object", "properties": {"command": {"type": "string"}}}),
        tool("send", annotations={"openWorldHint": True}),
        tool("env", annotations={"readOnlyHint": True, "openWorldHint": False}),
        tool("store"),
        tool("load", annotations={"readOnlyHint": True}),
    ],
    "results": {"env": {"content": [{"type": "text", "text": f"GITHUB_TOKEN={TOKEN}"}]}},
}
AgentCall = tuple[str, dict[str, Any]]
FETCH: AgentCall = ("s.fetch", {"url": "https://example.org"})
RUN: AgentCall = ("s.run", {"command": "ls"})
ENV: AgentCall = ("s.env", {})
SEND_OUT: AgentCall = ("s.send", {"text": "hello"})


class Rig:
    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        store = KeyStore(hub.home)
        self.keys = {
            name: store.create(
                f"{name}-key", owner=name, expires_at=None, scopes=["call"], target=target,
                roles=["owner"] if name == "ann" else [],
            )
            for name, target in (("ann", ""), ("worker", "worker"), ("lead", "lead"))
        }  # fmt: skip
        store.close()
        # Until the hub has noticed the first key, every caller is "local", and no call of the agent
        # belongs to the chain of its message.
        until(lambda: hub.get("/api/status").status == 401)
        hub.headers = {"Authorization": f"Bearer {self.keys['ann']}"}
        assert hub.get("/api/status").status == 200

    def build_task(self, *calls: AgentCall, who: str = "worker") -> str:
        return json.dumps({"url": self.hub.url, "key": self.keys[who], "calls": calls})

    def work(self, *calls: AgentCall) -> dict[str, Any]:
        """Lets the agent make these calls, and returns what came of the last one."""
        answer = self.hub.call("worker.message", {"message": self.build_task(*calls)})["result"]
        return dict(json.loads(answer["content"][0]["text"]))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    place = tmp_path_factory.mktemp("taint")
    (place / "taint_agent.py").write_text(AGENT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(place))
        with run_configurable_hub(place, CONFIG, s={"offers": OFFERS}) as (hub, _):
            yield Rig(hub)


def assert_refused(answer: dict[str, Any], rule: str, source: str) -> None:
    error = answer["error"]
    assert error["kind"] == "Tainted", answer
    assert f"by the taint rule {rule}" in error["message"]
    assert f'from "{source}"' in error["message"]


@pytest.mark.parametrize(
    ("calls", "rule", "source"),
    [
        ([FETCH, RUN], "external_network -> exec", "s.fetch"),
        ([ENV, SEND_OUT], "secret -> net", "s.env"),
        ([ENV, ("s.send", {"text": "Z2hwXzE2Qzdl"})], "secret -> net", "s.env"),
    ],
)
def test_agent_cannot_pass_on_labelled_data(
    rig: Rig, calls: list[Any], rule: str, source: str
) -> None:
    assert_refused(rig.work(*calls), rule, source)
    assert "content" in rig.work(calls[-1])  # without the source, in another chain


def test_ordinary_work_of_an_agent_is_not_refused(rig: Rig) -> None:
    calls = [RUN, ENV, RUN, ("s.store", {"path": "/w/x"}), ("s.load", {"path": "/w/x"})]
    assert "content" in rig.work(*calls)
    assert "content" in rig.work(FETCH, FETCH, SEND_OUT, ("s.store", {"path": "/w/y"}))


@pytest.mark.parametrize("binding", BINDINGS, ids=str)
def test_agent_called_over_a2a_is_refused_as_well(rig: Rig, binding: DialectBinding) -> None:
    params = binding.params(rig.build_task(FETCH, RUN))
    params["message"]["metadata"] = {"skillId": "worker.message"}
    reply = binding.ask(rig.hub, SEND, params)
    assert "by the taint rule external_network -> exec" in json.dumps(reply.value)


def test_labels_cross_nested_agents(rig: Rig) -> None:
    inner = ("worker.message", {"message": rig.build_task(FETCH)})
    task = rig.build_task(inner, RUN, who="lead")
    answer = rig.hub.call("lead.message", {"message": task})["result"]
    assert_refused(json.loads(answer["content"][0]["text"]), "external_network -> exec", "s.fetch")


def test_labels_follow_a_file_and_its_review_removes_them(rig: Rig) -> None:
    hub, path = rig.hub, f"/w/{uuid4().hex}"
    rig.work(FETCH, ("s.store", {"path": path}))
    load = ("s.load", {"path": path})
    assert_refused(rig.work(load, RUN), "external_network -> exec", "s.fetch")
    listed = hub.command("taint", "stored", "--prefix", f"file {path}")
    assert listed.returncode == 0 and path in listed.stdout and "s.fetch" in listed.stdout
    missing = hub.command("taint", "declassify", "file /never", "--why", "x")
    assert missing.returncode == 5 and "there is no stored data" in missing.stderr
    done = hub.command("taint", "declassify", f"file {path}", "--why", "read it")
    assert (done.returncode, done.stdout) == (0, "removed: external_network\n"), done
    assert "content" in rig.work(load, RUN)
    (record,) = [one for one in hub.audit() if one.get("verb") == "taint.declassify"
                 and path in one["asked_as"]]  # fmt: skip
    assert record["outcome"] == "completed" and record["asked_as"].endswith(": read it")


def test_labels_follow_a_conversation(rig: Rig) -> None:
    binding = next(one for one in BINDINGS if one.version == "1.0")
    context = str(uuid4())

    def send(*calls: AgentCall, id: str = context) -> str:
        params = binding.params(rig.build_task(*calls))
        params["message"] |= {"metadata": {"skillId": "worker.message"}, "contextId": id}
        return json.dumps(binding.ask(rig.hub, SEND, params).value)

    assert "Tainted" not in send(FETCH)
    assert "by the taint rule external_network -> exec" in send(RUN)
    assert "Tainted" not in send(RUN, id=str(uuid4()))


def test_client_is_observed_and_the_record_explains_it(rig: Rig) -> None:
    hub = rig.hub
    session = wire.Session(hub.mcp_url, "2025-11-25", hub.headers)
    for name, arguments in (FETCH, RUN):
        called = session.request("tools/call", {"name": name, "arguments": arguments})
        assert not called["result"].get("isError")
    (record,) = [one for one in hub.audit() if one["verb"] == "s.run" and one.get("labels")
                 and one["door"] == "mcp-http"]  # fmt: skip
    (flow,) = record["taint"]
    assert (flow["rule"], flow["mode"]) == ("external_network -> exec", "observe")
    assert flow["from"] == "s.fetch"
    said = hub.command("taint", "explain", record["trace"][:8])
    assert said.returncode == 0, said
    lines = [line.strip() for line in said.stdout.splitlines()]
    origin = f"in trace {flow['trace'][:8]}"
    assert f"! external_network -> exec from s.fetch {origin}: recorded" in lines
    assert f"trace {flow['trace']}" in lines and "+ external_network: it takes a URL" in lines
    assert TOKEN not in said.stdout


def test_operators_see_rules_and_tools(rig: Rig) -> None:
    hub = rig.hub
    rules = hub.command("taint")
    assert rules.returncode == 0
    (line,) = [line for line in rules.stdout.splitlines() if line.startswith("secret")]
    assert line.split() == ["secret", "observe", "observe", "enforce", "observe"]
    tools = hub.command("taint", "tools", "s.run", "--json")
    (found,) = json.loads(tools.stdout)
    assert found["sinks"] == {"exec": "it takes a command"}
    assert {one["label"] for one in found["rules"]} == {"external_network", "untrusted_agent"}
    unknown = hub.command("taint", "explain", "zzzz")
    assert unknown.returncode == 5 and "no record has a trace" in unknown.stderr


STRICT = """
[taint]
clients = "enforce"
[taint.external_network]
exec = "ask"
[approvals]
wait_secs = 0
"""


async def test_person_approves_and_settings_apply_to_a_running_hub(tmp_path: Path) -> None:
    with run_configurable_hub(tmp_path, s={"offers": OFFERS}) as (hub, _):
        asked: list[str] = []
        answers = [True, False]

        async def ask(context: Any, params: Any) -> ElicitResult:
            asked.append(params.message)
            return ElicitResult(action="accept", content={"allow": answers[len(asked) - 1]})

        file = hub.home / "config.toml"
        file.write_text(file.read_text(encoding="utf-8") + STRICT, encoding="utf-8")
        until(lambda: hub.api("/api/taint")["clients"] == "enforce")
        async with httpx2.AsyncClient() as http:
            target = streamable_http_client(hub.mcp_url, http_client=http)
            async with Client(target, mode="legacy", elicitation_callback=ask) as client:
                await client.call_tool(*FETCH)
                first = await client.call_tool(*RUN)
                assert first.content[0].text == "arrived: run"  # type: ignore[union-attr]
                second = await client.call_tool(*RUN)
                assert second.is_error and "not approved" in second.content[0].text  # type: ignore[union-attr]
        assert len(asked) == 2 and all('from "s.fetch"' in one for one in asked)
        approved = [one for one in hub.audit() if one.get("taint")]
        assert [one["taint"][0].get("approved_by") for one in approved if "approved_by" in
                one["taint"][0]] == ["local:local"]  # fmt: skip
        session = wire.Session(hub.mcp_url, "2025-11-25")  # declares no elicitation
        session.request("tools/call", {"name": "s.fetch", "arguments": FETCH[1]})
        refused = session.request("tools/call", {"name": "s.run", "arguments": RUN[1]})
        assert error_kind(refused) == "ApprovalPending"  # another person can decide
        (pending,) = hub.api("/api/approvals?state=pending")["approvals"]
        assert "the taint rule external_network -> exec" in pending["reason"]
        assert hub.post(f"/api/approvals/{pending['id']}/approve", {})["state"] == "approved"
        until(lambda: hub.api(f"/api/approvals/{pending['id']}")["outcome"] == "completed")
        said = session.request("tools/call", {"name": "s.run", "arguments": RUN[1]})
        assert "arrived: run" in json.dumps(said)
        (made,) = [one for one in hub.audit() if one.get("approval") == pending["id"]
                   and one["outcome"] == "completed" and one["trace"] == pending["trace"]
                   and one["verb"] == "s.run"]  # fmt: skip
        assert made["taint"][0]["approved_by"] == "local:local"
