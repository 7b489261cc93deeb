"""`init` and `config check`: the configuration file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from dragoman import home as homes
from dragoman.cli.client import place_of
from dragoman.cli.errors import stop, stop_for
from dragoman.cli.output import home_option, json_option, print_json
from dragoman.core.errors import ConfigError
from dragoman.core.urls import render_origin

FIRST_CONFIG = """\
# Dragoman's configuration. Changes are applied while the hub runs; `dragoman config check`
# explains what is wrong with it. All keys: docs/configuration.md

# api_key = "…"            # callers must then send: Authorization: Bearer …

[server]
host = "127.0.0.1"         # anything but loopback needs a key
port = 50051
# public_url = "https://hub.example.com"

[mcp]
# What IDEs see through `dragoman mcp`: globs over tool names. Without this line: agents only.
stdio_expose = ["*"]

[limits]
tool_timeout_secs = 60     # seconds a tool may take; progress gives it more
result_chars = 50000       # characters of text in a result

# Agents, over A2A and as tools, are at the end; docs/a2a.md explains them. Who may call what is in
# the folder policies: `dragoman policy init` writes it, docs/policies.md explains it.
#
# One block a server. `dragoman import` writes them for the servers your IDE has already.
#
# [[mcp_servers]]
# name = "github"
# env = ["GITHUB_PERSONAL_ACCESS_TOKEN"]   # names of variables that it is given
#
# [mcp_servers.transport]
# type = "stdio"
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-github"]
#
# [[mcp_servers]]
# name = "remote-tools"
# timeout_secs = 20                        # less than the limit above, for this server alone
#
# [mcp_servers.transport]
# type = "http"                            # or "sse"
# url = "https://tools.example.com/mcp"
# headers = { Authorization = "Bearer ${REMOTE_TOOLS_TOKEN}" }
#
# [a2a]
# enabled = true
#
# [[agents]]
# name = "greeter"
# description = "Greets whoever it is told of."
# function = "my_agents:greet"             # my_agents.py beside this file
#
# [[a2a.external_agents]]                  # or, while the hub runs: dragoman agents add URL
# name = "research-agent"
# url = "https://research.example.com"
# token = "env:RESEARCH_TOKEN"             # a variable of the hub, or a line in the file env
"""


def write_first_config(place: Path) -> bool:
    """Writes the commented file where there is none."""
    try:
        fd = os.open(place / "config.toml", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(FIRST_CONFIG)
    return True


@click.command()
@home_option
def init(home: str | None) -> None:
    """Write a commented config.toml into the home, unless there is one."""
    place = place_of(home)
    try:
        homes.prepare(place)
    except homes.Unfit as unfit:
        stop(str(unfit))
    if write_first_config(Path(place)):
        print(f"wrote {place}/config.toml; next: dragoman import, then dragoman up")
    else:
        print(f"{place}/config.toml is there already and was left as it is")


@click.group()
def config() -> None:
    """The configuration file."""


@config.command()
@home_option
@json_option
def check(home: str | None, as_json: bool) -> None:
    """Read config.toml as the hub would, and say what it means or what is wrong."""
    from dragoman.config import load, whereabouts

    file = Path(place_of(home)) / "config.toml"
    try:
        found = load(file)
    except ConfigError as error:
        if as_json:
            print_json({"ok": False, "file": str(file), "problem": str(error)})
            raise SystemExit(7) from None
        stop_for(error)
    servers = [
        {"name": entry.name, "enabled": entry.enabled, "where": whereabouts(entry)}
        for entry in found.mcp_servers
    ]
    if as_json:
        print_json({"ok": True, "file": str(file), "servers": servers})
        return
    print(f"{file} is fine" if file.exists() else f"there is no {file}; defaults are used")
    print(f"  listens on   {found.server.host} port {found.server.port}")
    print(f"  key          {'api_key is set' if found.api_key else 'none: loopback only'}")
    nothing = "agents only, no tools and no skills (no [mcp] stdio_expose)"
    print(f"  IDEs see     {', '.join(found.mcp.stdio_expose) or nothing}")
    a2a = found.a2a
    print(f"  A2A          {a2a.listen_path if a2a.enabled else 'off ([a2a] enabled)'}")
    for agent in found.agents:
        print(f"  agent        {agent.name}: {agent.function}")
    for far in a2a.external_agents:
        print(f"  agent        {far.name}: {render_origin(far.url)}")
    for server in servers:
        off = "" if server["enabled"] else " (switched off)"
        print(f"  server       {server['name']}: {server['where']}{off}")
