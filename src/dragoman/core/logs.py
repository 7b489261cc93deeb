"""The hub's log: one line per record, as text or JSON, to stderr or to a rotated file."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any

from dragoman.core.safe_text import escape_line

log = logging.getLogger(__name__)

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)
TEXT, JSON = "text", "json"
EXTRA_FIELDS = ("trace",)
"""Fields that a record may have, by `extra=`."""


def render_time(seconds: float) -> str:
    """UTC with milliseconds: `2026-01-31T12:00:00.123Z`."""
    whole = int(seconds)
    return f"{render_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=8)
def render_second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


def render_json(
    seconds: float, level: str, logger: str, message: str, more: Mapping[str, Any]
) -> str:
    """Renders one line, the fields that every record has first."""
    record = {"time": render_time(seconds), "level": level, "logger": logger, "message": message}
    return json.dumps({**record, **more}).replace("\x7f", "\\u007f") + "\n"


class LineFormatter(logging.Formatter):
    """Escapes line breaks: names and errors come from outside and must not start another record.
    The lines of a traceback follow their record, indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return render_time(record.created)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escape_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: ExceptionInfo) -> str:
        return _indent(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indent(super().formatStack(stack_info))


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = vars(record)
        more = {name: found[name] for name in EXTRA_FIELDS if name in found}
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            more["stack"] = record.stack_info
        level = record.levelname.lower()
        line = render_json(record.created, level, record.name, record.getMessage(), more)
        return line.removesuffix("\n")


class LogFile:
    """A rotated log file to which stdout and stderr of this process are redirected: it has what a
    crash of the interpreter writes, too."""

    def __init__(self, path: str, max_bytes: int, keep: int) -> None:
        """`keep` older files are kept: `path.1` is the newest of them."""
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._redirect(_open(path, os.O_CREAT))

    def make_room(self, count: int) -> None:
        """Rotates the file if `count` more bytes do not fit; grows if no new one can be made."""
        if 0 < os.fstat(2).st_size > self._max_bytes - count:
            with contextlib.suppress(OSError):
                self._rotate()

    def _rotate(self) -> None:
        new = f"{self._path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        fd = _open(new, os.O_CREAT | os.O_EXCL)  # first: if this fails, nothing has changed
        try:
            for number in range(self._keep - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{self._path}.{number}", f"{self._path}.{number + 1}")
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._path, f"{self._path}.1")
            os.rename(new, self._path)
        except OSError:
            os.close(fd)
            raise
        self._redirect(fd)

    def _redirect(self, fd: int) -> None:
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def _open(path: str, flags: int) -> int:
    flags |= os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    os.fchmod(fd, 0o600)
    return fd


class LogOutput:
    """Where lines are written. There is one, as there is one stderr."""

    def __init__(self) -> None:
        self.format = TEXT
        self.file: LogFile | None = None
        self._lock = threading.Lock()

    def write(self, lines: str) -> None:
        """Never raises: a log that cannot be written must not stop what is logged."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self.file is not None:
                self.file.make_room(len(lines))
            sys.stderr.write(lines)
            sys.stderr.flush()


OUTPUT = LogOutput()


class OutputHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            OUTPUT.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def start_logging(level: int, format: str = TEXT, file: LogFile | None = None) -> None:
    """Writes records of `level` and above to stderr, or to `file`. The first call counts."""
    if logging.getLogger().handlers:
        return
    OUTPUT.format, OUTPUT.file = format, file
    handler = OutputHandler()
    handler.setFormatter(JsonFormatter() if format == JSON else LineFormatter())
    logging.basicConfig(level=level, handlers=[handler])


def _indent(text: str) -> str:
    return "\n".join(f"  {escape_line(line)}" for line in text.split("\n"))


class RepeatedFailure:
    """Thins out a repeated failure: it is logged at once, then at growing intervals with a count.
    Numbers in the text make no difference."""

    FIRST_SECONDS = 60.0
    GROWTH = 4.0
    LONGEST_SECONDS = 6 * 3600.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shape = ""
        self._count = 0
        self._since = 0.0
        self._noted_at = 0.0
        self._logged_at = 0.0
        self._pause = 0.0

    def note(self, text: str) -> str | None:
        """Returns what to log now; None if it was logged recently."""
        now = self._noted_at = self._clock()
        shape = re.sub(r"\d+", "0", text)
        if shape != self._shape or not self._count:
            self._shape, self._count = shape, 1
            self._since, self._logged_at, self._pause = time.time(), now, self.FIRST_SECONDS
            return text
        self._count += 1
        if now - self._logged_at < self._pause:
            return None
        self._logged_at = now
        self._pause = min(self._pause * self.GROWTH, self.LONGEST_SECONDS)
        return f"{text} (unchanged, {self._count} times since {render_time(self._since)})"

    def clear(self, quiet: float = 0.0) -> None:
        """After a success: the next failure is a new one, unless the last one was less than `quiet`
        seconds ago."""
        if self._clock() - self._noted_at >= quiet:
            self._count = 0


class Outage:
    """Logs what many parts report while something is away: one line when it begins, one when it has
    ended. The others are of level DEBUG. Threads may share it."""

    QUIET_SECONDS = 5.0
    """It has ended when nothing was reported for so long: the parts try again more often."""
    LONG_QUIET_SECONDS = 60.0
    """The same, if it began again as soon as that: a store that comes and goes is one outage."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._begun = self._last = 0.0
        self._ended = -self.LONG_QUIET_SECONDS
        self._quiet = self.QUIET_SECONDS

    def note(self, text: str) -> None:
        """Notes a failure, which is described as a sentence."""
        self.check_end()
        with self._lock:
            self._last = self._clock()
            self._count += 1
            is_first = self._count == 1
            if is_first:
                self._begun = self._last
                is_again = self._begun - self._ended < self.LONG_QUIET_SECONDS
                self._quiet = self.LONG_QUIET_SECONDS if is_again else self.QUIET_SECONDS
        log.log(logging.ERROR if is_first else logging.DEBUG, "%s", text)

    def check_end(self) -> None:
        """To be called regularly: notes that the outage has ended."""
        if not self._count:
            return
        with self._lock:
            if not self._count or self._clock() - self._last < self._quiet:
                return
            self._ended = self._last
            count, self._count = self._count, 0
            seconds = self._last - self._begun
        log.warning("%s again; %d failures in %.1f s", self._what, count, seconds)

    def clear(self) -> None:
        """Forgets an outage without a line."""
        self._count = 0


STORAGE_OUTAGE = Outage("the stores are available")
"""Of all stores of the process. There is one, as there is one log."""
