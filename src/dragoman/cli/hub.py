"""`up`, `stop`, `status`: the hub itself."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dragoman import __version__, home
from dragoman.cli.base.errors import FAILED, NO_HUB, exit_code_for, fail, fail_with
from dragoman.cli.base.hub_client import HubClient, find_running_hub, resolve_home
from dragoman.cli.base.output import StatusLine, clean, home_option, json_option, print_json
from dragoman.cli.doctor.port_owner import find_listener
from dragoman.config_layers import Given
from dragoman.core.errors import ConfigError, HubError

if TYPE_CHECKING:
    from dragoman.app.app import Instance

log = logging.getLogger(__name__)

DETACH_SECONDS = 20.0
STOP_SECONDS = 15.0


@click.command()
@home_option
@click.option("--host", metavar="ADDRESS", help="Listen there instead of [server] host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen here instead of [server] port.")
@click.option(
    "--detach", is_flag=True, help="Run in the background; the log is hub.log in the home."
)
@click.option("--quiet", is_flag=True, help="Log warnings only; the same as --log-level warning.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Instead of [log] format.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The least that is logged, instead of [log] level.",
)
@click.option("--log-file", hidden=True, help="Where stdout and stderr go; rotated.")
@json_option
def up(home: str | None, detach: bool, log_file: str | None, as_json: bool, **options: Any) -> None:
    """Run the hub until it is stopped (Ctrl-C, SIGTERM or `dragoman stop`).

    \b
    dragoman up                    in this terminal
    dragoman up --detach           in the background
    dragoman up --port 0 --json    on any free port, and say which

    The first run writes a commented config.toml into the home. Changes of that file, and of the
    file env beside it, are applied while the hub runs. One hub holds a home at a time.

    An option counts before the environment (DRAGOMAN_SERVER__PORT=8000), and that before the file.
    """
    place = resolve_home(home)
    if options["quiet"]:
        options["log_level"] = "warning"
    if detach:
        _detach(place, [*_render_options(options)], as_json)
        return
    _serve(place, [*_list_overrides(options)], options["quiet"], as_json, log_file)


SETTINGS: dict[str, tuple[str, str]] = {
    "host": ("server", "host"),
    "port": ("server", "port"),
    "log_format": ("log", "format"),
    "log_level": ("log", "level"),
}
"""What each option of `up` sets."""


def _list_overrides(options: Mapping[str, Any]) -> Iterator[Given]:
    for name, path in SETTINGS.items():
        if options[name] is not None:
            yield Given(path, options[name], f"--{name.replace('_', '-')}")


def _render_options(options: Mapping[str, Any]) -> Iterator[str]:
    """The same options for another process."""
    for one in _list_overrides(options):
        yield from (one.option, str(one.value))
    if options["quiet"]:
        yield "--quiet"


def _serve(
    place: str, given: Sequence[Given], quiet: bool, as_json: bool, log_file: str | None
) -> None:
    from dragoman.app import app
    from dragoman.cli.configure import write_first_config

    try:
        home.prepare(place)
        app.refuse_lost_config(Path(place))  # or a new one would be written in its place
        is_first = write_first_config(Path(place))
        app.run(Path(place), lambda hub: _announce(hub, is_first, quiet, as_json), given, log_file)
    except home.Held as held:
        fail(str(held), NO_HUB)
    except home.Unfit as unfit:
        fail(str(unfit))
    except HubError as error:
        port = error.taken_port if isinstance(error, ConfigError) else None
        who = find_listener(port) if port else None
        if who is None:
            fail_with(error)
        fail(f"{error} ({who} listens there)", exit_code_for(error.kind), kind=error.kind)


def _announce(hub: Instance, is_first: bool, quiet: bool, as_json: bool) -> None:
    in_json = hub.config.log.format == "json"
    if is_first and not in_json:
        print(f"wrote {hub.place}/config.toml", file=sys.stderr)
    if as_json:
        # One line: whoever reads it waits for this line, not for the end.
        print(json.dumps(_build_report(os.getpid(), hub.url, str(hub.place))), flush=True)
    if in_json:  # nothing else may be among its lines
        log.info("dragoman %s is up: %s, home %s", __version__, hub.url, hub.place)
    if quiet or as_json or in_json:
        return
    count = len(hub.config.mcp_servers)
    if count:
        servers = f"{count} configured, connecting in the background (dragoman servers)"
    else:
        servers = "none yet: dragoman import, or edit config.toml"
    a2a = hub.config.a2a
    serves_a2a = (
        f"{hub.url}{a2a.listen_path}" if a2a.enabled else "not served: enabled = true under [a2a]"
    )
    if hub.agents.grpc_port is not None:
        serves_a2a += f", gRPC on port {hub.agents.grpc_port}"
    rows = [
        ("MCP over HTTP", f"{hub.url}/mcp"),
        ("MCP in an IDE", "dragoman install cursor | vscode | claude-desktop | claude-code | …"),
        ("A2A", serves_a2a),
        ("servers", servers),
        *_list_optional_rows(hub),
        ("configuration", str(hub.place / "config.toml")),
        ("stop", "Ctrl-C, or dragoman stop"),
    ]
    lines = "".join(f"\n  {name:<15} {words}" for name, words in rows)
    print(f"dragoman {__version__} is up{lines}", file=sys.stderr, flush=True)


def _list_optional_rows(hub: Instance) -> Iterator[tuple[str, str]]:
    if hub.agents.local:
        yield "agents", ", ".join(agent.name for agent in hub.agents.local)
    registry = hub.agents.registry
    if registry is not None and (names := registry.agents.list_names()):
        yield "remote agents", f"{_render_names(names)}, found in the background (dragoman agents)"
    policies = hub.guards.policies
    if not policies.policies.snapshot.default:
        count = sum(not each.guardrail for each in policies.policies.snapshot.policies)
        shadow = ", in shadow mode: not enforced" if policies.policies.mode == "shadow" else ""
        yield "policies", f"{count} in {policies.folder.path}{shadow} (dragoman policy list)"
    if held := [pin["name"] for pin in hub.guards.approvals.listed("held")]:
        yield "held", f"{_render_names(held)}, until you approve it (dragoman pins list)"


def _render_names(names: Sequence[str]) -> str:
    """All of a few; of more, how many there are."""
    return clean(", ".join(names)) if len(names) <= 5 else str(len(names))


def _build_report(pid: int, url: str | None, place: str, **more: str) -> dict[str, object]:
    return {"pid": pid, "url": url, "mcp_url": f"{url}/mcp" if url else None, "home": place, **more}


def _detach(place: str, options: Sequence[str], as_json: bool) -> None:
    daemon = find_running_hub(place)
    if daemon is not None:
        inside = "inside a `dragoman mcp`; it ends with the IDEs that share it"
        fail(f"a hub is running already: process {daemon.pid}, {daemon.url or inside}", NO_HUB)
    try:
        home.prepare(place)
    except home.Unfit as unfit:
        fail(str(unfit))
    log = os.path.join(place, "hub.log")
    command = [sys.executable, "-m", "dragoman", "up", "--home", place, "--log-file", log, *options]
    # The hub opens it itself; this one takes what it says if it does not come so far.
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    begun = os.fstat(fd).st_size
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, start_new_session=True
    )
    os.close(fd)
    waiting = StatusLine()
    until = time.monotonic() + DETACH_SECONDS
    while time.monotonic() < until and process.poll() is None:
        waiting.show("starting …")
        daemon = find_running_hub(place)
        if daemon is not None:
            waiting.clear()
            process.returncode = 0  # it lives on, and nobody here waits for it
            if as_json:
                print_json(_build_report(daemon.pid, daemon.url, place, log=log))
            else:
                print(f"the hub is up: process {daemon.pid}, {daemon.url}/mcp, log {log}")
                print("stop it with: dragoman stop")
            return
        time.sleep(0.05)
    waiting.clear()
    if process.poll() is None:
        fail(f"process {process.pid} has not come up within {DETACH_SECONDS:g} s; see {log}")
    _fail_with_log(process.returncode, log, begun)


def _fail_with_log(code: int, log: str, begun: int) -> NoReturn:
    """Its last words, with its exit code."""
    with open(log, "rb") as file:
        file.seek(begun if begun <= os.fstat(file.fileno()).st_size else 0)  # or it began anew
        last = file.read(64_000).decode("utf-8", "replace").strip().splitlines()
    words = last[-1].removeprefix("dragoman: ") if last else f"it said nothing; see {log}"
    fail(f"the hub did not start: {words}", code if code > 0 else FAILED)


def explain_not_running(place: str) -> str:
    """Why nothing answers there, in words."""
    if not home.is_held(place):
        return f"no hub is running on {place}; start one with: dragoman up"
    pid = read_lock_pid(place)
    who = f"process {pid}" if pid else "another process"
    return f"{who} holds {place} but does not answer; see: dragoman doctor"


def read_lock_pid(place: str) -> int | None:
    """Who wrote itself into the lock last."""
    try:
        with open(os.path.join(place, "lock"), "rb") as file:
            text = file.read(32).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


@click.command("stop")
@home_option
@json_option
def stop_command(home: str | None, as_json: bool) -> None:
    """Stop the hub of this home; what is under way may finish (for 5 seconds).

    \b
    dragoman stop
    """
    place = resolve_home(home)
    daemon = find_running_hub(place)
    if daemon is None:
        if as_json:
            print_json({"stopped": False, "home": place})
            raise SystemExit(NO_HUB)
        fail(explain_not_running(place), NO_HUB)
    if daemon.mode == "mcp":
        fail(
            f"the hub runs inside process {daemon.pid}, a `dragoman mcp` that an IDE started or "
            "another command; it ends with that one, and another IDE that shares it goes on with "
            f"it: close them, or: kill {daemon.pid}",
            NO_HUB,
        )
    os.kill(daemon.pid, signal.SIGTERM)
    waiting = StatusLine()
    until = time.monotonic() + STOP_SECONDS
    while time.monotonic() < until:
        if not _is_alive(daemon.pid) or not _is_held(place):
            waiting.clear()
            if as_json:
                print_json({"stopped": True, "pid": daemon.pid, "home": place})
            else:
                print(f"the hub (process {daemon.pid}) has stopped")
            return
        waiting.show("waiting for calls under way …")
        time.sleep(0.05)
    waiting.clear()
    fail(f"process {daemon.pid} has not stopped within {STOP_SECONDS:g} s; see its log")


def _is_held(place: str) -> bool:
    return home.is_held(place)


def _is_alive(pid: int) -> bool:
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
    """Whether a hub runs on this home, since when, and what it has. Exits with 3 if none does.

    \b
    dragoman status
    dragoman status --json
    """
    place = resolve_home(home)
    daemon = find_running_hub(place)
    if daemon is None:
        if as_json:
            print_json({"running": False, "home": place})
            raise SystemExit(NO_HUB)
        fail(explain_not_running(place), NO_HUB)
    hub = HubClient(place, daemon.socket)
    state = hub.get("/api/status")
    held = hub.list_quarantined()
    if as_json:
        print_json({"running": True, **state})
        return
    print(
        f"dragoman {state['version']}, process {daemon.pid}, up for "
        f"{_render_duration(state['uptime_secs'])}"
    )
    if "servers" not in state:
        print('  problem   the policies let you do no "admin", so the hub says no more; edit them')
        return
    servers, clients = state["servers"], state["clients"]
    print(f"  home      {state['home']}")
    print(f"  address   {state['url'] or 'none (it runs inside dragoman mcp)'}")
    print(f"  servers   {servers['connected']} of {servers['total']} connected")
    print(f"  tools     {state['tools']}")
    _print_agents(state["agents"])
    print(f"  clients   {clients['stdio']} over stdio, {clients['http_sessions']} HTTP sessions")
    if held:
        print(
            f"  held      {_render_names([pin['name'] for pin in held])}; see: dragoman pins list"
        )
    policies = state["policies"]
    if policies["mode"] == "shadow":
        print("  policies  in shadow mode: recorded, not enforced")
    if policies["problem"]:
        print(f"  problem   {clean(policies['problem'])}; see: dragoman policy check")
    for problem in state.get("store_problems", ()):
        print(f"  problem   {clean(problem)}")
    if state["config_problem"]:
        print(f"  problem   config.toml as it is now is not used: {clean(state['config_problem'])}")
    if servers["connected"] + len(servers["starting"]) < servers["total"]:
        print("  next      dragoman servers says what is wrong with the others")


def _print_agents(agents: dict[str, Any]) -> None:
    if agents["local"]:
        print(f"  agents    {clean(', '.join(agents['local']))}")
    for far in agents["remote"]:
        trouble = f": {far['reason']}" if far["reason"] else ""
        words = f"{far['name']} at {far['url']} is {far['state']}{trouble}"
        print(f"  agent     {clean(words)}")
        for finding in far["findings"]:
            print(f"            {clean(finding)}")
    for problem in agents["failed"].values():
        print(f"  problem   {clean(problem)}")
    if agents["a2a"]:
        print(f"  tasks     {agents['tasks']}")


def _render_duration(seconds: float) -> str:
    """The two greatest units: 3 d 4 h, 12 min 5 s."""
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or unit == "s":
            parts.append(f"{count:.0f} {unit}")
    return " ".join(parts[:2])
