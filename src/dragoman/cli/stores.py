"""`stores`: lists the databases of the home and accepts the loss of one."""

from __future__ import annotations

import os
from pathlib import Path

import click

from dragoman import home as homes
from dragoman.cli.base.errors import NO_HUB, USAGE, fail, say
from dragoman.cli.base.hub_client import resolve_home
from dragoman.cli.base.output import (
    clean,
    common_options,
    find_user_name,
    home_option,
    print_json,
    print_table,
)
from dragoman.cli.base.prompt import confirm, yes_option
from dragoman.config import load


@click.group()
def stores() -> None:
    """List the home's databases and accept a loss. A hub does not start if one is lost.

    \b
    keys       hub.db         API keys for HTTP clients
    pins       pins.db        approved and quarantined definitions
    audit      audit.db       the audit log
    registry   registry.db    agents registered at run time
    tasks      tasks.db       A2A tasks and webhooks
    agents     agents.db      agents' memory, tasks, schedules and conversations
    users      users.db       users, their browser sessions and tokens
    database   [store] url    the PostgreSQL database, which has these instead of files,
                              except for audit
    policies   policies/      your own policies
    home-key   hub.key        seals sessions and the inventory of the home

    The hub records in stores.json and in each database which of these the home has. If one is
    deleted, emptied or replaced, the next start fails with exit code 7 and names it: restore it
    from a backup, or accept the loss with `dragoman stores accept-loss`. Copying, moving or
    restoring a whole home is fine.
    """


@stores.command("list")
@common_options
def list_stores(home: str | None, as_json: bool) -> None:
    """List the databases of the home and which of them are lost.

    \b
    dragoman stores list
    """
    from dragoman.stores.store_inventory import NAMES as STORE_NAMES
    from dragoman.stores.store_inventory import survey_stores

    place = Path(resolve_home(home))
    found = survey_stores(place, _find_policies(place), _find_database(place))
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
        return print_json(rows)
    print_table(["NAME", "STATE", "PROBLEM"], [list(row.values()) for row in rows])
    if lost:
        say(f"restore from a backup, or accept: dragoman stores accept-loss {' '.join(lost)}")


@stores.command("accept-loss")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@yes_option
@home_option
def accept_loss(names: tuple[str, ...], yes: bool, home: str | None) -> None:
    """Accept the loss of databases, so that the hub starts without them. No hub may be running.

    \b
    dragoman stores list                  list what is lost
    dragoman stores accept-loss pins      continue without it

    The loss is recorded in the audit log. A damaged file is kept with ".lost-" and the time added
    to its name; a replaced file is used as it is.

    \b
    NAME       consequence
    keys       all keys are lost: the hub rejects HTTP clients until you make a new one with
               dragoman keys create NAME
    pins       the next definitions of servers and agents are approved as first seen: review
               them first, or set pin = "strict" for the next start
    audit      `dragoman audit verify` reports the gap from now on
    database   the hub uses the database that [store] url names now, or the files in the home
    policies   the default policies apply, which may permit more than yours did
    home-key   clients start new sessions
    """
    from dragoman.stores.store_inventory import NAMES as STORE_NAMES
    from dragoman.stores.store_inventory import accept_losses

    for name in names:
        if name not in STORE_NAMES:
            fail(f'unknown store "{name}"; known: {", ".join(STORE_NAMES)}', USAGE)
    place = resolve_home(home)
    if not os.path.isdir(place):
        fail(f'no home found at "{place}"', USAGE)
    if not yes:
        confirm(
            f"Continue without {', '.join(names)}? The lost data cannot be recovered afterwards."
        )
    try:
        with homes.lock_home(place):
            lost = accept_losses(
                Path(place),
                _find_policies(Path(place)),
                names,
                find_user_name(),
                _find_database(Path(place)),
            )
    except (homes.HomeLocked, homes.HomeUnusable) as error:
        fail(str(error), NO_HUB)
    for loss in lost:
        print(f"accepted: {clean(str(loss.file))} {clean(loss.how)}")
    if "keys" in names:
        say("HTTP clients are rejected until you make a key: dragoman keys create NAME")


@stores.command()
@yes_option
@home_option
def seal(yes: bool, home: str | None) -> None:
    """Accept the rows of a shared database as they are, and seal them again.

    \b
    dragoman stores seal

    Hubs with a [cluster] secret refuse keys, users, agents and approvals in the database that no
    hub and no command of the cluster has written; dragoman doctor names them. Run this after you
    have changed the secret, have restored the database from elsewhere, or have upgraded hubs
    without a home that lasts from a version before seals: it gives every row that is there now what
    it says, so look at the keys and users first.
    """
    from dragoman.app.store_place import open_offline_place
    from dragoman.stores.seal_database import begin_sealing

    place = Path(resolve_home(home))
    with open_offline_place(place) as where:
        if isinstance(where, Path) or not where.seals.is_active:
            fail("only a database of [store] url has seals, with a [cluster] secret", USAGE)
        if not yes:
            confirm("Accept all keys, users, agents and approvals as the database has them now?")
        begin_sealing(where, place, again=True)
    print("all rows are sealed; running hubs use them within a second, agents after a restart")


def _find_database(place: Path) -> str | None:
    """Reads the id of the database of `[store] url`; None without one."""
    from dragoman.app.store_place import open_offline_place

    with open_offline_place(place) as where:
        return None if isinstance(where, Path) else where.read_identity()


def _find_policies(place: Path) -> Path:
    return place / load(place / "config.toml").policy.folder
