"""Decides what a run does next: a pure function of the workflow and the journal.

It skips, expands and joins steps, and computes transforms; what acts or waits is returned as ready,
for the runner. Knows no store, no hub and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dragoman.core.errors import InvalidInput
from dragoman.core.runs import (
    CANCELLED,
    COMPLETED,
    DECIDED,
    FAILED,
    NEEDS_DECISION,
    PENDING,
    RUNNING,
    SKIPPED,
    WAITING,
    StepRecord,
    is_parked,
)
from dragoman.core.structs import Struct, replace
from dragoman.workflows.compiled import CompiledStep, CompiledWorkflow
from dragoman.workflows.model import ACTING, CONTINUE, FOREACH, PARALLEL, TRANSFORM
from dragoman.workflows.templates import INDEX, ITEM, NODES, is_true

MAX_STEPS: Final = 10_000
"""Executions of steps in one run."""
INVALID: Final = InvalidInput.kind
TOO_MANY: Final = "TooManySteps"


SettledLoops = dict[str, list[Any]]
"""The outputs of the first iterations of each loop, up to one that is not done, by path."""


class ReadyStep(NamedTuple):
    """A step that can begin now."""

    path: str
    step: CompiledStep
    scope: Mapping[str, Any]
    record: StepRecord | None
    """That of earlier attempts."""


class Plan(Struct, kw_only=True):
    ready: list[ReadyStep]
    changed: dict[str, StepRecord]
    """The records that the plan changes, by path; they are in the journal already."""
    state: str
    """RUNNING, WAITING, NEEDS_DECISION, COMPLETED or FAILED."""
    problem: str = ""
    nodes: Mapping[str, Any]
    """The outputs that the output of the workflow may use."""
    wake_at: float = 0.0


class _Level(NamedTuple):
    """How the steps of one level stand."""

    is_open: bool
    """Whether something is ready, runs or waits."""
    failure: StepRecord | None
    """The first failure that no step has handled."""
    nodes: dict[str, Any]


def plan_run(
    workflow: CompiledWorkflow,
    journal: dict[str, StepRecord],
    scope: Mapping[str, Any],
    now: float,
    settled: SettledLoops | None = None,
) -> Plan:
    """Plans the next steps. `scope` is what templates read besides the outputs of steps. The
    records that the plan changes are put into `journal`. `settled` is kept from plan to plan, until
    people change the journal: what a long loop has done is not looked at again."""
    planner = _Planner(workflow, journal, scope, now, {} if settled is None else settled)
    while True:
        before = len(planner.changed), planner.changes
        planner.ready = []
        planner.acting = planner.count_acting()
        nodes = dict(workflow.references(scope))
        level = planner.walk(workflow.steps, "", nodes, {}, math.inf, None)
        if before == (len(planner.changed), planner.changes):
            break
    return planner.build_plan(level)


def find_output(record: StepRecord) -> Any:
    """What templates read as the output of a step. The members of the data that a call has returned
    can be read without naming the data."""
    if record.state == FAILED:
        return {"failed": True, "error": record.problem, "errorKind": record.kind}
    output = record.output
    if record.node in ACTING and isinstance(output, Mapping):
        data = output.get("data")
        if isinstance(data, Mapping):
            return {**output, **data}
    return output


class _Planner:
    def __init__(
        self,
        workflow: CompiledWorkflow,
        journal: dict[str, StepRecord],
        scope: Mapping[str, Any],
        now: float,
        settled: SettledLoops,
    ) -> None:
        self._workflow = workflow
        self._settled = settled
        self._journal = journal
        self._scope = scope
        self._now = now
        self.ready: list[ReadyStep] = []
        self.changed: dict[str, StepRecord] = {}
        self.changes = 0
        self.acting = 0

    def count_acting(self) -> int:
        """Counts the steps at work, here or as a task elsewhere."""
        return sum(
            one.node in ACTING and (one.state == RUNNING or is_parked(one))
            for one in self._journal.values()
        )

    def build_plan(self, level: _Level) -> Plan:
        states = {one.state for one in self._journal.values() if not self._is_container(one)}
        due = [
            one.wake_at
            for one in self._journal.values()
            if one.wake_at > self._now and one.state in (PENDING, WAITING)
        ]
        problem = ""
        if self.ready or RUNNING in states:
            state = RUNNING
        elif NEEDS_DECISION in states:
            state = NEEDS_DECISION
        elif level.is_open:
            state = WAITING
        elif level.failure is not None:
            state, problem = FAILED, _describe_failure(level.failure)
        else:
            state = COMPLETED
        return Plan(
            ready=self.ready,
            changed=self.changed,
            state=state,
            problem=problem,
            nodes=level.nodes,
            wake_at=min(due, default=0.0),
        )

    def _is_container(self, record: StepRecord) -> bool:
        return record.node in (FOREACH, PARALLEL) and record.state == RUNNING

    # --- levels ----------------------------------------------------------------------------------

    def walk(
        self,
        steps: Sequence[CompiledStep],
        prefix: str,
        nodes: dict[str, Any],
        local: Mapping[str, Any],
        most: float,
        stop: StepRecord | None,
    ) -> _Level:
        """Plans the steps of one level. `nodes` are the outputs of the levels above, `local` the
        item of the loop around it, `most` is how many of its steps may run at once, and `stop` a
        failure outside of it, after which nothing begins."""
        records = {one.step.id: self._journal.get(prefix + one.step.id) for one in steps}
        own = next(filter(None, (_find_failure(one, records) for one in steps)), None)
        started = sum(one is not None and one.state not in _SETTLED for one in records.values())
        is_open = False
        for one in steps:
            id, record = one.step.id, records[one.step.id]
            if record is None or record.state == PENDING:
                if not _can_begin(one, records, own or stop):
                    continue  # what it depends on is open, or it never begins
                if record is None and started >= most:
                    is_open = True
                    continue
                is_new = record is None
                record = self._begin(one, prefix, record, nodes, local, records)
                is_open = is_open or record is None
                started += is_new and (record is None or record.state not in _SETTLED)
            if record is None:
                continue
            if record.state == RUNNING and one.body:
                record = self._continue_container(one, record, nodes, local, own or stop)
            if (own or stop) is not None:
                record = self._stop_waiting(one, record)
            records[id] = record
            if record.state in (COMPLETED, FAILED):
                nodes[id] = find_output(record)
            is_open = is_open or record.state not in _SETTLED
            own = own or _find_failure(one, records)
        return _Level(is_open, own, nodes)

    def _begin(
        self,
        one: CompiledStep,
        prefix: str,
        record: StepRecord | None,
        nodes: Mapping[str, Any],
        local: Mapping[str, Any],
        records: Mapping[str, StepRecord | None],
    ) -> StepRecord | None:
        """Begins a step, or finds it ready; returns its record, if it has one now."""
        step, path = one.step, prefix + one.step.id
        scope = {**self._scope, **local, NODES: nodes}
        if record is not None and record.wake_at > self._now:
            return record
        if record is None or not record.attempt:  # it has not begun, or begins anew
            above = [records[id] for id in step.depends_on]
            if above and all(done is not None and _is_skipped(done) for done in above):
                return self._put(one, path, SKIPPED)
            if len(self._journal) >= MAX_STEPS:
                said = f"the run has more than {MAX_STEPS} executions of steps"
                return self._put(one, path, FAILED, problem=said, kind=TOO_MANY)
            try:
                if one.when is not None and not is_true(one.when.render(scope)):
                    return self._put(one, path, SKIPPED)
                if step.node == TRANSFORM:
                    return self._put(one, path, COMPLETED, output=one.render(scope))
                if step.node in (FOREACH, PARALLEL):
                    return self._expand(one, path, scope)
            except InvalidInput as error:
                return self._put(one, path, FAILED, problem=str(error), kind=INVALID)
        if step.node in ACTING:
            if self.acting >= self._workflow.workflow.concurrency:
                return record
            self.acting += 1
        self.ready.append(ReadyStep(path, one, scope, record))
        return record

    def _stop_waiting(self, one: CompiledStep, record: StepRecord) -> StepRecord:
        """After a failure, nothing in the level waits any more, except what compensates it. What
        works elsewhere ends by itself, as what runs here does."""
        if record.state not in (WAITING, PENDING) or one.compensates or is_parked(record):
            return record
        return self._change(replace(record, state=CANCELLED, ended_at=self._now, wake_at=0.0))

    # --- foreach and parallel --------------------------------------------------------------------

    def _expand(self, one: CompiledStep, path: str, scope: Mapping[str, Any]) -> StepRecord:
        detail: dict[str, Any] = {}
        if one.step.node == FOREACH:
            items = one.render(scope)
            if not isinstance(items, list | tuple):
                raise InvalidInput(f'the items of "{path}" must be a list')
            if len(items) > MAX_STEPS:
                raise InvalidInput(f'"{path}" has more than {MAX_STEPS} items')
            detail = {"items": list(items)}
        return self._put(one, path, RUNNING, detail=detail)

    def _continue_container(
        self,
        one: CompiledStep,
        record: StepRecord,
        nodes: dict[str, Any],
        local: Mapping[str, Any],
        stop: StepRecord | None,
    ) -> StepRecord:
        prefix = record.path.removesuffix(one.step.id)
        most = one.concurrency or math.inf
        if one.step.node == PARALLEL:
            level = self.walk(one.body, prefix, nodes, local, most, stop)
            output: Any = {id: nodes[id] for id in one.ids if id in nodes}
            return self._join(record, level.is_open, level.failure, stop, output)
        items: list[Any] = record.detail["items"]
        done = self._settled.setdefault(record.path, [])
        outputs: list[Any] = []
        busy, failure = 0, self._find_inner_failure(one, record.path, len(done), len(items))
        for index in range(len(done), len(items)):  # they begin in this order
            inner = f"{record.path}[{index}]."
            has_begun = self._has_begun(one, inner)
            if not has_begun and (busy >= most or failure is not None or stop is not None):
                break
            here = {**local, ITEM: items[index], INDEX: index}
            ready = len(self.ready)
            level = self.walk(one.body, inner, dict(nodes), here, math.inf, failure or stop)
            busy += level.is_open
            failure = failure or level.failure
            ends = {id: level.nodes.get(id) for id in one.ends}
            outputs.append(next(iter(ends.values())) if len(ends) == 1 else ends)
            if busy == 0 and failure is None and stop is None:
                done.append(outputs.pop())
            elif not has_begun and len(self.ready) == ready and not self._has_begun(one, inner):
                break  # the workflow has no room for it, nor for those after it
        output = {"items": [*done, *outputs], "count": len(items)}
        return self._join(record, busy > 0, failure, stop, output)

    def _has_begun(self, one: CompiledStep, prefix: str) -> bool:
        return any(prefix + id in self._journal for id in one.ids)

    def _find_inner_failure(
        self, one: CompiledStep, path: str, first: int, end: int
    ) -> StepRecord | None:
        """The first failure in an iteration that ends the loop."""
        for index in range(first, end):
            records = {id: self._journal.get(f"{path}[{index}].{id}") for id in one.ids}
            if not any(records.values()):
                break  # nor has one after it begun
            for inner in one.body:
                if (failure := _find_failure(inner, records)) is not None:
                    return failure
        return None

    def _join(
        self,
        record: StepRecord,
        is_open: bool,
        failure: StepRecord | None,
        stop: StepRecord | None,
        output: Any,
    ) -> StepRecord:
        if is_open:
            return record
        if failure is None and stop is not None:
            ended = replace(record, state=CANCELLED)
        elif failure is not None:
            said = _describe_failure(failure)
            ended = replace(record, state=FAILED, problem=said, kind=failure.kind)
        else:
            ended = replace(record, state=COMPLETED, output=output, detail={})
        return self._change(replace(ended, ended_at=self._now))

    # --- records ---------------------------------------------------------------------------------

    def _put(self, one: CompiledStep, path: str, state: str, **more: Any) -> StepRecord:
        ended = 0.0 if state == RUNNING else self._now
        return self._change(
            StepRecord(
                path=path,
                step=one.step.id,
                node=one.step.node,
                state=state,
                attempt=0 if state == SKIPPED else 1,
                started_at=self._now,
                ended_at=ended,
                **more,
            )
        )

    def _change(self, record: StepRecord) -> StepRecord:
        self._journal[record.path] = self.changed[record.path] = record
        self.changes += 1
        return record


_SETTLED: Final = frozenset({COMPLETED, SKIPPED, FAILED, CANCELLED})


def _is_skipped(record: StepRecord) -> bool:
    """A step that a person has decided to skip counts as done."""
    return record.state == SKIPPED and record.kind != DECIDED


def _describe_failure(record: StepRecord) -> str:
    return f'step "{record.path}" failed: {record.problem}'


def _find_failure(one: CompiledStep, records: Mapping[str, StepRecord | None]) -> StepRecord | None:
    """The record of a step that failed in a way that ends its level."""
    record = records[one.step.id]
    fails = record is not None and record.state == FAILED and one.step.on_error != CONTINUE
    return record if fails else None


def _can_begin(
    one: CompiledStep, records: Mapping[str, StepRecord | None], failure: StepRecord | None
) -> bool:
    if one.compensates:
        compensated = (records.get(id) for id in one.compensates)
        return any(done is not None and done.state == FAILED for done in compensated)
    above = [records.get(id) for id in one.step.depends_on]
    return failure is None and all(done is not None and done.state in _SETTLED for done in above)
