"""`chat`: a conversation in a terminal, one message in a pipe, JSON lines, questions, Ctrl-C."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import Terminal
from tests.cli.test_local_agents import write
from tests.cli.typed_command import TypedCommand
from tests.live.module_hub import until
from tests.peers.process import server_entry
from tests.peers.scripted_model import ScriptedModel, running_model, say, use

EXAMPLE = Path(__file__).parents[2] / "examples" / "agents"
CONFIG = """
[server]
port = 0
[[agents]]
name = "shop"
function = "greeters:order"
[[agents]]
name = "greeter"
function = "greeters:greet"
"""
THINKER = """
description = "Thinks"
[model]
model = "scripted-1"
base_url = "{url}"
[capabilities]
tools = ["hello.*"]
agents = ["buyer"]
"""
BUYER = """
[capabilities]
agents = ["shop"]
[[script]]
when = "buy (.+)"
call = [{ tool = "shop", arguments = { message = "{match}" } }]
[[script]]
after = "*shop"
say = "Bought: {result}"
[[script]]
say = "You said: {message}"
"""


@pytest.fixture
def model(terminal: Terminal) -> Iterator[ScriptedModel]:
    """A hub that does not serve A2A, with agents; their model."""
    with running_model() as made:
        terminal.configure(server_entry("hello", "faulty_server", "ok"), config=CONFIG)
        shutil.copy(EXAMPLE / "greeters.py", terminal.home)
        write(terminal, "thinker", THINKER.replace("{url}", made.url))
        write(terminal, "buyer", BUYER)
        terminal.up()
        until(lambda: "mcp_hello_echo" in terminal.quick("tools").out)
        yield made


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_pipe_prints_only_the_answer(terminal: Terminal, model: ScriptedModel) -> None:
    model.answers += [use(("mcp_hello_echo", {"text": "x"}), text="I look."), say("It is done.")]
    done = terminal.run("chat", "thinker", input="Do it\nnow\n")
    assert (done.code, done.out, done.err) == (0, "It is done.\n", "")
    assert model.requests[0]["messages"][-1]["content"] == "Do it\nnow"
    model.answers.append(say("Fine."))
    done = terminal.run("chat", "thinker", "Review", "this:", "-", input="a = 1\n")
    assert done.out == "Fine.\n"
    assert model.requests[-1]["messages"][-1]["content"] == "Review this:\n\na = 1"


def test_json_has_a_line_for_each_tool_text_and_answer(
    terminal: Terminal, model: ScriptedModel
) -> None:
    model.answers += [
        use(("mcp_hello_echo", {"text": "x"}), ("mcp_hello_nothing", {})),
        use(("dragoman_agent_buyer", {"message": "hi"})),
        say("Done."),
    ]
    done = terminal.quick("chat", "thinker", "Go", "--json")
    found = lines(done.out)
    used = [(one["agent"], one["tool"], one["outcome"]) for one in found if one["event"] == "tool"]
    assert sorted(used) == [
        ("thinker", "buyer.message", "completed"),
        ("thinker", "hello.echo", "completed"),
        ("thinker", "mcp_hello_nothing", "refused"),
    ]
    assert all(one["durationMs"] >= 0 for one in found if one["event"] == "tool")
    refused = next(one for one in found if one.get("outcome") == "refused")
    assert "there is no tool" in refused["problem"]
    assert found[-1]["event"] == "answer" and found[-1]["text"] == "Done."
    assert not found[-1]["failed"]

    model.answers.append(say("Yes."))
    context = found[-1]["context"]
    again = lines(terminal.quick("chat", "thinker", "Sure?", "--json", "--context", context).out)
    assert again[-1]["context"] == context
    said = [one["content"] for one in model.requests[-1]["messages"] if one["role"] == "user"]
    assert said == ["Go", "Sure?"]


def test_lost_conversation_is_begun_anew(terminal: Terminal, model: ScriptedModel) -> None:
    model.answers.append(say("Hello."))
    done = terminal.quick("chat", "thinker", "Hi", "--context", "ctx-0123456789abcdef")
    assert done.code == 0 and done.out == "Hello.\n"
    assert "no longer has this conversation" in done.err


def test_agent_is_found_by_name_and_slug_or_suggested(
    terminal: Terminal, model: ScriptedModel
) -> None:
    assert terminal.quick("chat", "greeter", "World").out == "Hello, World!\n"
    assert terminal.quick("chat", "dragoman_agent_greeter", "World").out == "Hello, World!\n"
    done = terminal.quick("chat", "greter", "World")
    assert done.code == 5 and 'did you mean "greeter"?' in done.err
    done = terminal.quick("chat")
    assert done.code == 2 and "this hub has buyer, greeter, shop, thinker" in done.err
    write(terminal, "broken", "x = 1\n")
    until(lambda: "broken" in terminal.quick("agents", "--json").json()["failed"])
    done = terminal.quick("chat", "broken", "World")
    assert done.code == 5 and "could not be loaded: " in done.err and '"x"' in done.err


def test_failure_is_one_line_with_its_exit_code(terminal: Terminal, model: ScriptedModel) -> None:
    model.answers += [{"status": 401, "body": {"error": {"message": "bad key"}}}] * 2
    done = terminal.quick("chat", "thinker", "Go")
    assert done.code == 6 and not done.out and "bad key" in done.err
    done = terminal.quick("chat", "thinker", "Go", "--json")
    assert done.code == 6
    assert lines(done.out)[-1]["event"] == "error" and "bad key" in done.out
    for args in (["chat", "thinker"], ["chat", "thinker", " "]):
        assert terminal.quick(*args).code == 2


def test_terminal_shows_text_while_it_is_written_and_ctrl_c_cancels(
    terminal: Terminal, model: ScriptedModel
) -> None:
    long = " ".join(f"word{number}" for number in range(100))
    model.answers += [
        use(("mcp_hello_echo", {"text": "x"}), text="I look."),
        say("The first answer."),
        say(long, stall=40),
        say("The third answer."),
    ]
    with TypedCommand(terminal, "chat", "thinker") as chat:
        chat.wait_for("> ")
        chat.type("one\n")
        chat.wait_for("> ", after="The first answer.")
        assert "I look.\n" in chat.shown
        assert "thinker → hello.echo: completed, " in chat.shown
        chat.type("two\n")
        chat.wait_for("word5 ")  # the model has not finished
        assert not model.broken.is_set()
        chat.type("\x03")
        chat.wait_for("> ", after="the answer was cancelled")
        assert model.broken.wait(60)  # the model's connection was closed
        chat.type("three\n")
        chat.wait_for("> ", after="The third answer.")
        said = [one["content"] for one in model.requests[-1]["messages"] if one["role"] == "user"]
        assert said == ["one", "three"]
        model.answers.append(say("The fourth answer."))
        chat.type("/new\n")
        chat.wait_for("> ", after="a new conversation begins")
        chat.type("\x1b[200~four\nlines\x1b[201~\n")  # as a terminal sends a pasted text
        chat.wait_for("> ", after="The fourth answer.")
        said = [one["content"] for one in model.requests[-1]["messages"] if one["role"] == "user"]
        assert said == ["four\nlines"]
        chat.type("/quit\n")
        assert chat.wait_for_end() == 0


def test_question_of_a_nested_agent_is_asked_in_the_terminal(
    terminal: Terminal, model: ScriptedModel
) -> None:
    with TypedCommand(terminal, "chat", "buyer") as chat:
        chat.wait_for("> ")
        chat.type("hello\n")
        chat.wait_for("> ", after="You said: hello")
        chat.type("buy apples\n")
        chat.wait_for("answer", after="How many of apples shall it be?")
        chat.type("5\n")
        chat.wait_for("> ", after="Bought: ")
        assert '"ordered":5' in chat.shown.replace(" ", "")
        chat.type("\x04")
        assert chat.wait_for_end() == 0
    done = terminal.quick("chat", "buyer", "buy pears")
    assert done.code == 0 and "Bought: Error: " in done.out  # there is no terminal to ask in


def test_conversation_goes_on_after_a_question(terminal: Terminal, model: ScriptedModel) -> None:
    model.answers += [
        use(("dragoman_agent_buyer", {"message": "buy plums"})),
        say("Bought."),
        say("Plums."),
    ]
    with TypedCommand(terminal, "chat", "thinker") as chat:
        chat.wait_for("> ")
        chat.type("Buy plums\n")
        chat.wait_for("answer", after="How many of plums shall it be?")
        chat.type("3\n")
        chat.wait_for("> ", after="Bought.")
        chat.type("What did you buy?\n")
        chat.wait_for("> ", after="Plums.")
        chat.type("\x04")
        chat.wait_for_end()
    said = [one["content"] for one in model.requests[-1]["messages"] if one["role"] == "user"]
    assert said == ["Buy plums", "What did you buy?"]
