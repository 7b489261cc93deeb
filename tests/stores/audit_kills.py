"""Kills writers of the audit log, each at another moment: in `HOME/NUMBER` is what the first, the
second and so on left. Prints a line with the numbers of the intents that each of them had stored.

`calls` kills before each system call of Python that changes a file; `pages` at each place where the
kernel may end a write.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dragoman.stores.audit.log import SqliteAuditLog

CHANGES = {"open", "write", "pwrite", "fsync", "replace", "unlink", "posix_fallocate", "ftruncate"}
PAGE = 4096
MOST = 500
"""A bound for the number of writers."""


class Countdown:
    def __init__(self, moments: int) -> None:
        self._left = moments

    def is_over(self) -> bool:
        self._left -= 1
        return self._left == 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_before_changes(left: Countdown) -> None:
    def watch(frame: object, event: str, called: Any) -> None:
        changes = event == "c_call" and called.__module__ == "posix" and called.__name__ in CHANGES
        if changes and left.is_over():
            die()

    sys.setprofile(watch)


def kill_between_pages(left: Countdown) -> None:
    write_whole = os.pwrite

    def write(file: int, data: bytes, place: int) -> int:
        for cut in (0, *range(PAGE - place % PAGE, len(data), PAGE)):
            if left.is_over():
                write_whole(file, data[:cut], place)
                die()
        return write_whole(file, data, place)

    os.pwrite = write  # type: ignore[assignment]


KILLERS = {"calls": kill_before_changes, "pages": kill_between_pages}


async def write_audit(home: Path, calls: int, stored: int) -> None:
    """Two runs of a hub. What the first leaves in the journal, the second reads."""
    for _ in range(2):
        audit = SqliteAuditLog(home)
        running = []
        for number in range(calls):
            # The sixth has several pages, and the others end in each part of one.
            text = "x" * (9_000 if number == 5 else number * 397 % 700)
            running.append(audit.intend({"verb": text}))
            os.write(stored, b" %d" % running[-1])
            if number % 3 == 2:
                for intent in running:
                    audit.conclude(intent, {"outcome": "completed"})
                running.clear()
            if number == calls // 2:
                audit.flush()
        for intent in running:
            audit.conclude(intent, {"outcome": "completed"})
        await audit.prune(3600, 5)
        audit.close()


def main(home: Path, kind: str, calls: int) -> None:
    for moment in range(1, MOST):
        (home / str(moment)).mkdir()
        writer = os.fork()
        if not writer:
            KILLERS[kind](Countdown(moment))
            asyncio.run(write_audit(home / str(moment), calls, 1))
            os._exit(0)
        _, status = os.waitpid(writer, 0)
        os.write(1, b"\n")
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))
    sys.exit(f"there are more than {MOST} moments")


main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
