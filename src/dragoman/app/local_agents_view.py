"""Describes the local agents for the API: how each runs, and which tools its grants match now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.agents.function import FunctionAgent
from dragoman.agents.manifest_agents import LocalAgent
from dragoman.app.hub_parts import HubParts
from dragoman.core.local_agents import build_agent_principal
from dragoman.core.principal import Principal
from dragoman.core.tool import Tool
from dragoman.core.trace import new_trace
from dragoman.guards.grants import GrantedTools

COMMAND, FUNCTION, MODEL = "command", "function", "model"


@dataclass(frozen=True, slots=True)
class LocalAgentsView:
    """Implements `web.api_local_agents.LocalAgentSource`."""

    _parts: HubParts
    _granted: GrantedTools

    def list_tools(self) -> Sequence[Tool]:
        agents = self._parts.agents.local.by_name
        return [agents[name].tool for name in sorted(agents)]

    def describe(self, name: str, with_grants: bool) -> dict[str, Any]:
        parts, agent = self._parts, self._parts.agents.local.by_name[name]
        own = parts.manifests.find_by_name(name)
        schedules = parts.tools.describe_schedules(own) if own is not None else []
        return {**self._describe_runtime(agent, with_grants), "schedules": schedules}

    def _describe_runtime(self, agent: LocalAgent, with_grants: bool) -> dict[str, Any]:
        parts = self._parts
        own = parts.manifests.find_by_name(agent.name)
        if own is None:
            return {"runtime": FUNCTION, "model": None, "source": "config.toml", "grants": None}
        from dragoman.agents.manifest import find_manifest
        from dragoman.agents.model_agent import ModelAgent
        from dragoman.agents.model_factory import SCRIPT, describe_models

        source = find_manifest(own.workspace.parent) or own.workspace.parent
        if not isinstance(agent, ModelAgent):
            runtime = FUNCTION if isinstance(agent, FunctionAgent) else COMMAND
            return {"runtime": runtime, "model": None, "source": str(source), "grants": None}
        models = [one.label for one in describe_models(agent.manifest)]
        profile, hub = agent.profile, parts.guards.hub
        limits = agent.manifest.limits
        grants = None
        if with_grants:  # each tool is compared with the grants: slow for many agents and tools
            granted = self._granted.list_granted(build_agent_principal(profile), new_trace())
            grants = [hub.catalog.listed_name(tool) for tool in granted]
        return {
            "runtime": SCRIPT if models[0] == SCRIPT else MODEL,
            "model": models[0],
            "fallbacks": models[1:],
            "source": str(source),
            "parent": profile.parent or None,
            "budget": {"tokens": limits.tokens_per_day, "cost": limits.cost_per_day},
            "grants": grants,
        }

    def find_principal(self, name: str) -> Principal | None:
        profile = self._parts.guards.granted.profiles.get(name)
        return build_agent_principal(profile) if profile is not None else None

    def list_failures(self) -> Mapping[str, str]:
        return dict(self._parts.agents.local.failures)
