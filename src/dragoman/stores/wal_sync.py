"""Brings the write-ahead log of an SQLite database to the disk, in a thread.

A connection with `synchronous=NORMAL` commits without waiting for the disk: such a commit survives
the end of the process, and after a sync of the log also a power failure. The thread of the event
loop, which commits, does not wait for the disk; commits of the time of one sync share the next one.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from dragoman.core.background import resolve
from dragoman.core.errors import HubError, StorageFailed

_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


class WalSync:
    def __init__(self, database: Path) -> None:
        self._path = f"{database}-wal"
        self._fd = -1
        self._inode = 0
        self._next: asyncio.Future[HubError | None] | None = None
        """Done after a sync that has not begun yet."""
        self._is_running = False

    async def sync(self) -> None:
        """Returns once all that was committed before is on the disk. Raises `StorageFailed`."""
        loop = asyncio.get_running_loop()
        waiting = self._next
        if waiting is None:
            waiting = self._next = loop.create_future()
            if not self._is_running:
                self._start(loop)
        # Shielded: one that is cancelled must not cancel the future of the others.
        if (error := await asyncio.shield(waiting)) is not None:
            raise error

    def close(self) -> None:
        """Closes the file; nothing may wait for a sync any more."""
        if self._fd >= 0 and not self._is_running:
            os.close(self._fd)
            self._fd = -1

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        done, self._next = self._next, None
        self._is_running = True
        running = loop.run_in_executor(None, self._sync)
        running.add_done_callback(lambda ended: self._finish(loop, done, ended))

    def _finish(
        self,
        loop: asyncio.AbstractEventLoop,
        done: asyncio.Future[HubError | None] | None,
        ended: asyncio.Future[None],
    ) -> None:
        self._is_running = False
        error: HubError | None = None
        if ended.cancelled() or (problem := ended.exception()) is not None:
            why = "the hub is stopping" if ended.cancelled() else str(problem)
            error = StorageFailed(f'"{self._path}" cannot be brought to the disk ({why})')
        resolve(done, error)
        if self._next is not None:
            self._start(loop)

    def _sync(self) -> None:
        self._open()
        _sync_data(self._fd)

    def _open(self) -> None:
        """Opens the log, again if it is another file. Its descriptors may be closed: SQLite holds
        its locks on other files."""
        inode = os.stat(self._path).st_ino
        if self._fd >= 0 and inode == self._inode:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._inode = fd, os.fstat(fd).st_ino
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # the name of a new file
        finally:
            os.close(folder)
