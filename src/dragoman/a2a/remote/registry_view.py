"""The registry as the API shows it: plain objects, for principals that may see an agent."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.remote.health_watch import REACHED, UNKNOWN
from dragoman.a2a.remote.registered_agents import RegisteredAgent
from dragoman.a2a.remote.registration import render_card, render_registration, render_time
from dragoman.a2a.remote.registry import AgentStore, Registry
from dragoman.a2a.remote.remote_agent import TRUST
from dragoman.core.agent_tool import MESSAGE, build_tool_name
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog
from dragoman.core.errors import InvalidInput, NotFound, Unreachable
from dragoman.core.loop_turns import LoopTurns
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.core.urls import render_origin
from dragoman.wire.json import Malformed, decode

MAX_DIFF_LINES = 2_000
"""Of a card; comparing longer ones takes too much time."""

IsAllowed = Callable[[Tool], bool]
"""Whether a principal may see the agent of a tool."""


class RegistryView:
    def __init__(
        self,
        registry: Registry,
        store: AgentStore,
        catalog: Catalog,
        count_active: Callable[[str], int],
    ) -> None:
        """`count_active` returns how many dispatches to an agent are open."""
        self._registry = registry
        self.agents = registry.agents
        self._store = store
        self._catalog = catalog
        self._count_active = count_active

    async def list_agents(self, may: IsAllowed, *, secret: bool) -> list[dict[str, Any]]:
        """With `secret`, includes the references of its credentials and its card as received;
        without, only what was approved of the card."""
        listed, turns = [], LoopTurns()
        for member in self._registry.agents.list_agents():
            await turns.give_way()
            if may(build_policy_tool(member)):
                listed.append(self._render(member, whole=False, secret=secret))
        return listed

    def get_agent(self, key: str, may: IsAllowed, *, secret: bool) -> dict[str, Any]:
        return self._render(self._find(key, may), whole=True, secret=secret)

    async def add(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._render(await self._registry.add(body), whole=True, secret=True)

    async def change(self, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._render(await self._registry.change(key, body), whole=True, secret=True)

    async def refetch(self, key: str) -> dict[str, Any]:
        return self._render(await self._registry.refetch(key), whole=True, secret=True)

    async def remove(self, key: str) -> dict[str, Any]:
        member = self._registry.agents.find(key)
        await self._registry.remove(member.registration.id)
        return {"removed": member.name, "id": member.registration.id}

    def list_cards(self, key: str, may: IsAllowed) -> list[dict[str, Any]]:
        """Lists the cards it had, accepted or not; number 1 is the newest."""
        known = self._store.list_cards(self._find(key, may).registration.id)
        return [
            {"n": n, "digest": digest, "seenAt": render_time(at), "bytes": size}
            for n, (digest, at, size) in enumerate(known, 1)
        ]

    def get_card(self, key: str, may: IsAllowed, number: int, other: int | None) -> dict[str, Any]:
        """Returns one of its cards as received, and its diff to another, by default the one before
        it."""
        id = self._find(key, may).registration.id
        known = self._store.list_cards(id)
        older = number + 1 if other is None else other
        for wanted in (number, older if other is not None else number):
            if not 1 <= wanted <= len(known):
                raise NotFound(f'agent "{key[:100]}" has {len(known)} cards and no number {wanted}')
        digest, at, _ = known[number - 1]
        text = self._load_text(id, digest)
        before = self._load_text(id, known[older - 1][0]) if older <= len(known) else None
        told = {"n": number, "digest": digest, "seenAt": render_time(at), "card": text}
        if before is not None:
            told |= {"comparedWith": older, "diff": diff_cards(before, text)}
        return told

    # --- rendering --------------------------------------------------------------------------------

    def _find(self, key: str, may: IsAllowed) -> RegisteredAgent:
        """Finds an agent. One that the principal may not see is reported as missing."""
        try:
            member = self._registry.agents.find(key)
        except NotFound:
            if all(may(build_policy_tool(one)) for one in self._registry.agents.list_agents()):
                raise  # with a hint at similar names
            member = None
        if member is None or not may(build_policy_tool(member)):
            raise NotFound(f'there is no registered agent "{key[:100]}"')
        return member

    def _load_text(self, id: str, digest: str) -> str:
        return (self._store.load_card(id, digest) or b"").decode("utf-8", "replace")

    def _render(self, member: RegisteredAgent, *, whole: bool, secret: bool) -> dict[str, Any]:
        row, watch = member.registration, member.watch
        probed = watch.probed if watch is not None else None
        raw = probed.found.raw if probed is not None else self._load_last_card(row.id)
        told = {**render_registration(row, secret=secret), **self._render_state(member)}
        offered = self._catalog.list_offered(member.name)
        if secret:
            told |= render_card(raw, probed.card if probed is not None else None, whole=whole)
        else:
            told |= {"findings": [], **render_card(_find_approved(offered), None, whole=whole)}
        told["tools"] = [tool.name for tool in offered]
        told["active"] = self._count_active(member.name)
        if secret:
            pairs = row.entry.headers
            names = list(pairs) if isinstance(pairs, dict) else [p.partition(":")[0] for p in pairs]
            told["credentials"] = {"token": row.entry.token, "headers": names}
        return told

    def _load_last_card(self, id: str) -> dict[str, Any] | None:
        """Loads the card of an agent that was not found or accepted since the hub started."""
        known = self._store.list_cards(id)
        data = self._store.load_card(id, known[0][0]) if known else None
        try:
            found = decode(data) if data is not None else None
        except Malformed:
            return None
        return found if isinstance(found, dict) else None

    async def list_status(self) -> list[dict[str, Any]]:
        """Lists the agents in short, for the status of the hub."""
        listed, turns = [], LoopTurns()
        for member in self._registry.agents.list_agents():
            await turns.give_way()
            if member.watch is not None or member.refusal:
                listed.append(self._render_status(member))
        return listed

    def _render_status(self, member: RegisteredAgent) -> dict[str, Any]:
        told = self._render_state(member)
        probed = member.watch.probed if member.watch is not None else None
        return {
            "name": member.name,
            "url": render_origin(member.registration.entry.url),
            "state": told["health"],
            "reason": told["reason"],
            "refused": bool(member.refusal),
            "dialect": told["dialect"],
            "skills": len(probed.card["skills"]) if probed is not None else 0,
            "findings": told["findings"],
        }

    def _render_state(self, member: RegisteredAgent) -> dict[str, Any]:
        watch, remarks = member.watch, self._catalog.list_remarks(member.name)
        if watch is None:
            nothing = dict.fromkeys(("latencyMs", "lastFetchedAt", "lastSeenAt", "dialect"))
            reason = f"it is not used: {member.refusal}" if member.refusal else "it is disabled"
            said = {"health": UNKNOWN, "reason": reason, "reachable": False, "held": ""}
            return {**said, **nothing, "findings": list(remarks)}
        health, probed = watch.health, watch.probed
        return {
            "health": health.state,
            "reason": health.reason,
            "reachable": health.state in REACHED,
            "held": watch.quarantine_reason,
            "latencyMs": round(health.latency * 1000, 1) if health.latency is not None else None,
            "lastFetchedAt": render_time(watch.fetched_at),
            "lastSeenAt": render_time(watch.seen_at),
            "dialect": str(probed.endpoint) if probed is not None and probed.endpoint else None,
            "findings": [*(probed.findings if probed is not None else ()), *remarks],
        }


def diff_cards(before: str, after: str) -> str:
    """Compares two cards, ignoring the order of members and white space."""
    old, new = _card_lines(before), _card_lines(after)
    if max(len(old), len(new)) > MAX_DIFF_LINES:
        raise InvalidInput("the cards are too large to compare; request each of them alone")
    return "\n".join(difflib.unified_diff(old, new, "before", "after", lineterm=""))


def _card_lines(card: str) -> list[str]:
    try:
        card = json.dumps(json.loads(card), indent=2, sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        pass  # compared as text
    return card.splitlines()


class _DisabledTarget:
    """The target of an agent that is disabled or refused."""

    def __init__(self, entry: ExternalAgent) -> None:
        self.name = entry.name
        facts = TargetFacts(type="RemoteAgent", trust=TRUST[entry.trust], healthy=False)
        self.traits = TargetTraits(facts=facts)

    async def run(self, call: Call) -> Result:
        raise Unreachable(f'agent "{self.name}" is disabled', sent=False)


def build_policy_tool(member: RegisteredAgent) -> Tool:
    """Builds the tool that policies decide on when an agent is shown."""
    name = build_tool_name(member.name)
    target = (
        member.watch.agent
        if member.watch is not None
        else _DisabledTarget(member.registration.entry)
    )
    return Tool(name=name, alias=name, remote_name=MESSAGE, target=target)


def _find_approved(offered: Sequence[Tool]) -> dict[str, Any] | None:
    """Finds what was approved of the agent's card."""
    for tool in offered:
        if (facts := tool.agent) is not None:
            said = {"description": facts.description, "version": facts.version}
            skills = [skill for skill in facts.skills if skill.get("public", True)]
            return {"name": facts.name, **said, "skills": skills}
    return None
