"""Skills of registered agents as documented, on a running hub: names, schemas, wire, answers and
errors, as MCP clients of both eras see them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import ERROR_KEY, run_module_hub, until

SCHEMA = {
    "type": "object",
    "properties": {"projectId": {"type": "string"}, "branch": {"type": "string"}},
    "required": ["projectId"],
}
ARGS = {"projectId": "proj_abc", "branch": "main"}
SKILLS: dict[str, Any] = {
    "Vercel Ops": {"id": "deploy", "inputSchema": SCHEMA},
    "code-reviewer": {"id": "review"},
    "Linear (prod)": {"id": "create-issue"},
}
TEXT, DATA = {"kind": "text", "text": "done"}, {"kind": "data", "data": {"url": "https://x"}}


def task(*parts: Any, state: str = "completed") -> dict[str, Any]:
    artifacts = [{"artifactId": "a", "name": "report", "parts": list(parts)}] if parts else []
    status: dict[str, Any] = {"state": state}
    if state == "failed":
        said = [{"kind": "text", "text": "no such project"}]
        status["message"] = {"kind": "message", "messageId": "m", "role": "agent", "parts": said}
    return {"kind": "task", "id": "t1", "contextId": "c", "status": status, "artifacts": artifacts}


class Agents(ThreadingHTTPServer):
    """Three agents at three paths, which know how to be sent a message and nothing else."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.recorded: list[tuple[str, dict[str, str], bytes]] = []
        self.answer: Callable[[Any], tuple[int, bytes]] = result(task(DATA))
        self.released = threading.Event()


def result(value: Any) -> Callable[[Any], tuple[int, bytes]]:
    return lambda id: (200, json.dumps({"jsonrpc": "2.0", "id": id, "result": value}).encode())


