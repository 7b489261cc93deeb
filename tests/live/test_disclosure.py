"""What the hub tells, and to whom: secrets are put wherever one can be, everything is made to fail,
and then every output is searched. The hub, its counterparts and its files are real."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from google.protobuf.json_format import ParseDict
from tests.live.a2a_hub import BINDINGS, SEND
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until, wait_failure_reason
from tests.peers import wire
from tests.peers.leaky_server import ESCAPES, FORGED
from tests.peers.process import server_entry, toml

OWNER_KEY = "a-key-that-is-long-enough"
SLOTS = (
    *("path", "query", "header", "argument", "variable", "resource", "userinfo", "tok"),
    *("agent", "token", "location", "refused", "passed", "hook", "hook_scheme"),
)
SECRET = {slot: f"c4N{number:02}{slot}7f3A9b2c1D" for number, slot in enumerate(SLOTS)}
HOOK = {
    "id": "h",
    "url": f"http://127.0.0.1:1/{SECRET['hook']}",
    "token": SECRET["hook"],
    "authentication": {
        "scheme": "Bearer",
        "schemes": ["Bearer"],
        "credentials": SECRET["hook_scheme"],
    },
}
HOOKS_BY_BINDING = {
    "0.3-rpc": "pushNotificationConfig",
    "0.3-rest": "pushNotification",
    "1.0-rpc": "taskPushNotificationConfig",
    "1.0-rest": "taskPushNotificationConfig",
}
MODES = ("ok", "page", "error", "html", "close", "chunks", "redirect", "hang")


class Counterpart:
    """An MCP server and an A2A agent behind one address that holds a key. The arguments of a call,
    or the text of a message, say how it fails; what it says repeats all that it was sent."""

    def __init__(self, port: int) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.over = threading.Event()

    def card(self) -> dict[str, Any]:
        url = f"{self.origin}/{SECRET['agent']}/a2a"
        place = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        skill = {"id": "work", "name": "work", "description": ESCAPES, "tags": []}
        return {
            "name": "keyed",
            "description": f"An agent behind a key. {ESCAPES}",
            "version": "1",
            "supportedInterfaces": [place],
            "capabilities": {},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [skill],
        }

    def result(self, method: str) -> Any:
        if method == "initialize":
            about = {"name": "keyed", "version": "1"}
            said = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            return {**said, "serverInfo": about}
        if method == "tools/list":
            return {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
        if method == "tools/call":
            return {"content": [{"type": "text", "text": "done"}]}
        if method == "SendMessage":
            return {"message": {"messageId": "1", "role": "ROLE_AGENT", "parts": [{"text": "ok"}]}}
        return None


@contextmanager
def counterpart() -> Iterator[Counterpart]:
    class Served(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path.endswith("/.well-known/agent-card.json"):
                self._reply(200, made.card())
            else:
                self._page(404)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            method, params = asked.get("method", ""), asked.get("params") or {}
            if "id" not in asked:
                self._reply(202, None)
                return
            said = json.dumps(params.get("arguments") or params.get("message", {}).get("parts"))
            mode = next((mode for mode in MODES if f'"{mode}"' in said), "ok")
            self._act(mode, asked["id"], method)

        def _act(self, mode: str, id: Any, method: str) -> None:
            result = made.result(method)
            head = {"jsonrpc": "2.0", "id": id}
            if mode == "page":
                self._page(500)
            elif mode == "html":
                self._send(200, "text/html", b"<p>hello</p>")
            elif mode == "error":
                self._reply(200, {**head, "error": {"code": -32000, "message": self._heard()}})
            elif mode == "close":
                self.close_connection = True
            elif mode == "chunks":
                self.wfile.write(b"HTTP/1.1 200 -\r\ntransfer-encoding: chunked\r\n\r\nnone\r\n")
                self.close_connection = True
            elif mode == "redirect":
                self.send_response(307)
                secret = SECRET["location"]
                self.send_header("location", f"http://192.168.7.7/{secret}?key={secret}")
                self.send_header("content-length", "0")
                self.end_headers()
            elif mode == "hang":
                made.over.wait(60)
                self.close_connection = True
            elif result is None:
                code = -32001 if method == "GetTask" else -32601
                self._reply(200, {**head, "error": {"code": code, "message": "not found"}})
            else:
                self._reply(200, {**head, "result": result})

        def _heard(self) -> str:
            return f"Cannot {self.command} {self.path} with {dict(self.headers)}"

        def _page(self, status: int) -> None:
            self._send(status, "text/html", self._heard().encode())

        def _reply(self, status: int, value: Any) -> None:
            data = b"" if value is None else json.dumps(value).encode()
            self._send(status, "application/json", data)

        def _send(self, status: int, kind: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Drops log output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    server.daemon_threads = True
    made = Counterpart(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        server.server_close()
        thread.join(60)


def _agent_entry(name: str, url: str, **keys: Any) -> str:
    entry = {"name": name, "url": url, **keys}
    return "\n".join(["[[a2a.external_agents]]", *(f"{k} = {toml(v)}" for k, v in entry.items())])


@pytest.fixture(scope="module")
def keyed() -> Iterator[Counterpart]:
    with counterpart() as made:
        yield made


@pytest.fixture(scope="module")
def hub(keyed: Counterpart) -> Iterator[RunningHub]:
    path, query = SECRET["path"], SECRET["query"]
    headers = {"X-Key": SECRET["header"], "Authorization": "Bearer ${VARIABLE}"}
    transport = {"headers": headers}
    servers = [
        server_entry("told", "leaky_server", "--token", SECRET["argument"], env=["VARIABLE"]),
        server_entry(
            "keyed",
            "http",
            f"{keyed.origin}/{path}/mcp?key={query}",
            transport=transport,
            timeout_secs=0.5,
        ),
        server_entry("gone", "http", f"http://127.0.0.1:1/{path}/mcp?key={query}"),
        server_entry("user", "http", f"http://me:{SECRET['userinfo']}@127.0.0.1:1/mcp"),
    ]
    agents = [
        _agent_entry(
            "keyed agent", f"{keyed.origin}/{SECRET['agent']}", token="env:TOKEN", timeout_secs=0.5
        ),
        _agent_entry("gone agent", f"http://127.0.0.1:1/{SECRET['agent']}"),
    ]
    config = f'api_key = "{OWNER_KEY}"\n[bridge]\nprobe_secs = 600\n[a2a]\nenabled = true\n'
    config += 'push_attempts = 1\npush_private = true\ngrpc_port = 0\n[mcp]\nstdio_expose = ["*"]\n'
    config += "\n".join(agents)
    secrets = {"VARIABLE": SECRET["variable"], "TOKEN": SECRET["token"]}
    with run_module_hub(servers, config, secrets) as running:
        running.wait_connected("told", "keyed")
        for name in ("gone", "user"):
            wait_failure_reason(running, name)
        agents_path = "/api/a2a/agents"
        until(lambda: running.api(f"{agents_path}/keyed%20agent")["tools"])
        until(lambda: running.api(f"{agents_path}/gone%20agent")["reason"])
        yield running


def key_of(hub: RunningHub, name: str, *options: str) -> dict[str, str]:
    made = hub.command("keys", "create", name, *options)
    assert made.returncode == 0, made.stderr
    return {"Authorization": f"Bearer {made.stdout.strip()}"}


def _provoke(hub: RunningHub, key: dict[str, str]) -> list[str]:
    """All that an ordinary caller hears while everything fails in every way."""

    def call(tool: str, arguments: dict[str, Any]) -> str:
        url = f"{hub.url}/api/tools/{quote(tool, safe='')}/call"
        return wire.post(url, {"arguments": arguments}, key).body.decode()

    def rpc(method: str, params: dict[str, Any]) -> str:
        return wire.modern_request(hub.mcp_url, method, params, key, 20).body.decode()

    def send(agent: str, mode: str) -> str:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": mode}]}
        asked = wire.request(1, "SendMessage", {"message": message})
        headers = {"A2A-Version": "1.0", **key}
        return wire.post(f"{hub.url}/a2a/{quote(agent)}", asked, headers).body.decode()

    work: list[Callable[[], str]] = []
    for mode in MODES:
        params = {"name": "keyed.t", "arguments": {"mode": mode}}
        work.append(partial(call, "keyed.t", {"mode": mode}))
        work.append(partial(rpc, "tools/call", params))
        work.append(partial(send, "keyed agent", mode))
        work.append(partial(call, "keyed_agent.work", {"message": mode}))
    work += [partial(call, "gone.t", {}), partial(send, "gone agent", "ok")]
    reads = ("db://listed", f"db://{SECRET['resource']}", f"none:{SECRET['resource']}")
    work += [partial(rpc, "resources/read", {"uri": uri}) for uri in reads]
    with ThreadPoolExecutor(8) as pool:
        received = list(pool.map(lambda one: one(), work))
    # What a caller sent itself comes back to it alone.
    return [text.replace(SECRET["resource"], "(sent)") for text in received]


HELD: Mapping[str, set[str]] = {
    "config.toml": {"path", "query", "header", "argument", "userinfo", "agent", "owner key"},
    "registry.db": {"agent"},
    "pins.db": {"agent"},
    "tasks.db": {"passed", "hook", "hook_scheme"},
}
"""The files that hold secrets, and which: what the operator wrote, the URL in an agent's card, the
messages and webhooks of A2A tasks, which are delivered later. No other file has any."""


def _call_everywhere(hub: RunningHub, key: dict[str, str]) -> None:
    """Calls a tool at every entry point, with a secret as its argument, and for A2A with a webhook
    that needs credentials."""
    arguments = {"mode": SECRET["passed"]}
    params = {"name": "keyed.t", "arguments": arguments}
    with hub.relay() as relay:
        relay.initialize()
        assert "result" in relay.request("tools/call", params)
    assert "result" in wire.Session(hub.mcp_url, headers=key).request("tools/call", params)
    assert "result" in wire.modern_request(hub.mcp_url, "tools/call", params, key).rpc()
    with wire.stream("GET", f"{hub.url}/sse", headers=key) as stream:
        place = hub.url + stream.next().data
        wire.post(place, wire.request(1, "initialize", wire.initialize_params()), key)
        stream.next_json()
        wire.post(place, wire.request(2, "tools/call", params), key)
        assert "result" in stream.next_json()
    done = hub.command("call", "keyed.t", f"mode={SECRET['passed']}")
    assert done.returncode == 0, done.stderr
    for binding in BINDINGS:
        sent = binding.params(arguments)
        sent["message"]["metadata"] = {"skillId": "keyed.t"}
        if binding.version == "0.1":
            sent["pushNotification"] = HOOK
        else:
            sent["configuration"] = {HOOKS_BY_BINDING[str(binding)]: HOOK}
        task = binding.task(binding.ask(hub, SEND, sent, headers=key).value)
        reached = [binding.state(word) for word in ("completed", "working")]
        assert task["status"]["state"] in reached, task
    message = {"messageId": "m", "role": "ROLE_USER", "metadata": {"skillId": "keyed.t"}}
    asked: dict[str, Any] = {"message": {**message, "parts": [{"data": arguments}]}}
    asked["configuration"] = {HOOKS_BY_BINDING["1.0-rpc"]: HOOK}
    with grpc.insecure_channel(f"127.0.0.1:{hub.api('/api/status')['agents']['grpc_port']}") as to:
        metadata = (("authorization", key["Authorization"]), ("a2a-version", "1.0"))
        request = ParseDict(asked, pb.SendMessageRequest(), ignore_unknown_fields=True)
        answer = A2AServiceStub(to).SendMessage(request, metadata=metadata, timeout=60)
        assert answer.task.status.state == pb.TASK_STATE_COMPLETED, answer
    # Each tells that its webhook was not delivered.
    until(lambda: len(re.findall("the webhook at .* was abandoned", hub.log())) == 6)


def _searched(views: dict[str, str], key: dict[str, str]) -> dict[str, set[str]]:
    """Which secrets are in which view, without those that a file must hold."""
    secrets = {**SECRET, "owner key": OWNER_KEY, "key": key["Authorization"].split()[1]}
    found = {
        view: {slot for slot, secret in secrets.items() if secret in text}
        - HELD.get(view.removesuffix("-wal"), set())
        for view, text in views.items()
    }
    return {view: slots for view, slots in found.items() if slots}


def test_no_secret_appears_in_any_output(hub: RunningHub) -> None:
    key = key_of(hub, "ann")
    refused = [
        f"http://user:{SECRET['userinfo']}@127.0.0.1:1/x",
        f"http://127.0.0.1:1/x?tok={SECRET['tok']}",
        f"http://127.0.0.1:1/{SECRET['refused']}",
        SECRET["refused"],
    ]
    with wire.stream("GET", f"{hub.url}/api/events", headers=hub.headers) as stream:
        answers = _provoke(hub, key)
        for url in refused:
            body = {"url": url, "name": "refused"}
            answers.append(wire.post(f"{hub.url}/api/a2a/agents", body, hub.headers).body.decode())
        _call_everywhere(hub, key)
        hub.call("told.last")
        events = [stream.next_json()]
        while events[-1].get("context", {}).get("askedAs") != "told.last":
            events.append(stream.next_json())
    failed = [one for one in answers if '"error"' in one or "isError" in one or "FAILED" in one]
    assert len(failed) >= 4 * (len(MODES) - 1) + 4, answers
    told = {"answers": "\n".join(answers), "events": json.dumps(events)}
    paths = ["/api/status", "/api/mcp/servers", "/api/tools", "/api/a2a/agents", "/a2a/agents"]
    paths += ["/api/a2a/agents/keyed%20agent", "/api/a2a/agents/gone%20agent"]
    paths += ["/api/a2a/dispatches?limit=200"]
    for path in paths:
        told[f"GET {path}"] = wire.get(hub.url + path, key).body.decode()
    commands = [["servers", "--json"], ["agents"], ["agents", "show", "keyed agent"], ["status"]]
    commands += [["doctor"], ["config", "check"], ["audit", "tail", "-n", "500", "--json"]]
    with ThreadPoolExecutor(2) as pool:
        for command, done in zip(
            commands, pool.map(lambda one: hub.command(*one), commands), strict=True
        ):
            told["dragoman " + " ".join(command)] = done.stdout + done.stderr
    for path in ("/api/status", "/api/mcp/servers", "/api/a2a/agents", "/metrics", "/api/limits"):
        told[f"GET {path} as owner"] = hub.get(path).body.decode()
    told["the log"] = hub.log()
    for file in hub.home.rglob("*"):
        if file.is_file():
            name = str(file.relative_to(hub.home))
            told[name] = file.read_bytes().decode("utf-8", "replace")
    assert {"audit.db", "audit.journal", "dispatches.db", "hub.db", "tasks.db-wal"} <= told.keys()
    assert _searched(told, key) == {}
    held = {slot for view in told for slot in HELD.get(view, ())}
    kept = "".join(told[view] for view in told if view.removesuffix("-wal") in HELD)
    missing = {slot for slot in held - {"owner key"} if SECRET[slot] not in kept}
    assert not missing, f"they were not used: {missing}"
    # It is still told apart what was read, and where things are.
    verbs = [event["verb"] for event in events if event.get("phase") == "post-verb"]
    assert {"told.db://listed", "told.db://…"} <= set(verbs)
    servers = hub.api("/api/mcp/servers")["configured"]
    (configured,) = [one for one in servers if one["name"] == "keyed"]
    assert configured["transport"]["url"].endswith("/…/mcp?…")


def test_external_text_cannot_control_terminals_or_forge_log_lines(
    hub: RunningHub,
) -> None:
    commands = [["servers", "logs", "told"], ["servers", "logs", "told", "--json"]]
    commands += [["agents", "show", "keyed agent", "--card"], ["agents", "show", "keyed agent"]]
    commands += [["servers"], ["tools", "show", "keyed_agent.work", "--json"]]
    with ThreadPoolExecutor(2) as pool:
        printed = [one.stdout for one in pool.map(lambda one: hub.command(*one), commands)]
    for text in printed:
        assert text and not [one for one in set(ESCAPES) if not one.isprintable() and one in text]
    logs, as_json, card, *_ = printed
    assert logs.startswith(r"\x1b]0;TITLE\x07\x1b[2J\x9b31m\u202eRTL\u200b\u2028END")
    assert json.loads(as_json)["stderr"].startswith(ESCAPES)
    assert json.loads(card)["description"].endswith(ESCAPES)
    log = hub.log()
    assert f"x\\n{FORGED}" in log
    assert not [line for line in log.splitlines() if line.startswith(FORGED)]


def test_only_public_agents_are_visible_without_a_key(hub: RunningHub, keyed: Counterpart) -> None:
    url, agents = f"{keyed.origin}/{SECRET['agent']}", f"{hub.url}/api/a2a/agents"
    for name, public in (("open", True), ("closed", False)):
        body = {"url": url, "name": name, "public": public}
        assert wire.post(agents, body, hub.headers).json()["public"] is public

    def seen(key: dict[str, str]) -> set[str]:
        names = ("open", "closed", "keyed%20agent", "gone%20agent", "nobody")
        card = ".well-known/agent-card.json"
        found = {name: wire.get(f"{hub.url}/a2a/{name}/{card}", key) for name in names}
        return {name for name, answer in found.items() if answer.status == 200}

    catalog = wire.get(f"{hub.url}/.well-known/ai-catalog.json").json()
    assert {one["displayName"] for one in catalog["entries"]} == {"dragoman", "open"}
    assert seen({}) == {"open"}
    answers = {
        wire.get(f"{hub.url}/a2a/{name}/.well-known/agent-card.json").body.replace(
            name.encode(), b""
        )
        for name in ("closed", "nobody")
    }
    assert len(answers) == 1, "one that is not public reads like one that there is not"
    assert seen(key_of(hub, "bob")) == {"open", "closed", "keyed%20agent"}


def test_metrics_need_admin_or_their_scope(hub: RunningHub) -> None:
    refused = wire.get(f"{hub.url}/metrics", key_of(hub, "carl"))
    assert refused.status == 403 and b"--add metrics" in refused.body
    for headers in (hub.headers, key_of(hub, "prometheus", "--scope", "metrics")):
        answer = wire.get(f"{hub.url}/metrics", headers)
        assert answer.status == 200 and b"dragoman_uptime_seconds" in answer.body
