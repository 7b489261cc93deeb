"""Which resources of a server somebody follows, and that the server tells of them.

In the old era each is subscribed to; in the new one all of them are one listen. What is followed
outlives a connection: it is asked for again after each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from dragoman.core.errors import HubError, InvalidInput, Overloaded, TimedOut, Unreachable
from dragoman.core.unlisted_resources import MAX_URI
from dragoman.mcp.client.session import UpstreamSession, announces_resources

MAX_URIS = 1_000
MAX_FOLLOWERS = 20_000
"""Of one server's resources, all together."""


class ResourceSubscriptions:
    def __init__(self, server: str, updated: Callable[[str], None]) -> None:
        self._server = server
        self._updated = updated
        self._followers: dict[str, dict[str, int]] = {}
        """Resource to client to how often it does."""
        self._total = 0
        self._held: set[str] = set()
        """What the server of the old era was asked to tell of, and in which session."""
        self._held_in: tuple[UpstreamSession, int] | None = None
        self.handshake_session: UpstreamSession | None = None
        """The shared session of the handshake era beside one of the modern era."""
        self._lock = asyncio.Lock()
        self._errands: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._followers)

    @property
    def uris(self) -> frozenset[str]:
        return frozenset(self._followers)

    # --- by clients --------------------------------------------------------------------------

    async def subscribe(
        self, session: UpstreamSession, client: str, uri: str, timeout: float
    ) -> None:
        beside = self.handshake_session is not None and announces_resources(self.handshake_session)
        if not beside and not announces_resources(session):
            raise InvalidInput(
                f'server "{self._server}" does not announce changes of its resources'
            )
        self.add(client, uri)
        try:
            await self._sync(session, timeout, uri)
        except BaseException:
            self._drop(client, uri)
            raise

    def add(self, client: str, uri: str) -> None:
        """The client follows it on a session of its own alone; nothing is asked of the shared
        one."""
        if uri not in self._followers and len(self._followers) >= MAX_URIS:
            raise Overloaded(
                f'{MAX_URIS} resources of server "{self._server}" are followed already'
            )
        if self._total >= MAX_FOLLOWERS:
            raise Overloaded(f'the resources of server "{self._server}" have too many followers')
        clients = self._followers.setdefault(uri, {})
        clients[client] = clients.get(client, 0) + 1
        self._total += 1

    async def unsubscribe(
        self, session: UpstreamSession | None, client: str, uri: str, timeout: float
    ) -> None:
        """Without a session there is nobody to be told, and nothing to be asked for again."""
        if client in self._followers.get(uri, ()):
            self._drop(client, uri)
            if session is not None:
                with contextlib.suppress(HubError):  # told or not, it is followed by nobody
                    await self._sync(session, timeout, None)

    def drop_client(self, client: str, session: UpstreamSession | None, timeout: float) -> None:
        """A client's session has ended."""
        left = [uri for uri, clients in self._followers.items() if client in clients]
        for uri in left:
            while client in self._followers.get(uri, ()):
                self._drop(client, uri)
        if left and session is not None:
            task = asyncio.get_running_loop().create_task(self._restore(session, timeout))
            self._errands.add(task)
            task.add_done_callback(self._errands.discard)

    def close(self) -> None:
        for errand in self._errands:
            errand.cancel()
        self._followers.clear()
        self._total = 0

    def _drop(self, client: str, uri: str) -> None:
        clients = self._followers.get(uri, {})
        if client not in clients:
            return
        self._total -= 1
        clients[client] -= 1
        if not clients[client]:
            del clients[client]
        if not clients:
            self._followers.pop(uri, None)

    # --- with the server -----------------------------------------------------------------------

    async def restore(self, session: UpstreamSession, timeout: float) -> None:
        """After a connection was made: it knows nothing of what was followed before."""
        if self._followers:
            await self._restore(session, timeout)

    async def _restore(self, session: UpstreamSession, timeout: float) -> None:
        with contextlib.suppress(HubError):
            await self._sync(session, timeout, None)

    async def _sync(self, session: UpstreamSession, timeout: float, needed: str | None) -> None:
        """Has the server tell of what is followed now, and no more of what is not. One at a time:
        whoever waited finds it done. Fails only for `needed`."""
        async with self._lock:
            if not session.modern:
                await self._subscribe(session, timeout, needed)
                return
            is_told = announces_resources(session)
            if is_told:  # else each is followed on another session
                await session.notifications.subscribe(self.uris, timeout)
            if self.handshake_session is not None and announces_resources(self.handshake_session):
                try:
                    await self._subscribe(self.handshake_session, timeout, needed)
                except HubError:
                    if needed is not None and not is_told:
                        raise

    async def _subscribe(
        self, session: UpstreamSession, timeout: float, needed: str | None
    ) -> None:
        """In a session of the handshake era."""
        if self._held_in != (session, session.openings):
            self._held, self._held_in = set(), (session, session.openings)
        for uri in self._held - self.uris:
            self._held.discard(uri)
            await session.request("resources/unsubscribe", {"uri": uri}, timeout)
        for uri in self.uris - self._held:
            try:
                await session.request("resources/subscribe", {"uri": uri}, timeout)
            except HubError as error:
                if uri == needed or isinstance(error, TimedOut | Unreachable):
                    raise  # the next one would wait as long
            else:
                self._held.add(uri)

    # --- what the server says ------------------------------------------------------------------

    def notify_updated(self, uri: object) -> None:
        """Of a change. What has changed may lie below what is followed (2025-11-25, resources)."""
        if not isinstance(uri, str) or len(uri) > MAX_URI:
            return
        while uri:
            if uri in self._followers:
                self._updated(uri)
                return
            uri = uri[:-1] if uri.endswith("/") else uri.rpartition("/")[0]

    def notify_all(self) -> None:
        """Nobody listened for a while: any of them may have changed."""
        for uri in self.uris:
            self._updated(uri)
