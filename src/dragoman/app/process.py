"""The process that a hub runs in: its event loop, memory, file limit and protection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36  # <linux/prctl.h>
KEPT_BYTES = 64 * 1024 * 1024
MAX_FILES = 65_536


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None

    def build_loop() -> asyncio.AbstractEventLoop:
        loop = uvloop.new_event_loop()
        loop.set_exception_handler(log_loop_error)
        return loop

    return build_loop


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs what a callback of the event loop raised. With TLS, uvloop may still write to a
    connection that the other side has just closed; its owner learns that by itself. A connection
    may also fail after its caller has stopped waiting for it."""
    transport = context.get("transport")  # those of uvloop are no `asyncio.BaseTransport`
    error, future = context.get("exception"), context.get("future")
    is_lost = isinstance(error, RuntimeError | OSError)
    if is_lost and transport is not None and transport.is_closing():
        log.debug("a connection was closed while it was written to: %s", error)
    elif (
        isinstance(error, ConnectionError)
        and future is not None
        and not isinstance(future, asyncio.Task)
    ):
        log.debug("a connection failed that was not waited for any more: %r", error)
    else:
        loop.default_exception_handler(context)


def freeze_garbage() -> None:
    """Exempts all current objects from garbage collection: they live as long as the hub. A call
    leaves no cycles, but a hundred concurrent calls hold some 5,000 objects, which the collector
    must not examine every time. No collection comes first: it would take longer than the two
    megabytes of garbage of a start are worth."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def keep_memory() -> None:
    """Makes the C library keep up to `KEPT_BYTES` of freed memory. A long list is megabytes, built
    for each answer: returning them to the system and having them zeroed again costs several times
    what building the answer does."""
    import ctypes  # here: only a serving hub needs it

    with contextlib.suppress(OSError, AttributeError):  # another C library has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def limit_connections(wanted: int) -> int:
    """Returns `wanted`, or the connections that there are files for beside the hub's own: without a
    free file no new client could connect, however many idle ones there are."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(10, files // 2, files - 1_000))


def protect() -> None:
    """On Linux, hides the hub's memory, environment and files from other processes of its user, and
    makes the hub the parent of the processes that its children leave behind. Programs that the hub
    starts have neither: exec resets the first, and the second is not inherited. Neither the hub nor
    they write core dumps, which would contain secrets."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the servers inherit this
    if sys.platform != "linux":
        return
    import ctypes  # here: the relay does without

    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def count_files() -> int:
    """Counts the open files of this process; 0 if unknown."""
    for folder in ("/proc/self/fd", "/dev/fd"):  # Linux, macOS
        try:
            return len(os.listdir(folder)) - 1
        except OSError as error:
            if error.errno == errno.EMFILE:  # no file is left to open the folder with
                return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0


def raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, MAX_FILES) if hard != resource.RLIM_INFINITY else MAX_FILES
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
