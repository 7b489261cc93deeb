"""`@approval` on permits: when a call needs an approval, what lint says, and who may decide."""

from __future__ import annotations

import pytest

from dragoman.core.approvals import ApprovalRule
from dragoman.policy.loader import check_texts

pytestmark = pytest.mark.promise("U6")

CALLS = 'action in Hub::Action::"any_call"'
POLICIES = f"""
@id("dev") @approval("it changes production") @approvers("role:lead, key:anna") @expires("2h")
permit (principal in Hub::Role::"dev", {CALLS}, resource);
@id("ops") @approval("ops asks too") @approvers("role:ops") @expires("10m")
permit (principal in Hub::Role::"ops", {CALLS}, resource);
@id("reads") permit (principal in Hub::Role::"dev", {CALLS}, resource == Hub::Tool::"s.read");
@id("never") forbid (principal, {CALLS}, resource == Hub::Tool::"s.drop");
@id("unless") forbid (principal, {CALLS}, resource == Hub::Tool::"s.pay")
unless {{ context.approved }};
@id("everybody") permit (principal, {CALLS}, resource in Hub::Server::"bank");
@id("payments") @approval("it costs money") @approvers("role:cfo")
forbid (principal, {CALLS}, resource == Hub::Tool::"bank.pay")
unless {{ context.approved }};
@id("leads") permit (principal in Hub::Role::"lead", action == Hub::Action::"approve", resource);
@id("not-own") forbid (principal, action == Hub::Action::"approve", resource)
when {{ context.owner }};
"""
TESTS = """
[[tests]]
name = "a permit with @approval needs one"
caller = "key:a"
roles = ["dev"]
tool = "s.write"
expect = "approval"
by = ["dev"]
[[tests]]
name = "a plain permit that also applies is enough"
caller = "key:a"
roles = ["dev"]
tool = "s.read"
expect = "permit"
[[tests]]
name = "a forbid wins"
caller = "key:a"
roles = ["dev"]
tool = "s.drop"
expect = "deny"
by = ["never"]
[[tests]]
name = "what is forbidden unless approved needs an approval"
caller = "key:a"
roles = ["dev"]
tool = "s.pay"
expect = "approval"
[[tests]]
name = "and is denied to whom no permit with @approval allows it"
caller = "key:b"
tool = "s.pay"
expect = "deny"
[[tests]]
name = "a forbid with @approval needs no other permit"
caller = "key:b"
tool = "bank.pay"
expect = "approval"
by = ["everybody"]
[[tests]]
name = "and permits nothing by itself"
caller = "key:b"
tool = "s.pay"
context = { approved = true }
expect = "deny"
[[tests]]
name = "an approved call is judged again"
caller = "key:a"
roles = ["dev"]
tool = "s.drop"
context = { approved = true }
expect = "deny"
[[tests]]
name = "a lead may decide"
caller = "key:l"
roles = ["lead"]
tool = "s.write"
action = "approve"
expect = "permit"
[[tests]]
name = "but not what it asks for itself"
caller = "key:l"
roles = ["lead"]
tool = "s.write"
action = "approve"
context = { owner = true }
expect = "deny"
[[tests]]
name = "a step of a workflow has no tool"
caller = "key:l"
roles = ["lead"]
action = "approve"
expect = "permit"
"""


def test_golden_tests_know_approvals() -> None:
    checked = check_texts({"own.cedar": POLICIES, "own.toml": TESTS})
    assert checked.policy_set is not None, checked.findings
    assert all(one.passed for one in checked.outcomes) and len(checked.outcomes) == 11
    assert checked.policy_set.approvals["dev"] == ApprovalRule(
        "it changes production", ("role:lead", "key:anna"), 7_200.0
    )
    wrong = TESTS.replace('expect = "approval"', 'expect = "permit"', 1)
    failed = check_texts({"own.cedar": POLICIES, "own.toml": wrong})
    assert failed.policy_set is None
    assert "expected permit, got approval by dev" in str(failed.findings[-1])


def test_several_permits_accept_the_approver_of_any() -> None:
    from dragoman.policy.approvals import combine_rules

    rules = dict(check_texts({"own.cedar": POLICIES}).policy_set.approvals)  # type: ignore[union-attr]
    both = combine_rules(("dev", "ops"), rules)
    assert both == ApprovalRule(
        "it changes production; ops asks too", ("role:lead", "key:anna", "role:ops"), 600.0
    )
    assert combine_rules(("dev", "reads"), rules) is None and combine_rules((), rules) is None


@pytest.mark.parametrize(
    ("annotations", "effect", "said"),
    [
        ("@approval", "permit", "needs the reason"),
        ('@approval(" ")', "permit", "needs the reason"),
        ('@approval("x")', "forbid", "unless { context.approved }"),
        ('@approvers("role:a")', "permit", "@approval"),
        ('@expires("1h")', "permit", "@approval"),
        ('@approval("x") @expires("soon")', "permit", "invalid @expires"),
        ('@approval("x") @expires("31d")', "permit", "invalid @expires"),
        ('@approval("x") @approvers("role:, b")', "permit", "invalid @approvers"),
    ],
)
def test_lint_rejects_wrong_annotations(annotations: str, effect: str, said: str) -> None:
    text = f'@id("a") {annotations} {effect} (principal in Hub::Role::"x", {CALLS}, resource);'
    checked = check_texts({"own.cedar": text})
    assert checked.policy_set is None
    (found,) = [one for one in checked.findings if one.level == "error"]
    assert found.policy == "a" and said in found.words


def test_lint_warns_of_approval_without_effect() -> None:
    text = '@id("a") @approval("x") permit (principal, action == Hub::Action::"list", resource);'
    checked = check_texts({"own.cedar": text})
    assert checked.policy_set is not None
    assert "permits no calls" in checked.policy_set.warnings[0].words
