"""Answers MCP messages, whichever transport brings them: one message in, its response out.

Responses are shaped for the client's revision. Knows no transport; calls go to `Hub.call`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from dragoman.core.call import LEVELS
from dragoman.core.cluster import (
    OF_ANOTHER_HUB,
    OwnedElsewhere,
    OwnerRequests,
    take_prepayment,
)
from dragoman.core.errors import RateLimited
from dragoman.core.events import RootsChanged
from dragoman.core.hub import Hub
from dragoman.core.ports import Handover, Viewer
from dragoman.core.rate_limiter import REQUEST
from dragoman.core.tool import TOOL
from dragoman.core.tool_finder import ToolFinder
from dragoman.core.trace import parse_trace
from dragoman.core.views import NamedView, Views
from dragoman.mcp.protocol.elicitation import TASKS_ONLY, add_task_support
from dragoman.mcp.protocol.errors import encode_crash, encode_error
from dragoman.mcp.protocol.mirrored_headers import HEADER_MISMATCH
from dragoman.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    MODERN_KEY,
    NAMES,
    REVISIONS,
    SERVER_KEY,
    Revision,
    build_discover_result,
    build_initialize_result,
    find_version,
    shape_result,
)
from dragoman.mcp.server import client_questions, list_pages
from dragoman.mcp.server.call_handler import METHODS as CALLS
from dragoman.mcp.server.call_handler import CallHandler, render_tool_result
from dragoman.mcp.server.client_state import ClientState, McpRequest, Push, find_client_name
from dragoman.mcp.server.connected_clients import ConnectedClients
from dragoman.mcp.server.introduction import Budget, Introduction
from dragoman.mcp.server.messages_elsewhere import MessagesElsewhere
from dragoman.mcp.server.progress import REPORT_SECONDS
from dragoman.mcp.server.subscriptions import Subscriptions
from dragoman.mcp.server.tasks import METHODS as TASK_METHODS
from dragoman.mcp.server.tasks import McpTasks, Show, ToolTaskRegistry, build_task_registry
from dragoman.mcp.server.tool_search import FIND_TOOLS, may_search, parse_find, render_found
from dragoman.wire import rpc

UNSUPPORTED_VERSION = -32022
INITIALIZED = "notifications/initialized"
ROOTS_CHANGED = "notifications/roots/list_changed"
MAX_BATCH = 100
FREE = frozenset({"tasks/cancel", "resources/unsubscribe", "resources/subscribe"})
"""Requests that are not charged: those that end something must not be refused, and a subscription
is a call, which the pipeline charges."""
INSTRUCTIONS: Budget = 4_000, 16_000
NO_FIELDS: Mapping[bytes, bytes] = MappingProxyType({})
"""For transports without headers."""
NO_NAMES: frozenset[str] = frozenset()
Running = MutableMapping[Any, Callable[[], Any]]
"""How to cancel each running request of a client, by the key of its id."""
FindMismatch = Callable[[Any, Mapping[bytes, bytes], ClientState], str | None]
"""Finds a header that contradicts the message."""


class ServerIdentity(NamedTuple):
    """How a server introduces itself, if not as the hub."""

    name: str
    version: str
    instructions: str = ""


class McpServer:
    def __init__(
        self,
        hub: Hub,
        key: bytes | None = None,
        style_of: Callable[[str], str] = lambda client: "legacy",
        question_seconds: float = 600.0,
        tasks: ToolTaskRegistry | None = None,
        task_after: float = 5.0,
        bridge_errors: str = "auto",
        list_aliases: bool = False,
        instructions: Callable[[], Budget] = lambda: INSTRUCTIONS,
        clients: ConnectedClients | None = None,
        identity: ServerIdentity | None = None,
        handover: Handover | None = None,
        limit_of: Callable[[str], int] = lambda client: 0,
        report_seconds: float = REPORT_SECONDS,
    ) -> None:
        """`key` seals cursors; without one they expire with the process. `style_of` maps a client's
        name to the naming style of its lists, and `limit_of` to the number of tools above which it
        gets those of search mode; 0: any. After `task_after` seconds a call becomes a task if
        the client supports tasks. `instructions` returns the limits for servers' instructions.
        After `report_seconds` without progress, a client that wants progress learns that its call
        still runs."""
        self.hub = hub
        self._limiter = hub.limiter
        self.lists = list_pages.ListPages(hub, key or os.urandom(32), list_aliases)
        tasks = build_task_registry() if tasks is None else tasks
        self.tasks = McpTasks(
            tasks, task_after, question_seconds, self._permits, hub.cluster, handover,
            self._find_show,
        )  # fmt: skip
        clients = ConnectedClients() if clients is None else clients
        self.subscriptions = Subscriptions(hub, self.tasks, self.lists, clients)
        self.call_handler = CallHandler(
            hub,
            question_seconds,
            self.tasks,
            bridge_errors,
            self._find_tools,
            self._can_search,
            report_seconds,
        )
        self._finder = ToolFinder(hub)
        self._style_of, self._limit_of = style_of, limit_of
        self._introduction = Introduction(hub, instructions)
        self._identity = identity
        # The address of a single agent is a choice already.
        self._views = hub.views if identity is None else Views()
        self._methods: dict[str, Callable[[McpRequest], Awaitable[bytes]]] = {
            "initialize": self._initialize,
            "ping": _answer_ping,
            "server/discover": self._discover,
            "logging/setLevel": _set_log_level,
            "resources/subscribe": self.subscriptions.subscribe,
            "resources/unsubscribe": self.subscriptions.unsubscribe,
            "subscriptions/listen": self._listen,
            **dict.fromkeys(list_pages.METHODS, self._list),
            **dict.fromkeys(TASK_METHODS, self._answer_task_method),
        }
        self.elsewhere: MessagesElsewhere | None = None
        """Where other hubs answer; None for a single hub."""

    def join(self, owners: OwnerRequests) -> MessagesElsewhere:
        """Has messages for what other hubs own answered there. Returns what serves those hubs."""
        hub = self.hub
        self.elsewhere = MessagesElsewhere(owners, hub.cluster, hub.views, self.answer)
        self.tasks.elsewhere = self.elsewhere
        return self.elsewhere

    def _permits(self, client: ClientState, action: str, name: str) -> bool:
        return self.hub.can_act_on_task(client.principal, action, name, client.view)

    def _find_show(self, client: ClientState, name: str) -> Show:
        tool = self.hub.find(name, client.view)
        return lambda result, revision: render_tool_result(result, tool, revision)

    async def answer(
        self,
        message: Any,
        client: ClientState,
        push: Push | None = None,
        fields: Mapping[bytes, bytes] = NO_FIELDS,
        find_mismatch: FindMismatch | None = None,
    ) -> bytes | None:
        """Returns the encoded response; None for a notification and for the client's response to a
        pushed request. `fields` are the HTTP headers of the message.

        This is the outer boundary of the server: an exception that nothing else expects becomes an
        internal error, so no request stays unanswered. Cancelling this cancels the request.
        """
        id = message.get("id") if isinstance(message, dict) else None
        is_request = True
        try:
            if find_mismatch is not None and (problem := find_mismatch(message, fields, client)):
                return rpc.encode_error(rpc.find_id(message), HEADER_MISMATCH, problem)
            problem = rpc.find_flaw(message)
            if problem is not None:
                return rpc.encode_error(rpc.find_id(message), rpc.INVALID_REQUEST, problem)
            is_request = "id" in message and "method" in message
            if not is_request:
                self._receive(message, client)
                return None
            method, params = message["method"], message.get("params") or {}
            meta = params.get("_meta")
            meta = meta if isinstance(meta, dict) else None
            version = meta.get(MODERN_KEY) if meta is not None else None
            revision = client.revision
            if version is not None:
                named = REVISIONS.get(version) if isinstance(version, str) else None
                if named is None or named.has_sessions:
                    return encode_unsupported(id, version)
                revision = named
            if not revision.has_sessions and (
                version is None or meta is None or not isinstance(meta.get(CAPABILITIES_KEY), dict)
            ):
                problem = f'"_meta" needs "{CAPABILITIES_KEY if version else MODERN_KEY}"'
                return rpc.encode_error(id, rpc.INVALID_PARAMS, problem)
            if method not in revision.methods:
                problem = f'unknown method "{method[:100]}" in revision {revision.name}'
                return rpc.encode_error(id, rpc.METHOD_NOT_FOUND, problem)
            request = McpRequest(id, method, params, client, revision, push)
            if self._views.chooses_by_client or client.view is not client.endpoint:
                self._choose_view(client, _find_client_name(request))
            kind = CALLS.get(method)
            if kind is not None:
                return await self.call_handler.answer(request, kind, parse_trace(fields, meta))
            if (
                method not in FREE
                and (charged := self._charge(request)) is not None
                and (refusal := await charged) is not None
            ):
                return refusal
            work = self._methods[method](request)
            del message, params, meta, request  # a request to listen may last for days
            return await work
        except Exception as error:
            answer = encode_crash(id, error)
            return answer if is_request else None

    def _charge(self, request: McpRequest) -> Awaitable[bytes | None] | None:
        """Charges a request that is no call; returns what finds the answer if it is refused."""
        if take_prepayment():
            return None
        try:
            charged = self._limiter.charge(request.client.principal, REQUEST, request.method)
        except RateLimited as refusal:
            return _answer_refused(request, refusal)
        return None if charged is None else _answer_unless_charged(request, charged)

    async def answer_tracked(
        self,
        message: Any,
        client: ClientState,
        push: Push | None,
        running: Running,
        fields: Mapping[bytes, bytes] = NO_FIELDS,
    ) -> bytes | None:
        """Like `answer`, for a message or a batch of a client that can cancel its requests:
        `running` holds how to cancel each one that is running, by the key of its id."""
        if isinstance(message, list):
            batch = partial(self.answer_tracked, client=client, push=push, running=running)
            return await _answer_batch(message, client.revision, partial(batch, fields=fields))
        id = rpc.find_id(message)
        if id is None or "method" not in message:
            cancel_request(message, running)
            return await self.answer(message, client, push, fields)
        key, task = rpc.build_key(id), asyncio.current_task()
        assert task is not None
        if key in running:
            return rpc.encode_error(id, rpc.INVALID_REQUEST, ID_IN_USE)
        running[key] = cancel = task.cancel
        try:
            return await self.answer(message, client, push, fields)
        except OwnedElsewhere as other:
            return await self.answer_elsewhere(other, message, client, push, fields)
        finally:
            if running.get(key) is cancel:
                del running[key]

    async def answer_elsewhere(
        self,
        other: OwnedElsewhere,
        message: Any,
        client: ClientState,
        push: Push | None,
        fields: Mapping[bytes, bytes] = NO_FIELDS,
    ) -> bytes | None:
        """Has another hub answer a message that names something of its own, for a client whose
        session or connection is here."""
        if self.elsewhere is None:
            return rpc.encode_error(rpc.find_id(message), rpc.INVALID_PARAMS, OF_ANOTHER_HUB)
        return await self.elsewhere.answer(other, message, client, push, fields)

    def _receive(self, message: Mapping[str, Any], client: ClientState) -> None:
        """Handles a notification, or the client's response to a pushed request."""
        if "method" not in message:
            client_questions.deliver_response(message, client)
        elif not client.client:
            pass  # without a session nothing is kept
        elif message["method"] == INITIALIZED:
            self.subscriptions.join(client)
            self.subscriptions.begin_sessions(client)
        elif message["method"] == ROOTS_CHANGED:
            self.hub.bus.emit(RootsChanged(client.client))

    # --- methods -------------------------------------------------------------------------------

    async def _initialize(self, request: McpRequest) -> bytes:
        params, client = request.params, request.client
        result = build_initialize_result(params)
        client.revision = REVISIONS[result["protocolVersion"]]
        client.features = add_task_support(
            client_questions.parse_capabilities(params.get("capabilities"), client.revision)
        )
        client.client_name = find_client_name(params.get("clientInfo"))
        self._choose_view(client, client.client_name)
        return await self._introduce(request, client.revision, result)

    def _choose_view(self, client: ClientState, name: str) -> None:
        """Gives a client the view that is meant for clients of its name, unless its key or its
        address has chosen one."""
        chosen = self._views.find_for_client(name) if not client.endpoint.name else None
        client.view = client.endpoint if chosen is None else chosen

    async def _discover(self, request: McpRequest) -> bytes:
        return await self._introduce(
            request, request.revision, build_discover_result(request.revision)
        )

    async def _introduce(
        self, request: McpRequest, revision: Revision, result: dict[str, Any]
    ) -> bytes:
        """Adds the instructions and extensions of the servers behind the hub. A client reads them
        once, so this waits until the servers have started, as its first list does anyway."""
        startup, client = self.hub.startup, request.client
        if startup is not None and not startup.is_settled:
            await startup.wait()
        viewer = client.principal, client.view, client.door
        if text := self._introduction.render_instructions(*viewer):
            result["instructions"] = text
        if self._identity is not None:
            _add_identity(result, self._identity)
        extensions = self._introduction.merge_extensions(*viewer)
        if extensions and revision.has_extensions:
            able = result["capabilities"]
            able["extensions"] = {**extensions, **able.get("extensions", {})}
        return rpc.encode_result(request.id, result)

    async def _prepare_list(self, request: McpRequest, kind: str) -> frozenset[str]:
        """Brings a list up to date; returns the names that are hidden from the client. Many clients
        list once, right after they have started the hub, and never again: the first list waits
        until the servers have started."""
        hub = self.hub
        startup, refresher, visibility = hub.startup, hub.refresher, hub.visibility
        if startup is not None and not startup.is_settled:
            await startup.wait()
        elif refresher is not None and "cursor" not in request.params and refresher.is_stale(kind):
            await refresher.refresh(kind)
        if visibility is None:
            return NO_NAMES
        if request.client.client:
            self.subscriptions.begin_sessions(request.client)
        viewer = _viewer_from_request(request)
        if (pending := visibility.prepare(kind, viewer)) is not None:
            await pending
        return visibility.list_hidden(kind, viewer)

    async def _find_tools(self, request: McpRequest, arguments: Mapping[str, Any]) -> bytes:
        """Answers a call of `find_tools`: a list of another form, so it is charged like one. Raises
        `HubError`."""
        client, revision, view = request.client, request.revision, request.client.view
        query, limit = parse_find(arguments)
        charged = self._limiter.charge(client.principal, REQUEST, FIND_TOOLS)
        if charged is not None:
            await charged
        hidden = await self._prepare_list(request, TOOL)
        found = await self._finder.find(
            client.principal, query, limit, view=view, door=client.door, hidden=hidden
        )
        style, lists = self._style_of(_find_client_name(request)), self.lists
        definitions = [
            lists.render_definition(
                tool, lists.find_shown_name(tool, TOOL, style, view), TOOL, revision, view
            )
            for tool in found.tools
        ]
        budget = view.rule.token_budget if isinstance(view, NamedView) else 0
        text = render_found(definitions, budget)
        result = shape_result({"content": [{"type": "text", "text": text}]}, revision)
        return rpc.encode_result(request.id, result)

    def _can_search(self, request: McpRequest) -> bool:
        """Whether this client may be listed the tools of search mode."""
        view = request.client.view
        if view.can_search:
            return True
        return self._limit_of(_find_client_name(request)) > 0 and may_search(self.hub, view)

    async def _list(self, request: McpRequest) -> bytes:
        params, client, revision = request.params, request.client, request.revision
        kind, cursor = list_pages.METHODS[request.method], params.get("cursor")
        hidden = await self._prepare_list(request, kind)
        logins, interfaces = NO_NAMES, list_pages.NO_INTERFACES
        if self.hub.logins is not None:
            logins = self.hub.logins.list_needed(_viewer_from_request(request))
        if kind == TOOL and self.hub.visibility is not None:
            interfaces = self.hub.visibility.list_interfaces(_viewer_from_request(request))
        name = _find_client_name(request)
        style, most = self._style_of(name), self._limit_of(name) if kind == TOOL else 0
        page = self.lists.find_page(
            kind, cursor, client, revision, style, hidden, logins, interfaces, most
        )
        if page is None:
            problem = "invalid cursor: use the nextCursor of the previous page"
            return rpc.encode_error(request.id, rpc.INVALID_PARAMS, problem)
        return rpc.wrap_result(request.id, page)

    async def _answer_task_method(self, request: McpRequest) -> bytes:
        features = request.client.features
        if not request.revision.has_sessions:
            features = request.params["_meta"][CAPABILITIES_KEY]
        try:
            answer = self.tasks.handle(request, features)
            return answer if isinstance(answer, bytes) else await answer
        except OwnedElsewhere as other:
            other.is_charged = request.method not in FREE
            raise

    async def _listen(self, request: McpRequest) -> bytes:
        work = self.subscriptions.listen(request)
        del request  # it may last for days
        return await work


