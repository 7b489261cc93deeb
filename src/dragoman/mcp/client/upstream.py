"""One configured server as a target: connected in the background, kept connected, healed by itself.

There is one connection or child that clients share, and a second one where the server speaks both
eras; a client that can be asked questions may have one of its own beside them. What the server
offers stays in the catalogs while it is being reached again, so that it does not come and go; a
call then waits for the attempt under way, or is told the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog
from dragoman.core.errors import (
    HubError,
    InvalidInput,
    Quarantined,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.core.events import (
    ClientListChanged,
    ElicitationCompleted,
    ListAnnounced,
    ResourceUpdated,
    ServerChanged,
)
from dragoman.core.logs import RepeatedFailure
from dragoman.core.ports import ClientAsker, SchemaCompiler
from dragoman.core.read_pacing import pause_after_list
from dragoman.core.tool import SUBSCRIPTION, TOOL, Nowhere, TargetFacts, TargetTraits
from dragoman.mcp.client.catalog_sync import (
    KINDS,
    CatalogSync,
    find_changed_kinds,
    is_announced,
    is_offered,
)
from dragoman.mcp.client.child_process import OutputRing
from dragoman.mcp.client.client_lists import ClientLists
from dragoman.mcp.client.client_sessions import ClientSession, ClientSessions, Key
from dragoman.mcp.client.handshake_session import OWNER, HandshakeSession
from dragoman.mcp.client.interactive_listing import Listing
from dragoman.mcp.client.jsonrpc_channel import FOREVER
from dragoman.mcp.client.legacy_sse import SseWire
from dragoman.mcp.client.list_freshness import ListFreshness
from dragoman.mcp.client.notifications import NotificationSink, RequestListener
from dragoman.mcp.client.remote_tasks import UpstreamTasks, makes_tasks
from dragoman.mcp.client.resource_subscriptions import ResourceSubscriptions
from dragoman.mcp.client.server_logs import ServerLogs
from dragoman.mcp.client.session import SessionSpec, UpstreamSession, announces_resources
from dragoman.mcp.client.session_choice import SessionChoice
from dragoman.mcp.client.streamable_http import HttpWire, UpstreamHttpError, WrongEra
from dragoman.mcp.client.upstream_call import Calls
from dragoman.mcp.config import ANSWER_SECONDS, ServerEntry, StdioTransport
from dragoman.mcp.protocol.elicitation import ASKING
from dragoman.mcp.protocol.notifications import COMPLETED, MESSAGE, UPDATED
from dragoman.mcp.protocol.revisions import NAMES

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""The least time a child gets to start: the first run of `npx` fetches what it runs."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
HANDSHAKE_SECONDS = 15.0
"""The most that a server of the modern era is given to answer a handshake."""
STEADY_SECONDS = 30.0
"""A connection that lasted so long was a good one: the next attempt comes at once again."""
FRESH_FAILURE = 1.0
"""A call this soon after a failed attempt is told its reason rather than making another."""
STOP_SECONDS = 10.0
"""The most that stopping a server may take, twice what a child that ignores every request takes:
whatever hangs after that is left behind, so that the others do not wait for it."""
LOSSES = 5
"""A server that is lost more often than this, one time after the other, has failed: until then a
call starts it again at once."""
NOT_UNDERSTOOD = (-32600, -32601, -32602)
MAX_REASON = 1_000
ALL = tuple(KINDS)
QUESTION_SECONDS = 600.0
OWN_IDLE_SECONDS = 1_800.0
"""How long a client's own session is kept that nothing happens on, where the client may have gone
without a word; as long as the hub keeps an idle session of the client's."""


Connect = Callable[["Upstream", float, SessionSpec], Awaitable[UpstreamSession]]
"""Opens a session with a server, within that many seconds."""
HttpWireType = type[HttpWire] | type[SseWire]


