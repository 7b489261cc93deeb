"""The face that MCP clients talk to, free of transports: a message in, the answer out.

Shapes everything for the revision of the one who asks. Does nothing itself: calls go to
`Hub.call`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any

from dragoman.core.call import LEVELS
from dragoman.core.events import RootsChanged
from dragoman.core.hub import Hub
from dragoman.core.ports import ListRefresher, Viewer
from dragoman.core.startup import Startup
from dragoman.core.trace import parse_trace
from dragoman.mcp.protocol.elicitation import TASKS_ONLY, add_task_support
from dragoman.mcp.protocol.errors import encode_crash
from dragoman.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    LATEST,
    MODERN,
    MODERN_KEY,
    NAMES,
    REVISIONS,
    Revision,
    build_discover_result,
    build_initialize_result,
)
from dragoman.mcp.server import client_questions, list_pages, results
from dragoman.mcp.server.call_handler import CallHandler
from dragoman.mcp.server.client_state import ClientState, Push
from dragoman.mcp.server.connected_clients import ConnectedClients
from dragoman.mcp.server.header_check import find_named_version
from dragoman.mcp.server.introduction import Budget, Introduction
from dragoman.mcp.server.subscriptions import Subscriptions
from dragoman.mcp.server.tasks import METHODS as TASK_METHODS
from dragoman.mcp.server.tasks import McpTasks, ToolTaskRegistry, build_task_registry
from dragoman.wire import rpc

UNSUPPORTED_VERSION = -32022
ROOTS_CHANGED = "notifications/roots/list_changed"
MAX_INFO = 200
MAX_BATCH = 100
INSTRUCTIONS: Budget = 4_000, 16_000
NO_FIELDS: Mapping[bytes, bytes] = MappingProxyType({})
"""Of what came by a transport that has no headers."""
NO_NAMES: frozenset[str] = frozenset()
Begun = bytes | Coroutine[Any, Any, bytes] | None


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
    ) -> None:
        """`key` seals cursors: without one they are good until the hub ends. `style_of` says how
        names are written for the client that calls itself so. After `task_after` seconds a call
        becomes a task, for a client that knows these. `instructions` says how much clients get of
        the instructions of servers."""
        self.hub = hub
        self.lists = list_pages.ListPages(hub, key or os.urandom(32), list_aliases)
        self.tasks = McpTasks(
            build_task_registry() if tasks is None else tasks,
            task_after,
            question_seconds,
            self._permits,
        )
        self.subscriptions = Subscriptions(
            hub, self.tasks, self.lists, ConnectedClients() if clients is None else clients
        )
        self.call_handler = CallHandler(hub, question_seconds, self.tasks, bridge_errors)
        self._style_of = style_of
        self._introduction = Introduction(hub, instructions)

    def _permits(self, peer: ClientState, action: str, name: str) -> bool:
        return self.hub.can_act_on_task(peer.principal, action, name, peer.view)

    async def answer(
        self,
        message: Any,
        peer: ClientState,
        push: Push | None = None,
        fields: Mapping[bytes, bytes] = NO_FIELDS,
    ) -> bytes | None:
        """The encoded answer; None where none is due."""
        begun = self.begin(message, peer, push, fields)
        return begun if begun is None or isinstance(begun, bytes) else await begun

    def begin(
        self,
        message: Any,
        peer: ClientState,
        push: Push | None = None,
        fields: Mapping[bytes, bytes] = NO_FIELDS,
    ) -> Begun:
        """Bytes are the answer; None, that none is due (a notification, or the client's answer to
        what was pushed to it, which has reached who waits for it by now). What takes time (calls,
        reads, subscriptions) is still to be awaited; cancelling that ends it. `fields` are the
        headers that the message came with."""
        problem = rpc.find_flaw(message)
        if problem is not None:
            return rpc.encode_error(rpc.find_id(message), rpc.INVALID_REQUEST, problem)
        try:
            if "id" not in message or "method" not in message:
                if "method" not in message:
                    client_questions.deliver_response(message, peer)
                elif message["method"] == ROOTS_CHANGED and peer.client:
                    self.hub.bus.emit(RootsChanged(peer.client))
                return None
            id, method = message["id"], message["method"]
            params = message.get("params") or {}
            revision = find_revision(params, peer)
            if revision is None:
                return encode_unsupported(id, params["_meta"][MODERN_KEY])
            if not revision.has_sessions and (problem := _lacking(params)):
                return rpc.encode_error(id, rpc.INVALID_PARAMS, problem)
            if method not in revision.methods:
                problem = f'method "{method[:100]}" is not known here'
                return rpc.encode_error(id, rpc.METHOD_NOT_FOUND, problem)
            kind = results.METHODS.get(method)
            if kind is not None:
                carried = parse_trace(fields, _beside(params))
                return self.call_handler.answer(id, kind, params, peer, revision, push, carried)
            return self._other(id, method, params, peer, revision, push)
        except Exception:
            answer = encode_crash(rpc.find_id(message))
            return answer if "id" in message and "method" in message else None

    def _other(
        self,
        id: rpc.Id,
        method: str,
        params: Mapping[str, Any],
        peer: ClientState,
        revision: Revision,
        push: Push | None,
    ) -> Begun:
        kind = list_pages.METHODS.get(method)
        if kind is not None:
            startup = self.hub.startup
            if startup is not None and not startup.is_settled:
                return self._list_when_settled(startup, id, kind, params, peer, revision)
            refresher = self.hub.refresher
            if refresher is not None and "cursor" not in params and refresher.is_stale(kind):
                return self._list_again(refresher, id, kind, params, peer, revision)
            return self._list_to(id, kind, params, peer, revision)
        if method == "initialize":
            return self._introduce(id, _shaken(params, peer), peer)
        if method == "server/discover":
            return self._introduce(id, build_discover_result(), peer)
        if method == "logging/setLevel":
            return _set_level(id, params, peer)
        if method == "resources/subscribe":
            return self.subscriptions.subscribe(id, params, peer, revision)
        if method == "resources/unsubscribe":
            return self.subscriptions.unsubscribe(id, params, peer)
        if method == "subscriptions/listen":
            return self.subscriptions.listen(id, params, peer, push)
        if method in TASK_METHODS:
            features = (
                params["_meta"][CAPABILITIES_KEY] if not revision.has_sessions else peer.features
            )
            return self.tasks.handle(id, method, params, peer, revision, features, push)
        return rpc.encode_result(id, {})  # ping

    def _introduce(self, id: rpc.Id, result: dict[str, Any], peer: ClientState) -> Begun:
        """Adds what the servers behind the hub say of themselves."""
        startup = self.hub.startup
        if startup is not None and not startup.is_settled:
            return self._introduce_when_settled(startup, id, result, peer)
        return rpc.encode_result(id, self._with_servers(result, peer))

    async def _introduce_when_settled(
        self, startup: Startup, id: rpc.Id, result: dict[str, Any], peer: ClientState
    ) -> bytes:
        """A client reads instructions once, so they are worth the wait that its first list takes
        anyway."""
        await startup.wait()
        return rpc.encode_result(id, self._with_servers(result, peer))

    def _with_servers(self, result: dict[str, Any], peer: ClientState) -> dict[str, Any]:
        seen_by = peer.principal, peer.view, peer.door
        if text := self._introduction.render_instructions(*seen_by):
            result["instructions"] = text
        revision = REVISIONS[result.get("protocolVersion", LATEST.name)]
        extensions = self._introduction.merge_extensions(*seen_by)
        if extensions and revision.has_extensions:
            able = result["capabilities"]
            able["extensions"] = {**extensions, **able.get("extensions", {})}
        return result

    async def _list_when_settled(
        self,
        startup: Startup,
        id: rpc.Id,
        kind: str,
        params: Mapping[str, Any],
        peer: ClientState,
        revision: Revision,
    ) -> bytes:
        """Many clients list once and never again: the first list after a start is worth a wait."""
        await startup.wait()
        return await self._list_prepared(id, kind, params, peer, revision)

    async def _list_again(
        self,
        refresher: ListRefresher,
        id: rpc.Id,
        kind: str,
        params: Mapping[str, Any],
        peer: ClientState,
        revision: Revision,
    ) -> bytes:
        await refresher.refresh(kind)
        return await self._list_prepared(id, kind, params, peer, revision)

    def _list_to(
        self,
        id: rpc.Id,
        kind: str,
        params: Mapping[str, Any],
        peer: ClientState,
        revision: Revision,
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """What this client is listed; what servers list to such clients may have to be found out
        first."""
        visibility = self.hub.visibility
        if visibility is None:
            return self._list(id, kind, params, peer, revision, NO_NAMES)
        viewer = _viewer_of(params, peer, revision)
        pending = visibility.prepare(kind, viewer)
        if pending is None:
            hidden = visibility.list_hidden(kind, viewer)
            return self._list(id, kind, params, peer, revision, hidden)
        return self._list_after(pending, id, kind, params, peer, revision)

    async def _list_prepared(
        self,
        id: rpc.Id,
        kind: str,
        params: Mapping[str, Any],
        peer: ClientState,
        revision: Revision,
    ) -> bytes:
        begun = self._list_to(id, kind, params, peer, revision)
        return begun if isinstance(begun, bytes) else await begun

    async def _list_after(
        self,
        pending: Awaitable[None],
        id: rpc.Id,
        kind: str,
        params: Mapping[str, Any],
        peer: ClientState,
        revision: Revision,
    ) -> bytes:
        await pending
        hidden, visibility = NO_NAMES, self.hub.visibility
        if visibility is not None:
            hidden = visibility.list_hidden(kind, _viewer_of(params, peer, revision))
        return self._list(id, kind, params, peer, revision, hidden)

    def _list(
        self,
        id: rpc.Id,
        kind: str,
        params: Mapping[str, Any],
        peer: ClientState,
        revision: Revision,
        hidden: frozenset[str],
    ) -> bytes:
        style = self._style_of(peer.client_name if revision.has_sessions else _name_in(params))
        cursor = params.get("cursor")
        caller, view = peer.principal, peer.view
        page = self.lists.find_page(kind, cursor, caller, view, revision, style, peer.door, hidden)
        if page is None:
            return rpc.encode_error(
                id, rpc.INVALID_PARAMS, '"cursor" is none that was given out here'
            )
        return rpc.wrap_result(id, page)

    # --- sessions ----------------------------------------------------------------------------

    def join(self, peer: ClientState) -> None:
        """A client that shakes hands is ready: from now on it is told of changes (`peer.tell`)."""
        self.subscriptions.join(peer)

    def leave(self, peer: ClientState) -> None:
        """The session is over, joined or not: what was kept for it goes."""
        self.subscriptions.leave(peer)

    def close(self) -> None:
        """Ends every `subscriptions/listen` with its result; nothing is told any more."""
        self.subscriptions.close()


# --- requests -----------------------------------------------------------------------------------


def find_revision(params: Mapping[str, Any], peer: ClientState) -> Revision | None:
    """The revision a request is of; None for one that is unknown."""
    meta = params.get("_meta")
    version = meta.get(MODERN_KEY) if isinstance(meta, dict) else None
    if version is None:
        return peer.revision
    return REVISIONS[version] if version in MODERN else None


def _beside(params: Mapping[str, Any]) -> dict[str, Any] | None:
    meta = params.get("_meta")
    return meta if isinstance(meta, dict) else None


def _lacking(params: Mapping[str, Any]) -> str | None:
    """What every request of the new era must say of its sender."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or MODERN_KEY not in meta:
        return f'"_meta" needs "{MODERN_KEY}"'
    if not isinstance(meta.get(CAPABILITIES_KEY), dict):
        return f'"_meta" needs "{CAPABILITIES_KEY}"'
    return None


