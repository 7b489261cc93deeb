"""Joins the hub to a cluster: its place among the hubs, and the connection between them.

Imported only where `[cluster] secret` is set.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.app.build_guards import Guards
from dragoman.app.cluster_report import PATH as REPORT
from dragoman.app.cluster_report import ClusterReports, FindState
from dragoman.app.config_watch import LiveConfig
from dragoman.app.placed_servers import PREFIX, PlacedServers, is_placed, parse_hub
from dragoman.core.body_budget import BodyBudget
from dragoman.core.cluster import ServeFrames
from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.principal import Principal
from dragoman.core.shared_settings import (
    check_addresses,
    parse_listen,
    resolve_cluster_key,
    resolve_store_url,
)
from dragoman.mcp.client.upstream_manager import UpstreamManager
from dragoman.net.client import GuardedHttpClient, OutboundHttp
from dragoman.stores.cluster import DRAINING, READY, PostgresCluster
from dragoman.stores.handover import PostgresHandover
from dragoman.web.cluster_tls import ClusterTls, build_tls
from dragoman.web.forwarding import (
    MAX_BODY,
    MAX_FORWARDED,
    PATH,
    ForwardingApp,
    InternalApp,
    PlacedHttpClient,
    Serve,
)
from dragoman.web.http.http1 import Application
from dragoman.web.http.listener import HttpListener
from dragoman.web.http.sockets import tcp_socket, unix_socket
from dragoman.web.owner_requests import PREFIX as PARTS_PREFIX
from dragoman.web.owner_requests import FrameServer, OwnerClient
from dragoman.wire.http import HttpClient

log = logging.getLogger(__name__)

Identify = Callable[[Any], Principal | None]
React = Callable[[str], Awaitable[None]]
FindLeft = Callable[[Sequence[str]], Collection[str]]

MAX_CLIENTS = 256
CONNECT_SECONDS = 2.0
"""How long a connection to another hub may take."""
LAST_SECONDS = 2.0
LEAVE_SECONDS = 0.5
"""Time for the responses of calls that were ended."""


@dataclass(slots=True)
class HubClients:
    """The HTTP clients for the internal listeners of other hubs, by address."""

    _tls: ssl.SSLContext
    _net: OutboundHttp = field(init=False)
    _sockets: dict[str, OutboundHttp] = field(default_factory=dict)
    _open: dict[str, GuardedHttpClient] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._net = self._build_net(None)

    def _build_net(self, path: str | None) -> OutboundHttp:
        return OutboundHttp(
            socket_path=path,
            tls=self._tls,
            connections=MAX_FORWARDED,
            connect_seconds=CONNECT_SECONDS,
        )

    def open(self, address: str) -> tuple[HttpClient, str]:
        """Returns the client for a hub, and the URL that it requests."""
        is_path = address.startswith("/")
        url = f"https://{'hub' if is_path else address}{PATH}"
        client = self._open.get(address)
        if client is None:
            net = self._net
            if is_path:
                if address not in self._sockets:
                    self._sockets[address] = self._build_net(address)
                net = self._sockets[address]
            while len(self._open) >= MAX_CLIENTS:
                del self._open[next(iter(self._open))]
            client = self._open[address] = net.open_configured(
                url, allow_private=True, follow=False
            )
        return client, url

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in (self._net, *self._sockets.values())))


@dataclass(slots=True)
class ClusterParts:
    hubs: PostgresCluster
    key: bytes
    """The key of all hubs for seals that any of them opens."""
    _tls: ClusterTls
    _clients: HubClients
    _reports: ClusterReports
    _listen: str
    _advertise: str | None
    handover: PostgresHandover
    """What this hub leaves to its heir."""
    _listener: HttpListener | None = None
    _internal: InternalApp | None = None
    _end_streams: list[Callable[[], None]] = field(default_factory=list)
    """What ends the streams between this hub and others when it stops."""

    def open_placed(self, url: str) -> HttpClient | None:
        """Returns the client for a server that another hub runs; None for other addresses."""
        if not is_placed(url):
            return None
        return PlacedHttpClient(self.hubs, self._clients.open, parse_hub(url))

    @property
    def owners(self) -> OwnerClient:
        """Sends requests of parts of this hub to the same parts of others."""
        return OwnerClient(self.hubs, self._clients.open)

    def wrap(self, app: Application, identify: Identify) -> ForwardingApp:
        wrapped = ForwardingApp(app, self.hubs, self._clients.open, identify)
        self._end_streams.append(wrapped.close)
        return wrapped

    async def start(
        self,
        app: Application,
        bodies: BodyBudget,
        placed: PlacedServers,
        parts: Mapping[str, ServeFrames],
        inherit: React,
        find_left: FindLeft,
        begin_anew: React,
        find_state: FindState,
    ) -> None:
        """Opens the internal listener, whose requests `app` answers, and registers this hub.
        `parts` serve the same parts of other hubs.
        `inherit` gets the id of each hub that this one becomes the heir of, `find_left` finds those
        of them that still own something, `begin_anew` gets the new id of this hub if others have
        declared it dead. `find_state` tells other hubs of this one."""
        self.hubs.on_inherit.append(inherit)
        self.hubs.find_left.append(find_left)
        self.hubs.on_lost.append(begin_anew)
        mounts: dict[str, Serve] = {
            PREFIX: placed.serve,
            REPORT: partial(self._reports.serve, find_state),
            PARTS_PREFIX: FrameServer(parts).serve,
        }
        self._internal = InternalApp(app, self.hubs, mounts)
        sock, address = _open_socket(self._listen)
        self._listener = HttpListener(
            self._internal, sock, bodies, body_bytes=MAX_BODY, tls=self._tls.server
        )
        await self._listener.start()
        await self.hubs.start(self._advertise or address)
        await self._reports.refuse_other_secret()
        self.handover.start()

    def build_placed(self, guards: Guards, upstreams: UpstreamManager) -> PlacedServers:
        placed = PlacedServers(guards, upstreams, self.key)
        self._end_streams.append(placed.close)
        return placed

    async def set_ready(self) -> None:
        await self.hubs.set_state(READY)

    async def describe(self, find_state: FindState) -> Mapping[str, Any]:
        """The hubs and the leases, for people. Raises `StorageFailed`."""
        await self.hubs.refresh()
        leases = await self.hubs.list_leases()
        reports = await self._reports.describe_all(find_state)
        return {
            "hubs": [
                {
                    "id": one.id,
                    "node": one.node,
                    "version": one.version,
                    "state": one.state,
                    "address": one.address,
                    "heir": one.heir,
                    "started_at": one.started_at,
                    "seen_secs_ago": round(self.hubs.measure_silence(one.id), 3),
                    "is_this": one.id == self.hubs.mark,
                    **reports.get(one.id, {}),
                }
                for one in sorted(self.hubs.hubs.values(), key=lambda one: one.started_at)
            ],
            "leases": [
                {
                    "name": one.name,
                    "hub": one.hub,
                    "token": one.token,
                    "expires_in_secs": round(one.left, 3),
                }
                for one in leases
            ],
        }

    async def begin_stop(self) -> None:
        """Takes no more requests of other hubs, which wait for the heir of this one."""
        if self._internal is not None:
            self._internal.close()
        for end in self._end_streams:
            end()
        if self._listener is not None:  # or it has not joined
            await self.hubs.set_state(DRAINING)

    async def wait_idle(self, seconds: float) -> bool:
        """Waits for the requests of other hubs that this one has taken; False if some are left."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._internal is not None and not self._internal.is_idle:
            if loop.time() > until:
                return False
            await asyncio.sleep(0.02)
        return True

    async def leave(self, states: Mapping[str, Any]) -> None:
        """Another hub owns from now on what was this one's own. `states` are those of sessions."""
        if self._listener is None:
            return
        await self.handover.close()
        try:
            await self.hubs.hand_over(states)
        except StorageFailed as error:
            log.warning("subscriptions of sessions are lost: %s", error)
        await self.hubs.stop(await self.wait_idle(LEAVE_SECONDS))

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.drain(LAST_SECONDS)
            self._listener.abort()
        await self._clients.close()
        if self._listen.startswith("/"):
            Path(self._listen).unlink(missing_ok=True)


