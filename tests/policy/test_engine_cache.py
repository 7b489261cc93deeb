"""Cached decisions equal fresh ones, and lists match calls."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.policy.policy_cases import AGENTS, agent, call, key, policies, skill, snapshot, tool

from dragoman.core.call import Call
from dragoman.core.ports import Decision
from dragoman.core.principal import Principal
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.policy.cedar import CedarEvaluator
from dragoman.policy.context import context_from_call
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.entities import LIST, PolicyRequest, entity_from_principal, entity_from_tool
from dragoman.policy.loader import load_policies
from dragoman.policy.policy_set import PolicySet

HEADS = {
    "principal": [
        "principal",
        'principal == Hub::User::"key:a"',
        'principal == Hub::Agent::"planner"',
        'principal in Hub::Role::"r"',
        'principal in Hub::Org::"default"',
        "principal is Hub::User",
        'principal is Hub::Agent in Hub::Role::"s"',
    ],
    "action": [
        'action in Hub::Action::"any_call"',
        'action == Hub::Action::"mcp_call"',
        'action == Hub::Action::"a2a_invoke"',
        'action in [Hub::Action::"mcp_call", Hub::Action::"a2a_invoke"]',
    ],
    "resource": [
        "resource",
        'resource == Hub::Tool::"fs.read"',
        'resource in Hub::Server::"fs"',
        'resource in Hub::RemoteAgent::"ops"',
        'resource in Hub::Agent::"planner"',
        "resource is Hub::Skill",
        'resource is Hub::Tool in Hub::Server::"git"',
    ],
}
SKILLS = ("resource", 'resource in Hub::RemoteAgent::"ops"', "resource is Hub::Skill")
FITTING = [  # a validator refuses what fits nothing
    f"{principal}, {action}, {resource}"
    for principal, action, resource in product(*HEADS.values())
    if not (action == HEADS["action"][1] and ("Remote" in resource or "Skill" in resource))
    and not (action == HEADS["action"][2] and resource not in SKILLS)
]
CONDITIONS = [
    "principal.org == resource.org",
    'principal.org == Hub::Org::"other"',
    "resource in principal.org",
    "principal is Hub::Agent && resource in principal",
    'principal has owner && principal.owner == "alice"',
    'principal.kind == "key"',
    'principal has scopes && principal.scopes.contains("x")',
    "principal has trust && principal.trust > 1",
    'context.scopes.contains("x")',
    "resource.trust > 1",
    "resource.destructive",
    'resource.sink.contains("net")',
    'resource.name like "fs.*"',
    'resource.target == "git"',
    "resource has agent && resource.agent.healthy",
    'resource has agent && resource.agent == Hub::RemoteAgent::"ops"',
    "resource has id && context.chain.contains(resource.id)",
    "context.cyclic",
    "context.depth > 0",
    'context.taints.contains("secret")',
    'context.via == "mcp-http"',
    'principal in Hub::Role::"s"',
    "[principal.org].contains(resource.org)",
    '(if principal is Hub::User then principal.kind else "agent") == "key"',
    'Hub::Role::"r" in Hub::Org::"default"',
    "resource.trust * 9223372036854775807 > 1",
    'context.args.contains("n=1")',
    'context.trace_id like "1*"',
    'context.now > datetime("2026-01-01")',
    'principal == Hub::User::"key:b"',
    'resource == Hub::Skill::"ops.run"',
    'resource.kind == "prompt"',
]


@st.composite
def sets(draw: st.DrawFn) -> str:
    found = []
    for number in range(draw(st.integers(1, 4))):
        head = draw(st.sampled_from(FITTING))
        effect = draw(st.sampled_from(["permit", "permit", "forbid"]))
        body = " && ".join(
            f"({one})" for one in draw(st.lists(st.sampled_from(CONDITIONS), max_size=2))
        )
        when = draw(st.sampled_from(["when", "unless"]))
        condition = f" {when} {{ {body} }}" if body else ""
        found.append(f'@id("p{number}") {effect} ({head}){condition};')
    found.append('@id("list") permit (principal, action == Hub::Action::"list", resource);')
    return "\n".join(found)


CALLERS = st.builds(
    lambda name, roles, scopes, behalf, org, serves: Principal(
        "key", name, org, roles=tuple(roles), scopes=tuple(scopes), behalf=behalf, serves=serves
    ),
    st.sampled_from("abc"),
    st.sets(st.sampled_from("rs")),
    st.sets(st.sampled_from("xy")),
    st.sampled_from(["", "alice"]),
    st.sampled_from(["default", "other"]),
    st.sampled_from(["", "", "planner", "ops"]),
)
SAME: dict[Hashable, Tool] = {}


def _tool(name: str, type: str, trust: int, healthy: bool, sink: str, kind: str, org: str) -> Tool:
    """The same object for the same arguments: a catalog offers a tool more than once."""
    key = name, type, trust, healthy, sink, kind, org
    if key not in SAME:
        SAME[key] = tool(
            name, type, trust=trust, healthy=healthy, sinks=frozenset({sink} - {""}), kind=kind,
            org=org, destructive=sink == "exec",
        )  # fmt: skip
    return SAME[key]


TOOLS = st.builds(
    _tool,
    st.sampled_from(["fs.read", "fs.write", "git.log", "ops.run", "planner.message"]),
    st.sampled_from(["Server", "RemoteAgent", "Agent"]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from(["", "net", "exec"]),
    st.sampled_from(["tool", "prompt"]),
    st.sampled_from(["default", "default", "other"]),
)
SITUATIONS = st.builds(
    lambda chain, labels, door, args, trace: {
        "chain": chain, "labels": labels, "door": door, "args": args, "trace": trace,
    },
    st.sampled_from([(), ("ops.run",), ("fs.read", "a.b")]),
    st.sampled_from([frozenset(), frozenset({"secret"}), frozenset({"untrusted_agent"})]),
    st.sampled_from(["mcp-http", "api"]),
    st.sampled_from([{}, {"n": 1}, {"n": 2}]),
    st.sampled_from(["1" * 32, "2" * 32]),
)  # fmt: skip


def uncached(engine: PolicyEngine, asked: Call) -> Decision:
    """By nothing that was kept, with the whole context as it is."""
    who = entity_from_principal(asked.principal, AGENTS.get(asked.principal.serves))
    what = entity_from_tool(asked.tool, asked.tool.target.traits.facts, True)
    context = context_from_call(asked, 5, 1.8e9).render(
        {"now", "args", "trace_id"}, asked.tool.name
    )
    return CedarEvaluator(engine.policy_set).decide(PolicyRequest(who, what.action, what, context))


def same(one: Decision, other: Decision) -> bool:
    return (one.allowed, set(one.policies), one.snapshot, bool(one.errors)) == (
        other.allowed,
        set(other.policies),
        other.snapshot,
        bool(other.errors),
    )


SLOW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.promise("R7")
@SLOW
@given(
    sets(),
    st.lists(CALLERS, min_size=2, max_size=6),
    st.lists(TOOLS, min_size=2, max_size=6),
    st.lists(SITUATIONS, min_size=1, max_size=3),
)
def test_cached_decision_equals_a_fresh_one(
    texts: str, callers: list[Principal], tools: list[Tool], situations: list[dict[str, Any]]
) -> None:
    engine = policies(snapshot(texts), clock=lambda: 1.8e9)
    for caller, one, situation in product(callers, tools, situations):
        asked = call(caller, one, **situation)
        assert same(engine.decide(asked), uncached(engine, asked))


CI, OTHER = key("ci"), key("other")
READ, RUN = tool("fs.read"), skill("ops.run")


@pytest.mark.promise("R7")
@pytest.mark.parametrize(
    ("condition", "yes", "no"),
    [
        ("principal.org == Hub::Org::\"default\"", call(CI, READ),
         call(key("ci", org="x"), tool("fs.read", org="x"))),
        ('principal == Hub::User::"key:ci"', call(CI, READ), call(OTHER, READ)),
        ('principal in Hub::Role::"r"', call(key("ci", "r"), READ), call(CI, READ)),
        ("principal is Hub::Agent", call(agent("ops"), READ), call(CI, READ)),
        ('principal has owner && principal.owner == "al"', call(key("ci", behalf="al"), READ),
         call(CI, READ)),
        ('principal has scopes && principal.scopes.contains("x")',
         call(key("ci", scopes=("x",)), READ), call(CI, READ)),
        ('context.scopes.contains("x")', call(key("ci", scopes=("x",)), READ), call(CI, READ)),
        ("principal has trust && principal.trust < 2", call(agent("mallory"), READ),
         call(agent("ops"), READ)),
        ('resource == Hub::Tool::"fs.read"', call(CI, READ), call(CI, tool("fs.write"))),
        ('resource in Hub::Server::"fs"', call(CI, READ), call(CI, tool("git.read"))),
        ('resource in Hub::RemoteAgent::"ops"', call(CI, RUN), call(CI, skill("dev.run"))),
        ('resource in Hub::Agent::"ops"', call(CI, tool("ops.message", "Agent")),
         call(CI, tool("ops.message"))),
        ('resource has agent && resource.agent == Hub::RemoteAgent::"ops"', call(CI, RUN),
         call(CI, skill("dev.run"))),
        ("resource has agent && resource.agent.healthy", call(CI, RUN),
         call(CI, skill("ops.run", healthy=False))),
        ("resource has agent && resource.agent.signed_card", call(CI, skill("o.x", signed=True)),
         call(CI, RUN)),
        ("resource.trust > 1", call(CI, READ), call(CI, tool("fs.read", trust=1))),
        ('resource.name like "fs.*"', call(CI, READ), call(CI, tool("git.log"))),
        ('resource.target == "fs"', call(CI, READ), call(CI, tool("git.log"))),
        ('resource.kind == "tool"', call(CI, READ), call(CI, tool("fs.read", kind="prompt"))),
        ('resource.source.contains("x")', call(CI, tool("fs.read", sources=frozenset({"x"}))),
         call(CI, READ)),
        ("!resource.destructive", call(CI, READ), call(CI, tool("fs.read", destructive=True))),
        ('context.via == "api"', call(CI, READ, door="api"), call(CI, READ)),
        ("context.depth == 0", call(CI, READ), call(CI, READ, chain=("a.b",))),
        ('context.chain.contains("a.b")', call(CI, READ, chain=("a.b",)),
         call(CI, READ, chain=("a.c",))),
        ('context.taints.contains("x")', call(CI, READ, labels=frozenset({"x"})), call(CI, READ)),
        ('context.args.contains("n=1")', call(CI, READ, args={"n": 1}), call(CI, READ)),
        ('context.trace_id like "1*"', call(CI, READ, trace="1" * 32), call(CI, READ)),
        # The whole context, so that the members read are unknown.
        ('(if principal is Hub::User then context else context).via == "api"',
         call(CI, READ, door="api"), call(CI, READ)),
        ('(if principal is Hub::User then context else context).trace_id like "1*"',
         call(CI, READ, trace="1" * 32), call(CI, READ)),
        ("resource in principal.org && principal is Hub::Agent && resource in principal",
         call(agent("ops"), tool("ops.message", "Agent")),
         call(agent("planner"), tool("ops.message", "Agent"))),
    ],
)  # fmt: skip
def test_cache_key_contains_everything_a_policy_reads(condition: str, yes: Call, no: Call) -> None:
    engine = policies(
        f'@id("a") permit (principal, action in Hub::Action::"any_call", resource) '
        f"when {{ {condition} }};"
    )
    for _ in range(2):
        assert engine.decide(yes).allowed
        assert not engine.decide(no).allowed


def test_agents_form_their_own_decision_groups() -> None:
    engine = policies(
        """
        @id("l") permit (principal, action == Hub::Action::"list", resource);
        @id("a") permit (principal is Hub::Agent, action in Hub::Action::"any_call", resource)
        when { resource in principal };
        """
    )
    own = tool("ops.message", "Agent")
    assert engine.can_see(agent("ops"), own, "api")
    assert not engine.can_see(agent("planner"), own, "api")
    assert engine.group_of_principal(agent("ops")) != engine.group_of_principal(agent("planner"))
    assert (
        engine.group_of_principal(CI)
        == engine.group_of_principal(OTHER)
        != engine.group_of_principal(agent("ops"))
    )


@SLOW
@given(sets(), st.lists(CALLERS, min_size=2, max_size=8), st.lists(TOOLS, min_size=1, max_size=8))
def test_principals_of_one_group_get_equal_decisions(
    texts: str, callers: list[Principal], tools: list[Tool]
) -> None:
    engine = policies(snapshot(texts), clock=lambda: 1.8e9)
    by_group: dict[Hashable, list[bool]] = {}
    for caller in callers:
        seen = [engine.copy_with(engine.policy_set).can_see(caller, one, "api") for one in tools]
        assert by_group.setdefault(engine.group_of_principal(caller), seen) == seen


@pytest.mark.promise("R7")
@SLOW
@given(sets(), CALLERS, st.lists(TOOLS, min_size=1, max_size=10))
def test_listed_tools_are_exactly_those_permitted_to_list_and_call(
    texts: str, caller: Principal, tools: list[Tool]
) -> None:
    lists = texts.replace(
        '@id("list") permit (principal,', '@id("list") permit (principal is Hub::User,'
    )
    engine = policies(snapshot(lists), clock=lambda: 1.8e9)
    for one in tools:
        fresh = CedarEvaluator(engine.policy_set)
        who, what = engine.find_principal(caller), engine.find_resource(one)
        listed = fresh.decide(PolicyRequest(who, LIST, what, "{}")).allowed
        first = uncached(engine, call(caller, one, door="api", trace="")).allowed
        assert engine.can_see(caller, one, "api") is (listed and first)
        assert engine.can_list(caller, one) is listed


def test_decision_is_shared_by_calls_that_no_policy_distinguishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = policies(load_policies(None))
    asked = 0
    ask = engine._active.evaluator._ask

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return ask(*args)

    monkeypatch.setattr(engine._active.evaluator, "_ask", counted)
    for caller in (key("a"), key("b"), key("c")):
        for name in ("fs.read", "fs.write", "git.log"):
            for trace in ("1" * 32, "2" * 32):
                asked_by = call(caller, tool(name), args={"n": name}, trace=trace, door=trace)
                assert engine.decide(asked_by).allowed
    assert asked == 1
    engine.decide(call(key("o", "owner"), tool("fs.read")))
    assert asked == 2


def test_role_change_invalidates_cached_decisions() -> None:
    engine = policies('@id("r") permit (principal in Hub::Role::"r", action, resource);')
    fs = tool("fs.read")
    assert not engine.decide(call(key("ci"), fs)).allowed
    assert engine.decide(call(key("ci", "r"), fs)).allowed
    assert not engine.decide(call(key("ci"), fs)).allowed


def test_changed_target_attributes_invalidate_decisions() -> None:
    engine = policies(
        '@id("h") permit (principal, action == Hub::Action::"a2a_invoke", resource) '
        "when { resource.agent.healthy };"
    )
    ops = skill("ops.run")
    assert engine.decide(call(key("ci"), ops)).allowed
    ops.target.traits = TargetTraits(facts=TargetFacts(type="RemoteAgent", healthy=False))
    assert not engine.decide(call(key("ci"), ops)).allowed


def test_changed_agent_trust_invalidates_decisions() -> None:
    facts = dict(AGENTS)
    engine = policies(
        '@id("t") permit (principal is Hub::Agent, action in Hub::Action::"any_call", resource) '
        "when { principal.trust > 1 };",
        facts=facts.get,
    )
    assert engine.decide(call(agent("planner"), tool("fs.read"))).allowed
    facts["planner"] = TargetFacts(type="Agent", trust=1)
    assert not engine.decide(call(agent("planner"), tool("fs.read"))).allowed


def test_modified_guardrails_are_detected_after_a_touch() -> None:
    intact = True
    engine = policies(load_policies(None), intact=lambda tool: intact)
    fs, version = tool("fs.read"), engine.version
    assert engine.decide(call(key("ci"), fs)).allowed
    intact = False
    engine.invalidate()
    assert engine.version > version
    assert engine.decide(call(key("ci"), fs)).policies == ("pin-mismatch",)


def test_time_dependent_policy_reads_the_clock_each_time() -> None:
    now = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()
    engine = policies(
        '@id("noon") permit (principal, action in Hub::Action::"any_call", '
        'resource == Hub::Tool::"fs.read") when { context.now < datetime("2026-11-15T12:00:30Z") };'
        '@id("rest") permit (principal, action in Hub::Action::"any_call", '
        'resource == Hub::Tool::"fs.write");',
        clock=lambda: now,
    )
    read, write = tool("fs.read"), tool("fs.write")
    version = engine.version
    assert engine.decide(call(key("ci"), read)).allowed
    assert engine.decide(call(key("ci"), write)).allowed
    assert engine.find_resource(read).volatile == {"now"}
    assert not engine.find_resource(write).volatile, "of other tools decisions are kept as before"
    now += 60
    assert not engine.decide(call(key("ci"), read)).allowed
    assert engine.version > version, "lists that were made before are made again"
    noon = next(one for one in engine.policy_set.policies if one.id == "noon")
    assert noon.uncached == ("context.now",)


def test_decision_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.policy.engine.MAX_KEPT", 50)
    monkeypatch.setattr("dragoman.policy.cedar.MAX_SLICES", 20)
    engine = policies(
        '@id("n") permit (principal, action in Hub::Action::"any_call", resource) '
        'when { resource.name like "*.even*" && context.scopes.isEmpty() };'
    )
    for round in range(2):
        for number in range(200):
            odd = "odd" if number % 2 else "even"
            caller = key(f"k{number}")
            decision = engine.decide(call(caller, tool(f"t.{odd}{number}")))
            assert decision.allowed is (odd == "even"), (round, number)
    force = engine._active
    kept = (force.decisions, force.principals, force.resources, force.numbers)
    assert max(len(one) for one in kept) <= 52
    assert len(force.evaluator._slices) <= 20


@pytest.mark.promise("R11")
async def test_each_decision_uses_one_policy_set_during_swaps() -> None:
    sets: list[PolicySet] = [
        snapshot(
            f'@id("p{number}") permit (principal, action in Hub::Action::"any_call", resource) '
            f'when {{ resource.trust > {number % 3} && !context.scopes.contains("o{number}") }};'
        )
        for number in range(50)
    ]
    engine = policies(sets[0])
    callers = [key(f"k{number}", scopes=(f"o{number}",)) for number in range(0, 50, 7)]
    tools = [tool("a.one", trust=1), tool("b.two", trust=2), skill("c.three", trust=3)]
    seen: list[tuple[Call, Decision]] = []
    loop = asyncio.get_running_loop()

    async def ask(number: int) -> None:
        asked = call(callers[number % len(callers)], tools[number % len(tools)])
        await asyncio.sleep(0)
        seen.append((asked, engine.decide(asked)))

    for one in sets:  # each in a thread of its own, amid the calls
        swapping = loop.run_in_executor(None, engine.swap, one)
        await asyncio.gather(swapping, *(ask(number) for number in range(300)))
    by_hash = {one.hash: engine.copy_with(one) for one in sets}
    assert len({decision.snapshot for _, decision in seen}) > 25
    checked: dict[tuple[str, Principal, str], Decision] = {}
    for asked, decision in seen:
        place = decision.snapshot, asked.principal, asked.tool.name
        if place not in checked:
            checked[place] = uncached(by_hash[decision.snapshot], asked)
        assert same(decision, checked[place])
