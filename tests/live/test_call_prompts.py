"""`dragoman call` prompts the user with a tool's questions; the API returns them to programs."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.peers.process import server_entry

Start = Callable[..., Any]


class Terminal:
    """`dragoman ARGS` with a person: what it says can be waited for, and answered."""

    def __init__(self, home: object, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "dragoman", *args, "--home", str(home)]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.said = ""

    def until(self, words: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.said:
            left = end - time.monotonic()
            ready = select.select([self._ours], [], [], max(0.0, left))[0]
            try:
                data = os.read(self._ours, 65536) if ready else b""
            except OSError:  # it has ended
                data = b""
            assert data, f"{words!r} was not said: {self.said!r}"
            self.said += data.decode()

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ended(self) -> int:
        try:
            while os.read(self._ours, 65536):
                pass
        except OSError:
            pass
        os.close(self._ours)
        return self.process.wait(60)


@pytest.fixture(params=["legacy", "modern"])
def asking_hub(hub: Start, request: pytest.FixtureRequest) -> Any:
    era = request.param
    entry = server_entry("m", "matrix_server", "--era", era, interactive=True)
    running = hub([entry])
    running.wait_connected("m")
    return running


@pytest.mark.promise("B12")
def test_call_command_fills_in_a_form(asking_hub: Any) -> None:
    person = Terminal(asking_hub.home, "call", "m.ask_form", "key=x")
    person.until("the tool asks:")
    person.until("Name")
    person.type("\n")
    person.until("a value is required")
    person.type("Ada\n")
    person.until("size")
    person.type("xxl\n")
    person.until("not one of the choices")
    person.type("s\n")
    person.until("Ada")
    person.until('"size"')
    assert person.ended() == 0


@pytest.mark.promise("B12")
def test_call_command_prints_a_url_and_ctrl_d_declines(asking_hub: Any) -> None:
    person = Terminal(asking_hub.home, "call", "m.ask_url", "key=x")
    person.until("https://example.com/sign-in?x=1")
    person.until("Ctrl-D to decline")
    person.type("\x04")
    person.until("declined")
    person.until("decline")
    person.ended()


@pytest.mark.promise("B12")
def test_call_command_without_a_terminal_fails_with_the_question(
    asking_hub: Any,
) -> None:
    done = asking_hub.command("call", "m.ask_form", "key=x")
    assert done.returncode == 6
    assert "cannot answer" in done.stderr


@pytest.mark.promise("B12")
def test_api_client_answers_questions_and_an_invalid_body_is_refused(
    asking_hub: Any,
) -> None:
    path = "/api/tools/m.ask_form/call"
    asked = asking_hub.post(path, {"arguments": {"key": "x"}, "can": ["form"]})
    (key,) = asked["questions"]
    assert asked["questions"][key]["kind"] == "form"
    answers = {key: {"action": "accept", "content": {"name": "Ada"}}}
    again = {"arguments": {"key": "x"}, "can": ["form"], "answers": answers}
    done = asking_hub.post(path, {**again, "handle": asked["handle"]})
    assert "Ada" in json.dumps(done["content"])
    for body in (again, {"can": ["sampling"]}, {"can": "form"}, {"handle": "x"}, {"else": 1}):
        refused = asking_hub.post(path, body)
        assert "the body must be" in refused["error"]["message"], body
    replayed = asking_hub.post(path, {**again, "handle": asked["handle"]})
    assert "already been answered" in replayed["error"]["message"]
