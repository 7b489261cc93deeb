"""The sessions with one server, in the handshake era, that belong to single clients.

The shared session declares no client features. A client's own session declares what this client
can be asked, and holds the state that the server keeps for it. Their number is limited, and they
end when they are idle or their client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.core.background import Background, start_task
from dragoman.core.call import ROOTS, AnswerError, Call, Question
from dragoman.core.errors import HubError, InvalidInput, Overloaded, Unreachable, WorkFailed
from dragoman.core.holders import find_holder
from dragoman.core.ports import Viewer
from dragoman.core.principal import Principal
from dragoman.core.read_pacing import pause_after_list
from dragoman.mcp.client.catalog_sync import find_changed_kinds
from dragoman.mcp.client.notifications import RequestListener
from dragoman.mcp.client.session import UpstreamSession
from dragoman.mcp.client.suspended_call import (
    REFUSED,
    QuestionBudget,
    SessionQuestions,
    SuspendedCall,
)
from dragoman.mcp.protocol.elicitation import AGAIN, PARKED
from dragoman.mcp.protocol.notifications import owner_key

if TYPE_CHECKING:
    from dragoman.mcp.client.upstream import Upstream

log = logging.getLogger(__name__)

CONNECTED_DOORS = frozenset({"mcp-stdio", "mcp-sse"})
"""Entry points whose clients are connected for as long as their session lasts."""
PING_SECONDS = 2.0
ASK_SECONDS = 1.0
"""How long a new session waits for the question of a server that has asked at the start before."""
ANSWER_SECONDS = 5.0
"""How long a new session waits for the answers to what the server asks at its start."""
ACT_SECONDS = 0.1
"""A server acts on an answer after it has read it, and says nothing when it has: the roots of a
client are looked up in the file system, for instance."""
ASKING: Mapping[str, str] = {
    "roots/list": "roots",
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
}
"""The feature that a client declares for each question."""
ROOTS_KEY = "roots"
"""The key of the hub's own question for the client's roots."""
ROOTS_CHANGED = "notifications/roots/list_changed"
CHANGE_SECONDS = 0.05
"""List changes announced within this time are read together."""

SendCall = Callable[[UpstreamSession, RequestListener], Awaitable[tuple[Any, int]]]
"""Sends the request of a call; returns the result and its size."""
Key = tuple[str, ...]


class OpenQuestions(NamedTuple):
    """What a server asks before it answers, and the handle to continue with."""

    questions: dict[str, Question]
    handle: str


class SessionNotOpened(Exception):
    """A client's own session could not be opened: nothing was sent."""

    def __init__(self, error: HubError) -> None:
        super().__init__(str(error))
        self.error = error


class ClientSession:
    """One client's own session, perhaps still being opened."""

    def __init__(
        self,
        viewer: Call | Viewer,
        features: Mapping[str, Any],
        opening: asyncio.Task[UpstreamSession],
        questions: SessionQuestions,
        now: float,
    ) -> None:
        self.features = features
        self.questions = questions
        """Those that belong to no call."""
        self.client = viewer.client
        self.door = viewer.door
        self.principal: Principal = viewer.principal
        self.owner = _find_owner(viewer)
        self.opening = opening
        self.calls = 0
        """In flight or suspended."""
        self.suspended = 0
        self.roots: str | None = None
        """If it belongs to no client: a digest of the roots that its server was given."""
        self.used_at = now
        self.is_new = True
        """Whether no call was made on it yet: it lists what any session of this kind does."""
        self.changed: set[str] = set()
        """Kinds whose change the server has announced."""
        self.wanted: set[str] = set()
        """Kinds that the client has listed since its last call."""
        self.followed: set[str] = set()
        """Kinds that the shared session lists differently now."""
        self.is_compared = False
        """Whether its lists were just read, and the shared ones are read to be compared to them."""
        self.read_at: dict[str, float] = {}
        """When each kind was read last."""
        self.reading: asyncio.Task[None] | None = None
        """Reads the lists of these kinds."""

    @property
    def session(self) -> UpstreamSession | None:
        opening = self.opening
        if not opening.done() or opening.cancelled() or opening.exception() is not None:
            return None
        return opening.result()


