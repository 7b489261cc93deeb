"""No operation of the API works with the id of a thing of others, nor tells that there is one.

The owner has one of each thing. Principals of another org, of a narrow view, without any part in
them, and the process of a server, send every operation with the ids of these things, and are
answered as for an id of nothing. A new route with a parameter in its path, and a new list, fail
here until the tables know what they are about.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.live.a2a_hub import CANCEL, GET, LIST, SEND, V10, Caller, run_a2a_hub
from tests.live.bridge_fixture import external
from tests.live.conftest import open_keys
from tests.live.module_hub import text_of, until
from tests.live.test_a2a_tools import to
from tests.live.test_rights import INTRUDER, OTHERS, RIGHTS, Reply, Rig
from tests.peers import wire
from tests.peers.process import HttpPeer, server_entry

from dragoman.core.scopes import ADMIN_RIGHTS

pytestmark = pytest.mark.promise("O1", "U4")

OWNER = "owner-of-the-tests-0123456789"
CANARY = "CANARY-7712"
"""In the arguments and inputs of the owner."""
CONFIG = f"""api_key = "{OWNER}"
[[views]]
name = "narrow"
include = ["intruder.look"]
[[views]]
name = "treasury"
include = ["vault.echo"]
"""
NOWHERE = "http://127.0.0.1:9"
SERVERS = [
    server_entry("intruder", "stdio", sys.executable, INTRUDER),
    server_entry("vault", "matrix_server", "--era", "legacy", interactive=True),
    server_entry("locked", "http", f"{NOWHERE}/mcp", credentials="user"),
]
WORKFLOW = """
inputs: {what: string}
steps:
- id: decide
  nodeId: approval
  config: {title: "pay {{ $trigger.what }}"}
