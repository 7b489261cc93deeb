"""Tasks as MCP clients see them, in both forms.

2026-07-28 has an extension (SEP-2663): a client that declares it may get a task instead of a
result. The hub does so for a call that the upstream runs as a task, and for one that takes long. In
2025-11-25 the client requests a task with the call, of any tool. `core.tasks` runs both.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeAlias

from dragoman.core.background import resolve
from dragoman.core.call import (
    ABSENT,
    NOTHING,
    Progress,
    Result,
    Update,
    Updates,
    discard_update,
)
from dragoman.core.cluster import SINGLE_HUB, OwnedElsewhere, Ownership, find_mark
from dragoman.core.errors import (
    AuthorizationError,
    HubError,
    InvalidInput,
    NotFound,
    Overloaded,
    ShuttingDown,
    WorkFailed,
)
from dragoman.core.ports import TASK_CANCEL, TASK_READ, Handover, TaskChange
from dragoman.core.task_registry import TaskLimits, TaskRegistry, VolatileTaskStore, task_not_found
from dragoman.core.tasks import (
    CANCELLED,
    COMPLETED,
    ENDS,
    FAILED,
    INPUT_REQUIRED,
    WORKING,
    Outcome,
    Task,
    TaskRecord,
    render_error,
)
from dragoman.mcp.protocol.errors import (
    MISSING_CAPABILITY,
    adapt_error,
    encode_error,
    render_error_result,
)
from dragoman.mcp.protocol.notifications import PROGRESS
from dragoman.mcp.protocol.revisions import (
    RELATED_KEY,
    TASKS,
    Revision,
    shape_members,
    shape_result,
)
from dragoman.mcp.server import client_questions
from dragoman.mcp.server.client_state import ClientState, McpRequest, Push
from dragoman.mcp.server.progress import build_progress
from dragoman.wire import rpc
from dragoman.wire.json import decode

METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "tasks/list"})
POLL_MS = 1_000
PAGE = 50
MAX_LISTENED = 100
MAX_TTL_MS = 10**12
MAX_WAITING = 32
"""Requests that wait for the end of one task; with one more the oldest is answered: up to
2025-11-25 a client that disconnects has not cancelled, and may ask again."""
INTERRUPTED = (
    "it was interrupted: the hub that made the call has ended, and whether it has taken effect is "
    "unknown"
)
NOT_KEPT = "it has completed, and its result was lost with its hub: it was too large to be kept"
RETRY_SECONDS = 1.0
"""How long to wait before a notification is sent again to a client that did not read it."""

Show = Callable[[Result, Revision], dict[str, Any]]
"""Renders a result of the tool for a revision."""


class ToolTaskRecord(TaskRecord):
    """A call of a tool by an MCP client."""

    __slots__ = ("features", "show", "tool", "updates")

    keeps_result = True

    def __init__(
        self, tool: str, show: Show, features: Mapping[str, Any], updates: Updates = discard_update
    ) -> None:
        super().__init__()
        self.header = {"tool": tool}
        self.tool = tool
        """The name that the client called."""
        self.show = show
        self.features = features
        """What its client can be asked."""
        self.updates = updates
        """Where the client gets the updates of the call, until the call becomes a task."""

    def take_update(self, task: Task[Any], update: Update) -> bool:
        is_news = super().take_update(task, update)
        self.updates(update)
        return is_news

    def take_result(self, task: Task[Any], result: Result) -> str:
        kept = {"content": result.content, "failed": result.failed, "extra": result.extra}
        if result.structured is not ABSENT:
            kept["structured"] = result.structured
        self.header = {"tool": self.tool, "result": kept}
        return super().take_result(task, result)

    def take_error(self, task: Task[Any], error: BaseException) -> str:
        self.header = {"tool": self.tool, "error": render_error(error)}
        return super().take_error(task, error)


ToolTask: TypeAlias = Task[ToolTaskRecord]
ToolTaskRegistry: TypeAlias = TaskRegistry[ToolTaskRecord]
Notify: TypeAlias = Callable[[ToolTask], bool]
"""Sends the state of a task. Returns False if it could not be sent."""


def declares_tasks(capabilities: Any) -> bool:
    """Whether the capabilities of a request declare the tasks extension."""
    extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else None
    return isinstance(extensions, dict) and isinstance(extensions.get(TASKS), dict)


class HandedTaskStore(VolatileTaskStore):
    """Leaves the tasks to the heir of this hub, where there are several."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def save(self, changes: Sequence[TaskChange]) -> list[tuple[int, int]]:
        for change in changes:
            self._handover.keep_task(change)
        return super().save(changes)


