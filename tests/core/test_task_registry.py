"""Tasks that outlive the hub: bounds, who goes first, what is stored when, and what comes back."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from time import time
from typing import Any

import pytest
from tests.stores import places

from dragoman.core.access import TOKEN_EXPIRED
from dragoman.core.call import FORM, Progress, Question, Result, Update, Updates
from dragoman.core.errors import (
    ConfigError,
    InvalidInput,
    NotFound,
    Overloaded,
    ShuttingDown,
    StorageFailed,
)
from dragoman.core.ports import StoredTask, TaskChange
from dragoman.core.principal import Principal
from dragoman.core.task_registry import TaskLimits, TaskRegistry
from dragoman.core.tasks import (
    CANCELLED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    WORKING,
    Outcome,
    Task,
    TaskRecord,
    Work,
)
from dragoman.core.tool import build_unknown_tool
from dragoman.stores.database import connect_server
from dragoman.stores.tasks import DatabaseTaskStore, MemoryTaskStore

INTERRUPTED = "it was interrupted: the hub was stopped while it worked on this"
ALICE, BOB = Principal("key", "alice"), Principal("key", "bob")


async def nothing(
    task: Task[Any], updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
) -> Outcome:
    return build_unknown_tool("x"), Result(content=[])


async def forever(
    task: Task[Any], updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
) -> Outcome:
    await asyncio.Event().wait()
    raise AssertionError


class NotedRecord(TaskRecord):
    """A record in a protocol of its own."""

    def take_update(self, task: Task[Any], update: Update) -> bool:
        assert isinstance(update, Progress)
        self.append({"words": update.message or ""})
        return True

    def take_questions(self, task: Task[Any], words: str) -> str:
        self.header["handle"] = task.asked is not None and bool(task.asked.handle)
        return super().take_questions(task, words)


class Noted(Task[NotedRecord]):
    """What a test does to a task."""

    __slots__ = ()

    def __init__(self, owner: Principal, id: str, work: Work = forever) -> None:
        super().__init__(owner, work, NotedRecord(), id)
        self.record.header = {"note": f"of {id}"}

    def say(self, words: str) -> None:
        self._take_update(Progress(progress=1, message=words))

    def finish(self) -> None:
        self.update_status(COMPLETED, "")

    def wait(self, handle: str | None = None) -> None:
        question = {"q": Question(FORM, {"message": "what?"})}
        self._take_questions(Result(questions=question, handle=handle), question)


def build_stored(stored: StoredTask) -> Noted:
    return Noted(stored.owner, stored.id)


def listed(
    store: DatabaseTaskStore | MemoryTaskStore,
    clock_is_steady: Callable[[], bool] = lambda: True,
    **bounds: Any,
) -> TaskRegistry[NotedRecord]:
    given = {"count": 100, "count_per_owner": 10, "stored_bytes": 10**6, "idle_seconds": 1000.0}
    return TaskRegistry(store, TaskLimits(**{**given, **bounds}), clock_is_steady)


def kept(tasks: TaskRegistry[NotedRecord], owner: Principal, *ids: str) -> list[Noted]:
    made = [Noted(owner, id) for id in ids]
    for task in made:
        tasks.insert(task)
    return made


def ids(tasks: TaskRegistry[NotedRecord], owner: Principal) -> list[str]:
    return [task.id for task in tasks.list_owned(owner)]


# --- tasks of another hub


async def test_a_damaged_task_does_not_hold_up_the_takeover_of_others(postgres_url: str) -> None:
    with closing(connect_server(postgres_url)) as server:
        one, two = DatabaseTaskStore(server, hub="one"), DatabaseTaskStore(server, hub="two")
        before = listed(one, count=300, count_per_owner=300)
        made = kept(before, ALICE, *(f"t{n}" for n in range(250)))
        made[0].say("hello")
        before.flush()
        for task in made[1:]:
            task.finish()
        before.flush()
        places.execute(server, "", "UPDATE tasks SET about = 'x' WHERE id = 't7'")
        places.execute(server, "", f"UPDATE tasks SET state = 'odd' WHERE key = {made[9].key}")
        places.execute(server, "", f"INSERT INTO task_log VALUES ({made[9].key}, 100, 1, '[[')")

        def build(stored: StoredTask) -> Noted:
            if stored.id == "t8":
                raise ConfigError("its header is damaged")
            return build_stored(stored)

        tasks = listed(two, count=300, count_per_owner=300)
        noted: list[Task[NotedRecord]] = []
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count_turns())
        await tasks.take_over("one", build, noted.extend)
        counting.cancel()
        assert turns >= 3  # it works on meanwhile
        assert {task.id for task in noted} == {task.id for task in made} - {"t7", "t8", "t9"}
        assert tasks.get(ALICE, "t0").message == INTERRUPTED
        await tasks.take_over("one", build, noted.extend)
        assert len(noted) == 247
        rows = places.execute(server, "", "SELECT id FROM tasks WHERE hub = 'damaged' ORDER BY id")
        assert [id for (id,) in rows] == ["t7", "t8", "t9"]
        await tasks.close()


# --- bounds


@pytest.mark.promise("K2")
async def test_full_registry_evicts_the_first_finished_task() -> None:
    tasks = listed(MemoryTaskStore(), count_per_owner=4)
    one, two, three, four = kept(tasks, ALICE, "one", "two", "three", "four")
    three.finish()
    one.finish()
    for new, left in (
        ("five", {"one", "two", "four", "five"}),
        ("six", {"two", "four", "five", "six"}),
    ):
        kept(tasks, ALICE, new)
        assert set(ids(tasks, ALICE)) == left
    assert len(tasks) == 4
    with pytest.raises(NotFound):
        tasks.get(ALICE, "one")
    await tasks.close()
    assert two.finished is False and four.finished is False, "what never ran is not touched"


@pytest.mark.promise("K2")
async def test_full_registry_without_finished_tasks_refuses_new_ones() -> None:
    tasks = listed(MemoryTaskStore(), count=5, count_per_owner=3)
    mine = kept(tasks, ALICE, "one", "two", "three")
    with pytest.raises(Overloaded, match=r"3 tasks of this caller are unfinished.* cancel it"):
        kept(tasks, ALICE, "four")
    assert ids(tasks, ALICE) == ["three", "two", "one"]
    kept(tasks, BOB, "one", "two")
    with pytest.raises(Overloaded, match="5 tasks are unfinished on this hub"):
        kept(tasks, BOB, "three")
    assert tasks.get(ALICE, "one") is mine[0] is not tasks.get(BOB, "one")
    mine[1].cancel()
    tasks.flush()
    kept(tasks, BOB, "three")
    assert ids(tasks, ALICE) == ["three", "one"], "the oldest finished task of any owner"
    await tasks.close()


async def test_full_registry_evicts_tasks_of_the_same_principal_first() -> None:
    tasks = listed(MemoryTaskStore(), count=4, count_per_owner=4)
    for task in kept(tasks, BOB, "b1", "b2") + kept(tasks, ALICE, "a1", "a2"):
        task.finish()
    tasks.flush()
    kept(tasks, ALICE, "a3")
    assert (ids(tasks, ALICE), ids(tasks, BOB)) == (["a3", "a2"], ["b2", "b1"])
    await tasks.close()


async def test_lowered_limit_applies_from_the_next_task(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store, count_per_owner=6)
    for task in kept(tasks, ALICE, *"abcdef"):
        task.finish()
    await tasks.close()
    again = listed(store, count_per_owner=3)
    again.load(build_stored)
    assert len(again) == 6
    kept(again, ALICE, "g")
    assert ids(again, ALICE) == ["g", "f", "e"]
    await again.close()
    store.close()


async def test_total_bytes_are_bounded_as_stored(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store, stored_bytes=100_000)
    for task in kept(tasks, ALICE, "a", "b", "c"):
        task.say("x" * 10_000)
        task.finish()
        tasks.flush()
    assert [task.size > 10_000 for task in tasks] == [True] * 3
    kept(tasks, ALICE, "d")
    assert ids(tasks, ALICE) == ["d", "c", "b"], "a quarter of the space is one caller's"
    [large] = kept(tasks, BOB, "large")
    large.say("x" * 30_000)
    tasks.flush()
    with pytest.raises(Overloaded, match="all the space there is for one"):
        kept(tasks, BOB, "more")
    assert "large" in ids(tasks, BOB), "it is not finished"
    kept(tasks, ALICE, "e")
    large.say("x" * 60_000)
    tasks.flush()
    kept(tasks, ALICE, "f")
    assert ids(tasks, ALICE) == ["f", "e", "d"], "what is finished went"
    large.say("x" * 20_000)
    tasks.flush()
    with pytest.raises(Overloaded, match="all the space there is on this hub"):
        kept(tasks, ALICE, "g")
    await tasks.close()
    store.close()


async def test_task_id_is_scoped_to_its_principal() -> None:
    tasks = listed(MemoryTaskStore())
    [first] = kept(tasks, ALICE, "same")
    kept(tasks, BOB, "same")
    with pytest.raises(InvalidInput, match='"same" already exists'):
        kept(tasks, ALICE, "same")
    assert tasks.get(ALICE, "same") is first
    assert len(tasks) == 2
    with pytest.raises(NotFound):
        tasks.get(Principal("key", "carol"), "same")
    await tasks.close()


async def test_removed_task_is_stopped_and_its_waiters_notified(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store)
    told: list[Task[NotedRecord]] = []
    tasks.on_remove(told.append)
    [task] = kept(tasks, ALICE, "one")
    task.start()
    tasks.flush()
    tasks.remove(task)
    tasks.remove(task)
    assert told == [task]
    assert (task.state, len(tasks), ids(tasks, ALICE)) == (CANCELLED, 0, [])
    assert task.call is not None
    await asyncio.wait([task.call], timeout=60)
    task.say("too late")
    tasks.flush()
    await tasks.close()
    store.close()
    again = DatabaseTaskStore(tmp_path)
    assert again.load() == []
    again.close()


# --- when it is stored, and what that costs


async def test_events_cost_a_constant_number_of_statements(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store)
    [task] = kept(tasks, ALICE, "one")
    tasks.flush()
    costs = []
    for n in range(10):
        before = store.statements
        task.say(f"event {n}")
        tasks.flush()
        costs.append(store.statements - before)
    assert costs == [4] * 10  # begin, task, log, commit
    await tasks.close()
    store.close()


async def test_concurrent_changes_are_saved_in_one_transaction(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store)
    several = kept(tasks, ALICE, "one", "two", "three")
    tasks.flush()
    before = store.statements
    for n in range(10):
        for task in several:
            task.say(f"event {n}")
    assert store.statements == before, "no event was sent yet"
    async with asyncio.timeout(60):
        while several[0].saved < 10:
            await asyncio.sleep(0.005)
    assert store.statements - before == 2 + 3 * 2
    before = store.statements
    tasks.flush()
    assert store.statements == before, "nothing is new"
    await tasks.close()
    store.close()


class Refusing(DatabaseTaskStore):
    """A store on a disk that may be full."""

    full = False
    refused = 0

    def save(self, changes: Sequence[TaskChange]) -> list[tuple[int, int]]:
        if self.full:
            self.refused += 1
            raise StorageFailed("the disk is full")
        return super().save(changes)


async def test_failed_save_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Refusing(tmp_path)
    tasks = listed(store, retry_seconds=0.02)
    [task] = kept(tasks, ALICE, "one")
    tasks.flush()
    store.full = True
    task.say("first")
    with pytest.raises(StorageFailed):
        tasks.flush()
    task.say("second")
    task.finish()
    with pytest.raises(StorageFailed):
        tasks.flush()
    async with asyncio.timeout(60):
        while store.refused < 6:
            await asyncio.sleep(0.005)
    assert caplog.text.count("cannot be stored") == 1  # one line for an outage
    assert [entry.event.get("words") for entry in task.entries_after(0)][:2] == ["first", "second"]
    store.full = False
    async with asyncio.timeout(60):
        while task.saved < 3:
            await asyncio.sleep(0.005)
    assert len(store.load_entries(task.key)) == 3
    assert caplog.records[0].levelno == logging.ERROR
    await tasks.close()
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
async def test_log_of_a_finished_task_is_only_in_the_store(kind: str, tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path) if kind == "sqlite" else MemoryTaskStore()
    tasks = listed(store)
    [task] = kept(tasks, ALICE, "one")
    for n in range(5):
        task.say(f"event {n}")
    task.finish()
    assert len(task.record.entries) == 6, "not stored yet"
    tasks.flush()
    assert (task.record.entries, task.record.count) == ([], 6)
    assert [entry.number for entry in task.entries_after(0)] == [1, 2, 3, 4, 5, 6]
    assert [entry.event for entry in task.entries_after(4)] == [
        {"words": "event 4"},
        {"state": COMPLETED, "message": ""},
    ]
    await tasks.close()
    store.close()


async def test_finished_task_leaves_memory_after_its_last_listener() -> None:
    store = MemoryTaskStore()
    tasks = listed(store, sweep_seconds=0.01)
    task, other = kept(tasks, ALICE, "one", "other")
    stop, stop_other = task.watch(lambda: None), other.watch(lambda: None)
    task.finish()
    other.finish()
    tasks.flush()
    stop_other()
    async with asyncio.timeout(60):
        while other.record.entries:
            await asyncio.sleep(0.005)
    assert len(task.record.entries) == 1, "it has a listener"
    stop()
    async with asyncio.timeout(60):
        while task.record.entries:
            await asyncio.sleep(0.005)
    assert len(task.entries_after(0)) == 1
    await tasks.close()


async def test_removed_task_is_not_referenced() -> None:
    tasks = listed(MemoryTaskStore())
    [task] = kept(tasks, ALICE, "one")
    stop = task.watch(lambda: None)
    task.finish()
    tasks.flush()
    stop()
    tasks.remove(task)
    gone = weakref.ref(task)
    del task, stop
    gc.collect()
    assert gone() is None
    await tasks.close()


# --- time


@pytest.mark.promise("K2")
async def test_waiting_task_expires_and_a_working_one_does_not() -> None:
    tasks = listed(MemoryTaskStore(), idle_seconds=0.05, sweep_seconds=0.01)
    waits, works, done = kept(tasks, ALICE, "waits", "works", "done")
    waits.wait()
    works.start()
    done.finish()
    assert await waits.until(lambda task: task.finished, 60)
    assert (waits.state, waits.message) == (
        FAILED,
        "it expired: no answer came for 0.05 s",
    )
    assert (works.state, done.state) == (WORKING, COMPLETED)
    assert tasks.get(ALICE, "waits") is waits, "it can be asked for"
    await tasks.close()


@pytest.mark.promise("K2")
async def test_waiting_task_expires_across_a_restart(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store)
    kept(tasks, ALICE, "waits")[0].wait()
    await tasks.close()
    again = listed(store, idle_seconds=0.05, sweep_seconds=0.01)
    again.load(build_stored)
    task = again.get(ALICE, "waits")
    assert task.state == INPUT_REQUIRED
    assert await task.until(lambda task: task.finished, 60)
    assert task.state == FAILED
    await again.close()
    store.close()


async def test_clock_jump_expires_no_task(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store)
    kept(tasks, ALICE, "waits")[0].wait()
    await tasks.close()
    looks: list[bool] = []
    enough = asyncio.Event()

    def is_steady() -> bool:
        looks.append(len(looks) >= 3)
        if looks[-1]:
            enough.set()
        return False

    again = listed(store, idle_seconds=0.0001, sweep_seconds=0.01, clock_is_steady=is_steady)
    again.load(build_stored)
    await asyncio.wait_for(enough.wait(), 60)
    assert again.get(ALICE, "waits").state == INPUT_REQUIRED
    await again.close()
    store.close()


# --- ends and beginnings


@pytest.mark.promise("K2")
async def test_tasks_running_at_a_crash_fail_and_others_are_unchanged(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store)
    works, waits, sealed, done = kept(tasks, ALICE, "works", "waits", "sealed", "done")
    works.start()
    works.say("half")
    waits.wait()
    sealed.wait(handle="only this hub can open it")
    done.say("whole")
    done.finish()
    tasks.flush()  # and then it is killed
    updated = {task.id: task.updated for task in tasks}

    again = listed(store)
    again.load(build_stored)
    states = {task.id: task.state for task in again}
    assert states == {
        "works": FAILED, "waits": INPUT_REQUIRED, "sealed": FAILED, "done": COMPLETED,
    }  # fmt: skip
    found = again.get(ALICE, "works")
    assert [entry.event for entry in found.entries_after(0)] == [
        {"words": "half"},
        {"state": FAILED, "message": INTERRUPTED},
    ]
    assert [entry.number for entry in found.entries_after(0)] == [1, 2]
    assert again.get(ALICE, "waits").updated == updated["waits"]
    assert again.get(ALICE, "waits").record.entries != []
    assert again.get(ALICE, "done").record.entries == [], "it is read on demand"
    assert len(again.get(ALICE, "done").entries_after(0)) == 2
    stored = {one.id: (one.state, one.count) for one in store.load()}
    assert stored["works"] == (FAILED, 2)
    works.cancel()
    assert works.call is not None
    await asyncio.wait([works.call], timeout=60)
    await tasks.close()
    await again.close()
    store.close()


async def test_restart_keeps_event_and_eviction_order(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store)
    one, two, three = kept(tasks, ALICE, "one", "two", "three")
    for task in (three, one, two):
        task.finish()
        while time() <= task.updated:
            await asyncio.sleep(0)
    before = ids(tasks, ALICE)
    await tasks.close()
    again = listed(store, count_per_owner=3)
    again.load(build_stored)
    assert ids(again, ALICE) == before == ["two", "one", "three"]
    kept(again, ALICE, "four")
    assert ids(again, ALICE) == ["four", "two", "one"]
    await again.close()
    store.close()


async def test_close_stops_and_stores_running_tasks(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store)
    works, waits = kept(tasks, ALICE, "works", "waits")
    works.start()
    waits.wait()
    await asyncio.wait_for(tasks.close(), 60)
    assert (works.state, works.running, waits.state) == (FAILED, False, INPUT_REQUIRED)
    assert {one.id: one.state for one in store.load()} == {
        "works": FAILED, "waits": INPUT_REQUIRED,
    }  # fmt: skip
    with pytest.raises(ShuttingDown, match="shutting down"):
        kept(tasks, ALICE, "late")
    store.close()


async def test_finished_call_is_stored_without_a_reader(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    tasks = listed(store)
    task = Noted(ALICE, "one", nothing)
    tasks.insert(task)
    task.start()
    async with asyncio.timeout(60):
        while not task.saved:
            await asyncio.sleep(0.005)
    assert [(one.state, one.about) for one in store.load()] == [(COMPLETED, {"note": "of one"})]
    await tasks.close()
    store.close()


# --- lost access


@pytest.mark.promise("O1")
async def test_tasks_of_one_user_end_with_the_token_that_made_them() -> None:
    """Not when it merely expires: the client has another one by then."""
    tasks = listed(MemoryTaskStore())
    made = [
        task
        for name in ("one", "two", "three")
        for task in kept(tasks, Principal("user", "ann", credential=name), name)
    ]
    why = {"one": "the access token was revoked", "two": TOKEN_EXPIRED}
    tasks.end_principals(lambda who: why.get(who.credential, ""))
    assert [task.finished for task in made] == [True, False, False]
    tasks.end_principals(lambda who: "the hub accepts no more tokens of this user")
    assert all(task.finished for task in made)
    await tasks.close()
