"""Sessions with one server, in the handshake era, that are a client's own.

The shared session declares no client features; a client's own declares what this one client can be
asked, and holds the state that the server keeps for it. There are few of them, and they end when
they are idle or their client has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple

from dragoman.core.call import ROOTS, AnswerError, Call, Question
from dragoman.core.errors import HubError, InvalidInput, Overloaded, Unreachable, WorkFailed
from dragoman.core.ports import ClientAsker, Viewer
from dragoman.core.principal import Principal
from dragoman.core.read_pacing import pause_after_list
from dragoman.mcp.client.catalog_sync import Lists, find_changed_kinds
from dragoman.mcp.client.notifications import NotificationSink, RequestListener
from dragoman.mcp.client.session import UpstreamSession
from dragoman.mcp.client.session_questions import SessionQuestions
from dragoman.mcp.client.suspended_call import REFUSED, QuestionBudget, SuspendedCall
from dragoman.mcp.protocol.elicitation import AGAIN, PARKED
from dragoman.mcp.protocol.notifications import owner_key

log = logging.getLogger(__name__)

MAX_SESSIONS = 32
"""Of one server; one caller has at most half of them."""
MAX_PARKED, MAX_PARKED_OF_ONE = 1_000, 64
"""Calls that wait for answers: of one server, of which one caller has at most half, and of one of
its sessions."""
MAX_OPEN_BYTES = 64 * 1024 * 1024
"""Of all the questions of one server that wait for answers."""

STAYING_DOORS = frozenset({"mcp-stdio", "mcp-sse"})
"""Doors whose clients are connected for as long as their session lasts."""

START_SECONDS = 2.0
ROOTS_SECONDS = 5.0
"""How long a new session waits for the roots that the server asks for at its start."""
ROOTS_KEY = "roots"
"""Under which a caller is asked for its roots by the hub itself."""
ROOTS_CHANGED = "notifications/roots/list_changed"
CHANGE_SECONDS = 0.05
"""Changes of a list that a server announces together are read together."""

Open = Callable[[Mapping[str, Any], NotificationSink, RequestListener], Awaitable[UpstreamSession]]
"""Opens a session that declares these features; who hears what is said on it unasked, and who takes
questions outside of calls."""
Caller = Call | Viewer
"""Whom a session is for."""
Request = Callable[[UpstreamSession, RequestListener], Awaitable[tuple[Any, int]]]
Key = tuple[str, ...]


OwnHeard = Callable[[str, Mapping[str, Any], str], None]
"""Takes what is said on the own session of a client and belongs to no call."""
Lister = Callable[[UpstreamSession], Awaitable[Lists]]
OwnChanged = Callable[[Key, "ClientSession", set[str], set[str]], Awaitable[None]]
"""Reads lists of an own session that may have changed; of the second set it has said so."""


class OpenQuestions(NamedTuple):
    """What a server asks before it answers, and the handle to continue with."""

    questions: dict[str, Question]
    handle: str


class SessionNotOpened(Exception):
    """A session of a client's own could not be opened: nothing was sent."""

    def __init__(self, error: HubError) -> None:
        super().__init__(str(error))
        self.error = error


class ClientSession:
    """One session of a client's own, perhaps still being opened."""

    def __init__(
        self,
        call: Caller,
        features: Mapping[str, Any],
        opening: asyncio.Task[UpstreamSession],
        outside: SessionQuestions,
        now: float,
    ) -> None:
        self.features = features
        self.outside = outside
        self.client = call.client
        self.door = call.door
        self.caller: Principal = call.principal
        self.whose = _whose(call)
        self.opening = opening
        self.calls = 0
        """Under way, or parked."""
        self.parked = 0
        self.roots: str | None = None
        """Of one that belongs to no client: a digest of the roots that its server was told."""
        self.used_at = now
        self.is_new = True
        """Whether no call was made on it yet: it lists what any such session does."""
        self.changed: set[str] = set()
        """Kinds of which it has said that the list has changed."""
        self.wanted: set[str] = set()
        """Kinds whose list its client has asked for since it made a call."""
        self.read_at: dict[str, float] = {}
        """When each kind was read last."""
        self.reading: asyncio.Task[None] | None = None
        """Reads these lists."""

    @property
    def session(self) -> UpstreamSession | None:
        opening = self.opening
        if not opening.done() or opening.cancelled() or opening.exception() is not None:
            return None
        return opening.result()


