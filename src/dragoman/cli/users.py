"""`users`: adds, lists and removes the users of the hub's own authorization server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman import home as homes
from dragoman.cli.base.errors import NOT_FOUND, USAGE, fail, say
from dragoman.cli.base.hub_client import resolve_home
from dragoman.cli.base.output import common_options, home_option, print_json, print_table
from dragoman.core.errors import ConfigError, HubError, InvalidInput

if TYPE_CHECKING:
    from dragoman.core.users import EndedAccess, GrantRecord, UserRecord
    from dragoman.stores.client_grants import ClientGrantStore
    from dragoman.stores.users import UserStore

LINK_DAYS = 3


@dataclass(frozen=True, slots=True)
class _Opened:
    users: UserStore
    grants: ClientGrantStore


@contextmanager
def _open_stores(home: str | None) -> Iterator[_Opened]:
    from dragoman.app.store_place import open_offline_place
    from dragoman.stores.client_grants import ClientGrantStore
    from dragoman.stores.store_inventory import survey_stores
    from dragoman.stores.users import UsersDatabase, UserStore

    place = resolve_home(home)
    homes.prepare(place)
    if not _has_store(home):
        # The hub would not accept a new database in place of a lost one.
        found = survey_stores(Path(place), Path(place) / "policies").losses
        if lost := [loss for loss in found if loss.name == "users"]:
            raise ConfigError(
                f"{lost[0]}. Restore it from a backup, or continue without it: dragoman stores "
                "accept-loss users"
            )
    with open_offline_place(Path(place)) as where, closing(UsersDatabase(where)) as base:
        users = UserStore(base)
        yield _Opened(users, ClientGrantStore(base, users))


def _has_store(home: str | None) -> bool:
    """Whether the store exists: reading must not create it."""
    from dragoman.app.store_place import find_url

    place = Path(resolve_home(home))
    return find_url(place) is not None or (place / "users.db").exists()


@click.group()
def users() -> None:
    """Manage the users who sign in at the hub itself, and the apps that they connected.

    \b
    dragoman users add anna
    dragoman users list
    dragoman users tokens anna
    dragoman users remove anna

    Users sign in with a browser when an MCP client connects by the hub's URL. This needs
    [auth.server] enabled = true in config.toml. A running hub applies changes within a second. For
    programs, use dragoman keys.
    """


@users.command()
@click.argument("name")
@click.option(
    "--org", metavar="NAME", default="default", show_default=True, help="Org of the user."
)
@click.option("--role", "roles", metavar="ROLE", multiple=True,
              help="Role for policies; may be repeated. The role owner has all your "
              "permissions.")  # fmt: skip
@click.option("--scope", "scopes", metavar="SCOPE", multiple=True,
              help="Scope that apps of the user get; may be repeated [default: call].")  # fmt: skip
@click.option("--password", "ask", is_flag=True,
              help="Set the password here: typed twice, or read from stdin.")  # fmt: skip
@click.option("--oidc", is_flag=True,
              help="The user signs in at the identity provider of [auth.server.oidc].")  # fmt: skip
@click.option("--restore", is_flag=True,
              help="Give the name of a removed user to the same person again.")  # fmt: skip
@common_options
def add(name: str, ask: bool, oidc: bool, home: str | None, as_json: bool, **options: Any) -> None:
    """Add the user NAME, and print the link with which that person chooses a password.

    \b
    dragoman users add anna
    dragoman users add bob --org sales --role editor
    dragoman users add carol@example.com --oidc
    dragoman users add dora --password < password.txt

    The link works once and for 3 days; dragoman users passwd NAME prints another one.
    """
    if ask and oidc:
        fail("--password and --oidc exclude each other", USAGE)
    from dragoman.stores.users import fold_name

    name = fold_name(name)
    hashed = _hash(_read_password(name)) if ask else ""
    with _open_stores(home) as stores:
        made = stores.users.add(
            name,
            org=options["org"],
            roles=options["roles"],
            scopes=options["scopes"] or _find_default_scopes(home),
            password=hashed,
            restore=options["restore"],
        )
        link = "" if ask or oidc else _open_link(stores.users, made.name, home)
    if as_json:
        return print_json({**_describe(made), "enrolment_link": link or None})
    print(f'user "{made.name}" was added')
    if link:
        _print_link(link)
    _warn_disabled(home)


@users.command("list")
@common_options
def list_users(home: str | None, as_json: bool) -> None:
    """List the users.

    \b
    dragoman users list
    """
    rows: list[dict[str, Any]] = []
    if _has_store(home):
        with _open_stores(home) as stores:
            grants = stores.grants.list()
            for user in stores.users.list():
                apps = sum(1 for grant in grants if grant.user == user.name)
                rows.append({**_describe(user), "apps": apps})
    if as_json:
        return print_json(rows)
    if not rows:
        return print("no users; add one with: dragoman users add NAME")
    return print_table([key.upper() for key in rows[0]], [_render_cells(row) for row in rows])


@users.command()
@click.argument("name")
@common_options
def show(name: str, home: str | None, as_json: bool) -> None:
    """Show the user NAME: how they sign in, and the apps that they connected.

    \b
    dragoman users show anna
    """
    with _open_existing(home, name) as stores:
        user = stores.users.get(name)
        found = {
            **_describe(user),
            "scopes": user.scopes,
            "passkeys": len(stores.users.list_passkeys(user.name)),
            "apps": [_describe_grant(grant) for grant in stores.grants.list(user.name)],
        }
    if as_json:
        return print_json(found)
    for key, value in found.items():
        if key != "apps":
            print(f"{key + ':':<12}{_render_cell(value) or '-'}")
    apps = found["apps"]
    print(f"{'apps:':<12}{len(apps)}")
    for grant in apps:
        print(f"  {grant['id']}  {grant['client']}  since {grant['since']}")
    return None


@users.command()
@click.argument("name")
@click.option("--password", "ask", is_flag=True,
              help="Set the password here: typed twice, or read from stdin.")  # fmt: skip
@click.option("--keep", is_flag=True,
              help="End nothing now; with --password, nothing at all.")  # fmt: skip
@common_options
def passwd(name: str, ask: bool, keep: bool, home: str | None, as_json: bool) -> None:
    """Let the user NAME choose a new password by a link, or set it here.

    \b
    dragoman users passwd anna
    dragoman users passwd anna --password
    dragoman users passwd anna --keep

    The command ends all browser sessions of the user, disconnects their apps and removes their
    passkeys; the old password works no longer. With --keep, that happens when the link is used.
    """
    with _open_existing(home, name) as stores:
        user = stores.users.get(name)
        link, ended = "", None
        if ask:
            hashed = _hash(_read_password(user.name))
            ended = stores.users.set_password(user.name, hashed, keep=keep)
        else:
            if not keep:
                ended = stores.users.end_access(user.name)
            link = _open_link(stores.users, user.name, home)
    if as_json:
        return print_json(
            {
                "name": user.name,
                "enrolment_link": link or None,
                "ended": asdict(ended) if ended else {},
            }
        )
    if ended is not None and (rendered := _render_ended(ended)):
        say(f'ended for "{user.name}": {rendered}')
    if link:
        return _print_link(link)
    return print(f'the password of "{user.name}" was changed')


@users.command()
@click.argument("name")
@home_option
def remove(name: str, home: str | None) -> None:
    """Remove the user NAME, and end everything that they have open.

    \b
    dragoman users remove anna

    Within a second a running hub closes their streams and sessions, cancels their calls and tasks,
    and refuses their tokens. No other person can get the name, since what the user has stored
    belongs to it; dragoman users add NAME --restore lets the same person in again.
    """
    with _open_existing(home, name) as stores:
        stores.users.remove(name)
    print(f'user "{name}" was removed')


@users.command()
@click.argument("name", required=False)
@click.option("--revoke", "grant", metavar="ID", help="Disconnect the app with this id.")
@click.option("--revoke-all", is_flag=True, help="Disconnect all apps of the user NAME.")
@common_options
def tokens(
    name: str | None, grant: str | None, revoke_all: bool, home: str | None, as_json: bool
) -> None:
    """List the apps that have tokens of the user NAME, or of all users; or revoke them.

    \b
    dragoman users tokens anna
    dragoman users tokens --revoke 4k2m9x1c7q0z
    dragoman users tokens anna --revoke-all
    """
    if revoke_all and name is None:
        fail("--revoke-all needs the name of a user", USAGE)
    if not _has_store(home):
        fail("there are no users", NOT_FOUND)
    with _open_stores(home) as stores:
        user = stores.users.get(name).name if name is not None else None
        found = stores.grants.list(user)
        if grant is not None or revoke_all:
            found = [one for one in found if revoke_all or one.id == grant]
            if not found and grant is not None:
                fail(f'there is no connected app with the id "{grant}"', NOT_FOUND)
            for one in found:
                stores.grants.revoke(one.id)
    rows = [_describe_grant(one) for one in found]
    if as_json:
        return print_json(rows)
    if grant is not None or revoke_all:
        return print(f"{len(rows)} app{'s' if len(rows) != 1 else ''} disconnected")
    if not rows:
        return print("no app is connected")
    return print_table([key.upper() for key in rows[0]], [_render_cells(row) for row in rows])


# --- helpers --------------------------------------------------------------------------------------


@contextmanager
def _open_existing(home: str | None, name: str) -> Iterator[_Opened]:
    if not _has_store(home):
        fail(f'unknown user "{name}": there are no users', NOT_FOUND)
    with _open_stores(home) as stores:
        yield stores


def _read_password(name: str) -> str:
    from dragoman.oauth.authority.passwords import check_password

    if sys.stdin.isatty():
        password = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline(1_024).rstrip("\r\n")
    try:
        check_password(password, name)
    except InvalidInput as error:
        fail(str(error), USAGE)
    return str(password)


def _hash(password: str) -> str:
    from dragoman.oauth.authority.passwords import build_hasher

    return build_hasher().hash(password)


def _render_ended(ended: EndedAccess) -> str:
    counts = (
        (ended.sessions, "browser session"),
        (ended.apps, "connected app"),
        (ended.passkeys, "passkey"),
        (ended.browsers, "known browser"),
    )
    return ", ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count)


def _open_link(users: UserStore, name: str, home: str | None) -> str:
    code = users.open_enrolment(name, LINK_DAYS * 86_400)
    return f"{_find_url(home)}/oauth/enroll?code={code}"


def _print_link(link: str) -> None:
    print(f"\n  {link}\n")
    say(f"send this link to that person only; it works once, for {LINK_DAYS} days")


def _find_url(home: str | None) -> str:
    """Returns the URL by which browsers reach the hub."""
    from dragoman.config import load

    place = resolve_home(home)
    try:
        server = load(Path(place) / "config.toml").server
    except HubError:
        server = None
    if server is not None and server.public_url:
        return server.public_url.rstrip("/")
    daemon = homes.read_daemon(place)
    if daemon is not None and daemon.url:
        return daemon.url
    return f"http://127.0.0.1:{server.port if server is not None else 50_051}"


def _find_default_scopes(home: str | None) -> Sequence[str]:
    """The scope of keys, and those that every token needs."""
    from dragoman.config import load

    try:
        required = load(Path(resolve_home(home)) / "config.toml").auth.required_scopes
    except HubError:
        required = []
    return tuple(dict.fromkeys(("call", *required)))


def _warn_disabled(home: str | None) -> None:
    from dragoman.config import load

    try:
        settings = load(Path(resolve_home(home)) / "config.toml").auth.server
    except HubError:
        return
    if not settings.enabled:
        say("users cannot sign in yet: set [auth.server] enabled = true and restart the hub")


def _describe(user: UserRecord) -> dict[str, Any]:
    ways = [("password", user.password), ("oidc", user.subject)]
    signs = [way for way, there in ways if there] or ["not yet"]
    return {
        "name": user.name,
        "org": user.org,
        "roles": user.roles,
        "signs_in": " + ".join(signs),
        "added": _render_date(user.created_at),
        "last_sign_in": _render_date(user.signed_in_at),
    }


def _describe_grant(grant: GrantRecord) -> dict[str, Any]:
    return {
        "id": grant.id,
        "user": grant.user,
        "client": grant.client_name or grant.client,
        "scopes": grant.scopes,
        "since": _render_date(grant.created_at),
        "renewed": _render_date(grant.used_at),
    }


def _render_cells(row: dict[str, Any]) -> Sequence[Any]:
    return [_render_cell(cell) for cell in row.values()]


def _render_cell(cell: Any) -> Any:
    return ", ".join(cell) if isinstance(cell, tuple) else cell


def _render_date(when: float | None) -> str | None:
    return None if when is None else time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(when))
