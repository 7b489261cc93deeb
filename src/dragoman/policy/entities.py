"""Principals and resources as policies see them: Cedar entities with attributes and parents.

They are built from a principal or a tool, or from a query or golden test. Entities that differ only
in what no policy reads have the same key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dragoman.core.principal import Principal
from dragoman.core.tool import TargetFacts, Tool
from dragoman.core.tool_identity import fold_id
from dragoman.policy.analysis import NAMESPACE, PolicyReads, Uid
from dragoman.policy.ids import build_entity_id, find_catalog_kind

MCP_CALL, A2A_INVOKE, LIST = "mcp_call", "a2a_invoke", "list"

SERVER, REMOTE_AGENT, AGENT = "Server", "RemoteAgent", "Agent"
KINDS = {SERVER: "server", REMOTE_AGENT: "remote", AGENT: "local"}

KEY = "key"
LONGEST_KEPT = 512

Value = str | int | bool | frozenset[str] | tuple[str, str]
"""A pair is a reference to an entity."""


@dataclass(slots=True, eq=False)
class PrincipalEntity:
    uid: Uid
    org: str
    roles: tuple[str, ...]
    scopes: frozenset[str]
    attributes: Mapping[str, Value]
    number: int = -1
    """The number of its class in the engine's cache."""

    @property
    def ancestors(self) -> frozenset[Uid]:
        return frozenset({("Org", self.org), *(("Role", role) for role in self.roles)})

    def build_key(self, reads: PolicyReads) -> Hashable:
        if reads.opaque:
            return (
                self.uid,
                self.roles,
                self.scopes,
                _select_values(self.attributes, self.attributes),
            )
        return (
            self.uid[0],
            self.uid if self.uid in reads.uids else None,
            self.ancestors & reads.uids,
            self.org,
            self.scopes if "scopes" in reads.context else None,
            _select_values(self.attributes, reads.attributes),
        )

    def list_entities(self) -> Iterator[dict[str, Any]]:
        org = ("Org", self.org)
        yield _render_entity(org)
        for role in set(self.roles):
            yield _render_entity(("Role", role), parents=[org])
        yield _render_entity(self.uid, self.attributes, self.ancestors)


@dataclass(slots=True, eq=False)
class ResourceEntity:
    """The resource of a request, and its server, agent or organization."""

    uid: Uid
    org: str
    attributes: Mapping[str, Value]
    parent: Uid | None = None
    parent_attributes: Mapping[str, Value] = field(default_factory=dict)
    number: int = -1
    volatile: frozenset[str] = frozenset()
    """The volatile context attributes that policies read for calls of it."""
    plain: Uid | None = None
    """For prompts, resources and templates: the id of a tool of that name. What is forbidden of the
    tool is forbidden of this."""

    @property
    def name(self) -> str:
        """The canonical name."""
        return str(self.attributes.get("name", self.uid[1]))

    @property
    def is_short(self) -> bool:
        """Whether to cache it: clients choose the URIs of resources, and thousands of long ones
        would fill the memory."""
        return len(self.uid[1]) <= LONGEST_KEPT

    @property
    def action(self) -> str:
        """The action of a call of it."""
        return A2A_INVOKE if self.uid[0] == "Skill" else MCP_CALL

    @property
    def ancestors(self) -> frozenset[Uid]:
        above = {("Org", self.org)} - {self.uid}
        return frozenset(above | {self.parent} if self.parent else above)

    def build_key(self, reads: PolicyReads) -> Hashable:
        own, theirs = self.attributes, self.parent_attributes
        if reads.opaque:
            return self.uid, self.parent, _select_values(own, own), _select_values(theirs, theirs)
        return (
            self.uid[0],
            self.uid if self.uid in reads.uids else None,
            self.plain if self.plain in reads.uids else None,
            self.parent and self.parent[0],
            self.ancestors & reads.uids,
            self.org,
            _select_values(own, reads.attributes),
            _select_values(theirs, reads.attributes),
        )

    def list_entities(self) -> Iterator[dict[str, Any]]:
        org = ("Org", self.org)
        yield _render_entity(org)
        if self.uid == org:
            return
        if self.parent is not None:
            yield _render_entity(self.parent, self.parent_attributes, [org])
        yield _render_entity(self.uid, self.attributes, [self.parent or org])


class PolicyRequest(NamedTuple):
    who: PrincipalEntity
    action: str
    what: ResourceEntity
    context: str
    """As JSON."""


def entity_from_principal(caller: Principal, facts: TargetFacts | None) -> PrincipalEntity:
    """`facts` are those of the target whose credential the principal uses, if any."""
    scopes = frozenset(caller.scopes)
    if caller.serves:
        if facts is None:
            raise LookupError(f'unknown target "{caller.serves}", whose credential was used')
        attributes = {
            **_build_agent_attributes(facts),
            "org": ("Org", caller.org),
            "has_key": caller.kind == KEY,
        }
        return PrincipalEntity((AGENT, caller.serves), caller.org, caller.roles, scopes, attributes)
    return PrincipalEntity(
        ("User", caller.label),
        caller.org,
        caller.roles,
        scopes,
        {"org": ("Org", caller.org), "kind": caller.kind, "owner": caller.behalf, "scopes": scopes},
    )


