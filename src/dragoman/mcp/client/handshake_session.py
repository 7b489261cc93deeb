"""The session of the handshake era that clients share with a server of both eras.

What a server pushes by itself (changes of its lists, lines of its log) exists in its handshake half
alone, and some servers answer clients of each era differently. Clients of the handshake era that
can be asked nothing therefore share a session of that era, beside the one of the modern era that
everybody else shares. It declares nothing and is opened by the first call that needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from dragoman.core.errors import HubError, Unreachable
from dragoman.mcp.client.session import UpstreamSession

OWNER = "the shared session of the handshake era"
"""Whose its lists are; no client's session is called so."""


class HandshakeSession:
    def __init__(
        self,
        open: Callable[[], Awaitable[UpstreamSession]],
        opened: Callable[[UpstreamSession], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        """`opened` is awaited before a call is made."""
        self._open = open
        self._opened = opened
        self._ended = ended
        self.session: UpstreamSession | None = None
        self._opening: asyncio.Task[UpstreamSession] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def find(self) -> UpstreamSession:
        """The session, opened where there is none; however many wait for it, it is opened once."""
        if self.session is not None:
            return self.session
        opening = self._opening or self._start()
        await asyncio.wait([opening])  # others may wait for it: nobody cancels it
        if opening.cancelled():
            raise Unreachable("the server was stopped", sent=False)
        return opening.result()

    def try_again(self, failed: Callable[[HubError], None]) -> None:
        """Opens the session while nobody waits for it; `failed` is told why that went wrong."""
        if self.session is not None or self._opening is not None:
            return

        def look(opening: asyncio.Task[UpstreamSession]) -> None:
            error = None if opening.cancelled() else opening.exception()
            if isinstance(error, HubError):
                failed(error)

        self._start().add_done_callback(look)

    def _start(self) -> asyncio.Task[UpstreamSession]:
        self._opening = opening = asyncio.get_running_loop().create_task(self._begin())
        opening.add_done_callback(self._begun)
        return opening

    async def _begin(self) -> UpstreamSession:
        session = await self._open()
        try:
            await self._opened(session)
        except BaseException:  # cancelled: nobody else knows of the session yet
            self._ended()
            await session.close()
            raise
        self.session = session
        session.wire.lost.add_done_callback(lambda _: self._end(session))
        return session

    def _begun(self, opening: asyncio.Task[UpstreamSession]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # those who wait for it have it

    def is_lost(self, error: Unreachable) -> bool:
        """Whether a call found this session lost before anything was sent. The call may be made
        again, on another session."""
        session = self.session
        if session is None or error.sent:
            return False
        session.wire.suspect_lost(str(error))
        if not session.wire.lost.done():
            return False
        self._end(session)
        return True

    def _end(self, session: UpstreamSession) -> None:
        if self.session is not session:
            return
        self.session = None
        self._ended()
        task = asyncio.get_running_loop().create_task(_close(session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self.session is not None:
            self._end(self.session)
        await asyncio.gather(*self._closing, return_exceptions=True)


async def _close(session: UpstreamSession) -> None:
    with contextlib.suppress(HubError):
        await session.close()
