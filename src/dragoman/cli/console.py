"""`console`: opens the console in the browser, by a link that works once."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import click

from dragoman.cli.base.errors import NO_HUB, fail, say
from dragoman.cli.base.hub_client import HubClient, find_running_hub, resolve_home
from dragoman.cli.base.output import common_options, print_json, print_result, print_table


@click.group(invoke_without_command=True)
@click.option("--link", is_flag=True, help="Print the link instead of opening a browser.")
@common_options
@click.pass_context
def console(ctx: click.Context, link: bool, home: str | None, as_json: bool) -> None:
    """Open the console in the browser, as the owner of the hub.

    \b
    dragoman console
    dragoman console --link     print the link, for another browser

    The link works once, within a minute. The browser that opens it may do what you may do.
    """
    if ctx.invoked_subcommand is not None:
        return
    client = _connect(home)
    # Others can read the arguments of a program: such a link serves a browser of this user only.
    if not (link or as_json) and webbrowser.open(_create_link(client, local=True)["url"]):
        return print("opened the console in the browser; for a link: dragoman console --link")
    found = _create_link(client, local=False)
    if link or as_json:
        return print_result(found, found["url"], as_json)
    print(f"no browser could be started here; open this link within a minute:\n{found['url']}")
    if "SSH_CONNECTION" in os.environ:
        port = urlsplit(found["url"]).port
        say(
            "if the browser is on another machine, forward the port there first and run this "
            f"again: ssh -L {port}:127.0.0.1:{port} HOST"
        )


def _create_link(client: HubClient, *, local: bool) -> Mapping[str, Any]:
    found: Mapping[str, Any] = client.send("POST", "/api/console/link", {"local": local})
    return found


@console.command("sessions")
@common_options
def list_sessions(home: str | None, as_json: bool) -> None:
    """List the sessions of the console.

    \b
    dragoman console sessions
    """
    found = _connect(home).get("/api/console/sessions")["sessions"]
    if as_json:
        return print_json(found)
    if not found:
        return print("no sessions; open the console with: dragoman console")
    print_table(
        ["ID", "PRINCIPAL", "SINCE", "LAST USED", "ENDS"],
        [
            [one["id"], one["principal"], one["created_at"], one["used_at"], one["expires_at"]]
            for one in found
        ],
    )


@console.command()
@common_options
def logout(home: str | None, as_json: bool) -> None:
    """End all sessions of the console, in every browser.

    \b
    dragoman console logout
    """
    done = _connect(home).send("DELETE", "/api/console/sessions")
    print_result(done, f"ended {done['ended']} sessions", as_json)


def _connect(home: str | None) -> HubClient:
    """Connects to the hub; a hub inside `dragoman mcp` has no address that a browser could open."""
    place = resolve_home(home)
    daemon = find_running_hub(place)
    if daemon is None:
        fail(f"no hub is running on {place}; start one with: dragoman up", NO_HUB)
    if daemon.url is None:
        fail(
            "this hub runs inside a `dragoman mcp` and has no address; close the IDE and run: "
            "dragoman up",
            NO_HUB,
        )
    client = HubClient(place, daemon.socket)
    if "/api/console/link" not in client.get("/openapi.json")["paths"]:
        fail("this hub does not serve the console: set [console] enabled = true", NO_HUB)
    return client
