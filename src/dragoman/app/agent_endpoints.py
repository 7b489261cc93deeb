"""Each agent as an MCP server of its own, at `/agents/NAME/mcp`.

An endpoint has catalogs of its own, with what the agent's manifest exposes, and the pipeline of the
hub. It is built at the first request for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dragoman.agents.manifest_agents import ManifestAgents
from dragoman.app.build_guards import Guards
from dragoman.core.access import WhyEnded
from dragoman.core.catalog import admit_all, build_catalogs
from dragoman.core.hub import Hub
from dragoman.core.local_agents import AgentProfile, build_agent_principal
from dragoman.core.name_claims import NameClaims
from dragoman.core.principal import Principal
from dragoman.core.tool import RESOURCE, TOOL
from dragoman.core.trace import new_trace
from dragoman.mcp.server.dispatcher import McpServer, ServerIdentity
from dragoman.mcp.server.streamable_http import StreamableHttpTransport
from dragoman.web.app import PathMount
from dragoman.wire.http import JSON_HEADERS, HttpRequest
from dragoman.wire.json import encode

if TYPE_CHECKING:
    from dragoman.agents.model_agent import AgentHub

PREFIX, SUFFIX = "/agents", "/mcp"


@dataclass(eq=False, slots=True)
class AgentEndpoint:
    profile: AgentProfile
    hub: Hub
    transport: StreamableHttpTransport


@dataclass(eq=False, slots=True)
class AgentEndpoints:
    _guards: Guards
    _manifests: ManifestAgents
    _tools: AgentHub
    _key: bytes
    _open: dict[str, AgentEndpoint] = field(default_factory=dict)
    _files: dict[AgentEndpoint, list[str]] = field(default_factory=dict)
    """The exposed files that each lists."""
    _seen: dict[AgentEndpoint, int] = field(default_factory=dict)
    """The version of the catalog that the tools of each are of."""

    def __post_init__(self) -> None:
        self._guards.hub.catalog.on_change(self._refresh_all)

    @property
    def mount(self) -> PathMount:
        return PathMount(PREFIX, self._serve, lambda path: False, lambda path: True)

    async def _serve(self, request: HttpRequest, principal: Principal | None) -> None:
        name, _, rest = request.path.removeprefix(f"{PREFIX}/").partition("/")
        endpoint = self._find(unquote(name)) if f"/{rest}" == SUFFIX else None
        if (
            endpoint is None
            or principal is None
            or (principal.view and not self._is_in_view(endpoint.profile.name, principal))
        ):
            said = "there is no such agent endpoint: use /agents/NAME/mcp with an agent's name"
            request.reply(404, JSON_HEADERS, encode({"error": {"message": said}}))
            return
        if endpoint not in self._files:
            await self._refresh_files(endpoint)
        work = endpoint.transport(request, principal)
        if work is not None:
            await work

    def _is_in_view(self, agent: str, principal: Principal) -> bool:
        """Whether the agent is in the view that the principal is bound to."""
        view = self._guards.hub.views.get_bound(principal.view)
        return any(view.includes(one) for one in self._guards.hub.catalog.list_offered(agent))

    def _find(self, name: str) -> AgentEndpoint | None:
        profile = self._manifests.find_by_name(name)
        if profile is None:
            return None
        found = self._open.get(profile.name)
        if found is None or found.profile is not profile:
            if found is not None:
                self._seen.pop(found, None)
                self._files.pop(found, None)
                found.transport.close()
            found = self._open[profile.name] = self._build(profile)
        self._refresh(found)
        return found

    def _build(self, profile: AgentProfile) -> AgentEndpoint:
        guards, main = self._guards, self._guards.hub
        hub = Hub(
            build_catalogs(admit_all, NameClaims()),
            main.bus,
            guards.stages,
            guards.chains,
            main.authorizer,
            results=guards.kept,
            limiter=guards.limiter,
            views=main.views,
            cluster=main.cluster,
        )
        manifest = self._manifests.get_manifest(profile.name)
        identity = ServerIdentity(manifest.name, manifest.version, manifest.description)
        server = McpServer(hub, self._key, identity=identity)
        return AgentEndpoint(profile, hub, StreamableHttpTransport(server, self._key))

    def _refresh(self, endpoint: AgentEndpoint) -> None:
        version = self._guards.hub.catalog.version
        if self._seen.get(endpoint) == version:
            return
        from dragoman.agents.exposure import list_exposed

        self._seen[endpoint] = version
        profile = endpoint.profile
        granted = self._tools.list_granted(build_agent_principal(profile), new_trace())
        exposure = self._manifests.get_manifest(profile.name).mcp
        tools = list_exposed(profile, exposure, granted, self._tools.call_within)
        endpoint.hub.catalogs[TOOL].offer(profile.name, tools)

    def _refresh_all(self) -> None:
        for name, endpoint in list(self._open.items()):
            if self._manifests.find_by_name(name) is endpoint.profile:
                self._refresh(endpoint)

    async def follow(self) -> None:
        """Lists the exposed files of open endpoints anew; called again and again."""
        for name, endpoint in list(self._open.items()):
            if self._manifests.find_by_name(name) is endpoint.profile:
                await self._refresh_files(endpoint)

    async def _refresh_files(self, endpoint: AgentEndpoint) -> None:
        profile = endpoint.profile
        patterns = self._manifests.get_manifest(profile.name).mcp.expose_files
        if not patterns:
            return
        from dragoman.agents.exposure import list_exposed_files
        from dragoman.tools.workspace import Workspace, WorkspaceLimits, list_matching, parse_path

        workspace = Workspace(profile.workspace, WorkspaceLimits())

        async def read_file(path: str) -> bytes:
            return await asyncio.to_thread(workspace.read, parse_path(path))

        paths = await asyncio.to_thread(list_matching, workspace, patterns)
        if paths != self._files.get(endpoint):
            self._files[endpoint] = paths
            resources = list_exposed_files(profile, paths, read_file)
            endpoint.hub.catalogs[RESOURCE].offer(profile.name, resources)

    def end_principals(self, why_ended: WhyEnded) -> None:
        for endpoint in self._open.values():
            endpoint.transport.end_principals(why_ended)

    def close(self) -> None:
        for endpoint in self._open.values():
            endpoint.transport.server.subscriptions.close()
            endpoint.transport.close()
