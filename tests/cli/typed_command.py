"""A command in a pseudo-terminal: types, and waits for what is shown."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from types import TracebackType
from typing import Self

from tests.cli.terminal import DRAGOMAN, WAIT_SECONDS, Terminal

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TypedCommand:
    """stdin, stdout and stderr are the terminal."""

    def __init__(self, terminal: Terminal, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        self.child = subprocess.Popen(
            [*DRAGOMAN, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**terminal.environment(), "TERM": "xterm", "INPUTRC": "/dev/null"},
            cwd=terminal.user,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self._data = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(WAIT_SECONDS)
        os.close(self._ours)

    @property
    def shown(self) -> str:
        """Everything so far, without control sequences."""
        text = _CONTROLS.sub("", self._data.decode("utf-8", "replace"))
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def _find_after(self, text: str) -> str:
        if not text:
            return self.shown
        return self.shown.rpartition(text)[2] if text in self.shown else ""

    def wait_for(self, text: str, after: str = "") -> str:
        """Waits until `text` is shown, after the last `after`; returns everything so far."""
        until = time.monotonic() + WAIT_SECONDS
        while text not in self._find_after(after):
            assert time.monotonic() < until, self.shown
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    data = os.read(self._ours, 65_536)
                except OSError:  # the command has ended
                    data = b""
                assert data, self.shown
                self._data += data
        return self.shown

    def wait_for_end(self) -> int:
        until = time.monotonic() + WAIT_SECONDS
        while self.child.poll() is None:
            assert time.monotonic() < until, self.shown
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self._data += os.read(self._ours, 65_536)
                except OSError:
                    break
        return self.child.wait(WAIT_SECONDS)


def _take_terminal() -> None:
    """Makes the terminal the controlling one, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
