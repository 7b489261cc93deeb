"""`doctor` finds each known failure and names its fix."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import DRAGOMAN, WAIT_SECONDS, Terminal
from tests.peers.process import server_entry

from dragoman.cli.doctor.checks import LEAST_DISK, check_clients, check_space
from dragoman.cli.doctor.findings import DoctorContext
from dragoman.config import parse


def findings(terminal: Terminal, *args: str) -> dict[str, dict[str, Any]]:
    """By the name of the check; the exit code must agree with the levels."""
    done = terminal.run("doctor", "--json", *args)
    found = done.json()
    levels = [one["level"] for one in found["checks"]]
    assert done.code == (1 if "problem" in levels else 0) and found["ok"] is (done.code == 0)
    for one in found["checks"]:
        assert one["said"] and (one["fix"] or one["level"] in ("ok", "info")), one
    return {one["check"]: one for one in reversed(found["checks"])}


def test_doctor_finds_no_problem_on_an_empty_machine_and_changes_nothing(
    terminal: Terminal,
) -> None:
    found = findings(terminal)
    assert found["home"]["level"] == "info" and "dragoman up" in found["home"]["fix"]
    assert found["hub"]["level"] == found["audit"]["level"] == found["client"]["level"] == "info"
    assert found["python"]["level"] == found["disk"]["level"] == found["clock"]["level"] == "ok"
    assert not terminal.home.exists()


def test_doctor_finds_no_problem_on_a_healthy_hub(terminal: Terminal) -> None:
    terminal.configure(
        server_entry("peer", "faulty_server", "ok"), config='[mcp]\nstdio_expose = ["*"]\n'
    )
    hub = terminal.up()
    terminal.run("call", "peer.pid")
    done = terminal.run("doctor")
    assert done.code == 0 and not done.err and "\x1b" not in done.out
    assert done.out.splitlines()[-1] == "no problems found"
    assert f"process {hub['pid']} has been running since" in done.out
    assert "connected, 2025-11-25, 3 tools" in done.out
    assert {line[:4] for line in done.out.splitlines()[:-2]} <= {"ok  ", "info", "    "}


def test_doctor_prints_marks_fixes_and_a_summary(terminal: Terminal) -> None:
    terminal.configure(server_entry("a", "stdio", "npx-is-not-here"))
    done = terminal.run("doctor")
    assert done.code == 1
    lines = done.out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("FAIL"))
    assert "server a" in lines[at] and lines[at + 1].strip().startswith("fix: ")
    assert any(line.startswith("warn  expose") for line in lines)
    assert lines[-1] == "1 problem, 1 warning"


def test_doctor_explains_a_broken_configuration(terminal: Terminal) -> None:
    terminal.configure(config="[servr]\n")
    found = findings(terminal)
    assert found["config"]["level"] == "problem"
    assert 'line 1: unknown key "servr"' in found["config"]["said"]


def test_doctor_warns_without_servers_or_exposed_tools(terminal: Terminal) -> None:
    terminal.configure(config="[server]\nport = 0\n")
    found = findings(terminal)
    assert found["servers"]["level"] == "warning" and "dragoman import" in found["servers"]["fix"]
    assert (
        found["expose"]["level"] == "warning" and 'stdio_expose = ["*"]' in found["expose"]["fix"]
    )


def test_doctor_reports_a_home_open_to_others(terminal: Terminal) -> None:
    terminal.configure()
    terminal.home.chmod(0o777)
    found = findings(terminal)
    assert found["home"]["level"] == "problem" and "chmod go-w" in found["home"]["fix"]
    terminal.home.chmod(0o755)
    found = findings(terminal)
    assert found["home"]["level"] == "warning" and "chmod 700" in found["home"]["fix"]


def test_doctor_reports_a_home_that_is_a_file(terminal: Terminal) -> None:
    terminal.home.write_text("")
    found = findings(terminal)
    assert found["home"]["level"] == "problem" and "DRAGOMAN_HOME" in found["home"]["fix"]


def test_doctor_checks_the_env_file(terminal: Terminal) -> None:
    terminal.configure()
    env = terminal.home / "env"
    env.write_text('TOKEN="x"\n')
    env.chmod(0o644)
    assert findings(terminal)["modes"]["level"] == "info"  # other users cannot enter the home
    assert "chmod go-rwx" in findings(terminal)["modes"]["fix"]
    env.chmod(0o600)
    found = findings(terminal)["env file"]
    assert found["level"] == "warning" and "TOKEN" in found["said"]
    env.write_text("TOKEN=x\n")
    assert findings(terminal)["env file"]["level"] == "ok"
    env.write_bytes(b"TOKEN=\xff\n")
    assert "UTF-8" in findings(terminal)["env file"]["said"]


def test_doctor_distinguishes_a_killed_hub_from_a_hanging_one(terminal: Terminal) -> None:
    hub = terminal.up()
    os.kill(hub["pid"], signal.SIGSTOP)
    try:
        found = findings(terminal)["hub"]
    finally:
        os.kill(hub["pid"], signal.SIGCONT)
    assert found["level"] == "problem" and f"kill {hub['pid']}" in found["fix"]
    os.kill(hub["pid"], signal.SIGKILL)
    terminal.started[-1].wait(WAIT_SECONDS)
    found = findings(terminal)["hub"]
    assert found["level"] == "warning" and "was killed" in found["said"]
    (terminal.home / "daemon.json").unlink()


def test_doctor_reports_a_hub_of_another_version(terminal: Terminal) -> None:
    terminal.up()
    record = terminal.home / "daemon.json"
    record.write_text(json.dumps({**json.loads(record.read_bytes()), "version": "0.0.9"}))
    found = findings(terminal)["hub"]
    assert found["level"] == "warning" and "0.0.9" in found["said"] and "stop" in found["fix"]


def test_doctor_names_the_owner_of_a_used_port(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        terminal.configure(config=f"[server]\nport = {taken.getsockname()[1]}\n")
        found = findings(terminal)["port"]
    assert found["level"] == "problem" and f"process {os.getpid()} (" in found["said"]
    assert "another [server] port" in found["fix"]


def test_doctor_reports_a_running_hub_on_another_port(terminal: Terminal) -> None:
    terminal.up()
    found = findings(terminal)["port"]
    assert found["level"] == "info" and "50051" in found["said"]


@pytest.mark.promise("O1")
def test_doctor_reports_a_public_address_without_a_key(terminal: Terminal) -> None:
    terminal.configure(config='[server]\nhost = "0.0.0.0"\nport = 0\n')
    found = findings(terminal)["keys"]
    assert found["level"] == "problem" and "dragoman keys create" in found["fix"]
    terminal.run("keys", "create", "a")
    assert findings(terminal)["keys"]["level"] == "ok"
    terminal.run("keys", "revoke", "a")
    assert findings(terminal)["keys"]["level"] == "warning"


ENTRIES: dict[str, tuple[list[str], dict[str, Any], str, str]] = {
    "npx": (["stdio", "npx", "-y", "x"], {}, "problem", "nodejs.org"),
    "uvx": (["stdio", "uvx", "x"], {}, "problem", "docs.astral.sh/uv"),
    "docker": (["stdio", "docker", "run", "-i", "x"], {}, "problem", "install Docker"),
    "path": (["stdio", "/no/such/x"], {}, "problem", "its full path"),
    "script": (["stdio", "sh", "server.py"], {}, "problem", "write the full path"),
    "cwd": (["stdio", "sh"], {"transport": {"cwd": "/no/such"}}, "problem", "correct cwd"),
    "env": (["stdio", "sh"], {"env": ["SECRET_X"]}, "warning", "SECRET_X=…"),
    "headers": (
        ["http", "https://x.example"],
        {"transport": {"headers": {"A": "${TOK_X}"}}},
        "problem",
        "TOK_X=…",
    ),
    "lines": (
        ["sse", "https://x.example"],
        {"transport": {"headers": ["A: b ${TOK_Y}"]}},
        "problem",
        "TOK_Y=…",
    ),
    "timeout": (["stdio", "sh"], {"timeout_secs": 90}, "warning", "raise the one"),
    "off": (["stdio", "x"], {"enabled": False}, "info", "dragoman servers enable"),
    "npx asks": (["stdio", "bin/npx", "x"], {}, "warning", '"-y"'),
    "deaf": (["stdio", "bin/docker", "run", "--rm", "x"], {}, "problem", '"-i" after'),
    "tty": (["stdio", "bin/docker", "run", "-it", "x"], {}, "problem", 'instead of "-it"'),
    "fine": (["stdio", "sh", "-c", "x"], {}, "ok", ""),
}


def test_doctor_reports_invalid_server_entries(terminal: Terminal) -> None:
    path, more = terminal.user / "path", terminal.user / "bin"
    for program in (path / "sh", more / "npx", more / "docker"):
        program.parent.mkdir(exist_ok=True)
        program.symlink_to("/bin/sh")
    terminal.env["PATH"] = str(path)  # neither npx nor uvx nor docker
    entries = []
    for name, ((kind, *line), keys, *_) in ENTRIES.items():
        line[0] = line[0].replace("bin/", f"{more}/")
        entries.append(server_entry(name, kind, *line, **keys))
    terminal.configure(*entries)
    found = findings(terminal)
    for name, (_, _, level, fix) in ENTRIES.items():
        one = found[f"server {name}"]
        assert one["level"] == level and fix in one["fix"], one


def test_doctor_counts_env_file_and_environment_variables_as_set(terminal: Terminal) -> None:
    terminal.configure(server_entry("s", "stdio", "sh", env=["IN_FILE", "IN_ENV"]))
    (terminal.home / "env").write_text("IN_FILE=1\n")
    terminal.env["IN_ENV"] = "1"
    (terminal.home / "env").chmod(0o600)
    assert findings(terminal)["server s"]["level"] == "ok"


def test_doctor_reads_server_state_from_the_running_hub(terminal: Terminal) -> None:
    bad = "import sys; sys.exit('no token')"
    tools = [{"name": "x", "inputSchema": {"type": "object"}}, {"name": 5}]
    dropping = f"""
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    r = {{"initialize": {{"protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}}},
         "serverInfo": {{"name": "x", "version": "1"}}}}, "tools/list": {{"tools": {tools!r}}}}}
    if "id" in m:
        a = {{"result": r[m["method"]]}} if m["method"] in r else {{"error": {{"code": -32601,
            "message": "no"}}}}
        print(json.dumps({{"jsonrpc": "2.0", "id": m["id"], **a}}), flush=True)