class Upstream:
    # More than 30 attributes in a dictionary would cost the fast path to all of them.
    __slots__ = (
        "__weakref__", "_announced", "_answer_secs", "_bus", "_calls", "_catalogs", "_changed",
        "_connect", "_dirty", "_failed_at", "_failure", "_in_flight", "_leaving", "_main_spec",
        "_reading",
        "_refreshing", "_settled", "_stale", "_stop_secs", "_stopping", "_task", "_used_at",
        "_wake", "choice", "client_sessions", "entry", "freshness", "handshake", "http_wire",
        "listing",
        "lists", "logs", "modern", "name", "offers", "reason", "restarts", "session",
        "state", "stderr", "subscriptions", "tasks", "traits",
    )  # fmt: skip

    def __init__(
        self,
        entry: ServerEntry,
        connect: Connect,
        catalogs: Mapping[str, Catalog],
        bus: Bus,
        compile_schema: SchemaCompiler,
        question_secs: float = QUESTION_SECONDS,
        stop_secs: float = STOP_SECONDS,
        answer_secs: float = ANSWER_SECONDS,
        asker: ClientAsker | None = None,
    ) -> None:
        """`answer_secs` is how long a server without a `timeout_secs` of its own may take over the
        handshake, its lists and whatever else the hub asks for itself. Calls to such a server have
        the time that the hub gives to every call."""
        self.entry = entry
        self._answer_secs = entry.timeout_secs or answer_secs
        self._stop_secs = stop_secs
        self._stopping = False
        self.name = entry.name
        facts = TargetFacts(
            type="Server",
            transport=str(entry.transport.__struct_config__.tag),
            pinned=entry.pin != "off",
        )
        self.traits = TargetTraits(facts=facts, ends_questions=True)
        self.state = "starting"
        self.reason = ""
        self._failure = RepeatedFailure()
        self.stderr = OutputRing()
        """What it wrote there, and the lines of its log that are nobody's."""
        self.logs = ServerLogs(self.name, self.stderr, bus)
        self.session: UpstreamSession | None = None
        self.modern: bool | None = None
        self.http_wire: HttpWireType | None = None
        """Learned when it was connected last: the era and the HTTP transport."""
        self.restarts = -1
        self.offers = CatalogSync(self, catalogs, compile_schema, entry.prefix)
        looks = entry.interactive is True
        self.listing = Listing(self.offers, self._open_to_list, self._answer_secs, looks=looks)
        self.subscriptions = ResourceSubscriptions(self.name, self._updated)
        self.client_sessions = self._make_personal(question_secs, asker)
        self.tasks = UpstreamTasks(self.name, question_secs)
        self.choice = SessionChoice(entry)
        self.handshake = HandshakeSession(
            self._open_handshake, self._handshake_opened, self._handshake_ended
        )
        self._main_spec = SessionSpec(
            self.handle_shared_notification, self.reread_all, is_main=True
        )
        self._calls = self._make_calls()
        self.lists = self._make_lists()
        self._catalogs = catalogs
        self._connect = connect
        self._bus = bus
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._dirty: set[str] = set()
        """The kinds whose lists are to be looked at."""
        self._announced: set[str] = set()
        """Those of them that the server has said to have changed."""
        self._stale: set[str] = set()
        """The kinds whose lists are to be read again although nobody said that they changed."""
        self._reading: set[str] | frozenset[str] = frozenset()
        """Lists that have changed and are being read."""
        self._refreshing: asyncio.Future[None] | None = None
        self.freshness = ListFreshness(entry.refresh_secs, self._hears)
        self._settled: asyncio.Future[None] | None = None
        self._failed_at = float("-inf")
        self._in_flight = 0
        self._used_at = monotonic()
        self._leaving: set[asyncio.Task[None]] = set()
        """Those who follow a resource no more."""

    def _make_personal(self, question_secs: float, asker: ClientAsker | None) -> ClientSessions:
        entry = self.entry
        return ClientSessions(
            self.name,
            self._open_own,
            self._answer_secs,
            question_secs,
            entry.idle_secs or OWN_IDLE_SECONDS,
            entry.timeout_secs or FOREVER,
            keeps_connected=not entry.idle_secs,
            heard=self.handle_notification,
            own_changed=self._read_own,
            own_ended=lambda key: self.lists.own_ended(key),
            asker=asker,
        )

    def _make_calls(self) -> Calls:
        return Calls(
            self.name,
            self._answer_secs,
            self.entry.timeout_secs or FOREVER,
            self.offers,
            self.listing,
            self.client_sessions,
            self.tasks,
            self._connected,
            self.choice,
            self.handshake,
        )

    def _make_lists(self) -> ClientLists:
        return ClientLists(
            self.offers,
            self.listing,
            self.client_sessions,
            self.choice,
            self.handshake,
            self._answer_secs,
            lambda: self.session,
            self._tell_client,
            self._look_at,
        )

    async def _read_own(
        self, key: Key, own: ClientSession, kinds: set[str], announced: set[str]
    ) -> None:
        await self.lists.read_changed(key, own, kinds, announced)

    def _tell_client(self, owner: str, kind: str) -> None:
        self._bus.emit(ClientListChanged(owner, kind))

    # --- what the hub sees -------------------------------------------------------------------

    def start(self) -> None:
        self._settled = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    async def stop(self) -> None:
        """What it offers is gone at once; the server itself may take a while to end."""
        self.offers.withdraw()
        self.subscriptions.close()
        for leaving in self._leaving:
            leaving.cancel()
        self._become("stopped", "it was stopped")
        self._settle()
        self._stopping = True
        # Only `wait` returns in time whatever it waits for: a task that is deaf to being cancelled
        # outlasts every `timeout` and `gather` around it.
        work = asyncio.get_running_loop().create_task(self._disconnect())
        try:
            _, late = await asyncio.wait([work], timeout=self._stop_secs)
        finally:
            work.cancel()
            if self._task is not None:
                self._task.cancel()
        if late:
            log.error('server "%s" did not stop within %g s', self.name, self._stop_secs)
        else:
            work.result()

    async def _disconnect(self) -> None:
        await self.tasks.close()  # while there is a connection
        if self._task is not None:
            self._task.cancel()
        await asyncio.gather(self.client_sessions.close(), self.handshake.close())
        await self.lists.close()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await self.listing.close()

    async def run(self, call: Call) -> Result:
        if self.listing.differs:
            await self.lists.check(call)
        make = self._calls.make
        if call.tool.kind == SUBSCRIPTION:
            if self.session is None and not _follows(call):
                await asyncio.wait([self._leave(None, call)])  # or it is asked for again, for ever
                return Result()
            make = self._subscribe
        session = self.session or await self._back(call)
        self._in_flight += 1
        try:
            try:
                return await make(session, call)
            except Unreachable as error:
                lost = self.handshake.is_lost(error)
                self._suspect(session, error)
                if error.sent or not (lost or session.wire.lost.done()):
                    raise
            # Nothing has left: that the server is gone was found out only now.
            is_there = self.session is not session or not session.wire.lost.done()
            again = self.session if is_there else None
            return await make(again or await self._back(call), call)
        finally:
            self._in_flight -= 1
            self._used_at = monotonic()

    async def _back(self, call: Call) -> UpstreamSession:
        """The session, once there is one again. What the server offers was looked at when it came
        back, and may be held by now: what was judged before that is not what would be called."""
        session = await self._wait()
        catalog = self._catalogs.get(call.tool.kind)
        found = catalog.find(call.tool.name).target if catalog is not None else None
        if isinstance(found, Nowhere) and isinstance(found.error, Quarantined):
            raise Quarantined(str(found.error))
        return session

    async def _subscribe(self, session: UpstreamSession, call: Call) -> Result:
        if not _follows(call):
            await asyncio.wait([self._leave(session, call)])
            return Result()
        uri = call.tool.remote_name
        if not announces_resources(session):  # perhaps it does in the other era
            await self._calls.find_shared(session, call)
        try:
            await self.subscriptions.subscribe(session, call.client, uri, self._answer_secs)
        except InvalidInput:
            if not session.modern or not await self._calls.follow_alone(session, call):
                raise
            self.subscriptions.add(call.client, uri)
            return Result()
        try:
            await self._calls.follow(session, call, True)
        except BaseException:  # who never hears that it follows would never leave
            self._leave(session, call)
            raise
        return Result()

    def _leave(self, session: UpstreamSession | None, call: Call) -> asyncio.Task[None]:
        """Has the client follow it no more, even if nobody waits for that."""

        async def leave() -> None:
            uri, seconds = call.tool.remote_name, self._answer_secs
            await self.subscriptions.unsubscribe(session, call.client, uri, seconds)
            await self._calls.follow(session, call, False)

        task = asyncio.get_running_loop().create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    def drop_client(self, client: str) -> None:
        """A client's session has ended; what was kept for it alone goes."""
        self.client_sessions.drop_client(client)
        self.choice.forget_client(client)
        self._calls.url_elicitations.forget_client(client)
        self.subscriptions.drop_client(client, self.session, self._answer_secs)

    def roots_changed(self, client: str) -> None:
        """The folders that a client works in are others."""
        self.client_sessions.roots_changed(client)

    async def try_now(self) -> None:
        """Tries a server that has failed again at once; raises if it fails again."""
        if self.state == "failed":
            await self._wait()

    async def wait_tried(self) -> None:
        """Until the attempt under way has come to something."""
        if self._settled is not None:
            await asyncio.wait([self._settled])

    @property
    def revision(self) -> str | None:
        return NAMES[self.session.revision] if self.session else None

    def _set_may_last(self, may_last: bool) -> None:
        """Whether it makes tasks: its calls may then take longer than others."""
        if may_last != self.traits.may_last:
            self.traits = replace(self.traits, may_last=may_last)

    @property
    def problems(self) -> list[str]:
        """What of its lists is left out, and why."""
        return self.offers.problems

    # --- what the server says unasked ----------------------------------------------------------

    def handle_shared_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """On the session that all share."""
        if method in ASKING:
            self.choice.learn("it asks questions")
        else:
            self.handle_notification(method, params)

    def handle_notification(
        self, method: str, params: Mapping[str, Any], client: str | None = None
    ) -> None:
        """On any session; `client` is whose own it is."""
        if method == MESSAGE:
            self.logs.write(params, client)
        elif method == UPDATED:
            self.subscriptions.notify_updated(params.get("uri"))
        elif method == COMPLETED:
            self._complete_elicitation(params.get("elicitationId"), client)
        elif kinds := find_changed_kinds(method):
            self._announced.update(kinds)
            self._look_at(kinds)

    def _complete_elicitation(self, id: Any, client: str | None) -> None:
        told = self._calls.url_elicitations.complete(id, client)
        if told is not None:
            self._bus.emit(ElicitationCompleted(told, id))

    def reread_all(self) -> None:
        """Something may have been said while nobody listened."""
        self._look_at(ALL)
        self.subscriptions.notify_all()

    def _look_at(self, kinds: Iterable[str]) -> None:
        self._dirty.update(kinds)
        self._changed.set()

    def _read_soon(self) -> None:
        """Reads all lists again, and follows again what is followed."""
        self._stale.update(ALL)
        self._changed.set()

    def refresh(self, kind: str) -> asyncio.Future[None]:
        """Reads that list again; done when it was read, or could not be."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_future()
        self._stale.add(kind)
        self._changed.set()
        return self._refreshing

    def is_stale(self, kind: str) -> bool:
        """Whether a list is to be read before it is given to somebody. Nobody waits for a server
        that is not connected."""
        if self.session is None:
            return False
        if kind in self._dirty or kind in self._reading:
            return True
        return self.freshness.is_stale(kind, self._used_at)

    def _hears(self) -> bool:
        return self.session is not None and self.session.notifications.is_open

    def _updated(self, uri: str) -> None:
        self._bus.emit(ResourceUpdated(f"{self.name}.{uri}"))

    # --- waiting for a connection --------------------------------------------------------------

    async def _connected(self) -> UpstreamSession:
        return self.session or await self._wait()

    async def _wait(self) -> UpstreamSession:
        """The session of the attempt under way, or of one made now."""
        if self.state == "stopped":
            raise self._unreachable()
        if self.state == "failed" and monotonic() - self._failed_at < FRESH_FAILURE:
            raise self._unreachable()
        if self._settled is None or self._settled.done():
            self._settled = asyncio.get_running_loop().create_future()
        self._wake.set()
        try:
            async with asyncio.timeout(self._answer_secs):
                await asyncio.shield(self._settled)
        except TimeoutError:
            raise TimedOut(
                f'server "{self.name}" is still starting after {self._answer_secs:g} s; '
                "try again, or see: dragoman servers logs " + self.name
            ) from None
        if self.session is None:
            raise self._unreachable()
        return self.session

    def _unreachable(self) -> Unreachable:
        return Unreachable(f'server "{self.name}" is not connected: {self.reason}', sent=False)

    def _settle(self) -> None:
        """The attempt has come to something: whoever waits looks for the session, or the reason."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _suspect(self, session: UpstreamSession, error: Unreachable) -> None:
        """A call found nobody there: the connection is made again. One that was lost on the way
        says nothing of the server: the next call will tell."""
        if not error.sent and self.session is session:
            session.wire.suspect_lost(str(error))

    # --- keeping it connected -------------------------------------------------------------------

    async def _supervise(self) -> None:
        failures = 0
        while not self._stopping:  # even if an error took the place of the cancellation
            self._become("starting", "")
            begun = monotonic()
            try:
                session = await self._open()
            except HubError as error:
                failures += 1
                await self._pause(str(error), failures)
                continue
            except Exception as error:
                log.exception('server "%s" could not be connected', self.name)
                failures += 1
                await self._pause(repr(error), failures)
                continue
            try:
                reason = await self._serve(session)
                if reason is not None:
                    log.warning('server "%s" was lost: %s', self.name, reason)
            except Exception as error:  # or nobody would look after it any more
                log.exception('server "%s" could not be kept connected', self.name)
                reason = repr(error)
            finally:
                self.session = None
                await session.close()
            if reason is None:
                failures = 0
                await self.handshake.close()
                await self._rest()
                continue
            failures = 0 if monotonic() - begun > STEADY_SECONDS else failures + 1
            wanted = self._wake.is_set() and failures <= LOSSES
            if failures > 1 and not wanted:
                await self._pause(reason, failures - 1, tried=failures > LOSSES)

    async def _open(self) -> UpstreamSession:
        seconds = self._start_seconds()
        session: UpstreamSession | None = None
        known = self.modern
        try:
            async with asyncio.timeout(seconds) as limit:
                session = await self._connect(self, seconds, self._main_spec)
                self._changed.clear()
                for kinds in (self._dirty, self._announced, self._stale):
                    kinds.clear()
                left = (limit.when() or 0.0) - asyncio.get_running_loop().time()
                await self._list(session, ALL, left / 2)
        except BaseException as error:
            if session is not None:
                await session.close()
            learned = self.modern if self.modern is not known else None
            self.modern = self.http_wire = None  # what was known of it may be what is wrong
            if isinstance(error, TimeoutError):
                self.modern = learned  # that it was greeted twice, and took long to start again
            if session is not None and session.modern and _wants_handshake(error):
                self.modern = False  # it said that it speaks the modern era, and does not
            if isinstance(error, TimeoutError):
                raise TimedOut(f"it did not answer within {seconds:g} s") from None
            raise
        self.modern = session.modern
        if not session.modern:
            await self.handshake.close()  # all share this one from here on
        self._calls.lasts = makes_tasks(session.features)
        self._set_may_last(self._calls.lasts)
        self.choice.reconnected()
        self.session = session
        self._wake.clear()
        self.restarts += 1
        self._become("connected", "")
        self._settle()
        log.info(
            'server "%s" is connected: %s, %d tools; %d tools in all',
            self.name,
            self.revision,
            self.offers.count_offered(TOOL),
            self.offers.count_total(TOOL),
        )
        return session

    def _start_seconds(self) -> float:
        seconds = self._answer_secs
        child = isinstance(self.entry.transport, StdioTransport)
        return max(seconds, START_SECONDS) if child else seconds

    async def _list(self, session: UpstreamSession, kinds: Collection[str], seconds: float) -> None:
        """What it offers of these kinds. Another connection for that may take so long."""
        begun = monotonic()
        try:
            await self.listing.refresh(session, kinds, seconds)
        finally:
            for kind in kinds:
                if is_offered(session, kind):
                    ttl = session.ttls.get(KINDS[kind].method)
                    announced = is_announced(session, kind)
                    self.freshness.note(kind, begun, ttl, announced=announced)

    async def _open_own(
        self, features: Mapping[str, Any], heard: NotificationSink, outside: RequestListener
    ) -> UpstreamSession:
        seconds = self._start_seconds()
        shared = self.session
        if shared is not None and shared.modern:  # it may well speak no other era
            seconds = min(seconds, HANDSHAKE_SECONDS)
        apart = SessionSpec(heard, declared=features, questions=outside)
        session = await self._open_apart(apart, seconds)
        self.choice.opened(shared)
        self._set_may_last(self.traits.may_last or makes_tasks(session.features))
        return session

    async def _open_handshake(self) -> UpstreamSession:
        shared = self.session
        apart = SessionSpec(self.handle_shared_notification, self._read_soon)
        session = await self._open_apart(apart, min(self._start_seconds(), HANDSHAKE_SECONDS))
        self.choice.opened(shared)
        self._calls.lasts = self.traits.may_last or makes_tasks(session.features)
        self._set_may_last(self._calls.lasts)
        return session

    async def _handshake_opened(self, session: UpstreamSession) -> None:
        """What is followed is followed there too, and what it lists is read. Clients that were
        listed something else are told."""
        self.subscriptions.handshake_session = session
        if self.session is not None:
            await self.subscriptions.restore(self.session, self._answer_secs)
        with contextlib.suppress(HubError):
            lists = await self.offers.fetch_lists(session, ALL, self._answer_secs)
            for kind in sorted(await self.lists.learn_handshake(lists)):
                self._bus.emit(ListAnnounced(self.name, kind))

    def _handshake_ended(self) -> None:
        self.subscriptions.handshake_session = None
        self.lists.own_ended(OWNER)

    def _open_to_list(
        self, features: Mapping[str, Any], heard: NotificationSink
    ) -> Awaitable[UpstreamSession]:
        apart = SessionSpec(heard, declared=features, listens=False)
        return self._open_apart(apart, self._start_seconds())

    async def _open_apart(self, apart: SessionSpec, seconds: float) -> UpstreamSession:
        try:
            async with asyncio.timeout(seconds):
                return await self._connect(self, seconds, apart)
        except TimeoutError:
            raise TimedOut(
                f'server "{self.name}" did not open another session within {seconds:g} s'
            ) from None

    async def _serve(self, session: UpstreamSession) -> str | None:
        """Until it is lost (the reason in words) or has been idle for long enough (None)."""
        idle = self.entry.idle_secs if isinstance(self.entry.transport, StdioTransport) else 0
        self._used_at = monotonic()
        if self.subscriptions:
            await self.subscriptions.restore(session, self._answer_secs)
            self.subscriptions.notify_all()
        lost: asyncio.Future[Any] = session.wire.lost
        changed: asyncio.Future[Any] = self._change()
        try:
            while True:
                pause = self.freshness.pause
                if idle:
                    left = max(0.05, self._used_at + idle - monotonic())
                    pause = left if pause is None else min(left, pause)
                await asyncio.wait(
                    [lost, changed], timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if session.wire.lost.done():
                    return session.wire.lost.result()
                for kind in self.freshness.list_due(self._used_at):
                    self.refresh(kind)
                if self._changed.is_set():
                    self._changed.clear()
                    changed.cancel()
                    changed = self._change()
                    await self._follow_change(session)
                busy = self._in_flight or len(self.subscriptions) or self.tasks.suspended
                if idle and not busy and monotonic() - self._used_at >= idle:
                    return None
        finally:
            changed.cancel()
            self.freshness.clear()
            self._refreshed(self._refreshing)

    def _change(self) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(self._changed.wait())

    async def _follow_change(self, session: UpstreamSession) -> None:
        self._reading = dirty = self._dirty
        self._dirty = set()
        stale, self._stale = self._stale, set()
        announced, self._announced = self._announced, set()
        refreshing, self._refreshing = self._refreshing, None
        try:
            # Another connection is opened only where there is reason to think of a change.
            await self._list_both(session, dirty | stale, self._start_seconds() if dirty else 0)
        except HubError as error:
            level = logging.WARNING if dirty else logging.DEBUG
            said = 'server "%s" changed what it offers but does not list it: %s'
            log.log(level, said, self.name, error)
        else:
            if self.listing.differs:
                self.lists.shared_changed(dirty)
            for kind in sorted(announced):
                self._bus.emit(ListAnnounced(self.name, kind))
        finally:
            self._reading = frozenset()
            self._refreshed(refreshing)
        await self.subscriptions.restore(session, self._answer_secs)
        size = sum(session.sizes.get(KINDS[kind].method, 0) for kind in dirty | stale)
        pause = pause_after_list(size, self.offers.spent)
        await asyncio.wait([session.wire.lost], timeout=pause)

    async def _list_both(
        self, session: UpstreamSession, kinds: Collection[str], seconds: float
    ) -> None:
        """What it offers of these kinds, in both eras where both are used."""
        beside = self.handshake.session
        if beside is None:
            await self._list(session, kinds, seconds)
            return
        work = self.offers.fetch_lists(beside, kinds, self._answer_secs)
        reading = asyncio.get_running_loop().create_task(work)
        try:
            await self._list(session, kinds, seconds)
            with contextlib.suppress(HubError):
                lists = await reading
                if self.handshake.session is beside:
                    await self.lists.learn_handshake(lists)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _refreshed(self, refreshing: asyncio.Future[None] | None) -> None:
        if refreshing is not None and not refreshing.done():
            refreshing.set_result(None)
        if refreshing is self._refreshing:
            self._refreshing = None

    async def _pause(self, reason: str, failures: int, *, tried: bool = True) -> None:
        """Waits longer after each failure, with jitter; a call cuts the wait short."""
        if tried:
            self._failed_at = monotonic()
        self._become("failed", reason)
        self._settle()
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 10))
        self._wake.clear()
        try:
            async with asyncio.timeout(pause * random.uniform(0.8, 1.2)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _rest(self) -> None:
        """Stopped for want of use, until somebody calls; perhaps somebody has already."""
        self._become("idle", f"unused for {self.entry.idle_secs:g} s; a call starts it again")
        await self._wake.wait()

    def _become(self, state: str, reason: str) -> None:
        reason = reason[:MAX_REASON]
        if (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason = state, reason
        if state == "failed":
            said = self._failure.note(reason)
            level = logging.DEBUG if said is None else logging.WARNING
            log.log(level, 'server "%s" is not connected: %s', self.name, said or reason)
        elif state == "connected":
            self._failure.clear()
        self._bus.emit(ServerChanged(self.name, state, reason))


def _wants_handshake(error: BaseException) -> bool:
    """Whether a server refuses a request of the modern era as none that it understands."""
    if isinstance(error, WorkFailed) and error.native is not None:
        return error.native.get("code") in NOT_UNDERSTOOD
    return isinstance(error, WrongEra) or (
        isinstance(error, UpstreamHttpError) and error.status == 400
    )


def _follows(call: Call) -> bool:
    return call.arguments.get("follow") is True
