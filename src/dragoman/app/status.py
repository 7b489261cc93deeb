"""What the API reports about the hub: status, metrics, servers and their logs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.a2a.remote.registry_view import RegistryView
from dragoman.app import process
from dragoman.app.config_watch import ConfigWatch
from dragoman.app.hub_parts import HubParts
from dragoman.core.measurements import Distribution, Measurement
from dragoman.core.principal import Principal
from dragoman.stores.database import render_reason

AUTH_FAILED, ADMIN_DENIED = "auth.failed", "admin.denied"


@dataclass(frozen=True, slots=True)
class HubStatus:
    """Implements `web.api.StatusSource`."""

    _parts: HubParts
    _watch: ConfigWatch
    _registry: RegistryView

    def ready(self) -> str | None:
        if self._parts.state.is_draining:
            return "the hub is shutting down"
        cluster, place = self._parts.cluster, self._parts.stores.place
        problem = "" if isinstance(place, Path) else render_reason(place.problem)
        if not problem and cluster is not None and not cluster.hubs.is_connected:
            problem = "this hub could not renew its place in the cluster"
        return f"the database is not available: {problem}" if problem else None

    async def describe_cluster(self) -> Mapping[str, Any]:
        """The hubs and their leases; none for a single hub."""
        cluster, audit = self._parts.cluster, self._parts.shared_audit
        if cluster is None or audit is None:
            return {"hubs": [], "leases": []}
        return await cluster.describe(audit.find_state)

    def find_concurrency(self) -> Mapping[str, Any]:
        """The limits of what may happen at once, for `web.api_limits`."""
        limits, guards = self._parts.live.config.limits, self._parts.guards
        return {
            "calls_in_flight": {
                "limit": limits.calls_in_flight,
                "each": (limits.calls_in_flight + 1) // 2,
                "running": guards.count_running(),
            },
            "target_calls": {"limit": limits.target_calls, "each": limits.target_calls // 2},
            "tasks": {"limit": limits.tasks, "each": limits.tasks_each},
            "connections": {"limit": limits.connections, "each": limits.connections // 2},
        }

    async def status(self) -> Mapping[str, Any]:
        parts, state = self._parts, self._parts.state
        return {
            "version": __version__,
            "pid": os.getpid(),
            "home": str(parts.home),
            "mode": state.mode,
            "url": state.url,
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(state.started_at)),
            "uptime_secs": round(state.measure_uptime(), 1),
            "servers": {
                "total": len(parts.upstreams),
                "connected": parts.upstreams.count("connected"),
                "starting": parts.upstreams.starting,
                "starts": parts.upstreams.starts,
            },
            "tools": len(parts.catalogs.tools),
            "agents": {
                "local": list(parts.agents.local.by_name),
                "remote": await self._registry.list_status(),
                "failed": parts.agents.failures,
                "a2a": parts.agents.a2a is not None,
                "grpc_port": state.grpc_port,
                "grpc_ports": state.grpc_ports,
                "tasks": parts.agents.count_tasks(),
            },
            "skills": {
                "total": len(parts.skills.table.list_names()),
                "disabled": parts.skills.table.list_problems(),
            },
            "clients": {
                "http_sessions": len(parts.mcp.http.sessions),
                "sse": len(parts.mcp.sse),
                "stdio": len(state.stdio),
            },
            "config_problem": self._watch.problem,
            "policies": parts.guards.policies.describe(),
            "store_problems": [
                *parts.store_watch.find_problems(),
                *parts.catalogs.reviews.list_problems(),
                *(parts.shared_audit.list_problems() if parts.shared_audit is not None else ()),
            ],
        }

    def server_log(self, name: str) -> str | None:
        return self._parts.upstreams.read_log(name)

    def server_states(self) -> Mapping[str, Any]:
        states = self._parts.upstreams.snapshot()
        for state in states["connected"]:
            if why := self._parts.catalogs.reviews.describe_unreviewed(state["name"]):
                state["problems"] = [*state.get("problems", ()), why]
            if (login := self._parts.logins.desk.summarize(state["name"])) is not None:
                state["login"] = login
        return states

    def metrics(self) -> str:
        return self._parts.events.metrics.render(self._find_gauges())

    def collect_metrics(self) -> Sequence[Measurement | Distribution]:
        return self._parts.events.metrics.collect(self._find_gauges())

    def _find_gauges(self) -> dict[str, tuple[str, float]]:
        parts, upstreams = self._parts, self._parts.upstreams
        gauges: dict[str, tuple[str, float]] = {
            "dragoman_tools": ("Tools in the catalog.", len(parts.catalogs.tools)),
            "dragoman_servers": ("Servers configured and enabled.", len(upstreams)),
            "dragoman_servers_connected": ("Servers connected.", upstreams.count("connected")),
            "dragoman_a2a_tasks": ("A2A tasks kept.", parts.agents.count_tasks()),
            "dragoman_http_sessions": ("Sessions over HTTP.", len(parts.mcp.http.sessions)),
            "dragoman_stdio_clients": ("Clients over stdio.", len(parts.state.stdio)),
            "process_open_fds": ("Files and sockets that are open.", process.count_files()),
            "dragoman_uptime_seconds": ("Since the start.", parts.state.measure_uptime()),
        }
        if parts.redis is not None:
            is_up = int(parts.redis.limiter.is_shared)
            gauges["dragoman_redis_up"] = ("Whether Redis is used, which may be away.", is_up)
        if parts.telemetry is not None:
            dropped = parts.telemetry.exporter.dropped
            gauges["dragoman_otel_dropped_calls"] = ("Calls whose trace was dropped.", dropped)
        return gauges

    def note_denied(self, principal: Principal | None, what: str) -> None:
        who = principal.label if principal is not None else "nobody"
        self._parts.stores.tally.add(ADMIN_DENIED, what, who, "api")

    def note_failed(self, address: str) -> None:
        """Counts a request with an invalid key; its address is unknown over gRPC."""
        self._parts.stores.tally.add(AUTH_FAILED, address or "gRPC", "nobody", "http")
