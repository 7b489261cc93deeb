"""`cluster`: shows the hubs that work as one."""

from __future__ import annotations

from typing import Any

import click

from dragoman.cli.base.errors import NO_HUB, fail
from dragoman.cli.base.hub_client import connect_running, resolve_home
from dragoman.cli.base.output import clean, common_options, print_json, print_table

ENDED = ("stopped", "dead")


@click.group()
def cluster() -> None:
    """Show the hubs that share a database.

    \b
    dragoman cluster status

    Several hubs work as one if they have the same [store] url and the same [cluster] secret.
    """


@cluster.command()
@click.option("--all", "everything", is_flag=True, help="Also hubs that have ended.")
@common_options
def status(everything: bool, home: str | None, as_json: bool) -> None:
    """Show the hubs of the cluster, their versions, states, audit lag, problems and leases.

    \b
    dragoman cluster status

    The audit lag is the number of entries that a hub has not copied to the database yet. The hub
    that answers asks all others: a problem is said of a hub that it cannot reach, whose clock or
    settings differ, or whose copy is far behind.
    """
    place = resolve_home(home)
    hub = connect_running(place)
    if hub is None:  # a temporary one would join the cluster
        fail(f"no hub is running on {place}; start one with: dragoman up", NO_HUB)
    found = hub.get("/api/cluster")
    if as_json:
        return print_json(found)
    if not found["hubs"]:
        return print("a single hub; to run several, see: dragoman docs cluster")
    print_table(
        ["HUB", "NODE", "VERSION", "STATE", "ADDRESS", "SEEN", "AUDIT LAG", "HEIR"],
        [
            [
                f"{one['id']} *" if one["is_this"] else one["id"],
                one["node"],
                one["version"],
                one["state"],
                one["address"],
                f"{one['seen_secs_ago']:.1f} s ago",
                _render_lag(one),
                one["heir"] or "",
            ]
            for one in found["hubs"]
            if everything or one["state"] not in ENDED
        ],
    )
    for one in found["hubs"]:
        for problem in one.get("problems", ()):
            print(f"hub {one['id']}: {clean(problem)}")
    if found["leases"]:
        print()
        print_table(
            ["LEASE", "HUB", "TOKEN", "EXPIRES IN"], [_render(one) for one in found["leases"]]
        )


def _render_lag(hub: dict[str, Any]) -> str:
    """How far the copy of its audit log is behind; unknown of a hub that did not answer."""
    if "audit_behind" not in hub:
        return ""
    behind = hub["audit_behind"]
    return f"{behind} ({hub['audit_behind_secs']:.1f} s)" if behind else "none"


def _render(lease: dict[str, Any]) -> list[Any]:
    left = lease["expires_in_secs"]
    return [
        lease["name"],
        lease["hub"],
        lease["token"],
        f"{left:.1f} s" if left > 0 else "expired",
    ]
