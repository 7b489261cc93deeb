"""The examples of the founding documents, typed in as they stand, with an agent of a manifest.

Product names are the hub's (`dragoman_agent_…`), and so are the addresses on cards, which name the
agent: everything else is what the documents print.
"""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import process, wire

JSON_AND_EVENTS = {"Accept": "application/json, text/event-stream"}
CODER = """{
  "name": "openstarry-coder",
  "version": "1.0.0",
  "description": "Reads files",
  "model": { "provider": "script" },
  "script": [{ "say": "done" }],
  "capabilities": { "mcp_servers": ["fs", "git", "admin"] },
  "mcp": {
    "expose_tools": ["fs:read_file", "git:status"], // Only expose these two
    "private_tools": ["admin:reset"] // Hide administrative tools
  }
}"""
ONE_TOOL = """\
import sys
from mcp.server import MCPServer

def read_file(path: str) -> str:
    return {"README.md": "# Project Readme..."}[path]

def status() -> str:
    return "clean"

def reset() -> str:
    return "reset"

server = MCPServer("tools")
server.add_tool(globals()[sys.argv[1]], structured_output=False)
server.run("stdio")
"""
REVIEWER = """\
description = "Reviews code for bugs, security issues, and style"
version = "0.1.0"
[model]
provider = "script"
[capabilities]
tools = ["file_read"]
[[script]]
when = "Python function"
say = "I found 3 potential security issues..."
[[script]]
say = "I found 2 potential issues..."
"""
INVOKE = """\
steps:
- id: run-code-review
  type: action
  nodeId: agent.invoke
  config:
    agentCardId: "{{ nodes.agent-ref.agentCardId }}"
    skillId: review
    args:
      prUrl: "{{ $trigger.prUrl }}"
"""
DISPATCH = """\
steps:
- id: dispatch-qa
  type: action
  nodeId: agent.dispatch
  config:
    workType: qa
    description: Run integration tests for the new feature
    requiredSkills:
    - typescript
"""
DEPLOY_SCHEMA = {
    "type": "object",
    "properties": {"projectId": {"type": "string"}, "branch": {"type": "string"}},
    "required": ["projectId"],
}
DEPLOY = {"projectId": "proj_abc", "branch": "main"}


class VercelOps(http.server.ThreadingHTTPServer):
    """An agent of 0.3 that answers in the ways that the document lists, by the branch."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), VercelHandler)
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        """The headers and the body of each message."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/vercel-ops"