ID_IN_USE = "a request with this id is still running"

# --- requests -----------------------------------------------------------------------------------


async def _answer_refused(request: McpRequest, refusal: RateLimited) -> bytes:
    return encode_error(request.id, refusal, request.revision)


async def _answer_unless_charged(request: McpRequest, charged: Awaitable[None]) -> bytes | None:
    try:
        await charged
    except RateLimited as refusal:
        return await _answer_refused(request, refusal)
    return None


async def _answer_batch(
    messages: list[Any], revision: Revision, answer: Callable[[Any], Awaitable[bytes | None]]
) -> bytes | None:
    problem = (
        None if revision.has_batches and messages else "a message is a JSON object, not a list"
    )
    if len(messages) > MAX_BATCH:
        problem = problem or f"batch too large: at most {MAX_BATCH} messages"
    if problem is not None:
        return rpc.encode_error(None, rpc.INVALID_REQUEST, problem)

    async def answer_item(message: Any) -> bytes | None:
        problem = _find_batch_flaw(message)
        if problem is not None:
            return rpc.encode_error(rpc.find_id(message), rpc.INVALID_REQUEST, problem)
        return await answer(message)

    # Exceptions are the cancellation of single requests.
    answers = await asyncio.gather(*map(answer_item, messages), return_exceptions=True)
    due = [answer for answer in answers if isinstance(answer, bytes)]
    return b"[" + b",".join(due) + b"]" if due else None


