"""Decides whether the wall clock can be trusted for expiry.

A wrong clock at start would make everything look expired. A jump of more than a day in either
direction since the clock was last seen makes it untrusted until it has run for a day. A machine
that was off over a weekend looks the same: expiry is then delayed by a day.
"""

from __future__ import annotations

import time

STEADY_SECONDS = 86_400.0


class SteadyClock:
    def __init__(self, seen: float, new_since: float) -> None:
        """`seen` is the last reading, 0 if none. `new_since` is the first reading after a jump,
        0 while the clock is trusted."""
        self.seen = seen
        self.new_since = new_since

    def is_steady(self) -> bool:
        """Reads the clock and returns whether it is trusted."""
        now = time.time()
        if self.seen and abs(now - self.seen) > STEADY_SECONDS:
            self.new_since = now
        elif self.new_since and now - self.new_since >= STEADY_SECONDS:
            self.new_since = 0.0
        self.seen = now
        return not self.new_since
