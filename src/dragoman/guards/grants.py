"""Limits credentials to their scopes, and agents to their grants and to what their callers may do.

Built-in tools exist for agents, and for other principals only where the operator opens them. An
agent with a manifest calls the tools that its grants name, and of these only what every caller
in its chain may call by the policies. Anything else is unknown to it: `Grants` refuses the call as
if the name did not exist, and `GrantedAuthorizer` keeps it out of lists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Sequence
from typing import Protocol

from dragoman.core.access import WhyEnded, build_missing_scope, find_missing_scope, require_scope
from dragoman.core.approvals import join_rules
from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains, RunningCall
from dragoman.core.errors import AuthorizationError, NotFound
from dragoman.core.hub import Hub
from dragoman.core.kept_results import KeptResult
from dragoman.core.local_agents import AGENT, SCHEDULE, AgentProfiles
from dragoman.core.pipeline import Next
from dragoman.core.ports import (
    ADMIN_ACTIONS,
    Authorizer,
    Decision,
)
from dragoman.core.principal import SERVER, USER, WORKFLOW, Principal
from dragoman.core.scopes import APPROVE, CALL, LIST
from dragoman.core.structs import replace
from dragoman.core.tool import TOOL, Nowhere, Tool
from dragoman.core.tool_identity import BUILTIN
from dragoman.core.trace import Trace
from dragoman.core.views import Views


class OfferRule(Protocol):
    """For which principals tools exist."""

    def is_offered(self, principal: Principal, tool: Tool) -> bool: ...

    def find_group(self, principal: Principal) -> Hashable:
        """A key that is equal for principals with the same offers."""


_ENDING = ("key", USER, SERVER)
"""The kinds of principals that lose their access; the hub's own user does not."""
_FOR_OTHERS = (AGENT, SCHEDULE)
"""The kinds of principals that call on behalf of others."""
_WITH_CALLERS = (*_FOR_OTHERS, WORKFLOW)
"""Those, and the kind that calls for the author of its definition besides: both need to be
permitted."""


class Grants:
    def __init__(self, authorizer: GrantedAuthorizer) -> None:
        self._authorizer = authorizer

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        principal, tool, authorizer = call.principal, call.tool, self._authorizer
        if CALL not in principal.rights:  # first: it may not learn which tools there are
            raise build_missing_scope(principal, CALL, f'"{call.requested_name[:200]}"')
        if isinstance(tool.target, Nowhere):
            return next(call)
        if call.task is not None and call.cancels:
            return next(call)  # it ends what the principal was permitted to begin
        if not authorizer.is_offered(principal, tool) or (
            principal.serves
            and not authorizer.is_granted(principal, tool, call.trace.parent, call.door)
        ):
            raise NotFound(f'there is no {tool.kind} "{call.requested_name[:200]}"')
        if principal.kind in _WITH_CALLERS and call.trace.parent is not None:
            authorizer.check_callers(call)
        return next(call)


