"""The parts of `admin`, and the processes of servers, by the policies."""

from __future__ import annotations

import pytest
from tests.policy.policy_cases import call, key, policies, snapshot, tool

from dragoman.core.principal import Principal, principal_from_server
from dragoman.core.scopes import ADMIN, ADMIN_RIGHTS
from dragoman.core.tool import TargetFacts
from dragoman.policy.loader import check_texts, load_policies
from dragoman.policy.queries import explain

BOSS = key("boss", "ops")
PERMIT = '@id("{0}") permit (principal in Hub::Role::"ops", action {1}, resource);'
FORBID = '@id("no-{0}") forbid (principal, action {1}, resource);'
EQUAL, WITHIN = '== Hub::Action::"{0}"', 'in Hub::Action::"{0}"'
FACTS = {"search": TargetFacts(type="Server"), "files": TargetFacts(type="Server")}


def write(form: str, operator: str, action: str) -> str:
    return form.format(action, operator.format(action))


@pytest.mark.parametrize("operator", [EQUAL, WITHIN])
def test_a_policy_about_admin_is_about_all_of_its_parts(operator: str) -> None:
    engine = policies(write(PERMIT, operator, ADMIN))
    for right in (ADMIN, *ADMIN_RIGHTS):
        assert engine.decide_action(BOSS, right).allowed, right
        assert not engine.decide_action(key("ci"), right).allowed, right
        assert not engine.decide_action(Principal("key", "boss", "acme"), right).allowed, right
    forbids = policies("\n".join([PERMIT.format("all", ""), write(FORBID, operator, ADMIN)]))
    for right in (ADMIN, *ADMIN_RIGHTS):
        assert not forbids.decide_action(BOSS, right).allowed, right


@pytest.mark.parametrize("part", ADMIN_RIGHTS)
def test_a_part_is_permitted_and_forbidden_alone(part: str) -> None:
    alone = policies(write(PERMIT, EQUAL, part))
    allowed = [right for right in ADMIN_RIGHTS if alone.decide_action(BOSS, right).allowed]
    assert allowed == [part] and not alone.decide_action(BOSS, ADMIN).allowed
    without = policies("\n".join([write(PERMIT, EQUAL, ADMIN), write(FORBID, EQUAL, part)]))
    denied = [right for right in ADMIN_RIGHTS if not without.decide_action(BOSS, right).allowed]
    assert denied == [part]


def test_parts_are_enforced_in_shadow_mode() -> None:
    engine = policies(
        '@id("none") permit (principal == Hub::User::"key:x", action, resource);', mode="shadow"
    )
    assert not any(engine.decide_action(BOSS, right).allowed for right in (ADMIN, *ADMIN_RIGHTS))


def test_explanations_and_golden_tests_know_the_parts() -> None:
    engine = policies(write(PERMIT, EQUAL, ADMIN))
    explained = explain(engine, BOSS, "pins", None)
    assert explained["decision"] == "permit"
    assert [policy["id"] for policy in explained["permits"]] == [ADMIN]
    test = (
        '[[tests]]\nname = "ops"\ncaller = "key:boss"\nroles = ["ops"]\naction = "workflows"\n'
        'expect = "permit"\nby = ["admin"]\n'
    )
    checked = check_texts({"own.cedar": write(PERMIT, EQUAL, ADMIN), "own.toml": test})
    assert [outcome.passed for outcome in checked.outcomes] == [True], checked.findings


def test_everybody_does_not_include_the_processes_of_servers() -> None:
    engine = policies(load_policies(None), facts=FACTS.get)
    read, process = tool("files.read"), principal_from_server("search")
    assert not engine.decide(call(process, read)).allowed
    assert not engine.can_list(process, read)
    with_key = Principal("key", "search-key", serves="search")  # which a person has made for it
    for principal in (with_key, key("ci")):
        assert engine.decide(call(principal, read)).allowed, principal


def test_a_policy_grants_a_server_what_it_names() -> None:
    grant = """@id("search-reads") permit (principal == Hub::Agent::"search",
      action in [Hub::Action::"any_call", Hub::Action::"list"],
      resource in Hub::Server::"files");"""
    engine = policies(snapshot(grant), facts=FACTS.get)
    process = principal_from_server("search")
    assert engine.can_see(process, tool("files.read"), "api")
    assert not engine.can_see(process, tool("mail.send"), "api")
