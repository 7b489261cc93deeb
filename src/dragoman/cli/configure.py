"""`init`, `config check` and `config show`, and edits of the servers in config.toml."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from dragoman import home as homes
from dragoman.cli.base.errors import NOT_FOUND, CommandFailed, UnreadableFile, fail, say
from dragoman.cli.base.files import decode_text, read_bytes, replace_file
from dragoman.cli.base.hub_client import resolve_home, suggest
from dragoman.cli.base.output import clean, common_options, home_option, print_json, print_table
from dragoman.cli.base.toml_edit import parse_toml, remove_element, set_element_value
from dragoman.config import parse_headers
from dragoman.core.errors import ConfigError
from dragoman.core.secret_references import is_reference, render_reference
from dragoman.core.urls import render_arguments, render_origin, render_url

FIRST_CONFIG = """\
# Dragoman's configuration. A running hub applies changes immediately; `dragoman config check` finds
# mistakes. All keys: dragoman docs configuration

# api_key = "…"            # HTTP clients must then send: Authorization: Bearer …

[server]
host = "127.0.0.1"         # a non-loopback address needs a key
port = 50051
# public_url = "https://hub.example.com"

[mcp]
# The tools that IDEs see through `dragoman mcp`: globs over names. Without this line: agents only.
stdio_expose = ["*"]
# Tool names that every client accepts. Without this line: only for known clients.
names = "portable"

[limits]
tool_timeout_secs = 60     # timeout of a call; progress extends it
result_chars = 100000      # longer texts are truncated; the rest can be read for a while

