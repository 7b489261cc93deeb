"""`servers`: the MCP servers the hub is a client of."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from dragoman.cli.base.errors import (
    NO_HUB,
    NOT_FOUND,
    TARGET_FAILED,
    USAGE,
    CommandFailed,
    UnreadableFile,
    fail,
    say,
)
from dragoman.cli.base.files import decode_text, read_bytes
from dragoman.cli.base.hub_client import (
    START_SECONDS,
    HubClient,
    connect_hub,
    find_running_hub,
    resolve_home,
    suggest,
)
from dragoman.cli.base.output import clean, home_option, json_option, print_json, print_table
from dragoman.cli.clients import import_plan
from dragoman.cli.clients.import_command import ImportJob
from dragoman.cli.clients.import_plan import FoundServer, ServerPlan
from dragoman.cli.clients.known_clients import KnownClient
from dragoman.cli.completion import complete_servers
from dragoman.cli.configure import edit_config, list_server_names, remove_server, set_enabled
from dragoman.core.errors import ConfigError
from dragoman.core.safe_text import escape_controls
from dragoman.home import Unfit

LOOK_SECONDS = 2.0


@click.group(invoke_without_command=True)
@click.pass_context
@home_option
@json_option
def servers(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """List the servers: state, revision, number of tools, and what is wrong, in words.

    \b
    dragoman servers                                   all of them, and how they are
    dragoman servers add files npx -y SOME-PACKAGE     add one, and see what it offers
    dragoman servers add notes https://example.com/mcp
    dragoman servers show files                        one: entry, state, tools
    dragoman servers logs files                        what it wrote to stderr
    dragoman servers restart files                     stop it and connect again
    dragoman servers disable files                     switch it off; enable switches it on
    dragoman servers remove files

    \b
    States: connected; starting; failed (it is tried again by itself, with longer and longer
    pauses, and at once when one of its tools is called); idle (unused for idle_secs, a call starts
    it again); off (enabled = false).

    A server is a [[mcp_servers]] block of config.toml. `dragoman import` takes over those of an
    IDE.
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect_hub(home) as hub:
        # One that runs has mostly tried them already, and then "starting" is an answer.
        hub.wait_until_connected(START_SECONDS if hub.is_temporary else LOOK_SECONDS, agents=False)
        found = hub.get("/api/mcp/servers")
    if as_json:
        print_json(found)
        return
    if not found["connected"]:
        print("no servers are configured; see: dragoman import, dragoman servers add --help")
        return
    rows = []
    for server in found["connected"]:
        remarks = server.get("remarks", [])
        notes = [server.get("reason", ""), *server.get("problems", []), *remarks]
        era = server.get("protocol_version") or server.get("era") or "-"
        words = "; ".join(note for note in notes if note)
        rows.append((server["name"], server["state"], era, server["tools_count"], words))
    print_table(["NAME", "STATE", "REVISION", "TOOLS", "REMARKS"], rows, whole=True)


@servers.command(short_help="One server: its entry, its state, its tools.")
@click.argument("name", shell_complete=complete_servers)
@home_option
@json_option
def show(name: str, home: str | None, as_json: bool) -> None:
    """Show server NAME: how it is reached, how it is, and what it offers.

    \b
    dragoman servers show files
    dragoman servers show files --json
    """
    with connect_hub(home) as hub:
        if hub.is_temporary:
            hub.wait_for_server(name)
        found = hub.get("/api/mcp/servers")
    states = {state["name"]: state for state in found["connected"]}
    if name not in states:
        fail(f'there is no server "{name}"; {suggest(name, states) or _SEE}', NOT_FOUND)
    entry = next(one for one in found["configured"] if one["name"] == name)
    if as_json:
        print_json({"configured": entry, "state": states[name]})
    else:
        print_server(entry, states[name])


@servers.command(short_help="What a server wrote to stderr.")
@click.argument("name", shell_complete=complete_servers)
@home_option
@json_option
def logs(name: str, home: str | None, as_json: bool) -> None:
    """What server NAME wrote to stderr: the last 64 KB since the hub started it.

    \b
    dragoman servers logs files
    """
    with connect_hub(home) as hub:
        if hub.is_temporary:
            hub.wait_until_connected(agents=False)
        found = hub.get_server_log(name)
    if as_json:
        print_json(found)
    elif not found["stderr"]:
        print(f'server "{name}" has written nothing to stderr')
    else:
        print(escape_controls(found["stderr"].rstrip("\n")))


