"""The screens of the console: their paths, and the plain table that each has without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Column:
    label: str
    member: str
    """The member of a row, or members of nested objects with dots between."""
    kind: str = "text"
    """`text`, `number`, `time` (ISO or seconds), `trace` or `code`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A second source of a screen."""

    api: str
    """As `api` of the screen."""
    rows: str
    """The member of the data with the rows."""


@dataclass(frozen=True, slots=True)
class Screen:
    path: str
    """Below `/console`; `{name}` stands for one segment."""
    title: str
    module: str
    """The module in `static/screens` that takes over; also the entry of the navigation."""
    question: str
    """What the screen answers, in one line."""
    api: str = ""
    """Where its data comes from; `{name}` is replaced by the segment, `{q}` by the search."""
    rows: str = ""
    """The member of the data with the rows; empty: the data is shown member by member."""
    columns: Sequence[Column] = ()
    link: str = ""
    """The path of a row's own screen; `{}` stands for the value of its first column."""
    pages_by: str = ""
    """`cursor` if the API pages and filters; otherwise the page is cut out of the whole list."""
    empty: str = ""
    """What to do if there are no rows."""
    also: Source | None = None
    """Where more rows come from. A screen without rows shows the first of these if its own source
    does not know the name."""
    is_slow: bool = False
    """Whether its data takes seconds. Without JavaScript, the page then has a link to the data."""

    def match(self, path: str) -> str | None:
        """Returns the name in the path, empty if there is none; None if it is another's path."""
        found = re.fullmatch(re.escape(self.path).replace(r"\{name\}", "([^/]+)"), path)
        if found is None:
            return None
        return unquote(found.group(1)) if found.groups() else ""


def _c(label: str, member: str, kind: str = "text") -> Column:
    return Column(label, member, kind)


