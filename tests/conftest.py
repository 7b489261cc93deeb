"""Fixtures for all tests: a short temporary directory for a home, and HTTP peers."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.peers.process import HttpPeer

# No test leaves an entry in the keyring of the developer's desktop.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell's background job has it. Children would inherit that, and take no Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly that a part was not tested, where no browser is installed."""
    from tests.console.browser import MISSING, find_browser

    if find_browser() is None:
        terminalreporter.section("THE CONSOLE WAS NOT TESTED", yellow=True)
        terminalreporter.line(MISSING, yellow=True)


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A private folder with a short path: the sockets in a home have room for about 100 bytes."""
    made = Path(tempfile.mkdtemp(prefix="dg", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def http_peer() -> Iterator[Callable[..., HttpPeer]]:
    """Starts a counterpart that listens: `http_peer("sdk_server", "--transport", "http")`."""
    started: list[HttpPeer] = []

    def start(program: str, *args: object) -> HttpPeer:
        started.append(HttpPeer(program, *args))
        return started[-1]

    yield start
    for peer in started:
        peer.close()