@servers.command(short_help="Stop a server and connect to it again.")
@click.argument("name", shell_complete=complete_servers)
@home_option
@json_option
def restart(name: str, home: str | None, as_json: bool) -> None:
    """Stop server NAME of the running hub, and connect to it again.

    \b
    dragoman servers restart files

    Calls that it is working on fail. Exit codes: 0 connected again, 3 no hub runs, 5 no such
    server is switched on, 6 not connected.
    """
    place = resolve_home(home)
    daemon = find_running_hub(place)
    if daemon is None:
        fail(f"no hub is running on {place}, so there is nothing to restart", NO_HUB)
    hub = HubClient(place, daemon.socket)
    hub.restart_server(name)
    state = hub.wait_for_server(name)
    if as_json:
        print_json(state)
    elif state["connected"]:
        print_connected(state)
    if not state["connected"]:
        fail(f'server "{name}" is not connected: {state.get("reason", "")}', TARGET_FAILED)


_SEE = "see: dragoman servers"


COMMAND_LINE = KnownClient(name=import_plan.COMMAND_LINE, title="the command line", files=())
_URL = re.compile(r"https?://", re.IGNORECASE)


class PassThroughCommand(click.Command):
    """Leaves everything from the server's program on to that program, as `env` and `sudo` do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        valued = {
            option
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for option in param.opts
        }
        words = 0
        at = 0
        while at < len(args) and args[at] != "--":
            word = args[at]
            if word.startswith("-") and len(word) > 1:
                at += 2 if word in valued else 1
                continue
            words += 1
            if words == 2 and not _URL.match(word):
                return super().parse_args(ctx, [*args[:at], "--", *args[at:]])
            at += 1
        return super().parse_args(ctx, args)


@servers.command(cls=PassThroughCommand, short_help="Add a server, connect, show what it offers.")
@click.argument("name")
@click.argument("where", nargs=-1, required=True, metavar="PROGRAM... | URL")
@click.option("--env", "env", multiple=True, metavar="NAME[=VALUE]",
              help="A variable for the program; a value goes to the file env.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
              help="A header for a URL; write a secret as ${VARIABLE}, or its value goes to the "
              "file env.")  # fmt: skip
@click.option("--cwd", metavar="DIR", help="The folder that the program starts in.")
@click.option("--prefix", help='What its names begin with in lists; "" leaves them as they are.')
@click.option("--sse", is_flag=True, help="The URL speaks the older HTTP+SSE transport.")
@click.option("--allow-private", is_flag=True,
              help="The name in URL may lead to a private address.")  # fmt: skip
@click.option("--set", "more", multiple=True, metavar="KEY=VALUE",
              help="Any other key of [[mcp_servers]], with a TOML value: --set pin='\"strict\"', "
              "--set timeout_secs=60.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Take the place of the server of that name.")
@click.option("--no-connect", is_flag=True, help="Only write it down.")
@home_option
@json_option
def add(
    name: str,
    where: tuple[str, ...],
    env: tuple[str, ...],
    headers: tuple[str, ...],
    cwd: str | None,
    prefix: str | None,
    sse: bool,
    allow_private: bool,
    more: tuple[str, ...],
    replace: bool,
    no_connect: bool,
    home: str | None,
    as_json: bool,
) -> None:
    """Add server NAME to config.toml: a PROGRAM... with its arguments, or a URL.

    \b
    dragoman servers add files npx -y @modelcontextprotocol/server-filesystem ~/docs
    dragoman servers add github --env GITHUB_TOKEN=ghp_… docker run -i --rm ghcr.io/github/…
    dragoman servers add notes https://example.com/mcp --header 'Authorization: Bearer ${NOTES}'

    Options stand before the program: what follows it belongs to it. Values, which may be secrets,
    go to the file env in the hub's home, and config.toml names them. The hub then connects to it
    and shows what it offers. A server that cannot be reached stays in config.toml, so that you can
    correct it there; `dragoman servers remove NAME` takes it out.

    Exit codes: 0 connected, 1 nothing was changed, 2 wrong usage, 6 added, and not connected.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,63}", name):
        fail(
            f'a server cannot be called "{name[:80]}": letters, digits, spaces, "-" and "_", at '
            "most 64, the first a letter or digit",
            USAGE,
        )
    entry = _build_entry(where, env, headers, cwd, sse)
    settings = {**({"prefix": prefix} if prefix is not None else {}), **_parse_settings(more)}
    if allow_private and "url" not in entry:
        fail("--allow-private is for a URL", USAGE)
    found = FoundServer(
        name, entry, COMMAND_LINE, COMMAND_LINE.title, Path.cwd(), settings, allow_private
    )
    work = ImportJob(Path(resolve_home(home)), replaces=name if replace else None)
    plan, backup = _add_server(work, found)
    state = None if no_connect else _connect(home, name)
    if as_json:
        answer = {"added": name, "config": str(work.config_path), "notes": plan.notes}
        print_json({**answer, "backup": str(backup) if backup else None, "server": state})
    else:
        kept = f" (backup: {backup.name})" if backup else ""
        print(f'added "{name}" to {work.config_path}{kept}')
        for note in plan.notes:
            print(f"  note: {clean(note)}")
        if plan.values:
            print(f"  {', '.join(plan.values)}: kept in {work.env_path}, which only you can read")
    _report_state(name, state, as_json)


