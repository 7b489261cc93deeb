"""The lists of one server: read when they may have changed, and visible to each client.

The shared session lists what every client may see. Some servers of the handshake era list other
entries to clients that can be asked; what such clients are listed is their profile, found out once
for all clients that can be asked the same. A client's own session may also list what the client's
calls have created there. All of it is published in the catalogs, so that it is reviewed and has
names, and who sees which part is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.core.background import Background, resolve, start_task
from dragoman.core.call import Call
from dragoman.core.errors import HubError, NotFound
from dragoman.core.events import ClientListChanged, ListAnnounced
from dragoman.core.ports import Interfaces, Viewer
from dragoman.core.read_pacing import pause_after_list
from dragoman.core.tool import PROMPT, RESOURCE, TOOL
from dragoman.mcp.client.catalog_sync import (
    KINDS,
    ListFreshness,
    Lists,
    find_changed_kinds,
    is_announced,
    is_offered,
)
from dragoman.mcp.client.client_sessions import ClientSession, Key, SessionNotOpened
from dragoman.mcp.client.session import MAX_ENTRIES, UpstreamSession
from dragoman.mcp.config import StdioTransport
from dragoman.mcp.protocol.elicitation import TASKS_ONLY, select_declared
from dragoman.mcp.protocol.revisions import Revision
from dragoman.mcp.protocol.translate import select_ui
from dragoman.wire.json import encode

if TYPE_CHECKING:
    from dragoman.mcp.client.upstream import Upstream

log = logging.getLogger(__name__)

ASKABLE: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
"""Every client feature that the hub can forward questions for."""
PLAIN = ""
"""The profile of clients that can be asked nothing: what the shared session lists."""
MAX_PROFILES = 32
RETRY_SECONDS = 60.0
"""How long a profile that could not be read is not tried again."""
DEPENDS = "its lists depend on what a client can be asked"

Entries = dict[str, Any]
"""The entries of a list, by name."""
Owner = Hashable
"""Who owns a session whose lists are kept separately: the key of a client's session."""
HANDSHAKE_OWNER = "the shared session of the handshake era"
"""Owns the lists of the second shared session; no client's session has this key."""


class ListView(NamedTuple):
    """How a client sees the lists."""

    owner: Owner | None
    """The client's own session, if it has one."""
    profile: str | None
    """What it can be asked; None if unknown."""


class _Profile:
    """The lists of clients that can be asked certain things."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Any]] = {}
        self.missing: dict[str, frozenset[str]] = {}
        """Names that the shared session listed at the same time, and these lists did not."""
        self.interfaces: dict[str, dict[str, Any]] = {}
        """The user interfaces of tools that these lists have otherwise than the shared session, by
        the tool's name."""


def build_profile(features: Mapping[str, Any], *, modern: bool = False) -> str:
    if not features:
        return PLAIN
    return ("modern " if modern else "") + json.dumps(features, sort_keys=True)


