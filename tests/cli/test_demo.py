"""The demo: offered on the first run, asked by every entry point, removed without a trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import Terminal
from tests.cli.typed_command import TypedCommand
from tests.live.module_hub import until
from tests.peers import wire

from dragoman.cli.configure import FIRST_CONFIG
from dragoman.cli.demo import glossary_server
from dragoman.cli.demo.installation import QUESTION, SOURCES

ANSWER = "Pin: the digest of an approved definition."
GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"


def list_files(home: Path) -> dict[str, bytes]:
    """The files and folders of a home that a person might have made."""
    ours = ("audit", "hub", "pins", "registry", "dispatches", "tasks", "usage", "labels", "stores",
            "agents.db")  # fmt: skip
    return {
        str(path.relative_to(home)): path.read_bytes() if path.is_file() else b""
        for path in sorted(home.rglob("*"))
        if not path.name.startswith(
            (*ours, "lock", "daemon", "children", "instructions", ".stores")
        )
        and path.relative_to(home).parts[0] not in ("run", "cache")
    }


def wait_until_ready(terminal: Terminal) -> None:
    until(lambda: terminal.quick("demo", "--json").json()["running"])


def ask_by_mcp(url: str) -> str:
    params = {"name": "dragoman_agent_guide", "arguments": {"message": QUESTION}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"Accept": "application/json, text/event-stream"}
    reply = wire.post(f"{url}/mcp", body, headers | {"MCP-Protocol-Version": "2025-11-25"})
    return str(reply.json()["result"]["content"][0]["text"])


def ask_by_a2a(url: str) -> str:
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": QUESTION}]}
    reply = wire.post(f"{url}/a2a/guide/message:send", {"message": message}).json()
    return str(reply["task"]["artifacts"][0]["parts"][0]["text"])


@pytest.mark.promise("F3", "T1")
def test_one_question_crosses_the_protocols_and_a_nested_agent(terminal: Terminal) -> None:
    url = terminal.up("--demo")["url"]
    wait_until_ready(terminal)
    done = terminal.run("chat", "guide", input=f"{QUESTION}\n")
    assert (done.code, done.out, done.err) == (0, f"{ANSWER}\n", "")
    assert ask_by_mcp(url) == ANSWER
    assert ask_by_a2a(url) == ANSWER
    listed = terminal.quick("audit", "tail", "-n", "3", "--json").out
    records = [json.loads(line) for line in listed.splitlines()]
    assert {one["verb"] for one in records} == {
        "guide.message",
        "librarian.message",
        "glossary.define",
    }
    assert len({one["trace"] for one in records}) == 1
    assert {one["caller"] for one in records} == {"local:local", "agent:guide", "agent:librarian"}


def test_removed_demo_leaves_the_home_as_it_was(terminal: Terminal) -> None:
    terminal.up()
    assert terminal.quick("stop").code == 0
    before = list_files(terminal.home)
    assert before["config.toml"] == FIRST_CONFIG.encode()  # a pipe is never asked
    terminal.up("--demo")
    wait_until_ready(terminal)
    assert terminal.quick("chat", "guide", QUESTION).out == f"{ANSWER}\n"
    assert terminal.quick("demo", "remove").code == 0  # beside the hub
    assert list_files(terminal.home) == before
    assert terminal.quick("agents", "--json").json()["local"] == []
    assert terminal.quick("stop").code == 0
    assert terminal.quick("demo", "add").code == 0  # without a hub
    assert terminal.quick("demo", "remove").code == 0
    assert list_files(terminal.home) == before
    assert terminal.quick("demo", "remove").code == 1


def test_running_hub_takes_the_demo_up(terminal: Terminal) -> None:
    terminal.up()
    done = terminal.quick("demo", "add")
    assert done.code == 0 and "restart the hub to reach the agents by A2A" in done.err
    assert terminal.quick("chat", "guide", "and a card?").out.startswith("Card: an agent's ")
    again = terminal.quick("demo", "add")
    assert again.code == 1 and "installed already" in again.err


def test_first_run_on_a_terminal_offers_the_demo_once(terminal: Terminal) -> None:
    terminal.env["DRAGOMAN_SERVER__PORT"] = "0"
    for key, has_demo in (("x", False), ("d", True)):
        home = terminal.user / key
        with TypedCommand(terminal, "up", "--home", str(home)) as up:
            up.wait_for("to begin without it:")
            assert not (home / "config.toml").exists()
            up.type(key)
            up.wait_for("stop  ", after="is up")
            assert ("dragoman chat guide" in up.shown) is has_demo
            assert (home / "demo.json").exists() is has_demo
            up.type("\x03")
            up.wait_for_end()
        with TypedCommand(terminal, "up", "--home", str(home)) as up:
            up.wait_for("stop  ", after="is up")
            assert "Press d" not in up.shown
            up.type("\x03")
            up.wait_for_end()


def test_changed_file_is_removed_only_with_consent(terminal: Terminal) -> None:
    assert terminal.quick("demo", "add").code == 0
    guide = terminal.home / "agents" / "guide" / "agent.toml"
    guide.write_text(guide.read_text() + "# mine\n", encoding="utf-8")
    assert terminal.quick("demo", "--json").json()["changed"] == ["agents/guide/agent.toml"]
    done = terminal.quick("demo", "remove")
    assert done.code == 0 and f"{guide} was changed and stays" in done.err
    assert guide.exists() and not (terminal.home / "agents" / "librarian").exists()

    done = terminal.quick("demo", "add")
    assert done.code == 1 and 'there is an agent "guide" already' in done.err
    guide.unlink()
    assert terminal.quick("demo", "add").code == 0
    guide.write_text("# mine\n", encoding="utf-8")
    with TypedCommand(terminal, "demo", "remove") as removing:
        removing.wait_for("remove it?")
        removing.type("y\n")
        assert removing.wait_for_end() == 0
    assert not guide.exists()
    assert terminal.quick("demo", "add").code == 0
    guide.write_text("# mine\n", encoding="utf-8")
    assert terminal.quick("demo", "remove", "--yes").code == 0
    assert not (terminal.home / "agents").exists()


def test_edited_configuration_keeps_what_the_demo_has_not_written(terminal: Terminal) -> None:
    mine = "[server]\nport = 0\n\n[a2a]\nenabled = false\n"
    terminal.configure(config=mine)
    done = terminal.quick("demo", "add")
    assert done.code == 0 and "A2A is off in config.toml" in done.err
    file = terminal.home / "config.toml"
    text = file.read_text(encoding="utf-8").replace('pin = "off" ', 'pin = "first"')
    file.write_text(text + "# the end\n", encoding="utf-8")
    assert terminal.quick("demo", "--json").json()["changed"] == ["config.toml"]
    assert terminal.quick("demo", "remove").code == 0
    left = file.read_text(encoding="utf-8")
    assert left.startswith(mine) and left.endswith("# the end\n") and "glossary" not in left
    terminal.configure(config='[[agents]]\nname = "guide"\nfunction = "a:b"\n')
    done = terminal.quick("demo", "add")
    assert done.code == 1 and 'config.toml has a server or agent "guide" already' in done.err
    assert not (terminal.home / "demo.json").exists()


QUESTIONS = {
    "What is a pin?": ANSWER,
    "what are pins": ANSWER,
    "and the catalog?": "Catalog: the names of tools and their targets, in memory.",
    "Explain home": "Home: the directory",
    "era": "Revision; era: one of MCP's five dated versions",
    "What is a pinn?": 'The glossary does not have "pinn". Did you mean Pin?',
    "Hello!": "Hello! Ask me what a term of this hub means",
}


def test_guide_understands_how_people_ask(terminal: Terminal) -> None:
    terminal.up("--demo")
    wait_until_ready(terminal)
    for question, answer in QUESTIONS.items():
        done = terminal.quick("chat", "guide", question)
        assert done.out.startswith(answer), (question, done)


@pytest.mark.parametrize("revision", glossary_server.REVISIONS)
def test_glossary_server_speaks_the_handshake_revisions(revision: str) -> None:
    asked: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": revision}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "ping"},
        {"id": 3, "method": "nothing"},
        {"id": 4, "method": "tools/call", "params": {"name": "list_terms"}},
    ]
    done = subprocess.run(
        [sys.executable, "-I", str(SOURCES / "glossary_server.py"), str(GLOSSARY)],
        input="".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in asked),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[0]["result"]["protocolVersion"] == revision
    assert said[1]["result"] == {} and said[2]["error"]["code"] == -32601
    assert "Pin, " in said[3]["result"]["content"][0]["text"]
