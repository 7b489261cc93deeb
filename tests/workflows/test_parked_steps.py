"""Steps that are parked while a task elsewhere does their work, in a hub of this process: what they
hold, count and announce, who may ask for the task, and runs that wait for other runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.workflows.run_rig import RunRig, StubTools, call, node, run_rig

from dragoman.core.call import Call, Progress, Result, TaskNamed
from dragoman.core.errors import Unreachable, WorkFailed
from dragoman.core.hub import CallOptions
from dragoman.core.principal import OWNER, Principal
from dragoman.core.runs import (
    CANCELLED,
    COMPLETED,
    FAILED,
    RUNNING,
    WAITING,
    Run,
    StepRecord,
)
from dragoman.core.tool_filter import EVERYTHING
from dragoman.stores.config import StoreSettings
from dragoman.stores.run_rows import merge_due

pytestmark = [pytest.mark.promise("R14"), pytest.mark.anyio]
BOB = Principal("owner", "bob")  # without roles
PARKED: dict[str, Any] = {"attached_secs": 0.01, "poll_secs": 0.1}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Tasks:
    """A tool whose calls become tasks, which a test ends."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []
        self.outcomes: dict[str, Any] = {}
        self.message = "at it"
        self.polled = asyncio.Event()

    def __call__(self, one: Call) -> Any:
        assert one.task is not None
        self.seen.append((one.task.action, one.handle))
        if one.task.action == "cancel":
            return Result()
        id = one.handle or str(one.arguments.get("id", "x"))
        if one.task.action == "begin":
            one.updates(TaskNamed(handle=id, id=id, place="here"))
        else:
            self.polled.set()
        one.updates(Progress(progress=1, message=self.message))
        if id not in self.outcomes:
            return Result(unfinished=True, handle=id)
        if isinstance(outcome := self.outcomes[id], Exception):
            raise outcome
        return outcome

    def count(self, action: str) -> int:
        return sum(one[0] == action for one in self.seen)

    async def until_polled(self, times: int = 1) -> None:
        async with asyncio.timeout(60):
            for _ in range(times):
                self.polled.clear()
                await self.polled.wait()


async def until_step(rig: RunRig, run: Run, path: str, state: str) -> StepRecord:
    async with asyncio.timeout(60):
        while (found := (await rig.steps(run)).get(path)) is None or found.state != state:
            await asyncio.sleep(0.01)
    return found


async def test_a_parked_step_is_a_row_that_is_polled(short_tmp: Path) -> None:
    """It holds nothing; polls that bring nothing new are not announced; a hub that is restarted
    polls on; the task has its outcome once."""
    tasks = Tasks()
    async with run_rig(short_tmp, **PARKED) as rig:
        rig.add("work", tasks)
        await rig.define("long", call("work", arguments={"id": "t1"}), output="{{ nodes.work.n }}")
        run = await rig.start("long")
        await rig.until(run.id, WAITING)
        await rig.until_idle()
        heard: list[str] = []
        stop = rig.service.watch(
            run.id, lambda run, step: heard.append((step and step.message) or "")
        )
        await tasks.until_polled(3)
        assert heard == []
        tasks.message = "further"
        await tasks.until_polled(2)
        assert heard == ["further"]
        stop()
        record = (await rig.steps(run))["work"]
        assert (record.state, record.awaited, record.message) == (
            WAITING,
            "task stub.work",
            "further",
        )
    before = tasks.count("poll")
    async with run_rig(short_tmp, rig.stub, **PARKED) as rig:
        await tasks.until_polled()
        tasks.outcomes["t1"] = {"n": 1}
        run = await rig.until(run.id)
        assert (run.state, run.output) == (COMPLETED, 1)
    assert tasks.count("begin") == 1 and tasks.count("poll") > before


async def test_parked_steps_count_as_work_and_outlive_a_failure_beside_them(
    short_tmp: Path,
) -> None:
    tasks = Tasks()
    async with run_rig(short_tmp, **PARKED) as rig:
        rig.add("work", tasks)
        rig.add("fail", lambda one: 1 / 0)
        body = [call("work", arguments={"id": "{{ $item }}"})]
        loop = node("all", "foreach", items=["a", "b", "c"], steps=body)
        await rig.define("many", loop, concurrency=2)
        run = await rig.start("many")
        await rig.until(run.id, WAITING)
        await tasks.until_polled(4)
        assert tasks.count("begin") == 2  # as many as may work at once, here or elsewhere
        for name in ("a", "b", "c"):
            tasks.outcomes[name] = name
        assert (await rig.until(run.id)).state == COMPLETED

        tasks.outcomes.clear()
        wait = node("pause", "wait", seconds=3_600)
        late = call("fail", "short")
        await rig.define("beside", call("work"), wait, node("short", "wait", seconds=0.3), late)
        run = await rig.start("beside")
        await until_step(rig, run, "fail", FAILED)
        await tasks.until_polled(2)
        assert await rig.states(run) == {
            "work": WAITING, "pause": CANCELLED, "short": COMPLETED, "fail": FAILED,
        }  # fmt: skip
        tasks.outcomes["x"] = "done"
        run = await rig.until(run.id)
        assert (run.state, (await rig.states(run))["work"]) == (FAILED, COMPLETED)
        assert tasks.count("cancel") == 0


