"""What each operation of the API needs, and that it is refused to principals without it.

The table has a row for every operation of `/openapi.json`: a new route fails here until its row
says what it needs.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from tests.live.conftest import RunningHub, open_keys
from tests.live.module_hub import run_module_hub, text_of, until
from tests.peers import wire
from tests.peers.process import server_entry

from dragoman.core.scopes import ADMIN_RIGHTS, EVERY_SCOPE, MEANINGS, expand_scopes
from dragoman.stores.store_inventory import StoreInventory

INTRUDER = Path(__file__).with_name("intruder_server.py")
SERVERS = [
    server_entry("intruder", "stdio", sys.executable, INTRUDER),
    server_entry("other", "faulty_server", "ok"),
]
CONFIG = """api_key = "owner-of-the-tests-0123456789"
[a2a]
enabled = true
grpc_port = 0
[[views]]
name = "narrow"
include = ["intruder.look"]
"""
POLICY = """
@id("operators")
permit (principal in Hub::Role::"operator", action == Hub::Action::"admin", resource);
"""

RIGHTS: Mapping[str, str] = {
    **dict.fromkeys(("GET /", "GET /healthz", "GET /readyz", "GET /openapi.json"), ""),
    **dict.fromkeys(("GET /api/status", "GET /api/session"), ""),
    "GET /metrics": "metrics",
    **dict.fromkeys(
        (
            "GET /api/a2a/agents",
            "GET /api/a2a/agents/{name}",
            "GET /api/a2a/agents/{name}/login",
            "GET /api/a2a/dispatches",
            "GET /api/a2a/dispatches/{name}/decision",
            "GET /api/agents",
            "GET /api/approvals",
            "GET /api/approvals/{name}",
            "GET /api/audit",
            "GET /api/events",
            "GET /api/limits",
            "GET /api/logins/{name}",
            "GET /api/map",
            "GET /api/mcp/servers",
            "GET /api/mcp/servers/{name}/login",
            "GET /api/prompts",
            "GET /api/resources",
            "GET /api/runs",
            "GET /api/runs/{name}",
            "GET /api/runs/{name}/events",
            "GET /api/taint",
            "GET /api/tools",
            "GET /api/tools/{name}",
            "GET /api/traces",
            "GET /api/traces/{name}",
            "GET /api/usage",
            "GET /api/views",
            "GET /api/views/{name}",
            "GET /api/workflows",
            "GET /api/workflows/{name}",
        ),
        "list",
    ),
    **dict.fromkeys(
        (
            "DELETE /api/a2a/agents/{name}/login",
            "DELETE /api/mcp/servers/{name}/login",
            "POST /api/a2a/agents/{name}/login",
            "POST /api/a2a/dispatch",
            "POST /api/console/link",
            "POST /api/mcp/servers/{name}/login",
            "POST /api/prompts/{name}/get",
            "POST /api/resources/read",
            "POST /api/runs/{name}/answer",
            "POST /api/runs/{name}/cancel",
            "POST /api/runs/{name}/resume",
            "POST /api/runs/{name}/retry",
            "POST /api/tools/{name}/call",
            "POST /api/workflows/check",
            "POST /api/workflows/{name}/run",
        ),
        "call",
    ),
    "POST /api/approvals/{name}/approve": "approve",
    "POST /api/approvals/{name}/deny": "approve",
    **dict.fromkeys(
        (
            "DELETE /api/a2a/agents/{name}",
            "DELETE /api/mcp/servers/{name}",
            "GET /api/a2a/agents/{name}/cards",
            "GET /api/cluster",
            "GET /api/config",
            "GET /api/doctor",
            "GET /api/mcp/servers/{name}/logs",
            "GET /api/skills",
            "PATCH /api/a2a/agents/{name}",
            "POST /api/a2a/agents",
            "POST /api/a2a/agents/{name}/refetch",
            "POST /api/agents/{name}/call",
            "POST /api/demo",
            "POST /api/mcp/servers",
            "POST /api/mcp/servers/{name}/restart",
            "POST /api/reload",
        ),
        "registry",
    ),
    **dict.fromkeys(
        (
            "DELETE /api/policies/{name}",
            "GET /api/policies",
            "GET /api/policies/what-can",
            "GET /api/policies/who-can",
            "GET /api/policies/{name}",
            "GET /api/taint/stored",
            "PATCH /api/policies/{name}",
            "POST /api/policies",
            "POST /api/policies/explain",
            "POST /api/policies/propose",
            "POST /api/policies/replay",
            "POST /api/policies/test",
            "POST /api/policies/validate",
            "POST /api/taint/declassify",
        ),
        "policies",
    ),
    "POST /api/workflows": "workflows",
    "DELETE /api/workflows/{name}": "workflows",
    **dict.fromkeys(
        (
            "GET /api/pins",
            "GET /api/pins/diff",
            "POST /api/pins/approve",
            "POST /api/pins/forget",
            "POST /api/pins/reject",
        ),
        "pins",
    ),
    **dict.fromkeys(
        (
            "DELETE /api/console/sessions",
            "GET /api/clients",
            "GET /api/console/sessions",
            "GET /api/keys",
            "POST /api/audit/verify",
        ),
        "users",
    ),
}
OTHERS: Mapping[str, dict[str, Any]] = {
    "nothing": {"scopes": []},
    "plain": {"scopes": ["call"]},
    "foreign": {"scopes": EVERY_SCOPE, "roles": ["owner"], "org": "acme"},
    "narrow": {"scopes": EVERY_SCOPE, "roles": ["owner"], "view": "narrow"},
    "operator": {"scopes": EVERY_SCOPE, "roles": ["operator"]},
    "restricted": {"scopes": ["call", "registry"], "roles": ["operator"]},
}
OPEN = ("GET /healthz", "GET /readyz")
SLOW = ("GET /api/doctor", "POST /api/reload", "POST /api/audit/verify")
"""Sent only by principals to which they are refused."""
WORKFLOW = """
expose: true
steps:
- {id: decide, nodeId: approval, config: {title: "pay the bill"}}
"""
MANIFEST = """name = "clerk"
[model]
provider = "script"
[[script]]
say = "written down"
"""
THINGS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "GET /api/runs/{name}",
            "GET /api/runs/{name}/events",
            "POST /api/runs/{name}/answer",
            "POST /api/runs/{name}/cancel",
            "POST /api/runs/{name}/resume",
            "POST /api/runs/{name}/retry",
        ),
        "run",
    ),
    **dict.fromkeys(
        (
            "DELETE /api/workflows/{name}",
            "GET /api/workflows/{name}",
            "POST /api/workflows/{name}/run",
        ),
        "workflow",
    ),
    **dict.fromkeys(
        (
            "GET /api/approvals/{name}",
            "POST /api/approvals/{name}/approve",
            "POST /api/approvals/{name}/deny",
        ),
        "approval",
    ),
    **dict.fromkeys(("GET /api/tools/{name}", "POST /api/tools/{name}/call"), "tool"),
    "POST /api/agents/{name}/call": "agent",
}
"""What the owner has that the operation is about. `test_foreign_ids.py` has the others."""
BODIES: Mapping[str, Any] = {
    "POST /api/agents/{name}/call": {"tool": "other.echo", "arguments": {"text": "x"}},
    "POST /api/runs/{name}/answer": {"step": "decide", "answers": {"a": "b"}},
    "POST /api/runs/{name}/resume": {"step": "decide", "decision": "skip"},
    "POST /api/tools/{name}/call": {"arguments": {"message": "x"}},
}
"""Bodies with which an operation gets as far as the name in its path."""
HARMLESS = ("POST /api/workflows/check",)
"""Operations with the right `call` that do nothing."""
FOREIGN = ("other", "intruder")
"""Names that a principal of another org must not find in any response."""


@dataclass(frozen=True)
class Reply:
    status: int
    body: str
    challenge: str

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])

    @property
    def is_scope_refusal(self) -> bool:
        return self.status == 403 and '"InsufficientScope"' in self.body


@dataclass(frozen=True)
class Rig:
    hub: RunningHub
    keys: Mapping[str, str]
    theirs: Mapping[str, str] = field(default_factory=dict)
    """The name or id of each kind of thing that the owner has."""

    def ask(
        self, operation: str, key: str = "", name: str = "there-is-none", body: Any = None
    ) -> Reply:
        """Sends the operation with the key of that name; reads of a stream the head alone."""
        method, path = operation.replace("{name}", name).split(" ")
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {self.keys[key]}"
        connection = http.client.HTTPConnection(urlsplit(self.hub.url).netloc, timeout=60)
        try:
            sent = json.dumps(body or {}) if method in ("POST", "PATCH") else ""
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            is_stream = answer.headers.get_content_type() == "text/event-stream"
            body = "" if is_stream else answer.read().decode()
            return Reply(answer.status, body, answer.headers.get("WWW-Authenticate", ""))
        finally:
            connection.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with run_module_hub(SERVERS, CONFIG) as hub:
        hub.wait_connected("intruder", "other")
        until(lambda: "other.echo" in str(hub.api("/api/tools")))
        assert hub.post("/api/policies", {"name": "mine", "text": POLICY}).get("ok")
        keys = {"api_key": "owner-of-the-tests-0123456789"}
        with open_keys(hub.home) as store:
            for scope in (*MEANINGS, "mine:own"):
                keys[scope] = store.create(
                    f"only-{scope.replace(':', '-')}", owner="o", expires_at=None,
                    scopes=[scope], roles=["owner"],
                )  # fmt: skip
            for name, options in OTHERS.items():
                keys[name] = store.create(name, owner="o", expires_at=None, **options)
        until(lambda: Rig(hub, keys).ask("GET /api/status", "restricted").status == 200)
        yield Rig(hub, keys, make_things(hub))


def make_things(hub: RunningHub) -> dict[str, str]:
    """Makes the owner's: an agent, and a workflow with a run that waits for an approval."""
    folder = hub.home / "agents" / "clerk"
    folder.mkdir(parents=True)
    (folder / "agent.toml").write_text(MANIFEST, encoding="utf-8")
    assert hub.post("/api/workflows", {"name": "payroll", "source": WORKFLOW})["name"] == "payroll"
    run = hub.post("/api/workflows/payroll/run", {})["run"]["id"]
    [approval] = until(lambda: hub.api("/api/approvals")["approvals"])
    [agent] = until(lambda: hub.api("/api/agents")["agents"])
    return {
        "agent": agent["name"],
        "approval": approval["id"],
        "run": run,
        "tool": agent["tool"],
        "workflow": "payroll",
    }


