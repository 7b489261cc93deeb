"""Screens of the console in a real browser: home and first steps, traces, audit, policies, access,
pins, approvals. Their main actions, live updates, and what a key without `admin` sees."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.console.browser import READY_MS, BrowserTab
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.process import server_entry

PROGRAM = Path(__file__).parent.parent / "live" / "configurable_server.py"
OpenTab = Callable[..., BrowserTab]
POLICIES = """\
@id("nobody-wipes")
@why("projects are deleted by hand")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"ops.wipe");

@id("payments-are-looked-at")
@approval("it moves money")
@expires("10m")
permit (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"ops.pay");
"""
DEFAULT = """\
@id("owner")
permit (principal in Hub::Role::"owner", action, resource);

@id("everybody")
permit (principal, action in [Hub::Action::"any_call", Hub::Action::"list"], resource)
unless { resource == Hub::Tool::"ops.pay" };
"""
GOLDEN = """\
[[tests]]
name = "nobody wipes"
caller = "key:ci"
tool = "ops.wipe"
expect = "deny"
by = ["nobody-wipes"]
"""
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}


def _build_tool(name: str, description: str) -> dict[str, Any]:
    project = {"type": "string"}
    schema = {"type": "object", "properties": {"project": project}, "required": ["project"]}
    return {"name": name, "description": description, "inputSchema": schema}


class Place:
    """A hub with the server `ops`, whose definitions can be changed, and a key without `admin`."""

    def __init__(self, hub: RunningHub, offer: Path) -> None:
        self.hub = hub
        self.offer_file = offer
        self.key = hub.command("keys", "create", "ci").stdout.strip()

    def offer(self, deploys: str) -> None:
        tools = [
            _build_tool("deploy", deploys),
            _build_tool("wipe", "Deletes a project."),
            _build_tool("pay", "Pays <b>an</b> invoice."),
        ]
        self.offer_file.write_text(json.dumps({"tools": tools}), encoding="utf-8")

    def call_with_key(self, tool: str, **arguments: Any) -> Any:
        return wire.post(
            f"{self.hub.url}/api/tools/{tool}/call",
            {"arguments": arguments},
            {"Authorization": f"Bearer {self.key}", "Accept": "application/json"},
        ).json()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    file = tmp_path_factory.mktemp("ops") / "ops.json"
    file.write_text(json.dumps({"tools": []}), encoding="utf-8")
    entry = server_entry("ops", "stdio", sys.executable, PROGRAM, file)
    first = Place.__new__(Place)
    first.offer_file = file
    first.offer("Deploys to staging. Asks first.")
    with run_module_hub([entry], 'api_key = "owner-of-the-tests-0123456789"\n') as hub:
        hub.wait_connected("ops")
        for name, text in (("mine", POLICIES), ("default", DEFAULT)):
            done = hub.post("/api/policies", {"name": name, "text": text})
            assert done.get("ok"), done
        (hub.home / "policies" / "golden.toml").write_text(GOLDEN, encoding="utf-8")
        yield Place(hub, file)


@pytest.mark.promise("U7")
def test_an_empty_hub_leads_to_the_first_call(open_tab: OpenTab) -> None:
    with run_module_hub([]) as hub:
        tab = open_tab(hub).sign_in()
        tab.wait_text("Welcome to your hub")
        assert not tab.find_axe_problems()
        tab.page.click("text=Add the example")
        call = tab.page.locator(".try button").first
        expect(call).to_be_focused(timeout=READY_MS)
        tab.page.keyboard.press("Enter")
        tab.wait_text("the digest of an approved definition")
        tab.page.select_option(".steps select", "claude-code")
        tab.wait_text("dragoman install claude-code")
        tab.page.click("text=Open the trace")
        expect(tab.page.locator(".hop")).to_have_count(3)
        assert "agent:librarian for owner:owner" in tab.main

        ask = {"message": "What is a pin?"}
        hub.call("guide.message", ask)  # HTTP without a key: another client
        until(lambda: "local:local" in json.dumps(hub.api("/api/map")))
        tab.open("/")
        edge = tab.page.locator(".map .edge[aria-label*='local:local → guide']")
        expect(edge).to_have_attribute("aria-label", re.compile("1 call;"))
        edge.evaluate("element => { element.wasHere = true; }")
        hub.call("guide.message", ask)
        expect(edge).to_have_attribute("aria-label", re.compile("2 calls"), timeout=READY_MS)
        assert edge.evaluate("element => element.wasHere")  # updated in place
        tab.page.focus(".map [tabindex='0']")
        tab.page.keyboard.press("End")
        tab.page.keyboard.press("Home")
        expect(tab.page.locator(".map-caption")).to_contain_text("median")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector(".waterfall")
        tab.page.goto("about:blank")  # before the hub stops


@pytest.mark.promise("U7")
def test_a_person_finds_which_call_was_refused_and_why(place: Place, open_tab: OpenTab) -> None:
    place.call_with_key("ops.deploy", project="site")
    tab = open_tab(place.hub).sign_in()
    expect(tab.page.locator(".map .edge[aria-label*='key:ci → ops: 1 call']")).to_be_attached()
    place.call_with_key("ops.wipe", project="site")
    tab.page.click(".home-side >> text=ops.wipe")  # it appears without a reload
    said = tab.page.locator("#main .problem")
    expect(said).to_contain_text('a policy forbids "key:ci" to call it')
    expect(said).to_contain_text("denied by nobody-wipes")
    tab.page.click(".hop-name")
    assert "record=" in tab.page.url
    tab.page.click("text=Show the record as JSON")
    expect(tab.page.locator("pre")).to_contain_text('"outcome": "refused"')
    assert not tab.find_axe_problems()
    said.locator("text=Ask the policies why").click()
    tab.wait_text("Denied: key:ci may not call ops.wipe")
    tab.page.click("section a:has-text('nobody-wipes')")
    tab.wait_ready("/policies/mine")
    assert "projects are deleted by hand" in tab.page.input_value("textarea")

    tab.open("/audit?outcome=refused&caller=key:ci")
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    tab.page.click("text=Verify")
    tab.wait_text("The record is whole")
    with tab.page.expect_download() as saved:
        tab.page.click("text=Export")
    lines = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["verb"] for line in lines] == ["ops.wipe"]
    tab.page.locator("tbody a").first.click()
    tab.page.click("text=Show this chain")
    tab.page.wait_for_selector(".hop-more:not([hidden])")


@pytest.mark.promise("U7")
def test_policies_are_checked_tested_and_replayed_before_they_are_saved(
    place: Place, open_tab: OpenTab
) -> None:
    place.call_with_key("ops.deploy", project="site")
    tab = open_tab(place.hub).sign_in("/policies/draft?new=1")
    area, save = tab.page.locator("textarea"), tab.page.locator("button:has-text('Save')")
    area.fill('@id("x")\nforbid (principal, action, resource')
    tab.wait_text("draft.cedar:1", ".finding")
    expect(save).to_be_disabled()
    draft = (
        '@id("no-deploys")\nforbid (principal, action in Hub::Action::"any_call", '
        'resource == Hub::Tool::"ops.deploy")'
    )
    area.fill(f"{draft};")
    tab.wait_text("golden test passes", ".findings")
    tab.page.click("text=Run the golden tests")
    tab.wait_text("All 1 golden tests pass")
    tab.page.click("text=Replay recorded calls")
    tab.wait_text("would be decided differently")
    assert "no-deploys" in tab.main
    area.fill(f'{draft} when {{ context.args.contains("project=site") }};')
    expect(save).to_be_enabled()
    save.click()
    tab.wait_text("is saved and in force", "#toasts")
    tab.open("/policies?tab=what-if&principal=key:ci&tool=ops.deploy")
    tab.wait_text("Allowed: key:ci may call ops.deploy")
    tab.page.fill("[name=args]", '{"project": "site"}')
    tab.page.click("text=Ask the policies")
    tab.wait_text("Denied: key:ci may not call ops.deploy")

    tab.open("/access?principal=key:ci")
    row = tab.page.locator("tr:has-text('ops.wipe')")
    expect(row).to_contain_text("nobody-wipes")
    expect(tab.page.locator("tr:has-text('ops.pay')")).to_contain_text("with approval")
    with tab.page.expect_download() as saved:
        tab.page.click("text=Export CSV")
    assert '"ops.wipe","deny"' in Path(saved.value.path()).read_text(encoding="utf-8")
    tab.page.locator("#main form input").first.fill("ops.wipe")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("td >> text=key:ci")

    tab.open("/policies/draft")
    tab.page.click("text=Delete")
    tab.page.click("dialog button.danger")
    tab.wait_ready("/policies")
    assert "no-deploys" not in tab.main
    assert not tab.find_axe_problems()


@pytest.mark.promise("U7")
def test_a_changed_tool_is_shown_side_by_side_and_approved(place: Place, open_tab: OpenTab) -> None:
    tab = open_tab(place.hub).sign_in("/pins")
    tab.wait_text("Nothing is quarantined")
    place.offer("Deploys to production.\u200b <script>alert(1)</script>")
    place.hub.call("ops.look")
    tab.page.wait_for_selector("#nav [data-screen=pins] .tally >> text=1")
    tab.expected.append("status of 403")  # it is quarantined
    tab.open("/tools/ops.deploy")
    tab.wait_text("is quarantined")
    assert "Sign in as the owner" not in tab.main
    tab.page.click("a >> text=dragoman pins diff ops.deploy")
    expect(tab.page.locator("del")).to_contain_text(["staging", "Asks first"])
    expect(tab.page.locator("ins").first).to_contain_text("production")
    assert "U+200B" in tab.main and "<script>alert(1)</script>" in tab.main
    assert not tab.find_axe_problems()
    tab.page.click("text=Reject")
    tab.page.click("dialog >> text=Cancel")
    tab.page.click("text=Approve this change")
    tab.wait_text("Who decided")
    expect(tab.page.locator("#nav [data-screen=pins] .tally")).to_have_count(0)


STREAM = re.compile(r"/api/events\b")


@pytest.mark.promise("U7")
def test_approvals_are_decided_on_a_phone(place: Place, open_tab: OpenTab) -> None:
    tab = open_tab(place.hub, **PHONE)
    held: list[Any] = []
    # The stream opens after the rows were read.
    tab.page.route(STREAM, lambda route: held.append(route))
    tab.sign_in("/approvals")
    tab.wait_text("Nothing waits for a decision")
    answers: list[Any] = []

    def ask() -> None:
        answers.append(place.call_with_key("ops.pay", project="<b>site</b>"))

    caller = threading.Thread(target=ask)
    caller.start()
    try:
        until(lambda: place.hub.api("/api/approvals?state=pending")["approvals"])
        while held:
            held.pop().continue_()
        tab.page.unroute(STREAM)
        card = tab.page.locator("article")
        expect(card).to_contain_text("it moves money", timeout=READY_MS)
        expect(card).to_contain_text("<b>site</b>")
        expect(card.locator(".left")).to_have_text(re.compile(r"^9:\d\d left$"))
        assert not tab.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        assert not tab.find_axe_problems()
        card.locator("input").fill("seen")
        card.locator("text=Approve once").click()
    finally:
        caller.join(60)
    assert answers[0]["content"][0]["text"] == "arrived: pay"
    row = tab.page.locator("tbody tr")
    expect(row).to_contain_text("seen")
    expect(row).to_contain_text("completed")
    row.locator("a").first.click()
    tab.wait_text("by owner:owner")


@pytest.mark.promise("U7")
def test_a_key_without_admin_reads_sentences(place: Place, open_tab: OpenTab) -> None:
    place.call_with_key("ops.deploy", project="mine")
    place.hub.call("ops.deploy", {"project": "of the owner"})
    tab = open_tab(place.hub, **PHONE).sign_in_with_key(place.key)
    for path, text in (
        ("/policies", "Only administrators see and change policies"),
        ("/access", "Only administrators see what others may call"),
        ("/pins", "Only administrators review changed definitions"),
        ("/approvals", "Approvals"),
        ("/traces", "ops.deploy"),
        ("/audit", "These are your own calls"),
        ("/", "Administrators see the findings of the doctor here"),
    ):
        tab.open(path)
        tab.wait_text(text)
        assert "api_key" not in tab.main, path  # the owner's calls
        assert not tab.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        assert not tab.find_axe_problems(), path
    assert tab.page.locator(".map .edge").count() >= 1
