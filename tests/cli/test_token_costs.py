"""Long lists of tools: who says so, and the command that has clients search instead."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.cli.terminal import Terminal
from tests.live.module_hub import until
from tests.peers.process import server_entry

from dragoman.cli.base.hub_client import connect_running

SCRIPTED = Path(__file__).parent.parent / "mcp" / "scripted_server.py"


def make_server(folder: Path, count: int) -> str:
    schema = {"type": "object"}
    tools = [
        {"name": f"t{number}", "description": "Reads it. " * 400, "inputSchema": schema}
        for number in range(count)
    ]
    script = {"era": "legacy", "answers": {"tools/list": {"tools": tools}}}
    (folder / "script.json").write_text(json.dumps(script))
    files = folder / "script.json", folder / "sent.jsonl"
    return server_entry("large", "stdio", sys.executable, SCRIPTED, *files)


def test_long_list_is_reported_and_replaced_by_a_search(terminal: Terminal) -> None:
    terminal.configure(make_server(terminal.user, 30), config="[server]\nport = 0\n")
    terminal.up()
    said = "clients are offered 30 tools, about 30,"
    fix = "let them search instead: dragoman views budget 8000"
    listed = terminal.quick("servers").err
    assert said in listed and fix in listed
    installed = terminal.quick("install", "cursor").err
    assert said in installed and fix in installed
    other = terminal.user / "other.json"
    other.write_text(json.dumps({"mcpServers": {"off": {"command": "true"}}}))
    assert said in terminal.quick("import", str(other)).err
    found = terminal.quick("doctor", "--json").json()["checks"]
    (finding,) = [one for one in found if one["check"] == "tokens"]
    assert finding["level"] == "warning" and finding["said"].startswith(said)
    assert finding["fix"].startswith(fix)
    hub = connect_running(str(terminal.home))
    assert hub is not None  # the console's home page shows these
    assert finding in hub.send("GET", "/api/doctor")["checks"]

    before = (terminal.home / "config.toml").read_text()
    done = terminal.quick("views", "budget", "8000")
    assert done.code == 0, done.err
    assert (terminal.home / "config.toml").read_text().startswith(before)
    until(lambda: said not in terminal.quick("servers").err)
    costs = terminal.quick("views", "cost", "--client", "cursor").out
    assert "cursor gets: search" in costs
    again = terminal.quick("views", "budget", "9000")
    assert again.code == 1 and "it already has [mcp] views_for" in again.err


def test_short_list_is_not_reported(terminal: Terminal) -> None:
    terminal.configure(make_server(terminal.user, 10), config="[server]\nport = 0\n")
    terminal.up()
    assert "offered" not in terminal.quick("servers").err
    assert terminal.quick("views", "budget", "100").code == 2