def check_untouched(rig: Rig) -> None:
    """What the owner has is as it was, and the workflow was not run."""
    [run] = rig.hub.api("/api/runs")["runs"]
    assert (run["id"], run["state"]) == (rig.theirs["run"], "waiting")
    [approval] = rig.hub.api("/api/approvals")["approvals"]
    assert (approval["id"], approval["state"]) == (rig.theirs["approval"], "pending")
    assert rig.hub.get("/api/workflows/payroll").status == 200


def test_every_named_thing_of_others_is_in_the_tables() -> None:
    """An operation on a thing by its name is about one of these, or in `test_foreign_ids.py`."""
    kinds = ("runs", "workflows", "approvals", "tools", "agents")
    named = {one for one in RIGHTS if "{name}" in one and one.split("/")[2] in kinds}
    assert named == set(THINGS)


def test_every_operation_has_a_row_with_what_it_needs(rig: Rig) -> None:
    document = json.loads(rig.ask("GET /openapi.json", "plain").body)
    found = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            needs = operation.get("security", [{"key": []}])
            (right,) = needs[0]["key"] or [""] if needs else [""]
            found[f"{method.upper()} {path}"] = right
    assert found == dict(RIGHTS)
    assert set(RIGHTS.values()) == {"", *MEANINGS} - {"admin"}


