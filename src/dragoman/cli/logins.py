"""`servers login|logout` and `agents login|logout`: log in with a browser, or on another device."""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

import click

from dragoman.cli.base.errors import NO_HUB, TARGET_FAILED, fail, say
from dragoman.cli.base.hub_client import HubClient, connect_running, resolve_home
from dragoman.cli.base.output import StatusLine, clean, print_json

WAIT_SECONDS = 600.0
POLL_SECONDS = 0.3
PATHS = {"server": "/api/mcp/servers", "agent": "/api/a2a/agents"}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Command = Callable[..., Any]


def login_options(command: Command) -> Command:
    """Adds the options of `login`."""
    for option in (
        click.option("--no-browser", is_flag=True, help="Print the link instead of opening it."),
        click.option("--device", is_flag=True, help="Enter a code on another device instead."),
        click.option("--scope", "scopes", multiple=True, metavar="SCOPE",
                     help="Ask for this scope as well; may be repeated."),
        click.option("--shared", is_flag=True,
                     help="Log in for all users, where each has a login of their own."),
        click.option("--timeout", type=click.FloatRange(1, 3600), default=WAIT_SECONDS,
                     show_default=True, help="Seconds to wait for the login."),
    ):  # fmt: skip
        command = option(command)
    return command


def logout_options(command: Command) -> Command:
    """Adds the options of `logout`."""
    for option in (
        click.option("--holder", metavar="WHO", help="Remove the login of this user (user:anna)."),
        click.option("--all", "everyone", is_flag=True, help="Remove the logins of all users."),
    ):
        command = option(command)
    return command


def log_in(kind: str, name: str, home: str | None, as_json: bool, **options: Any) -> None:
    hub = _connect(home)
    body = {
        "scopes": list(options["scopes"]),
        "device": options["device"],
        "shared": options["shared"],
    }
    login = hub.send("POST", f"{_build_path(kind, name)}", body)
    if options["device"]:
        _show_code(login)
    else:
        _show_link(login["url"], is_opened=not options["no_browser"])
    ended = _wait(hub, login["id"], name, options["timeout"])
    if ended["state"] != "done":
        problem = ended["problem"] or "the login was not finished in time"
        fail(f'not logged in at {kind} "{name}": {problem}', TARGET_FAILED)
    if as_json:
        return print_json(ended)
    granted = f"; scopes: {' '.join(ended['scopes'])}" if ended["scopes"] else ""
    print(clean(f'logged in at {kind} "{name}" for {ended["for"]}{granted}'))


def log_out(kind: str, name: str, home: str | None, as_json: bool, **options: Any) -> None:
    hub = _connect(home)
    query = "?all=1" if options["everyone"] else ""
    if options["holder"]:
        query = f"?holder={quote(options['holder'], safe='')}"
    found = hub.send("DELETE", f"{_build_path(kind, name)}{query}")
    if as_json:
        print_json(found)
    elif found["removed"]:
        for one in found["removed"]:
            problem = f"; {one['problem']}" if one["problem"] else ", revoked"
            print(clean(f'logged out at {kind} "{name}": {one["holder"]}{problem}'))
    else:
        print(clean(f'there was no login at {kind} "{name}"'))


def _connect(home: str | None) -> HubClient:
    place = resolve_home(home)
    hub = connect_running(place)
    if hub is None:
        fail(f"no hub is running on {place}; start it with: dragoman up", NO_HUB)
    return hub


def _build_path(kind: str, name: str) -> str:
    return f"{PATHS[kind]}/{quote(name, safe='')}/login"


def _show_link(url: str, *, is_opened: bool) -> None:
    if is_opened and is_safe_link(url) and _open_browser(url):
        say(f"your browser opens {url}")
    else:
        say(f"open this page in a browser: {url}")


def is_safe_link(url: str) -> bool:
    """Whether a link may be given to a browser: https, or http on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


def _open_browser(url: str) -> bool:
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


def _show_code(login: dict[str, Any]) -> None:
    where = login.get("verification_uri_complete") or login["verification_uri"]
    say(f"open {where} on any device and enter the code {login['user_code']}")


def _wait(hub: HubClient, id: str, name: str, seconds: float) -> dict[str, Any]:
    status = StatusLine()
    until = time.monotonic() + seconds
    try:
        while True:
            found: dict[str, Any] = hub.get(f"/api/logins/{quote(id, safe='')}")
            if found["state"] in ("done", "failed") or time.monotonic() > until:
                return found
            if sys.stderr.isatty():
                status.show(f"waiting for the login at {name} …")
            time.sleep(POLL_SECONDS)
    finally:
        status.clear()