def build_task_registry(
    count: int = 100,
    count_per_owner: int = 100,
    ttl: float = 7_200.0,
    handover: Handover | None = None,
) -> ToolTaskRegistry:
    """Tasks that end with the hub."""
    # Only the ttl ends them, not the time without an answer.
    limits = TaskLimits(count, count_per_owner, owner_share=1.0, ttl=ttl, idle_seconds=math.inf)
    store = HandedTaskStore(handover) if handover is not None else VolatileTaskStore()
    return TaskRegistry(store, limits)


FindShow = Callable[[ClientState, str], Show]
"""Finds what renders results of the tool that a client calls by that name."""
Permits = Callable[[ClientState, str, str], bool]
"""Whether policies permit the client the action on its own task of the tool of that name."""


class TasksElsewhere(Protocol):
    async def list_tasks(self, client: ClientState) -> list[dict[str, Any]]:
        """Lists the tasks of the client's principal at other hubs, as 2025-11-25 shows them."""

    async def follow_tasks(
        self, marks: Mapping[str, str], id: rpc.Id, params: Mapping[str, Any], client: ClientState
    ) -> Sequence[TasksFollowed]:
        """Follows tasks of other hubs, by their ids and the marks in these, for the request to
        listen that has that id and those parameters."""


class TasksFollowed(Protocol):
    """Tasks of another hub."""

    ids: list[str]

    def begin(self, push: Push) -> None: ...

    def stop(self) -> None: ...


