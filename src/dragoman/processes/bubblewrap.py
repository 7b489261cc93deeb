"""Finds bubblewrap (`bwrap`) and tries whether this system lets it make a sandbox."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache

PROBE_SECONDS = 10.0
UNSHARED = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
"""The namespaces of every sandbox."""
_PROBE = (
    *UNSHARED,
    *("--unshare-net", "--die-with-parent", "--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--perms", "1777"),
    *("--tmpfs", "/tmp", "--", "/bin/sh", "-c", ":"),
)


class NoBubblewrap(Exception):
    """There is no sandbox here; the message says why and what to do."""


def find_bubblewrap(path: str | None = None) -> str:
    """Returns the program, which works here; raises `NoBubblewrap`. Looks on `path`, by default on
    that of this process."""
    if sys.platform != "linux":
        raise NoBubblewrap("bubblewrap exists for Linux only")
    program = shutil.which("bwrap", path=path)
    if program is None:
        raise NoBubblewrap(
            "bubblewrap is not installed; install the package bubblewrap of your distribution"
        )
    _try_sandbox(os.path.realpath(program))
    return program


@lru_cache(maxsize=16)  # of programs that work: an exception is not kept
def _try_sandbox(program: str) -> None:
    try:
        done = _run_probe(program)
        if done.returncode < 0:  # the hub may have mistaken it for what a server left behind
            done = _run_probe(program)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBubblewrap(f"{program} cannot be run: {error}") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        said = lines[-1][:200] if lines else f"it exited with status {done.returncode}"
        raise NoBubblewrap(
            f"bubblewrap cannot make a sandbox on this system ({said}); containers and some "
            "distributions forbid user namespaces: see dragoman docs sandbox"
        )


def _run_probe(program: str) -> subprocess.CompletedProcess[bytes]:
    """Runs it in a session of its own: bubblewrap leaves a process behind for its parent to reap,
    and the hub reaps those of other sessions."""
    return subprocess.run(
        [program, *_PROBE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={},
        timeout=PROBE_SECONDS,
        start_new_session=True,
        check=False,
    )
