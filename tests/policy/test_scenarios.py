"""The table of decisions that the model was designed for, and everything that must be denied."""

from __future__ import annotations

import json
import logging

import pytest
from cedarpy import Entities
from tests.policy.policy_cases import agent, call, key, policies, skill, snapshot, tool

from dragoman.core.call import Call
from dragoman.core.ports import A2A_DISCOVER, TASK_READ
from dragoman.core.principal import LOCAL, OWNER
from dragoman.core.scopes import ADMIN
from dragoman.core.tool import DEFAULT_TRAITS, TargetFacts
from dragoman.policy.cedar import CedarEvaluator
from dragoman.policy.context import CallContext
from dragoman.policy.entities import (
    PolicyRequest,
    build_slice,
    entity_from_principal,
    entity_from_tool,
    render_reference,
)
from dragoman.policy.loader import load_policies

GRANTS = """
@id("org-default")
permit (principal, action in Hub::Action::"any_call", resource)
when { context.scopes.contains("hub:invoke") && !resource.destructive };
@id("operator")
permit (principal in Hub::Role::"operator", action in Hub::Action::"any_call", resource)
when { context.scopes.contains("hub:destructive") };
@id("list")
permit (principal, action == Hub::Action::"list", resource) when { principal.org == resource.org };
@id("no-secrets")
forbid (principal, action in Hub::Action::"any_call", resource)
when { resource.sink.contains("net") && context.labels.contains("secret") };
@id("no-strangers")
forbid (principal, action in Hub::Action::"any_call", resource)
when { resource.sink.contains("write") && context.taints.contains("untrusted_agent") }
unless { context has approved && context.approved };
"""

STATUS = skill("vercel_ops.status", sources=frozenset({"external_network"}))
DEPLOY = skill("vercel_ops.deploy", sinks=frozenset({"write"}), destructive=True)
MAIL = skill("mail.send", sinks=frozenset({"net"}))
PULLED = skill("rug.pull")
PLANNER = agent("planner", scopes=("hub:invoke",))
OPS = agent("ops", "operator", scopes=("hub:destructive",))
STEPS = ("a.one", "b.two", "c.three", "d.four", "e.five", "f.six")


@pytest.mark.promise("R7")
@pytest.mark.parametrize(
    ("asked", "allowed", "by"),
    [
        (call(PLANNER, STATUS), True, "org-default"),
        (call(agent("planner"), STATUS), False, None),
        (call(agent("mallory", scopes=("hub:invoke",), org="evil"), STATUS), False, "tenant-wall"),
        (call(PLANNER, STATUS, chain=STEPS[:5]), True, "org-default"),
        (call(PLANNER, STATUS, chain=STEPS), False, "depth-breaker"),
        (call(PLANNER, STATUS, chain=("vercel_ops.status",)), False, "cycle-breaker"),
        (call(PLANNER, MAIL, labels=frozenset({"secret"})), False, "no-secrets"),
        (call(PLANNER, PULLED), False, "pin-mismatch"),
        (call(PLANNER, DEPLOY), False, None),
        (call(OPS, DEPLOY), True, "operator"),
        (call(OPS, DEPLOY, labels=frozenset({"untrusted_agent"})), False, "no-strangers"),
    ],
)
def test_scenario_table_matches_decisions(asked: Call, allowed: bool, by: str | None) -> None:
    engine = policies(GRANTS, intact=lambda tool: tool is not PULLED)
    decision = engine.decide(asked)
    assert (decision.allowed, decision.errors) == (allowed, ())
    assert decision.policies == ((by,) if by else ())
    assert decision.snapshot == engine.policy_set.hash


@pytest.mark.promise("R7")
def test_approved_call_may_write_despite_taint() -> None:
    engine = policies(GRANTS)
    tainted = frozenset({"untrusted_agent"})
    first = engine.build_first_context(OPS, "mcp-http")
    for approved, allowed in ((False, False), (True, True)):
        context = CallContext(
            max_depth=5, labels=tainted, scopes=first.scopes, via=first.via, approved=approved
        )
        assert engine.decide_hypothetical(OPS, DEPLOY, context).allowed is allowed


@pytest.mark.promise("R7")
def test_unknown_principal_is_denied(caplog: pytest.LogCaptureFixture) -> None:
    engine = policies(GRANTS)
    ghost = agent("ghost", scopes=("hub:invoke",))
    with caplog.at_level(logging.WARNING):
        decision = engine.decide(call(ghost, STATUS))
    assert not decision.allowed
    assert "ghost" in decision.errors[0]
    assert "ghost" in caplog.text
    assert not engine.can_list(ghost, STATUS)
    assert not engine.can_see(ghost, STATUS, "mcp-http")
    assert not engine.decide_action(ghost, ADMIN).allowed


