"""The OpenAPI operations of the parts of the API with their own modules."""

from __future__ import annotations

from typing import Any

from dragoman.web import (
    api_agents,
    api_dispatches,
    api_offers,
    api_pins,
    api_policies,
    api_servers,
    events,
)

OPERATIONS: list[tuple[Any, ...]] = [
    *api_agents.OPERATIONS,
    *api_dispatches.OPERATIONS,
    *events.OPERATIONS,
    *api_policies.OPERATIONS,
    *api_pins.OPERATIONS,
    *api_servers.OPERATIONS,
    *api_offers.OPERATIONS,
]
