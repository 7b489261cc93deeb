"""The commands and output in the README of examples/bridge are exact."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.terminal import DRAGOMAN, WAIT_SECONDS, Terminal
from tests.cli.test_hello_example import build_pattern, typed_and_seen

ROOT = Path(__file__).parent.parent.parent
BRIDGE = ROOT / "examples" / "bridge"
DONE_ELSEWHERE = (". .venv", "export DRAGOMAN_HOME=", "python3 ", "kill %1")
TAKEN_UP_SOON = ("dragoman policy ", "curl ")
"""A running hub sees keys and policies within a second, and people type more slowly than tests."""


@contextmanager
def print_shop(folder: Path) -> Iterator[str]:
    """Its address."""
    folder.mkdir(exist_ok=True)
    for name in ("print_shop.py", "card.json"):
        shutil.copy(BRIDGE / name, folder / name)
    with subprocess.Popen(
        [sys.executable, str(folder / "print_shop.py"), "0"], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            assert line.startswith("the print shop is at http://"), line
            yield line.split()[-1]
        finally:
            child.terminate()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def typed(line: str, env: dict[str, str]) -> str:
    """What a shell shows for it; a variable it sets is kept in `env`."""
    name, _, value = line.partition("=")
    keeps = bool(re.fullmatch(r"[A-Z]+", name))
    python = f'dragoman() {{ "{sys.executable}" -m dragoman "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", python + (f'printf %s "{value}"' if keeps else line)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        env=env,
        cwd=ROOT,
        check=False,
    )
    if keeps:
        env[name] = done.stdout
        return done.stderr
    return done.stdout + ("\n" if line.startswith("curl ") else "") + done.stderr


@pytest.mark.promise("F3")
def test_readme_commands_print_what_it_shows(terminal: Terminal) -> None:
    page = (BRIDGE / "README.md").read_text(encoding="utf-8")
    with print_shop(terminal.home) as url:
        ours = page.replace("http://127.0.0.1:9310", url).replace("9311", str(free_port()))
        steps = typed_and_seen(ours)
        assert len(steps) > 25
        env = {**terminal.environment(), "DRAGOMAN_HOME": str(terminal.home)}
        for line, seen in steps:
            if line.startswith(DONE_ELSEWHERE) or (
                line.startswith("curl ") and not shutil.which("curl")
            ):
                continue
            pattern = build_pattern(seen)
            until = time.monotonic() + WAIT_SECONDS
            shown = typed(line, env)
            while line.startswith(TAKEN_UP_SOON) and not re.fullmatch(pattern, shown):
                assert time.monotonic() < until, (line, shown)
                shown = typed(line, env)
            assert re.fullmatch(pattern, shown), (line, shown)
    assert terminal.quick("status").code == 3


@pytest.mark.promise("R4")
def test_agent_question_is_prompted_as_the_readme_shows(
    terminal: Terminal,
) -> None:
    page = (BRIDGE / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^```\n\$ dragoman (call .*?)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert shown is not None
    asks, prompt, printed = shown[2].splitlines()
    question, answer = prompt.split(": ")
    with print_shop(terminal.user / "shop") as url:
        assert terminal.quick("agents", "add", url).code == 0
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            [*DRAGOMAN, *shown[1].split()],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=terminal.environment(),
            cwd=terminal.user,
        )
        os.close(theirs)
        seen = b""
        until = time.monotonic() + WAIT_SECONDS
        while question.encode() not in seen:
            assert time.monotonic() < until, seen
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 4096)
        os.write(ours, f"{answer}\n".encode())
        out, _ = child.communicate(timeout=WAIT_SECONDS)
        os.close(ours)
    assert asks in seen.decode()
    assert (child.returncode, out.decode()) == (0, f"{printed}\n"), seen


def test_in_process_command_waits_for_agents(terminal: Terminal) -> None:
    with print_shop(terminal.user / "shop") as url:
        assert terminal.quick("agents", "add", f"{url}/").code == 0
        again = terminal.quick("agents", "add", url)  # a slash at the end makes no other agent
        assert again.code == 0 and len(terminal.quick("agents", "--json").json()["agents"]) == 1
        assert (
            terminal.quick("call", "print_shop.price", "pages=2").out == '{"pages":2,"cents":10}\n'
        )
        listed = terminal.quick("tools", "--agent", "print_shop").out
        assert "print_shop.order" in listed and "print_shop.price" in listed
        shown = terminal.quick("tools", "show", "print_shop.order").out
        assert "(agent Print Shop)" in shown and "arguments: any" in shown
        asks = terminal.quick("call", "print_shop.order")
        assert asks.code == 6 and "on a terminal" in asks.err
    gone = terminal.quick("call", "print_shop.price", "pages=2")
    assert gone.code == 6 and 'agent "Print Shop" is not found yet' in gone.err
    nothing = terminal.quick("tools")
    assert nothing.out == "no tools\n" and "nothing listens there" in nothing.err


def test_dispatches_command_lists_skill_calls(terminal: Terminal) -> None:
    with print_shop(terminal.user / "shop") as url:
        terminal.quick("agents", "add", url)
        terminal.up()
        terminal.quick("call", "print_shop.price", "pages=2")
        terminal.quick("call", "print_shop.order")
        rows = terminal.quick("agents", "calls", "print_shop", "--json").json()
        assert [row["verb"] for row in rows] == ["print_shop.order", "print_shop.price"]
        failed = terminal.quick("agents", "calls", "--status", "failed").out.splitlines()
        assert failed[0].split()[0] == "AT" and len(failed) == 2 and "(-32206)" in failed[1]
        assert rows[0]["taskId"] in failed[1]
        assert terminal.quick("agents", "calls", "-n", "1", "--json").json() == rows[:1]
        assert terminal.quick("agents", "calls", "--since", "2999-01-01").out == "no calls found\n"
        assert terminal.quick("agents", "calls", "nobody").code == 5
        changes = [
            line for line in terminal.quick("audit", "tail").out.splitlines() if "agent." in line
        ]
        assert len(changes) == 1 and changes[0].endswith(f"agent.add  {url}")


def test_doctor_and_status_report_missing_guards(
    terminal: Terminal,
) -> None:
    with print_shop(terminal.user / "shop") as url:
        terminal.quick("agents", "add", url)
        made = terminal.quick("keys", "create", "back", "--for", "print_shop").err.splitlines()
        assert len(made) == 2 and "this is the first key" in made[1]
        assert "unknown server or agent" in terminal.quick("keys", "create", "x", "--for", "y").err
        keys = terminal.quick("keys", "list", "--json").json()
        assert {key["name"]: key["for"] for key in keys} == {"back": "Print Shop", "x": "y"}
        terminal.up()
        card = terminal.user / "shop" / "card.json"
        card.write_text(card.read_text().replace("print costs", "print really costs"))
        refreshed = terminal.quick("agents", "refresh", "print_shop")
        assert "quarantined until approved: print_shop.price" in refreshed.err
        assert "quarantined until approved: print_shop.price" in terminal.quick("agents").out
        assert "print_shop.price" in terminal.quick("tools").err
        assert "pins      quarantined: print_shop.price" in terminal.quick("status").out
        policies = terminal.home / "policies"
        policies.mkdir()
        (policies / "broken.cedar").write_text("permit (")
        done = terminal.quick("doctor")
        assert done.code == 1
        lines = done.out.splitlines()
        for words in (
            "FAIL  policies          broken.cedar:1: cannot be parsed",
            "warn  held              skill print_shop.price of Print Shop",
            'warn  keys              key "x" is for the unknown server or agent "y"',
            "ok    agent Print Shop",
        ):
            assert any(line.startswith(words) for line in lines), (words, lines)
        assert not any("no servers or agents are configured" in line for line in lines)
        until = time.monotonic() + WAIT_SECONDS
        while "broken.cedar:1" not in (said := terminal.quick("status").out):
            assert time.monotonic() < until, said


def test_startup_message_names_agents_policies_and_quarantined_definitions(
    terminal: Terminal,
) -> None:
    with print_shop(terminal.user / "shop") as url:
        terminal.quick("agents", "add", url)
        card = terminal.user / "shop" / "card.json"
        card.write_text(card.read_text().replace("print costs", "print really costs"))
        terminal.quick("agents", "refresh", "print_shop")
        terminal.quick("keys", "create", "ci")
        terminal.quick("policy", "init")
        shutil.copy(BRIDGE / "mine.cedar", terminal.home / "policies" / "mine.cedar")
        child = terminal.start("up", "--port", "0")
        assert child.stderr is not None
        said: list[str] = []
        while not said or "stop " not in said[-1]:
            said.append(child.stderr.readline())
            assert said[-1], said
    words = "".join(said)
    assert "  remote agents   Print Shop, connecting in the background (dragoman agents)\n" in words
    assert "  policies        3 in " in words
    assert (
        "  quarantined     print_shop.price, until you approve it (dragoman pins list)\n" in words
    )
    assert "WARNING" not in words  # an agent that was not found yet is no slip in a policy


def test_uncacheable_policy_is_reported_with_what_it_reads(
    terminal: Terminal,
) -> None:
    done = terminal.quick("policy", "check", str(ROOT / "examples" / "policies" / "careful"))
    assert done.code == 0
    assert (
        '"no-production-over-http" reads context.args: decisions that depend on it are not cached'
        in done.out
    )


def test_locked_out_owner_is_warned_by_every_command(
    terminal: Terminal,
) -> None:
    terminal.configure()
    (terminal.home / "policies").mkdir()
    terminal.up()
    assert 'permit you "admin"' in terminal.quick("status").out
    assert terminal.quick("tools").out.startswith("no tools")
    assert terminal.quick("agents").code == terminal.quick("servers").code == 0
    for args in (("pins", "list"), ("policy", "who-can", "x")):
        done = terminal.quick(*args)
        assert done.code == 4 and '"admin"' in done.err, done
    assert terminal.quick("call", "x").code == 5
    done = terminal.quick("doctor")
    assert done.code == 1 and "every call is denied, yours too" in done.out
