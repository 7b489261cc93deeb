"""What is asked about policies, made of names, and answered, in words; and the recorded calls that
are decided anew. Part of `policy_side`.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.core.errors import HubError, NotFound
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.tool import PROMPT, TOOL, Nowhere, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import fold_id
from dragoman.policy import queries
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.entities import render_uid
from dragoman.policy.ids import fold_entity_id, split_id
from dragoman.stores.audit.reader import AuditReader

PAGE = 1_000
REPLAY_SECONDS = 300.0
FIND_SECONDS = 10.0


class Records:
    """The calls of a period that policies have decided, the newest first."""

    def __init__(
        self, place: Path, since: float, until: float, limit: int, closed: Callable[[], bool]
    ) -> None:
        self._place, self._since, self._until, self._limit = place, since, until, limit
        self._closed = closed
        self.more = False
        """Whether there are others, that were not looked at."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        reader = AuditReader(self._place)
        deadline = time.monotonic() + REPLAY_SECONDS
        left, before = self._limit, None
        try:
            while not self._closed():
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
        finally:
            reader.close()


class Today:
    """Who and what the records speak of, as they are now; to be asked from a thread."""

    def __init__(self, hub: Hub, callers: Iterable[Principal]) -> None:
        self._hub = hub
        self._callers = {caller.label: caller for caller in callers}
        self._tools: dict[tuple[str, str], Tool | None] = {}
        self._loop = asyncio.get_running_loop()

    def caller(self, record: Mapping[str, Any]) -> Principal | None:
        return self._callers.get(str(record.get("caller")))

    def tool(self, record: Mapping[str, Any]) -> Tool | None:
        key = str(record.get("verb")), str(record.get("kind", TOOL))
        if key not in self._tools:
            # The catalogs change on the loop, so it is there that they are looked at.
            found = asyncio.run_coroutine_threadsafe(self._find(*key), self._loop)
            self._tools[key] = found.result(FIND_SECONDS)
        return self._tools[key]

    async def _find(self, verb: str, kind: str) -> Tool | None:
        tool = self._hub.find(verb, EVERYTHING, kind)
        if isinstance(tool.target, Nowhere) and kind in (TOOL, PROMPT):
            tool = self._hub.find(fold_id(verb), EVERYTHING, kind)  # recorded in another spelling
        return None if isinstance(tool.target, Nowhere) else tool


# --- who and what is meant -----------------------------------------------------------------------


def caller_named(
    name: str, callers: Sequence[Principal], roles: tuple[str, ...] | None
) -> Principal:
    """By label, by the name of a key, or `agent:NAME` for one that has a key of its own; with
    `roles`, as if it had these, and though there is nobody of that name."""
    one = next((each for each in callers if name in _names(each)), None)
    if one is None and roles is None:
        near = difflib.get_close_matches(name, [each.label for each in callers], n=1)
        hint = f'did you mean "{near[0]}"?' if near else "see: dragoman keys list"
        raise NotFound(f'there is no caller "{name[:200]}"; {hint}')
    if one is None:
        kind, _, id = name.rpartition(":")
        one = Principal("key", id, serves=id) if kind == "agent" else Principal(kind or "key", id)
    if roles is None:
        return one
    return Principal(one.kind, one.id, one.org, roles, one.scopes, one.behalf, one.serves)


def _names(caller: Principal) -> tuple[str, ...]:
    agent = (f"agent:{caller.serves}",) if caller.serves else ()
    return caller.label, caller.id, *agent


def tool_named(name: str, hub: Hub) -> Tool:
    """By any of its names, whatever kind it is, or by the id that policies name it by."""
    wrong: HubError | None = None
    of, called = split_id(fold_entity_id(name))
    known = [(each, name) for each in (TOOL, *(one for one in hub.catalogs if one != TOOL))]
    for kind, asked in [*known, (of, called)]:
        tool = hub.find(asked, EVERYTHING, kind)
        if not isinstance(tool.target, Nowhere):
            return tool
        if wrong is None or isinstance(wrong, NotFound):  # held, or shared: that is to be said
            wrong = tool.target.error
    assert wrong is not None
    near: list[str] = []
    if isinstance(wrong, NotFound):
        wrong = NotFound(f'there is no tool "{name[:200]}"')
        near = difflib.get_close_matches(
            name, [tool.name for tool in hub.catalog.list_tools()], n=1
        )
    raise type(wrong)(f'{wrong}; did you mean "{near[0]}"?' if near else str(wrong))


# --- the least that would have done --------------------------------------------------------------