"""
MANIFEST = """name = "clerk"
[model]
provider = "script"
[capabilities]
tools = ["vault.echo"]
[[script]]
say = "written down"
"""
POLICY = '@id("mine") forbid (principal, action, resource == Hub::Tool::"no.such");'

UNKNOWN: Mapping[str, str] = {
    "agent": "nowhere",
    "approval": "0" * 20,
    "context": "33333333-3333-4333-8333-333333333333",
    "decision": "0" * 20,
    "dispatch": "0" * 20,
    "external": "nowhere",
    "locked agent": "nowhere",
    "locked server": "nowhere",
    "login": "x" * 32,
    "policy": "nowhere",
    "prompt": "nowhere.plain",
    "resource": "nowhere://text",
    "run": "0" * 12,
    "server": "nowhere",
    "task": "11111111-1111-4111-8111-111111111111",
    "tool": "nowhere.echo",
    "trace": "0" * 32,
    "used": "0" * 32,
    "view": "nowhere",
    "workflow": "nowhere",
}
"""A name or id of nothing, by the kind of thing."""

THINGS: Mapping[str, str] = {
    "DELETE /api/a2a/agents/{name}": "external",
    "DELETE /api/a2a/agents/{name}/login": "locked agent",
    "DELETE /api/mcp/servers/{name}": "server",
    "DELETE /api/mcp/servers/{name}/login": "locked server",
    "DELETE /api/policies/{name}": "policy",
    "DELETE /api/workflows/{name}": "workflow",
    "GET /api/a2a/agents/{name}": "external",
    "GET /api/a2a/agents/{name}/cards": "external",
    "GET /api/a2a/agents/{name}/login": "locked agent",
    "GET /api/a2a/dispatches/{name}/decision": "dispatch",
    "GET /api/approvals/{name}": "approval",
    "GET /api/logins/{name}": "login",
    "GET /api/mcp/servers/{name}/login": "locked server",
    "GET /api/mcp/servers/{name}/logs": "server",
    "GET /api/policies/{name}": "policy",
    "GET /api/runs/{name}": "run",
    "GET /api/runs/{name}/events": "run",
    "GET /api/tools/{name}": "tool",
    "GET /api/traces/{name}": "trace",
    "GET /api/views/{name}": "view",
    "GET /api/workflows/{name}": "workflow",
    "PATCH /api/a2a/agents/{name}": "external",
    "PATCH /api/policies/{name}": "policy",
    "POST /api/a2a/agents/{name}/login": "locked agent",
    "POST /api/a2a/agents/{name}/refetch": "external",
    "POST /api/agents/{name}/call": "agent",
    "POST /api/approvals/{name}/approve": "approval",
    "POST /api/approvals/{name}/deny": "approval",
    "POST /api/mcp/servers/{name}/login": "locked server",
    "POST /api/mcp/servers/{name}/restart": "server",
    "POST /api/prompts/{name}/get": "prompt",
    "POST /api/runs/{name}/answer": "run",
    "POST /api/runs/{name}/cancel": "run",
    "POST /api/runs/{name}/resume": "run",
    "POST /api/runs/{name}/retry": "run",
    "POST /api/tools/{name}/call": "tool",
    "POST /api/workflows/{name}/run": "workflow",
}
"""What the id in the path of each operation is of."""
MORE: Mapping[str, str] = {
    "GET /api/a2a/dispatches/{name}/decision?": "decision",
    "GET /api/mcp/servers/{name}/login?all=1": "locked server",
    "DELETE /api/mcp/servers/{name}/login?all=1": "locked server",
    "GET /api/audit?trace={name}": "trace",
    "GET /api/usage?by=trace&trace={name}": "used",
    "GET /api/runs?workflow={name}": "workflow",
    "GET /api/tools?server={name}": "server",
    "GET /api/a2a/dispatches?agent={name}": "external",
    "GET /api/agents?name={name}": "agent",
    "GET /api/pins/diff?name={name}": "tool",
    "POST /api/resources/read": "resource",
}
"""Operations that take an id elsewhere, or another kind of id. Lists of these are empty."""
BODIES: Mapping[str, Any] = {
    "POST /api/agents/{name}/call": {"tool": "vault.echo", "arguments": {"text": "x"}},
    "POST /api/resources/read": {"uri": "{name}"},
    "POST /api/runs/{name}/answer": {"step": "decide", "answers": {"a": "b"}},
    "POST /api/runs/{name}/resume": {"step": "decide", "decision": "skip"},
    "POST /api/tools/{name}/call": {"arguments": {"text": "x"}},
    "POST /api/workflows/{name}/run": {"inputs": {"what": "x"}},
    "PATCH /api/policies/{name}": {"enabled": True},
    "PATCH /api/a2a/agents/{name}": {"enabled": True},
}
"""Bodies with which an operation gets as far as its id."""
LISTS: Mapping[str, str] = {
    "GET /api/a2a/agents": "external",
    "GET /api/a2a/dispatches": "dispatch",
    "GET /api/agents": "agent",
    "GET /api/approvals": "approval",
    "GET /api/audit?verb=vault.echo": "trace",
    "GET /api/limits": "",
    "GET /api/map": "server",
    "GET /api/mcp/servers": "server",
    "GET /api/prompts": "prompt",
    "GET /api/resources": "resource",
    "GET /api/runs": "run",
    "GET /api/session": "",
    "GET /api/status": "",
    "GET /api/taint": "tool",
    "GET /api/tools": "tool",
    "GET /api/traces?q=vault.echo": "trace",
    "GET /api/usage?by=trace": "used",
    "GET /api/views": "view",
    "GET /api/workflows": "workflow",
}
"""Lists that every key may ask for, and what the owner finds there."""
STREAMS = ("GET /api/events",)
SHARED = ("agent", "external", "locked agent", "locked server", "prompt", "resource", "server")
OF_ORG = (*SHARED, "tool", "view", "workflow")
"""What all principals of an org may use by the policies that are in force by default."""
OF_HUB = ("view",)
"""Views are of no org: they are filters, which show of each principal's tools some."""
OF_KEYS: Mapping[str, dict[str, Any]] = {
    **{name: OTHERS[name] for name in ("foreign", "narrow")},
    "colleague": {"scopes": ["call", "approve"]},
}
WHO = (*OF_KEYS, "server")


@dataclass(frozen=True)
class Owned(Rig):
    mine: dict[str, str] = field(default_factory=dict)
    """A name or id of each kind of thing that the owner has."""

    def send(self, who: str, operation: str, id: str) -> Reply:
        body = BODIES.get(operation, {})
        if who != "server":
            return self.ask(operation, who, id, json.loads(json.dumps(body).replace("{name}", id)))
        method, path = operation.replace("{name}", id).split(" ")
        body = json.loads(json.dumps(body).replace("{name}", id))
        to = str(self.hub.home / "run" / "http.sock")
        asked = {"to": to, "method": method, "path": path, "body": body}
        answer = json.loads(text_of(self.hub.call("intruder.ask", asked)))
        return Reply(answer["status"], answer["body"], "")

    def list_secrets(self, who: str) -> list[str]:
        """What a principal must not find in any list."""
        shared = {"colleague": OF_ORG}.get(who, OF_HUB if who in ("foreign", "server") else ())
        found = {id for kind, id in self.mine.items() if kind not in shared}
        names = () if who == "colleague" else ("vault", "locked", "payroll", "partner", "clerk")
        return sorted({CANARY, *found, *names})


