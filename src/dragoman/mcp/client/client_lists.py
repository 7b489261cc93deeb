"""The lists of a server as each client sees them: found out, kept up to date, and told of changes.

A client that can be asked is listed what its own session lists. That is found out once for all
clients that can be asked the same, on the session of the first of them. An own session that says
that a list has changed is read again, and its client is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import monotonic

from dragoman.core.call import Call
from dragoman.core.errors import HubError, NotFound
from dragoman.core.ports import Viewer
from dragoman.core.tool import PROMPT, RESOURCE, TOOL
from dragoman.mcp.client.catalog_sync import KINDS, LIST_SECONDS, CatalogSync, Lists
from dragoman.mcp.client.client_sessions import ClientSession, ClientSessions, Key, SessionNotOpened
from dragoman.mcp.client.handshake_session import OWNER, HandshakeSession
from dragoman.mcp.client.interactive_listing import (
    MAX_PROFILES,
    PLAIN,
    Listing,
    Owner,
    Sight,
    profile_of,
)
from dragoman.mcp.client.session import UpstreamSession
from dragoman.mcp.client.session_choice import SessionChoice
from dragoman.mcp.protocol.elicitation import TASKS_ONLY, select_askable
from dragoman.mcp.protocol.revisions import R2607

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""After lists could not be found out, they are not tried again for this long."""
_LISTED = frozenset({TOOL, PROMPT, RESOURCE})


