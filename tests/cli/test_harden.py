"""`servers harden`: a server is tried in a sandbox before it is kept in one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal
from tests.live.test_sandbox import PROBE, TOOLS_PATH, needs_sandbox
from tests.peers.process import server_entry

pytestmark = pytest.mark.promise("B10")

NEEDS_FILE = """
import runpy, sys
open(sys.argv[1].removeprefix("at ")).close()
runpy.run_path(sys.argv[2], run_name="__main__")
"""


def get_sandbox(terminal: Terminal) -> str | None:
    document = tomllib.loads((terminal.home / "config.toml").read_text())
    level: str | None = document["mcp_servers"][0].get("sandbox")
    return level


@needs_sandbox
def test_server_that_loses_nothing_is_hardened_while_the_hub_runs(terminal: Terminal) -> None:
    terminal.env["PATH"] = TOOLS_PATH
    terminal.configure(server_entry("peer", "stdio", *PROBE), config="# kept\n")
    terminal.up()
    tried = terminal.run("servers", "harden", "peer", "--dry-run", "--strict")
    assert tried.code == 0 and 'the same 3 in the sandbox "strict"' in tried.out, tried
    assert get_sandbox(terminal) is None
    done = terminal.run("servers", "harden", "peer")
    assert done.code == 0 and "set in config.toml" in done.out, done
    assert get_sandbox(terminal) == "net"
    assert "# kept\n" in (terminal.home / "config.toml").read_text()
    listed = terminal.run("servers").out
    assert "SANDBOX" in listed and "net" in listed
    assert terminal.run("servers", "show", "peer", "--json").json()["state"]["sandbox"] == "net"
    assert 'in the sandbox "net"' in terminal.run("doctor").out


@needs_sandbox
def test_server_that_needs_more_is_left_alone(terminal: Terminal, tmp_path: Path) -> None:
    terminal.env["PATH"] = TOOLS_PATH
    terminal.env["HOME"] = str(terminal.user)
    secret = terminal.user / "licence.txt"
    secret.write_text("valid")
    script = tmp_path / "needs.py"
    script.write_text(NEEDS_FILE)
    line = (PROBE[0], script, f"at {secret}", PROBE[1])
    terminal.configure(server_entry("peer", "stdio", *line))
    failed = terminal.run("servers", "harden", "peer")
    assert failed.code == 6 and "nothing was changed" in failed.err, failed
    assert f'it may need sandbox_paths = ["{secret}"]' in failed.err
    assert get_sandbox(terminal) is None
    terminal.configure(server_entry("peer", "stdio", *line, sandbox_paths=[str(secret)]))
    assert terminal.run("servers", "harden", "peer").code == 0
    assert get_sandbox(terminal) == "net"


def test_harden_refuses_what_has_no_sandbox(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho forbidden >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    terminal.configure(
        server_entry("url", "http", "https://example.org/mcp", enabled=False),
        server_entry("box", "stdio", "docker", "run", "-i", "x", enabled=False),
        server_entry("peer", "stdio", *PROBE),
    )
    assert "only a program has a sandbox" in terminal.run("servers", "harden", "url").err
    assert "runs in a container" in terminal.run("servers", "harden", "box").err
    assert terminal.run("servers", "harden", "pear").code == 5
    terminal.env["PATH"] = f"{tmp_path}:{TOOLS_PATH}"
    refused = terminal.run("servers", "harden", "peer")
    assert refused.code == 1 and "there is no sandbox on this machine" in refused.err
    assert "forbidden" in refused.err


def test_added_server_starts_in_a_sandbox(terminal: Terminal) -> None:
    added = terminal.run("servers", "add", "--no-connect", "peer", *PROBE)
    assert 'sandbox without your home and secrets (sandbox = "net")' in added.out
    assert get_sandbox(terminal) == "net"
    replaced = terminal.run(
        "servers", "add", "--no-connect", "--replace", "peer", "docker", "run", "-i", "image"
    )
    assert "its container is its sandbox" in replaced.out
    assert get_sandbox(terminal) is None
    chosen = ("--sandbox", "strict", "--replace", "--no-connect")
    assert terminal.run("servers", "add", *chosen, "peer", *PROBE).code == 0
    assert get_sandbox(terminal) == "strict"
    wrong = terminal.run("servers", "add", "web", "https://example.org/mcp", "--sandbox", "net")
    assert wrong.code == 2 and "--sandbox needs a program" in wrong.err
