"""A hub takes over many tasks of another one that has died, and works on meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from tests.peers.postgres_server import create_database, run_postgres

from dragoman.core.call import Updates
from dragoman.core.ports import StoredTask, TaskChange
from dragoman.core.principal import Principal
from dragoman.core.task_registry import TaskLimits, TaskRegistry
from dragoman.core.tasks import Entry, Outcome, Task, TaskRecord
from dragoman.stores.database import connect_server
from dragoman.stores.tasks import DatabaseTaskStore
from faults.harness import Outcome as Found

OWNERS, AT_ONCE, EVENTS = 50, 500, 5
DAMAGED_EACH = 1_000
BLOCKED_SECONDS = 1.0
"""How long the event loop may be busy with a part: much less than a lease."""


async def _never(
    task: Task[Any], updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
) -> Outcome:
    raise AssertionError("a task was executed again")


def _build(stored: StoredTask) -> Task[TaskRecord]:
    return Task(stored.owner, _never, TaskRecord(), stored.id)


def take_over_tasks(size: int, seed: int, outcome: Found) -> None:
    with run_postgres() as url:
        asyncio.run(_take_over(create_database(url), size, outcome))


async def _take_over(url: str, size: int, outcome: Found) -> None:
    with closing(connect_server(url)) as server:
        dead, heir = DatabaseTaskStore(server, hub="dead"), DatabaseTaskStore(server, hub="heir")
        entries = tuple(Entry(n, 1.0, {"words": "y" * 200}) for n in range(1, EVENTS + 1))
        for start in range(0, size, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, size))
            dead.save([_build_change(number, entries) for number in numbers])
        with heir._writer.transaction():
            damage = f"UPDATE tasks SET about = ? WHERE key % {DAMAGED_EACH} = 7"
            damaged = heir._db.execute(damage, (b"{",)).rowcount
        tasks: TaskRegistry[TaskRecord] = TaskRegistry(
            heir, TaskLimits(2 * size, 2 * size, stored_bytes=2**40)
        )
        taken: list[Task[TaskRecord]] = []
        watch = _Watch()
        begun = time.monotonic()
        async with watch:
            await tasks.take_over("dead", _build, taken.extend)
        took = time.monotonic() - begun
        outcome.check(len(taken) == size - damaged, f"{len(taken)} tasks were taken over")
        open_ones = [one for one in taken if not one.finished]
        outcome.check(not open_ones, f"{len(open_ones)} tasks are open")
        late = watch.longest
        outcome.check(late <= BLOCKED_SECONDS, f"the event loop was busy for {late:.2f} s")
        outcome.figures |= {
            "tasks": len(taken),
            "damaged, set aside": damaged,
            "seconds": round(took, 1),
            "longest part, ms": round(late * 1000),
        }
        await tasks.close()


def _build_change(number: int, entries: tuple[Entry, ...]) -> TaskChange:
    owner = Principal("key", f"owner{number % OWNERS}")
    state = "working" if number % 2 else "completed"
    about = {"words": "x" * 300}
    return TaskChange(0, f"t{number}", owner, state, 1.0, float(number), about, entries)


class _Watch:
    """Measures how long the event loop is busy at a time."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def __aenter__(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())
        await asyncio.sleep(0)

    async def __aexit__(self, *_: object) -> None:
        self._watching.cancel()

    async def _watch(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now