@pytest.fixture(scope="module")
def rig() -> Iterator[Owned]:
    with HttpPeer("a2a_v03_agent") as partner:
        agents = [
            external("partner", partner.url),
            external("sealed", NOWHERE, credentials="user"),
        ]
        with run_a2a_hub(agents, SERVERS, CONFIG, {"push_private": True}) as made:
            hub = made.hub
            hub.wait_connected("intruder", "vault")
            keys = {"owner": OWNER}
            with open_keys(hub.home) as store:
                for name, options in OF_KEYS.items():
                    keys[name] = store.create(name, owner=name, expires_at=None, **options)
            rig = Owned(hub, keys)
            until(lambda: rig.ask("GET /api/status", "colleague").status == 200)
            fill(rig)
            yield rig


def fill(rig: Owned) -> None:
    """Gives the owner one of everything."""
    hub, mine = rig.hub, rig.mine
    mine |= {"agent": "clerk", "external": "partner", "server": "vault", "tool": "vault.echo"}
    mine |= {"locked server": "locked", "locked agent": "sealed", "view": "treasury"}
    (hub.home / "agents" / "clerk").mkdir(parents=True, exist_ok=True)
    (hub.home / "agents" / "clerk" / "agent.toml").write_text(MANIFEST, encoding="utf-8")
    mine |= {"prompt": "vault.plain", "policy": "mine", "workflow": "payroll"}
    assert hub.post("/api/policies", {"name": "mine", "text": POLICY}).get("ok")
    assert hub.post("/api/workflows", {"name": "payroll", "source": WORKFLOW})["state"] == "active"
    begun = hub.post("/api/workflows/payroll/run", {"inputs": {"what": CANARY}})
    mine["run"] = begun["run"]["id"]
    (approval,) = until(lambda: hub.api("/api/approvals")["approvals"])
    mine["approval"] = approval["id"]
    mine["login"] = hub.post("/api/mcp/servers/locked/login", {})["id"]
    until(lambda: "healthy" in str(hub.api("/api/a2a/agents/partner")["health"]))
    work = {"description": f"echo {CANARY}", "workType": "echo", "requiredSkills": ["echo"]}
    headers = {**hub.headers, "Accept": "application/json"}
    done = wire.post(f"{hub.url}/api/a2a/dispatch", work, headers).json()
    (row,) = hub.api("/api/a2a/dispatches?kind=routed")["dispatches"]
    mine |= {"dispatch": row["dispatchId"], "decision": row["decisionId"]}
    assert row["agentName"] == "partner", done
    assert CANARY in text_of(hub.call("vault.echo", {"text": CANARY}))
    mine["trace"] = hub.api("/api/audit?verb=vault.echo")["records"][0]["trace"]
    until(lambda: hub.api("/api/agents")["agents"])
    assert "written down" in str(hub.call("clerk.message", {"message": CANARY}))
    mine["used"] = until(lambda: hub.api("/api/usage?by=trace")["usage"])[0]["trace"]
    found = hub.api("/api/resources")["resources"]
    mine["resource"] = next(one["uri"] for one in found if one["name"] == "text")
    asked = Caller(hub, headers=hub.headers).ask(SEND, to("vault.ask_form", {"key": CANARY}))
    task = asked.value["task"]
    mine |= {"task": task["id"], "context": task["contextId"]}
    assert mine.keys() == UNKNOWN.keys()


def remove_ids(reply: Reply, id: str) -> tuple[int, str]:
    """What is left of an answer without the id that was asked for, and without the trace."""
    text = reply.body
    for form in sorted({id, id.partition(".")[0], id.partition(":")[0]}, key=len, reverse=True):
        text = text.replace(form, "ID")
    return reply.status, re.sub(r"[0-9a-f]{32}|trace [0-9a-f]{8}", "T", text)


def test_tables_have_every_operation_with_an_id_and_every_list() -> None:
    with_id = {operation for operation in RIGHTS if "{" in operation}
    assert with_id == {*THINGS}
    lists = {
        operation
        for operation, right in RIGHTS.items()
        if operation.startswith("GET /api/") and "{" not in operation and right in ("", "list")
    }
    assert lists == {one.partition("?")[0] for one in LISTS} | {*STREAMS}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("operation", LISTS)  # first, since what is refused is recorded
