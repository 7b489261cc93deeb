"""`servers`: the MCP servers the hub is a client of."""

from __future__ import annotations

from urllib.parse import quote

import click

from dragoman.cli.client import connected
from dragoman.cli.output import home_option, json_option, print_json, table


@click.group(invoke_without_command=True)
@click.pass_context
@home_option
@json_option
def servers(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """List the servers: state, era, number of tools, and what is wrong, in words."""
    if ctx.invoked_subcommand is not None:
        return
    with connected(home) as hub:
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
    table(["NAME", "STATE", "REVISION", "TOOLS", "REMARKS"], rows)


@servers.command()
@click.argument("name")
@home_option
@json_option
def logs(name: str, home: str | None, as_json: bool) -> None:
    """The end of what a stdio server wrote to stderr."""
    with connected(home, settled=False) as hub:
        found = hub.get(f"/api/mcp/servers/{quote(name, safe='')}/logs")
    if as_json:
        print_json(found)
    else:
        print(found["stderr"] or f'server "{name}" has written nothing to stderr', end="")
        if not found["stderr"].endswith("\n"):
            print()
