"""The task queue: claimed exactly once, released after its lease, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools.tool_rig import ToolRig, read_object, read_text

from dragoman.core.errors import InvalidInput, NotFound, Overloaded
from dragoman.core.ports import QueuedTask
from dragoman.stores.agent_queue import DatabaseQueue, QueueLimits

pytestmark = pytest.mark.promise("T2")


async def test_task_is_posted_claimed_and_completed(rig: ToolRig) -> None:
    rig.add_agent(rig.build_profile("worker"))
    posted = read_object(await rig.use("task_post", title="Review", description="all of it"))
    claimed = read_object(await rig.use("task_claim", "worker"))
    assert claimed["id"] == posted["task"] and claimed["description"] == "all of it"
    assert read_text(await rig.use("task_claim")) == "there is no task to claim"
    listed = read_object(await rig.use("task_list", status="in_progress"))["tasks"]
    assert [one["claimedBy"] for one in listed] == ["worker"]
    with pytest.raises(InvalidInput, match="another agent has claimed it"):
        await rig.use("task_complete", task_id=posted["task"], result="mine")
    await rig.use("task_complete", "worker", task_id=posted["task"], result="done")
    (done,) = read_object(await rig.use("task_list", status="completed"))["tasks"]
    assert done["result"] == "done"
    with pytest.raises(InvalidInput, match="it is completed"):
        await rig.use("task_complete", "worker", task_id=posted["task"], result="again")


async def test_assigned_task_is_for_one_agent(rig: ToolRig) -> None:
    for name in ("worker", "other"):
        rig.add_agent(rig.build_profile(name))
    task = read_object(
        await rig.use("task_post", title="T", description="D", assigned_to="worker")
    )["task"]
    for more in ({}, {"task_id": task}):
        assert "there is no" in read_text(await rig.use("task_claim", "other", **more))
    assert read_object(await rig.use("task_list", "other")) == {"tasks": []}
    with pytest.raises(NotFound):
        await rig.use("task_complete", "other", task_id=task, result="x")
    with pytest.raises(InvalidInput, match="you have not claimed it"):
        await rig.use("task_complete", "worker", task_id=task, result="x")
    assert read_object(await rig.use("task_claim", "worker", task_id=task))["id"] == task


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("task_post", {"title": "", "description": "x"}),
        ("task_post", {"title": "x"}),
        ("task_post", {"title": "x", "description": "x" * 50_001}),
        ("task_list", {"status": "odd"}),
        ("task_complete", {"task_id": "x"}),
    ],
)
async def test_malformed_task_is_refused(
    rig: ToolRig, tool: str, arguments: dict[str, str]
) -> None:
    with pytest.raises(InvalidInput):
        await rig.use(tool, **arguments)


# --- the store ------------------------------------------------------------------------------------


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(tmp_path: Path, clock: Clock) -> Iterator[DatabaseQueue]:
    made = DatabaseQueue(tmp_path, QueueLimits(unfinished=4, of_agent=3, completed=2), clock)
    yield made
    made.close()


def build_task(id: str, by: str = "boss", org: str = "default") -> QueuedTask:
    return QueuedTask(id, org, "title", "text", by, "", "pending", "", 0.0, "", 1.0, 1.0)


def test_lease_is_released(queue: DatabaseQueue, clock: Clock) -> None:
    queue.post(build_task("one"))
    first = queue.claim("default", "slow", "", 60)
    assert first is not None and queue.claim("default", "quick", "", 60) is None
    clock.now += 60
    second = queue.claim("default", "quick", "", 60)
    assert second is not None and second.id == "one"
    with pytest.raises(InvalidInput, match="another agent"):
        queue.complete("default", "slow", "one", "late")
    assert queue.complete("default", "quick", "one", "done").result == "done"


def test_late_completion_counts_if_no_other_agent_has_claimed(
    queue: DatabaseQueue, clock: Clock
) -> None:
    queue.post(build_task("one"))
    queue.claim("default", "slow", "", 60)
    clock.now += 600
    assert queue.complete("default", "slow", "one", "late").state == "completed"


def test_each_task_is_claimed_once_across_connections(tmp_path: Path) -> None:
    stores = [DatabaseQueue(tmp_path) for _ in range(3)]
    for number in range(9):
        stores[0].post(build_task(f"task-{number}"))
    claimed = [
        task.id
        for turn in range(12)
        if (task := stores[turn % 3].claim("default", f"agent-{turn % 3}", "", 60)) is not None
    ]
    assert claimed == [f"task-{number}" for number in range(9)]
    for store in stores:
        store.close()


def test_queue_is_bounded_and_orgs_are_apart(queue: DatabaseQueue) -> None:
    for id in "abc":
        queue.post(build_task(id))
    with pytest.raises(Overloaded, match="you have posted 3 tasks"):
        queue.post(build_task("d"))
    queue.post(build_task("d", by="other", org="acme"))
    with pytest.raises(Overloaded, match="4 unfinished"):
        queue.post(build_task("e", by="third"))
    assert queue.claim("acme", "x", "a", 60) is None
    for id in "abc":
        queue.claim("default", "x", id, 60)
        queue.complete("default", "x", id, "")
    queue.post(build_task("e"))
    kept = {task.id for task in queue.list_tasks("default", "boss", "", 10)}
    assert kept == {"b", "c", "e"}  # the oldest completed one is gone