class VercelHandler(http.server.BaseHTTPRequestHandler):
    server: VercelOps

    def log_message(self, *arguments: Any) -> None: ...

    def do_GET(self) -> None:
        def skill(id: str, *tags: str, **more: Any) -> dict[str, Any]:
            return {"id": id, "name": id, "description": f"{id} it", "tags": list(tags), **more}

        card = {
            "protocolVersion": "0.3.0",
            "name": "Vercel Ops",
            "description": "Deploys and reviews",
            "url": self.server.url,
            "version": "1",
            "capabilities": {},
            "defaultInputModes": ["application/json"],
            "defaultOutputModes": ["application/json"],
            "skills": [
                skill("deploy", inputSchema=DEPLOY_SCHEMA),
                skill("review"),
                skill("typescript", "qa"),
            ],
        }
        self.reply(card if self.path.endswith(".json") else None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(
            ({name.lower(): value for name, value in self.headers.items()}, body)
        )
        parts = body["params"].get("message", {}).get("parts", [])
        branch = next((one["data"].get("branch") for one in parts if one["kind"] == "data"), "")
        text = {"kind": "text", "text": "deployed"}
        data = {"kind": "data", "data": {"url": "https://proj.example.com", "ready": True}}
        if body["method"] != "message/send":
            answer: dict[str, Any] = {"error": {"code": -32001, "message": "no such task"}}
        else:
            state = "failed" if branch == "broken" else "completed"
            shown = {"text": [text], "both": [text, data]}.get(branch, [data])
            task = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": state}}
            answer = {"result": {**task, "artifacts": [{"artifactId": "a", "parts": shown}]}}
        self.reply({"jsonrpc": "2.0", "id": body["id"], **answer})

    def reply(self, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def vercel_ops() -> Iterator[VercelOps]:
    server = VercelOps()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(60)


@pytest.fixture(scope="module")
def running(
    vercel_ops: VercelOps, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningHub]:
    """A hub with servers, an external agent, the two workflows and the agent of the example."""
    config = f"""
[a2a]
enabled = true
listen_path = "/a2a"

[[a2a.external_agents]]
name = "Vercel Ops"
url = "{vercel_ops.url}"
token = "env:DRAGOMAN_AGENT_VERCEL"
"""
    script = tmp_path_factory.mktemp("server") / "one_tool.py"
    script.write_text(ONE_TOOL, encoding="utf-8")
    tools = {"fs": "read_file", "git": "status", "admin": "reset"}
    servers = [process.server_entry("github", "sdk_server")]
    for name, tool in tools.items():
        servers.append(process.server_entry(name, "stdio", sys.executable, script, tool))
    with run_module_hub(servers, config, {"DRAGOMAN_AGENT_VERCEL": "resolved-token"}) as hub:
        write(hub.home / "workflows" / "invoke.yaml", INVOKE)
        write(hub.home / "workflows" / "dispatch.yaml", DISPATCH)
        write(hub.home / "agents" / "code-reviewer" / "agent.toml", REVIEWER)
        hub.wait_connected("github", *tools)
        until(lambda: hub.api("/.well-known/agent.json")["name"] == "code-reviewer")
        until(lambda: "error" not in hub.call("vercel_ops.deploy", DEPLOY))
        yield hub


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)


def send_to(hub: RunningHub, path: str, body: Any) -> wire.Answer:
    return wire.post(f"{hub.url}{path}", body, JSON_AND_EVENTS)


def deploy(hub: RunningHub, branch: str) -> Any:
    arguments = {"projectId": "proj_abc", "branch": branch}
    return hub.call("vercel_ops.deploy", arguments, era="legacy")


# --- agent cards and tasks --------------------------------------------------------------------


@pytest.mark.promise("I1", "I2")
def test_the_card_of_the_only_agent(running: RunningHub) -> None:
    card = running.api("/.well-known/agent.json")
    assert card["name"] == "code-reviewer"
    assert card["description"] == "Reviews code for bugs, security issues, and style"
    assert card["url"] == f"{running.url}/a2a/code-reviewer"
    assert card["version"] == "0.1.0"
    assert card["capabilities"]["streaming"] is True
    assert card["capabilities"]["stateTransitionHistory"] is True
    assert {"id": "file_read", "name": "file read", "tags": ["tool"], "examples": []}.items() <= (
        card["skills"][0].items()
    )
    assert card["defaultInputModes"][0] in ("text", "text/plain")
    assert card["defaultOutputModes"][0] in ("text", "text/plain")


@pytest.mark.promise("J1")
def test_the_list_of_agents(running: RunningHub) -> None:
    listed = running.api("/a2a/agents")
    assert listed["total"] == len(listed["agents"])
    first = listed["agents"][0]
    assert first["name"] == "code-reviewer"
    assert {"url", "version", "capabilities", "skills", "defaultInputModes"} <= first.keys()


@pytest.mark.promise("J2", "J4", "J5")
def test_tasks_as_they_are_sent_polled_and_cancelled(running: RunningHub) -> None:
    user = {
        "role": "user",
        "parts": [{"type": "text", "text": "Review this code for security issues"}],
    }
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tasks/send",
        "params": {"message": user, "sessionId": "optional-session-id"},
    }
    task = send_to(running, "/a2a/tasks/send", body).json()
    agent = {"role": "agent", "parts": [{"type": "text", "text": "I found 2 potential issues..."}]}
    assert {
        "sessionId": "optional-session-id",
        "status": "completed",
        "messages": [user, agent],
        "artifacts": [],
    }.items() <= task.items()
    polled = running.api(f"/a2a/tasks/{task['id']}")
    assert (polled["id"], polled["status"]) == (task["id"], "completed")
    unknown = "/a2a/tasks/550e8400-e29b-41d4-a716-446655440000"
    assert running.get(unknown).status == 404
    assert send_to(running, f"{unknown}/cancel", {}).status == 404
    assert send_to(running, f"/a2a/tasks/{task['id']}/cancel", {}).status >= 400  # it has ended


