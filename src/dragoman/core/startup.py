"""Waits for targets that have not connected yet after the start.

A tool that a client knows from before a restart still exists while its server starts: calls wait
for it for a bounded time, and then fail with an error that says to try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, runtime_checkable

from dragoman.core.background import start_task
from dragoman.core.catalog import Catalog
from dragoman.core.errors import HubError, Unreachable
from dragoman.core.logins import NeedsLogin
from dragoman.core.tool import Target

MAX_WAITING = 1_000
"""Calls that may wait at once; further ones fail at once."""


@runtime_checkable
class Connectable(Protocol):
    """A target that can connect on demand."""

    async def try_now(self) -> None:
        """Raises why it cannot be reached."""


class Startup:
    def __init__(self, find_absent: Callable[[str], tuple[Target, str] | None]) -> None:
        """`find_absent` finds the target, among those not connected since the start, whose
        namespace a name is in, and why it is absent."""
        self._find_absent = find_absent
        self._settled = asyncio.Event()
        self._waiting = 0

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set()

    def settle(self) -> None:
        """Marks the start as complete: every target has connected, failed or timed out once."""
        self._settled.set()

    async def wait(self) -> None:
        await self.wait_for(lambda: False, ())

    async def wait_for(self, is_known: Callable[[], bool], catalogs: Iterable[Catalog]) -> None:
        """Waits until the start is complete or `is_known`."""
        if self._settled.is_set() or self._waiting >= MAX_WAITING:
            return
        known = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not known.done() and is_known():
                known.set_result(None)

        stops = [catalog.on_change(look) for catalog in catalogs]
        settled = start_task(self._settled.wait())
        self._waiting += 1
        try:
            await asyncio.wait([known, settled], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            settled.cancel()
            for stop in stops:
                stop()

    async def try_now(self, target: Target) -> None:
        """Makes a target connect now, if it can."""
        if isinstance(target, Connectable) and self._waiting < MAX_WAITING:
            self._waiting += 1
            try:
                with suppress(HubError):
                    await target.try_now()
            finally:
                self._waiting -= 1

    def find_absent(self, name: str) -> tuple[Target, HubError] | None:
        """The target that `name` most likely belongs to, and the error for the client."""
        found = self._find_absent(name)
        if found is None:
            return None
        target, why = found
        if isinstance(target, NeedsLogin) and (problem := target.find_login_problem()) is not None:
            return target, problem
        words = f'"{name[:200]}" is not available yet: {why}; nothing was sent, try again'
        return target, Unreachable(words, sent=False)
