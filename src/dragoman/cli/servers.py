"""`servers`: the MCP servers the hub is a client of."""

from __future__ import annotations

import click

from dragoman.cli.base.errors import NO_HUB, NOT_FOUND, TARGET_FAILED, fail
from dragoman.cli.base.hub_client import (
    START_SECONDS,
    HubClient,
    connect_hub,
    find_running_hub,
    resolve_home,
    suggest,
)
from dragoman.cli.base.output import home_option, json_option, print_json, print_table
from dragoman.cli.completion_values import complete_servers
from dragoman.cli.server_edits import add, disable, enable, remove
from dragoman.cli.server_views import print_connected, print_server
from dragoman.core.safe_text import escape_controls

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
for command in (add, remove, enable, disable):
    servers.add_command(command)
