"""Limits agents to what they were granted, and to what the callers that they serve may do.

An agent with a manifest calls the tools that its grants name, and of these only what every caller
in its chain may call by the policies. Anything else is unknown to it: `Grants` refuses the call as
if the name did not exist, and `GrantedAuthorizer` keeps it out of lists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable

from dragoman.core.call import Call, Result
from dragoman.core.call_chains import RunningCall
from dragoman.core.errors import NotFound
from dragoman.core.local_agents import AgentProfiles
from dragoman.core.pipeline import Next
from dragoman.core.ports import Authorizer, Decision
from dragoman.core.principal import Principal
from dragoman.core.tool import Nowhere, Tool

CanSee = Callable[[Principal, Tool, str], bool]


class Grants:
    def __init__(self, authorizer: GrantedAuthorizer) -> None:
        self._authorizer = authorizer

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        principal, tool = call.principal, call.tool
        if (
            principal.serves
            and not isinstance(tool.target, Nowhere)
            and not self._authorizer.is_granted(principal, tool, call.trace.parent, call.door)
        ):
            raise NotFound(f'there is no {tool.kind} "{call.requested_name[:200]}"')
        return next(call)


class GrantedAuthorizer:
    """Implements `Authorizer`: another one, and the grants of agents."""

    def __init__(self, authorizer: Authorizer, profiles: AgentProfiles) -> None:
        self._authorizer = authorizer
        self._profiles = profiles
        self.reads_arguments = authorizer.reads_arguments
        self.decide = authorizer.decide
        self.decide_action: Callable[..., Decision] = authorizer.decide_action

    @property
    def version(self) -> int:
        return self._authorizer.version + (self._profiles.version << 64)

    def is_granted(
        self, principal: Principal, tool: Tool, above: RunningCall | None, door: str
    ) -> bool:
        """Whether an agent may call the tool on behalf of the running call `above`. Principals
        without a profile have no grants to be limited to."""
        if not self._has_grant(principal, tool):
            return False
        if self._profiles.find(principal) is None:
            return True
        while above is not None:
            caller = above.principal
            if caller is not None and not self._authorizer.can_see(caller, tool, door):
                return False
            above = above.parent
        return True

    def can_list(self, principal: Principal, tool: Tool) -> bool:
        return self._authorizer.can_list(principal, tool) and self._has_grant(principal, tool)

    def can_see(self, principal: Principal, tool: Tool, door: str) -> bool:
        return self._authorizer.can_see(principal, tool, door) and self._has_grant(principal, tool)

    def group_of_principal(self, principal: Principal) -> Hashable:
        group = self._authorizer.group_of_principal(principal)
        profile = self._profiles.find(principal)
        return group if profile is None else (group, profile.name)

    def _has_grant(self, principal: Principal, tool: Tool) -> bool:
        if not principal.serves:
            return True
        profile = self._profiles.find(principal)
        return profile is None or (profile.grants(tool) and tool.target.name != profile.name)
