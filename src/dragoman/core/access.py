"""What every part of the hub that serves callers does when one of them loses access.

A key is revoked or expires, or the first key is made and callers without one are not served any
more. Whoever watches the keys calls `end_callers` of each part, and calls it again a little later
for what was just beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dragoman.core.principal import Principal

WhyEnded = Callable[[Principal], str]
"""Why the hub does not serve that principal any more; empty while it does."""


class ServesCallers(Protocol):
    def end_callers(self, why_ended: WhyEnded) -> None:
        """Ends the streams, calls, sessions and tasks of principals that are not served any more,
        and lets others go on. Returns at once."""
