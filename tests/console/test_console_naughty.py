"""Text of others in the console: 550 naughty strings and script payloads in every field that a
server, an agent, a client, a policy or an argument can fill, on every screen, with JavaScript and
without. Nothing may run, load or break, and the text must be there as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Request, expect
from tests.console.browser import READY_MS, BrowserTab, create_link
from tests.console.naughty import PAYLOADS, load_texts, split
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.identity_provider import IdentityProvider, run_identity_provider
from tests.peers.process import HttpPeer, server_entry

PROGRAM = Path(__file__).parent.parent / "live" / "configurable_server.py"
OpenTab = Callable[..., BrowserTab]
TEXTS = load_texts()
CHUNKS = split(TEXTS, 140)
CONFIG = """api_key = "owner-of-the-tests-0123456789"
[approvals]
wait_secs = 1
[[auth.jwt.issuers]]
name = "corp"
issuer = "ISSUER"
audiences = ["hub"]
owner_claim = "name"
roles_claim = "groups"
"""
NAMES = [text for text in PAYLOADS if text.isprintable()]
"""Of users: a token with other characters is refused."""
MARK = "shown as text"
PAGED = ("/tools", "/pins", "/audit")
"""Lists that are read to their end."""
FIND_MARKUP = (Path(__file__).parent / "find_markup.js").read_text(encoding="utf-8")


def _build_tools(texts: list[str]) -> list[dict[str, Any]]:
    """A tool for each text, and one with all texts of each chunk in its schema."""
    tools: list[dict[str, Any]] = [
        {
            "name": f"t{number:03d}",
            "title": text,
            "description": f"{MARK}: {text}",
            "annotations": {"title": text},
            "inputSchema": {"type": "object", "properties": {"x": {"type": "string"}}},
        }
        for number, text in enumerate(texts)
    ]
    for number, chunk in enumerate(CHUNKS):
        members = {text: {"type": "string", "title": text, "description": text} for text in chunk}
        choice = {"enum": chunk, "default": chunk[0]}
        schema = {"type": "object", "properties": {"choice": choice, **members}}
        said = "\n".join(texts[: len(chunk)])
        tools.append({"name": f"all{number}", "description": said, "inputSchema": schema})
        tools.append({"name": f"fails{number}", "inputSchema": {"type": "object"}})
        tools.append({"name": f"breaks{number}", "inputSchema": {"type": "object"}})
    tools.append({"name": "rich", "inputSchema": {"type": "object"}})
    tools += [{"name": text, "inputSchema": {"type": "object"}} for text in PAYLOADS]
    return tools


def _build_rich() -> dict[str, Any]:
    """A result with every kind of content, each of its members a payload."""
    blocks: list[dict[str, Any]] = []
    for text in PAYLOADS:
        blocks += [
            {"type": "text", "text": text},
            {"type": "resource_link", "uri": text, "name": text, "description": text},
            {"type": "resource", "resource": {"uri": text, "mimeType": text, "text": text}},
            {"type": "image", "data": "AAAA", "mimeType": f"image/svg+xml;{text}"},
            {"type": "audio", "data": text, "mimeType": "audio/wav"},
            {"type": text, "text": text},
        ]
    return {"content": blocks, "structuredContent": {text: text for text in TEXTS}}


def _build_offer(texts: list[str]) -> dict[str, Any]:
    joined = ["\n".join(chunk) for chunk in CHUNKS]
    return {
        "serverInfo": {"name": PAYLOADS[0], "version": PAYLOADS[3], "title": PAYLOADS[6]},
        "instructions": "\n".join(TEXTS),
        "stderr": TEXTS,
        "tools": _build_tools(texts),
        "prompts": [{"name": f"p{n}", "description": text} for n, text in enumerate(PAYLOADS)],
        "resources": [{"uri": f"x:{n}", "name": text} for n, text in enumerate(PAYLOADS)],
        "results": {"rich": _build_rich()}
        | {
            f"fails{number}": {"isError": True, "content": [{"type": "text", "text": text}]}
            for number, text in enumerate(joined)
        },
        "errors": {
            f"breaks{number}": {"code": -32000, "message": text}
            for number, text in enumerate(joined)
        },
    }


def _build_card() -> dict[str, Any]:
    return {
        "description": "\n".join(TEXTS),
        "version": PAYLOADS[3],
        "documentationUrl": f"javascript:{PAYLOADS[0]}",
        "iconUrl": "javascript:alert(1)",
        "provider": {"organization": PAYLOADS[4], "url": "javascript:alert(1)"},
        "skills": [
            {
                "id": f"skill{number}",
                "name": text,
                "description": text,
                "tags": [text],
                "examples": [text],
            }
            for number, text in enumerate(PAYLOADS)
        ],
    }


def _build_policies() -> str:
    comments = "".join(f"// {line}\n" for text in TEXTS for line in text.splitlines())
    parts = [comments.replace("\0", "")]
    for number, text in enumerate(PAYLOADS):
        shown = json.dumps(text.replace("\0", "").replace("\x01", ""), ensure_ascii=False)
        shown = shown.replace("\\t", " ")
        parts.append(
            f'@id("no-{number}")\n@why({shown})\nforbid (principal, action in '
            f'Hub::Action::"any_call", resource == Hub::Tool::"naughty.t{number:03d}");\n'
        )
    parts.append(
        '@id("no-400")\nforbid (principal, action in '
        'Hub::Action::"any_call", resource == Hub::Tool::"naughty.t400");\n'
        f'@id("looked-at")\n@approval({json.dumps(PAYLOADS[3])})\nforbid (principal, action in '
        'Hub::Action::"any_call", resource == Hub::Tool::"naughty.t401") '
        "unless { context.approved };\n"
    )
    return "\n".join(parts)


def _build_workflow() -> str:
    """A workflow whose texts, output and failure are those of others. JSON is YAML too."""
    value = [text.replace("{{", "{ {").replace("$", "") for text in TEXTS if text.isprintable()]
    steps = [
        {"id": "value", "nodeId": "transform", "config": {"value": value}},
        {
            "id": "fails",
            "nodeId": "tool.call",
            "dependsOn": ["value"],
            "config": {"tool": "names.breaks0", "arguments": {}},
        },
    ]
    inputs = {"x": {"type": "string", "description": PAYLOADS[3], "default": PAYLOADS[0]}}
    described = f"{PAYLOADS[3]} {PAYLOADS[6]}"
    return json.dumps(
        {"description": described, "inputs": inputs, "steps": steps}, ensure_ascii=False
    )


class Place:
    def __init__(self, hub: RunningHub, file: Path, provider: IdentityProvider) -> None:
        self.hub = hub
        self.file = file
        self.provider = provider
        self.key = json.loads(hub.command("keys", "create", "ci", "--json").stdout)["key"]
        self.agent = self.approval = self.run = ""

    def call(self, tool: str, /, token: str = "", **arguments: Any) -> Any:
        return wire.post(
            f"{self.hub.url}/api/tools/{quote(tool, safe='')}/call",
            {"arguments": arguments},
            {"Authorization": f"Bearer {token or self.key}", "Accept": "application/json"},
        ).json()

    def sign(self, name: str) -> str:
        """An access token of a user whose provider lets people choose all of their claims."""
        groups = [name, "staff"]
        return self.provider.sign(aud="hub", sub=name, name=name, groups=groups, scope=name)

    def fill(self, stack: ExitStack, agent: str) -> None:
        hub = self.hub
        added = hub.post("/api/a2a/agents", {"url": agent, "name": "Card"})
        self.agent = added["agent"]["id"] if "agent" in added else added["id"]
        self.call("card.skill0", message=f"fail {PAYLOADS[3]}")
        self._connect_clients(stack)
        for name in NAMES:
            made = self.call("names.fails0", self.sign(name))
            assert "content" in made, made
        for number in range(len(CHUNKS)):
            self.call(f"naughty.fails{number}")
            self.call(f"naughty.breaks{number}")
        for text in TEXTS:  # names that do not exist are in the audit log as they were asked for
            hub.call(text, era="legacy")
        done = hub.post("/api/policies", {"name": "mine", "text": _build_policies()})
        assert done.get("ok"), done
        self.call("naughty.t003")
        self.call("naughty.t400")
        user = self.sign(PAYLOADS[3])
        self.call("naughty.t400", user)
        pending = self.call("naughty.t401", user, **{text: text for text in CHUNKS[-1]})
        assert pending["error"]["kind"] == "ApprovalPending", pending
        self.approval = hub.api("/api/approvals?state=pending")["approvals"][0]["id"]
        self._decide()
        self._run_workflow()
        # All definitions change, so all tools are quarantined.
        self.file.write_text(json.dumps(_build_offer(TEXTS[::-1])), encoding="utf-8")
        hub.call("naughty.look")
        until(lambda: len(hub.api("/api/pins?state=held")["pins"]) > len(TEXTS) - 60)

    def _decide(self) -> None:
        """One approval is denied, with a comment; another stays."""
        self.call("naughty.t401", **{PAYLOADS[1]: PAYLOADS[3]})
        newest = self.hub.api("/api/approvals?state=pending")["approvals"]
        other = next(one["id"] for one in newest if one["id"] != self.approval)
        done = self.hub.post(f"/api/approvals/{other}/deny", {"comment": "\n".join(TEXTS)[:1_000]})
        assert "error" not in done, done

    def _run_workflow(self) -> None:
        folder = self.hub.home / "workflows"
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in {"evil": _build_workflow(), "wrong": f"steps: [{PAYLOADS[3]}"}.items():
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
            (folder / f"{name}.yaml").chmod(0o600)
        until(lambda: self.hub.api("/api/workflows")["total"] == 2)
        started = self.hub.post("/api/workflows/evil/run", {"inputs": {"x": PAYLOADS[4]}})
        assert "run" in started, (started, self.hub.api("/api/workflows"))
        self.run = started["run"]["id"]
        until(lambda: self.hub.api(f"/api/runs/{self.run}")["run"]["state"] == "failed")

    def _connect_clients(self, stack: ExitStack) -> None:
        method = "subscriptions/listen"
        for number, text in enumerate(PAYLOADS):
            token = self.sign(NAMES[number % 9]) if number % 2 else self.key
            meta = {"io.modelcontextprotocol/clientInfo": {"name": text, "version": text}}
            params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
            message = wire.request(1, method, wire.modern_params(params))
            headers = {**wire.modern_headers(method), "Authorization": f"Bearer {token}"}
            stack.enter_context(wire.stream("POST", self.hub.mcp_url, message, headers, 60)).next()

    def list_paths(self) -> list[str]:
        """The paths of all screens, with details; those with lists are paged to their end."""
        trace = self.hub.api("/api/traces?q=naughty.breaks0&limit=1")["traces"][0]["trace"]
        denied = self.hub.api("/api/traces?q=naughty.t400&limit=1")["traces"][0]["trace"]
        chunks = range(len(CHUNKS))
        return [
            "/?minutes=60",
            "/servers",
            "/servers/naughty",
            "/servers/failing",
            "/agents",
            f"/agents/{self.agent}",
            "/tools",
            *(f"/tools/names.all{number}" for number in chunks),
            "/tools/names.t003",
            "/playground",
            *(f"/playground?tool=names.all{number}" for number in chunks),
            "/views",
            "/policies",
            "/policies/mine",
            "/policies?tab=what-if&principal=key:ci&tool=naughty.t400",
            "/policies?tab=shadow",
            "/access?principal=key:ci",
            f"/access?principal={quote(f'user:corp/{PAYLOADS[3]}')}",
            "/access?tool=names.t000",
            "/pins",
            *(f"/pins?name=naughty.all{number}" for number in chunks),
            "/pins?name=naughty.t003",
            "/approvals",
            f"/approvals/{self.approval}",
            "/runs",
            "/runs?tab=dispatches",
            f"/runs/{self.run}",
            f"/runs/{self.run}?step=value",
            f"/runs/{self.run}?step=fails",
            "/workflows",
            "/workflows/evil",
            "/workflows/wrong",
            "/traces",
            f"/traces/{trace}",
            f"/traces/{denied}",
            "/audit",
            f"/audit?caller={quote(f'user:corp/{PAYLOADS[4]}')}",
            "/limits",
            "/health",
            "/health?tab=settings",
            "/health?tab=keys",
            *(f"/tools/{quote(text, safe='')}" for text in (PAYLOADS[3], PAYLOADS[27])),
            *(f"/tools?q={quote(text)}" for text in (PAYLOADS[4], PAYLOADS[2])),
        ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("naughty")
    for name in ("naughty", "names"):
        (folder / f"{name}.json").write_text(json.dumps(_build_offer(TEXTS)), encoding="utf-8")
    card = folder / "card.json"
    card.write_text(json.dumps(_build_card()), encoding="utf-8")
    failing = f"import sys; sys.exit({PAYLOADS[3]!r})"
    servers = [
        server_entry("naughty", "stdio", sys.executable, PROGRAM, folder / "naughty.json"),
        server_entry("names", "stdio", sys.executable, PROGRAM, folder / "names.json", pin="off"),
        server_entry("failing", "stdio", sys.executable, "-c", failing),
    ]
    with (
        HttpPeer("a2a_sdk_agent", "--card", card) as agent,
        run_identity_provider() as provider,
        run_module_hub(servers, CONFIG.replace("ISSUER", provider.issuer)) as hub,
        ExitStack() as stack,
    ):
        hub.wait_connected("naughty", "names", timeout=60)
        found = Place(hub, folder / "naughty.json", provider)
        found.fill(stack, agent.url)
        yield found


class Watch:
    """What the pages of a tab load, and what is in them."""

    def __init__(self, tab: BrowserTab) -> None:
        self.tab = tab
        self.foreign: list[str] = []
        tab.expected.append(r"status of (40[34]|502)")
        tab.page.on("request", self._look)

    def _look(self, request: Request) -> None:
        url = urlsplit(request.url)
        is_ours = f"{url.scheme}://{url.netloc}" == self.tab.hub.url
        known = ("/console/static/", "/api/")
        if url.scheme == "data" or (is_ours and request.is_navigation_request()):
            return
        if not is_ours or not url.path.startswith(known):
            self.foreign.append(request.url)

    def check(self, path: str) -> str:
        """Checks the page, and returns its text."""
        found, text = self.tab.page.evaluate(FIND_MARKUP)
        assert found == [], path
        assert not self.foreign, (path, self.foreign)
        self.tab.check()
        return str(text)


def _list_missing(text: str, before: str = "") -> list[str]:
    """The payloads that are not after `before` in a text, or in JSON in it; those with characters
    that the hub removes aside."""
    plain = [one for one in PAYLOADS if one.isprintable() and one.isascii()]
    return [
        one
        for one in plain
        if before + one not in text and before + json.dumps(one)[1:-1] not in text
    ]


@pytest.mark.promise("U7")
def test_no_text_runs_on_any_screen(place: Place, open_tab: OpenTab) -> None:
    tab = open_tab(place.hub).sign_in()
    watch = Watch(tab)
    texts = {}
    for path in place.list_paths():
        tab.go(path)
        expect(tab.page.locator("[aria-busy=true]")).to_have_count(0)
        more = tab.page.locator(".pager button:visible")
        while path in PAGED and more.count():
            before = tab.page.locator("tbody tr").count()
            more.first.click()
            tab.page.locator("tbody tr").nth(before).wait_for()
        if path == "/servers":  # the reason is not shown while the server is started again
            main = tab.page.locator("main")
            expect(main).to_contain_text(PAYLOADS[3], timeout=READY_MS)
        texts[path] = watch.check(path)
    assert not _list_missing(texts["/tools"])
    assert not _list_missing(texts[f"/tools/names.all{len(CHUNKS) - 1}"])
    assert not _list_missing(texts[f"/agents/{place.agent}"])
    assert not _list_missing(texts[f"/approvals/{place.approval}"])
    assert PAYLOADS[3] in texts["/workflows"] and PAYLOADS[3] in texts["/workflows/evil"]
    assert PAYLOADS[3] in texts["/servers"] and PAYLOADS[3] in texts["/limits"]
    assert not _list_missing(texts["/audit"], "user:corp/")
    user = f"user:corp/{PAYLOADS[3]}"
    shown = ("/limits", "/traces", "/approvals", f"/approvals/{place.approval}")
    assert not [path for path in shown if user not in texts[path]]


@pytest.mark.promise("U7")
def test_no_result_answer_or_log_runs(place: Place, open_tab: OpenTab) -> None:
    """What is shown after an action: a result, the reply of an agent, JSON on demand."""
    tab = open_tab(place.hub).sign_in("/playground?tool=names.rich")
    watch = Watch(tab)
    tab.page.get_by_role("button", name="Call", exact=True).click()
    tab.page.wait_for_selector(".out .badge.good", timeout=READY_MS)
    for one in tab.page.locator(".out details:not([open])").all():
        one.evaluate("element => { element.open = true; }")
    while (more := tab.page.locator(".out button:has-text(' more')")).count():
        more.first.click()
    text = watch.check("the result")
    assert not _list_missing(text)
    tab.page.locator(".out button:has-text('Read it')").first.click()
    tab.page.wait_for_selector(".out .problem, .out .note .block")
    watch.check("a resource")
    for number in range(len(CHUNKS)):
        for kind in ("fails", "breaks"):
            tab.open(f"/playground?tool=names.{kind}{number}")
            tab.page.get_by_role("button", name="Call", exact=True).click()
            tab.page.wait_for_selector(".out .problem, .out .content")
            watch.check(f"{kind}{number}")

    tab.open(f"/agents/{place.agent}")
    field = tab.page.get_by_role("textbox").last
    field.fill(f"direct {' '.join(PAYLOADS)}".replace("\0", "").replace("\x01", ""))
    field.press("Enter")
    tab.page.wait_for_selector(".log >> text=evil.example >> nth=1")
    watch.check("the chat")
    tab.open(f"/traces/{place.hub.api('/api/traces?q=breaks1&limit=1')['traces'][0]['trace']}")
    tab.page.click(".hop-name")
    tab.page.click("text=Show the record as JSON")
    watch.check("a record")
    tab.open("/policies/draft?new=1")
    wrong = f'@id("{PAYLOADS[3]}")\nforbid (principal, action, resource);'
    tab.page.fill("textarea", wrong)
    tab.page.wait_for_selector(".finding >> text=onerror")
    watch.check("findings")


@pytest.mark.promise("U7")
def test_no_text_runs_in_pages_without_javascript(place: Place, open_tab: OpenTab) -> None:
    """The browser runs scripts here, but the console's own are blocked: what is left are the pages
    that the hub renders."""
    tab = open_tab(place.hub)
    tab.page.goto(create_link(place.hub))
    tab.page.wait_for_url(f"{place.hub.url}/console/")
    network = tab.context.new_cdp_session(tab.page)
    network.send("Network.enable")
    network.send("Network.setBlockedURLs", {"urls": ["*/console/static/*.js"]})
    tab.expected.append("ERR_BLOCKED_BY_CLIENT")
    watch = Watch(tab)
    texts = {}
    for path in place.list_paths():
        if "?" in path and "q=" not in path:
            continue  # the module alone reads the rest of the query
        text = ""
        tab.page.goto(f"{place.hub.url}/console{path}")
        while True:
            text += watch.check(path)
            more = tab.page.locator("a[rel=next]")
            if path not in PAGED or not more.count():
                break
            with tab.page.expect_navigation():
                more.click()
        texts[path] = text
    assert not _list_missing(texts["/tools"])
    assert not _list_missing(texts["/audit"], "user:corp/")
    assert not _list_missing(texts[f"/tools/names.all{len(CHUNKS) - 1}"])
    assert not _list_missing(texts[f"/agents/{place.agent}"])
