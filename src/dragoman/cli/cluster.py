"""`cluster`: shows the hubs that work as one."""

from __future__ import annotations

from typing import Any

import click

from dragoman.cli.base.hub_client import connect_hub
from dragoman.cli.base.output import common_options, print_json, print_table


@click.group()
def cluster() -> None:
    """Show the hubs that share a database.

    \b
    dragoman cluster status

    Several hubs work as one if they have the same [store] url and the same [cluster] secret.
    """


@cluster.command()
@common_options
def status(home: str | None, as_json: bool) -> None:
    """Show the hubs of the cluster, their versions, states and leases.

    \b
    dragoman cluster status
    """
    with connect_hub(home) as hub:
        found = hub.get("/api/cluster")
    if as_json:
        return print_json(found)
    if not found["hubs"]:
        return print("a single hub; to run several, see: dragoman docs cluster")
    print_table(
        ["HUB", "NODE", "VERSION", "STATE", "ADDRESS", "SEEN", "HEIR"],
        [
            [
                f"{one['id']} *" if one["is_this"] else one["id"],
                one["node"],
                one["version"],
                one["state"],
                one["address"],
                f"{one['seen_secs_ago']:.1f} s ago",
                one["heir"] or "",
            ]
            for one in found["hubs"]
        ],
    )
    if found["leases"]:
        print()
        print_table(
            ["LEASE", "HUB", "TOKEN", "EXPIRES IN"], [_render(one) for one in found["leases"]]
        )


def _render(lease: dict[str, Any]) -> list[Any]:
    left = lease["expires_in_secs"]
    return [
        lease["name"],
        lease["hub"],
        lease["token"],
        f"{left:.1f} s" if left > 0 else "expired",
    ]
