"""Which principals are offered built-in tools, and what a client that may use them was granted."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from hashlib import sha256

from dragoman.core.local_agents import AGENT, AgentProfile
from dragoman.core.principal import Principal
from dragoman.core.structs import replace
from dragoman.core.tool import Tool
from dragoman.core.tool_identity import BUILTIN
from dragoman.tools.tool_spec import FindProfile


class BuiltinAccess:
    """Agents have the built-in tools that their grants name. Other principals have those that the
    operator has opened to clients; policies must permit the call as well."""

    def __init__(
        self, find_agent: FindProfile, clients: Sequence[str], client_grants: AgentProfile
    ) -> None:
        """`clients` are globs; `client_grants` is what the tools may do for a client, whose name
        replaces that of the profile."""
        self._find_agent = find_agent
        self._clients = tuple(clients)
        self._client_grants = client_grants

    def is_offered(self, principal: Principal, tool: Tool) -> bool:
        """Whether the tool exists for the principal, so that it may be listed and called."""
        if tool.target.name != BUILTIN or self._find_agent(principal) is not None:
            return True
        return principal.kind != AGENT and any(
            fnmatchcase(name, pattern)
            for pattern in self._clients
            for name in (tool.alias, tool.name)
        )

    def find_group(self, principal: Principal) -> bool:
        """Equal for principals with the same offers, of those that are no agents."""
        return principal.kind != AGENT

    def find_profile(self, principal: Principal) -> AgentProfile | None:
        """Finds the agent that the principal is, or else what clients are granted."""
        if (agent := self._find_agent(principal)) is not None:
            return agent
        if principal.kind == AGENT or not self._clients:
            return None
        granted, org = self._client_grants, principal.org
        workspace = granted.workspace
        if org != granted.org:  # files of one org are not those of another
            digest = sha256(org.encode("utf-8", "replace")).hexdigest()[:16]
            workspace = workspace.with_name(f"{workspace.name}-{digest}")
        return replace(granted, name=principal.label, org=org, workspace=workspace)
