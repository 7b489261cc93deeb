"""Definitions: what loads, how it is understood, and one clear sentence with a line otherwise."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import jsonschema_rs
import pytest
import yaml
from tests.cpu_time import measure_cpu

from dragoman.core.errors import InvalidInput
from dragoman.workflows import schema
from dragoman.workflows.durations import parse_duration
from dragoman.workflows.inputs import build_input_schema, resolve_inputs
from dragoman.workflows.loader import InvalidDefinition, check_definition, load_workflow
from dragoman.workflows.model import NODES, Retry, Step
from dragoman.workflows.yaml_reader import MAX_PROBLEMS, read_yaml

pytestmark = pytest.mark.promise("R14")

DOCS = Path(__file__).parents[2] / "docs"
STARTER = Path(schema.__file__).parent / "starter.yaml"

INVOKE = dedent("""
    steps:
      - id: run-code-review
        type: action
        nodeId: agent.invoke
        config:
          agentCardId: "{{ nodes.agent-ref.agentCardId }}"
          skillId: review
          args:
            prUrl: "{{ $trigger.prUrl }}"
""").lstrip()
DISPATCH = dedent("""
    steps:
      - id: dispatch-qa
        type: action
        nodeId: agent.dispatch
        config:
          workType: qa
          description: Run integration tests for the new feature
          requiredSkills:
            - typescript
""").lstrip()
FULL = dedent("""
    name: review
    description: Reviews a pull request.
    triggers:
      - manual
      - type: webhook
        secret: env:HOOK_SECRET
        inputs: {prUrl: "{{ $event.pull_request.html_url }}"}
      - {type: schedule, cron: "0 9 * * 1-5", zone: Europe/Berlin, catchUp: all, inputs: {prUrl: x}}
      - {type: schedule, every: 15m, inputs: {prUrl: x}}
      - {type: event, event: agent-changed, match: {state: unreachable}, inputs: {prUrl: x}}
    inputs:
      prUrl: string
      depth: {type: integer, minimum: 1, default: 2}
      labels: {type: array, items: {type: string}, required: false}
    env: [CHANNEL]
    agents: {reviewer: code-reviewer}
    expose: true
    concurrency: 4
    timeout: 2h
    steps:
      - id: review
        nodeId: agent.invoke
        config: {agentCardId: "{{ nodes.reviewer.agentCardId }}", args: {url: "{{ $trigger.prUrl }}"}}
        retry: {attempts: 3, backoff: 500ms, maxBackoff: 1m}
        timeout: 5m
        repeatable: true
      - id: each
        nodeId: foreach
        config:
          items: "{{ nodes.review.files }}"
          concurrency: 3
          steps:
            - id: comment
              nodeId: tool.call
              config: {tool: github.comment, arguments: {at: "{{ $item.path }}", by: "{{ nodes.review.by }}"}}
            - id: both
              nodeId: parallel
              dependsOn: comment
              config:
                steps:
                  - {id: one, nodeId: wait, config: {seconds: 1}}
                  - {id: two, nodeId: transform, config: {value: "{{ $index }} {{ nodes.comment.id }}"}}
      - id: ask
        nodeId: approval
        when: nodes.review.score < 0.5 and 'urgent' in $trigger.labels
        config: {title: Merge?, expires: 1d}
        onError: continue
      - id: merge
        nodeId: workflow.run
        dependsOn: [ask, each]
        config: {workflow: merge, inputs: {url: "{{ $trigger.prUrl }}"}}
        onError: {compensate: undo}
      - id: undo
        nodeId: tool.call
        config: {tool: chat.say, arguments: {to: "{{ $env.CHANNEL }}", score: "{{ nodes.review.score }}"}}
    output: {score: "{{ nodes.review.score }}", run: "{{ $run.id }}"}
