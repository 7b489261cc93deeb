"""The steps of a definition as a graph: what each depends on, and whether what it names exists.

A step sees the steps beside it and beside the steps that it is inside of. A template that reads
the output of a step makes its own step depend on that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.workflows.json_schema import suggest
from dragoman.workflows.model import FOREACH
from dragoman.workflows.templates import (
    ENV,
    EVENT_DATA,
    INDEX,
    ITEM,
    NODES,
    RUN,
    TRIGGER,
    Reference,
)  # fmt: skip
from dragoman.workflows.yaml_reader import MAX_PROBLEMS, EnoughProblems, Path

AGENT_FIELD = "agentCardId"
"""The only member of an agent reference."""
RUN_FIELDS = ("id", "workflow")


class TemplatedValue(NamedTuple):
    """A text with templates: where it is, and what it reads."""

    path: Path
    references: frozenset[Reference]


class DefinedStep(NamedTuple):
    id: str
    node: str
    within: str
    """The step that it is inside of; empty at the top."""
    path: Path
    depends_on: tuple[str, ...]
    """As the definition says."""
    compensate_by: str
    values: tuple[TemplatedValue, ...]
    written: Mapping[str, Any]


class GraphProblem(NamedTuple):
    path: Path
    message: str


class CheckedGraph(NamedTuple):
    depends_on: Mapping[str, tuple[str, ...]]
    """The steps of the same level that come before each step, those that templates read too."""
    missing_agents: tuple[str, ...]
    problems: list[GraphProblem]


class StepGraph:
    def __init__(
        self,
        steps: Sequence[DefinedStep],
        *,
        output: tuple[TemplatedValue, ...],
        inputs: tuple[str, ...] | None,
        env: tuple[str, ...],
        agents: Mapping[str, str],
    ) -> None:
        """`steps` are those of all levels. `inputs` is None if the workflow declares none."""
        self._all = steps
        self._steps: dict[str, DefinedStep] = {one.id: one for one in reversed(steps)}
        self._levels: dict[str, list[DefinedStep]] = {}
        for one in steps:
            self._levels.setdefault(one.within, []).append(one)
        self._output = output
        self._inputs = inputs
        self._env = env
        self._agents = agents
        self._missing: set[str] = set()
        self._problems: list[GraphProblem] = []
        self._compensated = {
            one.compensate_by: one.id for one in reversed(steps) if one.compensate_by
        }
        """The step that each compensating step is for."""

    def list_level(self, within: str) -> list[DefinedStep]:
        return self._levels.get(within, [])

    def check(self) -> CheckedGraph:
        try:
            return self._check()
        except EnoughProblems:
            return CheckedGraph({}, (), self._problems)

    def _check(self) -> CheckedGraph:
        self._check_ids()
        if self._problems:
            return CheckedGraph({}, (), self._problems)
        needs = {one.id: dict.fromkeys(self._check_depends_on(one)) for one in self._all}
        read: dict[str, list[tuple[Path, str]]] = {}
        for one in self._all:
            for value in one.values:
                for reference in sorted(value.references, key=str):
                    if reference.root == NODES:
                        self._add_need(one, reference, value.path, needs, read)
                    else:
                        self._check_name(reference, value.path, one)
        self._check_output()
        self._check_compensation(needs, read)
        self._check_cycles(needs)
        depends_on = {id: tuple(found) for id, found in needs.items()}
        return CheckedGraph(depends_on, tuple(sorted(self._missing)), self._problems)

    def _report(self, path: Path, message: str) -> None:
        self._problems.append(GraphProblem(path, message))
        if len(self._problems) > MAX_PROBLEMS:
            raise EnoughProblems

    def _check_ids(self) -> None:
        for one in self._all:
            path = (*one.path, "id")
            if self._steps[one.id] is not one:
                self._report(path, f'there is a step "{one.id}" already; ids are unique')
            if one.id in self._agents:
                self._report(path, f'"{one.id}" is the name of an agent reference; choose another')

    def _check_depends_on(self, one: DefinedStep) -> Iterator[str]:
        path = (*one.path, "dependsOn")
        for name in one.depends_on:
            other = self._steps.get(name)
            if other is one:
                self._report(path, f'the step "{one.id}" depends on itself')
            elif other is not None and other.within == one.within:
                yield name
            elif other is not None:
                place = f'inside "{other.within}"' if other.within else "at the top"
                words = f'step "{name}" is {place}; a step depends on steps beside it'
                self._report(path, f'the step "{one.id}" cannot depend on it: {words}')
            else:
                words = f'the step "{one.id}" depends on the unknown step "{name[:80]}"'
                self._report(path, f"{words}; {suggest(name, self._list_beside(one))}")

    def _list_beside(self, one: DefinedStep) -> list[str]:
        return [other.id for other in self._levels[one.within] if other is not one]

    # --- what templates read ---------------------------------------------------------------------

    def _add_need(
        self,
        one: DefinedStep,
        reference: Reference,
        path: Path,
        needs: Mapping[str, dict[str, None]],
        read: dict[str, list[tuple[Path, str]]],
    ) -> None:
        """Makes the step, or the one around it that is beside the step that it reads, depend on
        the latter."""
        target = self._find_target(reference, path)
        if target is None:
            return
        around = one
        while around.within != target.within:
            if not around.within:
                words = f'inside "{target.within}"; read the output of that step instead'
                self._report(path, f'"{reference}" cannot be read here: the step is {words}')
                return
            around = self._steps[around.within]
        if around.id == target.id:
            words = "is this step" if around is one else "contains this step"
            self._report(path, f'"{reference}" cannot be read here: "{target.id}" {words}')
            return
        read.setdefault(around.id, []).append((path, target.id))
        if around.id not in self._compensated:
            needs[around.id][target.id] = None

    def _find_target(self, reference: Reference, path: Path) -> DefinedStep | None:
        """Finds the step that a template reads; None if it is an agent, or unknown."""
        name = reference.path[0] if reference.path else None
        if not isinstance(name, str):
            self._report(path, f'"{reference}" names no step; write {NODES}.STEP')
        elif name in self._steps:
            return self._steps[name]
        elif reference.path[1:] == (AGENT_FIELD,):
            if name not in self._agents:
                self._missing.add(name)
        elif name in self._agents:
            words = f'the agent reference "{name}" has only {AGENT_FIELD}'
            self._report(path, f'"{reference}" is unknown: {words}')
        else:
            known = [*self._steps, *self._agents]
            words = f'there is no step "{name[:80]}"'
            self._report(path, f'"{reference}" is unknown: {words}; {suggest(name, known)}')
        return None

    def _check_name(self, reference: Reference, path: Path, one: DefinedStep | None) -> None:
        name = reference.path[0] if reference.path else None
        problem = ""
        if reference.root == TRIGGER and self._inputs is not None and name is not None:
            if name not in self._inputs:
                hint = suggest(str(name), list(self._inputs))
                problem = f'the workflow declares no input "{name}"; {hint}'
        elif reference.root == ENV:
            if len(reference.path) != 1 or name not in self._env:
                problem = f'"env" does not declare the variable; write env: [{name or "NAME"}]'
        elif reference.root in (ITEM, INDEX):
            if not self._is_in_loop(one):
                problem = f'it exists only in the steps of a "{FOREACH}"'
        elif reference.root == RUN:
            if name not in RUN_FIELDS or len(reference.path) > 1:
                problem = f"a run has {' and '.join(RUN_FIELDS)}"
        elif reference.root == EVENT_DATA:
            problem = f'it exists only in the inputs of a trigger; steps read "{TRIGGER}"'
        if problem:
            self._report(path, f'"{reference}" is unknown here: {problem}')

    def _is_in_loop(self, one: DefinedStep | None) -> bool:
        while one is not None and one.within:
            one = self._steps[one.within]
            if one.node == FOREACH:
                return True
        return False

    def _check_output(self) -> None:
        for value in self._output:
            for reference in sorted(value.references, key=str):
                if reference.root != NODES:
                    self._check_name(reference, value.path, None)
                    continue
                target = self._find_target(reference, value.path)
                if target is not None and target.within:
                    words = f'is inside "{target.within}"; read the output of that step instead'
                    self._report(value.path, f'"{reference}" cannot be read here: the step {words}')

    # --- compensation and cycles -----------------------------------------------------------------

    def _check_compensation(
        self,
        needs: Mapping[str, dict[str, None]],
        read: Mapping[str, list[tuple[Path, str]]],
    ) -> None:
        for one in self._all:
            if one.compensate_by:
                self._check_compensating(one, needs, read)
        for id, found in needs.items():
            for name in found:
                if name in self._compensated:
                    words = f'"{name}" runs only if "{self._compensated[name]}" fails'
                    message = f'the step "{id}" cannot depend on or read "{name}": {words}'
                    self._report(self._steps[id].path, message)

    def _check_compensating(
        self,
        one: DefinedStep,
        needs: Mapping[str, dict[str, None]],
        read: Mapping[str, list[tuple[Path, str]]],
    ) -> None:
        path = (*one.path, "onError")
        other = self._steps.get(one.compensate_by)
        if other is None or other is one or other.within != one.within:
            words = f'the compensating step "{one.compensate_by[:80]}" is not beside it'
            hint = suggest(one.compensate_by, self._list_beside(one))
            self._report(path, f'step "{one.id}": {words}; {hint}')
            return
        if other.depends_on or other.compensate_by:
            key = "dependsOn" if other.depends_on else "onError: compensate"
            self._report(other.path, f'the step "{other.id}" compensates "{one.id}": no {key}')
        outputs = read.get(other.id, ())
        before = self._find_upstream(one.id, needs) if outputs else set()
        for at, name in outputs:
            if name not in before:
                words = f'step "{name}" does not come before "{one.id}", which "{other.id}" undoes'
                self._report(at, f'the output of "{name}" cannot be read here: {words}')

    @staticmethod
    def _find_upstream(id: str, needs: Mapping[str, Mapping[str, None]]) -> set[str]:
        found: set[str] = set()
        waiting = [id]
        while waiting:
            for name in needs[waiting.pop()]:
                if name not in found:
                    found.add(name)
                    waiting.append(name)
        return found

    def _check_cycles(self, needs: Mapping[str, Mapping[str, None]]) -> None:
        """Reports the first cycle: removes what depends on nothing, until a cycle is left."""
        left = {id: len(found) for id, found in needs.items()}
        followers: dict[str, list[str]] = {}
        for id, found in needs.items():
            for name in found:
                followers.setdefault(name, []).append(id)
        ready = [id for id, count in left.items() if not count]
        while ready:
            del left[id := ready.pop()]
            for follower in followers.get(id, ()):
                left[follower] -= 1
                if not left[follower]:
                    ready.append(follower)
        if not left:
            return
        seen: dict[str, None] = {}
        at = next(iter(left))
        while at not in seen:
            seen[at] = None
            at = next(name for name in needs[at] if name in left)
        path = list(seen)
        cycle = [*path[path.index(at) :], at]
        words = " -> ".join(f'"{id}"' for id in reversed(cycle))
        self._report(self._steps[at].path, f"the steps depend on each other in a cycle: {words}")
