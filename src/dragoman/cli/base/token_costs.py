"""Warns where the tools that clients are offered fill much of their models' context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.cli.base.hub_client import HubClient

MANY_TOKENS = 20_000
"""Estimated tokens of a list of tools above which clients are better served by a search."""
BUDGET = 8_000
"""The budget that is proposed."""
VIEWS_PATH = "/api/views?client=a%20client"
"""Asks for the costs, and for the view of a client that only a glob for all clients has one for."""


def find_heavy_list(views: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns what is wrong with the list that clients without a view of their own get, as the hub
    describes its views, and the fix; None if it is short enough."""
    chosen = views.get("chosen")
    offered = next((one for one in views["views"] if one["name"] == chosen), views["all"])
    tokens = offered["listed_tokens"]
    if tokens <= MANY_TOKENS:
        return None
    return (
        f"clients are offered {offered['tools']} tools, about {tokens:,} tokens of each model's "
        "context",
        f"let them search instead: dragoman views budget {BUDGET}; or see: dragoman docs views",
    )


def render_heavy_list(hub: HubClient | None) -> str | None:
    """Returns the same as one sentence, of a running hub; None if there is none, or it may not be
    asked."""
    views = hub.get_views() if hub is not None else None
    found = find_heavy_list(views) if views is not None else None
    return "; ".join(found) if found is not None else None
