"""The order of the tests; fixtures for all: a short home, HTTP peers, PostgreSQL."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.peers.process import HttpPeer

if TYPE_CHECKING:
    from dragoman.stores.database import StorePlace

# No test leaves an entry in the keyring of the developer's desktop.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell's background job has it. Children would inherit that, and take no Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The files that take longest, longest first: with `--dist loadfile --no-loadscope-reorder` no
# process is left with one of them when the others have ended.
LONGEST = (
    "tests/console/test_console_gallery.py",
    "tests/faults/test_faults.py",
    "tests/console/test_screens_a.py",
    "tests/console/test_screens_b.py",
    "tests/console/test_console_naughty.py",
    "tests/faults/test_load.py",
    "tests/test_package.py",
    "tests/live/test_task_journeys.py",
    "tests/cli/test_bridge_example.py",
    "tests/console/test_console_screens.py",
    "tests/live/test_guard_matrix.py",
    "tests/live/test_mcp_server_limits.py",
    "tests/faults/test_fuzzing.py",
    "tests/live/test_config_live.py",
    "tests/live/test_recovery.py",
    "tests/console/test_screens_runs.py",
    "tests/live/test_bridge_settings.py",
    "tests/live/test_a2a_attacks.py",
    "tests/live/test_upstreams.py",
    "tests/live/test_call_prompts.py",
    "tests/live/test_skills_live.py",
    "tests/live/test_approvals_live.py",
    "tests/live/test_restart_and_shutdown.py",
    "tests/live/test_shutdown.py",
    "tests/test_app.py",
)
gc.disable()  # until the tests are collected, most of whose objects live to the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(LONGEST)))


def pytest_collection_finish() -> None:
    """Lets no collection in a test visit the objects of all tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly that a part was not tested, where no browser is installed."""
    from tests.console.browser import MISSING, find_browser

    if find_browser() is None:
        terminalreporter.section("THE CONSOLE WAS NOT TESTED", yellow=True)
        terminalreporter.line(MISSING, yellow=True)


@pytest.fixture(autouse=True)
def no_outage() -> None:
    """Lets the outage of an earlier test hide no line of this one."""
    from dragoman.core.logs import STORAGE_OUTAGE

    STORAGE_OUTAGE.clear()


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


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a PostgreSQL server, which the tests of a process share."""
    from tests.peers.postgres_server import run_postgres

    with run_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """The address of an empty database."""
    from tests.peers.postgres_server import create_database

    return create_database(postgres_server)


@pytest.fixture(params=["sqlite", "postgres"])
def store_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorePlace]:
    """Where stores are opened: a home, and a PostgreSQL database."""
    if request.param == "sqlite":
        yield tmp_path
        return
    from dragoman.stores.database import connect_server

    server = connect_server(request.getfixturevalue("postgres_url"))
    yield server
    server.close()
