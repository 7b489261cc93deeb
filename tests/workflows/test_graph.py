"""The drawings of a workflow."""

from __future__ import annotations

import random
import re

import pytest
from tests.workflows.test_definitions import FULL, build, step

from dragoman.workflows.graph import draw_graph, render_mermaid
from dragoman.workflows.loader import load_workflow

pytestmark = pytest.mark.promise("R14")


def test_the_drawing_shows_lanes_bodies_and_states() -> None:
    flow = load_workflow(FULL, "x")
    drawn = draw_graph(flow, {"review": "completed", "each": "running"}, {"each": "3 of 7"})
    assert drawn.splitlines() == [
        "✓              review   agent.invoke  completed",
        "├─╮",
        "▶ │            each     foreach       running  3 of 7",
        "│ │   ●        comment  tool.call",
        "│ │   ●        both     parallel",
        "│ │       ●    one      wait",
        "│ │         ●  two      transform",
        "│ ●            ask      approval      has a condition",
        "├─╯",
        "●              merge    workflow.run",
        '●              undo     tool.call     if "merge" fails',
    ]
    # Steps that join two lanes, and one that only crosses one.
    crossing = build(
        step("a"), step("b"), step("c", dependsOn=["a", "b"]), step("d", dependsOn="a")
    )
    assert draw_graph(load_workflow(crossing, "x")).splitlines() == [
        "●      a  transform",
        "├─╮",
        "│ │ ●  b  transform",
        "├─│─╯",
        "● │    c  transform",
        "  ●    d  transform",
    ]


def test_every_step_of_any_graph_is_drawn_once_after_what_it_depends_on() -> None:
    chance = random.Random(7)
    for _ in range(50):
        steps = []
        for number in range(20):
            before = [f"s{one}" for one in range(number)]
            count = min(number, chance.choice([0, 1, 1, 2, 3]))
            steps.append(step(f"s{number}", dependsOn=chance.sample(before, count)))
        chance.shuffle(steps)
        flow = load_workflow(build(*steps), "x")
        order = re.findall(r"\bs\d+\b", draw_graph(flow))
        assert sorted(order) == sorted(one.id for one in flow.steps)
        assert all(order.index(one) < order.index(s.id) for s in flow.steps for one in s.depends_on)


def test_mermaid_has_nodes_edges_and_states() -> None:
    text = render_mermaid(load_workflow(FULL, "x"), {"review": "failed"})
    assert text.startswith("flowchart TD\n")
    for line in [
        's1["review<br/>agent.invoke"]:::failed',
        'subgraph s2["each (foreach)"]',
        "s3 --> s4",
        "s1 --> s2",
        "s8 -. fails .-> s9",
        "classDef failed fill:#f5a3a3",
    ]:
        assert line in text
