"""The A2A face, whatever transport a request came by: each operation in the form of 1.0.

A message makes a task, and a task is a running `Hub.call`. What was answered is stored before.
Knows no wire: requests come validated in the hub's own form, and errors are raised.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dragoman.a2a.config import HUB
from dragoman.a2a.protocol.dialects import operations
from dragoman.a2a.protocol.errors import (
    INVALID_PARAMS,
    PERMISSION_DENIED,
    PUSH_NOTIFICATION_NOT_SUPPORTED,
    RESOURCE_EXHAUSTED,
    TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND,
    UNSUPPORTED_OPERATION,
    A2aError,
)
from dragoman.a2a.server import routing
from dragoman.a2a.server.card_service import CardService
from dragoman.a2a.server.pagination import (
    find_page_start,
    limit_bytes,
    matches_filter,
    page_token_from_task,
)
from dragoman.a2a.server.push_delivery import PushNotifier
from dragoman.a2a.server.request_context import RequestContext
from dragoman.a2a.server.routing import MessageRouter
from dragoman.a2a.server.send_message import Sending
from dragoman.a2a.server.task import AgentTask
from dragoman.a2a.server.task_stream import TaskStream
from dragoman.core.access import WhyEnded
from dragoman.core.call import NOTHING
from dragoman.core.errors import NotFound
from dragoman.core.hub import Hub
from dragoman.core.ports import TASK_CANCEL, TASK_READ
from dragoman.core.principal import Principal
from dragoman.core.stored_tasks import StoredTasks
from dragoman.core.tasks import WAITS, Task
from dragoman.core.tool_filter import EVERYTHING

DIRECT_SECONDS = 0.02
"""How long one who does not want to wait does: an answer that is no task may come at once."""
PAGE = 50
PAGE_BYTES = 16 * 1024 * 1024
"""What the tasks of a page may take, unless it is one alone."""
MAX_STREAMS = 1_000
"""Of one caller."""
_MESSAGES = frozenset((operations.SEND, operations.STREAM))

Ask = Callable[[RequestContext, Mapping[str, Any]], "dict[str, Any] | Awaitable[dict[str, Any]]"]


class A2aServer:
    def __init__(
        self,
        hub: Hub,
        tasks: StoredTasks,
        target_agents: MessageRouter,
        cards: CardService,
        push: PushNotifier,
        stream_seconds: float,
    ) -> None:
        self._hub = hub
        self.tasks = tasks
        self.targets = target_agents
        self.cards = cards
        self._push = push
        self._stream_seconds = stream_seconds
        self._sending = Sending(hub, tasks, target_agents, self._find, self._set_push)
        self._streams: set[TaskStream] = set()
        self._following: Counter[Principal] = Counter()
        """How many of these each caller has."""
        self._ops: Mapping[str, Ask] = {
            operations.SEND: self.send,
            operations.GET: self.get,
            operations.LIST: self.list,
            operations.CANCEL: self.cancel,
            operations.PUSH_SET: self.push_set,
            operations.PUSH_GET: self.push_get,
            operations.PUSH_LIST: self.push_list,
            operations.PUSH_DELETE: self.push_delete,
            operations.CARD: self.extended_card,
        }

    def load(self) -> None:
        """Takes up the tasks of an earlier hub."""
        self._sending.load()
        self._push.load()

    def close(self) -> None:
        """Ends the streams, properly."""
        for stream in list(self._streams):
            stream.close()

    def end_principals(self, why_ended: WhyEnded) -> None:
        """Streams end with the last event of their tasks, which is that they were cancelled; their
        webhooks do not hear even that."""
        self._push.end_principals(why_ended)
        self.tasks.end_principals(why_ended)

    def answer(
        self, ctx: RequestContext, op: str, request: Mapping[str, Any]
    ) -> Awaitable[dict[str, Any]]:
        """One of the operations that have one answer. A message is under way when this returns, so
        that whoever is quick is done before anybody waits."""
        ctx = self._admitted(ctx, op, request)
        if op == operations.SEND:
            configuration = request.get("configuration", NOTHING)
            if configuration.get("taskPushNotificationConfig") is None:
                task, _ = self._sending.take(ctx, request, False)
                return self._sent(task, request, configuration)
        return self._answer(ctx, op, request)

    async def _answer(
        self, ctx: RequestContext, op: str, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        found = self._ops[op](ctx, request)
        answer = found if isinstance(found, dict) else await found
        if op != operations.GET:  # which waits for its own task alone
            self.tasks.flush()
        return answer

    def _admitted(self, ctx: RequestContext, op: str, request: Mapping[str, Any]) -> RequestContext:
        """The agent may be named as the tenant; what it demands of its callers is demanded here,
        or where it is known which agent a message is for."""
        tenant = request.get("tenant")
        if tenant:
            tenant = self.targets.resolve_slug(tenant)
            if ctx.agent is not None and ctx.agent != tenant:
                raise A2aError(INVALID_PARAMS, f'"{tenant[:100]}" is no tenant of this agent')
            ctx = RequestContext(
                ctx.principal, tenant, ctx.version, ctx.extensions, ctx.base, ctx.key,
                ctx.carried,
            )  # fmt: skip
        if op not in _MESSAGES:
            facts = self.targets.get_facts(ctx.agent)
            routing.check_agent_requirements(facts, ctx.extensions, op in operations.STREAMING)
        return ctx

    # --- sending -------------------------------------------------------------------------------

    async def send(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        """A message of whose task a webhook is told."""
        configuration = request["configuration"]
        push = configuration["taskPushNotificationConfig"]
        task, _ = await self._sending.take_telling(ctx, request, False, push)
        return await self._sent(task, request, configuration)

    async def _sent(
        self, task: AgentTask, request: Mapping[str, Any], configuration: Mapping[str, Any]
    ) -> dict[str, Any]:
        if configuration.get("returnImmediately"):
            await task.until(_settled, DIRECT_SECONDS)
        else:
            await task.until(_settled)
        if message := self._sending.unasked(task):
            chosen = {operations.TASK_ID: task.id} if operations.TASK_ID in request else {}
            return {"message": message, **chosen}
        shown = {"task": task.snapshot(configuration.get("historyLength"))}
        if self.tasks.unsaved > 1:  # others are about to be answered too: one save for all
            await asyncio.sleep(0)
        self.tasks.flush()
        return shown

    async def stream(self, ctx: RequestContext, request: Mapping[str, Any]) -> TaskStream:
        ctx = self._admitted(ctx, operations.STREAM, request)
        self._check_streams(ctx)
        configuration = request.get("configuration", NOTHING)
        push = configuration.get("taskPushNotificationConfig")
        if push is None:
            task, mark = self._sending.take(ctx, request, True)
        else:
            task, mark = await self._sending.take_telling(ctx, request, True, push)
        await task.until(
            lambda task: _settled(task) or len(task.entries) > mark + 1, DIRECT_SECONDS
        )
        if message := self._sending.unasked(task):
            return self._streaming(ctx, TaskStream.from_message(message))
        self.tasks.flush()  # what cannot be kept is refused, rather than a stream that breaks off
        history = configuration.get("historyLength")
        if history is None and task.turn > 1 and mark == task.said_at:
            # The answer alone: google-adk shows the last message of the agent in a task that has
            # nothing else to show, which would be the question that was just answered.
            history = 1
        first = {"task": task.snapshot(history, at=mark)}
        return self._streaming(ctx, TaskStream(task, mark, first, self._stream_seconds))

    def subscribe(
        self, ctx: RequestContext, request: Mapping[str, Any], last: int | None = None
    ) -> TaskStream:
        """`last` is the number of the last event that the client has."""
        ctx = self._admitted(ctx, operations.SUBSCRIBE, request)
        task = self._task(ctx, request["id"])
        facts = self.targets.get_facts(task.agent or HUB)
        routing.check_agent_requirements(facts, ctx.extensions, True)
        if last is not None and 0 <= last <= task.count:
            return self._streaming(ctx, TaskStream(task, last, None, self._stream_seconds))
        if task.finished:
            raise A2aError(
                UNSUPPORTED_OPERATION, f'task "{task.id}" is finished; get it with GetTask'
            )
        first = {"task": task.snapshot()}
        return self._streaming(ctx, TaskStream(task, task.count, first, self._stream_seconds))

    def _streaming(self, ctx: RequestContext, stream: TaskStream) -> TaskStream:
        caller = ctx.principal
        try:
            self._check_streams(ctx)
        except A2aError:
            stream.close()
            raise
        self._following[caller] += 1
        self._streams.add(stream)

        def over(ended: TaskStream) -> None:
            if ended in self._streams:
                self._streams.discard(ended)
                self._following[caller] -= 1
                if not self._following[caller]:
                    del self._following[caller]

        stream.on_close = over
        return stream

    def _check_streams(self, ctx: RequestContext) -> None:
        if self._following[ctx.principal] >= MAX_STREAMS:
            raise A2aError(
                RESOURCE_EXHAUSTED, f"you follow {MAX_STREAMS} tasks at once; end a stream first"
            )

    # --- tasks ---------------------------------------------------------------------------------

    def get(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self._task(ctx, request["id"])
        self.tasks.flush(task)
        return task.snapshot(request.get("historyLength"))

    def list(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        size = request.get("pageSize", PAGE)
        found = [task for task in self._visible(ctx) if matches_filter(task, request)]
        start = find_page_start(found, request.get("pageToken"))
        page = limit_bytes(found[start : start + size], PAGE_BYTES)
        more = len(found) > start + len(page)
        history = request.get("historyLength")
        whole = bool(request.get("includeArtifacts"))
        return {
            "tasks": [task.snapshot(history, whole) for task in page],
            "nextPageToken": page_token_from_task(page[-1]) if more else "",
            "pageSize": size,
            "totalSize": len(found),
        }

    async def cancel(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self._task(ctx, request["id"])
        if not self._permits(ctx, TASK_CANCEL, task):
            raise A2aError(PERMISSION_DENIED, f'no policy permits you to cancel task "{task.id}"')
        if not task.cancel():
            raise A2aError(
                TASK_NOT_CANCELABLE, f'task "{task.id}" is {task.status["state"]} already'
            )
        return task.snapshot()

    def _task(self, ctx: RequestContext, id: str) -> AgentTask:
        task = self._find(ctx, id)
        if task is None:
            raise A2aError(TASK_NOT_FOUND, f'task "{id[:100]}" was not found')
        return task

    def _find(self, ctx: RequestContext, id: str) -> AgentTask | None:
        try:
            task = self.tasks.get(ctx.principal, id)
        except NotFound:
            return None
        assert isinstance(task, AgentTask)
        if not _belongs(task, ctx.agent) or not self._permits(ctx, TASK_READ, task):
            return None
        return task

    def _permits(self, ctx: RequestContext, action: str, task: AgentTask) -> bool:
        return self._hub.can_act_on_task(ctx.principal, action, task.tool, EVERYTHING)

    def find_dialect(self, principal: Principal, id: Any) -> str:
        """The dialect of a task, for requests that do not say theirs; empty for no such task."""
        try:
            task = self.tasks.get(principal, id) if isinstance(id, str) else None
        except NotFound:
            return ""
        return task.version if isinstance(task, AgentTask) else ""

    def _visible(self, ctx: RequestContext) -> Any:
        return (
            task
            for task in self.tasks.of(ctx.principal)
            if isinstance(task, AgentTask)
            and _belongs(task, ctx.agent)
            and self._permits(ctx, TASK_READ, task)
        )

    # --- push ----------------------------------------------------------------------------------

    async def push_set(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self._task_with_push(ctx, request)
        return await self._push.set(task, request, ctx.version)

    async def _set_push(
        self, ctx: RequestContext, task: AgentTask, config: Mapping[str, Any], after: int
    ) -> None:
        self._gate_push(ctx, task)
        await self._push.set(task, config, ctx.version, after=after)

    def push_get(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._push.get(self._task_with_push(ctx, request), request.get("id", ""))

    def push_list(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self._task_with_push(ctx, request)
        return self._push.list(task, request.get("pageSize", PAGE), request.get("pageToken", ""))

    def push_delete(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        self._push.delete(self._task_with_push(ctx, request), request["id"])
        return {}

    def _task_with_push(self, ctx: RequestContext, request: Mapping[str, Any]) -> AgentTask:
        self._gate_push(ctx, None)
        task = self._task(ctx, request["taskId"])
        self._gate_push(ctx, task)  # of another agent, by the path of the hub's
        return task

    def _gate_push(self, ctx: RequestContext, task: AgentTask | None) -> None:
        facts = self.targets.get_facts(ctx.agent if task is None else task.agent or HUB)
        if not facts.push:
            raise A2aError(
                PUSH_NOTIFICATION_NOT_SUPPORTED,
                f'tasks of agent "{facts.name}" are not told to webhooks',
            )

    # --- cards ---------------------------------------------------------------------------------

    def extended_card(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        facts = self.targets.get_facts(ctx.agent)
        if not self.cards.has_extended_card(facts):
            raise A2aError(
                UNSUPPORTED_OPERATION, f'agent "{facts.name}" has no other card than its public one'
            )
        if not self.targets.can_discover_agent(ctx.principal, facts):
            raise A2aError(PERMISSION_DENIED, f'no policy permits you to look at "{facts.name}"')
        return self.cards.build_card(facts, ctx.principal, ctx.base)


def merge_metadata(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The metadata of a message and of its request, where a trace may stand; the message's counts
    more."""
    message, beside = request.get("message"), request.get("metadata")
    said = message.get("metadata") if message is not None else None
    return {**beside, **said} if beside and said else beside or said


def _settled(task: Task) -> bool:
    return task.finished or task.state in WAITS


def _belongs(task: AgentTask, agent: str | None) -> bool:
    return agent is None or task.agent == ("" if agent == HUB else agent)
