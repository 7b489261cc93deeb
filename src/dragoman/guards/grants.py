"""Limits agents to what they were granted, and to what the callers that they serve may do.

Built-in tools exist for agents, and for other principals only where the operator opens them. An
agent with a manifest calls the tools that its grants name, and of these only what every caller
in its chain may call by the policies. Anything else is unknown to it: `Grants` refuses the call as
if the name did not exist, and `GrantedAuthorizer` keeps it out of lists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Protocol

from dragoman.core.call import Call, Result
from dragoman.core.call_chains import RunningCall
from dragoman.core.errors import AuthorizationError, NotFound
from dragoman.core.local_agents import AGENT, AgentProfiles
from dragoman.core.pipeline import Next
from dragoman.core.ports import Authorizer, Decision
from dragoman.core.principal import Principal
from dragoman.core.structs import replace
from dragoman.core.tool import Nowhere, Tool
from dragoman.core.tool_identity import BUILTIN

CanSee = Callable[[Principal, Tool, str], bool]


class OfferRule(Protocol):
    """For which principals tools exist."""

    def is_offered(self, principal: Principal, tool: Tool) -> bool: ...

    def find_group(self, principal: Principal) -> Hashable:
        """A key that is equal for principals with the same offers."""


class Grants:
    def __init__(self, authorizer: GrantedAuthorizer) -> None:
        self._authorizer = authorizer

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        principal, tool, authorizer = call.principal, call.tool, self._authorizer
        if isinstance(tool.target, Nowhere):
            return next(call)
        if not authorizer.is_offered(principal, tool) or (
            principal.serves
            and not authorizer.is_granted(principal, tool, call.trace.parent, call.door)
        ):
            raise NotFound(f'there is no {tool.kind} "{call.requested_name[:200]}"')
        if principal.kind == AGENT and call.trace.parent is not None:
            authorizer.check_callers(call)
        return next(call)


class GrantedAuthorizer:
    """Implements `Authorizer`: another one, and the grants of agents."""

    def __init__(
        self, authorizer: Authorizer, profiles: AgentProfiles, offers: OfferRule | None = None
    ) -> None:
        """`offers` says for which principals tools exist; None: no built-in tools are opened to
        principals other than agents."""
        self._authorizer = authorizer
        self._profiles = profiles
        self._offers = offers
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

    def check_callers(self, call: Call) -> None:
        """Raises `AuthorizationError` unless each caller in the agent's chain may make this call:
        with these arguments and labels, at the entry point that it used."""
        above = call.trace.parent
        while above is not None:
            caller = above.principal
            if caller is not None and caller.kind != AGENT:
                own = replace(call, principal=caller, door=above.door)
                if not self._authorizer.decide(own).allowed:
                    raise AuthorizationError(
                        f'"{call.tool.name}" was refused: the policies do not permit '
                        f'"{caller.label}", for whom agent "{call.principal.id}" calls it'
                    )
            above = above.parent

    def is_offered(self, principal: Principal, tool: Tool) -> bool:
        """Whether the tool exists for the principal."""
        if tool.target.name != BUILTIN:
            return True
        if self._offers is not None:
            return self._offers.is_offered(principal, tool)
        return self._profiles.find(principal) is not None

    def can_list(self, principal: Principal, tool: Tool) -> bool:
        return self._is_known(principal, tool) and self._authorizer.can_list(principal, tool)

    def can_see(self, principal: Principal, tool: Tool, door: str) -> bool:
        return self._is_known(principal, tool) and self._authorizer.can_see(principal, tool, door)

    def group_of_principal(self, principal: Principal) -> Hashable:
        group = self._authorizer.group_of_principal(principal)
        profile = self._profiles.find(principal)
        if profile is not None:
            return group, profile.name
        return group if self._offers is None else (group, self._offers.find_group(principal))

    def _is_known(self, principal: Principal, tool: Tool) -> bool:
        return self.is_offered(principal, tool) and self._has_grant(principal, tool)

    def _has_grant(self, principal: Principal, tool: Tool) -> bool:
        if not principal.serves:
            return True
        profile = self._profiles.find(principal)
        if profile is None:
            return principal.kind != AGENT  # an agent without one was removed meanwhile
        name = tool.target.name
        target = self._profiles.get(name) if tool.agent is not None else None
        is_child = target is not None and target.parent == profile.name
        return (profile.grants(tool) or is_child) and name != profile.name
