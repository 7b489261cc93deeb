"""Servers with bad manners: each hurts its own callers only, and those in a defined way.

A healthy server stands beside them and is called all the while.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.lasting import (
    Neighbour,
    kind_of,
    lasting_hub,
    modern_stream,
    reason_of,
    rss,
    state_of,
    text_of,
    together,
    tools_of,
    until,
    words_of,
)
from tests.live.test_healing import odd_entry
from tests.peers.process import HttpPeer, server_entry, wait_for_log

TIMEOUT = 1.0
MB = 1 << 20

MODES = (
    "hang-headers", "hang-body", "hang-mid", "reset", "reset-mid", "close", "drip", "endless-sse",
    "204", "html-500", "html-200", "big", "gzip", "redirect-loop", "401", "bad-chunks", "not-http",
    "404-session",
)  # fmt: skip


@dataclass
class Company:
    hub: RunningHub
    http: HttpPeer
    logs: Path


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    logs = tmp_path_factory.mktemp("logs")

    def rude(name: str, mode: str, *args: object) -> str:
        return server_entry(name, "rude_server", mode, *args, timeout_secs=TIMEOUT)

    with ExitStack() as stack:
        http = stack.enter_context(HttpPeer("rude_http", "--log", logs / "http.log"))
        servers = [
            server_entry("healthy", "rude_server", "ok"),
            *(
                rude(mode, mode, "--log", logs / f"{mode}.log")
                for mode in (
                    "hang", "nothing", "garbage", "prints-banner", "wrong-id", "two-answers",
                    "closes-stdout", "exit-at-call", "hang-on-call",
                )
            ),
            rude("flood", "flood", "--seconds", 4),
            rude("stderr-flood", "stderr-flood", "--megabytes", 30),
            rude("bigline", "bigline", "--megabytes", 200),
            rude("elevenmegs", "bigline", "--megabytes", 11),
            *(
                server_entry(f"after-{mode}", "http", f"{http.url}/after/{mode}?seconds=0.2",
                             timeout_secs=TIMEOUT)
                for mode in MODES
            ),
            *(
                server_entry(f"at-once-{mode}", "http", f"{http.url}/{mode}?seconds=0.2",
                             timeout_secs=TIMEOUT)
                for mode in MODES
            ),
            server_entry("http-flood", "http", f"{http.url}/after/endless-sse?seconds=0",
                         timeout_secs=2),
            server_entry("metadata", "http",
                         f"{http.url}/redirect?to=http://169.254.169.254/latest/meta-data"),
            *(
                odd_entry(mode, mode, timeout_secs=TIMEOUT)
                for mode in (
                    "pings", "answers", "impostor", "true-id", "questions", "regress",
                    "pages", "two-cursors", "odd-tools", "floats", "deep",
                )
            ),
        ]  # fmt: skip
        hub = stack.enter_context(lasting_hub(servers))
        hub.wait_connected(
            "healthy", "hang-on-call", "wrong-id", "two-answers", "closes-stdout", "exit-at-call",
            "flood", "bigline", "elevenmegs", "pings", "answers", "impostor", "true-id",
            "questions", "regress", "deep",
        )  # fmt: skip
        yield Company(hub, http, logs)


# --- children


@pytest.mark.promise("B5")
def test_servers_that_never_come_up_are_named_with_the_reason_and_harm_nobody(
    company: Company,
) -> None:
    with Neighbour(company.hub, "healthy.echo") as neighbour:
        assert reason_of(company.hub, "nothing") == "it exited with status 0"
        assert state_of(company.hub, "hang")["connected"] is False
        assert kind_of(company.hub.call("hang.echo", {"text": "x"})) == "Unreachable"
        until(lambda: neighbour.good > 20)
    neighbour.unharmed()


@pytest.mark.parametrize(
    ("server", "kind", "words"),
    [
        ("hang-on-call", "TimedOut", 'did not answer "tools/call" within 1 s'),
        ("wrong-id", "TimedOut", 'did not answer "tools/call" within 1 s'),
        ("true-id", "TimedOut", 'did not answer "tools/call" within 1 s'),
        ("exit-at-call", "Unreachable", "it exited with status 4"),
        ("closes-stdout", "Unreachable", "it closed its stdout"),
        (
            "deep",
            "BadReply",
            'answered "tools/call" with an invalid message: the mess',
        ),
        ("elevenmegs", "BadReply", 'answered "tools/call" with more than 10485760 bytes'),
    ],
)
def test_a_child_that_does_not_answer_properly_gives_its_caller_a_typed_error(
    company: Company, server: str, kind: str, words: str
) -> None:
    with Neighbour(company.hub, "healthy.echo") as neighbour:
        begun = time.monotonic()
        answer = company.hub.call(f"{server}.echo", {"text": "x"})
        assert time.monotonic() - begun < TIMEOUT + 15
    assert kind_of(answer) == kind
    assert words in words_of(answer)
    neighbour.unharmed()


@pytest.mark.parametrize("server", ["garbage", "prints-banner", "floats", "stderr-flood"])
def test_what_is_no_message_is_passed_over(company: Company, server: str) -> None:
    company.hub.wait_connected(server)
    if server == "floats":
        assert kind_of(company.hub.call("floats.echo", {"text": "x"})) == "TimedOut"
        return
    for number in range(5):
        assert text_of(company.hub.call(f"{server}.echo", {"text": str(number)})) == str(number)
    if server != "stderr-flood":
        assert f'server "{server}" sent an invalid message' in company.hub.log()


def test_the_first_answer_counts(company: Company) -> None:
    answers = together(lambda n: company.hub.call("two-answers.echo", {"text": str(n)}), 10)
    assert [text_of(answer) for answer in answers] == ["first"] * 10


@pytest.mark.parametrize("server", ["flood", "pings", "answers"])
def test_a_child_that_talks_without_end_slows_nobody_down(company: Company, server: str) -> None:
    before = rss(company.hub.pid)
    with Neighbour(company.hub, "healthy.echo") as neighbour:
        answer = company.hub.call(f"{server}.echo", {"text": "x"})
        if "isError" not in answer["result"]:
            assert text_of(answer) == "x"
        else:  # what it says of use is among the rest, and may come too late
            assert kind_of(answer) == "TimedOut"
        until(lambda: neighbour.good > 50)
    neighbour.unharmed()
    assert rss(company.hub.pid) - before < 30 * MB


def test_a_message_of_two_hundred_megabytes_costs_the_hub_no_memory(company: Company) -> None:
    before = rss(company.hub.pid)
    peak = before
    with Neighbour(company.hub, "healthy.echo") as neighbour:
        answers = []

        def call(number: int) -> None:
            answers.append(company.hub.call("bigline.echo", {"text": "x"}))

        def watch(number: int) -> None:
            nonlocal peak
            while not answers:
                peak = max(peak, rss(company.hub.pid))
                time.sleep(0.005)

        together(lambda n: (call, watch)[n](n), 2)
    (answer,) = answers
    assert kind_of(answer) in ("Unreachable", "TimedOut")
    neighbour.unharmed()
    assert peak - before < 60 * MB


def test_an_answer_too_large_harms_nobody_who_waits_for_the_same_server(company: Company) -> None:
    # it names the ids of the others' calls inside
    def call(number: int) -> Any:
        if number == 0:
            return company.hub.call("impostor.echo", {"text": "huge"})
        return company.hub.call("impostor.hang" if number < 4 else "impostor.pid")

    huge, *others = together(call, 8)
    assert kind_of(huge) == "BadReply"  # it says itself that it is too large
    assert [kind_of(answer) for answer in others[:3]] == ["TimedOut"] * 3
    assert len({text_of(answer) for answer in others[3:]}) == 1


@pytest.mark.promise("B13")
def test_questions_of_a_server_are_answered_with_what_was_declared(company: Company) -> None:
    said = json.loads(text_of(company.hub.call("questions.echo")))
    assert said["ping"] == {"result": {}}
    for method in ("roots/list", "sampling/createMessage"):
        assert said[method]["error"]["code"] == -32601


@pytest.mark.promise("B12")
def test_progress_that_goes_backwards_or_is_not_ours_is_dropped(company: Company) -> None:
    messages = modern_stream(company.hub, "regress.echo", {}, progressToken="p")
    told = [m["params"]["progress"] for m in messages if m.get("method")]
    assert told == [1, 3, 5]
    assert text_of(messages[-1]) == "done"


# --- lists


@pytest.mark.promise("B5")
def test_odd_tools_are_left_out_alone_and_each_is_reported(company: Company) -> None:
    company.hub.wait_connected("odd-tools")
    state = state_of(company.hub, "odd-tools")
    *left_out, respelled = state["problems"]
    assert [int(problem.split()[1]) for problem in left_out] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert '"fine" is listed twice' in left_out[-1]
    assert "is another spelling of" in respelled
    names = {tool["name"] for tool in state["tools"]}
    assert len(names) == 5 and {"mcp_odd_tools_fine", "mcp_odd_tools_fi_ne"} <= names
    assert any(name.startswith("mcp_odd_tools__t__") for name in names)
    assert max(map(len, names)) == 128
    for name in names:
        assert text_of(company.hub.call(name)) == ""


@pytest.mark.promise("B5")
def test_a_list_without_end_is_cut_off(company: Company) -> None:
    company.hub.wait_connected("two-cursors", "pages")
    assert tools_of(company.hub, "two-cursors") == ["mcp_two_cursors_a", "mcp_two_cursors_b"]
    assert 1 <= state_of(company.hub, "pages")["tools_count"] <= 12
    assert 'the list of tools of server "pages" does not end' in company.hub.log()


# --- HTTP


def test_an_http_server_that_answers_badly_gives_its_caller_a_typed_error(
    company: Company,
) -> None:
    expected = {
        "hang-headers": "TimedOut", "hang-body": "TimedOut", "hang-mid": "TimedOut",
        "drip": "TimedOut", "endless-sse": "TimedOut",
        "reset": "Unreachable", "reset-mid": "Unreachable", "close": "Unreachable",
        "404-session": "Unreachable",  # each session anew, so that the second attempt is the last
    }  # fmt: skip
    company.hub.wait_connected(*(f"after-{mode}" for mode in MODES))
    with Neighbour(company.hub, "healthy.echo") as neighbour:
        answers = together(
            lambda n: company.hub.call(f"after-{MODES[n]}.echo", {"text": "x"}), len(MODES)
        )
    neighbour.unharmed()
    for mode, answer in zip(MODES, answers, strict=True):
        assert kind_of(answer) == expected.get(mode, "BadReply"), (mode, words_of(answer))
        if mode != "404-session":  # one bad answer is no loss
            assert state_of(company.hub, f"after-{mode}")["state"] == "connected", mode


@pytest.mark.parametrize("mode", MODES)
def test_an_http_server_that_is_none_is_named_with_the_reason(company: Company, mode: str) -> None:
    reason = reason_of(company.hub, f"at-once-{mode}")
    words = {
        "hang-headers": "within", "hang-body": "within", "hang-mid": "within", "drip": "within",
        "endless-sse": "within", "204": "HTTP 204", "html-500": "HTTP 500: <html>",
        "html-200": "with a web page instead of JSON", "big": "longer than 10485760 bytes",
        "gzip": "compressed data ends too early", "redirect-loop": "redirects more than",
        "401": "rejected the credentials (HTTP 401); set them under headers", "reset": "lost",
        "reset-mid": "lost", "close": "lost", "bad-chunks": "cannot be used",
        "not-http": "it is not HTTP", "404-session": "has ended the session",
    }  # fmt: skip
    assert words[mode] in reason


@pytest.mark.promise("B11")
def test_a_redirect_to_the_metadata_address_is_never_followed(company: Company) -> None:
    reason = reason_of(company.hub, "metadata")
    assert "169.254.169.254 is a cloud metadata address, which is never allowed" in reason


def test_a_stream_without_end_slows_nobody_down(company: Company) -> None:
    company.hub.wait_connected("http-flood")
    before = rss(company.hub.pid)
    with Neighbour(company.hub, "healthy.echo") as neighbour:
        assert kind_of(company.hub.call("http-flood.echo", {"text": "x"})) == "TimedOut"
    neighbour.unharmed()
    assert rss(company.hub.pid) - before < 30 * MB
    # by its query: another test hangs up on another server at the same path
    flood: dict[str, Any] = {"path": "/after/endless-sse", "query": {"seconds": "0"}}
    wait_for_log(company.logs / "http.log", event="gone", **flood)