def _viewer_of(params: Mapping[str, Any], peer: ClientState, revision: Revision) -> Viewer:
    features: Mapping[str, Any] = peer.features if peer.client else TASKS_ONLY
    if not revision.has_sessions:
        features = params["_meta"][CAPABILITIES_KEY]
    return Viewer(peer.principal, peer.client, peer.door, revision.name, features)


def encode_unsupported(id: rpc.Id, requested: Any) -> bytes:
    requested = str(requested)[:40]
    return rpc.encode_error(
        id,
        UNSUPPORTED_VERSION,
        f"revision {requested!r} is not spoken here, or not asked for like this",
        {"supported": list(NAMES), "requested": requested},
    )


def _shaken(params: Mapping[str, Any], peer: ClientState) -> dict[str, Any]:
    """The answer to `initialize`, and what is kept of it."""
    result = build_initialize_result(params)
    peer.revision = REVISIONS[result["protocolVersion"]]
    features = client_questions.parse_capabilities(params.get("capabilities"), peer.revision)
    peer.features = add_task_support(features)
    peer.client_name = _named(params.get("clientInfo"))
    return result


def _name_in(params: Mapping[str, Any]) -> str:
    meta = params.get("_meta")
    return _named(meta.get(CLIENT_KEY)) if isinstance(meta, dict) else ""


