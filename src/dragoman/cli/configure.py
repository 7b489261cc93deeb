"""`init`, `config check` and `config show`: the configuration."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from dragoman import home as homes
from dragoman.cli.base.errors import NOT_FOUND, CommandFailed, UnreadableFile, fail, fail_with, say
from dragoman.cli.base.files import decode_text, read_bytes, replace_file
from dragoman.cli.base.hub_client import resolve_home, suggest
from dragoman.cli.base.output import clean, home_option, json_option, print_json, print_table
from dragoman.cli.base.toml_edit import parse_toml, remove_element, set_element_value
from dragoman.config import parse_headers
from dragoman.core.errors import ConfigError
from dragoman.core.urls import render_arguments, render_origin

FIRST_CONFIG = """\
# Dragoman's configuration. Changes are applied while the hub runs; `dragoman config check`
# explains what is wrong with it. All keys: dragoman docs configuration

# api_key = "…"            # callers must then send: Authorization: Bearer …

[server]
host = "127.0.0.1"         # anything but loopback needs a key
port = 50051
# public_url = "https://hub.example.com"

[mcp]
# What IDEs see through `dragoman mcp`: globs over tool names. Without this line: agents only.
stdio_expose = ["*"]
# Names of tools that every client takes. Without this line: only for clients that are known.
names = "portable"

[limits]
tool_timeout_secs = 60     # seconds a tool may take; progress gives it more
result_chars = 100000      # characters of a text in a result; the rest can be read for a while

# Agents, over A2A and as tools, are at the end; `dragoman docs a2a` explains them. Who may call
# what is in the folder policies: `dragoman policy init` writes it, `dragoman docs policies`
# explains it.
#
# One block a server. `dragoman import` writes them for the servers your IDE has already.
#
# [[mcp_servers]]
# name = "github"
# env = ["GITHUB_PERSONAL_ACCESS_TOKEN"]   # names of variables that it is given
# home = "user"                            # your home folder instead of one of its own
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
    """Write a commented config.toml into the home, unless there is one.

    \b
    dragoman init
    """
    place = resolve_home(home)
    try:
        homes.prepare(place)
    except homes.Unfit as unfit:
        fail(str(unfit))
    if write_first_config(Path(place)):
        print(f"wrote {place}/config.toml; next: dragoman import, then dragoman up")
    else:
        print(f"{place}/config.toml is there already and was left as it is")


@click.group()
def config() -> None:
    """The configuration: config.toml, and variables such as DRAGOMAN_SERVER__PORT.

    \b
    dragoman config check
    dragoman config show
    """


@config.command()
@home_option
@json_option
def check(home: str | None, as_json: bool) -> None:
    """Read the configuration as the hub would, and say what it means or what is wrong.

    \b
    dragoman config check
    """
    from dragoman.config import Config, load_with_source, whereabouts
    from dragoman.config_layers import find_near_misses

    file = Path(resolve_home(home)) / "config.toml"
    try:
        found, source = load_with_source(file)
    except ConfigError as error:
        if as_json:
            print_json({"ok": False, "file": str(file), "problem": str(error)})
            raise SystemExit(7) from None
        fail_with(error)
    servers = [
        {"name": entry.name, "enabled": entry.enabled, "where": whereabouts(entry)}
        for entry in found.mcp_servers
    ]
    warnings = source.warnings + [
        f"environment variable {name} sets nothing; did you mean {meant}?"
        for name, meant in find_near_misses(Config, os.environ)
    ]
    if as_json:
        print_json({"ok": True, "file": str(file), "servers": servers, "warnings": warnings})
        return
    print(f"{file} is fine" if file.exists() else f"there is no {file}; defaults are used")
    for variable in list_used_variables():
        print(f"  environment  {variable}")
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
    for warning in warnings:
        say(warning)


def list_used_variables() -> list[str]:
    """The environment variables that set something."""
    from dragoman.config import Config
    from dragoman.config_layers import list_variables

    return list_variables(Config, os.environ)


