"""`up`, `stop`, `status`: the hub itself."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman import __version__, home
from dragoman.cli.client import HubClient, place_of, running
from dragoman.cli.errors import FAILED, NO_HUB, stop, stop_for
from dragoman.cli.output import Waiting, home_option, json_option, print_json
from dragoman.core.errors import HubError

if TYPE_CHECKING:
    from dragoman.assembly import Instance

DETACH_SECONDS = 20.0
STOP_SECONDS = 15.0


@click.command()
@home_option
@click.option("--port", type=click.IntRange(0, 65535), help="Listen here instead of [server] port.")
@click.option(
    "--detach", is_flag=True, help="Run in the background; the log is hub.log in the home."
)
@click.option("--quiet", is_flag=True, help="Log warnings only.")
def up(home: str | None, port: int | None, detach: bool, quiet: bool) -> None:
    """Run the hub until it is stopped (Ctrl-C, SIGTERM or `dragoman stop`).

    The first run writes a commented config.toml into the home. Changes of that file are applied
    while the hub runs.
    """
    place = place_of(home)
    if detach:
        _detach(place, port, quiet)
        return
    _serve(place, port, quiet)


def _serve(place: str, port: int | None, quiet: bool) -> None:
    from dragoman import assembly
    from dragoman.cli.configure import write_first_config

    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format=assembly.LOG_FORMAT)
    try:
        home.prepare(place)
        if write_first_config(Path(place)):
            print(f"wrote {place}/config.toml", file=sys.stderr)
        assembly.run(Path(place), lambda hub: _announce(hub, quiet), port)
    except home.Held as held:
        stop(str(held), NO_HUB)
    except home.Unfit as unfit:
        stop(str(unfit))
    except HubError as error:
        stop_for(error)


def _announce(hub: Instance, quiet: bool) -> None:
    if quiet:
        return
    count = len(hub.config.mcp_servers)
    if count:
        servers = f"{count} configured, connecting in the background (dragoman servers)"
    else:
        servers = "none yet: dragoman import, or edit config.toml"
    print(
        f"dragoman {__version__} is up\n"
        f"  MCP over HTTP   {hub.url}/mcp\n"
        f"  MCP in an IDE   dragoman install cursor | vscode | claude-desktop | claude-code | …\n"
        f"  servers         {servers}\n"
        f"  configuration   {hub.place / 'config.toml'}\n"
        f"  stop            Ctrl-C, or dragoman stop",
        file=sys.stderr,
        flush=True,
    )


def _detach(place: str, port: int | None, quiet: bool) -> None:
    daemon = running(place)
    if daemon is not None:
        stop(
            f"a hub is running already: process {daemon.pid}, {daemon.url or daemon.socket}", NO_HUB
        )
    try:
        home.prepare(place)
    except home.Unfit as unfit:
        stop(str(unfit))
    command = [sys.executable, "-m", "dragoman", "up", "--home", place]
    command += ["--port", str(port)] if port is not None else []
    command += ["--quiet"] if quiet else []
    log = os.path.join(place, "hub.log")
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    begun = os.fstat(fd).st_size
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, start_new_session=True
    )
    os.close(fd)
    waiting = Waiting()
    until = time.monotonic() + DETACH_SECONDS
    while time.monotonic() < until and process.poll() is None:
        waiting.say("starting …")
        daemon = running(place)
        if daemon is not None:
            waiting.done()
            print(f"the hub is up: process {daemon.pid}, {daemon.url}/mcp, log {log}")
            return
        time.sleep(0.05)
    waiting.done()
    with open(log, "rb") as file:
        file.seek(begun)
        last = file.read(64_000).decode("utf-8", "replace").strip().splitlines()
    stop(f"the hub did not start: {last[-1] if last else 'it said nothing'}; see {log}", FAILED)


@click.command("stop")
@home_option
def stop_command(home: str | None) -> None:
    """Stop the hub of this home; what is under way may finish."""
    place = place_of(home)
    daemon = running(place)
    if daemon is None:
        stop(f"no hub is running on {place}", NO_HUB)
    os.kill(daemon.pid, signal.SIGTERM)
    waiting = Waiting()
    until = time.monotonic() + STOP_SECONDS
    while time.monotonic() < until:
        if not _alive(daemon.pid) or not _held(place):
            waiting.done()
            print(f"the hub (process {daemon.pid}) has stopped")
            return
        waiting.say("waiting for calls under way …")
        time.sleep(0.05)
    waiting.done()
    stop(f"process {daemon.pid} has not stopped within {STOP_SECONDS:g} s; see its log")


def _held(place: str) -> bool:
    return home.is_held(place)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@click.command()
@home_option
@json_option
def status(home: str | None, as_json: bool) -> None:
    """Whether a hub runs on this home, since when, and what it has."""
    place = place_of(home)
    daemon = running(place)
    if daemon is None:
        if as_json:
            print_json({"running": False, "home": place})
            raise SystemExit(NO_HUB)
        stop(f"no hub is running on {place}; start one with: dragoman up", NO_HUB)
    state = HubClient(place, daemon.socket).get("/api/status")
    if as_json:
        print_json({"running": True, **state})
        return
    servers, clients = state["servers"], state["clients"]
    print(f"dragoman {state['version']}, process {state['pid']}, up for {state['uptime_secs']:g} s")
    print(f"  home      {state['home']}")
    print(f"  address   {state['url'] or 'none (it runs inside dragoman mcp)'}")
    print(f"  servers   {servers['connected']} of {servers['total']} connected")
    print(f"  tools     {state['tools']}")
    print(f"  clients   {clients['stdio']} over stdio, {clients['http_sessions']} HTTP sessions")
    if state["config_problem"]:
        print(f"  problem   config.toml as it is now is not used: {state['config_problem']}")
