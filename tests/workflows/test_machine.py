"""What a run does next: a table of workflows, of what has happened, and of what follows."""

from __future__ import annotations

from typing import Any

import pytest

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
)
from dragoman.workflows.compiled import CompiledWorkflow
from dragoman.workflows.loader import load_workflow
from dragoman.workflows.machine import Plan, plan_run
from dragoman.workflows.model import Workflow

pytestmark = pytest.mark.promise("R14")

NOW = 1_000.0


def tool(id: str, *after: str, **more: Any) -> dict[str, Any]:
    step = {"id": id, "nodeId": "tool.call", "config": {"tool": "t.x"}, **more}
    return {**step, "dependsOn": list(after)} if after else step


def load(*steps: dict[str, Any], **more: Any) -> Workflow:
    import json

    return load_workflow(json.dumps({"steps": list(steps), **more}), "test")


class Journal:
    def __init__(self, workflow: Workflow) -> None:
        self.compiled = CompiledWorkflow(workflow)
        self.steps: dict[str, StepRecord] = {}

    def put(self, path: str, state: str, output: Any = None, **more: Any) -> None:
        step = self.compiled.by_id[path.rpartition(".")[2]].step
        self.steps[path] = StepRecord(
            path=path, step=step.id, node=step.node, state=state, output=output, **more
        )

    def plan(self, **scope: Any) -> Plan:
        given = {"$trigger": scope, "$env": {}, "$run": {}}
        return plan_run(self.compiled, self.steps, given, NOW)

    def list_ready(self, **scope: Any) -> list[str]:
        return [one.path for one in self.plan(**scope).ready]

    def states(self) -> dict[str, str]:
        return {path: record.state for path, record in self.steps.items()}


DIAMOND = (tool("a"), tool("b", "a"), tool("c", "a"), tool("d", "b", "c"))

ORDER: list[tuple[str, dict[str, str], list[str], str]] = [
    # what has happened, what is ready, the state of the run
    ("begins", {}, ["a"], RUNNING),
    ("waits for what runs", {"a": RUNNING}, [], RUNNING),
    ("fans out", {"a": COMPLETED}, ["b", "c"], RUNNING),
    ("joins only all", {"a": COMPLETED, "b": COMPLETED, "c": RUNNING}, [], RUNNING),
    ("joins", {"a": COMPLETED, "b": COMPLETED, "c": COMPLETED}, ["d"], RUNNING),
    ("joins after a skip", {"a": COMPLETED, "b": SKIPPED, "c": COMPLETED}, ["d"], RUNNING),
    ("skips after skips", {"a": COMPLETED, "b": SKIPPED, "c": SKIPPED}, [], COMPLETED),
    ("waits", {"a": COMPLETED, "b": WAITING, "c": COMPLETED}, [], WAITING),
    ("needs a decision", {"a": NEEDS_DECISION}, [], NEEDS_DECISION),
    ("goes on beside it", {"a": COMPLETED, "b": NEEDS_DECISION}, ["c"], RUNNING),
    ("decision beats wait", {"a": COMPLETED, "b": NEEDS_DECISION, "c": WAITING}, [],
     NEEDS_DECISION),
    ("fails", {"a": FAILED}, [], FAILED),
    ("lets others end", {"a": COMPLETED, "b": FAILED, "c": RUNNING}, [], RUNNING),
    ("ends after them", {"a": COMPLETED, "b": FAILED, "c": COMPLETED}, [], FAILED),
    ("cancels waits", {"a": COMPLETED, "b": FAILED, "c": WAITING}, [], FAILED),
    ("completes", dict.fromkeys("abcd", COMPLETED), [], COMPLETED),
]  # fmt: skip


@pytest.mark.parametrize(("states", "ready", "state"), [row[1:] for row in ORDER],
                         ids=[row[0] for row in ORDER])  # fmt: skip
def test_the_order_of_steps(states: dict[str, str], ready: list[str], state: str) -> None:
    journal = Journal(load(*DIAMOND))
    for path, one in states.items():
        journal.put(path, one)
    plan = journal.plan()
    assert ([one.path for one in plan.ready], plan.state) == (ready, state)
    if WAITING in states.values() and FAILED in states.values():
        assert journal.states()["c"] == CANCELLED


