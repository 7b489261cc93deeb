"""The A2A task alone: transitions, rendering, storage."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Any, cast

import pytest
from tests.a2a.task_builders import build_registry, build_task

from dragoman.a2a.server.send_message import MessageSender
from dragoman.a2a.server.task import A2aTask, format_time, new_id, read_events, render_task
from dragoman.core import tasks as core_tasks
from dragoman.core.backoff import Backoff
from dragoman.core.call import Artifact, Progress, Question, Result, Updates
from dragoman.core.errors import (
    AuthorizationError,
    HubError,
    InvalidInput,
    LeaseExpired,
    NotFound,
    Overloaded,
    ShuttingDown,
    StorageFailed,
    TimedOut,
)
from dragoman.core.hub import CallOptions
from dragoman.core.principal import Principal
from dragoman.core.tasks import (
    CANCELLED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    WORKING,
    Outcome,
)
from dragoman.core.tool import build_unknown_tool

ME, YOU = Principal("key", "me"), Principal("key", "you")


async def never(
    task: A2aTask, updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
) -> Outcome:
    await asyncio.Event().wait()
    raise AssertionError


def made(owner: Principal = ME, id: str = "t1") -> A2aTask:
    return build_task(owner, never, id, "hello")


def text(message: Mapping[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message["parts"])


@pytest.mark.promise("K3", "K1")
async def test_tasks_are_inserted_found_moved_completed_failed_and_cancelled() -> None:
    tasks = build_registry()
    task = made()
    tasks.insert(task)
    assert tasks.get(ME, "t1") is task
    with pytest.raises(NotFound):
        tasks.get(YOU, "t1")
    task.update_status(WORKING, "", "on it")
    task.complete(Result(content=[{"type": "text", "text": "done"}]))
    assert render_task(task)["status"]["state"] == "TASK_STATE_COMPLETED"
    assert render_task(task)["artifacts"][0]["parts"] == [{"text": "done"}]
    failed = made(id="t2")
    tasks.insert(failed)
    assert failed.fail(TimedOut("too long"))
    assert text(render_task(failed)["status"]["message"]) == "too long"
    cancelled = made(id="t3")
    tasks.insert(cancelled)
    assert cancelled.cancel() and not cancelled.cancel()
    assert render_task(cancelled)["status"]["state"] == "TASK_STATE_CANCELED"
    await tasks.close()


@pytest.mark.promise("K2")
async def test_call_of_a_message_with_a_key_is_made_once_the_key_is_stored() -> None:
    made_calls: list[str | None] = []

    class StubHub:
        async def call(
            self, owner: Any, name: str, arguments: Any, options: CallOptions
        ) -> Outcome:
            made_calls.append(options.handle)
            return build_unknown_tool("x"), Result()

    class AwayTasks:
        def flush(self, task: A2aTask) -> None:
            raise StorageFailed("the tasks cannot be stored")

    hub, tasks, nothing = cast(Any, (StubHub(), AwayTasks(), None))
    sender = MessageSender(hub, tasks, nothing, nothing, nothing)
    task = made()
    task.record.header.sends["agent\nkey"] = "digest"
    # A call that is cancelled before its first step leaves no coroutine behind, which would warn.
    call = asyncio.ensure_future(sender._call(task, lambda update: None, {}, "handle"))
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    del call
    gc.collect()
    with pytest.raises(StorageFailed):
        await sender._call(task, lambda update: None, {}, "handle")
    assert made_calls == []
    await sender._call(task, lambda update: None, None, "handle")
    assert made_calls == ["handle"]  # it withdraws a question, of which no key is stored


class Troubled:
    """The work of a task whose hub cannot make the call for a while."""

    def __init__(self, *errors: HubError) -> None:
        self.errors = list(errors)
        self.given: list[tuple[Mapping[str, Any] | None, str | None]] = []

    async def work(
        self,
        task: A2aTask,
        updates: Updates,
        answers: Mapping[str, Any] | None,
        handle: str | None,
    ) -> Outcome:
        self.given.append((answers, handle))
        if self.errors:
            raise self.errors.pop(0)
        if handle is None:
            question = Question("form", {"message": "Which one?"})
            asked = Result(questions={"choice": question}, handle="h")
            return build_unknown_tool("t"), asked
        return build_unknown_tool("t"), Result(content=[{"type": "text", "text": "done"}])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_tasks, "TROUBLE_PAUSES", Backoff(first=0.01, longest=0.02))


@pytest.mark.promise("K1")
@pytest.mark.usefixtures("quick")
async def test_acknowledged_task_outlasts_the_troubles_of_its_hub() -> None:
    away = [StorageFailed("the database is away"), Overloaded("too many calls"), LeaseExpired("x")]
    troubled, tasks = Troubled(*away), build_registry()
    task = build_task(ME, troubled.work, "t1")
    tasks.insert(task)
    render_task(task)  # its client knows of it
    task.begin()
    assert await task.until(lambda one: bool(one.message), 60)
    assert "the database is away" in text(render_task(task)["status"]["message"])
    assert await task.until(lambda one: one.state == INPUT_REQUIRED, 60)
    # The answer is kept as well, and given once.
    troubled.errors = [StorageFailed("the database is away again")]
    task.answer({"choice": "this"})
    assert await task.until(lambda one: one.finished, 60) and task.state == COMPLETED
    assert troubled.given == [(None, None)] * 4 + [({"choice": "this"}, "h")] * 2
    await tasks.close()


@pytest.mark.promise("K1")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "error", [AuthorizationError("no"), ShuttingDown("bye"), StorageFailed("x")]
)
async def test_decisions_and_what_reached_its_target_end_a_task(error: HubError) -> None:
    error.has_left = isinstance(error, StorageFailed)
    troubled, tasks = Troubled(error), build_registry()
    task = build_task(ME, troubled.work, "t1")
    tasks.insert(task)
    render_task(task)
    task.begin()
    assert await task.until(lambda one: one.finished, 60) and task.state == REJECTED
    assert len(troubled.given) == 1
    await tasks.close()


@pytest.mark.promise("K1")
async def test_task_that_is_put_back_can_be_cancelled_and_ends_with_its_hub() -> None:
    ends = []
    for end in ("cancel", "stop"):
        troubled, tasks = Troubled(*[StorageFailed("away") for _ in range(9)]), build_registry()
        task = build_task(ME, troubled.work, end)
        tasks.insert(task)
        render_task(task)
        task.begin()
        assert await task.until(lambda one: bool(one.message), 60)
        await asyncio.sleep(0)
        if end == "cancel":
            assert task.cancel()
        await tasks.close()
        ends.append((task.state, task.message[:20]))
    assert ends == [(CANCELLED, "it was cancelled"), (FAILED, "it was not begun: th")]


@pytest.mark.promise("K1")
async def test_task_that_no_client_knows_of_fails_at_once() -> None:
    troubled, tasks = Troubled(StorageFailed("away")), build_registry()
    task = build_task(ME, troubled.work, "t1")
    tasks.insert(task)
    task.begin()
    assert await task.until(lambda one: one.finished, 60)
    assert isinstance(task.error, StorageFailed) and len(troubled.given) == 1
    await tasks.close()


@pytest.mark.promise("K1")
@pytest.mark.parametrize("end", [COMPLETED, FAILED, CANCELLED])
async def test_invalid_transition_is_refused_without_effect(
    end: str,
) -> None:
    task = made()
    task.update_status(end, "")
    before = task.record.count, render_task(task)
    for state in (WORKING, INPUT_REQUIRED, COMPLETED, FAILED, CANCELLED):
        with pytest.raises(InvalidInput, match="cannot become"):
            task.update_status(state, "")
    assert (task.record.count, render_task(task)) == before


@pytest.mark.promise("K1")
def test_history_is_ordered_with_questions_before_answers() -> None:
    task = made()
    task.update_status(WORKING, "", "looking")
    task.update_status(INPUT_REQUIRED, "", "which colour?")
    assert [text(one) for one in render_task(task)["history"]] == ["hello", "looking"]
    task.record.add_message({"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "blue"}]})
    task.update_status(WORKING, "")
    shown = render_task(task)
    assert [text(one) for one in shown["history"]] == ["hello", "looking", "which colour?", "blue"]
    assert [text(one) for one in render_task(task, 1)["history"]] == ["blue"]
    assert "history" not in render_task(task, 0)
    again = made(id="t1")
    again.record.restore(task.record.entries)
    again.record.count = task.record.count
    assert render_task(again) == shown, "what is read from the log is what was shown"


def test_artifact_chunks_merge_and_sent_events_stay_unchanged() -> None:
    task = made()
    task.update_status(WORKING, "")
    first = Artifact(id="a", name="report", content=[{"type": "text", "text": "x"}], last=False)
    task._take_update(first)
    logged = dict(task.record.entries[-1].event["artifactUpdate"]["artifact"])
    task._take_update(Artifact(id="a", content=[{"type": "text", "text": "y"}], append=True))
    (whole,) = render_task(task)["artifacts"]
    assert (whole["name"], whole["parts"]) == ("report", [{"text": "x"}, {"text": "y"}])
    assert task.record.entries[-2].event["artifactUpdate"]["artifact"] == logged
    task._take_update(Artifact(id="a", content=[{"type": "text", "text": "z"}]))
    assert render_task(task)["artifacts"][0]["parts"] == [{"text": "z"}]


async def test_finished_task_leaves_memory_at_the_next_sweep_and_reloads_equal() -> None:
    tasks = build_registry(sweep_seconds=0.05)
    task = made()
    tasks.insert(task)
    task.update_status(WORKING, "")
    task._take_update(Progress(progress=1, message="half"))
    task.complete(Result(content=[{"type": "text", "text": "done"}]))
    shown = render_task(task)
    tasks.flush()
    is_in_memory = task.record.view is not None
    assert task.record.entries == [] and is_in_memory and task.result is None
    assert render_task(task) == shown
    async with asyncio.timeout(60):
        while task.record.view is not None:
            await asyncio.sleep(0.01)
    assert render_task(task) == shown
    assert [entry.number for entry in read_events(task, 2)] == [3, 4, 5]
    await tasks.close()


async def test_finished_tasks_take_bounded_memory() -> None:
    tasks = build_registry(held_bytes=3_000)
    finished = [made(id=f"t{n}") for n in range(20)]
    watched = finished[0]
    stop = watched.watch(lambda: None)
    for task in finished:
        tasks.insert(task)
        task.update_status(WORKING, "")
        task.complete(Result(content=[{"type": "text", "text": "done"}]))
        tasks.flush()
    held = [task for task in finished if task.record.view is not None]
    assert held[0] is watched and held[1:] == finished[1 - len(held) :], "the oldest are released"
    assert len(held) > 1 and sum(task.size for task in held) <= 3_000
    stop()
    await tasks.close()
    assert all(render_task(task)["status"]["state"] == "TASK_STATE_COMPLETED" for task in finished)


def test_timestamps_and_ids_follow_the_protocol() -> None:
    assert format_time(0.9996) == "1970-01-01T00:00:00.999Z"
    assert format_time(1_794_805_549.25) == "2026-11-16T05:05:49.250Z"
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000 and all(len(id) == 36 and id[14] == "4" for id in ids)
