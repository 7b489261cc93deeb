"""The connections of a listener: how many there may be, and which one is closed for a new one.

A connection belongs to its peer's address until a request on it has shown who is calling, and to
that caller from then on. Knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.web.http.http1 import Connection

MAX_CONNECTIONS = 10_000
RESCAN_SECONDS = 0.05
"""How long it is taken for granted that nothing can be closed, once nothing could."""


class Connections:
    """No address has more than half of the connections without a key, no caller more than half of
    those with one, and a tenth is kept for callers. Where a bound is reached the connection goes
    that has been idle for longest; a new one is refused only if none is."""

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        self.limit = limit
        self.share = max(1, limit // 2)
        self.scarce = False
        """Few are left: those without a key are not kept for long between requests."""
        self._all: set[Connection] = set()
        self._strangers = 0
        self._most_strangers = max(1, limit - limit // 10)
        self._by_owner: dict[Hashable, int] = {}
        self._closable: dict[Hashable, list[tuple[float, Connection]]] = {}
        """Of an owner, or of all under `None`: what was idle when it was looked for, the oldest
        last. Looked for again when it is used up."""
        self._in_vain: dict[Hashable, float] = {}
        """When there was nothing to find."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._all)

    def add(self, connection: Connection) -> bool:
        """Whether there is room for a new connection; it may have been made."""
        owner = connection.owner
        if self._by_owner.get(owner, 0) >= self.share and not self._close_idle(owner):
            return False
        if self._strangers >= self._most_strangers and not self._close_idle(STRANGERS):
            return False
        if len(self._all) >= self.limit and not (
            self._close_idle(STRANGERS) or self._close_idle(EVERYBODY)
        ):
            return False
        self._all.add(connection)
        self._strangers += 1
        self._count(owner, 1)
        return True

    def identify(self, connection: Connection, caller: Hashable) -> bool:
        """Moves a connection from its address to a caller; False where he has too many."""
        if self._by_owner.get(caller, 0) >= self.share and not self._close_idle(caller):
            return False
        if connection in self._all:
            self._strangers -= 1
            self._count(connection.owner, -1)
            self._count(caller, 1)
        connection.owner, connection.is_stranger = caller, False
        return True

    def discard(self, connection: Connection) -> None:
        if connection in self._all:
            self._all.discard(connection)
            self._strangers -= connection.is_stranger
            self._count(connection.owner, -1)
            if self._closable and len(self._all) * 4 < self.limit:  # it holds what is closed
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
        """Closes the connection of a group that has been idle for longest, if one is."""
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

    def _idle(self, group: Hashable) -> list[tuple[float, Connection]]:
        belongs: Callable[[Connection], bool]
        if group is STRANGERS:
            belongs = _is_stranger
        elif group is EVERYBODY:
            belongs = _is_anybody
        else:
            belongs = _is_of(group)
        idle = [
            (since, one)
            for one in self._all
            if belongs(one) and (since := one.idle_since) is not None
        ]
        idle.sort(key=lambda entry: -entry[0])
        return idle


STRANGERS, EVERYBODY = object(), object()


def _is_stranger(connection: Connection) -> bool:
    return connection.is_stranger


def _is_anybody(connection: Connection) -> bool:
    return True


def _is_of(owner: Hashable) -> Callable[[Connection], bool]:
    return lambda connection: connection.owner == owner