def test_only_probes_are_answered_without_a_key(rig: Rig) -> None:
    statuses = {operation: rig.ask(operation).status for operation in RIGHTS}
    assert statuses == {one: 200 if one in OPEN else 401 for one in RIGHTS}


@pytest.mark.parametrize("scope", [*MEANINGS, "nothing", "mine:own"])
def test_a_scope_alone_serves_for_what_it_names(rig: Rig, scope: str) -> None:
    included = {"", *expand_scopes((scope,))}
    for operation, right in RIGHTS.items():
        if operation in SLOW and right in included:
            continue
        reply = rig.ask(operation, scope)
        assert reply.is_scope_refusal == (right not in included), (operation, reply)
        if reply.is_scope_refusal:
            assert reply.error["scope"] == right
            assert f'error="insufficient_scope", scope="{right}"' in reply.challenge


def test_an_ordinary_key_administers_nothing(rig: Rig) -> None:
    for operation, right in RIGHTS.items():
        reply = rig.ask(operation, "plain")
        needs_more = right in (*ADMIN_RIGHTS, "approve", "metrics")
        assert reply.is_scope_refusal == needs_more, (operation, reply)


@pytest.mark.parametrize("who", ["foreign", "narrow"])
def test_another_org_and_a_view_administer_nothing_and_see_nothing(rig: Rig, who: str) -> None:
    for operation, right in RIGHTS.items():
        reply = rig.ask(operation, who)
        if right in (*ADMIN_RIGHTS, "metrics"):
            assert reply.status == 403, (operation, reply)
        if operation not in ("GET /", "GET /openapi.json"):
            names = FOREIGN if who == "foreign" else ("other",)
            assert not any(f'"{name}' in reply.body for name in names), (operation, reply)
    for operation in ("GET /api/tools/{name}", "POST /api/tools/{name}/call"):
        assert rig.ask(operation, who, "other.echo").status == 404
    for operation, thing in THINGS.items():
        reply = rig.ask(operation, who, rig.theirs[thing], BODIES.get(operation))
        assert reply.status == (403 if RIGHTS[operation] in ADMIN_RIGHTS else 404), (
            operation,
            reply,
        )
        assert not any(one in reply.body for one in ("pay the bill", "written down")), reply
    check_untouched(rig)


