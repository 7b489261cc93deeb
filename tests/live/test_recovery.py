"""Automatic recovery of children, servers and sessions; clean endings."""

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
from tests.live.module_hub import (
    error_kind,
    error_text,
    run_concurrently,
    run_module_hub,
    state_of,
    text_of,
    tools_of,
    until,
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

QUIRKY = Path(__file__).with_name("quirky_server.py")


def quirky_entry(name: str, mode: str, *log: Path, **keys: Any) -> str:
    python = peer_command("faulty_server")[0]
    return server_entry(name, "stdio", python, QUIRKY, mode, *log, **keys)


@dataclass
class HubRig:
    hub: RunningHub
    logs: Path
    modern: HttpPeer
    legacy: HttpPeer
    plain: HttpPeer


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubRig]:
    logs = tmp_path_factory.mktemp("logs")
    http = ("sdk_server", "--transport", "http", "--era")
    with ExitStack() as stack:
        modern = HttpPeer(*http, "modern", "--log", logs / "modern.log")
        stack.callback(modern.close)
        legacy = HttpPeer(*http, "legacy", "--log", logs / "legacy.log")
        stack.callback(legacy.close)
        plain = HttpPeer("faulty_http")
        stack.callback(plain.close)
        servers = [
            server_entry("never", "faulty_server", "nothing"),
            server_entry("sdk", "sdk_server", "--log", logs / "sdk.log"),
            server_entry("modern", "http", modern.url),
            server_entry("legacy", "http", legacy.url),
            server_entry("plain", "http", plain.url + "/ok"),
            quirky_entry("plain-child", "plain", logs / "plain-child.log"),
            quirky_entry("keeper", "keeper", logs / "keeper.log"),
            quirky_entry("mortal", "plain"),
            quirky_entry("hears-badly", "plain"),
            quirky_entry("deaf", "deaf"),
            quirky_entry("idle", "plain", idle_secs=0.5),
            quirky_entry("idle-stubborn", "stubborn", idle_secs=0.5),
            quirky_entry("talkative", "talkative"),
        ]
        hub = stack.enter_context(run_module_hub(servers, '[log]\nlevel = "debug"\n'))
        hub.wait_connected(
            "sdk", "modern", "legacy", "plain", "plain-child", "keeper", "talkative", "mortal",
            "hears-badly",
        )  # fmt: skip
        for name in ("idle", "idle-stubborn"):  # connected once: they may rest again by now
            until(partial(tools_of, hub, name), 60)
        yield HubRig(hub, logs, modern, legacy, plain)


def pid_of(hub: RunningHub, server: str) -> int:
    return int(text_of(hub.call(f"{server}.pid")))


def kill(hub: RunningHub, server: str, pid: int) -> None:
    """Waits until the hub has noticed: before that a call may be sent to a dead process."""
    lost = f'server "{server}" was lost'
    before = hub.log().count(lost)
    os.kill(pid, signal.SIGKILL)
    until(lambda: hub.log().count(lost) > before)


# --- children


@pytest.mark.promise("B7")
def test_crashed_child_is_restarted(rig: HubRig) -> None:
    begun = time.monotonic()
    crashed = rig.hub.call("sdk.crash")
    assert time.monotonic() - begun < 30
    assert error_kind(crashed) == "Unreachable"
    assert "it exited with status 3" in error_text(crashed)
    assert "The request may or may not have been executed" in error_text(crashed)
    assert text_of(rig.hub.call("sdk.echo", {"text": "back"})) == "back"
    assert state_of(rig.hub, "sdk")["restarts"] == 1
    assert 'server "sdk" was lost: it exited with status 3' in rig.hub.log()


@pytest.mark.promise("B7")
@pytest.mark.parametrize("server", ["plain-child", "keeper"])
def test_killed_child_fails_its_calls_at_once(rig: HubRig, server: str) -> None:
    pid = pid_of(rig.hub, server)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(rig.hub.call, f"{server}.hang") for _ in range(3)]
        wait_for_log(rig.logs / f"{server}.log", params={"name": "hang", "arguments": {}}, count=3)
        os.kill(pid, signal.SIGKILL)
        begun = time.monotonic()
        answers = [call.result(15) for call in calls]
        assert time.monotonic() - begun < 30
    assert [error_kind(answer) for answer in answers] == ["Unreachable"] * 3
    assert all("it was terminated by signal SIGKILL" in error_text(answer) for answer in answers)
    again = pid_of(rig.hub, server)
    assert again != pid and not alive(pid)


