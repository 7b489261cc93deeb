"""What clients are told unasked: that a list has changed, that a resource they follow has.

Those that shake hands are told over their session, once they have joined. Those of the new era
listen: a request that is answered when the hub goes down, and until then told what it asked for,
nothing else. To follow a resource is a call like any other, so that it is judged like one, and so
is to follow it no more; but with a session all that it followed ends, which `ClientGone` says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from dragoman.core.errors import HubError, Overloaded, ShuttingDown
from dragoman.core.events import (
    ClientGone,
    ClientListChanged,
    ElicitationCompleted,
    ListAnnounced,
    ResourceUpdated,
    ServerLogged,
)
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.ports import ADMIN
from dragoman.core.principal import Principal
from dragoman.core.tool import PROMPT, RESOURCE, SUBSCRIPTION, TEMPLATE, TOOL, Tool
from dragoman.core.tool_filter import View
from dragoman.core.urls import render_uri
from dragoman.mcp.protocol.errors import encode_error
from dragoman.mcp.protocol.notifications import owner_key
from dragoman.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    LATEST,
    SERVER_KEY,
    SUBSCRIPTION_KEY,
    Revision,
    build_server_info,
)
from dragoman.mcp.protocol.translate import select_meta
from dragoman.mcp.server import client_questions
from dragoman.mcp.server.client_state import ClientState, Push
from dragoman.mcp.server.connected_clients import ConnectedClients
from dragoman.mcp.server.list_pages import ListPages
from dragoman.mcp.server.notify_throttle import NotifyThrottle
from dragoman.mcp.server.progress import DEFAULT_LEVEL, encode_note, is_wanted
from dragoman.mcp.server.tasks import (
    McpTasks,
    TaskSubscription,
    declares_tasks,
    find_task_ids_error,
    missing_extension_error,
)
from dragoman.wire import rpc

log = logging.getLogger(__name__)

CHANGE_PAUSE = 0.05
"""Changes of a list that come together are told together."""
ANNOUNCE_PAUSE = 1.0
"""Seconds between two announcements of a list that is as it was."""
MAX_LOG_BYTES = 64 * 1024
"""A longer line of a server's log that belongs to no call is not sent to clients."""
RETRY_SECONDS = 1.0
"""When somebody is told again who did not read."""
MAX_FOLLOWED = 1_000
"""Resources that one session, or one request to listen, may follow."""
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
"""So many are looked at, of whom each may see something else; the rest is told and looks itself."""
Seen = tuple[tuple[Tool, ...], int]
"""What a catalog has, and the version of how it is judged."""


