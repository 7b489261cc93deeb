"""Configuration changes at run time are applied without affecting anything else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import (
    error_kind,
    error_text,
    state_of,
    text_of,
    tools_of,
    until,
    wait_failure_reason,
)
from tests.live.test_recovery import quirky_entry
from tests.peers.process import HttpPeer, alive, read_log, server_entry, wait_for_log

Start = Callable[..., RunningHub]


def rewrite(hub: RunningHub, *servers: str, more: str = "") -> None:
    """A new configuration in the place of the old one, as a careful editor writes it."""
    file = hub.home / "config.toml"
    new = hub.home / "config.new"
    new.write_text("\n".join([f"{more}\n[server]\nport = 0\n", *servers]), encoding="utf-8")
    new.rename(file)


def pid_of(hub: RunningHub, server: str) -> int:
    return int(text_of(hub.call(f"{server}.pid")))


def names(hub: RunningHub) -> list[str]:
    return [one["name"] for one in hub.api("/api/mcp/servers")["configured"]]


def test_servers_are_added_changed_switched_off_and_removed_without_touching_the_others(
    hub: Start, short_tmp: Path
) -> None:
    log = short_tmp / "stays.log"
    stays = server_entry("stays", "faulty_server", "ok", "--log", log)
    changes = quirky_entry("changes", "plain")
    running = hub([stays, changes])
    running.wait_connected("stays", "changes")
    kept, first = pid_of(running, "stays"), pid_of(running, "changes")
    with ThreadPoolExecutor(1) as pool:
        in_flight = pool.submit(running.call, "stays.slow", {"seconds": 5})
        wait_for_log(log, method="tools/call", count=2)

        added = quirky_entry("added", "plain")
        rewrite(running, stays, changes, added)
        running.wait_connected("added")
        third = pid_of(running, "added")
        assert pid_of(running, "changes") == first

        rewrite(running, stays, quirky_entry("changes", "plain", timeout_secs=5), added)
        until(lambda: not alive(first), 60)
        running.wait_connected("changes")
        assert pid_of(running, "changes") != first
        assert pid_of(running, "added") == third

        rewrite(running, stays, quirky_entry("changes", "plain", enabled=False), added)
        until(lambda: state_of(running, "changes")["state"] == "off", 60)
        assert state_of(running, "changes")["reason"] == "it is disabled (enabled = false)"
        assert tools_of(running, "changes") == []
        assert error_kind(running.call("changes.pid")) == "NotFound"

        rewrite(running, stays)
        until(lambda: names(running) == ["stays"], 60)
        until(lambda: not alive(third), 60)
        listed = [tool["name"] for tool in running.rpc("tools/list")["result"]["tools"]]
        assert sorted(listed) == ["mcp_stays_echo", "mcp_stays_pid", "mcp_stays_slow"]

        assert text_of(in_flight.result(10)) == "slept"  # called before all that
    assert pid_of(running, "stays") == kept
    assert sum(entry.get("event") == "start" for entry in read_log(log)) == 1


def test_running_call_to_a_removed_server_fails_with_the_reason(
    hub: Start, short_tmp: Path
) -> None:
    log = short_tmp / "goes.log"
    stays = server_entry("stays", "faulty_server", "ok")
    running = hub([stays, quirky_entry("goes", "plain", log)])
    running.wait_connected("stays", "goes")
    with ThreadPoolExecutor(1) as pool:
        in_flight = pool.submit(running.call, "goes.hang")
        wait_for_log(log, method="tools/call")
        rewrite(running, stays)
        answer = in_flight.result(5)
    assert error_kind(answer) == "Unreachable"
    assert error_text(answer).startswith(
        'server "goes" was lost: it was stopped. The request may or may not have been executed'
    )
    assert error_kind(running.call("goes.hang")) == "NotFound"


@pytest.mark.promise("B1")
def test_broken_configuration_changes_nothing_and_is_reported_until_fixed(hub: Start) -> None:
    entry = quirky_entry("stays", "plain")
    running = hub([entry])
    running.wait_connected("stays")
    pid = pid_of(running, "stays")
    broken = {
        "not TOML": ("[[mcp_servers]\n", "is not valid TOML"),
        "unknown key": (f"{entry}timeout_seconds = 5\n", 'unknown key "timeout_seconds"'),
        "twice": (f"{entry}{entry}", 'the name of server "stays" already exists: "stays"'),
    }
    for text, words in broken.values():
        rewrite(running, text)

        def is_named(words: str = words) -> bool:
            return words in (running.api("/api/status")["config_problem"] or "")

        assert until(is_named)
        assert "config.toml" in running.api("/api/status")["config_problem"]
        assert f"the new configuration is not used: {running.home}/config.toml" in running.log()
        assert words in running.log()
        assert pid_of(running, "stays") == pid
    rewrite(running, entry, quirky_entry("more", "plain"))
    running.wait_connected("more")
    assert running.api("/api/status")["config_problem"] is None
    assert pid_of(running, "stays") == pid


@pytest.mark.promise("B2", "B10")
def test_variables_are_read_from_the_home_env_file(
    hub: Start, http_peer: Callable[..., HttpPeer], short_tmp: Path
) -> None:
    log = short_tmp / "http.log"
    peer = http_peer("faulty_http", "--log", log)
    home = short_tmp / "home"
    home.mkdir(mode=0o700)
    (home / "env").write_text("# keys\nFROM_FILE=in the file\nBOTH=file\n", encoding="utf-8")
    (home / "env").chmod(0o600)
    code = "import os,json; open('seen', 'w').write(json.dumps(dict(os.environ)))"  # in its home
    running = hub(
        [
            server_entry(
                "http", "http", f"{peer.url}/ok",
                transport={"headers": {"X-A": "${FROM_FILE}", "X-B": "${BOTH}", "X-C": "${LATER}"}},
            ),
            server_entry("child", "stdio", "python3", "-c", code, env=["FROM_FILE", "BOTH"]),
        ],
        home=home,
        env={"BOTH": "environment"},
    )  # fmt: skip
    reason = wait_failure_reason(running, "http")
    assert "needs the environment variable LATER, which is not set" in reason
    seen = running.home / "servers" / "child" / "home" / "seen"
    until(lambda: seen.exists() and seen.read_text(encoding="utf-8").endswith("}"))
    text = seen.read_text(encoding="utf-8")
    assert '"FROM_FILE": "in the file"' in text and '"BOTH": "environment"' in text
    with open(home / "env", "a", encoding="utf-8") as file:
        file.write("LATER=now it is\n")
    running.wait_connected("http", timeout=60)  # by itself
    headers = wait_for_log(log, event="request")["headers"]
    assert (headers["x-a"], headers["x-b"], headers["x-c"]) == (
        "in the file", "environment", "now it is",
    )  # fmt: skip


@pytest.mark.promise("B1")
def test_hub_does_not_start_with_an_invalid_configuration(short_tmp: Path, hub: Start) -> None:
    for text, words in (
        ('[[mcp_servers]]\nname = "x"\n', 'needs a "transport"'),
        (server_entry("x", "stdio", "../run"), 'contains ".."'),
    ):
        with pytest.raises(RuntimeError) as raised:
            hub([text])
        assert words in str(raised.value)
        assert "Traceback" not in str(raised.value)


@pytest.mark.promise("B3")
def test_two_servers_with_one_name_are_refused_by_name(hub: Start) -> None:
    pair = [
        server_entry("my-server", "faulty_server", "ok"),
        server_entry("My_Server", "stdio", "x"),
    ]
    with pytest.raises(
        RuntimeError, match='the name of server "My_Server" already exists: "my-server"'
    ):
        hub(pair)


def test_slow_stopping_server_delays_neither_others_nor_policies(hub: Start) -> None:
    running = hub([quirky_entry("stubborn", "stubborn")])
    running.wait_connected("stubborn")
    pid = pid_of(running, "stubborn")
    rewrite(running, quirky_entry("new", "plain"))
    running.wait_connected("new")
    (running.home / "policies").mkdir(mode=0o700)  # nothing is permitted
    until(lambda: "error" in running.call("new.pid"), 60)
    assert alive(pid)  # still being ended
    until(lambda: not alive(pid), 60)


def test_missing_or_partial_configuration_removes_no_server(hub: Start) -> None:
    entry = quirky_entry("stays", "plain")
    running = hub([entry])
    running.wait_connected("stays")
    pid = pid_of(running, "stays")
    file = running.home / "config.toml"
    whole = file.read_text(encoding="utf-8")
    file.unlink()
    until(lambda: "is missing" in (running.api("/api/status")["config_problem"] or ""), 60)
    assert names(running) == ["stays"] and pid_of(running, "stays") == pid
    said = "config.toml is empty; the last configuration stays in force"
    for count, content in enumerate((b"", b"\n \0\n"), 1):  # as a full disk leaves it
        file.write_bytes(content)

        def was_said(count: int = count) -> bool:
            return running.log().count(said) == count

        until(was_said, 60)
        assert "is empty" in running.api("/api/status")["config_problem"]
    assert names(running) == ["stays"] and pid_of(running, "stays") == pid
    with file.open("w", encoding="utf-8") as half:  # as an editor that truncates first writes it
        half.flush()
        half.write(whole)
    until(lambda: running.api("/api/status")["config_problem"] is None, 60)
    assert names(running) == ["stays"] and pid_of(running, "stays") == pid
