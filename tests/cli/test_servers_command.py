"""The subcommands of `servers`, with and without a running hub."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal
from tests.peers.process import command

from dragoman.cli.base.errors import UnreadableFile
from dragoman.cli.configure import remove_server, set_enabled
from dragoman.config import read_env

HELLO = str(Path(__file__).parent.parent.parent / "examples" / "hello" / "hello_server.py")
COMMENTED = """\
# Mine.
[server]
port = 0   # any

# What greets.
[[mcp_servers]]
name = "first"      # a name
enabled = true      # for now
[mcp_servers.transport]
type = "stdio"
command = "true"

# Before the second one.
[[mcp_servers]]
"name" = "second"

[mcp_servers.transport]
type = "stdio"
command = "true"
[limits]   # below
result_chars = 1000
"""


def listed(terminal: Terminal) -> dict[str, dict[str, object]]:
    found = tomllib.loads((terminal.home / "config.toml").read_text())
    return {server["name"]: server for server in found.get("mcp_servers", [])}


def test_a_server_is_added_changed_and_removed_while_the_hub_runs(terminal: Terminal) -> None:
    terminal.configure(config="[server]\nport = 0\n# a comment that stays\n")
    terminal.up()
    line = command("faulty_server", "ok")
    options = ("--env", "TOKEN=s3cret", "--prefix", "p", "--sandbox", "off")
    added = terminal.run("servers", "add", "peer", *options, *line)
    assert added.code == 0 and not added.err, added
    assert 'server "peer" is connected: 2025-11-25, 3 tools' in added.out
    assert "mcp_p_echo" in added.out and "s3cret" not in added.out
    assert listed(terminal)["peer"]["env"] == ["TOKEN"]
    assert read_env((terminal.home / "env").read_bytes()) == {"TOKEN": "s3cret"}
    assert "# a comment that stays\n" in (terminal.home / "config.toml").read_text()
    before = terminal.quick("call", "peer.pid").out

    again = terminal.quick("servers", "add", "Peer", *line)
    assert again.code == 1 and "already in config.toml; use --replace to replace it" in again.err

    restarted = terminal.quick("servers", "restart", "peer", "--json").json()
    assert restarted["connected"] and terminal.quick("call", "peer.pid").out != before
    shown = terminal.quick("servers", "show", "peer").out
    assert "state         connected" in shown and "rude-peer 0" in shown and "mcp_p_pid" in shown

    off = terminal.quick("servers", "disable", "peer")
    assert off.code == 0 and 'server "peer" is disabled in ' in off.out
    assert terminal.quick("call", "peer.pid").code == 5
    assert terminal.quick("servers", "restart", "peer").code == 5
    on = terminal.quick("servers", "enable", "peer")
    assert on.code == 0 and "is connected: 2025-11-25, 3 tools" in on.out

    absent = terminal.quick("servers", "add", "absent", "no-such-program", "--flag", "-y")
    assert absent.code == 6 and "dragoman servers remove absent" in absent.err
    assert listed(terminal)["absent"]["transport"] == {
        "type": "stdio",
        "command": "no-such-program",
        "args": ["--flag", "-y"],
    }
    assert terminal.quick("servers", "remove", "absent").code == 0
    typo = terminal.quick("servers", "remove", "per")
    assert typo.code == 5 and 'did you mean "peer"?' in typo.err
    states = terminal.quick("servers", "--json").json()
    assert [state["name"] for state in states["connected"]] == ["peer"]


def test_server_is_added_and_switched_offline(terminal: Terminal) -> None:
    folder = Path(HELLO).parent
    added = terminal.run("servers", "add", "hello", "python3", "hello_server.py", cwd=folder)
    assert added.code == 0 and "hello" in added.out and "3 tools" in added.out
    assert listed(terminal)["hello"]["transport"]["args"] == [HELLO]  # type: ignore[index]
    replaced = terminal.quick(
        "servers", "add", "--json", "--replace", "hello", "--no-connect",
        "--set", "timeout_secs=7", "--set", "pin=strict", "python3", HELLO,
    )  # fmt: skip
    assert replaced.json()["server"] is None and replaced.json()["backup"]
    entry = listed(terminal)["hello"]
    assert (entry["timeout_secs"], entry["pin"]) == (7, "strict")
    url = ["servers", "add", "notes", "https://example.com/mcp", "--no-connect"]
    assert terminal.quick(*url, "--header", "Authorization: Bearer ${NOTES}").code == 0
    headers = listed(terminal)["notes"]["transport"]["headers"]  # type: ignore[index]
    assert headers == {"Authorization": "Bearer ${NOTES}"}
    text = (terminal.home / "config.toml").read_bytes()
    for wrong, code in (
        (["add", "bad/name", "x"], 2),
        (["add", "x", "--set", "comand=1", "x"], 1),
        (["add", "x", "https://example.com", "more"], 2),
        (["add", "x", "ftp://example.com"], 2),
        (["add", "x", "ws://example.com", "more"], 2),
        (["restart", "hello"], 3),
        (["enable", "nobody"], 5),
    ):
        assert terminal.quick("servers", *wrong).code == code, wrong
    assert (terminal.home / "config.toml").read_bytes() == text
    assert terminal.quick("servers", "disable", "notes", "--json").json()["changed"] is True
    assert terminal.quick("servers", "remove", "hello").code == 0
    assert listed(terminal).keys() == {"notes"}


def test_server_edits_keep_every_other_line() -> None:
    lines = COMMENTED.splitlines(keepends=True)
    off = set_enabled(COMMENTED, "first", False).splitlines(keepends=True)
    assert off == [line.replace("= true  ", "= false  ") for line in lines]
    second = set_enabled(COMMENTED, "second", False).splitlines(keepends=True)
    assert [line for line in second if line not in lines] == ["enabled = false\n"]
    assert set_enabled(COMMENTED, "second", True) == COMMENTED
    assert remove_server(COMMENTED, "second") == "".join(lines[:13] + lines[19:])
    assert remove_server(COMMENTED, "first") == "".join(lines[:5] + lines[12:])
    crlf = set_enabled(COMMENTED.replace("\n", "\r\n"), "second", False)
    assert crlf.count("\r\n") == crlf.count("\n") == len(second)


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = [{name = "x", transport = {type = "stdio", command = "a"}}]\n',
        'a = """\n[[mcp_servers]]\n"""\n[[mcp_servers]]\nname = "x"\n',
    ],
)
def test_uneditable_configuration_is_not_changed(text: str) -> None:
    with pytest.raises(UnreadableFile):
        remove_server(text, "x")
