"""`GET /api/agents`: the agents that run in this hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.hub import Hub
from dragoman.core.ports import ADMIN
from dragoman.core.tool import Tool
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import route


class LocalAgentSource(Protocol):
    def list_tools(self) -> Sequence[Tool]:
        """Lists the tool of each local agent, by name."""

    def describe(self, name: str) -> dict[str, Any]:
        """Describes how an agent runs and what it is granted, for administrators."""

    def list_failures(self) -> Mapping[str, str]:
        """Lists why agents could not be loaded, by their name or their folder's."""


@dataclass(frozen=True, slots=True)
class LocalAgentsApi:
    _hub: Hub
    _source: LocalAgentSource

    @route("GET /api/agents", "The agents that run in this hub")
    async def _list(self, request: ApiRequest) -> ApiResponse:
        caller, authorizer = request.caller, self._hub.authorizer
        is_admin = authorizer.decide_action(caller, ADMIN).allowed
        found = []
        for tool in self._source.list_tools():
            if tool.agent is None or not authorizer.can_see(caller, tool, "api"):
                continue
            known = {
                "name": tool.agent.name,
                "description": tool.agent.description,
                "version": tool.agent.version,
                "tool": self._hub.catalog.listed_name(tool),
            }
            found.append(known | (self._source.describe(tool.agent.name) if is_admin else {}))
        failed = dict(self._source.list_failures()) if is_admin else {}
        return build_response({"agents": found, "total": len(found), "failed": failed})