PROPOSED = "proposed.cedar"
_REST = """\
// What was needed, and no more; calls: {calls}. Where a rule is meant, write the rule: a whole
// server with `resource in Hub::Server::"…"`, a role in the place of a key.

@id("owner")
@why("the owner may do everything")
permit (principal in Hub::Role::"owner", action, resource);

@id("own-tasks")
@why("whoever began a task may look at it and end it")
permit (
  principal,
  action in [Hub::Action::"task_read", Hub::Action::"task_cancel"],
  resource
)
when {{ context.owner }};
"""


def proposed(
    records: Iterable[Mapping[str, Any]], policies: PolicyEngine, today: Today
) -> dict[str, Any]:
    """Policies that permit the calls which were permitted, to those who made them. The owner's need
    none of their own."""
    used: dict[tuple[str, str], set[str]] = {}
    calls = skipped = 0
    for record in records:
        caller, tool = today.caller(record), today.tool(record)
        if record["decision"] != queries.PERMIT:
            continue
        if caller is None or tool is None:
            skipped += 1
            continue
        calls += 1
        if "owner" not in caller.roles:
            what = policies.find_resource(tool).uid
            key = render_uid(policies.find_principal(caller).uid), what[0]
            used.setdefault(key, set()).add(render_uid(what))
    text = _REST.format(calls=calls)
    for number, ((who, type), names) in enumerate(sorted(used.items()), 1):
        text += _grant(number, who, type, names)
    return {"text": text, "calls": calls, "skipped": skipped}


def _grant(number: int, who: str, type: str, what: set[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", who.partition('"')[2]).strip("-")
    lines = ",\n    ".join(sorted(what))
    return (
        f'\n@id("{number}-{name[:80]}-{type.lower()}s")\n@why("what it has used so far")\n'
        f"permit (\n  principal == {who},\n"
        '  action in [Hub::Action::"any_call", Hub::Action::"list"],\n  resource\n)\n'
        f"when {{\n  resource in [\n    {lines}\n  ]\n}};\n"
    )


# --- words ---------------------------------------------------------------------------------------


def described(annotations: Mapping[str, str]) -> str:
    return annotations.get("why", "")


_DOES = {
    "list": "see {} in lists",
    "a2a_discover": "see the card of {}",
    "task_read": "look at tasks of {}",
    "task_cancel": "end tasks of {}",
    "admin": "administer the hub",
}


def headline(found: Mapping[str, Any], caller: str, tool: str) -> str:
    """Whether it may, in one sentence; and why not, where no policy can be named."""
    does = _DOES.get(found["action"], "call {}").format(tool)
    if found["decision"] == "permit":
        return f"allowed: {caller} may {does}"
    why = "" if found["forbids"] and not found["errors"] else f": {found['why']}"
    return f"denied: {caller} may not {does}{why}"


def needed(found: Mapping[str, Any]) -> dict[str, str]:
    """What would have to be for a denial to be a permit; nothing for what is permitted."""
    if found["decision"] == "permit":
        return {"needed": "", "example": ""}
    if found["errors"]:
        words = "it could not be decided, which denies: mend what the errors name"
        return {"needed": words, "example": ""}
    if guardrails := [rule["id"] for rule in found["forbids"] if rule["guardrail"]]:
        words = (
            f"guardrails are not for changing: the call must not be such as {guardrails[0]} says"
        )
        return {"needed": words, "example": ""}
    if found["forbids"]:
        rules = ", ".join(
            f"{rule['id']} ({rule['file']}:{rule['line']})" for rule in found["forbids"]
        )
        return {"needed": f"what forbids it must except it, or go: {rules}", "example": ""}
    if found["nearly"]:
        rules = ", ".join(
            f"{rule['id']} ({rule['file']}:{rule['line']})" for rule in found["nearly"]
        )
        words = f"the conditions of a permit that is meant for it must hold: {rules}; or another"
    else:
        words = "a policy that permits it, such as"
    return {"needed": words, "example": _example(found)}


def _example(found: Mapping[str, Any]) -> str:
    return (
        '@id("choose-a-name")\n'
        f"permit (\n  principal == {found['principal']},\n"
        f'  action == Hub::Action::"{found["action"]}",\n  resource == {found["resource"]}\n);'
    )


def verdict(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    allowed = row["call"] == "permit"
    why = "; ".join(row["errors"]) or ("" if allowed else "no policy permits it")
    return {
        "name": name,
        "allowed": allowed,
        "listed": allowed and row["list"] == "permit",
        "policies": row["policies"],
        "why": "" if row["policies"] and not row["errors"] else why,
    }
