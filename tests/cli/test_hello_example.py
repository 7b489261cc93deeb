"""The commands and output in the README of examples/hello are exact."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import WAIT_SECONDS, Terminal

ROOT = Path(__file__).parent.parent.parent
HELLO = ROOT / "examples" / "hello"


def typed_and_seen(page: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, seen = part.partition("\n")
            found.append((line, seen))
    return found


def build_pattern(seen: str) -> str:
    """A page has "…" for what differs, and columns are as wide as what is in them."""
    return re.sub(r"(\\ ){2,}", r"\\ +", re.escape(seen)).replace("…", ".+")


def test_readme_commands_print_what_it_shows(terminal: Terminal) -> None:
    steps = typed_and_seen((HELLO / "README.md").read_text(encoding="utf-8"))
    assert len(steps) > 10
    terminal.env["DRAGOMAN_HOME"] = str(terminal.home)
    for line, seen in steps:
        if not line.startswith("dragoman "):
            assert line.startswith((". .venv", "export DRAGOMAN_HOME=")), line
            continue
        done = terminal.run(*line.split()[1:], cwd=ROOT)
        pattern = build_pattern(seen)
        until = time.monotonic() + WAIT_SECONDS
        # The outcome of a call is recorded within a moment, and people type more slowly than tests.
        while "audit" in line and not re.fullmatch(pattern, done.out + done.err):
            assert time.monotonic() < until, (line, done)
            done = terminal.run(*line.split()[1:], cwd=ROOT)
        assert re.fullmatch(pattern, done.out + done.err), (line, done)
    assert terminal.run("status").code == 3


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_hello_server_speaks_the_handshake_revisions(revision: str) -> None:
    asked: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": revision}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "ping"},
        {"id": 3, "method": "nothing"},
        {"id": 4, "method": "tools/call", "params": {"name": "nothing"}},
        {
            "id": 5,
            "method": "tools/call",
            "params": {
                "name": "countdown",
                "arguments": {"start": 2},
                "_meta": {"progressToken": "p"},
            },
        },
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in asked)
    done = subprocess.run(
        [sys.executable, str(HELLO / "hello_server.py")],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[0]["result"]["protocolVersion"] == revision
    assert said[1]["result"] == {}
    assert [message["error"]["code"] for message in said[2:4]] == [-32601, -32602]
    assert [message["params"]["progress"] for message in said[4:6]] == [0, 1]
    assert said[6]["result"]["content"][0]["text"] == "Lift-off!"
