"""The HTTP API of the real hub: servers, tools, calls and their errors, health and metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, state_of, until
from tests.peers import wire
from tests.peers.process import server_entry
from tests.web.test_metrics import parsed

from dragoman.cli.base.hub_client import request_json

HELLO = Path(__file__).parents[2] / "examples" / "hello" / "hello_server.py"
SECRETS = ("s3cret-header", "s3cret-query", "s3cret-variable")
LIMIT = 4
"""Calls that one principal may run at once."""


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    servers = [
        server_entry("s", "sdk_server", env=["TOKEN"], timeout_secs=20),
        server_entry(
            "away",
            "http",
            f"http://127.0.0.1:1/mcp?token={SECRETS[1]}",
            transport={"headers": {"X-Key": SECRETS[0], "X-Other": "${TOKEN}"}},
        ),
        server_entry("nothing", "stdio", "/no/such/program"),
        server_entry("off", "faulty_server", "ok", enabled=False),
        server_entry("dies", "faulty_server", "exit-at-call"),
        server_entry("hangs", "faulty_server", "hang-on-call", timeout_secs=0.3),
        server_entry("large", "faulty_server", "bigline", "--megabytes", 11),
    ]
    config = f"[limits]\ncalls_in_flight = {2 * LIMIT}\n"
    with run_module_hub(servers, config, {"TOKEN": SECRETS[2]}) as running:
        running.wait_connected("s", "dies", "hangs", "large")
        for name in ("away", "nothing"):

            def has_failed(name: str = name) -> bool:
                return bool(state_of(running, name)["state"] == "failed")

            until(has_failed)
        yield running


def call(hub: RunningHub, name: str, body: Any = None, **headers: str) -> wire.Answer:
    url = f"{hub.url}/api/tools/{quote(name, safe='')}/call"
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return wire.post(url, {} if body is None else body, named)


# --- servers


@pytest.mark.promise("G3")
def test_server_list_has_the_documented_members(hub: RunningHub) -> None:
    shown = hub.api("/api/mcp/servers")
    configured = {entry["name"]: entry for entry in shown["configured"]}
    connected = {entry["name"]: entry for entry in shown["connected"]}
    assert set(configured) == set(connected) and len(configured) == 7
    one = configured["s"]
    assert one["transport"]["type"] == "stdio"
    assert one["transport"]["command"] and isinstance(one["transport"]["args"], list)
    assert one["timeout_secs"] == 20
    assert one["env"] == ["TOKEN"]
    state = connected["s"]
    assert state["connected"] is True
    assert state["tools_count"] == len(state["tools"]) > 10
    assert {"name": "mcp_s_echo", "description": "[MCP:s] The tool echo"} in state["tools"]
    assert "mcp_s_do_thing" in {t["name"] for t in state["tools"]}
    assert shown["total_configured"] == 7
    assert shown["total_connected"] == sum(s["connected"] for s in connected.values())


@pytest.mark.parametrize(
    "path", ["audit?since=", "approvals?state=", "runs?state=", "tools?limit=", "map?minutes="]
)
def test_a_parameter_that_needs_a_value_is_not_taken_as_absent(hub: RunningHub, path: str) -> None:
    answer = hub.get(f"/api/{path}")
    assert answer.status == 400
    name = path.partition("?")[2].strip("=")
    assert f"{name} is empty" in answer.json()["error"]["message"]
    assert hub.get("/api/audit?q=&cursor=").status == 200  # texts may be empty


@pytest.mark.promise("G3")
def test_disconnected_server_has_a_reason(hub: RunningHub) -> None:
    for name, words in (
        ("away", "127.0.0.1"),
        ("nothing", "/no/such/program"),
        ("off", "enabled = false"),
    ):
        state = state_of(hub, name)
        assert state["connected"] is False
        assert state["tools_count"] == 0 and state["tools"] == []
        assert words in state["reason"], state


@pytest.mark.promise("G3")
def test_api_shows_no_secrets(hub: RunningHub) -> None:
    names = ("s", "away", "nothing", "off", "dies")
    paths = ["/api/mcp/servers", "/api/status", "/metrics", "/api/tools", "/openapi.json"]
    paths += [f"/api/mcp/servers/{name}/logs" for name in names]
    said = [hub.get(path).body.decode() for path in paths]
    said += [hub.log(), hub.command("servers").stdout, hub.command("servers", "--json").stdout]
    for secret in SECRETS:
        for text in said:
            assert secret not in text, text[:2000]
    shown = {entry["name"]: entry for entry in hub.api("/api/mcp/servers")["configured"]}["away"]
    assert set(shown["transport"]["headers"]) == {"X-Key", "X-Other"}
    assert shown["transport"]["url"].startswith("http://127.0.0.1:1/mcp")


def test_server_log_is_readable(hub: RunningHub) -> None:
    assert hub.api("/api/mcp/servers/s/logs")["name"] == "s"
    missing = hub.get("/api/mcp/servers/none/logs")
    assert missing.status == 404 and "none" in missing.json()["error"]["message"]


# --- tools


@pytest.mark.promise("B3", "B4", "G1")
def test_tools_are_listed_and_described_one_by_one(hub: RunningHub) -> None:
    listed = hub.api("/api/tools")
    assert listed["total"] == len(listed["tools"])
    tools = {tool["id"]: tool for tool in listed["tools"]}
    assert tools["s.echo"] == {
        "name": "mcp_s_echo",
        "id": "s.echo",
        "description": "[MCP:s] The tool echo",
        "source": "mcp",
        "server": "s",
    }
    for name in ("s.echo", "mcp_s_echo"):
        one = hub.api(f"/api/tools/{name}")
        assert one["id"] == "s.echo"
        assert one["definition"]["inputSchema"]["required"] == ["text"]
    assert hub.get("/api/tools/no.such").status == 404
    for name in ("mcp_s_do_thing", "s.do-thing", "s.do_thing"):
        one = hub.api(f"/api/tools/{name}")
        assert (one["id"], one["definition"]["name"]) == ("s.do_thing", "do-thing")


# --- calls


@pytest.mark.promise("G1")
def test_api_call_returns_the_complete_result(hub: RunningHub) -> None:
    done = call(hub, "mcp_s_add", {"arguments": {"a": 1, "b": 2}})
    assert done.status == 200
    result = done.json()
    assert result["content"] == [{"type": "text", "text": '{"sum": 3}'}]
    assert result["structured"] == {"sum": 3}
    assert result["failed"] is False
    failed = call(hub, "s.fail")
    assert failed.status == 200 and failed.json()["failed"] is True
    assert call(hub, "s.image", b"").json()["content"][0]["type"] == "image"


ERRORS: dict[str, tuple[str, Any, int, str | None]] = {
    "no object": ("s.echo", [], 400, "InvalidInput"),
    "other members": ("s.echo", {"arguments": {}, "x": 1}, 400, "InvalidInput"),
    "the arguments without a name for them": ("s.echo", {"text": "x"}, 400, "InvalidInput"),
    "arguments are a list": ("s.echo", {"arguments": []}, 400, "InvalidInput"),
    "arguments are null": ("s.echo", {"arguments": None}, 400, "InvalidInput"),
    "not JSON": ("s.echo", b"{", 400, "InvalidInput"),
    "not UTF-8": ("s.echo", b'{"arguments":{"text":"\xff"}}', 400, "InvalidInput"),
    "too deep": ("s.echo", b'{"arguments":' + b"[" * 99 + b"]" * 99 + b"}", 400, "InvalidInput"),
    "arguments that do not fit": ("s.echo", {"arguments": {"text": [7]}}, 400, "InvalidInput"),
    "unknown": ("no.such", {}, 404, "NotFound"),
    "an odd name": ("a/b c%20é", {}, 404, "NotFound"),
    "lost": ("dies.echo", {}, 502, "Unreachable"),
    "too large": ("large.echo", {}, 502, "BadReply"),
    "late": ("hangs.echo", {}, 504, "TimedOut"),
}


@pytest.mark.promise("B8", "G1")
@pytest.mark.parametrize("case", ERRORS)
def test_each_api_error_has_its_status_and_remedy(hub: RunningHub, case: str) -> None:
    name, body, status, kind = ERRORS[case]
    answer = call(hub, name, body)
    error = answer.json()["error"]
    assert (answer.status, error["kind"]) == (status, kind), error
    assert len(error["message"]) > 10
    assert (error["trace"] is not None) == (status != 400 or "fit" in case)


def test_a_call_must_be_sent_as_json(hub: RunningHub) -> None:
    answer = call(hub, "s.echo", {"arguments": {"text": "x"}}, Content_Type="text/plain")
    assert answer.status == 400
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.promise("N1")
def test_excess_calls_are_refused_with_retry_after(hub: RunningHub) -> None:
    slow = {"arguments": {"seconds": 1}}
    with ThreadPoolExecutor(LIMIT + 2) as pool:
        answers = list(pool.map(lambda _: call(hub, "s.slow", slow), range(LIMIT + 2)))
    refused = [answer for answer in answers if answer.status != 200]
    assert len(refused) == 2
    for answer in refused:
        assert answer.status == 503
        assert answer.json()["error"]["kind"] == "Full"
        assert int(answer.headers["retry-after"]) >= 1
    assert call(hub, "s.slow", {"arguments": {"seconds": 0}}).status == 200


# --- health, status, metrics, documents


def test_health_is_public_and_minimal(hub: RunningHub) -> None:
    for path in ("/healthz", "/readyz"):
        answer = wire.get(hub.url + path)
        assert answer.status == 200 and len(answer.body) < 10
        assert wire.http_request("HEAD", hub.url + path).body == b""


def test_status_counts_what_there_is(hub: RunningHub) -> None:
    session = wire.Session(hub.mcp_url, headers=hub.headers)
    status = hub.api("/api/status")
    assert status["pid"] == hub.pid and status["home"] == str(hub.home)
    assert status["mode"] == "daemon" and status["url"] == hub.url
    assert status["servers"]["total"] == 6, "one is switched off"
    assert status["tools"] == hub.api("/api/tools")["total"]
    assert status["clients"]["http_sessions"] >= 1
    assert status["config_problem"] is None
    wire.http_request("DELETE", hub.mcp_url, None, session.headers)
    clients = hub.api("/api/status")["clients"]
    assert clients["http_sessions"] == status["clients"]["http_sessions"] - 1


def test_metrics_count_every_call(hub: RunningHub) -> None:
    before = parsed(hub.get("/metrics").body.decode())
    call(hub, "s.echo", {"arguments": {"text": "x"}})
    call(hub, "s.fail")
    call(hub, "no.such")
    hub.call("hangs.echo")
    answer = hub.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    after = parsed(answer.body.decode())

    def grown(key: str) -> float:
        return after.get(key, 0) - before.get(key, 0)

    assert grown('dragoman_calls_total{target="s",outcome="completed"}') == 1
    assert grown('dragoman_calls_total{target="s",outcome="failed"}') == 1
    assert grown('dragoman_calls_total{target="nowhere",outcome="failed"}') == 1
    assert grown('dragoman_calls_total{target="hangs",outcome="failed"}') == 1
    assert grown('dragoman_call_errors_total{kind="NotFound"}') == 1
    assert grown('dragoman_call_errors_total{kind="TimedOut"}') == 1
    assert grown("dragoman_call_seconds_count") == 4
    assert after["dragoman_tools"] == hub.api("/api/status")["tools"]
    assert after["dragoman_servers"] == 6


def test_unknown_route_is_404(hub: RunningHub) -> None:
    for path in ("/api", "/api/tools/", "/api/tools/a/b", "/MCP", "/healthz/"):
        answer = hub.get(path)
        assert answer.status == 404, path
        assert "/openapi.json" in answer.json()["error"]["message"]
    wrong = wire.post(hub.url + "/api/tools", {})
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET")
    assert hub.get("/api/tools/s.echo/call").headers["allow"] == "POST"


PLAIN = {"/", "/healthz", "/readyz", "/metrics", "/api/events", "/api/runs/{name}/events"}


def test_browser_is_sent_to_the_console_and_a_program_gets_an_explanation(hub: RunningHub) -> None:
    page = hub.get("/", {"Accept": "text/html,*/*;q=0.8"})
    assert (page.status, page.headers["location"]) == (302, "/console/")
    text = hub.get("/")
    assert text.headers["content-type"].startswith("text/plain")
    assert b"/mcp" in text.body and b"dragoman status" in text.body
    assert str(hub.home).encode() not in text.body


def test_responses_match_the_openapi_document(hub: RunningHub) -> None:
    whole = hub.api("/openapi.json")
    requests = {
        "/api/status": hub.get("/api/status"),
        "/api/mcp/servers": hub.get("/api/mcp/servers"),
        "/api/mcp/servers/{name}/logs": hub.get("/api/mcp/servers/s/logs"),
        "/api/tools": hub.get("/api/tools"),
        "/api/tools/{name}": hub.get("/api/tools/s.echo"),
        "/openapi.json": hub.get("/openapi.json"),
        "/api/agents": hub.get("/api/agents"),
        "/api/a2a/agents": hub.get("/api/a2a/agents"),
        "/api/a2a/agents/{name}": hub.get("/api/a2a/agents/nobody"),
        "/api/a2a/agents/{name}/cards": hub.get("/api/a2a/agents/nobody/cards"),
        "/api/a2a/dispatches": hub.get("/api/a2a/dispatches"),
        "/api/a2a/dispatches/{name}/decision": hub.get("/api/a2a/dispatches/none/decision"),
        "/api/policies": hub.get("/api/policies"),
        "/api/policies/{name}": hub.get("/api/policies/none"),
        "/api/policies/who-can": hub.get("/api/policies/who-can?tool=s.echo"),
        "/api/policies/what-can": hub.get("/api/policies/what-can?principal=owner"),
        "/api/prompts": hub.get("/api/prompts"),
        "/api/resources": hub.get("/api/resources"),
        "/api/pins": hub.get("/api/pins"),
        "/api/pins/diff": hub.get("/api/pins/diff?name=s.echo"),
        "/api/limits": hub.get("/api/limits"),
        "/api/logins/{name}": hub.get("/api/logins/none"),
        "/api/skills": hub.get("/api/skills"),
        "/api/taint": hub.get("/api/taint"),
        "/api/taint/stored": hub.get("/api/taint/stored"),
        "/api/usage": hub.get("/api/usage"),
        "/api/audit": hub.get("/api/audit?outcome=completed&limit=2"),
        "/api/traces": hub.get("/api/traces"),
        "/api/traces/{name}": hub.get("/api/traces/0123456789"),
        "/api/map": hub.get("/api/map?minutes=1"),
        "/api/clients": hub.get("/api/clients"),
        "/api/cluster": hub.get("/api/cluster"),
        "/api/keys": hub.get("/api/keys"),
        "/api/config": hub.get("/api/config"),
        "/api/doctor": hub.get("/api/doctor"),
        "/api/session": hub.get("/api/session"),
        "/api/console/sessions": hub.get("/api/console/sessions"),
        "/api/views": hub.get("/api/views"),
        "/api/views/{name}": hub.get("/api/views/none"),
        "/api/approvals": hub.get("/api/approvals"),
        "/api/approvals/{name}": hub.get("/api/approvals/none"),
        "/api/runs": hub.get("/api/runs"),
        "/api/runs/{name}": hub.get("/api/runs/none"),
        "/api/workflows": hub.get("/api/workflows"),
        "/api/workflows/{name}": hub.get("/api/workflows/none"),
    }
    plain = {path for path in whole["paths"] if path in PLAIN}
    posts = {path for path, item in whole["paths"].items() if "post" in item}
    assert set(whole["paths"]) == set(requests) | plain | posts | {"/api/mcp/servers/{name}"}
    assert posts & set(requests) == {
        "/api/a2a/agents", "/api/mcp/servers", "/api/policies", "/api/workflows",
    }  # fmt: skip

    def check(answer: wire.Answer, operation: dict[str, Any]) -> None:
        media = operation["responses"][str(answer.status)]["content"]
        schema = media[answer.headers["content-type"]]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": whole["components"]})

    for path, answer in requests.items():
        check(answer, whole["paths"][path]["get"])
    calling = whole["paths"]["/api/tools/{name}/call"]["post"]
    taken = calling["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.validate({"arguments": {}}, {**taken, "components": whole["components"]})
    for name, body, _, _ in [*ERRORS.values(), ("s.add", {"arguments": {"a": 1, "b": 1}}, 0, "")]:
        check(call(hub, name, body), calling)


@pytest.mark.promise("G1")
def test_every_api_call_is_audited_once_and_invalid_requests_are_not(
    hub: RunningHub,
) -> None:
    before = len(hub.audit())
    call(hub, "mcp_s_echo", {"arguments": {"text": "x"}})
    call(hub, "s.echo", {"arguments": {"text": [7]}})
    call(hub, "no.such")
    call(hub, "s.fail")
    call(hub, "s.echo", b"{")
    hub.get("/api/tools/s.echo")
    records = [(r["door"], r["verb"], r["asked_as"], r["outcome"]) for r in hub.audit()[before:]]
    assert records == [
        ("api", "s.echo", "mcp_s_echo", "completed"),
        ("api", "s.echo", "s.echo", "invalid"),
        ("api", "no.such", "no.such", "not_found"),
        ("api", "s.fail", "s.fail", "failed"),
    ]
    assert "Traceback" not in hub.log()


@pytest.mark.promise("U7")
def test_servers_are_added_and_removed_by_the_api() -> None:
    def refer(to: str) -> dict[str, Any]:
        headers = {"A": f"Bearer ${{{to}}}"}
        return {"name": "x", "url": "http://127.0.0.1:1/mcp", "headers": headers}

    with run_module_hub([]) as hub:
        for body, status, words in (
            ({"name": "x", "command": "true"}, 403, "only the owner"),  # on loopback without a key
            ({"name": "x"}, 400, '"url" is missing'),
            ({"name": "--replace", "url": "http://127.0.0.1:1/mcp"}, 400, "must not begin"),
            ({"name": "x", "url": "touch"}, 400, "must begin with http"),  # no program
            ({"name": "x", "url": "http://127.0.0.1:1/mcp", "headers": {"A": "secret"}}, 400, "${"),
            # A header runs no program and reads no secret for others than the owner.
            (refer("exec:touch"), 400, "only the owner's own files"),
            (refer("exec:touch ran"), 400, "only in references"),
            (refer("HOME:-x"), 400, "only in references"),
            (refer("env:DRAGOMAN_AGENT_${exec:id"), 400, "only the owner's own files"),
            ({"name": "x", "url": "http://127.0.0.1:1/${HOME}"}, 400, "credential_env"),
            ({"name": "x", "url": "http://127.0.0.1:1/${HOME:-x}"}, 400, "only in references"),
            (refer("file:/etc/hostname"), 400, "files outside"),
            (refer("keyring:login/me"), 400, "[secrets]"),
            (refer("HOME"), 400, "credential_env"),
            ({"name": "x", "more": 1}, 400, 'unknown member "more"'),
        ):
            answer = wire.post(f"{hub.url}/api/mcp/servers", body)
            assert answer.status == status, (body, answer.body)
            assert words in answer.json()["error"]["message"]
        added = wire.post(
            f"{hub.url}/api/mcp/servers", {"name": "x", "url": "http://127.0.0.1:1/mcp"}
        )
        assert added.json() == {"added": "x", "notes": [], "problem": None}
        again = wire.post(
            f"{hub.url}/api/mcp/servers", {"name": "x", "url": "http://127.0.0.1:1/m"}
        )
        assert again.status == 400 and "nothing was changed" in again.json()["error"]["message"]
        socket = json.loads((hub.home / "daemon.json").read_bytes())["socket"]
        program = {
            "name": "hello",
            "command": sys.executable,
            "args": [str(HELLO)],
            "sandbox": "off",
        }
        request_json(socket, "POST", "/api/mcp/servers", program, 30)
        hub.wait_connected("hello")
        assert wire.http_request("DELETE", f"{hub.url}/api/mcp/servers/x").status == 200
        assert wire.http_request("DELETE", f"{hub.url}/api/mcp/servers/x").status == 404
        names = [one["name"] for one in hub.api("/api/mcp/servers")["configured"]]
        assert names == ["hello"]
        done = [(row["verb"], row["caller"]) for row in hub.audit() if "server." in row["verb"]]
        assert ("server.add", "owner:owner") in done and ("server.remove", "local:local") in done
