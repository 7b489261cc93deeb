"""`dragoman install`: adds the hub to a client's configuration file, and removes it."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from dragoman.cli.base.errors import CommandFailed, UnreadableFile, say
from dragoman.cli.base.files import read_bytes, replace_file
from dragoman.cli.base.hub_client import connect_running
from dragoman.cli.base.output import common_options
from dragoman.cli.base.token_costs import render_heavy_list
from dragoman.cli.clients.edit import parse_document, restore_original, set_entry
from dragoman.cli.clients.known_clients import (
    CLIENTS,
    KnownClient,
    build_entry,
    find_config_file,
    find_program,
    find_servers,
    is_hub_entry,
)
from dragoman.cli.completion import complete_clients, complete_views
from dragoman.config import check_view_name, load
from dragoman.core.errors import ConfigError
from dragoman.home import HomeUnusable, find_home

CANNOT_EDIT = 8
"""Exit code: the file's format cannot be edited; the text to add was printed."""

_SCRIPTS = ("dragoman", "dragoman.exe")


def find_hub_command(
    *, gui: bool, environ: Mapping[str, str] = os.environ
) -> tuple[str, list[str]]:
    """Returns the command that starts this hub: `dragoman` only if the shell's PATH leads here."""
    script: Path | None = Path(sys.argv[0]).absolute()
    if script is None or script.name.lower() not in _SCRIPTS or not script.is_file():
        beside = (Path(sys.executable).parent / name for name in _SCRIPTS)
        script = next((path for path in beside if path.is_file()), None)
    if script is None:
        return sys.executable, ["-m", "dragoman", "mcp"]
    named = shutil.which("dragoman", path=environ.get("PATH"))
    # An activated environment is not active in the next terminal.
    lasting = named is not None and not _is_below(named, environ.get("VIRTUAL_ENV"))
    if not gui and named and lasting and os.path.realpath(named) == os.path.realpath(script):
        return "dragoman", ["mcp"]
    return str(script), ["mcp"]


def _is_below(path: str, folder: str | None) -> bool:
    return bool(folder) and Path(path).absolute().is_relative_to(os.path.abspath(str(folder)))


def render_snippet(client: KnownClient, name: str, entry: dict[str, Any]) -> str:
    """Renders the text to add by hand, in the client's format."""
    if client.format == "yaml":  # Goose
        lines = ["extensions:", f"  {name}:", "    enabled: true", "    type: stdio"]
        lines += [f"    name: {name}", f"    cmd: {json.dumps(entry['command'])}"]
        lines += [f"    args: {json.dumps(entry['args'])}", "    timeout: 300"]
        lines += [f"    envs: {json.dumps(entry['env'])}"] if "env" in entry else []
        return "\n".join(lines) + "\n"
    return set_entry(client, None, name, entry).decode()


@dataclass(frozen=True, slots=True)
class InstallResult:
    client: str
    path: str
    name: str
    action: str
    said: str
    next: str = ""
    backup: str | None = None
    entry: dict[str, Any] | None = None
    snippet: str | None = None


def _merge_entry(old: Any, entry: dict[str, Any]) -> dict[str, Any]:
    """Merges our entry over the existing one: clients add their own fields."""
    merged = {**(old if isinstance(old, dict) else {}), **entry}
    for key in ("env", "environment"):
        if key in entry and isinstance(old, dict) and isinstance(old.get(key), dict):
            merged[key] = {**old[key], **entry[key]}
    return merged


def _add_entry(
    client: KnownClient,
    path: Path,
    name: str,
    entry: dict[str, Any],
    *,
    named: bool,
    dry: bool,
    project: bool,
) -> InstallResult:
    data = read_bytes(path)
    servers = find_servers(parse_document(client.format, data or b""), client)[1]
    other = next(
        (n for n, s in servers.items() if is_hub_entry(s) and _merge_entry(s, entry) == s), None
    )
    if other is not None and (other == name or not named):
        said = f'Already installed as "{other}" in {path}; nothing was changed.'
        return InstallResult(client.name, str(path), other, "already", said, entry=servers[other])
    if name in servers and not is_hub_entry(servers[name]):
        raise CommandFailed(
            f'{path} already has another server "{name}"; choose another name with --name'
        )
    known = name in servers
    entry = _merge_entry(servers.get(name), entry)
    new = set_entry(client, data, name, entry)
    word = "updated" if known else "added"
    if dry:
        said = f'Would have {word} "{name}" in {path}; nothing was changed.'
        return InstallResult(client.name, str(path), name, "dry-run", said, entry=entry)
    saved = replace_file(path, new, data, mode=0o644 if project else 0o600)
    kept = f" (backup: {saved.name})" if saved else ""
    said = f'{word.capitalize()} "{name}" in {client.title}: {path}{kept}.'
    step, kept_at = client.next_step, str(saved) if saved else None
    return InstallResult(client.name, str(path), name, word, said, step, kept_at, entry)