@pytest.mark.promise("R7")
@pytest.mark.parametrize("missing", ["principal", "resource"])
def test_missing_entity_denies(missing: str) -> None:
    # What is said about it only fails, and a policy that fails is none: the permit would be left.
    every = '@id("a") permit (principal, action == Hub::Action::"mcp_call", resource);'
    fs = tool("fs.read")
    who, what = (
        entity_from_principal(key("ci"), None),
        entity_from_tool(fs, fs.target.traits.facts, True),
    )
    context = CallContext(max_depth=5).render((), "")
    assert (
        CedarEvaluator(snapshot(every))
        .decide(PolicyRequest(who, "mcp_call", what, context))
        .allowed
    )
    judge = CedarEvaluator(snapshot(every))
    gone = render_reference(who.uid if missing == "principal" else what.uid)
    left = [entity for entity in build_slice(who, what) if entity["uid"] != gone]
    judge._slices[who, what] = Entities.from_json_str(json.dumps(left))
    decision = judge.decide(PolicyRequest(who, "mcp_call", what, context))
    assert not decision.allowed
    assert decision.errors or decision.policies == ("tenant-wall",)


@pytest.mark.promise("R7")
@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": "0"},
        {"depth": 0.5},
        {"depth": None},
        {"depth": 2**63},
        {"chain": "a.one"},
        {"approved": "yes"},
        {"now": 3},
        {"more": True},
        {"args": {"deep": json.loads("[" * 400 + "]" * 400)}},
    ],
)
def test_malformed_context_denies(wrong: dict[str, object]) -> None:
    judge = CedarEvaluator(snapshot(GRANTS))
    who = entity_from_principal(OPS, TargetFacts(type="Agent"))
    what = entity_from_tool(DEPLOY, DEPLOY.target.traits.facts, True)
    fits = json.loads(CallContext(max_depth=5, scopes=frozenset(OPS.scopes)).render((), ""))
    assert judge.decide(PolicyRequest(who, "a2a_invoke", what, json.dumps(fits))).allowed
    decision = judge.decide(PolicyRequest(who, "a2a_invoke", what, json.dumps({**fits, **wrong})))
    assert not decision.allowed
    assert decision.errors


@pytest.mark.promise("R7")
@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"depth": 1}'])
def test_missing_context_denies(text: str) -> None:
    judge = CedarEvaluator(snapshot(GRANTS))
    who = entity_from_principal(OPS, TargetFacts(type="Agent"))
    what = entity_from_tool(DEPLOY, DEPLOY.target.traits.facts, True)
    assert judge.decide(PolicyRequest(who, "a2a_invoke", what, text)).errors


@pytest.mark.promise("R7")
def test_policy_error_denies_despite_another_permit() -> None:
    overflow = """
    @id("all") permit (principal, action in Hub::Action::"any_call", resource);
    @id("broken") forbid (principal, action in Hub::Action::"any_call", resource)
    when { resource.trust * 9223372036854775807 > 1 };
    """
    engine = policies(overflow)
    assert engine.decide(call(key("ci"), tool("fs.read", trust=1))).policies == ("broken",)
    decision = engine.decide(call(key("ci"), tool("fs.read", trust=2)))
    assert not decision.allowed
    assert "overflow" in decision.errors[0]


@pytest.mark.promise("R7")
def test_engine_failure_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise RuntimeError("out of order")

    engine = policies(GRANTS)
    monkeypatch.setattr(engine._active.evaluator, "_ask", broken)
    decision = engine.decide(call(PLANNER, STATUS))
    assert not decision.allowed
    assert decision.errors == ("RuntimeError: out of order",)
    assert not engine.can_see(PLANNER, STATUS, "mcp-http")
    monkeypatch.undo()
    assert engine.decide(call(PLANNER, STATUS)).allowed, "what could not be decided is not kept"


PERMISSIVE = '@id("all") permit (principal, action, resource) when { principal has org };'