"""
    terminal.configure(
        server_entry("bad", "stdio", "python3", "-c", bad),
        server_entry("drops", "stdio", "python3", "-c", dropping),
    )
    terminal.up()
    until = time.monotonic() + WAIT_SECONDS
    while (found := findings(terminal))["server drops"]["level"] == "info":
        assert time.monotonic() < until
    assert found["server drops"]["level"] == "warning"
    assert "tool 2 is omitted" in found["server drops"]["said"]
    while (found := findings(terminal))["server bad"]["level"] == "info":
        assert time.monotonic() < until
    assert "no token" in found["server bad"]["said"]
    assert "dragoman servers logs bad" in found["server bad"]["fix"]


def test_doctor_names_what_waits_for_a_decision(terminal: Terminal) -> None:
    """Of a running hub, and without one by its databases."""
    terminal.configure(server_entry("peer", "faulty_server", "ok"))
    (terminal.home / "workflows").mkdir(mode=0o700)
    steps = {
        "asks": {"id": "go", "nodeId": "approval", "config": {"title": "Go?"}},
        "hangs": {
            "id": "go",
            "nodeId": "tool.call",
            "config": {"tool": "peer.slow", "arguments": {"seconds": 60}},
        },
    }
    for name, step in steps.items():
        file = terminal.home / "workflows" / f"{name}.yaml"
        file.write_text(json.dumps({"steps": [step]}), encoding="utf-8")
        file.chmod(0o600)
    hub = terminal.up()
    runs = {name: terminal.run("workflows", "run", name, "--json").json()["id"] for name in steps}

    def wait_until(name: str, state: str) -> None:
        until = time.monotonic() + WAIT_SECONDS
        while terminal.run("runs", "show", runs[name], "--json").json()["run"]["state"] != state:
            assert time.monotonic() < until

    wait_until("hangs", "running")
    wait_until("asks", "waiting")
    found = findings(terminal)
    assert found["approvals"]["said"] == "1 request for approval waits for a decision"
    assert "runs" not in found
    os.kill(hub["pid"], signal.SIGKILL)
    hub = terminal.up()
    wait_until("hangs", "needs_decision")
    said = f"run {runs['hangs']} of workflow hangs needs a decision"
    found = findings(terminal)
    assert (found["runs"]["level"], found["runs"]["said"]) == ("warning", said)
    assert terminal.run("stop").code == 0
    found = findings(terminal)
    assert (found["runs"]["said"], found["approvals"]["level"]) == (said, "info")


def test_doctor_reports_a_changed_audit_or_lost_key(terminal: Terminal) -> None:
    terminal.run("call", "nobody")
    assert findings(terminal)["audit"]["level"] == "ok"
    db = sqlite3.connect(terminal.home / "audit.db")
    db.execute("UPDATE entries SET at = at + 1 WHERE kind = 'intent'")
    db.commit()
    db.close()
    found = findings(terminal)["audit"]
    assert found["level"] == "problem" and "not intact" in found["said"]
    (terminal.home / "audit.key").unlink()
    assert "audit.key is missing" in findings(terminal)["audit"]["said"]


def test_doctor_reports_each_damaged_or_lost_database_with_a_remedy(
    terminal: Terminal,
) -> None:
    terminal.configure(config="[a2a]\nenabled = true\n")
    terminal.run("call", "nobody")
    assert findings(terminal)["stores"]["level"] == "ok"
    pins = terminal.home / "pins.db"
    whole = pins.read_bytes()
    pins.write_bytes(whole[:4096] + b"\xff" * 4096 + whole[8192:])  # it can be opened still
    failed = terminal.run("up")
    assert failed.code == 7 and "accept-loss pins" in failed.err
    pins.write_bytes(whole)
    for name in ("hub.db", "pins.db", "registry.db", "tasks.db", "dispatches.db"):
        data = (terminal.home / name).read_bytes()
        (terminal.home / name).write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    done = terminal.run("doctor", "--json").json()
    said = [one for one in done["checks"] if one["check"] == "stores"]
    assert len(said) == 5 and {one["level"] for one in said} == {"problem"}
    remedies = " ".join(one["fix"] for one in said)
    for store in ("keys", "pins", "registry", "tasks"):
        assert f"accept-loss {store}" in remedies
    failed = terminal.run("up")
    assert failed.code == 7 and "accept-loss keys pins registry tasks" in failed.err
    done = terminal.run("stores", "accept-loss", "keys", "pins", "registry", "tasks", "--yes")
    assert done.code == 0, done.err
    assert len(list(terminal.home.glob("*.lost-*Z"))) == 4
    (terminal.home / "dispatches.db").unlink()
    data = (terminal.home / "audit.db").read_bytes()
    (terminal.home / "audit.db").write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    failed = terminal.run("up")
    assert failed.code == 7 and "accept-loss audit" in failed.err and "space" not in failed.err


def test_doctor_verifies_a_long_audit_only_on_request(terminal: Terminal) -> None:
    terminal.run("call", "nobody")
    db = sqlite3.connect(terminal.home / "audit.db")
    db.execute("UPDATE entries SET seq = 200001 WHERE seq = (SELECT max(seq) FROM entries)")
    db.commit()
    db.close()
    found = findings(terminal)["audit"]
    assert found["level"] == "info" and "--deep" in found["fix"]
    assert findings(terminal, "--deep")["audit"]["level"] == "problem"


def test_doctor_reports_low_disk_space(tmp_path: Path) -> None:
    assert check_space(LEAST_DISK - 1, tmp_path).level == "problem"
    assert check_space(LEAST_DISK, tmp_path).level == "ok"


def test_doctor_warns_of_a_low_open_file_limit(terminal: Terminal) -> None:
    words = " ".join([*DRAGOMAN, "doctor", "--json"])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 500; {words}"],
        capture_output=True,
        check=False,
        env=terminal.environment(),
    )
    checks = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert checks["open files"]["level"] == "warning" and "500" in checks["open files"]["said"]


def test_doctor_questions_the_clock_for_a_home_from_the_future(terminal: Terminal) -> None:
    terminal.run("call", "nobody")
    later = time.time() + 86_400
    os.utime(terminal.home / "audit.db", (later, later))
    assert findings(terminal)["clock"]["level"] == "warning"


def test_doctor_reports_the_active_isolation(terminal: Terminal) -> None:
    server = server_entry("open", "faulty_server", "ok")
    terminal.configure(config=f"[server]\nport = 0\n{server}")
    found = findings(terminal)
    said = found["isolation"]["said"]
    assert "cleared environment" in said and 'home = "user"' in said
    assert "1 of 1 programs run without one (open)" in found["sandbox"]["said"]
    assert "no sandbox" in found["server open"]["said"]
    server = server_entry("closed", "faulty_server", "ok", sandbox="strict")
    terminal.configure(config=f"[server]\nport = 0\n{server}")
    (terminal.user / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (terminal.user / "bwrap").chmod(0o755)
    terminal.env["PATH"] = f"{terminal.user}:{os.environ['PATH']}"
    found = findings(terminal)
    assert found["server closed"]["level"] == "problem"
    assert 'its sandbox is "strict": bubblewrap cannot' in found["server closed"]["said"]


def test_install_and_doctor_name_the_limits_of_clients(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "takes at most 128 tools" in terminal.run("install", "vscode").out
    for name, value in terminal.environment().items():
        monkeypatch.setenv(name, value)
    for exposed, count, is_said in (("*", 129, True), ("*", 128, False), ("a.*", 129, False)):
        config = parse(f'[mcp]\nstdio_expose = ["{exposed}"]')
        servers = {"s": {"tools_count": count - 1}, "t": {"tools_count": 1}, "u": {}}
        found = DoctorContext(terminal.home, False, config, servers=servers)
        (said,) = [one for one in check_clients(found) if "VS Code has the hub" in one.said]
        assert (f"at most 128 tools, and the hub has {count}" in said.said) is is_said


def test_doctor_names_installed_clients_and_their_configuration(terminal: Terminal) -> None:
    (terminal.user / ".cursor").mkdir()
    (terminal.user / ".codeium" / "windsurf").mkdir(parents=True)
    gone = {"mcpServers": {"dragoman": {"command": "/gone/dragoman", "args": ["mcp"]}}}
    (terminal.user / ".codeium" / "windsurf" / "mcp_config.json").write_text(json.dumps(gone))
    (terminal.user / ".gemini").mkdir()
    (terminal.user / ".gemini" / "settings.json").write_text("{")
    terminal.run("install", "claude-code")
    done = terminal.run("doctor", "--json").json()["checks"]
    said = {one["said"].split()[0]: one for one in done if one["check"] == "client"}
    assert said["Cursor"]["fix"] == "dragoman install cursor"
    assert said["Windsurf"]["level"] == "warning" and "/gone/dragoman" in said["Windsurf"]["said"]
    assert said["Gemini"]["level"] == "info" and "line 1" in said["Gemini"]["said"]
    assert said["Claude"]["level"] == "ok" and 'as "dragoman"' in said["Claude"]["said"]


def test_doctor_tells_once_of_a_database_that_is_away(terminal: Terminal) -> None:
    terminal.configure(config='[store]\nurl = "postgresql://u:c4n4ry@127.0.0.1:9/x"')
    done = terminal.run("doctor", "--json")
    said = [one for one in done.json()["checks"] if "127.0.0.1:9" in one["said"]]
    assert [one["level"] for one in said] == ["problem"] and "c4n4ry" not in done.out, said


def test_doctor_names_workflows_that_the_hub_refuses_or_that_start_programs(
    terminal: Terminal,
) -> None:
    terminal.configure(config='[secrets]\nallow = ["env:TEAM_*"]\n')
    folder = terminal.home / "workflows"
    folder.mkdir(mode=0o700)
    steps = "steps: [{id: a, nodeId: transform, config: {value: 1}}]\n"
    mark = "# Written by the API: [secrets] allow says what it may read.\n"
    hook = 'trigger: {type: webhook, secret: "exec:op read x"}\n'
    for name, text in (
        ("allowed", f"env: [TEAM_X]\n{steps}{mark}"), ("refused", f"env: [AWS]\n{steps}{mark}"),
        ("own", hook + steps), ("plain", f"env: [AWS]\n{steps}"),
        ("unnamed", f"trigger: {{type: schedule, cron: '0 9 * * *'}}\n{steps}{mark}"),
        ("waiting", f"{steps}{mark}"),
    ):  # fmt: skip
        (folder / f"{name}.yaml").write_text(text)
        (folder / f"{name}.yaml").chmod(0o600)
    said = [
        (one["level"], one["said"])
        for one in terminal.run("doctor", "--json").json()["checks"]
        if one["check"] == "workflows"
    ]
    refused, (own, unnamed) = said[0], sorted(said[1:])
    assert unnamed[0] == "warning"
    assert unnamed[1].startswith(
        'the workflow "unnamed" was not started: it was written by the API'
    )
    assert refused[0] == "warning" and refused[1].startswith('refused.yaml:1: workflow "refused"')
    assert own == ("info", 'workflow "own" reads the secret of its webhook with a program')