class UpstreamLists:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._session: UpstreamSession | None = None
        """The shared session whose lists are kept here."""
        self._entries: dict[str, list[Any]] = {}
        """The entries of the shared session, by kind, unchanged."""
        self._shared: dict[str, set[str]] = {}
        """The names of that."""
        self._known: dict[str, set[str]] = {}
        """All names that the shared session ever listed: those it dropped exist for no client."""
        self._profiles: dict[str, _Profile] = {}
        self._own: dict[Owner, dict[str, list[Any]]] = {}
        """The lists of own sessions that differ from what all clients of their profile see."""
        self._seen: dict[Owner, dict[str, Entries]] = {}
        """What the clients of these sessions saw when they were last notified."""
        self._extra: dict[str, dict[str, Any]] = {}
        """Entries published beyond the shared lists, by kind and name."""
        self.differs = False
        """Whether some clients see other lists than others."""
        self.has_interfaces = False
        """Whether a tool has a user interface for some clients alone."""
        self._lock = asyncio.Lock()
        self._finding: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, float] = {}
        self._background = Background(f'the lists of server "{upstream.name}"')
        self.freshness = ListFreshness(upstream.entry.refresh_secs, self._is_listening)
        self.changed = asyncio.Event()
        """Set when `read_changes` has something to read."""
        self._dirty: set[str] = set()
        """Kinds whose lists may have changed."""
        self._announced: set[str] = set()
        """Those of them whose change the server has announced."""
        self._stale: set[str] = set()
        """Kinds to read again although no change is known."""
        self._reading: Collection[str] = frozenset()
        """Kinds that have changed and are being read."""
        self._refreshing: asyncio.Future[None] | None = None
        self._current: asyncio.Future[None] | None = None
        """Done when the lists that are being read now were read, or could not be."""

    # --- changes -------------------------------------------------------------------------------

    def mark_changed(self, kinds: Iterable[str], *, announced: bool = False) -> None:
        """Has these lists read again: they may have changed."""
        self._dirty.update(kinds)
        if announced:
            self._announced.update(kinds)
        self.changed.set()

    def mark_stale(self) -> None:
        """Has all lists read again although no change is known."""
        self._stale.update(KINDS)
        self.changed.set()

    def refresh(self, kind: str) -> asyncio.Future[None]:
        """Has this list read again; done when it was read, or could not be."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_future()
        self._stale.add(kind)
        self.changed.set()
        return self._refreshing

    def is_stale(self, kind: str) -> bool:
        """Whether a list is to be read before a client gets it. Clients do not wait for a server
        that is not connected."""
        connection = self._upstream.connection
        if connection.session is None:
            return False
        if kind in self._dirty or kind in self._reading:
            return True
        return self.freshness.is_stale(kind, connection.used_at)

    def _is_listening(self) -> bool:
        session = self._upstream.connection.session
        return session is not None and session.notifications.is_open

    def clear_changes(self) -> None:
        """A new session is about to list everything."""
        self.changed.clear()
        for kinds in (self._dirty, self._announced, self._stale):
            kinds.clear()

    async def read_changes(self, session: UpstreamSession) -> float:
        """Reads the lists that may have changed and announces the changes. Returns how many seconds
        to wait before the next time: a server may announce changes all the time."""
        self._reading = dirty = self._dirty
        self._dirty = set()
        stale, self._stale = self._stale, set()
        announced, self._announced = self._announced, set()
        refreshing, self._refreshing = self._refreshing, None
        self._current = refreshing or asyncio.get_running_loop().create_future()
        refreshing, before = self._current, dict(self._entries)
        try:
            # Another session is opened only if a change is likely.
            seconds = self._upstream.connection.start_seconds if dirty else 0
            await self._read_both(session, dirty | stale, seconds)
        except HubError as error:
            log.log(
                logging.WARNING if dirty else logging.DEBUG,
                'the lists of server "%s" changed and could not be read: %s',
                self._upstream.name,
                error,
            )
        else:
            if self.differs:  # own sessions may list something else as well
                self._upstream.client_sessions.reread(
                    lambda key: dirty & set(self._own.get(key, ()))
                )
            # Clients are notified of what was published anyway, and once is enough.
            changed = {
                KINDS[kind].changed
                for kind in announced
                if self._entries.get(kind) != before.get(kind)
            }
            self._announce({kind for kind in announced if KINDS[kind].changed not in changed})
        finally:
            self._reading = frozenset()
            self._current = None
            resolve(refreshing, None)
        size = sum(session.sizes.get(KINDS[kind].method, 0) for kind in dirty | stale)
        return pause_after_list(size, self._upstream.catalog.spent)

    def _announce(self, kinds: Iterable[str]) -> None:
        for kind in sorted(kinds):
            self._upstream.bus.emit(ListAnnounced(self._upstream.name, kind))

    def end_reading(self) -> None:
        """The shared session has ended."""
        self.freshness.clear()
        resolve(self._refreshing, None)
        self._refreshing = None

    async def _read_both(
        self, session: UpstreamSession, kinds: Collection[str], seconds: float
    ) -> None:
        """Reads these lists of both shared sessions."""
        handshake = self._upstream.connection.handshake_session
        if handshake is None:
            await self.read(session, kinds, seconds)
            return
        reading = start_task(self._upstream.catalog.fetch_lists(handshake, kinds))
        try:
            await self.read(session, kinds, seconds)
            with contextlib.suppress(HubError):
                lists = await reading
                if self._upstream.connection.handshake_session is handshake:
                    await self._learn_handshake(lists)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def read(self, session: UpstreamSession, kinds: Collection[str], seconds: float) -> None:
        """Reads and publishes these lists. Takes up to `seconds` for another session, which lists
        what clients see that can be asked everything; if that fails, only what the shared session
        lists is published."""
        begun = monotonic()
        try:
            await self._read(session, kinds, seconds)
        finally:
            for kind in kinds:
                if is_offered(session, kind):
                    ttl = session.ttls.get(KINDS[kind].method)
                    announced = is_announced(session, kind)
                    self.freshness.note(kind, begun, ttl, announced=announced)

    async def _read(self, session: UpstreamSession, kinds: Collection[str], seconds: float) -> None:
        if session is not self._session:
            self._session, self._entries, self._shared = session, {}, {}
            self._known, self._profiles, self.has_interfaces = {}, {}, False
        catalog = self._upstream.catalog
        if self._upstream.entry.interactive is not True or not seconds:
            await self._publish(session, await catalog.fetch_lists(session, kinds))
            return
        seconds = min(seconds, self._upstream.limits.list_secs)
        asking = self._background.spawn(self._read_as_askable(session, kinds, seconds))
        try:
            lists = await catalog.fetch_lists(session, kinds)
            found = await asking
        finally:
            asking.cancel()
        self._note_shared(lists)
        problems = []
        if isinstance(found, str):
            problems.append(f"what it lists to clients that can be asked is unknown: {found}")
        else:
            self._record(build_profile(ASKABLE), found)
        await self._publish(session, lists)
        catalog.report_problems("listing", problems)

    async def _read_as_askable(
        self, session: UpstreamSession, kinds: Collection[str], seconds: float
    ) -> Lists | str:
        """Returns what clients see that can be asked everything, or why that is unknown."""
        try:
            async with asyncio.timeout(seconds):
                if session.modern:  # the request itself declares what can be asked
                    return await self._upstream.catalog.fetch_lists(session, kinds, ASKABLE)
                return await self._read_separately(session.revision, kinds)
        except (HubError, TimeoutError) as error:
            return str(error) or f"it took longer than {seconds:g} s"

    async def _read_separately(self, revision: Revision, kinds: Collection[str]) -> Lists:
        """Reads lists on a session on which nothing is called and every question is refused."""
        changed: set[str] = set()

        def note_change(method: str, params: Mapping[str, Any]) -> None:
            changed.update(find_changed_kinds(method))

        declared = select_declared(ASKABLE, revision)
        session = await self._upstream.connection.open_list_session(declared, note_change)
        catalog = self._upstream.catalog
        try:
            lists = await catalog.fetch_lists(session, kinds)
            late = changed.intersection(kinds)
            if late:  # entries that depend on the client are often added after the handshake
                lists.update(await catalog.fetch_lists(session, late))
            return lists
        finally:
            self._background.spawn(session.close_quietly())  # a child may take its time

    # --- merging what sessions list ------------------------------------------------------------

    async def _publish(self, session: UpstreamSession, lists: Lists) -> None:
        """Publishes new lists of the shared session, merged with all others."""
        async with self._lock:
            self._note_shared(lists)
            merged: Lists = {
                kind: entries if isinstance(entries, HubError) else self._merge(kind)
                for kind, entries in lists.items()
            }
            await self._upstream.catalog.publish(session, merged)

    async def _republish(self, session: UpstreamSession | None, kinds: Iterable[str]) -> None:
        """Publishes these lists after those of another session have changed."""
        async with self._lock:
            if session is not None and session is self._session:  # else all is published anew
                await self._upstream.catalog.publish(session, {k: self._merge(k) for k in kinds})

    def _note_shared(self, lists: Lists) -> None:
        for kind, entries in lists.items():
            if isinstance(entries, list):
                self._entries[kind] = entries
                self._shared[kind] = {_name(kind, entry) for entry in entries}
                self._known.setdefault(kind, set()).update(self._shared[kind])
        for profile in self._profiles.values() if TOOL in lists else ():
            self._note_interfaces(profile)

    def _note_interfaces(self, profile: _Profile) -> None:
        """Notes the user interfaces that tools have for a profile alone. Servers of MCP Apps list
        such a tool under one name to all clients, with its user interface or without it."""
        shared = _index(TOOL, self._entries.get(TOOL, ()))
        profile.interfaces = {
            name: ui
            for name, entry in _index(TOOL, profile.entries.get(TOOL, ())).items()
            if name  # else it is no object
            and name in shared
            and (ui := select_ui(entry))
            and ui != select_ui(shared[name])
        }
        self.has_interfaces = any(one.interfaces for one in self._profiles.values())
        upstream = self._upstream
        if self.has_interfaces and not upstream.traits.has_apps:
            upstream.traits = replace(upstream.traits, has_apps=True)

    def _record(self, profile: str, lists: Lists) -> bool:
        """Keeps the lists of a profile; returns whether they differ from the shared ones."""
        if len(self._profiles) >= MAX_PROFILES:
            self._profiles.pop(next(iter(self._profiles)))
        found = self._profiles.setdefault(profile, _Profile())
        differs = False
        for kind, entries in lists.items():
            if isinstance(entries, HubError):
                continue
            names = {_name(kind, entry) for entry in entries}
            shared = self._shared.get(kind, set())
            found.entries[kind] = entries
            found.missing[kind] = frozenset(shared - names)
            differs = differs or bool(names ^ shared)
        self._note_interfaces(found)
        return differs

    def _merge(self, kind: str) -> list[Any]:
        """Returns all that any session lists, each name once. The shared session's entry wins: the
        others may come from children with a state of their own."""
        shared, known = self._shared.get(kind, set()), self._known.get(kind, set())
        found: dict[str, Any] = {}
        for profile in self._profiles.values():
            for entry in profile.entries.get(kind, ()):
                if (name := _name(kind, entry)) not in known:
                    found.setdefault(name, entry)
        for own in self._own.values():
            for entry in own.get(kind, ()):
                if (name := _name(kind, entry)) not in shared:
                    found.setdefault(name, entry)
        listed = self._entries.get(kind, [])
        found = dict(list(found.items())[: max(0, MAX_ENTRIES - len(listed))])
        self._extra[kind] = found
        self.differs = (
            any(self._extra.values())
            or bool(self._own)
            or any(any(profile.missing.values()) for profile in self._profiles.values())
        )
        return [*listed, *found.values()]

    async def _learn_profile(self, session: UpstreamSession, profile: str, lists: Lists) -> None:
        if self._record(profile, lists):
            self._upstream.choice.learn(DEPENDS)
        await self._republish(session, lists)

    async def _set_own(self, owner: Owner, lists: Lists) -> None:
        own = self._own.setdefault(owner, {})
        own.update({kind: found for kind, found in lists.items() if isinstance(found, list)})
        session = self._upstream.connection.session
        await self._republish(session, lists)

    async def _set_client_lists(self, key: Key, profile: str, lists: Lists) -> None:
        """Keeps what a client's session lists, unless all clients of its profile see the same."""
        differing: Lists = {}
        for kind, entries in lists.items():
            if isinstance(entries, HubError):
                continue
            if _index(kind, entries) != self._list_visible(kind, ListView(None, profile)):
                differing[kind] = entries
            elif (kept := self._own.get(key)) is not None and kept.pop(kind, None) is not None:
                if not kept:
                    del self._own[key]
                await self._republish(self._upstream.connection.session, [kind])
        if differing:
            await self._set_own(key, differing)

    def drop_own(self, owner: Owner) -> None:
        """Drops the lists of a session that has ended."""
        self._seen.pop(owner, None)
        own = self._own.pop(owner, None)
        connection = self._upstream.connection
        if own and connection.state != "stopped":
            self._background.spawn(self._republish(connection.session, list(own)))

    # --- own and handshake sessions ------------------------------------------------------------

    async def read_client_lists(
        self, key: Key, own: ClientSession, kinds: set[str], announced: set[str], unasked: set[str]
    ) -> None:
        """Reads lists of an own session that may have changed. The server has announced a change of
        some, and the client does not wait for those that are `unasked`: it is notified of them if
        it sees something else than before."""
        upstream, session = self._upstream, own.session
        if session is None:
            return
        profile = build_profile(own.features)
        view = ListView(key, profile)
        lists = await upstream.catalog.fetch_lists(session, kinds)
        if not isinstance(upstream.entry.transport, StdioTransport):  # one process serves all
            await self._compare_shared(own, view, {kind: lists[kind] for kind in announced})
        seen = self._seen.setdefault(key, {})
        for kind in kinds:  # what all clients saw until now, where nothing is kept separately
            seen.setdefault(kind, self._list_visible(kind, view))
        if own.is_new and profile != PLAIN and upstream.connection.session is not None:
            # Entries that depend on the client are often added after the handshake.
            await self._learn_profile(upstream.connection.session, profile, lists)
        else:
            await self._set_client_lists(key, profile, lists)
        for kind in kinds:
            visible = self._list_visible(kind, view)
            differs = visible != seen[kind]
            if differs and kind in unasked:
                upstream.bus.emit(ClientListChanged(own.owner, kind))
            elif differs:  # the client has asked for it, or is notified when it is announced
                continue
            del seen[kind]
            if kind in self._own.get(key, ()):
                seen[kind] = visible

    async def _compare_shared(self, own: ClientSession, view: ListView, lists: Lists) -> None:
        """Reads the shared lists again if a change that was announced on an own session is one:
        servers often announce what has changed for all clients only to the one that caused it."""
        own.is_compared = True
        try:
            if self._current is not None and self._find_unexpected(view, lists):
                await self._wait_read(self._current)
            if unexpected := self._find_unexpected(view, lists):
                self._dirty.update(unexpected)
                readings = [self.refresh(kind) for kind in unexpected]  # all the same
                await self._wait_read(readings[0])
        finally:
            own.is_compared = False

    async def _wait_read(self, reading: asyncio.Future[None]) -> None:
        await asyncio.wait([reading], timeout=self._upstream.limits.list_secs)

    def _find_unexpected(self, view: ListView, lists: Lists) -> list[str]:
        """Returns the kinds that an own session lists otherwise than it did, and than all clients
        of its profile see."""
        return [
            kind
            for kind, entries in lists.items()
            if isinstance(entries, list)
            and entries != self._own.get(view.owner, {}).get(kind)
            and _index(kind, entries) != self._list_visible(kind, ListView(None, view.profile))
        ]

    async def add_handshake_session(self, session: UpstreamSession) -> None:
        """Reads the second shared session; announces the lists that differ from the first one."""
        with contextlib.suppress(HubError):
            lists = await self._upstream.catalog.fetch_lists(session, KINDS)
            self._announce(await self._learn_handshake(lists))

    async def _learn_handshake(self, lists: Lists) -> set[str]:
        """Returns the kinds that differ from the first shared session. Usually there are none, and
        nothing is kept separately."""
        differing = {
            kind
            for kind, entries in lists.items()
            if isinstance(entries, list)
            and {_name(kind, entry) for entry in entries} != self._shared.get(kind, set())
        }
        if differing or self._own.get(HANDSHAKE_OWNER):
            await self._set_own(HANDSHAKE_OWNER, lists)
        return differing

    def drop_handshake_lists(self) -> None:
        self.drop_own(HANDSHAKE_OWNER)

    # --- who sees what -------------------------------------------------------------------------

    def find_view(self, viewer: Call | Viewer) -> ListView:
        upstream = self._upstream
        shared = upstream.connection.session
        declared = upstream.choice.find_declared(shared, viewer)
        if declared is not None:
            key = upstream.client_sessions.find(viewer, declared)
            return ListView(key, build_profile(declared))
        if shared is None or not shared.modern:
            return ListView(None, PLAIN)
        has_handshake = upstream.connection.handshake_session is not None
        if has_handshake and upstream.choice.prefers_handshake(viewer):
            return ListView(HANDSHAKE_OWNER, PLAIN)
        askable = select_declared(viewer.features, shared.revision)
        return ListView(None, build_profile(askable, modern=True))

    def list_hidden(self, kind: str, view: ListView) -> frozenset[str]:
        """Returns the canonical names that are published and not listed to such a client."""
        visible = self._find_visible(kind, view)
        offered = self._upstream.catalog.list_offered(kind)
        return frozenset(tool.name for tool in offered if tool.remote_name not in visible)

    def list_interfaces(self, view: ListView) -> Interfaces:
        """Returns the user interfaces that such a client sees, and others do not."""
        profile = self._profiles.get(view.profile) if view.profile is not None else None
        if profile is None or not profile.interfaces:
            return frozenset()
        return frozenset(
            (tool.name, encode(ui))
            for tool in self._upstream.catalog.list_offered(TOOL)
            if (ui := profile.interfaces.get(tool.remote_name)) is not None
        )

    def list_client_only_names(self, kind: str) -> frozenset[str]:
        """Returns the canonical names that only own sessions list."""
        return self.list_hidden(kind, ListView(None, None)) if self._own else frozenset()

    def _find_visible(self, kind: str, view: ListView) -> set[str]:
        shared = self._shared.get(kind, set())
        own = self._own.get(view.owner, {}).get(kind) if view.owner is not None else None
        if own is not None:
            extra = self._extra.get(kind, {})
            # Another client's session may list something else under the same name.
            return {
                name
                for entry in own
                if (name := _name(kind, entry)) in shared or extra.get(name) == entry
            }
        if view.profile == PLAIN:
            return set(shared)
        known = self._known.get(kind, set())
        profile = self._profiles.get(view.profile) if view.profile is not None else None
        profiles = [profile] if profile is not None else self._profiles.values()
        visible = set(shared)
        if profile is not None:
            visible -= profile.missing.get(kind, frozenset())
        for one in profiles:
            visible.update(_name(kind, entry) for entry in one.entries.get(kind, ()))
        return visible - (known - shared)

    def _list_visible(self, kind: str, view: ListView) -> Entries:
        """Returns the entries that such a client sees, by name."""
        shared = _index(kind, self._entries.get(kind, ()))
        listed = {**self._extra.get(kind, {}), **shared}
        return {name: listed[name] for name in self._find_visible(kind, view) if name in listed}

    def has_own(self, kind: str, viewer: Viewer) -> bool:
        """Whether the list of the client's own session is kept separately."""
        owner = self.find_view(viewer).owner
        return owner != HANDSHAKE_OWNER and kind in self._own.get(owner, ())

    async def check(self, call: Call) -> None:
        """Raises `NotFound` for what the server does not list to the client. What the client's own
        calls may have added is read first."""
        kind, name = call.tool.kind, call.tool.remote_name
        if kind not in (TOOL, PROMPT, RESOURCE) or name not in self._extra.get(kind, ()):
            return
        if name in self._find_visible(kind, self.find_view(call)):
            return
        reading = self._catch_up(kind, call)
        if reading is not None:
            await asyncio.wait([reading], timeout=self._upstream.limits.list_secs)
        if name not in self._find_visible(kind, self.find_view(call)):
            raise NotFound(f'{kind} "{call.requested_name[:200]}" not found for this client')

    def describe_differences(self) -> list[str]:
        """Describes how clients are treated differently."""
        found = []
        shared, choice = self._upstream.connection.session, self._upstream.choice
        if shared is not None and shared.modern and choice.speaks_handshake:
            found.append("clients of the handshake era use that era")
        if choice.separates:
            found.append(f"each client has a session of its own ({choice.reason})")
        visible = self._find_visible(TOOL, ListView(None, None))
        if count := len(visible - self._shared.get(TOOL, set())):
            found.append(f"{count} of its tools are listed only to clients that can be asked")
        return found

    # --- finding out what a client sees --------------------------------------------------------

    def prepare(self, kind: str, viewer: Viewer) -> asyncio.Task[None] | None:
        """Starts to find out what such clients are listed, or what the client's own session lists
        by now; None if that is known."""
        shared = self._upstream.connection.session
        if shared is None:
            return None
        if not viewer.features or viewer.features is TASKS_ONLY:  # it can be asked nothing
            return self._catch_up(kind, viewer) if self._upstream.choice.separates else None
        if self._upstream.is_per_user:  # lists are those of one credential
            return self._catch_up(kind, viewer)
        profile = self.find_view(viewer).profile
        if profile is None or profile == PLAIN or profile in self._profiles:
            return self._catch_up(kind, viewer)
        if profile in self._finding:
            return self._finding[profile]
        if monotonic() - self._failed.get(profile, float("-inf")) < RETRY_SECONDS:
            return None
        task = self._finding[profile] = start_task(self._find_profile(shared, viewer, profile))
        task.add_done_callback(lambda _: self._finding.pop(profile, None))
        return task

    def _catch_up(self, kind: str, viewer: Call | Viewer) -> asyncio.Task[None] | None:
        """Reads what the client's own session lists, if a call on it may have changed that."""
        upstream = self._upstream
        declared = upstream.choice.find_declared(upstream.connection.session, viewer)
        key = upstream.client_sessions.find(viewer, declared) if declared is not None else None
        return upstream.client_sessions.catch_up(key, kind) if key is not None else None

    async def _find_profile(self, shared: UpstreamSession, viewer: Viewer, profile: str) -> None:
        upstream = self._upstream
        declared = upstream.choice.find_declared(shared, viewer)
        has_asked = False
        try:
            if declared is not None:
                async with upstream.client_sessions.use(viewer, declared) as (own, session):
                    lists = await upstream.catalog.fetch_lists(session, KINDS)
                    has_asked = own.questions.has_asked
            else:
                features = select_declared(viewer.features, shared.revision)
                lists = await upstream.catalog.fetch_lists(shared, KINDS, features)
            await self._learn_profile(shared, profile, lists)
        except SessionNotOpened as problem:
            upstream.choice.may_share(shared, declared or {}, problem.error)
            self._fail(profile, problem.error)
        except HubError as error:
            self._fail(profile, error)
        else:
            if has_asked:
                upstream.choice.learn("it asks its clients when a session begins")

    def _fail(self, profile: str, error: HubError) -> None:
        if len(self._failed) >= MAX_PROFILES:
            self._failed.clear()
        self._failed[profile] = monotonic()
        log.info("what clients see that can be asked %s is unknown: %s", profile, error)

    async def close(self) -> None:
        tasks = list(self._finding.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._background.close(grace=self._upstream.limits.stop_secs)


def _index(kind: str, entries: Iterable[Any]) -> Entries:
    return {_name(kind, entry): entry for entry in entries}


def _name(kind: str, entry: Any) -> str:
    """Returns what identifies an entry in its list."""
    return str(entry.get(KINDS[kind].id)) if isinstance(entry, dict) else ""
