"""Limits the connections of a listener, and chooses the one that is closed for a new one.

A connection belongs to its client's address until a request on it is authenticated, and to that
principal from then on. Knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.web.http.http1 import HttpConnection

BODY_BYTES = 10 * 1024 * 1024
MAX_CONNECTIONS = 10_000
RESCAN_SECONDS = 0.05
"""How long a search for idle connections that found none is not repeated."""


class ConnectionLimits:
    """No address has more than half of the unauthenticated connections, no principal more than half
    of all, and a tenth is reserved for principals. At a limit the connection that has been idle for
    longest is closed; a new one is refused only if none is idle."""

    def __init__(self, limit: int = MAX_CONNECTIONS, body_bytes: int = BODY_BYTES) -> None:
        self.limit = limit
        self.body_bytes = body_bytes
        """Of one request."""
        self.share = max(1, limit // 2)
        self.scarce = False
        """Few are left: unauthenticated ones are kept only briefly between requests."""
        self._all: set[HttpConnection] = set()
        self._strangers = 0
        self._most_strangers = max(1, limit - limit // 10)
        self._by_owner: dict[Hashable, int] = {}
        self._closable: dict[Hashable, list[tuple[float, HttpConnection]]] = {}
        """The idle connections of a group at the last search, the longest idle last. Searched again
        when it is used up."""
        self._in_vain: dict[Hashable, float] = {}
        """When a search found none."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[HttpConnection]:
        return iter(self._all)

    def add(self, connection: HttpConnection) -> bool:
        """Adds a connection, if need be by closing an idle one; False if there is no room."""
        owner = connection.owner
        if self._by_owner.get(owner, 0) >= self.share and not self._close_idle(owner):
            return False
        if self._strangers >= self._most_strangers and not self._close_idle(STRANGERS):
            return False
        if len(self._all) >= self.limit and not (
            self._close_idle(STRANGERS) or self._close_idle(EVERYONE)
        ):
            return False
        self._all.add(connection)
        self._strangers += 1
        self._count(owner, 1)
        return True

    def identify(self, connection: HttpConnection, caller: Hashable) -> bool:
        """Moves a connection from its address to a principal; False if that has too many."""
        if self._by_owner.get(caller, 0) >= self.share and not self._close_idle(caller):
            return False
        if connection in self._all:
            self._strangers -= 1
            self._count(connection.owner, -1)
            self._count(caller, 1)
        connection.owner, connection.is_stranger = caller, False
        return True

    def discard(self, connection: HttpConnection) -> None:
        if connection in self._all:
            self._all.discard(connection)
            self._strangers -= connection.is_stranger
            self._count(connection.owner, -1)
            if self._closable and len(self._all) * 4 < self.limit:  # it refers to closed ones
                self._closable.clear()
                self._in_vain.clear()

    def _count(self, owner: Hashable, change: int) -> None:
        left = self._by_owner.get(owner, 0) + change
        if left:
            self._by_owner[owner] = left
        else:
            del self._by_owner[owner]
        self.scarce = (
            len(self._all) * 5 > self.limit * 4 or self._strangers * 5 > self._most_strangers * 4
        )

    def _close_idle(self, group: Hashable) -> bool:
        """Closes the longest idle connection of a group; False if none is idle."""
        found = self._closable.get(group)
        if not found:
            now = time.monotonic()
            if now - self._in_vain.get(group, 0.0) < RESCAN_SECONDS:
                return False
            found = self._closable[group] = self._idle(group)
            if not found:
                self._in_vain[group] = now
                return False
        while found:
            since, connection = found.pop()
            if connection in self._all and connection.idle_since == since:
                self.discard(connection)
                connection.close_idle()
                return True
        return False

    def _idle(self, group: Hashable) -> list[tuple[float, HttpConnection]]:
        if group is STRANGERS:
            members = [one for one in self._all if one.is_stranger]
        else:
            members = [one for one in self._all if group in (EVERYONE, one.owner)]
        idle = [(since, one) for one in members if (since := one.idle_since) is not None]
        idle.sort(key=lambda entry: -entry[0])
        return idle


STRANGERS, EVERYONE = object(), object()
