"""Clients that refuse dots and long names get portable names, each for one tool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.live.bridge_fixture import external
from tests.live.configurable_servers import ConfigurableServer, tool
from tests.live.module_hub import run_module_hub, text_of, until
from tests.live.recording_agents import RecordingAgent, run_agents
from tests.peers import wire

from dragoman.cli.configure import FIRST_CONFIG
from dragoman.mcp.config import McpSettings

A2A = "[a2a]\nenabled = true\n"
LONG = "list_" + "everything_" * 8 + "there_is"
KNOWN = [
    "claude-ai", "claude-ai (via mcp-remote 0.1.37)", "claude-code", "cursor-vscode",
    "Visual Studio Code", "Visual Studio Code - Insiders", "windsurf-client", "codex-mcp-client",
    "gemini-cli-mcp-client", "Zed", "Cline",
]  # fmt: skip


def listed(url: str, client: str) -> dict[str, Any]:
    params = wire.initialize_params("2025-06-18")
    params["clientInfo"]["name"] = client
    answer = wire.post(url, wire.request(1, "initialize", params))
    headers = {"Mcp-Session-Id": answer.headers["mcp-session-id"]}
    tools = wire.post(url, wire.request(2, "tools/list"), headers).rpc()["result"]["tools"]
    return {one["name"]: one for one in tools}


@pytest.mark.parametrize("client", KNOWN)
def test_known_clients_get_portable_names_unless_configured(
    client: str,
) -> None:
    assert McpSettings().find_style(client) == "portable"
    assert McpSettings(names="dotted").find_style(client) == "dotted"
    assert McpSettings(names_for={client[:4] + "*": "legacy"}).find_style(client) == "legacy"
    assert McpSettings().find_style("somebody") == "legacy"
    assert 'names = "portable"' in FIRST_CONFIG, "there every client gets them"


@pytest.mark.promise("B3", "R1")
def test_portable_names_are_short_without_dots_and_callable_like_all_others(
    tmp_path: Path,
) -> None:
    server = ConfigurableServer(
        tmp_path, "s", {"tools": [tool("plain"), tool("with.dots"), tool(LONG)]}
    )
    agent = RecordingAgent("Vercel Ops", "deploy", "x" * 80)
    with (
        run_agents(agent),
        run_module_hub([server.entry()], A2A + external(agent.name, agent.url)) as hub,
    ):
        hub.wait_connected("s")
        until(lambda: "vercel_ops.deploy" in listed(hub.mcp_url, "somebody"))
        names = listed(hub.mcp_url, "claude-ai")
        usual = listed(hub.mcp_url, "somebody")
        assert len(names) == len(usual)
        for name in names:
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name), name
        assert {"s_plain", "s_with_dots", "vercel_ops_deploy"} <= names.keys()
        assert {"mcp_s_plain", "mcp_s_with.dots"} <= usual.keys()
        # Every form is called, and is one tool to the audit.
        for name in (*names, *usual):
            if not name.startswith("dragoman_agent_"):
                text_of(hub.call(name))
        rows = [row for row in hub.audit() if row.get("asked_as") in {*names, *usual}]
        assert len({row["verb"] for row in rows}) == len(usual) - 1
