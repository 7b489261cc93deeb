"""`tools`, `call` and `servers`, with and without a running hub."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from tests.cli.terminal import WAIT_SECONDS, Terminal
from tests.peers.process import processes_at_home, server_entry

from dragoman.cli.base.hub_client import connect_running

HELLO = Path(__file__).parent.parent.parent / "examples" / "hello" / "hello_server.py"


def hello(name: str = "hello") -> str:
    return server_entry(name, "stdio", "python3", str(HELLO))


@pytest.mark.promise("B3", "B4")
def test_tools_are_listed_by_their_legacy_names(terminal: Terminal) -> None:
    terminal.configure(server_entry("my-Server", "faulty_server", "ok"), hello())
    done = terminal.quick("tools")
    assert done.code == 0 and not done.err
    lines = done.out.splitlines()
    assert lines[0].split() == ["NAME", "DESCRIPTION"]
    assert [line.split()[0] for line in lines[1:]] == [
        "mcp_hello_add",
        "mcp_hello_countdown",
        "mcp_hello_greet",
        "mcp_my_server_echo",
        "mcp_my_server_pid",
        "mcp_my_server_slow",
    ]
    assert "[MCP:hello] Adds two numbers." in lines[1]
    only = terminal.quick("tools", "--server", "my-Server", "--json").json()
    assert {tool["name"] for tool in only} >= {"mcp_my_server_echo"} and len(only) == 3


def test_show_prints_how_to_call_a_tool(terminal: Terminal) -> None:
    terminal.configure(hello())
    terminal.up()
    done = terminal.quick("tools", "show", "hello.add")
    assert done.code == 0
    assert "mcp_hello_add  (id hello.add, server hello)" in done.out
    assert "  a  number, required" in done.out
    assert "try: dragoman call mcp_hello_add a=… b=…" in done.out
    definition = terminal.quick("tools", "show", "mcp_hello_add", "--json").json()["definition"]
    assert definition["inputSchema"]["required"] == ["a", "b"]


@pytest.mark.parametrize("runs", [True, False])
def test_call_command_takes_pairs_json_or_stdin(terminal: Terminal, runs: bool) -> None:
    terminal.configure(hello())
    if runs:
        terminal.up()
    assert terminal.quick("call", "mcp_hello_add", "a=40", "b=2").out == "42\n"
    assert terminal.quick("call", "hello.add", '{"a": 1.5, "b": 2}').out == "3.5\n"
    assert terminal.quick("call", "hello.add", "-", input='{"a": 1, "b": 2}').out == "3\n"
    result = terminal.quick("call", "hello.add", "a=1", "b=2", "--json").json()
    assert result["content"] == [{"type": "text", "text": "3"}] and result["failed"] is False


def test_call_command_keeps_strings_where_the_schema_wants_strings(terminal: Terminal) -> None:
    terminal.configure(hello())
    terminal.up()
    for value in ("5", "true", "null", '"x"', "[1]", "a=b", ""):
        assert terminal.quick("call", "hello.greet", f"name={value}").out == f"Hello, {value}!\n"


def test_in_process_command_leaves_nothing_behind(terminal: Terminal) -> None:
    terminal.configure(server_entry("peer", "faulty_server", "ok"))
    done = terminal.quick("call", "peer.echo", "text=hi")
    assert (done.code, done.out, done.err) == (0, "hi\n", "")
    assert not processes_at_home(terminal.home)
    assert not (terminal.home / "daemon.json").exists()
    assert terminal.quick("status").code == 3
    assert terminal.quick("audit", "verify").code == 0


def test_call_outcomes_have_their_exit_codes(terminal: Terminal) -> None:
    gone = server_entry("gone", "faulty_server", "exit-at-call")
    absent = server_entry("absent", "stdio", "no-such-program")
    terminal.configure(hello(), gone, absent)
    terminal.up()
    cases = [
        (1, ["hello.greet", "name=x", "more=1"], "TypeError"),
        (2, ["hello.add", "a=1", "b=x"], 'b: "x" is not of type "number"'),
        (2, ["hello.add", "a=1"], '"b" is a required property'),
        (5, ["hello.gret", "name=x"], 'did you mean "hello.greet"?'),
        (5, ["mcp_hello_gret"], 'did you mean "mcp_hello_greet"?'),
        (5, ["greet"], 'did you mean "'),
        (5, ["zzzzzz"], "see: dragoman tools"),
        (6, ["absent.x"], 'server "absent" is not connected: the command "no-such-program"'),
        (6, ["gone.echo"], "gone"),
    ]
    for code, args, words in cases:
        done = terminal.quick("call", *args)
        assert (done.code, done.out) == (code, ""), (args, done)
        assert words in done.err and len(done.err.splitlines()) == 1, (args, done)


def test_unknown_tool_is_audited_by_every_calling_form(terminal: Terminal) -> None:
    terminal.configure(hello())
    terminal.up()
    terminal.quick("call", "nobody.a", "x=1")
    terminal.quick("call", "nobody.b")
    terminal.wait_until_recorded(2)
    done = terminal.quick("audit", "tail", "--outcome", "not_found", "--json")
    verbs = [json.loads(line)["verb"] for line in done.out.splitlines()]
    assert verbs == ["nobody.a", "nobody.b"]


def test_ctrl_c_ends_a_long_call_with_130(terminal: Terminal) -> None:
    terminal.configure(server_entry("peer", "faulty_server", "ok"))
    terminal.up()
    child = terminal.start("call", "peer.slow", "seconds=4")
    until = time.monotonic() + WAIT_SECONDS
    while "running" not in terminal.quick("audit", "tail").out:
        assert time.monotonic() < until and child.poll() is None
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=WAIT_SECONDS)
    assert (child.returncode, out) == (130, "")
    assert err.strip() == "dragoman: interrupted"


@pytest.mark.promise("G3")
def test_servers_command_prints_state_and_reason(terminal: Terminal) -> None:
    old = server_entry("old", "faulty_server", "old")
    absent = server_entry("absent", "stdio", "no-such-program")
    off = server_entry("off", "stdio", "x", enabled=False)
    terminal.configure(old, absent, off)
    done = terminal.quick("servers")
    assert done.code == 0 and not done.err
    rows = {line.split()[0]: line for line in done.out.splitlines()}
    assert rows["old"].split()[1:5] == ["connected", "2024-11-05", "off", "3"]
    assert rows["absent"].split()[1:5] == ["failed", "-", "off", "0"]
    assert 'the command "no-such-program" was not found on the PATH' in rows["absent"]
    assert rows["off"].split()[1] == "off" and "enabled = false" in rows["off"]
    found = terminal.quick("servers", "--json").json()
    assert [each["name"] for each in found["configured"]] == ["old", "absent", "off"]
    assert found["total_connected"] == 1


def test_tools_command_names_disconnected_servers(terminal: Terminal) -> None:
    terminal.configure(hello(), server_entry("absent", "stdio", "no-such-program"))
    done = terminal.quick("tools")
    assert done.code == 0 and len(done.out.splitlines()) == 4
    assert 'server "absent" is not connected' in done.err and len(done.err.splitlines()) == 1


def test_servers_command_without_servers_explains_how_to_add_one(terminal: Terminal) -> None:
    for command in ("tools", "servers"):
        done = terminal.quick(command)
        assert done.code == 0 and "dragoman import" in done.out


def test_server_log_is_printed_and_an_unknown_server_is_not_found(terminal: Terminal) -> None:
    code = "import sys; sys.stderr.write('one\\ntwo\\n'); sys.exit(3)"
    off = server_entry("off", "stdio", "x", enabled=False)
    terminal.configure(server_entry("bad", "stdio", "python3", "-c", code), hello(), off)
    terminal.up()
    assert 'server "bad" is not connected' in terminal.quick("tools").err  # it waits for that
    done = terminal.quick("servers", "logs", "bad")
    assert done.code == 0 and done.out.endswith("one\ntwo\n")
    assert terminal.quick("servers", "logs", "bad", "--json").json()["name"] == "bad"
    for silent in ("hello", "off"):
        assert "has written nothing" in terminal.quick("servers", "logs", silent).out
    unknown = terminal.quick("servers", "logs", "bat")
    assert unknown.code == 5 and 'did you mean "bad"?' in unknown.err


def test_hanging_server_does_not_block_calls_to_another(terminal: Terminal) -> None:
    terminal.configure(server_entry("stuck", "faulty_server", "hang"), hello())
    terminal.up()
    begun = time.monotonic()
    assert terminal.quick("call", "hello.add", "a=1", "b=2").out == "3\n"
    assert time.monotonic() - begun < 30
    assert "starting" in terminal.quick("servers").out


def test_unknown_name_waits_only_for_servers_that_could_have_it(terminal: Terminal) -> None:
    other = server_entry("other", "faulty_server", "hang", prefix="stu")
    terminal.configure(server_entry("stuck", "faulty_server", "hang"), other, hello())
    terminal.up()
    assert terminal.quick("call", "hello.add", "a=1", "b=2").out == "3\n"
    hub = connect_running(str(terminal.home))
    assert hub is not None
    names = ("hello.ad", "mcp_hello_ad", "stuck.ad", "stu.ad", "nope")
    assert [hub._is_answered(name) for name in names] == [True, True, False, False, False]
    assert "hello_add" in terminal.quick("tools", "--server", "hello").out
    missing = terminal.quick("call", "nope")
    assert missing.code == 5
    assert "waiting for stuck, other, which the hub is connecting to" in missing.err
    assert "waiting" not in terminal.quick("call", "hello.ad").err


def test_home_option_works_before_and_after_the_command(terminal: Terminal) -> None:
    other = terminal.user / "other"
    other.mkdir(mode=0o700)
    (other / "config.toml").write_text(hello())
    for args in (
        ["--home", str(other), "tools", "show", "hello.add"],
        ["tools", "--home", str(other), "show", "hello.add"],
        ["tools", "show", "hello.add", "--home", str(other)],
    ):
        assert terminal.quick(*args).code == 0
    assert not terminal.home.exists()


def test_server_output_cannot_control_the_terminal(terminal: Terminal) -> None:
    code = "import sys; sys.stderr.write('\\x1b[2Jboo\\n'); sys.exit(3)"
    terminal.configure(server_entry("bad", "stdio", "python3", "-c", code))
    done = terminal.quick("servers")
    assert "boo" in done.out and "\x1b" not in done.out


def test_ctrl_c_ends_an_in_process_hub(terminal: Terminal) -> None:
    terminal.configure(server_entry("peer", "faulty_server", "ok"))
    terminal.quick("tools")  # makes the audit
    child = terminal.start("call", "peer.slow", "seconds=1.5")
    until = time.monotonic() + WAIT_SECONDS
    while "running" not in terminal.quick("audit", "tail").out:
        assert time.monotonic() < until and child.poll() is None
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=WAIT_SECONDS)
    assert child.returncode == 130 and err.strip() == "dragoman: interrupted"
    assert not processes_at_home(terminal.home)
    assert terminal.quick("status").code == 3
    assert terminal.quick("audit", "verify").code == 0


def test_quiet_hub_logs_no_calls_and_a_normal_one_does(terminal: Terminal) -> None:
    for args, told in (([], True), (["--quiet"], False)):
        terminal.quick("up", "--detach", "--port", "0", *args)
        terminal.quick("call", f"nobody.{told}")
        assert terminal.quick("stop").code == 0
        log = (terminal.home / "hub.log").read_text()
        assert (f"call nobody.{told} by owner:owner -> failed" in log) is told