@config.command()
@click.option("--all", "everything", is_flag=True, help="Show defaults too.")
@home_option
@json_option
def show(everything: bool, home: str | None, as_json: bool) -> None:
    """Show each setting that is not a default, and where it comes from.

    \b
    dragoman config show

    The command line of `dragoman up` counts before environment variables
    (DRAGOMAN_SERVER__PORT=8000), these before config.toml, and that before the defaults. Keys,
    values of headers and whatever else may be secret are shown as "…".
    """
    from dragoman.config import load_with_source

    file = Path(resolve_home(home)) / "config.toml"
    try:
        found, source = load_with_source(file)
    except ConfigError as error:
        fail_with(error)
    rows = [
        {"setting": name, "value": value, "from": source.origin(path).removeprefix(f"{file}, ")}
        for path, name, value in _list_values(found, ())
    ]
    if not everything:
        rows = [row for row in rows if row["from"] != "default"]
    if as_json:
        print_json(rows)
        return
    if not rows:
        print("every setting has its default (dragoman config show --all)")
        return
    print_table(["SETTING", "VALUE", "FROM"], [list(row.values()) for row in rows])


SHOWN_TABLES = ("names_for",)
"""Tables of free keys whose values are no secrets."""


def _list_values(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    """The path of every single value, as it is written and as it may be shown."""
    names = getattr(value, "__struct_fields__", None)
    if names is not None:
        for name in names:
            yield from _list_values(getattr(value, name), (*path, name))
    elif isinstance(value, list) and value and hasattr(value[0], "__struct_fields__"):
        for index, one in enumerate(value):
            yield from _list_values(one, (*path, index))
    else:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        yield path, "".join(steps).removeprefix("."), clean(_render_value(path[-1], value))


def _render_value(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name == "api_key":
        return "…"
    if name in ("url", "public_url"):
        return render_origin(value)
    if name == "args":
        value = render_arguments(value)
    elif name == "headers":
        value = [f"{header}: …" for header, _ in parse_headers(value)]
    elif isinstance(value, dict) and name not in SHOWN_TABLES:
        value = dict.fromkeys(value, "…")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


KEY = "mcp_servers"

Edit = Callable[[str], str]


def remove_server(text: str, name: str) -> str:
    index, document = _find_server(text, name)
    del document[KEY][index]
    if not document[KEY]:
        del document[KEY]
    return _check_result(remove_element(text, KEY, index), document)


def set_enabled(text: str, name: str, enabled: bool) -> str:
    index, document = _find_server(text, name)
    if document[KEY][index].get("enabled", True) == enabled:
        return text
    document[KEY][index]["enabled"] = enabled
    return _check_result(set_element_value(text, KEY, index, "enabled", enabled), document)


def edit_config(file: Path, edit: Edit) -> Path | None:
    """Writes what `edit` makes of the file; returns the backup, or None where nothing changed."""
    data = read_bytes(file)
    try:
        mark, text = decode_text(data or b"")
        new = (mark + edit(text)).encode()
    except UnreadableFile as error:
        raise CommandFailed(f'"{file}": {error}. Nothing was changed; edit it by hand.') from None
    return replace_file(file, new, data) if new != data else None


def list_server_names(text: str) -> list[str]:
    listed = parse_toml(text).get(KEY, [])
    found = listed if isinstance(listed, list) else []
    return [str(one.get("name")) for one in found if isinstance(one, dict)]


def _find_server(text: str, name: str) -> tuple[int, Any]:
    document = parse_toml(text)
    names = list_server_names(text)
    if name not in names:
        hint = suggest(name, names) or "see: dragoman servers"
        fail(f'there is no server "{name}" in config.toml; {hint}', NOT_FOUND)
    return names.index(name), copy.deepcopy(document)


def _check_result(text: str, expected: Any) -> str:
    if parse_toml(text) != expected:
        raise UnreadableFile("its servers are laid out in a way that cannot be edited safely")
    return text
