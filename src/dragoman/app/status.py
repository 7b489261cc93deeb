"""What the API reports about the hub: status, metrics, servers and their logs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.a2a.remote.registry_view import RegistryView
from dragoman.app import process
from dragoman.app.build_agents import Agents
from dragoman.app.build_catalogs import Catalogs
from dragoman.app.build_events import Events
from dragoman.app.build_mcp import McpParts
from dragoman.app.config_watch import ConfigWatch
from dragoman.app.policy_admin.service import PolicyService
from dragoman.app.run_state import RunState
from dragoman.app.store_watch import StoreWatch
from dragoman.config import Config
from dragoman.core.admin_audit import Tally
from dragoman.core.principal import Principal
from dragoman.mcp.client.upstream_manager import UpstreamManager

AUTH_FAILED, ADMIN_DENIED = "auth.failed", "admin.denied"


@dataclass(frozen=True, slots=True)
class HubStatus:
    """Implements `web.api.StatusSource`."""

    home: Path
    config: Config
    state: RunState
    watch: ConfigWatch
    store_watch: StoreWatch
    tally: Tally
    catalogs: Catalogs
    policies: PolicyService
    upstreams: UpstreamManager
    mcp: McpParts
    agents: Agents
    registry: RegistryView
    events: Events

    def ready(self) -> str | None:
        return "the hub is shutting down" if self.state.is_draining else None

    def status(self) -> Mapping[str, Any]:
        state = self.state
        return {
            "version": __version__,
            "pid": os.getpid(),
            "home": str(self.home),
            "mode": state.mode,
            "url": state.url,
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(state.started_at)),
            "uptime_secs": round(state.measure_uptime(), 1),
            "servers": {
                "total": len(self.upstreams),
                "connected": self.upstreams.count("connected"),
                "starting": self.upstreams.starting,
            },
            "tools": len(self.catalogs.tools),
            "agents": {
                "local": list(self.agents.local.by_name),
                "remote": self.registry.list_status(),
                "failed": self.agents.failures,
                "a2a": self.config.a2a.enabled,
                "grpc_port": state.grpc_port,
                "tasks": self.agents.count_tasks(),
            },
            "clients": {
                "http_sessions": len(self.mcp.http.sessions),
                "sse": len(self.mcp.sse),
                "stdio": len(state.stdio),
            },
            "config_problem": self.watch.problem,
            "policies": self.policies.describe(),
            "store_problems": [
                *self.store_watch.find_problems(),
                *self.catalogs.reviews.list_problems(),
            ],
        }

    def server_log(self, name: str) -> str | None:
        return self.upstreams.read_log(name)

    def server_states(self) -> Mapping[str, Any]:
        states = self.upstreams.snapshot()
        for state in states["connected"]:
            if why := self.catalogs.reviews.describe_unreviewed(state["name"]):
                state["problems"] = [*state.get("problems", ()), why]
        return states

    def metrics(self) -> str:
        upstreams = self.upstreams
        return self.events.metrics.render(
            {
                "dragoman_tools": ("Tools in the catalog.", len(self.catalogs.tools)),
                "dragoman_servers": ("Servers configured and enabled.", len(upstreams)),
                "dragoman_servers_connected": ("Servers connected.", upstreams.count("connected")),
                "dragoman_a2a_tasks": ("A2A tasks kept.", self.agents.count_tasks()),
                "dragoman_http_sessions": ("Sessions over HTTP.", len(self.mcp.http.sessions)),
                "dragoman_stdio_clients": ("Clients over stdio.", len(self.state.stdio)),
                "process_open_fds": ("Files and sockets that are open.", process.count_files()),
                "dragoman_uptime_seconds": ("Since the start.", self.state.measure_uptime()),
            }
        )

    def note_denied(self, principal: Principal | None, what: str) -> None:
        who = principal.label if principal is not None else "nobody"
        self.tally.add(ADMIN_DENIED, what, who, "api")

    def note_failed(self, address: str) -> None:
        """Counts a request with an invalid key; its address is unknown over gRPC."""
        self.tally.add(AUTH_FAILED, address or "gRPC", "nobody", "http")
