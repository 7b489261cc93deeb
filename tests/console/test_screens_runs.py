"""Workflows and their runs in the console, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.console.browser import BrowserTab
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers.process import server_entry

OpenTab = Callable[..., BrowserTab]
WORKFLOWS = {
    "asks": """
description: Adds, asks and loops. <img src=x onerror=alert(1)>
inputs:
  a: {type: integer, default: 2}
steps:
  - id: add
    nodeId: tool.call
    config: {tool: matrix.add, arguments: {a: "{{ $trigger.a }}", b: 3}}
  - id: ask
    nodeId: tool.call
    dependsOn: [add]
    config: {tool: matrix.ask_form, arguments: {key: k}}
  - id: each
    nodeId: foreach
    dependsOn: [add]
    config:
      items: [1, 2]
      steps: [{id: inner, nodeId: transform, config: {value: "{{ $item }}"}}]
  - {id: last, nodeId: transform, dependsOn: [ask, each], config: {value: done}}
""",
    "breaks": """
steps:
  - {id: first, nodeId: transform, config: {value: 1}}
  - {id: fails, nodeId: tool.call, dependsOn: [first], config: {tool: matrix.fail, arguments: {}}}
""",
    "wrong": "steps:\n  - {id: a, nodeId: nothing}\n",
    "waits": "steps:\n  - {id: wait, nodeId: wait, config: {seconds: 600}}\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with run_module_hub([server_entry("matrix", "matrix_server")]) as running:
        folder = running.home / "workflows"
        folder.mkdir(mode=0o700)
        for name, text in WORKFLOWS.items():
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
            (folder / f"{name}.yaml").chmod(0o600)
        running.wait_connected("matrix", timeout=60)
        until(lambda: running.api("/api/workflows")["total"] == len(WORKFLOWS), 60)
        yield running


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def start(tab: BrowserTab, name: str) -> None:
    tab.open(f"/workflows/{name}")
    press(tab.page, "Run")
    tab.page.wait_for_url("**/console/runs/*")
    tab.page.wait_for_selector(".graph")


@pytest.mark.promise("U7")
def test_a_run_is_started_followed_and_answered(hub: RunningHub, open_tab: OpenTab) -> None:
    tab = open_tab(hub).sign_in("/workflows")
    tab.wait_text("wrong.yaml:2")
    page = tab.page
    watching = open_tab(hub).sign_in("/runs")
    page.click("text=asks")
    page.get_by_label("a optional").fill("4")
    assert "<img src=x" in tab.main  # as text
    press(page, "Run")
    page.locator(".question-form").get_by_label("Name").fill("Ann")
    watching.wait_text("waiting", "tbody")  # live
    page.locator("g.node[aria-label^='add, tool.call, completed']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_selector(".card .tree >> text=7")
    assert "step=add" in page.url
    assert page.input_value(".question-form textarea") == "Ann"  # kept while the run went on
    assert not tab.find_axe_problems()
    press(page, "Answer")
    page.wait_for_selector("g.node[aria-label^='last, transform, completed']")
    watching.wait_text("completed", "tbody")
    expect(page.locator("tr:has-text('each[1].inner')")).to_contain_text("completed")
    page.get_by_role("link", name="Workflow", exact=True).click()
    tab.wait_text("completed", ".past")
    assert not tab.find_axe_problems()


@pytest.mark.promise("U7")
def test_runs_fail_are_retried_cancelled_and_filtered(hub: RunningHub, open_tab: OpenTab) -> None:
    tab = open_tab(hub).sign_in("/workflows/breaks")
    page = tab.page
    press(page, "Run")
    page.wait_for_selector("g.node[aria-label^='fails, tool.call, failed']")
    page.wait_for_selector(".problem >> text=fails")
    press(page, "Retry")
    tab.wait_text("continues at its failed steps", "#toasts")
    expect(page.locator("tr:has-text('fails')")).to_contain_text("failed")

    start(tab, "waits")
    press(page, "Cancel")
    press(page, "Cancel the run")
    page.wait_for_selector(".facts .badge >> text=cancelled")

    tab.open("/runs?state=cancelled")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("All states").select_option("failed")
    expect(page.locator("tbody tr")).to_have_count(1)
    tab.wait_text("breaks", "tbody")
    assert "state=failed" in page.url

    tab.open("/workflows/wrong")
    tab.wait_text("wrong.yaml:2")
    tab.wait_text("dragoman workflows check wrong")

    key = json.loads(hub.command("keys", "create", "reader", "--json").stdout)["key"]
    hub.headers = {"Authorization": f"Bearer {key}"}
    until(lambda: hub.get("/api/session", hub.headers).status == 200, 60)
    reader = open_tab(hub).sign_in_with_key(key, "/runs")
    reader.wait_text("No runs yet.")  # of its own
    reader.open("/workflows/asks")
    assert reader.page.get_by_role("button", name="Delete").count() == 0
