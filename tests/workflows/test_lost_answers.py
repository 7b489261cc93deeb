"""A store whose answers are lost after it has stored something: nothing is executed twice, and no
start that has failed is executed later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.workflows.run_rig import SECONDS, RunRig, call, node, run_rig

from dragoman.core.approvals import StoredApproval
from dragoman.core.call import Result, Updates
from dragoman.core.errors import StorageFailed
from dragoman.core.hub import CallOptions
from dragoman.core.principal import OWNER
from dragoman.core.runs import COMPLETED, ENDED, Run, RunOrigin, record_principal
from dragoman.core.structs import replace
from dragoman.core.task_registry import TaskLimits, TaskRegistry, VolatileTaskStore
from dragoman.core.tasks import Task, TaskRecord
from dragoman.core.tool import Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.approval_desk import ApprovalDesk
from dragoman.stores.cluster import SCHEMA
from dragoman.stores.config import StoreSettings
from dragoman.stores.fence import Fence
from dragoman.stores.runs_postgres import PostgresRuns, open_postgres_runs
from dragoman.workflows import service
from dragoman.workflows.service import RunStart

pytestmark = [pytest.mark.promise("R14"), pytest.mark.anyio]


@pytest.fixture
async def rig(short_tmp: Path, postgres_url: str) -> AsyncIterator[RunRig]:
    async with run_rig(short_tmp, store=StoreSettings(url=postgres_url)) as rig:
        rig.add("act", lambda one: "done")
        await rig.define("inner", call("act"), expose=True)
        yield rig


def lose_answers(rig: RunRig, patch: pytest.MonkeyPatch, workflow: str, most: int) -> list[Run]:
    """Lets the store keep the first run of a workflow that it is given, and fail so many times.
    Returns a list of the runs that it was given."""
    store = rig.service._store
    add, tried = store.add, list[Run]()

    async def fail(run: Run, source: str) -> None:
        if run.workflow == workflow:
            tried.append(run)
        if run.workflow != workflow or len(tried) in (1, most + 1):
            await add(run, source)
        if run.workflow == workflow and len(tried) <= most:
            rig.service._runner.fill()
            raise StorageFailed("the connection was closed")

    patch.setattr(store, "add", fail)
    return tried


def add_hubs(db: psycopg.Connection[Any]) -> None:
    """Adds two hubs of a cluster to the database."""
    db.execute(SCHEMA.encode())
    for mark in ("aaaaaaaa", "bbbbbbbb"):
        db.execute(
            "INSERT INTO dragoman.hubs (id, node, version, address, state) "
            "VALUES (%s, 'n', '1', 'x', 'ready')",
            (mark,),
        )


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await condition():
            await asyncio.sleep(0.01)


async def count_runs(rig: RunRig, workflow: str) -> int:
    return len((await rig.service.list_runs(OWNER, workflow))[0])


async def test_a_start_whose_answer_is_lost_begins_one_run(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(rig, monkeypatch, "inner", 2)
    run = await rig.run("inner")
    assert run.state == COMPLETED
    await rig.until_idle()
    assert (rig.stub.count("act"), await count_runs(rig, "inner")) == (1, 1)
    assert not rig.service._runner.unfinished and not rig.service._runner.withheld


async def test_a_step_whose_start_of_a_run_loses_its_answer_begins_one_run(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.define("outer", node("run", "tool.call", tool="workflow.inner"))
    lose_answers(rig, monkeypatch, "inner", 1)
    run = await rig.run("outer")
    assert run.state == COMPLETED, run.problem
    assert (rig.stub.count("act"), await count_runs(rig, "inner")) == (1, 1)


async def test_a_refused_start_is_not_executed_later(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ADD_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(service, name, 0.05)
    tried = lose_answers(rig, monkeypatch, "inner", 1000)
    runner, store = rig.service._runner, rig.service._store
    with pytest.raises(StorageFailed):
        await rig.start("inner")

    async def is_gone() -> bool:
        runner.fill()
        run = await store.find(tried[0].id)
        return run is None or run.state in ENDED

    await until(is_gone)
    assert rig.stub.count("act") == 0 and await store.find(tried[0].id) is None
    monkeypatch.undo()
    assert (await rig.run("inner")).state == COMPLETED
    await rig.until_idle()
    assert (rig.stub.count("act"), await count_runs(rig, "inner")) == (1, 1)

    async def is_settled() -> bool:
        return not runner.withheld and not runner.unfinished

    await until(is_settled)


POLICIES = """
@id("owner") permit (principal in Hub::Role::"owner", action, resource);
@id("inner") @approval("it costs money")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"workflow.inner")
unless { context.approved };
"""


@pytest.mark.parametrize("starter", ["step", "task", "approval"])
async def test_a_start_of_accepted_work_is_made_once_its_store_is_back(
    starter: str, short_tmp: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails for longer than a start is tried, and has kept the run all the same."""
    for name in ("ADD_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(service, name, 0.05)
    policies = POLICIES if starter == "approval" else ""
    settings = StoreSettings(url=postgres_url)
    async with run_rig(short_tmp, policies=policies, store=settings) as rig:
        rig.add("act", lambda one: "done")
        await rig.define("inner", call("act"), expose=True)
        with monkeypatch.context() as patch:
            tried = lose_answers(rig, patch, "inner", 1000)
            if starter == "step":
                await rig.define("outer", node("run", "tool.call", tool="workflow.inner"))
                run = await rig.start("outer")
            elif starter == "task":
                task = start_task(rig)
            else:
                desk, id = await approve_call(rig)

            async def has_failed() -> bool:
                if starter == "step":
                    record = (await rig.steps(run)).get("run")
                    return record is not None and record.detail.get("troubles", 0) > 1
                if starter == "task":
                    return task.troubles > 1
                return len(tried) > 10 and desk.get(id).outcome == ""

            await until(has_failed)
            assert rig.stub.count("act") == 0
        if starter == "step":
            assert (await rig.until(run.id)).state == COMPLETED
        elif starter == "task":
            await until_true(lambda: task.finished)
            assert task.state == COMPLETED, task.message
        else:
            await until_true(lambda: desk.get(id).outcome == COMPLETED)
        await until_true(lambda: not rig.service._runner.withheld)
        await rig.until_idle()
        assert (rig.stub.count("act"), await count_runs(rig, "inner")) == (1, 1)


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_a_run_that_was_found_again_is_not_executed_after_a_restart(
    end: str, short_tmp: Path, postgres_url: str
) -> None:
    """The hub ends soon after the second attempt, before it has deleted what it has refused."""
    settings, effects = StoreSettings(url=postgres_url), list[str]()
    async with run_rig(short_tmp, store=settings) as rig:
        rig.add("act", lambda one: effects.append(one.trace.id))
        await rig.define("inner", call("act"), expose=True)
        with pytest.MonkeyPatch.context() as patch:
            lose_answers(rig, patch, "inner", 1000)
            task = start_task(rig)
            await until_true(lambda: task.troubles == 1)
        await until_true(lambda: task.finished)
        if end == "killed" and rig.service._dropping is not None:
            rig.service._dropping.cancel()
            rig.service._runner.withheld.clear()
    async with run_rig(short_tmp, store=settings) as rig:
        rig.add("act", lambda one: effects.append(one.trace.id))
        await rig.until_idle()
        assert await count_runs(rig, "inner") == 1
        [run] = (await rig.service.list_runs(OWNER, "inner"))[0]
        assert run.state == COMPLETED
    assert len(effects) == 1


async def test_a_refused_start_is_deleted_when_its_hub_stops(
    short_tmp: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ADD_SECONDS", 0.05)
    settings = StoreSettings(url=postgres_url)
    async with run_rig(short_tmp, store=settings) as rig:
        rig.add("act", lambda one: "done")
        await rig.define("inner", call("act"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service, "RETRY_SECONDS", 60.0)
            tried = lose_answers(rig, patch, "inner", 1000)
            with pytest.raises(StorageFailed):
                await rig.start("inner")
    async with run_rig(short_tmp, store=settings) as rig:
        assert await rig.service._store.find(tried[0].id) is None


async def test_a_run_that_another_hub_may_delete_is_adopted(
    rig: RunRig, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hub has stored a run, and refused its start; another one makes the same start."""
    store = rig.service._store
    assert isinstance(store, PostgresRuns)
    fence = Fence()
    fence.mark = "aaaaaaaa"
    other = await open_postgres_runs(postgres_url, fence, is_shared=True)
    try:
        with psycopg.connect(postgres_url, autocommit=True) as db:
            add_hubs(db)
        store._fence.mark, store.is_shared = "bbbbbbbb", True
        planted = list[Run]()
        find = store.find

        async def find_planted(id: str) -> Run | None:
            if not planted:
                [built] = [rig.service._build_run(workflow, {}, origin)]
                planted.append(replace(built, id=id))
                await other.add(planted[0], workflow.source)
            return await find(id)

        workflow = rig.service._workflows.find("inner")
        origin = RunOrigin(
            starter=record_principal(OWNER, "api"), trigger={}, agents={}, trace="0" * 32
        )
        with monkeypatch.context() as patch:
            patch.setattr(store, "find", find_planted)
            request = RunStart(principal=OWNER, door="api", id="a" * 32)
            run = await rig.service.start("inner", request)
        await other.drop(planted[0])
        assert (await rig.until(run.id)).state == COMPLETED
        assert rig.stub.count("act") == 1
        assert not await store.adopt(run.id)  # it has ended
    finally:
        store._fence.mark, store.is_shared = "", False
        await other.aclose()


@pytest.mark.parametrize("starter", ["task", "approval"])
async def test_accepted_work_waits_for_room_for_its_run(starter: str, short_tmp: Path) -> None:
    policies = POLICIES if starter == "approval" else ""
    async with run_rig(short_tmp, policies=policies, max_unfinished=2) as rig:
        gate = asyncio.Event()
        rig.add("block", lambda one: gate.wait())
        rig.add("act", lambda one: "done")
        await rig.define("blocker", call("block"))
        await rig.define("inner", call("act"), expose=True)
        await rig.start("blocker")
        if starter == "task":
            task = start_task(rig)
            await until_true(lambda: task.troubles > 0)
            gate.set()
            await until_true(lambda: task.finished)
            assert task.state == COMPLETED, task.message
        else:
            desk, id = await approve_call(rig)
            begun = desk.begin
            tries = list[str]()

            def note(id: str) -> bool:
                tries.append(id)
                return begun(id)

            desk.begin = note  # type: ignore[method-assign]
            await until_true(lambda: bool(tries))
            gate.set()
            await until_true(lambda: desk.get(id).outcome == COMPLETED)
        assert rig.stub.count("act") == 1


async def test_a_call_follows_its_run_while_the_store_cannot_be_read(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, failed = rig.service._store.find, list[str]()

    async def fail(id: str) -> Run | None:
        if len(failed) < 3:
            failed.append(id)
            raise StorageFailed("the database is away")
        return await find(id)

    monkeypatch.setattr(rig.service._store, "find", fail)
    _, result = await rig.hub.call(OWNER, "workflow.inner", {}, OPTIONS)
    assert not result.failed and len(failed) == 3
    assert rig.stub.count("act") == 1


OPTIONS = CallOptions(door="api", view=EVERYTHING)


def start_task(rig: RunRig) -> Task[TaskRecord]:
    """Starts a task of a client that calls the workflow."""

    async def work(task: Task[TaskRecord], updates: Updates, *_: Any) -> tuple[Tool, Result]:
        options = replace(OPTIONS, updates=updates, attempt=task.attempt)
        return await rig.hub.call(task.owner, "workflow.inner", {}, options)

    task = Task(OWNER, work, TaskRecord())
    limits = TaskLimits(count=10, count_per_owner=10)
    TaskRegistry[TaskRecord](VolatileTaskStore(), limits).insert(task)
    task.start()
    return task


async def approve_call(rig: RunRig) -> tuple[ApprovalDesk, str]:
    """Approves a call of the workflow whose client has gone. Returns the id of the approval."""
    desk = rig.app.parts.guards.approvals.find_desk()
    calling = asyncio.ensure_future(rig.hub.call(OWNER, "workflow.inner", {}, OPTIONS))
    pending: list[StoredApproval] = []

    async def is_parked() -> bool:
        pending[:] = (await desk.list_visible(OWNER, "pending", None, 1))[0]
        return bool(pending)

    await until(is_parked)
    calling.cancel()
    await asyncio.wait([calling])
    id = pending[0].request.id
    desk.decide(id, True, OWNER)
    return desk, id


async def until_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("id", ["", "a" * 24], ids=["its own id", "an id of its starter"])
async def test_a_refused_start_is_deleted_after_its_hub_counted_as_dead(
    id: str, rig: RunRig, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose id its starter has chosen stays: the starter may have asked the heir for it."""
    for name in ("ADD_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(service, name, 0.05)
    runner, store = rig.service._runner, rig.service._store
    assert isinstance(store, PostgresRuns)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        add_hubs(db)
        store._fence.mark = "aaaaaaaa"
        with monkeypatch.context() as patch:
            tried = lose_answers(rig, patch, "inner", 1000)
            patch.setattr(service, "RETRY_SECONDS", 60.0)
            with pytest.raises(StorageFailed):
                await rig.service.start("inner", RunStart(principal=OWNER, door="api", id=id))
        db.execute("UPDATE dragoman.hubs SET state = 'dead' WHERE id = 'aaaaaaaa'")
        store._fence.mark = "bbbbbbbb"  # it has joined again
        db.execute(
            "UPDATE dragoman.runs SET hub = ''"
        )  # as other hubs release the runs of the dead
        [withheld] = runner.withheld.values()
        await rig.service._drop(withheld)
        runner.fill()
        await rig.until_idle()
        run = await store.find(tried[0].id)
        assert (run is None) is not bool(id) and not runner.withheld
        store._fence.mark = ""


async def test_a_refused_start_may_be_repeated_with_its_id(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ADD_SECONDS", 0.05)
    request = RunStart(principal=OWNER, door="api", id="a" * 24)
    with monkeypatch.context() as patch:
        lose_answers(rig, patch, "inner", 1000)
        patch.setattr(service, "RETRY_SECONDS", 60.0)
        with pytest.raises(StorageFailed):
            await rig.service.start("inner", request)
    run = await rig.service.start("inner", request)
    assert (await rig.until(run.id)).state == COMPLETED
    await rig.until_idle()
    assert rig.stub.count("act") == 1
    assert not rig.service._runner.unfinished and not rig.service._runner.withheld


async def test_a_child_whose_parent_is_stored_again_is_executed_once(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.define("outer", node("run", "workflow.run", workflow="inner"))
    runner, store = rig.service._runner, rig.service._store
    save, saved = store.save, list[Run]()

    async def has_ended() -> bool:
        child = await store.find(saved[0].id)
        return child is not None and child.state in ENDED and child.id not in runner._drivers

    async def lose(run: Run, steps: Any = (), children: Any = (), is_synced: bool = False) -> None:
        if saved and children:  # the second attempt
            await until(has_ended)
        await save(run, steps, children, is_synced)
        if children and not saved:
            saved.append(children[0][0])
            runner.fill()
            raise StorageFailed("the connection was closed")

    monkeypatch.setattr(store, "save", lose)
    run = await rig.run("outer")
    assert run.state == COMPLETED, run.problem
    await rig.until_idle()
    assert (rig.stub.count("act"), await count_runs(rig, "inner")) == (1, 1)
    assert not runner.unfinished


async def test_refused_starts_count_although_the_store_does_not_have_them(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster the counts are read from the store again and again."""
    monkeypatch.setattr(service, "ADD_SECONDS", 0.05)
    runner, store = rig.service._runner, rig.service._store

    async def fail(run: Run, source: str) -> None:
        raise StorageFailed("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(service, "RETRY_SECONDS", 60.0)
        patch.setattr(store, "add", fail)
        with pytest.raises(StorageFailed):
            await rig.start("inner")
    await runner.follow_others()
    assert runner.unfinished.total() == 1
    [withheld] = runner.withheld.values()
    await rig.service._drop(withheld)
    assert not runner.unfinished


async def test_a_start_does_not_wait_for_the_start_of_another_id(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rig.service._store
    add, tried, go = store.add, asyncio.Event(), asyncio.Event()

    async def hang(run: Run, source: str) -> None:
        if run.id == "a" * 24:
            tried.set()
            await go.wait()
        await add(run, source)

    monkeypatch.setattr(store, "add", hang)
    requests = {id: RunStart(principal=OWNER, door="api", id=id * 24) for id in "ab"}
    first = asyncio.ensure_future(rig.service.start("inner", requests["a"]))
    async with asyncio.timeout(SECONDS):
        await tried.wait()
        second = await rig.service.start("inner", requests["b"])
        assert (await rig.until(second.id)).state == COMPLETED and not first.done()
        go.set()
        assert (await rig.until((await first).id)).state == COMPLETED
    assert not rig.service._starting


@pytest.mark.parametrize("is_stored", [True, False])
async def test_an_occurrence_whose_start_fails_is_counted_as_it_is_stored(
    is_stored: bool, rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ADD_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(service, name, 0.05)
    runner, store = rig.service._runner, rig.service._store
    add, counts = store.add, list[int]()
    count = runner.count

    async def fail(run: Run, source: str) -> None:
        if is_stored:
            await add(run, source)
        raise StorageFailed("the connection was closed")

    def note(run: Run, more: int) -> None:
        counts.append(more)
        count(run, more)

    monkeypatch.setattr(store, "add", fail)
    monkeypatch.setattr(runner, "count", note)
    request = RunStart(
        principal=OWNER, door="api", id="a" * 24, is_occurrence=True, inputs={"x": "large"}
    )
    with pytest.raises(StorageFailed):
        await rig.service.start("inner", request)
    assert [dict(run.inputs) for run in rig.service._doubtful.values()] == [{}]
    runner.fill()
    async with asyncio.timeout(SECONDS):
        while len(counts) < 2 or rig.service._doubtful:
            await asyncio.sleep(0.01)
    await rig.until_idle()
    assert counts == [1, -1] and rig.stub.count("act") == is_stored


async def test_a_start_that_fails_unexpectedly_leaves_nothing_behind(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RETRY_SECONDS", 0.05)
    runner = rig.service._runner

    async def fail(run: Run, source: str) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(rig.service._store, "add", fail)
        with pytest.raises(ZeroDivisionError):
            await rig.start("inner")

    async def is_settled() -> bool:
        return not runner.withheld and not runner.unfinished

    await until(is_settled)