def _named(client: Any) -> str:
    name = client.get("name") if isinstance(client, dict) else None
    return name[:MAX_INFO] if isinstance(name, str) else ""


def _set_level(id: rpc.Id, params: Mapping[str, Any], peer: ClientState) -> bytes:
    level = params.get("level")
    if level not in LEVELS:
        return rpc.encode_error(
            id, rpc.INVALID_PARAMS, f'"level" must be one of {", ".join(LEVELS)}'
        )
    peer.log_level = level
    return rpc.encode_result(id, {})


# --- batches ------------------------------------------------------------------------------------


async def answer_batch(
    face: McpServer,
    messages: list[Any],
    peer: ClientState,
    push: Push | None = None,
    running: MutableMapping[Any, Callable[[], Any]] | None = None,
    fields: Mapping[bytes, bytes] = NO_FIELDS,
) -> bytes | None:
    """2025-03-26 alone has batches; from a client of another revision a list is no message.
    `running` is given how to cancel each request that takes time, by the key of its id."""
    if not peer.revision.has_batches or not messages:
        return rpc.encode_error(None, rpc.INVALID_REQUEST, "a message is a JSON object, not a list")
    if len(messages) > MAX_BATCH:
        return rpc.encode_error(
            None, rpc.INVALID_REQUEST, f"a batch holds at most {MAX_BATCH} messages"
        )
    answers = await asyncio.gather(
        *(_answer_one(face, item, peer, push, running, fields) for item in messages)
    )
    due = [answer for answer in answers if answer is not None]
    return b"[" + b",".join(due) + b"]" if due else None


