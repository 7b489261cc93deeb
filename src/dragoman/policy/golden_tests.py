"""Golden tests: expected decisions of a policy set, written beside it as `[[tests]]` in a TOML
file. A set that fails one is not activated.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dragoman.core.errors import InvalidInput
from dragoman.core.ports import (
    A2A_DISCOVER,
    ADMIN_ACTIONS,
    TASK_CANCEL,
    TASK_READ,
    Decision,
)
from dragoman.core.principal import Principal
from dragoman.core.scopes import APPROVE
from dragoman.core.tool import TOOL, TRUSTED, TargetFacts
from dragoman.policy import entities
from dragoman.policy.analysis import VOLATILE
from dragoman.policy.cedar import CedarEvaluator, decide_call, decide_right
from dragoman.policy.context import OWNER_CONTEXT, CallContext, context_from_input
from dragoman.policy.ids import build_entity_id, find_catalog_kind, fold_entity_id, split_id

MAX_TESTS = 2_000
PERMIT, DENY, APPROVAL = "permit", "deny", "approval"


class TestedResource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tested resource: its attributes and those of its server or agent."""

    org: str = "default"
    target: str = ""
    """The name of its server or agent; by default the part before the first dot."""
    type: Literal["", "Server", "RemoteAgent", "Agent"] = ""
    kind: str = TOOL
    trust: int = TRUSTED
    transport: str = ""
    pinned: bool = True
    signed_card: bool = False
    healthy: bool = True
    sink: list[str] = []
    source: list[str] = []
    destructive: bool = False
    digest_ok: bool = True


class GoldenTest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    expect: Literal["permit", "deny", "approval"]
    """`approval`: permitted, but only with the approval of a person."""
    caller: str = ""
    """`key:ci`, as in the audit."""
    agent: str = ""
    """Instead of a caller: the target whose credential is used."""
    agent_trust: int = TRUSTED
    org: str = "default"
    roles: list[str] = []
    scopes: list[str] = []
    owner: str = ""
    action: Literal[
        "call",
        "list",
        "a2a_discover",
        "task_read",
        "task_cancel",
        "approve",
        "admin",
        "registry",
        "policies",
        "workflows",
        "pins",
        "users",
    ] = "call"
    tool: str = ""
    skill: str = ""
    resource: TestedResource = TestedResource()
    context: dict[str, Any] = {}
    by: list[str] = []
    """Ids that must be among the deciding policies."""


class _TestFile(Struct, frozen=True, forbid_unknown_fields=True):
    tests: list[GoldenTest] = []


@dataclass(frozen=True, slots=True)
class TestOutcome:
    name: str
    file: str
    passed: bool
    words: str
    """The expected and the actual decision; empty if it passed."""


def parse_tests(text: str) -> list[GoldenTest]:
    """Parses a test file. Raises ValueError if it is invalid."""
    found = msgspec.convert(tomllib.loads(text), _TestFile).tests
    if len(found) > MAX_TESTS:
        raise ValueError(f"too many tests: {len(found)}, and at most {MAX_TESTS} are supported")
    return found


def run_tests(judge: CedarEvaluator, file: str, tests: list[GoldenTest]) -> Iterator[TestOutcome]:
    for test in tests:
        try:
            words = _describe_difference(test, _decide(judge, test))
        except (InvalidInput, LookupError) as error:
            words = str(error)
        yield TestOutcome(test.name, file, not words, words)


def _decide(judge: CedarEvaluator, test: GoldenTest) -> Decision:
    who, on = _build_principal(test), _build_resource(test)
    action, context = test.action, "{}"
    if action == "call":
        first = CallContext(max_depth=5, scopes=who.scopes)
        asked = context_from_input(test.context, first)
        return decide_call(judge.decide, judge.policy_set, who, on, asked, VOLATILE)
    if action in (TASK_READ, TASK_CANCEL, APPROVE):
        context = OWNER_CONTEXT[test.context.get("owner") is True]
    request = entities.PolicyRequest(who, action, on, context)
    if action in ADMIN_ACTIONS:
        return decide_right(lambda part: judge.decide(request._replace(action=part)), action)
    return judge.decide(request)


def _describe_difference(test: GoldenTest, came: Decision) -> str:
    said = APPROVAL if came.approval is not None else PERMIT if came.allowed else DENY
    by = f" by {', '.join(came.policies)}" if came.policies else ""
    if came.errors:
        by = f" after an error: {came.errors[0]}"
    if said != test.expect:
        return f"expected {test.expect}, got {said}{by}"
    missing = [id for id in test.by if id not in came.policies]
    if missing:
        return f"expected {said} by {', '.join(missing)}, got {said}{by}"
    return ""


def _build_principal(test: GoldenTest) -> entities.PrincipalEntity:
    if bool(test.caller) == bool(test.agent):
        raise InvalidInput("a test names either a caller or an agent")
    kind, _, id = test.caller.partition(":")
    caller = Principal(
        kind,
        id or kind,
        test.org,
        roles=tuple(test.roles),
        scopes=tuple(test.scopes),
        behalf=test.owner,
        serves=test.agent,
    )
    return entities.entity_from_principal(
        caller, TargetFacts(type=entities.AGENT, org=test.org, trust=test.agent_trust)
    )


def _build_resource(test: GoldenTest) -> entities.ResourceEntity:
    if test.action in ADMIN_ACTIONS or (
        test.action == APPROVE and not test.tool and not test.skill
    ):
        return entities.entity_from_org(test.resource.org)
    if bool(test.tool) == bool(test.skill):
        raise InvalidInput(f'a test of "{test.action}" names either a tool or a skill')
    on = test.resource
    kind, name = split_id(test.tool or test.skill)
    if kind == TOOL:
        kind = on.kind
    about = find_catalog_kind(kind, {})
    name = split_id(fold_entity_id(build_entity_id(about, name)))[1]
    facts = TargetFacts(
        type=entities.REMOTE_AGENT if test.skill else on.type or entities.SERVER,
        org=on.org,
        trust=on.trust,
        transport=on.transport,
        signed=on.signed_card,
        healthy=on.healthy,
        pinned=on.pinned,
    )
    target = on.target or name.partition(".")[0]
    if test.action == A2A_DISCOVER:
        return entities.entity_from_target(target, facts)
    attributes: dict[str, entities.Value] = {
        "kind": kind,
        "sink": frozenset(on.sink),
        "source": frozenset(on.source),
        "destructive": on.destructive,
        "digest_ok": on.digest_ok,
    }
    return entities.build_tool_entity(name, target, facts, about, attributes)