def test_lists_have_nothing_of_others(rig: Owned, operation: str, who: str) -> None:
    if kind := LISTS[operation]:  # or the rest would prove nothing
        assert rig.mine[kind] in rig.ask(operation, "owner").body
    reply = rig.send(who, operation, "")
    assert reply.status == 200, reply
    found = [one for one in rig.list_secrets(who) if one in reply.body]
    assert not found, reply


def list_cases() -> Iterator[tuple[str, str]]:
    for operation, kind in {**THINGS, **MORE}.items():
        needs_more = RIGHTS[operation.partition("?")[0]] in ADMIN_RIGHTS or "all=1" in operation
        for who in WHO:
            if who != "colleague" or kind not in OF_ORG or needs_more:
                yield operation, who


@pytest.mark.parametrize(("operation", "who"), [*list_cases()])
def test_the_id_of_a_thing_of_others_is_an_unknown_id(rig: Owned, operation: str, who: str) -> None:
    kind = {**THINGS, **MORE}[operation]
    right = RIGHTS[operation.partition("?")[0]]
    if kind in OF_HUB and who in ("foreign", "server"):
        found = rig.send(who, operation, rig.mine[kind])
        assert found.status == 200 and json.loads(found.body)["list"] == [], found
        return
    theirs = rig.send(who, operation, rig.mine[kind])
    unknown = rig.send(who, operation, UNKNOWN[kind])
    assert remove_ids(theirs, rig.mine[kind]) == remove_ids(unknown, UNKNOWN[kind])
    if right in ADMIN_RIGHTS:
        assert theirs.status == 403, theirs
    elif operation in THINGS or operation.startswith("POST"):
        assert theirs.status == 404, theirs
    assert CANARY not in theirs.body


@pytest.mark.parametrize("who", OF_KEYS)
def test_a_task_of_others_is_an_unknown_task(rig: Owned, who: str) -> None:
    caller = Caller(rig.hub, headers={"Authorization": f"Bearer {rig.keys[who]}"})
    for op in (GET, CANCEL):
        theirs = caller.ask(op, {"id": rig.mine["task"]})
        unknown = caller.ask(op, {"id": UNKNOWN["task"]})
        assert theirs.answer.status == unknown.answer.status, op
        said = theirs.answer.body.decode().replace(rig.mine["task"], UNKNOWN["task"])
        assert said == unknown.answer.body.decode() and theirs.error is not None
    params = V10.params("hello")
    params["message"]["taskId"] = rig.mine["task"]
    assert "TASK_NOT_FOUND" in caller.ask(SEND, params).answer.body.decode()
    listed = caller.ask(LIST, {}).answer.body.decode()
    assert rig.mine["task"] not in listed and rig.mine["context"] not in listed, listed
    named = caller.ask(LIST, {"contextId": rig.mine["context"]}).answer.body.decode()
    assert rig.mine["task"] not in named


def test_the_process_of_a_server_starts_no_workflow_and_reaches_no_agent(rig: Owned) -> None:
    before = len(rig.hub.api("/api/runs")["runs"])
    for operation, kind in THINGS.items():
        if RIGHTS[operation] in ("call", "approve"):
            reply = rig.send("server", operation, rig.mine[kind])
            assert reply.status == 404, (operation, reply)
    assert len(rig.hub.api("/api/runs")["runs"]) == before
    for work in ({"description": "x", "agent": "clerk"}, {"description": "x", "workType": "echo"}):
        asked = {
            "to": str(rig.hub.home / "run" / "http.sock"),
            "method": "POST",
            "path": "/api/a2a/dispatch",
            "body": work,
        }
        answer = json.loads(text_of(rig.hub.call("intruder.ask", asked)))
        assert answer["status"] in (400, 403, 404), answer
        assert not any(one in answer["body"] for one in ("clerk", "partner")), answer
    assert len(rig.hub.api("/api/a2a/dispatches")["dispatches"]) == 1


def test_ids_are_good_for_their_owner(rig: Owned) -> None:
    """Or the tests above would prove nothing. Last: it takes everything away."""
    operations = {**THINGS, "GET /api/a2a/dispatches/{name}/decision?": "decision"}
    order = ("GET", "PATCH", "POST", "DELETE")
    for operation in sorted(operations, key=lambda one: order.index(one.split(" ")[0])):
        kind = operations[operation]
        theirs = rig.send("owner", operation, rig.mine[kind])
        unknown = rig.send("owner", operation, UNKNOWN[kind])
        assert theirs.status != 404 and unknown.status == 404, (operation, theirs, unknown)
