"""The console of a large hub: how long each screen takes until a person can use it, with 10,000
tools, 1,000 agents and many audit records."""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import BinaryIO

from tests.console.browser import BrowserTab, find_browser, run_browser
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.process import server_entry

from faults.harness import NotHere, Outcome, running_hub, temporary_home, write_config

PROGRAM = Path(__file__).parents[1] / "tests" / "live" / "configurable_server.py"
TOOLS, AGENTS = 10_000, 1_000
ROUNDS = 5
MOST_SECONDS = 1.0
PIPELINE = 100
"""Calls that are sent before their answers are read."""
AGENT = """description = "Agent number {number}."
[model]
provider = "openai"
model = "gpt-4o"
base_url = "http://127.0.0.1:9"
"""
SCREENS = {
    "home": ("/", ".map .node"),
    "tools": ("/tools", "tbody tr"),
    "tool search": ("/tools?q=tool_09999", "tbody tr"),
    "tool": ("/tools/big.tool_00042", "h1"),
    "playground": ("/playground?tool=big.tool_00042", "button:has-text('Call')"),
    "servers": ("/servers", "tbody tr"),
    "server": ("/servers/big", ".facts"),
    "agents": ("/agents", "tbody tr"),
    "agent": ("/agents/agent_0042", ".facts"),
    "views": ("/views", "tbody tr"),
    "policies": ("/policies", "tbody tr"),
    "access": ("/access", "form"),
    "access of one": ("/access?principal=owner:owner", "tbody tr"),
    "pins": ("/pins", "#main h1"),
    "approvals": ("/approvals", "#main h1"),
    "runs": ("/runs", "#main h1"),
    "workflows": ("/workflows", "#main h1"),
    "traces": ("/traces", "tbody tr"),
    "audit": ("/audit", "tbody tr"),
    "audit search": ("/audit?q=tool_7", "tbody tr"),
    "limits": ("/limits", "#main h1"),
    "health": ("/health", "#main h1"),
    "settings": ("/health?tab=settings", "#main h1"),
}


def open_screens(size: int, seed: int, outcome: Outcome) -> None:
    """`size` is the number of audit records; with fewer than 10,000, the rest is small too."""
    if find_browser() is None:
        raise NotHere("a browser (make browser)")
    share = min(size / 10_000, 1)
    with temporary_home() as home:
        _write_hub(home, int(TOOLS * share), int(AGENTS * share))
        with running_hub(outcome, home) as hub:
            hub.wait_connected("big", timeout=120)
            until(lambda: hub.api("/api/agents?grants=no")["total"] >= int(AGENTS * share), 60)
            _make_records(hub, size)
            _time_screens(hub, outcome, judges=share == 1)
            outcome.figures["records"] = size


def _write_hub(home: Path, tools: int, agents: int) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    offered = [
        {"name": f"tool_{n:05d}", "description": f"Does thing {n}.", "inputSchema": schema}
        for n in range(max(tools, 100))
    ]
    (home / "big.json").write_text(json.dumps({"tools": offered}), encoding="utf-8")
    for number in range(max(agents, 50)):
        folder = home / "agents" / f"agent_{number:04d}"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "agent.toml").write_text(AGENT.format(number=number), encoding="utf-8")
    write_config(home, [server_entry("big", "stdio", sys.executable, PROGRAM, home / "big.json")])


def _make_records(hub: RunningHub, count: int) -> None:
    """Calls tools that do not exist: the least that makes a record."""
    port = int(hub.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        reader = sock.makefile("rb")
        for start in range(0, count, PIPELINE):
            batch = range(start, min(start + PIPELINE, count))
            for number in batch:
                sock.sendall(_build_call(number))
            for _ in batch:
                _skip_response(reader)


def _build_call(number: int) -> bytes:
    name = f"big.tool_{number % 1_000}x"
    params = wire.modern_params({"name": name, "arguments": {}})
    body = json.dumps(wire.request(number, "tools/call", params)).encode()
    headers = {
        **wire.modern_headers("tools/call", params),
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "Accept": wire.ACCEPT,
        "Content-Length": str(len(body)),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body


def _skip_response(reader: BinaryIO) -> None:
    length = 0
    while line := reader.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    reader.read(length)


def _time_screens(hub: RunningHub, outcome: Outcome, *, judges: bool) -> None:
    slowest = ("", 0.0)
    with run_browser() as browser:
        tab = BrowserTab(browser, hub).sign_in()
        tab.expected.append("status of 404")
        for name, (path, selector) in SCREENS.items():
            taken = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                tab.open(path)
                tab.page.wait_for_selector(selector, state="attached")
                taken.append(time.perf_counter() - began)
            seconds = statistics.median(taken)
            slowest = max(slowest, (name, seconds), key=lambda one: one[1])
            print(f"{name}: median {seconds:.2f} s, best {min(taken):.2f} s", file=sys.stderr)
            if judges:
                outcome.check(seconds < MOST_SECONDS, f"{name} took {seconds:.2f} s")
        tab.close()
        for problem in tab.problems:
            outcome.check("404" in problem, problem)
    outcome.figures["slowest screen"] = f"{slowest[0]}, {slowest[1]:.2f} s"
