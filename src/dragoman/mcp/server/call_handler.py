"""A client's requests to have something done, of every kind: to a call, through its questions, to
the answer. Knows no transport; what is known of the client is in `Peer`, or in the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from dragoman.core.call import (
    ABSENT,
    LEVELS,
    NO_UPDATES,
    NOTHING,
    Result,
    Updates,
    WantedUpdates,
    discard_update,
)
from dragoman.core.errors import HubError, InvalidInput, WorkFailed
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.tasks import Task
from dragoman.core.tool import COMPLETION, RESOURCE, TOOL, Nowhere, Tool
from dragoman.core.trace import TraceContext
from dragoman.mcp.protocol.elicitation import TASKS_ONLY
from dragoman.mcp.protocol.errors import adapt_error, encode_error, render_error_result
from dragoman.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    LOG_LEVEL_KEY,
    Revision,
    is_wrapped,
    shape_result,
)
from dragoman.mcp.protocol.translate import mcp_from_result, select_meta
from dragoman.mcp.server import client_questions, results
from dragoman.mcp.server.client_state import ClientState, Push
from dragoman.mcp.server.progress import DEFAULT_LEVEL, build_updates
from dragoman.mcp.server.tasks import McpTasks, ToolTask, ToolTaskRecord, declares_tasks
from dragoman.wire import rpc

log = logging.getLogger(__name__)


class CallHandler:
    def __init__(
        self, hub: Hub, question_seconds: float, tasks: McpTasks, bridge_errors: str = "auto"
    ) -> None:
        self.hub = hub
        self._bridge_errors = bridge_errors
        self._tasks = tasks
        self._question_seconds = question_seconds
        self._endings: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        id: rpc.Id,
        kind: str,
        params: Mapping[str, Any],
        peer: ClientState,
        revision: Revision,
        push: Push | None,
        carried: TraceContext | None,
    ) -> bytes:
        asked = results.parse_call(kind, params, revision)
        if isinstance(asked, str):
            return rpc.encode_error(id, rpc.INVALID_PARAMS, asked)
        name, arguments = asked
        said = _said(params, peer, revision, push)
        if isinstance(said, str):
            return rpc.encode_error(id, rpc.INVALID_PARAMS, said)
        features, level, answers, handle = said
        updates, wanted = build_updates(params, level, revision, push)
        options = CallOptions(
            kind=kind,
            door=peer.door,
            view=peer.view,
            trace_context=carried,
            meta=select_meta(params),
            # Each modern request stands alone, whatever connection it came by.
            session=peer.client if revision.has_sessions else "",
            updates=updates,
            wanted_updates=wanted,
            client=peer.client,
            revision=revision.name,
            features=features,
            answers=answers,
            handle=handle,
        )
        try:
            if kind == TOOL and _may_last(params, features, revision):
                made = await self._as_task(id, name, arguments, options, params, peer, revision)
                if isinstance(made, bytes):
                    return made
                tool, result = made
            else:
                tool, result = await self.hub.call(peer.principal, name, arguments, options)
            if result.questions is not None:
                if lack := client_questions.find_lack(result.questions, features):
                    raise lack
                if revision.asks_by_result and kind != COMPLETION:
                    asks = client_questions.render_questions(
                        result.questions, result.handle, features
                    )
                    return rpc.encode_result(id, asks)
                tool, result = await self._driven(
                    tool, result, name, arguments, options, peer, revision, push
                )
            if kind == TOOL:
                return rpc.encode_result(id, _render_tool_result(result, tool, revision))
            value = results.render_result(kind, result, revision, name, fresh=answers is not None)
            return rpc.encode_result(id, value)
        except HubError as error:
            error = adapt_error(error, revision, peer.features)
            return self._failed(id, kind, name, error, revision, handle is not None)
        except Exception:
            log.exception("a call of %r crashed", name)
            problem = f'"{name[:200]}" failed inside the hub; see its log'
            return rpc.encode_error(id, rpc.INTERNAL_ERROR, problem)

    async def _as_task(
        self,
        id: rpc.Id,
        name: str,
        arguments: Mapping[str, Any],
        options: CallOptions,
        params: Mapping[str, Any],
        peer: ClientState,
        revision: Revision,
    ) -> tuple[Tool, Result] | bytes:
        """The result of a call that may become a task, or the answer that it has become one."""
        features = options.features
        if revision.has_task_requests and peer.client:
            features = peer.features  # what it asks goes out with `tasks/result`
        wanted = WantedUpdates(
            progress=True, log_level=options.wanted_updates.log_level, task_start=True
        )
        base = replace(options, wanted_updates=wanted, features=features)
        tool = self.hub.find(name, peer.view)

        async def work(
            task: ToolTask, updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
        ) -> tuple[Tool, Result]:
            nonlocal tool
            if handle is not None and answers is None and not tool.target.traits.ends_questions:
                return tool, Result()
            again = replace(base, updates=updates, answers=answers, handle=handle)
            tool, result = await self.hub.call(task.owner, name, arguments, again)
            if lack := client_questions.find_lack(result.questions or NOTHING, features):
                raise lack
            return tool, result

        def show(result: Result, revision: Revision) -> dict[str, Any]:
            return _render_tool_result(result, tool, revision)

        record = ToolTaskRecord(name, show, features, options.updates)
        task: ToolTask = Task(peer.principal, work, record)
        if revision.has_task_extension:
            made = await self._tasks.run_call(task, options.answers, options.handle)
            return rpc.encode_result(id, made) if isinstance(made, dict) else (tool, made)
        if isinstance(tool.target, Nowhere):
            return await work(task, discard_update, None, None)
        return self._tasks.create_task(id, params, task, peer, revision)

    async def _driven(
        self,
        tool: Tool,
        result: Result,
        name: str,
        arguments: Mapping[str, Any],
        options: CallOptions,
        peer: ClientState,
        revision: Revision,
        push: Push | None,
    ) -> tuple[Tool, Result]:
        """Asks a client that shakes hands whatever is asked, until there is a result."""
        if push is None or options.kind == COMPLETION:
            raise WorkFailed(f'"{name[:200]}" asks something where nothing can be asked')
        visited: list[str] = []
        for _ in range(client_questions.ROUNDS):
            questions = result.questions or {}
            if lack := client_questions.find_lack(questions, options.features):
                raise lack
            try:
                answers, went = await client_questions.ask(
                    questions, peer, revision, push, self._question_seconds
                )
            except BaseException:  # cancelled, too
                self._give_up(tool, result, name, arguments, options, peer)
                raise
            visited += went
            again = replace(options, answers=answers, handle=result.handle)
            tool, result = await self.hub.call(peer.principal, name, arguments, again)
            if result.questions is None:
                for one in visited:
                    push(client_questions.encode_elicitation_complete(one))
                return tool, result
        raise WorkFailed(f'"{name[:200]}" asked {client_questions.ROUNDS} times and is not done')

    def _give_up(
        self,
        tool: Tool,
        result: Result,
        name: str,
        arguments: Mapping[str, Any],
        options: CallOptions,
        peer: ClientState,
    ) -> None:
        """Nobody will answer: what waits for that need not any longer. That too is a call, with the
        handle and no answers at all, to a target that says that it understands this."""
        if tool.target.traits.ends_questions:
            again = replace(
                options,
                updates=discard_update,
                wanted_updates=NO_UPDATES,
                answers=None,
                handle=result.handle,
            )
            work = self.hub.call(peer.principal, name, arguments, again)
            task = asyncio.get_running_loop().create_task(_quietly(work))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    def _failed(
        self, id: rpc.Id, kind: str, name: str, error: HubError, revision: Revision, continued: bool
    ) -> bytes:
        if kind == TOOL:
            shown = render_error_result(error, revision, self._bridge_errors)
            # A bad handle is no matter for a model: 2026-07-28, MRTR, such state must be rejected.
            if shown is not None and not (continued and isinstance(error, InvalidInput)):
                return rpc.encode_result(id, shape_result(shown, revision))
        return encode_error(id, error, revision, name if kind == RESOURCE else None)


def _render_tool_result(result: Result, tool: Tool, revision: Revision) -> dict[str, Any]:
    """A tool's result; one that is no object may have to be shown inside of one."""
    wrapped = False
    if result.structured is not ABSENT and revision.has_wrapped_results:
        wrapped = is_wrapped(tool.definition.get("outputSchema"), revision)
    return shape_result(mcp_from_result(result), revision, wrapped)


