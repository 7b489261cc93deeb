"""The `TaskQueue` in `agents.db`. A claim is a lease: the task of an agent that has stopped can be
claimed again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dragoman.core.errors import InvalidInput, NotFound, Overloaded
from dragoman.core.ports import QueuedTask
from dragoman.core.structs import replace
from dragoman.stores.agents_db import TABLES
from dragoman.stores.database import LoopStore, StorePlace

PENDING, IN_PROGRESS, COMPLETED = "pending", "in_progress", "completed"
_FIELDS = QueuedTask.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_CLAIMABLE = (
    "org = ? AND (assigned_to = '' OR assigned_to = ?) AND "
    "(state = 'pending' OR (state = 'in_progress' AND lease_until <= ?))"
)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    unfinished: int = 5_000
    of_agent: int = 500
    """Unfinished tasks that one agent has posted."""
    completed: int = 5_000
    """The oldest go first."""


class DatabaseQueue(LoopStore):
    def __init__(
        self,
        place: StorePlace,
        limits: QueueLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(place, TABLES)
        self._limits = limits or QueueLimits()
        self._clock = clock

    def post(self, task: QueuedTask) -> None:
        unfinished = "SELECT count(*) FROM queue WHERE state != 'completed'"
        if self._read(unfinished)[0][0] >= self._limits.unfinished:
            raise Overloaded(f"the queue has {self._limits.unfinished} unfinished tasks")
        own = self._read(f"{unfinished} AND org = ? AND posted_by = ?", (task.org, task.posted_by))[
            0
        ][0]
        if own >= self._limits.of_agent:
            raise Overloaded(f"you have posted {own} tasks that are unfinished")
        with self._transact() as db:
            places = ", ".join("?" * len(_FIELDS))
            db.execute(f"INSERT INTO queue ({_COLUMNS}) VALUES ({places})", _values(task))
            db.execute(
                "DELETE FROM queue WHERE number IN (SELECT number FROM queue WHERE "
                "state = 'completed' ORDER BY number DESC LIMIT -1 OFFSET ?)",
                (self._limits.completed,),
            )

    def claim(self, org: str, agent: str, id: str, seconds: float) -> QueuedTask | None:
        now = self._clock()
        with self._transact() as db:  # one writer at a time, so exactly one claim finds the task
            where, values = _CLAIMABLE, [org, agent, now]
            if id:
                where, values = f"{where} AND id = ?", [*values, id]
            row = db.execute(
                f"SELECT {_COLUMNS} FROM queue WHERE {where} ORDER BY number LIMIT 1", values
            ).fetchone()
            if row is None:
                return None
            task = replace(
                QueuedTask(*row),
                state=IN_PROGRESS,
                claimed_by=agent,
                lease_until=now + seconds,
                updated=now,
            )
            self._update(task)
        return task

    def complete(self, org: str, agent: str, id: str, result: str) -> QueuedTask:
        now = self._clock()
        with self._transact() as db:
            row = db.execute(
                f"SELECT {_COLUMNS} FROM queue WHERE org = ? AND id = ?", (org, id)
            ).fetchone()
            task = QueuedTask(*row) if row is not None else None
            if task is None or not _may_see(task, agent):
                raise NotFound(f'there is no task "{id[:60]}"')
            if task.state != IN_PROGRESS or task.claimed_by != agent:
                why = "it is completed" if task.state == COMPLETED else "you have not claimed it"
                if task.state == IN_PROGRESS:
                    why = "another agent has claimed it"
                raise InvalidInput(f'the task "{id[:60]}" cannot be completed: {why}')
            task = replace(task, state=COMPLETED, result=result, updated=now, lease_until=0.0)
            self._update(task)
        return task

    def list_tasks(self, org: str, agent: str, state: str, most: int) -> list[QueuedTask]:
        where = "org = ? AND (posted_by = ? OR assigned_to IN ('', ?) OR claimed_by = ?)"
        values: list[Any] = [org, agent, agent, agent]
        if state:
            where, values = f"{where} AND state = ?", [*values, state]
        query = f"SELECT {_COLUMNS} FROM queue WHERE {where} ORDER BY number DESC LIMIT ?"
        return [QueuedTask(*row) for row in self._read(query, [*values, most])]

    def _update(self, task: QueuedTask) -> None:
        self._db.execute(
            "UPDATE queue SET state = ?, claimed_by = ?, lease_until = ?, result = ?, updated = ? "
            "WHERE id = ?",
            (task.state, task.claimed_by, task.lease_until, task.result, task.updated, task.id),
        )


def _values(task: QueuedTask) -> tuple[Any, ...]:
    return tuple(getattr(task, name) for name in _FIELDS)


def _may_see(task: QueuedTask, agent: str) -> bool:
    return agent in (task.posted_by, task.assigned_to, task.claimed_by) or not task.assigned_to
