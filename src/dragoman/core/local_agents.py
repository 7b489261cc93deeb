"""What the hub grants to its own agents, and where built-in tools find it.

A grant is a set of patterns. Absence means no: an agent without patterns may call nothing. Knows
neither manifests nor models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.tool import Tool
from dragoman.core.tool_identity import BUILTIN, HUB
from dragoman.core.usage import Budget

_WILD = re.compile(r"[*?[]")
AGENT = "agent"
"""The kind of the principal that a local agent is when it calls."""
SCHEDULE = "schedule"
"""The kind of the principal that runs a schedule, and the entry point of its calls."""


class AgentSchedule(Struct, frozen=True, kw_only=True):
    """A message that an agent gets by the clock, as its manifest says."""

    time: str
    message: str
    zone: str = "UTC"


class AgentProfile(Struct, frozen=True, kw_only=True):
    """A local agent and what it was granted. Patterns are globs."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    org: str = "default"
    parent: str = ""
    """The agent that has spawned it; empty for one with a manifest."""
    workspace: Path
    """The folder of its files."""
    tools: tuple[str, ...] = ()
    """Canonical names, aliases and names of built-in tools."""
    servers: tuple[str, ...] = ()
    """MCP servers all of whose tools it may call."""
    skills: tuple[str, ...] = ()
    """Skills whose texts it may read and whose tools it may call."""
    agents: tuple[str, ...] = ()
    """Agents that it may call, message and kill."""
    can_spawn: bool = False
    shell: tuple[str, ...] = ()
    """Commands that it may run, with their arguments: "git diff *"."""
    network: tuple[str, ...] = ()
    """Hosts that it may fetch from: "*.example.org"; "*" for every public one."""
    memory_read: tuple[str, ...] = ()
    """Keys that it may recall: "self.*", "shared.*"."""
    memory_write: tuple[str, ...] = ()
    schedules: tuple[AgentSchedule, ...] = ()
    budget: Budget = Budget()
    """What it may use per day, together with the agents that it has started."""

    def grants(self, tool: Tool) -> bool:
        """Whether the agent may see and call the tool."""
        if tool.agent is not None and matches_any(tool.target.name, self.agents):
            return True
        facts = tool.target.traits.facts
        if facts.type == "Server" and tool.target.name not in (BUILTIN, HUB):
            granted = self.skills if facts.transport == "skill" else self.servers
            if matches_any(tool.target.name, granted):
                return True
        names = (tool.name, tool.alias, tool.other_names.get("spelled", tool.name))
        if any(matches_any(name, self.tools) for name in names):
            return True
        return any(name in self.tools for name in tool.fallback_names)


def fold_tool_pattern(pattern: str) -> str:
    """`fs:read_file` is OpenStarry's spelling of the tool `fs.read_file`."""
    return pattern.replace(":", ".", 1) if "." not in pattern else pattern


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the globs matches."""
    for pattern in patterns:
        if pattern in ("*", name):
            return True
        if _WILD.search(pattern) is not None and fnmatchcase(name, pattern):
            return True
    return False


class AgentProfiles:
    """The profiles of the agents that have one, by name."""

    def __init__(self) -> None:
        self._profiles: dict[str, AgentProfile] = {}
        self.version = 0
        """Changes with every profile."""
        self._sorted: tuple[int, tuple[AgentProfile, ...]] = 0, ()
        """By name, of a version."""

    def find(self, principal: Principal) -> AgentProfile | None:
        """Finds the agent that the principal is; None for other principals."""
        return self._profiles.get(principal.serves) if principal.serves else None

    def get(self, name: str) -> AgentProfile | None:
        return self._profiles.get(name)

    def list_ancestors(self, name: str) -> list[AgentProfile]:
        """Lists the agents that have started an agent, the first one first."""
        found: list[AgentProfile] = []
        profile = self.get(name)
        while profile is not None and profile.parent and len(found) < len(self._profiles):
            profile = self.get(profile.parent)
            if profile is not None:
                found.append(profile)
        return found[::-1]

    def add(self, profile: AgentProfile) -> None:
        self._profiles[profile.name] = profile
        self.version += 1

    def remove(self, name: str) -> None:
        if self._profiles.pop(name, None) is not None:
            self.version += 1

    def list_all(self) -> list[AgentProfile]:
        if self._sorted[0] != self.version:
            profiles = tuple(self._profiles[name] for name in sorted(self._profiles))
            self._sorted = self.version, profiles
        return list(self._sorted[1])


class AgentDirectory(Protocol):
    """The local agents, as built-in tools see them."""

    def find_profile(self, principal: Principal) -> AgentProfile | None:
        """Finds the agent that the principal is; None for other principals."""

    def list_profiles(self) -> list[AgentProfile]: ...

    async def spawn(self, parent: AgentProfile, manifest: Mapping[str, Any]) -> AgentProfile:
        """Starts an agent whose grants are not wider than its parent's. Raises `InvalidInput`."""

    async def kill(self, name: str, by: AgentProfile) -> None:
        """Ends a spawned agent and its running work. Raises `NotFound` or `InvalidInput`."""


def build_agent_principal(profile: AgentProfile) -> Principal:
    """The principal that a local agent is when it calls tools."""
    return Principal(AGENT, profile.name, profile.org, serves=profile.name)