def test_an_administrator_who_is_no_owner_adds_no_program(rig: Rig) -> None:
    for operation, right in RIGHTS.items():
        if right in ADMIN_RIGHTS and operation not in SLOW:
            expected = operation == "POST /api/demo"
            assert (rig.ask(operation, "operator").status == 403) == expected, operation
    command = {"name": "mine", "command": "true", "args": []}
    headers = {"Authorization": f"Bearer {rig.keys['operator']}"}
    reply = wire.post(f"{rig.hub.url}/api/mcp/servers", command, headers)
    assert reply.status == 403 and "may not add a program" in str(reply.json())
    for operation, right in RIGHTS.items():
        if right in ADMIN_RIGHTS and operation not in SLOW:
            reply_now = rig.ask(operation, "restricted")
            assert reply_now.is_scope_refusal == (right != "registry"), operation


def test_the_process_of_a_server_may_do_nothing(rig: Rig) -> None:
    """Over the hub's Unix socket, where a process of the owner needs no key."""
    to = str(rig.hub.home / "run" / "http.sock")

    def ask(operation: str, body: Any, name: str = "there-is-none") -> tuple[int, str]:
        method, path = operation.replace("{name}", name).split(" ")
        asked = {"to": to, "method": method, "path": path, "body": body}
        answer = json.loads(text_of(rig.hub.call("intruder.ask", asked)))
        return answer["status"], answer["body"]

    for operation, right in RIGHTS.items():
        if operation.endswith("/events"):
            continue  # a stream, which does not end
        if operation == "GET /openapi.json":
            continue  # longer than a result may be
        status, body = ask(operation, {})
        if right in (*ADMIN_RIGHTS, "metrics"):
            assert status == 403, (operation, body)
        if right == "list":
            assert '"other' not in body, (operation, body)
        if right in ("call", "approve") and operation not in HARMLESS:
            assert status in (400, 403, 404), (operation, status, body)
    for operation, thing in THINGS.items():
        status, body = ask(operation, BODIES.get(operation, {}), rig.theirs[thing])
        assert status == (403 if RIGHTS[operation] in ADMIN_RIGHTS else 404), (operation, body)
        assert not any(one in body for one in ("pay the bill", "written down")), body
    check_untouched(rig)
    arguments = {"arguments": {"text": "x"}}
    status, body = ask("POST /api/tools/{name}/call", arguments, "other.echo")
    assert status == 404, body
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    sent = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    status, body = ask("POST /a2a", sent)
    assert "There are none that you may use" in body, body