def test_when_and_the_outputs_of_steps() -> None:
    journal = Journal(
        load(
            tool("a"),
            {"id": "t", "nodeId": "transform", "dependsOn": ["a"],
             "config": {"value": {"n": "{{ nodes.a.count }}", "all": "{{ nodes.a.data }}"}}},
            tool("yes", when="{{ nodes.t.n > 2 }}"),
            tool("no", when="{{ nodes.t.n > 9 }}"),
            tool("after", "no"),
            tool("bad", when="{{ nodes.a.nothing }}", onError="continue"),
        )
    )  # fmt: skip
    journal.put("a", COMPLETED, {"text": "x", "data": {"count": 3}})
    plan = journal.plan()
    assert [one.path for one in plan.ready] == ["yes"]
    assert journal.steps["t"].output == {"n": 3, "all": {"count": 3}}
    assert journal.states() == {
        "a": COMPLETED, "t": COMPLETED, "no": SKIPPED, "after": SKIPPED, "bad": FAILED,
    }  # fmt: skip
    assert "nothing" in journal.steps["bad"].problem
    assert plan.ready[0].scope["nodes"]["t"] == {"n": 3, "all": {"count": 3}}


def test_errors_are_continued_from_or_compensated() -> None:
    journal = Journal(load(tool("a", onError="continue"), tool("b", "a")))
    journal.put("a", FAILED, problem="it broke", kind="WorkFailed")
    plan = journal.plan()
    assert [one.path for one in plan.ready] == ["b"]
    assert plan.ready[0].scope["nodes"]["a"] == {
        "failed": True,
        "error": "it broke",
        "errorKind": "WorkFailed",
    }

    journal = Journal(load(tool("a", onError={"compensate": "undo"}), tool("b", "a"), tool("undo")))
    assert journal.list_ready() == ["a"]
    journal.put("a", FAILED, problem="it broke")
    assert journal.list_ready() == ["undo"]
    journal.put("undo", COMPLETED)
    plan = journal.plan()
    assert (plan.ready, plan.state) == ([], FAILED) and "it broke" in plan.problem
    journal.put("a", COMPLETED)
    del journal.steps["undo"]
    assert journal.list_ready() == ["b"]
    journal.put("b", COMPLETED)
    assert journal.plan().state == COMPLETED and "undo" not in journal.steps


def test_attempts_wait_for_their_time() -> None:
    journal = Journal(load(tool("a")))
    journal.put("a", PENDING, attempt=1, wake_at=NOW + 5)
    plan = journal.plan()
    assert (plan.ready, plan.state, plan.wake_at) == ([], WAITING, NOW + 5)
    journal.put("a", PENDING, attempt=1, wake_at=NOW - 1)
    assert journal.list_ready() == ["a"]


def test_an_attempt_that_is_due_but_has_no_room_wakes_nothing() -> None:
    journal = Journal(load(tool("a"), tool("b"), concurrency=1))
    journal.put("a", RUNNING)
    journal.put("b", PENDING, attempt=1, wake_at=NOW - 1)
    plan = journal.plan()
    assert (plan.ready, plan.state, plan.wake_at) == ([], RUNNING, 0.0)


def test_what_failed_to_compute_is_computed_anew() -> None:
    journal = Journal(
        load(
            {"id": "t", "nodeId": "transform", "config": {"value": "{{ $trigger.n }}"}},
            loop(),
            tool("w", when="{{ $trigger.n }}"),
        )
    )
    for path in ("t", "loop", "w"):  # as `retry` of a failed run leaves them
        journal.put(path, PENDING, detail={"generation": 2})
    plan = journal.plan(n=7, items=["x"])
    assert journal.steps["t"].output == 7
    assert [one.path for one in plan.ready] == ["loop[0].get", "w"]


def test_a_step_that_was_skipped_by_decision_counts_as_done() -> None:
    journal = Journal(load(tool("a"), tool("b", "a")))
    journal.put("a", SKIPPED, kind=DECIDED)
    assert journal.list_ready() == ["b"]


def loop(**more: Any) -> dict[str, Any]:
    steps = [tool("get"), tool("put", "get")]
    config = {"items": "{{ $trigger.items }}", "steps": steps, **more}
    return {"id": "loop", "nodeId": "foreach", "config": config}


