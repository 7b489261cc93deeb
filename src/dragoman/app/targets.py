"""Servers, agents and skills by name: what the configuration says of one, and where it is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.agents.manifest_agents import LocalAgent
from dragoman.agents.skills.skill_book import SkillTable
from dragoman.app.config_watch import LiveConfig
from dragoman.app.policy_admin.known_ids import list_configured
from dragoman.core.ports import Viewer
from dragoman.core.tool import Target, TargetFacts, Tool
from dragoman.core.tool_identity import RESERVED
from dragoman.mcp.client.upstream_manager import UpstreamManager
from dragoman.mcp.protocol.tool_names import build_canonical_name
from dragoman.pins.review import HOLD, OFF, STRICT


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """The settings of targets, whether they are connected or not."""

    _live: LiveConfig
    _registered: RegisteredAgents
    _local: Mapping[str, LocalAgent]
    _skills: SkillTable

    def find_pin_mode(self, target: str) -> str:
        """The definitions of local agents, built-in tools and workflows are trusted, and skills are
        pinned by their files; an unknown target is pinned strictly."""
        config = self._live.config
        if target in RESERVED or target in self._local:
            return OFF
        if any(one.name == target for one in config.agents):
            return OFF
        for server in config.mcp_servers:
            if server.name == target:
                return server.pin
        found = self._registered.find_pin_mode(target)
        return found or (OFF if target in self._skills else STRICT)

    def quarantines_additions(self, target: str) -> bool:
        config = self._live.config
        servers = [one.additions for one in config.mcp_servers if one.name == target]
        own = servers[0] if servers else self._registered.find_additions_mode(target)
        return (own or config.policy.additions) == HOLD

    def list_namespaces(self) -> dict[str, str]:
        """The targets by the prefix of their canonical names."""
        names = [*list_configured(self._live.config), *self._local, *self._skills.list_names()]
        configured = {build_canonical_name(name, "").rstrip("."): name for name in names}
        return configured | self._registered.list_namespaces()


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets themselves, connected or not."""

    _upstreams: UpstreamManager
    _local: Mapping[str, LocalAgent]
    _registered: RegisteredAgents
    _skills: SkillTable

    def find(self, name: str) -> Target | None:
        return (
            self._upstreams.find(name)
            or self._local.get(name)
            or self._registered.find_target(name)
            or self._skills.find_target(name)
        )

    def find_facts(self, name: str) -> TargetFacts | None:
        found = self.find(name)
        return found.traits.facts if found is not None else None

    def list_needed(self, viewer: Viewer) -> frozenset[str]:
        """Implements `core.logins.LoginNeeds`."""
        needing = self._upstreams.list_needing_login(viewer)
        return needing | self._registered.list_needing_login(viewer)

    def list_login_tools(self) -> list[Tool]:
        return self._upstreams.list_login_tools()

    def note_login(self, name: str, holder: str) -> None:
        """The credential of a holder at a server or agent is new, or was removed."""
        if (upstream := self._upstreams.find(name)) is not None:
            upstream.note_login(holder)
        else:
            self._registered.recheck(name)

    def find_absent(self, name: str) -> tuple[Target, str] | None:
        """Finds the target in whose namespace `name` is, of those never connected, and why."""
        return self._upstreams.find_absent(name) or self._registered.find_absent(name)
