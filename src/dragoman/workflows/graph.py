"""Draws a workflow: as Mermaid, and for the terminal with lanes such as those of `git log --graph`.

States of a run may be shown with the steps. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dragoman.workflows.model import Step, Workflow

MARKS: Final[Mapping[str, str]] = {
    "": "●", "pending": "○", "running": "▶", "waiting": "◷", "completed": "✓", "failed": "✗",
    "skipped": "-", "needs_decision": "?", "cancelled": "⊘",
}  # fmt: skip
"""The mark of a step in the drawing, by its state."""
_COLOURS: Final[Mapping[str, str]] = {
    "running": "#9ecbff", "waiting": "#ffe08a", "completed": "#a8e6a3", "failed": "#f5a3a3",
    "skipped": "#dddddd", "needs_decision": "#f7c58a", "cancelled": "#cccccc",
}  # fmt: skip
_INDENT = "   "


def list_nodes(workflow: Workflow) -> list[dict[str, Any]]:
    """Lists the steps of all levels for the API."""
    return list(_list_level(workflow.steps, None))


def _list_level(steps: Sequence[Step], within: str | None) -> Iterator[dict[str, Any]]:
    compensated = _find_compensated(steps)
    for step in steps:
        yield {
            "id": step.id,
            "node": step.node,
            "dependsOn": list(step.depends_on),
            "within": within,
            "compensates": compensated.get(step.id),
        }
        yield from _list_level(step.body, step.id)


def _find_compensated(steps: Sequence[Step]) -> dict[str, str]:
    """The step whose failure starts each compensating step."""
    return {step.compensate_by: step.id for step in reversed(steps) if step.compensate_by}


# --- Mermaid -------------------------------------------------------------------------------------


def render_mermaid(workflow: Workflow, states: Mapping[str, str] | None = None) -> str:
    """Renders the graph as a Mermaid flowchart. `states` are those of a run, by step."""
    numbers: dict[str, str] = {}
    lines = ["flowchart TD", *_render_level(workflow.steps, states or {}, numbers, "  ")]
    used = sorted({state for state in (states or {}).values() if state in _COLOURS})
    lines += [f"  classDef {state} fill:{_COLOURS[state]}" for state in used]
    return "\n".join(lines) + "\n"


def _render_level(
    steps: Sequence[Step], states: Mapping[str, str], numbers: dict[str, str], indent: str
) -> Iterator[str]:
    for step in steps:
        # A number, because some words cannot be ids in Mermaid.
        name = numbers[step.id] = f"s{len(numbers) + 1}"
        state = states.get(step.id, "")
        mark = f":::{state}" if state in _COLOURS else ""
        if step.body:
            yield f'{indent}subgraph {name}["{step.id} ({step.node})"]'
            yield from _render_level(step.body, states, numbers, indent + "  ")
            yield f"{indent}end"
            if mark:
                yield f"{indent}class {name} {state}"
        else:
            yield f'{indent}{name}["{step.id}<br/>{step.node}"]{mark}'
    for step in steps:
        for other in step.depends_on:
            yield f"{indent}{numbers[other]} --> {numbers[step.id]}"
        if step.compensate_by:
            yield f"{indent}{numbers[step.id]} -. fails .-> {numbers[step.compensate_by]}"


# --- terminal ------------------------------------------------------------------------------------


class _Row(NamedTuple):
    lanes: str
    step: Step | None = None
    note: str = ""


def draw_graph(
    workflow: Workflow,
    states: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> str:
    """Draws the graph from top to bottom: a line for each step, lanes for what depends on it.
    `states` and `notes` are those of a run, by step."""
    states, notes = states or {}, notes or {}
    rows = list(_draw_level(workflow.steps, states))
    lanes = max((len(row.lanes) for row in rows if row.step), default=0)
    ids = max((len(row.step.id) for row in rows if row.step), default=0)
    nodes = max((len(row.step.node) for row in rows if row.step), default=0)
    lines = []
    for row in rows:
        if row.step is None:
            lines.append(row.lanes)
            continue
        about = [states.get(row.step.id, ""), row.note, notes.get(row.step.id, "")]
        text = "  ".join([row.step.id.ljust(ids), row.step.node.ljust(nodes), *filter(None, about)])
        lines.append(f"{row.lanes.ljust(lanes)}  {text}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _draw_level(steps: Sequence[Step], states: Mapping[str, str]) -> Iterator[_Row]:
    after = _find_after(steps)
    compensated = _find_compensated(steps)
    lanes: list[str | None] = []
    """What each lane leads to: a lane for each step that is still to come."""
    ended = -1
    for step in _sort(steps, after):
        # Not below a step that leads nowhere: the two would look connected.
        at = lanes.index(step.id) if step.id in lanes else _find_free(lanes, ended)
        lanes[at] = step.id
        mark = MARKS.get(states.get(step.id, ""), MARKS[""])
        note = ""
        if step.id in compensated:
            note = f'if "{compensated[step.id]}" fails'
        elif step.when is not None:
            note = "has a condition"
        yield _Row(_draw_lanes(lanes, {at: mark}), step, note)
        following = after[step.id]
        ended = -1 if following else at
        for row in _draw_level(step.body, states):
            below = _draw_lanes(lanes, {at: "│" if following else " "})
            yield row._replace(lanes=below + _INDENT + row.lanes)
        yield from _branch(lanes, at, following)


def _find_after(steps: Sequence[Step]) -> dict[str, list[str]]:
    """The steps that come directly after each one."""
    after: dict[str, list[str]] = {step.id: [] for step in steps}
    for step in steps:
        for other in step.depends_on:
            after[other].append(step.id)
        if step.compensate_by and step.compensate_by not in after[step.id]:
            after[step.id].append(step.compensate_by)
    return after


def _sort(steps: Sequence[Step], after: Mapping[str, Sequence[str]]) -> Iterator[Step]:
    """Sorts steps so that each comes after those that it depends on; otherwise as they are
    defined."""
    waiting = {step.id: sum(step.id in found for found in after.values()) for step in steps}
    left = list(steps)
    while left:
        step = next(one for one in left if waiting[one.id] == 0)
        left.remove(step)
        for other in after[step.id]:
            waiting[other] -= 1
        yield step


def _find_free(lanes: list[str | None], avoided: int = -1) -> int:
    while True:
        for index, target in enumerate(lanes):
            if target is None and index != avoided:
                return index
        lanes.append(None)


def _draw_lanes(lanes: Sequence[str | None], marks: Mapping[int, str]) -> str:
    return " ".join(
        marks.get(index, "│" if target is not None else " ") for index, target in enumerate(lanes)
    )


def _branch(lanes: list[str | None], at: int, following: Sequence[str]) -> Iterator[_Row]:
    """Leads the lane of a step to those that come after it: the first without a lane takes it."""
    lanes[at] = None
    joined = [lanes.index(one) for one in following if one in lanes]
    opened: list[int] = []
    new = [one for one in following if one not in lanes]
    if new:
        lanes[at] = new[0]
    for one in new[1:]:
        index = _find_free(lanes)
        lanes[index] = one
        opened.append(index)
    if joined or opened:
        yield _Row(_draw_branch(lanes, at, joined, opened, goes_on=bool(new)))
    while lanes and lanes[-1] is None:
        lanes.pop()


def _draw_branch(
    lanes: Sequence[str | None],
    at: int,
    joined: Sequence[int],
    opened: Sequence[int],
    *,
    goes_on: bool,
) -> str:
    ends = [*joined, *opened]
    left, right = min([at, *ends]), max([at, *ends])
    text = ""
    for index, target in enumerate(lanes):
        is_inside = left <= index <= right
        up = index == at or (target is not None and index not in opened)
        down = goes_on if index == at else target is not None
        touches = index == at or index in ends
        # A lane that the line only crosses stays whole.
        line = is_inside and (touches or target is None)
        key = up, down, line and index > left, line and index < right
        text += _CORNERS[key] + ("─" if left <= index < right else " ")
    return text.rstrip()


_CORNERS: Final[Mapping[tuple[bool, bool, bool, bool], str]] = {
    (False, False, False, False): " ", (False, False, True, True): "─",
    (True, True, False, False): "│", (True, True, True, True): "┼",
    (True, True, True, False): "┤", (True, True, False, True): "├",
    (True, False, True, False): "╯", (True, False, False, True): "╰",
    (False, True, True, False): "╮", (False, True, False, True): "╭",
    (True, False, True, True): "┴", (False, True, True, True): "┬",
}  # fmt: skip
"""By whether a line leads up, down, to the left and to the right."""