def _build_entry(
    where: tuple[str, ...],
    env: tuple[str, ...],
    headers: tuple[str, ...],
    cwd: str | None,
    sse: bool,
) -> dict[str, Any]:
    """What was typed, as clients write it down."""
    if len(where) == 1 and _URL.match(where[0]):
        if env or cwd:
            fail("--env and --cwd are for a program; a URL has --header", USAGE)
        entry: dict[str, Any] = {"url": where[0], "type": "sse" if sse else "http"}
        entry["headers"] = dict(_parse_header(line) for line in headers)
        return entry
    if _URL.match(where[0]):
        fail(f'"{where[1][:60]}" is too much: a URL stands alone', USAGE)
    if headers or sse:
        fail("--header and --sse are for a URL; a program has --env", USAGE)
    pairs = [variable.partition("=") for variable in env]
    return {
        "command": where[0],
        "args": list(where[1:]),
        "env": {variable: value for variable, equals, value in pairs if equals},
        "env_vars": [variable for variable, equals, _ in pairs if not equals],
        **({"cwd": os.path.abspath(os.path.expanduser(cwd))} if cwd else {}),
    }


def _parse_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        fail(f"write a header as 'NAME: VALUE', not \"{name[:60]}\"", USAGE)
    return name.strip(), value.strip()


def _parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not re.fullmatch(r"[a-z_]+", key):
            fail(f'--set takes KEY=VALUE, not "{pair[:60]}"', USAGE)
        try:
            found |= tomllib.loads(f"{key} = {text}")
        except tomllib.TOMLDecodeError:
            found[key] = text  # a word without quotes
    return found


def _add_server(work: ImportJob, found: FoundServer) -> tuple[ServerPlan, Path | None]:
    try:
        if work.replaces is not None and work.replaces not in _names(work.config_path):
            work.replaces = None
        work.plan_servers([found])
        for skip in work.skipped:
            taken = "; --replace takes its place" if "of this name" in skip["reason"] else ""
            fail(f'"{found.name}" was not added: {skip["reason"]}{taken}; nothing was changed')
        return work.plans[0], work.write()
    except (UnreadableFile, Unfit, ConfigError) as error:
        raise CommandFailed(f"{str(error).rstrip('.')}; nothing was changed") from None


def _names(file: Path) -> list[str]:
    return list_server_names(decode_text(read_bytes(file) or b"")[1])


@servers.command(short_help="Take a server out.")
@click.argument("name", shell_complete=complete_servers)
@home_option
@json_option
def remove(name: str, home: str | None, as_json: bool) -> None:
    """Take server NAME out of config.toml; a hub that runs stops it.

    \b
    dragoman servers remove files

    The file as it was is kept beside it. What the file env holds stays there: another server may
    use it.
    """
    file = Path(resolve_home(home)) / "config.toml"
    backup = edit_config(file, lambda text: remove_server(text, name))
    _reload(home)
    if as_json:
        print_json({"removed": name, "config": str(file), "backup": str(backup)})
    else:
        print(f'removed "{name}" from {file} (backup: {backup.name if backup else "-"})')


@servers.command(short_help="Switch a server on.")
@click.argument("name", shell_complete=complete_servers)
@home_option
@json_option
def enable(name: str, home: str | None, as_json: bool) -> None:
    """Switch server NAME on (enabled = true); a hub that runs connects to it.

    \b
    dragoman servers enable files
    """
    _set_enabled(name, True, home, as_json)