FindFlows = Callable[[Tool], tuple[frozenset[str], frozenset[str]]]
"""Returns the sources and the sinks of a tool."""


def find_declared_flows(tool: Tool) -> tuple[frozenset[str], frozenset[str]]:
    return tool.sources, tool.sinks


def entity_from_tool(
    tool: Tool, facts: TargetFacts, intact: bool, flows: FindFlows = find_declared_flows
) -> ResourceEntity:
    sources, sinks = flows(tool)
    attributes: dict[str, Value] = {
        "kind": tool.kind,
        "sink": sinks,
        "source": sources,
        "destructive": tool.destructive,
        "digest_ok": intact,
    }
    about = find_catalog_kind(tool.kind, tool.definition)
    return build_tool_entity(tool.name, tool.target.name, facts, about, attributes)


def build_tool_entity(
    name: str, target: str, facts: TargetFacts, about: str, own: Mapping[str, Value]
) -> ResourceEntity:
    """Builds the entity of a tool or skill. `about` is the kind that a call of it refers to; `own`
    are the attributes that do not follow from the other arguments."""
    parent = build_target_uid(facts, target)
    attributes: dict[str, Value] = {
        "org": ("Org", facts.org),
        "name": name,
        "target": target,
        "trust": facts.trust,
        **own,
    }
    type = "Tool"
    if facts.type == REMOTE_AGENT:
        type = "Skill"
        attributes["id"] = name
        attributes["agent"] = parent
    uid = type, build_entity_id(about, name)
    plain = (type, fold_id(name)) if uid[1] != name else None
    return ResourceEntity(
        uid, facts.org, attributes, parent, build_target_attributes(facts), plain=plain
    )


def entity_from_target(name: str, facts: TargetFacts) -> ResourceEntity:
    """Builds the entity of a target itself, for its discovery."""
    return ResourceEntity(build_target_uid(facts, name), facts.org, build_target_attributes(facts))


def entity_from_org(org: str) -> ResourceEntity:
    return ResourceEntity(("Org", org), org, {})


def build_target_uid(facts: TargetFacts, name: str) -> Uid:
    if facts.type not in KINDS:
        raise LookupError(f'the target "{name}" has an unknown type: {facts.type!r}')
    return facts.type, name


def build_target_attributes(facts: TargetFacts) -> dict[str, Value]:
    if facts.type == AGENT:
        return _build_agent_attributes(facts)
    found: dict[str, Value] = {"org": ("Org", facts.org), "trust": facts.trust}
    if facts.type == REMOTE_AGENT:
        return {**found, "signed_card": facts.signed, "healthy": facts.healthy}
    return {**found, "transport": facts.transport, "pinned": facts.pinned}


def _build_agent_attributes(facts: TargetFacts) -> dict[str, Value]:
    kind = KINDS.get(facts.type, "")
    return {"org": ("Org", facts.org), "trust": facts.trust, "kind": kind, "has_key": False}


def build_slice(who: PrincipalEntity, what: ResourceEntity) -> list[dict[str, Any]]:
    """Lists all entities of a request in Cedar's JSON form. If an agent calls itself, its entity is
    that of the principal."""
    found: dict[Uid, dict[str, Any]] = {}
    for entity in (*who.list_entities(), *what.list_entities()):
        found.setdefault((entity["uid"]["type"], entity["uid"]["id"]), entity)
    return list(found.values())


def check_writable(entities: Iterable[Mapping[str, Any]]) -> None:
    """Raises if the entities cannot be encoded for Cedar, such as a name with a lone surrogate. If
    no policy reads that, it would otherwise fail for some principals only."""
    json.dumps(list(entities), ensure_ascii=False).encode()


def render_reference(uid: Uid) -> dict[str, str]:
    """Renders a uid for a request. Never as text, where an id could end its own quotes."""
    return {"type": NAMESPACE + uid[0], "id": uid[1]}


def render_uid(uid: Uid) -> str:
    """Renders a uid as in a policy, for people."""
    quoted = uid[1].replace("\\", "\\\\").replace('"', '\\"')
    return f'{NAMESPACE}{uid[0]}::"{quoted}"'


def _render_entity(
    uid: Uid, attributes: Mapping[str, Value] | None = None, parents: Iterable[Uid] = ()
) -> dict[str, Any]:
    return {
        "uid": render_reference(uid),
        "attrs": {name: _render_value(value) for name, value in (attributes or {}).items()},
        "parents": [render_reference(parent) for parent in parents],
    }


def _render_value(value: Value) -> Any:
    if isinstance(value, tuple):
        return {"__entity": render_reference(value)}
    return sorted(value) if isinstance(value, frozenset) else value


def _select_values(attributes: Mapping[str, Value], names: Iterable[str]) -> Hashable:
    # With their types: True and 1 are one key in Python and two values in Cedar.
    return frozenset(
        (name, type(attributes[name]), attributes[name]) for name in names if name in attributes
    )
