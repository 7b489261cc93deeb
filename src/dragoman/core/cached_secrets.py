"""Keeps secrets that take long to read, and reads each once however many callers wait for it. A
failure is kept for a moment, too: to read a secret may start a program."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from dragoman.core.background import start_task
from dragoman.core.errors import ConfigError

ReadSecret = Callable[[str, str], Awaitable[str]]
"""Takes the name of a secret and its owner; raises `ConfigError`."""
MAX_KEPT = 1_000
FAILED_SECONDS = 5.0
"""How long a secret that could not be read is not read again."""


class CachedSecrets:
    """Implements `core.secret_references.SecretSource` around a slow reader."""

    def __init__(
        self,
        read: ReadSecret,
        seconds: Callable[[], float],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`seconds` says how long a secret is kept."""
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._kept: dict[str, tuple[float, str]] = {}
        self._failed: dict[tuple[str, str], tuple[float, str]] = {}
        """By secret and owner, which the error names."""
        self._reading: dict[str, asyncio.Task[str]] = {}

    async def read(self, name: str, owner: str) -> str:
        kept = self._kept.get(name)
        if kept is not None and self._clock() - kept[0] < self._seconds():
            return kept[1]
        failed = self._failed.get((name, owner))
        if failed is not None and self._clock() - failed[0] < FAILED_SECONDS:
            raise ConfigError(failed[1])
        task = self._reading.get(name)
        if task is None:
            task = self._reading[name] = start_task(self._fetch(name, owner))
            task.add_done_callback(lambda done: self._finish(name, done))
        return await asyncio.shield(task)  # others may wait for it, too

    def forget(self, name: str) -> bool:
        return self._kept.pop(name, None) is not None

    async def _fetch(self, name: str, owner: str) -> str:
        try:
            secret = await self._read(name, owner)
        except ConfigError as error:
            if len(self._failed) >= MAX_KEPT:
                self._failed.clear()
            self._failed[name, owner] = self._clock(), str(error)
            raise
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[name] = self._clock(), secret
        return secret

    def _finish(self, name: str, task: asyncio.Task[str]) -> None:
        if self._reading.get(name) is task:
            del self._reading[name]
        if not task.cancelled():
            task.exception()  # those who wait for it get it
