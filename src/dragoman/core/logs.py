"""The hub's log: one line a record, whatever the record says."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from dragoman.core.text import escape_line

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class LineFormatter(logging.Formatter):
    """Names and errors come from outside: a line break in one must not begin another record. The
    lines of a traceback follow its record, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escape_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: ExceptionInfo) -> str:
        return _indent(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indent(super().formatStack(stack_info))


def start_logging(level: int) -> None:
    """Writes records of `level` and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(LOG_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def _indent(text: str) -> str:
    return "\n".join(f"  {escape_line(line)}" for line in text.split("\n"))