def _remove_hub_entry(client: KnownClient, path: Path, name: str, dry: bool) -> InstallResult:
    data = read_bytes(path)
    servers = find_servers(parse_document(client.format, data or b""), client)[1]
    if data is None or name not in servers:
        said = f'Not installed: {path} has no "{name}"; nothing was changed.'
        return InstallResult(client.name, str(path), name, "absent", said)
    if not is_hub_entry(servers[name]):
        raise CommandFailed(
            f'"{name}" in {path} is not this hub; give the name of the hub with --name'
        )
    before = restore_original(client, path, data, name)
    if dry:
        said = f'Would have removed "{name}" from {path}; nothing was changed.'
        return InstallResult(client.name, str(path), name, "dry-run", said)
    saved = replace_file(path, before, data)
    said = f'Removed "{name}" from {client.title}: {path} (backup: {saved.name if saved else "-"}).'
    step = f"Restart {client.title} to apply the change."
    return InstallResult(client.name, str(path), name, "removed", said, step, str(saved))


def read_client_state(client: KnownClient) -> dict[str, Any]:
    """Returns where a client's file is and whether it has the hub (None: unknown)."""
    path = find_config_file(client)
    found: dict[str, Any] = {"client": client.name, "title": client.title, "path": str(path)}
    found |= {"exists": False, "installed": False, "name": None, "command": None, "problem": None}
    found["servers"] = []
    try:
        data = read_bytes(path) if path else None
        found["exists"] = data is not None
        if client.format == "yaml":
            found["installed"] = None if data else False
            return found
        servers = find_servers(parse_document(client.format, data or b""), client)[1]
    except UnreadableFile as error:
        return found | {"exists": True, "installed": None, "problem": str(error)}
    name = next((name for name, server in servers.items() if is_hub_entry(server)), None)
    command = find_program(servers[name]) if name is not None else None
    others = [name for name, server in servers.items() if not is_hub_entry(server)]
    installed = {"installed": name is not None, "name": name, "command": command}
    return found | installed | {"servers": others}


def _list_clients(as_json: bool) -> None:
    states = [read_client_state(client) for client in CLIENTS.values()]
    if as_json:
        click.echo(json.dumps({"clients": states}, indent=2))
        return
    for found in states:
        if found["installed"]:
            word = f'installed as "{found["name"]}"'
        elif found["problem"]:
            word = f"unreadable: {found['problem']}"
        elif found["installed"] is None:
            word = "unknown (YAML)"
        else:
            word = "not installed" if found["exists"] else "no configuration"
        click.echo(f"{found['client']:<16} {word:<24} {found['path']}")
    click.echo("\nAdd the hub to a client with: dragoman install CLIENT")


def build_unknown_client_error(word: str, also: str = "") -> click.UsageError:
    near = [name for name in CLIENTS if word.lower() in name or name in word.lower()][:3]
    near = near or difflib.get_close_matches(word.lower(), CLIENTS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(CLIENTS)}."
    return click.UsageError(f'unknown client{also} "{word}"; {hint}')


def run_install(
    client: str,
    project: Path | None,
    name: str,
    named: bool,
    verb: str,
    home: str | None,
    view: str | None = None,
) -> InstallResult:
    """Installs, removes or previews the hub in one client; `verb` is the option given."""
    if client not in CLIENTS:
        raise build_unknown_client_error(client)
    known = CLIENTS[client]
    home = home or os.environ.get("DRAGOMAN_HOME")
    env = {"DRAGOMAN_HOME": os.path.abspath(os.path.expanduser(home))} if home else {}
    command, args = find_hub_command(gui=known.gui)
    if view is not None:
        args = [*args, "--view", view]
    entry = build_entry(known, command, args, env)
    path = find_config_file(known, project.absolute() if project else None)
    if path is None:
        raise click.UsageError(f"{known.title} has no project file; omit --project.")
    try:
        if verb == "print" or known.format == "yaml":
            text = render_snippet(known, name, entry)
            action, said = "printed", f"Add this to {path}:"
            if verb != "print":
                word = "Remove" if verb.startswith("remove") else "Add"
                action, said = "manual", f"{path} is YAML, which this command cannot edit; "
                said += f"nothing was changed. {word} this by hand:"
            return InstallResult(client, str(path), name, action, said, snippet=text)
        if verb.startswith("remove"):
            return _remove_hub_entry(known, path, name, verb == "remove-dry")
        dry, shared = verb == "dry", project is not None
        return _add_entry(known, path, name, entry, named=named, dry=dry, project=shared)
    except (UnreadableFile, RecursionError) as error:
        where = "" if str(path) in str(error) else f'cannot edit "{path}": '
        raise CommandFailed(
            f"{where}{error}. Nothing was changed; correct the file, or print the entry with: "
            f"dragoman install {client} --print"
        ) from None


