"""Skills as tools: names, input schemas, descriptions."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dragoman.a2a.cards.parse import decode_card, parse_card
from dragoman.a2a.protocol.skill_tools import (
    OPEN,
    SkillOwner,
    build_alias,
    build_skill_tools,
    choose_argument_forms,
    slug_from_name,
)
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.guards.validate import compile_schema


class FakeTarget:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Any) -> Any:
        raise NotImplementedError


def tools_of(name: str, skills: list[Any], odd: list[str] | None = None, **more: Any) -> list[Tool]:
    raw = {"name": "Whoever", "url": "http://a.example", "skills": skills, **more}
    card = parse_card(decode_card(json.dumps(raw).encode()), "http://a.example")
    labels = frozenset({"external_network"})
    owner = SkillOwner(
        FakeTarget(name),
        slug_from_name(name),
        "agent-1",
        "http://a.example",
        labels,
        frozenset({"net"}),
    )
    taken = {f"{name}.message"}
    return build_skill_tools(owner, card, compile_schema, taken, [] if odd is None else odd)


@pytest.mark.promise("R1")
@pytest.mark.parametrize(
    ("agent", "skill", "name", "alias"),
    [
        ("Vercel Ops", "deploy", "vercel_ops.deploy", "a2a_vercel_ops_deploy"),
        ("code-reviewer", "review", "code_reviewer.review", "a2a_code_reviewer_review"),
        (
            "Linear (prod)",
            "create-issue",
            "linear_prod.create-issue",
            "a2a_linear_prod_create_issue",
        ),
    ],
)
def test_skill_is_callable_by_all_its_names(agent: str, skill: str, name: str, alias: str) -> None:
    (tool,) = tools_of(agent, [{"id": skill, "name": "A skill"}])
    identity = name.replace("-", "_")
    assert tool.name == identity and tool.bridged is not None and tool.bridged.alias == alias
    assert tool.description == f"Invokes the {skill} skill on remote A2A agent {agent}"
    catalog = Catalog(review=admit_all)
    catalog.offer(agent, [tool])
    assert catalog.listed_name(tool, "legacy") == catalog.listed_name(tool, "dotted") == name
    safe = catalog.listed_name(tool, "safe")
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", safe)
    for called in (name, identity, alias, safe, tool.other_names["safe!"]):
        assert catalog.find(called) is tool


def test_skill_description_follows_a_fixed_sentence() -> None:
    (tool,) = tools_of("a", [{"id": "x", "name": "X", "description": "Does x"}])
    assert tool.description == "Invokes the x skill on remote A2A agent a. Does x"
    assert tool.definition["description"] == tool.description


@pytest.mark.parametrize("name", ["", "---", "日本", "!?"])
def test_name_without_letters_or_digits_has_no_slug(name: str) -> None:
    assert slug_from_name(name) == ""


@pytest.mark.parametrize(
    "skill", ["x" * 200, "a b/c", "日本", "run\nme", "..", "-", "é", "a" * 63 + "b"]
)
def test_any_skill_id_gives_valid_tool_names(skill: str) -> None:
    (tool,) = tools_of("Some Agent", [{"id": skill, "name": "n"}])
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", tool.name)
    assert tool.name.startswith("some_agent.") and tool.remote_name == skill
    for style in ("safe", "safe!"):
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.other_names[style])
    assert len(build_alias("some_agent", skill)) <= 128
    catalog = Catalog(review=admit_all)
    catalog.offer("Some Agent", [tool])
    assert catalog.find(f"some_agent.{skill}") is tool


def test_one_spelling_of_a_skill_is_listed_and_none_shadows_the_agent() -> None:
    ids = ["a b", "a_b", "A/B", "message", "Message"]
    tools = tools_of("ag", [{"id": id} for id in ids])
    names = [tool.name for tool in tools]
    assert names[:3] == ["ag.a_b"] * 3
    assert names[3] == names[4] != "ag.message"
    catalog = Catalog(review=admit_all)
    catalog.offer("ag", tools)
    assert [tool.remote_name for tool in catalog.list_tools()] == ["a b", "message"]
    assert catalog.find("a2a_ag_a_b") is tools[0]
    assert [remark.partition(" is not")[0] for remark in catalog.list_remarks("ag")] == [
        'tool "a_b"', 'tool "A/B"', 'tool "Message"',
    ]  # fmt: skip


@pytest.mark.promise("R2")
def test_skill_schema_is_passed_byte_for_byte() -> None:
    text = (
        '{"required": ["z", "a"], "$schema": "https://json-schema.org/draft/2020-12/schema",'
        ' "type":"object","properties":{"z":{"type":"number","minimum":1e2},"a":{"x-own":[1.0]}}}'
    )
    card = f'{{"name":"W","url":"http://a.example","skills":[{{"id":"s","inputSchema":{text}}}]}}'
    raw = decode_card(card.encode())
    owner = SkillOwner(FakeTarget("w"), "w", "1", "http://a.example", frozenset(), frozenset())
    (tool,) = build_skill_tools(
        owner, parse_card(raw, "http://a.example"), compile_schema, set(), []
    )
    assert json.dumps(tool.definition["inputSchema"]) == json.dumps(json.loads(text))
    assert tool.definition["inputSchema"] is raw["skills"][0]["inputSchema"]
    assert tool.validate({"z": 100, "a": 1}) is None
    assert tool.validate({"z": 1, "a": 1}) is not None


@pytest.mark.promise("R2")
def test_a_skill_without_a_schema_takes_any_object() -> None:
    (tool,) = tools_of("a", [{"id": "s"}])
    assert tool.definition["inputSchema"] == {"type": "object", "additionalProperties": True}
    assert tool.definition["inputSchema"] == OPEN
    assert tool.validate({"whatever": [1, {"x": None}]}) is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string"}, "not of type object"),
        ({"type": "object", "properties": {"a": {"type": "nonsense"}}}, "is invalid"),
    ],
)
def test_unusable_schema_omits_only_its_skill(schema: Any, why: str) -> None:
    odd: list[str] = []
    tools = tools_of("a", [{"id": "bad", "inputSchema": schema}, {"id": "good"}], odd)
    assert [tool.remote_name for tool in tools] == ["good"]
    assert len(odd) == 1 and '"bad" is not offered' in odd[0] and why in odd[0]


def test_arguments_are_sent_in_the_declared_input_mode() -> None:
    skills = [
        {"id": "plain"},
        {"id": "json", "inputModes": ["application/json"]},
        {"id": "both", "inputModes": ["text/plain", "application/json"]},
        {"id": "any", "inputModes": ["*/*"]},
        {"id": "picture", "inputModes": ["image/png"]},
        {"id": "schema", "inputSchema": {"type": "object"}},
        {"id": "typed", "inputModes": ["text/*", "application/json"], "inputSchema": {}},
    ]
    raw = {"name": "a", "defaultInputModes": ["text"], "skills": skills}
    assert choose_argument_forms(raw, parse_card(raw, "http://a.example")) == {
        "plain": "text",
        "json": "data",
        "both": "both",
        "any": "both",
        "picture": "data",
        "schema": "text",
        "typed": "data",
    }
    silent = {"name": "a", "skills": [{"id": "plain"}]}
    assert choose_argument_forms(silent, parse_card(silent, "http://a.example")) == {
        "plain": "data"
    }