# Agents are at the end; `dragoman docs a2a` explains them. Policies define permissions:
# `dragoman policy init` writes the folder policies, `dragoman docs policies` explains it.
#
# One block per server. `dragoman import` writes the blocks for the servers of your IDE.
#
# [[mcp_servers]]
# name = "github"
# env = ["GITHUB_PERSONAL_ACCESS_TOKEN"]   # environment variables passed to it
# home = "user"                            # your home folder instead of a private one
#
# [mcp_servers.transport]
# type = "stdio"
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-github"]
#
# [[mcp_servers]]
# name = "remote-tools"
# timeout_secs = 20                        # a shorter timeout for this server
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
# description = "Greets a person by name."
# function = "my_agents:greet"             # in my_agents.py beside this file
#
# [[a2a.external_agents]]                  # or, while the hub runs: dragoman agents add URL
# name = "research-agent"
# url = "https://research.example.com"
# token = "env:RESEARCH_TOKEN"             # an environment variable, or a line in the file env
#
# [[auth.jwt.issuers]]                     # tokens of your identity provider: docs sign-in
# name = "corp"
# issuer = "https://sso.example.com/realms/main"
"""


def write_first_config(place: Path) -> bool:
    """Writes the commented config.toml unless it exists; returns whether it did."""
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
    """Write a commented config.toml into the home, unless it exists.

    \b
    dragoman init
    """
    place = resolve_home(home)
    homes.prepare(place)
    if write_first_config(Path(place)):
        print(f"wrote {place}/config.toml; next: dragoman import, then dragoman up")
    else:
        print(f"{place}/config.toml already exists; nothing was changed")


@click.group()
def config() -> None:
    """Check and show the configuration: config.toml and environment variables.

    \b
    dragoman config check
    dragoman config show
    """


@config.command()
@common_options
def check(home: str | None, as_json: bool) -> None:
    """Validate the configuration as the hub would, and summarize it.

    \b
    dragoman config check
    """
    from dragoman.config import Config, describe_transport, load_with_source
    from dragoman.config_layers import find_near_misses

    file = Path(resolve_home(home)) / "config.toml"
    try:
        found, source = load_with_source(file)
    except ConfigError as error:
        if as_json:
            print_json({"ok": False, "file": str(file), "problem": str(error)})
            raise SystemExit(7) from None
        raise
    servers = [
        {"name": entry.name, "enabled": entry.enabled, "where": describe_transport(entry)}
        for entry in found.mcp_servers
    ]
    warnings = source.warnings + [
        f"unknown environment variable {name}; did you mean {meant}?"
        for name, meant in find_near_misses(Config, os.environ)
    ]
    if as_json:
        return print_json({"ok": True, "file": str(file), "servers": servers, "warnings": warnings})
    print(f"{file} is valid" if file.exists() else f"{file} does not exist; using defaults")
    for variable in list_used_variables():
        print(f"  environment  {variable}")
    print(f"  listens on   {found.server.host} port {found.server.port}")
    print(f"  key          {'api_key is set' if found.api_key else 'none (loopback only)'}")
    nothing = "agents only: [mcp] stdio_expose is empty"
    print(f"  IDEs see     {', '.join(found.mcp.stdio_expose) or nothing}")
    a2a = found.a2a
    print(f"  A2A          {a2a.listen_path if a2a.enabled else 'off ([a2a] enabled)'}")
    for agent in found.agents:
        print(f"  agent        {agent.name}: {agent.function}")
    for external in a2a.external_agents:
        print(f"  agent        {external.name}: {render_origin(external.url)}")
    for server in servers:
        off = "" if server["enabled"] else " (disabled)"
        print(f"  server       {server['name']}: {server['where']}{off}")
    for warning in warnings:
        say(warning)


def list_used_variables() -> list[str]:
    """Lists the environment variables that set a configuration key."""
    from dragoman.config import Config
    from dragoman.config_layers import list_variables

    return list_variables(Config, os.environ)


@config.command()
@click.option("--all", "everything", is_flag=True, help="Include defaults.")
@common_options
def show(everything: bool, home: str | None, as_json: bool) -> None:
    """Show every setting that is not a default, and its source.

    \b
    dragoman config show
    dragoman config show --all      defaults too

    Options of `dragoman up` take precedence over environment variables
    (DRAGOMAN_SERVER__PORT=8000), those over config.toml, and that over defaults. Keys, header
    values and other possible secrets are shown as "…".
    """
    from dragoman.config import load_with_source

    file = Path(resolve_home(home)) / "config.toml"
    found, source = load_with_source(file)
    rows = [
        {
            "setting": name,
            "value": value,
            "from": source.find_origin(path).removeprefix(f"{file}, "),
        }
        for path, name, value in _list_values(found, ())
    ]
    if not everything:
        rows = [row for row in rows if row["from"] != "default"]
    if as_json:
        return print_json(rows)
    if not rows:
        print("all settings are defaults; see: dragoman config show --all")
        return
    print_table(["SETTING", "VALUE", "FROM"], [list(row.values()) for row in rows])


REFERENCES = (("store", "url"), ("cluster", "secret"), ("redis", "url"))
SHOWN_TABLES = ("names_for",)
"""Tables with free keys whose values are not secret."""


def _list_values(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    """Yields the path of each value, its rendered name and its value without secrets."""
    names = getattr(value, "__struct_fields__", None)
    if names is not None:
        for name in names:
            yield from _list_values(getattr(value, name), (*path, name))
    elif isinstance(value, list) and value and hasattr(value[0], "__struct_fields__"):
        for index, one in enumerate(value):
            yield from _list_values(one, (*path, index))
    else:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        yield path, "".join(steps).removeprefix("."), clean(_render_value(path, value))


def _render_value(path: tuple[Any, ...], value: Any) -> str:
    name = path[-1]
    if value is None:
        return "none"
    if isinstance(value, str) and path in REFERENCES and is_reference(value):
        return render_reference(value)
    if name == "api_key" or path == ("cluster", "secret"):
        return "…"
    if name in ("url", "public_url"):
        return render_origin(value)
    if isinstance(value, str) and "://" in value:
        return render_url(value)  # of a database, or of a search service, with a password
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


def set_sandbox(text: str, name: str, level: str) -> str:
    index, document = _find_server(text, name)
    document[KEY][index]["sandbox"] = level
    return _check_result(set_element_value(text, KEY, index, "sandbox", level), document)


def edit_config(file: Path, edit: Edit) -> Path | None:
    """Applies `edit` to the file; returns the backup, or None if nothing changed."""
    data = read_bytes(file)
    try:
        mark, text = decode_text(data or b"")
        new = (mark + edit(text)).encode()
    except UnreadableFile as error:
        raise CommandFailed(
            f'cannot edit "{file}": {error}; nothing was changed, edit it by hand'
        ) from None
    return replace_file(file, new, data) if new != data else None


def list_servers(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = document.get(KEY, [])
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def list_server_names(text: str) -> list[str]:
    return [str(one.get("name")) for one in list_servers(parse_toml(text))]


def _find_server(text: str, name: str) -> tuple[int, Any]:
    document = parse_toml(text)
    names = list_server_names(text)
    if name not in names:
        hint = suggest(name, names) or "see: dragoman servers"
        fail(f'unknown server "{name}" in config.toml; {hint}', NOT_FOUND)
    return names.index(name), copy.deepcopy(document)


def _check_result(text: str, expected: Any) -> str:
    if parse_toml(text) != expected:
        raise UnreadableFile("the layout of its servers cannot be edited safely")
    return text