def _find_batch_flaw(message: Any) -> str | None:
    if isinstance(message, list):
        return "a message is a JSON object"
    if isinstance(message, dict) and "id" in message and "method" in message:
        if message["method"] == "initialize":
            return "initialize must not be part of a batch; send it by itself"
        if find_version(message) is not None:
            # Its headers would have to repeat the body, and a batch has no headers of its own.
            return "from 2026-07-28 on there are no batches; send this request by itself"
    return None


def cancel_request(message: Any, running: Running) -> None:
    """Obeys `notifications/cancelled`, and ignores other messages."""
    cancel = running.pop(rpc.find_cancelled(message), None)
    if cancel is not None:
        cancel()


def _add_identity(result: dict[str, Any], identity: ServerIdentity) -> None:
    info = {"name": identity.name, "version": identity.version}
    if "serverInfo" in result:
        result["serverInfo"] = info
    else:
        result["_meta"] = {**result["_meta"], SERVER_KEY: info}
    if identity.instructions:
        result["instructions"] = identity.instructions


def _viewer_from_request(request: McpRequest) -> Viewer:
    client = request.client
    features: Mapping[str, Any] = client.features if client.client else TASKS_ONLY
    if not request.revision.has_sessions:
        features = request.params["_meta"][CAPABILITIES_KEY]
    return Viewer(client.principal, client.client, client.door, request.revision.name, features)


def encode_unsupported(id: rpc.Id, requested: Any) -> bytes:
    requested = str(requested)[:40]
    return rpc.encode_error(
        id,
        UNSUPPORTED_VERSION,
        f"unsupported protocol version {requested!r}, or not requested in its own way",
        {"supported": list(NAMES), "requested": requested},
    )


def _find_client_name(request: McpRequest) -> str:
    if request.revision.has_sessions:
        return request.client.client_name
    return find_client_name(request.params["_meta"].get(CLIENT_KEY))


async def _answer_ping(request: McpRequest) -> bytes:
    return rpc.encode_result(request.id, {})


async def _set_log_level(request: McpRequest) -> bytes:
    level = request.params.get("level")
    if level not in LEVELS:
        problem = f'"level" must be one of {", ".join(LEVELS)}'
        return rpc.encode_error(request.id, rpc.INVALID_PARAMS, problem)
    request.client.log_level = level
    return rpc.encode_result(request.id, {})
