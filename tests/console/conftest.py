"""One browser for the tests of a module, and a tab for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from tests.console.browser import MISSING, READY_MS, BrowserTab, find_browser, run_browser
from tests.live.conftest import RunningHub

expect.set_options(timeout=READY_MS)  # tests run on busy machines, too


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find_browser() is None:
        if os.environ.get("DRAGOMAN_REQUIRE_BROWSER") == "1":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with run_browser() as running:
        yield running


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[Callable[..., BrowserTab]]:
    """Opens a tab: `open_tab(hub, viewport={…})`. At the end of the test nothing bad may have
    happened in any."""
    opened: list[BrowserTab] = []

    def open_one(hub: RunningHub, **options: Any) -> BrowserTab:
        opened.append(BrowserTab(browser, hub, **options))
        return opened[-1]

    yield open_one
    for tab in opened:
        tab.close()
    for tab in opened:
        tab.check()