# --- MCP over HTTP and stdio ----------------------------------------------------------------------


@pytest.mark.promise("F3", "F6", "G1")
def test_the_handshake_and_the_call_of_an_agent(running: RunningHub) -> None:
    handshake = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2024-11-05",
            "capabilities": {},
            "clientInfo": {"name": "cursor", "version": "1.0"},
        },
    }
    result = send_to(running, "/mcp", handshake).json()["result"]
    assert result["protocolVersion"] == "2024-11-05"
    assert "tools" in result["capabilities"]
    call = {
        "jsonrpc": "2.0",
        "id": 3,
        "method": "tools/call",
        "params": {
            "name": "dragoman_agent_code_reviewer",
            "arguments": {"message": "Review this Python function for security issues..."},
        },
    }
    answered = send_to(running, "/mcp", call).json()
    content, *more = answered["result"]["content"]
    assert content == {"type": "text", "text": "I found 3 potential security issues..."}
    # How the conversation goes on, for the model alone.
    assert all(one["annotations"] == {"audience": ["assistant"]} for one in more)
    assert answered["id"] == 3
    unknown = {"jsonrpc": "2.0", "id": 4, "method": "nope"}
    assert send_to(running, "/mcp", unknown).json()["error"]["code"] == -32601


@pytest.mark.promise("F3", "F4", "F5")
def test_framed_messages_over_stdio(running: RunningHub) -> None:
    with running.relay() as client:
        client.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}, "lsp")
        assert client.read()["result"]["serverInfo"]["name"] == "dragoman"
        client.send({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, "lsp")
        names = [tool["name"] for tool in client.read()["result"]["tools"]]
        assert "dragoman_agent_code_reviewer" in names
        assert all(name.startswith("dragoman_agent_") for name in names)  # and no other tools
        large = {
            "jsonrpc": "2.0",
            "id": 3,
            "method": "tools/list",
            "params": {"x": "y" * 11_000_000},
        }
        client.send(large, "lsp")
        assert "error" in client.read()
        client.send({"jsonrpc": "2.0", "id": 4, "method": "ping"}, "lsp")
        assert client.read() == {"jsonrpc": "2.0", "id": 4, "result": {}}


@pytest.mark.promise("B3", "B4", "G3")
def test_the_list_of_servers(running: RunningHub) -> None:
    listed = running.api("/api/mcp/servers")
    configured = next(one for one in listed["configured"] if one["name"] == "github")
    assert configured["transport"]["type"] == "stdio"
    assert {"timeout_secs", "env"} <= configured.keys()
    connected = next(one for one in listed["connected"] if one["name"] == "github")
    assert connected["connected"] is True
    assert connected["tools_count"] == len(connected["tools"]) > 0
    for tool in connected["tools"]:
        assert tool["name"].startswith("mcp_github_")
        assert tool["description"].startswith("[MCP:github] ")


@pytest.mark.promise("Q1", "Q2", "Q3")
def test_an_agent_exposes_the_tools_that_its_manifest_names(running: RunningHub) -> None:
    folder = running.home / "agents" / "openstarry-coder"
    write(folder / "agent.json", CODER)
    until(lambda: "openstarry-coder" in json.dumps(running.api("/a2a/agents")))
    try:
        path = "/agents/openstarry-coder/mcp"
        handshake = wire.request(1, "initialize", wire.initialize_params("2024-11-05"))
        result = send_to(running, path, handshake).json()["result"]
        assert result["protocolVersion"] == "2024-11-05"
        assert result["capabilities"]["tools"] == {"listChanged": True}
        assert result["capabilities"]["resources"]["listChanged"] is True
        assert {"name": "openstarry-coder", "version": "1.0.0"}.items() <= (
            result["serverInfo"].items()
        )
        call = {
            "jsonrpc": "2.0",
            "method": "tools/call",
            "params": {"name": "fs:read_file", "arguments": {"path": "README.md"}},
            "id": 1,
        }
        content = [{"type": "text", "text": "# Project Readme..."}]
        answered = send_to(running, path, call).json()
        assert answered["result"]["content"] == content, answered
        hidden = {**call, "params": {"name": "admin:reset", "arguments": {}}}
        assert send_to(running, path, hidden).json()["error"]["code"] == -32602
    finally:
        (folder / "agent.json").unlink()
        until(lambda: "openstarry-coder" not in json.dumps(running.api("/a2a/agents")))


# --- the bridge -----------------------------------------------------------------------------------


@pytest.mark.promise("R1", "R2")
def test_skills_of_a_registered_agent_are_tools(running: RunningHub) -> None:
    tools = {one["name"]: one for one in running.rpc("tools/list")["result"]["tools"]}
    tool = tools["vercel_ops.deploy"]
    assert tool["description"].startswith("Invokes the deploy skill on remote A2A agent Vercel Ops")
    assert tool["inputSchema"] == DEPLOY_SCHEMA
    old_name = running.call("a2a_vercel_ops_deploy", DEPLOY)["result"]
    assert old_name["structuredContent"]["ready"] is True
    missing = running.call("vercel_ops.deploy", {"branch": "main"})
    assert "projectId" in json.dumps(missing)


@pytest.mark.promise("R3", "L1", "Q6")
def test_the_message_that_a_skill_is_called_with(
    running: RunningHub, vercel_ops: VercelOps
) -> None:
    deploy(running, "main")
    headers, body = vercel_ops.requests[-1]
    assert headers["authorization"] == "Bearer resolved-token"
    assert headers["user-agent"].startswith("Dragoman/") and headers["user-agent"].endswith(" A2A")
    assert "x-openstarry-trace-id" in headers
    assert body["method"] == "message/send" and body["id"] > 1_700_000_000_000
    params = body["params"]
    assert params["message"]["skill"] == {"skillId": "deploy"}
    assert params["message"]["parts"] == [{"kind": "data", "data": DEPLOY}]
    assert params["correlationId"] == params["taskId"]
    assert params["taskId"].startswith("a2a-")


@pytest.mark.promise("R4", "R6")
def test_the_result_of_each_kind_of_response(running: RunningHub) -> None:
    single = deploy(running, "main")["result"]
    assert single["structuredContent"] == {"url": "https://proj.example.com", "ready": True}
    assert deploy(running, "text")["result"]["content"] == [{"type": "text", "text": "deployed"}]
    both = json.dumps(deploy(running, "both")["result"])
    assert "deployed" in both and "https://proj.example.com" in both
    assert deploy(running, "broken")["error"]["code"] == -32204


@pytest.mark.promise("R12", "R13", "R14")
def test_workflows_that_name_an_agent_and_let_one_be_chosen(running: RunningHub) -> None:
    until(lambda: running.command("workflows", "check").returncode == 0)
    chosen = ["prUrl=https://git.example.com/1", "--agent", "agent-ref=Vercel Ops"]
    invoked = running.command("workflows", "run", "invoke", *chosen, "--follow")
    assert invoked.returncode == 0, invoked.stdout + invoked.stderr
    dispatched = running.command("workflows", "run", "dispatch", "--follow")
    assert dispatched.returncode == 0, dispatched.stdout + dispatched.stderr
    listed = running.api("/api/a2a/dispatches")
    routed = next(
        one["dispatchId"]
        for one in listed.get("dispatches") or listed["items"]
        if "routed" in json.dumps(one)
    )
    decision = running.api(f"/api/a2a/dispatches/{routed}/decision")
    assert decision["candidates"]
