"""The parts of a hub as `build` has made them, for what works on several of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.agents.manifest_agents import ManifestAgents
from dragoman.agents.skills.skill_book import SkillBook
from dragoman.app.agent_endpoints import AgentEndpoints
from dragoman.app.build_agents import Agents
from dragoman.app.build_auth import AuthParts
from dragoman.app.build_authority import Authority
from dragoman.app.build_catalogs import Catalogs
from dragoman.app.build_events import Events
from dragoman.app.build_guards import Guards
from dragoman.app.build_logins import LoginParts
from dragoman.app.build_mcp import McpParts
from dragoman.app.build_redis import RedisParts
from dragoman.app.build_routing import LazyRouting
from dragoman.app.build_stores import Stores
from dragoman.app.build_telemetry import Telemetry
from dragoman.app.build_workflows import LazyWorkflows
from dragoman.app.config_watch import LiveConfig
from dragoman.app.lazy_tools import LazyTools
from dragoman.app.run_state import RunState
from dragoman.app.store_watch import StoreWatch
from dragoman.mcp.client.upstream_manager import UpstreamManager

if TYPE_CHECKING:
    from dragoman.app.build_cluster import ClusterParts
    from dragoman.app.shared_audit import SharedAudit


@dataclass(frozen=True, slots=True)
class HubParts:
    home: Path
    live: LiveConfig
    state: RunState
    stores: Stores
    store_watch: StoreWatch
    catalogs: Catalogs
    guards: Guards
    upstreams: UpstreamManager
    mcp: McpParts
    agents: Agents
    manifests: ManifestAgents
    endpoints: AgentEndpoints
    skills: SkillBook
    events: Events
    tools: LazyTools
    routing: LazyRouting
    workflows: LazyWorkflows
    auth: AuthParts
    authority: Authority | None
    """None while `[auth.server]` is not enabled."""
    logins: LoginParts
    cluster: ClusterParts | None
    """None for a single hub."""
    shared_audit: SharedAudit | None
    """None while the stores are in the home."""
    redis: RedisParts | None
    """None where no Redis is configured."""
    telemetry: Telemetry | None
    """None where no collector is configured."""