class ClientLists:
    def __init__(
        self,
        offers: CatalogSync,
        listing: Listing,
        personal: ClientSessions,
        choice: SessionChoice,
        handshake: HandshakeSession,
        timeout: float,
        shared: Callable[[], UpstreamSession | None],
        tell: Callable[[str, str], None],
        look_at: Callable[[Iterable[str]], None],
    ) -> None:
        """`shared` gives the shared session, `tell` tells a client that a list of that kind may
        have changed, and `look_at` has lists of the shared session read again."""
        self._offers = offers
        self._listing = listing
        self._personal = personal
        self._choice = choice
        self._handshake = handshake
        self._timeout = timeout
        self._shared = shared
        self._tell = tell
        self._look_at = look_at
        self._finding: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, float] = {}
        self._work: set[asyncio.Task[None]] = set()

    # --- who sees what -------------------------------------------------------------------------

    def sight_of(self, viewer: Call | Viewer) -> Sight:
        shared = self._shared()
        declared = self._choice.features_for(shared, viewer)
        if declared is not None:
            return Sight(self._personal.find(viewer, declared), profile_of(declared))
        if shared is None or not shared.modern:
            return Sight(None, PLAIN)
        if self._handshake.session is not None and self._choice.prefers_handshake(viewer):
            return Sight(OWNER, PLAIN)
        return Sight(None, profile_of(select_askable(viewer.features, R2607), modern=True))

    def list_hidden(self, kind: str, viewer: Viewer) -> frozenset[str]:
        return self._listing.list_hidden(kind, self.sight_of(viewer))

    async def check(self, call: Call) -> None:
        """Raises `NotFound` for what the server does not list to the caller. What the caller's own
        calls may have added is looked at first."""
        tool = call.tool
        if tool.kind not in _LISTED or tool.remote_name not in self._listing.restricted[tool.kind]:
            return
        if self._listing.sees(tool.kind, tool.remote_name, self.sight_of(call)):
            return
        reading = self._catch_up(tool.kind, call)
        if reading is not None:
            await wait_for_lists([reading])
        if not self._listing.sees(tool.kind, tool.remote_name, self.sight_of(call)):
            raise NotFound(f'there is no {tool.kind} "{call.requested_name[:200]}" for this client')

    def remarks(self) -> list[str]:
        """How clients are treated differently here, in words."""
        found = []
        shared, choice = self._shared(), self._choice
        if shared is not None and shared.modern and choice.speaks_handshake:
            found.append("clients of the handshake era use that era")
        if choice.separates:
            found.append(f"each client has a session of its own ({choice.reason})")
        if count := self._listing.count_asking(TOOL):
            found.append(f"{count} of its tools are listed only to clients that can be asked")
        return found

    # --- finding out ---------------------------------------------------------------------------

    def prepare(self, kind: str, viewer: Viewer) -> asyncio.Task[None] | None:
        """Finds out what such clients are listed, where that is not known, or what the client's own
        session lists by now."""
        shared = self._shared()
        if shared is None:
            return None
        if not viewer.features or viewer.features is TASKS_ONLY:  # it can be asked nothing
            return self._catch_up(kind, viewer) if self._choice.separates else None
        profile = self.sight_of(viewer).profile
        if profile is None or profile == PLAIN or self._listing.knows(profile):
            return self._catch_up(kind, viewer)
        if profile in self._finding:
            return self._finding[profile]
        if monotonic() - self._failed.get(profile, float("-inf")) < RETRY_SECONDS:
            return None
        work = self._find_out(shared, viewer, profile)
        task = self._finding[profile] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._finding.pop(profile, None))
        return task

    def _catch_up(self, kind: str, viewer: Call | Viewer) -> asyncio.Task[None] | None:
        """Reads what the client's own session lists, if a call on it may have changed that."""
        declared = self._choice.features_for(self._shared(), viewer)
        own = self._personal.find(viewer, declared) if declared is not None else None
        return self._personal.catch_up(own, kind) if own is not None else None

    async def _find_out(self, shared: UpstreamSession, viewer: Viewer, profile: str) -> None:
        declared = self._choice.features_for(shared, viewer)
        asked = False
        try:
            if declared is not None:
                lists, asked = await self._personal.read_lists(viewer, declared, self._read)
            else:
                features = select_askable(viewer.features, R2607)
                lists = await self._offers.fetch_lists(shared, KINDS, self._timeout, features)
            differs = await self._listing.learn(shared, profile, lists)
        except SessionNotOpened as problem:
            self._choice.may_share(shared, declared or {}, problem.error)
            self._fail(profile, problem.error)
        except HubError as error:
            self._fail(profile, error)
        else:
            if differs:
                self._choice.learn("its lists depend on what a client can be asked")
            if asked:
                self._choice.learn("it asks its clients when a session begins")

    async def _read(self, session: UpstreamSession) -> Lists:
        return await self._offers.fetch_lists(session, KINDS, self._timeout)

    def _fail(self, profile: str, error: HubError) -> None:
        if len(self._failed) >= MAX_PROFILES:
            self._failed.clear()
        self._failed[profile] = monotonic()
        log.info("what clients see that can be asked %s is not known: %s", profile, error)

    # --- changes -------------------------------------------------------------------------------

    async def read_changed(
        self, key: Key, own: ClientSession, kinds: set[str], announced: set[str]
    ) -> None:
        """These lists of an own session may have changed; of some it has said so."""
        session = own.session
        if session is None:
            return
        lists = await self._offers.fetch_lists(session, kinds, self._timeout)
        shared = self._shared()
        profile = profile_of(own.features)
        if own.is_new and profile != PLAIN and shared is not None:
            # What depends on the client is often added only after the greeting.
            if await self._listing.learn(shared, profile, lists):
                self._choice.learn("its lists depend on what a client can be asked")
        else:
            await self._listing.set_own(shared, key, lists)
        for kind in announced:
            self._tell(own.whose, kind)
        if announced and session.wire.supports_sessions:  # one process serves all sessions
            self._look_at(announced)

    async def learn_handshake(self, lists: Lists) -> set[str]:
        """What the shared session of the handshake era lists; the kinds of which it lists something
        else than the first shared session. As a rule there are none, and nothing is kept apart."""
        differing = self._listing.find_differing(lists)
        if differing or self._listing.own_kinds(OWNER):
            await self._listing.set_own(self._shared(), OWNER, lists)
        return differing

    def shared_changed(self, kinds: Iterable[str]) -> None:
        """The shared session lists something else: own sessions may as well."""
        wanted = set(kinds)
        for key in self._personal.keys():  # noqa: SIM118 (it is no mapping)
            if again := wanted & self._listing.own_kinds(key):
                self._personal.read_again(key, again)

    def own_ended(self, owner: Owner) -> None:
        if not self._listing.own_kinds(owner):
            return
        work = self._listing.drop_own(self._shared(), owner)
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def close(self) -> None:
        tasks = [*self._finding.values(), *self._work]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_lists(tasks: Iterable[asyncio.Task[None]]) -> None:
    """For a bounded time: a client that lists early is told of the rest later."""
    await asyncio.wait(list(tasks), timeout=LIST_SECONDS)
