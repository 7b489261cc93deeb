"""URL elicitations that a server has sent to clients in an error (2025-11-25, code -32042).

The client gets such an error unchanged, with the ids of the elicitations. The server may announce
later that one of them is complete, which belongs to no call; this finds the client to notify.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_OPEN = 1_000
"""Elicitations of one server; the oldest are dropped."""
MAX_ID = 256
MAX_IN_ERROR = 16


class UrlElicitations:
    def __init__(self) -> None:
        self._clients: dict[str, str] = {}
        """The client that was sent each elicitation, by its id."""

    def note(self, client: str, native: Mapping[str, Any] | None) -> None:
        """Notes that the client is sent this error."""
        data = native.get("data") if native is not None else None
        sent = data.get("elicitations") if isinstance(data, dict) else None
        for one in sent[:MAX_IN_ERROR] if isinstance(sent, list) and client else ():
            id = one.get("elicitationId") if isinstance(one, dict) else None
            if isinstance(id, str) and len(id) <= MAX_ID:
                self._clients.pop(id, None)
                self._clients[id] = client
        while len(self._clients) > MAX_OPEN:
            del self._clients[next(iter(self._clients))]

    def complete(self, id: Any, client: str | None) -> str | None:
        """Returns the client to notify, once. `client` owns the session on which the server
        announced the completion; None for the shared session."""
        known = self._clients.get(id) if isinstance(id, str) else None
        if known is None or client not in (None, known):
            return None
        del self._clients[id]
        return known

    def forget_client(self, client: str) -> None:
        self._clients = {id: one for id, one in self._clients.items() if one != client}