def test_loops_expand_within_their_bounds_and_join() -> None:
    journal = Journal(load(loop(concurrency=2), tool("end", "loop")))
    items = ["x", "y", "z"]
    plan = journal.plan(items=items)
    assert [one.path for one in plan.ready] == ["loop[0].get", "loop[1].get"]
    assert plan.ready[1].scope["$item"] == "y" and plan.ready[1].scope["$index"] == 1
    journal.put("loop[0].get", COMPLETED, {"text": "got x"})
    journal.put("loop[1].get", RUNNING)
    plan = journal.plan(items=items)
    assert [one.path for one in plan.ready] == ["loop[0].put"]
    assert plan.ready[0].scope["nodes"]["get"] == {"text": "got x"}
    journal.put("loop[0].put", COMPLETED, {"text": "put x"})
    assert journal.list_ready(items=items) == ["loop[2].get"]
    for index in (1, 2):
        journal.put(f"loop[{index}].get", COMPLETED, {"text": "got"})
        journal.put(f"loop[{index}].put", COMPLETED, {"text": f"put {index}"})
    plan = journal.plan(items=items)
    assert [one.path for one in plan.ready] == ["end"]
    texts = [one["text"] for one in journal.steps["loop"].output["items"]]
    assert texts == ["put x", "put 1", "put 2"] and journal.steps["loop"].output["count"] == 3


class CountedSteps(dict[str, StepRecord]):
    """Counts how often the journal is asked for a step."""

    asked = 0

    def get(self, path: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(path, default)

    def __contains__(self, path: object) -> bool:
        self.asked += 1
        return super().__contains__(path)


@pytest.mark.parametrize("concurrency", [3, None])
def test_the_work_for_a_loop_grows_with_its_items(concurrency: int | None) -> None:
    more = {} if concurrency is None else {"concurrency": concurrency}
    journal = Journal(load(loop(**more)))
    journal.steps = steps = CountedSteps()
    count, settled = 1_000, dict[str, list[Any]]()
    given = {"$trigger": {"items": list(range(count))}, "$env": {}, "$run": {}}
    while plan := plan_run(journal.compiled, steps, given, NOW, settled):
        for one in plan.ready:
            journal.put(one.path, COMPLETED, {"text": one.path})
        if not plan.ready:
            break
    assert (plan.state, len(steps["loop"].output["items"])) == (COMPLETED, count)
    assert steps["loop"].output["items"][7] == {"text": "loop[7].put"}
    assert steps.asked < 100 * count


def test_loops_of_nothing_and_of_no_list() -> None:
    journal = Journal(load(loop()))
    assert journal.plan(items=[]).state == COMPLETED
    assert journal.steps["loop"].output == {"items": [], "count": 0}
    journal = Journal(load(loop()))
    plan = journal.plan(items="abc")
    assert plan.state == FAILED and "must be a list" in plan.problem


def test_a_failed_iteration_ends_its_loop_and_cancels_the_waits_of_others() -> None:
    journal = Journal(load(loop(), tool("beside"), tool("end", "loop", "beside")))
    assert len(journal.list_ready(items=[1, 2, 3])) == 4
    journal.put("loop[0].get", FAILED, problem="no")
    journal.put("loop[1].get", RUNNING)
    journal.put("loop[2].get", WAITING)
    journal.put("beside", WAITING)
    plan = journal.plan(items=[1, 2, 3])
    assert plan.state == RUNNING and journal.states()["loop[2].get"] == CANCELLED
    assert journal.states()["beside"] == WAITING  # the loop itself has not failed yet
    journal.put("loop[1].get", COMPLETED)
    plan = journal.plan(items=[1, 2, 3])
    assert plan.state == FAILED and 'step "loop[0].get" failed: no' in plan.problem
    assert journal.states()["beside"] == CANCELLED and "loop[1].put" not in journal.steps


def test_parallel_steps_are_bounded_and_joined() -> None:
    config = {"concurrency": 2, "steps": [tool("x"), tool("y"), tool("z")]}
    journal = Journal(load({"id": "all", "nodeId": "parallel", "config": config},
                           tool("end", "all")))  # fmt: skip
    assert journal.list_ready() == ["x", "y"]
    journal.put("x", COMPLETED, {"text": "1"})
    journal.put("y", RUNNING)
    assert journal.list_ready() == ["z"]
    journal.put("y", COMPLETED, {"text": "2"})
    journal.put("z", COMPLETED, {"text": "3"})
    plan = journal.plan()
    assert [one.path for one in plan.ready] == ["end"]
    assert journal.steps["all"].output["y"] == {"text": "2"}
    assert plan.ready[0].scope["nodes"]["all"]["z"] == {"text": "3"}


def test_the_workflow_bounds_its_calls() -> None:
    journal = Journal(load(*(tool(f"s{n}") for n in range(5)), concurrency=3))
    assert journal.list_ready() == ["s0", "s1", "s2"]
    for path in ("s0", "s1", "s2"):
        journal.put(path, RUNNING)
    assert journal.list_ready() == []
    journal.put("s1", COMPLETED)
    assert journal.list_ready() == ["s3"]