SCREENS: Sequence[Screen] = (
    Screen(
        "/", "Home", "home", "What is connected, and what is happening now?",
        "/api/map", "edges",
        (_c("From", "from"), _c("To", "to"), _c("Calls", "calls", "number"),
         _c("Failed", "failed", "number"), _c("Refused", "refused", "number"),
         _c("Median ms", "p50_ms", "number"), _c("Last", "last", "time")),
        empty="No calls yet. Add a server with: dragoman servers add hello -- COMMAND",
    ),
    Screen(
        "/servers", "Servers", "servers", "Which servers are connected, and what is wrong?",
        "/api/mcp/servers?tools=0", "connected",
        (_c("Server", "name"), _c("State", "state"), _c("Tools", "tools_count", "number"),
         _c("Revision", "protocol_version"), _c("Sandbox", "sandbox"), _c("Problem", "reason")),
        "/servers/{}",
        empty="No servers. Add one with: dragoman servers add NAME -- COMMAND",
    ),
    Screen(
        "/servers/{name}", "Server", "servers", "What is wrong with this server?",
        "/api/mcp/servers/{name}/logs",
    ),
    Screen(
        "/agents", "Agents", "agents", "Which agents are there, and are they well?",
        "/api/agents?grants=no", "agents",
        (_c("Agent", "name"), _c("State", "health"), _c("Runs as", "runtime"),
         _c("Model", "model"), _c("Address", "url"), _c("Trust", "trustLevel")),
        "/agents/{}", also=Source("/api/a2a/agents", "agents"),
        empty="No agents yet. Create one with: dragoman agents new NAME",
    ),
    Screen("/agents/{name}", "Agent", "agents", "What does this agent offer, and is it well?",
           "/api/a2a/agents/{name}", also=Source("/api/agents?name={name}", "agents")),
    Screen(
        "/tools", "Tools", "tools", "Which tools can be called, and what do they cost to list?",
        "/api/tools", "tools",
        (_c("Tool", "name"), _c("Server", "server"), _c("Tokens", "tokens", "number"),
         _c("Description", "description")),
        "/tools/{}", "cursor",
        empty="No tools. Add a server with: dragoman servers add NAME -- COMMAND",
    ),
    Screen("/tools/{name}", "Tool", "tools", "What does this tool take and return?",
           "/api/tools/{name}"),
    Screen(
        "/playground", "Playground", "playground", "Does it work?",
        "/api/tools", "tools",
        (_c("Tool", "name"), _c("Description", "description")),
        "/tools/{}", "cursor",
        empty="No tools to call. Add a server with: dragoman servers add NAME -- COMMAND",
    ),
    Screen(
        "/policies", "Policies", "policies", "Who may do what, and what would a change do?",
        "/api/policies", "files",
        (_c("File", "name"), _c("Enabled", "enabled"), _c("Policies", "policies"),
         _c("Problem", "problem")),
        "/policies/{}",
        empty="No policies of your own: the defaults apply. See: dragoman docs policies",
    ),
    Screen("/policies/{name}", "Policy file", "policies", "What does this file permit and forbid?",
           "/api/policies/{name}"),
    Screen(
        "/access", "Access", "access", "Who can call this, and what can they call?",
        "/api/policies/what-can?principal={q}", "tools",
        (_c("Tool", "name"), _c("Allowed", "allowed"), _c("Listed", "listed"),
         _c("Decided by", "policies"), _c("Why", "why")),
        "/tools/{}",
        empty="Search for a principal, such as key:NAME, to see what it can call.",
    ),
    Screen(
        "/pins", "Pins", "pins", "What has changed since it was approved?",
        "/api/pins?state=held", "pins",
        (_c("Definition", "name"), _c("Target", "target"), _c("State", "state"),
         _c("Quarantined", "held_since", "time"), _c("Approved by", "approved_by")),
        empty="Nothing is quarantined.",
    ),
    Screen(
        "/approvals", "Approvals", "approvals", "What waits for me?",
        "/api/approvals", "approvals",
        (_c("Id", "id"), _c("What", "title"), _c("Asked by", "requester"),
         _c("State", "state"), _c("Asked", "requestedAt", "time"),
         _c("Expires", "expiresAt", "time")),
        "/approvals/{}", "cursor",
        empty="Nothing waits for a decision.",
    ),
    Screen("/approvals/{name}", "Approval", "approvals", "What needs a decision, by whom and why?",
           "/api/approvals/{name}"),
    Screen(
        "/runs", "Runs", "runs", "What is running, and what has failed?",
        "/api/runs", "runs",
        (_c("Run", "id"), _c("Workflow", "workflow"), _c("State", "state"),
         _c("Started by", "startedBy"), _c("Created", "createdAt", "time"),
         _c("Problem", "problem")),
        "/runs/{}", "cursor",
        empty="No runs yet. Start one with: dragoman workflows run NAME",
    ),
    Screen("/runs/{name}", "Run", "runs", "How far is this run?", "/api/runs/{name}"),
    Screen(
        "/workflows", "Workflows", "workflows", "Which workflows are there?",
        "/api/workflows", "workflows",
        (_c("Workflow", "name"), _c("State", "state"), _c("Steps", "steps", "number"),
         _c("Description", "description"), _c("Problem", "problem")),
        "/workflows/{}",
        empty="No workflows. See: dragoman workflows --help",
    ),
    Screen("/workflows/{name}", "Workflow", "workflows", "What does this workflow do?",
           "/api/workflows/{name}"),
    Screen(
        "/traces", "Traces", "traces", "What happened in each request, at every hop?",
        "/api/traces", "traces",
        (_c("Trace", "trace", "trace"), _c("Began", "at", "time"), _c("First call", "verb"),
         _c("Caller", "caller"), _c("Calls", "calls", "number"),
         _c("Failed", "failed", "number"), _c("Refused", "refused", "number"),
         _c("ms", "duration_ms", "number")),
        "/traces/{}", "cursor",
        empty="No calls yet. Make one with: dragoman call NAME",
    ),
    Screen(
        "/traces/{name}", "Trace", "traces", "What happened in this request, at every hop?",
        "/api/traces/{name}", "records",
        (_c("Number", "seq", "number"), _c("At", "at", "time"), _c("Depth", "depth", "number"),
         _c("Caller", "caller"), _c("On behalf of", "on_behalf_of"), _c("Tool", "verb"),
         _c("Outcome", "outcome"), _c("Decision", "decision"), _c("ms", "duration_ms", "number"),
         _c("Error", "error")),
    ),
    Screen(
        "/audit", "Audit", "audit", "Who did what, and is the record whole?",
        "/api/audit", "records",
        (_c("Number", "seq", "number"), _c("At", "at", "time"), _c("Caller", "caller"),
         _c("Entry point", "door"), _c("Tool or action", "verb"), _c("Outcome", "outcome"),
         _c("Decision", "decision"), _c("ms", "duration_ms", "number"),
         _c("Trace", "trace", "trace")),
        "", "cursor",
        empty="No records match.",
    ),
    Screen(
        "/views", "Views", "views", "What does each client see, and what does that cost?",
        "/api/views", "views",
        (_c("View", "name"), _c("Path", "path"), _c("Tools", "tools", "number"),
         _c("Tokens", "tokens", "number"), _c("Budget", "token_budget", "number"),
         _c("Description", "description")),
        "/views/{}",
        empty="No views: each client is listed all tools. See: dragoman docs views",
    ),
    Screen("/views/{name}", "View", "views", "What does a client of this view see?",
           "/api/views/{name}"),
    Screen("/limits", "Limits", "limits", "Who is near a limit, and what was refused?",
           "/api/limits"),
    Screen(
        "/health", "Health", "health", "What is known to go wrong here, and what fixes it?",
        "/api/doctor", "checks",
        (_c("Check", "check"), _c("Level", "level"), _c("Finding", "said"),
         _c("Fix", "fix", "code")),
        is_slow=True,
    ),
    Screen("/help", "Help", "help", "Which keys, pages and commands are there?"),
)  # fmt: skip

NAVIGATION: Sequence[tuple[str, Sequence[str]]] = (
    ("Now", ("/", "/approvals", "/traces")),
    ("Registry", ("/servers", "/agents", "/tools", "/views", "/playground")),
    ("Rules", ("/policies", "/access", "/pins", "/limits")),
    ("Work", ("/workflows", "/runs")),
    ("Record", ("/audit", "/health", "/help")),
)
BY_PATH = {screen.path: screen for screen in SCREENS}


def find_screen(path: str) -> tuple[Screen, str] | None:
    """Finds the screen of a path below `/console`, and the name in it."""
    for screen in SCREENS:
        if (name := screen.match(path)) is not None:
            return screen, name
    return None
