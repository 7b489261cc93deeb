"""Faulty servers: each affects only its own callers, in a defined way, while a healthy server
beside them is called continuously.

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
from tests.live.module_hub import (
    BackgroundCaller,
    error_kind,
    error_text,
    modern_stream,
    rss,
    run_concurrently,
    run_module_hub,
    state_of,
    text_of,
    tools_of,
    until,
    wait_failure_reason,
)
from tests.live.test_recovery import quirky_entry
from tests.peers.process import HttpPeer, server_entry, wait_for_log

TIMEOUT = 1.0
PATIENCE = 15.0
"""For servers that answer, on a busy machine too."""
HANGING = {"hang-headers", "hang-body", "hang-mid", "drip", "endless-sse"}
MB = 1 << 20

MODES = (
    "hang-headers", "hang-body", "hang-mid", "reset", "reset-mid", "close", "drip", "endless-sse",
    "204", "html-500", "html-200", "big", "gzip", "redirect-loop", "401", "bad-chunks", "not-http",
    "404-session",
)  # fmt: skip


@dataclass
class HubRig:
    hub: RunningHub
    http: HttpPeer
    logs: Path


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubRig]:
    logs = tmp_path_factory.mktemp("logs")

    def faulty_entry(name: str, mode: str, *args: object) -> str:
        return server_entry(name, "faulty_server", mode, *args, timeout_secs=TIMEOUT)

    with ExitStack() as stack:
        http = stack.enter_context(HttpPeer("faulty_http", "--log", logs / "http.log"))
        servers = [
            server_entry("healthy", "faulty_server", "ok"),
            *(
                faulty_entry(mode, mode, "--log", logs / f"{mode}.log")
                for mode in (
                    "hang", "nothing", "garbage", "prints-banner", "wrong-id", "two-answers",
                    "closes-stdout", "exit-at-call", "hang-on-call",
                )
            ),
            faulty_entry("flood", "flood", "--seconds", 4),
            faulty_entry("stderr-flood", "stderr-flood", "--megabytes", 30),
            faulty_entry("bigline", "bigline", "--megabytes", 200),
            server_entry("elevenmegs", "faulty_server", "bigline", "--megabytes", 11,
                         timeout_secs=PATIENCE),
            quirky_entry("deep", "deep", timeout_secs=PATIENCE),
            *(
                server_entry(f"after-{mode}", "http", f"{http.url}/after/{mode}?seconds=0.2",
                             timeout_secs=TIMEOUT if mode in HANGING else 20)
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
                quirky_entry(mode, mode, timeout_secs=TIMEOUT)
                for mode in (
                    "pings", "answers", "impostor", "true-id", "questions", "regress",
                    "pages", "two-cursors", "odd-tools", "floats",
                )
            ),
        ]  # fmt: skip
        hub = stack.enter_context(run_module_hub(servers))
        hub.wait_connected(
            "healthy", "hang-on-call", "wrong-id", "two-answers", "closes-stdout", "exit-at-call",
            "flood", "bigline", "elevenmegs", "pings", "answers", "impostor", "true-id",
            "questions", "regress", "deep",
        )  # fmt: skip
        yield HubRig(hub, http, logs)


# --- children


@pytest.mark.promise("B5")
def test_failed_servers_are_reported_with_the_reason_without_side_effects(
    rig: HubRig,
) -> None:
    with BackgroundCaller(rig.hub, "healthy.echo") as neighbour:
        assert wait_failure_reason(rig.hub, "nothing") == "it exited with status 0"
        assert state_of(rig.hub, "hang")["connected"] is False
        assert error_kind(rig.hub.call("hang.echo", {"text": "x"})) == "Unreachable"
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
def test_invalid_child_response_is_a_typed_error(
    rig: HubRig, server: str, kind: str, words: str
) -> None:
    with BackgroundCaller(rig.hub, "healthy.echo") as neighbour:
        begun = time.monotonic()
        answer = rig.hub.call(f"{server}.echo", {"text": "x"})
        assert time.monotonic() - begun < PATIENCE + 15
    assert error_kind(answer) == kind
    assert words in error_text(answer)
    neighbour.unharmed()


@pytest.mark.parametrize("server", ["garbage", "prints-banner", "floats", "stderr-flood"])
def test_invalid_messages_are_ignored(rig: HubRig, server: str) -> None:
    rig.hub.wait_connected(server)
    if server == "floats":
        assert error_kind(rig.hub.call("floats.echo", {"text": "x"})) == "TimedOut"
        return
    for number in range(5):
        assert text_of(rig.hub.call(f"{server}.echo", {"text": str(number)})) == str(number)
    if server != "stderr-flood":
        assert f'server "{server}" sent an invalid message' in rig.hub.log()


def test_first_response_wins(rig: HubRig) -> None:
    answers = run_concurrently(lambda n: rig.hub.call("two-answers.echo", {"text": str(n)}), 10)
    assert [text_of(answer) for answer in answers] == ["first"] * 10


@pytest.mark.parametrize("server", ["flood", "pings", "answers"])
def test_chatty_child_does_not_slow_others(rig: HubRig, server: str) -> None:
    before = rss(rig.hub.pid)
    with BackgroundCaller(rig.hub, "healthy.echo") as neighbour:
        answer = rig.hub.call(f"{server}.echo", {"text": "x"})
        if "isError" not in answer["result"]:
            assert text_of(answer) == "x"
        else:  # what it says of use is among the rest, and may come too late
            assert error_kind(answer) == "TimedOut"
        until(lambda: neighbour.good > 50)
    neighbour.unharmed()
    assert rss(rig.hub.pid) - before < 30 * MB


def test_two_hundred_megabyte_message_costs_no_memory(rig: HubRig) -> None:
    before = rss(rig.hub.pid)
    peak = before
    with BackgroundCaller(rig.hub, "healthy.echo") as neighbour:
        answers = []

        def call(number: int) -> None:
            answers.append(rig.hub.call("bigline.echo", {"text": "x"}))

        def watch(number: int) -> None:
            nonlocal peak
            while not answers:
                peak = max(peak, rss(rig.hub.pid))
                time.sleep(0.005)

        run_concurrently(lambda n: (call, watch)[n](n), 2)
    (answer,) = answers
    assert error_kind(answer) in ("Unreachable", "TimedOut")
    neighbour.unharmed()
    assert peak - before < 60 * MB


def test_oversized_response_fails_only_its_request(rig: HubRig) -> None:
    # it names the ids of the others' calls inside
    def call(number: int) -> Any:
        if number == 0:
            return rig.hub.call("impostor.echo", {"text": "huge"})
        return rig.hub.call("impostor.hang" if number < 4 else "impostor.pid")

    huge, *others = run_concurrently(call, 8)
    assert error_kind(huge) == "BadReply"  # it says itself that it is too large
    assert [error_kind(answer) for answer in others[:3]] == ["TimedOut"] * 3
    assert len({text_of(answer) for answer in others[3:]}) == 1


@pytest.mark.promise("B13")
def test_server_requests_are_answered_by_declared_capabilities(rig: HubRig) -> None:
    said = json.loads(text_of(rig.hub.call("questions.echo")))
    assert said["ping"] == {"result": {}}
    for method in ("roots/list", "sampling/createMessage"):
        assert said[method]["error"]["code"] == -32601


@pytest.mark.promise("B12")
def test_backward_or_foreign_progress_is_dropped(rig: HubRig) -> None:
    messages = modern_stream(rig.hub, "regress.echo", {}, progressToken="p")
    told = [m["params"]["progress"] for m in messages if m.get("method")]
    assert told == [1, 3, 5]
    assert text_of(messages[-1]) == "done"


# --- lists


@pytest.mark.promise("B5")
def test_invalid_tools_are_omitted_alone_and_reported(rig: HubRig) -> None:
    rig.hub.wait_connected("odd-tools")
    state = state_of(rig.hub, "odd-tools")
    *left_out, respelled = state["problems"]
    assert [int(problem.split()[1]) for problem in left_out] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert '"fine" is listed twice' in left_out[-1]
    assert "is another spelling of" in respelled
    names = {tool["name"] for tool in state["tools"]}
    assert len(names) == 5 and {"mcp_odd_tools_fine", "mcp_odd_tools_fi_ne"} <= names
    assert any(name.startswith("mcp_odd_tools__t__") for name in names)
    assert max(map(len, names)) == 128
    for name in names:
        assert text_of(rig.hub.call(name)) == ""


@pytest.mark.promise("B5")
def test_endless_list_is_truncated(rig: HubRig) -> None:
    rig.hub.wait_connected("two-cursors", "pages")
    assert tools_of(rig.hub, "two-cursors") == ["mcp_two_cursors_a", "mcp_two_cursors_b"]
    assert 1 <= state_of(rig.hub, "pages")["tools_count"] <= 12
    assert 'the list of tools of server "pages" does not end' in rig.hub.log()


# --- HTTP


def test_invalid_http_response_is_a_typed_error(
    rig: HubRig,
) -> None:
    expected = {
        **dict.fromkeys(HANGING, "TimedOut"),
        "reset": "Unreachable", "reset-mid": "Unreachable", "close": "Unreachable",
        "401": "LoginRequired",
        "404-session": "Unreachable",  # each session anew, so that the second attempt is the last
    }  # fmt: skip
    rig.hub.wait_connected(*(f"after-{mode}" for mode in MODES))
    with BackgroundCaller(rig.hub, "healthy.echo") as neighbour:
        answers = run_concurrently(
            lambda n: rig.hub.call(f"after-{MODES[n]}.echo", {"text": "x"}), len(MODES)
        )
    neighbour.unharmed()
    for mode, answer in zip(MODES, answers, strict=True):
        assert error_kind(answer) == expected.get(mode, "BadReply"), (mode, error_text(answer))
        if mode not in ("404-session", "401"):  # one bad answer is no loss
            assert state_of(rig.hub, f"after-{mode}")["state"] == "connected", mode


@pytest.mark.parametrize("mode", MODES)
def test_non_mcp_http_server_is_reported_with_the_reason(rig: HubRig, mode: str) -> None:
    reason = wait_failure_reason(rig.hub, f"at-once-{mode}")
    words = {
        "hang-headers": "within", "hang-body": "within", "hang-mid": "within", "drip": "within",
        "endless-sse": "within", "204": "HTTP 204", "html-500": "HTTP 500: <html>",
        "html-200": "with a web page instead of JSON", "big": "more than 10485760 bytes",
        "gzip": "compressed data ends too early", "redirect-loop": "redirects more than",
        "401": "needs a login", "reset": "lost",
        "reset-mid": "lost", "close": "lost", "bad-chunks": "cannot be used",
        "not-http": "it is not HTTP", "404-session": "has ended the session",
    }  # fmt: skip
    assert words[mode] in reason


@pytest.mark.promise("B11")
def test_redirect_to_the_metadata_address_is_refused(rig: HubRig) -> None:
    reason = wait_failure_reason(rig.hub, "metadata")
    assert "169.254.169.254 is a cloud metadata address, which is never allowed" in reason


def test_endless_stream_does_not_slow_others(rig: HubRig) -> None:
    rig.hub.wait_connected("http-flood")
    before = rss(rig.hub.pid)
    with BackgroundCaller(rig.hub, "healthy.echo") as neighbour:
        assert error_kind(rig.hub.call("http-flood.echo", {"text": "x"})) == "TimedOut"
    neighbour.unharmed()
    assert rss(rig.hub.pid) - before < 30 * MB
    # by its query: another test hangs up on another server at the same path
    flood: dict[str, Any] = {"path": "/after/endless-sse", "query": {"seconds": "0"}}
    wait_for_log(rig.logs / "http.log", event="gone", **flood)
