"""When the lists of a server are read again although it has not said that they have changed.

Somebody who asks for a list gets it read again once it is older than its server says it holds
(`ttlMs`, 2026-07-28), or than `refresh_secs` where the server says nothing of changes. A list that
changes behind a client's back is found in the background, while the server is used. However many
ask, a list is read at most once a second, and once more after a call. Knows no wire.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic

LEAST_SECONDS = 1.0
"""A list younger than this is never read again."""
REST = 5.0
"""A list that took long to read is left alone for so many times as long."""
WAIT_SECONDS = 3.0
"""How long a request waits for lists that are read again for it."""


class _List:
    __slots__ = ("announced", "next_at", "read_at", "ttl")

    def __init__(self, read_at: float, next_at: float, ttl: float | None, announced: bool) -> None:
        self.read_at = read_at
        self.next_at = next_at
        """When it is read in the background, if at all."""
        self.ttl = ttl
        """Seconds that its server says it holds."""
        self.announced = announced
        """Whether its server says that it announces changes."""


class ListFreshness:
    """Of the lists of one server."""

    def __init__(
        self, interval: float, hears: Callable[[], bool], clock: Callable[[], float] = monotonic
    ) -> None:
        """`interval` of 0 switches off what `ttlMs` does not ask for. `hears` says whether
        announcements of the server would be heard at this moment."""
        self._interval = interval
        self._hears = hears
        self._clock = clock
        self._lists: dict[str, _List] = {}
        self._rest = LEAST_SECONDS

    def clear(self) -> None:
        """There is no connection to read anything from."""
        self._lists.clear()

    def note(self, kind: str, begun: float, ttl: float | None, *, announced: bool) -> None:
        """This list was read, or could not be, which began at `begun`."""
        next_at = begun + self._interval * random.uniform(0.9, 1.1)
        self._lists[kind] = _List(begun, next_at, ttl, announced)
        self._rest = max(LEAST_SECONDS, REST * (self._clock() - begun))

    def is_stale(self, kind: str, used_at: float = 0.0) -> bool:
        """Whether it is to be read again for somebody who asks for it. A call that ended at
        `used_at` may have changed it: it does not rest then, and is read once for that call."""
        known = self._lists.get(kind)
        if known is None:
            return False
        if known.ttl is not None:
            most = known.ttl
        elif self._interval and not self._is_announced(known):
            most = self._interval
        else:
            return False
        rest = 0.0 if used_at > known.read_at else self._rest
        return self._clock() - known.read_at >= max(most, rest)

    def may_read(self, kind: str) -> bool:
        """Whether it may be read again, for somebody who asks for something that is not in it."""
        known = self._lists.get(kind)
        return known is not None and self._clock() - known.read_at >= self._rest

    def list_due(self, used_at: float) -> list[str]:
        """What is to be read in the background: lists that are old, if the server was used since
        they were read."""
        if not self._interval:
            return []
        now = self._clock()
        return [
            kind
            for kind, known in self._lists.items()
            if now >= known.next_at
            and used_at >= known.read_at
            and now - known.read_at >= self._rest
            and not self._is_announced(known)
        ]

    @property
    def pause(self) -> float | None:
        """Seconds until it is worth looking at what is due; None for never."""
        if not self._interval or not self._lists:
            return None
        now = self._clock()
        coming = [known.next_at - now for known in self._lists.values() if known.next_at > now]
        return max(0.05, min(coming, default=self._interval))

    def _is_announced(self, known: _List) -> bool:
        return known.announced and self._hears()
