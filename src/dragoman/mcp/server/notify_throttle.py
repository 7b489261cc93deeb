"""When clients are told of what has changed: at once, as long as that is little work.

However often a server says that something has changed, and however many follow it, most of the time
is left to calls: what comes too fast is put off, and then told once. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

REST = 4.0
"""So many times as long as the telling took others have their turn."""
OWED = 0.5
"""Seconds of such rest that may be owed."""
MAX_PUT_OFF = 1_100


class NotifyThrottle:
    def __init__(self, tell: Callable[[str, str], None]) -> None:
        """`tell` is given what has changed, and the followed one that it is or is a part of."""
        self._tell = tell
        self._rested = 0.0
        """When nothing is owed any more."""
        self._put_off: OrderedDict[str, str] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._put_off)

    @property
    def owed(self) -> float:
        return max(0.0, self._rested - monotonic())

    def changed(self, name: str, followed: str) -> None:
        if not self._put_off and self.owed <= OWED:
            self.take(self._tell, name, followed)
            return
        if len(self._put_off) >= MAX_PUT_OFF:
            name = followed  # of which there are not so many
        self._put_off[name] = followed
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.owed, self._go_on)

    def take(self, work: Callable[..., None], *arguments: str) -> None:
        """Does that now, and owes for it."""
        begun = monotonic()
        work(*arguments)
        now = monotonic()
        self._rested = max(self._rested, now) + REST * (now - begun)

    def close(self) -> None:
        self._put_off.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        self._timer = None
        while self._put_off and self.owed <= OWED:
            self.take(self._tell, *self._put_off.popitem(last=False))
        if self._put_off:
            self._timer = asyncio.get_running_loop().call_later(self.owed, self._go_on)