""").lstrip()  # noqa: E501


def test_the_examples_of_steps_load_as_they_stand() -> None:
    invoke, dispatch = load_workflow(INVOKE, "invoke"), load_workflow(DISPATCH, "dispatch")
    assert (invoke.name, invoke.missing_agents, invoke.inputs) == ("invoke", ("agent-ref",), None)
    assert invoke.steps[0].config["args"] == {"prUrl": "{{ $trigger.prUrl }}"}
    assert dispatch.steps == (
        Step(id="dispatch-qa", node="agent.dispatch", line=2, config=dispatch.steps[0].config),
    )
    assert dispatch.steps[0].config["requiredSkills"] == ["typescript"]
    assert load_workflow("agents: {agent-ref: bot}\n" + INVOKE, "x").missing_agents == ()


def test_a_definition_with_all_keys_is_understood() -> None:
    flow = load_workflow(FULL, "other")
    assert (flow.name, flow.expose, flow.concurrency, flow.timeout_secs) == (
        "review",
        True,
        4,
        7200,
    )
    assert [one.kind for one in flow.triggers] == [
        "manual", "webhook", "schedule", "schedule", "event"
    ]  # fmt: skip
    assert [(one.schedule, one.zone, one.catch_up) for one in flow.triggers[2:4]] == [
        ("0 9 * * 1-5", "Europe/Berlin", "all"), ("every 15m", "UTC", "once"),
    ]  # fmt: skip
    assert flow.triggers[1].line == 5
    steps = {one.id: one for one in flow.steps}
    assert list(steps) == ["review", "each", "ask", "merge", "undo"]
    # A template that reads the output of a step is a dependency: also from inside a loop.
    assert {id: set(one.depends_on) for id, one in steps.items()} == {
        "review": set(), "each": {"review"}, "ask": {"review"}, "merge": {"ask", "each"},
        "undo": set(),
    }  # fmt: skip
    assert steps["review"].retry == Retry(attempts=3, backoff_secs=0.5, max_backoff_secs=60)
    assert (steps["review"].timeout_secs, steps["review"].repeatable) == (300, True)
    each = steps["each"]
    assert each.config == {"items": "{{ nodes.review.files }}", "concurrency": 3}
    assert [(one.id, one.depends_on) for one in each.body] == [
        ("comment", ()),
        ("both", ("comment",)),
    ]
    assert [one.id for one in each.body[1].body] == ["one", "two"]
    when = "{{ nodes.review.score < 0.5 and 'urgent' in $trigger.labels }}"
    assert (steps["ask"].when, steps["ask"].on_error) == (when, "continue")
    assert (steps["merge"].on_error, steps["merge"].compensate_by) == ("compensate", "undo")
    assert steps["undo"].line == 53
    assert load_workflow(FULL, "x").digest == flow.digest != load_workflow(FULL + "\n", "x").digest


def step(id: str, value: Any = 1, **more: Any) -> dict[str, Any]:
    return {"id": id, "nodeId": "transform", "config": {"value": value}, **more}


def test_inputs_of_a_run_are_checked_and_completed() -> None:
    flow = load_workflow(FULL, "x")
    assert resolve_inputs(flow, {"prUrl": "u"}) == {"prUrl": "u", "depth": 2}
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, 'the workflow "review" needs the input "prUrl"'),
        ({"prUrl": 5}, '"prUrl" must be a text'),
        ({"prUrl": "u", "depth": 0}, '"depth" must be at least 1'),
        ({"prUrl": "u", "labels": ["a", 2]}, '"labels[1]" must be a text'),
        ({"prURL": "u"}, 'has no input "prURL"; did you mean "prUrl"?'),
    ]
    for given, words in refused:
        with pytest.raises(InvalidInput) as caught:
            resolve_inputs(flow, given)
        assert words in str(caught.value)
    assert resolve_inputs(load_workflow(INVOKE, "x"), {"any": 1}) == {"any": 1}
    assert build_input_schema(flow)["required"] == ["prUrl"]
    assert not check_definition('inputs: {a: {type: string, default: ""}}\n' + DISPATCH, "x")


ONE = "steps:\n  - {id: a, nodeId: transform, config: {value: 1}}\n"


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("", 1, "the definition is empty"),
        ("steps:\n  - id: a\n   nodeId: b\n", 3, "invalid YAML"),
        ("a: [1\n", 2, "invalid YAML"),
        ("x: &a 1\ny: *a\n", 1, "anchors and aliases"),
        ("x: !!python/object:os.system 1\n", 1, "tags (!) are not supported"),
        ("name: a\nname: b\n" + ONE, 2, 'the key "name" is there twice'),
        ("name: a\n---\n" + ONE, 2, "a second document"),
        ("description: {{ $trigger.x }}\n" + ONE, 1, "a template must be in quotes"),
        ("x: .inf\n", 1, "not finite"),
        ("x: 1\ny: \ud800\n", 2, "not valid Unicode"),
        ("x: a\x00b\n", 1, "a control character"),
        ("trigger: {type: schedule, every: often}\n" + ONE, 1, "the interval cannot be read"),
        ("x: " + "[" * 60 + "]" * 60, 1, "nested more than"),
        ("x: [" + "1," * 30_000 + "]", 1, "more than 20000 values"),
        ("x: '" + "a" * 1_100_000 + "'", 1, "too large"),
        ("- a\n", 1, "the definition must be the workflow"),
        ("name: a\n", 1, 'the workflow has no "steps"'),
        ("namex: a\n" + ONE, 1, 'unknown key "namex" in the workflow; did you mean "name"?'),
        ("name: a b\n" + ONE, 1, '"name" must be up to 64 letters'),
        ("steps: []\n", 1, '"steps" must not be empty'),
        ("expose: on\n" + ONE, 1, '"expose" must be true or false'),
        ("inputs: {a: stringy}\n" + ONE, 1, '"a" must be a type'),
        ("inputs: {a: {type: string, pattern: x}}\n" + ONE, 1, 'unknown key "pattern"'),
        ("inputs: {a: {type: integer, default: x}}\n" + ONE, 1, "the default of the input"),
        ("env: [A-B]\n" + ONE, 1, '"env[0]" must be the name of a variable'),
        ("trigger: {type: hook}\n" + ONE, 1,
         'unknown type of trigger "hook"; did you mean "webhook"'),
        ("trigger: {type: webhook, secret: abc}\n" + ONE, 1, "a reference such as env:HOOK_SECRET"),
        ("trigger: {type: schedule, cron: '61 * * * *'}\n" + ONE, 1,
         'the schedule "61 * * * *" is inv'),
        ("trigger:\n  type: schedule\n  cron: '* * *'\n" + ONE, 3, "has five fields"),
        ("trigger: {type: schedule, every: 5s}\n" + ONE, 1, "between a minute and a year"),
        ("trigger:\n  type: schedule\n  zone: Mars\n  cron: '* * * * *'\n" + ONE, 3,
         "unknown time zone"),
        ("trigger: {type: schedule}\n" + ONE, 1, 'a schedule needs "cron" or "every"'),
        ("inputs: {a: string}\ntrigger: {type: schedule, every: 1h}\n" + ONE, 2,
         'not give the input "a"'),
        ("trigger: {type: event, event: x, inputs: {a: '{{ nodes.a }}'}}\n" + ONE, 1,
         "can read $event alone"),
        (ONE + "  - {id: a, nodeId: transform, config: {value: 1}}\n", 3, 'a step "a" already'),
        (ONE + "  - {id: b, nodeId: transforn, config: {}}\n", 3,
         'unknown node "transforn"; did you mean "transform"?'),
        (ONE + "  - {id: b, nodeId: tool.call}\n", 3, 'a step has no "config"'),
        (ONE + "  - {id: b, nodeId: tool.call, config: {tool: x, args: {}}}\n", 3,
         'did you mean "arguments"?'),
        (ONE + "  - {id: b, nodeId: agent.invoke, config: {skillId: x}}\n", 3,
         'needs "agentCardId" or "agent"'),
        (ONE + "  - {id: b, nodeId: wait, config: {seconds: 1, event: x}}\n", 3,
         "only one of them"),
        (ONE + "  - {id: b, nodeId: wait, config: {until: tomorrow}}\n", 3, "a time with its zone"),
        (ONE + "  - {id: b, nodeId: foreach, config: {items: x, steps: []}}\n", 3,
         '"items" must be a list, or a template'),
        (ONE + "  - {id: b, nodeId: approval, timeout: 5x}\n", 3,
         '"timeout" must be a time such as'),
        (ONE + "  - {id: b, nodeId: approval, retry: 99}\n", 3,
         '"retry" must be the number of attempts'),
        (ONE + "  - {id: b, nodeId: approval, dependsOn: c}\n", 3,
         'depends on the unknown step "c"'),
        (ONE + "  - {id: b, nodeId: approval, dependsOn: b}\n", 3, "depends on itself"),
        (ONE + "  - {id: b, nodeId: approval, when: 'x {{ nodes.a }}'}\n", 3,
         "one template and no other text"),
        (ONE + "  - {id: b, nodeId: approval, when: a.b == 1}\n", 3, 'unknown name "a"'),
        (ONE + "  - {id: b, nodeId: approval, onError: {compensate: c}}\n", 3,
         'the compensating step "c" is not beside'),
    ],
)  # fmt: skip
def test_a_bad_definition_is_one_clear_sentence_with_its_line(
    source: str, line: int, words: str
) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        load_workflow(source, "x", "x.yaml")
    found = caught.value.problems[0]
    assert (found.line, words in found.message) == (line, True), found
    assert "\n" not in found.message
    assert str(caught.value).startswith(f"x.yaml:{line}: ")


def build(*steps: dict[str, Any], **more: Any) -> str:
    return yaml.safe_dump({**more, "steps": list(steps)}, sort_keys=False)


def loop(id: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "nodeId": "foreach", "config": {"items": [1], "steps": list(steps)}}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (build(step("a", "{{ nodes.b.x }}")), '"nodes.b.x" is unknown: there is no step "b"'),
        (build(step("report"), step("b", "{{ nodes.reporz }}")), 'did you mean "report"?'),
        (build(step("a", "{{ nodes }}")), "names no step"),
        (build(step("a", "{{ nodes.a }}")), '"a" is this step'),
        (build(step("a", "{{ nodes.c }}"), step("b", "{{ nodes.a }}"), step("c", dependsOn="b")),
         'in a cycle: "a" -> "b" -> "c" -> "a"'),
        (build(loop("a", step("b", "{{ nodes.c }}")), step("c", "{{ nodes.a }}")), "in a cycle"),
        (build(loop("a", step("b")), step("c", "{{ nodes.b }}")), 'the step is inside "a"'),
        (build(loop("a", step("b", "{{ nodes.a }}"))), '"a" contains this step'),
        (build(loop("a", step("b")), step("c", dependsOn=["b"])), 'step "b" is inside "a"'),
        (build(loop("a", step("b", dependsOn=["c"])), step("c")), 'step "c" is at the top'),
        (build(loop("a", step("a"))), 'there is a step "a" already'),
        (build(step("a", "{{ $item }}")), "exists only in the steps of"),
        (build(step("a", "{{ $event.x }}")), "exists only in the inputs of a trigger"),
        (build(step("a", "{{ $env.HOME }}")), "write env: [HOME]"),
        (build(step("a", "{{ $env }}"), env=["HOME"]), "does not declare"),
        (build(step("a", "{{ $run.secret }}")), "a run has id and workflow"),
        (build(step("a", "{{ $trigger.y }}"), inputs={"x": "string"}), 'declares no input "y"'),
        (build(step("a"), output="{{ nodes.b }}"), 'there is no step "b"'),
        (build(step("r"), agents={"r": "x"}), "is the name of an agent reference"),
        (build(step("a", "{{ nodes.r.name }}"), agents={"r": "x"}), "has only agentCardId"),
        (build(step("a", onError={"compensate": "u"}), step("u", "{{ nodes.b }}"), step("b")),
         '"b" does not come before "a"'),
        (build(step("a", onError={"compensate": "u"}), step("u"), step("b", "{{ nodes.u }}")),
         '"u" runs only if "a" fails'),
        (build(step("a", onError={"compensate": "u"}), step("u", dependsOn=["a"])), "no dependsOn"),
    ],
)  # fmt: skip
def test_what_steps_and_templates_name_must_exist_and_come_before(source: str, words: str) -> None:
    problems = check_definition(source, "x")
    assert any(words in one.message for one in problems), problems


def test_all_problems_are_found_at_once_in_the_order_of_lines() -> None:
    source = build(step("b", "{{ nodes.x }}"), step("a", "{{ $env.X }}"), step("c", dependsOn="y"))
    assert [one.line for one in check_definition(source, "x")] == [5, 9, 14]


def test_the_published_schema_agrees_with_the_loader() -> None:
    """Editors check with a complete validator: it accepts what loads, and refuses what does not
    have the form."""
    published = schema.build_schema()
    jsonschema_rs.meta.validate(published)
    validator = jsonschema_rs.validator_for(published)
    for source in (INVOKE, DISPATCH, FULL):
        validator.validate(read_yaml(source).value)
    refused: list[dict[str, Any]] = [
        {},
        {"steps": []},
        {"steps": [step("a", timeout="5x")]},
        {"steps": [step("a", timeoutx="5s")]},
        {"steps": [{"id": "a", "nodeId": "agent.invoke", "config": {}}]},
        {"steps": [step("a")], "trigger": {"type": "webhook"}},
        {"steps": [step("a")], "trigger": "webhook"},
        {"steps": [step("a")], "inputs": {"a": {"type": "stringy"}}},
    ]
    for broken in refused:
        assert not validator.is_valid(broken)
        assert check_definition(yaml.safe_dump(broken), "x")
    assert set(schema.CONFIGS) == set(NODES)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("30s", 30), ("1.5m", 90), ("250ms", 0.25), ("2h", 7200), ("1d", 86400), (5, 5), (0.5, 0.5)],
)
def test_times_are_seconds(value: Any, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize("value", ["5", "x", "-5s", -1, True, None, "999999999d", [1], "5 years"])
def test_a_bad_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="no time"):
        parse_duration(value)


def test_scalars_are_those_of_yaml_1_2() -> None:
    """No surprises: `on`, `no`, dates and sexagesimal numbers are texts."""
    source = (
        ONE + "output: {on: on, no: no, date: 2026-01-01, time: 12:30, hex: 0x1f, e: 1e3, n: ~}\n"
    )
    assert load_workflow(source, "x").output == {
        "on": "on", "no": "no", "date": "2026-01-01", "time": "12:30", "hex": 31, "e": 1000.0,
        "n": None,
    }  # fmt: skip


def test_the_example_in_the_docs_and_the_starter_are_valid() -> None:
    page = (DOCS / "workflows.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert examples
    for one in [*examples, STARTER.read_text(encoding="utf-8")]:
        assert check_definition(one, "example") == []


def dump(*steps: dict[str, Any], **more: Any) -> str:
    return json.dumps({**more, "steps": list(steps)})


HOSTILE: dict[str, str] = {
    "unknown references": dump(
        *(
            step(f"step-{number}", [f"{{{{ nodes.stop-{number}-{copy} }}}}" for copy in range(5)])
            for number in range(60)
        )
    ),
    "unknown keys": dump(step("a"), **{f"key{number:04}": 1 for number in range(3_000)}),
    "unknown keys of a step": dump(
        {**step("a"), **{f"key{number:04}": 1 for number in range(3_000)}}
    ),
    "unknown steps": dump(
        *(
            step(f"step-{number}", dependsOn=[f"stop-{number}-{copy}" for copy in range(20)])
            for number in range(60)
        )
    ),
    "unknown events": dump(
        step("a"), triggers=[{"type": "event", "event": f"calls.{one}"} for one in range(1_000)]
    ),
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_definition_full_of_mistakes_costs_little_more_than_a_good_one(source: str) -> None:
    good = dump(*(step(f"step-{number}", "{{ $run.id }}") for number in range(100)))
    assert check_definition(good, "x") == []
    cost = measure_cpu(lambda: check_definition(good, "x")) / len(good)
    assert measure_cpu(lambda: check_definition(source, "x"), 1) / len(source) < 5 * cost


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_the_first_mistakes_of_a_definition_are_reported(source: str) -> None:
    problems = check_definition(source, "x")
    assert 1 <= len(problems) <= MAX_PROBLEMS + 1
    with pytest.raises(InvalidDefinition) as caught:
        load_workflow(source, "x")
    assert str(caught.value).endswith("; and more") == (len(problems) > MAX_PROBLEMS)


def test_long_chains_and_cycles_of_steps_are_understood() -> None:
    def chain(length: int, is_closed: bool) -> str:
        return dump(
            *(
                step(f"s{one}", dependsOn=f"s{(one + 1) % length}")
                if is_closed or one < length - 1
                else step(f"s{one}")
                for one in range(length)
            )
        )

    assert check_definition(chain(400, False), "x") == []
    (problem,) = check_definition(chain(400, True), "x")
    assert "in a cycle" in problem.message
