"""Arguments reach real servers as sent, unless configuration or policy requires validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.live.configurable_servers import ConfigurableServer, tool
from tests.live.module_hub import run_module_hub
from tests.peers.process import run_client, server_entry

FORCE = {"type": "object", "properties": {"force": {"type": "boolean"}, "path": {"type": "string"}}}
ELSEWHERE = {
    "type": "object",
    "properties": {"force": {"$ref": "https://example.com/force.json"}, "path": {"type": "string"}},
    "required": ["path"],
}
POLICY = """
@id("no-force")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"told.run")
when { context.args.contains("force=true") };
@id("no-force-either")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"told.far")
when { context.args.contains("force=true") };
"""


@pytest.mark.promise("B12")
def test_convertible_arguments_reach_the_server_unchanged(tmp_path: Path) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^\S+\Z"}}}
    schemas = {"run": FORCE, "odd": odd, "far": ELSEWHERE}
    offered = [tool(name) | {"inputSchema": schema} for name, schema in schemas.items()]
    told = ConfigurableServer(tmp_path, "told", {"tools": offered})
    exact = ConfigurableServer(tmp_path, "exact", told.offers)
    servers = [
        server_entry("old", "mcp1_server"),
        told.entry(),
        exact.entry(check_arguments="strict"),
    ]
    with run_module_hub(servers) as hub:
        hub.wait_connected("old", "told", "exact")
        seen = run_client(
            "sdk_client", "--http", hub.mcp_url, "--call", "old.add",
            "--arguments", '{"a": "1", "b": "2"}',
        )  # fmt: skip
        assert seen["result"]["isError"] is False and "3" in str(seen["result"]["content"]), seen
        assert "result" in hub.call("told.odd", {"a": "x"}), "no tool is lost for its pattern"

        def called(name: str, arguments: dict[str, Any]) -> str:
            answer = hub.call(name, arguments)
            return str(answer.get("error") or answer["result"]["content"][0]["text"])

        assert called("told.run", {"force": "yes", "path": None}) == "arrived: run"
        assert 'not of type "boolean"' in called("exact.run", {"force": "yes"})
        assert 'not of type "boolean"' in called("told.run", {"force": []})
        # The part of a schema that is described elsewhere is left to the server, the rest holds.
        assert called("told.far", {"path": "x", "force": "yes"}) == "arrived: far"
        assert '"path" is a required property' in called("told.far", {"force": "yes"})
        # A server that takes "yes" for true must not be reached past a policy about `force=true`.
        done = hub.post("/api/policies", {"name": "mine", "text": POLICY})
        assert "error" not in done, done
        assert "a policy forbids" in called("told.run", {"force": True})
        assert "policies read arguments here" in called("told.run", {"force": "yes"})
        refused = called("told.far", {"path": "x", "force": "yes"})
        assert "policies read its arguments" in refused and "example.com/force.json" in refused
        assert called("told.far", {"path": "x"}) == "arrived: far", "this one can be checked"
        assert called("told.odd", {"a": 5}) == "arrived: odd", "the policy is not about that one"