class Waiting:
    """A parked call and the session it is on."""

    __slots__ = ("own", "parked")

    def __init__(self, own: ClientSession, parked: SuspendedCall) -> None:
        self.own = own
        self.parked = parked


class ClientSessions:
    def __init__(
        self,
        server: str,
        open: Open,
        seconds: float,
        question_secs: float,
        idle_secs: float,
        call_secs: float,
        *,
        keeps_connected: bool = True,
        heard: OwnHeard | None = None,
        own_changed: OwnChanged | None = None,
        own_ended: Callable[[Key], None] | None = None,
        asker: ClientAsker | None = None,
    ) -> None:
        """`keeps_connected`: whether a client that stays connected keeps an unused session."""
        self._server = server
        self._open = open
        self._seconds = seconds
        """How long the server may take over a request of the hub's own."""
        self._call_secs = call_secs
        self._question_secs = question_secs
        self._idle_secs = idle_secs
        self._keeps_connected = keeps_connected
        self._heard = heard
        self._own_changed = own_changed
        self._own_ended = own_ended
        self._asker = asker
        self._sessions: dict[Key, ClientSession] = {}
        self._waiting: dict[str, Waiting] = {}
        self._follows: dict[str, Counter[str]] = {}
        """Whose to which resources are followed: what a client's calls change may be known on its
        own session alone."""
        self._endings: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None
        self._room = QuestionBudget(server, MAX_OPEN_BYTES)
        self._uses_roots = False
        """Whether the server asks for roots outside of calls: a client that keeps no session is
        then asked for its own before a session is chosen for it."""

    def __len__(self) -> int:
        return len(self._sessions)

    # --- calls ---------------------------------------------------------------------------------

    async def call(
        self, call: Call, features: Mapping[str, Any], request: Request
    ) -> tuple[Any, int] | OpenQuestions:
        """What the server answers, or what is asked first. Raises `SessionNotOpened`."""
        roots = None
        if not call.client and self._uses_roots and "roots" in features:
            roots = _find_roots(call)
            if roots is None:
                return OpenQuestions({ROOTS_KEY: Question(ROOTS, {})}, AGAIN)
        own, session = await self._enter(call, features, roots)
        try:
            own.is_new = False
            held, ready = own.outside.take_pending(), asyncio.Event()
            if not own.client and any(asked.method == "roots/list" for asked in held):
                self._uses_roots = True

            async def work(heard: RequestListener) -> tuple[Any, int]:
                if held:  # what the server wants to know first may decide what the call does
                    await ready.wait()
                return await request(session, heard)

            parked = SuspendedCall(call, session.revision, self._call_secs, work, self._room)
            for asked in held:
                asked.on_reply = ready.set
                if not parked.adopt(asked):
                    asked.refuse(REFUSED, "the question cannot be put to the client")
            return await self._outcome(Waiting(own, parked))
        finally:
            self._left(own)

    async def resume(self, call: Call) -> tuple[Any, int] | OpenQuestions:
        """Continues a parked call with the answers that `call` brings."""
        id = (call.handle or "").removeprefix(PARKED)
        waiting = self._waiting.get(id)
        if waiting is None or waiting.parked.client != call.client:
            raise InvalidInput(
                f'the question of "{call.tool.name}" is not open any more; begin the call again'
            )
        if call.answers is None:
            self._drop(id, "nobody will answer")
            raise WorkFailed(f'"{call.tool.name}" was given up: nobody answers what it asked')
        del self._waiting[id]
        waiting.own.parked -= 1  # the place that its call had is kept until it is left
        self._note_roots(waiting, call.answers)
        waiting.parked.resume(call)
        try:
            return await self._outcome(waiting)
        finally:
            self._left(waiting.own)

    def _note_roots(self, waiting: Waiting, answers: Mapping[str, Any]) -> None:
        for key, question in waiting.parked.questions.items():
            answer = answers.get(key)
            if question.kind != ROOTS or answer is None or isinstance(answer, AnswerError):
                continue
            if not waiting.own.client:
                waiting.own.roots = _digest(answer)

    async def _outcome(self, waiting: Waiting) -> tuple[Any, int] | OpenQuestions:
        parked, own = waiting.parked, waiting.own
        asks = False
        try:
            outcome = await parked.wait_outcome()
            if outcome is not None:
                for asked in parked.release_roots():
                    own.outside.adopt(asked)
                return outcome
            self._check_places(own)
            asks = True
        finally:
            if not asks:
                parked.end("the call is over")
        id = token_hex(16)
        self._waiting[id] = waiting
        own.parked += 1
        own.calls += 1
        parked.suspend(self._question_secs, lambda: self._lapse(id))
        return OpenQuestions(parked.questions, PARKED + id)

    def _check_places(self, own: ClientSession) -> None:
        """Raises `Overloaded` where no more may wait for answers."""
        if len(self._waiting) >= MAX_PARKED or own.parked >= MAX_PARKED_OF_ONE:
            raise Overloaded(
                f'too many questions of server "{self._server}" are open; try again later'
            )
        mine = sum(1 for waiting in self._waiting.values() if waiting.own.caller == own.caller)
        if mine >= MAX_PARKED // 2:
            raise Overloaded(
                f'{mine} calls of yours wait for answers to server "{self._server}", which is all '
                "you may have; answer some first"
            )

    def _lapse(self, id: str) -> None:
        log.info('a question of server "%s" was not answered in time', self._server)
        self._drop(id, "nobody answered in time")

    def _drop(self, id: str, why: str) -> None:
        waiting = self._waiting.pop(id, None)
        if waiting is not None:
            waiting.parked.end(why)
            waiting.own.parked -= 1
            self._left(waiting.own)

    def has(self, call: Call, features: Mapping[str, Any]) -> bool:
        """Whether the client has such a session already. A caller without a session has none."""
        return bool(call.client) and self.find(call, features) is not None

    def find(self, call: Caller, features: Mapping[str, Any]) -> Key | None:
        """The key of the session that the client has, or that its caller used first."""
        declared = _declared(features)
        key: Key = (call.client, declared) if call.client else ("", declared, _whose(call), "0")
        return key if key in self._sessions else None

    async def read_lists(
        self, call: Caller, features: Mapping[str, Any], lister: Lister
    ) -> tuple[Lists, bool]:
        """What the client's own session lists, and whether the server asked something when it
        began. Raises `SessionNotOpened`."""
        own, session = await self._enter(call, features)
        try:
            return await lister(session), own.outside.has_asked
        finally:
            self._left(own)

    def keys(self) -> list[Key]:
        return list(self._sessions)

    def read_again(self, key: Key, kinds: Iterable[str]) -> None:
        """Reads these lists of an own session as if it had said that they have changed."""
        own = self._sessions.get(key)
        if own is None:
            return
        own.changed.update(kinds)
        self._begin_reading(key, own)

    def catch_up(self, key: Key, kind: str) -> asyncio.Task[None] | None:
        """What to wait for before the client is given that list of its own session: a call of its
        own may have changed the list, and a server need not announce that, or not in time."""
        own = self._sessions.get(key)
        if own is None:
            return None
        if not own.is_new and own.used_at > own.read_at.get(kind, 0.0):
            own.wanted.add(kind)
            self._begin_reading(key, own)
        return own.reading

    def _begin_reading(self, key: Key, own: ClientSession) -> None:
        if own.reading is None and self._own_changed is not None:
            own.reading = self._loop.create_task(self._read_changed(key, own, self._own_changed))

    # --- resources -------------------------------------------------------------------------------

    async def follow(self, call: Call, uri: str, yes: bool) -> None:
        """Where the caller has sessions of its own they tell of the resource too; none is opened
        for that alone."""
        whose = _whose(call)
        follows = self._follows.setdefault(whose, Counter())
        before = follows[uri]
        follows[uri] = max(0, before + (1 if yes else -1))
        after = follows[uri]
        if not after:
            del follows[uri]
        if not follows:
            del self._follows[whose]
        if bool(before) == bool(after):
            return
        verb = "subscribe" if after else "unsubscribe"
        for own in [own for own in self._sessions.values() if own.whose == whose]:
            if own.session is not None:
                with contextlib.suppress(HubError):
                    params = {"uri": uri}
                    await own.session.request(f"resources/{verb}", params, self._seconds)

    async def follow_alone(self, call: Call, uri: str, features: Mapping[str, Any]) -> bool:
        """Follows a resource on the caller's own session, which is opened for that. False where
        the server tells of no changes there either. Raises `SessionNotOpened`."""
        own, session = await self._enter(call, features)
        self._left(own)
        resources = session.features.get("resources")
        if not isinstance(resources, dict) or resources.get("subscribe") is not True:
            return False
        await self.follow(call, uri, True)
        return True

    # --- sessions ------------------------------------------------------------------------------

    async def _enter(
        self, call: Caller, features: Mapping[str, Any], roots: str | None = None
    ) -> tuple[ClientSession, UpstreamSession]:
        """Takes a place on the client's own session, which is opened if need be; `_left` gives the
        place back. Raises `SessionNotOpened`, and then no place is taken."""
        try:
            own = self._taken(call, features, roots)
        except Overloaded as error:
            raise SessionNotOpened(error) from None
        own.calls += 1
        opening = own.opening
        try:
            if not opening.done():  # others may wait for it: nobody cancels it
                await asyncio.wait([opening])
            if opening.cancelled():
                raise Unreachable(f'server "{self._server}" was stopped', sent=False)
            return own, opening.result()
        except BaseException as error:
            self._left(own)
            if isinstance(error, HubError):
                raise SessionNotOpened(error) from None
            raise

    def _taken(self, call: Caller, features: Mapping[str, Any], roots: str | None) -> ClientSession:
        """The session for this call. A client that keeps no session of its own has one to each of
        its calls at a time: nothing else would tell them apart. Nor does anything tell the clients
        of one caller apart, so a session whose server knows the roots of one of them is for calls
        with the same `roots` alone."""
        declared = _declared(features)
        if call.client:
            key: Key = (call.client, declared)
            return self._sessions.get(key) or self._begin(key, call, features)
        free: Key | None = None
        without: ClientSession | None = None
        for n in range(MAX_SESSIONS):
            key = ("", declared, _whose(call), str(n))
            own = self._sessions.get(key)
            if own is None:
                free = free or key
            elif not own.calls and own.roots is None:
                without = without or own
            elif not own.calls and own.roots == roots:
                return own
        if without is not None:
            return without
        if free is None:
            raise self._full()
        return self._begin(free, call, features)

    def _begin(self, key: Key, call: Caller, features: Mapping[str, Any]) -> ClientSession:
        mine = [key for key, own in self._sessions.items() if own.caller == call.principal]
        if len(mine) >= MAX_SESSIONS // 2:
            if not self._make_room(mine):
                raise Overloaded(
                    f'server "{self._server}" has {len(mine)} sessions with clients of yours, which'
                    " is all you may have, and each has a call under way or a question open; "
                    "answer some first"
                )
        elif len(self._sessions) >= MAX_SESSIONS and not self._make_room(list(self._sessions)):
            raise self._full()
        outside = SessionQuestions(call, self._asker)
        opening = self._loop.create_task(self._connect(key, _whose(call), features, outside))
        own = ClientSession(call, features, opening, outside, self._loop.time())
        self._sessions[key] = own
        opening.add_done_callback(lambda task: self._connected(key, own))
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._idle_secs, self._end_idle)
        return own

    async def _connect(
        self, key: Key, whose: str, features: Mapping[str, Any], outside: SessionQuestions
    ) -> UpstreamSession:
        session = await self._open(features, partial(self._overhear, key), outside.listener)
        outside.revision = session.revision
        try:
            if "roots" in features:  # servers that use them ask for them first
                with contextlib.suppress(HubError):
                    await session.request("ping", {}, START_SECONDS)
                await outside.wait_answered(ROOTS_SECONDS)
            for uri in list(self._follows.get(whose, ())):
                with contextlib.suppress(HubError):
                    await session.request("resources/subscribe", {"uri": uri}, self._seconds)
        except BaseException:  # cancelled: nobody else knows of the session yet
            await session.close()
            raise
        return session

    def _overhear(self, key: Key, method: str, params: Mapping[str, Any]) -> None:
        """What is said on an own session and belongs to no call."""
        kinds = find_changed_kinds(method)
        own = self._sessions.get(key)
        if not kinds or own is None:
            if self._heard is not None:
                self._heard(method, params, key[0])
            return
        self.read_again(key, kinds)

    async def _read_changed(self, key: Key, own: ClientSession, changed: OwnChanged) -> None:
        pause = CHANGE_SECONDS
        try:
            while own.changed or own.wanted:
                await asyncio.sleep(pause)  # one that says so all the time waits
                await asyncio.wait([own.opening])
                if own.session is None:
                    return
                kinds, own.changed = own.changed, set()
                wanted, own.wanted = own.wanted, set()
                own.read_at.update(dict.fromkeys(kinds | wanted, self._loop.time()))
                with contextlib.suppress(HubError):
                    await changed(key, own, kinds | wanted, kinds)
                pause = pause_after_list(sum(own.session.sizes.values()))
        finally:
            own.reading = None

    def _connected(self, key: Key, own: ClientSession) -> None:
        session = own.session
        if session is None:
            self._forget(key, own)
            return
        session.wire.lost.add_done_callback(lambda _: self._end(key, own))

    def _full(self) -> Overloaded:
        return Overloaded(
            f'server "{self._server}" serves {MAX_SESSIONS} clients that it can ask already; try '
            "again later"
        )

    def _make_room(self, keys: list[Key]) -> bool:
        """Ends that of these which was not used for the longest time, if any is not in use."""
        idle = [(self._sessions[key].used_at, key) for key in keys if not self._sessions[key].calls]
        if not idle:
            return False
        key = min(idle)[1]
        self._end(key, self._sessions[key])
        return True

    def _left(self, own: ClientSession) -> None:
        own.calls -= 1
        own.used_at = self._loop.time()
        if own.roots is not None and not own.calls and not self._uses_roots:
            # The server asked in a call. Nobody can tell whether the next one has the same roots.
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
        """A client that stays connected keeps what its session holds; so does one that follows a
        resource. Over HTTP a client may have gone without a word."""
        connected = self._keeps_connected and own.door in STAYING_DOORS
        return connected or own.whose in self._follows

    def _forget(self, key: Key, own: ClientSession) -> None:
        if self._sessions.get(key) is own:
            del self._sessions[key]

    def _end(self, key: Key, own: ClientSession) -> None:
        """The next call of its client opens another."""
        self._forget(key, own)
        for id, waiting in list(self._waiting.items()):
            if waiting.own is own:
                del self._waiting[id]
                waiting.parked.abandon("the client's session has ended")
        own.opening.cancel()
        own.outside.close()
        if own.reading is not None:
            own.reading.cancel()
        if self._own_ended is not None:
            self._own_ended(key)
        session = own.session
        if session is not None:
            task = self._loop.create_task(self._close(session))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def _close(self, session: UpstreamSession) -> None:
        await asyncio.sleep(0)  # what was cancelled says so first
        with contextlib.suppress(HubError):
            await session.close()

    def roots_changed(self, client: str) -> None:
        """Tells the servers that the client's sessions are with."""
        for own in self._sessions.values():
            session, roots = own.session, own.features.get("roots")
            if own.client == client and session is not None and roots and "listChanged" in roots:
                task = self._loop.create_task(_tell_roots(session))
                self._endings.add(task)
                task.add_done_callback(self._endings.discard)

    def drop_client(self, client: str) -> None:
        """A client's session has ended, and what was its own with it."""
        self._follows.pop(client, None)
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
        await asyncio.gather(*openings, *self._endings, return_exceptions=True)


async def _tell_roots(session: UpstreamSession) -> None:
    with contextlib.suppress(HubError, TimeoutError):
        await session.wire.notify(ROOTS_CHANGED)


def _find_roots(call: Call) -> str | None:
    """A digest of the roots that the caller was asked for; None where it was not asked yet."""
    if call.answers is None or ROOTS_KEY not in call.answers:
        return None
    return _digest(call.answers[ROOTS_KEY])


def _digest(roots: Any) -> str:
    text = json.dumps(roots, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _declared(features: Mapping[str, Any]) -> str:
    return json.dumps(features, sort_keys=True)


def _whose(call: Caller) -> str:
    return owner_key(call.client, call.principal)
