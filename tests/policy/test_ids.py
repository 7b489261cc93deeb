"""Policies apply to every spelling of a name, and to one kind of entry."""

from __future__ import annotations

import pytest
from tests.policy.policy_cases import call, key, policies, snapshot, tool

from dragoman.policy.ids import fold_entity_id, fold_text
from dragoman.policy.loader import check_texts
from dragoman.policy.policy_set import ERROR, WARNING
from dragoman.policy.queries import explain

pytestmark = pytest.mark.promise("R7")

ALL = '@id("all") permit (principal in Hub::Role::"r", action, resource);\n'
CI = key("ci", "r")


def forbid(resource: str, when: str = "") -> str:
    head = f'@id("no") forbid (principal, action in Hub::Action::"any_call", {resource})'
    return f"{ALL}{head}{when};"


@pytest.mark.parametrize(
    ("id", "folded"),
    [
        ("github.get_user", "github.get_user"),
        ("Git-Hub.getUser", "Git-Hub.getuser"),
        ("s.delete-all", "s.delete_all"),
        ("s.a.b/c d", "s.a_b_c_d"),
        ("prompt:s.Re-View", "prompt:s.re_view"),
        ("resource:s.file:///A-b", "resource:s.file:///A-b"),
        ("template:s.file:///{Path}", "template:s.file:///{Path}"),
        ("nothing", "nothing"),
    ],
)
def test_ids_are_case_folded_and_uris_are_not(id: str, folded: str) -> None:
    assert fold_entity_id(id) == folded
    assert fold_entity_id(folded) == folded


@pytest.mark.parametrize(
    "text",
    [
        forbid('resource == Hub::Tool::"s.Delete-All"'),
        forbid('resource == Hub::Tool :: "s.delete_all"'),
        forbid("resource", ' when { resource == Hub::Tool::"s.DELETE_ALL" }'),
        forbid("resource", ' when { resource in [Hub::Tool::"s.x", Hub::Tool::"s.delete.all"] }'),
        forbid('resource == Hub::Tool::"s.\\u{44}elete_all"'),
    ],
)
def test_a_forbid_holds_for_every_spelling(text: str) -> None:
    judge = policies(text)
    assert judge.decide(call(CI, tool("s.delete_all"))).policies == ("no",)
    assert judge.decide(call(CI, tool("s.delete_al"))).allowed
    told = explain(judge, CI, "call", tool("s.delete_all"))
    assert told["decision"] == "deny" and [one["id"] for one in told["forbids"]] == ["no"]


@pytest.mark.parametrize(
    ("condition", "right"),
    [
        ('resource.name == "s.getUser"', "s.getuser"),
        ('"s.get-user" == resource.name', "s.get_user"),
        ('resource.name != "s.getUser"', "s.getuser"),
        ('["s.ok", "s.Not"].contains(resource.name)', "s.not"),
        ('resource.name like "s.get-*"', "s.get_*"),
        ('resource.name like "*.Delete*"', "*.delete*"),
        ('resource.name like "*Delete*"', "*delete*"),
        ('context.chain.contains("s.getUser")', "s.getuser"),
        ('context.chain.containsAny(["s.x", "s.Y"])', "s.y"),
    ],
)
def test_impossible_name_is_an_error_with_a_suggestion(condition: str, right: str) -> None:
    checked = check_texts({"own.cedar": forbid("resource", f" when {{ {condition} }}")})
    assert checked.policy_set is None
    (finding,) = checked.findings
    assert finding.level == ERROR and f'write "{right}"' in finding.words
    wrong = next(part for part in condition.split('"')[1::2] if fold_text(part) != part)
    mended = forbid("resource", f" when {{ {condition.replace(wrong, right)} }}")
    assert check_texts({"own.cedar": mended}).policy_set is not None


@pytest.mark.parametrize(
    "condition",
    [
        'resource.name == "Git-Hub.get_user"',
        'resource.name like "Git-Hub.*"',
        'resource.name like "GitHub*"',
        'resource.name like "docs.file:///Users/*"',
        'resource.name == "docs.README:1"',
        'resource.target == "Git-Hub"',
        'context.args.contains("name=Some-Body")',
    ],
)
def test_server_names_uris_and_arguments_keep_their_spelling(condition: str) -> None:
    assert check_texts({"own.cedar": forbid("resource", f" when {{ {condition} }}")}).policy_set


