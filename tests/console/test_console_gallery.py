"""Every screen of the console with something on it: pictures in both themes on a desk and a phone,
accessibility, no jumping, two roles, and the questions that a person answers from it alone."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.console.browser import READY_MS, BrowserTab, create_link
from tests.console.gallery import AFTER, Gallery, run_gallery
from tests.live.conftest import RunningHub

OpenTab = Callable[..., BrowserTab]
ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "console"
IMAGES = ROOT / "docs" / "images"
DOCUMENTED = {
    "console-home.png": ("home", 1280, "light"),
    "console-trace.png": ("trace", 1280, "light"),
    "console-playground.png": ("playground", 1280, "light"),
    "console-pin.png": ("pin", 1280, "light"),
    "console-approvals-phone.png": ("approvals", 390, "dark"),
}
"""Pictures of the documentation: the screen, the width and the theme."""
ALL = os.environ.get("DRAGOMAN_SCREENSHOTS") == "all"
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
MAX_SHIFT = 0.1
"""Above it, a page counts as one that jumps (web.dev, cumulative layout shift)."""
CHECKED_BY_AXE = ("approvals", "policy-file", "tools")
"""Screens whose contrast axe-core checks too: what `find_faint_text` must agree with."""
OBSERVE = """
window.shift = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) window.shift += one.value;
}).observe({ type: "layout-shift", buffered: true });
"""
EVENTS = """
window.EventSource = class extends EventSource {
  constructor(url) {
    super(url);
    const names = new URL(url, location.href).searchParams.get("phase").split(",");
    const fire = () => {
      for (const name of [...names, "dropped"]) {
        this.dispatchEvent(new MessageEvent(name, { data: "{}" }));
      }
    };
    for (let ms = 0; ms < 3000; ms += 40) setTimeout(fire, ms);
  }
};
"""
"""Every event of the hub, again and again, although nothing has changed."""


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    with run_gallery(tmp_path_factory.mktemp("servers")) as running:
        yield running


def settle(tab: BrowserTab) -> None:
    """Waits until no list of the screen is being read."""
    expect(tab.page.locator("[aria-busy=true], .waiting")).to_have_count(0, timeout=READY_MS)


def take_picture(tab: BrowserTab, name: str, size: dict[str, int], theme: str) -> None:
    file = PICTURES / f"{name}-{size['width']}-{theme}.png"
    tab.screenshot(file, theme, full_page=ALL)  # four times as fast as the whole page
    data = file.read_bytes()
    for image, wanted in DOCUMENTED.items():
        if ALL and wanted == (name, size["width"], theme):
            IMAGES.mkdir(exist_ok=True)
            tab.page.screenshot(path=str(IMAGES / image), animations="disabled")
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG") and len(data) > 5_000, file
    assert width == size["width"] and height >= size["height"], (file, width, height)


def is_wide(page: Page) -> bool:
    return bool(page.evaluate("document.scrollingElement.scrollWidth > innerWidth"))


def find_barriers(tab: BrowserTab, name: str) -> list[str]:
    """Lists what keeps people from using the screen."""
    faint = [f"too little contrast: {one}" for one in tab.find_faint_text()]
    return faint + tab.find_axe_problems(contrast=ALL or name in CHECKED_BY_AXE)


def _call_tool(page: Page) -> None:
    page.get_by_label("title").fill("Login fails after an hour")
    page.get_by_label("body").fill("Since the release of yesterday.")
    page.get_by_role("button", name="Call", exact=True).click()
    page.wait_for_selector(".out .badge.good")


def _wait_for_doctor(page: Page) -> None:
    expect(page.get_by_text("The doctor is looking")).to_have_count(0, timeout=READY_MS)


ACTIONS = {("playground", 1280): _call_tool, ("playground", 390): _call_tool}
ACTIONS |= {("home", 1280): _wait_for_doctor}
"""What is done on a screen before it is looked at."""


@pytest.mark.timeout(300)
@pytest.mark.promise("U7")
def test_every_screen_is_accessible_steady_and_fits(gallery: Gallery, open_tab: OpenTab) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    desk = open_tab(gallery.hub, viewport=DESK, color_scheme="light").sign_in()
    phone = open_tab(gallery.hub, viewport=PHONE, color_scheme="dark").sign_in()
    problems = []
    for tab in (desk, phone):
        tab.context.add_init_script(OBSERVE)
        tab.bring_axe()
        tab.expected.append("status of 404")
    for name, path in gallery.list_paths().items():
        for tab, size, theme in ((desk, DESK, "light"), (phone, PHONE, "dark")):
            tab.open(path)
            settle(tab)
            shift = tab.page.evaluate("window.shift")
            if (act := ACTIONS.get((name, size["width"]))) is not None:
                act(tab.page)
            label = f"{name} on {size['width']} px"
            if shift >= MAX_SHIFT:
                problems.append(f"{label} jumps: {shift:.2f}")
            if is_wide(tab.page):
                problems.append(f"{label} is wider than the screen")
            problems += [f"{label}: {one}" for one in find_barriers(tab, name)]
            take_picture(tab, name, size, theme)
            if ALL:
                other = "dark" if theme == "light" else "light"
                take_picture(tab, name, size, other)
                problems += [f"{label}, {other}: {one}" for one in find_barriers(tab, name)]
                tab.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    assert not problems, "\n".join(problems)


@pytest.mark.promise("U7")
def test_events_do_not_move_a_screen_that_is_being_read(
    gallery: Gallery, open_tab: OpenTab
) -> None:
    """An event while the first rows are read shows the screen neither later nor without them."""
    tab = open_tab(gallery.hub, viewport=PHONE).sign_in()
    tab.context.add_init_script(OBSERVE + EVENTS)
    network = tab.context.new_cdp_session(tab.page)
    slow = {"latency": 60, "downloadThroughput": -1, "uploadThroughput": -1, "offline": False}
    network.send("Network.enable")
    network.send("Network.emulateNetworkConditions", slow)
    for path in ("/views", "/servers", "/limits", "/tools"):
        tab.open(path)
        assert tab.page.locator("tbody tr").count(), path
        shift = tab.page.evaluate("window.shift")
        assert shift < MAX_SHIFT, (path, shift)


@pytest.mark.promise("U7")
def test_a_faint_text_is_found(gallery: Gallery, open_tab: OpenTab) -> None:
    tab = open_tab(gallery.hub).sign_in("/views")
    assert not tab.find_faint_text()
    for style in ("#main p { color: #999 }", "#main a { background: #888 }"):
        tab.page.evaluate(
            "style => { const sheet = new CSSStyleSheet(); sheet.replaceSync(style);"
            " document.adoptedStyleSheets = [sheet]; }",
            style,
        )
        assert tab.find_faint_text()
        assert "color-contrast" in str(tab.find_axe_problems())


@pytest.mark.promise("U7")
def test_the_pictures_of_the_documentation_are_there() -> None:
    """They are made by `make screenshots`. README and docs/console.md show each, and no other."""
    shown = set()
    for page in (ROOT / "README.md", ROOT / "docs" / "console.md"):
        text = page.read_text(encoding="utf-8")
        shown |= set(re.findall(r"images/(console-[a-z-]+\.png)", text))
    there = {file.name: file.stat().st_size for file in IMAGES.glob("console-*.png")}
    assert shown == set(there) == set(DOCUMENTED)
    assert sum(there.values()) < 600_000


@pytest.mark.promise("U7")
def test_a_newcomer_answers_four_questions(gallery: Gallery, open_tab: OpenTab) -> None:
    """Follows "Four questions" in docs/console.md: from the first page, by what it shows."""
    page = open_tab(gallery.hub).sign_in().page

    # Which call was refused, and why?
    page.get_by_role("link", name="ops.delete_project").click()
    said = page.locator("#main .problem")
    expect(said).to_contain_text('a policy forbids "key:ci" to call it')
    said.get_by_role("link", name="Ask the policies why").click()
    expect(page.locator("#main")).to_contain_text("projects are deleted by hand")

    # What does the changed tool say now?
    page.get_by_role("link", name="Pins").click()
    page.get_by_role("link", name="ops.deploy").click()
    changed = page.locator(".diff-row:has-text('description') > div")
    expect(changed.last).to_contain_text(AFTER)

    # What did an agent cost today?
    page.get_by_role("link", name="Agents", exact=True).click()
    expect(page.locator("tr:has-text('analyst')")).to_contain_text("$0.11 of $2.00")

    # Which client holds forty streams?
    with ExitStack() as stack:
        gallery.open_streams(stack, "cursor", "cursor-vscode", 40)
        page.get_by_role("link", name="Limits").click()
        expect(page.locator("#main")).to_contain_text("cursor-vscode")
        expect(page.locator("#main")).to_contain_text("holds the most streams: 40")


@pytest.mark.promise("U7")
def test_a_key_that_only_reads_sees_every_screen_whole(gallery: Gallery, open_tab: OpenTab) -> None:
    """No screen breaks, and what needs more rights is absent, disabled or explained."""
    tab = open_tab(gallery.hub).sign_in_with_key(gallery.keys["reader"])
    tab.expected.append("status of 40[34]")
    problems = []
    for name, path in gallery.list_paths().items():
        tab.go(path)
        settle(tab)
        alert = tab.page.locator("#main [role=alert]")
        if any(alert.all_inner_texts()):
            problems.append(f"{name}: {alert.first.inner_text()}")
        if len(tab.main) < 40:
            problems.append(f"{name} is empty: {tab.main}")
        changes = tab.page.get_by_role(
            "button", name=re.compile("^(Approve|Deny|Reject|Save|Restart|Reconnect|Remove|Delete)")
        )
        problems += [
            f"{name} offers {one.inner_text()}" for one in changes.all() if one.is_enabled()
        ]
    assert not problems, "\n".join(problems)


@pytest.mark.promise("U7")
def test_the_playground_calls_as_an_agent_of_the_hub(gallery: Gallery, open_tab: OpenTab) -> None:
    tab = open_tab(gallery.hub).sign_in("/playground?tool=github.list_issues&as=analyst")
    page = tab.page
    page.get_by_label("repository").fill("team/site")
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.locator(".out .badge.good")).to_be_visible()
    expect(page.locator(".out")).to_contain_text("as agent analyst")
    page.get_by_role("button", name="Copy as …").click()
    expect(page.locator("dialog")).to_contain_text("/api/agents/analyst/call")
    page.keyboard.press("Escape")
    page.locator(".out").get_by_role("link", name="Trace").click()
    expect(page.locator("#main")).to_contain_text("agent:analyst for owner:owner")

    tab.expected.append("status of 404")
    tab.open("/playground?tool=github.search_code")
    page.get_by_label("Call as").select_option("analyst")
    page.get_by_label("query").fill("x")
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.locator(".out .problem")).to_contain_text("There is no tool")

    reader = open_tab(gallery.hub).sign_in_with_key(gallery.keys["reader"])
    reader.open("/playground?tool=github.list_issues")
    expect(reader.page.get_by_label("Call as")).to_be_hidden()


@pytest.mark.promise("U7")
def test_all_agents_can_be_read_without_javascript(gallery: Gallery, open_tab: OpenTab) -> None:
    tab = open_tab(gallery.hub, java_script_enabled=False)
    tab.expected.append("404")
    tab.page.goto(create_link(gallery.hub))
    tab.page.click("button")
    for path, texts in {
        "/agents": ("analyst", "openai/gpt-4o", "Release notes", "healthy"),
        "/agents?q=analyst": ("analyst", "1 in all"),
        "/agents/analyst": ("mcp_github_list_issues", "openai/gpt-4o"),
        "/agents/Release%20notes": ("SDK agent",),
        "/agents/nobody": ("nobody",),
    }.items():
        tab.page.goto(f"{gallery.hub.url}/console{path}")
        assert not [text for text in texts if text not in tab.main], tab.main


@pytest.mark.promise("U7")
def test_the_main_flow_needs_only_the_keyboard(gallery: Gallery, open_tab: OpenTab) -> None:
    page = open_tab(gallery.hub).sign_in().page
    press = page.keyboard.press
    press("?")
    expect(page.locator("dialog[open]")).to_contain_text("search on this screen")
    press("Escape")
    press("g")
    press("t")
    page.wait_for_selector("html[data-ready='/console/tools']")
    press("/")
    page.keyboard.type("list_issues")
    expect(page.locator("tbody tr")).to_have_count(1)
    press("Tab")
    page.locator("tbody a").first.focus()
    press("Enter")
    expect(page.locator("h1")).to_have_text("mcp_github_list_issues")
    press("g")
    press("x")
    page.wait_for_selector("tbody a")
    press("ArrowDown")
    press("ArrowDown")
    press("ArrowUp")
    expect(page.locator("tbody tr").first.locator("a").first).to_be_focused()
    press("Enter")
    page.locator(".hop-name").first.focus()
    press("Enter")
    expect(page.locator(".hop-more").first).to_be_visible()
    here = page.url
    page.reload()  # the address is enough
    expect(page.locator(".hop-more").first).to_be_visible()
    assert page.url == here


@pytest.mark.promise("U7")
def test_addresses_lead_back_to_the_same_state(gallery: Gallery, open_tab: OpenTab) -> None:
    tab = open_tab(gallery.hub).sign_in("/audit?outcome=refused&verb=ops.delete_project")
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    tab.page.reload()
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    tab.open("/tools?q=pay_invoice")
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    tab.page.reload()
    expect(tab.page.locator("input[type=search]")).to_have_value("pay_invoice")
    tab.page.locator("tbody a").first.click()
    expect(tab.page.locator("h1")).to_contain_text("invoice")
    tab.page.go_back()
    expect(tab.page.locator("tbody tr")).to_have_count(1)


@pytest.mark.promise("U7")
def test_a_restarted_hub_is_noticed(gallery: Gallery, open_tab: OpenTab) -> None:
    """The last test of this file: it ends the hub."""
    tab = open_tab(gallery.hub).sign_in("/servers")
    tab.expected.append("ERR_|status of 401")
    expect(tab.page.locator("#live")).to_have_text("live")
    assert gallery.hub.stop() == 0
    expect(tab.page.locator("#live")).to_have_text(
        re.compile("reconnecting|offline"), timeout=READY_MS
    )
    port = gallery.hub.url.rpartition(":")[2]
    file = gallery.hub.home / "config.toml"
    text = file.read_text(encoding="utf-8").replace("port = 0", f"port = {port}")
    file.write_text(text, encoding="utf-8")
    again = RunningHub(gallery.hub.home, [], {})
    try:
        expect(tab.page.locator("#signed-out")).to_contain_text(
            "dragoman console", timeout=READY_MS
        )
        expect(tab.page.locator("#live")).to_have_text("signed out")
    finally:
        problems = again.finish()
    assert not problems, problems
