"""Every command has help with an example, and reports a mistake in one line without a traceback."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.terminal import DRAGOMAN, Terminal
from tests.peers.process import server_entry

from dragoman import __version__
from dragoman.cli.main import COMMANDS, cli

GROUPS = {"config", "keys", "audit"}


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield (*words, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


def found(words: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), word)
        assert inner is not None
        command = inner
    return command


EVERY = [words for words in commands(cli) if words != ("mcp",)]
HOMELESS = {("completion",), ("docs",), ("service", "status"), ("service", "uninstall")}
"""Commands that need no home."""


def test_every_command_and_option_has_help() -> None:
    assert len(EVERY) > 15
    for words in EVERY:
        command = found(words)
        assert command.help and command.help[0].isupper(), words
        assert f"dragoman {' '.join(words)}" in command.help, f"{words} shows no example"
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help and parameter.help.endswith("."), (words, parameter.name)
            else:
                shown = parameter.make_metavar(click.Context(command)).strip("[].")
                assert shown.split("|")[0].split("]")[0] in command.help.upper(), (words, shown)
        if not isinstance(command, click.Group) and words not in HOMELESS:
            assert "home" in {parameter.name for parameter in command.params}, words


PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `dragoman (.+?)` +\| ", PAGE, re.MULTILINE)


def test_every_command_is_in_the_documentation_and_no_other() -> None:
    documented = [set(re.findall(r"[\w-]+", row)) for row in ROWS]
    missing = [words for words in EVERY if not any(row.issuperset(words) for row in documented)]
    assert not missing
    assert {re.split(r"\W", row)[0] for row in ROWS} == set(COMMANDS)


def test_the_documentation_names_the_commands_without_json() -> None:
    listed = re.search(r"for programs; (.+?) do not have it", PAGE)
    assert listed is not None
    without = {
        " ".join(words)
        for words in (*EVERY, ("mcp",))
        if not isinstance(command := found(words), click.Group)
        and "as_json" not in {parameter.name for parameter in command.params}
    }
    assert set(re.findall(r"`(.+?)`", listed[1])) == without


def test_help_is_printed_for_each_command(terminal: Terminal) -> None:
    for words in ([], ["call"], ["audit", "tail"], ["mcp"]):
        long, short = terminal.run(*words, "--help"), terminal.run(*words, "-h")
        assert long.code == short.code == 0 and long.out == short.out and not long.err
        assert long.out.startswith(f"Usage: {' '.join(['dragoman', *words])} ")
    text = terminal.run("--help").out
    for name, (_, _, line) in COMMANDS.items():
        assert f"  {name} " in text and line in text
    assert not terminal.home.exists()


def test_version(terminal: Terminal) -> None:
    assert terminal.run("--version").out == f"dragoman {__version__}\n"


BAD: dict[str, tuple[int, list[str], str]] = {
    "an unknown command": (2, ["servrs"], 'did you mean "servers"?'),
    "nothing like a command": (2, ["xyzzy"], "dragoman --help"),
    "an unknown subcommand": (2, ["keys", "mak"], "dragoman keys --help"),
    "an unknown option": (2, ["status", "--jsn"], "--json"),
    "an option without its value": (2, ["status", "--home"], "--home"),
    "an empty home": (2, ["status", "--home", ""], "empty"),
    "a home of nobody": (1, ["status", "--home", "~nobody-such/x"], "DRAGOMAN_HOME"),
    "mcp in the wrong place": (2, ["--home", "x", "mcp"], "dragoman mcp --home DIR"),
    "up: a word too many": (2, ["up", "now"], "dragoman up --help"),
    "up: no number": (2, ["up", "--port", "x"], "--port"),
    "up: no port": (2, ["up", "--port", "65536"], "--port"),
    "up: a home below a file": (1, ["up", "--home", "/dev/null/x"], "as a home"),
    "detach: a home below a file": (1, ["up", "--detach", "--home", "/dev/null/x"], "as a home"),
    "init: a home below a file": (1, ["init", "--home", "/dev/null/x"], "as a home"),
    "config check: a folder": (7, ["config", "check", "--home", "FOLDER"], "cannot read"),
    "up: a folder for config.toml": (7, ["up", "--home", "FOLDER"], "cannot read"),
    "tools: a folder for config.toml": (7, ["tools", "--home", "FOLDER"], "cannot read"),
    "tools: a home that is a file": (3, ["tools", "--home", "FILE"], "as a home"),
    "keys: a home that is a file": (1, ["keys", "create", "x", "--home", "FILE"], "as a home"),
    "call: no name": (2, ["call"], "NAME"),
    "call: no pair": (2, ["call", "a.b", "c"], "key=value"),
    "call: no key": (2, ["call", "a.b", "=c"], "key=value"),
    "call: a key twice": (2, ["call", "a.b", "c=1", "c=2"], "given twice"),
    "call: bad JSON": (2, ["call", "a.b", '{"a": '], "not valid JSON"),
    "call: no object": (2, ["call", "a.b", "[1]"], "one JSON object"),
    "call: deep JSON": (2, ["call", "a.b", "[" * 100_000], "not valid JSON"),
    "call: nothing on stdin": (2, ["call", "a.b", "-"], "not valid JSON"),
    "call: an unknown tool": (5, ["call", "a.b"], "dragoman servers"),
    "call: a name with everything": (5, ["call", "../\x1b[2J?é\n"], "no tool"),
    "show: an unknown tool": (5, ["tools", "show", "a.b"], "dragoman servers"),
    "tools: an unknown server": (5, ["tools", "--server", "x"], "unknown server"),
    "logs: an unknown server": (5, ["servers", "logs", "x"], "no server"),
    "logs: a path": (5, ["servers", "logs", "../../x"], "no server"),
    "keys: a bad name": (2, ["keys", "create", "a b"], "invalid key name"),
    "keys: a bad expiry": (2, ["keys", "create", "a", "--expires", "soon"], "90d"),
    "keys: an unknown name": (5, ["keys", "revoke", "x"], "no key"),
    "audit: none": (5, ["audit", "tail", "--home", "EMPTY"], "no audit"),
    "audit: no number": (2, ["audit", "tail", "-n", "many"], "--lines"),
    "audit: a bad outcome": (2, ["audit", "tail", "--outcome", "x"], "completed"),
    "install: an unknown client": (2, ["install", "curser"], "did you mean cursor?"),
    "install: a project that is none": (2, ["install", "cursor", "--project", "/no"], "/no"),
    "install: a bad name": (2, ["install", "cursor", "--name", "a b"], "letters"),
    "install: options without a client": (2, ["install", "--remove"], "need a CLIENT"),
    "import: neither client nor file": (2, ["import", "nope"], "unknown client or file"),
    "import: no such file": (2, ["import", "no/such.json"], 'file not found: "no/such.json"'),
    "import: a folder": (1, ["import", "FOLDER"], "not a regular file"),
    "import: no servers in it": (1, ["import", "FILE"], "has no MCP servers"),
    "import: no JSON": (1, ["import", "BROKEN"], "line 1"),
    "import: a client without any": (1, ["import", "cursor"], "nothing to import"),
    "mcp: an option": (2, ["mcp", "--hom", "x"], "unknown arguments"),
}


def test_usage_error_is_one_sentence_with_its_exit_code(
    terminal: Terminal,
) -> None:
    places = {name: terminal.user / name.lower() for name in ("FOLDER", "FILE", "BROKEN", "EMPTY")}
    (places["FOLDER"] / "config.toml").mkdir(parents=True)
    places["FOLDER"].chmod(0o700)
    places["EMPTY"].mkdir(mode=0o700)
    places["FILE"].write_text("{}")
    places["BROKEN"].write_text("{no")
    for number, (what, (code, args, words)) in enumerate(BAD.items()):
        run = terminal.run if args[0] == "mcp" or number % 10 == 0 else terminal.quick
        done = run(*(str(places.get(arg, arg)) for arg in args))
        assert done.code == code and not done.out, (what, done)
        assert words in done.err, (what, done)
        if args[0] != "mcp":
            assert done.err.startswith("dragoman: ") and done.err.count("\n") == 1, (what, done)
        assert "\x1b" not in done.err


def test_error_in_json_is_one_line(terminal: Terminal) -> None:
    place = terminal.user / "broken"
    place.mkdir(mode=0o700)
    (place / "config.toml").write_text("[server]\nport = 99999\n")
    for args in (
        ("up", "--home", str(place), "--json"),
        ("up", "--json", "--port", "x"),
        ("call", "a.b", "--json", "nonsense"),
    ):
        done = terminal.run(*args)
        assert done.code and done.out.count("\n") == 1, (args, done)
        assert json.loads(done.out)["error"]["code"] == done.code


def test_arguments_that_are_not_utf8_are_refused(terminal: Terminal) -> None:
    done = terminal.run("call", "a.b", "-", input=b"\xff\xfe\x00")
    assert done.code == 2 and "not valid JSON" in done.err
    assert terminal.run("call", "a.b", "-", input=b'{"a": ' + b"1" * 11_000_000).code == 2


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_a_group_alone_shows_its_commands(terminal: Terminal, name: str) -> None:
    done = terminal.run(name)
    assert done.code == 2 and not done.out and "Commands:" in done.err


def test_no_arguments_print_the_first_steps(terminal: Terminal) -> None:
    done = terminal.run()
    assert done.code == 2 and "First steps:" in done.err and "dragoman import" in done.err


@pytest.mark.parametrize(
    "words", [["tools"], ["audit", "tail", "--json", "-n", "100000"], ["doctor"], ["--help"]]
)
def test_closed_stdout_ends_the_command_quietly(terminal: Terminal, words: list[str]) -> None:
    terminal.configure(server_entry("peer", "faulty_server", "ok"))
    terminal.run("call", "peer.echo", "text=x")
    child = subprocess.Popen(
        [*DRAGOMAN, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=terminal.environment(),
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    err = child.stderr.read().decode()
    assert child.wait(60) in (0, 1) and "Traceback" not in err and "Exception" not in err, err
    child.stderr.close()


def test_colours_are_printed_only_on_terminals(terminal: Terminal) -> None:
    script = ["script", "-qec", " ".join([*DRAGOMAN, "doctor"]), "/dev/null"]
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        done = subprocess.run(
            script,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={**terminal.environment(), "TERM": "xterm", **env},
        )
        assert (b"\x1b[32mok" in done.stdout) is coloured
