"""`init`, `config check`, `up`, `status`, `stop`."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import stat
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.cli.terminal import DRAGOMAN, WAIT_SECONDS, Terminal
from tests.peers import wire
from tests.peers.process import server_entry, wait_until_gone

from dragoman import __version__


def test_init_writes_a_commented_file_once_and_it_loads(terminal: Terminal) -> None:
    first = terminal.run("init")
    assert first.code == 0 and "wrote" in first.out and "dragoman up" in first.out
    file = terminal.home / "config.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert text.count("#") > 10
    file.write_text(text + "# mine\n")
    again = terminal.run("init")
    assert again.code == 0 and "already exists" in again.out
    assert file.read_text() == text + "# mine\n"
    assert terminal.run("config", "check").code == 0


def test_commented_examples_of_the_first_file_load(terminal: Terminal) -> None:
    terminal.run("init")
    file = terminal.home / "config.toml"
    head, _, examples = file.read_text().partition("# One block per server.")
    lines = [line.removeprefix("# ") for line in examples.splitlines() if line.startswith("# ")]
    file.write_text("\n".join([head, *lines]))
    done = terminal.run("config", "check", "--json")
    assert done.code == 0, done.err
    assert [each["name"] for each in done.json()["servers"]] == ["github", "remote-tools"]


def test_config_show_has_no_secret_of_an_address(terminal: Terminal) -> None:
    shop = server_entry("shop", "stdio", "docker", "-e", "DB_PASS=c4n4ry", "pg://u:c4n4ry@h/d")
    search = 'search_url = "https://u:c4n4ry@search.example/q?key=c4n4ry"'
    cluster = 'secret = "c4n4ry-c4n4ry-c4n4ry-c4n4ry-c4n4ry"'
    redis = '[redis]\nurl = "redis://:a@c4n4ry/b@h:1/0"\n[store]\nurl = "env:DATABASE_URL"'
    config = f"[tools]\n{search}\n[cluster]\n{cluster}\n{redis}"
    terminal.configure(shop, config=config)
    done = terminal.run("config", "show", "--all", "--json")
    assert done.code == 0, done.err
    assert "c4n4ry" not in done.out
    found = {row["setting"]: row["value"] for row in done.json()}
    assert found["store.url"] == "env:DATABASE_URL"
    assert found["tools.search_url"] == "https://search.example/q?…"


def test_config_check_summarizes_the_file(terminal: Terminal) -> None:
    off = server_entry("off", "stdio", "x", enabled=False)
    files = server_entry("files", "stdio", "npx", "-y", "x")
    terminal.configure(files, off, config="api_key = 'k123456789012345'")
    done = terminal.run("config", "check")
    assert done.code == 0
    assert "files: npx -y x" in done.out and "off: x (disabled)" in done.out
    assert "api_key is set" in done.out and "k123456789012345" not in done.out
    assert "agents only" in done.out
    found = terminal.run("config", "check", "--json").json()
    assert found["ok"] is True and found["servers"][1]["enabled"] is False


def test_config_check_reports_defaults_without_a_file(terminal: Terminal) -> None:
    done = terminal.run("config", "check")
    assert done.code == 0 and "using defaults" in done.out
    assert not terminal.home.exists()


WRONG = {
    "no TOML": ("x = [\n", "not valid TOML"),
    "an unknown key": ("\n[server]\nhots = 1\n", 'line 3: unknown key "hots" in [server]; did you'),
    "a wrong type": ('\n[server]\nport = "x"\n', 'line 3: invalid value of "server.port"'),
    "out of range": ("[server]\nport = 70000\n", "line 2"),
    "a short key": ('api_key = "x"\n', "line 1: api_key is too short"),
    "no transport": (
        '[[mcp_servers]]\nname = "a"\n',
        'line 1: [[mcp_servers]] needs a "transport"',
    ),
    "an unknown type": (
        '[[mcp_servers]]\nname = "a"\n[mcp_servers.transport]\ntype = "x"\n',
        "line 4: type must be",
    ),
    "a name twice": (
        "\n".join(server_entry(name, "stdio", "x") for name in ("a-b", "A_b")),
        'the name of server "A_b" already exists: "a-b"',
    ),
    "a bad url": (server_entry("a", "http", "ftp://x"), "must begin with http"),
    "dots in a command": (server_entry("a", "stdio", "../x"), 'contains ".."'),
}


@pytest.mark.parametrize("what", WRONG)
def test_config_check_reports_errors_with_their_place(terminal: Terminal, what: str) -> None:
    text, expected = WRONG[what]
    terminal.configure(config=text)
    done = terminal.run("config", "check")
    assert done.code == 7 and not done.out
    assert expected in done.err and len(done.err.splitlines()) == 1
    as_json = terminal.run("config", "check", "--json")
    assert as_json.code == 7 and as_json.json()["ok"] is False
    assert expected in as_json.json()["problem"]


def test_invalid_port_is_explained(terminal: Terminal) -> None:
    for port in ("abc", "65536"):
        done = terminal.quick("up", "--port", port)
        assert done.code == 2 and "65535" in done.err


def test_first_up_writes_the_configuration_and_prints_next_steps(terminal: Terminal) -> None:
    child = terminal.start("up", "--port", "0")
    assert child.stderr is not None
    said = ""
    while "stop  " not in said:
        line = child.stderr.readline()
        assert line, said
        said += line
    assert f"wrote {terminal.home}/config.toml" in said
    assert f"dragoman {__version__} is up" in said
    address = urlsplit(re.findall(r"http://127\.0\.0\.1:\d+/mcp", said)[0])
    assert "dragoman install cursor" in said and "dragoman import" in said
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read() == b"ok\n"
    connection.close()
    child.send_signal(signal.SIGINT)
    assert child.wait(WAIT_SECONDS) == 0
    assert "Traceback" not in said + child.stderr.read()


def test_second_up_names_the_holder_of_the_home(terminal: Terminal) -> None:
    hub = terminal.up()
    for args in (["up"], ["up", "--detach"]):
        done = terminal.run(*args)
        assert done.code == 3
        assert f"process {hub['pid']}" in done.err and hub["url"] in done.err
        assert len(done.err.splitlines()) == 1


def test_up_refuses_an_invalid_configuration_in_one_sentence(terminal: Terminal) -> None:
    terminal.configure(config="[servr]\n")
    for args in (["up"], ["up", "--detach"]):
        done = terminal.run(*args)
        assert done.code == 7
        assert 'unknown key "servr"' in done.err and 'did you mean "server"?' in done.err
        assert len(done.err.splitlines()) == 1


def test_up_refuses_a_used_port(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for args in (["up", "--port", port], ["up", "--port", port, "--detach"]):
            done = terminal.run(*args)
            assert done.code == 7
            assert f"port {port}" in done.err and "another [server] port" in done.err
            assert "Address already in use" in done.err


@pytest.mark.promise("O1")
def test_up_refuses_a_public_address_without_a_key(terminal: Terminal) -> None:
    terminal.configure(config='[server]\nhost = "0.0.0.0"\nport = 0\n')
    done = terminal.run("up")
    assert done.code == 7 and "dragoman keys create NAME" in done.err


def test_detached_hub_is_reported_by_status_and_stopped(terminal: Terminal) -> None:
    done = terminal.run("up", "--detach", "--port", "0")
    assert done.code == 0 and "dragoman stop" in done.out
    state = terminal.run("status")
    assert state.code == 0 and f"home      {terminal.home}" in state.out
    assert re.search(r"process \d+, up for \d+ s", state.out)
    stopped = terminal.run("stop")
    pid = int(re.findall(r"process (\d+)", stopped.out)[0])
    assert stopped.code == 0 and "has stopped" in stopped.out
    wait_until_gone([pid])
    assert not (terminal.home / "daemon.json").exists()
    assert "dragoman" in (terminal.home / "hub.log").read_text()


def test_detach_status_and_stop_print_json(terminal: Terminal) -> None:
    up = terminal.run("up", "--detach", "--port", "0", "--json").json()
    assert up["mcp_url"] == up["url"] + "/mcp" and Path(up["log"]).exists()
    state = terminal.run("status", "--json").json()
    assert state["running"] is True and state["pid"] == up["pid"]
    stopped = terminal.run("stop", "--json")
    assert stopped.code == 0 and stopped.json()["stopped"] is True
    assert stopped.json()["pid"] == up["pid"]
    wait_until_gone([up["pid"]])


def test_status_and_stop_without_a_hub_exit_with_3(terminal: Terminal) -> None:
    status = terminal.run("status")
    assert status.code == 3 and "dragoman up" in status.err
    stop = terminal.run("stop")
    assert stop.code == 3 and "no hub is running" in stop.err
    as_json = terminal.run("status", "--json")
    assert as_json.code == 3 and as_json.json() == {"running": False, "home": str(terminal.home)}
    as_json = terminal.run("stop", "--json")
    assert as_json.code == 3 and as_json.json()["stopped"] is False
    assert not terminal.home.exists()


def test_unresponsive_hub_is_reported(terminal: Terminal) -> None:
    hub = terminal.up()
    os.kill(hub["pid"], signal.SIGSTOP)
    try:
        done = terminal.run("status")
    finally:
        os.kill(hub["pid"], signal.SIGCONT)
    assert done.code == 3
    assert f"process {hub['pid']} holds" in done.err and "does not answer" in done.err


def test_status_reports_an_unapplied_configuration(terminal: Terminal) -> None:
    terminal.up()
    (terminal.home / "config.toml").write_text("[servr]\n")
    for _ in range(100):
        done = terminal.run("status")
        if "problem" in done.out:
            break
    assert 'unknown key "servr"' in done.out


def test_unreadable_env_file_change_is_reported_and_survived(
    terminal: Terminal,
) -> None:
    terminal.up()
    (terminal.home / "env").write_bytes(b"A=\xff\n")
    for _ in range(100):
        state = terminal.run("status", "--json").json()
        if state["config_problem"]:
            break
    assert "env file" in state["config_problem"] and "UTF-8" in state["config_problem"]
    (terminal.home / "env").write_bytes(b"A=b\n")
    for _ in range(100):
        state = terminal.run("status", "--json").json()
        if not state["config_problem"]:
            break
    assert state["config_problem"] is None


def test_stop_does_not_stop_a_hub_hosted_by_an_ide(terminal: Terminal) -> None:
    terminal.run("init")
    with wire.Stdio([*DRAGOMAN, "mcp", "--home", terminal.home]) as ide:
        ide.initialize()
        until = time.monotonic() + WAIT_SECONDS
        while (state := terminal.run("status")).code:
            assert time.monotonic() < until
        assert "inside dragoman mcp" in state.out
        done = terminal.run("stop")
        assert done.code == 3 and f"kill {ide.pid}" in done.err
        for words in (["up"], ["up", "--detach"]):
            done = terminal.run(*words)
            assert done.code == 3 and "IDEs that share it" in done.err
        assert terminal.run("status").code == 0


def test_log_of_a_detached_hub_rotates_without_loss(terminal: Terminal) -> None:
    terminal.configure(config="[server]\nport = 0\n[log]\nmegabytes = 0.002\nfiles = 90\n")
    log = terminal.home / "hub.log"
    log.write_text("from before\n", encoding="utf-8")
    log.chmod(0o644)
    up = terminal.run("up", "--detach", "--host", "::1", "--log-level", "info", "--json").json()
    assert up["url"].startswith("http://[::1]:")
    for number in range(150):
        wire.modern_request(up["mcp_url"], "tools/call", {"name": f"nowhere.{number}"})
        if number % 50 == 49:  # lines are written in batches, and a file is rotated between two
            until = time.monotonic() + WAIT_SECONDS
            while f"call nowhere.{number} " not in log.read_text(encoding="utf-8"):
                assert time.monotonic() < until
                time.sleep(0.02)
    assert terminal.run("stop").code == 0
    older = [int(one.suffix[1:]) for one in terminal.home.glob("hub.log.*")]
    assert len(older) >= 2  # one for what was there, and one at least for the calls
    files = [*(log.with_name(f"hub.log.{number}") for number in sorted(older, reverse=True)), log]
    whole = "".join(one.read_text(encoding="utf-8") for one in files)
    assert whole.startswith("from before\n")
    calls = re.findall(r"^\d{4}-\d\d-\d\dT\S+Z INFO call nowhere\.(\d+) ", whole, re.MULTILINE)
    assert calls == [str(number) for number in range(150)]
    for one in files:
        assert one.stat().st_mode & 0o777 == 0o600
