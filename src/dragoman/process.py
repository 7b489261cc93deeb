"""The process that a hub runs in: its loop, its garbage, how many files it may open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def settle_garbage() -> None:
    """What is here by now stays: the collector need not look at it with every few hundred calls."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 10)


def raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
