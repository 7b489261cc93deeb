"""What the server knows of one MCP client, and of one request of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.core.call import NOTHING
from dragoman.core.ports import Viewer
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import View
from dragoman.mcp.protocol.revisions import OLDEST, Revision
from dragoman.wire import rpc

Push = Callable[[bytes], bool]
"""Sends a message that belongs to the running request, before its response. Never waits; False if
it could not be sent: a notification is then lost, a question has failed."""


MAX_CLIENT_NAME = 200


def find_client_name(client_info: Any) -> str:
    """Finds the name in `clientInfo`; empty if there is none."""
    name = client_info.get("name") if isinstance(client_info, dict) else None
    return name[:MAX_CLIENT_NAME] if isinstance(name, str) else ""


class ClientState:
    __slots__ = (
        "client", "client_name", "closed", "door", "endpoint", "features", "listens", "log_level",
        "pending", "principal", "revision", "subscribed", "view",
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
        self.endpoint = view
        """What its address or its key offers."""
        self.view = view
        """The same, or what its name has chosen of it."""
        self.revision = revision
        """Of the session; a request may name its own."""
        self.client = client
        """The id of its session, on which responses to pushed requests come back; else empty."""
        self.features: Mapping[str, Any] = NOTHING
        """The capabilities declared in `initialize`, as far as its revision has them."""
        self.client_name = ""
        """From `clientInfo`."""
        self.log_level: str | None = None
        """Set by `logging/setLevel`."""
        self.subscribed: dict[str, str] = {}
        """Canonical names of the resources that it subscribed to, and its own name for each."""
        self.listens = 0
        """How many `subscriptions/listen` of it are open."""
        self.pending: dict[Any, asyncio.Future[Any]] = {}
        """Requests that were pushed to it, by the key of their id, until they are answered."""
        self.closed = False

    is_of_another_hub = False
    """Whether another hub has sent a message of it here."""

    def build_viewer(self) -> Viewer:
        """Describes a client with a session."""
        return Viewer(self.principal, self.client, self.door, self.revision.name, self.features)

    @property
    def is_reachable(self) -> bool:
        """Whether a notification sent now reaches it at once."""
        return False

    def notify(self, message: bytes) -> None:
        """Sends a message that belongs to no request, if there is a connection for it."""


class McpRequest(msgspec.Struct):
    """One request, with its revision resolved."""

    id: rpc.Id
    method: str
    params: Mapping[str, Any]
    client: ClientState
    revision: Revision
    push: Push | None
