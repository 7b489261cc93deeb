"""Questions about policies: resolves the names in them, renders answers, reads recorded calls."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dragoman.core.access import describe_missing_scope, find_missing_scope
from dragoman.core.catalog import Catalog
from dragoman.core.errors import HubError, NotFound
from dragoman.core.nearest_names import find_nearest
from dragoman.core.principal import Principal
from dragoman.core.scopes import CALL, LIST, expand_scopes
from dragoman.core.tool import PROMPT, TOOL, Nowhere, Tool
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.core.tool_identity import fold_id
from dragoman.policy import queries
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.entities import render_uid
from dragoman.policy.ids import fold_entity_id, split_id
from dragoman.policy.policy_set import CALLS
from dragoman.stores.audit.reader import AuditReader

PAGE = 1_000
REPLAY_SECONDS = 300.0
FIND_SECONDS = 10.0


FindTool = Callable[[str, View, str], Tool]
"""Resolves a name, limited to a view, of a kind; a tool that leads nowhere if unknown."""
FindUser = Callable[[str], Principal | None]
"""Finds a user of an identity provider by the label; None if there can be none of that label."""
HasGrant = Callable[[Principal, Tool], bool]
"""Whether the grants of an agent name a tool; true for principals that are no agents."""
_NO_GRANT = "its manifest does not grant it"


class RecordedCalls:
    """The calls of a period that policies have decided, the newest first."""

    def __init__(
        self, home: Path, since: float, until: float, limit: int, is_closed: Callable[[], bool]
    ) -> None:
        self._home, self._since, self._until, self._limit = home, since, until, limit
        self._is_closed = is_closed
        self.more = False
        """Whether the period has further calls, which were not read."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + REPLAY_SECONDS
        left, before = self._limit, None
        with closing(AuditReader(self._home)) as reader:
            while not self._is_closed():
                page = reader.list_records(PAGE, before=before)
                for record in page:
                    if record.at < self._since:
                        return
                    if record.at >= self._until or "decision" not in record.conclusion:
                        continue
                    if not left or time.monotonic() > deadline:
                        self.more = True
                        return
                    left -= 1
                    yield {**record.intent, **record.conclusion, "at": record.at}
                if len(page) < PAGE:
                    return
                before = page[-1].seq


class CurrentNames:
    """The principals and tools that records name, as they are now; to be used in a thread."""

    def __init__(
        self, find_tool: FindTool, principals: Iterable[Principal], find_user: FindUser
    ) -> None:
        self._find_any = find_tool
        self._find_user = find_user
        self._principals = {principal.label: principal for principal in principals}
        self._tools: dict[tuple[str, str], Tool | None] = {}
        self._loop = asyncio.get_running_loop()

    def find_principal(self, record: Mapping[str, Any]) -> Principal | None:
        label = str(record.get("caller"))
        return self._principals.get(label) or self._find_user(label)

    def find_tool(self, record: Mapping[str, Any]) -> Tool | None:
        key = str(record.get("verb")), str(record.get("kind", TOOL))
        if key not in self._tools:
            # Catalogs change on the event loop, so they are read there.
            found = asyncio.run_coroutine_threadsafe(self._find(*key), self._loop)
            self._tools[key] = found.result(FIND_SECONDS)
        return self._tools[key]

    async def _find(self, verb: str, kind: str) -> Tool | None:
        tool = self._find_any(verb, EVERYTHING, kind)
        if isinstance(tool.target, Nowhere) and kind in (TOOL, PROMPT):
            tool = self._find_any(fold_id(verb), EVERYTHING, kind)  # recorded in another spelling
        return None if isinstance(tool.target, Nowhere) else tool


# --- the names in a question ---------------------------------------------------------------------


def find_principal(
    name: str, principals: Sequence[Principal], roles: tuple[str, ...] | None, find_user: FindUser
) -> Principal:
    """Finds a principal by its label, its key's name, or `agent:NAME` for an agent of the hub or
    one with a key. With `roles`, returns it as if it had these, even if there is no such
    principal."""
    one = next((each for each in principals if name == each.label), None)
    one = one or next((each for each in principals if name in _list_names(each)), None)
    one = one or find_user(name)
    if one is None and roles is None:
        near = find_nearest(name, (each.label for each in principals))
        hint = f'did you mean "{near}"?' if near else "see: dragoman keys list"
        raise NotFound(f'unknown principal "{name[:200]}"; {hint}')
    if one is None:
        kind, colon, id = name.partition(":")
        kind, id = (kind, id) if colon else ("key", name)
        one = Principal("key", id, serves=id) if kind == "agent" else Principal(kind, id)
    if roles is None:
        return one
    return Principal(one.kind, one.id, one.org, roles, one.scopes, one.behalf, one.serves)


