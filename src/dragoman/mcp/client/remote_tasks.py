"""Follows the tasks that a server has made of calls, in both forms that MCP has for them.

To the hub the call simply takes long: it is reported as lasting, the task's status becomes
progress, and at the end there is a result. A question of the task is a question of the call, and
the call that continues it continues the same task. Cancelling the call cancels the task.

The extension of 2026-07-28 (SEP-2663) is polled, and questions come with its status. A caller that
asks for its task later, such as a run of a workflow, gets a handle with all that continues it. In
the form of 2025-11-25 one request, `tasks/result`, stays open until the end, and questions come as
requests of the server meanwhile: the sender of the hub's requests handles them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, NamedTuple

from dragoman.core import errors
from dragoman.core.background import STOPPING, Background, start_task
from dragoman.core.backoff import Backoff
from dragoman.core.call import Call, Progress, Question, Result, TaskNamed, TaskStarted, Updates
from dragoman.core.principal import Principal
from dragoman.core.question_handles import build_needs_input
from dragoman.mcp.client.client_sessions import build_not_open
from dragoman.mcp.client.jsonrpc_channel import UnansweredQuestion
from dragoman.mcp.protocol.elicitation import parse_input_request
from dragoman.mcp.protocol.revisions import RELATED_KEY, TASKS
from dragoman.mcp.protocol.translate import result_from_mcp

log = logging.getLogger(__name__)

HANDLE = "task:"
"""Begins the handle of a task's questions; `protocol.elicitation` has the other beginnings."""
NAMED = f"{HANDLE}="
"""Begins a handle that contains the task, for callers that may ask for it after a restart."""
LONGEST_POLL = 60.0
"""Seconds between two polls at most, whatever the server suggests."""
POLL_SECONDS = 30.0
RESULT_SECONDS = 3_600.0
CANCEL_SECONDS = 5.0
CLOSE_SECONDS = 0.5
TASK = {"ttl": round(RESULT_SECONDS * 1000)}
"""Requested from a server of 2025-11-25."""
MAX_FAILURES = 5
"""How often in a row a server may be unreachable before its task counts as failed."""
MAX_ID = 1_024

SendTaskRequest = Callable[[str, dict[str, Any], float], Awaitable[tuple[Any, int]]]
"""Sends a request about a task: method, params, timeout. Returns the result and its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTaskLimits:
    question_secs: float = 600.0
    shortest_poll: float = 0.1
    """Seconds between two polls at least, whatever the server suggests."""
    first_poll: float = 0.5
    last_poll: float = 5.0
    """Seconds between two polls if the server suggests nothing; longer each time."""
    max_suspended: int = 1_000
    """Tasks with open questions; one principal has at most half of them."""


def wants_task(features: Mapping[str, Any], call: Call) -> bool:
    """Whether to request a task from a server of 2025-11-25 with these capabilities: the tool
    requires it, or supports it and the client requested one."""
    requests = _find_at(features, "tasks", "requests", "tools")
    if not isinstance(requests, dict) or "call" not in requests:
        return False
    support = _find_at(call.tool.definition, "execution", "taskSupport")
    return support == "required" or (support == "optional" and call.wanted_updates.task_start)


def makes_tasks(features: Mapping[str, Any]) -> bool:
    """Whether a server of either era declares that it makes tasks of calls."""
    return isinstance(features.get("tasks"), dict) or isinstance(
        _find_at(features, "extensions", TASKS), dict
    )


def is_task(value: Any) -> bool:
    """Whether the response to a call is a task, of either form."""
    if not isinstance(value, dict):
        return False
    return value.get("resultType") == "task" or isinstance(_find_at(value, "task", "taskId"), str)


def is_task_handle(handle: str | None) -> bool:
    return handle is not None and handle.startswith(HANDLE)


@dataclass(slots=True)
class UpstreamTask:
    """The state of a server's task, as far as the hub knows it."""

    id: str
    shortest_poll: float = 0.1
    pause: float | None = None
    """Seconds between two polls, as the server suggested."""
    answered: list[str] = field(default_factory=list)
    reported: int = 0
    """How often progress was reported."""
    message: str = ""

    def update(self, task: Mapping[str, Any], updates: Updates) -> None:
        """Takes in a status: when to poll again, and what the task is doing."""
        suggested = task.get("pollIntervalMs", task.get("pollInterval"))
        if isinstance(suggested, int | float) and not isinstance(suggested, bool):
            self.pause = min(max(suggested / 1000, self.shortest_poll), LONGEST_POLL)
        message = task.get("statusMessage")
        if isinstance(message, str) and message and message[:1000] != self.message:
            self.message = message[:1000]
            self.reported += 1
            updates(Progress(progress=self.reported, message=self.message))


