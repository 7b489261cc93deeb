"""Reports on views for the API: their rules, their tools, and what these cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.scopes import REGISTRY
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.core.views import NamedView
from dragoman.mcp.protocol.revisions import LATEST
from dragoman.mcp.server.list_pages import ListPages
from dragoman.mcp.server.tool_search import needs_search

DOOR = "mcp-http"


class HubViewReports:
    """Implements `web.api_views.ViewReports`."""

    def __init__(self, hub: Hub, lists: ListPages, style_of: Callable[[str], str]) -> None:
        self._hub, self._lists, self._style_of = hub, lists, style_of

    async def list_views(self, caller: Principal, client: str) -> dict[str, Any]:
        found = []
        for view in self._hub.views.list_views():
            if caller.view in ("", view.name):
                found.append({**self._describe(caller, view), **self._sum(caller, view, client)})
                await asyncio.sleep(0)  # lets calls proceed
        chosen = self._hub.views.find_for_client(client) if client else None
        report: dict[str, Any] = {"views": found, "all": self._sum(caller, EVERYTHING, client)}
        if client:
            report["chosen"] = chosen.name if chosen is not None and not caller.view else None
        return report

    def describe_view(self, caller: Principal, name: str, client: str) -> dict[str, Any] | None:
        view = self._hub.views.find(name)
        if view is None or caller.view not in ("", name):
            return None
        costs = self._lists.list_costs(caller, DOOR, view, LATEST, self._style_of(client))
        return {
            **self._describe(caller, view),
            **self._sum(caller, view, client),
            "list": [
                one._asdict() for one in sorted(costs, key=lambda one: (-one.tokens, one.name))
            ],
        }

    def _sum(self, caller: Principal, view: View, client: str) -> dict[str, Any]:
        costs = self._lists.list_costs(caller, DOOR, view, LATEST, self._style_of(client))
        tokens = sum(one.tokens for one in costs)
        report: dict[str, Any] = {"tools": len(costs), "tokens": tokens, "listed_tokens": tokens}
        if isinstance(view, NamedView):
            report["searching"] = needs_search(view, tokens)
            if report["searching"]:
                shown = self._lists.list_search_costs(caller, DOOR, view, LATEST)
                report["listed_tokens"] = sum(one.tokens for one in shown)
        return report

    def _describe(self, caller: Principal, view: NamedView) -> dict[str, Any]:
        rule = view.rule
        found: dict[str, Any] = {
            "name": view.name,
            "description": rule.description,
            "path": f"/mcp/v/{view.name}",
            "token_budget": rule.token_budget,
            "search": rule.search,
        }
        if self._hub.authorizer.decide_action(caller, REGISTRY).allowed:
            found["rule"] = {
                "include": rule.include,
                "exclude": rule.exclude,
                "servers": rule.servers,
                "agents": rule.agents,
                "tags": rule.tags,
                "rename": dict(rule.rename),
                "describe": sorted(rule.describe),
                "description_chars": rule.description_chars,
            }
        return found
