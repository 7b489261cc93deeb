"""Playground, agents, views, limits and health of the console in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.console.browser import READY_MS, BrowserTab
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.process import server_entry
from tests.peers.scripted_model import ScriptedModel, running_model, say, use

PROGRAM = Path(__file__).parent.parent / "live" / "configurable_server.py"
OpenTab = Callable[..., BrowserTab]
ORDER = {
    "name": "order",
    "description": "Takes an order. <img src=x onerror=alert(1)>",
    "inputSchema": {
        "type": "object",
        "required": ["who", "shape"],
        "properties": {
            "who": {"$ref": "#/$defs/Person"},
            "shape": {"oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]},
            "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "uniqueItems": True},
            "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "tree": {"$ref": "#/$defs/Tree"},
            "count": {"type": "integer", "default": 1, "exclusiveMinimum": 0},
        },
        "$defs": {
            "Person": {
                "type": "object",
                "title": "Person",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "title": "Name", "minLength": 1},
                    "places": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
                },
            },
            "Place": {"allOf": [{"type": "object", "properties": {"city": {"type": "string"}}}]},
            "Circle": {
                "title": "Circle",
                "type": "object",
                "required": ["kind", "radius"],
                "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
            },
            "Square": {
                "title": "Square",
                "type": "object",
                "required": ["kind", "side"],
                "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
            },
            "Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}},
        },
    },
}
WIDE = {
    "name": "wide",
    "inputSchema": {
        "type": "object",
        "properties": {f"member_{n}": {"type": "string"} for n in range(400)},
    },
}
CONFIG = """
[prices."gpt-4o"]
input = 2.5
output = 10.0
[[views]]
name = "few"
description = "A few tools"
include = ["matrix.add"]
[mcp]
views_for = { "cursor*" = "few" }
"""
AGENT = """
description = "Answers with a model."
[model]
provider = "openai"
model = "gpt-4o"
base_url = "{url}"
[capabilities]
tools = ["matrix.add"]
[limits]
cost_per_day = 0.5
"""


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with running_model() as running:
        yield running


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModel) -> Iterator[RunningHub]:
    shapes = tmp_path_factory.mktemp("servers") / "shapes.json"
    shapes.write_text(json.dumps({"tools": [ORDER, WIDE]}), encoding="utf-8")
    servers = [
        server_entry("matrix", "matrix_server"),
        server_entry("shapes", "stdio", sys.executable, PROGRAM, shapes),
        server_entry("absent", "stdio", sys.executable, "-c", "exit('no token given')"),
    ]
    with run_module_hub(servers, CONFIG) as running:
        folder = running.home / "agents" / "helper"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "agent.toml").write_text(AGENT.format(url=model.url), encoding="utf-8")
        running.wait_connected("matrix", "shapes", timeout=60)
        until(lambda: running.api("/api/agents")["total"], 60)
        until(lambda: "no token given" in json.dumps(running.api("/api/mcp/servers")), 60)
        yield running


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def call(page: Page) -> Any:
    """Presses Call, and returns the arguments that were sent."""
    with page.expect_request("**/call") as sent:
        press(page, "Call")
    body = sent.value.post_data_json
    assert body is not None
    return body["arguments"]


@pytest.mark.promise("U7")
def test_the_playground_calls_any_tool(hub: RunningHub, open_tab: OpenTab, tmp_path: Path) -> None:
    tab = open_tab(hub).sign_in("/playground")
    page = tab.page
    page.get_by_role("combobox", name="Search tools, skills and agents").fill("order")
    page.locator(".found li").first.wait_for()
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('mcp_shapes_order')")
    assert "<img src=x" in tab.main  # as text

    press(page, "Call")
    tab.wait_text("fields need another value")
    page.get_by_label("Name", exact=True).fill("Ann")
    press(page, "Add to places")
    page.get_by_label("city optional").fill("Lima")
    page.get_by_label("shape", exact=True).select_option("Square")
    page.get_by_label("side").fill("2")
    page.get_by_label("green").check()
    page.get_by_role("button", name="Add limits").click()
    page.locator("fieldset:has-text('limits') >> button:has-text('Add')").click()
    page.get_by_label("Name", exact=True).last.fill("most")
    page.locator(".pair input").last.fill("3")
    wanted = {
        "who": {"name": "Ann", "places": [{"city": "Lima"}]},
        "shape": {"kind": "square", "side": 2},
        "colours": ["green"],
        "limits": {"most": 3},
        "count": 1,
    }
    assert call(page) == wanted
    page.wait_for_selector(".out .badge.good")
    expect(page.locator(".out").get_by_role("link", name="Trace")).to_have_count(1)
    press(page, "JSON")
    assert json.loads(page.input_value("textarea.code")) == wanted
    page.fill("textarea.code", json.dumps({**wanted, "extra": True, "note": "x"}))
    press(page, "Form")
    assert call(page) == {**wanted, "extra": True, "note": "x"}
    assert not tab.find_axe_problems()

    tab.open("/playground?tool=mcp_shapes_wide")
    page.get_by_text("400 optional fields").click()
    page.get_by_label("member_399").fill("x")
    assert call(page) == {"member_399": "x"}

    tab.open("/playground?tool=matrix.ask_form")
    page.get_by_label("key").fill("k")
    press(page, "Call")
    page.locator(".question-form").get_by_label("Name").fill("Ann")
    press(page, "Answer")
    page.wait_for_selector(".out .badge.good")
    assert "Ann" in page.inner_text(".out")

    tab.open("/playground?tool=matrix.progress")
    press(page, "JSON")
    page.fill("textarea.code", '{"steps": 50, "pause": 0.2}')
    press(page, "Call")
    page.wait_for_selector(".out progress[value]:not([hidden])")
    press(page, "Cancel")
    tab.wait_text("You cancelled the call")

    tab.open("/playground?tool=matrix.image")
    press(page, "Call")
    page.wait_for_selector(".out img[src^='data:image/png']")

    tab.open("/playground?tool=matrix.add")
    page.get_by_label("a", exact=True).fill("2")
    page.get_by_label("b", exact=True).fill("3")
    press(page, "Call")
    page.wait_for_selector(".tree >> text=sum")
    expect(page.locator(".past li")).to_have_count(1)  # of this page; the others were reloads
    press(page, "Copy as …")
    press(page, "Test (pytest)")
    written = tmp_path / "test_copied.py"
    written.write_text(page.inner_text("dialog pre"), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            written,
        ],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
    assert "'sum': 5" in written.read_text() or '"sum": 5' in written.read_text()


@pytest.mark.promise("U7")
def test_agents_have_a_cost_at_a_glance_and_a_chat(
    hub: RunningHub, open_tab: OpenTab, model: ScriptedModel
) -> None:
    usage = {"prompt_tokens": 40_000, "completion_tokens": 2_000, "total_tokens": 42_000}
    model.answers = [
        use(("mcp_matrix_add", {"a": 2, "b": 3}), usage=usage),
        say("The sum is 5. <b>bold</b>", usage=usage),
        say("It was 5.", usage=usage),
    ]
    tab = open_tab(hub).sign_in("/agents/helper")
    watching = open_tab(hub).sign_in("/agents")
    watching.wait_text("$0 of $0.50")
    page = tab.page
    field = page.get_by_label("Message to helper")
    field.fill("What is 2 + 3?")
    field.press("Enter")
    tab.wait_text("The sum is 5. <b>bold</b>", ".log")
    page.wait_for_selector(".steps >> text=matrix.add")
    assert page.locator(".steps .badge.good").count() == 1
    tab.wait_text("The conversation continues.")
    field.fill("What was it?")
    field.press("Enter")
    tab.wait_text("It was 5.", ".log")
    assert len(model.requests[-1]["messages"]) > 4  # the whole conversation

    watching.wait_text("$0.36 of $0.50")  # live, without a reload
    watching.wait_text("$0.36 today (UTC) for 126,000 tokens", ".sum")
    assert not tab.find_axe_problems()
    assert not watching.find_axe_problems()

    watching.expected.append("status of 4|status of 5")
    watching.page.click("text=Add an agent")
    watching.page.get_by_label("URL").fill("http://127.0.0.1:9")
    press(watching.page, "Add")
    watching.page.wait_for_selector("dialog .problem")


@pytest.mark.promise("U7")
def test_limits_say_who_holds_forty_streams(hub: RunningHub, open_tab: OpenTab) -> None:
    params = {"notifications": {"toolsListChanged": True}}
    meta = {"io.modelcontextprotocol/clientInfo": {"name": "cursor-hungry", "version": "1"}}
    message = wire.request(1, "subscriptions/listen", wire.modern_params({**params, "_meta": meta}))
    tab = open_tab(hub).sign_in("/limits")
    with ExitStack() as stack:
        for _ in range(40):
            headers = wire.modern_headers("subscriptions/listen")
            stack.enter_context(wire.stream("POST", hub.mcp_url, message, headers, 30)).next()
        tab.wait_text("cursor-hungry", ".sum")  # live
        tab.wait_text("holds the most streams: 40", ".sum")
        row = tab.page.locator("tr:has-text('cursor-hungry')")
        expect(row).to_contain_text("40")
    expect(tab.page.locator(".sum")).not_to_contain_text("cursor-hungry", timeout=READY_MS)

    tab.open("/views?client=cursor-one")
    tab.wait_text("gets the view few", ".sum")
    tab.page.get_by_role("link", name="few").first.click()
    tab.wait_text("mcp_matrix_add")
    tab.wait_text("dragoman install cursor --view few")
    assert f'"url": "{hub.url}/mcp/v/few"' in tab.main


@pytest.mark.promise("U7")
def test_health_has_findings_with_fixes_and_plots(hub: RunningHub, open_tab: OpenTab) -> None:
    tab = open_tab(hub).sign_in("/health")
    tab.page.get_by_text("checks are fine").wait_for(timeout=READY_MS)
    finding = tab.page.locator("tr:has-text('server absent')")
    expect(finding).to_contain_text("no token given")
    assert finding.locator("button:has-text('Copy')").count() == 1
    tab.open("/health?tab=metrics")
    for _ in range(5):
        hub.post("/api/tools/matrix.add/call", {"arguments": {"a": 1, "b": 2}})
    expect(tab.page.locator(".plot:has-text('Calls a second') .soft")).not_to_have_text(
        "at most 0", timeout=READY_MS
    )
    tab.open("/health?tab=settings")
    tab.wait_text("mcp.views_for")
    tab.open("/health?tab=keys")
    tab.wait_text("dragoman keys create NAME")


@pytest.mark.promise("U7")
def test_a_key_without_admin_may_call_what_it_sees(hub: RunningHub, open_tab: OpenTab) -> None:
    key = json.loads(hub.command("keys", "create", "reader", "--json").stdout)["key"]
    hub.headers = {"Authorization": f"Bearer {key}"}
    until(lambda: hub.get("/api/session", hub.headers).status == 200, 60)
    reader = open_tab(hub).sign_in_with_key(key, "/health")
    reader.expected.append("status of 40[34]")
    reader.wait_text("shown to administrators")
    reader.open("/agents")
    expect(reader.page.get_by_role("button", name="Add an agent")).to_be_disabled()
    reader.open("/playground?tool=matrix.add")
    reader.page.get_by_label("a", exact=True).fill("2")
    reader.page.get_by_label("b", exact=True).fill("3")
    press(reader.page, "Call")
    reader.page.wait_for_selector(".tree >> text=sum")