class GrantedAuthorizer:
    """Implements `Authorizer`: another one, and the grants of agents."""

    def __init__(
        self,
        authorizer: Authorizer,
        profiles: AgentProfiles,
        offers: OfferRule | None = None,
        why_ended: WhyEnded = lambda principal: "",
        views: Views | None = None,
    ) -> None:
        """`offers` says for which principals tools exist; None: no built-in tools are opened to
        principals other than agents. `why_ended` says why a principal is not served any more.
        `views` are those that principals may be bound to."""
        self._why_ended = why_ended
        self._authorizer = authorizer
        self.profiles = profiles
        self._offers = offers
        self.reads_arguments = authorizer.reads_arguments
        self.decide = authorizer.decide
        self._views = Views() if views is None else views

    @property
    def version(self) -> int:
        return self._authorizer.version + (self.profiles.version << 64)

    def is_granted(
        self, principal: Principal, tool: Tool, above: RunningCall | None, door: str
    ) -> bool:
        """Whether an agent may call the tool on behalf of the running call `above`. Principals
        without a profile have no grants to be limited to."""
        if not self.has_grant(principal, tool):
            return False
        if self.profiles.find(principal) is None:
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
        above, principal = call.trace.parent, call.principal
        while above is not None:
            caller = above.principal
            if caller is not None and caller.kind not in _FOR_OTHERS and caller != principal:
                require_scope(caller, CALL, f'"{call.tool.name}"')
                if not above.target:  # no request of the caller is open, which would be ended
                    self._check_served(call, caller)
                own = replace(call, principal=caller, door=above.door)
                decision = self._authorizer.decide(own)
                if not decision.allowed:
                    raise AuthorizationError(
                        f'"{call.tool.name}" was refused: the policies do not permit '
                        f'"{caller.label}", for whom {_describe(principal)} calls it'
                    )
                if decision.approval is not None:  # an agent must not be a way around it
                    call.notes.approval = join_rules(call.notes.approval, decision.approval)
            above = above.parent

    def _check_served(self, call: Call, caller: Principal) -> None:
        """A key may have been revoked since a schedule was created for it."""
        if caller.kind in _ENDING and (why := self._why_ended(caller)):
            raise AuthorizationError(
                f'"{call.tool.name}" was refused: "{caller.label}", for whom '
                f"{_describe(call.principal)} calls it, is not served any more: {why}"
            )

    def may_call(self, call: Call) -> bool:
        """Whether the grants and the policies would let the call pass, if it were made."""
        principal, tool, above = call.principal, call.tool, call.trace.parent
        if (
            CALL not in principal.rights
            or not self.is_offered(principal, tool)
            or (principal.serves and not self.is_granted(principal, tool, above, call.door))
        ):
            return False
        if principal.kind in _WITH_CALLERS and above is not None:
            try:
                self.check_callers(call)
            except AuthorizationError:
                return False
        return self.decide(call).allowed

    def decide_action(
        self, principal: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        """The credential must be for it. A principal that is bound to a view knows of nothing else,
        so it administers nothing."""
        if find_missing_scope(principal.rights, action):
            return Decision(False)
        if principal.view and (
            action in ADMIN_ACTIONS
            or (action == APPROVE and tool is None)
            or not self._is_in_view(principal, tool)
        ):
            return Decision(False)
        return self._authorizer.decide_action(principal, action, tool, owner=owner)

    def _is_in_view(self, principal: Principal, tool: Tool | None) -> bool:
        if tool is None:
            return True
        if isinstance(tool.target, KeptResult):
            tool = tool.target.origin
        return self._views.get_bound(principal.view).includes(tool)

    def is_offered(self, principal: Principal, tool: Tool) -> bool:
        """Whether the tool exists for the principal."""
        if principal.view and not self._is_in_view(principal, tool):
            return False
        if tool.target.name != BUILTIN:
            return True
        if self._offers is not None:
            return self._offers.is_offered(principal, tool)
        return self.profiles.find(principal) is not None

    def can_list(self, principal: Principal, tool: Tool) -> bool:
        return self._is_known(principal, tool) and self._authorizer.can_list(principal, tool)

    def can_see(self, principal: Principal, tool: Tool, door: str) -> bool:
        return self._is_known(principal, tool) and self._authorizer.can_see(principal, tool, door)

    def group_of_principal(self, principal: Principal) -> Hashable:
        group = self._authorizer.group_of_principal(principal)
        if LIST not in principal.rights:
            group = group, "lists nothing"
        if principal.view:
            group = group, principal.view
        profile = self.profiles.find(principal)
        if profile is not None:
            return group, profile.name
        return group if self._offers is None else (group, self._offers.find_group(principal))

    def _is_known(self, principal: Principal, tool: Tool) -> bool:
        return (
            LIST in principal.rights
            and self.is_offered(principal, tool)
            and self.has_grant(principal, tool)
        )

    def has_grant(self, principal: Principal, tool: Tool) -> bool:
        """Whether the grants of the agent, if it is one, name the tool."""
        if not principal.serves:
            return True
        profile = self.profiles.find(principal)
        if profile is None:
            return principal.kind != AGENT  # an agent without one was removed meanwhile
        name = tool.target.name
        target = self.profiles.get(name) if tool.agent is not None else None
        is_child = target is not None and target.parent == profile.name
        return (profile.grants(tool) or is_child) and name != profile.name


def _describe(principal: Principal) -> str:
    kind = WORKFLOW if principal.kind == WORKFLOW else AGENT
    return f'{kind} "{principal.id}"'


class GrantedTools:
    """Lists the tools of agents, without those that are not for models. Implements
    `agents.model_agent.AgentHub`."""

    def __init__(
        self, hub: Hub, chains: CallChains, authorizer: GrantedAuthorizer, door: str
    ) -> None:
        """`door` is the entry point of calls that agents make."""
        self._hub, self._chains, self._authorizer, self._door = hub, chains, authorizer, door
        self.call_within = hub.call_within
        self._version = (-1, -1)
        self._named: dict[str, Sequence[Tool]] = {}
        """The tools that the grants of an agent name, while the catalog stays as it is."""

    def list_granted(self, principal: Principal, trace: Trace) -> list[Tool]:
        authorizer, door = self._authorizer, self._door
        above = self._chains.find_running(trace)
        hidden = self._hub.list_client_only_names(TOOL)
        return [
            tool
            for tool in self._list_named(principal)
            if tool.name not in hidden
            and authorizer.can_see(principal, tool, door)
            and authorizer.is_granted(principal, tool, above, door)
        ]

    def _list_named(self, principal: Principal) -> Sequence[Tool]:
        """Policies are not asked about the many tools that the grants do not name."""
        catalog, profiles = self._hub.catalogs[TOOL], self._authorizer.profiles
        version = catalog.version, profiles.version
        if version != self._version:
            self._version, self._named = version, {}
        agent = principal.serves or ""
        found = self._named.get(agent)
        if found is None:
            has_grant = self._authorizer.has_grant
            found = [
                one
                for one in catalog.list_tools()
                if one.is_for_models and has_grant(principal, one)
            ]
            self._named[agent] = found
        return found
