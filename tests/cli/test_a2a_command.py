"""`a2a` with agents by URL and with agents of the hub."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.terminal import DRAGOMAN, WAIT_SECONDS, Terminal
from tests.peers.process import HttpPeer, wait_for_log

AGENT = """
from dragoman.agent import Ask, Decline, Request

async def answer(request: Request):
    word = request.text.split(" ")[0]
    if word == "ask" and request.turn == 1:
        return Ask("which colour?")
    if word == "no":
        raise Decline("never")
    if request.skill:
        return f"skill {request.skill}"
    if request.data is not None:
        return {"got": request.data}
    request.say("thinking")
    return " and ".join(part.get("text") or part["type"] for part in request.parts)
"""
CONFIG = """
[a2a]
enabled = true
[[agents]]
name = "echo"
description = "Repeats what it is told."
function = "cli_test_agent:answer"
input_modes = ["*/*"]
"""


@pytest.fixture(scope="module")
def sdk() -> Iterator[HttpPeer]:
    with HttpPeer("a2a_sdk_agent") as peer:
        yield peer


def hub(terminal: Terminal, config: str = CONFIG) -> None:
    terminal.configure(config=config)
    (terminal.home / "cli_test_agent.py").write_text(AGENT, encoding="utf-8")


# --- any agent, by its URL ------------------------------------------------------------------------


@pytest.mark.promise("L1")
def test_discover_prints_card_and_actual_protocol(terminal: Terminal, sdk: HttpPeer) -> None:
    done = terminal.quick("a2a", "discover", sdk.url)
    assert done.code == 0 and done.err == ""
    assert done.out.startswith("SDK agent  (version 1.2.3)\n  Does what the first word says.\n")
    assert f'uses      A2A 1.0 over JSONRPC at "{sdk.url}/rpc"' in done.out
    assert re.search(r"\necho +repeats\nask +asks back\n", done.out)
    assert f"try: dragoman a2a send {sdk.url}" in done.out
    card = terminal.quick("a2a", "discover", sdk.url, "--json").json()
    assert card["name"] == "SDK agent" and len(card["skills"]) == 2
    assert not terminal.home.exists(), "an agent by its URL needs no hub"


def test_send_prints_the_answer_and_progress_on_stderr(terminal: Terminal, sdk: HttpPeer) -> None:
    assert terminal.quick("a2a", "send", sdk.url, "say hello").out == "echo: hello\n"
    assert terminal.quick("a2a", "send", sdk.url, "direct hi").out == "hi\n"
    slow = terminal.quick("a2a", "send", sdk.url, "slow")
    assert slow.out == "all steps done\n"
    told = [line.removeprefix("dragoman: ") for line in slow.err.splitlines()]
    assert [line for line in told if line.startswith("step")] == ["step 0", "step 1", "step 2"]
    assert terminal.quick("a2a", "send", sdk.url, "--stream", "chunks").out == "one two\n"
    piped = terminal.quick("a2a", "send", sdk.url, "-", input="say from a pipe")
    assert piped.out == "echo: from a pipe\n"
    answer = terminal.quick("a2a", "send", sdk.url, "data", "--json").json()
    assert answer["task"]["artifacts"][0]["parts"][0]["data"] == {"answer": 42}
    file = terminal.quick("a2a", "send", sdk.url, "file")
    assert file.out == "[a.thing, application/x-thing, 2 bytes; --json has it]\n"


def test_send_polls_an_agent_without_streaming(terminal: Terminal) -> None:
    with HttpPeer("a2a_sdk_agent", "--no-streaming") as peer:
        slow = terminal.quick("a2a", "send", peer.url, "slow", "--timeout", "5")
        assert (slow.code, slow.out) == (0, "all steps done\n")
        begun = terminal.quick("a2a", "send", peer.url, "--no-wait", "slow").out.strip()
        assert terminal.quick("a2a", "watch", peer.url, begun).out == "all steps done\n"


def test_task_outcomes_have_their_exit_codes(terminal: Terminal, sdk: HttpPeer) -> None:
    cases: list[tuple[int, list[str], str]] = [
        (1, ["send", sdk.url, "fail"], "the task failed: the disk is full"),
        (1, ["send", sdk.url, "reject"], "the task was rejected: not with me"),
        (2, ["send", sdk.url], "nothing to send"),
        (2, ["send", sdk.url, "--data", "{"], "--data is not valid JSON"),
        (2, ["send", sdk.url, "x", "--no-wait", "--stream"], "exclude each other"),
        (2, ["send", "nohub", "x", "--header", "A: b"], "--header needs an agent given by URL"),
        (2, ["send", sdk.url, "x", "--header", "nonsense"], "NAME: VALUE"),
        (2, ["task", "a", "b", "c"], "unexpected argument"),
        (2, ["send", "localhost:9999", "x"], "for a URL write http://localhost:9999"),
        (2, ["discover", "ftp://127.0.0.1"], "only http:// and https://"),
        (5, ["task", sdk.url, "no-such-task"], "not found"),
        (6, ["send", "http://127.0.0.1:1", "x"], "nothing listens there"),
        (6, ["send", sdk.url, "ask"], "which colour?; answer with: dragoman a2a send"),
    ]
    for code, args, words in cases:
        done = terminal.quick("a2a", *args)
        assert (done.code, done.out) == (code, ""), (args, done)
        assert words in done.err.splitlines()[-1], (args, done)


def test_agent_question_is_answered_by_the_printed_command(
    terminal: Terminal, sdk: HttpPeer
) -> None:
    asked = terminal.quick("a2a", "send", sdk.url, "ask")
    command = asked.err.splitlines()[-1].rpartition("answer with: dragoman ")[2]
    args = command.replace('"…"', "blue").split()
    assert terminal.quick(*args).out == "you said: blue\n"


def test_agent_question_is_prompted_on_a_terminal(terminal: Terminal, sdk: HttpPeer) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*DRAGOMAN, "a2a", "send", sdk.url, "ask"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=terminal.environment(),
        cwd=terminal.user,
    )
    os.close(theirs)
    shown = b""
    until = time.monotonic() + WAIT_SECONDS
    while b"answer" not in shown.rpartition(b"which colour?")[2]:
        assert time.monotonic() < until, shown
        if select.select([ours], [], [], 0.1)[0]:
            shown += os.read(ours, 4096)
    os.write(ours, b"green\n")
    out, _ = child.communicate(timeout=WAIT_SECONDS)
    os.close(ours)
    assert (child.returncode, out) == (0, b"you said: green\n"), shown


def test_a_task_is_listed_shown_watched_and_cancelled(terminal: Terminal, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with HttpPeer("a2a_sdk_agent", "--log", log) as peer:
        begun = terminal.quick("a2a", "send", peer.url, "--no-wait", "hang")
        id = begun.out.strip()
        assert begun.code == 0 and f"dragoman a2a watch {peer.url} {id}" in begun.err
        listed = terminal.quick("a2a", "tasks", peer.url)
        assert listed.out.splitlines()[0].split()[:2] == ["TASK", "STATE"]
        assert f"{id}  working" in listed.out
        assert f"task {id}: working" in terminal.quick("a2a", "task", peer.url, id).out
        watching = terminal.start("a2a", "watch", peer.url, id, "--json")
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["task"]["id"] == id
        assert terminal.quick("a2a", "cancel", peer.url, id).out == f"task {id}: cancelled\n"
        wait_for_log(log, event="cancel", task=id)
        out, err = watching.communicate(timeout=WAIT_SECONDS)
        last = json.loads(out.splitlines()[-1])
        assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"
        assert watching.returncode == 1 and "the task was cancelled" in err
        again = terminal.quick("a2a", "watch", peer.url, id)
        assert again.code == 1 and "the task was cancelled" in again.err
        refused = terminal.quick("a2a", "cancel", peer.url, id)
        assert refused.code == 1 and refused.out == ""


# --- agents of the hub ----------------------------------------------------------------------------


@pytest.mark.promise("L1", "M1")
@pytest.mark.parametrize("runs", [True, False])
def test_hub_agent_is_addressed_by_name(terminal: Terminal, runs: bool) -> None:
    hub(terminal)
    if runs:
        terminal.up()
    done = terminal.quick("a2a", "send", "echo", "hello there")
    assert (done.code, done.out) == (0, "hello there\n")
    assert "dragoman: thinking" in done.err
    wrong = terminal.quick("a2a", "send", "ecco", "x")
    assert wrong.code == 5 and 'did you mean "echo"?' in wrong.err
    assert "Repeats what it is told." in terminal.quick("a2a", "discover", "echo").out
    listed = terminal.quick("a2a", "tasks", "--json").json()
    assert [task["status"]["state"] for task in listed["tasks"]] == ["TASK_STATE_COMPLETED"]


def test_parts_and_skills_reach_a_hub_agent(terminal: Terminal, tmp_path: Path) -> None:
    hub(terminal)
    terminal.up()
    file = tmp_path / "a.bin"
    file.write_bytes(b"\0\1")
    sent = terminal.quick("a2a", "send", "echo", "look", "--file", str(file), "--json").json()
    history = sent["task"]["history"][0]["parts"]
    assert history[1]["filename"] == "a.bin" and base64.b64decode(history[1]["raw"]) == b"\0\1"
    data = terminal.quick("a2a", "send", "echo", "--data", '{"a": [1]}')
    assert json.loads(data.out) == {"got": {"a": [1]}}
    rejected = terminal.quick("a2a", "send", "echo", "no")
    assert rejected.code == 1 and "never" in rejected.err


def test_question_of_a_hub_agent_is_answered_by_task_id(terminal: Terminal) -> None:
    hub(terminal)
    terminal.up()
    asked = terminal.quick("a2a", "send", "echo", "ask", "--json")
    task = asked.json()["task"]
    assert asked.code == 6 and "which colour?" in asked.err
    done = terminal.quick("a2a", "send", "echo", "--task", task["id"], "blue")
    assert done.out == "blue\n"
    shown = terminal.quick("a2a", "task", task["id"], "--history", "10")
    assert "you: ask" in shown.out and "agent: which colour?" in shown.out


@pytest.mark.promise("M1")
def test_a_hub_without_a2a_says_which_setting_enables_it(terminal: Terminal) -> None:
    terminal.configure()
    terminal.up()
    done = terminal.quick("a2a", "send", "echo", "x")
    assert done.code == 7 and "enabled = true below [a2a]" in done.err


@pytest.mark.promise("M2")
@pytest.mark.parametrize("runs", [True, False])
def test_external_agent_is_called_through_the_hub(
    terminal: Terminal, sdk: HttpPeer, runs: bool
) -> None:
    config = f'[a2a]\nenabled = true\n[[a2a.external_agents]]\nname = "far"\nurl = "{sdk.url}"\n'
    hub(terminal, config)
    if runs:
        terminal.up()
        until = time.monotonic() + WAIT_SECONDS
        while "far" not in terminal.quick("tools").out:
            assert time.monotonic() < until
    assert terminal.quick("a2a", "send", "far", "say hello").out == "echo: hello\n"
    assert terminal.quick("a2a", "send", "far", "direct hi").out == "hi\n"