class ListenStream:
    """One open `subscriptions/listen`."""

    __slots__ = (
        "client",
        "early",
        "ended",
        "features",
        "id",
        "kinds",
        "late",
        "push",
        "subscribed",
    )

    def __init__(self, id: rpc.Id, peer: ClientState, push: Push, kinds: frozenset[str]) -> None:
        self.id = id
        self.client = peer
        self.push = push
        self.kinds = kinds
        self.features: Mapping[str, Any] = {}
        self.subscribed: dict[str, str] = {}
        self.ended: asyncio.Future[None] | None = None
        self.early: dict[str, None] | None = {}
        """Addresses of what changed before the acknowledgement, which must come first."""
        self.late: dict[bytes, None] | None = None
        """What could not be sent yet."""

    def encode(self, method: str, **params: Any) -> bytes:
        return rpc.encode_notification(method, {**params, "_meta": {SUBSCRIPTION_KEY: self.id}})

    def send(self, method: str, params: Mapping[str, Any]) -> bool:
        return self.push(self.encode(method, **params))


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
        self._followers: dict[str, dict[ClientState | ListenStream, str]] = {}
        """Who follows each resource, and what it calls it."""
        self._known: dict[str, Seen] = {}
        """Each list as it was told of last."""
        self._changed: set[str] = set()
        self._telling: asyncio.TimerHandle | None = None
        self._behind: set[ListenStream] = set()
        self._retrying: asyncio.TimerHandle | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._closed = False
        self._turns = NotifyThrottle(self._tell_update)
        self._stops = [
            catalog.on_change(partial(self._on_change, kind))
            for kind, catalog in hub.catalogs.items()
        ]
        self._announced: dict[str, set[str]] = {}
        """Kinds and the targets that said that such a list has changed."""
        self._told: dict[str, float] = {}
        """When clients were last told so, by method."""
        hub.bus.observe(ResourceUpdated, self._updated)
        hub.bus.observe(ClientListChanged, self._tell_client)
        hub.bus.observe(ListAnnounced, self._list_announced)
        hub.bus.observe(ServerLogged, self._tell_log)
        hub.bus.observe(ElicitationCompleted, self._tell_completed)

    # --- sessions ----------------------------------------------------------------------------

    def join(self, peer: ClientState) -> None:
        if not (self._closed or peer.closed):
            self._look()
            self._joined.add(peer)
            self._clients.add(peer)

    def leave(self, peer: ClientState) -> None:
        if peer.closed:
            return
        peer.closed = True
        self._joined.discard(peer)
        self._clients.remove(peer)
        client_questions.drop_pending(peer)
        self._forget(peer)
        if peer.client:
            self._hub.bus.emit(ClientGone(peer.client))

    def close(self) -> None:
        """Ends every stream with its result; nobody is told anything any more."""
        self._closed = True
        for stop in self._stops:
            stop()
        self._stops.clear()
        self._turns.close()
        for timer in (self._telling, self._retrying):
            if timer is not None:
                timer.cancel()
        for stream in self._streams:
            if stream.ended is not None and not stream.ended.done():
                stream.ended.set_result(None)
        for task in self._work:
            task.cancel()

    # --- resources/subscribe and /unsubscribe --------------------------------------------------

    async def subscribe(
        self, id: rpc.Id, params: Mapping[str, Any], peer: ClientState, revision: Revision
    ) -> bytes:
        uri = params.get("uri")
        if not isinstance(uri, str):
            return rpc.encode_error(
                id, rpc.INVALID_PARAMS, '"uri" must be the address of a resource'
            )
        if not peer.client:
            problem = "a resource is followed in a session; begin one with initialize"
            return rpc.encode_error(id, rpc.INVALID_REQUEST, problem)
        try:
            await self._follow(peer, peer, uri, peer.features, params)
        except HubError as error:
            return encode_error(id, error, revision, uri)
        except Exception:
            log.exception("following %r crashed", render_uri(uri[:200]))
            problem = f'"{uri[:200]}" cannot be followed: the hub failed; see its log'
            return rpc.encode_error(id, rpc.INTERNAL_ERROR, problem)
        return rpc.encode_result(id, {})

    async def unsubscribe(self, id: rpc.Id, params: Mapping[str, Any], peer: ClientState) -> bytes:
        uri = params.get("uri")
        if not isinstance(uri, str):
            return rpc.encode_error(
                id, rpc.INVALID_PARAMS, '"uri" must be the address of a resource'
            )
        name = self._hub.find(uri, peer.view, SUBSCRIPTION).name
        if peer.subscribed.pop(name, None) is not None:
            self._drop(name, peer)
            await self._stop(uri, peer, peer.features)
        return rpc.encode_result(id, {})

    # --- subscriptions/listen ------------------------------------------------------------------

    async def listen(
        self, id: rpc.Id, params: Mapping[str, Any], peer: ClientState, push: Push | None
    ) -> bytes:
        """Awaits the end; cancelled, it ends silently."""
        wanted = params.get("notifications")
        problem = _flaw(wanted)
        if problem is None and push is None:
            problem = "to listen, accept text/event-stream"
        if problem is not None or push is None or not isinstance(wanted, dict):
            return rpc.encode_error(id, rpc.INVALID_PARAMS, problem or "")
        features = client_questions.parse_capabilities(params["_meta"][CAPABILITIES_KEY], LATEST)
        if "taskIds" in wanted and not declares_tasks(features):
            return missing_extension_error(id)
        if self._closed or peer.listens >= MAX_LISTENS or len(self._streams) >= MAX_STREAMS:
            full = Overloaded("too many listen already; try again later")
            stopping = ShuttingDown("the hub is going down; try again later")
            return encode_error(id, stopping if self._closed else full, LATEST)
        kinds = frozenset(method for key, method in _FILTER.items() if wanted.get(key) is True)
        stream = ListenStream(id, peer, push, kinds)
        stream.features = features
        watching: TaskSubscription | None = None
        stream.ended = asyncio.get_running_loop().create_future()
        peer.listens += 1
        self._look()
        self._streams.add(stream)
        try:
            uris = list(dict.fromkeys(wanted.get("resourceSubscriptions") or ()))
            honoured = await self._follow_all(stream, uris, params)
            granted: dict[str, Any] = {
                key: True for key, method in _FILTER.items() if method in kinds
            }
            if honoured:
                granted["resourceSubscriptions"] = honoured
            if "taskIds" in wanted:
                watching = self._tasks.subscribe(wanted["taskIds"], peer, features, stream.send)
                granted["taskIds"] = watching.ids
            acknowledged = "notifications/subscriptions/acknowledged"
            if not push(stream.encode(acknowledged, notifications=granted)):
                return rpc.encode_error(
                    id, rpc.INTERNAL_ERROR, "the acknowledgement could not be sent"
                )
            early, stream.early = stream.early or (), None
            for uri in early:
                self._send(stream, stream.encode(_UPDATED, uri=uri))
            if watching is not None:
                watching.begin()
            del params, wanted, uris, honoured, granted, early  # it may be open for days
            await stream.ended
        finally:
            if watching is not None:
                watching.stop()
            peer.listens -= 1
            self._streams.discard(stream)
            self._behind.discard(stream)
            left = self._forget(stream)
            if left:
                self._later(self._stop_all(left, stream, stream.features))
        return rpc.encode_result(
            id, {"resultType": "complete", "_meta": {**_OWN, SUBSCRIPTION_KEY: id}}
        )

    async def _follow_all(
        self, stream: ListenStream, uris: list[str], params: Mapping[str, Any]
    ) -> list[str]:
        """Those that may be followed; of the others the client is not told more."""
        honoured = []
        for start in range(0, len(uris), AT_ONCE):
            some = uris[start : start + AT_ONCE]
            calls = (
                self._follow(stream, stream.client, uri, stream.features, params) for uri in some
            )
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for uri, outcome in zip(some, outcomes, strict=True):
                if outcome is None:
                    honoured.append(uri)
                elif not isinstance(outcome, HubError):
                    log.error("following %r crashed", render_uri(uri[:200]), exc_info=outcome)
        return honoured

    # --- followers -----------------------------------------------------------------------------

    async def _follow(
        self,
        who: ClientState | ListenStream,
        peer: ClientState,
        uri: str,
        features: Mapping[str, Any],
        params: Mapping[str, Any],
    ) -> None:
        name = self._hub.find(uri, peer.view, SUBSCRIPTION).name
        if name in who.subscribed:
            return
        if len(who.subscribed) >= MAX_FOLLOWED:
            raise Overloaded(
                f'"{uri[:200]}" is one more than the {MAX_FOLLOWED} that may be followed'
            )
        options = replace(_call_options(who, peer, features), meta=select_meta(params))
        await self._hub.call(peer.principal, uri, {"follow": True}, options)
        if peer.closed or name in who.subscribed:  # meanwhile
            self._later(self._stop(uri, who, features))
            return
        who.subscribed[name] = uri
        self._followers.setdefault(name, {})[who] = uri

    def _drop(self, name: str, who: ClientState | ListenStream) -> None:
        followers = self._followers.get(name, {})
        followers.pop(who, None)
        if not followers:
            self._followers.pop(name, None)

    def _forget(self, who: ClientState | ListenStream) -> list[str]:
        """What it followed."""
        for name in who.subscribed:
            self._drop(name, who)
        left = list(who.subscribed.values())
        who.subscribed.clear()
        return left

    async def _stop_all(
        self, uris: list[str], who: ClientState | ListenStream, features: Mapping[str, Any]
    ) -> None:
        for uri in uris:
            await self._stop(uri, who, features)

    async def _stop(
        self, uri: str, who: ClientState | ListenStream, features: Mapping[str, Any]
    ) -> None:
        peer = who.client if isinstance(who, ListenStream) else who
        try:
            options = _call_options(who, peer, features)
            await self._hub.call(peer.principal, uri, {"follow": False}, options)
        except HubError as error:
            log.info("%r is still followed: %s", render_uri(uri[:200]), error)
        except Exception:
            log.exception("not following %r any more crashed", render_uri(uri[:200]))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    # --- telling -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Before the first listener: changes are told from here on."""
        if not self._joined and not self._streams:
            self._known = {kind: self._seen(kind) for kind in self._hub.catalogs}

    def _seen(self, kind: str) -> Seen:
        tools, own = self._hub.catalogs[kind].list_tools(), self._hub.list_client_only_names(kind)
        if own:  # what is there for single clients is told to those alone
            tools = tuple(tool for tool in tools if tool.name not in own)
        return tools, self._hub.authorizer.version

    def _tell_client(self, event: ClientListChanged) -> None:
        method = _CHANGED[event.kind]
        for peer in tuple(self._joined):
            if owner_key(peer.client, peer.principal) == event.owner:
                peer.notify(_ENCODED[method])
        for stream in tuple(self._streams):
            is_owner = owner_key(stream.client.client, stream.client.principal) == event.owner
            if is_owner and method in stream.kinds and stream.early is None:
                self._send(stream, stream.encode(method))

    def _on_change(self, kind: str) -> None:
        if self._joined or self._streams:
            self._changed.add(kind)
            self._tell_soon(CHANGE_PAUSE)

    def _list_announced(self, event: ListAnnounced) -> None:
        """A server wants it said that its list has changed, even if that is as it was."""
        if self._joined or self._streams:
            self._announced.setdefault(event.kind, set()).add(event.target)
            self._tell_soon(CHANGE_PAUSE)

    def _tell_soon(self, pause: float) -> None:
        if self._telling is None and not self._closed:
            loop = asyncio.get_running_loop()
            pause = max(pause, self._turns.owed)
            self._telling = loop.call_later(pause, self._turns.take, self._tell_changes)

    def _tell_changes(self) -> None:
        self._telling = None
        changed: dict[str, bool] = {}
        """The methods, and whether it is certain that everybody sees something else."""
        for kind in self._changed:
            before, now = self._known.get(kind), self._seen(kind)
            if now == before:
                continue
            self._known[kind] = now
            other = before is None or before[0] != now[0]
            changed[_CHANGED[kind]] = changed.get(_CHANGED[kind], False) or other
        self._changed.clear()
        for method in sorted(changed):
            self._tell_list(method, _everybody if changed[method] else self._concerned(method))
        self._tell_announced(changed)

    def _tell_list(self, method: str, concerns: Callable[[ClientState], bool]) -> None:
        self._told[method] = monotonic()
        for peer in tuple(self._joined):
            if concerns(peer):
                peer.notify(_ENCODED[method])
        for stream in tuple(self._streams):
            if method in stream.kinds and stream.early is None and concerns(stream.client):
                self._send(stream, stream.encode(method))

    def _tell_announced(self, told: Collection[str]) -> None:
        """Lists that are as they were although a server said that they changed: those who see
        something of that server in them are told, but not often."""
        announced, self._announced = self._announced, {}
        for kind, targets in announced.items():
            method = _CHANGED[kind]
            if method in told:
                continue
            left = self._told.get(method, float("-inf")) + ANNOUNCE_PAUSE - monotonic()
            if left > 0:
                self._announced[kind] = targets
                self._tell_soon(left)
            else:
                self._tell_list(method, partial(self._sees_any, kind, targets))

    def _sees_any(self, kind: str, targets: Collection[str], peer: ClientState) -> bool:
        catalog, sees = self._hub.catalogs[kind], self._hub.authorizer.can_see
        return any(
            peer.view.includes(tool) and sees(peer.principal, tool, peer.door)
            for target in targets
            for tool in catalog.list_offered(target)
        )

    def _concerned(self, method: str) -> Callable[[ClientState], bool]:
        """Who sees something else where nothing but the judgement has changed."""
        kinds = [kind for kind, name in _CHANGED.items() if name == method]
        found: dict[tuple[Principal, str, View], bool] = {}

        def concerned(peer: ClientState) -> bool:
            key = peer.principal, peer.door, peer.view
            if key not in found:
                found[key] = len(found) >= MAX_JUDGED or any(
                    self._lists.has_changed(kind, *key) for kind in kinds
                )
            return found[key]

        return concerned

    def _tell_completed(self, event: ElicitationCompleted) -> None:
        peer = self._clients.find(event.client)
        if peer is not None:
            peer.notify(client_questions.encode_elicitation_complete(event.id))

    def _tell_log(self, event: ServerLogged) -> None:
        """A line that belongs to no call. On a client's own connection it is that client's. On the
        one that all share it may be about anybody's call: it goes to those clients that asked for a
        level, see something of the server, and may read its whole log anyway."""
        message: bytes | None = None
        for peer in tuple(self._joined):
            if event.client is None:
                level = peer.log_level
            elif event.client == peer.client:
                level = peer.log_level or DEFAULT_LEVEL
            else:
                continue
            if level is None or not is_wanted(event.note, level):
                continue
            if event.client is None and not self._may_read_log(event.server, peer):
                continue
            message = message or encode_note(event.note)
            if len(message) <= MAX_LOG_BYTES:
                peer.notify(message)

    def _may_read_log(self, server: str, peer: ClientState) -> bool:
        if not self._hub.authorizer.decide_action(peer.principal, ADMIN).allowed:
            return False
        return any(self._sees_any(kind, [server], peer) for kind in self._hub.catalogs)

    def _updated(self, event: ResourceUpdated) -> None:
        name = next((one for one in _above(event.name) if one in self._followers), None)
        if name is not None and not self._closed:
            self._turns.changed(event.name, name)

    def _tell_update(self, changed: str, name: str) -> None:
        for who, uri in tuple(self._followers.get(name, {}).items()):
            address = uri + changed[len(name) :]
            if isinstance(who, ClientState):
                who.notify(rpc.encode_notification(_UPDATED, {"uri": address}))
            elif who.early is None:
                self._send(who, who.encode(_UPDATED, uri=address))
            elif len(who.early) < MAX_LATE:
                who.early[address] = None

    def _send(self, stream: ListenStream, message: bytes) -> None:
        if stream.late is None and stream.push(message):
            return
        if stream.late is None:
            stream.late = {}
        if len(stream.late) < MAX_LATE:
            stream.late[message] = None
        self._behind.add(stream)
        if self._retrying is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._retrying = loop.call_later(RETRY_SECONDS, self._catch_up)

    def _catch_up(self) -> None:
        self._retrying = None
        behind, self._behind = self._behind, set()
        for stream in behind:
            late = stream.late or {}
            while late and stream.push(next(iter(late))):
                del late[next(iter(late))]
            if late:
                self._behind.add(stream)
            else:
                stream.late = None
        if self._behind:
            loop = asyncio.get_running_loop()
            self._retrying = loop.call_later(RETRY_SECONDS, self._catch_up)


