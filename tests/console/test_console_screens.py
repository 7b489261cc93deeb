"""The kernel of the console in a real browser: signing in, the two model screens, reading without
JavaScript, live updates, the keyboard."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.console.browser import READY_MS, BrowserTab, create_link
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub
from tests.peers.process import server_entry

PROGRAM = Path(__file__).parent.parent / "live" / "configurable_server.py"
OpenTab = Callable[..., BrowserTab]
NUMBER_OF_TOOLS = 10_000


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    place = tmp_path_factory.mktemp("servers")
    (place / "big.json").write_text(
        json.dumps(
            {
                "tools": [
                    {
                        "name": f"tool_{number:05d}",
                        "description": f"Does thing {number} <img src=x onerror=alert(1)>.",
                        "inputSchema": {
                            "type": "object",
                            "properties": {"text": {"type": "string"}},
                            "required": ["text"],
                        },
                    }
                    for number in range(NUMBER_OF_TOOLS)
                ]
            }
        ),
        encoding="utf-8",
    )
    servers = [
        server_entry("big", "stdio", sys.executable, PROGRAM, place / "big.json"),
        server_entry("broken", "stdio", sys.executable, "-c", "exit('no token given')"),
    ]
    with run_module_hub(servers) as running:
        running.wait_connected("big", timeout=60)
        yield running


@pytest.mark.promise("U7")
def test_a_link_opens_the_console_and_the_screens_answer(
    hub: RunningHub, open_tab: OpenTab
) -> None:
    tab = open_tab(hub).sign_in("/servers")
    tab.wait_text("connected")
    tab.wait_text("no token given")
    cookie = next(one for one in tab.context.cookies() if "console" in one["name"])
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["path"] == "/"

    tab.page.click("text=broken")
    tab.wait_ready("/servers/broken")
    tab.wait_text("dragoman doctor")
    tab.wait_text("no token given", "pre")
    tab.page.click("button:has-text('Reconnect')")
    tab.page.click("dialog button.main")
    tab.wait_text("is restarting", "#toasts")
    tab.page.go_back()
    tab.wait_ready("/servers")
    assert not tab.find_axe_problems()


@pytest.mark.promise("U7")
def test_ten_thousand_tools_are_searched_on_the_server(hub: RunningHub, open_tab: OpenTab) -> None:
    tab = open_tab(hub).sign_in()
    hub.api("/api/tools?q=warm")
    tab.open("/tools")
    tab.wait_text("mcp_big_tool_00000")
    assert tab.page.locator("tbody tr").count() == 100
    assert f"100 of {NUMBER_OF_TOOLS + 1:,}" in tab.main

    tab.page.keyboard.press("/")
    tab.page.keyboard.type("tool_09999")
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    assert "q=tool_09999" in tab.page.url
    assert "<img src=x" in tab.main  # as text
    tab.page.keyboard.press("Tab")
    tab.page.locator("tbody a").first.focus()
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("h1:has-text('tool_09999')")
    tab.wait_text("owner:owner")
    assert not tab.find_axe_problems()

    tab.page.keyboard.press("?")
    tab.page.wait_for_selector("dialog[open]")
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("s")
    tab.wait_ready("/servers")


@pytest.mark.promise("U7")
def test_pages_can_be_read_without_javascript(hub: RunningHub, open_tab: OpenTab) -> None:
    tab = open_tab(hub, java_script_enabled=False)
    tab.page.goto(create_link(hub))
    tab.page.click("button")
    tab.page.wait_for_url(f"{hub.url}/console/")
    for path, text in (
        ("/servers", "broken"),
        ("/tools?q=tool_00042", "Does thing 42"),
        ("/tools/big.tool_00042", "inputSchema"),
        ("/help", "Servers"),
        ("/audit", "console.login"),
        ("/health?read=1", "home"),
        ("/policies", "Policies"),
        ("/access", "Search for a principal"),
        ("/access?q=owner:owner", "big.tool_00000"),
        ("/traces", "Traces"),
        ("/nosuch", "There is no such page"),
    ):
        tab.page.goto(f"{hub.url}/console{path}")
        assert text in tab.main, (path, tab.main)
    tab.page.goto(f"{hub.url}/console/tools")
    tab.page.click("text=More")
    assert "mcp_big_tool_00100" in tab.main
    tab.page.click("text=Sign out")
    tab.page.goto(f"{hub.url}/console/servers?q=x")
    assert tab.page.url == f"{hub.url}/console/login?next=%2Fconsole%2Fservers%3Fq%3Dx"
    tab.expected.append("404")


@pytest.mark.promise("U7")
def test_it_follows_the_hub_and_says_when_it_cannot(hub: RunningHub, open_tab: OpenTab) -> None:
    tab = open_tab(hub).sign_in("/servers")
    tab.expected.append(r"ERR_|401")
    tab.page.wait_for_selector("#live >> text=live")
    hub.command("servers", "disable", "broken")
    tab.wait_text("off")
    hub.command("servers", "enable", "broken")
    tab.page.wait_for_selector("td >> text=failed")

    tab.context.set_offline(True)
    tab.page.wait_for_selector("#live >> text=/reconnecting|offline/", timeout=READY_MS)
    tab.context.set_offline(False)
    tab.page.wait_for_selector("#live >> text=live", timeout=READY_MS)

    assert hub.command("console", "logout").returncode == 0
    tab.page.wait_for_selector("#signed-out", timeout=READY_MS)
    assert "dragoman console" in tab.page.inner_text("#signed-out")


@pytest.mark.promise("U7")
def test_it_is_usable_on_a_phone_and_in_the_dark(hub: RunningHub, open_tab: OpenTab) -> None:
    tab = open_tab(hub, viewport={"width": 390, "height": 800}, color_scheme="dark")
    tab.sign_in("/servers")
    tab.wait_text("connected")
    wide = tab.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    assert not wide
    assert not tab.find_axe_problems()
    tab.page.click("text=Menu")
    tab.page.click("#nav >> text=Tools")
    tab.wait_ready("/tools")
    tab.page.click("text=Theme")
    assert tab.page.get_attribute("html", "data-theme") == "light"
    tab.page.reload()
    tab.wait_ready("/tools")
    assert tab.page.get_attribute("html", "data-theme") == "light"
    assert not tab.find_axe_problems()


@pytest.mark.promise("U7")
def test_a_restart_of_the_hub_ends_the_session_and_the_page_says_so(
    open_tab: OpenTab, short_tmp: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (short_tmp / "config.toml").write_text(f"[server]\nport = {port}\n", encoding="utf-8")
    first = RunningHub(short_tmp, [], {})
    tab = open_tab(first).sign_in("/servers")
    tab.expected.append(r"ERR_|401")
    tab.page.wait_for_selector("#live >> text=live")
    assert not first.finish()
    tab.page.wait_for_selector("#live >> text=/reconnecting|offline/", timeout=READY_MS)
    tab.page.click("#nav >> text=Tools")  # its module was not loaded yet
    tab.page.wait_for_selector("#main .problem")
    second = RunningHub(short_tmp, [], {})
    try:
        tab.page.wait_for_selector("#signed-out", timeout=READY_MS)
        tab.page.goto(create_link(second))
        tab.page.wait_for_selector("#live >> text=live")
    finally:
        assert not second.finish()
