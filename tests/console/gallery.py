"""A hub with something to see on every screen of the console: servers, agents, keys, policies,
calls that completed, failed and were refused, a changed tool, a pending approval.

The screenshots of the documentation show it, so its texts are those of a plausible small team.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.process import HttpPeer, server_entry
from tests.peers.scripted_model import ScriptedModel, running_model, say, use

PROGRAM = Path(__file__).parent.parent / "live" / "configurable_server.py"
OWNER_KEY = "owner-of-the-tests-0123456789"
CONFIG = f"""
api_key = "{OWNER_KEY}"
[prices."gpt-4o"]
input = 2.5
output = 10.0
[[views]]
name = "reading"
description = "Tools that change nothing"
include = ["github.*"]
exclude = ["github.merge_pull_request"]
token_budget = 2000
[approvals]
wait_secs = 1
[mcp]
views_for = {{ "cursor*" = "reading" }}
"""
POLICIES = """\
@id("nobody-deletes-projects")
@why("projects are deleted by hand, with a second person")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"ops.delete_project");

@id("payments-are-looked-at")
@approval("it moves money")
@expires("1h")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"billing.pay_invoice")
unless { context.approved };
"""
ANALYST = """
description = "Answers questions about issues and invoices."
[model]
provider = "openai"
model = "gpt-4o"
base_url = "{url}"
[capabilities]
tools = ["github.list_issues"]
[limits]
cost_per_day = 2.0
"""
WORKFLOW = """
description: Looks at the open issues every morning, and asks before it pays.
inputs:
  repository: {type: string, default: team/site}
steps:
  - id: issues
    nodeId: tool.call
    config: {tool: github.list_issues, arguments: {repository: "{{ $trigger.repository }}"}}
  - id: invoices
    nodeId: tool.call
    config: {tool: billing.list_invoices, arguments: {customer: ACME}}
  - id: summary
    nodeId: transform
    dependsOn: [issues, invoices]
    config: {value: "One issue is open, one invoice is due."}
  - id: pause
    nodeId: wait
    dependsOn: [summary]
    config: {seconds: 3600}
