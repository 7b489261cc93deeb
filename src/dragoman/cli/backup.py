"""`backup` and `restore`: saves a home to one file and restores it."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import click

from dragoman import __version__
from dragoman import home as homes
from dragoman.cli.base.errors import NO_HUB, USAGE, fail, say
from dragoman.cli.base.hub_client import resolve_home
from dragoman.cli.base.output import clean, common_options, find_user_name, print_json
from dragoman.cli.base.prompt import confirm, yes_option
from dragoman.config import Config, StdioTransport, holds_secrets, load, parse_headers
from dragoman.core.urls import render_arguments

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "--no-secrets", is_flag=True, help="Only policies, pins, agents and a config.toml without keys."
)
@common_options
def backup(file: Path, no_secrets: bool, home: str | None, as_json: bool) -> None:
    """Back up the home to FILE (a .tar.gz). A hub may be running.

    \b
    dragoman backup hub.tar.gz

    Includes everything except the private homes of servers, the log and files of the running
    process. FILE contains the hub's keys and the env file: protect it like those. With --no-secrets
    it contains no secrets, no audit log and no tasks; restoring it makes a new home with the same
    rules. What is in a PostgreSQL database ([store] url) is not included: it has its own backups.
    """
    from dragoman.stores.backup import back_up

    place = Path(resolve_home(home))
    if not (place / "config.toml").exists() and not (place / "stores.json").exists():
        fail(f'no home found at "{place}"', USAGE)
    config = load(place / "config.toml")
    if no_secrets and (secret := _find_secret(config)):
        fail(
            f"config.toml contains {secret}; replace it with ${{NAME}} and put the value into the "
            "env file, or back up with secrets"
        )
    policies, now = place / config.policy.folder, homes.render_now()
    manifest = back_up(place, file.absolute(), policies, __version__, now, secrets=not no_secrets)
    size = file.stat().st_size
    if as_json:
        done = {"file": str(file), "bytes": size, "files": len(manifest.files)}
        return print_json({**done, "left_out": list(manifest.left_out)})
    print(f"wrote {file}: {len(manifest.files)} files, {size / 2**20:.1f} MB")
    for name in manifest.left_out:
        say(f"{clean(name)} links outside the home and is not in the backup; back it up separately")
    if config.store.url is not None:
        say(
            "the stores in the database of [store] url are not in this backup: back the database "
            "up with its own tools, such as pg_dump"
        )
    if manifest.policies is None:
        say(f"{config.policy.folder} is outside the home; back up the policies there separately")


def _find_secret(config: Config) -> str:
    """Describes the first secret in the configuration; empty if there is none."""
    if config.api_key is not None:
        return "api_key"
    if holds_secrets(config):
        return "the secret of [cluster] or a password of [store] url or [redis] url"
    for server in config.mcp_servers:
        transport = server.transport
        if isinstance(transport, StdioTransport):
            if render_arguments(transport.args) != list(transport.args):
                return f'a possible key in the arguments of server "{server.name}"'
        elif _has_secret(transport.url, transport.headers):
            return f'a credential of server "{server.name}"'
    for agent in config.a2a.external_agents:
        if _has_secret(agent.url, agent.headers):
            return f'a credential of agent "{agent.name}"'
    return ""


def _has_secret(url: str, headers: dict[str, str] | list[str]) -> bool:
    parts = urlsplit(url)
    literal = any(value and "${" not in value for _, value in parse_headers(headers))
    return literal or bool(parts.query or parts.username or parts.password)


@click.command()
@click.argument("file", type=FILE)
@yes_option
@common_options
def restore(file: Path, yes: bool, home: str | None, as_json: bool) -> None:
    """Restore a home from FILE, which `dragoman backup` wrote.

    \b
    dragoman restore hub.tar.gz --home ~/.dragoman-restored

    The home must not exist or be empty: move an old one away first. The backup is verified before
    anything is written, and the restore is recorded in the audit log.

    The hub continues from the time of the backup: later calls are missing from the audit log, keys
    revoked later are valid again, and definitions approved later are not. Check `dragoman keys
    list` before you start the hub.
    """
    from dragoman.stores.backup import read_manifest
    from dragoman.stores.backup import restore as restore_home

    place = Path(resolve_home(home))
    try:
        found = read_manifest(file)
        if not yes:
            age = _render_age(found.created)
            confirm(
                f"Restore {clean(found.home)} of {clean(found.created)}{age} to {place}? Later "
                "changes are not in it, and keys revoked since then are valid again."
            )
        restore_home(file, place, find_user_name())
        homes.prepare(str(place))
    except homes.HomeUnusable as error:
        fail(str(error), NO_HUB)
    if as_json:
        return print_json({"home": str(place), "created": found.created, "files": len(found.files)})
    print(f"restored {len(found.files)} files of {clean(found.created)} to {place}")
    for name in found.left_out:
        say(f"{clean(name)} linked outside the home and is not in the backup")
    if not found.secrets:
        say("the backup has no keys and no env file: create them before you start the hub")
    print("next: dragoman doctor, dragoman keys list, dragoman up")


def _render_age(created: str) -> str:
    try:
        then = time.strptime(created, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return ""
    days = (time.time() - time.mktime(then) + time.timezone) / 86_400
    return f", {days:.0f} days ago" if days >= 1 else ""
