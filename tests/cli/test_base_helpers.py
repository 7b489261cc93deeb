"""Tables, schemas, questions and the owner of a port."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.cli.terminal import DRAGOMAN, WAIT_SECONDS, Terminal
from tests.peers.process import server_entry

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "agents"
CHANGING = Path(__file__).parent.parent / "live" / "changing_server.py"
LATE = """
import os, sys
with open(sys.argv[1], "a") as log: log.write("x")
if not os.path.exists(sys.argv[2]): sys.exit("not yet")
os.execv(sys.executable, [sys.executable, sys.argv[3]])
"""
HELLO = EXAMPLE.parent / "hello" / "hello_server.py"


def test_table_output_renders_urls_agents_and_keys(terminal: Terminal) -> None:
    config = (EXAMPLE / "config.toml").read_text()
    terminal.configure(server_entry("hello", "stdio", sys.executable, HELLO), config=config)
    (terminal.home / "greeters.py").write_text((EXAMPLE / "greeters.py").read_text())
    url = terminal.up()["url"]
    assert f"{url}/a2a/greeter" in terminal.quick("a2a", "discover", "greeter").out
    listed = terminal.quick("agents")
    assert listed.out.startswith("LOCAL AGENT") and "greeter" in listed.out and not listed.err
    assert "greeter" in terminal.quick("agents", "--json").json()["local"]
    refused = terminal.quick(
        "agents", "add", "http://a.example.com:1/x", "--token", "env:DRAGOMAN_AGENT_NO"
    )
    assert refused.code != 0 and "a.example.com" in refused.err and "(new)" not in refused.err

    request = urllib.request.Request(
        f"{url}/api/tools/hello.add/call",
        b'{"arguments": {"a": 1, "b": 2}}',
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()
    subprocess.run(
        [*DRAGOMAN, "mcp"],
        input=b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":'
        b'"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}\n'
        b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"hello.add",'
        b'"arguments":{"a":1,"b":2}}}\n',
        env=terminal.environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    until = time.monotonic() + WAIT_SECONDS
    while "mcp-stdio" not in (shown := terminal.quick("audit", "tail").out):
        assert time.monotonic() < until
    header, *rows = shown.splitlines()
    at = header.index("OUTCOME")
    assert all(row[at - 1] == " " and row[at] != " " for row in rows), shown

    key = re.findall(r"drg_\S+|\S{30,}", terminal.quick("keys", "create", "ci").out)[0]
    request.add_header("Authorization", f"Bearer {key}")
    urllib.request.urlopen(request).close()
    terminal.quick("keys", "revoke", "ci")
    while True:
        try:
            urllib.request.urlopen(request).close()
            assert time.monotonic() < until
        except urllib.error.HTTPError as error:
            assert error.code == 401 and b"not accepted: it is wrong, was revoked" in error.read()
            break

    taken = socket.create_server(("127.0.0.1", 0))
    with taken:
        other = terminal.user / "other"
        up = terminal.run("up", "--home", str(other), "--port", str(taken.getsockname()[1]))
    assert up.code == 7 and f"process {os.getpid()} (" in up.err


def test_approval_prompts_on_a_terminal(terminal: Terminal) -> None:
    form = terminal.user / "form"
    terminal.configure(
        server_entry("changing", "stdio", sys.executable, CHANGING, form, pin="strict"),
        config="[server]\nport = 0\n",
    )
    terminal.up()
    for answer, held in (("n\n", True), ("y\n", False)):
        main, side = pty.openpty()
        with subprocess.Popen(
            [*DRAGOMAN, "pins", "approve", "changing.read"],
            stdin=side, stdout=side, stderr=side, env=terminal.environment(),
        ) as child:  # fmt: skip
            os.close(side)
            shown = b""
            while b"Approve this?" not in shown:
                shown += os.read(main, 65_536)
            os.write(main, answer.encode())
            child.wait(WAIT_SECONDS)
        os.close(main)
        assert b"Reads a file." in shown
        names = [pin["name"] for pin in terminal.quick("pins", "list", "--json").json()]
        assert ("changing.read" in names) is held
    assert terminal.quick("pins", "approve", "--all", "--yes").code == 0


def test_disconnected_server_is_retried_when_called(terminal: Terminal) -> None:
    tries, there = terminal.user / "tries", terminal.user / "there"
    terminal.configure(
        server_entry("late", "stdio", sys.executable, "-c", LATE, tries, there, HELLO),
        config="[server]\nport = 0\n",
    )
    terminal.up()
    until = time.monotonic() + WAIT_SECONDS
    while not tries.exists() or len(tries.read_text()) < 2:  # the next pause is about two seconds
        assert time.monotonic() < until
        time.sleep(0.02)
    there.touch()
    while True:
        done = terminal.quick("call", "late.add", "a=1", "b=2")
        if done.code == 0 or time.monotonic() > until:
            break
        assert done.code == 6 and "not yet" in done.err
    assert done.out == "3\n" and len(tries.read_text()) == 3


def test_closed_stdout_is_not_an_error(terminal: Terminal) -> None:
    terminal.configure("comand = 1\n")  # so that doctor exits with 1
    doctor = subprocess.Popen(
        [*DRAGOMAN, "doctor"],
        env=terminal.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert doctor.stdout is not None and doctor.stderr is not None
    doctor.stdout.close()
    with doctor:
        assert doctor.stderr.read() == b""
    assert doctor.returncode == 1
