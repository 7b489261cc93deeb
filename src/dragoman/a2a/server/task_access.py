"""Which tasks a request may see: those of its principal, of its agent, that policies permit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dragoman.a2a.config import HUB
from dragoman.a2a.protocol.errors import PERMISSION_DENIED, TASK_NOT_FOUND, A2aError
from dragoman.a2a.server.request_context import RequestContext
from dragoman.a2a.server.routing import MessageRouter
from dragoman.a2a.server.task import A2aTask, A2aTaskRegistry
from dragoman.core.errors import NotFound
from dragoman.core.hub import Hub
from dragoman.core.ports import TASK_CANCEL, TASK_READ
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import EVERYTHING


class TaskAccess:
    def __init__(self, hub: Hub, tasks: A2aTaskRegistry, router: MessageRouter) -> None:
        self._hub = hub
        self._tasks = tasks
        self._router = router

    def find(self, ctx: RequestContext, id: str) -> A2aTask | None:
        """Raises `OwnedElsewhere` for a task of another hub."""
        task = self.find_here(ctx, id)
        if task is None and self._hub.cluster.mark:
            self._check_owner(ctx.principal, id)
        return task

    def _check_owner(self, principal: Principal, id: str) -> None:
        """Raises `OwnedElsewhere` if another hub has stored a task of that id."""
        hub = self._tasks.find_hub(principal, id)
        if hub is not None:
            self._hub.cluster.check(hub)

    def find_here(self, ctx: RequestContext, id: str) -> A2aTask | None:
        """Finds a task of this hub."""
        try:
            task = self._tasks.get(ctx.principal, id)
        except NotFound:
            return None
        return task if self._is_visible(ctx, self._find_agent(ctx), task) else None

    def get(self, ctx: RequestContext, id: str) -> A2aTask:
        task = self.find(ctx, id)
        if task is None:
            raise A2aError(TASK_NOT_FOUND, f'task "{id[:100]}" was not found')
        return task

    def list(self, ctx: RequestContext, others: Sequence[A2aTask] = ()) -> Iterator[A2aTask]:
        """The one that changed last comes first. `others` are the tasks of other hubs."""
        agent = self._find_agent(ctx)
        tasks: Iterable[A2aTask] = self._tasks.list_owned(ctx.principal)
        if others:
            tasks = sorted([*tasks, *others], key=lambda task: task.updated, reverse=True)
        for task in tasks:
            if self._is_visible(ctx, agent, task):
                yield task

    def check_cancel(self, ctx: RequestContext, task: A2aTask) -> None:
        if not self._permits(ctx, TASK_CANCEL, task):
            raise A2aError(PERMISSION_DENIED, f'no policy permits you to cancel task "{task.id}"')

    def find_version(self, principal: Principal, id: Any) -> str:
        """The dialect that a task was created in, for requests that do not name theirs; empty for
        an unknown task."""
        try:
            return self._tasks.get(principal, id).record.header.version
        except NotFound:
            if self._hub.cluster.mark and isinstance(id, str):
                self._check_owner(principal, id)
            return ""

    def _find_agent(self, ctx: RequestContext) -> str | None:
        """The agent whose tasks are asked for, as tasks name it; None for all."""
        if ctx.agent is None:
            return None
        name = self._router.resolve_slug(ctx.agent)
        return "" if name == HUB else name

    def _is_visible(self, ctx: RequestContext, agent: str | None, task: A2aTask) -> bool:
        if agent is not None and agent != task.record.header.agent:
            return False
        return self._permits(ctx, TASK_READ, task)

    def _permits(self, ctx: RequestContext, action: str, task: A2aTask) -> bool:
        return self._hub.can_act_on_task(ctx.principal, action, task.record.header.tool, EVERYTHING)
