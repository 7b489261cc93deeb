"""The sessions of single users with a server that is used with their own credentials.

In the modern era no request depends on another: a user's requests go over the shared connection,
with the user's token. In the handshake era each user has a session, which no two users share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from dragoman.core.background import Background, start_task
from dragoman.core.errors import LoginRequired, Overloaded, Unreachable
from dragoman.mcp.client.session import UpstreamSession
from dragoman.mcp.client.streamable_http import HttpWire
from dragoman.wire.http import HolderClients

if TYPE_CHECKING:
    from dragoman.mcp.client.upstream import Upstream

log = logging.getLogger(__name__)

MAX_VIEWS = 10_000
"""Users whose view of the shared session is kept."""


class _OwnSession:
    """A user's session of the handshake era, perhaps still being opened."""

    def __init__(self, opening: asyncio.Task[UpstreamSession], now: float) -> None:
        self.opening = opening
        self.calls = 0
        self.used_at = now

    @property
    def session(self) -> UpstreamSession | None:
        opening = self.opening
        if not opening.done() or opening.cancelled() or opening.exception() is not None:
            return None
        return opening.result()


class HolderSessions:
    def __init__(self, upstream: Upstream, clients: HolderClients) -> None:
        self._upstream = upstream
        self._clients = clients
        self._limits = upstream.limits
        self._shared: UpstreamSession | None = None
        self._views: dict[str, UpstreamSession] = {}
        """Of the modern session `_shared`."""
        self._own: dict[str, _OwnSession] = {}
        self._background = Background(f'user sessions of server "{upstream.name}"')
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._own)

    def find_view(self, shared: UpstreamSession, holder: str) -> UpstreamSession | None:
        """Returns the modern session as that user uses it; None in the handshake era."""
        if not shared.modern or not isinstance(shared.wire, HttpWire):
            return None
        if shared is not self._shared or len(self._views) >= MAX_VIEWS:
            self._shared, self._views = shared, {}
        view = self._views.get(holder)
        if view is None:
            wire = shared.wire.share(self._clients.get_client(holder))
            view = self._views[holder] = shared.share(wire)
        return view

    @contextlib.asynccontextmanager
    async def use(self, holder: str) -> AsyncIterator[UpstreamSession]:
        """Holds the user's session of the handshake era, which is opened if necessary."""
        own = self._own.get(holder) or self._begin(holder)
        own.calls += 1
        session: UpstreamSession | None = None
        try:
            session = await self._wait_opened(own)
            yield session
        except Unreachable as error:
            if session is not None and not error.sent:
                session.wire.suspect_lost(str(error))
            raise
        finally:
            own.calls -= 1
            own.used_at = self._loop.time()

    async def find(self, holder: str) -> UpstreamSession:
        """Returns the same session without holding it."""
        return await self._wait_opened(self._own.get(holder) or self._begin(holder))

    async def _wait_opened(self, own: _OwnSession) -> UpstreamSession:
        opening = own.opening
        if not opening.done():  # other calls may wait for it as well: it is not cancelled
            await asyncio.wait([opening])
        if opening.cancelled():
            raise Unreachable(f'server "{self._upstream.name}" was stopped', sent=False)
        error = opening.exception()
        if isinstance(error, LoginRequired):  # one instance for each call, which adds its trace
            raise LoginRequired(str(error), server=error.server, scopes=error.scopes)
        return opening.result()

    def _begin(self, holder: str) -> _OwnSession:
        if len(self._own) >= self._limits.max_holder_sessions and not self._make_room():
            raise Overloaded(
                f'server "{self._upstream.name}" has {len(self._own)} sessions of users, which is '
                "the limit, and each is in use; try again later"
            )
        opening = start_task(self._upstream.connection.open_holder_session(holder))
        own = self._own[holder] = _OwnSession(opening, self._loop.time())
        opening.add_done_callback(lambda _: self._note_opened(holder, own))
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._limits.session_idle_secs, self._end_idle)
        return own

    def _note_opened(self, holder: str, own: _OwnSession) -> None:
        session = own.session
        if session is None:
            if self._own.get(holder) is own:
                del self._own[holder]
        else:
            session.wire.lost.add_done_callback(lambda _: self._end(holder, own))

    def _make_room(self) -> bool:
        idle = [(own.used_at, holder) for holder, own in self._own.items() if not own.calls]
        if not idle:
            return False
        holder = min(idle)[1]
        self._end(holder, self._own[holder])
        return True

    def _end_idle(self) -> None:
        now, seconds = self._loop.time(), self._limits.session_idle_secs
        for holder, own in list(self._own.items()):
            if not own.calls and now - own.used_at >= seconds:
                self._end(holder, own)
        self._sweep = self._loop.call_later(seconds / 2, self._end_idle) if self._own else None

    def _end(self, holder: str, own: _OwnSession) -> None:
        if self._own.get(holder) is own:
            del self._own[holder]
        own.opening.cancel()
        if own.session is not None:
            self._background.spawn(own.session.close_quietly())

    def drop(self, holder: str) -> None:
        """Ends what a user has whose credential was removed or replaced."""
        self._views.pop(holder, None)
        own = self._own.get(holder)
        if own is not None:
            self._end(holder, own)

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        openings = [own.opening for own in self._own.values()]
        for holder, own in list(self._own.items()):
            self._end(holder, own)
        await asyncio.gather(*openings, return_exceptions=True)
        await self._background.close(grace=self._limits.stop_secs)
