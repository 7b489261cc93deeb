"""`servers`: the MCP servers the hub is a client of."""

from __future__ import annotations

import click

from dragoman.cli.client import START_SECONDS, connected
from dragoman.cli.output import home_option, json_option, print_json, table
from dragoman.core.text import escape_controls

LOOK_SECONDS = 2.0


@click.group(invoke_without_command=True)
@click.pass_context
@home_option
@json_option
def servers(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """List the servers: state, revision, number of tools, and what is wrong, in words.

    \b
    States: connected; starting; failed (it is tried again by itself, with longer and longer
    pauses, and at once when one of its tools is called); idle (unused for idle_secs, a call starts
    it again); off (enabled = false).

    A server is a [[mcp_servers]] block of config.toml: write one, or use `dragoman import`.
    """
    if ctx.invoked_subcommand is not None:
        return
    with connected(home) as hub:
        # One that runs has mostly tried them already, and then "starting" is an answer.
        hub.wait_settled(START_SECONDS if hub.own else LOOK_SECONDS, agents=False)
        found = hub.get("/api/mcp/servers")
    if as_json:
        print_json(found)
        return
    if not found["connected"]:
        print("no servers are configured; see: dragoman import, or edit config.toml")
        return
    rows = []
    for server in found["connected"]:
        notes = [server.get("reason", ""), *server.get("problems", [])]
        era = server.get("protocol_version") or server.get("era") or "-"
        words = "; ".join(note for note in notes if note)
        rows.append((server["name"], server["state"], era, server["tools_count"], words))
    table(["NAME", "STATE", "REVISION", "TOOLS", "REMARKS"], rows, whole=True)


@servers.command()
@click.argument("name")
@home_option
@json_option
def logs(name: str, home: str | None, as_json: bool) -> None:
    """What server NAME wrote to stderr: the last 64 KB since the hub started it."""
    with connected(home) as hub:
        if hub.own:
            hub.wait_settled(agents=False)
        found = hub.server_log(name)
    if as_json:
        print_json(found)
    elif not found["stderr"]:
        print(f'server "{name}" has written nothing to stderr')
    else:
        print(escape_controls(found["stderr"].rstrip("\n")))
