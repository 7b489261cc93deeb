"""What is lost is found again by itself: children, servers, sessions. What must end, ends."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.lasting import (
    kind_of,
    lasting_hub,
    state_of,
    text_of,
    together,
    tools_of,
    until,
    words_of,
)
from tests.peers import wire
from tests.peers.process import (
    HttpPeer,
    alive,
    processes_at_home,
    read_log,
    server_entry,
    wait_for_log,
    wait_until_gone,
)
from tests.peers.process import command as peer_command

ODD = Path(__file__).with_name("odd_server.py")


def odd_entry(name: str, mode: str, *log: Path, **keys: Any) -> str:
    python = peer_command("rude_server")[0]
    return server_entry(name, "stdio", python, ODD, mode, *log, **keys)


@dataclass
class Ward:
    hub: RunningHub
    logs: Path
    modern: HttpPeer
    legacy: HttpPeer
    plain: HttpPeer


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    logs = tmp_path_factory.mktemp("logs")
    http = ("sdk_server", "--transport", "http", "--era")
    with ExitStack() as stack:
        modern = HttpPeer(*http, "modern", "--log", logs / "modern.log")
        stack.callback(modern.close)
        legacy = HttpPeer(*http, "legacy", "--log", logs / "legacy.log")
        stack.callback(legacy.close)
        plain = HttpPeer("rude_http")
        stack.callback(plain.close)
        servers = [
            server_entry("never", "rude_server", "nothing"),
            server_entry("sdk", "sdk_server", "--log", logs / "sdk.log"),
            server_entry("modern", "http", modern.url),
            server_entry("legacy", "http", legacy.url),
            server_entry("plain", "http", plain.url + "/ok"),
            odd_entry("plain-child", "plain", logs / "plain-child.log"),
            odd_entry("keeper", "keeper", logs / "keeper.log"),
            odd_entry("mortal", "plain"),
            odd_entry("hears-badly", "plain"),
            odd_entry("deaf", "deaf"),
            odd_entry("idle", "plain", idle_secs=0.5),
            odd_entry("idle-stubborn", "stubborn", idle_secs=0.5),
            odd_entry("talkative", "talkative"),
        ]
        hub = stack.enter_context(lasting_hub(servers, '[log]\nlevel = "debug"\n'))
        hub.wait_connected(
            "sdk", "modern", "legacy", "plain", "plain-child", "keeper", "talkative", "mortal",
            "hears-badly",
        )  # fmt: skip
        for name in ("idle", "idle-stubborn"):  # connected once: they may rest again by now
            until(partial(tools_of, hub, name), 20)
        yield Ward(hub, logs, modern, legacy, plain)


def pid_of(hub: RunningHub, server: str) -> int:
    return int(text_of(hub.call(f"{server}.pid")))


def kill(hub: RunningHub, server: str, pid: int) -> None:
    """Until the hub has noticed: before that a call may be sent to nobody."""
    lost = f'server "{server}" was lost'
    before = hub.log().count(lost)
    os.kill(pid, signal.SIGKILL)
    until(lambda: hub.log().count(lost) > before)


# --- children


@pytest.mark.promise("B7")
def test_a_child_that_crashes_is_started_again(ward: Ward) -> None:
    begun = time.monotonic()
    crashed = ward.hub.call("sdk.crash")
    assert time.monotonic() - begun < 10
    assert kind_of(crashed) == "Unreachable"
    assert "it exited with status 3" in words_of(crashed)
    assert "The request may or may not have been executed" in words_of(crashed)
    assert text_of(ward.hub.call("sdk.echo", {"text": "back"})) == "back"
    assert state_of(ward.hub, "sdk")["restarts"] == 1
    assert 'server "sdk" was lost: it exited with status 3' in ward.hub.log()


@pytest.mark.promise("B7")
@pytest.mark.parametrize("server", ["plain-child", "keeper"])
def test_a_child_that_is_killed_in_the_middle_of_calls_fails_them_at_once(
    ward: Ward, server: str
) -> None:
    pid = pid_of(ward.hub, server)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(ward.hub.call, f"{server}.hang") for _ in range(3)]
        wait_for_log(ward.logs / f"{server}.log", params={"name": "hang", "arguments": {}}, count=3)
        os.kill(pid, signal.SIGKILL)
        begun = time.monotonic()
        answers = [call.result(15) for call in calls]
        assert time.monotonic() - begun < 10
    assert [kind_of(answer) for answer in answers] == ["Unreachable"] * 3
    assert all("it was terminated by signal SIGKILL" in words_of(answer) for answer in answers)
    again = pid_of(ward.hub, server)
    assert again != pid and not alive(pid)


@pytest.mark.promise("B7")
def test_a_child_that_crashes_time_and_again_is_served_to_the_next_caller_within_reason(
    ward: Ward,
) -> None:
    for _ in range(4):
        kill(ward.hub, "mortal", pid_of(ward.hub, "mortal"))
    for _ in range(20):
        answer = ward.hub.call("mortal.pid")
        if answer["result"].get("isError"):
            assert words_of(answer).startswith(
                'server "mortal" is not connected: it was terminated by'
            )
            break
        kill(ward.hub, "mortal", int(text_of(answer)))
    else:
        raise AssertionError("it was started again without end")
    until(lambda: "isError" not in ward.hub.call("mortal.pid")["result"], 3)


@pytest.mark.promise("B7")
def test_clients_are_not_told_of_a_change_where_a_server_comes_back_with_the_same_tools(
    ward: Ward,
) -> None:
    session = wire.Session(ward.hub.mcp_url)
    stream = wire.stream("GET", ward.hub.mcp_url, headers=session.headers, timeout=0.7)
    with stream as heard:
        kill(ward.hub, "plain-child", pid_of(ward.hub, "plain-child"))
        assert pid_of(ward.hub, "plain-child")
        with pytest.raises(TimeoutError):
            heard.next_json()


@pytest.mark.promise("B7")
def test_a_call_that_could_not_be_sent_is_made_once_the_server_is_there_again(ward: Ward) -> None:
    for _ in range(3):
        assert text_of(ward.hub.call("hears-badly.deafen")) == "what?"
        assert text_of(ward.hub.call("hears-badly.echo", {"text": "hello"})) == "hello"


@pytest.mark.promise("B7")
def test_a_child_that_does_not_listen_any_more_is_started_again(ward: Ward) -> None:
    # It closes its stdin each time: what is promised is an answer in time, and another attempt.
    until(lambda: 'server "deaf" was lost: it closed its stdin' in ward.hub.log())
    assert kind_of(ward.hub.call("deaf.echo", {"text": "?"})) == "Unreachable"
    until(lambda: ward.hub.log().count('server "deaf" is connected') >= 2)


@pytest.mark.promise("B10")
def test_the_end_of_what_a_child_wrote_to_stderr_is_kept_and_shown(ward: Ward) -> None:
    shown = ward.hub.command("servers", "logs", "talkative")
    assert shown.returncode == 0
    assert shown.stdout.endswith("the last line\n")
    assert 60_000 < len(shown.stdout) <= 64 * 1024  # of a megabyte
    assert pid_of(ward.hub, "talkative")  # and it was never blocked


@pytest.mark.promise("B13")
def test_a_child_that_nobody_uses_is_stopped_and_the_next_call_starts_it_again(ward: Ward) -> None:
    first = pid_of(ward.hub, "idle")
    until(lambda: state_of(ward.hub, "idle")["state"] == "idle")
    wait_until_gone([first], 3)
    state = state_of(ward.hub, "idle")
    assert state["connected"] is False
    assert state["reason"] == "unused for 0.5 s; a call starts it again"
    assert tools_of(ward.hub, "idle") == [
        f"mcp_idle_{name}" for name in ("deafen", "echo", "hang", "pid")
    ]
    second = pid_of(ward.hub, "idle")
    assert second != first
    begun = time.monotonic()
    while time.monotonic() - begun < 1.2:  # used all the while, so it is not stopped
        assert pid_of(ward.hub, "idle") == second
        time.sleep(0.1)


@pytest.mark.promise("B13")
def test_a_call_that_comes_while_an_idle_child_is_being_stopped_is_answered(ward: Ward) -> None:
    first = pid_of(ward.hub, "idle-stubborn")
    # ended only by SIGKILL, seconds after it was asked: a call comes in between
    until(lambda: state_of(ward.hub, "idle-stubborn")["connected"] is False)
    assert alive(first)
    assert pid_of(ward.hub, "idle-stubborn") != first
    assert not alive(first)


# --- HTTP


@pytest.mark.promise("B7")
def test_an_http_server_that_was_gone_is_used_again_with_the_tools_it_has_then(
    ward: Ward,
) -> None:
    together(lambda n: _go_and_come_back(ward, ("modern", "legacy")[n]), 2)


def _go_and_come_back(ward: Ward, era: str) -> None:
    peer: HttpPeer = getattr(ward, era)
    file = ward.logs / f"{era}.log"
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(ward.hub.call, f"{era}.slow", {"seconds": 20})
        wait_for_log(file, event="started")
        begun = time.monotonic()
        peer.kill()
        assert kind_of(call.result(15)) == "Unreachable"
        assert time.monotonic() - begun < 10
    assert kind_of(ward.hub.call(f"{era}.echo", {"text": "?"})) == "Unreachable"
    again = HttpPeer(
        "sdk_server", "--transport", "http", "--era", era, "--log", file,
        "--port", peer.port, "--tools", 1,
    )  # fmt: skip
    try:
        # nobody calls: the hub finds out by itself that it is back, and that it has one tool more
        until(lambda: f"mcp_{era}_dummy_00000" in tools_of(ward.hub, era), 15)
        assert text_of(ward.hub.call(f"{era}.echo", {"text": "back"})) == "back"
        # gone and back before anybody noticed
        again.kill()
        again.close()
        again = HttpPeer(
            "sdk_server", "--transport", "http", "--era", era, "--log", file,
            "--port", peer.port, "--tools", 2,
        )  # fmt: skip
        until(lambda: f"mcp_{era}_dummy_00001" in tools_of(ward.hub, era), 15)
        assert text_of(ward.hub.call(f"{era}.echo", {"text": "back"})) == "back"
        _forget_while_many_call(ward, file, again) if era == "legacy" else None
    finally:
        again.close()


def _forget_while_many_call(ward: Ward, file: Path, peer: HttpPeer) -> None:
    """An expired session is opened again, once, and no call is lost by it."""
    greetings = sum(e.get("method") == "initialize" for e in read_log(file))
    for _ in range(3):
        url = peer.url.replace("/mcp", "/forget")
        assert wire.http_request("POST", url).body == b"forgotten\n"
        answers = together(lambda n: ward.hub.call("legacy.echo", {"text": str(n)}), 30)
        assert [text_of(answer) for answer in answers] == [str(n) for n in range(30)]
    after = sum(e.get("method") == "initialize" for e in read_log(file))
    assert after == greetings + 3
    # and changes are heard of on the new session
    toggled = "mcp_legacy_toggled"
    assert text_of(ward.hub.call("legacy.toggle")) == "added"
    until(lambda: toggled in tools_of(ward.hub, "legacy"))


@pytest.mark.promise("B7")
def test_a_call_cuts_the_wait_for_the_next_attempt_short(ward: Ward) -> None:
    ward.plain.kill()

    def failures() -> int:
        return ward.hub.log().count('server "plain" is not connected')

    assert kind_of(ward.hub.call("plain.echo", {"text": "?"})) == "Unreachable"
    until(lambda: failures() >= 2)  # the next attempt comes in three seconds and more
    failed = time.monotonic()
    with HttpPeer("rude_http", "--port", ward.plain.port):
        soon = ward.hub.call("plain.echo", {"text": "?"})
        assert kind_of(soon) == "Unreachable"  # so soon after an attempt it is told the reason
        assert "nothing listens there" in words_of(soon)
        until(lambda: time.monotonic() - failed > 1.1)
        assert text_of(ward.hub.call("plain.echo", {"text": "back"})) == "back"
        assert time.monotonic() - failed < 3


@pytest.mark.promise("B7")
def test_attempts_come_less_and_less_often(ward: Ward) -> None:
    def times() -> list[float]:
        found = re.findall(
            r'^(\S+) [A-Z]+ server "never" is not connected: it exited with status 0$',
            ward.hub.log(),
            re.MULTILINE,
        )
        return [datetime.fromisoformat(one).timestamp() for one in found]

    until(lambda: len(times()) >= 4, 30)
    first, second, third = (b - a for a, b in zip(times()[:3], times()[1:4], strict=True))
    assert first > 0.7 and second > 1.5 and third > 3.1
    state = state_of(ward.hub, "never")
    assert (state["connected"], state["reason"]) == (False, "it exited with status 0")


# --- the end


def grandchildren(file: Path) -> list[int]:
    until(lambda: file.exists() and len(file.read_text(encoding="utf-8").split()) >= 2)
    return [int(pid) for pid in file.read_text(encoding="utf-8").split()]


@pytest.mark.promise("B9")
def test_ending_the_hub_ends_children_and_all_that_they_started(short_tmp: Path, hub: Any) -> None:
    file = short_tmp / "pids"
    running = hub(
        [
            server_entry("forks", "rude_server", "fork", "--pids", file),
            odd_entry("stubborn", "stubborn"),
        ]
    )
    running.wait_connected("forks", "stubborn")
    pids = [*grandchildren(file), pid_of(running, "forks"), pid_of(running, "stubborn")]
    assert all(alive(pid) for pid in pids)
    assert running.stop() == 0
    wait_until_gone(pids, 1)
    assert processes_at_home(running.home) == []


@pytest.mark.promise("B9")
def test_a_hub_ends_what_one_that_was_killed_has_left_on_its_home(
    short_tmp: Path, hub: Any
) -> None:
    file = short_tmp / "pids"
    entry = server_entry("forks", "rude_server", "fork", "--pids", file)
    first = hub([entry])
    first.wait_connected("forks")
    left = grandchildren(file)
    first.kill()
    assert all(alive(pid) for pid in left)
    elsewhere = hub([server_entry("other", "rude_server", "ok")])
    assert all(alive(pid) for pid in left)  # another home's are not its business
    second = hub(home=first.home)
    wait_until_gone(left, 2)
    second.wait_connected("forks")
    assert text_of(second.call("forks.echo", {"text": "anew"})) == "anew"
    elsewhere.wait_connected("other")