def test_permit_for_a_tool_does_not_cover_a_prompt_or_resource_of_its_name() -> None:
    judge = policies(
        '@id("ok") permit (principal, action in [Hub::Action::"any_call", Hub::Action::"list"], '
        'resource == Hub::Tool::"s.ok");\n'
        '@id("read") permit (principal, action, resource == Hub::Tool::"resource:s.x://A");'
    )
    assert judge.decide(call(CI, tool("s.ok"))).allowed
    for kind in ("prompt", "resource", "template", "subscription", "completion"):
        other = tool("s.ok", kind=kind)
        assert not judge.decide(call(CI, other)).allowed and not judge.can_list(CI, other)
    for kind in ("resource", "subscription"):
        assert judge.decide(call(CI, tool("s.x://A", kind=kind))).policies == ("read",)
        assert not judge.decide(call(CI, tool("s.x://a", kind=kind))).allowed


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        (forbid('resource == Hub::Tool::"s.Ask"'), "s.ask", "prompt"),
        (forbid('resource == Hub::Tool::"s.x://A/b"'), "s.x://A/b", "resource"),
        (forbid("resource", ' when { resource in [Hub::Tool::"s.x://A"] }'), "s.x://A", "template"),
        (
            '@id("all") permit (principal, action in Hub::Action::"any_call", resource) '
            'unless { resource == Hub::Tool::"s.ask" };',
            "s.ask",
            "prompt",
        ),
    ],
)
def test_older_forbid_without_a_kind_still_applies(text: str, name: str, kind: str) -> None:
    judge = policies(text)
    assert not judge.decide(call(CI, tool(name, kind=kind))).allowed
    assert judge.decide(call(CI, tool("s.other", kind=kind))).allowed
    assert explain(judge, CI, "call", tool(name, kind=kind))["decision"] == "deny"


def test_permits_for_a_tool_and_a_prompt_of_one_name_are_separate() -> None:
    judge = policies(
        '@id("a") permit (principal == Hub::User::"key:a", action, resource == Hub::Tool::"s.x");'
        '@id("b") permit (principal == Hub::User::"key:b", action, '
        'resource == Hub::Tool::"prompt:s.x");'
    )
    decided = {
        (who, kind): judge.decide(call(key(who), tool("s.x", kind=kind))).allowed
        for who in "ab"
        for kind in ("tool", "prompt")
    }
    assert decided == {
        ("a", "tool"): True, ("a", "prompt"): False, ("b", "tool"): False, ("b", "prompt"): True,
    }  # fmt: skip


def test_linter_suggests_the_id_of_the_right_kind() -> None:
    def known(type: str, id: str) -> bool | str:
        return "prompt:s.ask" if id == "s.ask" else True

    checked = check_texts({"own.cedar": forbid('resource == Hub::Tool::"s.Ask"')}, known)
    (finding,) = checked.findings
    assert finding.level == WARNING
    assert finding.words == (
        'it names Tool::"s.Ask", but that is the name of a prompt: write '
        'Hub::Tool::"prompt:s.ask"; it is forbidden anyway'
    )


def test_golden_decisions_accept_any_spelling() -> None:
    golden = """
[[tests]]
name = "spelled"
caller = "key:ci"
roles = ["r"]
tool = "s.Delete-All"
expect = "deny"
[[tests]]
name = "a prompt by its id"
caller = "key:ci"
roles = ["r"]
tool = "prompt:s.Other"
expect = "permit"
[[tests]]
name = "by its kind"
caller = "key:ci"
roles = ["r"]
tool = "s.delete_all"
resource = { kind = "prompt" }
expect = "deny"
"""
    assert snapshot(forbid('resource == Hub::Tool::"s.deleteALL"').replace("eA", "e_A"),
                    **{"own.toml": golden})  # fmt: skip
