"""One client of the face, as far as it is known; and the way to send it something meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from dragoman.core.call import NOTHING
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import View
from dragoman.mcp.protocol.revisions import OLDEST, Revision

Push = Callable[[bytes], bool]
"""Sends a message that belongs to the request under way, before its answer. Never waits; False
when it could not be sent: a note is then lost, a question has failed."""


class ClientState:
    __slots__ = (
        "client",
        "client_name",
        "closed",
        "door",
        "features",
        "listens",
        "log_level",
        "pending",
        "principal",
        "revision",
        "subscribed",
        "view",
    )  # fmt: skip

    def __init__(
        self,
        principal: Principal,
        door: str,
        view: View,
        revision: Revision = OLDEST,
        client: str = "",
    ) -> None:
        self.principal = principal
        self.door = door
        self.view = view
        self.revision = revision
        """Of a client that shakes hands; each request of a modern one brings its own."""
        self.client = client
        """Its session, which answers to pushed requests come back on; empty for one without."""
        self.features: Mapping[str, Any] = NOTHING
        """The capabilities it declared at `initialize`, as far as its revision has them."""
        self.client_name = ""
        """What it calls itself."""
        self.log_level: str | None = None
        """What it said with `logging/setLevel`."""
        self.subscribed: dict[str, str] = {}
        """Canonical names of the resources that it subscribed to, and what it calls each."""
        self.listens = 0
        """How many `subscriptions/listen` of it are open."""
        self.pending: dict[Any, asyncio.Future[Any]] = {}
        """Requests that were pushed to it, by the key of their id, until they are answered."""
        self.closed = False

    @property
    def is_reachable(self) -> bool:
        """Whether something that is told now reaches it at once."""
        return False

    def notify(self, message: bytes) -> None:
        """Sends something unasked, where there is a way to."""
