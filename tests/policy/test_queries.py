"""Policy queries: why, who, what, and replay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.policy.policy_cases import agent, call, key, policies, skill, snapshot, tool

from dragoman.core.errors import InvalidInput
from dragoman.core.principal import Principal
from dragoman.core.tool import Tool
from dragoman.policy.queries import explain, list_what_can, list_who_can, replay

TEXT = """@id("readers")
@why("readers may read")
permit (principal in Hub::Role::"reader", action in Hub::Action::"any_call", resource)
when { !resource.destructive };

@id("listed") permit (principal, action == Hub::Action::"list", resource);

@id("no-ops") @why("operations are closed")
forbid (principal, action in Hub::Action::"any_call", resource in Hub::RemoteAgent::"ops")
when { resource.agent.trust < 2 };
"""
FS, WRITE, OPS = tool("fs.read"), tool("fs.write", destructive=True), skill("ops.run", trust=1)
CI, EVE = key("ci", "reader"), key("eve")


@pytest.mark.promise("R7")
def test_why_names_the_policies_their_places_and_what_they_read() -> None:
    engine = policies(TEXT)
    found = explain(engine, CI, "call", FS)
    assert (found["decision"], found["action"]) == ("permit", "mcp_call")
    assert found["principal"] == 'Hub::User::"key:ci"'
    assert found["resource"] == 'Hub::Tool::"fs.read"'
    assert found["policy_set"] == engine.policy_set.hash
    (permit,) = found["permits"]
    assert (permit["id"], permit["file"], permit["line"]) == ("readers", "own.cedar", 1)
    assert permit["annotations"] == {"why": "readers may read"}
    assert found["why"] == '"readers" permits it: readers may read'
    assert found["attributes"]["resource.destructive"] is False
    assert found["attributes"]["principal.org"] == 'Hub::Org::"default"'
    assert found["attributes"]["context.depth"] == 0
    assert found["forbids"] == found["nearly"] == found["errors"] == []
    json.dumps(found)


def test_why_reports_a_permit_overruled_by_a_forbid() -> None:
    found = explain(policies(TEXT), CI, "a2a_invoke", OPS)
    assert found["decision"] == "deny"
    assert [one["id"] for one in found["permits"]] == ["readers"]
    assert [one["id"] for one in found["forbids"]] == ["no-ops"]
    assert found["why"] == '"no-ops" forbids it: operations are closed'
    assert found["attributes"]["resource.agent.trust"] == 1


def test_why_reports_near_matches() -> None:
    found = explain(policies(TEXT), CI, "call", WRITE)
    assert found["why"] == "no policy permits it"
    assert [one["id"] for one in found["nearly"]] == ["readers"]
    assert explain(policies(TEXT), EVE, "call", WRITE)["nearly"] == []


def test_why_explains_a_hypothetical_call() -> None:
    engine = policies(TEXT)
    chain = ["a.b"] * 6
    found = explain(engine, CI, "call", FS, {"chain": chain, "depth": 6, "args": {"n": 1}})
    assert [one["id"] for one in found["forbids"]] == ["depth-breaker"]
    assert explain(engine, CI, "list", FS)["decision"] == "permit"
    assert explain(engine, CI, "admin", None)["decision"] == "deny"
    assert explain(engine, CI, "a2a_discover", OPS)["resource"] == 'Hub::RemoteAgent::"ops"'
    assert explain(engine, CI, "task_read", FS, {"owner": True})["decision"] == "deny"


@pytest.mark.parametrize(
    ("action", "of", "context", "said"),
    [
        ("call", None, {}, "name one"),
        ("a2a_invoke", FS, {}, "is called by mcp_call"),
        ("cal", FS, {}, "unknown action"),
        ("call", FS, {"dept": 1}, 'did you mean "depth"?'),
        ("call", FS, {"depth": True}, 'attribute "depth": True'),
        ("call", FS, {"now": "yesterday"}, "2026-11-15T12:00:00Z"),
        ("call", FS, {"taints": "secret"}, "attribute \"labels\": 'secret'"),
    ],
)
def test_invalid_policy_query_is_refused(
    action: str, of: Tool | None, context: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        explain(policies(TEXT), CI, action, of, context)
    assert said in str(raised.value)


def test_why_rejects_an_unknown_principal() -> None:
    with pytest.raises(InvalidInput, match="ghost"):
        explain(policies(TEXT), agent("ghost"), "call", FS)


def test_who_and_what_match_call_decisions() -> None:
    engine = policies(TEXT)
    assert [
        (one["caller"], one["call"], one["list"]) for one in list_who_can(engine, FS, [CI, EVE])
    ] == [
        ("key:ci", "permit", "permit"),
        ("key:eve", "deny", "permit"),
    ]
    rows = list_what_can(engine, CI, [FS, WRITE, OPS])
    assert [(one["tool"], one["call"], one["policies"]) for one in rows] == [
        ("fs.read", "permit", ["readers"]),
        ("fs.write", "deny", []),
        ("ops.run", "deny", ["no-ops"]),
    ]
    for row, one in zip(rows, (FS, WRITE, OPS), strict=True):
        assert engine.decide(call(CI, one, door="api")).allowed is (row["call"] == "permit")


def record(caller: Principal, tool: Tool, decision: str | None, at: float, **more: Any) -> Any:
    found = {
        "caller": caller.label, "verb": tool.name, "door": "mcp-http", "depth": 0,
        "trace": "1" * 32, "at": at, **more,
    }  # fmt: skip
    return found | ({"decision": decision} if decision else {})


def test_draft_is_replayed_on_records_and_only_changes_are_reported() -> None:
    engine = policies(TEXT)
    draft = engine.copy_with(
        snapshot(TEXT.replace("!resource.destructive", "resource.destructive"))
    )
    people = {one.label: one for one in (CI, EVE)}
    tools = {one.name: one for one in (FS, WRITE, OPS)}
    records = [
        record(CI, FS, "permit", 1.0, policies=["readers"]),
        record(CI, FS, "permit", 3.0, policies=["readers"]),
        record(CI, WRITE, "deny", 2.0),
        record(EVE, FS, "deny", 2.0),
        record(CI, OPS, "deny", 2.0, policies=["no-ops"]),
        record(CI, FS, None, 2.0),
        record(key("gone"), FS, "permit", 2.0),
        record(CI, tool("old.one"), "permit", 2.0),
    ]
    found = replay(
        records, draft, lambda one: people.get(one["caller"]), lambda one: tools.get(one["verb"])
    )
    assert (found["judged"], found["same"], found["flipped"]) == (5, 2, 3)
    first, second = found["flips"]
    assert (first["caller"], first["verb"], first["was"], first["now"]) == (
        "key:ci", "fs.read", "permit", "deny",
    )  # fmt: skip
    assert (first["count"], first["first_at"], first["last_at"]) == (2, 1.0, 3.0)
    assert first["was_policies"] == ["readers"]
    assert (second["verb"], second["now"], second["policies"]) == (
        "fs.write",
        "permit",
        ["readers"],
    )
    assert found["skipped"] == {
        "no policy was asked": 1,
        "the caller is not known any more": 1,
        "there is no such tool now": 1,
    }
    assert not first["unsure"]
    same = replay(records, engine, lambda one: people.get(one["caller"]), lambda one: FS)
    json.dumps(same)


def test_replayed_call_uses_its_chain_labels_and_time() -> None:
    engine = policies(
        """
        @id("day") permit (principal, action in Hub::Action::"any_call", resource)
        when { context.now < datetime("2026-01-01") && context.via == "mcp-http" };
        @id("mail") forbid (principal, action in Hub::Action::"any_call", resource)
        when { resource.sink.contains("net") && context.labels.contains("pii") };
        """
    )
    mail = tool("mail.send", sinks=frozenset({"net"}))
    old, new = 1.7e9, 1.9e9
    records = [
        record(CI, mail, "permit", old),
        record(CI, mail, "permit", new),
        record(CI, mail, "permit", old, labels=["pii"]),
        record(CI, mail, "permit", old, depth=6),
        record(CI, mail, "permit", old) | {"door": "api"},
    ]
    found = replay(records, engine, lambda one: CI, lambda one: mail)
    assert [one["policies"] for one in found["flips"]] == [[], ["mail"], ["depth-breaker"]]
    assert found["flips"][0]["count"] == 2


def test_change_is_uncertain_where_the_draft_reads_unrecorded_data() -> None:
    draft = policies(
        '@id("n") permit (principal, action in Hub::Action::"any_call", resource) '
        'when { context.args.contains("n=1") };'
    )
    found = replay([record(CI, FS, "permit", 1.0)], draft, lambda one: CI, lambda one: FS)
    assert found["flips"][0]["unsure"]