async def test_a_step_that_is_polled_stays_due_in_the_store(short_tmp: Path) -> None:
    """Whatever else of the run is stored meanwhile: a hub that is killed now must find it."""
    tasks, release = Tasks(), asyncio.Event()

    async def work(one: Call) -> Any:
        found = tasks(one)
        if one.polls:
            await release.wait()
        return found

    async with run_rig(short_tmp, **PARKED) as rig:
        rig.add("work", work)
        await rig.define("two", call("work"), node("pause", "wait", seconds=0.5))
        run = await rig.start("two")
        await tasks.until_polled()
        await until_step(rig, run, "pause", COMPLETED)
        stored = await rig.service.find(OWNER, run.id)
        assert stored.state == WAITING and 0 < stored.wake_at < time.time()
        tasks.outcomes["x"] = "done"
        release.set()
        assert (await rig.until(run.id)).state == COMPLETED


async def test_an_unreachable_target_is_polled_until_the_timeout_of_the_step(
    short_tmp: Path,
) -> None:
    tasks = Tasks()
    async with run_rig(short_tmp, **PARKED) as rig:
        rig.add("work", tasks)
        await rig.define("limited", call("work", timeout=1))
        run = await rig.start("limited")
        await rig.until(run.id, WAITING)
        tasks.outcomes["x"] = Unreachable("it is away")
        await tasks.until_polled(2)
        record = (await rig.steps(run))["work"]
        assert (record.state, record.message) == (WAITING, "it is away")
        run = await rig.until(run.id)
        assert run.state == FAILED and "took longer than the 1 s" in run.problem
        async with asyncio.timeout(60):
            while tasks.count("cancel") < 1:
                await asyncio.sleep(0.01)
        assert tasks.seen[-1] == ("cancel", "x")
        # Neither the polls nor the errors of the target flood the audit.
        rig.app.parts.stores.audit.flush()
        records = [one for one in list_audit(rig) if one[0] == "stub.work"]
        assert records == [("stub.work", "parked"), ("stub.work", "completed")], records


def list_audit(rig: RunRig) -> list[tuple[str, str]]:
    from dragoman.stores.audit.reader import AuditReader

    reader = AuditReader(rig.app.parts.home)
    found = [(str(one.intent.get("verb")), one.outcome) for one in reader.list_records(100)]
    reader.close()
    return list(reversed(found))


async def test_rights_are_those_of_the_time_of_each_poll(short_tmp: Path) -> None:
    policies = """
    @id("owner") permit (principal in Hub::Role::"owner", action, resource);
    @id("bob") permit (principal, action, resource) unless { resource == Hub::Tool::"stub.no" };
    """
    tasks = Tasks()
    async with run_rig(short_tmp, policies=policies, **PARKED) as rig:
        rig.add("work", tasks)
        await rig.define("long", call("work"))
        run = await rig.start("long", BOB)
        await rig.until(run.id, WAITING)
        await tasks.until_polled()
        kept = "\n".join(line for line in policies.splitlines() if "bob" not in line)
        await rig.app.parts.guards.policies.write("test.cedar", kept, OWNER, force=True)
        run = await rig.until(run.id)
        assert run.state == FAILED and "stub.work" in run.problem, run.problem
        async with asyncio.timeout(60):
            while not tasks.count("cancel"):
                await asyncio.sleep(0.01)
        polls = tasks.count("poll")
        assert tasks.seen[-1][0] == "cancel"  # which needs no permission
        rig.app.parts.stores.audit.flush()
        records = [one[1] for one in list_audit(rig) if one[0] == "stub.work"]
        assert records == ["parked", "not_found", "completed"], records
        assert tasks.count("poll") == polls


async def test_a_cancelled_run_cancels_the_task_of_its_question(short_tmp: Path) -> None:
    from tests.workflows.run_rig import ask

    tasks = Tasks()
    async with run_rig(short_tmp, **PARKED) as rig:
        rig.add("work", tasks)
        await rig.define("long", call("work"))
        run = await rig.start("long")
        await rig.until(run.id, WAITING)
        tasks.outcomes["x"] = ask()
        async with asyncio.timeout(60):
            while "questions" not in (await rig.steps(run))["work"].detail:
                await asyncio.sleep(0.01)
        polls = tasks.count("poll")
        await rig.service.cancel(OWNER, run.id)
        async with asyncio.timeout(60):
            while not tasks.count("cancel"):
                await asyncio.sleep(0.01)
        assert tasks.count("poll") == polls  # a question is not polled


