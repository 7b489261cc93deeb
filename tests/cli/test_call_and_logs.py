"""`prompts`, `resources`, `tools`, `call` and `logs` with a running hub."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.prompt_server import PIXEL
from tests.cli.terminal import DRAGOMAN, WAIT_SECONDS, Terminal
from tests.peers.process import server_entry

OFFERING = Path(__file__).parent / "prompt_server.py"


@pytest.fixture(scope="module")
def offered() -> Iterator[Terminal]:
    """A terminal beside a hub with one server that has an entry of every kind."""
    folder = Path(tempfile.mkdtemp(prefix="dg", dir="/tmp"))
    terminal = Terminal(folder)
    entry = server_entry("of-fer", "stdio", sys.executable, OFFERING)
    terminal.configure(entry, config="[server]\nport = 0\n")
    terminal.up()
    yield terminal
    terminal.close()
    shutil.rmtree(folder, ignore_errors=True)


def test_prompts_and_resources_are_listed_and_used(offered: Terminal) -> None:
    terminal = offered
    listed = terminal.quick("prompts")
    assert listed.code == 0
    assert listed.out.splitlines()[1].split() == [
        "mcp_of_fer_greeting", "whom", "[tone]", "A", "greeting."
    ]  # fmt: skip
    got = terminal.quick("prompts", "get", "of-fer.greeting", "whom=Ann", "tone=1")
    assert (got.code, got.out) == (0, "[assistant]\nGreet Ann 1.\n")
    whole = terminal.quick("prompts", "get", "of-fer.greeting", '{"whom": "Bo"}', "--json").json()
    assert whole["messages"][0]["role"] == "assistant"
    assert (
        "whom  required  Whom to greet" in terminal.quick("prompts", "show", "of-fer.greeting").out
    )
    missing = terminal.quick("prompts", "get", "of-fer.greting", "whom=x", "--json")
    assert missing.code == 5 and missing.json()["error"]["kind"] == "NotFound"
    assert 'did you mean "of-fer.greeting"?' in missing.err

    rows = terminal.quick("resources").out
    assert "note://today" in rows and "text/plain" in rows and "A note." in rows
    assert "note://{day}" in terminal.quick("resources", "templates").out
    assert terminal.quick("resources", "read", "note://today").out == "read note://today\n"
    assert terminal.quick("resources", "read", "note://1999").out == "read note://1999\n"
    saved = terminal.user / "pixel.png"
    done = terminal.quick("resources", "read", "note://pixel", "-o", str(saved))
    assert done.code == 0 and saved.read_bytes() == PIXEL
    again = terminal.quick("resources", "read", "note://pixel", "-o", str(saved))
    assert again.code == 1 and "--force" in again.err
    piped = subprocess.run(
        [*DRAGOMAN, "resources", "read", "note://pixel"],
        capture_output=True,
        env=terminal.environment(),
        check=True,
    )
    assert piped.stdout == PIXEL
    verbs = terminal.quick("audit", "tail", "--json").out
    assert "greeting" in verbs and verbs.count("api") >= 5


def test_tools_are_searched_and_schemas_shown_completely(offered: Terminal) -> None:
    terminal = offered
    names = [tool["id"] for tool in terminal.quick("tools", "Entities", "--json").json()]
    assert names == ["of-fer.graph"]
    assert [t["id"] for t in terminal.quick("tools", "graph", "add", "--json").json()] == names
    assert "of_fer_echo" in terminal.quick("tools", "--search", "says again").out
    assert terminal.quick("tools", "no", "such").out == "none of 5 tools matches: no such\n"
    shown = terminal.quick("tools", "show", "of-fer.graph").out.splitlines()
    assert shown[2:] == [
        "  entities  array of object, required  What to add.",
        "    name  string, required  What it is called.",
        "    tags  array of string, optional",
        "    parts  array of recursive (Entity), optional",
        '  mode  one of fast, slow, optional, default "fast"  How to do it.',
        "  at  string or null, optional",
        "  try: dragoman call mcp_of_fer_graph entities=…",
    ]
    for args in (["tools"], ["tools", "show", "of-fer.graph"]):
        lines = typed_at(terminal, 60, *args)
        assert max(map(len, lines)) <= 60
        assert "Adds entities to the graph." in " ".join(" ".join(lines).split())


def typed_at(terminal: Terminal, columns: int, *args: str) -> list[str]:
    """What a terminal of so many columns shows."""
    main, side = pty.openpty()
    os.set_blocking(main, True)
    environment = {**terminal.environment(), "COLUMNS": str(columns), "NO_COLOR": "1"}
    with subprocess.Popen(
        [*DRAGOMAN, *args], stdin=side, stdout=side, stderr=subprocess.DEVNULL, env=environment
    ):
        os.close(side)
        shown = b""
        while True:
            try:
                data = os.read(main, 65_536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            shown += data
    os.close(main)
    return shown.decode().replace("\r", "").splitlines()


def test_call_command_takes_files_shows_progress_and_explains_errors(offered: Terminal) -> None:
    terminal = offered
    letter = terminal.user / "letter.txt"
    letter.write_text("Dear “all”,\n")
    for args, text in (
        (["of-fer.echo", f"text=@{letter}"], "Dear “all”,\n"),
        (["of-fer.echo", "text=@@ann"], "@ann"),
        (["of-fer.echo", "@-"], "from stdin"),
        (["of-fer.echo", "text=@-"], '{"text": "from stdin"}'),
        (["of-fer.args", f"a=@{letter}", "b=1"], json.dumps({"a": "Dear “all”,\n", "b": 1})),
    ):
        done = terminal.quick("call", *args, input='{"text": "from stdin"}')
        assert (done.code, done.out) == (0, f"{text}\n"), done
    absent = terminal.quick("call", "of-fer.echo", "text=@no-such-file")
    assert absent.code == 2 and "@@" in absent.err

    told = terminal.quick("call", "of-fer.count", "--progress")
    assert told.out == "told\n"
    assert told.err.splitlines()[0] == "dragoman: of-fer.count: 1 of 3, step"
    assert terminal.quick("call", "of-fer.count").out == "not asked\n"
    assert any("2 of 3, step" in line for line in typed_err(terminal, "call", "of-fer.count"))

    typo = terminal.quick("call", "of-fer.echo", "txt=x", "--json")
    assert typo.code == 2 and 'did you mean "text"?' in typo.err
    assert typo.json()["error"]["code"] == 2
    typo = terminal.quick("call", "of-fer.echo", '{"tex": "x"}')
    assert typo.code == 2 and '"tex": did you mean "text"?' in typo.err
    unknown = terminal.quick("call", "of-fer.eco", "--json").json()["error"]
    assert (unknown["kind"], unknown["code"]) == ("NotFound", 5) and unknown["trace"]
    usage = terminal.quick("call", "--json", "--nonsense")
    assert usage.code == 2 and usage.json()["error"]["code"] == 2

    late = terminal.quick("call", "of-fer.hold", "file=/nowhere/x", "--timeout", "0.3", "--json")
    assert late.code == 6 and late.json()["error"]["kind"] == "TimedOut"
    until = time.monotonic() + WAIT_SECONDS
    while "cancelled" not in terminal.quick("audit", "tail", "--verb", "of-fer.hold").out:
        assert time.monotonic() < until


def typed_err(terminal: Terminal, *args: str) -> list[str]:
    """What a terminal shows of stderr."""
    main, side = pty.openpty()
    with subprocess.Popen(
        [*DRAGOMAN, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=side,
        env=terminal.environment(),
    ) as child:
        child.wait(WAIT_SECONDS)
        shown = os.read(main, 65_536)
        os.close(side)
    os.close(main)
    return shown.decode().split("\r")


def completed(terminal: Terminal, *words: str) -> list[str]:
    """The completions of these words."""
    terminal.env = {
        "_DRAGOMAN_COMPLETE": "zsh_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    try:
        done = terminal.run()
    finally:
        terminal.env = {}
    assert done.code == 0 and not done.err, done
    return done.out.splitlines()[1::3]


def test_completion_offers_names_and_nothing_without_a_hub(
    offered: Terminal, terminal: Terminal
) -> None:
    assert completed(offered, "dragoman", "prom") == ["prompts"]
    assert completed(offered, "dragoman", "servers", "restart", "o") == ["of-fer"]
    assert completed(offered, "dragoman", "call", "of-fer.e") == ["of-fer.echo"]
    assert completed(offered, "dragoman", "prompts", "get", "mcp") == ["mcp_of_fer_greeting"]
    assert completed(offered, "dragoman", "resources", "read", "note://t") == ["note://today"]
    # A name that a shell would obey is not put on its line.
    assert not any(";" in one for one in completed(offered, "dragoman", "resources", "read", ""))
    assert completed(terminal, "dragoman", "call", "of") == []
    terminal.configure(server_entry("lonely", "stdio", "true"))
    assert completed(terminal, "dragoman", "servers", "show", "") == ["lonely"]
    for shell in ("bash", "zsh", "fish"):
        made = terminal.quick("completion", shell)
        assert made.code == 0 and "_DRAGOMAN_COMPLETE" in made.out


TEXT_LOG = """\
2026-01-31 12:00:00,123 INFO the hub is up
call files.read by owner:owner -> completed
2026-01-31T12:00:01.123Z WARNING server "files" is not connected: no
2026-01-31T12:00:02.123Z ERROR it crashed
  Traceback: here
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_command_reads_both_formats(terminal: Terminal, form: str) -> None:
    terminal.configure()
    file = terminal.home / "hub.log"
    assert terminal.quick("logs").code == 5
    text = TEXT_LOG
    if form == "json":
        records = [
            {"level": "info", "message": "the hub is up"},
            {"level": "info", "message": "call files.read by owner:owner -> completed"},
            {"level": "warning", "message": 'server "files" is not connected: no'},
            {"level": "error", "message": "it crashed", "exception": "Traceback: here"},
        ]
        text = "".join(json.dumps({"time": "2026", **one}) + "\n" for one in records)
    old, new = text.splitlines(keepends=True)[:1], text.splitlines(keepends=True)[1:]
    (terminal.home / "hub.log.1").write_text("".join(old))
    file.write_text("".join(new))
    shown = terminal.quick("logs").out
    assert "the hub is up" in shown and shown.endswith("it crashed\n  Traceback: here\n")
    assert "the hub is up" not in terminal.quick("logs", "-n", "3").out
    named = terminal.quick("logs", "--server", "files").out.splitlines()
    assert len(named) == 2 and "files.read" in named[0]
    grave = terminal.quick("logs", "--level", "warning", "--json").out.splitlines()
    assert [json.loads(line)["level"] for line in grave] == ["warning", "error"]


def test_log_command_follows_a_rotation_and_workers(terminal: Terminal) -> None:
    terminal.configure()
    file = terminal.home / "hub.log"
    file.write_text("2026-01-31T12:00:00.123Z INFO one\n")
    worker = terminal.home / "workers" / "1"
    worker.mkdir(parents=True)
    (worker / "hub.log").write_text("2026-01-31T11:00:00.123Z INFO zero\n")
    child = terminal.start("logs", "-f")
    assert child.stdout is not None
    assert child.stdout.readline().endswith("zero (worker 1)\n")
    assert child.stdout.readline().endswith("one\n")
    with file.open("a") as opened:
        opened.write("2026-01-31T12:00:00.123Z INFO two\n")
    assert child.stdout.readline().endswith("two\n")
    file.rename(terminal.home / "hub.log.1")
    file.write_text("2026-01-31T12:00:00.123Z INFO three\n")
    assert child.stdout.readline().endswith("three\n")
    with (worker / "hub.log").open("a") as opened:
        opened.write("2026-01-31T12:00:03.123Z INFO four\n")
    assert child.stdout.readline().endswith("four (worker 1)\n")
    child.send_signal(signal.SIGINT)
    assert child.wait(WAIT_SECONDS) == 130