def _list_names(principal: Principal) -> tuple[str, ...]:
    agent = (f"agent:{principal.serves}",) if principal.serves else ()
    return principal.label, principal.id, *agent


def find_tool(name: str, find_any: FindTool, catalogs: Mapping[str, Catalog]) -> Tool:
    """Finds a tool, prompt or resource by any of its names, or by its id in policies."""
    kind, plain = split_id(fold_entity_id(name))
    tries = [(TOOL, name), *((one, name) for one in catalogs if one != TOOL), (kind, plain)]
    errors: list[HubError] = []
    for kind, tried in tries:
        target = (tool := find_any(tried, EVERYTHING, kind)).target
        if not isinstance(target, Nowhere):
            return tool
        errors.append(target.error)
    # A quarantined or ambiguous name says more than an unknown one.
    error = next((one for one in errors if not isinstance(one, NotFound)), None)
    if error is not None:
        raise type(error)(str(error))
    near = find_nearest(name, (tool.name for tool in catalogs[TOOL].list_tools()))
    hint = f'; did you mean "{near}"?' if near else ""
    raise NotFound(f'unknown tool "{name[:200]}"{hint}')


# --- the least policies that permit recorded calls -----------------------------------------------

PROPOSED = "proposed.cedar"
_REST = """\
// What was needed, and no more; calls: {calls}. Where a rule is meant, write the rule: a whole
// server with `resource in Hub::Server::"…"`, a role in the place of a key.

@id("owner")
@why("the owner may do everything")
permit (principal in Hub::Role::"owner", action, resource);

@id("own-tasks")
@why("a principal may read and cancel its own tasks")
permit (
  principal,
  action in [Hub::Action::"task_read", Hub::Action::"task_cancel"],
  resource
)
when {{ context.owner }};
"""


def propose_policies(
    records: Iterable[Mapping[str, Any]], policies: PolicyEngine, names: CurrentNames
) -> dict[str, Any]:
    """Writes policies that permit the permitted calls to the principals that made them. The owner
    needs none."""
    used: dict[tuple[str, str], set[str]] = {}
    calls = skipped = 0
    for record in records:
        principal, tool = names.find_principal(record), names.find_tool(record)
        if record["decision"] != queries.PERMIT:
            continue
        if principal is None or tool is None:
            skipped += 1
            continue
        calls += 1
        if "owner" not in principal.roles:
            what = policies.find_resource(tool).uid
            key = render_uid(policies.find_principal(principal).uid), what[0]
            used.setdefault(key, set()).add(render_uid(what))
    text = _REST.format(calls=calls)
    for number, ((who, type), ids) in enumerate(sorted(used.items()), 1):
        text += _render_grant(number, who, type, ids)
    return {"text": text, "calls": calls, "skipped": skipped}


