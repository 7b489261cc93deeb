"""A real browser for the tests of the console: Chromium, driven by Playwright.

`run_browser()` starts one, and `BrowserTab` is a signed-in tab of it. A tab collects everything
that a console must never show: errors of scripts, messages of the developer console, violations of
the content security policy, dialogs. `BrowserTab.check()` raises if there is any. Wait with
locators and `expect`: `wait_for_function` evaluates strings, which the pages' policy forbids.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from tests.live.conftest import RunningHub

from dragoman.cli.base.hub_client import request_json

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
READY_MS = 60_000
FIND_FAINT_TEXT = (Path(__file__).parent / "find_faint_text.js").read_text(encoding="utf-8")
RUN_AXE = """
async (rules) => (await axe.run({ resultTypes: ["violations"], rules })).violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 5).map((node) => node.html)}`)
"""
MISSING = (
    "no browser was found, so the console was not tested: run make browser, or set DRAGOMAN_BROWSER"
)


def find_browser() -> str | None:
    """Finds the program: what DRAGOMAN_BROWSER names, or one in the path."""
    if given := os.environ.get("DRAGOMAN_BROWSER"):
        return given
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def create_link(hub: RunningHub) -> str:
    """Creates a login link, as `dragoman console --link` does."""
    record = json.loads((hub.home / "daemon.json").read_bytes())
    link: str = request_json(record["socket"], "POST", "/api/console/link", {}, 10)["url"]
    return link


@contextmanager
def run_browser() -> Iterator[Browser]:
    """Ends it before it returns: while it runs, no other event loop can run in this thread."""
    program = find_browser()
    assert program is not None, MISSING
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=list(FLAGS), headless=True
        )
        try:
            yield browser
        finally:
            browser.close()


class BrowserTab:
    """One tab in a profile of its own."""

    def __init__(self, browser: Browser, hub: RunningHub, **options: Any) -> None:
        """`options` are those of a Playwright context: `viewport`, `color_scheme` and others."""
        self.hub = hub
        self.context: BrowserContext = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, **options}
        )
        self.page: Page = self.context.new_page()
        self.problems: list[str] = []
        self.expected: list[str] = []
        """Patterns of messages that a test provokes, such as the status of a refused request."""
        self.page.on("console", lambda one: self._note(one.type, one.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("dialog", self._dismiss)

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"{kind}: {text}")

    def _dismiss(self, dialog: Any) -> None:
        self.problems.append(f"a dialog appeared: {dialog.message}")
        dialog.dismiss()

    # --- going places

    def sign_in(self, path: str = "/") -> BrowserTab:
        """Signs in by a link, as the owner, and opens a screen."""
        self.page.goto(create_link(self.hub))
        self.page.wait_for_url(f"{self.hub.url}/console/")
        return self.open(path) if path != "/" else self.wait_ready("/")

    def sign_in_with_key(self, key: str, path: str = "/") -> BrowserTab:
        self.page.goto(f"{self.hub.url}/console/login")
        self.page.fill("#key", key)
        self.page.press("#key", "Enter")
        self.page.wait_for_url(f"{self.hub.url}/console/")
        return self.open(path)

    def open(self, path: str) -> BrowserTab:
        """Opens a screen by its address, and waits until it is ready: `open("/tools?q=x")`."""
        self.page.goto(f"{self.hub.url}/console{path}")
        return self.wait_ready(path)

    def go(self, path: str) -> BrowserTab:
        """Goes to another screen as a click on a link does, without loading the page again."""
        address = f"/console{path}"
        self.page.evaluate(
            "address => import(document.querySelector('meta[name=base]').content + '/app.js')"
            ".then(app => app.navigate(address))",
            address,
        )
        return self.wait_ready(path)

    def wait_ready(self, path: str) -> BrowserTab:
        """Waits until the module of a screen has drawn it."""
        wanted = f"/console{path.partition('?')[0]}"
        self.page.wait_for_selector(f'html[data-ready="{wanted}"]', timeout=READY_MS)
        return self

    # --- looking

    @property
    def main(self) -> str:
        """The visible text of the screen."""
        return self.page.inner_text("#main")

    def wait_text(self, text: str, selector: str = "#main", timeout: float = READY_MS) -> None:
        self.page.wait_for_selector(f"{selector} >> text={text}", timeout=timeout)

    def screenshot(self, path: Path, theme: str = "light", *, full_page: bool = True) -> None:
        self.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        self.page.screenshot(path=str(path), full_page=full_page, animations="disabled")

    def bring_axe(self) -> None:
        """Loads axe-core with every page: sending it to each one takes longer than a check."""
        self.context.add_init_script(AXE_SCRIPT)

    def find_axe_problems(self, *, contrast: bool = True) -> list[str]:
        """Lists the serious and critical findings of axe-core on this page. `contrast` takes four
        fifths of the time; without it, use `find_faint_text` too."""
        # The policy of the page forbids strings as scripts; Playwright evaluates outside of it.
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        found: list[str] = self.page.evaluate(RUN_AXE, {"color-contrast": {"enabled": contrast}})
        return found

    def find_faint_text(self) -> list[str]:
        """Lists text with too little contrast."""
        found: list[str] = self.page.evaluate(FIND_FAINT_TEXT)
        return found

    # --- ending

    def check(self) -> None:
        """Raises if anything happened that a console must never show."""
        left = [
            one
            for one in self.problems
            if not any(re.search(pattern, one) for pattern in self.expected)
        ]
        assert not left, left

    def close(self) -> None:
        self.context.close()
