"""What a server lists, and to whom.

The shared session lists what every client may see. Some servers of the handshake era list other
things to clients that can be asked; what such clients are listed is their profile. A client's own
session may also list what the client's calls have made there. All of it is offered to the catalogs,
so that it is reviewed and has names, and who sees which part is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from dragoman.core.errors import HubError
from dragoman.mcp.client.catalog_sync import (
    KINDS,
    LIST_SECONDS,
    CatalogSync,
    Lists,
    find_changed_kinds,
)
from dragoman.mcp.client.notifications import NotificationSink
from dragoman.mcp.client.session import MAX_ENTRIES, UpstreamSession
from dragoman.mcp.protocol.elicitation import select_askable

ASKED: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
"""All that can be passed on to a client that can answer it."""
PLAIN = ""
"""The profile of clients that can be asked nothing: what the shared session lists."""
MAX_PROFILES = 32

T = TypeVar("T")
Open = Callable[[Mapping[str, Any], NotificationSink], Awaitable[UpstreamSession]]
"""Opens a session that declares these features, and who hears what is said on it unasked."""
Owner = Hashable
"""Whose an own session is."""


class Sight(NamedTuple):
    """How a client sees the lists of a server."""

    owner: Owner | None
    """Of its own session, where it has one."""
    profile: str | None
    """What it can be asked; None where that is not known."""


class _Profile:
    """The lists that clients see that can be asked certain things."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Any]] = {}
        self.missing: dict[str, frozenset[str]] = {}
        """What the shared session listed then, and these did not."""


def profile_of(features: Mapping[str, Any], *, modern: bool = False) -> str:
    if not features:
        return PLAIN
    return ("modern " if modern else "") + json.dumps(features, sort_keys=True)


