"""Views over real connections: what a view excludes is unknown at every entry point, by every name;
search mode; the choice of a view by address, key, client name and stdio."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.live.a2a_hub import a2a_config, agent_entry, agents_env
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import error_kind, error_text, run_module_hub, text_of, until
from tests.peers import wire
from tests.peers.process import server_entry

SERVER = (sys.executable, str(Path(__file__).with_name("configurable_server.py")))
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
HEADED = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}
VIEWS = """
[[views]]
name = "ide"
description = "For editors"
servers = ["files"]
agents = ["echo"]
exclude = ["files.delete_*", "files.file:///private*"]
rename = { "files.read" = "open_file" }
describe = { "files.read" = "Opens a file." }

[[views]]
name = "ops"
servers = ["vault"]

[[views]]
name = "search"
servers = ["files", "vault"]
agents = ["asking", "actor"]
exclude = ["vault.headed"]
search = "always"

[mcp]
views_for = { "wirecursor*" = "ide" }
"""


def build_tool(name: str, schema: Mapping[str, Any] = SCHEMA, text: str = "") -> dict[str, Any]:
    return {"name": name, "description": text or f"Does {name}.", "inputSchema": schema}


FILES = {
    "instructions": "Files are here.",
    "tools": [build_tool("read"), build_tool("delete_all")],
    "prompts": [{"name": "tidy", "arguments": [{"name": "how"}]}],
    "resources": [
        {"uri": "file:///notes", "name": "notes"},
        {"uri": "file:///private", "name": "private"},
    ],
}
VAULT = {
    "instructions": "The vault is here.",
    "tools": [build_tool("unlock"), build_tool("headed", HEADED)],
    "prompts": [{"name": "steal"}],
    "resources": [{"uri": "vault://gold", "name": "gold"}],
    "resourceTemplates": [{"uriTemplate": "vault://box/{number}", "name": "box"}],
}


def write_config(folder: Path) -> tuple[list[str], str]:
    entries = []
    for name, offered in (("files", FILES), ("vault", VAULT)):
        (folder / f"{name}.json").write_text(json.dumps(offered), encoding="utf-8")
        entries.append(server_entry(name, "stdio", *SERVER, folder / f"{name}.json"))
    agents = [
        agent_entry("echo", "echo"),
        agent_entry("spy", "echo"),
        agent_entry("asking", "asking"),
        agent_entry("actor", "actor", input_modes=["*/*"]),
    ]
    return entries, a2a_config(agents, VIEWS, {"default_agent": "echo"})


class Rig:
    def __init__(self, hub: RunningHub, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        self.keys = {
            name: self.create_key(name, *more)
            for name, more in {
                "bound": ("--view", "ide"),
                "boss": ("--view", "ide", "--role", "owner"),
                "searcher": ("--view", "search"),
                "free": ("--role", "owner"),
            }.items()
        }
        hub.headers = self.headers("free")

    def create_key(self, name: str, *more: str) -> str:
        done = self.hub.command("keys", "create", name, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[key]}"}

    def modern(self, key: str, method: str, params: Any = None, path: str = "/mcp") -> Any:
        return wire.modern_request(self.hub.url + path, method, params, self.headers(key)).json()

    def list_names(self, key: str, kind: str = "tools", path: str = "/mcp") -> list[str]:
        method = "resources/templates/list" if kind == "resourceTemplates" else f"{kind}/list"
        found = self.modern(key, method, path=path)["result"][kind]
        return sorted(one.get("uri") or one.get("uriTemplate") or one["name"] for one in found)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("views")
    servers, config = write_config(folder)
    with run_module_hub(servers, config, agents_env(folder)) as hub:
        hub.wait_connected("files", "vault")
        yield Rig(hub, folder)


# --- every door, every spelling -------------------------------------------------------------------

TOOLS = (
    *("vault.unlock", "mcp_vault_unlock", "vault_unlock", "VAULT.unlock", "vault:unlock"),
    *("files.delete_all", "mcp_files_delete_all", "files_delete_all"),
    *("vault.headed", "mcp_vault_headed", "dragoman_agent_spy", "spy.spy", "spy"),
)
UNKNOWN = "nothing.here"


def call_modern(rig: Rig, name: str) -> Any:
    return rig.modern("bound", "tools/call", {"name": name, "arguments": {}})


def call_view(rig: Rig, name: str) -> Any:
    return rig.modern("bound", "tools/call", {"name": name, "arguments": {}}, "/mcp/v/ide")


def call_owner_in_view(rig: Rig, name: str) -> Any:
    return rig.modern("free", "tools/call", {"name": name, "arguments": {}}, "/mcp/v/ide")


def call_boss(rig: Rig, name: str) -> Any:
    return rig.modern("boss", "tools/call", {"name": name, "arguments": {}})


def call_session(rig: Rig, name: str) -> Any:
    session = wire.Session(f"{rig.hub.url}/mcp", headers=rig.headers("bound"))
    return session.request("tools/call", {"name": name, "arguments": {}})


def call_task(rig: Rig, name: str) -> Any:
    session = wire.Session(f"{rig.hub.url}/mcp", headers=rig.headers("bound"))
    return session.request("tools/call", {"name": name, "arguments": {}, "task": {"ttl": 1000}})


def call_inner(rig: Rig, name: str) -> Any:
    arguments = {"name": name, "arguments": {}}
    return rig.modern("bound", "tools/call", {"name": "call_tool", "arguments": arguments})


def call_rest(rig: Rig, name: str) -> Any:
    path = f"/api/tools/{quote(name, safe='')}/call"
    return wire.post(rig.hub.url + path, {"arguments": {}}, rig.headers("bound")).json()


def get_rest(rig: Rig, name: str) -> Any:
    return wire.get(f"{rig.hub.url}/api/tools/{quote(name, safe='')}", rig.headers("bound")).json()


def send_a2a(rig: Rig, name: str, **where: Any) -> Any:
    message: dict[str, Any] = {"messageId": "1", "role": "ROLE_USER"}
    message |= {"parts": [{"text": "hello"}], "metadata": where or {"skillId": name}}
    headers = {**rig.headers("bound"), "A2A-Version": "1.0"}
    body = wire.request(1, "SendMessage", {"message": message})
    return wire.post(f"{rig.hub.url}/a2a/dragoman", body, headers).json()


def send_default(rig: Rig, name: str) -> Any:
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    body = wire.request(1, "SendMessage", {"message": message, "metadata": {"skillId": name}})
    headers = {**rig.headers("bound"), "A2A-Version": "1.0"}
    return wire.post(f"{rig.hub.url}/a2a", body, headers).json()


def name_agent(rig: Rig, name: str) -> Any:
    return send_a2a(rig, name, agent=name)


def get_card(rig: Rig, name: str) -> Any:
    path = f"/a2a/{quote(name, safe='')}/.well-known/agent-card.json"
    return wire.get(rig.hub.url + path, rig.headers("bound")).body.decode()


def open_agent(rig: Rig, name: str) -> Any:
    path = f"/agents/{quote(name, safe='')}/mcp"
    return rig.modern("bound", "tools/list", path=path)


def get_prompt(rig: Rig, name: str) -> Any:
    return rig.modern("bound", "prompts/get", {"name": name})


def complete(rig: Rig, name: str) -> Any:
    kind = {"type": "ref/prompt", "name": name}
    if ":" in name:
        kind = {"type": "ref/resource", "uri": name}
    argument = {"name": "how", "value": "a"}
    return rig.modern("bound", "completion/complete", {"ref": kind, "argument": argument})


def read_resource(rig: Rig, name: str) -> Any:
    return rig.modern("bound", "resources/read", {"uri": name})


def subscribe(rig: Rig, name: str) -> Any:
    session = wire.Session(f"{rig.hub.url}/mcp", headers=rig.headers("bound"))
    return session.request("resources/subscribe", {"uri": name})


PROMPTS = ("vault.steal", "mcp_vault_steal", "vault_steal", "steal")
ADDRESSES = ("vault://gold", "vault.vault://gold", "vault://box/7", "file:///private",
             "files.file:///private")  # fmt: skip
DOORS: Mapping[Callable[[Rig, str], Any], tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(
        (call_modern, call_view, call_owner_in_view, call_boss, call_session, call_task, call_inner,
         call_rest, get_rest, send_a2a, send_default),
        (TOOLS, UNKNOWN),
    ),
    name_agent: (("spy",), "nobody"),
    get_card: (("spy",), "nobody"),
    open_agent: (("spy",), "nobody"),
    get_prompt: (PROMPTS, UNKNOWN),
    complete: ((*PROMPTS, "vault://box/{number}"), UNKNOWN),
    read_resource: (ADDRESSES, "nothing://here"),
    subscribe: (ADDRESSES, "nothing://here"),
}  # fmt: skip
_CHANGING = re.compile(
    r"\b[0-9a-f]{16,32}\b|[0-9a-f]{8}-[0-9a-f-]{27}|trace [0-9a-f]{8}|\d{4}-\d\d-\d\dT[\d:.]+Z"
)


def normalize(answer: Any, name: str) -> str:
    """The answer without the name that was asked for, and without ids."""
    text = json.dumps(answer, sort_keys=True).replace(json.dumps(name)[1:-1], "NAME")
    return _CHANGING.sub("ID", text)


@pytest.mark.promise("U5")
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_what_a_view_excludes_is_unknown_at_every_door_by_every_name(
    rig: Rig, door: Callable[[Rig, str], Any]
) -> None:
    names, unknown = DOORS[door]
    expected = normalize(door(rig, unknown), unknown)
    if ":" not in unknown and door is complete:
        expected_address = normalize(door(rig, "nothing://here/{x}"), "nothing://here/{x}")
    for name in names:
        found = normalize(door(rig, name), name)
        if door is complete and ":" in name:
            assert found == expected_address, name
        else:
            assert found == expected, name


@pytest.mark.promise("U5")
def test_the_same_doors_work_for_what_the_view_includes(rig: Rig) -> None:
    """Otherwise the test above would prove nothing."""
    for call in (call_modern, call_view, call_owner_in_view, call_session, call_boss):
        assert text_of(call(rig, "files.read")) == "arrived: read", call
    assert text_of(call_modern(rig, "open_file")) == "arrived: read"
    assert call_rest(rig, "files.read")["content"][0]["text"] == "arrived: read"
    assert call_rest(rig, "open_file")["content"][0]["text"] == "arrived: read"
    assert "error" not in send_a2a(rig, "files.read")
    assert "error" not in name_agent(rig, "echo")
    assert '"echo"' in get_card(rig, "echo")
    assert "result" in get_prompt(rig, "files.tidy")
    assert "result" in read_resource(rig, "file:///notes")
    # A principal without a view reaches the rest.
    for name, method in (("vault.unlock", "tools/call"), ("vault.steal", "prompts/get")):
        assert "result" in rig.modern("free", method, {"name": name}), name


@pytest.mark.promise("U5")
def test_a_bound_key_is_listed_its_view_alone(rig: Rig) -> None:
    expected = ["dragoman_agent_echo", "mcp_files_look", "open_file"]
    for key, path in (("bound", "/mcp"), ("bound", "/mcp/v/ide"), ("free", "/mcp/v/ide")):
        assert rig.list_names(key, path=path) == expected, (key, path)
        assert rig.list_names(key, "prompts", path) == ["mcp_files_tidy"]
        assert rig.list_names(key, "resources", path) == ["file:///notes"]
        assert rig.list_names(key, "resourceTemplates", path) == []
    tools = rig.modern("bound", "tools/list")["result"]["tools"]
    assert [one["description"] for one in tools if one["name"] == "open_file"] == ["Opens a file."]
    told = rig.modern("bound", "server/discover")["result"]["instructions"]
    assert "Files are here." in told and "vault" not in told.lower()
    headers = rig.headers("boss")  # roles do not widen it
    for path in (
        *("/api/tools", "/api/mcp/servers", "/api/prompts", "/api/resources", "/api/agents"),
        *("/api/a2a/agents", "/api/views", "/a2a/dragoman/.well-known/agent-card.json"),
        *("/.well-known/agent-card.json", "/api/usage"),
    ):
        answer = wire.get(rig.hub.url + path, headers)
        body = answer.body.decode().lower()
        for word in ("vault", "spy", "delete_all", "ops"):
            assert word not in body, (path, word, body)
    for path in ("/api/pins", "/api/policies", "/api/policy/what?principal=free"):
        assert wire.get(rig.hub.url + path, headers).status in (403, 404), path


@pytest.mark.promise("U5")
def test_unknown_views_and_views_of_others_are_not_found(rig: Rig) -> None:
    for key, name in (("free", "nothing"), ("bound", "nothing"), ("bound", "ops"), ("free", "")):
        for path in (f"/mcp/v/{name}", f"/sse/v/{name}"):
            method = "POST" if path.startswith("/mcp") else "GET"
            answer = wire.http_request(
                method,
                rig.hub.url + path,
                json.dumps(wire.request(1, "ping")).encode() if method == "POST" else b"",
                {**rig.headers(key), "content-type": "application/json",
                 "accept": "text/event-stream, application/json"},
            )  # fmt: skip
            assert answer.status == 404, (key, path, answer.body)
            assert b"there is no such view" in answer.body
    assert wire.post(f"{rig.hub.url}/mcp/v/ide", {}, {}).status == 401


@pytest.mark.promise("U5")
def test_a_session_belongs_to_its_view(rig: Rig) -> None:
    session = wire.Session(f"{rig.hub.url}/mcp/v/ide", headers=rig.headers("free"))
    assert error_kind(session.request("tools/call", {"name": "vault.unlock"})) == "NotFound"
    for path in ("/mcp", "/mcp/v/ops"):
        message = wire.request(9, "tools/list")
        answer = wire.post(rig.hub.url + path, message, session.headers)
        assert answer.status == 404 and b"session not found" in answer.body, path
    other = wire.Session(f"{rig.hub.url}/mcp", headers=rig.headers("free"))
    answer = wire.post(f"{rig.hub.url}/mcp/v/ide", wire.request(9, "ping"), other.headers)
    assert answer.status == 404


@pytest.mark.promise("U5")
def test_the_sse_transport_serves_views(rig: Rig) -> None:
    for path, key in (("/sse/v/ide", "free"), ("/sse", "bound")):
        headers = rig.headers(key)
        with wire.stream("GET", rig.hub.url + path, headers=headers) as stream:
            url = rig.hub.url + stream.next().data
            wire.post(url, wire.request(0, "initialize", wire.initialize_params()), headers)
            stream.next_json()
            wire.post(url, wire.request(1, "tools/list"), headers)
            names = [one["name"] for one in stream.next_json()["result"]["tools"]]
            assert sorted(names) == ["dragoman_agent_echo", "mcp_files_look", "open_file"], path
            wire.post(url, wire.request(2, "tools/call", {"name": "vault.unlock"}), headers)
            assert error_kind(stream.next_json()) == "NotFound"


@pytest.mark.promise("U5")
def test_the_name_of_a_client_chooses_its_view(rig: Rig) -> None:
    meta = {"io.modelcontextprotocol/clientInfo": {"name": "WireCursor-1", "version": "0"}}
    listed = rig.modern("free", "tools/list", {"_meta": meta})["result"]["tools"]
    assert len(listed) == 3
    answer = rig.modern("free", "tools/call", {"name": "vault.unlock", "_meta": meta})
    assert error_kind(answer) == "NotFound"
    params = {**wire.initialize_params(), "clientInfo": {"name": "wirecursor", "version": "0"}}
    url, headers = f"{rig.hub.url}/mcp", rig.headers("free")
    begun = wire.post(url, wire.request(0, "initialize", params), headers)
    assert "vault" not in begun.rpc()["result"]["instructions"]
    headers = {**headers, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
    names = wire.post(url, wire.request(1, "tools/list"), headers).rpc()["result"]["tools"]
    assert len(names) == 3
    # An address is a choice already.
    path = "/mcp/v/ops"
    listed = rig.modern("free", "tools/list", {"_meta": meta}, path)["result"]["tools"]
    assert sorted(one["name"] for one in listed) == [
        "mcp_vault_headed", "mcp_vault_look", "mcp_vault_unlock",
    ]  # fmt: skip


@pytest.mark.promise("U5")
def test_stdio_serves_a_view(rig: Rig) -> None:
    with wire.Stdio([*DRAGOMAN, "mcp", "--home", rig.hub.home, "--view", "ops"]) as client:
        client.initialize()
        names = [one["name"] for one in client.request("tools/list")["result"]["tools"]]
        assert sorted(names) == ["mcp_vault_headed", "mcp_vault_look", "mcp_vault_unlock"]
        assert text_of(client.request("tools/call", {"name": "vault.unlock"})) == "arrived: unlock"
        assert error_kind(client.request("tools/call", {"name": "files.read"})) == "NotFound"
    with wire.Stdio([*DRAGOMAN, "mcp", "--view=nothing", "--home", rig.hub.home]) as client:
        assert client.wait() == 1
        assert 'there is no view "nothing"' in client.stderr


# --- search mode ----------------------------------------------------------------------------------


def find(rig: Rig, query: str, key: str = "searcher", **more: Any) -> list[dict[str, Any]]:
    params = {"name": "find_tools", "arguments": {"query": query, **more}}
    found: list[dict[str, Any]] = json.loads(text_of(rig.modern(key, "tools/call", params)))[
        "tools"
    ]
    return found


def call_found(rig: Rig, name: str, **arguments: Any) -> Any:
    params = {"name": "call_tool", "arguments": {"name": name, "arguments": arguments}}
    return rig.modern("searcher", "tools/call", params)


@pytest.mark.promise("U5")
def test_search_mode_lists_two_tools_and_finds_the_rest(rig: Rig) -> None:
    assert rig.list_names("searcher") == ["call_tool", "find_tools"]
    session = wire.Session(f"{rig.hub.url}/mcp", headers=rig.headers("searcher"))
    listed = session.request("tools/list")["result"]["tools"]
    assert [one["name"] for one in listed] == ["call_tool", "find_tools"]
    assert "files (3), vault (2), actor (1), asking (1)" in listed[1]["description"]
    found = find(rig, "unlock the vault")
    assert found[0]["name"] == "mcp_vault_unlock" and found[0]["inputSchema"] == SCHEMA
    assert text_of(call_found(rig, found[0]["name"], path="x")) == "arrived: unlock"
    answer = session.request(
        "tools/call", {"name": "call_tool", "arguments": {"name": "files.read", "arguments": "{}"}}
    )
    assert text_of(answer) == "arrived: read"


@pytest.mark.promise("U5")
def test_the_tool_inside_is_what_is_checked_and_recorded(rig: Rig) -> None:
    assert text_of(call_found(rig, "mcp_vault_unlock")) == "arrived: unlock"
    last = rig.hub.audit()[-1]
    assert (last["verb"], last["outcome"]) == ("vault.unlock", "completed"), last
    own = [one for one in rig.hub.audit() if one.get("caller") == "key:searcher"]
    assert own and "call_tool" not in json.dumps(own)
    answer = call_found(rig, "vault.unlock", path={"a": 1})
    assert error_kind(answer) == "InvalidInput" and "vault.unlock" in error_text(answer)
    direct = rig.modern(
        "searcher", "tools/call", {"name": "vault.unlock", "arguments": {"path": {"a": 1}}}
    )
    assert normalize(direct, "vault.unlock") == normalize(answer, "vault.unlock")


@pytest.mark.promise("U5")
def test_search_names_nothing_that_the_caller_may_not_call(rig: Rig) -> None:
    for query in ("headed", "vault.headed", "mcp_vault_headed", "region", "spy", "vault", "file"):
        for one in find(rig, query, limit=20):
            assert "headed" not in json.dumps(one) and "spy" not in json.dumps(one), query
    for name in ("vault.headed", "dragoman_agent_spy", "call_tool", "find_tools"):
        found = normalize(call_found(rig, name), name)
        assert found == normalize(call_found(rig, UNKNOWN), UNKNOWN), name
    # A policy hides a tool of the view as well.
    text = (
        '@id("hide") forbid (principal == Hub::User::"key:searcher", action, resource == '
        'Hub::Tool::"vault.unlock");'
    )
    done = rig.hub.post("/api/policies", {"name": "hide", "text": text})
    assert done.get("ok"), done
    try:
        until(lambda: not any("unlock" in json.dumps(one) for one in find(rig, "unlock vault")))
        assert "unlock" not in json.dumps(find(rig, "vault.unlock", limit=20))
        assert error_kind(call_found(rig, "vault.unlock")) == "NotFound"
        listed = rig.modern("searcher", "tools/list")["result"]["tools"]
        assert "vault (1)" in listed[1]["description"]
    finally:
        wire.http_request("DELETE", f"{rig.hub.url}/api/policies/hide", b"", rig.hub.headers)
    until(lambda: any("unlock" in json.dumps(one) for one in find(rig, "unlock vault")))


CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


@pytest.mark.promise("U5")
def test_questions_pass_through_call_tool_in_both_eras(rig: Rig) -> None:
    inner = {"name": "dragoman_agent_asking", "arguments": {"message": "hm"}}
    params = {"name": "call_tool", "arguments": inner}
    meta: dict[str, Any] = {"_meta": {CAPABILITIES: {"elicitation": {"form": {}}}}}
    asked = rig.modern("searcher", "tools/call", {**params, **meta})["result"]
    ((name, question),) = asked["inputRequests"].items()
    assert question["params"]["message"] == "Your name?"
    reply = {"action": "accept", "content": {"reply": "Ann"}}
    more = {"inputResponses": {name: reply}, "requestState": asked["requestState"]}
    done = rig.modern("searcher", "tools/call", {**params, **meta, **more})
    assert text_of(done) == "Hello, Ann!"
    # A handle belongs to the tool inside, so it is not accepted for another one.
    other = {"name": "call_tool", "arguments": {"name": "files.read", "arguments": {}}}
    asked = rig.modern("searcher", "tools/call", {**params, **meta})["result"]
    more = {"inputResponses": {name: reply}, "requestState": asked["requestState"]}
    assert "error" in rig.modern("searcher", "tools/call", {**other, **meta, **more})

    url, headers = f"{rig.hub.url}/mcp", rig.headers("searcher")
    able = {**wire.initialize_params(), "capabilities": {"elicitation": {}}}
    begun = wire.post(url, wire.request(0, "initialize", able), headers)
    headers = {**headers, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
    wire.post(url, wire.notification("notifications/initialized"), headers)
    with wire.stream("POST", url, wire.request(1, "tools/call", params), headers) as stream:
        question = stream.next_json()
        assert question["params"]["message"] == "Your name?"
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": reply}
        assert wire.post(url, answer, headers).status == 202
        assert text_of(stream.next_json()) == "Hello, Ann!"


@pytest.mark.promise("U5")
def test_progress_and_tasks_pass_through_call_tool(rig: Rig) -> None:
    steps = {"do": [["say", "half way"], ["reply", "all done"]]}
    inner = {"name": "dragoman_agent_actor", "arguments": {"message": "x", "data": steps}}
    params = {"name": "call_tool", "arguments": inner}
    session = wire.Session(f"{rig.hub.url}/mcp", headers=rig.headers("searcher"))
    answer = session.post(
        wire.request(5, "tools/call", {**params, "_meta": {"progressToken": "p"}})
    )
    messages = [one for one in answer.messages() if one.get("method") == "notifications/progress"]
    assert any("half way" in json.dumps(one) for one in messages), answer.messages()
    made = session.request("tools/call", {**params, "task": {"ttl": 60_000}})["result"]["task"]
    done = session.request("tasks/result", {"taskId": made["taskId"]})
    assert "all done" in json.dumps(done["result"]["content"])


def test_commands_show_views_and_bind_clients_to_them(rig: Rig) -> None:
    listed = json.loads(rig.hub.command("views", "list", "--json").stdout)
    assert {one["name"]: one["tools"] for one in listed}["ide"] == 3
    shown = rig.hub.command("views", "show", "ide").stdout
    assert "files.read -> open_file" in shown and "vault" not in shown
    cost = json.loads(rig.hub.command("views", "cost", "search", "--json").stdout)
    assert cost["searching"] and 0 < cost["listed_tokens"] < 400
    assert [one["tokens"] for one in cost["list"]] == sorted(
        (one["tokens"] for one in cost["list"]), reverse=True
    )
    assert cost["tokens"] == sum(one["tokens"] for one in cost["list"])
    assert "tokens" in rig.hub.command("views", "cost", "ide").stdout
    assert (
        "wirecursor gets: ide" in rig.hub.command("views", "cost", "--client", "wirecursor").stdout
    )
    missing = rig.hub.command("views", "show", "none")
    assert missing.returncode == 5 and 'there is no view "none"' in missing.stderr
    refused = rig.hub.command("keys", "create", "x", "--view", "idee")
    assert refused.returncode == 7 and 'did you mean "ide"?' in refused.stderr
    keys = json.loads(rig.hub.command("keys", "list", "--json").stdout)
    assert {one["name"]: one["view"] for one in keys}["bound"] == "ide"
    entry = rig.hub.command("install", "cursor", "--view", "ide", "--print").stdout
    assert '"--view", "ide"' in entry


def test_bad_arguments_of_the_two_tools_are_explained(rig: Rig) -> None:
    for name, arguments, problem in (
        ("find_tools", {}, '"query" must be'),
        ("find_tools", {"query": "x", "limit": 0}, '"limit" must be'),
        ("call_tool", {}, '"name" must be'),
        ("call_tool", {"name": "files.read", "arguments": [1]}, '"arguments" must be an object'),
    ):
        answer = rig.modern("searcher", "tools/call", {"name": name, "arguments": arguments})
        assert error_kind(answer) == "InvalidInput" and problem in error_text(answer), answer


FILES_KINDS = ("tools", "prompts", "resources")

# --- live changes ---------------------------------------------------------------------------------


@pytest.mark.promise("U5")
def test_views_change_live_and_clients_learn_of_it(
    hub: Callable[..., RunningHub], tmp_path: Path
) -> None:
    servers, _ = write_config(tmp_path)
    view = '[[views]]\nname = "one"\nservers = ["{}"]\n'
    running = hub(servers, view.format("files"))
    running.wait_connected("files", "vault")
    url = f"{running.url}/mcp/v/one"
    session = wire.Session(url)
    for kind in ("prompts", "resources"):
        session.request(f"{kind}/list")
    session.request("resources/templates/list")
    names = [one["name"] for one in session.request("tools/list")["result"]["tools"]]
    assert sorted(names) == ["mcp_files_delete_all", "mcp_files_look", "mcp_files_read"]
    file = running.home / "config.toml"
    text = file.read_text(encoding="utf-8")
    with wire.stream("GET", url, headers=session.headers) as stream:
        # A change outside of the view is not announced to its clients.
        changed = {**VAULT, "tools": [build_tool("more")]}
        (tmp_path / "vault.json").write_text(json.dumps(changed), encoding="utf-8")
        running.call("vault.look")
        until(lambda: "mcp_vault_more" in json.dumps(running.rpc("tools/list")))
        file.write_text(text.replace('["files"]', '["vault"]'), encoding="utf-8")
        seen = {stream.next_json()["method"] for _ in range(3)}
        assert seen == {f"notifications/{kind}/list_changed" for kind in FILES_KINDS}
        names = [one["name"] for one in session.request("tools/list")["result"]["tools"]]
        assert names == ["mcp_vault_look", "mcp_vault_more"]
    assert error_kind(session.request("tools/call", {"name": "files.read"})) == "NotFound"
    # Tags select without a restart of the server.
    tagged = text.replace('name = "vault"', 'name = "vault"\ntags = ["gold"]')
    tagged = tagged.replace('servers = ["files"]', 'tags = ["gold"]')
    file.write_text(tagged.replace('tags = ["gold"]', 'tags = ["tin"]', 1), encoding="utf-8")
    until(lambda: len(session.request("tools/list")["result"]["tools"]) == 0)
    file.write_text(tagged, encoding="utf-8")
    until(lambda: len(session.request("tools/list")["result"]["tools"]) == 2)
    assert running.log().count('server "vault" is connected') == 1
    file.write_text(text.replace(view.format("files"), ""), encoding="utf-8")
    until(lambda: session.post(wire.request(5, "ping")).status == 404)
    file.write_text(text.replace('name = "one"', 'name = "one"\nserverz = []'), encoding="utf-8")
    until(lambda: "serverz" in (running.api("/api/status")["config_problem"] or ""))