# --- runs that wait for other runs ---------------------------------------------------------------


async def test_a_run_that_waits_for_another_is_a_row_and_is_woken_by_its_end(
    short_tmp: Path,
) -> None:
    async with run_rig(short_tmp, attached_secs=0.05, poll_secs=3_600.0) as rig:
        desk = rig.app.parts.guards.approvals.find_desk()
        await rig.define("inner", node("ask", "approval", title="Go?"), expose=True)
        outer = node("nested", "tool.call", tool="workflow.inner", arguments={})
        await rig.define("outer", outer, output="{{ nodes.nested.data }}")
        runs = [await rig.start("outer") for _ in range(2)]
        children = []
        for run in runs:
            await until_step(rig, run, "nested", WAITING)
            children.append((await rig.steps(run))["nested"].detail["task"]["id"])
        await rig.until_idle()
        desk.decide(f"{children[0]}.ask", True, OWNER)
        found = await rig.until(runs[0].id)
        assert found.state == COMPLETED and found.output["ask"]["approved"] is True
        # The other one ends with the run that waits for it.
        await rig.service.cancel(OWNER, runs[1].id)
        assert (await rig.until(children[1])).state == CANCELLED


async def test_a_nested_run_needs_no_room(short_tmp: Path) -> None:
    """A tool or agent of a run that calls a workflow waits for another run, which wakes by itself
    and must not wait for the place of the first one."""
    options = CallOptions(door="agent", view=EVERYTHING)
    async with run_rig(short_tmp, concurrency=1, max_active=1) as rig:

        async def delegate(one: Call) -> Result:
            found = await rig.hub.call_within(
                one.trace, one.principal, "workflow.inner", {}, options
            )
            return found[1]

        rig.add("delegate", delegate)
        rig.add("act", lambda one: {"n": 1})
        pause = node("pause", "wait", seconds=0.2)
        await rig.define("inner", pause, call("act", "pause"), expose=True)
        await rig.define("outer", call("delegate"))
        run = await rig.run("outer")
        assert (run.state, run.problem) == (COMPLETED, "")


# --- stores --------------------------------------------------------------------------------------


async def test_runs_that_are_due_and_those_that_are_queued_take_turns() -> None:
    """However often tasks are polled, new runs begin."""
    woken, queued = [("w1",), ("w2",), ("w3",)], [("q1",), ("q2",)]
    assert merge_due(woken, queued, 4) == ["q1", "w1", "q2", "w2"]
    assert merge_due(woken, [], 4) == ["w1", "w2", "w3"]
    assert merge_due([], queued, 1) == ["q1"]


async def test_parked_steps_live_in_postgresql(short_tmp: Path, postgres_url: str) -> None:
    tasks, settings = Tasks(), {**PARKED, "store": StoreSettings(url=postgres_url)}
    stub = StubTools()
    async with run_rig(short_tmp, stub, **settings) as rig:
        rig.add("work", tasks)
        await rig.define("long", call("work"))
        run = await rig.start("long")
        await rig.until(run.id, WAITING)
    async with run_rig(short_tmp, stub, **settings) as rig:
        await tasks.until_polled()
        tasks.outcomes["x"] = WorkFailed("it broke")
        run = await rig.until(run.id)
        assert run.state == FAILED and "it broke" in run.problem
    assert tasks.count("begin") == 1


async def test_a_step_is_on_the_disk_before_it_is_executed(short_tmp: Path) -> None:
    """A copy of what was synced, without what the system would have written later, has the
    intent of a step that may not be repeated."""
    from dragoman.stores.runs import SqliteRuns

    synced: list[bytes] = []
    async with run_rig(short_tmp) as rig:
        seen: list[int] = []
        rig.add("act", lambda one: seen.append(len(synced)))
        rig.add("again", lambda one: seen.append(len(synced)), readOnlyHint=True)
        await rig.define("two", call("act"), call("again", "act"))
        log: Any = rig.service._store._log  # type: ignore[attr-defined]
        sync = log._sync

        def note() -> None:
            sync()
            synced.append((short_tmp / "runs.db-wal").read_bytes())

        log._sync = note
        run = await rig.run("two")
        assert run.state == COMPLETED
        assert seen == [1, 1]  # the second one may be repeated, and waits for no disk
        place = short_tmp / "copy"
        place.mkdir()
        (place / "runs.db").write_bytes((short_tmp / "runs.db").read_bytes())
        (place / "runs.db-wal").write_bytes(synced[0])
    store = SqliteRuns(place)
    assert [one.state for one in await store.load_steps(run.id)] == [RUNNING]
    await store.aclose()
