"""`stores`: the databases of the home, and how to go on when one was lost."""

from __future__ import annotations

import os
from pathlib import Path

import click

from dragoman import home as homes
from dragoman.cli.base.errors import NO_HUB, USAGE, fail, fail_with, say
from dragoman.cli.base.hub_client import resolve_home
from dragoman.cli.base.output import (
    clean,
    find_user_name,
    home_option,
    json_option,
    print_json,
    print_table,
)
from dragoman.cli.base.prompt import confirm
from dragoman.config import load
from dragoman.core.errors import HubError


@click.group()
def stores() -> None:
    """The databases of the home. A hub does not start when one of them was lost.

    \b
    keys       hub.db         who may call over HTTP
    pins       pins.db        the approved definitions, and what is held
    audit      audit.db       the record of every call
    registry   registry.db    the agents that were registered while the hub ran
    tasks      tasks.db       A2A tasks and webhooks
    policies   policies/      the policies of your own
    home-key   hub.key        seals sessions, and the record of what the home has

    The hub writes down which of these the home has, in stores.json and in each database. If one is
    deleted, emptied or exchanged, the next start stops with exit code 7 and names it: restore it
    from a backup, or accept the loss with `dragoman stores accept-loss`. To copy, move or restore a
    whole home changes nothing.
    """


@stores.command("list")
@home_option
@json_option
def list_stores(home: str | None, as_json: bool) -> None:
    """What the home has, and what was lost.

    \b
    dragoman stores list
    """
    from dragoman.app.app import STORE_NAMES, survey_stores

    place = Path(resolve_home(home))
    try:
        found = survey_stores(place, _find_policies(place))
    except HubError as error:
        fail_with(error)
    lost = {loss.name: loss for loss in found.losses}
    had = {*found.record.stores, *(["policies"] if found.record.policies_made else [])}
    if found.key is not None:
        had.add("home-key")
    rows = [
        {
            "name": name,
            "state": "lost" if name in lost else "there" if name in had else "none",
            "problem": str(lost[name]) if name in lost else None,
        }
        for name in STORE_NAMES
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["NAME", "STATE", ""], [[row["name"], row["state"], row["problem"]] for row in rows]
    )
    if lost:
        say(f"restore from a backup, or: dragoman stores accept-loss {' '.join(lost)}")


@stores.command("accept-loss")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_option
def accept_loss(names: tuple[str, ...], yes: bool, home: str | None) -> None:
    """Go on without what was lost. No hub may run on the home meanwhile.

    \b
    dragoman stores list                  what was lost
    dragoman stores accept-loss pins      start without it

    The loss is written to the audit. A damaged file is kept beside its place, with ".lost-" and the
    time in its name; a file that was exchanged is taken as it is.

    \b
    keys       all keys are gone. The hub stays closed to callers over HTTP until you make a
               new one: dragoman keys create NAME
    pins       what servers and agents offer next is approved as seen for the first time:
               look at it first, or set pin = "strict" for the next start
    audit      `dragoman audit verify` reports the break from now on
    policies   the default policies hold again, which permit more than yours may have
    home-key   clients begin new sessions
    """
    from dragoman.app.app import STORE_NAMES, accept_losses

    for name in names:
        if name not in STORE_NAMES:
            fail(f'"{name}" is no store; there are {", ".join(STORE_NAMES)}', USAGE)
    place = resolve_home(home)
    if not os.path.isdir(place):
        fail(f'there is no home "{place}"', USAGE)
    if not yes:
        said = f"Go on without {', '.join(names)}? What was in there cannot be had back this way."
        confirm(said)
    try:
        with homes.hold(place):
            lost = accept_losses(Path(place), _find_policies(Path(place)), names, find_user_name())
    except (homes.Held, homes.Unfit) as error:
        fail(str(error), NO_HUB)
    except HubError as error:
        fail_with(error)
    for loss in lost:
        print(f"accepted: {clean(str(loss.file))} {clean(loss.how)}")
    if "keys" in names:
        say("nobody gets in over HTTP until you make a key: dragoman keys create NAME")


def _find_policies(place: Path) -> Path:
    return place / load(place / "config.toml").policy.folder