@pytest.mark.promise("R7")
@pytest.mark.parametrize("mode", ["enforce", "shadow"])
@pytest.mark.parametrize("part", ["facts", "intact", "flows"])
def test_a_failure_around_the_evaluator_denies(
    part: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> object:
        raise RuntimeError("out of order")

    assert policies(PERMISSIVE, mode=mode).decide(call(PLANNER, STATUS)).allowed
    engine = policies(PERMISSIVE, mode=mode, **{part: fail})
    decided = [
        engine.decide(call(PLANNER, STATUS)),
        engine.decide_first(PLANNER, STATUS, "mcp-http"),
        engine.decide_action(PLANNER, TASK_READ, STATUS, owner=True),
    ]
    for decision in decided:
        assert not decision.allowed and decision.errors == ("RuntimeError: out of order",)
    assert not engine.can_list(PLANNER, STATUS)
    assert not engine.can_see(PLANNER, STATUS, "mcp-http")
    if part == "facts":
        assert engine.group_of_principal(PLANNER) == (PLANNER, "undecided")
    elif mode == "enforce":
        assert engine.reads_arguments(STATUS), "in doubt, arguments count"
    assert "denied, because the decision failed" in caplog.text


@pytest.mark.promise("R7")
@pytest.mark.parametrize(
    "name",
    [
        'x" || true',
        'owner:owner" ] ; permit(principal,action,resource);//',
        "x\n]; permit",
        "\u043ewner:owner",
        "\\",
        "a\x00b",
    ],
)
def test_names_cannot_inject_policy_text(name: str) -> None:
    engine = policies(
        """
        @id("one") permit (principal == Hub::User::"key:x", action, resource);
        @id("other") permit (principal, action in Hub::Action::"any_call",
                             resource == Hub::Tool::"fs.x");
        """
    )
    assert engine.decide(call(key("x"), tool("fs.read"))).allowed
    assert engine.decide(call(key("y"), tool("fs.x"))).allowed
    odd = engine.decide(call(key(name), tool("fs.read")))
    assert (odd.allowed, odd.policies, odd.errors) == (False, (), ())
    odd = engine.decide(call(key("y"), tool(f"fs.{name}")))
    assert (odd.allowed, odd.policies, odd.errors) == (False, (), ())


def test_unrepresentable_name_denies_for_every_principal() -> None:
    engine = policies(GRANTS)
    assert engine.decide(call(key("ci", scopes=("hub:invoke",)), STATUS)).allowed
    half = engine.decide(call(key("ci\ud800", scopes=("hub:invoke",)), STATUS))
    assert not half.allowed
    assert half.errors
    assert not engine.decide(call(key("ci", scopes=("hub:invoke",)), skill("a.b\udfff"))).allowed


def test_unknown_target_type_denies() -> None:
    engine = policies(load_policies(None))
    assert not engine.decide(call(OWNER, tool("fs.read", "Oracle"))).allowed


def test_target_without_attributes_is_an_external_server() -> None:
    engine = policies(
        '@id("a") permit (principal, action in Hub::Action::"any_call", resource) '
        "when { resource.trust >= 2 };"
    )
    silent = tool("fs.read")
    silent.target.traits = DEFAULT_TRAITS
    assert not engine.decide(call(OWNER, silent)).allowed
    assert engine.decide(call(OWNER, tool("fs.read"))).allowed


@pytest.mark.promise("R7")
def test_default_policies_permit_use_and_reserve_admin_for_the_owner() -> None:
    engine = policies(load_policies(None))
    fs, deploy = tool("fs.read"), skill("vercel_ops.deploy", destructive=True)
    assert engine.policy_set.default
    for caller in (OWNER, LOCAL, key("ci"), agent("planner")):
        for one in (fs, deploy):
            assert engine.decide(call(caller, one)).allowed
            assert engine.can_see(caller, one, "mcp-http")
            assert engine.decide_action(caller, TASK_READ, one, owner=True).allowed
        assert engine.decide_action(caller, A2A_DISCOVER, deploy).allowed
        assert engine.decide_action(caller, A2A_DISCOVER, tool("planner.message", "Agent")).allowed
    assert engine.decide_action(OWNER, ADMIN).allowed
    assert engine.decide_action(LOCAL, ADMIN).allowed
    assert not engine.decide_action(key("ci"), ADMIN).allowed
    assert not engine.decide_action(agent("planner"), ADMIN).allowed
    stranger = key("eve", "owner", org="evil")
    assert engine.decide(call(stranger, fs)).policies == ("tenant-wall",)
    assert not engine.can_see(stranger, fs, "mcp-http")
    assert not engine.decide_action(stranger, ADMIN).allowed
    assert not engine.decide_action(stranger, A2A_DISCOVER, deploy).allowed


def test_invalid_action_or_empty_resource_is_denied() -> None:
    engine = policies(load_policies(None))
    assert not engine.decide_action(OWNER, "everything").allowed
    assert not engine.decide_action(OWNER, TASK_READ).allowed
    assert not engine.decide_action(OWNER, "mcp_call", tool("fs.read")).allowed


def test_tasks_of_other_principals_can_be_denied() -> None:
    engine = policies(
        '@id("own") permit (principal, action == Hub::Action::"task_read", resource) '
        "when { context.owner };"
    )
    fs = tool("fs.read")
    assert engine.decide_action(key("ci"), TASK_READ, fs, owner=True).allowed
    assert not engine.decide_action(key("ci"), TASK_READ, fs, owner=False).allowed
    assert not engine.decide_action(key("ci"), TASK_READ, fs).allowed


def test_configured_depth_limit_applies() -> None:
    deep = call(OWNER, tool("fs.read"), chain=STEPS)
    assert not policies(load_policies(None)).decide(deep).allowed
    assert policies(load_policies(None), depth=6).decide(deep).allowed


def test_shadow_mode_enforces_only_guardrails_and_reports_the_rest() -> None:
    engine = policies(
        '@id("only") permit (principal == Hub::User::"key:ci", action, resource);', mode="shadow"
    )
    fs = tool("fs.read")
    allowed = engine.decide(call(key("ci"), fs))
    assert allowed.allowed
    assert allowed.shadow is not None
    assert (allowed.shadow.allowed, allowed.shadow.policies) == (True, ("only",))
    would = engine.decide(call(key("other"), fs))
    assert would.allowed
    assert would.shadow is not None
    assert (would.shadow.allowed, would.shadow.policies) == (False, ())
    assert engine.can_see(key("other"), fs, "mcp-http")
    held = engine.decide(call(key("ci"), fs, chain=STEPS))
    assert not held.allowed
    assert held.policies == ("depth-breaker",)


def test_shadow_mode_ignores_denials_based_on_arguments() -> None:
    rule = """@id("no") forbid (principal, action in Hub::Action::"any_call", resource)
        when { context.args.contains("force=true") };"""
    assert policies(rule).reads_arguments(tool("fs.read"))
    shadow = policies(rule, mode="shadow")
    assert not shadow.reads_arguments(tool("fs.read"))
    guardrails = [one for one in shadow.policy_set.policies if one.guardrail]
    assert guardrails and not any("args" in one.read.context for one in guardrails)


def test_shadow_mode_enforces_admin_decisions() -> None:
    engine = policies(
        '@id("only") permit (principal == Hub::User::"key:ci", action, resource);', mode="shadow"
    )
    assert engine.decide_action(key("ci"), ADMIN).allowed
    assert not engine.decide_action(key("other"), ADMIN).allowed


def test_invalid_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy mode"):
        policies(load_policies(None), mode="off")


def test_policies_read_all_arguments() -> None:
    engine = policies(
        """
        @id("staging") permit (principal, action in Hub::Action::"any_call", resource)
        when { ["env=staging", "n=2", "dry=true"].containsAll(context.args) };
        """
    )
    fs = tool("fs.read")

    def may(args: dict[str, object]) -> bool:
        return engine.decide(call(key("ci"), fs, args=args)).allowed

    assert may({"env": "staging", "n": 2, "dry": True})
    assert may({})
    assert not may({"env": "production"})
    assert not may({"env": "staging", "n": 2.5})
    assert not may({"env": "staging", "more": None})
    assert not may({"env": "staging", "list": ["x"]})
    assert not may({"env": "staging", "long": "x" * 5000})
    assert not may({"env": "staging", "odd\ud800": 1})
    assert not may({f"n{number}": 1 for number in range(500)})


def test_argument_names_cannot_collide() -> None:
    engine = policies(
        """
        @id("q") permit (principal, action in Hub::Action::"any_call", resource)
        when { context.args.contains("q=a=b") };
        """
    )
    assert engine.decide(call(key("ci"), tool("fs.read"), args={"q": "a=b"})).allowed
    assert not engine.decide(call(key("ci"), tool("fs.read"), args={"q=a": "b"})).allowed
    # An argument that is cut is equal to no text that a policy may have.
    long = "q=" + "x" * 254
    engine = policies(
        f'@id("q") permit (principal, action in Hub::Action::"any_call", resource) '
        f'when {{ context.args.contains("{long}") }};'
    )
    assert engine.decide(call(key("ci"), tool("fs.read"), args={"q": "x" * 254})).allowed
    assert not engine.decide(call(key("ci"), tool("fs.read"), args={"q": "x" * 255})).allowed


def test_agent_can_be_restricted_to_its_own_tools() -> None:
    engine = policies(
        '@id("self") permit (principal is Hub::Agent, action in Hub::Action::"any_call", resource) '
        "when { resource in principal };"
    )
    own, other = tool("planner.message", "Agent"), tool("ops.message", "Agent")
    for _ in range(2):
        assert engine.decide(call(agent("planner"), own)).allowed
        assert not engine.decide(call(agent("planner"), other)).allowed
        assert engine.decide(call(agent("ops"), other)).allowed
        assert not engine.decide(call(agent("ops"), own)).allowed
