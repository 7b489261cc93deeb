"""The headers of 2026-07-28: each must match the body, or the request is refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, text_of
from tests.peers import wire
from tests.peers.process import server_entry

META = "io.modelcontextprotocol/"
ECHO = {"name": "mcp_s_echo", "arguments": {"text": "x"}}
LIST = wire.request(1, "tools/list")


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with run_module_hub([server_entry("s", "faulty_server", "ok")]) as running:
        running.wait_connected("s")
        yield running


def modern(
    hub: RunningHub, params: dict[str, Any], method: str = "tools/call", **headers: str | None
) -> wire.Answer:
    """A modern request whose headers are changed, or left out where None."""
    sent: dict[str, str] = {**hub.headers, **wire.modern_headers(method, params)}
    for name, value in headers.items():
        sent.pop(name.replace("_", "-"), None)
        if value is not None:
            sent[name.replace("_", "-")] = value
    return wire.post(hub.mcp_url, wire.request(1, method, wire.modern_params(params)), sent)


@pytest.mark.promise("G2")
@pytest.mark.parametrize(
    "headers",
    [
        {"Mcp_Method": "tools/list"},
        {"Mcp_Method": "TOOLS/CALL"},
        {"Mcp_Method": None},
        {"Mcp_Name": "mcp_s_add"},
        {"Mcp_Name": "MCP_S_ECHO"},
        {"Mcp_Name": ""},
        {"Mcp_Name": None},
        {"Mcp_Name": "=?base64?bWNwX3NfYWRk?="},
        {"Mcp_Name": "=?base64?!!?="},
        {"Mcp_Name": "=?base64?/w==?="},
        {"Mcp_Protocol_Version": "2025-11-25"},
        {"Mcp_Protocol_Version": "2027-01-01"},
        {"Mcp_Protocol_Version": None},
    ],
)
def test_mismatched_header_is_refused(hub: RunningHub, headers: dict[str, Any]) -> None:
    answer = modern(hub, ECHO, **headers)
    assert answer.status == 400
    assert answer.json()["error"]["code"] == -32020
    assert answer.json()["id"] == 1


@pytest.mark.promise("G2")
def test_name_header_may_be_base64(hub: RunningHub) -> None:
    encoded = base64.b64encode(b"mcp_s_echo").decode()
    assert text_of(modern(hub, ECHO, Mcp_Name=f"=?base64?{encoded}?=").rpc()) == "x"
    name = "été"
    encoded = base64.b64encode(name.encode()).decode()
    unknown = modern(hub, {"name": name}, Mcp_Name=f"=?base64?{encoded}?=")
    assert unknown.status == 400
    assert unknown.json()["error"]["code"] == -32602
    assert name in unknown.json()["error"]["message"]


@pytest.mark.promise("G2")
@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({}, -32602),
        ({META + "protocolVersion": wire.MODERN}, -32602),
        ({META + "protocolVersion": wire.MODERN, META + "clientCapabilities": 7}, -32602),
    ],
)
def test_modern_request_must_declare_its_client(
    hub: RunningHub, meta: dict[str, Any], code: int
) -> None:
    sent = {**hub.headers, **wire.modern_headers("tools/list")}
    answer = wire.post(hub.mcp_url, wire.request(1, "tools/list", {"_meta": meta}), sent)
    assert (answer.status, answer.json()["error"]["code"]) == (400, code)


@pytest.mark.promise("G2", "F7")
def test_unsupported_revision_is_refused_with_supported_ones(hub: RunningHub) -> None:
    params = wire.modern_params({}, version="2027-01-01")
    headers = {**hub.headers, **wire.modern_headers("tools/list", {}, "2027-01-01")}
    for message in (wire.request(1, "tools/list", params), LIST):
        answer = wire.post(hub.mcp_url, message, headers)
        assert answer.status == 400
        error = answer.json()["error"]
        assert error["code"] == -32022
        assert wire.MODERN in error["data"]["supported"]
        assert error["data"]["requested"] == "2027-01-01"


@pytest.mark.promise("F6", "G2")
def test_an_unknown_method_is_404_in_the_new_era_and_200_before(hub: RunningHub) -> None:
    for method in ("no/such", "ping", "initialize", "resources/subscribe"):
        answer = modern(hub, {}, method)
        assert (answer.status, answer.json()["error"]["code"]) == (404, -32601), method
    old = wire.post(hub.mcp_url, wire.request(1, "no/such"), {"Mcp-Protocol-Version": "2025-11-25"})
    assert (old.status, old.json()["error"]["code"]) == (200, -32601)


@pytest.mark.promise("G2")
def test_modern_request_ignores_sessions(hub: RunningHub) -> None:
    answer = modern(hub, {}, "tools/list", Mcp_Session_Id="made up")
    assert answer.status == 200
    assert "mcp-session-id" not in answer.headers