class _Suspended(NamedTuple):
    own: ClientSession
    call: SuspendedCall


class ClientSessions:
    def __init__(self, upstream: Upstream) -> None:
        entry = upstream.entry
        self._upstream = upstream
        self._server = upstream.name
        self._limits = upstream.limits
        self._idle_secs = entry.idle_secs or upstream.limits.session_idle_secs
        self._keeps_connected = not entry.idle_secs
        """Whether a connected client keeps an unused session."""
        self._sessions: dict[Key, ClientSession] = {}
        self._suspended: dict[str, _Suspended] = {}
        self._subscriptions: dict[str, Counter[str]] = {}
        """Resources by owner: a change that the client's calls cause may be visible on its own
        session alone."""
        self._background = Background(f'client sessions of server "{self._server}"')
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None
        self._budget = QuestionBudget(self._server, upstream.limits.max_question_bytes)
        self._uses_roots = False
        """Whether the server asks for roots outside of calls: a client without an MCP session is
        then asked for its roots before a session is chosen for it."""
        self.asked_at_start: set[str] = set()
        """The features that the server asked for when sessions began."""

    def __len__(self) -> int:
        return len(self._sessions)

    # --- calls ---------------------------------------------------------------------------------

    async def call(
        self, call: Call, features: Mapping[str, Any], send: SendCall
    ) -> tuple[Any, int] | OpenQuestions:
        """Returns the server's result and its size, or its questions. Raises `SessionNotOpened`."""
        roots = None
        if not call.client and self._uses_roots and "roots" in features:
            if call.answers is None or ROOTS_KEY not in call.answers:
                return OpenQuestions({ROOTS_KEY: Question(ROOTS, {})}, AGAIN)
            roots = _digest(call.answers[ROOTS_KEY])
        own, session = await self._enter(call, features, roots)
        try:
            if own.is_new and await own.questions.wait_answered(ANSWER_SECONDS):
                await self._let_act(session)
            own.is_new = False
            pending, ready = own.questions.take_pending(), asyncio.Event()
            if not own.client and any(request.method == "roots/list" for request in pending):
                self._uses_roots = True

            async def work(listener: RequestListener) -> tuple[Any, int]:
                if pending:  # the answers may decide what the call does
                    await ready.wait()
                    await self._let_act(session)
                return await send(session, listener)

            call_secs = self._upstream.call_secs
            suspended = SuspendedCall(call, session.revision, call_secs, work, self._budget)
            for request in pending:
                request.on_reply = ready.set
                if not suspended.ask(request):
                    request.refuse(REFUSED, "the question cannot be put to the client")
            return await self._wait_outcome(_Suspended(own, suspended))
        finally:
            self._leave(own)

    async def resume(self, call: Call) -> tuple[Any, int] | OpenQuestions:
        """Continues a suspended call with the answers that `call` brings."""
        id = (call.handle or "").removeprefix(PARKED)
        found = self._suspended.get(id)
        if found is None or found.call.client != call.client:
            raise build_not_open(call)
        if call.answers is None:
            self._drop(id, "the question will not be answered")
            raise WorkFailed(f'"{call.tool.name}" was cancelled: its question was not answered')
        del self._suspended[id]
        found.own.suspended -= 1  # its place among the calls is kept until `_leave`
        self._note_roots(found, call.answers)
        found.call.resume(call)
        try:
            return await self._wait_outcome(found)
        finally:
            self._leave(found.own)

    def _note_roots(self, suspended: _Suspended, answers: Mapping[str, Any]) -> None:
        for key, question in suspended.call.questions.items():
            answer = answers.get(key)
            if question.kind != ROOTS or answer is None or isinstance(answer, AnswerError):
                continue
            if not suspended.own.client:
                suspended.own.roots = _digest(answer)

    async def _wait_outcome(self, suspended: _Suspended) -> tuple[Any, int] | OpenQuestions:
        own, call = suspended
        is_open = False
        try:
            outcome = await call.wait_outcome()
            if outcome is not None:
                for request in call.release_roots():
                    own.questions.adopt(request)
                return outcome
            self._check_suspended(own)
            is_open = True
        finally:
            if not is_open:
                call.end("the call has ended")
        id = token_hex(16)
        self._suspended[id] = suspended
        own.suspended += 1
        own.calls += 1
        call.suspend(self._limits.question_secs, partial(self._expire, id))
        return OpenQuestions(call.questions, PARKED + id)

    def _check_suspended(self, own: ClientSession) -> None:
        """Raises `Overloaded` if no more calls may be suspended."""
        limits = self._limits
        if (
            len(self._suspended) >= limits.max_suspended
            or own.suspended >= limits.max_suspended_in_session
        ):
            raise Overloaded(
                f'too many questions of server "{self._server}" are open; try again later'
            )
        mine = sum(1 for one in self._suspended.values() if one.own.principal == own.principal)
        if mine >= limits.max_suspended // 2:
            raise Overloaded(
                f'{mine} of your calls wait for answers to questions of server "{self._server}", '
                "which is the limit; answer some first"
            )

    def _expire(self, id: str) -> None:
        log.info('a question of server "%s" was not answered in time', self._server)
        self._drop(id, "the question was not answered in time")

    def _drop(self, id: str, reason: str) -> None:
        suspended = self._suspended.pop(id, None)
        if suspended is not None:
            suspended.call.end(reason)
            suspended.own.suspended -= 1
            self._leave(suspended.own)

    # --- lists ---------------------------------------------------------------------------------

    def find(self, viewer: Call | Viewer, features: Mapping[str, Any]) -> Key | None:
        """Finds the client's session, or the first one that its principal used."""
        declared = _encode_features(features)
        client = viewer.client
        holder = self._find_holder(viewer)
        key: Key = (client, declared, holder)
        if not client:
            key = ("", declared, holder, _find_owner(viewer), "0")
        return key if key in self._sessions else None

    def _find_holder(self, viewer: Call | Viewer) -> str:
        """Whose credential the client's session uses; empty if all share one. A viewer without a
        holder has no session: each key with a session has one."""
        if not self._upstream.is_per_user:
            return ""
        return find_holder(viewer) or "-"

    @contextlib.asynccontextmanager
    async def use(
        self, viewer: Call | Viewer, features: Mapping[str, Any]
    ) -> AsyncIterator[tuple[ClientSession, UpstreamSession]]:
        """Holds the client's session, which is opened if necessary. Raises `SessionNotOpened`."""
        own, session = await self._enter(viewer, features)
        try:
            yield own, session
        finally:
            self._leave(own)

    def reread(self, kinds_of: Callable[[Key], set[str]]) -> None:
        """Reads lists of sessions again after the shared ones have changed. The server has not
        announced that here: what is found is no reason to read the shared lists again."""
        for key, own in self._sessions.items():
            if (kinds := kinds_of(key)) and not own.is_compared:
                own.followed.update(kinds)
                self._start_reading(key, own)

    def catch_up(self, key: Key, kind: str) -> asyncio.Task[None] | None:
        """What to await before the client is given this list of its own session: its calls may
        have changed the list, and the server need not announce that, or not in time."""
        own = self._sessions.get(key)
        if own is None:
            return None
        if not own.is_new and own.used_at > own.read_at.get(kind, 0.0):
            own.wanted.add(kind)
            self._start_reading(key, own)
        return own.reading

    def _start_reading(self, key: Key, own: ClientSession) -> None:
        if own.reading is None:
            own.reading = start_task(self._read_changed(key, own))

    async def _read_changed(self, key: Key, own: ClientSession) -> None:
        pause = CHANGE_SECONDS
        try:
            while own.changed or own.wanted or own.followed:
                await asyncio.sleep(pause)  # also bounds a server that announces all the time
                await asyncio.wait([own.opening])
                if own.session is None:
                    return
                changed, own.changed = own.changed, set()
                kinds = changed | own.wanted | own.followed
                unasked = changed | own.followed
                own.wanted, own.followed = set(), set()
                own.read_at.update(dict.fromkeys(kinds, self._loop.time()))
                with contextlib.suppress(HubError):
                    await self._upstream.lists.read_client_lists(key, own, kinds, changed, unasked)
                pause = pause_after_list(sum(own.session.sizes.values()))
        finally:
            own.reading = None

    # --- resources -----------------------------------------------------------------------------

    async def subscribe(self, call: Call, uri: str, is_wanted: bool) -> None:
        """Adds or removes one subscription on the sessions that the owner has; opens none."""
        owner = _find_owner(call)
        counts = self._subscriptions.setdefault(owner, Counter())
        before = counts[uri]
        after = counts[uri] = max(0, before + (1 if is_wanted else -1))
        if not after:
            del counts[uri]
        if not counts:
            del self._subscriptions[owner]
        if bool(before) == bool(after):
            return
        verb = "subscribe" if after else "unsubscribe"
        for own in [own for own in self._sessions.values() if own.owner == owner]:
            if own.session is not None:
                await self._send_quietly(own.session, f"resources/{verb}", uri)

    async def _send_quietly(self, session: UpstreamSession, method: str, uri: str) -> None:
        with contextlib.suppress(HubError):
            await session.request(method, {"uri": uri}, self._upstream.answer_secs)

    async def subscribe_alone(self, call: Call, uri: str, features: Mapping[str, Any]) -> bool:
        """Subscribes on the client's own session only, which is opened for that. False if the
        server announces no changes there either. Raises `SessionNotOpened`."""
        async with self.use(call, features) as (_, session):
            resources = session.features.get("resources")
        if not isinstance(resources, dict) or resources.get("subscribe") is not True:
            return False
        await self.subscribe(call, uri, True)
        return True

    # --- sessions ------------------------------------------------------------------------------

    async def _enter(
        self, viewer: Call | Viewer, features: Mapping[str, Any], roots: str | None = None
    ) -> tuple[ClientSession, UpstreamSession]:
        """Counts a call on the client's session, which is opened if necessary; `_leave` ends it.
        Raises `SessionNotOpened`, and then counts none."""
        try:
            own = self._choose(viewer, features, roots)
        except Overloaded as error:
            raise SessionNotOpened(error) from None
        own.calls += 1
        opening = own.opening
        try:
            if not opening.done():  # others may wait for it as well: it is not cancelled
                await asyncio.wait([opening])
            if opening.cancelled():
                raise Unreachable(f'server "{self._server}" was stopped', sent=False)
            return own, opening.result()
        except BaseException as error:
            self._leave(own)
            if isinstance(error, HubError):
                raise SessionNotOpened(error) from None
            raise

    def _choose(
        self, viewer: Call | Viewer, features: Mapping[str, Any], roots: str | None
    ) -> ClientSession:
        """Chooses the session for a call. A client without an MCP session has one for each of its
        concurrent calls: nothing else would keep them apart. Nor can the clients of one principal
        be distinguished, so a session whose server knows the roots of one of them serves only calls
        with the same `roots`."""
        declared = _encode_features(features)
        holder = self._find_holder(viewer)
        if viewer.client:
            key: Key = (viewer.client, declared, holder)
            return self._sessions.get(key) or self._begin(key, viewer, features)
        free: Key | None = None
        without_roots: ClientSession | None = None
        for number in range(self._limits.max_sessions):
            key = ("", declared, holder, _find_owner(viewer), str(number))
            own = self._sessions.get(key)
            if own is None:
                free = free or key
            elif not own.calls and own.roots is None:
                without_roots = without_roots or own
            elif not own.calls and own.roots == roots:
                return own
        if without_roots is not None:
            return without_roots
        if free is None:
            raise self._build_overloaded()
        return self._begin(free, viewer, features)

    def _begin(self, key: Key, viewer: Call | Viewer, features: Mapping[str, Any]) -> ClientSession:
        most = self._limits.max_sessions
        mine = [key for key, own in self._sessions.items() if own.principal == viewer.principal]
        if len(mine) >= most // 2:
            if not self._make_room(mine):
                raise Overloaded(
                    f'your clients have {len(mine)} sessions with server "{self._server}", which is'
                    " the limit, and each has a call in flight or a question open; answer some "
                    "first"
                )
        elif len(self._sessions) >= most and not self._make_room(list(self._sessions)):
            raise self._build_overloaded()
        questions = SessionQuestions(viewer, self._upstream.asker)
        opening = start_task(self._connect(key, _find_owner(viewer), features, questions))
        own = ClientSession(viewer, features, opening, questions, self._loop.time())
        self._sessions[key] = own
        opening.add_done_callback(lambda _: self._note_opened(key, own))
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._idle_secs, self._end_idle)
        return own

    async def _connect(
        self, key: Key, owner: str, features: Mapping[str, Any], questions: SessionQuestions
    ) -> UpstreamSession:
        session = await self._upstream.connection.open_client_session(
            features, partial(self._handle_notification, key), questions.listener, key[2]
        )
        questions.revision = session.revision
        try:
            await self._settle(session, features, questions)
            for uri in list(self._subscriptions.get(owner, ())):
                await self._send_quietly(session, "resources/subscribe", uri)
        except BaseException:  # cancelled: only this task knows of the session yet
            await session.close()
            raise
        return session

    async def _settle(
        self, session: UpstreamSession, features: Mapping[str, Any], questions: SessionQuestions
    ) -> None:
        """Waits, bounded, for what the server asks when the session begins: the answers may decide
        what the first call does."""
        is_expected = self._will_ask(features)
        if not is_expected and "roots" not in features:  # servers that use them ask for them first
            return
        await self._ping(session)
        if is_expected:
            await questions.wait_asked(ASK_SECONDS)
        await questions.wait_answered(ANSWER_SECONDS)
        if questions.has_asked:  # the answer is often sent by now
            await self._let_act(session)
        self.asked_at_start.update(ASKING[one] for one in questions.asked if one in ASKING)

    def _will_ask(self, features: Mapping[str, Any]) -> bool:
        return not self.asked_at_start.isdisjoint(features)

    async def _let_act(self, session: UpstreamSession) -> None:
        """Gives the server time to act on an answer; the busier it is, the longer."""
        await self._ping(session)
        await asyncio.sleep(ACT_SECONDS)
        await self._ping(session)

    async def _ping(self, session: UpstreamSession) -> None:
        with contextlib.suppress(HubError):
            await session.request("ping", {}, PING_SECONDS)

    def begin(self, viewer: Viewer) -> None:
        """Opens the client's session before its first call if the server will ask it something.
        No other session is ended for that."""
        shared = self._upstream.connection.session
        if not viewer.client or shared is None:
            return
        features = self._upstream.choice.find_declared(shared, viewer)
        if not features or not self._will_ask(features) or self.find(viewer, features):
            return
        most = self._limits.max_sessions
        mine = sum(1 for own in self._sessions.values() if own.principal == viewer.principal)
        if mine < most // 2 and len(self._sessions) < most:
            self._background.spawn(self._open(viewer, features))

    async def _open(self, viewer: Viewer, features: Mapping[str, Any]) -> None:
        try:
            async with self.use(viewer, features):
                pass
        except SessionNotOpened as problem:  # the first call tries it again
            log.info('server "%s": no session was opened early: %s', self._server, problem)

    def _note_opened(self, key: Key, own: ClientSession) -> None:
        session = own.session
        if session is None:
            self._forget(key, own)
        else:
            session.wire.lost.add_done_callback(lambda _: self._end(key, own))

    def _handle_notification(self, key: Key, method: str, params: Mapping[str, Any]) -> None:
        """Handles a notification that belongs to no call."""
        kinds = find_changed_kinds(method)
        own = self._sessions.get(key)
        if kinds and own is not None:
            own.changed.update(kinds)
            self._start_reading(key, own)
        else:
            self._upstream.handle_notification(method, params, key[0])

    def _build_overloaded(self) -> Overloaded:
        return Overloaded(
            f'server "{self._server}" has {self._limits.max_sessions} client sessions, which is the'
            " limit; try again later"
        )

    def _make_room(self, keys: list[Key]) -> bool:
        """Ends the session of these that was unused for longest; False if all are in use."""
        idle = [(self._sessions[key].used_at, key) for key in keys if not self._sessions[key].calls]
        if not idle:
            return False
        key = min(idle)[1]
        self._end(key, self._sessions[key])
        return True

    def _leave(self, own: ClientSession) -> None:
        own.calls -= 1
        own.used_at = self._loop.time()
        if own.roots is not None and not own.calls and not self._uses_roots:
            # The server asked in a call, and the next call may be of a client with other roots.
            for key in [key for key, one in self._sessions.items() if one is own]:
                self._end(key, own)

    def _end_idle(self) -> None:
        now = self._loop.time()
        for key, own in list(self._sessions.items()):
            if not own.calls and now - own.used_at >= self._idle_secs and not self._is_kept(own):
                self._end(key, own)
        self._sweep = None
        if self._sessions:
            oldest = min(own.used_at for own in self._sessions.values())
            pause = max(0.05, oldest + self._idle_secs - now, self._idle_secs / 10)
            self._sweep = self._loop.call_later(pause, self._end_idle)

    def _is_kept(self, own: ClientSession) -> bool:
        """A connected client keeps the state of its session, and so does one with a subscription.
        Over HTTP a client may have disconnected unnoticed."""
        is_connected = self._keeps_connected and own.door in CONNECTED_DOORS
        return is_connected or own.owner in self._subscriptions

    def _forget(self, key: Key, own: ClientSession) -> None:
        if self._sessions.get(key) is own:
            del self._sessions[key]

    def _end(self, key: Key, own: ClientSession) -> None:
        """Ends a session; the next call of its client opens another."""
        self._forget(key, own)
        for id, suspended in list(self._suspended.items()):
            if suspended.own is own:
                del self._suspended[id]
                suspended.call.abandon("the client's session has ended")
        own.opening.cancel()
        own.questions.close()
        if own.reading is not None:
            own.reading.cancel()
        self._upstream.lists.drop_own(key)
        if own.session is not None:
            self._background.spawn(_close(own.session))

    def note_roots_changed(self, client: str) -> None:
        """Notifies the servers of the client's sessions."""
        for own in self._sessions.values():
            session, roots = own.session, own.features.get("roots")
            if own.client == client and session is not None and roots and "listChanged" in roots:
                self._background.spawn(_notify_roots(session))

    def drop_holder(self, holder: str) -> None:
        """Ends the sessions that use the credential of `holder`."""
        for key, own in list(self._sessions.items()):
            if key[2] == holder:
                self._end(key, own)

    def drop_client(self, client: str) -> None:
        """Ends the sessions of a client that has disconnected."""
        self._subscriptions.pop(client, None)
        for key, own in list(self._sessions.items()):
            if own.client == client:
                self._end(key, own)

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        openings = [own.opening for own in self._sessions.values()]
        for key, own in list(self._sessions.items()):
            self._end(key, own)
        await asyncio.gather(*openings, return_exceptions=True)
        await self._background.close(grace=self._limits.stop_secs)


async def _close(session: UpstreamSession) -> None:
    await asyncio.sleep(0)  # cancelled requests send their cancellation first
    await session.close_quietly()


async def _notify_roots(session: UpstreamSession) -> None:
    with contextlib.suppress(HubError, TimeoutError):
        await session.wire.notify(ROOTS_CHANGED)


def build_not_open(call: Call) -> InvalidInput:
    return InvalidInput(
        f'the question of "{call.tool.name}" is no longer open; start the call again'
    )


def _digest(roots: Any) -> str:
    text = json.dumps(roots, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _encode_features(features: Mapping[str, Any]) -> str:
    return json.dumps(features, sort_keys=True)


def _find_owner(viewer: Call | Viewer) -> str:
    return owner_key(viewer.client, viewer.principal)