_OWN = {SERVER_KEY: build_server_info(LATEST)}


def _flaw(wanted: Any) -> str | None:
    if not isinstance(wanted, dict):
        return '"notifications" must be an object that says what to listen for'
    if not all(isinstance(wanted.get(key, False), bool) for key in _FILTER):
        return f"{', '.join(_FILTER)} are true or false"
    uris = wanted.get("resourceSubscriptions", [])
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
        return '"resourceSubscriptions" must be a list of addresses'
    if len(uris) > MAX_FOLLOWED:
        return f'"resourceSubscriptions" may hold {MAX_FOLLOWED} addresses'
    return find_task_ids_error(wanted)


def _above(name: str) -> Iterator[str]:
    """The resource itself, then those that it may be a part of. Who follows a folder hears of what
    is in it, unless somebody follows just that, who may know of it where others may not."""
    yield name
    end = len(name)
    for _ in range(MAX_SLASHES):
        end = name.rfind("/", 0, end)
        if end <= 0:
            return
        if end + 1 < len(name):
            yield name[: end + 1]
        yield name[:end]


def _call_options(
    who: ClientState | ListenStream, peer: ClientState, features: Mapping[str, Any]
) -> CallOptions:
    revision = LATEST if isinstance(who, ListenStream) else who.revision
    return CallOptions(
        kind=SUBSCRIPTION,
        door=peer.door,
        view=peer.view,
        client=peer.client,
        revision=revision.name,
        features=features,
    )


def _everybody(peer: ClientState) -> bool:
    return True
