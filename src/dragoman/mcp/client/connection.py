"""The connection to one server: opened in the background, kept open, reopened when it is lost.

All clients share one session; with a server of both eras, clients of the handshake era that can be
asked nothing share a second one, since only that half of the server pushes list changes and log
messages, and some servers answer clients of each era differently.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from dragoman.core.background import Background, resolve, start_task
from dragoman.core.backoff import Backoff
from dragoman.core.errors import HubError, LoginRequired, TimedOut, Unreachable, WorkFailed
from dragoman.core.events import ServerChanged
from dragoman.core.logs import RepeatedFailure
from dragoman.core.tool import TOOL
from dragoman.mcp.client.catalog_sync import KINDS
from dragoman.mcp.client.legacy_sse import SseWire
from dragoman.mcp.client.notifications import NotificationSink, RequestListener
from dragoman.mcp.client.server_start import ServerStart
from dragoman.mcp.client.session import SessionSpec, UpstreamSession
from dragoman.mcp.client.session_choice import NONE
from dragoman.mcp.client.streamable_http import HttpWire, UpstreamHttpError, WrongEra
from dragoman.mcp.config import StdioTransport

if TYPE_CHECKING:
    from dragoman.mcp.client.upstream import Upstream

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
STEADY_SECONDS = 30.0
"""A connection that lasted this long was stable: it is reopened at once."""
FRESH_FAILURE = 1.0
"""A call this soon after a failed attempt fails with its reason instead of making another."""
MAX_LOSSES = 5
"""A server that is lost more often than this in a row has failed; up to then a call restarts it at
once."""
LOGIN_SECONDS = 300.0
"""How often a server that needs a login is tried without one."""
NEEDS_LOGIN = "needs_login"
INVALID_REQUEST_CODES = (-32600, -32601, -32602)
MAX_REASON = 1_000

HttpWireType = type[HttpWire] | type[SseWire]
Connect = Callable[["Upstream", float, SessionSpec], Awaitable[UpstreamSession]]
"""Opens a session with a server, within that many seconds."""


class UpstreamConnection:
    def __init__(self, upstream: Upstream, connect: Connect) -> None:
        self._upstream = upstream
        self._connect = connect
        self.state = "starting"
        self.reason = ""
        self.server_start: ServerStart | None = None
        """The attempt to start its program, while that goes on."""
        self.session: UpstreamSession | None = None
        """The shared session; None while the server is not connected."""
        self.handshake_session: UpstreamSession | None = None
        """The second shared session, opened by the first call that needs it. Declares nothing."""
        self.modern: bool | None = None
        self.http_wire: HttpWireType | None = None
        """Learned when it was connected last: the era and the HTTP transport."""
        self.list_holder = ""
        """Whose credential the shared session uses."""
        self.login: LoginRequired | None = None
        """Why the server is not connected, if it needs a login."""
        self.has_new_login = False
        """Whether it is being connected after a login."""
        self.restarts = -1
        self.in_flight = 0
        """Calls that keep an idle server running."""
        self.used_at = monotonic()
        self._spec = SessionSpec(
            upstream.handle_shared_notification, upstream.note_missed, is_main=True
        )
        self._handshake_spec = SessionSpec(
            upstream.handle_shared_notification, upstream.reread_lists
        )
        self._failure = RepeatedFailure()
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._failed_at = float("-inf")
        self._stopping = False
        self._supervisor: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the current attempt to connect has succeeded or failed."""
        self._opening: asyncio.Task[UpstreamSession] | None = None
        """Opens the second shared session."""
        self._background = Background(f'the connection to server "{upstream.name}"')

    def start(self) -> None:
        self._supervisor = start_task(self._supervise())

    @property
    def version(self) -> str | None:
        """The protocol version of the shared session."""
        return self.session.revision.name if self.session is not None else None

    # --- waiting for it ------------------------------------------------------------------------

    async def wait_settled(self) -> None:
        """Waits until the current attempt to connect has succeeded or failed."""
        await asyncio.wait([self._settled])

    async def wait_session(self) -> UpstreamSession:
        """Returns the session, if need be of the current attempt to connect or of one that starts
        now."""
        session = self.session
        if session is not None and not session.wire.lost.done():
            return session
        if self.state == "stopped":
            raise self._build_unreachable()
        if (problem := self.build_login_problem()) is not None:
            raise problem
        if self.state == "failed" and monotonic() - self._failed_at < FRESH_FAILURE:
            raise self._build_unreachable()
        if self._settled.done():
            self._settled = asyncio.get_running_loop().create_future()
        self._wake.set()
        seconds = self._upstream.answer_secs
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._settled)
        except TimeoutError:
            name, doing = self._upstream.name, self.describe_start()
            raise TimedOut(
                f'server "{name}" is still starting after {seconds:g} s'
                f"{f' (it {doing})' if doing else ''}; try again, or see: "
                f"dragoman servers logs {name}"
            ) from None
        session = self.session
        if session is None:
            raise self.build_login_problem() or self._build_unreachable()
        return session

    def describe_start(self) -> str:
        """Says what a start that takes long is doing, as in "it ..."; empty if there is none."""
        return self.server_start.describe() if self.server_start is not None else ""

    @property
    def is_installing(self) -> bool:
        """Whether to end the server now may end an installation."""
        return self.server_start is not None and self.server_start.is_installing

    def build_login_problem(self) -> LoginRequired | None:
        """Builds the error if a login is needed: one for each call, which adds its trace."""
        error = self.login
        if error is None:
            return None
        return LoginRequired(str(error), server=error.server, scopes=error.scopes)

    def note_login(self) -> None:
        """A user has logged in, or a credential was removed: connects anew if that matters."""
        if self.login is not None:
            self.login = None
            self.has_new_login = True
            if self._settled.done():
                self._settled = asyncio.get_running_loop().create_future()
            self._wake.set()

    def end_session(self, reason: str) -> None:
        """Has the shared session opened anew."""
        if self.session is not None:
            self.session.wire.mark_lost(reason)

    def _build_unreachable(self) -> Unreachable:
        return Unreachable(
            f'server "{self._upstream.name}" is not connected: {self.reason}', sent=False
        )

    def note_unreachable(self, session: UpstreamSession, error: Unreachable) -> bool:
        """Notes that a call on `session` failed; returns whether it may be made again, on another
        session. A connection that was lost during a request says nothing about the server: the
        next call will tell."""
        if error.sent:
            return False
        lost = False
        handshake = self.handshake_session
        if handshake is not None:
            handshake.wire.suspect_lost(str(error))
            lost = handshake.wire.lost.done()
            if lost:
                self._end_handshake(handshake)
        if self.session is session:
            session.wire.suspect_lost(str(error))
        return lost or session.wire.lost.done()

    # --- supervision ---------------------------------------------------------------------------

    async def _supervise(self) -> None:
        failures = 0
        while not self._stopping:  # even if an error replaced the cancellation
            self._set_state("starting", "")
            begun = monotonic()
            try:
                session = await self._open()
            except LoginRequired as error:
                failures = 0
                await self._pause_for_login(error)
                continue
            except HubError as error:
                failures += 1
                await self._pause(str(error), failures)
                continue
            except Exception as error:
                log.exception('server "%s" could not be connected', self._upstream.name)
                failures += 1
                await self._pause(repr(error), failures)
                continue
            try:
                reason = await self._serve(session)
                if reason is not None:
                    log.warning('server "%s" was lost: %s', self._upstream.name, reason)
            except Exception as error:  # or nothing would supervise the server any more
                log.exception('server "%s" could not be kept connected', self._upstream.name)
                reason = repr(error)
            finally:
                self.session = None
                await session.close()
            if reason is None:
                failures = 0
                await self.close_handshake()
                seconds = self._upstream.entry.idle_secs
                self._set_state("idle", f"unused for {seconds:g} s; a call starts it again")
                await self._wake.wait()  # the next call may be there already
                continue
            failures = 0 if monotonic() - begun > STEADY_SECONDS else failures + 1
            is_wanted = self._wake.is_set() and failures <= MAX_LOSSES
            if failures > 1 and not is_wanted:
                await self._pause(reason, failures - 1, is_failure=failures > MAX_LOSSES)

    async def _open(self) -> UpstreamSession:
        """Opens the shared session and publishes what the server offers."""
        upstream, seconds = self._upstream, self.start_seconds
        transport = upstream.entry.transport
        start: ServerStart | None = None
        if isinstance(transport, StdioTransport):
            line = transport.command, *transport.args
            most = max(seconds, upstream.limits.install_secs)
            start = ServerStart(upstream.name, line, seconds, most, upstream.installations)
            seconds = most
        self.server_start = start
        session: UpstreamSession | None = None
        known = self.modern
        if upstream.clients is not None:
            self.list_holder = upstream.clients.find_list_holder()
        spec = self._spec._replace(holder=self.list_holder)
        try:
            async with start.run() if start else asyncio.timeout(seconds) as limit:
                session = await self._connect(upstream, seconds, spec)
                upstream.lists.clear_changes()
                left = (limit.when() or 0.0) - asyncio.get_running_loop().time()
                await upstream.lists.read(session, KINDS, left / 2)
        except BaseException as error:
            if session is not None:
                await session.close()
            learned = self.modern if self.modern is not known else None
            self.modern = self.http_wire = None  # what was known may be wrong
            if isinstance(error, TimeoutError):
                self.modern = learned  # both eras answered, and the restart took long
            if session is not None and session.modern and _is_era_refusal(error):
                self.modern = False  # it declared the modern era and does not speak it
            if isinstance(error, TimeoutError):
                why = start.explain_timeout() if start else None
                raise TimedOut(why or f"it did not answer within {seconds:g} s") from None
            raise
        finally:
            self.server_start = None
        self.modern = session.modern
        if not session.modern:
            await self.close_handshake()  # all clients share this session from here on
        upstream.note_features(session.features, is_main=True)
        upstream.choice.reset()
        self.session = session
        self._wake.clear()
        self.restarts += 1
        self._set_state("connected", "")
        self._settle()
        own, total = len(upstream.catalog.list_offered(TOOL)), upstream.catalog.count_total(TOOL)
        state = f"{session.revision.name}, {own} tools; {total} tools in all"
        log.info('server "%s" is connected: %s', upstream.name, state)
        return session

    async def _serve(self, session: UpstreamSession) -> str | None:
        """Keeps lists and subscriptions up to date until the session is lost (returns the reason)
        or was idle for long enough (returns None)."""
        upstream, lists = self._upstream, self._upstream.lists
        entry = upstream.entry
        idle = entry.idle_secs if isinstance(entry.transport, StdioTransport) else 0
        self.used_at = monotonic()
        if upstream.subscriptions:
            await upstream.subscriptions.restore(session)
            upstream.subscriptions.notify_all()
        lost: asyncio.Future[Any] = session.wire.lost
        changed = start_task(lists.changed.wait())
        try:
            while True:
                pause = lists.freshness.pause
                if idle:
                    left = max(0.05, self.used_at + idle - monotonic())
                    pause = left if pause is None else min(left, pause)
                await asyncio.wait(
                    [lost, changed], timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if lost.done():
                    return str(lost.result())
                for kind in lists.freshness.list_due(self.used_at):
                    lists.refresh(kind)
                if lists.changed.is_set():
                    lists.changed.clear()
                    changed.cancel()
                    changed = start_task(lists.changed.wait())
                    seconds = await lists.read_changes(session)
                    await upstream.subscriptions.restore(session)
                    await asyncio.wait([lost], timeout=seconds)
                busy = self.in_flight or len(upstream.subscriptions) or upstream.tasks.suspended
                if idle and not busy and monotonic() - self.used_at >= idle:
                    return None
        finally:
            changed.cancel()
            lists.end_reading()

    async def _pause(self, reason: str, failures: int, *, is_failure: bool = True) -> None:
        """Waits longer after each failure; a call ends the wait."""
        if is_failure:
            self._failed_at = monotonic()
        self._set_state("failed", reason)
        self._settle()
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._backoff.delay(failures)):
                await self._wake.wait()

    def _settle(self) -> None:
        self.has_new_login = False
        resolve(self._settled, None)

    async def _pause_for_login(self, error: LoginRequired) -> None:
        """Waits for a login. Calls do not end the wait: they fail with the reason."""
        self.login = error
        self._wake.clear()
        self._set_state(NEEDS_LOGIN, str(error))
        self._settle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOGIN_SECONDS):
                await self._wake.wait()
        self.login = None

    def _set_state(self, state: str, reason: str) -> None:
        reason = reason[:MAX_REASON]
        if (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason = state, reason
        name = self._upstream.name
        if state in ("failed", NEEDS_LOGIN):
            text = self._failure.note(reason)
            level = logging.DEBUG if text is None else logging.WARNING
            log.log(level, 'server "%s" is not connected: %s', name, text or reason)
        elif state == "connected":
            self._failure.clear()
        self._upstream.bus.emit(ServerChanged(name, state, reason))

    # --- opening further sessions --------------------------------------------------------------

    @property
    def start_seconds(self) -> float:
        """The timeout for opening a session."""
        upstream = self._upstream
        is_child = isinstance(upstream.entry.transport, StdioTransport)
        return max(upstream.answer_secs, upstream.limits.start_secs if is_child else 0.0)

    async def open_client_session(
        self,
        features: Mapping[str, Any],
        sink: NotificationSink,
        questions: RequestListener,
        holder: str,
    ) -> UpstreamSession:
        """Opens a client's own session, with the credential of `holder` if that is not empty."""
        seconds, shared = self.start_seconds, self.session
        if shared is not None and shared.modern:  # it may not speak the handshake era
            seconds = min(seconds, self._upstream.limits.handshake_secs)
        spec = SessionSpec(sink, declared=features, questions=questions, holder=holder)
        session = await self._open_separate(spec, seconds)
        self._upstream.choice.note_opened(shared)
        self._upstream.note_features(session.features)
        return session

    async def open_holder_session(self, holder: str) -> UpstreamSession:
        """Opens the session of a user with a credential of its own. What the server announces there
        concerns that user alone."""
        spec = SessionSpec(self._upstream.handle_holder_notification, listens=False, holder=holder)
        return await self._open_separate(spec, self.start_seconds)

    async def open_list_session(
        self, features: Mapping[str, Any], sink: NotificationSink
    ) -> UpstreamSession:
        """Opens a session that only reads lists."""
        spec = SessionSpec(sink, declared=features, listens=False)
        return await self._open_separate(spec, self.start_seconds)

    async def _open_separate(self, spec: SessionSpec, seconds: float) -> UpstreamSession:
        try:
            async with asyncio.timeout(seconds):
                return await self._connect(self._upstream, seconds, spec)
        except TimeoutError:
            raise TimedOut(
                f'server "{self._upstream.name}" did not open another session within {seconds:g} s'
            ) from None

    # --- the second shared session -------------------------------------------------------------

    async def find_handshake_session(self, shared: UpstreamSession) -> UpstreamSession:
        """Returns the second shared session, which is opened once, however many calls wait for it;
        `shared` if the server does not accept a handshake."""
        if self.handshake_session is not None:
            return self.handshake_session
        opening = self._opening or self._start_handshake(shared)
        if self._upstream.choice.has_failed:  # the call does not wait for another attempt
            return shared
        await asyncio.wait([opening])  # other calls may wait for it as well: it is not cancelled
        if opening.cancelled() or isinstance(opening.exception(), HubError):
            return shared
        return opening.result()

    def _start_handshake(self, shared: UpstreamSession) -> asyncio.Task[UpstreamSession]:
        def finish(opening: asyncio.Task[UpstreamSession]) -> None:
            self._opening = None
            error = None if opening.cancelled() else opening.exception()
            if isinstance(error, HubError):
                self._upstream.choice.may_share(shared, NONE, error)
                log.info(
                    'server "%s": clients of the handshake era use the modern session: %s',
                    self._upstream.name,
                    error,
                )

        self._opening = start_task(self._open_handshake())
        self._opening.add_done_callback(finish)
        return self._opening

    async def _open_handshake(self) -> UpstreamSession:
        upstream, shared = self._upstream, self.session
        seconds = min(self.start_seconds, upstream.limits.handshake_secs)
        session = await self._open_separate(self._handshake_spec, seconds)
        upstream.choice.note_opened(shared)
        upstream.note_features(session.features, is_shared=True)
        try:
            upstream.subscriptions.handshake_session = session
            if self.session is not None:
                await upstream.subscriptions.restore(self.session)
            await upstream.lists.add_handshake_session(session)
        except BaseException:  # cancelled: only this task knows of the session yet
            self._forget_handshake()
            await session.close()
            raise
        self.handshake_session = session
        session.wire.lost.add_done_callback(lambda _: self._end_handshake(session))
        return session

    def _forget_handshake(self) -> None:
        self._upstream.subscriptions.handshake_session = None
        self._upstream.lists.drop_handshake_lists()

    def _end_handshake(self, session: UpstreamSession) -> None:
        if self.handshake_session is session:
            self.handshake_session = None
            self._forget_handshake()
            self._background.spawn(session.close_quietly())

    # --- the end -------------------------------------------------------------------------------

    def mark_stopped(self) -> None:
        self._set_state("stopped", "it was stopped")
        resolve(self._settled, None)
        self._stopping = True

    def cancel(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()

    async def close_handshake(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        session, self.handshake_session = self.handshake_session, None
        if session is not None:
            self._forget_handshake()
            await session.close_quietly()

    async def close(self) -> None:
        """Waits until both shared sessions are closed, after `cancel` and `close_handshake`."""
        if self._supervisor is not None:
            await asyncio.gather(self._supervisor, return_exceptions=True)
        await self._background.close(grace=self._upstream.limits.stop_secs)


def _is_era_refusal(error: BaseException) -> bool:
    """Whether a server rejects a request of the modern era as one that it does not understand."""
    if isinstance(error, WorkFailed) and error.native is not None:
        return error.native.get("code") in INVALID_REQUEST_CODES
    is_bad_request = isinstance(error, UpstreamHttpError) and error.status == 400
    return is_bad_request or isinstance(error, WrongEra)
