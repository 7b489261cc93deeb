"""`GET /api/agents`: the agents that run in this hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.errors import InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.ports import ADMIN
from dragoman.core.tool import Tool
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import route
from dragoman.web.openapi_schemas import TEXT


class LocalAgentSource(Protocol):
    def list_tools(self) -> Sequence[Tool]:
        """Lists the tool of each local agent, by name."""

    def describe(self, name: str, with_grants: bool) -> dict[str, Any]:
        """Describes how an agent runs and what it is granted, for administrators."""

    def list_failures(self) -> Mapping[str, str]:
        """Lists why agents could not be loaded, by their name or their folder's."""


@dataclass(frozen=True, slots=True)
class LocalAgentsApi:
    _hub: Hub
    _source: LocalAgentSource

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
        is_admin = authorizer.decide_action(caller, ADMIN).allowed
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
