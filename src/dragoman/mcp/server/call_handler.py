"""Answers the methods that run something: parses the request, makes the call, renders the result.

Knows no transport. What a result consists of, per kind, is documented in `core.call`; which members
a revision has, in `revisions`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dragoman.core import kept_results
from dragoman.core.background import Background
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
from dragoman.core.cluster import Ownership, find_mark, make_id
from dragoman.core.errors import BadReply, HubError, InvalidInput, WorkFailed
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.question_handles import find_handle_mark
from dragoman.core.rate_limiter import RateBudget
from dragoman.core.resource_uris import MAX_URI, TOO_LONG
from dragoman.core.structs import replace
from dragoman.core.tasks import Task
from dragoman.core.tool import COMPLETION, PROMPT, RESOURCE, TOOL, Nowhere, Tool
from dragoman.core.trace import TraceContext
from dragoman.mcp.protocol.elicitation import TASKS_ONLY
from dragoman.mcp.protocol.errors import adapt_error, encode_error, render_error_result
from dragoman.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    LOG_LEVEL_KEY,
    Revision,
    is_wrapped,
    shape_content,
    shape_members,
    shape_result,
)
from dragoman.mcp.protocol.translate import mcp_from_result, select_meta
from dragoman.mcp.server import client_questions
from dragoman.mcp.server.client_state import McpRequest
from dragoman.mcp.server.progress import (
    DEFAULT_LEVEL,
    REPORT_SECONDS,
    ClientUpdates,
    build_updates,
)
from dragoman.mcp.server.tasks import McpTasks, ToolTask, ToolTaskRecord, declares_tasks
from dragoman.mcp.server.tool_search import FIND_TOOLS, SEARCH_TOOLS, parse_inner_call
from dragoman.wire import rpc

METHODS = {
    "tools/call": TOOL,
    "prompts/get": PROMPT,
    "resources/read": RESOURCE,
    "completion/complete": COMPLETION,
}
RATE_LIMIT_KEY = "dragoman.hub/rate-limit"
MAX_VALUES = 100
"""Values of one completion, in every revision."""

_NAMED = frozenset({TOOL, PROMPT})
Outcome = tuple[Tool, Result]
ParsedCall = tuple[str, dict[str, Any]]
"""The name and the arguments of a call."""
FindTools = Callable[[McpRequest, Mapping[str, Any]], Awaitable[bytes]]


class CallHandler:
    def __init__(
        self,
        hub: Hub,
        question_seconds: float,
        tasks: McpTasks,
        bridge_errors: str = "auto",
        find_tools: FindTools | None = None,
        can_search: Callable[[McpRequest], bool] = lambda request: request.client.view.can_search,
        report_seconds: float = REPORT_SECONDS,
    ) -> None:
        """`find_tools` answers the tool of that name for clients that `can_search`."""
        self.hub = hub
        self._find_tools, self._can_search = find_tools, can_search
        self._bridge_errors = bridge_errors
        self._tasks = tasks
        self._question_seconds = question_seconds
        self._report_seconds = report_seconds
        self._background = Background("MCP calls")

    async def answer(self, request: McpRequest, kind: str, carried: TraceContext | None) -> bytes:
        revision = request.revision
        parsed = parse_call(kind, request.params, revision)
        if isinstance(parsed, str):
            return rpc.encode_error(request.id, rpc.INVALID_PARAMS, parsed)
        name, arguments = parsed
        options = _parse_options(request, kind, carried, self.hub.cluster)
        if isinstance(options, str):
            return rpc.encode_error(request.id, rpc.INVALID_PARAMS, options)
        reports: ClientUpdates | None = None
        if options.wanted_updates.progress and isinstance(options.updates, ClientUpdates):
            reports = options.updates
            reports.start_reports(self._report_seconds)
        try:
            if name in SEARCH_TOOLS and kind == TOOL and self._can_search(request):
                if name == FIND_TOOLS and self._find_tools is not None:
                    return await self._find_tools(request, arguments)
                # From here on this is a call of that tool, as if the client had named it.
                parsed = name, arguments = parse_inner_call(arguments)
            if kind == TOOL and (
                (revision.has_task_extension and "extensions" in options.features)
                or (revision.has_task_requests and "task" in request.params)
            ):
                outcome = await self._call_as_task(request, parsed, options)
                if isinstance(outcome, bytes):
                    return outcome
                tool, result = outcome
            else:
                principal = request.client.principal
                tool, result = await self.hub.call(principal, name, arguments, options)
            if result.questions is not None:
                client_questions.check_features(result.questions, options.features)
                if revision.asks_by_result and kind != COMPLETION:
                    asks = client_questions.render_questions(
                        result.questions, result.handle, revision, options.features
                    )
                    return rpc.encode_result(request.id, asks)
                tool, result = await self._ask(request, parsed, options, (tool, result))
            shown = (
                render_tool_result(result, tool, revision)
                if kind == TOOL
                else _render(kind, result, revision, name, options.answers is not None)
            )
            low = self.hub.limiter.find_low_budget(request.client.principal)
            return rpc.encode_result(request.id, shown if low is None else _add_budget(shown, low))
        except HubError as error:
            return self._encode_failure(request, kind, name, error, options.handle is not None)
        finally:
            if reports is not None:
                reports.stop_reports()

    async def _call_as_task(
        self, request: McpRequest, parsed: ParsedCall, options: CallOptions
    ) -> Outcome | bytes:
        """Returns the outcome of a call that may become a task, or the response that names the task
        which it became."""
        client, revision, features = request.client, request.revision, options.features
        name, arguments = parsed
        if revision.has_task_extension and not declares_tasks(features):
            return await self.hub.call(client.principal, name, arguments, options)
        if revision.has_task_requests and client.client:
            features = client.features  # its questions go out with `tasks/result`
        wanted = WantedUpdates(
            progress=True, log_level=options.wanted_updates.log_level, task_start=True
        )
        base = replace(options, wanted_updates=wanted, features=features)
        tool = self.hub.find(name, client.view)
        if isinstance(tool.target, Nowhere):
            tool = self.hub.find_fallback(client.principal, name, options) or tool
            if not isinstance(tool.target, Nowhere):
                name = tool.name  # the record has the name by which policies know it

        async def work(
            task: ToolTask, updates: Updates, answers: Mapping[str, Any] | None, handle: str | None
        ) -> tuple[Tool, Result]:
            nonlocal tool
            if handle is not None and answers is None and not tool.target.traits.ends_questions:
                return tool, Result()
            again = replace(
                base, updates=updates, answers=answers, handle=handle, attempt=task.attempt
            )
            tool, result = await self.hub.call(task.owner, name, arguments, again)
            client_questions.check_features(result.questions or NOTHING, features)
            return tool, result

        def render(result: Result, revision: Revision) -> dict[str, Any]:
            return render_tool_result(result, tool, revision)

        record = ToolTaskRecord(name, render, features, options.updates)
        task: ToolTask = Task(client.principal, work, record, make_id(self.hub.cluster))
        if revision.has_task_extension:
            made = await self._tasks.run_call(task, revision, options.answers, options.handle)
            return rpc.encode_result(request.id, made) if isinstance(made, dict) else (tool, made)
        if isinstance(tool.target, Nowhere):
            return await work(task, discard_update, None, None)
        return await self._tasks.start_requested(request, task)

    async def _ask(
        self, request: McpRequest, parsed: ParsedCall, options: CallOptions, asked: Outcome
    ) -> Outcome:
        """Asks a client with a session all questions, until there is a result."""
        client, push, name, (tool, result) = request.client, request.push, parsed[0], asked
        if push is None or options.kind == COMPLETION:
            raise WorkFailed(f'"{name[:200]}" asks a question where none can be asked')
        visited: list[client_questions.ClientRequest] = []
        for _ in range(client_questions.ROUNDS):
            questions = result.questions or {}
            client_questions.check_features(questions, options.features)
            try:
                answers, went = await client_questions.ask(
                    questions, client, request.revision, push, self._question_seconds
                )
            except BaseException:  # also if cancelled
                if tool.target.traits.ends_questions:
                    # A call with the handle and without answers tells the target not to wait.
                    again = replace(options, updates=discard_update, wanted_updates=NO_UPDATES)
                    again = replace(again, answers=None, handle=result.handle)
                    work = self.hub.call(client.principal, *parsed, again)
                    self._background.spawn(_ignore_errors(work))
                raise
            visited += went
            again = replace(options, answers=answers, handle=result.handle)
            tool, result = await self.hub.call(client.principal, *parsed, again)
            if result.questions is None:
                for one in visited:
                    one.complete()  # unless its server has said so
                return tool, result
        raise WorkFailed(f'"{name[:200]}" asked {client_questions.ROUNDS} times without a result')

    def _encode_failure(
        self, request: McpRequest, kind: str, name: str, error: HubError, is_continued: bool
    ) -> bytes:
        revision = request.revision
        error = adapt_error(error, revision, request.client.features)
        if kind == TOOL:
            result = render_error_result(error, revision, self._bridge_errors)
            # A model cannot mend a bad handle: 2026-07-28, MRTR, such state must be rejected.
            if result is not None and not (is_continued and isinstance(error, InvalidInput)):
                return rpc.encode_result(request.id, shape_result(result, revision))
        return encode_error(request.id, error, revision, name if kind == RESOURCE else None)


async def _ignore_errors(work: Awaitable[Any]) -> None:
    with contextlib.suppress(HubError):
        await work


# --- requests ------------------------------------------------------------------------------------


def parse_call(kind: str, params: Mapping[str, Any], revision: Revision) -> ParsedCall | str:
    """Returns the call that a request is for, or what is wrong with it."""
    if kind in _NAMED:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            return f'"name" must be the name of a {kind}'
        if arguments is None:
            return name, {}
        if not isinstance(arguments, dict):
            return '"arguments" must be an object'
        return name, arguments
    if kind == RESOURCE:
        uri = params.get("uri")
        if not isinstance(uri, str):
            return '"uri" must be the address of a resource'
        return (uri, {}) if len(uri) <= MAX_URI else TOO_LONG
    return _parse_completion(params, revision)


def _parse_completion(params: Mapping[str, Any], revision: Revision) -> ParsedCall | str:
    ref, argument, context = (params.get(key) for key in ("ref", "argument", "context"))
    member = {"ref/prompt": "name", "ref/resource": "uri"}
    kind = ref.get("type") if isinstance(ref, dict) else None
    name = (
        ref.get(member.get(kind, "")) if isinstance(ref, dict) and isinstance(kind, str) else None
    )
    if not isinstance(name, str):
        return '"ref" must name a prompt (ref/prompt) or a template (ref/resource)'
    if len(name) > MAX_URI:
        return TOO_LONG
    if not isinstance(argument, dict) or not all(
        isinstance(argument.get(key), str) for key in ("name", "value")
    ):
        return '"argument" must be an object with a "name" and a "value"'
    arguments: dict[str, Any] = {"ref": ref, "argument": argument}
    if context is not None and revision.has_completion_context:
        if not isinstance(context, dict):
            return '"context" must be an object'
        arguments["context"] = context
    return name, arguments


def _parse_options(
    request: McpRequest, kind: str, carried: TraceContext | None, ownership: Ownership
) -> CallOptions | str:
    """Returns the options of the call, or what is wrong with them: what the client can be asked,
    the log level that it wants, its answers and their handle. Raises `OwnedElsewhere` if another
    hub can open the handle, or has kept the result that is read."""
    client, params, revision, push = request.client, request.params, request.revision, request.push
    if kind == RESOURCE and params["uri"].startswith(kept_results.PREFIX):
        ownership.check(find_mark(params["uri"].removeprefix(kept_results.PREFIX)))
    answers: dict[str, Any] | None = None
    handle: str | None = None
    has_updates = push is not None
    if revision.has_sessions:
        # Questions go out before the response, and their answers come back on the session.
        features = client.features if push is not None and client.client else TASKS_ONLY
        session, level = client.client, client.log_level or DEFAULT_LEVEL
    else:
        meta = params["_meta"]
        # Each request stands alone, whatever connection it came by.
        session, level, features = "", meta.get(LOG_LEVEL_KEY), meta[CAPABILITIES_KEY]
        if level is not None and level not in LEVELS:
            return f'"{LOG_LEVEL_KEY}" must be one of {", ".join(LEVELS)}'
        has_updates = has_updates and (level is not None or "progressToken" in meta)
        if "inputResponses" in params or "requestState" in params:
            parsed = client_questions.parse_answers(params)
            if isinstance(parsed, str):
                return parsed
            answers, handle = parsed
            if handle is not None:
                ownership.check(find_handle_mark(handle))
    updates: Updates = discard_update
    wanted = NO_UPDATES
    if has_updates:
        updates, wanted = build_updates(params, level, revision, push)
    return CallOptions(  # by position: by name it takes half as long again
        client.door, client.view, kind, carried, select_meta(params), session, None, updates,
        wanted, client.client, revision.name, features, answers, handle,
    )  # fmt: skip


# --- results -------------------------------------------------------------------------------------


def render_tool_result(result: Result, tool: Tool, revision: Revision) -> dict[str, Any]:
    is_wrapping = False
    if result.structured is not ABSENT and revision.has_wrapped_results:
        is_wrapping = is_wrapped(tool.definition.get("outputSchema"), revision)
    return shape_result(mcp_from_result(result), revision, is_wrapping)


def _render(
    kind: str, result: Result, revision: Revision, name: str, is_answer: bool
) -> dict[str, Any]:
    """Renders the result of a call of `name`, which is not a tool. The client must not cache one
    that depends on its answers."""
    if kind == PROMPT:
        return _render_prompt(result, revision)
    if kind == RESOURCE:
        return _render_resource(result, revision, name, is_answer)
    return _render_completion(result, revision, name)


def _add_budget(shown: Mapping[str, Any], low: RateBudget) -> dict[str, Any]:
    """Tells a client that less than a quarter of its budget is left."""
    budget = {
        "scope": low.scope,
        "remaining": low.remaining,
        "limit": low.rate.burst,
        "perMinute": low.rate.per_minute,
        "fullInSeconds": low.full_in,
    }
    return {**shown, "_meta": {**shown.get("_meta", {}), RATE_LIMIT_KEY: budget}}


def _render_prompt(result: Result, revision: Revision) -> dict[str, Any]:
    extra = dict(result.extra)
    roles = extra.pop("roles", ())
    messages = [
        {
            "role": roles[number] if number < len(roles) else "user",
            "content": shape_content(block, revision),
        }
        for number, block in enumerate(result.content)
    ]
    return shape_members({**extra, "messages": messages}, revision)


def _render_resource(
    result: Result, revision: Revision, uri: str, is_answer: bool
) -> dict[str, Any]:
    contents = [_render_contents(shape_content(block, revision), uri) for block in result.content]
    shaped = shape_members({**result.extra, "contents": contents}, revision)
    if revision.has_cache_hints:
        ttl = shaped.get("ttlMs")
        if is_answer or type(ttl) is not int or ttl < 0:
            shaped["ttlMs"] = 0
        # The hub's policies may hide from some clients what the server shows to all.
        shaped["cacheScope"] = "private"
    return shaped


def _render_contents(block: Mapping[str, Any], uri: str) -> Any:
    resource = block.get("resource")
    if isinstance(resource, dict):
        return resource
    return {"uri": uri, "mimeType": "text/plain", "text": str(block.get("text", ""))}


def _render_completion(result: Result, revision: Revision, name: str) -> dict[str, Any]:
    completion = result.structured
    values = completion.get("values") if isinstance(completion, dict) else None
    if completion is ABSENT or not isinstance(values, list):
        raise BadReply(f'invalid completion of "{name[:200]}": it has no list of values')
    if len(values) > MAX_VALUES:
        completion = {**completion, "values": values[:MAX_VALUES], "hasMore": True}
    return shape_members({**result.extra, "completion": completion}, revision)
