"""The process that a hub runs in: its loop, its garbage, how many files it may open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import sys
from collections.abc import Callable

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36  # <linux/prctl.h>
KEPT_BYTES = 64 * 1024 * 1024


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def settle_garbage() -> None:
    """Exempts what exists now from garbage collection: it stays. A call leaves no cycles, but a
    hundred calls at a time hold some 5,000 objects, and the collector must not take them for
    garbage each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def keep_memory() -> None:
    """A long list is some megabytes, made anew for each answer. Whether the C library hands such
    pieces back to the system every time, and has them zeroed again, is else a matter of luck: it
    costs several times what making the answer does. At most as much as is said here is kept."""
    import ctypes  # here: it is not needed before the hub serves

    with contextlib.suppress(OSError, AttributeError):  # another C library has another way
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def connection_limit(wanted: int) -> int:
    """As many connections as are wanted, or as there are files for beside the hub's own: where
    files run out no new client could be let in, however many idle ones there are."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(10, files // 2, files - 1_000))


def protect() -> None:
    """On Linux, keeps the hub's memory, environment and files from other processes of its user, and
    makes the hub the parent of whatever its children leave behind. A program that the hub starts
    has neither: the kernel resets the one at exec and inherits the other to nobody."""
    if sys.platform != "linux":
        return
    import ctypes  # here: the relay does without

    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def count_files() -> int:
    """How many files this process has open; 0 where that cannot be told."""
    for folder in ("/proc/self/fd", "/dev/fd"):  # Linux, macOS
        try:
            return len(os.listdir(folder)) - 1
        except OSError as error:
            if error.errno == errno.EMFILE:  # one more cannot be opened to look
                return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0


def raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
