"""Whether the wall clock can be trusted to say that something is old.

A clock that is wrong at a start would make everything look expired. So a jump of more than a day,
forwards or backwards, since the clock was last seen makes it new, and a new clock is trusted once
it has gone on for a day. A machine that was off over a weekend looks the same: what is old then
goes a day later.
"""

from __future__ import annotations

import time

STEADY_SECONDS = 86_400.0


class SteadyClock:
    def __init__(self, seen: float, new_since: float) -> None:
        """`seen` is when it was last looked at, by itself; 0 if never. `new_since` is when it was
        first seen after a jump; 0 if it is trusted."""
        self.seen = seen
        self.new_since = new_since

    def is_steady(self) -> bool:
        """Looks at the clock; whether it is trusted."""
        now = time.time()
        if self.seen and abs(now - self.seen) > STEADY_SECONDS:
            self.new_since = now
        elif self.new_since and now - self.new_since >= STEADY_SECONDS:
            self.new_since = 0.0
        self.seen = now
        return not self.new_since
