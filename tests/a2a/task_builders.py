"""Builds A2A tasks and registries of them, without a server."""

from __future__ import annotations

from time import time
from typing import Any

from dragoman.a2a.server.task import A2aTask, A2aTaskHeader, A2aTaskRecord, A2aTaskRegistry
from dragoman.core.ports import StoredTask, TaskStore
from dragoman.core.principal import Principal
from dragoman.core.task_registry import TaskLimits, TaskRegistry
from dragoman.core.tasks import SUBMITTED, Task, Work
from dragoman.stores.tasks import MemoryTaskStore


def build_task(owner: Principal, work: Work, id: str = "t", text: str = "hi") -> A2aTask:
    """A task of agent "echo" that has got one message and is not begun."""
    header = A2aTaskHeader("c", "echo", "echo.message", "1.0", 0)
    record = A2aTaskRecord(id, header, time())
    record.add_message({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]})
    return Task(owner, work, record, id, SUBMITTED)


async def fail_call(*_: Any) -> Any:
    raise AssertionError


def build_stored(stored: StoredTask) -> A2aTask:
    header = A2aTaskHeader.from_stored(stored.about)
    return Task(
        stored.owner, fail_call, A2aTaskRecord(stored.id, header, stored.created), stored.id
    )


def build_registry(store: TaskStore | None = None, **limits: Any) -> A2aTaskRegistry:
    given = {"count": 100, "count_per_owner": 100, "stored_bytes": 10**9, "idle_seconds": 1000.0}
    return TaskRegistry(store or MemoryTaskStore(), TaskLimits(**{**given, **limits}))
