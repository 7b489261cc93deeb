"""Resource limits of child processes (Linux).

Outside of a sandbox the hub sets them right after the start; a sandbox sets them before it runs the
program, so that no process in it is without.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Sequence

from dragoman.processes.config import ProcessLimits

MEGABYTE = 1024 * 1024
USER_PROCESSES = 16_384
"""The limit of processes where the kernel counts all of the user's: outside of a sandbox, and
before Linux 5.14."""


def set_limits(pid: int, limits: ProcessLimits) -> None:
    """Sets the limits of a process that runs outside of a sandbox. It may have exited already."""
    if not hasattr(resource, "prlimit"):
        return
    wanted = {
        resource.RLIMIT_DATA: limits.memory_megabytes * MEGABYTE,
        resource.RLIMIT_FSIZE: limits.file_megabytes * MEGABYTE,
        resource.RLIMIT_NPROC: max(limits.processes, USER_PROCESSES) if limits.processes else 0,
        resource.RLIMIT_CPU: limits.cpu_secs,
    }
    for kind, value in wanted.items():
        if not value:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
            _, hard = resource.prlimit(pid, kind)
            if hard != resource.RLIM_INFINITY:
                value = min(value, hard)
            resource.prlimit(pid, kind, (value, value))


def build_limited_command(command: Sequence[str], limits: ProcessLimits) -> list[str]:
    """Builds the command that sets the limits of its own process and then runs `command`."""
    counts_alone = _read_kernel() >= (5, 14)
    processes = limits.processes if counts_alone else max(limits.processes, USER_PROCESSES)
    wanted = {
        "-d": limits.memory_megabytes * 1024,
        "-f": limits.file_megabytes * 2048,  # in blocks of 512 bytes
        "-t": limits.cpu_secs,
    }
    lines = [f"ulimit {option} {value}" for option, value in wanted.items() if value]
    if limits.processes:  # -p: dash and BusyBox; -u: bash
        lines.append(f"ulimit -p {processes} || ulimit -u {processes}")
    script = "".join(f"{{ {line}; }} 2>&-; " for line in lines)
    return ["/bin/sh", "-c", f'{script}exec "$@"', "sh", *command]


def _read_kernel() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