"""
USAGE = {"prompt_tokens": 18_400, "completion_tokens": 950, "total_tokens": 19_350}
BEFORE = "Deploys a project to staging. Asks before it replaces a running version."
AFTER = "Deploys a project to production. Replaces the running version at once."


def _build_tool(name: str, description: str, **members: str) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": said} for name, said in members.items()}
    return {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties, "required": list(members)},
    }


def _build_results(**texts: Any) -> dict[str, Any]:
    return {name: {"content": [{"type": "text", "text": text}]} for name, text in texts.items()}


GITHUB = {
    "instructions": "Issues and pull requests of the team.",
    "tools": [
        _build_tool("list_issues", "Lists the issues of a repository.", repository="owner/name"),
        _build_tool("get_issue", "Reads one issue with its comments.", number="Its number."),
        _build_tool("search_code", "Searches the code of all repositories.", query="The words."),
        _build_tool("create_issue", "Creates an issue.", title="The title.", body="The text."),
        _build_tool("merge_pull_request", "Merges a pull request.", number="Its number."),
    ],
    "results": _build_results(
        list_issues='[{"number": 17, "title": "Login fails after an hour", "state": "open"}]',
        search_code="3 matches in src/login.py",
        create_issue="Issue 18 was created.",
    )
    | {
        "merge_pull_request": {
            "isError": True,
            "content": [{"type": "text", "text": "Pull request 12 has conflicts with main."}],
        }
    },
}
BILLING = {
    "tools": [
        _build_tool("list_invoices", "Lists the open invoices.", customer="The customer."),
        _build_tool("pay_invoice", "Pays an invoice.", invoice="Its number.", amount="In EUR."),
    ],
    "results": _build_results(list_invoices="RE-2041, 1,250.00 EUR, due on 1 December"),
}


def _build_ops(deploys: str) -> dict[str, Any]:
    return {
        "tools": [
            _build_tool("deploy", deploys, project="The project."),
            _build_tool("delete_project", "Deletes a project with its data.", project="Its name."),
        ]
    }


class Gallery:
    def __init__(self, hub: RunningHub, place: Path, model: ScriptedModel) -> None:
        self.hub = hub
        self.place = place
        self.model = model
        self.keys: dict[str, str] = {}
        self.refused = self.chain = self.approval = self.agent = self.run = ""

    def call(self, who: str, tool: str, /, **arguments: Any) -> Any:
        """Calls a tool with a key, as a program does."""
        return wire.post(
            f"{self.hub.url}/api/tools/{tool}/call",
            {"arguments": arguments},
            {"Authorization": f"Bearer {self.keys[who]}", "Accept": "application/json"},
        ).json()

    def open_streams(self, stack: ExitStack, who: str, client: str, count: int) -> None:
        """Opens streams as an MCP client does that forgets to close them."""
        method = "subscriptions/listen"
        meta = {"io.modelcontextprotocol/clientInfo": {"name": client, "version": "1.4"}}
        params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        message = wire.request(1, method, wire.modern_params(params))
        headers = {**wire.modern_headers(method), "Authorization": f"Bearer {self.keys[who]}"}
        for _ in range(count):
            stack.enter_context(wire.stream("POST", self.hub.mcp_url, message, headers, 60)).next()

    def change_deploy(self) -> None:
        """The server changes the meaning of an approved tool."""
        (self.place / "ops.json").write_text(json.dumps(_build_ops(AFTER)), encoding="utf-8")
        self.hub.call("ops.look")
        until(lambda: self.hub.api("/api/pins?state=held")["pins"])

    def list_paths(self) -> dict[str, str]:
        """Every screen with what there is to see on it: the name of its picture, and its path."""
        return {
            "home": "/",
            "first-steps": "/?first=1",
            "servers": "/servers",
            "server": "/servers/github",
            "server-failed": "/servers/jira",
            "agents": "/agents",
            "agent-local": "/agents/analyst",
            "agent-external": f"/agents/{self.agent}",
            "tools": "/tools",
            "tool": "/tools/github.list_issues",
            "views": "/views",
            "view": "/views/reading",
            "playground": "/playground?tool=github.create_issue",
            "policies": "/policies",
            "policy-file": "/policies/team",
            "policy-what-if": "/policies?tab=what-if&principal=key:ci&tool=ops.delete_project",
            "access": "/access?principal=key:ci",
            "pins": "/pins",
            "pin": "/pins?name=ops.deploy",
            "approvals": "/approvals",
            "approval": f"/approvals/{self.approval}",
            "runs": "/runs",
            "dispatches": "/runs?tab=dispatches",
            "skills": "/health?tab=skills",
            "run": f"/runs/{self.run}",
            "workflows": "/workflows",
            "workflow": "/workflows/morning",
            "traces": "/traces",
            "trace": f"/traces/{self.chain}",
            "trace-refused": f"/traces/{self.refused}",
            "audit": "/audit",
            "limits": "/limits",
            "health": "/health",
            "metrics": "/health?tab=metrics",
            "settings": "/health?tab=settings",
            "keys": "/health?tab=keys",
            "help": "/help",
        }

    def fill(self, agent_url: str) -> None:
        hub = self.hub
        for name in ("ci", "cursor", "reader"):
            made = hub.command("keys", "create", name, "--json")
            self.keys[name] = json.loads(made.stdout)["key"]
        done = hub.post("/api/policies", {"name": "team", "text": POLICIES})
        assert done.get("ok"), done
        assert hub.command("demo", "add").returncode == 0
        added = hub.post("/api/a2a/agents", {"url": agent_url, "name": "Release notes"})
        self.agent = added["agent"]["id"] if "agent" in added else added["id"]
        until(lambda: "guide.message" in json.dumps(hub.api("/api/tools?q=guide")))
        until(lambda: hub.api("/api/agents")["total"] >= 3)
        self._make_calls()
        self._run_workflow()
        self.change_deploy()
        self._ask_for_approval()

    def _make_calls(self) -> None:
        for number in range(9):
            self.call("cursor", "github.list_issues", repository=f"team/site-{number % 3}")
        for query in ("login", "timeout"):
            self.call("cursor", "github.search_code", query=query)
        self.call("ci", "github.merge_pull_request", number="12")
        self.call("ci", "ops.deploy", project="site")
        self.call("ci", "billing.list_invoices", customer="ACME")
        self.call("ci", "billing.list_invoices")
        self.call("ci", "ops.delete_project", project="site")
        self.refused = self._find_trace("ops.delete_project")
        self.model.answers = [
            use(("mcp_github_list_issues", {"repository": "team/site"}), usage=USAGE),
            say("One issue is open: number 17, the login fails after an hour.", usage=USAGE),
        ]
        self.call("cursor", "analyst.message", message="What is open in team/site?")
        self.chain = self._find_trace("analyst.message")
        self.call("cursor", "guide.message", message="What is a pin?")
        self.call("ci", "release_notes.echo", message="The notes of 2.4")

    def _run_workflow(self) -> None:
        folder = self.hub.home / "workflows"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "morning.yaml").write_text(WORKFLOW, encoding="utf-8")
        (folder / "morning.yaml").chmod(0o600)
        until(lambda: self.hub.api("/api/workflows")["total"])
        self.run = self.hub.post("/api/workflows/morning/run", {"inputs": {}})["run"]["id"]
        until(lambda: self.hub.api(f"/api/runs/{self.run}")["run"]["state"] == "waiting")

    def _find_trace(self, tool: str) -> str:
        found = until(lambda: self.hub.api(f"/api/traces?q={tool}&limit=1")["traces"])
        return str(found[0]["trace"])

    def _ask_for_approval(self) -> None:
        asked = self.call("ci", "billing.pay_invoice", invoice="RE-2041", amount="1250.00")
        assert asked["error"]["kind"] == "ApprovalPending", asked
        pending = self.hub.api("/api/approvals?state=pending")["approvals"]
        self.approval = pending[0]["id"]


@contextmanager
def run_gallery(place: Path) -> Iterator[Gallery]:
    offers = {"github": GITHUB, "billing": BILLING, "ops": _build_ops(BEFORE)}
    for name, offer in offers.items():
        (place / f"{name}.json").write_text(json.dumps(offer), encoding="utf-8")
    entries = [
        server_entry(name, "stdio", sys.executable, PROGRAM, place / f"{name}.json")
        for name in offers
    ]
    failing = "import sys; sys.exit('jira: JIRA_TOKEN is not set')"
    entries.append(server_entry("jira", "stdio", sys.executable, "-c", failing))
    with (
        running_model() as model,
        HttpPeer("a2a_sdk_agent") as agent,
        run_module_hub(entries, CONFIG) as hub,
    ):
        folder = hub.home / "agents" / "analyst"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "agent.toml").write_text(ANALYST.format(url=model.url), encoding="utf-8")
        hub.wait_connected(*offers, timeout=60)
        gallery = Gallery(hub, place, model)
        gallery.fill(agent.url)
        yield gallery