def _check_name(_: click.Context, __: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value):
        raise click.BadParameter('use at most 64 letters, digits, "-" and "_"')
    return value


@click.command()
@click.argument("client", required=False, shell_complete=complete_clients)
@click.option("--print", "printed", is_flag=True,
              help="Print what to add and where; change nothing.")  # fmt: skip
@click.option("--project", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Use the client's file in this project folder.")  # fmt: skip
@click.option("--name", default="dragoman", show_default=True, callback=_check_name,
              help="Name of the entry.")  # fmt: skip
@click.option("--view", metavar="NAME", shell_complete=complete_views,
              help="View of the hub that the client gets.")  # fmt: skip
@click.option("--remove", is_flag=True, help="Remove the hub.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@common_options
@click.pass_context
def install(
    ctx: click.Context, /, client: str | None, home: str | None, as_json: bool, **options: Any
) -> None:
    """Add the hub to CLIENT, an IDE or agent, or list the known clients.

    \b
    dragoman install                   list the clients and which have the hub
    dragoman install cursor            add the hub
    dragoman install cursor --print    only print the entry and where it belongs
    dragoman install cursor --view ide add a view of the hub: [[views]] in config.toml
    dragoman install cursor --remove   remove the hub

    The entry starts "dragoman mcp". Clients with a window get the absolute path of this dragoman,
    because programs started from a dock have another PATH than your shell; terminal clients get
    plain "dragoman" if your PATH leads to this one outside of activated environments. If --home or
    DRAGOMAN_HOME is set, the entry contains it.

    Everything else in the file stays unchanged. The last 5 versions are kept beside it as
    NAME.bak-TIME; --remove restores the original bytes if possible.

    Exit codes: 0 done or nothing to do, 1 failed, 2 invalid usage, 8 the file cannot be edited
    (Goose's YAML) and the entry was printed.
    """
    printed, remove, dry_run = (options[name] for name in ("printed", "remove", "dry_run"))
    try:
        if client is None:
            if printed or remove or dry_run or options["project"]:
                raise click.UsageError("These options need a CLIENT; see: dragoman install.")
            return _list_clients(as_json)
        if printed and remove:
            raise click.UsageError("--print and --remove exclude each other.")
        named = ctx.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
        verb = "print" if printed else "remove" if remove else "dry" if dry_run else "add"
        verb = "remove-dry" if remove and dry_run else verb
        if (view := options["view"]) is not None and not remove:
            check_view_name(view, load(Path(find_home(home)) / "config.toml"), "--view")
        done = run_install(client, options["project"], options["name"], named, verb, home, view)
    except click.ClickException as error:
        if not as_json:
            raise
        click.echo(json.dumps({"error": error.message}))
        ctx.exit(error.exit_code)
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2))
    else:
        lines = (done.said, (done.snippet or "").rstrip("\r\n"), done.next)
        click.echo("\n".join(filter(None, lines)))
        if done.action in ("added", "updated", "already"):
            for remark in _list_remarks(done, home, view):
                say(remark)
    if done.action == "manual":
        ctx.exit(CANNOT_EDIT)


def _list_remarks(done: InstallResult, home: str | None, view: str | None) -> Iterator[str]:
    """Yields reasons why the client would see no tools, or see tools twice."""
    try:
        file = Path(find_home(home)) / "config.toml"
        config = load(file)
    except (ConfigError, HomeUnusable) as error:
        yield f"the hub will not start: {error}"
        return
    from dragoman.app.policy_admin.known_ids import list_targets
    from dragoman.core.tool_identity import RESERVED

    if not set(list_targets(file.parent)) - set(RESERVED):
        yield (
            "the hub has no servers or agents yet, so there are no tools; see: dragoman import, "
            "dragoman agents add"
        )
    elif not config.mcp.stdio_expose and view is None:
        yield f'the client will see no tools until {file} has stdio_expose = ["*"] below [mcp]'
    if view is None and (remark := render_heavy_list(connect_running(str(file.parent)))):
        yield remark
    client, path = CLIENTS[done.client], Path(done.path)
    theirs = find_servers(parse_document(client.format, read_bytes(path) or b""), client)[1]
    twice = [entry.name for entry in config.mcp_servers if entry.name in theirs]
    if twice:
        names = ", ".join(twice)
        yield (
            f"{names}: also in {path}, so their tools are listed twice; move them with: "
            f"dragoman import {done.client} --move"
        )
