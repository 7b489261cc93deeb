"""MCP extensions declared by servers: clients see them, and their results pass unchanged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.live.configurable_servers import ConfigurableServer, tool
from tests.live.module_hub import run_module_hub
from tests.peers import wire
from tests.peers.process import server_entry

SCRIPTED = Path(__file__).parents[1] / "mcp" / "scripted_server.py"
RECEIPTS, APPS, SKILLS, TASKS = (
    "com.example/receipts",
    "io.modelcontextprotocol/ui",
    "io.modelcontextprotocol/skills",
    "io.modelcontextprotocol/tasks",
)


@pytest.mark.promise("B12")
def test_server_extensions_and_their_results_reach_clients(
    tmp_path: Path,
) -> None:
    receipt = {"resultType": "receipt", "receiptToken": "r-117", "_meta": {"shop.test/x": 1}}
    declared = {RECEIPTS: {"version": 2}, APPS: {}, SKILLS: {}, TASKS: {}, "no extension": {}}
    script = {
        "era": "modern",
        "capabilities": {"tools": {}, "extensions": declared},
        "answers": {"tools/list": {"tools": [tool("buy")]}, "tools/call": receipt},
    }
    (tmp_path / "script.json").write_text(json.dumps(script), encoding="utf-8")
    modern = server_entry(
        "shop", "stdio", sys.executable, SCRIPTED, tmp_path / "script.json", tmp_path / "log"
    )
    other = ConfigurableServer(tmp_path, "told", {
        "tools": [tool(f"is_{said}", execution={"taskSupport": said, "evil": "words"})
                  for said in ("forbidden", "required", "optional", "nonsense")] + [tool("plain")],
        "capabilities": {"extensions": {RECEIPTS: {"version": 3}}},
    })  # fmt: skip
    with run_module_hub([modern, other.entry()]) as hub:
        hub.wait_connected("shop", "told")
        found = hub.rpc("server/discover")["result"]["capabilities"]["extensions"]
        # The two disagree about the settings of one; what needs methods of its own is not carried.
        assert found == {RECEIPTS: {}, APPS: {}, TASKS: {}}
        shaken: Any = wire.post(
            hub.mcp_url, wire.request(1, "initialize", wire.initialize_params("2025-11-25"))
        )
        assert shaken.rpc()["result"]["capabilities"]["extensions"] == {RECEIPTS: {}, APPS: {}}

        params = wire.modern_params({"name": "shop.buy", "arguments": {}})
        able: dict[str, Any] = {"extensions": {RECEIPTS: {}, "com.example/unknown": {}}}
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = able
        headers = wire.modern_headers("tools/call", params)
        answer = wire.post(hub.mcp_url, wire.request(2, "tools/call", params), headers)
        result = answer.rpc()["result"]
        assert result.pop("_meta")["shop.test/x"] == 1
        assert result == {"resultType": "receipt", "receiptToken": "r-117"}
        # A client without the extension gets an error, never a result that looks complete.
        plain = hub.call("shop.buy")
        assert "receipt" in str(plain) and "r-117" not in str(plain)

        session = wire.Session(hub.mcp_url, "2025-11-25")
        tools = session.request("tools/list")["result"]["tools"]
        shown = {one["name"].removeprefix("mcp_told_"): one["execution"] for one in tools}
        words = {name: one["taskSupport"] for name, one in shown.items()}
        assert words["is_forbidden"] == "forbidden"
        others = {"is_required", "is_optional", "is_nonsense", "plain"}
        assert {words[name] for name in others} == {"optional"}
        assert all(one.keys() == {"taskSupport"} for one in shown.values())