class Listing:
    def __init__(self, offers: CatalogSync, open: Open, timeout: float, *, looks: bool) -> None:
        """`looks`: whether the server is listed at once as clients see it that can be asked
        everything."""
        self._offers = offers
        self._open = open
        self._timeout = timeout
        self._looks = looks
        self._session: UpstreamSession | None = None
        self._listed: dict[str, list[Any]] = {}
        """What the shared session lists, by kind, as it puts it."""
        self._shared: dict[str, set[str]] = {}
        """The names of that."""
        self._known: dict[str, set[str]] = {}
        """What the shared session ever listed: what it has dropped of that is gone for all."""
        self._profiles: dict[str, _Profile] = {}
        self._own: dict[Owner, dict[str, list[Any]]] = {}
        """What own sessions list that have announced a change."""
        self._offered: dict[str, dict[str, Any]] = {}
        """What is offered beside that, by kind and name."""
        self.restricted: dict[str, frozenset[str]] = {}
        """Names, by kind, of what not every client sees; empty for most servers."""
        self.differs = False
        """Whether some clients see another list than others."""
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    # --- reading -------------------------------------------------------------------------------

    async def refresh(self, session: UpstreamSession, kinds: Iterable[str], seconds: float) -> None:
        """Lists these kinds and offers them. Another connection for that may take so long; where it
        fails, what the shared session lists is offered."""
        wanted = list(kinds)
        if session is not self._session:
            self._session, self._listed, self._shared = session, {}, {}
            self._known, self._profiles = {}, {}
        if not self._looks or not seconds:
            await self._offer(
                session, await self._offers.fetch_lists(session, wanted, self._timeout)
            )
            return
        looking = self._begin(self._look(session, wanted, min(seconds, LIST_SECONDS)))
        try:
            lists = await self._offers.fetch_lists(session, wanted, self._timeout)
            found = await looking
        finally:
            looking.cancel()
        problems = []
        if isinstance(found, str):
            problems.append(f"what it offers to clients that can be asked is not listed: {found}")
        self._note_shared(lists)
        if not isinstance(found, str):
            self._record(profile_of(ASKED), found)
        await self._offer(session, lists)
        self._offers.report_problems("listing", problems)

    async def learn(self, session: UpstreamSession, profile: str, lists: Lists) -> bool:
        """Offers what clients of that profile are listed; whether it differs from what all are."""
        differs = self._record(profile, lists)
        await self._offer(session, {kind: [] for kind in lists}, is_shared=False)
        return differs

    def knows(self, profile: str) -> bool:
        return profile in self._profiles

    async def set_own(self, session: UpstreamSession | None, owner: Owner, lists: Lists) -> None:
        """What an own session lists by now."""
        own = self._own.setdefault(owner, {})
        own.update({kind: found for kind, found in lists.items() if isinstance(found, list)})
        if session is not None:
            await self._offer(session, {kind: [] for kind in lists}, is_shared=False)

    async def drop_own(self, session: UpstreamSession | None, owner: Owner) -> None:
        """The session has ended."""
        own = self._own.pop(owner, None)
        if own and session is not None:
            await self._offer(session, {kind: [] for kind in own}, is_shared=False)

    def find_differing(self, lists: Lists) -> set[str]:
        """The kinds whose lists have other names than those of the shared session."""
        return {
            kind
            for kind, entries in lists.items()
            if isinstance(entries, list)
            and {_name(kind, entry) for entry in entries} != self._shared.get(kind, set())
        }

    def own_kinds(self, owner: Owner) -> set[str]:
        return set(self._own.get(owner, ()))

    async def _offer(
        self, session: UpstreamSession, lists: Lists, *, is_shared: bool = True
    ) -> None:
        async with self._lock:
            if is_shared:
                self._note_shared(lists)
            elif session is not self._session:
                return  # it is read and offered anew
            whole: Lists = {
                kind: entries if isinstance(entries, HubError) else self._whole(kind)
                for kind, entries in lists.items()
            }
            await self._offers.publish(session, whole)

    def _note_shared(self, lists: Lists) -> None:
        for kind, entries in lists.items():
            if isinstance(entries, list):
                self._listed[kind] = entries
                self._shared[kind] = {_name(kind, entry) for entry in entries}
                self._known.setdefault(kind, set()).update(self._shared[kind])

    def _record(self, profile: str, lists: Lists) -> bool:
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
        return differs

    def _whole(self, kind: str) -> list[Any]:
        """All that any session lists, each name once. As the shared session has it, where it does:
        the others may be children each with a state of its own."""
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
        listed = self._listed.get(kind, [])
        found = dict(list(found.items())[: max(0, MAX_ENTRIES - len(listed))])
        self._offered[kind] = found
        self.restricted[kind] = frozenset(found)
        self.differs = (
            any(self.restricted.values())
            or bool(self._own)
            or any(any(profile.missing.values()) for profile in self._profiles.values())
        )
        return [*listed, *found.values()]

    # --- who sees what -------------------------------------------------------------------------

    def sees(self, kind: str, name: str, sight: Sight) -> bool:
        """Whether a client is listed what the server calls `name`."""
        return name in self._visible(kind, sight)

    def list_hidden(self, kind: str, sight: Sight) -> frozenset[str]:
        """The canonical names of what is offered, and not listed to such a client."""
        visible = self._visible(kind, sight)
        offered = self._offers.list_offered(kind)
        return frozenset(tool.name for tool in offered if tool.remote_name not in visible)

    def list_client_only_names(self, kind: str) -> frozenset[str]:
        """The canonical names of what own sessions alone list."""
        if not self._own:
            return frozenset()
        return self.list_hidden(kind, Sight(None, None))

    def count_asking(self, kind: str) -> int:
        """How many entries are listed only to clients that can be asked."""
        names = self._visible(kind, Sight(None, None)) - self._shared.get(kind, set())
        return len(names)

    def _visible(self, kind: str, sight: Sight) -> set[str]:
        shared = self._shared.get(kind, set())
        own = self._own.get(sight.owner, {}).get(kind) if sight.owner is not None else None
        if own is not None:
            offered = self._offered.get(kind, {})
            # What another client's session has under the same name need not be the same thing.
            return {
                name
                for entry in own
                if (name := _name(kind, entry)) in shared or offered.get(name) == entry
            }
        if sight.profile == PLAIN:
            return set(shared)
        known = self._known.get(kind, set())
        profile = self._profiles.get(sight.profile) if sight.profile is not None else None
        profiles = [profile] if profile is not None else self._profiles.values()
        visible = set(shared)
        if profile is not None:
            visible -= profile.missing.get(kind, frozenset())
        for one in profiles:
            visible.update(_name(kind, entry) for entry in one.entries.get(kind, ()))
        return visible - (known - shared)

    # --- the look at the start -----------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _look(
        self, session: UpstreamSession, kinds: list[str], seconds: float
    ) -> Lists | str:
        """What clients see that can be asked everything, or why that is not known."""
        try:
            async with asyncio.timeout(seconds):
                if session.modern:  # the request for a list says what can be asked
                    return await self._offers.fetch_lists(session, kinds, self._timeout, ASKED)
                return await self._listed_apart(session.revision, kinds)
        except (HubError, TimeoutError) as error:
            return str(error) or f"it took longer than {seconds:g} s"

    async def _listed_apart(self, revision: int, kinds: list[str]) -> Lists:
        """On a connection on which nothing is ever called and every question is refused."""
        changed: set[str] = set()

        def heard(method: str, params: Mapping[str, Any]) -> None:
            changed.update(find_changed_kinds(method))

        session = await self._open(select_askable(ASKED, revision), heard)
        try:
            lists = await self._offers.fetch_lists(session, kinds, self._timeout)
            late = changed.intersection(kinds)
            if late:  # what hangs on the client is often added only after the greeting
                lists.update(await self._offers.fetch_lists(session, late, self._timeout))
            return lists
        finally:
            self._begin(_close(session))  # a child may take its time

    async def close(self) -> None:
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)


async def _close(session: UpstreamSession) -> None:
    with contextlib.suppress(HubError):
        await session.close()


def _name(kind: str, entry: Any) -> str:
    """What tells an entry from the others of its list."""
    return str(entry.get(KINDS[kind].id)) if isinstance(entry, dict) else ""