# --- the protocols -------------------------------------------------------------------------------

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
SEND = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": MESSAGE}}


def ask_mcp(rig: Rig, scope: str, method: str, params: Mapping[str, Any]) -> wire.Answer:
    headers = {"Authorization": f"Bearer {rig.keys[scope]}"}
    return wire.modern_request(rig.hub.mcp_url, method, params, headers)


@pytest.mark.parametrize("scope", ["metrics", "approve", "nothing", "mine:own"])
def test_a_key_without_call_and_list_reaches_no_protocol(rig: Rig, scope: str) -> None:
    headers = {"Authorization": f"Bearer {rig.keys[scope]}"}
    legacy = wire.request(1, "initialize", wire.initialize_params())
    found = [
        ask_mcp(rig, scope, "tools/list", {}),
        ask_mcp(rig, scope, "tools/call", {"name": "other.echo", "arguments": {"text": "x"}}),
        wire.post(rig.hub.mcp_url, legacy, headers),
        wire.get(f"{rig.hub.url}/sse", headers),
        wire.post(f"{rig.hub.url}/a2a", SEND, {**headers, "A2A-Version": "1.0"}),
    ]
    for answer in found:
        assert answer.status == 403, answer
        assert answer.json()["error"]["scope"] == "call"
        challenge = answer.headers["www-authenticate"]
        assert 'error="insufficient_scope"' in challenge and 'scope="call"' in challenge


def test_a_key_that_may_only_list_calls_nothing(rig: Rig) -> None:
    listed = ask_mcp(rig, "list", "tools/list", {})
    assert listed.status == 200 and "echo" in str(listed.rpc())
    for name in ("other.echo", "there.is.none"):
        refused = ask_mcp(rig, "list", "tools/call", {"name": name, "arguments": {"text": "x"}})
        assert refused.status == 403, refused
        assert 'scope="call"' in refused.headers["www-authenticate"]
        assert refused.json()["error"]["data"]["scope"] == "call"
    headers = {"Authorization": f"Bearer {rig.keys['list']}", "A2A-Version": "1.0"}
    sent = wire.post(f"{rig.hub.url}/a2a", SEND, headers)
    assert sent.status == 403 and 'scope="call"' in sent.headers["www-authenticate"]
    (info,) = sent.json()["error"]["data"]
    assert info["reason"] == "PERMISSION_DENIED" and info["metadata"]["scope"] == "call"
    by_rest = wire.post(f"{rig.hub.url}/a2a/message:send", {"message": MESSAGE}, headers)
    assert by_rest.status == 403 and 'scope="call"' in by_rest.headers["www-authenticate"]