@pytest.mark.promise("B7")
def test_repeatedly_crashing_child_is_restarted_for_the_next_call(
    rig: HubRig,
) -> None:
    for _ in range(4):
        kill(rig.hub, "mortal", pid_of(rig.hub, "mortal"))
    for _ in range(20):
        answer = rig.hub.call("mortal.pid")
        if answer["result"].get("isError"):
            assert error_text(answer).startswith(
                'server "mortal" is not connected: it was terminated by'
            )
            break
        kill(rig.hub, "mortal", int(text_of(answer)))
    else:
        raise AssertionError("it was started again without end")
    until(lambda: "isError" not in rig.hub.call("mortal.pid")["result"], 60)


@pytest.mark.promise("B7")
def test_clients_are_not_notified_when_tools_are_unchanged_after_restart(
    rig: HubRig,
) -> None:
    session = wire.Session(rig.hub.mcp_url)
    stream = wire.stream("GET", rig.hub.mcp_url, headers=session.headers, timeout=0.7)
    with stream as received:
        kill(rig.hub, "plain-child", pid_of(rig.hub, "plain-child"))
        assert pid_of(rig.hub, "plain-child")
        with pytest.raises(TimeoutError):
            received.next_json()


@pytest.mark.promise("B7")
def test_unsent_call_is_made_once_the_server_is_back(rig: HubRig) -> None:
    for _ in range(3):
        assert text_of(rig.hub.call("hears-badly.deafen")) == "what?"
        assert text_of(rig.hub.call("hears-badly.echo", {"text": "hello"})) == "hello"


@pytest.mark.promise("B7")
def test_unresponsive_child_is_restarted(rig: HubRig) -> None:
    # It closes its stdin each time: what is promised is an answer in time, and another attempt.
    until(lambda: 'server "deaf" was lost: it closed its stdin' in rig.hub.log())
    assert error_kind(rig.hub.call("deaf.echo", {"text": "?"})) == "Unreachable"
    until(lambda: rig.hub.log().count('server "deaf" is connected') >= 2)


@pytest.mark.promise("B10")
def test_stderr_tail_of_a_child_is_kept(rig: HubRig) -> None:
    shown = rig.hub.command("servers", "logs", "talkative")
    assert shown.returncode == 0
    assert shown.stdout.endswith("the last line\n")
    assert 60_000 < len(shown.stdout) <= 64 * 1024  # of a megabyte
    assert pid_of(rig.hub, "talkative")  # and it was never blocked


@pytest.mark.promise("B13")
def test_idle_child_is_stopped_and_restarted_on_demand(rig: HubRig) -> None:
    first = pid_of(rig.hub, "idle")
    until(lambda: state_of(rig.hub, "idle")["state"] == "idle")
    wait_until_gone([first], 3)
    state = state_of(rig.hub, "idle")
    assert state["connected"] is False
    assert state["reason"] == "unused for 0.5 s; a call starts it again"
    assert tools_of(rig.hub, "idle") == [
        f"mcp_idle_{name}" for name in ("deafen", "echo", "hang", "pid")
    ]
    second = pid_of(rig.hub, "idle")
    assert second != first
    begun = used = time.monotonic()
    while time.monotonic() - begun < 1.2:  # used all the while, so it is not stopped
        found, before, used = pid_of(rig.hub, "idle"), used, time.monotonic()
        assert found == second or used - before > 0.4  # a busy machine has not used it
        second = found
        time.sleep(0.1)


@pytest.mark.promise("B13")
def test_call_during_an_idle_stop_is_answered(rig: HubRig) -> None:
    first = pid_of(rig.hub, "idle-stubborn")
    # ended only by SIGKILL, seconds after it was asked: a call comes in between
    until(lambda: state_of(rig.hub, "idle-stubborn")["connected"] is False)
    assert alive(first)
    assert pid_of(rig.hub, "idle-stubborn") != first
    assert not alive(first)


# --- HTTP


@pytest.mark.promise("B7")
def test_returned_http_server_is_used_with_its_new_tools(
    rig: HubRig,
) -> None:
    run_concurrently(lambda n: _go_and_come_back(rig, ("modern", "legacy")[n]), 2)


def _go_and_come_back(rig: HubRig, era: str) -> None:
    peer: HttpPeer = getattr(rig, era)
    file = rig.logs / f"{era}.log"
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(rig.hub.call, f"{era}.slow", {"seconds": 20})
        wait_for_log(file, event="started")
        begun = time.monotonic()
        peer.kill()
        assert error_kind(call.result(15)) == "Unreachable"
        assert time.monotonic() - begun < 30
    assert error_kind(rig.hub.call(f"{era}.echo", {"text": "?"})) == "Unreachable"
    again = HttpPeer(
        "sdk_server", "--transport", "http", "--era", era, "--log", file,
        "--port", peer.port, "--tools", 1,
    )  # fmt: skip
    try:
        # without calls: the hub detects by itself that it is back with one more tool
        until(lambda: f"mcp_{era}_dummy_00000" in tools_of(rig.hub, era), 60)
        assert text_of(rig.hub.call(f"{era}.echo", {"text": "back"})) == "back"
        # gone and back before anybody noticed
        again.kill()
        again.close()
        again = HttpPeer(
            "sdk_server", "--transport", "http", "--era", era, "--log", file,
            "--port", peer.port, "--tools", 2,
        )  # fmt: skip
        until(lambda: f"mcp_{era}_dummy_00001" in tools_of(rig.hub, era), 60)
        assert text_of(rig.hub.call(f"{era}.echo", {"text": "back"})) == "back"
        _forget_while_many_call(rig, file, again) if era == "legacy" else None
    finally:
        again.close()


