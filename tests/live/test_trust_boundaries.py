"""What does not cross the hub: clients' credentials, URLs of questions, commands, proxy headers."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.bridge_fixture import external
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of, until
from tests.live.recording_agents import RecordingAgent, run_agents
from tests.peers import wire
from tests.peers.process import server_entry

pytestmark = pytest.mark.promise("N1")

API_KEY = "canary-of-the-configured-key"
CONFIG = f'api_key = "{API_KEY}"\n[a2a]\nenabled = true\n'
CREDENTIALS = ("Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "Forwarded")
SCHEMA = {"type": "object"}


class RecordingServer(http.server.ThreadingHTTPServer):
    """An MCP server of 2025-11-25 that keeps everything it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[str] = []
        self.question_url = ""

    def answer(self, message: Any) -> dict[str, Any]:
        tools = [{"name": name, "inputSchema": SCHEMA} for name in ("echo", "ask")]
        match message["method"]:
            case "initialize":
                info = {"name": "recorder", "version": "0"}
                hello = {"protocolVersion": "2025-11-25", "serverInfo": info}
                return {"result": {**hello, "capabilities": {"tools": {}}}}
            case "tools/list":
                return {"result": {"tools": tools}}
            case "tools/call" if message["params"]["name"] == "ask":
                asked = {"mode": "url", "elicitationId": "1", "url": self.question_url}
                data = {"elicitations": [{**asked, "message": "Log in."}]}
                return {"error": {"code": -32042, "message": "log in first", "data": data}}
            case "tools/call":
                return {"result": {"content": [{"type": "text", "text": "done"}]}}
        return {"error": {"code": -32601, "message": "unknown method"}}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: RecordingServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append(f"{self.path}\n{self.headers}\n{body.decode()}")
        message = json.loads(body)
        reply = b""
        if "id" in message:
            envelope = {"jsonrpc": "2.0", "id": message["id"], **self.server.answer(message)}
            reply = json.dumps(envelope).encode()
        self.send_response(200 if reply else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *args: object) -> None:
        pass


class Rig:
    def __init__(self, hub: RunningHub, server: RecordingServer, agent: RecordingAgent) -> None:
        self.hub = hub
        self.server = server
        self.agent = agent
        made = hub.command("keys", "create", "guest")
        assert made.returncode == 0, made.stderr
        self.guest = {"Authorization": f"Bearer {made.stdout.strip()}"}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    agent = RecordingAgent("ops", "deploy")
    with RecordingServer() as server, run_agents(agent):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/mcp"
            config = CONFIG + external("ops", agent.url)
            with run_module_hub([server_entry("rec", "http", url)], config) as hub:
                hub.wait_connected("rec")
                until(lambda: b"ops.deploy" in hub.get("/api/tools").body)
                yield Rig(hub, server, agent)
        finally:
            server.shutdown()
            thread.join(60)


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_credentials_of_a_client_do_not_reach_servers_or_agents(rig: Rig, era: str) -> None:
    key = rig.guest["Authorization"].removeprefix("Bearer ")
    more = {name: f"canary-{name}" for name in CREDENTIALS if name != "Authorization"}
    headers = {**rig.guest, **more}
    for tool in ("rec.echo", "ops.deploy"):
        params = {"name": tool, "arguments": {"text": "x"}}
        if era == "modern":
            answer = wire.modern_request(rig.hub.mcp_url, "tools/call", params, headers).rpc()
        else:
            answer = wire.Session(rig.hub.mcp_url, headers=headers).request("tools/call", params)
        assert "result" in answer and not answer["result"].get("isError"), answer
    received = "".join(rig.server.received) + rig.agent.received.decode()
    assert "tools/call" in received and "SendMessage" in received
    assert "canary" not in received and key not in received and key[4:] not in received


def test_url_of_a_question_is_shown_and_not_fetched(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        rig.server.question_url = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/login"
        params = {"name": "rec.ask", "arguments": {}}
        asked = wire.modern_request(rig.hub.mcp_url, "tools/call", params, rig.guest).rpc()
        assert rig.server.question_url in json.dumps(asked)
        assert text_of(rig.hub.call("rec.echo")) == "done"
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


def test_api_starts_no_program_and_a_restart_needs_admin(rig: Rig) -> None:
    marker = rig.hub.home / "started"
    transport = {"type": "stdio", "command": "touch", "args": [str(marker)]}
    entry = {"name": "mine", "transport": transport}
    before = rig.hub.api("/api/mcp/servers")
    for headers in (rig.guest, rig.hub.headers):
        for method, path in (("POST", ""), ("PUT", "/mine"), ("PATCH", "/rec"), ("POST", "/mine")):
            url = f"{rig.hub.url}/api/mcp/servers{path}"
            body = json.dumps(entry).encode()
            sent = {**headers, "Content-Type": "application/json"}
            status = wire.http_request(method, url, body, sent).status
            assert status in ((400, 403) if (method, path) == ("POST", "") else (404, 405)), path
    program = {"name": "mine", "command": "touch", "args": [str(marker)]}
    for headers in (rig.guest, rig.hub.headers):  # only the owner, on the socket, may add one
        assert wire.post(f"{rig.hub.url}/api/mcp/servers", program, headers).status == 403
    for path in ("/api/mcp/servers/rec/restart", "/api/reload"):
        assert wire.post(rig.hub.url + path, entry, rig.guest).status == 403, path
    after = rig.hub.api("/api/mcp/servers")
    assert [one["name"] for one in after["configured"]] == [
        one["name"] for one in before["configured"]
    ]
    assert not marker.exists()


def test_headers_of_proxies_have_no_effect(rig: Rig) -> None:
    local = {
        "X-Forwarded-For": "127.0.0.1",
        "X-Real-IP": "127.0.0.1",
        "Forwarded": "for=127.0.0.1;host=evil.example;proto=https",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-User": "owner",
        "X-Remote-User": "owner",
        "X-Original-URL": "/healthz",
        "X-Rewrite-URL": "/healthz",
        "X-HTTP-Method-Override": "GET",
    }
    for path in ("/api/tools", "/api/pins", "/a2a/agents"):
        answer = wire.get(rig.hub.url + path, local)
        assert answer.status == wire.get(rig.hub.url + path).status
        assert answer.body == wire.get(rig.hub.url + path).body
    assert wire.get(f"{rig.hub.url}/api/tools", local).status == 401
    assert wire.get(f"{rig.hub.url}/api/pins", {**rig.guest, **local}).status == 403
    card = f"{rig.hub.url}/.well-known/agent-card.json"
    assert b"evil.example" not in wire.get(card, local).body
    assert wire.get(card, local).json()["url"].startswith(rig.hub.url)
