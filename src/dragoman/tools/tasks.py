"""`task_post`, `task_claim`, `task_complete`, `task_list`: work for other agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dragoman.core.call import Call, Result
from dragoman.core.errors import InvalidInput
from dragoman.core.label_keys import build_stored_key
from dragoman.core.ports import QueuedTask, TaskQueue
from dragoman.core.taint import AGENT
from dragoman.core.tool_identity import BUILTIN, compute_digest
from dragoman.tools.tool_spec import (
    BoundTool,
    ToolSpec,
    ToolUse,
    build_json_result,
    build_text_result,
)

STATES = ("pending", "in_progress", "completed")
_TASK = {"type": "string", "minLength": 1, "maxLength": 60, "description": "The id of the task."}

TASK_POST = ToolSpec(
    name="task_post",
    title="Post a task",
    description="Posts a task to the queue, for another agent to claim. Returns its id.",
    properties={
        "title": {"type": "string", "minLength": 1, "maxLength": 300},
        "description": {"type": "string", "description": "Everything that the task needs."},
        "assigned_to": {
            "type": "string",
            "maxLength": 64,
            "description": "The only agent that may claim it. Default: any agent.",
        },
    },
    required=("title", "description"),
    sinks=frozenset({AGENT}),
)
TASK_CLAIM = ToolSpec(
    name="task_claim",
    title="Claim a task",
    description="Claims the oldest task that waits for you or for any agent. It is yours alone for "
    "a limited time; complete it with task_complete.",
    properties={"task_id": {**_TASK, "description": "A certain task. Default: the oldest."}},
)
TASK_COMPLETE = ToolSpec(
    name="task_complete",
    title="Complete a task",
    description="Completes a task that you have claimed, with its result.",
    properties={"task_id": _TASK, "result": {"type": "string"}},
    required=("task_id", "result"),
    idempotent=False,
    sinks=frozenset({AGENT}),
)
TASK_LIST = ToolSpec(
    name="task_list",
    title="List tasks",
    description="Lists the tasks that you have posted or may claim, the newest first, with the "
    "results of completed ones.",
    properties={"status": {"type": "string", "enum": list(STATES)}},
    read_only=True,
)


@dataclass(frozen=True, slots=True)
class TaskTextLimits:
    text_bytes: int = 50_000
    """Of a description or a result."""
    listed: int = 50
    lease_seconds: float = 600.0


class TaskTools:
    def __init__(
        self,
        queue: TaskQueue,
        limits: TaskTextLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._limits = limits
        self._clock = clock

    def bind_tools(self) -> Iterable[BoundTool]:
        yield BoundTool(TASK_POST, self._post, self._list_posted)
        yield BoundTool(TASK_CLAIM, self._claim)
        yield BoundTool(TASK_COMPLETE, self._complete, self._list_completed)
        yield BoundTool(TASK_LIST, self._list)

    def _list_posted(self, use: ToolUse) -> Iterable[str]:
        return [build_stored_key(BUILTIN, _build_name(build_call_id("task", use.call)))]

    def _list_completed(self, use: ToolUse) -> Iterable[str]:
        return [build_stored_key(BUILTIN, _build_name(str(use.arguments.get("task_id", ""))))]

    async def _post(self, use: ToolUse) -> Result:
        arguments, now = use.arguments, self._clock()
        task = QueuedTask(
            id=build_call_id("task", use.call),
            org=use.agent.org,
            title=arguments["title"],
            description=self._check_text("description", arguments["description"]),
            posted_by=use.agent.name,
            assigned_to=arguments.get("assigned_to", ""),
            state="pending",
            claimed_by="",
            lease_until=0.0,
            result="",
            created=now,
            updated=now,
        )
        self._queue.post(task)
        return build_json_result({"task": task.id})

    async def _claim(self, use: ToolUse) -> Result:
        seconds = self._limits.lease_seconds
        wanted = use.arguments.get("task_id", "")
        task = self._queue.claim(use.agent.org, use.agent.name, wanted, seconds)
        if task is None:
            return build_text_result(
                "there is no such task to claim" if wanted else "there is no task to claim"
            )
        use.note_read(_build_name(task.id))
        return build_json_result(_render_task(task))

    async def _complete(self, use: ToolUse) -> Result:
        result = self._check_text("result", use.arguments["result"])
        agent = use.agent
        task = self._queue.complete(agent.org, agent.name, use.arguments["task_id"], result)
        return build_text_result(f'completed task "{task.id}"')

    async def _list(self, use: ToolUse) -> Result:
        found = self._queue.list_tasks(
            use.agent.org,
            use.agent.name,
            use.arguments.get("status", ""),
            self._limits.listed,
        )
        use.note_read(*(_build_name(task.id) for task in found))
        return build_json_result({"tasks": [_render_task(task) for task in found]})

    def _check_text(self, name: str, text: str) -> str:
        data = text.encode("utf-8", "replace")
        if len(data) > self._limits.text_bytes:
            raise InvalidInput(f'the "{name}" is larger than {self._limits.text_bytes} bytes')
        return data.decode()


def build_call_id(kind: str, call: Call) -> str:
    """Builds the id of what a call creates. It is known before the call runs, so that labels can
    be stored first."""
    return f"{kind}-{compute_digest(call.trace.span)}{compute_digest(call.trace.span[::-1])}"


def _build_name(id: str) -> str:
    """The name of a task for its taint labels."""
    return f"task {id}"


def _render_task(task: QueuedTask) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": task.id,
        "title": task.title,
        "description": task.description,
        "status": task.state,
        "postedBy": task.posted_by,
    }
    for name, value in (("assignedTo", task.assigned_to), ("claimedBy", task.claimed_by)):
        if value:
            shown[name] = value
    if task.state == "in_progress":
        until = datetime.fromtimestamp(task.lease_until, UTC)
        shown["claimedUntil"] = until.isoformat(timespec="seconds")
    if task.state == "completed":
        shown["result"] = task.result
    return shown
