"""`up`, `stop` and `status`: runs, stops and describes the hub."""

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

from dragoman import __version__
from dragoman import home as homes
from dragoman.cli.base.errors import FAILED, NO_HUB, fail, find_exit_code
from dragoman.cli.base.hub_client import (
    HubClient,
    find_running_hub,
    find_waiting_hub,
    resolve_home,
)
from dragoman.cli.base.output import (
    StatusLine,
    clean,
    common_options,
    home_option,
    json_option,
    print_json,
    print_result,
)
from dragoman.cli.doctor.port_owner import find_listener
from dragoman.config_layers import Override
from dragoman.core.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.app.hub_parts import HubParts

log = logging.getLogger(__name__)

DETACH_SECONDS = 20.0
INSTALL = "dragoman install cursor | vscode | claude-desktop | claude-code | …"


class _Port(click.IntRange):
    name = "port: use a number from 0 to 65535"  # ends click's message


@click.command()
@home_option
@click.option("--host", metavar="ADDRESS", help="Address to listen on, instead of [server] host.")
@click.option("--port", type=_Port(0, 65535), metavar="PORT",
              help="Port to listen on, instead of [server] port.")  # fmt: skip
@click.option("--detach", is_flag=True,
              help="Run in the background; the log is hub.log in the home.")  # fmt: skip
