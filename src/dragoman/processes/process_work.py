"""Measures whether processes are at work: they use CPU, read or write, or start further ones.

Reads /proc; where there is none, nothing is measured.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.processes.descendants import list_descendants

WORK_TICKS = 2
"""CPU time between two measurements, usually in hundredths of a second, that counts as work: a
process that waits uses less, even if a timer wakes it now and then."""
WORK_BYTES = 1024
"""Bytes read and written that count as work."""
_WRAPPERS = frozenset({"bwrap"})
"""Programs that only run another one."""


class MeasuredWork(NamedTuple):
    is_busy: bool
    program: str
    """The name of the program that did most."""
    is_first: bool
    """Whether that is the one that was started, and not one that it has started."""


class _Usage(NamedTuple):
    program: str
    ticks: int
    bytes: int


class WorkMeter:
    """Compares what some processes and all below them have used with the last measurement."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], _Usage] = {}

    def measure(self, pids: Iterable[int]) -> MeasuredWork | None:
        """Returns None if nothing can be read, as on systems without /proc."""
        now: dict[tuple[int, int], _Usage] = {}
        first: tuple[int, int] | None = None
        for key, usage in _read_all(pids):
            now[key] = usage
            if first is None and usage.program not in _WRAPPERS:
                first = key
        if not now:
            return None
        before, self._before = self._before, now
        is_busy, most, busiest = False, (-1, -1), first
        for key, usage in now.items():
            old = before.get(key)
            ticks = usage.ticks - (old.ticks if old else 0)
            count = usage.bytes - (old.bytes if old else 0)
            is_busy = is_busy or old is None or ticks >= WORK_TICKS or count >= WORK_BYTES
            if (ticks, count) > most and usage.program not in _WRAPPERS:
                most, busiest = (ticks, count), key
        program = now[busiest].program if busiest is not None else ""
        return MeasuredWork(is_busy, program, busiest == first)


def _read_all(pids: Iterable[int]) -> Iterator[tuple[tuple[int, int], _Usage]]:
    for pid in pids:
        for one in (pid, *list_descendants(pid)):
            found = _read_usage(one)
            if found is not None:
                yield found


def _read_usage(pid: int) -> tuple[tuple[int, int], _Usage] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    name = os.path.basename(head.partition("(")[2].partition(" ")[0])
    ticks = sum(map(int, fields[11:15]))  # with the children that it has waited for
    return (pid, int(fields[19])), _Usage(name, ticks, _read_bytes(pid))


def _read_bytes(pid: int) -> int:
    count = 0
    with contextlib.suppress(OSError, ValueError):  # a process of another user
        for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()[:2]:
            count += int(line.partition(":")[2])  # rchar and wchar: sockets and caches as well
    return count
