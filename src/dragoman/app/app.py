"""The running hub: starts and stops the parts that `build` has made."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman import __version__
from dragoman import home as home_files
from dragoman.a2a.server.request_context import GRPC_PART
from dragoman.app import process
from dragoman.app.build_agents import Authenticate, build_a2a_mounts
from dragoman.app.build_console import connect_console
from dragoman.app.config_apply import ConfigApplier
from dragoman.app.config_watch import poll
from dragoman.app.hub_parts import HubParts
from dragoman.app.shared_stores import SharedStores
from dragoman.app.status import HubStatus
from dragoman.app.workflows_view import WorkflowsView
from dragoman.core.access import ServesPrincipals, TokenRejected, build_missing_scope
from dragoman.core.background import Background
from dragoman.core.body_budget import BodyBudget
from dragoman.core.cluster import SINGLE_HUB
from dragoman.core.errors import AuthorizationError, ConfigError
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import check_address, limit_address
from dragoman.core.scopes import CALL, LIST
from dragoman.mcp.server.messages_elsewhere import PART as MESSAGES_PART
from dragoman.mcp.server.socket_transport import SocketConnection
from dragoman.net.client import OutboundHttp
from dragoman.processes.descendants import DESCENDANTS
from dragoman.web.access_watch import AccessWatch
from dragoman.web.api import Api
from dragoman.web.api_workflows import build_run_events
from dragoman.web.app import Mounted, OwnerApp, PathMount
from dragoman.web.app import TcpApp as TcpApp
from dragoman.web.auth import AllowedNames
from dragoman.web.console.gate import ConsoleGate
from dragoman.web.hooks import WebhookEndpoint
from dragoman.web.http.http1 import Application
from dragoman.web.http.listener import HttpListener
from dragoman.web.http.sockets import is_loopback, tcp_socket, unix_socket
from dragoman.web.peer_process import PeerIdentifier, address_from_grpc
from dragoman.web.resource_metadata import WELL_KNOWN

SETTLE_SECONDS = 3.0
"""How long the first list over stdio waits for servers and agents to connect."""
FILES_SECONDS = 1.0
"""How often the exposed files of agents are listed."""
SWEEP_SECONDS = 1.0
"""How often the processes below the hub are checked."""
SKILL_SECONDS = 1.0
"""How often the skills of the home are checked for changes."""
PLACEMENT_SECONDS = 0.5
"""How often a hub of a cluster checks which servers it has to run."""
TRIAL_SECONDS = 1.0
"""How often a hub on a database server tries a transaction, for `/readyz`."""
DRAIN_SECONDS = 5.0
STOP_SECONDS = 3.5
INSTALLER_STOP_SECONDS = 10.0
"""How long servers may take to stop in the middle of an installation, which is undone."""
LAST_SECONDS = 0.3
MCP_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class App:
    """One hub on one home, whose lock the caller holds."""

    parts: HubParts
    status: HubStatus
    applier: ConfigApplier
    access: AccessWatch
    api: Api
    net: OutboundHttp
    console: ConsoleGate | None = None
    _peers: PeerIdentifier = field(
        default_factory=lambda: PeerIdentifier(DESCENDANTS.find_server, DESCENDANTS.find_socket)
    )
    _loops: Background = field(default_factory=lambda: Background("the hub's watches"))
    _listeners: list[HttpListener] = field(default_factory=list)
    _servers: list[asyncio.Server] = field(default_factory=list)

    # --- start -----------------------------------------------------------------------------------

    async def start(self) -> None:
        parts = self.parts
        await parts.agents.registry.load_stored()
        config = parts.live.config
        http_path, mcp_path = home_files.find_socket_paths(str(parts.home))
        mounts = {**parts.mcp.mounts, **parts.events.mounts}
        under = [
            *parts.mcp.view_mounts,
            *build_a2a_mounts(config, parts.agents.a2a),
            parts.endpoints.mount,
        ]
        if parts.authority is not None:
            under += parts.authority.mounts
        under += parts.logins.mounts
        under.append(WebhookEndpoint(parts.workflows.find_webhooks).mount)
        under.append(build_run_events(WorkflowsView(parts.workflows), parts.events.streams))
        bodies = BodyBudget(config.limits.body_megabytes * 1024 * 1024)
        if parts.redis is not None:
            parts.redis.start()
        if parts.telemetry is not None:
            parts.telemetry.start(self.status.collect_metrics)
        authenticate, owners = None, None
        owner_app: Application = OwnerApp(self._peers, mounts, self.api, under)
        internal = owner_app
        if parts.state.mode == "daemon":
            internal, authenticate = self._listen_tcp(mounts, under, bodies)
        if parts.cluster is not None:
            placed = parts.cluster.build_placed(parts.guards, parts.upstreams)
            self._loops.spawn(poll(placed.follow, PLACEMENT_SECONDS))
            owners = parts.cluster.owners
            messages = parts.mcp.server.join(owners)
            served = {MESSAGES_PART: messages.serve, GRPC_PART: parts.agents.serve_grpc}
            assert parts.shared_audit is not None
            await parts.cluster.start(
                internal, bodies, placed, served, self._inherit, self._find_left, self._begin_anew,
                parts.shared_audit.find_state,
            )  # fmt: skip
            owner_app = parts.cluster.wrap(owner_app, self._peers.identify_unix)
        self._listeners.append(HttpListener(owner_app, unix_socket(http_path), bodies))
        why_ended = self.access.explain_ended
        await parts.agents.start(config, parts.state, authenticate, why_ended, owners)
        for listener in self._listeners:
            await listener.start()
        await parts.upstreams.apply(config.mcp_servers)
        await self._listen_stdio(mcp_path)
        home_files.write_daemon(
            str(parts.home),
            home_files.DaemonRecord(
                pid=os.getpid(),
                url=parts.state.url,
                socket=http_path,
                mcp_socket=mcp_path,
                version=__version__,
                started_at=home_files.render_now(),
                mode=parts.state.mode,
                stop_secs=home_files.STOP_SECONDS
                + (config.cluster.drain_secs if parts.cluster is not None else 0),
            ),
        )
        parts.guards.approvals.start()
        await parts.workflows.start()
        parts.events.watchdog.start()
        self._watch()
        if parts.cluster is not None:
            await parts.cluster.set_ready()
            self._loops.spawn(poll(parts.upstreams.follow_placement, PLACEMENT_SECONDS))

    def _listen_tcp(
        self, mounts: Mapping[str, Mounted], under: list[PathMount], bodies: BodyBudget
    ) -> tuple[Application, Authenticate]:
        """Returns what answers the requests, too, for those that other hubs forward."""
        parts = self.parts
        config, auth = parts.live.config, parts.auth.authenticator
        settings = config.server
        if not auth.requires_key() and not is_loopback(settings.host):
            raise ConfigError(
                f'[server] host = "{settings.host}" can be reached from outside, which needs a '
                "key: set api_key, or run: dragoman keys create NAME; or accept the tokens of an "
                "identity provider, see [auth.jwt]"
            )
        sock = tcp_socket(settings.host, settings.port, shared=settings.workers > 1)
        port = sock.getsockname()[1]
        # A wildcard address is not one that clients can connect to.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        parts.state.set_url(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        names = AllowedNames(
            settings.host, settings.public_url, settings.allowed_hosts, settings.allowed_origins
        )
        note_failed = self.status.note_failed
        resource = parts.auth.metadata
        under.append(PathMount(WELL_KNOWN, resource.serve, lambda path: True))
        served, console = under, self.console
        if console is not None:
            self.access.follow_sessions(console)
            mount = connect_console(console, parts, self.api, self._peers, note_failed)
            served = [*under, mount]
        app = TcpApp(
            auth, names, mounts, self.api, served, note_failed,
            peers=self._peers, metadata=resource, console=console,
        )  # fmt: skip
        most = process.limit_connections(config.limits.connections)
        served_app: Application = app
        if parts.cluster is not None:
            served_app = parts.cluster.wrap(app, self._peers.identify_tcp)
        self._listeners.append(HttpListener(served_app, sock, bodies, most))

        async def note_stranger(metadata: Mapping[str, str], peer: str) -> None:
            if "authorization" in metadata:
                note_failed("")
            charged = limit_address(self.parts.guards.limiter, address_from_grpc(peer))
            if charged is not None:
                await charged

        async def authenticate(
            metadata: Mapping[str, str], peer: str, port: int
        ) -> Principal | None:
            fields = {
                name.encode("latin-1"): one.encode("latin-1") for name, one in metadata.items()
            }
            try:
                found = auth.authenticate(
                    fields, lambda: self._peers.identify_grpc(peer, settings.host, port)
                )
                if found is not None and not isinstance(found, Principal):
                    check_address(self.parts.guards.limiter, address_from_grpc(peer))
                    found = await found()
            except TokenRejected:
                await note_stranger(metadata, peer)
                raise
            if found is None and peer:
                await note_stranger(metadata, peer)
            if found is not None:
                _check_scopes(found, resource.find_missing_scopes(found))
            return found

        return app, authenticate

    async def _listen_stdio(self, path: str) -> None:
        parts = self.parts
        targets = asyncio.gather(
            parts.upstreams.wait_settled(), parts.agents.registry.wait_until_checked()
        )
        settled = self._loops.spawn(_wait(SETTLE_SECONDS, targets))
        settled.add_done_callback(lambda _: parts.guards.startup.settle())

        def accept() -> SocketConnection:
            return SocketConnection(
                parts.mcp.server,
                self._peers.identify_unix,
                lambda: parts.live.stdio_view,
                parts.state.stdio,
            )

        loop = asyncio.get_running_loop()
        self._servers.append(
            await loop.create_unix_server(accept, sock=unix_socket(path), backlog=MCP_BACKLOG)
        )

    def _watch(self) -> None:
        """Starts the watches. Each is a task: a slow server must not delay a change of policy."""
        parts = self.parts
        serving: list[ServesPrincipals] = [
            *(parts.mcp.http, parts.mcp.sse, parts.mcp.tasks, parts.events.streams, parts.agents),
            parts.guards.kept,
            parts.endpoints,
            parts.logins.desk,
            parts.workflows,
            *self._listeners,
        ]
        if self.console is not None:
            serving.append(self.console)
        parts.logins.desk.end_principals(self.access.explain_ended)
        for watch in (
            self.applier.follow(),
            poll(parts.guards.policies.check),
            poll(self._follow_agents),
            poll(parts.endpoints.follow, FILES_SECONDS),
            poll(parts.routing.follow),
            poll(parts.workflows.follow),
            poll(parts.guards.approvals.follow),
            poll(parts.store_watch.check),
            poll(parts.skills.check, SKILL_SECONDS),
            poll(parts.catalogs.reviews.retry),
            parts.store_watch.keep_pruning(lambda: parts.live.config.audit),
            parts.store_watch.keep_checkpoints(),
            parts.store_watch.begin_sealing(),
            self.access.watch(serving),
            poll(_sweep_processes, SWEEP_SECONDS),
            parts.guards.watch_load(),
        ):
            self._loops.spawn(watch)
        if not isinstance(parts.stores.place, Path):
            stores = parts.stores
            shared = SharedStores(
                {
                    "registry": (stores.registry.read_version, parts.agents.registry.reload),
                    "pins": (stores.pins.read_version, parts.catalogs.reviews.reload),
                    "credentials": (parts.logins.read_version, parts.logins.desk.reload),
                }
            )
            self._loops.spawn(poll(shared.check))
            self._loops.spawn(poll(stores.try_transaction, TRIAL_SECONDS))
        if parts.authority is not None:
            self._loops.spawn(poll(parts.authority.record_changes))
        if parts.shared_audit is not None:
            self._loops.spawn(parts.shared_audit.shipper.run())
            leases = parts.cluster.hubs if parts.cluster is not None else SINGLE_HUB
            self._loops.spawn(
                parts.shared_audit.keep_pruning(lambda: parts.live.config.audit, leases)
            )

    async def _follow_agents(self) -> None:
        """Applies changes of manifests, and loads the built-in tools with the first agent that has
        any, before a client can ask that agent."""
        try:
            await self.parts.manifests.follow()
        finally:
            await self.parts.tools.follow()

    async def _inherit(self, hub: str) -> None:
        """Another hub has ended, and this one is its heir."""
        if self.parts.cluster is not None:
            states = await self.parts.cluster.hubs.take_handed(hub)
            self.parts.mcp.http.sessions.adopt(states)
        self.parts.guards.approvals.take_over(hub)
        await self.parts.agents.take_over(hub)

    def _find_left(self, hubs: Sequence[str]) -> set[str]:
        """Finds those of the hubs, which have ended, that still own something."""
        parts = self.parts
        return parts.guards.approvals.find_left(hubs) | parts.agents.find_left(hubs)

    async def _begin_anew(self, hub: str) -> None:
        """Others own what was this hub's own; it goes on under another id."""
        parts = self.parts
        parts.guards.approvals.rename_hub()
        parts.mcp.abandon(hub)
        parts.agents.abandon(hub)

    # --- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Lets running calls finish, then ends them; takes well under ten seconds in all, after
        the time in which a hub of a cluster still takes requests."""
        parts = self.parts
        parts.state.drain()
        if parts.cluster is not None:
            await self._leave_balancer()
        self._loops.cancel()  # also what would move the servers of this hub, whose calls finish
        if parts.cluster is not None:
            await parts.cluster.begin_stop()
        else:
            parts.workflows.begin_stop()
        self.access.close()
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            listener.stop_accepting()
        parts.mcp.close()
        parts.endpoints.close()
        await self._drain()
        await _wait(STOP_SECONDS, parts.tools.stop())
        await _wait(STOP_SECONDS, parts.mcp.tasks.close())
        await _wait(STOP_SECONDS, parts.agents.stop())
        # Calls that still run fail now, and their clients get an answer.
        seconds = INSTALLER_STOP_SECONDS if parts.upstreams.is_installing else STOP_SECONDS
        await _wait(seconds, parts.upstreams.stop())
        await _wait(STOP_SECONDS, parts.logins.close())
        if parts.cluster is not None:
            # A hub that has left the cluster stores nothing more.
            parts.stores.conversations.close()
            await _wait(STOP_SECONDS, parts.events.dispatches.close())
            await _wait(STOP_SECONDS, parts.cluster.leave(parts.mcp.http.sessions.export()))
        DESCENDANTS.kill_all()
        parts.auth.close()
        if parts.telemetry is not None:
            await _wait(STOP_SECONDS, parts.telemetry.close())
        await _wait(1, self.net.close())
        await asyncio.gather(*(listener.drain(LAST_SECONDS) for listener in self._listeners))
        for listener in self._listeners:
            listener.abort()
        await _wait(LAST_SECONDS, self._wait_for_audit())
        await _wait(STOP_SECONDS, parts.events.close())
        await _wait(STOP_SECONDS, parts.guards.close())
        if parts.redis is not None:
            await _wait(STOP_SECONDS, parts.redis.close())
        if parts.cluster is not None:
            await _wait(STOP_SECONDS, parts.cluster.close())
        home_files.remove_daemon(str(parts.home))
        for path in home_files.find_socket_paths(str(parts.home)):
            with contextlib.suppress(OSError):
                os.unlink(path)
        parts.routing.close()
        if parts.shared_audit is not None:
            parts.stores.tally.flush(now=True)
            await _wait(STOP_SECONDS, parts.shared_audit.close())
        parts.stores.close()

    async def _drain(self) -> None:
        """Lets running calls finish; in a cluster also what works in the background, since another
        hub serves the clients when this one has finished."""
        parts, cluster = self.parts, self.parts.cluster
        if cluster is None:
            await _wait(STOP_SECONDS, parts.workflows.stop())
        await parts.guards.approvals.stop()
        parts.agents.begin_stop(is_early=cluster is not None)
        parts.events.streams.close()
        drains = [listener.drain(DRAIN_SECONDS) for listener in self._listeners]
        drains += [_wait(DRAIN_SECONDS, connection.drain()) for connection in parts.state.stdio]
        drains.append(self._loops.close(timeout=DRAIN_SECONDS))
        drains.append(self.applier.close(DRAIN_SECONDS, LAST_SECONDS))
        if cluster is not None:
            drains.append(_wait(DRAIN_SECONDS, cluster.wait_idle(DRAIN_SECONDS)))
            drains.append(_wait(DRAIN_SECONDS, parts.agents.wait_idle()))
        await asyncio.gather(*drains, return_exceptions=True)
        if cluster is not None:
            parts.workflows.begin_stop()
            parts.agents.begin_stop()
            await _wait(STOP_SECONDS, parts.workflows.stop())

    async def _leave_balancer(self) -> None:
        """Serves for another moment while `/readyz` fails, so that a balancer sends no more; then
        takes the requests that are on their way, and no more."""
        for listener in self._listeners:
            listener.wind_down()
        await asyncio.sleep(self.parts.live.config.cluster.drain_secs)
        await asyncio.gather(*(listener.finish_accepting() for listener in self._listeners))

    async def _wait_for_audit(self) -> None:
        while self.parts.stores.audit.has_running_calls:
            await asyncio.sleep(0.005)


async def _sweep_processes() -> None:
    DESCENDANTS.sweep()


async def _wait(seconds: float, work: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


def _check_scopes(principal: Principal, missing: Sequence[str]) -> None:
    """Raises for a principal whose credential does not suffice for any call; `missing` are scopes
    that every access token needs."""
    if missing:
        raise AuthorizationError(f"the access token needs the scopes: {' '.join(missing)}")
    if LIST not in principal.rights:
        raise build_missing_scope(principal, CALL, "the call")
