"""Names what holds the event loop: a thread that looks at the loop while its heartbeat is late.

Costs nothing per call. The loop notes the time twice in each `hold_secs`, and the thread compares.
Only while the note is late does the thread look at the stack of the loop's thread, twice: if the
same callback runs, its innermost function of the hub is named. A process that was paused, or a
thread that the system did not run, is not a function's fault and is not counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from types import FrameType

from dragoman.core.measurements import COUNTER, Measurement

log = logging.getLogger(__name__)

PACKAGE = "dragoman."
MAX_HANDLERS = 100
OTHERS = "others"
SEVERAL = "several"
"""Stands for many short callbacks in a row."""
GLANCE_SECONDS = 0.005
"""Between two looks at the stack."""
LOG_SECONDS = 60.0
MAX_STACK = 6
"""Functions of the hub that a log line names."""


class LoopWatchdog:
    def __init__(self, hold_secs: float, log_secs: float = LOG_SECONDS) -> None:
        """`hold_secs` is how long the loop may be held unnoticed; 0 watches nothing."""
        self._hold_secs = hold_secs
        self._log_secs = log_secs
        self._interval = hold_secs / 2
        self._beat_at = 0.0
        self._depth = 0
        """Frames of whatever runs the loop, which are below every callback."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._logged_at = -log_secs
        self._unlogged = 0
        self._held: dict[str, tuple[int, float]] = {}
        """How often and for how many seconds each function has held the loop."""

    def start(self) -> None:
        """Watches the running loop, from its own thread."""
        if not self._hold_secs:
            return
        self._loop = asyncio.get_running_loop()
        self._beat_at = time.monotonic()
        self._loop.call_soon(self._beat)
        me = threading.current_thread()
        assert me.ident is not None and me.native_id is not None
        watch = threading.Thread(
            target=self._watch, args=(me.ident, me.native_id), name="loop watchdog", daemon=True
        )
        watch.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def collect(self) -> list[Measurement]:
        held = sorted(self._held.items())
        return [
            Measurement(
                "dragoman_loop_held_total",
                COUNTER,
                "How often a function of the hub has held the event loop.",
                [({"handler": name}, float(count)) for name, (count, _) in held],
            ),
            Measurement(
                "dragoman_loop_held_milliseconds_total",
                COUNTER,
                "For how long.",
                [({"handler": name}, seconds * 1000) for name, (_, seconds) in held],
            ),
        ]

    def _beat(self) -> None:
        assert self._loop is not None
        self._depth = len(_list_frames(sys._getframe())) - 1
        self._beat_at = time.monotonic()
        self._timer = self._loop.call_later(self._interval, self._beat)

    # --- the thread ------------------------------------------------------------------------------

    def _watch(self, thread: int, native: int) -> None:
        woken = time.monotonic()
        busy = _measure_thread(thread)
        while not self._stopped.wait(self._interval):
            now, before, woken = time.monotonic(), woken, time.monotonic()
            used, busy = busy, _measure_thread(thread)
            beat = self._beat_at
            if now - beat < self._interval + self._hold_secs:
                continue
            worked = busy - used
            if now - before > self._interval + self._hold_secs and worked < self._hold_secs / 2:
                continue  # this thread was late as well: the process did not run
            if worked < self._interval / 4 and not _is_asleep(native):
                continue  # the system has not run the loop's thread
            stack = self._name_stack(thread)
            if self._beat_at == beat and stack:
                self._follow(beat, stack)
                woken, busy = time.monotonic(), _measure_thread(thread)

    def _name_stack(self, thread: int) -> list[str]:
        """Names the functions of the callback that runs, the innermost last; none if none runs."""
        frames = _list_frames(sys._current_frames().get(thread))[self._depth :]
        self._stopped.wait(GLANCE_SECONDS)
        later = _list_frames(sys._current_frames().get(thread))[self._depth :]
        if not frames or not later:
            return []
        if frames[0] is not later[0]:
            return [SEVERAL]
        names = [_name_function(frame) for frame in later]
        return [name for name in names if name.startswith(PACKAGE)] or names[-1:]

    def _follow(self, beat: float, stack: list[str]) -> None:
        """Waits until the loop is free again, and counts."""
        while self._beat_at == beat and not self._stopped.wait(self._interval):
            pass
        held = max(0.0, self._beat_at - beat - self._interval)
        stack = [name.removeprefix(PACKAGE) for name in stack[-MAX_STACK:]]
        name = stack[-1]
        if name not in self._held and len(self._held) >= MAX_HANDLERS:
            name = OTHERS
        count, seconds = self._held.get(name, (0, 0.0))
        self._held = {**self._held, name: (count + 1, seconds + held)}
        self._unlogged += 1
        now = time.monotonic()
        if now - self._logged_at < self._log_secs:
            return
        more = f"; {self._unlogged - 1} more since the last report" if self._unlogged > 1 else ""
        self._logged_at, self._unlogged = now, 0
        log.warning(
            "the event loop was held for %d ms, and all callers waited, in %s%s",
            held * 1000,
            " > ".join(stack),
            more,
        )


def _measure_thread(thread: int) -> float:
    """CPU seconds of a thread of this process."""
    if sys.platform != "linux":
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _is_asleep(native: int) -> bool:
    """Whether a thread waits in the system: for a disk, a lock or a socket."""
    try:
        with open(f"/proc/{os.getpid()}/task/{native}/stat", "rb") as file:
            return file.read(512).rpartition(b")")[2].split()[0] in b"SD"
    except (OSError, IndexError):
        return True


def _list_frames(frame: FrameType | None) -> list[FrameType]:
    """Lists a frame and those that it was called from, the innermost last."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _name_function(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}"