async def _quietly(work: Awaitable[Any]) -> None:
    with contextlib.suppress(HubError):
        await work


def _may_last(params: Mapping[str, Any], features: Mapping[str, Any], revision: Revision) -> bool:
    """Whether a call may become a task: the client knows them, or in 2025-11-25 asks for one."""
    if revision.has_task_extension:
        return declares_tasks(features)
    return revision.has_task_requests and "task" in params


def _said(
    params: Mapping[str, Any], peer: ClientState, revision: Revision, push: Push | None
) -> tuple[Mapping[str, Any], str | None, dict[str, Any] | None, str | None] | str:
    """What a request says beside what it asks for: what its sender can be asked, the log that it
    wants, its answers and their handle; or what is wrong with those."""
    if revision.has_sessions:
        # Its answers come back on the session, as the questions go out before this answer.
        features = peer.features if push is not None and peer.client else TASKS_ONLY
        return features, peer.log_level or DEFAULT_LEVEL, None, None
    meta = params["_meta"]
    level = meta.get(LOG_LEVEL_KEY)
    if level is not None and level not in LEVELS:
        return f'"{LOG_LEVEL_KEY}" must be one of {", ".join(LEVELS)}'
    if "inputResponses" not in params and "requestState" not in params:
        return meta[CAPABILITIES_KEY], level, None, None
    brought = client_questions.parse_answers(params)
    return brought if isinstance(brought, str) else (meta[CAPABILITIES_KEY], level, *brought)
