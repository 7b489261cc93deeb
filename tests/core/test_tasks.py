"""Tasks as the hub keeps them: states and moves, owners, questions, bounds, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dragoman.core.call import FORM, Progress, Question, Result, TaskStarted, Updates
from dragoman.core.errors import NotFound, Overloaded, TimedOut
from dragoman.core.principal import OWNER, Principal
from dragoman.core.task_registry import TaskLimits, TaskRegistry, VolatileTaskStore
from dragoman.core.tasks import (
    AUTH_REQUIRED,
    CANCELLED,
    COMPLETED,
    ENDS,
    FAILED,
    INPUT_REQUIRED,
    MOVES,
    REJECTED,
    SUBMITTED,
    WORKING,
    Outcome,
    Task,
    TaskRecord,
)
from dragoman.core.tool import build_unknown_tool

ALICE, BOB = Principal("key", "alice"), Principal("key", "bob")


class ScriptedCall:
    """A scripted call that records its input."""

    def __init__(self) -> None:
        self.asked: list[tuple[Mapping[str, Any] | None, str | None]] = []
        self.stopped = asyncio.Event()
        self.updates: Updates | None = None
        self._next: asyncio.Queue[Result | Exception] = asyncio.Queue()

    def says(self, what: Result | Exception) -> None:
        self._next.put_nowait(what)

    async def work(
        self,
        task: Task[Any],
        updates: Updates,
        answers: Mapping[str, Any] | None,
        handle: str | None,
    ) -> Outcome:
        self.asked.append((answers, handle))
        self.updates = updates
        try:
            said = await self._next.get()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        if isinstance(said, Exception):
            raise said
        return build_unknown_tool("x"), said


def asks(*names: str, handle: str = "sealed") -> Result:
    questions = {name: Question(FORM, {"message": f"{name}?"}) for name in names}
    return Result(questions=questions, handle=handle)


class ResultRecord(TaskRecord):
    """A record of which the result is kept in memory."""

    keeps_result = True


def start_task(scripted: ScriptedCall, owner: Principal = OWNER) -> Task[ResultRecord]:
    task = Task(owner, scripted.work, ResultRecord())
    task.start()
    return task


def tasks(
    most: int = 10, most_each: int = 10, ttl: float = 60.0, held_bytes: int = 10**6
) -> TaskRegistry[ResultRecord]:
    limits = TaskLimits(most, most_each, held_bytes=held_bytes, ttl=ttl)
    return TaskRegistry(VolatileTaskStore(), limits)


def list_owned(kept: TaskRegistry[ResultRecord], owner: Principal) -> list[Task[ResultRecord]]:
    """The oldest first."""
    return sorted(kept.list_owned(owner), key=lambda task: task.created)


async def ended(task: Task[Any]) -> None:
    """Until its call has ended."""
    if task.call is not None:
        await asyncio.wait([task.call])
        await asyncio.sleep(0)


def in_state(state: str) -> Callable[[Task[Any]], bool]:
    return lambda task: task.state == state


def done(task: Task[Any]) -> bool:
    return task.finished


# --- states and moves


def test_finished_states_are_final_and_reachable() -> None:
    assert {COMPLETED, FAILED, CANCELLED, REJECTED} == ENDS
    for state, following in MOVES.items():
        if state in ENDS:
            assert not following
        else:
            assert following >= ENDS and state not in following
    assert INPUT_REQUIRED not in MOVES[AUTH_REQUIRED] and SUBMITTED not in MOVES[WORKING]


async def test_a_task_ends_with_the_result_of_its_call() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    scripted.says(Result(content=["x"], failed=True))
    assert await task.until(done, 60)
    assert (task.state, task.error) == (COMPLETED, None), "it ran; that it failed is its result"
    assert task.result is not None and task.result.content == ["x"]
    assert scripted.asked == [(None, None)]
    assert [(one.number, one.event["state"]) for one in task.record.entries] == [(1, COMPLETED)]


async def test_call_without_a_result_is_a_failed_task_with_a_reason() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    scripted.says(TimedOut("too long"))
    assert await task.until(done, 60)
    assert (task.state, task.message, str(task.error)) == (FAILED, "too long", "too long")


async def test_crash_is_a_failed_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    scripted.says(KeyError("secret"))
    assert await task.until(done, 60)
    assert (task.state, task.message) == (FAILED, "it crashed")
    assert isinstance(task.error, KeyError) and "crashed" in caplog.text


async def test_updates_set_the_message_and_lasting_is_immediate() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    changes: list[str] = []
    task.watch(lambda: changes.append(task.message))
    await until(lambda: scripted.updates is not None)
    assert scripted.updates is not None
    scripted.updates(Progress(progress=1, total=4))
    scripted.updates(Progress(progress=2, message="half"))
    before = task.lasting
    scripted.updates(TaskStarted(message="queued"))
    assert not before and task.lasting and changes == ["1 of 4", "half", "queued"]
    scripted.updates(Progress(progress=3, message="x" * 5_000))
    assert len(task.message) == 1_000
    task.cancel()
    scripted.updates(Progress(progress=4, message="still here"))
    assert task.message == "it was cancelled"


async def test_waiting_past_the_timeout_raises() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    assert not await task.until(done, 0.01)
    assert not task.watchers, "and leaves nothing behind"
    task.cancel()


# --- questions


async def test_questions_are_answered_individually_and_the_call_resumes_after_the_last() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    scripted.says(asks("a", "b"))
    assert await task.until(in_state(INPUT_REQUIRED), 60)
    assert list(task.questions) == ["a", "b"] and task.message == "a?; b?"
    task.answer({"a": 1, "unknown": 2})
    task.answer({"a": "again"})
    assert (task.state, list(task.questions)) == (INPUT_REQUIRED, ["b"])
    assert len(scripted.asked) == 1
    task.answer({"b": 3})
    assert task.state == WORKING
    scripted.says(Result(content=["thanks"]))
    assert await task.until(done, 60)
    assert scripted.asked[1:] == [({"a": 1, "b": 3}, "sealed")]
    states = [one.event["state"] for one in task.record.entries]
    assert states == [INPUT_REQUIRED, WORKING, COMPLETED]
    task.answer({"b": 4})
    assert task.state == COMPLETED and len(scripted.asked) == 2


async def test_question_names_are_unique() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    seen = []
    for turn in range(3):
        scripted.says(asks("a", handle=f"h{turn}"))
        assert await task.until(in_state(INPUT_REQUIRED), 60)
        (name,) = task.questions
        seen.append(name)
        task.answer({name: turn})
        await until(lambda: len(scripted.asked) == turn + 2)  # noqa: B023 (awaited here)
    assert len(set(seen)) == 3
    assert scripted.asked[1:] == [({"a": 0}, "h0"), ({"a": 1}, "h1"), ({"a": 2}, "h2")]
    task.cancel()


async def test_call_without_questions_is_retried() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    scripted.says(Result(questions={}, handle="h1"))
    scripted.says(Result(content=["x"]))
    assert await task.until(done, 60)
    assert scripted.asked == [(None, None), ({}, "h1")]
    assert [one.event["state"] for one in task.record.entries] == [COMPLETED]


async def test_endlessly_asking_call_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.core.tasks.MAX_ROUNDS", 3)
    scripted = ScriptedCall()
    task = start_task(scripted)
    for _ in range(10):
        scripted.says(asks("a"))
    while not task.finished:
        assert await task.until(lambda task: task.state != WORKING, 60)
        task.answer(dict.fromkeys(task.questions, 1))
    assert task.state == FAILED and "again and again" in task.message
    assert len(scripted.asked) == 4


# --- cancelling


async def test_cancel_stops_the_call_and_is_final() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    await until(lambda: bool(scripted.asked))
    assert task.cancel()
    assert task.state == CANCELLED
    await asyncio.wait_for(scripted.stopped.wait(), 60)
    await ended(task)
    assert (task.state, task.cancel()) == (CANCELLED, False)
    assert [one.event["state"] for one in task.record.entries] == [CANCELLED]


async def test_result_after_cancel_is_dropped() -> None:
    finish = asyncio.Event()

    async def stubborn(
        task: Task[Any], updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
    ) -> Outcome:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await finish.wait()
        return build_unknown_tool("x"), Result(content=["too late"])

    task = Task(OWNER, stubborn, TaskRecord())
    task.start()
    await asyncio.sleep(0)
    task.cancel()
    finish.set()
    await ended(task)
    assert (task.state, task.result) == (CANCELLED, None)


async def test_cancelling_a_pending_question_notifies_the_target() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    scripted.says(asks("a"))
    assert await task.until(in_state(INPUT_REQUIRED), 60)
    scripted.says(TimedOut("gone"))
    task.cancel()
    assert (task.state, task.questions) == (CANCELLED, {})
    await ended(task)
    assert scripted.asked[1:] == [(None, "sealed")]
    assert task.state == CANCELLED


async def test_unanswerable_questions_fail_the_task_and_are_withdrawn() -> None:
    scripted = ScriptedCall()
    task = start_task(scripted)
    scripted.says(asks("a"))
    assert await task.until(in_state(INPUT_REQUIRED), 60)
    scripted.says(Result())
    assert task.fail(TimedOut("nobody there"))
    assert (task.state, task.message, str(task.error)) == (FAILED, "nobody there", "nobody there")
    await ended(task)
    assert scripted.asked[1:] == [(None, "sealed")] and task.result is None
    assert not task.fail(TimedOut("again")) and str(task.error) == "nobody there"


# --- who finds them, how many, how long


async def test_task_is_found_only_by_its_owner() -> None:
    kept, scripted = tasks(), ScriptedCall()
    task = start_task(scripted, ALICE)
    for _ in range(2):
        with pytest.raises(NotFound):
            kept.get(BOB if len(kept) else ALICE, task.id)
        if not len(kept):
            kept.insert(task)
    assert kept.get(ALICE, task.id) is task
    assert (list_owned(kept, ALICE), list_owned(kept, BOB)) == ([task], [])
    wrong: Any
    for wrong in ("", "x", None, 7, ["x"], {}):
        with pytest.raises(NotFound):
            kept.get(ALICE, wrong)
    assert (
        len({Task(ALICE, scripted.work, TaskRecord()).id for _ in range(100)}) == 100
        and len(task.id) == 32
    )
    await kept.close()


async def test_finished_tasks_are_evicted_oldest_first_and_running_ones_kept() -> None:
    kept = tasks(most=4, most_each=3)
    fars = [ScriptedCall() for _ in range(6)]
    mine = [start_task(scripted, ALICE) for scripted in fars[:3]]
    for task in mine:
        kept.insert(task)
    fourth = start_task(fars[3], ALICE)
    with pytest.raises(Overloaded, match="3 tasks of this caller"):
        kept.insert(fourth)
    for scripted, task in list(zip(fars, mine, strict=False))[1:]:
        scripted.says(Result())
        assert await task.until(done, 60)
    kept.insert(fourth)
    assert list_owned(kept, ALICE) == [mine[0], mine[2], fourth], "the oldest finished one went"
    theirs = start_task(fars[4], BOB)
    kept.insert(theirs)
    another = start_task(fars[5], BOB)
    kept.insert(another)
    assert list_owned(kept, ALICE) == [mine[0], fourth], (
        "at the bound of all, another's finished one"
    )
    refused = Task(BOB, ScriptedCall().work, ResultRecord())
    with pytest.raises(Overloaded, match="4 tasks are unfinished on this hub"):
        kept.insert(refused)
    assert len(kept) == 4
    await until(lambda: all(scripted.asked for scripted in fars))
    await kept.close()
    assert len(kept) == 0 and all(fars[n].stopped.is_set() for n in (0, 3, 4, 5))


async def test_task_ttl_is_bounded_and_ends_the_task() -> None:
    kept, scripted = tasks(ttl=60), ScriptedCall()
    task = start_task(scripted)
    kept.insert(task, ttl=0)
    other = start_task(ScriptedCall())
    kept.insert(other, ttl=10**9)
    assert (task.ttl, other.ttl) == (1.0, 60.0)
    await asyncio.wait_for(scripted.stopped.wait(), 60)
    assert task.state == CANCELLED
    with pytest.raises(NotFound, match="or has expired"):
        kept.get(OWNER, task.id)
    assert list_owned(kept, OWNER) == [other]
    await kept.close()


async def test_total_result_size_is_bounded() -> None:
    kept = tasks(held_bytes=1_000)
    made = []
    for size in (600, 300, -1, 5_000):
        scripted = ScriptedCall()
        made.append(start_task(scripted))
        kept.insert(made[-1])
        content = ["x" * 200] if size < 0 else []
        scripted.says(Result(content=content, size=size))
        assert await made[-1].until(done, 60)
        kept.flush()
    assert list_owned(kept, OWNER) == made[3:], "a single one may be larger; the old ones go"
    await kept.close()


async def test_close_waits_for_cancelled_tasks() -> None:
    kept, ended = tasks(), asyncio.Event()

    async def slow_to_stop(
        task: Task[Any], updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
    ) -> Outcome:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.set()
        return build_unknown_tool("x"), Result()

    task = Task(OWNER, slow_to_stop, ResultRecord())
    task.start()
    kept.insert(task)
    await asyncio.sleep(0)
    task.cancel()
    await kept.close()
    assert ended.is_set()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.001)


async def test_unrenderable_question_fails_its_task() -> None:
    class Unable(ResultRecord):
        def take_questions(self, task: Task[Any], words: str) -> str:
            raise TypeError("no form")

    scripted = ScriptedCall()
    task = Task(OWNER, scripted.work, Unable())
    task.start()
    scripted.says(asks("name"))
    await ended(task)
    assert task.state == FAILED and isinstance(task.error, TypeError)
