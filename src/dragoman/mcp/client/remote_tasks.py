"""Following a task that a server has made of a call, in both forms that MCP has for them.

To the hub the call simply takes long: it is reported as lasting, what the server says of it becomes
progress, and in the end there is a result. A question of the task is a question of the call, and
the call that continues it goes on with the same task. Whoever leaves has the task cancelled.

The extension of 2026-07-28 (SEP-2663) is asked again and again; what it asks comes with that. In
the form of 2025-11-25 one request, `tasks/result`, stays open until the end, and questions come as
requests of the server's meanwhile: those are the business of whoever sends our requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, NamedTuple

from dragoman.core.call import Call, Progress, Question, Result, TaskStarted, Updates
from dragoman.core.errors import (
    BadReply,
    HubError,
    InvalidInput,
    NeedsInput,
    Overloaded,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.core.principal import Principal
from dragoman.core.question_handles import build_needs_input
from dragoman.mcp.client.jsonrpc_channel import UnansweredQuestion
from dragoman.mcp.protocol.elicitation import question_from_request
from dragoman.mcp.protocol.revisions import RELATED_KEY, TASKS

log = logging.getLogger(__name__)

HANDLE = "task:"
"""How the handles begin; others of the same server begin otherwise (`questions`)."""

SHORTEST, LONGEST = 0.1, 60.0
"""Seconds between two questions, whatever the server would like."""
FIRST_PAUSE, LAST_PAUSE = 0.5, 5.0
"""The same for a server that says nothing of it: longer each time."""
ASK_SECONDS = 30.0
RESULT_SECONDS = 3_600.0
CANCEL_SECONDS = 5.0
CLOSE_SECONDS = 0.5
TASK = {"ttl": round(RESULT_SECONDS * 1000)}
"""What a server of 2025-11-25 is asked for."""
MAX_FAILURES = 5
"""So often in a row a server need not be there before the task is given up, each time for longer.
"""
MAX_OPEN = 1_000
"""Tasks of one server with open questions; one caller has at most half of them."""
MAX_ID = 1_024

Ask = Callable[[str, dict[str, Any], float], Awaitable[tuple[Any, int]]]
"""Sends a request of the caller's to the server: method, params, seconds. The result and its size.
"""
Finish = Callable[[Any, int], Result]
"""Makes a result of what a server answers to a call."""


def wants_task(features: Mapping[str, Any], call: Call) -> bool:
    """Whether to ask a server of 2025-11-25 with these features for a task: where the tool must be
    called so, or may be and the caller asked for one."""
    requests = _at(features, "tasks", "requests", "tools")
    if not isinstance(requests, dict) or "call" not in requests:
        return False
    support = _at(call.tool.definition, "execution", "taskSupport")
    return support == "required" or (support == "optional" and call.wanted_updates.task_start)


def makes_tasks(features: Mapping[str, Any]) -> bool:
    """Whether a server of either era has said that it makes tasks."""
    return isinstance(features.get("tasks"), dict) or isinstance(
        _at(features, "extensions", TASKS), dict
    )


def is_task(value: Any) -> bool:
    """Whether an answer to a call is a task, of either form."""
    if not isinstance(value, dict):
        return False
    return value.get("resultType") == "task" or isinstance(_at(value, "task", "taskId"), str)


def is_task_handle(handle: str | None) -> bool:
    return handle is not None and handle.startswith(HANDLE)


@dataclass(slots=True)
class UpstreamTask:
    """What is known of a server's task."""

    id: str
    pause: float | None = None
    """Seconds between two questions, as the server said."""
    answered: list[str] = field(default_factory=list)
    told: int = 0
    """How often progress was reported."""
    message: str = ""

    def update(self, task: Mapping[str, Any], updates: Updates) -> None:
        """Takes in what the server says of it: when to ask again, and what it is doing."""
        said = task.get("pollIntervalMs", task.get("pollInterval"))
        if isinstance(said, int | float) and not isinstance(said, bool):
            self.pause = min(max(said / 1000, SHORTEST), LONGEST)
        message = task.get("statusMessage")
        if isinstance(message, str) and message and message[:1000] != self.message:
            self.message = message[:1000]
            self.told += 1
            updates(Progress(progress=self.told, message=self.message))


class SuspendedTask(NamedTuple):
    """A task with open questions: nobody asks for it while nobody answers."""

    followed: UpstreamTask
    ask: Ask
    timer: asyncio.TimerHandle
    caller: Principal


