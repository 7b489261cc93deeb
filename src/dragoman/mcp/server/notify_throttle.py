"""Limits the share of time that notifications of changed resources take from calls.

Notifications are sent at once while that is little work. Otherwise they are put off, and several
changes of one resource become one notification. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

REST = 4.0
"""After notifying for t seconds, the throttle pauses for REST x t seconds."""
OWED = 0.5
"""Seconds of pause that may accumulate before notifications are put off."""
MAX_PUT_OFF = 1_100


class NotifyThrottle:
    def __init__(self, notify: Callable[[str, str], None]) -> None:
        """`notify` gets the changed resource, and the subscribed one that it is or is part of."""
        self._notify = notify
        self._free_at = 0.0
        """When no pause is owed any more."""
        self._put_off: OrderedDict[str, str] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._put_off)

    @property
    def owed(self) -> float:
        """Seconds of pause."""
        return max(0.0, self._free_at - monotonic())

    def add(self, name: str, subscribed: str) -> None:
        """Notifies now or later."""
        if not self._put_off and self.owed <= OWED:
            self.run(self._notify, name, subscribed)
            return
        if len(self._put_off) >= MAX_PUT_OFF:
            name = subscribed  # there are fewer of these
        self._put_off[name] = subscribed
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.owed, self._resume)

    def run(self, work: Callable[..., None], *arguments: str) -> None:
        """Runs `work` now and adds the pause that it costs."""
        begun = monotonic()
        work(*arguments)
        now = monotonic()
        self._free_at = max(self._free_at, now) + REST * (now - begun)

    def close(self) -> None:
        self._put_off.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _resume(self) -> None:
        self._timer = None
        while self._put_off and self.owed <= OWED:
            self.run(self._notify, *self._put_off.popitem(last=False))
        if self._put_off:
            self._timer = asyncio.get_running_loop().call_later(self.owed, self._resume)