async def _answer_one(
    face: McpServer,
    message: Any,
    peer: ClientState,
    push: Push | None,
    running: MutableMapping[Any, Callable[[], Any]] | None,
    fields: Mapping[bytes, bytes],
) -> bytes | None:
    is_request = isinstance(message, dict) and "id" in message and "method" in message
    if is_request and message["method"] == "initialize":
        problem = "initialize must not be part of a batch; send it by itself"
        return rpc.encode_error(rpc.find_id(message), rpc.INVALID_REQUEST, problem)
    if is_request and find_named_version(message) is not None:
        # Its headers have to say what it is, and nobody has looked at those.
        problem = "2026-07-28 has no batches; send this request by itself"
        return rpc.encode_error(rpc.find_id(message), rpc.INVALID_REQUEST, problem)
    begun = face.begin(message, peer, push, fields)
    if begun is None or isinstance(begun, bytes):
        return begun
    if running is None:
        try:
            return await begun
        except Exception:
            return encode_crash(message["id"])
    key = rpc.build_key(message["id"])
    if key in running:
        begun.close()
        problem = "a request with this id is still under way"
        return rpc.encode_error(message["id"], rpc.INVALID_REQUEST, problem)
    task = asyncio.ensure_future(begun)
    running[key] = task.cancel
    try:
        await asyncio.wait([task])
    finally:
        task.cancel()  # with the batch
        del running[key]
    if task.cancelled():
        return None
    try:
        return task.result()
    except Exception:
        return encode_crash(message["id"])
