"""Limits the share of time that notifications of changed resources take from calls.

Notifications are sent at once while that is little work. Otherwise they are put off, and several
changes of one resource become one notification. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from dragoman.core.call import NOTHING
from dragoman.wire.json import encode

REST = 4.0
"""After notifying for t seconds, the throttle pauses for REST x t seconds."""
OWED = 0.5
"""Seconds of pause that may accumulate before notifications are put off."""
MAX_PUT_OFF = 1_100
MAX_META = 4_096
"""Bytes that a change which is put off may bring along."""
Meta = Mapping[str, Any]
Notify = Callable[[str, str, Meta], None]


class NotifyThrottle:
    def __init__(self, notify: Notify) -> None:
        """`notify` gets the changed resource, the subscribed one that it is or is part of, and what
        its server said with the change."""
        self._notify = notify
        self._free_at = 0.0
        """When no pause is owed any more."""
        self._put_off: OrderedDict[str, tuple[str, Meta]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._put_off)

    @property
    def owed(self) -> float:
        """Seconds of pause."""
        return max(0.0, self._free_at - monotonic())

    def add(self, name: str, subscribed: str, meta: Meta = NOTHING) -> None:
        """Notifies now or later. `meta` of several changes is that of the last one."""
        if not self._put_off and self.owed <= OWED:
            self.run(self._notify, name, subscribed, meta)
            return
        if len(self._put_off) >= MAX_PUT_OFF:
            name, meta = subscribed, NOTHING  # there are fewer of these
        if meta and len(encode(meta)) > MAX_META:
            meta = NOTHING
        self._put_off[name] = subscribed, meta
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.owed, self._resume)

    def run(self, work: Callable[..., None], *arguments: Any) -> None:
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
            name, (subscribed, meta) = self._put_off.popitem(last=False)
            self.run(self._notify, name, subscribed, meta)
        if self._put_off:
            self._timer = asyncio.get_running_loop().call_later(self.owed, self._resume)
