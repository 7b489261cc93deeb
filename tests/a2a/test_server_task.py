"""The A2A task alone: transitions, rendering, storage."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.a2a.task_builders import build_registry, build_task

from dragoman.a2a.server.task import A2aTask, format_time, new_id, read_events, render_task
from dragoman.core.call import Artifact, Progress, Result, Updates
from dragoman.core.errors import InvalidInput, NotFound, TimedOut
from dragoman.core.principal import Principal
from dragoman.core.tasks import CANCELLED, COMPLETED, FAILED, INPUT_REQUIRED, WORKING, Outcome

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
    async with asyncio.timeout(5):
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