class UpstreamTasks:
    """The tasks of one server that are being followed."""

    def __init__(self, server: str, question_secs: float) -> None:
        self.server = server
        self._question_secs = question_secs
        self._open: dict[str, SuspendedTask] = {}
        """By the handle that is given out for each: the server's own id stays here."""
        self._cancelling: set[asyncio.Task[None]] = set()

    async def follow(self, created: Any, call: Call, ask: Ask, finish: Finish) -> Result:
        """The extension: from the answer that made a task of `call` to its result, or questions."""
        followed = self._start(created, call.updates)
        with self._cancel_on_error(followed, ask):
            return await self._poll(followed, call, ask, finish)

    async def wait_result(
        self, created: Any, updates: Updates, ask: Ask, *, watched: bool
    ) -> tuple[Any, int]:
        """2025-11-25: from the answer that made a task of a call to what the call would have been
        answered. `watched` says that somebody would like to know how it goes on."""
        followed = self._start(created["task"], updates)
        watching: asyncio.Task[None] | None = None
        if watched:
            watch = self._watch(followed, updates, ask)
            watching = asyncio.get_running_loop().create_task(watch)
        try:
            with self._cancel_on_error(followed, ask):
                return await self._await(followed, ask)
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.wait([watching])

    def _start(self, task: Mapping[str, Any], updates: Updates) -> UpstreamTask:
        id, message = task.get("taskId"), task.get("statusMessage")
        if not isinstance(id, str) or not 0 < len(id) <= MAX_ID:
            raise BadReply(f'server "{self.server}" made a task with no id of a call')
        updates(TaskStarted(message=message[:1000] if isinstance(message, str) else None))
        followed = UpstreamTask(id)
        followed.update(task, updates)
        return followed

    async def resume(self, call: Call, ask: Ask, finish: Finish) -> Result:
        """Goes on with the task that asked; `call` brings the answers, or that there are none."""
        found = self._open.pop(call.handle or "", None)
        if found is None:
            raise InvalidInput(
                f'the question of "{call.tool.name}" is not open any more; begin the call again'
            )
        followed = found.followed
        found.timer.cancel()
        if call.answers is None:
            self._cancel(followed.id, ask)
            raise WorkFailed(f'the task of server "{self.server}" was given up: nobody answered it')
        call.updates(TaskStarted())
        with self._cancel_on_error(followed, ask):
            if call.answers:
                await self._update(followed, call, ask)
            return await self._poll(followed, call, ask, finish)

    @property
    def suspended(self) -> int:
        """Tasks that wait for an answer."""
        return len(self._open)

    async def close(self) -> None:
        for open in self._open.values():
            open.timer.cancel()
            self._cancel(open.followed.id, open.ask)
        self._open.clear()
        if self._cancelling:
            await asyncio.wait(list(self._cancelling), timeout=CLOSE_SECONDS)
        for task in list(self._cancelling):
            task.cancel()
            await asyncio.wait([task])

    # --- the extension ---------------------------------------------------------------------------

    async def _poll(self, followed: UpstreamTask, call: Call, ask: Ask, finish: Finish) -> Result:
        """Until there is a result or a question."""
        pause, failures = FIRST_PAUSE, 0
        while True:
            await asyncio.sleep(followed.pause or pause)
            pause = min(pause * 1.5, LAST_PAUSE)
            try:
                task, size = await self._get(followed, ask)
                failures = 0
            except (Unreachable, TimedOut) as error:
                failures += 1
                await self._back_off(failures, error)
                continue
            followed.update(task, call.updates)
            status = task.get("status")
            if status == "completed":
                return finish(_unrelated(task.get("result")), size)
            if status in ("failed", "cancelled"):
                raise self._build_failure(task)
            if status == "input_required" and (asked := self._list_questions(followed, task)):
                return self._suspend(followed, asked, call, ask)

    async def _get(self, followed: UpstreamTask, ask: Ask) -> tuple[dict[str, Any], int]:
        try:
            task, size = await ask("tasks/get", {"taskId": followed.id}, ASK_SECONDS)
        except WorkFailed as error:
            raise self._build_lost(error) from error
        if not isinstance(task, dict):
            raise BadReply(f'server "{self.server}" answered "tasks/get" with no object')
        return task, size

    async def _update(self, followed: UpstreamTask, call: Call, ask: Ask) -> None:
        answers = dict(call.answers or {})
        params = {"taskId": followed.id, "inputResponses": answers}
        try:
            await ask("tasks/update", params, ASK_SECONDS)
        except WorkFailed as error:
            raise self._build_lost(error) from error
        followed.answered += [name for name in answers if name not in followed.answered]

    def _list_questions(
        self, followed: UpstreamTask, task: Mapping[str, Any]
    ) -> dict[str, Question]:
        """Those that are new: it may be a while before the server has taken in an answer."""
        asked = task.get("inputRequests")
        if not isinstance(asked, dict):
            return {}
        return {
            name: self._parse_question(request)
            for name, request in asked.items()
            if name not in followed.answered
        }

    def _parse_question(self, request: Any) -> Question:
        asked = request if isinstance(request, dict) else {}
        question = question_from_request(asked.get("method"), asked.get("params"))
        if question is None:
            method = str(asked.get("method"))[:100]
            raise BadReply(f'server "{self.server}" asks for "{method}", which is unknown')
        return question

    def _suspend(
        self, followed: UpstreamTask, asked: dict[str, Question], call: Call, ask: Ask
    ) -> Result:
        if problem := build_needs_input(asked, call):
            self._cancel(followed.id, ask)
            raise problem
        if len(self._open) >= MAX_OPEN:
            raise Overloaded(f'too many questions of server "{self.server}" are open')
        mine = sum(1 for open in self._open.values() if open.caller == call.principal)
        if mine >= MAX_OPEN // 2:
            raise Overloaded(
                f'{mine} tasks of yours wait for answers to server "{self.server}", which is all '
                "you may have; answer some first"
            )
        handle = HANDLE + token_hex(16)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._question_secs, self._expire, handle)
        self._open[handle] = SuspendedTask(followed, ask, timer, call.principal)
        return Result(questions=asked, handle=handle)

    def _expire(self, handle: str) -> None:
        open = self._open.pop(handle)
        self._cancel(open.followed.id, open.ask)

    # --- the form of 2025-11-25 ------------------------------------------------------------------

    async def _await(self, followed: UpstreamTask, ask: Ask) -> tuple[Any, int]:
        failures = 0
        while True:
            try:
                value, size = await ask("tasks/result", {"taskId": followed.id}, RESULT_SECONDS)
                return _unrelated(value), size
            except UnansweredQuestion:
                raise
            except WorkFailed as error:
                # The call's own error, or a server that does not wait for the end.
                task, _ = await self._get(followed, ask)
                if task.get("status") == "cancelled":
                    raise self._build_failure(task) from error
                if task.get("status") in ("completed", "failed"):
                    raise
            except (Unreachable, TimedOut) as error:
                failures += 1
                await self._back_off(failures, error)
            await asyncio.sleep(followed.pause or FIRST_PAUSE)

    async def _watch(self, followed: UpstreamTask, updates: Updates, ask: Ask) -> None:
        """Asks what it is doing; that it has ended is heard by the one who waits for the result."""
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(followed.pause or pause)
            pause = min(pause * 1.5, LAST_PAUSE)
            try:
                task, _ = await self._get(followed, ask)
            except HubError as error:
                log.debug('a task of server "%s" cannot be watched: %s', self.server, error)
                continue
            followed.update(task, updates)

    # --- ends ------------------------------------------------------------------------------------

    async def _back_off(self, failures: int, error: HubError) -> None:
        if failures >= MAX_FAILURES:
            raise error
        await asyncio.sleep(min(FIRST_PAUSE * 2**failures, LAST_PAUSE))

    @contextmanager
    def _cancel_on_error(self, followed: UpstreamTask, ask: Ask) -> Iterator[None]:
        """Whoever leaves has the task cancelled, unless it has ended or was seen to."""
        try:
            yield
        except (WorkFailed, NeedsInput) as error:
            if isinstance(error, UnansweredQuestion):
                self._cancel(followed.id, ask)
            raise
        except Unreachable as error:
            self._cancel(followed.id, ask)
            raise Unreachable(str(error)) from error  # the call itself has left long ago
        except BaseException:
            self._cancel(followed.id, ask)
            raise

    def _build_failure(self, task: Mapping[str, Any]) -> WorkFailed:
        if task.get("status") == "cancelled":
            return WorkFailed(f'server "{self.server}" has cancelled its task')
        native = task.get("error")
        if not isinstance(native, dict):
            return WorkFailed(f'a task of server "{self.server}" failed, and no reason is given')
        words = str(native.get("message", ""))[:300]
        return WorkFailed(f'a task of server "{self.server}" failed: {words}', native)

    def _build_lost(self, error: WorkFailed) -> WorkFailed:
        """Not with the server's own words alone: its task is none that the caller knows of."""
        return WorkFailed(
            f'server "{self.server}" no longer knows the task that it made of this call; '
            f"its time may be over, or the server was started anew ({error})"
        )

    def _cancel(self, id: str, ask: Ask) -> None:
        """Nobody waits for this: whoever leaves is gone."""
        task = asyncio.get_running_loop().create_task(self._send_cancel(id, ask))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _send_cancel(self, id: str, ask: Ask) -> None:
        try:
            await ask("tasks/cancel", {"taskId": id}, CANCEL_SECONDS)
        except HubError as error:
            log.info('a task of server "%s" could not be cancelled: %s', self.server, error)


def _unrelated(result: Any) -> Any:
    """The result without the id of the server's task, which nobody else can use."""
    meta = result.get("_meta") if isinstance(result, dict) else None
    if not isinstance(meta, dict) or RELATED_KEY not in meta:
        return result
    return {**result, "_meta": {key: meta[key] for key in meta if key != RELATED_KEY}}


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