def _open_socket(listen: str) -> tuple[socket.socket, str]:
    """Returns the socket of the internal listener, and its address. Raises `ConfigError`."""
    found = parse_listen(listen)
    if found is None:
        try:
            return unix_socket(listen), listen
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f'[cluster] listen: cannot listen on "{listen}": {why}') from None
    sock = tcp_socket(*found, setting="[cluster] listen")
    return sock, f"{listen.rpartition(':')[0]}:{sock.getsockname()[1]}"


def build_cluster(home: Path, live: LiveConfig) -> ClusterParts:
    """Raises `ConfigError` if the settings of the cluster are incomplete."""
    settings = live.config.cluster
    url = resolve_store_url(live.config.store, live.secrets)
    if url is None:
        raise ConfigError(
            "[cluster] secret needs [store] url: the hubs share a PostgreSQL database"
        )
    check_addresses(settings.listen, settings.advertise)
    key = resolve_cluster_key(settings, live.secrets)
    assert key is not None
    node = f"{socket.gethostname()}:{os.getpid()}"
    hubs = PostgresCluster(url, node, __version__, settings.lease_secs)
    tls = build_tls(key)
    clients = HubClients(tls.client)
    reports = ClusterReports(hubs, clients.open, key, lambda: live.config)
    return ClusterParts(
        hubs,
        key,
        tls,
        clients,
        reports,
        settings.listen,
        settings.advertise,
        PostgresHandover(url, hubs.fence),
    )
