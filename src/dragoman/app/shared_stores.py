"""Notices what other hubs have changed in the stores that this hub keeps in memory.

Keys, users and labels are compared whenever they are used; here are the registry and the pins,
whose changes have effects of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dragoman.core.errors import HubError

ReadVersion = Callable[[], int]
Reload = Callable[[], Awaitable[None]]


class SharedStores:
    def __init__(self, followed: dict[str, tuple[ReadVersion, Reload]]) -> None:
        """Of each store: what reads a number that differs after a change by others, and what reads
        the store again."""
        self._followed = followed
        self._seen = {name: read() for name, (read, _) in followed.items()}

    async def check(self) -> None:
        for name, (read, reload) in self._followed.items():
            try:
                version = read()
                if version != self._seen[name]:
                    await reload()
                    self._seen[name] = version
            except HubError:  # tried again by the next check; the server's watch reports it
                continue
