"""What every part of the hub that serves principals does when one of them loses access.

A key is revoked or expires, or the first key is created and clients without one are not served any
more. The watcher of the keys calls `end_principals` of each part, and again a little later for what
was just starting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dragoman.core.principal import Principal

WhyEnded = Callable[[Principal], str]
"""Why the hub does not serve that principal any more; empty while it does."""


class ServesPrincipals(Protocol):
    def end_principals(self, why_ended: WhyEnded) -> None:
        """Ends the streams, calls, sessions and tasks of principals that are not served any more,
        and no others. Returns at once."""