@servers.command(short_help="Switch a server off, and keep its entry.")
@click.argument("name", shell_complete=complete_servers)
@home_option
@json_option
def disable(name: str, home: str | None, as_json: bool) -> None:
    """Switch server NAME off (enabled = false): it is stopped, and its tools are gone.

    \b
    dragoman servers disable files
    """
    _set_enabled(name, False, home, as_json)


def _set_enabled(name: str, enabled: bool, home: str | None, as_json: bool) -> None:
    file = Path(resolve_home(home)) / "config.toml"
    changed = edit_config(file, lambda text: set_enabled(text, name, enabled))
    hub = _reload(home)
    state = hub.wait_for_server(name) if hub is not None and enabled else None
    if as_json:
        said = {"server": name, "enabled": enabled, "changed": changed is not None}
        print_json({**said, "state": state})
    else:
        already = "" if changed else " already"
        print(f'"{name}" is switched {"on" if enabled else "off"}{already} in {file}')
    _report_state(name, state, as_json)


def _connect(home: str | None, name: str) -> dict[str, Any] | None:
    """What the hub finds; None where it does not use the configuration."""
    if find_running_hub(resolve_home(home)) is not None:
        hub = _reload(home)
        return hub.wait_for_server(name) if hub is not None else None
    with connect_hub(home) as own:
        return own.wait_for_server(name)


def _reload(home: str | None) -> HubClient | None:
    """Has a hub that runs read the configuration; None where none runs, or it is not used."""
    place = resolve_home(home)
    daemon = find_running_hub(place)
    if daemon is None:
        return None
    hub = HubClient(place, daemon.socket)
    problem = hub.send("POST", "/api/reload")["problem"]
    if problem:
        say(f"the running hub does not use config.toml as it is now: {problem}")
        return None
    return hub


def _report_state(name: str, state: dict[str, Any] | None, as_json: bool) -> None:
    """Shows what the hub found, and ends with 6 where the server is not connected."""
    if state is None:
        return
    if not as_json and state["connected"]:
        print_connected(state)
    if not state["connected"] and state["state"] != "off":
        fail(
            f'server "{name}" is not connected: {state.get("reason", "")}; its entry stays: '
            f"correct it in config.toml, or: dragoman servers remove {name}",
            TARGET_FAILED,
        )


_COUNTED = (
    ("tools_count", "tool"),
    ("prompts_count", "prompt"),
    ("resources_count", "resource"),
    ("templates_count", "resource template"),
)


def describe_offers(state: Mapping[str, Any]) -> str:
    counts = [(state.get(key, 0), noun) for key, noun in _COUNTED]
    return ", ".join(
        f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count or noun == "tool"
    )


def describe_revision(state: Mapping[str, Any]) -> str:
    return str(state.get("protocol_version") or state.get("era") or "-")


def print_connected(state: Mapping[str, Any]) -> None:
    print(
        f'server "{clean(state["name"])}" is connected: {describe_revision(state)}, '
        f"{describe_offers(state)}"
    )
    _print_remarks(state)
    if state.get("tools"):
        print_table(["NAME", "DESCRIPTION"], _build_tool_rows(state))


def print_server(entry: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """One server whole: how it is reached, how it is, what it offers."""
    transport = dict(entry.get("transport", {}))
    kind = transport.pop("type", "-")
    info = state.get("server_info") or {}
    reason = f": {state['reason']}" if state.get("reason") else ""
    rows = [
        ("state", f"{state['state']}{reason}"),
        ("speaks", f"{describe_revision(state)}, over {kind}"),
        ("calls itself", f"{info.get('name', '-')} {info.get('version', '')}" if info else ""),
        *(
            (key, _render_value(value))
            for key, value in transport.items()
            if value not in (None, [], {})
        ),
        *(
            (key, _render_value(value))
            for key, value in entry.items()
            if key not in ("name", "transport")
        ),
        ("offers", describe_offers(state) if state.get("tools_count") is not None else ""),
        ("restarts", state["restarts"] if state.get("restarts") else ""),
    ]
    print(clean(state["name"]))
    for name, value in rows:
        if value != "":
            print(f"  {name:<13} {clean(value)}")
    _print_remarks(state)
    if state.get("tools"):
        print()
        print_table(["NAME", "DESCRIPTION"], _build_tool_rows(state))


def _print_remarks(state: Mapping[str, Any]) -> None:
    for remark in (*state.get("problems", ()), *state.get("remarks", ())):
        print(f"  {'remark':<13} {clean(remark)}")


def _build_tool_rows(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(tool["name"], tool["description"]) for tool in state["tools"]]


def _render_value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items()) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
