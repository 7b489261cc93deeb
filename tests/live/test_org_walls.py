"""Nothing of one org can be reached from another: every operation answers as for an unknown id.

Ann of the org crimson has a session, tasks, a webhook, a question, a long result and a dispatch.
Others try every operation of MCP, A2A and the API with their ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.live.a2a_hub import (
    BINDINGS,
    CANCEL,
    GET,
    LIST,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    PUSH_SET,
    SEND,
    SUBSCRIBE,
    V10,
    Caller,
    DialectBinding,
    run_a2a_hub,
)
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.live.test_a2a_tools import to
from tests.peers import wire
from tests.peers.identity_provider import IdentityProvider, run_identity_provider
from tests.peers.process import server_entry

from dragoman.core.scopes import ADMIN_RIGHTS

pytestmark = pytest.mark.promise("O1", "U4")

KEY = "the key of the configuration"
CONFIG = """api_key = "{key}"
[server]
public_url = "https://hub.example.com"
[limits]
result_chars = 2_000
[[auth.jwt.issuers]]
name = "corp"
issuer = "{issuer}"
org_claim = "org"
orgs = ["crimson", "azure"]
roles_claim = "roles"
owner_roles = ["boss"]
[[auth.jwt.issuers]]
name = "other"
issuer = "{other}"
"""
UNKNOWN = {
    "task": "11111111-1111-4111-8111-111111111111",
    "mcp task": "22222222222222222222222222222222",
    "context": "33333333-3333-4333-8333-333333333333",
    "session": "0" * 67,
    "hook": "no-such-webhook",
    "kept": "dragoman://results/xxxxxxxxxxxxxxxxxxxxxxxx",
    "handle": "x" * 60,
    "tool": "nowhere.echo",
    "server": "nowhere",
}


@dataclass(frozen=True)
class Rig:
    hub: RunningHub
    users: Mapping[str, dict[str, str]]
    """Their headers."""
    mine: dict[str, str] = field(default_factory=dict)
    """The ids of what Ann has."""


def sign(provider: IdentityProvider, **claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {provider.sign(**claims)}"}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with run_identity_provider() as one, run_identity_provider() as two:
        config = CONFIG.format(key=KEY, issuer=one.issuer, other=two.issuer)
        servers = [
            server_entry(org, "matrix_server", "--era", "legacy", interactive=True, org=org)
            for org in ("crimson", "azure")
        ]
        users = {
            "ann": sign(one, sub="ann", org="crimson"),
            "bob of azure": sign(one, sub="bob", org="azure"),
            "ann of azure": sign(one, sub="ann", org="azure"),
            "boss of azure": sign(one, sub="boss", org="azure", roles=["boss"]),
            "ann of no org": sign(two, sub="ann"),
            "bob of crimson": sign(one, sub="bob", org="crimson"),
        }
        with run_a2a_hub((), servers, config, {"push_private": True}) as made:
            made.hub.wait_connected("crimson", "azure")
            rig = Rig(made.hub, users)
            fill(rig)
            yield rig


def fill(rig: Rig) -> None:
    """Gives Ann one of everything."""
    hub, headers, mine = rig.hub, rig.users["ann"], rig.mine
    caller = Caller(hub, headers=headers)
    asked = caller.ask(SEND, to("crimson.ask_form", {"key": "walls"}))
    assert asked.error is None, asked.error
    task = asked.value["task"]
    assert "INPUT_REQUIRED" in task["status"]["state"], task
    mine |= {"task": task["id"], "context": task["contextId"]}
    hook = {"taskId": task["id"], "id": "ann-hook", "url": "http://127.0.0.1:9/hook"}
    assert caller.ask(PUSH_SET, hook).error is None
    mine["hook"] = "ann-hook"
    session = wire.Session(hub.mcp_url, headers=headers)
    mine["session"] = session.headers["Mcp-Session-Id"]
    mine["tool"], mine["server"] = "crimson.echo", "crimson"
    long = session.request(
        "tools/call", {"name": "crimson.echo", "arguments": {"text": "x" * 9_000}}
    )
    mine["kept"] = re.findall(r"dragoman://results/[A-Za-z0-9_-]{20,}", json.dumps(long))[0]
    work = {"name": "crimson.ask_form", "arguments": {"key": "task"}, "task": {}}
    mine["mcp task"] = session.request("tools/call", work)["result"]["task"]["taskId"]
    for name, value in mine.items():
        assert value, name


# --- every operation, as a function of the ids ----------------------------------------------------

Ask = Callable[[RunningHub, Mapping[str, str], Mapping[str, str]], Any]
"""Takes the hub, the headers of the user, and the ids; returns all that is answered."""


def a2a(binding: DialectBinding, op: str, **params: str) -> Ask:
    def ask(hub: RunningHub, headers: Mapping[str, str], ids: Mapping[str, str]) -> Any:
        given: dict[str, Any] = {name: ids.get(value, value) for name, value in params.items()}
        method, path, body, own = binding.request(op, given)
        sent = {"Content-Type": "application/json", **own, **headers}
        data = None if body is None else json.dumps(body).encode()
        answer = wire.http_request(method, hub.url + path, data, sent, 20)
        return answer.status, answer.body.decode()

    return ask


def a2a_send(**named: str) -> Ask:
    def ask(hub: RunningHub, headers: Mapping[str, str], ids: Mapping[str, str]) -> Any:
        params = V10.params("hello")
        params["message"] |= {name: ids[value] for name, value in named.items()}
        reply = V10.ask(hub, SEND, params, headers={**headers})
        return reply.answer.status, reply.answer.body.decode()

    return ask


def mcp(method: str, **params: str) -> Ask:
    def ask(hub: RunningHub, headers: Mapping[str, str], ids: Mapping[str, str]) -> Any:
        given: dict[str, Any] = {name: ids.get(value, value) for name, value in params.items()}
        if "handle" in params:
            given = {
                "name": "azure.echo",
                "arguments": {"text": "x"},
                "requestState": ids["handle"],
            }
        session = wire.Session(hub.mcp_url, headers=headers)
        legacy = session.request(method, given)
        answer = wire.modern_request(hub.mcp_url, method, given, headers)
        return legacy, answer.status, answer.body.decode()

    return ask


def use_session(method: str, body: Any = None) -> Ask:
    def ask(hub: RunningHub, headers: Mapping[str, str], ids: Mapping[str, str]) -> Any:
        sent = {
            **headers,
            "Mcp-Session-Id": ids["session"],
            "Content-Type": "application/json",
            "Accept": wire.ACCEPT,
        }
        data = None if body is None else json.dumps(body).encode()
        answer = wire.http_request(method, hub.mcp_url, data, sent, 20)
        return answer.status, answer.body.decode()

    return ask


def api(method: str, path: str, body: Any = None) -> Ask:
    def ask(hub: RunningHub, headers: Mapping[str, str], ids: Mapping[str, str]) -> Any:
        where = re.sub(r"<([a-z ]+)>", lambda found: ids[found[1]], path)
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers}
        answer = wire.http_request(method, hub.url + where, data, sent, 20)
        return answer.status, answer.body.decode()

    return ask


OPERATIONS: dict[str, Ask] = {
    **{f"get {one}": a2a(one, GET, id="task") for one in BINDINGS},
    **{f"cancel {one}": a2a(one, CANCEL, id="task") for one in BINDINGS},
    **{f"subscribe {one}": a2a(one, SUBSCRIBE, id="task") for one in BINDINGS},
    "push set": a2a(V10, PUSH_SET, taskId="task", id="hook", url="http://127.0.0.1:9/x"),
    "push get": a2a(V10, PUSH_GET, taskId="task", id="hook"),
    "push list": a2a(V10, PUSH_LIST, taskId="task"),
    "push delete": a2a(V10, PUSH_DELETE, taskId="task", id="hook"),
    "continue": a2a_send(taskId="task"),
    "continue with context": a2a_send(taskId="task", contextId="context"),
    "MCP task get": mcp("tasks/get", taskId="mcp task"),
    "MCP task result": mcp("tasks/result", taskId="mcp task"),
    "MCP task cancel": mcp("tasks/cancel", taskId="mcp task"),
    "read kept": mcp("resources/read", uri="kept"),
    "subscribe kept": mcp("resources/subscribe", uri="kept"),
    "call tool": mcp("tools/call", name="tool"),
    "session post": use_session("POST", wire.request(1, "tools/list", {})),
    "session get": use_session("GET"),
    "session delete": use_session("DELETE"),
    "API tool": api("GET", "/api/tools/<tool>"),
    "API call": api("POST", "/api/tools/<tool>/call", {"arguments": {"text": "x"}}),
    "API server log": api("GET", "/api/mcp/servers/<server>/logs"),
    "API restart": api("POST", "/api/mcp/servers/<server>/restart"),
    "API usage": api("GET", "/api/usage?origin=<tool>"),
    "API dispatches": api("GET", "/api/dispatches?verb=<tool>"),
}


def remove_ids(answer: Any, ids: Mapping[str, str]) -> str:
    """What is left of an answer without the ids that were asked for, and without the trace."""
    text = json.dumps(answer)
    for id in sorted(ids.values(), key=len, reverse=True):
        for form in (id, id.replace("/", r"\/"), id.partition(".")[0] if "." in id else id):
            text = text.replace(form, "ID")
    text = re.sub(
        r"trace [0-9a-f]+|[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "T", text
    )
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z?", "T", text)


OF_THE_ORG = {name for name in OPERATIONS if name.startswith(("API", "call"))}
"""Operations on tools and servers, which all of an org have."""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_ids_of_another_org_are_unknown_ids(rig: Rig, operation: str) -> None:
    ask = OPERATIONS[operation]
    for user, headers in rig.users.items():
        if user == "ann" or (user == "bob of crimson" and operation in OF_THE_ORG):
            continue
        theirs, unknown = ask(rig.hub, headers, rig.mine), ask(rig.hub, headers, UNKNOWN)
        assert remove_ids(theirs, rig.mine) == remove_ids(unknown, UNKNOWN), (user, theirs)


def test_ids_are_good_for_their_owner(rig: Rig) -> None:
    """Or the test above would prove nothing."""
    headers = rig.users["ann"]
    for name in (f"get {V10}", "push get", "push list", "read kept", "session post", "API tool"):
        ask = OPERATIONS[name]
        mine, unknown = ask(rig.hub, headers, rig.mine), ask(rig.hub, headers, UNKNOWN)
        assert remove_ids(mine, rig.mine) != remove_ids(unknown, UNKNOWN), (name, mine)


LISTS: dict[str, Ask] = {
    "A2A tasks": a2a(V10, LIST),
    "A2A card": api("GET", "/a2a/extendedAgentCard"),
    "A2A public card": api("GET", "/.well-known/agent-card.json"),
    "MCP tools": mcp("tools/list"),
    "MCP resources": mcp("resources/list"),
    "MCP prompts": mcp("prompts/list"),
    "MCP tasks": mcp("tasks/list"),
    **{
        path: api("GET", path)
        for path in (
            "/api/tools", "/api/mcp/servers", "/api/dispatches", "/api/usage", "/api/limits",
            "/api/usage?by=trace", "/api/status", "/api/agents", "/api/a2a/agents", "/api/skills",
            "/api/resources", "/api/prompts", "/api/policies", "/api/pins", "/api/taint",
            "/metrics",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("listed", LISTS)
def test_lists_name_nothing_of_another_org(rig: Rig, listed: str) -> None:
    secrets = [value for name, value in rig.mine.items() if name not in ("server", "tool", "hook")]
    for user in ("bob of azure", "ann of azure", "boss of azure", "ann of no org"):
        text = json.dumps(LISTS[listed](rig.hub, rig.users[user], UNKNOWN))
        found = [
            one
            for one in (*secrets, "crimson.", "crimson_echo", '"crimson"', "corp/crimson")
            if one in text
        ]
        assert not found, (user, found, text[:500])


def test_events_of_another_org_are_not_sent(rig: Rig) -> None:
    hub = rig.hub
    url = f"{hub.url}/api/events"
    with wire.stream("GET", url, None, rig.users["boss of azure"], 30) as stream:
        for user, tool in (
            ("ann", "crimson.echo"),
            ("bob of azure", "azure.echo"),
            ("boss of azure", "azure.echo"),
        ):
            session = wire.Session(hub.mcp_url, headers=rig.users[user])
            called = session.request("tools/call", {"name": tool, "arguments": {"text": user}})
            assert "result" in called, called
        seen = ""
        while "boss" not in seen:
            seen += stream.next().data
        assert "crimson" not in seen, seen


def test_administrator_of_another_org_is_none_of_the_hub(rig: Rig) -> None:
    """Every operation that needs a part of `admin`, from the OpenAPI document."""
    document = rig.hub.api("/openapi.json")["paths"]
    boss, tried = rig.users["boss of azure"], 0
    for path, item in document.items():
        for method, operation in item.items():
            (needs,) = operation.get("security") or [{"key": []}]
            if not {*needs["key"]} & {*ADMIN_RIGHTS}:
                continue
            where = path.replace("{name}", "crimson")
            body = b"{}" if method in ("post", "put", "patch") else None
            sent = {**boss, "Content-Type": "application/json"}
            answer = wire.http_request(method.upper(), rig.hub.url + where, body, sent, 20)
            refused = (403, 404) if "{name}" in path else (403,)
            assert answer.status in refused, (method, path, answer.status, answer.body)
            tried += 1
    assert tried > 10


def test_own_org_works(rig: Rig) -> None:
    """The wall is between orgs, not around them."""
    for user, server in (("bob of azure", "azure"), ("bob of crimson", "crimson")):
        session = wire.Session(rig.hub.mcp_url, headers=rig.users[user])
        params = {"name": f"{server}.echo", "arguments": {"text": "hello"}}
        assert session.request("tools/call", params)["result"]["content"][0]["text"] == "hello"
    records = until(lambda: [one for one in rig.hub.audit() if "corp/azure/bob" in one["caller"]])
    assert records[-1]["caller"] == "user:corp/azure/bob"
