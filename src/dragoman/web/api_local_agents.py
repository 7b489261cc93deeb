"""`GET /api/agents`: the agents that run in this hub. `POST /api/agents/{name}/call`: calls a tool
as one of them, with what it was granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.admin_audit import record_action
from dragoman.core.errors import AuthorizationError, HubError, InvalidInput, NotFound
from dragoman.core.hub import Hub
from dragoman.core.ports import AuditLog
from dragoman.core.principal import OWNER, Principal
from dragoman.core.scopes import REGISTRY
from dragoman.core.structs import replace
from dragoman.core.taint import NO_ORIGINS
from dragoman.core.tool import Tool
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.core.tool_identity import BUILTIN, WORKFLOW
from dragoman.web.api import (
    CALL_ERRORS,
    QUESTION_MEMBERS,
    ApiRequest,
    ApiResponse,
    build_call_options,
    build_response,
    json_from_result,
    parse_object,
    response_from_error,
)
from dragoman.web.openapi import route
from dragoman.web.openapi_schemas import TEXT

DOOR = "agent"
"""The entry point of the calls of agents, which policies see."""
_SHAPE = (
    'the body must be {"tool": "NAME", "arguments": {…}}, with "can", "answers" and "handle" as in '
    "POST /api/tools/{name}/call"
)
_OWN = frozenset({BUILTIN, WORKFLOW})
"""The targets of tools that do more for the agent than for a caller: built-in ones reach what the
agent was granted, programs too, and the steps of a workflow may call them."""


class LocalAgentSource(Protocol):
    def list_tools(self) -> Sequence[Tool]:
        """Lists the tool of each local agent, by name."""

    def describe(self, name: str, with_grants: bool) -> dict[str, Any]:
        """Describes how an agent runs and what it is granted, for administrators."""

    def find_principal(self, name: str) -> Principal | None:
        """Finds the principal that an agent with grants is when it calls tools."""

    def list_failures(self) -> Mapping[str, str]:
        """Lists why agents could not be loaded, by their name or their folder's."""


class ActingView(View):
    """The tools of an agent that a caller who is not the owner may use as the agent."""

    def __init__(self) -> None:
        super().__init__(EVERYTHING.patterns)
        self.withheld: Tool | None = None
        """The tool that was asked for and is not among them."""

    def includes(self, tool: Tool) -> bool:
        if tool.target.name in _OWN:
            self.withheld = tool
            return False
        return True


@dataclass(frozen=True, slots=True)
class LocalAgentsApi:
    _hub: Hub
    _source: LocalAgentSource
    _audit: AuditLog
    _features: Mapping[str, Any]
    """The capabilities of every client of the API."""

    @route(
        "GET /api/agents",
        "The agents that run in this hub; ?name= for one, ?grants=no without their tools",
        query={"name": TEXT, "grants": {"enum": ["no"]}},
    )
    async def _list(self, request: ApiRequest) -> ApiResponse:
        caller, authorizer = request.caller, self._hub.authorizer
        if request.query.get("grants", "no") != "no":
            raise InvalidInput("grants must be no, or absent")
        name, with_grants = request.query.get("name"), "grants" not in request.query
        is_admin = authorizer.decide_action(caller, REGISTRY).allowed
        found = []
        for tool in self._source.list_tools():
            if tool.agent is None or not authorizer.can_see(caller, tool, "api"):
                continue
            if name is not None and tool.agent.name != name:
                continue
            known = {
                "name": tool.agent.name,
                "description": tool.agent.description,
                "version": tool.agent.version,
                "tool": self._hub.catalog.listed_name(tool),
            }
            more = self._source.describe(tool.agent.name, with_grants) if is_admin else {}
            found.append(known | more)
        failed = dict(self._source.list_failures()) if is_admin else {}
        return build_response({"agents": found, "total": len(found), "failed": failed})

    @route(
        "POST /api/agents/{name}/call",
        "Call a tool as an agent of this hub, for yourself: with its grants and your rights",
        CALL_ERRORS,
        "AgentCall",
        "Result",
        right=REGISTRY,
        media=("text/event-stream",),
    )
    async def _call_as(self, request: ApiRequest) -> ApiResponse:
        caller, name = request.caller, request.names[0]
        body = parse_object(request)
        asked = {member: body.pop(member) for member in QUESTION_MEMBERS if member in body}
        options = build_call_options(request, asked, self._features)
        tool, arguments = body.pop("tool", None), body.pop("arguments", {})
        if options is None or body or not isinstance(tool, str) or not isinstance(arguments, dict):
            raise InvalidInput(_SHAPE)
        agent = self._source.find_principal(name)
        if agent is None or agent.org != caller.org:
            raise NotFound(f'there is no agent "{name[:200]}" with tools in this hub')
        sent = options.trace_context.id if options.trace_context is not None else ""
        # The agent calls on behalf of the caller, as it does while it answers a message: nothing is
        # possible that one of them may not do. The record of the action says who did it. But here
        # the caller chooses the arguments, not the agent's model.
        view = EVERYTHING if caller.kind == OWNER.kind else ActingView()
        with self._hub.chains.hold([(caller, options.door)], NO_ORIGINS, sent) as trace:
            more = {"trace": trace.id, "org": caller.org}
            try:
                with record_action(self._audit, "agent.act_as", agent.label, caller, **more):
                    options = replace(options, door=DOOR, view=view)
                    try:
                        _, result = await self._hub.call_within(
                            trace, agent, tool, arguments, options
                        )
                    except NotFound as error:
                        _explain_withheld(view, caller, agent, error)
                        raise
            except HubError as error:  # the call has its own record
                return response_from_error(error)
        return build_response(json_from_result(result))


def _explain_withheld(view: View, caller: Principal, agent: Principal, error: NotFound) -> None:
    """Raises `AuthorizationError` if the view is why there is no such tool."""
    if not isinstance(view, ActingView) or view.withheld is None:
        return
    refusal = AuthorizationError(
        f'"{view.withheld.name}" was refused: "{caller.label}" may not use built-in tools and '
        f'workflows as agent "{agent.id}", since they reach what the agent was granted; only the '
        "owner of the hub may, in a session of the console that the owner has opened"
    )
    refusal.trace = error.trace
    raise refusal from error
