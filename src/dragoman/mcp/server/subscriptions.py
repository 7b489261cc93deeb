"""Notifies clients of changed lists and resources, and answers the methods that subscribe to them.

Clients with a session are notified over it, once they have joined. Clients of 2026-07-28 send
`subscriptions/listen`, a request whose response comes when the hub stops; until then it receives
what it asked for and nothing else. Subscribing to a resource is a call like any other, so that
guards judge it, and so is unsubscribing. With the end of a session all its subscriptions end, which
`ClientGone` announces.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from dragoman.core import events
from dragoman.core.background import Background, resolve
from dragoman.core.call import NOTHING
from dragoman.core.errors import HubError, Overloaded, ShuttingDown
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.principal import Principal
from dragoman.core.resource_uris import MAX_URI, TOO_LONG
from dragoman.core.scopes import REGISTRY
from dragoman.core.tool import PROMPT, RESOURCE, SUBSCRIPTION, TEMPLATE, TOOL, Tool
from dragoman.core.tool_filter import View
from dragoman.core.urls import render_uri
from dragoman.mcp.protocol import revisions
from dragoman.mcp.protocol.errors import encode_error
from dragoman.mcp.protocol.notifications import owner_key
from dragoman.mcp.protocol.translate import select_meta
from dragoman.mcp.server import client_questions
from dragoman.mcp.server.client_state import ClientState, McpRequest, Push, find_client_name
from dragoman.mcp.server.connected_clients import ConnectedClients
from dragoman.mcp.server.list_pages import ListPages
from dragoman.mcp.server.notify_throttle import NotifyThrottle
from dragoman.mcp.server.progress import DEFAULT_LEVEL, encode_note, is_wanted
from dragoman.mcp.server.tasks import (
    McpTasks,
    TaskSubscription,
    ToolTask,
    declares_tasks,
    find_task_ids_error,
    missing_extension_error,
    render_detailed,
)
from dragoman.wire import rpc

log = logging.getLogger(__name__)

CHANGE_PAUSE = 0.05
"""Seconds in which several changes of a list become one notification."""
ANNOUNCE_PAUSE = 1.0
"""Seconds between two notifications of a list that has not changed."""
MAX_LOG_BYTES = 64 * 1024
"""Longer log lines that belong to no call are not sent to clients."""
RETRY_SECONDS = 1.0
"""After this time a client that did not read is sent its messages again."""
MAX_FOLLOWED = 1_000
"""Resources that one session, or one request to listen, may subscribe to."""
MAX_LISTENS = 32
"""Requests to listen that one connection may have open."""
MAX_STREAMS = 20_000
MAX_LATE = 1_100
"""Messages kept for a stream whose client does not read."""
AT_ONCE = 16
MAX_SLASHES = 64

_CHANGED = {
    TOOL: "notifications/tools/list_changed",
    PROMPT: "notifications/prompts/list_changed",
    RESOURCE: "notifications/resources/list_changed",
    TEMPLATE: "notifications/resources/list_changed",
}
_ENCODED = {method: rpc.encode_notification(method) for method in _CHANGED.values()}
_FILTER = {
    "toolsListChanged": _CHANGED[TOOL],
    "promptsListChanged": _CHANGED[PROMPT],
    "resourcesListChanged": _CHANGED[RESOURCE],
}
_UPDATED = "notifications/resources/updated"
MAX_JUDGED = 64
"""Views that are compared for a change; the clients of further views are notified anyway."""
Snapshot = tuple[tuple[Tool, ...], int]
"""The tools of a catalog, and the version of the policies."""


class ListenStream:
    """One open `subscriptions/listen`."""

    __slots__ = (
        "client", "early", "ended", "features", "id", "kinds", "push", "revision", "subscribed",
        "tasks", "unsent",
    )  # fmt: skip

    def __init__(
        self, request: McpRequest, push: Push, kinds: frozenset[str], features: Mapping[str, Any]
    ) -> None:
        self.id = request.id
        self.client = request.client
        self.revision = request.revision
        self.push = push
        self.kinds = kinds
        """The methods of the notifications of changed lists that it wants."""
        self.features = features
        self.subscribed: dict[str, str] = {}
        self.tasks: TaskSubscription | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.early: dict[str, Mapping[str, Any]] | None = {}
        """Resources that changed before the acknowledgement, which must be the first message."""
        self.unsent: dict[bytes, None] | None = None
        """Messages that could not be sent yet."""

    def encode(self, method: str, **params: Any) -> bytes:
        meta = {**params.get("_meta", NOTHING), revisions.SUBSCRIPTION_KEY: self.id}
        return rpc.encode_notification(method, {**params, "_meta": meta})

    def send_task(self, task: ToolTask) -> bool:
        detailed = render_detailed(task, self.revision, self.features)
        return self.push(self.encode("notifications/tasks", **detailed))


Subscriber = ClientState | ListenStream


class Subscriptions:
    def __init__(
        self, hub: Hub, tasks: McpTasks, lists: ListPages, clients: ConnectedClients
    ) -> None:
        self._hub = hub
        self._lists = lists
        self._tasks = tasks
        self._joined: set[ClientState] = set()
        self._clients = clients
        self._streams: set[ListenStream] = set()
        self._subscribers: dict[str, dict[Subscriber, str]] = {}
        """The subscribers of each resource, and the name that each has for it."""
        self._known: dict[str, Snapshot] = {}
        """Each list as of the last notification."""
        self._changed: set[str] = set()
        self._notify_timer: asyncio.TimerHandle | None = None
        self._behind: set[ListenStream] = set()
        """Streams with unsent messages."""
        self._retry_timer: asyncio.TimerHandle | None = None
        self._background = Background("MCP subscriptions")
        self._closed = False
        self._throttle = NotifyThrottle(self._notify_updated)
        self._stops = [
            catalog.on_change(partial(self._on_change, kind))
            for kind, catalog in hub.catalogs.items()
        ]
        self._announced: dict[str, set[str]] = {}
        """Kinds, and the targets that announced a change of such a list."""
        self._owners: dict[str, set[str]] = {}
        """Methods, and the clients whose own list has changed."""
        self._notified_at: dict[str, float] = {}
        """When clients were last notified, by method."""
        hub.bus.observe(events.ResourceUpdated, self._on_updated)
        hub.bus.observe(events.ClientListChanged, self._notify_owner)
        hub.bus.observe(events.ListAnnounced, self._on_announced)
        hub.bus.observe(events.ServerLogged, self._notify_log)
        hub.bus.observe(events.ElicitationCompleted, self._notify_completed)

    # --- sessions ----------------------------------------------------------------------------

    def join(self, client: ClientState) -> None:
        """Starts to notify a client of changes; its handshake is complete."""
        if not (self._closed or client.closed):
            self._remember_lists()
            self._joined.add(client)
            self._clients.add(client)

    def begin_sessions(self, client: ClientState) -> None:
        """Has servers that ask their clients at the start of a session ask this one now, before its
        first call; only those of which it sees anything."""
        visibility = self._hub.visibility
        if visibility is not None and not (self._closed or client.closed):
            may_use = partial(self._sees_target, client)
            visibility.begin_sessions(client.build_viewer(), may_use)

    def resume(self, client: ClientState, uris: Sequence[str]) -> None:
        """Subscribes a client to resources again, whose session another hub had, and tells it that
        what it knows may have changed meanwhile."""
        for message in dict.fromkeys(_ENCODED.values()):
            client.notify(message)
        if uris and not self._closed:
            self._background.spawn(self._subscribe_again(client, uris[:MAX_FOLLOWED]))

    async def _subscribe_again(self, client: ClientState, uris: Sequence[str]) -> None:
        for uri in uris:
            try:
                await self._subscribe(client, uri, {})
            except HubError as error:
                log.info("subscribing to %r again failed: %s", render_uri(uri[:200]), error)
            except Exception:
                log.exception("subscribing to %r again failed", render_uri(uri[:200]))
            else:
                client.notify(rpc.encode_notification(_UPDATED, {"uri": uri}))

    def leave(self, client: ClientState) -> None:
        """Forgets a client whose session has ended, joined or not."""
        if client.closed:
            return
        client.closed = True
        self._joined.discard(client)
        self._clients.remove(client)
        client_questions.drop_pending(client)
        self._forget(client)
        if client.client:
            self._hub.bus.emit(events.ClientGone(client.client))

    def close(self) -> None:
        """Ends every stream with its result and sends no more notifications."""
        self._closed = True
        for stop in self._stops:
            stop()
        self._stops.clear()
        self._throttle.close()
        for timer in (self._notify_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        for stream in self._streams:
            resolve(stream.ended, None)
        self._background.cancel()

    # --- resources/subscribe and /unsubscribe --------------------------------------------------

    async def subscribe(self, request: McpRequest) -> bytes:
        uri, client = request.params.get("uri"), request.client
        if not isinstance(uri, str) or len(uri) > MAX_URI:
            problem = TOO_LONG if isinstance(uri, str) else _NO_URI
            return rpc.encode_error(request.id, rpc.INVALID_PARAMS, problem)
        if not client.client:
            problem = "subscriptions need a session; begin one with initialize"
            return rpc.encode_error(request.id, rpc.INVALID_REQUEST, problem)
        try:
            await self._subscribe(client, uri, request.params)
        except HubError as error:
            return encode_error(request.id, error, request.revision, uri)
        return rpc.encode_result(request.id, {})

    async def unsubscribe(self, request: McpRequest) -> bytes:
        uri, client = request.params.get("uri"), request.client
        if not isinstance(uri, str) or len(uri) > MAX_URI:
            problem = TOO_LONG if isinstance(uri, str) else _NO_URI
            return rpc.encode_error(request.id, rpc.INVALID_PARAMS, problem)
        name = self._hub.find(uri, client.view, SUBSCRIPTION).name
        if client.subscribed.pop(name, None) is not None:
            self._drop(name, client)
            await self._unsubscribe(client, [uri])
        return rpc.encode_result(request.id, {})

    # --- subscriptions/listen ------------------------------------------------------------------

    def list_sessionless(self) -> list[ClientState]:
        """Lists the clients without a session that listen, one for each stream."""
        return [stream.client for stream in self._streams if not stream.client.client]

    async def listen(self, request: McpRequest) -> bytes:
        """Sends notifications until the hub stops; a cancelled request gets no response."""
        stream = self._parse_listen(request)
        if not isinstance(stream, ListenStream):
            return stream
        id, client = request.id, request.client
        client.listens += 1
        self._remember_lists()
        self._streams.add(stream)
        try:
            if not await self._open(stream, request.params):
                return rpc.encode_error(
                    id, rpc.INTERNAL_ERROR, "the acknowledgement could not be sent"
                )
            del request  # the stream may be open for days
            await stream.ended
        finally:
            client.listens -= 1
            self._close_stream(stream)
        return rpc.encode_result(
            id, {"resultType": "complete", "_meta": {**_OWN, revisions.SUBSCRIPTION_KEY: id}}
        )

    def _parse_listen(self, request: McpRequest) -> ListenStream | bytes:
        """Returns the stream, not open yet, or the error response."""
        params, client, push = request.params, request.client, request.push
        wanted = params.get("notifications")
        problem = _find_flaw(wanted)
        if push is None:
            problem = problem or "subscriptions/listen needs Accept: text/event-stream"
        if problem is not None or push is None or not isinstance(wanted, dict):
            return rpc.encode_error(request.id, rpc.INVALID_PARAMS, problem or "")
        features = client_questions.parse_capabilities(
            params["_meta"][revisions.CAPABILITIES_KEY], request.revision
        )
        if "taskIds" in wanted and not declares_tasks(features):
            return missing_extension_error(request.id)
        if self._closed:
            stopping = ShuttingDown("the hub is shutting down; try again later")
            return encode_error(request.id, stopping, request.revision)
        if client.listens >= MAX_LISTENS or len(self._streams) >= MAX_STREAMS:
            full = Overloaded("too many open subscriptions/listen; try again later")
            return encode_error(request.id, full, request.revision)
        kinds = frozenset(method for key, method in _FILTER.items() if wanted.get(key) is True)
        if not client.client:  # made for this request
            client.client_name = find_client_name(params["_meta"].get(revisions.CLIENT_KEY))
        return ListenStream(request, push, kinds, features)

    async def _open(self, stream: ListenStream, params: Mapping[str, Any]) -> bool:
        """Subscribes and acknowledges; False if the acknowledgement could not be sent."""
        wanted = params["notifications"]
        granted: dict[str, Any] = {
            key: True for key, method in _FILTER.items() if method in stream.kinds
        }
        uris = list(dict.fromkeys(wanted.get("resourceSubscriptions") or ()))
        if permitted := await self._subscribe_all(stream, uris, params):
            granted["resourceSubscriptions"] = permitted
        if "taskIds" in wanted:
            stream.tasks = await self._tasks.subscribe(
                stream.id, params, stream.client, stream.send_task, stream.push
            )
            granted["taskIds"] = stream.tasks.ids
        acknowledged = "notifications/subscriptions/acknowledged"
        if not stream.push(stream.encode(acknowledged, notifications=granted)):
            return False
        early, stream.early = stream.early or NOTHING, None
        for uri, meta in early.items():
            self._send(stream, stream.encode(_UPDATED, uri=uri, _meta=meta))
        if stream.tasks is not None:
            stream.tasks.begin()
        return True

    def _close_stream(self, stream: ListenStream) -> None:
        if stream.tasks is not None:
            stream.tasks.stop()
        self._streams.discard(stream)
        self._behind.discard(stream)
        uris = self._forget(stream)
        if uris and not self._closed:
            self._background.spawn(self._unsubscribe(stream, uris))

    async def _subscribe_all(
        self, stream: ListenStream, uris: list[str], params: Mapping[str, Any]
    ) -> list[str]:
        """Returns those that are permitted; the client learns nothing about the others."""
        permitted = []
        for start in range(0, len(uris), AT_ONCE):
            some = uris[start : start + AT_ONCE]
            calls = (self._subscribe(stream, uri, params) for uri in some)
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for uri, outcome in zip(some, outcomes, strict=True):
                if outcome is None:
                    permitted.append(uri)
                elif not isinstance(outcome, HubError):
                    log.error("subscribing to %r failed", render_uri(uri[:200]), exc_info=outcome)
        return permitted

    # --- subscribers ---------------------------------------------------------------------------

    async def _subscribe(self, subscriber: Subscriber, uri: str, params: Mapping[str, Any]) -> None:
        client = _find_client(subscriber)
        name = self._hub.find(uri, client.view, SUBSCRIPTION).name
        if name in subscriber.subscribed:
            return
        if len(subscriber.subscribed) >= MAX_FOLLOWED:
            raise Overloaded(f"too many subscriptions: at most {MAX_FOLLOWED} resources")
        await self._call(subscriber, uri, True, select_meta(params))
        if client.closed or name in subscriber.subscribed:  # meanwhile
            if not self._closed:
                self._background.spawn(self._unsubscribe(subscriber, [uri]))
            return
        subscriber.subscribed[name] = uri
        self._subscribers.setdefault(name, {})[subscriber] = uri

    async def _unsubscribe(self, subscriber: Subscriber, uris: list[str]) -> None:
        for uri in uris:
            try:
                await self._call(subscriber, uri, False)
            except HubError as error:
                log.info("unsubscribing from %r failed: %s", render_uri(uri[:200]), error)
            except Exception:
                log.exception("unsubscribing from %r failed", render_uri(uri[:200]))

    async def _call(
        self, subscriber: Subscriber, uri: str, follow: bool, meta: Mapping[str, Any] | None = None
    ) -> None:
        client = _find_client(subscriber)
        options = CallOptions(
            kind=SUBSCRIPTION,
            door=client.door,
            view=client.view,
            meta=meta,
            client=client.client,
            revision=subscriber.revision.name,
            features=subscriber.features,
        )
        await self._hub.call(client.principal, uri, {"follow": follow}, options)

    def _drop(self, name: str, subscriber: Subscriber) -> None:
        subscribers = self._subscribers.get(name, {})
        subscribers.pop(subscriber, None)
        if not subscribers:
            self._subscribers.pop(name, None)

    def _forget(self, subscriber: Subscriber) -> list[str]:
        """Drops its subscriptions and returns their addresses."""
        for name in subscriber.subscribed:
            self._drop(name, subscriber)
        uris = list(subscriber.subscribed.values())
        subscriber.subscribed.clear()
        return uris

    # --- notifications -------------------------------------------------------------------------

    def _remember_lists(self) -> None:
        """Before the first listener: it is notified of changes from here on."""
        if not self._joined and not self._streams:
            self._known = {kind: self._take_snapshot(kind) for kind in self._hub.catalogs}

    def _take_snapshot(self, kind: str) -> Snapshot:
        tools, own = self._hub.catalogs[kind].list_tools(), self._hub.list_client_only_names(kind)
        if own:  # tools of single clients are announced to those alone
            tools = tuple(tool for tool in tools if tool.name not in own)
        return tools, self._hub.authorizer.version

    def _notify_owner(self, event: events.ClientListChanged) -> None:
        if self._joined or self._streams:
            self._owners.setdefault(_CHANGED[event.kind], set()).add(event.owner)
            self._notify_soon(CHANGE_PAUSE)

    def _on_change(self, kind: str) -> None:
        if self._joined or self._streams:
            self._changed.add(kind)
            self._notify_soon(CHANGE_PAUSE)

    def _on_announced(self, event: events.ListAnnounced) -> None:
        """A server announces a changed list, even if the hub finds it unchanged."""
        if self._joined or self._streams:
            self._announced.setdefault(event.kind, set()).add(event.target)
            self._notify_soon(CHANGE_PAUSE)

    def _notify_soon(self, pause: float) -> None:
        if self._notify_timer is None and not self._closed:
            pause = max(pause, self._throttle.owed)
            self._notify_timer = asyncio.get_running_loop().call_later(
                pause, self._throttle.run, self._notify_changes
            )

    def _notify_changes(self) -> None:
        self._notify_timer = None
        changed: dict[str, bool] = {}
        """The methods, and whether the list has changed for every client."""
        targets: dict[str, set[str]] = {}
        """The kinds of such lists, and the targets whose entries have changed."""
        for kind in self._changed:
            before, now = self._known.get(kind), self._take_snapshot(kind)
            if now == before:
                continue
            self._known[kind] = now
            is_other = before is None or before[0] != now[0]
            if is_other:
                targets[kind] = _find_changed_targets(before[0] if before else (), now[0])
            changed[_CHANGED[kind]] = changed.get(_CHANGED[kind], False) or is_other
        self._changed.clear()
        owners, self._owners = self._owners, {}
        for method in sorted({*changed, *owners}):
            concerns: Callable[[ClientState], bool] = _is_never
            if method in changed:
                self._notified_at[method] = monotonic()
                concerns = self._build_view_check(method)
            if changed.get(method):
                found = {kind: targets[kind] for kind in targets if _CHANGED[kind] == method}
                concerns = partial(self._needs_notice, concerns, found)
            self._notify_list(method, partial(_is_owner_or, concerns, owners.get(method, ())))
        self._notify_announced(changed)

    def _needs_notice(
        self,
        check: Callable[[ClientState], bool],
        changed: Mapping[str, Collection[str]],
        client: ClientState,
    ) -> bool:
        """Of a changed catalog: a client of a view learns of changes in that view alone, and one
        that has a list of its own from each of the `changed` targets is notified of that alone."""
        if not all(self._has_own_lists(kind, changed[kind], client) for kind in changed):
            return not client.view.name or check(client)
        return False

    def _has_own_lists(self, kind: str, targets: Collection[str], client: ClientState) -> bool:
        visibility = self._hub.visibility
        if visibility is None or not client.client:
            return False
        return visibility.has_own_lists(kind, targets, client.build_viewer())

    def _notify_list(self, method: str, concerns: Callable[[ClientState], bool]) -> None:
        for client in tuple(self._joined):
            if concerns(client):
                client.notify(_ENCODED[method])
        for stream in tuple(self._streams):
            if method in stream.kinds and stream.early is None and concerns(stream.client):
                self._send(stream, stream.encode(method))

    def _notify_announced(self, notified: Collection[str]) -> None:
        """Notifies of lists that a server announced as changed though they are not: only clients
        that see something of that server, and not often."""
        announced, self._announced = self._announced, {}
        for kind, targets in announced.items():
            method = _CHANGED[kind]
            if method in notified:
                continue
            pause = self._notified_at.get(method, float("-inf")) + ANNOUNCE_PAUSE - monotonic()
            if pause > 0:
                self._announced[kind] = targets
                self._notify_soon(pause)
            else:
                self._notified_at[method] = monotonic()
                self._notify_list(method, partial(self._concerns_announced, kind, targets))

    def _concerns_announced(self, kind: str, targets: set[str], client: ClientState) -> bool:
        if self._has_own_lists(kind, targets, client):
            return False
        return self._sees_any(kind, targets, client)

    def _sees_any(self, kind: str, targets: Collection[str], client: ClientState) -> bool:
        catalog, sees = self._hub.catalogs[kind], self._hub.authorizer.can_see
        return any(
            client.view.includes(tool) and sees(client.principal, tool, client.door)
            for target in targets
            for tool in catalog.list_offered(target)
        )

    def _build_view_check(self, method: str) -> Callable[[ClientState], bool]:
        """For a change of the policies alone: which clients see another list than before."""
        kinds = [kind for kind, name in _CHANGED.items() if name == method]
        found: dict[tuple[Principal, str, View], bool] = {}

        def has_changed(client: ClientState) -> bool:
            key = client.principal, client.door, client.view
            if key not in found:
                found[key] = len(found) >= MAX_JUDGED or any(
                    self._lists.has_changed(kind, *key) for kind in kinds
                )
            return found[key]

        return has_changed

    def _notify_completed(self, event: events.ElicitationCompleted) -> None:
        client = self._clients.find(event.client)
        if client is not None:
            client.notify(client_questions.encode_elicitation_complete(event.id, event.meta))

    def _notify_log(self, event: events.ServerLogged) -> None:
        """Sends a log line that belongs to no call. A line from a client's own connection goes to
        that client. A line from a shared connection may be about any client's call: it goes to
        clients that asked for a level, see something of the server, and may read its log anyway."""
        message: bytes | None = None
        for client in tuple(self._joined):
            if event.client is None:
                level = client.log_level
            elif event.client == client.client:
                level = client.log_level or DEFAULT_LEVEL
            else:
                continue
            if level is None or not is_wanted(event.note, level):
                continue
            if event.client is None and not self._may_read_log(event.server, client):
                continue
            message = message or encode_note(event.note)
            if len(message) <= MAX_LOG_BYTES:
                client.notify(message)

    def _may_read_log(self, server: str, client: ClientState) -> bool:
        if not self._hub.authorizer.decide_action(client.principal, REGISTRY).allowed:
            return False
        return self._sees_target(client, server)

    def _sees_target(self, client: ClientState, target: str) -> bool:
        return any(self._sees_any(kind, [target], client) for kind in self._hub.catalogs)

    def _on_updated(self, event: events.ResourceUpdated) -> None:
        name = next((one for one in _list_parents(event.name) if one in self._subscribers), None)
        if name is not None and not self._closed:
            self._throttle.add(event.name, name, event.meta)

    def _notify_updated(self, changed: str, name: str, meta: Mapping[str, Any]) -> None:
        for subscriber, uri in tuple(self._subscribers.get(name, {}).items()):
            address = uri + changed[len(name) :]
            if isinstance(subscriber, ClientState):
                params = {"uri": address, "_meta": meta} if meta else {"uri": address}
                subscriber.notify(rpc.encode_notification(_UPDATED, params))
            elif subscriber.early is None:
                self._send(subscriber, subscriber.encode(_UPDATED, uri=address, _meta=meta))
            elif len(subscriber.early) < MAX_LATE:
                subscriber.early[address] = meta

    def _send(self, stream: ListenStream, message: bytes) -> None:
        if stream.unsent is None and stream.push(message):
            return
        if stream.unsent is None:
            stream.unsent = {}
        if len(stream.unsent) < MAX_LATE:
            stream.unsent[message] = None
        self._behind.add(stream)
        self._retry_later()

    def _retry_later(self) -> None:
        if self._retry_timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._retry_timer = loop.call_later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        behind, self._behind = self._behind, set()
        for stream in behind:
            unsent = stream.unsent or {}
            while unsent and stream.push(next(iter(unsent))):
                del unsent[next(iter(unsent))]
            if unsent:
                self._behind.add(stream)
            else:
                stream.unsent = None
        if self._behind:
            self._retry_later()


_NO_URI = 'invalid "uri": must be the address of a resource'
_OWN = {revisions.SERVER_KEY: revisions.build_server_info(revisions.LATEST)}


def _find_flaw(wanted: Any) -> str | None:
    """Finds what is wrong with the `notifications` of a `subscriptions/listen`."""
    if not isinstance(wanted, dict):
        return '"notifications" must be an object that says what to listen for'
    if not all(isinstance(wanted.get(key, False), bool) for key in _FILTER):
        return f"{', '.join(_FILTER)} must be true or false"
    uris = wanted.get("resourceSubscriptions", [])
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
        return '"resourceSubscriptions" must be a list of addresses'
    if any(len(uri) > MAX_URI for uri in uris):
        return TOO_LONG
    if len(uris) > MAX_FOLLOWED:
        return f'"resourceSubscriptions" is too long: at most {MAX_FOLLOWED} addresses'
    return find_task_ids_error(wanted)


def _find_changed_targets(before: Sequence[Tool], now: Sequence[Tool]) -> set[str]:
    """Returns the targets whose tools have changed."""
    known, found = {id(tool) for tool in before}, {id(tool) for tool in now}
    return {tool.target.name for tool in before if id(tool) not in found} | {
        tool.target.name for tool in now if id(tool) not in known
    }


def _is_never(client: ClientState) -> bool:
    return False


def _is_owner_or(
    concerns: Callable[[ClientState], bool], owners: Collection[str], client: ClientState
) -> bool:
    return owner_key(client.client, client.principal) in owners or concerns(client)


def _list_parents(name: str) -> Iterator[str]:
    """Yields the resource itself, then its parents. A subscriber of a folder is notified of its
    contents, except of a resource that has a subscriber of its own: others may not know of it."""
    yield name
    end = len(name)
    for _ in range(MAX_SLASHES):
        end = name.rfind("/", 0, end)
        if end <= 0:
            return
        if end + 1 < len(name):
            yield name[: end + 1]
        yield name[:end]


def _find_client(subscriber: Subscriber) -> ClientState:
    return subscriber.client if isinstance(subscriber, ListenStream) else subscriber
