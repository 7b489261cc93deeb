"""Principals, tools and calls for the policy tests, as the pipeline passes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from dragoman.core.call import Call, Result
from dragoman.core.principal import Principal
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.core.trace import Trace
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.loader import check_texts
from dragoman.policy.policy_set import PolicySet


@dataclass
class FakeTarget:
    name: str
    traits: TargetTraits

    async def run(self, call: Call) -> Result:
        return Result()


def tool(name: str, type: str = "Server", *, kind: str = "tool", **more: Any) -> Tool:
    """`more` are the tool's sources, sinks and destructive, and the target's facts."""
    own = {key: more.pop(key) for key in ("sources", "sinks", "destructive") if key in more}
    target = FakeTarget(name.partition(".")[0], TargetTraits(facts=TargetFacts(type=type, **more)))
    return Tool(name=name, alias=name, remote_name=name, kind=kind, target=target, **own)


def skill(name: str, **more: Any) -> Tool:
    return tool(name, "RemoteAgent", **more)


def key(name: str, *roles: str, scopes: tuple[str, ...] = (), **more: Any) -> Principal:
    return Principal("key", name, more.pop("org", "default"), roles=roles, scopes=scopes, **more)


def agent(name: str, *roles: str, scopes: tuple[str, ...] = (), org: str = "default") -> Principal:
    return Principal("key", f"for-{name}", org, roles=roles, scopes=scopes, serves=name)


def call(
    caller: Principal,
    tool: Tool,
    *,
    chain: tuple[str, ...] = (),
    labels: frozenset[str] = frozenset(),
    args: Mapping[str, Any] | None = None,
    door: str = "mcp-http",
    trace: str = "0" * 32,
) -> Call:
    above = SimpleNamespace(labels=labels)
    return Call(
        principal=caller,
        tool=tool,
        requested_name=tool.name,
        arguments=args or {},
        trace=Trace(trace, chain, "1" * 16, tool.name, "", above),
        door=door,
    )


def snapshot(*policies: str, **files: str) -> PolicySet:
    texts = {"own.cedar": "\n".join(policies), **files}
    checked = check_texts(texts)
    assert checked.policy_set is not None, "\n".join(str(one) for one in checked.findings)
    return checked.policy_set


AGENTS = {
    "planner": TargetFacts(type="Agent"),
    "ops": TargetFacts(type="Agent"),
    "mallory": TargetFacts(type="RemoteAgent", trust=1),
}


def policies(
    of: PolicySet | str, *, mode: str = "enforce", facts: Any = AGENTS.get, **more: Any
) -> PolicyEngine:
    found = snapshot(of) if isinstance(of, str) else of
    intact = more.pop("intact", lambda tool: True)
    return PolicyEngine(found, facts=facts, intact=intact, mode=mode, **more)
