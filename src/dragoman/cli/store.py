"""`store`: the database of `[store] url`: its tables, its state, and the copy of a home into it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman import home as homes
from dragoman.cli.base.errors import FAILED, NO_HUB, USAGE, fail, say
from dragoman.cli.base.hub_client import resolve_home
from dragoman.cli.base.output import StatusLine, clean, common_options, print_json, print_table

if TYPE_CHECKING:
    from dragoman.stores.postgres import PostgresServer

URL = click.argument("url", metavar="[URL]", required=False)


@click.group()
def store() -> None:
    """Keep the hub's data in PostgreSQL instead of SQLite files: [store] url in config.toml.

    \b
    dragoman store copy env:DATABASE_URL    copy this home into an empty database
    dragoman store check                    check the database of [store] url
    dragoman store migrate                  create or update its tables before a hub starts

    URL is postgresql://USER:PASSWORD@HOST/NAME, or a reference to it: env:NAME or file:PATH. By
    default it is the one in config.toml. The audit log of a hub stays in its home. The database
    has its own backups, such as pg_dump; `dragoman backup` does not include it.
    """


@store.command()
@URL
@common_options
def check(url: str | None, home: str | None, as_json: bool) -> None:
    """Check that the database answers, and which tables it has.

    \b
    dragoman store check
    dragoman store check env:DATABASE_URL

    Exit code 1 if the database has no tables, or tables that are older than this version needs:
    run `dragoman store migrate`, or start a hub. Tables that a newer version has changed so that
    this one cannot use them are an error as well. A store whose tables are "unused" gets them when
    a hub first needs it.
    """
    from dragoman.stores.all_tables import ALL_TABLES
    from dragoman.stores.copy_home import count_rows

    with _open_server(home, url, create=False) as server:
        begun = time.perf_counter()
        identity = server.read_identity()
        seconds = time.perf_counter() - begun
        counts = count_rows(server)
        rows = [
            {
                "store": one.store,
                "version": server.known.get(one.store, 0),
                "needed": len(one.migrations),
                "rows": counts.get(one.store, 0),
            }
            for one in ALL_TABLES
        ]
        usable = {one.store for one in ALL_TABLES if server.is_usable(one)}
        place, version, can_create = server.place, server.version, server.can_create_tables()
    is_complete = can_create and any(row["version"] for row in rows)
    states = {_find_state(row, usable, is_complete) for row in rows}
    if as_json:
        about = {"database": place, "server": version, "id": identity, "seconds": seconds}
        print_json({**about, "stores": rows})
    else:
        print(f"{clean(place)} answers in {seconds * 1000:.0f} ms: PostgreSQL {version}")
        cells = [[*row.values(), _find_state(row, usable, is_complete)] for row in rows]
        print_table(["STORE", "VERSION", "NEEDED", "ROWS", "STATE"], cells)
    if "newer" in states:
        fail("a newer dragoman has migrated the database: install that version here", FAILED)
    if states - {"ok", "unused"}:
        fail("tables are missing or old; run: dragoman store migrate", FAILED)


@store.command()
@URL
@common_options
def migrate(url: str | None, home: str | None, as_json: bool) -> None:
    """Create the tables of all stores, or update them to this version. Data stays.

    \b
    dragoman store migrate
    dragoman store migrate env:DATABASE_OWNER_URL

    A hub does the same when it starts, if its database user may create tables. Pass the URL of a
    user who may, where the hub's own may not. Several migrations at once wait for each other.
    """
    from dragoman.stores.all_tables import ALL_TABLES

    done = []
    with _open_server(home, url) as server, _show_progress() as line:
        for one in ALL_TABLES:
            before = server.known.get(one.store, 0)
            line.show(f"{one.store} …")
            server.open(one).close()
            done.append({"store": one.store, "before": before, "version": len(one.migrations)})
    if as_json:
        return print_json(done)
    changed = [row for row in done if row["before"] != row["version"]]
    for row in changed:
        print(f"{row['store']}: version {row['before']} -> {row['version']}")
    print(f"{len(changed)} of {len(done)} stores were changed")


@store.command()
@URL
@common_options
def copy(url: str | None, home: str | None, as_json: bool) -> None:
    """Copy the home's SQLite stores into an empty PostgreSQL database. No hub may be running.

    \b
    dragoman stop
    dragoman store copy env:DATABASE_URL
    # then, in config.toml:
    # [store]
    # url = "env:DATABASE_URL"
    dragoman up

    Keys, users, logins, pins, registered agents, approvals, tasks, memory, schedules,
    conversations, usage and runs are copied, and the number of rows of each table is compared.
    Each store is copied whole or not at all; after an interruption the same command continues. The
    files in the home stay as they are. The audit log is verified, copied and verified again.

    A database that has other data is refused.
    """
    from dragoman.cli.base.shared_audit import build_keys
    from dragoman.stores.audit.copy_home import copy_audit
    from dragoman.stores.copy_home import copy_home

    place = Path(resolve_home(home))
    try:
        with (
            homes.lock_home(str(place)),
            _open_server(home, url) as server,
            _show_progress() as line,
        ):

            def note(name: str, done: int, total: int) -> None:
                line.show(f"{name}: {done} of {total} rows")

            copied = copy_home(place, server, note)
            line.show("verifying the audit log …")
            audit = None
            if (place / "audit.db").exists():
                node, target = f"{socket.gethostname()}:{place.name}", server.url
                audit = copy_audit(place, target, build_keys(place), node, partial(note, "audit"))
            target = server.place
    except (homes.HomeLocked, homes.HomeUnusable) as error:
        fail(f"{error}; stop the hub first: dragoman stop", NO_HUB)
    if as_json:
        stores = [{"store": one.store, "rows": one.rows, "new": one.is_new} for one in copied]
        told: dict[str, Any] = {"database": target, "stores": stores}
        return print_json({**told, "audit": None if audit is None else asdict(audit)})
    for one in copied:
        print(f"{one.store}: {one.rows} rows{'' if one.is_new else ', copied before'}")
    print(f"all counts are equal; the stores are in {clean(target)}")
    if audit is not None:
        print(f"audit: {audit.entries} entries, {audit.first_seq} to {audit.last_seq}, verified")
    say('continue on the database: set url = "…" below [store] in config.toml, then: dragoman up')


@contextmanager
def _show_progress() -> Iterator[StatusLine]:
    line = StatusLine()
    try:
        yield line
    finally:
        line.clear()


def _find_state(row: dict[str, Any], usable: set[str], is_complete: bool) -> str:
    """`is_complete`: a hub uses the database, and may create what it needs later."""
    if row["store"] in usable:
        return "ok"
    if row["version"] > row["needed"]:
        return "newer"
    if row["version"]:
        return "old"
    return "unused" if is_complete else "missing"


@contextmanager
def _open_server(
    home: str | None, url: str | None, create: bool = True
) -> Iterator[PostgresServer]:
    """Connects to the database of `url`, or of the configuration."""
    from dragoman.config import load, load_variables
    from dragoman.core.secret_references import SecretResolver
    from dragoman.stores.database import COMMAND_LIMITS, open_place

    place = Path(resolve_home(home))
    if url is None:
        url = load(place / "config.toml").store.url
    if url is None:
        fail(
            "there is no [store] url in config.toml, so the stores are SQLite files in the home; "
            "pass the URL of a database",
            USAGE,
        )
    found = open_place(
        place, url, SecretResolver(load_variables(place), place), COMMAND_LIMITS, create
    )
    assert not isinstance(found, Path)
    try:
        yield found
    finally:
        found.close()
