"""A workflow whose templates are parsed once, for all runs of its version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dragoman.workflows.model import (
    COMPENSATE,
    FOREACH,
    TRANSFORM,
    Step,
    Workflow,
)
from dragoman.workflows.templates import CompiledValue, compile_value


class CompiledStep:
    __slots__ = ("body", "compensates", "concurrency", "config", "ends", "ids", "step", "when")

    def __init__(self, step: Step, level: Sequence[Step]) -> None:
        self.step = step
        self.when = compile_value(step.when) if step.when is not None else None
        self.config = compile_value(_find_value(step))
        self.body = tuple(CompiledStep(one, step.body) for one in sort_steps(step.body))
        self.ids = tuple(one.id for one in step.body)
        self.ends = tuple(list_ends(step.body))
        self.concurrency = int(step.config.get("concurrency") or 0)
        self.compensates = tuple(
            one.id for one in level if one.on_error == COMPENSATE and one.compensate_by == step.id
        )
        """The steps whose failure it compensates; it then runs for no other reason."""

    def render(self, scope: Mapping[str, Any]) -> Any:
        """Renders the settings of the node; the items of `foreach`, the value of `transform`."""
        return self.config.render(scope)


class CompiledWorkflow:
    __slots__ = ("by_id", "output", "steps", "workflow")

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.steps = tuple(CompiledStep(one, workflow.steps) for one in sort_steps(workflow.steps))
        output = workflow.output
        self.output: CompiledValue | None = compile_value(output) if output is not None else None
        self.by_id = {one.step.id: one for one in _walk(self.steps)}

    def references(self, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The agent references, which templates read like outputs of steps."""
        given = scope.get(AGENTS) or {}
        for name, agent in {**self.workflow.agents, **given}.items():
            yield name, {"agentCardId": agent}

    def find_ends(self) -> list[str]:
        return list_ends(self.workflow.steps)


AGENTS = "agents"
"""Key of the scope for the agents that a run was given; no template can read it."""


def _walk(steps: Sequence[CompiledStep]) -> Iterator[CompiledStep]:
    for one in steps:
        yield one
        yield from _walk(one.body)


def sort_steps(steps: Sequence[Step]) -> list[Step]:
    """Sorts the steps of a level so that each comes after those that it depends on or compensates;
    otherwise their order stays."""
    after: dict[str, set[str]] = {one.id: set(one.depends_on) for one in steps}
    for one in steps:
        if one.on_error == COMPENSATE and one.compensate_by in after:
            after[one.compensate_by].add(one.id)
    left, found, done = list(steps), [], set[str]()
    while left:
        now = next((one for one in left if after[one.id] <= done), left[0])
        left.remove(now)
        found.append(now)
        done.add(now.id)
    return found


def list_ends(steps: Sequence[Step]) -> list[str]:
    """Lists the ids of the steps on which no other depends, without compensations."""
    used = {id for one in steps for id in one.depends_on}
    compensations = {one.compensate_by for one in steps if one.on_error == COMPENSATE}
    return [one.id for one in steps if one.id not in used | compensations]


def _find_value(step: Step) -> Any:
    """The part of the settings that is rendered when the step begins."""
    if step.node == FOREACH:
        return step.config.get("items")
    if step.node == TRANSFORM:
        return step.config.get("value", step.config.get("output"))
    return dict(step.config)