@click.option("--demo", is_flag=True,
              help="Install the demo first: agents and a server without a key; see dragoman "
              "demo.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="Log warnings only; same as --log-level warning.")
@click.option("--log-format", type=click.Choice(["text", "json"]),
              help="Log format, instead of [log] format.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
              help="Lowest level to log, instead of [log] level.")  # fmt: skip
@click.option("--log-file", hidden=True, help="File for stdout and stderr; rotated.")
@click.option("--worker", is_flag=True, hidden=True, help="Run one of several workers.")
@json_option
def up(
    home: str | None,
    detach: bool,
    demo: bool,
    log_file: str | None,
    worker: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run the hub until it is stopped (Ctrl-C, SIGTERM or `dragoman stop`).

    \b
    dragoman up                    in this terminal
    dragoman up --detach           in the background
    dragoman up --port 0 --json    on a free port, printed as JSON
    dragoman up --demo             with two agents and a server to try, see dragoman demo

    The first run writes a commented config.toml into the home. The hub applies changes of that
    file, and of the file env beside it, while it runs. Only one hub can run on a home.

    Options take precedence over environment variables (DRAGOMAN_SERVER__PORT=8000), and those over
    config.toml.
    """
    place = resolve_home(home)
    if worker:
        return _serve_worker(place, log_file)
    _install_demo(place, demo, may_ask=not (options["quiet"] or as_json or log_file))
    if options["quiet"]:
        options["log_level"] = "warning"
    if detach:
        _detach(place, [*_render_options(options)], as_json)
        return
    _serve(place, [*_list_overrides(options)], options["quiet"], as_json, log_file)


def _install_demo(place: str, wanted: bool, may_ask: bool) -> None:
    from dragoman.app.build_stores import refuse_lost_config
    from dragoman.cli.demo.command import can_offer, install_at_start

    if wanted or (may_ask and can_offer()):
        homes.prepare(place)
        refuse_lost_config(Path(place))  # before a new one is written
        install_at_start(place, wanted, may_ask)


SETTINGS: dict[str, tuple[str, str]] = {
    "host": ("server", "host"),
    "port": ("server", "port"),
    "log_format": ("log", "format"),
    "log_level": ("log", "level"),
}
"""The configuration key that each option of `up` sets."""


def _list_overrides(options: Mapping[str, Any]) -> Iterator[Override]:
    for name, path in SETTINGS.items():
        if options[name] is not None:
            yield Override(path, options[name], f"--{name.replace('_', '-')}")


def _render_options(options: Mapping[str, Any]) -> Iterator[str]:
    """Renders the options as arguments for another process."""
    for one in _list_overrides(options):
        yield from (one.option, str(one.value))
    if options["quiet"]:
        yield "--quiet"


def _serve(
    place: str, given: Sequence[Override], quiet: bool, as_json: bool, log_file: str | None
) -> None:
    from dragoman.app.build_stores import refuse_lost_config
    from dragoman.app.run import run
    from dragoman.cli.configure import write_first_config

    try:
        homes.prepare(place)
        refuse_lost_config(Path(place))  # before a new one is written
        is_first = write_first_config(Path(place))
        run(
            Path(place),
            lambda parts: _announce(parts, is_first, quiet, as_json),
            given,
            log_file,
            announce_workers=lambda url, count: _announce_workers(
                place, url, count, quiet, as_json
            ),
        )
    except ConfigError as error:
        who = find_listener(error.taken_port) if error.taken_port else None
        if who is None:
            raise
        fail(f"{error} ({who} listens there)", find_exit_code(error.kind), kind=error.kind)


def _serve_worker(place: str, log_file: str | None) -> None:
    from dragoman.app.run import run
    from dragoman.app.workers import stop_with_supervisor

    run(Path(place), lambda parts: stop_with_supervisor(), (), log_file)


def _announce_workers(place: str, url: str, count: int, quiet: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_build_report(os.getpid(), url, place)), flush=True)
    elif not quiet:
        _print_banner(
            [
                ("MCP over HTTP", f"{url}/mcp"),
                ("MCP in an IDE", INSTALL),
                ("workers", f"{count} (dragoman cluster status)"),
                ("configuration", os.path.join(place, "config.toml")),
            ]
        )


def _print_banner(rows: Sequence[tuple[str, str]]) -> None:
    rows = [*rows, ("stop", "Ctrl-C, or dragoman stop")]
    lines = "".join(f"\n  {name:<15} {words}" for name, words in rows)
    print(f"dragoman {__version__} is up{lines}", file=sys.stderr, flush=True)


def _announce(parts: HubParts, is_first: bool, quiet: bool, as_json: bool) -> None:
    config, url = parts.live.config, parts.state.url
    in_json = config.log.format == "json"
    if is_first and not in_json:
        print(f"wrote {parts.home}/config.toml", file=sys.stderr)
    if as_json:
        # One line: the reader waits for a line, not for the end of the output.
        print(json.dumps(_build_report(os.getpid(), url, str(parts.home))), flush=True)
    if in_json:  # stderr must contain JSON lines only
        log.info("dragoman %s is up: %s, home %s", __version__, url, parts.home)
    if quiet or as_json or in_json:
        return
    count = len(config.mcp_servers)
    if count:
        servers = f"{count} configured, connecting in the background (dragoman servers)"
    else:
        servers = "none configured: dragoman import, or edit config.toml"
    a2a = config.a2a
    serves_a2a = f"{url}{a2a.listen_path}" if a2a.enabled else "off: set enabled = true under [a2a]"
    if parts.state.grpc_port is not None:
        serves_a2a += f", gRPC on port {parts.state.grpc_port}"
    rows = [
        ("MCP over HTTP", f"{url}/mcp"),
        ("MCP in an IDE", INSTALL),
        ("A2A", serves_a2a),
        ("servers", servers),
        *_list_optional_rows(parts),
        *_list_demo_rows(parts.home),
        ("configuration", str(parts.home / "config.toml")),
    ]
    _print_banner(rows)


def _list_optional_rows(parts: HubParts) -> Iterator[tuple[str, str]]:
    from dragoman.app.build_console import is_console_served

    if is_console_served(parts):
        yield "console", "dragoman console opens it in the browser"
    if local := parts.agents.local.by_name:
        yield "agents", ", ".join(local)
    if names := parts.agents.registry.agents.list_names():
        yield (
            "remote agents",
            f"{_render_names(names)}, connecting in the background (dragoman agents)",
        )
    policies = parts.guards.policies
    engine = policies.engine
    if not engine.policy_set.default:
        count = sum(not each.guardrail for each in engine.policy_set.policies)
        shadow = ", shadow mode: not enforced" if engine.mode == "shadow" else ""
        yield "policies", f"{count} in {policies.folder.path}{shadow} (dragoman policy list)"
    if quarantined := [pin["name"] for pin in parts.catalogs.approvals.list_pins("held")]:
        yield (
            "quarantined",
            f"{_render_names(quarantined)}, until you approve it (dragoman pins list)",
        )


def _list_demo_rows(home: Path) -> Iterator[tuple[str, str]]:
    from dragoman.cli.demo.command import TRY
    from dragoman.cli.demo.installation import RECORD

    if (home / RECORD).exists():
        yield "demo", TRY


def _render_names(names: Sequence[str]) -> str:
    """Renders up to five names, or else their number."""
    return clean(", ".join(names)) if len(names) <= 5 else str(len(names))


def _build_report(pid: int, url: str | None, place: str, **more: str) -> dict[str, object]:
    return {"pid": pid, "url": url, "mcp_url": f"{url}/mcp" if url else None, "home": place, **more}


def _detach(place: str, options: Sequence[str], as_json: bool) -> None:
    daemon = find_running_hub(place)
    if daemon is not None:
        inside = "inside a `dragoman mcp`; it stops with the IDEs that share it"
        fail(f"a hub is already running: process {daemon.pid}, {daemon.url or inside}", NO_HUB)
    homes.prepare(place)
    log = os.path.join(place, "hub.log")
    command = [sys.executable, "-m", "dragoman", "up", "--home", place, "--log-file", log, *options]
    # The hub opens the log itself; this descriptor receives errors before that.
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    begun = os.fstat(fd).st_size
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, start_new_session=True
    )
    os.close(fd)
    status_line = StatusLine()
    until = time.monotonic() + DETACH_SECONDS
    while time.monotonic() < until and process.poll() is None:
        status_line.show("starting …")
        daemon = find_running_hub(place)
        if daemon is not None:
            status_line.clear()
            process.returncode = 0  # the hub outlives this command: suppress the ResourceWarning
            text = f"the hub is up: process {daemon.pid}, {daemon.url}/mcp, log {log}"
            report = _build_report(daemon.pid, daemon.url, place, log=log)
            rows = [f"{name}: {words}" for name, words in _list_demo_rows(Path(place))]
            lines = [text, *rows, "stop it with: dragoman stop"]
            print_result(report, "\n".join(lines), as_json)
            return
        if (waiting := find_waiting_hub(place)) is not None:
            status_line.clear()
            process.returncode = 0
            daemon, why = waiting
            report = _build_report(daemon.pid, daemon.url, place, log=log, waiting=why)
            text = f"the hub has started, process {daemon.pid}, and does not serve yet: {why}"
            print_result(report, f"{text}\nstop it with: dragoman stop", as_json)
            return
        time.sleep(0.05)
    status_line.clear()
    if process.poll() is None:
        fail(f"process {process.pid} did not start within {DETACH_SECONDS:g} s; see {log}")
    _fail_with_log(process.returncode, log, begun)


def _fail_with_log(code: int, log: str, begun: int) -> NoReturn:
    """Ends the command with the last line of the log and the hub's exit code."""
    with open(log, "rb") as file:
        file.seek(begun if begun <= os.fstat(file.fileno()).st_size else 0)  # else rotated
        last = file.read(64_000).decode("utf-8", "replace").strip().splitlines()
    words = last[-1].removeprefix("dragoman: ") if last else f"no output; see {log}"
    fail(f"the hub did not start: {words}", code if code > 0 else FAILED)


def _require_hub(home: str | None, as_json: bool, key: str) -> tuple[str, homes.DaemonRecord]:
    """Returns the home and its hub, or ends the command; with --json it prints `key: false`."""
    place = resolve_home(home)
    daemon = find_running_hub(place)
    if daemon is not None:
        return place, daemon
    if (waiting := find_waiting_hub(place)) is not None:
        return place, waiting[0]
    if as_json:
        print_json({key: False, "home": place})
        raise SystemExit(NO_HUB)
    if not homes.is_locked(place):
        fail(f"no hub is running on {place}; start one with: dragoman up", NO_HUB)
    pid = read_lock_pid(place)
    who = f"process {pid}" if pid else "another process"
    fail(f"{who} holds {place} but does not answer; see: dragoman doctor", NO_HUB)


def read_lock_pid(place: str) -> int | None:
    try:
        with open(os.path.join(place, "lock"), "rb") as file:
            text = file.read(32).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


@click.command("stop")
@common_options
def stop_command(home: str | None, as_json: bool) -> None:
    """Stop the hub of this home; calls in progress have 5 seconds to finish.

    \b
    dragoman stop

    A hub of a cluster takes requests for [cluster] drain_secs before that.
    """
    place, daemon = _require_hub(home, as_json, "stopped")
    if daemon.mode == "mcp":
        fail(
            f"the hub runs inside process {daemon.pid}, a command or a `dragoman mcp` that an IDE "
            "started, and stops with it, or with the last IDE that shares it: close the IDE, or "
            f"run: kill {daemon.pid}",
            NO_HUB,
        )
    os.kill(daemon.pid, signal.SIGTERM)
    status_line = StatusLine()
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < daemon.stop_secs:
        if not _is_alive(daemon.pid) or not homes.is_locked(place):
            status_line.clear()
            done = {"stopped": True, "pid": daemon.pid, "home": place}
            print_result(done, f"the hub (process {daemon.pid}) has stopped", as_json)
            return
        status_line.show(f"waiting for calls in progress … {waited:.0f} s")
        time.sleep(0.05)
    status_line.clear()
    fail(f"process {daemon.pid} did not stop within {daemon.stop_secs:g} s; see its log")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@click.command()
@common_options
def status(home: str | None, as_json: bool) -> None:
    """Show whether a hub is running on this home, and its state. Exits with 3 if none is.

    \b
    dragoman status
    dragoman status --json
    """
    place, daemon = _require_hub(home, as_json, "running")
    hub = HubClient(place, daemon.socket)
    state = hub.get("/api/status")
    quarantined = hub.list_quarantined()
    if as_json:
        return print_json({"running": True, **state})
    print(
        f"dragoman {state['version']}, process {daemon.pid}, up for "
        f"{_render_duration(state['uptime_secs'])}"
    )
    if "servers" not in state:
        print('  problem   the policies do not permit you "admin", so no details are shown')
        return
    servers, clients = state["servers"], state["clients"]
    print(f"  home      {place}")
    print(f"  address   {state['url'] or 'none (runs inside dragoman mcp)'}")
    print(f"  servers   {servers['connected']} of {servers['total']} connected")
    for name, doing in servers.get("starts", {}).items():
        print(f"  starting  {clean(f'{name} {doing}')}")
    print(f"  tools     {state['tools']}")
    _print_agents(state["agents"])
    print(f"  clients   {clients['stdio']} over stdio, {clients['http_sessions']} HTTP sessions")
    if quarantined:
        names = _render_names([pin["name"] for pin in quarantined])
        print(f"  pins      quarantined: {names}; see: dragoman pins list")
    policies = state["policies"]
    if policies["mode"] == "shadow":
        print("  policies  shadow mode: recorded, not enforced")
    if policies["problem"]:
        print(f"  problem   {clean(policies['problem'])}; see: dragoman policy check")
    for problem in state.get("store_problems", ()):
        print(f"  problem   {clean(problem)}")
    if state["config_problem"]:
        problem = clean(state["config_problem"])
        print(f"  problem   config.toml is invalid and not applied: {problem}")
    if servers["connected"] + len(servers["starting"]) < servers["total"]:
        print("  next      dragoman servers shows what is wrong with the others")


def _print_agents(agents: dict[str, Any]) -> None:
    if agents["local"]:
        print(f"  agents    {clean(', '.join(agents['local']))}")
    for agent in agents["remote"]:
        reason = f": {agent['reason']}" if agent["reason"] else ""
        words = f"{agent['name']} at {agent['url']} is {agent['state']}{reason}"
        print(f"  agent     {clean(words)}")
        for finding in agent["findings"]:
            print(f"            {clean(finding)}")
    for problem in agents["failed"].values():
        print(f"  problem   {clean(problem)}")
    if agents["a2a"]:
        print(f"  tasks     {agents['tasks']}")


def _render_duration(seconds: float) -> str:
    """Renders the two largest units: 3 d 4 h, 12 min 5 s."""
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or unit == "s":
            parts.append(f"{count:.0f} {unit}")
    return " ".join(parts[:2])
