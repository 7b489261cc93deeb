"""The A2A server behind every transport: each operation in the form of 1.0.

A message starts a task, and a task runs `Hub.call`. What a response tells is stored before it is
sent. Knows no wire format: requests come validated in the hub's own form, and errors are raised.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from dragoman.a2a.config import HUB
from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.dialects import operations
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.protocol.validation import seconds_from_timestamp
from dragoman.a2a.server import routing
from dragoman.a2a.server.card_service import CardService
from dragoman.a2a.server.push_delivery import PushNotifier
from dragoman.a2a.server.request_context import RequestContext
from dragoman.a2a.server.routing import MessageRouter
from dragoman.a2a.server.send_message import MessageSender, Sent
from dragoman.a2a.server.task import STATES, A2aTask, A2aTaskRegistry, render_task
from dragoman.a2a.server.task_access import TaskAccess
from dragoman.a2a.server.task_stream import TaskStream
from dragoman.core.access import WhyEnded, build_missing_scope, require_scope
from dragoman.core.call import NOTHING
from dragoman.core.cluster import OwnedElsewhere, take_prepayment
from dragoman.core.errors import StorageFailed
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import REQUEST
from dragoman.core.scopes import CALL
from dragoman.core.structs import replace
from dragoman.core.task_registry import TAKEN_OVER
from dragoman.core.tasks import WAITS, is_settled

DIRECT_SECONDS = 0.02
"""How long a client waits that does not want to: a direct reply may come at once."""
PAGE = 50
PAGE_BYTES = 16 * 1024 * 1024
"""What the tasks of a page may take, unless it is a single one."""
FREE = frozenset({operations.CANCEL})
"""What is not charged: requests that end something must not be refused."""
MAX_STREAMS = 1_000
"""Of one principal."""

Operation = Callable[
    [RequestContext, Mapping[str, Any]], "dict[str, Any] | Awaitable[dict[str, Any]]"
]


class A2aServer:
    def __init__(
        self,
        hub: Hub,
        tasks: A2aTaskRegistry,
        router: MessageRouter,
        cards: CardService,
        push: PushNotifier,
        stream_seconds: float,
    ) -> None:
        self.tasks = tasks
        self.router = router
        self.cards = cards
        self.access = TaskAccess(hub, tasks, router)
        self._limiter = hub.limiter
        self._push = push
        self._stream_seconds = stream_seconds
        self._sender = MessageSender(hub, tasks, router, self.access, push)
        self._streams: set[TaskStream] = set()
        self._stream_counts: Counter[Principal] = Counter()
        self._operations: Mapping[str, Operation] = {
            operations.GET: self.get_task,
            operations.LIST: self.list_tasks,
            operations.CANCEL: self.cancel_task,
            operations.PUSH_SET: self.set_push,
            operations.PUSH_GET: self.get_push,
            operations.PUSH_LIST: self.list_push,
            operations.PUSH_DELETE: self.delete_push,
            operations.CARD: self.get_extended_card,
        }

    def load(self) -> None:
        """Loads the tasks and webhooks of an earlier hub."""
        self._sender.load()
        self._push.load()

    async def take_over(self, hub: str) -> None:
        """Takes over the tasks and webhooks of another hub that has ended."""
        await self._sender.take_over(hub)
        self._push.load()

    def find_left(self, hubs: Sequence[str]) -> set[str]:
        """Finds those of the hubs, which have ended, that still own tasks."""
        return self.tasks.find_left(hubs)

    def abandon(self, hub: str) -> None:
        """Other hubs own all tasks of this one, which has another id from now on."""
        self.close()
        self.tasks.abandon(hub)

    def close(self, *, is_early: bool = False) -> None:
        """Ends the streams, properly; if it is early, those of tasks that are not running."""
        for stream in list(self._streams):
            if not (is_early and stream.is_running):
                stream.close()

    def end_principals(self, why_ended: WhyEnded) -> None:
        """Streams end with the last event of their tasks, which is that they were cancelled; their
        webhooks do not get even that."""
        self._push.end_principals(why_ended)
        self.tasks.end_principals(why_ended)

    def answer(
        self, ctx: RequestContext, op: str, request: Mapping[str, Any]
    ) -> Awaitable[dict[str, Any]]:
        """Runs an operation that has one response. The call of a message has started when this
        returns, so that a quick one has ended before the response is awaited."""
        if "tenant" in request:
            ctx = self._resolve_tenant(ctx, request["tenant"])
        if CALL not in ctx.principal.rights and op != operations.CARD:  # messages, tasks, webhooks
            raise build_missing_scope(ctx.principal, CALL, op)
        if op == operations.SEND:
            return self._answer_message(request, self._sender.send(ctx, request, False))
        if op not in FREE and not take_prepayment():
            charged = self._limiter.charge(ctx.principal, REQUEST, op)
            if charged is not None:
                return self._answer_charged(charged, ctx, op, request)
        self._check_requirements(ctx, op)
        return self._answer(ctx, op, request)

    async def _answer_charged(
        self, charged: Awaitable[None], ctx: RequestContext, op: str, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        await charged
        self._check_requirements(ctx, op)
        return await self._answer(ctx, op, request)

    async def _answer(
        self, ctx: RequestContext, op: str, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        try:
            found = self._operations[op](ctx, request)
            answer = found if isinstance(found, dict) else await found
        except OwnedElsewhere as other:
            other.is_charged = op not in FREE
            raise
        if op != operations.GET:  # which has stored its own task
            self.tasks.flush()
        return answer

    def _resolve_tenant(self, ctx: RequestContext, tenant: str) -> RequestContext:
        """A request may name its agent as the tenant."""
        if not tenant:
            return ctx
        agent = self.router.resolve_slug(tenant)
        if ctx.agent is not None and self.router.resolve_slug(ctx.agent) != agent:
            raise A2aError(errors.INVALID_PARAMS, f'"{agent[:100]}" is not a tenant of this agent')
        return replace(ctx, agent=agent)

    def _check_requirements(self, ctx: RequestContext, op: str) -> None:
        """What an agent requires of its callers; for a message, `MessageSender` checks it when it
        is known which agent the message is for."""
        is_streamed = op in operations.STREAMING
        if ctx.agent is None and not is_streamed and not self.router.requires_extensions():
            return  # nothing has to be known of the default agent: clients read tasks often
        facts = self.router.get_facts(ctx.agent, ctx.principal)
        routing.check_agent_requirements(facts, ctx.extensions, is_streamed)

    # --- messages ------------------------------------------------------------------------------

    async def _answer_message(
        self, request: Mapping[str, Any], sent: Sent | Awaitable[Sent]
    ) -> dict[str, Any]:
        task, _ = sent if isinstance(sent, tuple) else await sent
        configuration = request.get("configuration", NOTHING)
        if configuration.get("returnImmediately"):
            await task.until(is_settled, DIRECT_SECONDS)
        elif not task.finished and task.state not in WAITS:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            task.waiters.append(waiter)
            try:
                await waiter
            finally:
                task.waiters.remove(waiter)
        if task.error is not None:
            _refuse_if_abandoned(task)
        if message := self._take_direct_reply(task):
            chosen = {operations.TASK_ID: task.id} if operations.TASK_ID in request else {}
            return {"message": message, **chosen}
        shown = {"task": render_task(task, configuration.get("historyLength"))}
        if unsaved := self.tasks.unsaved:
            if unsaved > 1:  # others are about to be answered too: one save for all
                await asyncio.sleep(0)
                _refuse_if_abandoned(task)
            self._store_begun()
        return shown

    def _store_begun(self) -> None:
        """Stores what has begun. Clients send again what is unavailable; this is not."""
        try:
            self.tasks.flush()
        except StorageFailed as error:
            raise A2aError(
                errors.INTERNAL,
                f"the message was taken, and its task cannot be stored: {error}",
                metadata={"kind": error.kind},
            ) from error

    def _take_direct_reply(self, task: A2aTask) -> Mapping[str, Any] | None:
        if task.error is None and (task.result is None or not task.result.direct):
            return None
        return self._sender.take_direct_reply(task)

    async def stream(self, ctx: RequestContext, request: Mapping[str, Any]) -> TaskStream:
        ctx = self._resolve_tenant(ctx, request.get("tenant", ""))
        require_scope(ctx.principal, CALL, operations.STREAM)
        self._check_streams(ctx)
        sent = self._sender.send(ctx, request, True)
        task, mark = sent if isinstance(sent, tuple) else await sent
        record = task.record
        await task.until(
            lambda task: is_settled(task) or len(record.entries) > mark + 1, DIRECT_SECONDS
        )
        _refuse_if_abandoned(task)
        if message := self._take_direct_reply(task):
            return self._track(ctx, TaskStream(None, 0, {"message": message}, 0.0))
        self._store_begun()  # what cannot be stored is an error, and no stream that breaks off
        history = request.get("configuration", NOTHING).get("historyLength")
        if history is None and record.header.turn > 1 and mark == record.message_number:
            # The answer alone: google-adk shows the last message of the agent in a task that has
            # nothing else to show, which would be the question that was just answered.
            history = 1
        first = {"task": render_task(task, history, at=mark)}
        return self._track(ctx, TaskStream(task, mark, first, self._stream_seconds))

    async def subscribe(
        self, ctx: RequestContext, request: Mapping[str, Any], last: int | None = None
    ) -> TaskStream:
        """`last` is the number of the last event that the client has."""
        ctx = self._resolve_tenant(ctx, request.get("tenant", ""))
        if not take_prepayment():
            charged = self._limiter.charge(ctx.principal, REQUEST, operations.SUBSCRIBE)
            if charged is not None:
                await charged
        self._check_requirements(ctx, operations.SUBSCRIBE)
        try:
            task = self.access.get(ctx, request["id"])
        except OwnedElsewhere as other:
            other.is_charged = True
            raise
        facts = self.router.get_facts(task.record.header.agent or HUB, ctx.principal)
        routing.check_agent_requirements(facts, ctx.extensions, True)
        count = task.record.count
        if last is not None and 0 <= last <= count:
            return self._track(ctx, TaskStream(task, last, None, self._stream_seconds))
        if task.finished:
            raise A2aError(
                errors.UNSUPPORTED_OPERATION, f'task "{task.id}" is finished; get it with GetTask'
            )
        first = {"task": render_task(task)}
        return self._track(ctx, TaskStream(task, count, first, self._stream_seconds))

    def _track(self, ctx: RequestContext, stream: TaskStream) -> TaskStream:
        """Counts the stream until it is closed."""
        principal = ctx.principal
        try:
            self._check_streams(ctx)
        except A2aError:
            stream.close()
            raise
        self._stream_counts[principal] += 1
        self._streams.add(stream)

        def forget(closed: TaskStream) -> None:
            if closed in self._streams:
                self._streams.discard(closed)
                self._stream_counts[principal] -= 1
                if not self._stream_counts[principal]:
                    del self._stream_counts[principal]

        stream.on_close = forget
        return stream

    def _check_streams(self, ctx: RequestContext) -> None:
        if self._stream_counts[ctx.principal] >= MAX_STREAMS:
            raise A2aError(
                errors.RESOURCE_EXHAUSTED,
                f"you follow {MAX_STREAMS} tasks at once; end a stream first",
            )

    # --- tasks ---------------------------------------------------------------------------------

    def get_task(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self.access.get(ctx, request["id"])
        self.tasks.flush(task)
        return render_task(task, request.get("historyLength"))

    def list_tasks(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        size = request.get("pageSize", PAGE)
        tasks = self.access.list(ctx, self._sender.list_elsewhere(ctx.principal))
        found = [task for task in tasks if matches_filter(task, request)]
        start = find_page_start(found, request.get("pageToken"))
        page = limit_bytes(found[start : start + size], PAGE_BYTES)
        more = len(found) > start + len(page)
        history = request.get("historyLength")
        whole = bool(request.get("includeArtifacts"))
        return {
            "tasks": [render_task(task, history, whole) for task in page],
            "nextPageToken": page_token_from_task(page[-1]) if more else "",
            "pageSize": size,
            "totalSize": len(found),
        }

    async def cancel_task(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self.access.get(ctx, request["id"])
        self.access.check_cancel(ctx, task)
        if not task.cancel():
            raise A2aError(
                errors.TASK_NOT_CANCELABLE, f'task "{task.id}" is {STATES[task.state]} already'
            )
        return render_task(task)

    # --- push ----------------------------------------------------------------------------------

    async def set_push(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self._get_task_with_push(ctx, request)
        return await self._push.set(task, request, ctx.version)

    def get_push(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._push.get(self._get_task_with_push(ctx, request), request.get("id", ""))

    def list_push(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        task = self._get_task_with_push(ctx, request)
        return self._push.list(task, request.get("pageSize", PAGE), request.get("pageToken", ""))

    def delete_push(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        self._push.delete(self._get_task_with_push(ctx, request), request["id"])
        return {}

    def _get_task_with_push(self, ctx: RequestContext, request: Mapping[str, Any]) -> A2aTask:
        routing.check_push_support(self.router.get_facts(ctx.agent, ctx.principal))
        task = self.access.get(ctx, request["taskId"])
        # By the hub's own path it may be a task of another agent.
        routing.check_push_support(
            self.router.get_facts(task.record.header.agent or HUB, ctx.principal)
        )
        return task

    # --- cards ---------------------------------------------------------------------------------

    def get_extended_card(self, ctx: RequestContext, request: Mapping[str, Any]) -> dict[str, Any]:
        facts = self.router.get_facts(ctx.agent, ctx.principal)
        if not self.cards.has_extended_card(facts):
            raise A2aError(
                errors.UNSUPPORTED_OPERATION,
                f'agent "{facts.name}" has no other card than its public one',
            )
        if not self.router.can_discover_agent(ctx.principal, facts):
            raise A2aError(
                errors.PERMISSION_DENIED, f'no policy permits you to look at "{facts.name}"'
            )
        is_default = ctx.agent is None
        return self.cards.build_extended_card(facts, ctx.principal, ctx.base, is_default=is_default)


# --- pages of tasks ---------------------------------------------------------------------------


def _refuse_if_abandoned(task: A2aTask) -> None:
    """Raises the error of a task that other hubs own: its state here says nothing."""
    if task.registry is None and task.error is not None and str(task.error) == TAKEN_OVER:
        raise task.error


def matches_filter(task: A2aTask, request: Mapping[str, Any]) -> bool:
    context, status = request.get("contextId"), request.get("status")
    after = request.get("statusTimestampAfter")
    return (
        (context is None or task.record.header.context == context)
        and (status is None or STATES[task.state] == status)
        and (after is None or task.updated >= (seconds_from_timestamp(after) or 0.0))
    )


def limit_bytes(tasks: list[A2aTask], most: int) -> list[A2aTask]:
    """The first tasks that together take at most `most` bytes; at least one."""
    left = most
    for place, task in enumerate(tasks):
        left -= task.size
        if left < 0:
            return tasks[: max(place, 1)]
    return tasks


def page_token_from_task(task: A2aTask) -> str:
    place = f"{task.updated!r} {task.id}"
    return base64.urlsafe_b64encode(place.encode()).decode()


def find_page_start(tasks: list[A2aTask], token: str | None) -> int:
    """The index where the page of `token` begins: after the task that it names, or where that task
    was when the token was issued."""
    if not token:
        return 0
    try:
        at, _, id = base64.b64decode(token, b"-_", validate=True).decode().partition(" ")
        updated = float(at)
    except (binascii.Error, ValueError):
        raise A2aError(
            errors.INVALID_PARAMS,
            'invalid "pageToken": use the nextPageToken of the previous page',
            violations=[("pageToken", "is invalid: use the nextPageToken of the previous page")],
        ) from None
    for place, task in enumerate(tasks):
        if task.updated < updated or (task.updated == updated and task.id == id):
            return place + 1 if task.id == id else place
    return len(tasks)
