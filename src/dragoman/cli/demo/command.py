"""`demo`: adds, removes and describes the demo, and offers it on the first run."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import click

from dragoman import home as homes
from dragoman.cli.base.errors import CommandFailed, say
from dragoman.cli.base.hub_client import HubClient, connect_running, resolve_home
from dragoman.cli.base.output import common_options, print_json, print_result
from dragoman.cli.base.prompt import yes_option
from dragoman.cli.demo.installation import (
    AGENTS,
    QUESTION,
    RECORD,
    SERVER,
    add_demo,
    find_state,
    remove_demo,
    remove_empty_folders,
)

TRY = f'dragoman chat {AGENTS[0]} "{QUESTION}"'
OFFER = """\
This hub is new. A demo shows it at work: two agents and an MCP server that
need no key and no network. Press d to begin with the demo, or any other key
to begin without it: """
OFFER_SECONDS = 30.0
"""How long the first run waits for a key, in case that no person is at the terminal."""
APPLY_SECONDS = 10.0
"""How long to wait until a running hub has applied a change."""


@click.group(invoke_without_command=True)
@click.pass_context
@common_options
def demo(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Try the hub without a key or a network: two agents and an MCP server.

    \b
    dragoman demo add                        install it
    dragoman chat guide "What is a pin?"     ask the first agent
    dragoman demo status                     what is installed, and what to try
    dragoman demo remove                     remove exactly what was installed

    The guide asks the librarian, another agent, who uses a tool of the MCP server glossary. Both
    agents follow a script, so the same question has the same answer. `dragoman up --demo` installs
    it and runs the hub.
    """
    if ctx.invoked_subcommand is None:
        _print_status(home, as_json)


@demo.command()
@common_options
def add(home: str | None, as_json: bool) -> None:
    """Install the demo into the home; nothing of yours is overwritten.

    \b
    dragoman demo add
    """
    place = resolve_home(home)
    homes.prepare(place)
    notes = add_demo(Path(place))
    running = connect_running(place)
    if running is not None and not notes and not running.get("/api/status")["agents"]["a2a"]:
        notes.append("restart the hub to reach the agents by A2A")
    if running is not None:
        _reload(running)
        _wait_until(lambda: _is_running(running))
    what = {"installed": True, "agents": list(AGENTS), "server": SERVER, "notes": notes}
    up = "" if running is not None else "dragoman up, then "
    print_result(what, f"the demo is installed; try: {up}{TRY}", as_json)
    for note in notes:
        say(note)


@demo.command()
@yes_option
@common_options
def remove(yes: bool, home: str | None, as_json: bool) -> None:
    """Remove the demo: the files and the configuration that `demo add` has written.

    \b
    dragoman demo remove

    A file that you have changed is removed only if you agree; without a terminal it stays, unless
    --yes is given. The audit log keeps the calls.
    """
    place = Path(resolve_home(home))

    def should_remove(file: Path) -> bool:
        if yes or as_json or not sys.stdin.isatty():
            return yes
        return click.confirm(f"{file} was changed; remove it?", err=True)

    removed, kept = remove_demo(place, should_remove)
    running = connect_running(str(place))
    if running is not None:
        _reload(running)
        _wait_until(lambda: _is_gone(running, kept))
    remove_empty_folders(place)
    if as_json:
        return print_json({"removed": removed, "kept": kept})
    print(f"the demo is removed: {', '.join(removed)}")
    for name in kept:
        say(f"{place / name} was changed and stays; delete it, or keep it as yours")


@demo.command()
@common_options
def status(home: str | None, as_json: bool) -> None:
    """Show whether the demo is installed, what was changed, and what to try.

    \b
    dragoman demo status
    """
    _print_status(home, as_json)


def _print_status(home: str | None, as_json: bool) -> None:
    place = resolve_home(home)
    state = find_state(Path(place))
    running = connect_running(place)
    works = running is not None and state.is_installed and _is_running(running)
    if as_json:
        return print_json({**state._asdict(), "running": works})
    if not state.is_installed:
        print("the demo is not installed; see: dragoman demo add")
        return
    print(f"the demo is installed: agents {', '.join(AGENTS)}, server {SERVER}")
    for name in state.changed:
        print(f"  changed  {name}")
    for name in state.missing:
        print(f"  missing  {name}")
    if running is None:
        print("  no hub is running; start one with: dragoman up")
    elif not works:
        print("  the hub has not connected all of it; see: dragoman agents, dragoman servers")
    print(f"  try      {TRY}")
    print("  remove   dragoman demo remove")


def _reload(hub: HubClient) -> None:
    hub.send("POST", "/api/reload", {})


def _is_running(hub: HubClient) -> bool:
    agents = {one["name"] for one in hub.get("/api/agents")["agents"]}
    servers = {one["name"] for one in hub.list_servers() if one["connected"]}
    return set(AGENTS) <= agents and SERVER in servers


def _is_gone(hub: HubClient, kept: list[str]) -> bool:
    agents = {one["name"] for one in hub.get("/api/agents")["agents"]}
    left = {name for name in AGENTS if f"agents/{name}/agent.toml" not in kept}
    return not left & agents and SERVER not in {one["name"] for one in hub.list_servers()}


def _wait_until(is_done: Any) -> None:
    until = time.monotonic() + APPLY_SECONDS
    while not is_done() and time.monotonic() < until:
        time.sleep(0.05)


# --- the first run --------------------------------------------------------------------------------


def install_at_start(place: str, wanted: bool, may_ask: bool) -> None:
    """Installs the demo before a hub starts, if it is wanted or a person at the terminal of a new
    home presses a key for it."""
    home = Path(place)
    is_new = not (home / "config.toml").exists()
    if (home / RECORD).exists() or not (wanted or (is_new and may_ask and _offer())):
        return
    homes.prepare(place)
    try:
        for note in add_demo(home):
            say(note)
    except CommandFailed as error:
        raise CommandFailed(f"the demo was not installed: {error.message}") from None


def can_offer() -> bool:
    """Whether a person can be asked: not in a pipe, and not in a service."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _offer() -> bool:
    if not can_offer():
        return False
    key = _ask_for_key(OFFER, OFFER_SECONDS)
    return key in (b"d", b"D")


def _ask_for_key(question: str, seconds: float) -> bytes:
    """Shows a question and reads one key press; empty if none comes in time."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        print(question, end="", file=sys.stderr, flush=True)
        return os.read(fd, 1) if select.select([fd], [], [], seconds)[0] else b""
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)
        print(file=sys.stderr)
