"""The names of MCP notifications, and the key that routes one to its owner."""

from __future__ import annotations

import json

from dragoman.core.principal import Principal

CANCELLED = "notifications/cancelled"
COMPLETED = "notifications/elicitation/complete"
PROGRESS = "notifications/progress"
MESSAGE = "notifications/message"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"


def owner_key(client: str, principal: Principal) -> str:
    """Returns the client's session, or for a client without one a key of its principal."""
    return client or json.dumps([principal.kind, principal.org, principal.id])
