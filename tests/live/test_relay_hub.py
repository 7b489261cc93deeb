"""`dragoman mcp` with the real hub: with a daemon, without one, and when either exits."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import text_of, until
from tests.peers import wire
from tests.peers.process import processes_at_home, server_entry, wait_until_gone
from tests.peers.sdk_client import conversation

from dragoman import home as homes

EXPOSE = '[mcp]\nstdio_expose = ["*"]\n'
RUDE = server_entry("r", "faulty_server", "ok")


@pytest.fixture
def home(short_tmp: Path) -> Iterator[Path]:
    """A home with one server and no daemon."""
    place = short_tmp / "h"
    place.mkdir(mode=0o700)
    (place / "config.toml").write_text(EXPOSE + RUDE, encoding="utf-8")
    yield place
    left = processes_at_home(place)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "children were left behind"


def ide(home: Path) -> wire.Stdio:
    return wire.Stdio([*DRAGOMAN, "mcp", "--home", home])


def child_of(client: wire.Stdio) -> int:
    params = {"name": "r.pid", "arguments": {}}
    return int(text_of(client.request("tools/call", params, 20)))


def host_of(home: Path) -> int:
    return int(json.loads((home / "daemon.json").read_bytes())["pid"])


@pytest.mark.promise("F2", "B13")
def test_ides_without_a_daemon_share_one_hub(home: Path) -> None:
    with ide(home) as first:
        first.initialize()
        child = child_of(first)
        assert host_of(home) == first.pid
        with ide(home) as second:
            second.initialize()
            assert child_of(second) == child
            assert processes_at_home(home) == [child]
            assert host_of(home) == first.pid
        assert child_of(first) == child, "the second left, and nothing changed"
        first.close_stdin()
        assert first.wait(60) == 0
    wait_until_gone([child], 5)
    assert not (home / "daemon.json").exists()


@pytest.mark.promise("F2")
@pytest.mark.parametrize("how", ["its client goes", "kill -9"])
def test_another_relay_takes_over_when_the_host_ends(home: Path, how: str) -> None:
    with ide(home) as first:
        first.initialize()
        before = child_of(first)
        assert host_of(home) == first.pid
        check_takeover(home, first, before, how)


def check_takeover(home: Path, first: wire.Stdio, before: int, how: str) -> None:
    with ide(home) as second, ide(home) as third:
        for client in (second, third):
            client.initialize()
            assert child_of(client) == before
        if how == "kill -9":
            first.process.kill()
        else:
            first.close_stdin()
        first.wait(60)
        after = child_of(second)
        assert after != before
        assert child_of(third) == after
        assert host_of(home) in {second.pid, third.pid}
        wait_until_gone([before], 5)
        assert processes_at_home(home) == [after]
        told = [n.get("method") for n in second.notifications]
        assert "notifications/tools/list_changed" in told
        for client in (third, second):
            client.close_stdin()
            assert client.wait(60) == 0


@pytest.mark.promise("F2")
def test_call_running_when_the_host_is_killed_is_answered(
    home: Path,
) -> None:
    with ide(home) as first:
        first.initialize()
        child_of(first)
        check_running_call_is_answered(home, first)


def check_running_call_is_answered(home: Path, first: wire.Stdio) -> None:
    with ide(home) as second:
        second.initialize()
        child_of(second)
        slow = {"name": "r.slow", "arguments": {"seconds": 30}}
        second.send(wire.request("slow", "tools/call", slow))
        until(lambda: "r.slow" in recorded(home))
        first.process.kill()
        first.wait(60)
        while True:
            answer = second.read(15)
            if answer.get("id") == "slow":
                break
        assert answer["error"]["data"]["kind"] == "Unreachable"
        assert "may or may not have been executed" in answer["error"]["message"]
        assert child_of(second)
        second.close_stdin()
        assert second.wait(60) == 0


def recorded(home: Path) -> str:
    """The audit, as bytes on disk: an intent is stored before anything leaves."""
    return "".join(
        path.read_bytes().decode("latin-1") for path in home.iterdir() if "audit" in path.name
    )


@pytest.mark.promise("F2")
def test_a_relay_survives_a_restart_of_the_daemon(hub: Callable[..., RunningHub]) -> None:
    first = hub([RUDE], EXPOSE)
    first.wait_connected("r")
    with first.relay() as client:
        assert client.initialize("2025-06-18")["protocolVersion"] == "2025-06-18"
        before = child_of(client)
        assert first.stop() == 0
        client.send(wire.request("asked while there was none", "ping"))
        second = hub(home=first.home)
        second.wait_connected("r")
        while (answer := client.read()).get("id") is None:
            client.notifications.append(answer)
        assert answer == {"jsonrpc": "2.0", "id": "asked while there was none", "result": {}}
        assert child_of(client) != before
        assert host_of(first.home) == second.pid
        assert second.api("/api/status")["clients"]["stdio"] == 1
        told = [n for n in client.notifications if "method" in n]
        assert {n["method"] for n in told} <= {"notifications/tools/list_changed"} and told


@pytest.mark.promise("F2")
def test_daemon_beside_a_hosting_relay_names_the_holder(
    home: Path, hub: Callable[..., RunningHub]
) -> None:
    with ide(home) as client:
        client.initialize()
        child_of(client)
        with pytest.raises(RuntimeError, match=f"process {client.pid} .*dragoman mcp"):
            hub(home=home)
        client.close_stdin()
        assert client.wait(60) == 0


@pytest.mark.promise("F2")
def test_initialize_is_answered_before_the_hub_is_up(home: Path) -> None:
    hold = homes.lock_home(str(home))  # as a hub does that is still on its way
    with ide(home) as client:
        client.send(wire.request(1, "initialize", wire.initialize_params("2025-03-26")))
        answer = client.read(15)  # the home is held all the while
        assert answer["result"]["protocolVersion"] == "2025-03-26"
        assert answer["result"]["serverInfo"]["name"] == "dragoman"
        client.notify("notifications/initialized")
        client.send(wire.request("early", "tools/list"))
        assert client.silent(0.3), "there is nobody yet who could answer that"
        hold.close()
        while (answer := client.read(20)).get("id") != "early":
            assert answer["method"] == "notifications/tools/list_changed"
        assert len(answer["result"]["tools"]) == 3
        client.send([wire.request("b", "ping")])
        batch = client.read(10)
        while not isinstance(batch, list):
            batch = client.read(10)
        assert batch[0]["id"] == "b", "the hub knows the revision that was settled without it"
        client.close_stdin()
        assert client.wait(60) == 0


@pytest.mark.promise("F2")
def test_invalid_configuration_is_reported_on_every_request_until_fixed(home: Path) -> None:
    good = (home / "config.toml").read_text(encoding="utf-8")
    (home / "config.toml").write_text("[mcp]\nstdio_expoze = []\n", encoding="utf-8")
    with ide(home) as client:
        assert client.initialize()["serverInfo"]["name"] == "dragoman"
        for method, params in (
            ("tools/list", {}),
            ("tools/call", {"name": "r.pid", "arguments": {}}),
            ("tools/list", {}),
        ):
            error = client.request(method, params, 20)["error"]
            assert error["data"]["kind"] == "ConfigError"
            assert "stdio_expoze" in error["message"] and "stdio_expose" in error["message"]
            assert "config.toml" in error["message"]
        (home / "config.toml").write_text(good, encoding="utf-8")

        def mended() -> Any:
            return "result" in client.request("tools/list", {}, 20)

        until(mended, 60)
        assert child_of(client)
        assert "notifications/tools/list_changed" in [n.get("method") for n in client.notifications]
        client.close_stdin()
        assert client.wait(60) == 0


@pytest.mark.promise("F1", "F2", "F7")
@pytest.mark.parametrize("mode", ["2026-07-28", "legacy", "auto"])
def test_an_sdk_client_needs_no_daemon(home: Path, mode: str) -> None:
    echo = ("--call", "mcp_r_echo", "--arguments", '{"text": "hi"}')
    command = ["--stdio", *DRAGOMAN, "mcp", "--home", str(home)]
    got = conversation("--mode", mode, *echo, *command)
    assert "result" in got, got
    assert got["version"] == ("2025-11-25" if mode == "legacy" else "2026-07-28")
    assert got["result"]["content"][0]["text"] == "hi"


@pytest.mark.promise("F2")
def test_responses_are_equal_with_and_without_a_daemon(
    home: Path, hub: Callable[..., RunningHub]
) -> None:
    asked = [
        ("initialize", wire.initialize_params()),
        ("tools/list", {}),
        ("tools/call", {"name": "mcp_r_echo", "arguments": {"text": "x"}}),
        ("tools/call", {"name": "mcp_r_echo", "arguments": {"text": [7]}}),
        ("tools/call", {"name": "no.such"}),
        ("tools/list", wire.modern_params()),
        ("no/such", {}),
    ]

    def answers(client: wire.Stdio) -> list[Any]:
        child_of(client)
        got = [client.request(method, params, 20) for method, params in asked]
        found: list[Any] = json.loads(wire_less_traces(json.dumps(got)))
        return found

    with ide(home) as client:
        alone = answers(client)
        client.close_stdin()
        client.wait(60)
    daemon = hub(home=home)
    daemon.wait_connected("r")
    with daemon.relay() as client:
        assert answers(client) == alone


def wire_less_traces(text: str) -> str:
    """Traces are new with every call."""
    return re.sub(r"[0-9a-f]{32}|trace [0-9a-f]{8}", "TRACE", text)
