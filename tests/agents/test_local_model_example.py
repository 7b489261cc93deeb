"""examples/local_model, without the model: the manifest, the configuration and the MCP server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agents.model_keys import build_keys

from dragoman.agents.manifest import load_manifest
from dragoman.agents.model_factory import build_models
from dragoman.agents.models.constrained import ConstrainedModel
from dragoman.config import load

pytestmark = pytest.mark.promise("T1")

EXAMPLE = Path(__file__).parents[2] / "examples" / "local_model"


def test_manifest_and_configuration_load() -> None:
    loaded = load_manifest(EXAMPLE / "agent.toml")
    assert not loaded.warnings
    (model,) = build_models(loaded.manifest, lambda url, private: None, build_keys({}))  # type: ignore[arg-type,return-value]
    assert isinstance(model, ConstrainedModel)
    (server,) = load(EXAMPLE / "config.toml").mcp_servers
    assert [server.name] == loaded.manifest.capabilities.mcp_servers


def test_server_counts_the_stock() -> None:
    begin = {"protocolVersion": "2025-11-25"}
    requests = [
        ("initialize", begin),
        ("tools/list", {}),
        ("tools/call", {"name": "count_stock", "arguments": {"article": "teapot"}}),
    ]
    lines = "".join(
        json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + "\n"
        for id, (method, params) in enumerate(requests)
    )
    command = [sys.executable, str(EXAMPLE / "shop_server.py")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    begun, listed, called = (json.loads(line)["result"] for line in done.stdout.splitlines())
    assert begun["serverInfo"]["name"] == "shop" and len(listed["tools"]) == 1
    assert called["content"][0]["text"] == "4 of teapot in stock"