def _render_grant(number: int, who: str, type: str, what: set[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", who.partition('"')[2]).strip("-")
    lines = ",\n    ".join(sorted(what))
    return (
        f'\n@id("{number}-{name[:80]}-{type.lower()}s")\n@why("what it has used so far")\n'
        f"permit (\n  principal == {who},\n"
        '  action in [Hub::Action::"any_call", Hub::Action::"list"],\n  resource\n)\n'
        f"when {{\n  resource in [\n    {lines}\n  ]\n}};\n"
    )


# --- answers -------------------------------------------------------------------------------------

_ACTIONS = {
    "list": "see {} in lists",
    "a2a_discover": "see the card of {}",
    "task_read": "look at tasks of {}",
    "task_cancel": "end tasks of {}",
    "approve": "approve calls of {}",
    "admin": "administer the hub",
    "registry": "administer the hub's servers and agents",
    "policies": "administer the hub's policies",
    "workflows": "administer the hub's workflows",
    "pins": "administer the hub's pins",
    "users": "administer the hub's keys and users",
}


def render_headline(found: Mapping[str, Any], caller: str, tool: str) -> str:
    """Says in one sentence whether the call is allowed, and why not if no policy forbids it."""
    does = _ACTIONS.get(found["action"], "call {}").format(tool)
    if approval := found["approval"]:
        return f"allowed with an approval: {caller} may {does}: {approval['reason']}"
    if found["decision"] == "permit":
        return f"allowed: {caller} may {does}"
    why = "" if found["forbids"] and not found["errors"] else f": {found['why']}"
    return f"denied: {caller} may not {does}{why}"


def describe_need(found: Mapping[str, Any]) -> dict[str, str]:
    """Says what would turn a denial into a permit."""
    guardrails = [rule["id"] for rule in found["forbids"] if rule["guardrail"]]
    example = ""
    if found["decision"] == "permit":
        words = ""
    elif found["errors"]:
        words = "the decision failed, which denies: fix the errors"
    elif guardrails:
        words = (
            f"guardrails cannot be changed: the call must not meet the condition of {guardrails[0]}"
        )
    elif found["forbids"]:
        rules = _render_rules(found["forbids"])
        words = f"add an exception to the forbidding policy, or remove it: {rules}"
    else:
        example, words = _render_example(found), "add a policy that permits it, such as"
        if found["nearly"]:
            rules = _render_rules(found["nearly"])
            words = f"the conditions of a permit for it must hold: {rules}; or add another policy"
    return {"needed": words, "example": example}


def _render_rules(rules: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{rule['id']} ({rule['file']}:{rule['line']})" for rule in rules)


def _render_example(found: Mapping[str, Any]) -> str:
    return (
        '@id("choose-a-name")\n'
        f"permit (\n  principal == {found['principal']},\n"
        f'  action == Hub::Action::"{found["action"]}",\n  resource == {found["resource"]}\n);'
    )


def refuse_scope(
    found: Mapping[str, Any], caller: Principal, assumed: Iterable[str]
) -> dict[str, Any]:
    """Says what a decision of the policies does not: that the credential of the caller may not be
    used for it, even with the assumed scopes. Empty if it may."""
    action = CALL if found["action"] in CALLS else found["action"]
    scope = find_missing_scope(caller.rights | expand_scopes(tuple(assumed)), action)
    if not scope:
        return {}
    why = describe_missing_scope(caller, scope)
    if found["decision"] == "permit":
        return {"allowed": False, "words": f"denied: {why}"}
    return {"needed": f"{why}; besides, {describe_need(found)['needed']}"}


def refuse_grant(found: Mapping[str, Any], caller: Principal, tool: Tool | None) -> dict[str, Any]:
    """Says what a decision of the policies does not: that the grants of an agent do not name the
    tool, whatever the policies permit."""
    name = tool.name if tool is not None else ""
    why = f'the manifest of agent "{caller.id}" does not grant "{name}"'
    fix = f"name the tool, or its server, skill or agent, in the manifest of {caller.id}"
    if found["decision"] == "permit":
        return {"allowed": False, "words": f"denied: {why}", "needed": fix}
    return {"needed": f"{fix}; besides, {describe_need(found)['needed']}"}


def render_verdict(
    name: str, row: Mapping[str, Any], caller: Principal, *, has_grant: bool = True
) -> dict[str, Any]:
    none: dict[str, Any]
    if CALL not in caller.rights:
        missing = describe_missing_scope(caller, CALL)
        none = {"approval": False, "policies": [], "why": missing}
        listed = LIST in caller.rights and row["list"] == "permit"
        return {"name": name, "allowed": False, "listed": listed, **none}
    if not has_grant:
        none = {"approval": False, "policies": [], "why": _NO_GRANT}
        return {"name": name, "allowed": False, "listed": False, **none}
    allowed = row["call"] in ("permit", "approval")
    why = "; ".join(row["errors"]) or ("" if allowed else "no policy permits it")
    return {
        "name": name,
        "allowed": allowed,
        "approval": row["call"] == "approval",
        "listed": allowed and row["list"] == "permit",
        "policies": row["policies"],
        "why": "" if row["policies"] and not row["errors"] else why,
    }
