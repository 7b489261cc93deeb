"""The start of a stdio server: waited for while its processes are at work, at most three
installations at once.

The first start of a package runner downloads and installs for minutes, and a runner that is ended
meanwhile leaves a folder from which nothing starts any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from time import monotonic

from dragoman.core.background import start_task
from dragoman.core.file_modes import make_private_folder
from dragoman.core.package_runners import find_installer
from dragoman.processes.descendants import DESCENDANTS
from dragoman.processes.process_work import MeasuredWork, WorkMeter

log = logging.getLogger(__name__)

MAX_INSTALLATIONS = 3
SAMPLE_SECONDS = 2.0
LOG_SECONDS = 30.0
"""How often the log says that a server is still starting."""
SHORT_SECONDS = 5.0
"""Starts that take no longer are not described."""
_TOOLS = frozenset({"npm", "npx", "uv", "uvx", "pip", "pipx", "bun", "bunx", "pnpm", "yarn", "git"})
"""Programs that install, besides the package runner itself."""


def build_folder_name(server: str) -> str:
    """Returns the name of a server's folder in the home, below `servers`."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", server)


class Installations:
    """The package runners that may be installing now. Those whose command line has started before
    do not count: what they need is there."""

    def __init__(self, home: Path | None = None, limit: int = MAX_INSTALLATIONS) -> None:
        """`home` keeps what has started before."""
        self._home = home
        self._slots = asyncio.Semaphore(limit)
        self._running: list[str] = []

    def list_running(self) -> list[str]:
        return list(self._running)

    @property
    def is_full(self) -> bool:
        return self._slots.locked()

    async def acquire(self, server: str) -> None:
        await self._slots.acquire()
        self._running.append(server)

    def release(self, server: str) -> None:
        self._running.remove(server)
        self._slots.release()

    def has_started(self, server: str, line: Sequence[str]) -> bool:
        try:
            return (file := self._find_file(server)) is not None and (
                file.read_text(encoding="ascii") == _compute_digest(line)
            )
        except (OSError, ValueError):
            return False

    def note_started(self, server: str, line: Sequence[str]) -> None:
        file = self._find_file(server)
        if file is None or self.has_started(server, line):
            return
        with contextlib.suppress(OSError):  # the next start waits for its turn again
            make_private_folder(file.parent)
            file.write_text(_compute_digest(line), encoding="ascii")

    def _find_file(self, server: str) -> Path | None:
        if self._home is None:
            return None
        return self._home / "servers" / build_folder_name(server) / "started"


class ServerStart:
    """One attempt to start a server's program. It has `idle_secs` from the last sign of work, and
    `most_secs` in all."""

    def __init__(
        self,
        server: str,
        line: Sequence[str],
        idle_secs: float,
        most_secs: float,
        installations: Installations,
    ) -> None:
        self._server = server
        self._line = line
        self._idle_secs, self._most_secs = idle_secs, most_secs
        self._installations = installations
        self._installer = find_installer(line[0], line[1:])
        self.is_installing = bool(self._installer)
        """Whether it may be in the middle of an installation."""
        self._has_slot = self._is_waiting = False
        self._meter = WorkMeter()
        self._earlier = frozenset(DESCENDANTS.list_children(server))
        """Processes of other sessions with the server."""
        self._work: MeasuredWork | None = None
        self._allowed_secs = idle_secs
        self._begun = self._worked_at = self._logged_at = monotonic()

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[asyncio.Timeout]:
        """The block in which the program is started; its end is moved while there is work."""
        if self._installer and not self._installations.has_started(self._server, self._line):
            await self._wait_for_turn()
        watch: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(self._idle_secs) as limit:
                watch = start_task(self._follow(limit))
                yield limit
            if self._installer:
                self._installations.note_started(self._server, self._line)
        finally:
            if watch is not None:
                watch.cancel()
            self._note_installed()

    async def _wait_for_turn(self) -> None:
        if self._installations.is_full:
            self._is_waiting = True
            log.info('server "%s" %s', self._server, self.describe())
        await self._installations.acquire(self._server)
        self._has_slot, self._is_waiting = True, False
        self._begun = self._worked_at = self._logged_at = monotonic()

    def _note_installed(self) -> None:
        self.is_installing = False
        if self._has_slot:
            self._has_slot = False
            self._installations.release(self._server)

    async def _follow(self, limit: asyncio.Timeout) -> None:
        """Moves the end of the start while its processes work."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            await asyncio.sleep(min(SAMPLE_SECONDS, self._idle_secs / 4))
            pids = [one for one in DESCENDANTS.list_children(self._server) if self._is_own(one)]
            self._work = work = self._meter.measure(pids)
            is_busy = work.is_busy if work is not None else self._is_unmeasured(pids)
            if is_busy and not limit.expired():
                self._worked_at = monotonic()
                spent = loop.time() - begun
                self._allowed_secs = min(self._most_secs, spent + self._idle_secs)
                limit.reschedule(begun + self._allowed_secs)
            if work is not None and not self._is_installer(work):
                self._note_installed()  # the program itself runs
            if monotonic() - self._logged_at >= LOG_SECONDS:
                self._logged_at = monotonic()
                log.info('server "%s" %s', self._server, self.describe())

    def _is_own(self, pid: int) -> bool:
        return pid not in self._earlier

    def _is_unmeasured(self, pids: Sequence[int]) -> bool:
        """Without /proc, a package runner counts as busy: to end it does more harm than to wait."""
        return bool(pids) and bool(self._installer) and not os.path.isdir("/proc/self")

    def _is_installer(self, work: MeasuredWork) -> bool:
        return bool(self._installer) and (work.is_first or work.program in _TOOLS)

    def describe(self) -> str:
        """Says how long it has been starting, and what is at work; empty if that is not long."""
        seconds = monotonic() - self._begun
        if self._is_waiting:
            names = ", ".join(self._installations.list_running())
            return f"waits to be started after the installation of {names}"
        if seconds < SHORT_SECONDS:
            return ""
        text = f"has been starting for {seconds:.0f} s"
        if monotonic() - self._worked_at >= 2 * SAMPLE_SECONDS:
            return f"{text}, and has done nothing for {monotonic() - self._worked_at:.0f} s"
        if self._work is None:
            return f"{text}: {self._installer} may be installing" if self._installer else text
        if self._is_installer(self._work):
            return f"{text}: {self._installer} is installing"
        return f"{text}: {self._work.program} is at work"

    def explain_timeout(self) -> str:
        """Says why the start was ended."""
        text = f"it did not answer within {self._allowed_secs:.3g} s"
        if self._idle_secs < self._allowed_secs < self._most_secs:
            return f"{text}, and did nothing in the last {self._idle_secs:g} s"
        return text


def _compute_digest(line: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(line).encode("utf-8", "surrogateescape")).hexdigest()