class McpTasks:
    def __init__(
        self,
        tasks: ToolTaskRegistry,
        after: float,
        question_seconds: float,
        permits: Permits,
        ownership: Ownership = SINGLE_HUB,
        handover: Handover | None = None,
        find_show: FindShow | None = None,
    ) -> None:
        """`handover` has the tasks of hubs that have ended, and `find_show` what renders their
        results, where there are several hubs."""
        self._tasks = tasks
        self._handover, self._find_show = handover, find_show
        if handover is not None:
            tasks.on_remove(self._drop_kept)
        self.ownership = ownership
        self.elsewhere: TasksElsewhere | None = None
        """The tasks of other hubs; None for a single hub."""
        self._permits = permits
        self._after = after
        """Seconds until a call becomes a task."""
        self._question_seconds = question_seconds
        self._asking: set[str] = set()
        self._waiting: dict[str, dict[asyncio.Future[bool], None]] = {}
        """The requests that wait for the end of each task, the oldest first."""

    # --- creating --------------------------------------------------------------------------

    async def run_call(
        self,
        task: ToolTask,
        revision: Revision,
        answers: Mapping[str, Any] | None,
        handle: str | None,
    ) -> Result | dict[str, Any]:
        """Returns the result of a call by a client that declares the extension, or the task that it
        became. The answers and the handle are those of the request."""
        task.start(answers, handle)
        try:
            await task.until(lambda task: task.lasting or task.state != WORKING, self._after)
            kept = task.state == WORKING
            if kept:
                try:
                    self._tasks.insert(task)
                except (Overloaded, ShuttingDown):  # no room: the request waits
                    kept = False
                    await task.until(lambda task: task.state != WORKING)
        except asyncio.CancelledError as error:
            task.cancel(*error.args)
            raise
        if kept:
            await self._wait_until_kept(task)
            task.record.updates = discard_update
            return {**shape_members(_render_modern(task), revision), "resultType": "task"}
        if task.error is not None:
            raise task.error
        result = task.result or task.asked
        if result is None:
            raise ShuttingDown("the call was stopped: the hub is shutting down")
        return result

    async def start_requested(self, request: McpRequest, task: ToolTask) -> bytes:
        """2025-11-25: starts a call that the client requests as a task."""
        id, params, client = request.id, request.params, request.client
        wanted = params.get("task")
        ttl = wanted.get("ttl") if isinstance(wanted, dict) else None
        if isinstance(ttl, bool) or not isinstance(ttl, int | float | None):
            problem = '"ttl" of a task is a number of milliseconds'
            return rpc.encode_error(id, rpc.INVALID_PARAMS, problem)
        try:
            self._tasks.insert(task, None if ttl is None else min(ttl, MAX_TTL_MS) / 1000)
        except (Overloaded, ShuttingDown) as error:
            return encode_error(id, error, request.revision)
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        if isinstance(token, str | int):
            task.record.updates = _send_progress_to(request, token, task.id)
        sent = task.state

        def notify() -> None:
            nonlocal sent
            if task.state != sent:
                sent = task.state
                status = _render_legacy(task)
                client.notify(rpc.encode_notification("notifications/tasks/status", status))

        task.watch(notify)
        created = _render_legacy(task)
        task.start()
        await self._wait_until_kept(task)
        return rpc.encode_result(id, {"task": created})

    async def _wait_until_kept(self, task: ToolTask) -> None:
        """Before a client hears of a state, the heir of this hub can know it."""
        if self._handover is not None:
            self._tasks.flush(task)
            await self._handover.wait_for_task(task.id)

    # --- tasks/... -----------------------------------------------------------------------------

    def handle(
        self, request: McpRequest, features: Mapping[str, Any], is_restored: bool = False
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """Handles `tasks/...`. `features` are the capabilities that the client declared."""
        id, method, params, client = request.id, request.method, request.params, request.client
        revision = request.revision
        if revision.has_task_extension and not declares_tasks(features):
            return missing_extension_error(id)
        if method == "tasks/list":
            return self._list(id, params, client)
        try:
            task = self.find_task(client, params.get("taskId"))
        except HubError as error:
            return self._handle_missing(request, features, error, is_restored)
        if method == "tasks/result":
            return self._result(request, task)
        if method == "tasks/get":
            if task.finished and self._handover is not None:
                return self._get_kept(request, features, task)
            return _encode_task(request, features, task)
        if method == "tasks/update":
            responses = {"inputResponses": params.get("inputResponses")}
            parsed = client_questions.parse_answers(responses)
            if isinstance(parsed, str):
                return rpc.encode_error(id, rpc.INVALID_PARAMS, parsed)
            task.answer(parsed[0])
        elif not self._permits(client, TASK_CANCEL, task.record.tool):
            refused = AuthorizationError(f'no policy permits you to cancel task "{task.id}"')
            return encode_error(id, refused, revision)
        elif not task.cancel() and revision.has_task_requests:
            problem = f'the task cannot be cancelled: it is "{_render_legacy(task)["status"]}"'
            return rpc.encode_error(id, rpc.INVALID_PARAMS, problem)
        elif revision.has_task_requests:
            return rpc.encode_result(id, _render_legacy(task))
        return rpc.encode_result(id, shape_members({}, revision))

    # --- tasks of hubs that have ended -----------------------------------------------------------

    def _is_left(self, id: Any) -> bool:
        return (
            self._handover is not None
            and isinstance(id, str)
            and find_mark(id) != self.ownership.mark
        )

    def _handle_missing(
        self, request: McpRequest, features: Mapping[str, Any], error: HubError, is_restored: bool
    ) -> bytes | Coroutine[Any, Any, bytes]:
        if not is_restored and self._is_left(request.params.get("taskId")):
            return self._handle_left(request, features)
        return encode_error(request.id, error, request.revision)

    async def _handle_left(self, request: McpRequest, features: Mapping[str, Any]) -> bytes:
        try:
            await self._restore(request.client, request.params["taskId"])
        except HubError as error:
            return encode_error(request.id, error, request.revision)
        answer = self.handle(request, features, is_restored=True)
        return answer if isinstance(answer, bytes) else await answer

    async def _get_kept(
        self, request: McpRequest, features: Mapping[str, Any], task: ToolTask
    ) -> bytes:
        await self._wait_until_kept(task)
        return _encode_task(request, features, task)

    async def _restore(self, client: ClientState, id: str) -> None:
        """Takes over a task: one that has not ended has failed with its hub."""
        assert self._handover is not None and self._find_show is not None
        kept = await self._handover.load_task(client.principal, id)
        tool = kept.about.get("tool") if kept is not None else None
        if kept is None or not isinstance(tool, str):
            raise task_not_found(id)
        record = ToolTaskRecord(tool, self._find_show(client, tool), NOTHING)
        task: ToolTask = Task(client.principal, _never_run, record, id, kept.state)
        task.created, task.updated = kept.created, kept.updated
        task.finished, record.header = True, dict(kept.about)
        result = kept.about.get("result")
        if kept.state not in ENDS:
            task.state, task.error = FAILED, WorkFailed(INTERRUPTED)
        elif kept.state == COMPLETED and isinstance(result, dict):
            task.result = Result(**result)
        elif kept.state == COMPLETED:
            task.state, task.error = FAILED, WorkFailed(NOT_KEPT)
        elif kept.state == FAILED:
            task.error = WorkFailed(str(kept.about.get("error", "")))
        if task.error is not None:
            task.message = str(task.error)
        with suppress(InvalidInput):  # another request has restored it
            self._tasks.insert(task)

    def _drop_kept(self, task: ToolTask) -> None:
        """Not the tasks that belong to another hub by now."""
        if self._handover is not None and find_mark(task.id) == self.ownership.mark:
            self._handover.drop_task(task.id)

    def find_task(self, client: ClientState, id: Any) -> ToolTask:
        try:
            task = self._tasks.get(client.principal, id)
        except NotFound:
            self.ownership.check(find_mark(str(id)))
            raise
        if not self._permits(client, TASK_READ, task.record.tool):
            raise task_not_found(task.id)
        return task

    async def _list(self, id: rpc.Id, params: Mapping[str, Any], client: ClientState) -> bytes:
        owned = [
            task
            for task in self._tasks.list_owned(client.principal)
            if self._permits(client, TASK_READ, task.record.tool)
        ]
        owned.sort(key=lambda task: (task.created, task.id))
        tasks = [_render_legacy(task) for task in owned]
        if client.is_of_another_hub:  # which joins the lists, and has pages
            return rpc.encode_result(id, {"tasks": tasks})
        if self.elsewhere is not None:
            tasks += await self.elsewhere.list_tasks(client)
            # Those of one hub stay in their order, which is finer than the time that is shown.
            tasks.sort(key=lambda task: (task["createdAt"], find_mark(task["taskId"])))
        start, cursor = 0, params.get("cursor")
        if cursor is not None:
            places = [place for place, task in enumerate(tasks) if task["taskId"] == cursor]
            if not places:
                problem = "invalid cursor: use the nextCursor of the previous page, if not expired"
                return rpc.encode_error(id, rpc.INVALID_PARAMS, problem)
            start = places[0]
        page: dict[str, Any] = {"tasks": tasks[start : start + PAGE]}
        if len(tasks) > start + PAGE:
            page["nextCursor"] = tasks[start + PAGE]["taskId"]
        return rpc.encode_result(id, page)

    async def _result(self, request: McpRequest, task: ToolTask) -> bytes:
        """Waits for the end, and meanwhile puts the questions of the task to the client."""
        id, client, revision, push = request.id, request.client, request.revision, request.push
        while not task.finished:
            asks = task.state == INPUT_REQUIRED and task.id not in self._asking
            if asks and push is not None and client.client:
                await self._ask(task, client, revision, push)
            elif not await self._wait_for_change(task):
                many = Overloaded(f"{MAX_WAITING} newer requests wait for the end of this task")
                return encode_error(id, many, revision)
        await self._wait_until_kept(task)
        member, value = render_outcome(task, revision)
        if member == "error":
            return rpc.encode_error(id, value["code"], value["message"], value.get("data"))
        return rpc.encode_result(id, _relate_to_task(task, value))

    async def _ask(
        self, task: ToolTask, client: ClientState, revision: Revision, push: Push
    ) -> None:
        questions = {
            name: replace(question, body=_relate_to_task(task, question.body))
            for name, question in task.questions.items()
        }
        self._asking.add(task.id)
        try:
            answers, _ = await client_questions.ask(
                questions, client, revision, push, self._question_seconds
            )
        except HubError as error:
            task.fail(error)
        else:
            task.answer(answers)
        finally:
            self._asking.discard(task.id)
            for turn in self._waiting.get(task.id, ()):  # another request may ask now
                resolve(turn, True)

    async def _wait_for_change(self, task: ToolTask) -> bool:
        """Waits until the task has changed; False if newer requests wait instead."""
        state = task.state
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if task.state != state:
                resolve(turn, True)

        waiting = self._waiting.setdefault(task.id, {})
        if len(waiting) >= MAX_WAITING:
            oldest = next(iter(waiting))
            del waiting[oldest]
            resolve(oldest, False)
        waiting[turn] = None
        stop = task.watch(look)
        try:
            return await turn
        finally:
            stop()
            waiting.pop(turn, None)
            if not waiting and self._waiting.get(task.id) is waiting:
                del self._waiting[task.id]

    # --- subscriptions/listen --------------------------------------------------------------------

    async def subscribe(
        self, id: rpc.Id, params: Mapping[str, Any], client: ClientState, notify: Notify, push: Push
    ) -> TaskSubscription:
        """Follows the tasks of this client that a request to listen names; `id` and `params` are
        those of the request."""
        found: list[ToolTask] = []
        elsewhere: dict[str, str] = {}
        for task_id in dict.fromkeys(params["notifications"]["taskIds"]):
            try:
                found.append(self.find_task(client, task_id))
            except NotFound:
                pass
            except OwnedElsewhere as other:
                elsewhere[task_id] = other.mark
        followed: Sequence[TasksFollowed] = ()
        if elsewhere and self.elsewhere is not None and not client.is_of_another_hub:
            followed = await self.elsewhere.follow_tasks(elsewhere, id, params, client)
        return TaskSubscription(found, notify, followed, push)


async def _never_run(*_: Any) -> Outcome:
    raise AssertionError("the call of a task that has ended")


class TaskSubscription:
    """The tasks that one `subscriptions/listen` follows: each is sent at the start and whenever it
    has changed. A client that does not read gets the state at a later time."""

    def __init__(
        self, tasks: list[ToolTask], notify: Notify, followed: Sequence[TasksFollowed], push: Push
    ) -> None:
        """`followed` are those of other hubs, whose notifications are pushed as they come."""
        self._tasks = tasks
        self._notify = notify
        self._followed = followed
        self._push = push
        self._sent: dict[str, tuple[str, ...]] = {}
        self._stops: list[Callable[[], None]] = []
        self._retrying: asyncio.TimerHandle | None = None

    @property
    def ids(self) -> list[str]:
        return [task.id for task in self._tasks] + [
            id for followed in self._followed for id in followed.ids
        ]

    def begin(self) -> None:
        for followed in self._followed:
            followed.begin(self._push)
        for task in self._tasks:
            self._stops.append(task.watch(partial(self._look, task)))
            self._look(task)

    def stop(self) -> None:
        for followed in self._followed:
            followed.stop()
        for stop in self._stops:
            stop()
        if self._retrying is not None:
            self._retrying.cancel()

    def _look(self, task: ToolTask) -> None:
        now = task.state, *task.questions
        if self._sent.get(task.id) == now:
            return
        if self._notify(task):
            self._sent[task.id] = now
        elif self._retrying is None:
            loop = asyncio.get_running_loop()
            self._retrying = loop.call_later(RETRY_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._retrying = None
        for task in self._tasks:
            self._look(task)


def find_task_ids_error(wanted: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with the task ids of a `subscriptions/listen`; None if nothing is."""
    ids = wanted.get("taskIds", [])
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        return '"taskIds" must be a list of ids'
    return f'"taskIds" may hold {MAX_LISTENED} ids' if len(ids) > MAX_LISTENED else None


def missing_extension_error(id: rpc.Id) -> bytes:
    """For a client that does not declare the tasks extension."""
    problem = f'this needs the extension "{TASKS}", which the request does not declare'
    required: dict[str, Any] = {"extensions": {TASKS: {}}}
    return rpc.encode_error(id, MISSING_CAPABILITY, problem, {"requiredCapabilities": required})


def _relate_to_task(task: ToolTask, body: Mapping[str, Any]) -> dict[str, Any]:
    meta = body.get("_meta")
    known = meta if isinstance(meta, dict) else {}
    return {**body, "_meta": {**known, RELATED_KEY: {"taskId": task.id}}}


def _send_progress_to(request: McpRequest, token: str | int, id: str) -> Updates:
    """2025-11-25: the progress token of the request is valid as long as the task."""

    def send(update: Update) -> None:
        if isinstance(update, Progress):
            params = build_progress(token, update, request.revision)
            params["_meta"] = {RELATED_KEY: {"taskId": id}}
            request.client.notify(rpc.encode_notification(PROGRESS, params))

    return send


# --- rendering -----------------------------------------------------------------------------------


def render_outcome(task: ToolTask, revision: Revision) -> tuple[str, dict[str, Any]]:
    """`result` or `error` of a finished task, with what the call itself would have returned."""
    if task.state == COMPLETED and task.result is not None:
        return "result", task.record.show(task.result, revision)
    if task.state == CANCELLED:
        return "error", {"code": rpc.INTERNAL_ERROR, "message": "the task was cancelled"}
    if not isinstance(task.error, HubError):
        problem = "the call failed inside the hub; see its log"
        return "error", {"code": rpc.INTERNAL_ERROR, "message": problem}
    error = adapt_error(task.error, revision, task.record.features)
    shown = render_error_result(error, revision)
    if shown is not None:
        return "result", shape_result(shown, revision)
    return "error", decode(encode_error(0, error, revision))["error"]


def _render_members(task: ToolTask, ttl: str, poll: str, message: str) -> dict[str, Any]:
    """The members that every response about a task has; two are named as the revision has them."""
    members: dict[str, Any] = {
        "taskId": task.id,
        "status": task.state,
        "createdAt": _format_time(task.created),
        "lastUpdatedAt": _format_time(task.updated),
        ttl: round(task.ttl * 1000),
        poll: POLL_MS,
    }
    if message:
        members["statusMessage"] = message
    return members


def _render_modern(task: ToolTask) -> dict[str, Any]:
    """2026-07-28."""
    return _render_members(task, "ttlMs", "pollIntervalMs", task.message)


def render_detailed(
    task: ToolTask, revision: Revision, features: Mapping[str, Any]
) -> dict[str, Any]:
    """2026-07-28: the task with its outcome or its questions."""
    members = _render_modern(task)
    if task.state == INPUT_REQUIRED:
        asked = client_questions.render_questions(task.questions, None, revision, features)
        members["inputRequests"] = asked["inputRequests"]
    elif task.finished and task.state != CANCELLED:
        member, value = render_outcome(task, revision)
        # The error of a tool is its result: only a JSON-RPC error is a failed task.
        members["status"] = "completed" if member == "result" else "failed"
        members[member] = value
    return members


def _encode_task(request: McpRequest, features: Mapping[str, Any], task: ToolTask) -> bytes:
    revision = request.revision
    if revision.has_task_requests:
        return rpc.encode_result(request.id, _render_legacy(task))
    detailed = render_detailed(task, revision, features)
    return rpc.encode_result(request.id, shape_members(detailed, revision))


def _render_legacy(task: ToolTask) -> dict[str, Any]:
    """2025-11-25: a tool that reports an error is a failed task."""
    failed = task.result if task.result is not None and task.result.failed else None
    message = task.message or (_find_first_text(failed) if failed is not None else "")
    members = _render_members(task, "ttl", "pollInterval", message)
    return members if failed is None else {**members, "status": "failed"}


def _find_first_text(result: Result) -> str:
    for block in result.content:
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            return str(block["text"])[:300]
    return ""


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