def ask_grpc(rig: Rig, scope: str) -> tuple[grpc.StatusCode, Mapping[str, str]]:
    """Sends a message; returns the status, and the metadata of its google.rpc.ErrorInfo."""
    port = json.loads(rig.hub.command("status", "--json").stdout)["agents"]["grpc_port"]
    metadata = (("authorization", f"Bearer {rig.keys[scope]}"), ("a2a-version", "1.0"))
    part = pb.Part(text="x")
    sent = pb.Message(message_id="m", role=pb.Role.ROLE_USER, parts=[part])
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            request = pb.SendMessageRequest(message=sent)
            A2AServiceStub(channel).SendMessage(request, metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            trailers = dict(error.trailing_metadata())
            status = Status.FromString(trailers["grpc-status-details-bin"])
            info = ErrorInfo()
            assert status.details[0].Unpack(info)
            return error.code(), dict(info.metadata)
    return grpc.StatusCode.OK, {}


@pytest.mark.parametrize("scope", ["metrics", "approve", "nothing", "mine:own", "list"])
def test_a_key_without_call_sends_nothing_over_grpc(rig: Rig, scope: str) -> None:
    code, metadata = ask_grpc(rig, scope)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert metadata["scope"] == "call" and metadata["kind"] == "InsufficientScope"
    code, metadata = ask_grpc(rig, "plain")  # and not for want of another thing
    assert "scope" not in metadata, (code, metadata)


def test_an_ordinary_key_lists_and_calls(rig: Rig) -> None:
    assert "echo" in str(ask_mcp(rig, "plain", "tools/list", {}).rpc())
    done = ask_mcp(rig, "plain", "tools/call", {"name": "other.echo", "arguments": {"text": "x"}})
    assert done.status == 200 and not done.rpc()["result"].get("isError"), done


def test_changed_scopes_of_a_key_take_effect_in_a_running_hub(rig: Rig) -> None:
    def may_call() -> bool:
        return rig.ask("POST /api/tools/{name}/call", "mine:own", "other.none").status == 404

    assert not may_call()
    assert rig.hub.command("keys", "scopes", "only-mine-own", "--add", "call").returncode == 0
    until(may_call)
    assert rig.hub.command("keys", "scopes", "only-mine-own", "--remove", "call").returncode == 0
    until(lambda: not may_call())


def test_a_key_or_a_policy_is_what_lets_a_server_call(rig: Rig) -> None:
    """The process of a server may call what a policy permits it, and a key is made by a person."""

    def ask(**headers: str) -> int:
        asked = {
            "to": rig.hub.url if headers else str(rig.hub.home / "run" / "http.sock"),
            "method": "POST",
            "path": "/api/tools/other.echo/call",
            "body": {"arguments": {"text": "x"}},
            "headers": headers,
        }
        return int(json.loads(text_of(rig.hub.call("intruder.ask", asked)))["status"])

    assert ask() == 404
    made = rig.hub.command("keys", "create", "back", "--for", "intruder")
    assert ask(Authorization=f"Bearer {made.stdout.strip()}") == 200
    grant = """
    @id("intruder-echoes")
    permit (principal == Hub::Agent::"intruder",
      action in [Hub::Action::"any_call", Hub::Action::"list"],
      resource == Hub::Tool::"other.echo");
    """
    assert rig.hub.post("/api/policies", {"name": "granted", "text": grant}).get("ok")
    assert ask() == 200


# --- homes of earlier versions -------------------------------------------------------------------


def test_keys_that_lose_rights_are_named_once_with_the_command_that_restores_them(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    first = hub(servers=SERVERS, config='api_key = "owner-of-the-tests-0123456789"\n')
    home = first.home
    assert "since the last start" not in first.log()  # a new home
    with open_keys(home) as store:
        store.create("boss", owner="o", expires_at=None, scopes=["call"], roles=["owner"])
        store.create("prom", owner="o", expires_at=None, scopes=["metrics"])
        store.create("ci", owner="o", expires_at=None, scopes=["call"])
        store.create("new", owner="o", expires_at=None, scopes=["list"], roles=["owner"])
    assert first.stop() == 0
    _make_older(home, ["boss", "prom", "ci"])

    again = hub(home=home)
    log = again.log()
    assert "dragoman keys scopes boss --add admin --add approve" in log
    assert "dragoman keys scopes prom --add call" in log
    assert '"ci"' not in log and '"new"' not in log
    assert "processes of servers may not call" in log

    def list_findings() -> list[str]:
        found = json.loads(again.command("doctor", "--json").stdout)
        return [one["fix"] for one in found["checks"] if one["check"] == "scopes"]

    assert len(list_findings()) == 2
    fix = next(one for one in list_findings() if "boss" in one)
    assert again.command(*fix.split()[1:]).returncode == 0
    assert again.stop() == 0

    again = hub(home=home)
    assert "since the last start" not in again.log()
    assert [one.split()[3] for one in list_findings()] == ["prom"]


def _make_older(home: Path, keys: list[str]) -> None:
    """Makes the home one that a version without effective scopes has used."""
    with open_keys(home) as store, store.base.writer.transaction():
        for name in keys:
            store.base.db.execute("UPDATE keys SET scopes_chosen = 0 WHERE name = ?", (name,))
    inventory = StoreInventory(home, home / "policies")
    inventory.update(notices=0)
    inventory.write()
