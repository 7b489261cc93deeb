"""`keys`: creates, lists and revokes API keys for HTTP clients."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman import home as homes
from dragoman.cli.base.errors import NOT_FOUND, USAGE, fail, say
from dragoman.cli.base.hub_client import resolve_home
from dragoman.cli.base.output import (
    common_options,
    find_user_name,
    home_option,
    print_json,
    print_table,
)
from dragoman.cli.completion import complete_views
from dragoman.core.errors import ConfigError, HubError
from dragoman.core.scopes import OF_KEYS, OF_KEYS_WITH_ROLES, ORDINARY, has_hub_scope

if TYPE_CHECKING:
    from dragoman.stores.keys import KeyRecord, KeyStore

_UNITS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}


@contextmanager
def _open_store(home: str | None) -> Iterator[KeyStore]:
    from dragoman.app.store_place import open_offline_place
    from dragoman.stores.keys import KeyStore
    from dragoman.stores.store_inventory import survey_stores

    place = resolve_home(home)
    homes.prepare(place)
    if not _has_store(home):
        # The hub would not accept a new database in place of a lost one.
        found = survey_stores(Path(place), Path(place) / "policies").losses
        if lost := [loss for loss in found if loss.name == "keys"]:
            raise ConfigError(
                f"{lost[0]}. Restore it from a backup, or continue without it: dragoman stores "
                "accept-loss keys"
            )
    with open_offline_place(Path(place)) as found_place, closing(KeyStore(found_place)) as store:
        yield store


def _has_store(home: str | None) -> bool:
    """Whether the store exists: reading must not create it."""
    from dragoman.app.store_place import find_url

    if find_url(Path(resolve_home(home))) is not None:
        return True
    try:
        return (Path(resolve_home(home)) / "hub.db").stat().st_size > 0
    except FileNotFoundError:
        return False


@click.group()
def keys() -> None:
    """Manage API keys for HTTP clients. Once a key exists, every HTTP client needs one.

    \b
    dragoman keys create ci --expires 30d
    dragoman keys list
    dragoman keys revoke ci

    Keys are stored as hashes, so a key is shown only when it is created. A running hub applies
    changes within a second: the first key closes the TCP connections of clients without one. IDEs
    that start `dragoman mcp` and these commands need no key: they use a socket that only you can
    open.
    """


@keys.command()
@click.argument("name")
@click.option("--expires", metavar="TIME", default="90d", show_default=True,
              help="Lifetime: 30m, 12h, 90d, 1y, or never.")  # fmt: skip
@click.option("--owner", metavar="NAME", help="Owner of the key [default: you].")
@click.option("--for", "target", metavar="TARGET",
              help="The server or agent that calls back with this key: its calls are attributed to "
              "the calls that it serves, so that loops are detected.")  # fmt: skip
@click.option("--view", metavar="NAME", shell_complete=complete_views,
              help="The view that the key is bound to, at every entry point.")  # fmt: skip
@click.option("--role", "roles", metavar="ROLE", multiple=True,
              help="Role for policies; may be repeated. The role owner has all your "
              "permissions.")  # fmt: skip
@click.option("--scope", "scopes", metavar="SCOPE", multiple=True,
              help="What the key may be used for: call, list, approve, metrics, admin or a part "
              "of it, or a name that your policies read; may be repeated [default: call and "
              "approve; with --role also admin; with --for call].")  # fmt: skip
@common_options
def create(
    name: str, expires: str, target: str | None, home: str | None, as_json: bool, **options: Any
) -> None:
    """Create the key NAME and print it. It cannot be shown again.

    \b
    dragoman keys create laptop --expires 1y
    KEY=$(dragoman keys create ci --expires 30d --role deployer)

    Clients send it as a header: Authorization: Bearer KEY

    Give a server or agent that calls the hub back while it serves a call its own key:

    \b
    dragoman keys create travel-key --for travel

    Bind a key to a view: a client with it lists and calls what the view has, and nothing else:

    \b
    dragoman keys create cursor --view ide
    """
    if (view := options["view"]) is not None:
        _check_view(home, view)
    if target == "":
        fail("--for is empty: give the name of a server or agent", USAGE)
    expires_at, roles, scopes = _parse_expiry(expires), options["roles"], options["scopes"]
    scopes = scopes or _choose_scopes(bool(roles), bool(target))
    is_there = True
    if target:
        target, is_there = _resolve_target(home, target)
    with _open_store(home) as store:
        key = store.create(
            name,
            owner=options["owner"] or find_user_name(),
            expires_at=expires_at,
            scopes=scopes,
            roles=roles,
            target=target or "",
            view=view or "",
        )
        is_first = len(store.list()) == 1
    if not has_hub_scope(scopes):
        say(
            f'key "{name}" can be used for nothing yet: its scopes are names for policies; add one '
            f"of the hub: dragoman keys scopes {name} --add call"
        )
    if not is_there:
        say(f'unknown server or agent "{target}": until it exists, the key is an ordinary one')
    if as_json:
        made = {"name": name, "key": key, "expires_at": expires_at}
        more = {"for": target, "view": view, "roles": roles, "scopes": scopes}
        return print_json({**made, **more})
    print(key)
    say(f'key "{name}" was created and is shown only once; send: Authorization: Bearer {key[:12]}…')
    if is_first:
        say("this is the first key: every HTTP client needs one now; `dragoman mcp` does not")


@keys.command("list")
@common_options
def list_keys(home: str | None, as_json: bool) -> None:
    """List the keys, without their secrets.

    \b
    dragoman keys list
    """
    records: Sequence[KeyRecord] = ()
    if _has_store(home):
        with _open_store(home) as store:
            records = store.list()
    now = time.time()
    rows = [
        {
            "name": record.name,
            "id": record.id,
            "owner": record.owner,
            "state": record.get_state(now),
            "expires": _render_date(record.expires_at) or "never",
            "created": _render_date(record.created_at),
            "for": record.target or None,
            "view": record.view or None,
            "roles": record.roles,
            "scopes": record.scopes,
        }
        for record in records
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        print("no keys; create one with: dragoman keys create NAME")
    else:
        print_table([key.upper() for key in rows[0]], [_render_cells(row) for row in rows])


@keys.command("scopes")
@click.argument("name")
@click.option("--add", metavar="SCOPE", multiple=True, help="Add this scope; may be repeated.")
@click.option("--remove", metavar="SCOPE", multiple=True,
              help="Remove this scope; may be repeated.")  # fmt: skip
@common_options
def change_scopes(
    name: str, add: Sequence[str], remove: Sequence[str], home: str | None, as_json: bool
) -> None:
    """Show or change the scopes of the key NAME: what it may be used for.

    \b
    dragoman keys scopes ci
    dragoman keys scopes ci --add admin --add approve
    dragoman keys scopes prometheus --remove call --add metrics

    A running hub applies changes within a second.
    """
    record = None
    if _has_store(home):
        with _open_store(home) as store:
            record = next((one for one in store.list() if one.name == name), None)
            if record is not None and (add or remove):
                kept = [scope for scope in record.scopes if scope not in remove]
                store.set_scopes(name, list(dict.fromkeys((*kept, *add))))
                record = next(one for one in store.list() if one.name == name)
    if record is None:
        fail(f'unknown key "{name}": see dragoman keys list', NOT_FOUND)
    if as_json:
        return print_json({"name": name, "scopes": record.scopes})
    print(", ".join(record.scopes) or "none: the key may be used for nothing")


@keys.command()
@click.argument("name")
@home_option
def revoke(name: str, home: str | None) -> None:
    """Revoke the key NAME. This cannot be undone; create a new key instead.

    \b
    dragoman keys revoke ci

    Within a second a running hub closes its streams and sessions, cancels its calls and tasks, and
    stops its webhooks.
    """
    if not _has_store(home):
        fail(f'unknown key "{name}": no keys exist', NOT_FOUND)
    with _open_store(home) as store:
        store.revoke(name)
        active = [key for key in store.list() if key.get_state(time.time()) == "active"]
    print(f'key "{name}" is revoked')
    if not active:
        say("no active key is left: HTTP clients are rejected until you create one")


def _choose_scopes(has_roles: bool, is_for_target: bool) -> Sequence[str]:
    if is_for_target:
        return ORDINARY
    return OF_KEYS_WITH_ROLES if has_roles else OF_KEYS


def _parse_expiry(text: str) -> float | None:
    if text == "never":
        return None
    found = re.fullmatch(r"(\d{1,6})([mhdwy])", text)
    if found is None:
        fail(f'invalid --expires "{text}": write 30m, 12h, 90d, 1y, or never', USAGE)
    seconds = int(found.group(1)) * _UNITS[found.group(2)]
    if seconds > 100 * _UNITS["y"]:
        fail(f'--expires "{text}" is too large, over 100 years; write never for no expiry', USAGE)
    return time.time() + seconds


def _render_cells(row: Mapping[str, Any]) -> list[Any]:
    return [", ".join(cell) if isinstance(cell, tuple) else cell for cell in row.values()]


def _check_view(home: str | None, view: str) -> None:
    """Raises `ConfigError` unless config.toml has the view."""
    from dragoman.config import check_view_name, load

    check_view_name(view, load(Path(resolve_home(home)) / "config.toml"), "--view")


def _resolve_target(home: str | None, target: str) -> tuple[str, bool]:
    """Returns the name of a server or agent given by name or slug, and whether it is known.
    Ignores an invalid configuration, which other commands report."""
    from dragoman.app.policy_admin.known_ids import list_targets
    from dragoman.config import slug_from_name

    try:
        known = list_targets(Path(resolve_home(home)))
    except HubError:
        return target, True
    if target in known:
        return target, True
    found = next((name for name in known if slug_from_name(name) == target), None)
    return found or target, found is not None


def _render_date(when: float | None) -> str | None:
    return None if when is None else time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(when))
