"""A task as A2A knows it, by itself: what happens to it, what is shown of it, what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from dragoman.a2a.server.task import AgentTask, new_id, stamp
from dragoman.core.call import Artifact, Progress, Result, Updates
from dragoman.core.errors import InvalidInput, NotFound, TimedOut
from dragoman.core.principal import Principal
from dragoman.core.stored_tasks import StoredTasks
from dragoman.core.tasks import CANCELLED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING
from dragoman.stores.tasks import MemoryTaskStore

ME, YOU = Principal("key", "me"), Principal("key", "you")


async def never(
    task: AgentTask, updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
) -> Result:
    await asyncio.Event().wait()
    return Result()


def made(owner: Principal = ME, id: str = "t1") -> AgentTask:
    task = AgentTask(owner, never, id=id, context="c1", agent="echo", tool="echo.message")
    task.say({"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]})
    return task


def kept() -> StoredTasks:
    return StoredTasks(MemoryTaskStore(), most=10, most_each=5, max_bytes=10**6, idle=60)


def text(message: Mapping[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message["parts"])


@pytest.mark.promise("K3", "K1")
async def test_tasks_are_inserted_found_moved_completed_failed_and_cancelled() -> None:
    tasks = kept()
    task = made()
    tasks.insert(task)
    assert tasks.get(ME, "t1") is task
    with pytest.raises(NotFound):
        tasks.get(YOU, "t1")
    task.update_status(WORKING, "on it")
    task.complete(Result(content=[{"type": "text", "text": "done"}]))
    assert task.snapshot()["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task.snapshot()["artifacts"][0]["parts"] == [{"text": "done"}]
    failed = made(id="t2")
    tasks.insert(failed)
    assert failed.fail(TimedOut("too long"))
    assert text(failed.snapshot()["status"]["message"]) == "too long"
    cancelled = made(id="t3")
    tasks.insert(cancelled)
    assert cancelled.cancel() and not cancelled.cancel()
    assert cancelled.snapshot()["status"]["state"] == "TASK_STATE_CANCELED"
    await tasks.close()


@pytest.mark.promise("K1")
@pytest.mark.parametrize("end", [COMPLETED, FAILED, CANCELLED])
async def test_a_move_that_the_table_does_not_allow_is_refused_and_leaves_no_trace(
    end: str,
) -> None:
    task = made()
    task.update_status(end)
    before = task.count, task.snapshot()
    for state in (WORKING, INPUT_REQUIRED, COMPLETED, FAILED, CANCELLED):
        with pytest.raises(InvalidInput, match="cannot become"):
            task.update_status(state)
    assert (task.count, task.snapshot()) == before


@pytest.mark.promise("K1")
def test_the_history_has_what_was_said_in_order_the_question_before_its_answer() -> None:
    task = made()
    task.update_status(WORKING, "looking")
    task.update_status(INPUT_REQUIRED, "which colour?")
    assert [text(one) for one in task.snapshot()["history"]] == ["hello", "looking"]
    task.say({"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "blue"}]})
    task.update_status(WORKING)
    shown = task.snapshot()
    assert [text(one) for one in shown["history"]] == ["hello", "looking", "which colour?", "blue"]
    assert [text(one) for one in task.snapshot(1)["history"]] == ["blue"]
    assert "history" not in task.snapshot(0)
    again = made(id="t1")
    again.restore(task.entries)
    again.count = task.count
    assert again.snapshot() == shown, "what is read from the log is what was shown"


def test_pieces_of_an_artifact_are_one_and_what_was_told_stays_as_it_was() -> None:
    task = made()
    task.update_status(WORKING)
    first = Artifact(id="a", name="report", content=[{"type": "text", "text": "x"}], last=False)
    task._update(first)
    logged = dict(task.entries[-1].event["artifactUpdate"]["artifact"])
    task._update(Artifact(id="a", content=[{"type": "text", "text": "y"}], append=True))
    (whole,) = task.snapshot()["artifacts"]
    assert (whole["name"], whole["parts"]) == ("report", [{"text": "x"}, {"text": "y"}])
    assert task.entries[-2].event["artifactUpdate"]["artifact"] == logged
    task._update(Artifact(id="a", content=[{"type": "text", "text": "z"}]))
    assert task.snapshot()["artifacts"][0]["parts"] == [{"text": "z"}]


async def test_one_that_is_finished_and_stored_takes_no_memory_and_shows_the_same() -> None:
    tasks = kept()
    task = made()
    tasks.insert(task)
    task.update_status(WORKING)
    task._update(Progress(progress=1, message="half"))
    task.complete(Result(content=[{"type": "text", "text": "done"}]))
    shown = task.snapshot()
    tasks.flush()
    assert task.entries == [] and task.artifacts == {} and task.history == []
    assert task.snapshot() == shown
    assert [entry.number for entry in task.events_after(2)] == [3, 4, 5]
    await tasks.close()


def test_times_and_ids_have_the_form_of_the_protocol() -> None:
    assert stamp(0.9996) == "1970-01-01T00:00:00.999Z"
    assert stamp(1_794_805_549.25) == "2026-11-16T05:05:49.250Z"
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000 and all(len(id) == 36 and id[14] == "4" for id in ids)
