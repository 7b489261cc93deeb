"""The processes below the hub: which server each belongs to, and how all of them end.

The hub is their subreaper (`process.protect`): a process whose parent has exited becomes the hub's
own child, so no process that a server starts leaves the hub's tree. Reads /proc; without it no
process is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

UNKNOWN = "unknown"
"""The server of a process below the hub that cannot be attributed."""
OWN = ""
"""Stands for the server of a command that the hub itself runs: the process acts for the owner. What
it starts does not."""
DEEPEST = 1_000
ROUNDS = 10
"""How often survivors are killed again: a process may start another meanwhile."""


SEARCH_FILES = 4_000
"""Open files of processes below the hub that are searched for a socket: some 20 ms. Twenty servers
started by package runners have about 1,500."""
PROCESS_COST = 10
"""The cost of finding a process and listing its files, in files."""


class ProcessStat(NamedTuple):
    parent: int
    session: int
    begun: int
    """In ticks since the machine started: with the pid it identifies one process for good."""
    state: str


class HubChild(NamedTuple):
    mark: str
    server: str
    begun: int


class Descendants:
    def __init__(self, search_files: int = SEARCH_FILES) -> None:
        self._search_files = search_files
        self._children: dict[int, HubChild] = {}
        """The processes that the hub has started, by pid."""
        self._known: dict[tuple[int, int], HubChild] = {}
        """All processes seen below these, by pid and start time."""
        self._suspects: dict[tuple[int, int], frozenset[str]] = {}
        """Orphans that cannot be attributed, with the marks of the children that may have started
        each."""
        self._is_subreaper = False
        self._starting = 0
        """How many commands are being started, whose processes are not in `_children` yet."""
        self._record: Path | None = None
        self._recorded: list[tuple[int, int]] = []

    def adopt_orphans(self) -> None:
        """From now on reaps and kills processes whose parent has exited: this process is a hub and
        their subreaper. Any other process may have children that are not the hub's."""
        self._is_subreaper = True

    def add(self, pid: int, mark: str, server: str) -> None:
        found = read_stat(pid)
        self._children[pid] = HubChild(mark, server, found.begun if found else 0)

    def discard(self, pid: int) -> None:
        self._children.pop(pid, None)

    def list_children(self, server: str) -> list[int]:
        """Lists the processes that the hub has started for a server."""
        return [pid for pid, child in self._children.items() if child.server == server]

    @contextlib.asynccontextmanager
    async def run_command(
        self, server: str, *command: str, has_input: bool = False, **options: Any
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Starts a command in a session of its own, whose output is read from `stdout`, and kills
        it at the end of the block if it still runs. With `has_input`, the caller writes to
        `stdin`."""
        self._starting += 1  # a sweep would take it for an orphan
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE if has_input else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,  # it may repeat a secret
                start_new_session=True,
                **options,
            )
            self.add(process.pid, f"command-{process.pid}", server)
        finally:
            self._starting -= 1
        try:
            yield process
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            try:
                await process.wait()
            finally:
                self.discard(process.pid)

    def note_started(self, pid: int) -> None:
        """Notes the processes that child `pid` has started."""
        child = self._children.get(pid)
        if child is not None:
            self._known.update((each, child) for each in _list_started(pid))

    def find_server(self, pid: int) -> str | None:
        """Finds the server that process `pid` descends from; None if it is not below the hub.

        A process that has exited may have been a server's, so it counts as an unknown server's.
        """
        hub = os.getpid()
        if pid in (0, hub):  # 0: it runs outside of this PID namespace, which no descendant does
            return None
        for depth in range(DEEPEST):
            found = read_stat(pid)
            if found is None:
                return UNKNOWN
            if (child := self._children.get(pid)) is not None:
                is_own = child.server == OWN and not depth and child.begun == found.begun
                return None if is_own else child.server or UNKNOWN
            if found.parent == hub:
                orphan = self._attribute(pid, found)
                return (orphan.server if orphan else OWN) or UNKNOWN
            if found.parent == 0:
                return None
            pid = found.parent
        return UNKNOWN

    def find_socket(self, inode: int) -> str | None:
        """Finds the server with a process that holds this socket; None if no process below the hub
        does.

        A process that hides its files counts as the holder. A search that is too long, because of
        the number of a server's files and processes, ends, and the socket counts as that of an
        unknown server: the event loop waits meanwhile.
        """
        if not _has_children():
            return None
        wanted = f"socket:[{inode}]"
        left = self._search_files
        for pid in list_descendants(os.getpid()):
            files = _list_files(pid)
            if files is None or _has_file(pid, files[:left], wanted):
                return self.find_server(pid)
            left -= len(files) + PROCESS_COST
            if left <= 0:
                log.warning(
                    "servers have too many open files to find out whether one of them has "
                    "connected to the hub; a client without a key was refused: create one with "
                    "dragoman keys create"
                )
                return UNKNOWN
        return None

    def sweep(self) -> None:
        """Attributes each process, reaps orphans that have exited, and kills those of servers that
        no longer run."""
        if not self._is_subreaper or self._starting:
            return
        known: dict[tuple[int, int], HubChild] = {}
        suspects: dict[tuple[int, int], frozenset[str]] = {}
        every: list[tuple[int, int]] = []
        running = frozenset(child.mark for child in self._children.values())
        for pid, found in _list_foreign(os.getpid()):
            if pid not in self._children and found.state == "Z":
                _reap(pid)
                continue
            family = [(pid, found.begun), *_list_started(pid)]
            every += family
            child = self._children.get(pid) or self._attribute(pid, found)
            if child is not None:
                known.update((each, child) for each in family)
                started_by = frozenset({child.mark})
            else:
                earlier = frozenset(
                    one.mark for one in self._children.values() if one.begun <= found.begun
                )
                started_by = self._suspects.get((pid, found.begun), earlier)
                suspects[pid, found.begun] = started_by & running
            if not started_by & running:
                _kill_all(family)
        self._known, self._suspects = known, suspects
        self._write_record(sorted(every))

    def kill(self, pid: int) -> None:
        """Kills the processes that child `pid` has started, whatever their parent is."""
        child = self._children.get(pid)
        if child is None:
            return
        for _ in range(ROUNDS):
            found = list(_list_started(pid))
            for orphan, stat in _list_foreign(os.getpid()):
                if orphan in self._children or stat.state == "Z":
                    continue
                whose = self._attribute(orphan, stat)
                if whose is not None and whose.mark == child.mark:
                    found += [(orphan, stat.begun), *_list_started(orphan)]
            found = [each for each in found if _is_alive(*each)]
            if not found:
                return
            self._known.update((each, child) for each in found)
            _kill_all(found)

    def kill_all(self) -> None:
        """Kills every process below the hub, except its own helpers, which share its session."""
        for _ in range(ROUNDS if self._is_subreaper else 0):
            found: list[tuple[int, int]] = []
            for pid, stat in _list_foreign(os.getpid()):
                if stat.state == "Z":
                    if pid not in self._children:
                        _reap(pid)
                    continue
                found += [(pid, stat.begun), *_list_started(pid)]
            if not found:
                break
            _kill_all(found)
        self._known.clear()
        if self._record is not None:
            with contextlib.suppress(OSError):
                self._record.unlink()

    def kill_recorded(self, record: Path) -> None:
        """Kills the processes of an earlier hub that was killed itself, and records those of this
        hub in the same file from now on. Only this finds a process that cleared its environment."""
        self._record = record
        with contextlib.suppress(OSError, ValueError, TypeError):
            left = json.loads(record.read_bytes())
            if left["boot"] == _read_boot():
                _kill_all([(int(pid), int(begun)) for pid, begun in left["processes"]])

    def _attribute(self, pid: int, found: ProcessStat) -> HubChild | None:
        """Attributes a process whose parent has exited: as seen before, or by its session, since
        each child of the hub begins one."""
        known = self._known.get((pid, found.begun))
        return known or self._children.get(found.session)

    def _write_record(self, processes: list[tuple[int, int]]) -> None:
        if self._record is None or processes == self._recorded:
            return
        new = self._record.with_name(f"{self._record.name}.{os.getpid()}")
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "w", encoding="utf-8") as file:
                json.dump({"boot": _read_boot(), "processes": processes}, file)
            new.replace(self._record)
        except OSError as error:
            log.debug("%s could not be written: %s", self._record, error)
            return
        self._recorded = processes


DESCENDANTS = Descendants()
"""The processes below this one."""


def read_stat(pid: int) -> ProcessStat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessStat(int(fields[1]), int(fields[3]), int(fields[19]), fields[0])


def _has_children() -> bool:
    """Whether this process has children: all below it are below those, since it is a subreaper."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def list_descendants(pid: int) -> list[int]:
    """Returns every process below `pid`, parents first."""
    found, left = [], [pid]
    while left:
        children = _list_children(left.pop())
        found += children
        left += children
    return found


def _list_children(pid: int) -> list[int]:
    if not _has_children_file():
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [one for one in pids if (found := read_stat(one)) and found.parent == pid]
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            path = f"/proc/{pid}/task/{task}/children"
            with contextlib.suppress(OSError), open(path, "rb") as file:
                children += map(int, file.read().split())
    return children


@lru_cache(maxsize=1)
def _has_children_file() -> bool:
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _list_foreign(hub: int) -> Iterator[tuple[int, ProcessStat]]:
    """Yields the children of the hub in other sessions than its own: a server's process begins a
    session, and nothing that it starts can join the hub's."""
    session = os.getsid(0)
    for pid in _list_children(hub):
        found = read_stat(pid)
        if found is not None and found.parent == hub and found.session != session:
            yield pid, found


def _list_started(pid: int) -> Iterator[tuple[int, int]]:
    for below in list_descendants(pid):
        found = read_stat(below)
        if found is not None:
            yield below, found.begun


def _list_files(pid: int) -> list[str] | None:
    """Returns the open files of a process; None if it hides them."""
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return []
    except OSError:
        found = read_stat(pid)
        return None if found is not None and found.state != "Z" else []


def _has_file(pid: int, files: Iterable[str], wanted: str) -> bool:
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/{pid}/fd/{file}") == wanted:
                return True
    return False


def _is_alive(pid: int, begun: int) -> bool:
    found = read_stat(pid)
    return found is not None and found.begun == begun and found.state != "Z"


def _kill_all(processes: Iterable[tuple[int, int]]) -> None:
    for pid, begun in processes:
        if _is_alive(pid, begun):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _read_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