def raw(status: int, body: bytes) -> Callable[[Any], tuple[int, bytes]]:
    return lambda id: (status, body)


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Agents

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        number = self.path.split("/")[1]
        if not self.path.endswith("/.well-known/agent-card.json") or not number.isdigit():
            self._reply(404, b"")
            return
        name, skill = list(SKILLS.items())[int(number)]
        card = {
            "protocolVersion": "0.3.0",
            "name": name,
            "description": "d",
            "version": "1",
            "url": f"{self.server.url}/{number}",
            "preferredTransport": "JSONRPC",
            "capabilities": {},
            "defaultInputModes": ["application/json"],
            "defaultOutputModes": ["application/json"],
            "skills": [{"name": skill["id"], "description": skill["id"], "tags": [], **skill}],
        }
        self._reply(200, json.dumps(card).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.recorded.append((self.path, headers, body))
        self._reply(*self.server.answer(json.loads(body)["id"]))

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        with contextlib.suppress(ConnectionError):  # who has waited long enough is gone
            self.end_headers()
            self.wfile.write(body)


def config_of(agents: Agents) -> str:
    lines = ["[a2a]", "enabled = true", "[bridge]", "timeout_secs = 1"]
    for number, name in enumerate(SKILLS):
        lines += ["[[a2a.external_agents]]", f"name = {json.dumps(name)}", 'wire = "skill-only"']
        lines += [f'url = "{agents.url}/{number}"', 'token = "env:AGENT_TOKEN"']
    return "\n".join(lines)


ENV = {"AGENT_TOKEN": "resolved-token"}


@pytest.fixture(scope="module")
def agents() -> Iterator[Agents]:
    server = Agents()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join(60)
        server.server_close()


@pytest.fixture(scope="module")
def bridge(agents: Agents) -> Iterator[RunningHub]:
    with run_module_hub([], config_of(agents), ENV) as hub:
        until(lambda: len(skills_of(hub)) == len(SKILLS))
        yield hub


@pytest.fixture(autouse=True)
def _afresh(agents: Agents) -> None:
    agents.recorded.clear()
    agents.answer = result(task(DATA))


def skills_of(hub: RunningHub) -> dict[str, Any]:
    tools = hub.rpc("tools/list")["result"]["tools"]
    return {tool["name"]: tool for tool in tools if tool["description"].startswith("Invokes")}


@pytest.mark.promise("R1", "R2")
def test_names_and_listing_are_as_documented(bridge: RunningHub) -> None:
    listed = skills_of(bridge)
    assert sorted(listed) == [
        "code_reviewer.review",
        "linear_prod.create-issue",
        "vercel_ops.deploy",
    ]
    assert listed["vercel_ops.deploy"] == {
        "name": "vercel_ops.deploy",
        "description": "Invokes the deploy skill on remote A2A agent Vercel Ops",
        "inputSchema": SCHEMA,
    }
    open_ = listed["linear_prod.create-issue"]["inputSchema"]
    assert open_ == {"type": "object", "additionalProperties": True}


@pytest.mark.promise("R1")
def test_both_names_call_the_skill_and_the_record_is_canonical(
    bridge: RunningHub, agents: Agents
) -> None:
    for alias, name in (
        ("a2a_vercel_ops_deploy", "vercel_ops.deploy"),
        ("a2a_code_reviewer_review", "code_reviewer.review"),
        ("a2a_linear_prod_create_issue", "linear_prod.create-issue"),
    ):
        for called in (alias, name):
            assert "result" in bridge.call(called, ARGS)
        first, second = bridge.audit()[-2:]
        assert first["verb"] == second["verb"] == name.replace("-", "_")
    assert len(agents.recorded) == 6


@pytest.mark.promise("R3")
def test_the_body_on_the_wire_is_as_documented(bridge: RunningHub, agents: Agents) -> None:
    bridge.call("vercel_ops.deploy", ARGS)
    ((path, headers, body),) = agents.recorded
    sent = json.loads(body)
    session = sent["params"]["taskId"]
    assert session.startswith("a2a-") and "-deploy-" in session
    assert path == "/0" and isinstance(sent["id"], int) and sent["id"] > 1_717_281_600_000
    assert sent == {
        "jsonrpc": "2.0",
        "id": sent["id"],
        "method": "message/send",
        "params": {
            "message": {
                "skill": {"skillId": "deploy"},
                "parts": [{"kind": "data", "data": ARGS}],
            },
            "correlationId": session,
            "taskId": session,
        },
    }
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == "Bearer resolved-token"
    assert session.endswith(bridge.audit()[-1]["trace"])


@pytest.mark.promise("R2")
def test_arguments_are_validated_before_sending(bridge: RunningHub, agents: Agents) -> None:
    answer = bridge.call("vercel_ops.deploy", {"branch": "main"}, era="legacy")
    assert "projectId" in json.dumps(answer)
    assert answer.get("error") or answer["result"]["isError"]
    assert not agents.recorded


@pytest.mark.promise("R4")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_responses_are_as_documented(era: str, bridge: RunningHub, agents: Agents) -> None:
    def called() -> Any:
        return bridge.call("vercel_ops.deploy", ARGS, era=era)["result"]

    assert called()["structuredContent"] == DATA["data"]
    assert json.loads(called()["content"][0]["text"]) == DATA["data"]
    agents.answer = result(task(TEXT))
    assert called()["content"] == [{"type": "text", "text": "done"}]
    agents.answer = result(task(TEXT, DATA))
    whole = {"artifactId": "a", "name": "report", "parts": [TEXT, DATA]}
    assert called()["structuredContent"] == whole


def never(agents: Agents) -> Callable[[Any], tuple[int, bytes]]:
    def answer(id: Any) -> tuple[int, bytes]:
        agents.released.wait(60)
        return 200, b""

    return answer


@pytest.mark.promise("R5", "R6")
@pytest.mark.parametrize(
    ("answer", "code", "kind"),
    [
        (None, -32201, "RemoteA2ATimeoutError"),
        (raw(502, b"bad gateway"), -32202, "RemoteA2ATransportError"),
        (raw(200, b"<html>"), -32203, "RemoteA2AInvalidResponseError"),
        (raw(200, b'{"id":"t1"}'), -32203, "RemoteA2AInvalidResponseError"),
        (result(task(state="failed")), -32204, "RemoteA2ATaskFailedError"),
    ],
)
def test_each_error_has_its_code_and_class(
    answer: Any, code: int, kind: str, bridge: RunningHub, agents: Agents
) -> None:
    agents.answer = answer or never(agents)
    old = bridge.call("vercel_ops.deploy", ARGS, era="legacy")
    assert old["error"]["code"] == code
    new = bridge.call("vercel_ops.deploy", ARGS)["result"]
    said = new["_meta"][ERROR_KEY]
    assert new["isError"] and said["code"] == code and said["kind"] == kind
    if kind == "RemoteA2ATaskFailedError":
        assert "no such project" in old["error"]["message"]
    agents.answer = result(task(DATA))
    bridge.call("vercel_ops.deploy", ARGS)  # or the next would be one too many in a row


@pytest.mark.promise("R7", "R6")
def test_call_without_a_permit_is_refused_and_not_sent(
    hub: Callable[..., RunningHub], agents: Agents, short_tmp: Path
) -> None:
    home = short_tmp / "strict"
    (home / "policies").mkdir(parents=True, mode=0o700)
    policy = (
        '@id("look") permit (principal, action == Hub::Action::"list", resource);\n'
        '@id("admin") permit (principal, action == Hub::Action::"admin", resource);\n'
        '@id("reviews") permit (principal, action == Hub::Action::"a2a_invoke", '
        'resource == Hub::Skill::"code_reviewer.review");\n'
    )
    (home / "policies" / "own.cedar").write_text(policy, encoding="utf-8")
    strict = hub(config=config_of(agents), home=home, env=ENV)
    until(lambda: "code_reviewer.review" in skills_of(strict))
    assert list(skills_of(strict)) == ["code_reviewer.review"]
    refused = strict.call("vercel_ops.deploy", ARGS, era="legacy")
    assert refused["error"]["code"] == -32003 and "no policy permits" in json.dumps(refused)
    assert not agents.recorded
    assert strict.audit()[-1]["decision"] == "deny"
    assert "result" in strict.call("code_reviewer.review", ARGS)
