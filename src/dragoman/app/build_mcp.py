"""Builds the MCP client side (upstream servers) and the MCP server with its transports."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dragoman.app.build_catalogs import Catalogs
from dragoman.app.build_skills import build_mark
from dragoman.app.config_watch import LiveConfig
from dragoman.core.background import Work
from dragoman.core.bus import Bus
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import View
from dragoman.guards.validate import compile_schema
from dragoman.mcp.client.connector import Connector
from dragoman.mcp.client.limits import UpstreamLimits
from dragoman.mcp.client.placed_upstream import PlacedUpstream
from dragoman.mcp.client.server_start import Installations
from dragoman.mcp.client.upstream import Upstream
from dragoman.mcp.client.upstream_manager import UpstreamManager
from dragoman.mcp.config import ServerEntry
from dragoman.mcp.server.connected_clients import ConnectedClients
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.mcp.server.legacy_sse import LegacySseTransport
from dragoman.mcp.server.streamable_http import StreamableHttpTransport, refuse_unknown_view
from dragoman.mcp.server.tasks import ToolTaskRegistry, build_task_registry
from dragoman.net.client import OutboundHttp
from dragoman.processes.child_process import kill_marked
from dragoman.processes.descendants import DESCENDANTS
from dragoman.web.app import Mounted, PathMount
from dragoman.wire.http import HolderClients, HttpClient, HttpRequest

if TYPE_CHECKING:
    from dragoman.app.build_cluster import ClusterParts

ServeView = Callable[[HttpRequest, Principal, View], Work[None] | None]
"""Serves a request at the address of a view."""


@dataclass(frozen=True, slots=True)
class McpParts:
    server: McpServer
    http: StreamableHttpTransport
    sse: LegacySseTransport
    tasks: ToolTaskRegistry

    @property
    def mounts(self) -> dict[str, Mounted]:
        return {"/mcp": self.http, "/mcp/": self.http, **self.sse.mounts}

    @property
    def view_mounts(self) -> list[PathMount]:
        """`/mcp/v/NAME`, and `/sse/v/NAME` for the transport of 2024-11-05."""
        transports: dict[str, ServeView] = {"/mcp/v": self.http, "/sse/v": self.sse.open}
        return [
            PathMount(
                prefix,
                partial(self._serve_view, prefix, transport),
                is_open=lambda path: False,
                is_rpc=lambda path: True,
            )
            for prefix, transport in transports.items()
        ]

    def _serve_view(
        self, prefix: str, transport: ServeView, request: HttpRequest, principal: Principal | None
    ) -> Work[None] | None:
        name = unquote(request.path.removeprefix(prefix).strip("/"))
        view = self.server.hub.views.find(name)
        if view is None or principal is None:
            refuse_unknown_view(request)
            return None
        return transport(request, principal, view)

    def abandon(self, hub: str) -> None:
        """Other hubs own the sessions and tasks of this one, which has the id `hub` now."""
        self.http.sessions.abandon()
        self.tasks.abandon(hub)

    def close(self) -> None:
        self.server.subscriptions.close()
        self.http.close()
        self.sse.close()


def build_upstreams(
    home: Path,
    live: LiveConfig,
    net: OutboundHttp,
    catalogs: Catalogs,
    bus: Bus,
    clients: ConnectedClients,
    open_account: Callable[[ServerEntry], HolderClients | None],
    cluster: ClusterParts | None,
) -> UpstreamManager:
    """Also kills what a hub that was killed has left running."""
    mark = build_mark(home)
    kill_marked(mark)
    DESCENDANTS.kill_recorded(home / "children.json")
    connector = Connector(
        home,
        mark,
        live.variables,
        partial(_open_http, net, cluster),
        live.secrets,
    )

    installations = Installations(home)

    def find_placed() -> Collection[str]:
        """The servers that run at one hub: they are programs, and have no logins."""
        return [one.name for one in live.config.mcp_servers if one.placement == "one"]

    def build_upstream(entry: ServerEntry) -> Upstream:
        build = Upstream if cluster is None or entry.placement != "one" else PlacedUpstream
        return build(
            entry,
            connector,
            catalogs.offered,
            bus,
            partial(compile_schema, check=entry.check_arguments),
            UpstreamLimits(question_secs=live.config.limits.question_secs),
            asker=clients,
            clients=open_account(entry) if entry.name not in find_placed() else None,
            installations=installations,
        )

    if cluster is None:
        return UpstreamManager(build_upstream, catalogs.callable, bus)
    from dragoman.app.placed_servers import Placement

    return UpstreamManager(build_upstream, catalogs.callable, bus, Placement(cluster.hubs).place)


def _open_http(
    net: OutboundHttp, cluster: ClusterParts | None, url: str, private: bool
) -> HttpClient:
    found = cluster.open_placed(url) if cluster is not None else None
    return found or net.open_configured(url, allow_private=private)


def build_mcp(
    live: LiveConfig,
    hub: Hub,
    key: bytes,
    clients: ConnectedClients,
    cluster: ClusterParts | None = None,
) -> McpParts:
    config, limits = live.config, live.config.limits
    lifetime = 2 * limits.task_timeout_secs
    handover = cluster.handover if cluster is not None else None
    tasks = build_task_registry(limits.tasks, limits.tasks_each, lifetime, handover)
    server = McpServer(
        hub,
        key,
        live.find_style,
        limits.question_secs,
        tasks,
        config.mcp.task_after_secs,
        config.bridge.errors,
        config.bridge.list_aliases,
        lambda: (live.config.mcp.instructions_chars, live.config.mcp.instructions_total_chars),
        clients,
        handover=handover,
        limit_of=live.find_tool_limit,
    )
    http = StreamableHttpTransport(server, key, handover)
    return McpParts(server, http, LegacySseTransport(server), tasks)