def _forget_while_many_call(rig: HubRig, file: Path, peer: HttpPeer) -> None:
    """An expired session is opened again, once, and no call is lost by it."""
    greetings = sum(e.get("method") == "initialize" for e in read_log(file))
    for _ in range(3):
        url = peer.url.replace("/mcp", "/forget")
        assert wire.http_request("POST", url).body == b"forgotten\n"
        answers = run_concurrently(lambda n: rig.hub.call("legacy.echo", {"text": str(n)}), 30)
        assert [text_of(answer) for answer in answers] == [str(n) for n in range(30)]
    after = sum(e.get("method") == "initialize" for e in read_log(file))
    assert after == greetings + 3
    # and changes are heard of on the new session
    toggled = "mcp_legacy_toggled"
    assert text_of(rig.hub.call("legacy.toggle")) == "added"
    until(lambda: toggled in tools_of(rig.hub, "legacy"))


@pytest.mark.promise("B7")
def test_call_shortens_the_reconnect_backoff(rig: HubRig) -> None:
    rig.plain.kill()

    def failures() -> int:
        return rig.hub.log().count('server "plain" is not connected')

    assert error_kind(rig.hub.call("plain.echo", {"text": "?"})) == "Unreachable"
    until(lambda: failures() >= 2)  # the next attempt comes in three seconds and more
    failed = time.monotonic()
    with HttpPeer("faulty_http", "--port", rig.plain.port):
        soon = rig.hub.call("plain.echo", {"text": "?"})
        assert error_kind(soon) == "Unreachable"  # so soon after an attempt it gets the reason
        assert "nothing listens there" in error_text(soon)
        until(lambda: time.monotonic() - failed > 1.1)
        assert text_of(rig.hub.call("plain.echo", {"text": "back"})) == "back"
        assert time.monotonic() - failed < 30


@pytest.mark.promise("B7")
def test_reconnect_backoff_grows(rig: HubRig) -> None:
    def times() -> list[float]:
        found = re.findall(
            r'^(\S+) [A-Z]+ server "never" is not connected: it exited with status 0$',
            rig.hub.log(),
            re.MULTILINE,
        )
        return [datetime.fromisoformat(one).timestamp() for one in found]

    until(lambda: len(times()) >= 4, 60)
    first, second, third = (b - a for a, b in zip(times()[:3], times()[1:4], strict=True))
    assert first > 0.7 and second > 1.5 and third > 3.1
    state = state_of(rig.hub, "never")
    assert (state["connected"], state["reason"]) == (False, "it exited with status 0")


# --- the end


def grandchildren(file: Path) -> list[int]:
    until(lambda: file.exists() and len(file.read_text(encoding="utf-8").split()) >= 2)
    return [int(pid) for pid in file.read_text(encoding="utf-8").split()]


@pytest.mark.promise("B9")
def test_shutdown_ends_children_and_descendants(short_tmp: Path, hub: Any) -> None:
    file = short_tmp / "pids"
    running = hub(
        [
            server_entry("forks", "faulty_server", "fork", "--pids", file),
            quirky_entry("stubborn", "stubborn"),
        ]
    )
    running.wait_connected("forks", "stubborn")
    pids = [*grandchildren(file), pid_of(running, "forks"), pid_of(running, "stubborn")]
    assert all(alive(pid) for pid in pids)
    assert running.stop() == 0
    wait_until_gone(pids, 1)
    assert processes_at_home(running.home) == []


@pytest.mark.promise("B9")
def test_next_hub_ends_children_of_a_killed_one(short_tmp: Path, hub: Any) -> None:
    file = short_tmp / "pids"
    entry = server_entry("forks", "faulty_server", "fork", "--pids", file)
    first = hub([entry])
    first.wait_connected("forks")
    left = grandchildren(file)
    first.kill()
    assert all(alive(pid) for pid in left)
    elsewhere = hub([server_entry("other", "faulty_server", "ok")])
    assert all(alive(pid) for pid in left)  # another home's are not its business
    second = hub(home=first.home)
    wait_until_gone(left, 2)
    second.wait_connected("forks")
    assert text_of(second.call("forks.echo", {"text": "anew"})) == "anew"
    elsewhere.wait_connected("other")