class SuspendedTask(NamedTuple):
    """A task with open questions; it is not polled until they are answered."""

    task: UpstreamTask
    send: SendTaskRequest
    timer: asyncio.TimerHandle
    principal: Principal


class UpstreamTasks:
    """The tasks of one server that are being followed."""

    def __init__(self, server: str, limits: RemoteTaskLimits) -> None:
        self.server = server
        self._limits = limits
        self._suspended: dict[str, SuspendedTask] = {}
        """By the handle that clients get; the server's task id stays in the hub."""
        self._cancelling = Background(f'tasks of server "{server}"')

    @property
    def suspended(self) -> int:
        """The number of tasks with open questions."""
        return len(self._suspended)

    async def follow(self, created: Any, call: Call, send: SendTaskRequest) -> Result:
        """The extension: from the response that created a task to its result, or questions."""
        task = self._start(created, call.updates)
        if call.task is not None:
            place = f'server "{self.server}"'
            call.updates(TaskNamed(handle=_build_handle(task), id=task.id, place=place))
        with self._cancel_on_error(task, send, call):
            return await self._poll(task, call, send)

    async def ask_about(self, call: Call, send: SendTaskRequest) -> Result:
        """Asks once how a task stands, or cancels it."""
        task = self._parse_handle(call)
        if call.cancels:
            try:
                await send("tasks/cancel", {"taskId": task.id}, CANCEL_SECONDS)
            except errors.WorkFailed as error:  # it has ended, or is forgotten
                log.debug('a task of server "%s" was not cancelled: %s', self.server, error)
            return Result()
        status, size = await self._get(task, send)
        found = self._judge(task, status, size, call, send)
        return found or Result(unfinished=True, handle=_build_handle(task))

    async def wait_result(
        self, created: Any, updates: Updates, send: SendTaskRequest, *, is_watched: bool
    ) -> tuple[Any, int]:
        """2025-11-25: from the response that created a task to what the call would have returned,
        with its size. `is_watched`: whether the client wants progress."""
        task = self._start(created["task"], updates)
        watching = start_task(self._watch(task, updates, send)) if is_watched else None
        try:
            with self._cancel_on_error(task, send):
                return await self._await_result(task, send)
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.wait([watching])

    def _start(self, created: Mapping[str, Any], updates: Updates) -> UpstreamTask:
        id, message = created.get("taskId"), created.get("statusMessage")
        if not isinstance(id, str) or not 0 < len(id) <= MAX_ID:
            raise errors.BadReply(f'server "{self.server}" created a task with an invalid id')
        updates(TaskStarted(message=message[:1000] if isinstance(message, str) else None))
        task = UpstreamTask(id, self._limits.shortest_poll)
        task.update(created, updates)
        return task

    async def resume(self, call: Call, send: SendTaskRequest) -> Result:
        """Continues the task that asked, with the answers that `call` brings, if any."""
        if (call.handle or "").startswith(NAMED):
            task = self._parse_handle(call)
        else:
            found = self._suspended.pop(call.handle or "", None)
            if found is None:
                raise build_not_open(call)
            task = found.task
            found.timer.cancel()
        if call.answers is None:
            self._cancel(task.id, send)
            raise errors.WorkFailed(
                f'the task of server "{self.server}" was cancelled: its question was not answered'
            )
        call.updates(TaskStarted())
        with self._cancel_on_error(task, send, call):
            if call.answers:
                await self._update(task, call, send)
            return await self._poll(task, call, send)

    async def close(self) -> None:
        for one in self._suspended.values():
            one.timer.cancel()
            self._cancel(one.task.id, one.send)
        self._suspended.clear()
        await self._cancelling.close(grace=CLOSE_SECONDS)

    # --- the extension -------------------------------------------------------------------------

    async def _poll(self, task: UpstreamTask, call: Call, send: SendTaskRequest) -> Result:
        """Polls until there is a result or a question, or until the attached time of the call is
        over."""
        pauses, failures = self._build_backoff(1.5), 0
        loop = asyncio.get_running_loop()
        until = loop.time() + call.task.attached_secs if call.task is not None else None
        while until is None or loop.time() < until:
            await asyncio.sleep(task.pause or pauses.next_delay())
            try:
                status, size = await self._get(task, send)
                failures = 0
            except (errors.Unreachable, errors.TimedOut) as error:
                failures += 1
                if failures >= MAX_FAILURES and until is not None:
                    break  # it is asked for later
                await self._back_off(failures, error)
                continue
            if (found := self._judge(task, status, size, call, send)) is not None:
                return found
        return Result(unfinished=True, handle=_build_handle(task))

    def _judge(
        self,
        task: UpstreamTask,
        status: Mapping[str, Any],
        size: int,
        call: Call,
        send: SendTaskRequest,
    ) -> Result | None:
        """Returns the result or the questions of a task; None while it works. Raises if it
        failed."""
        task.update(status, call.updates)
        state = status.get("status")
        if state == "completed":
            return result_from_mcp(_strip_task(status.get("result")), size, self.server)
        if state in ("failed", "cancelled"):
            raise self._build_failure(status)
        if state == "input_required" and (asked := self._find_questions(task, status)):
            return self._suspend(task, asked, call, send)
        return None

    async def _get(self, task: UpstreamTask, send: SendTaskRequest) -> tuple[dict[str, Any], int]:
        try:
            status, size = await send("tasks/get", {"taskId": task.id}, POLL_SECONDS)
        except errors.WorkFailed as error:
            raise self._build_lost(error) from error
        if not isinstance(status, dict):
            raise errors.BadReply(f'server "{self.server}" answered "tasks/get" without an object')
        return status, size

    async def _update(self, task: UpstreamTask, call: Call, send: SendTaskRequest) -> None:
        answers = dict(call.answers or {})
        params = {"taskId": task.id, "inputResponses": answers}
        try:
            await send("tasks/update", params, POLL_SECONDS)
        except errors.WorkFailed as error:
            raise self._build_lost(error) from error
        task.answered += [name for name in answers if name not in task.answered]

    def _find_questions(self, task: UpstreamTask, status: Mapping[str, Any]) -> dict[str, Question]:
        """Returns the new questions: a server may take a while to process an answer."""
        requests = status.get("inputRequests")
        if not isinstance(requests, dict):
            return {}
        return {
            name: parse_input_request(request, self.server)
            for name, request in requests.items()
            if name not in task.answered
        }

    def _suspend(
        self, task: UpstreamTask, questions: dict[str, Question], call: Call, send: SendTaskRequest
    ) -> Result:
        if problem := build_needs_input(questions, call):
            self._cancel(task.id, send)
            raise problem
        if call.task is not None:
            return Result(questions=questions, handle=_build_handle(task))
        most = self._limits.max_suspended
        if len(self._suspended) >= most:
            raise errors.Overloaded(f'too many questions of server "{self.server}" are open')
        mine = sum(1 for one in self._suspended.values() if one.principal == call.principal)
        if mine >= most // 2:
            raise errors.Overloaded(
                f'{mine} of your tasks wait for answers to questions of server "{self.server}", '
                "which is the limit; answer some first"
            )
        handle = HANDLE + token_hex(16)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._limits.question_secs, self._expire, handle)
        self._suspended[handle] = SuspendedTask(task, send, timer, call.principal)
        return Result(questions=questions, handle=handle)

    def _expire(self, handle: str) -> None:
        suspended = self._suspended.pop(handle)
        self._cancel(suspended.task.id, suspended.send)

    # --- the form of 2025-11-25 ----------------------------------------------------------------

    async def _await_result(self, task: UpstreamTask, send: SendTaskRequest) -> tuple[Any, int]:
        failures = 0
        while True:
            try:
                value, size = await send("tasks/result", {"taskId": task.id}, RESULT_SECONDS)
                return _strip_task(value), size
            except UnansweredQuestion:
                raise
            except errors.WorkFailed as error:
                # The call's own error, or a server that does not wait for the end.
                status, _ = await self._get(task, send)
                if status.get("status") == "cancelled":
                    raise self._build_failure(status) from error
                if status.get("status") in ("completed", "failed"):
                    raise
            except (errors.Unreachable, errors.TimedOut) as error:
                failures += 1
                await self._back_off(failures, error)
            await asyncio.sleep(task.pause or self._limits.first_poll)

    async def _watch(self, task: UpstreamTask, updates: Updates, send: SendTaskRequest) -> None:
        """Reports progress; the end is noticed where the result is awaited."""
        pauses = self._build_backoff(1.5)
        while True:
            await asyncio.sleep(task.pause or pauses.next_delay())
            try:
                status, _ = await self._get(task, send)
            except errors.HubError as error:
                log.debug('a task of server "%s" cannot be watched: %s', self.server, error)
                continue
            task.update(status, updates)

    # --- ends ----------------------------------------------------------------------------------

    def _build_backoff(self, factor: float) -> Backoff:
        limits = self._limits
        return Backoff(limits.first_poll, limits.last_poll, factor=factor, jitter=0.0)

    async def _back_off(self, failures: int, error: errors.HubError) -> None:
        if failures >= MAX_FAILURES:
            raise error
        await asyncio.sleep(self._build_backoff(2.0).delay(failures + 1))

    @contextmanager
    def _cancel_on_error(
        self, task: UpstreamTask, send: SendTaskRequest, call: Call | None = None
    ) -> Iterator[None]:
        """Cancels the task if the call is cancelled or fails, unless the task has ended, or the
        caller asks for it after the next start of the hub."""
        try:
            yield
        except asyncio.CancelledError as error:
            is_left = call is not None and call.task is not None
            if not is_left or error.args[:1] != (STOPPING,):
                self._cancel(task.id, send)
            raise
        except (errors.WorkFailed, errors.NeedsInput) as error:
            if isinstance(error, UnansweredQuestion):
                self._cancel(task.id, send)
            raise
        except errors.Unreachable as error:
            self._cancel(task.id, send)
            raise errors.Unreachable(str(error)) from error  # the call itself was sent long ago
        except BaseException:
            self._cancel(task.id, send)
            raise

    def _build_failure(self, status: Mapping[str, Any]) -> errors.WorkFailed:
        if status.get("status") == "cancelled":
            return errors.WorkFailed(f'server "{self.server}" has cancelled its task')
        native = status.get("error")
        if not isinstance(native, dict):
            return errors.WorkFailed(f'a task of server "{self.server}" failed without a reason')
        text = str(native.get("message", ""))[:300]
        return errors.WorkFailed(f'a task of server "{self.server}" failed: {text}', native)

    def _parse_handle(self, call: Call) -> UpstreamTask:
        try:
            id, answered = json.loads((call.handle or "").removeprefix(NAMED))
            return UpstreamTask(str(id), self._limits.shortest_poll, answered=list(answered))
        except (ValueError, TypeError):  # it was sealed, so another version has made it
            raise build_not_open(call) from None

    def _build_lost(self, error: errors.WorkFailed) -> errors.TaskLost:
        """Explains the server's error: the client knows of no task."""
        return errors.TaskLost(
            f'server "{self.server}" no longer knows the task that it made of this call; it may '
            f"have expired, or the server was restarted ({error})"
        )

    def _cancel(self, id: str, send: SendTaskRequest) -> None:
        """In the background: the call has ended."""
        self._cancelling.spawn(self._send_cancel(id, send))

    async def _send_cancel(self, id: str, send: SendTaskRequest) -> None:
        try:
            await send("tasks/cancel", {"taskId": id}, CANCEL_SECONDS)
        except errors.HubError as error:
            log.info('a task of server "%s" could not be cancelled: %s', self.server, error)


def _build_handle(task: UpstreamTask) -> str:
    return NAMED + json.dumps([task.id, task.answered])


def _strip_task(result: Any) -> Any:
    """Removes the id of the server's task, which is of no use to clients."""
    meta = result.get("_meta") if isinstance(result, dict) else None
    if not isinstance(meta, dict) or RELATED_KEY not in meta:
        return result
    return {**result, "_meta": {key: meta[key] for key in meta if key != RELATED_KEY}}


def _find_at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
