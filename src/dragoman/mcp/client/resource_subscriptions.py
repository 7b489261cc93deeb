"""The resources of one server that clients have subscribed to, and the hub's own subscriptions.

In the handshake era each resource is subscribed to; in the modern era all of them are one listen
request. Subscriptions outlive a connection: they are renewed after each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from dragoman.core.background import Background
from dragoman.core.call import NOTHING
from dragoman.core.errors import HubError, InvalidInput, Overloaded, TimedOut, Unreachable
from dragoman.core.resource_uris import MAX_URI
from dragoman.mcp.client.session import UpstreamSession, announces_resources

Updated = Callable[[str, Mapping[str, Any]], None]
MAX_URIS = 1_000
MAX_SUBSCRIPTIONS = 20_000
"""Subscriptions to all resources of one server together."""


class ResourceSubscriptions:
    def __init__(self, server: str, updated: Updated, timeout: float) -> None:
        """`updated` is called with each resource that has changed, and the `_meta` of the
        notification."""
        self._server = server
        self._updated = updated
        self._timeout = timeout
        self._clients: dict[str, dict[str, int]] = {}
        """How often each client has subscribed, by resource."""
        self._total = 0
        self._remote: set[str] = set()
        """Subscriptions in the handshake session `_remote_session`, at that opening of it."""
        self._remote_session: tuple[UpstreamSession, int] | None = None
        self.handshake_session: UpstreamSession | None = None
        """The shared session of the handshake era beside one of the modern era."""
        self._lock = asyncio.Lock()
        self._background = Background(f'subscriptions of server "{server}"')

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def uris(self) -> frozenset[str]:
        return frozenset(self._clients)

    # --- clients -------------------------------------------------------------------------------

    async def subscribe(self, session: UpstreamSession, client: str, uri: str) -> None:
        handshake = self.handshake_session
        is_announced = announces_resources(session) or (
            handshake is not None and announces_resources(handshake)
        )
        if not is_announced:
            raise InvalidInput(
                f'server "{self._server}" does not announce changes of its resources'
            )
        self.add(client, uri)
        try:
            await self._sync(session, uri)
        except BaseException:
            self._drop(client, uri)
            raise

    def add(self, client: str, uri: str) -> None:
        """Counts a subscription; the server is not asked for anything."""
        if uri not in self._clients and len(self._clients) >= MAX_URIS:
            raise Overloaded(
                f'clients have subscribed to {MAX_URIS} resources of server "{self._server}", '
                "which is the limit"
            )
        if self._total >= MAX_SUBSCRIPTIONS:
            raise Overloaded(f'the resources of server "{self._server}" have too many subscribers')
        clients = self._clients.setdefault(uri, {})
        clients[client] = clients.get(client, 0) + 1
        self._total += 1

    async def unsubscribe(self, session: UpstreamSession | None, client: str, uri: str) -> None:
        if client in self._clients.get(uri, ()):
            self._drop(client, uri)
            if session is not None:
                await self._try_sync(session)

    def drop_client(self, client: str, session: UpstreamSession | None) -> None:
        """Ends the subscriptions of a client that has disconnected."""
        uris = [uri for uri, clients in self._clients.items() if client in clients]
        for uri in uris:
            while client in self._clients.get(uri, ()):
                self._drop(client, uri)
        if uris and session is not None:
            self._background.spawn(self._try_sync(session))

    def close(self) -> None:
        self._background.cancel()
        self._clients.clear()
        self._total = 0

    def _drop(self, client: str, uri: str) -> None:
        clients = self._clients.get(uri, {})
        if client not in clients:
            return
        self._total -= 1
        clients[client] -= 1
        if not clients[client]:
            del clients[client]
        if not clients:
            self._clients.pop(uri, None)

    # --- the server ----------------------------------------------------------------------------

    async def restore(self, session: UpstreamSession) -> None:
        """Renews the subscriptions on a new session, which knows none of them."""
        if self._clients:
            await self._try_sync(session)

    async def _try_sync(self, session: UpstreamSession) -> None:
        with contextlib.suppress(HubError):
            await self._sync(session, None)

    async def _sync(self, session: UpstreamSession, needed: str | None) -> None:
        """Makes the server's subscriptions equal to the clients'. One at a time: the next caller
        finds it done. Fails only for `needed`."""
        async with self._lock:
            if not session.modern:
                await self._subscribe(session, needed)
                return
            is_announced = announces_resources(session)
            if is_announced:  # else each resource is subscribed to on another session
                await session.notifications.subscribe(self.uris, self._timeout)
            handshake = self.handshake_session
            if handshake is not None and announces_resources(handshake):
                try:
                    await self._subscribe(handshake, needed)
                except HubError:
                    if needed is not None and not is_announced:
                        raise

    async def _subscribe(self, session: UpstreamSession, needed: str | None) -> None:
        """Subscribes and unsubscribes in a session of the handshake era."""
        if self._remote_session != (session, session.openings):
            self._remote, self._remote_session = set(), (session, session.openings)
        for uri in self._remote - self.uris:
            self._remote.discard(uri)
            await session.request("resources/unsubscribe", {"uri": uri}, self._timeout)
        for uri in self.uris - self._remote:
            try:
                await session.request("resources/subscribe", {"uri": uri}, self._timeout)
            except HubError as error:
                if uri == needed or isinstance(error, TimedOut | Unreachable):
                    raise  # the next one would take as long
            else:
                self._remote.add(uri)

    def notify_updated(self, uri: object, meta: Mapping[str, Any] = NOTHING) -> None:
        """The server has announced a change of `uri`, which may lie below a resource that a client
        has subscribed to (2025-11-25, resources)."""
        if not isinstance(uri, str) or len(uri) > MAX_URI:
            return
        while uri:
            if uri in self._clients:
                self._updated(uri, meta)
                return
            uri = uri[:-1] if uri.endswith("/") else uri.rpartition("/")[0]

    def notify_all(self) -> None:
        """Announcements may have been missed: any resource may have changed."""
        for uri in self.uris:
            self._updated(uri, NOTHING)
